"""Steps that drop and make again: fewer bytes, the same bits; what is no level is refused."""

import copy
import pickle
import random
import re

import numpy as np
import pytest

import singanet
from singanet import Input, layers
from singanet.engine.recompute.units import dropped_alone
from singanet.errors import ArgumentError
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.models import build
from singanet.optimizer import SGD
from singanet.program import recompute
from tests.charts import HERE
from tests.program import plans
from tests.program.twins import Twins


def sgd():
    return SGD(lr=0.05, momentum=0.9)


def residual_images(blocks=4):
    """Normalised convolutions around which their input is added again; relu and dropout."""
    x = Input("x", (4, 8, 8))
    h = x
    for k in range(blocks):
        y = BatchNormalization(f"norm{k}")(Conv2D(f"conv{k}", 4, 3)(h))
        y = Dropout(f"drop{k}", 0.3)(Activation(f"act{k}")(y))
        h = Activation(f"out{k}")(layers.Add(f"sum{k}")([y, h]))
    outputs = Dense("dense", 5)(Flatten("flat")(h))
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=outputs, seed=3)


def batch_of(net, count=8, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *net.nodes()[0].layer.in_shapes)).astype(np.float32)
    return x, rng.integers(0, 5, count)


def recorded(net, level, count=8):
    x, y = batch_of(net, count)
    return net.record(x, y, sgd(), recompute=level)


def arena(program):
    return program.report().layout.nbytes


def train(twins, level, steps=4):
    twins.recorded.programs.recompute = level
    for k in range(steps):
        twins.step(*batch_of(twins.recorded, seed=k))
    return twins.recorded.programs.reports()[-1]


# -- levels ---------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [residual_images, lambda: build("resnet20", (3, 8, 8), 5, seed=0)])
def test_cheap_takes_less_and_gives_the_same_bits(make):
    kept = arena(recorded(make(), "none"))
    twins = Twins(make, sgd)
    report = train(twins, "cheap")
    assert report.layout.nbytes < 0.85 * kept
    assert twins.expect_recorded() == []
    # Products and draws do not run twice.
    again = [kernel for kernel in report.kernels if kernel.phase == "recompute"]
    first = [kernel for kernel in report.kernels if kernel.phase == "forward"]
    assert 0 < len(again) == report.recomputed_kernels < len(first)
    assert not {"uniform", "product"} & {kernel.name for kernel in again}


@pytest.mark.parametrize("part", [0.9, 0.75, 0.6])
def test_a_budget_is_kept_and_gives_the_same_bits(part):
    budget = int(part * arena(recorded(residual_images(8), "none")))
    report = train(Twins(lambda: residual_images(8), sgd), budget)
    assert report.layout.nbytes <= budget
    assert report.recomputed_kernels


def test_a_budget_with_room_changes_nothing():
    net = residual_images()
    kept = recorded(net, "none").report()
    same = recorded(net, kept.layout.nbytes).report()
    assert same.recomputed_kernels == kept.recomputed_kernels == 0
    assert same.layout == kept.layout


def test_a_budget_recomputes_what_cheap_does_not():
    net = residual_images(8)
    cheap = arena(recorded(net, "cheap"))
    less = recorded(net, cheap - 1).report()
    assert less.layout.nbytes < cheap
    assert less.recomputed_kernels > 0


def test_a_budget_that_cannot_be_kept_tells_what_can():
    net = residual_images()
    with pytest.raises(ArgumentError, match="recompute: .* received 1; .* smaller batch") as caught:
        recorded(net, 1)
    found = re.search(r"the least found is ([\d,]+)", str(caught.value))
    least = int(found[1].replace(",", ""))
    assert 0.8 * least < arena(recorded(net, least)) <= least
    with pytest.raises(ArgumentError, match=f"received {least // 2:,};"):
        recorded(net, least // 2)


def test_a_step_under_such_a_budget_says_so_and_leaves_the_net():
    net, optimizer = residual_images(), sgd()
    x, y = batch_of(net)
    net.step(x, y, optimizer)
    net.programs.recompute = 1
    before = [value.copy() for value in net.param_values()]
    with pytest.raises(ArgumentError, match="the least found"):
        net.step(x, y, optimizer)
    np.testing.assert_equal(before, net.param_values())
    net.programs.recompute = "none"
    net.step(x, y, optimizer)


@pytest.mark.parametrize("level", ["all", "Cheap", True, False, 0, -4096, 1e9, (), np.float32(5)])
def test_what_is_no_level_is_refused(level):
    net = residual_images(1)
    x, y = batch_of(net)
    told = "expected 'none', 'cheap', 'blocks', 'sqrt', 'optimal', or the bytes .* received"
    with pytest.raises(ArgumentError, match=rf"net\.record, recompute: {told}"):
        net.record(x, y, sgd(), recompute=level)
    with pytest.raises(ArgumentError, match=rf"net\.memory, recompute: {told}"):
        net.memory(4, recompute=level)
    with pytest.raises(ArgumentError, match=rf"net\.programs, recompute: {told}"):
        net.programs.recompute = level
    assert net.programs.recompute == "none"


def test_numpys_integers_are_bytes():
    net = residual_images(1)
    budget = np.int64(arena(recorded(net, "none")))
    assert arena(recorded(net, budget)) == budget


def test_copies_and_pickles_keep_the_level():
    net = residual_images(1)
    net.programs.recompute = "cheap"
    assert copy.deepcopy(net).programs.recompute == "cheap"
    assert pickle.loads(pickle.dumps(net)).programs.recompute == "cheap"


def test_the_level_of_the_net_is_that_of_its_programs():
    net = residual_images()
    x, y = batch_of(net)
    net.programs.recompute = "cheap"
    report = net.record(x, y, sgd()).report()
    assert report.recomputed_kernels
    assert net.record(x, y, sgd(), recompute="none").report().recomputed_kernels == 0
    assert net.record(x).report().recomputed_kernels == 0


def test_the_first_step_is_recorded_since_the_layers_would_take_it_all():
    for level, count in (("none", 0), ("cheap", 1), (1 << 40, 1)):
        net = residual_images()
        net.programs.recompute = level
        net.step(*batch_of(net), sgd())
        assert len(net.programs.reports()) == count


def test_another_level_is_recorded_anew():
    twins = Twins(residual_images, sgd)
    for level in ("none", "cheap", "none", "cheap"):
        report = train(twins, level, 3)
        assert bool(report.recomputed_kernels) == (level == "cheap")


# -- what is told ---------------------------------------------------------------------------


def test_reports_tell_what_runs_again_and_what_that_saves():
    net = residual_images()
    kept, program = arena(recorded(net, "none")), recorded(net, "cheap")
    program.run(*batch_of(net), timed=True)
    report = program.report()
    saved = kept - report.layout.nbytes
    assert report.kept_bytes == kept
    figures = report.as_dict()
    told = figures["recomputed"]
    assert (told["kernels"], told["bytes saved"]) == (report.recomputed_kernels, saved)
    assert f"recomputed by {report.recomputed_kernels} kernels" in report.table(0)
    assert f"{saved / kept:.0%} saved" in report.table(0)
    phase = report.phases()["recompute"]
    assert phase.kernels == report.recomputed_kernels
    assert phase.seconds > 0
    if HERE:
        assert "recompute" in report.plot()
    assert "recomputed" not in recorded(net, "none").report().table(0)


def test_memory_is_predicted_with_what_is_dropped():
    net = residual_images(8)
    told = {level: net.memory(16, sgd(), recompute=level) for level in ("none", "cheap")}
    assert told["cheap"].parts["arena"] < 0.8 * told["none"].parts["arena"]
    for level, memory in told.items():
        # The loss's kernels come on top, and let other buffers be chosen.
        more = arena(recorded(net, level, 16)) - memory.parts["arena"]
        assert abs(more) <= 0.05 * memory.total
    net.programs.recompute = "cheap"
    assert net.memory(16, sgd()).parts == told["cheap"].parts
    budget = int(0.9 * told["none"].parts["arena"])
    assert net.memory(16, recompute=budget).parts["arena"] <= budget


# -- whatever can be dropped is dropped -----------------------------------------------------


def drop_all(monkeypatch, seed=0):
    """Let programs that recompute run units again by chance; how many of them, in all."""
    counts = {"dropped": 0, "again": 0}
    draw = random.Random(seed)

    def at_random(units, *_, **__):
        may = [k for k, unit in enumerate(units.units) if unit.again]
        dropped = {k for k in may if draw.random() < (0.9, 0.5, 0.7, 0.3)[seed % 4]}
        ops = dropped_alone(units, dropped)
        counts["dropped"] += len(dropped)
        counts["again"] += len(ops) - 2 * len(units)
        return ops

    class Anyhow(recompute.Choice):
        def plans(self, level, reached):
            # One order each, though it is asked twice: for the calls and for the table.
            known = {}

            def plan(plans):
                units = plans.units
                if id(units) not in known:
                    known[id(units)] = units, at_random(units)
                return known[id(units)][1]

            yield plan, "by chance"

    monkeypatch.setattr(recompute, "Choice", Anyhow)
    monkeypatch.setattr(recompute, "worth", lambda made, kept: True)
    return counts


NODES = {
    "vectors": ("dense", "layer norm", "tanh", "batch norm", "dropout", "relu", "shared"),
    "images": ("conv", "batch norm", "relu", "dropout", "conv", "batch norm", "relu"),
    "words": ("lstm", "tanh", "gru", "dropout", "relu", "shared"),
    # What a layer's own Python has seen stays where it lies.
    "vectors, python": ("dense", "batch norm", "relu", "probe", "dense", "tanh", "add"),
}
DONE = tuple(plans.Action(kind) for kind in ("loop", "pause", "train"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NODES)
def test_plans_that_drop_all_they_can(name, seed, monkeypatch):
    counts = drop_all(monkeypatch, seed)
    nodes = (*map(plans.Node, NODES[name]), plans.Node("add", 0, 3))
    values = name.partition(",")[0]
    run = plans.Run(plans.Plan(values, nodes, optimizer="adam", recompute="cheap", actions=DONE))
    run.run()
    assert counts["dropped"] > 1
    assert max(r.recomputed_kernels for r in run.recorded.programs.reports())
