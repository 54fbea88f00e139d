"""Tuning measures every convolution of a net, keeps the quickest routes, changes nothing else."""

import math
from collections import Counter

import numpy as np
import pytest

import singanet
from singanet import layers
from singanet.errors import ArgumentError, BackendError, FileAccessError
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import costs, cpu_ops, numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.costs import ROUTES, Case, Costs
from singanet.ops.onednn import OneDnnOps
from singanet.ops.window import Window
from singanet.optimizer import SGD
from singanet.program import tuning as timing
from singanet.program.prediction.compiled import ConstantNet
from singanet.testing import strict_device
from tests.program.twins import Twins

USUAL = Window((3, 3), (1, 1), ((1, 1), (1, 1)))

TILES = {"compiled"} if has_compiler() else set()
"""The route by tiles that 3×3 kernels have here."""


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where choices are kept; none are known."""
    ops = cpu_ops()
    if not isinstance(ops, OneDnnOps) or ops.runtime() is None:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    monkeypatch.setattr(ops, "chooser", Costs())
    return named


def net_of(*parts):
    first = Conv2D("first", 8, 3, input_sample_shape=(3, 8, 8))
    parts = [first, *parts, Flatten("flat"), Dense("out", 5)]
    return singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=3)


def make():
    return net_of(
        BatchNormalization("norm"), Activation("relu"), Dropout("drop", 0.3),
        layers.DepthwiseConv2D("depthwise", 3), Conv2D("pointwise", 8, 1), Conv2D("third", 8, 3),
        Conv2D("fourth", 8, 3),
    )  # fmt: skip


def batch(size=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, 3, 8, 8)).astype(np.float32)
    return x, rng.integers(0, 5, size)


@pytest.fixture
def every_route(monkeypatch):
    """All that is open is measured, whatever is estimated."""
    monkeypatch.setattr(timing, "_WORTH", math.inf)


def test_every_convolution_is_measured_by_every_open_route(path, every_route):
    report = make().tune_kernels(4)
    rows = {(row.case.kernel, row.case.weight): row for row in report.rows}
    single = {"direct", "numpy", "product"}
    usual = single | TILES
    assert set(rows[("forward", (8, 8, 3, 3))].seconds) == usual
    assert set(rows[("weights", (8, 8, 3, 3))].seconds) == usual
    assert set(rows[("data", (8, 8, 3, 3))].seconds) == usual - {"product"}
    assert set(rows[("data", (8, 8, 1, 1))].seconds) == single
    assert set(rows[("forward", (8, 1, 3, 3))].seconds) == {"direct", "numpy"}
    # The input's gradient is wanted by nobody.
    assert ("data", (8, 3, 3, 3)) not in rows
    assert rows[("forward", (8, 8, 3, 3))].calls == 2
    assert all(0 < taken < 1 for row in report.rows for taken in row.seconds.values())
    assert all(row.chosen in row.seconds for row in report.rows)
    threads = cpu_ops().runtime().threads
    assert (report.threads, report.known, report.path) == (threads, 0, path)
    kept = costs.read(cpu_ops().runtime().library.version).choices
    assert kept == {threads: {row.case: row.chosen for row in report.rows}}


def test_the_net_is_left_as_it_was(path):
    net, twin = make(), make()
    x, y = batch()
    for one in (net, twin):
        sgd = SGD(lr=0.1)
        for _ in range(3):
            one.step(x, y, sgd)
    assert net.programs.reports()
    net.tune_kernels(4)
    assert net.programs.reports() == []
    assert net.rng.bit_generator.state == twin.rng.bit_generator.state
    np.testing.assert_equal(net.param_values(), twin.param_values())


def fixed_times(monkeypatch, seconds):
    """Let every case take ``seconds(route, estimate)``, where ``estimate`` is its cheapest route.

    Which one that is, depends on the processor.
    """
    monkeypatch.setattr(timing, "_WORTH", math.inf)
    monkeypatch.setattr(
        timing.Stopwatch,
        "seconds",
        lambda watch, case, met: {r: seconds(r, met.routes[0]) for r in met.routes},
    )


@pytest.mark.parametrize("route", [each for each in ROUTES if each != "blocked"])
def test_the_fastest_is_taken_from_then_on_and_programs_repeat_it(path, monkeypatch, route):
    fixed_times(monkeypatch, lambda other, estimate: 0.5 if other == route else 1.0)
    x, _ = batch()
    before = make().forward(False, x)
    report = make().tune_kernels(4)
    open_to = [row for row in report.rows if route in row.seconds]
    assert open_to
    assert all(row.chosen == route for row in open_to)
    assert report.chosen_seconds <= report.estimated_seconds
    twins = Twins(make, lambda: SGD(lr=0.1, momentum=0.9))
    for k in range(4):
        twins.step(*batch(seed=k))
    assert twins.expect_recorded() == []
    np.testing.assert_allclose(make().forward(False, x), before, rtol=0, atol=1e-5)


def test_a_difference_within_the_noise_leaves_the_estimate(path, monkeypatch):
    fixed_times(monkeypatch, lambda route, estimate: 1.0 if route == estimate else 0.97)
    report = make().tune_kernels(4)
    assert report.rows
    assert all(row.chosen == row.estimate for row in report.rows)
    assert report.chosen_seconds == report.estimated_seconds


def test_what_estimates_tell_apart_is_not_run(path, monkeypatch):
    monkeypatch.setattr(timing.Stopwatch, "__init__", lambda watch, ops, threads: None)
    asked = []

    def seconds(watch, case, met):
        asked.append(met)
        return dict.fromkeys(met.routes, 1.0)

    monkeypatch.setattr(timing.Stopwatch, "seconds", seconds)
    report = make().tune_kernels(4)
    assert len(report.rows) == len(asked)
    for met in asked:
        least = min(met.estimates.values())
        assert len(met.routes) > 1
        assert all(met.estimates[route] <= 1.3 * least for route in met.routes)


def test_programs_of_other_nets_are_recorded_anew(path, monkeypatch):
    x, _ = batch()
    other = make()
    for _ in range(3):
        estimated = other.forward(False, x)
    fixed_times(monkeypatch, lambda route, estimate: 1.0 if route == estimate else 0.5)
    make().tune_kernels(4)
    measured = [other.forward(False, x) for _ in range(3)]
    assert not np.array_equal(measured[0], estimated)
    for again in measured[1:]:
        np.testing.assert_array_equal(again, measured[0])


def test_known_cases_are_not_measured_again_unless_asked(path, monkeypatch):
    first = make().tune_kernels(4)

    def refuse(*arguments):
        raise AssertionError("something was measured")

    with monkeypatch.context() as patch:
        patch.setattr(timing.Stopwatch, "seconds", refuse)
        second = make().tune_kernels(4)
    assert (second.rows, second.known) == ((), len(first.rows))
    assert "0 convolution kernels measured" in str(second)
    third = make().tune_kernels(4, again=True)
    assert [row.case for row in third.rows] == [row.case for row in first.rows]


def test_what_is_written_elsewhere_meanwhile_stays(path, every_route):
    make().tune_kernels(4)
    version = cpu_ops().runtime().library.version
    (kept,) = costs.read(version).choices.values()
    case = next(iter(kept))._replace(x=(99, 3, 8, 8))
    costs.keep(version, 77, {case: "numpy"})
    make().tune_kernels(2)
    both = costs.read(version).choices
    assert both[77] == {case: "numpy"}
    assert set(kept) < set(both[cpu_ops().runtime().threads])


def test_a_predictor_is_measured_too(path, every_route):
    net, (x, _) = make(), batch()
    predictor = net.predictor()
    before = predictor(x)
    report = net.tune_kernels(4)
    rows = {row.case.weight: row for row in report.rows if row.case.kernel == "constant"}
    first, usual = (8, 3, 3, 3), (8, 8, 3, 3)
    # Other weights, laid out already, go one way.
    assert set(rows) == {first, usual}
    assert rows[usual].calls == 2
    routes = {"direct"} | TILES
    assert all(set(rows[key].seconds) == routes for key in (first, usual))
    for each in (predictor, net.predictor()):
        np.testing.assert_allclose(each(x), before, rtol=0, atol=1e-5)


class Own(Layer):
    """A convolution in a layer that runs as a Python step of programs."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        weight = np.full((x.shape[1], x.shape[1], 3, 3), 0.1, np.float32)
        ctx.save(shape=x.shape, weight=weight)
        return ctx.ops.conv2d(x, weight, None, USUAL)

    def backward(self, ctx, dy):
        weight, shape = ctx.saved["weight"], ctx.saved["shape"]
        return ctx.ops.conv2d_backward_data(dy, weight, shape, USUAL), {}


class SaysPure(Own):
    """One that makes arrays beside its kernels, and is found out while it is recorded."""

    pure = True


@pytest.mark.parametrize("kind", [Own, SaysPure])
def test_a_layer_of_ones_own_goes_as_estimated(path, every_route, kind):
    report = net_of(kind("own")).tune_kernels(2)
    assert [(row.case.kernel, row.case.weight, row.calls) for row in report.rows] == [
        ("forward", (8, 3, 3, 3), 1),
        ("weights", (8, 3, 3, 3), 1),
        ("constant", (8, 3, 3, 3), 1),
    ]
    assert report.known == 0


def test_the_report_is_a_table(path, every_route):
    report = make().tune_kernels(4)
    head, rule, *lines = str(report).splitlines()
    assert head.split()[:6] == ["kernel", "images", "weight", "stride", "groups", "calls"]
    assert set(rule) == {"-"}
    assert len(lines) == len(report.rows) + 2
    assert all(line.count("*") == 1 for line in lines[:-2])
    assert lines[-1].endswith(f"kept in {path}")
    # A net without convolutions has nothing to measure.
    nothing = singanet.FeedForwardNet([Dense("out", 5, input_sample_shape=(3,))], seed=0)
    report = nothing.tune_kernels(4)
    assert (report.rows, report.known) == ((), 0)


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", True])
def test_sizes_that_are_none_are_refused(path, size):
    with pytest.raises(ArgumentError, match="net.tune_kernels, batch_size"):
        make().tune_kernels(size)
    with pytest.raises(ArgumentError, match="net.tune_kernels, extent"):
        make().tune_kernels(4, 0)


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(path, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("something was measured")

    monkeypatch.setattr(timing.Stopwatch, "seconds", refuse)
    path.write_text("")
    monkeypatch.setenv("SINGANET_ROUTES", str(path / "below"))
    settings = cpu_ops().settings()
    with (
        pytest.raises(FileAccessError, match="expected a place to write"),
        pytest.warns(RuntimeWarning, match="Not a directory"),
    ):
        make().tune_kernels(4)
    assert cpu_ops().settings() == settings


def on_numpy(net):
    net.device = singanet.device.Device("cpu", numpy_ops)


def in_bfloat16(net):
    if not (isinstance(cpu_ops(), OneDnnOps) and cpu_ops().library().bfloat16):
        pytest.skip("no products of bfloat16 here")
    net.as_type("float32_fast")


ELSEWHERE = {
    "switched off": (lambda net: None, "received SINGANET_ROUTES=off; let"),
    "numpy": (on_numpy, "received the kernels 'numpy' on cpu; .*onednn"),
    "device": (
        lambda net: net.to_device(strict_device()),
        r"tune_kernels: expected a net on the CPU.*; received one on strict.*; .*device\.cpu\(\)",
    ),
    "bfloat16": (in_bfloat16, "multiply bfloat16; its routes are as estimated"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_kernels_that_go_one_way_are_refused(path, monkeypatch, name):
    if name == "switched off":
        monkeypatch.setenv("SINGANET_ROUTES", "off")
    net, (act, words) = make(), ELSEWHERE[name]
    act(net)
    with pytest.raises(BackendError, match=words):
        net.tune_kernels(4)


# -- Kernels timed alone: what they are given, how often they run, what is not counted --------


CASE = Case("forward", (2, 4, 6, 6), (8, 4, 3, 3), Window((3, 3), (1, 1), ((1, 1), (1, 1))))


@pytest.fixture
def runs(monkeypatch, path):
    """How often each route runs, and seconds of its runs, which a clock of the test's tells."""
    told = Counter()
    told.seconds, told.first, told.now = {}, {}, 0.0

    class Run:
        def __init__(self, ops, name, operands, case, route, memory):
            self.route = route

        def __call__(self):
            told[self.route] += 1
            seconds = told.first if told[self.route] == 1 else told.seconds
            told.now += seconds.get(self.route, told.seconds.get(self.route, 0.5))

    monkeypatch.setattr(timing, "_SingleKernel", Run)
    monkeypatch.setattr(timing.time, "thread_time", lambda: told.now)
    return told


def timed(runs, **seconds):
    runs.seconds = seconds
    met = timing.CaseKernel("conv2d", (), 1, dict.fromkeys(seconds, 1.0))
    return timing.Stopwatch(cpu_ops(), 1).seconds(CASE, met)


@pytest.mark.parametrize(
    ("seconds", "ran"),
    [
        # One that is far behind runs once, two that are close twice.
        ({"direct": 0.01, "winograd": 0.02}, [1, 1]),
        ({"winograd": 0.024, "direct": 0.02, "product": 0.04}, [2, 2, 1]),
        # Another one that is slower than the estimate is not run again.
        ({"direct": 0.02, "winograd": 0.0215}, [1, 1]),
        ({"winograd": 0.0215, "direct": 0.02}, [2, 2]),
        # Short ones run more often, and the first run does not count.
        ({"winograd": 0.0011, "direct": 0.001}, None),
    ],
)
def test_how_often_kernels_run_by_their_seconds(runs, seconds, ran):
    if ran is None:
        runs.first = {"direct": 0.003, "winograd": 0.0001}
    taken = timed(runs, **seconds)
    assert taken == pytest.approx(seconds)
    found = [runs[route] for route in seconds]
    assert found == ran if ran else 5 <= found[0] == found[1] <= 12
    # Other data go through the caches before each run.
    assert runs[""] == sum(found)


def net():
    return singanet.FeedForwardNet(
        [
            Conv2D("first", 8, 3, input_sample_shape=(3, 6, 6)), BatchNormalization("norm"),
            Activation("relu"), Conv2D("second", 4, 3), Conv2D("third", 4, 3), Flatten("flat"),
        ],
        loss=SoftmaxCrossEntropy(), seed=3,
    )  # fmt: skip


def test_operands_lie_as_in_the_net(path):
    feed = {"first": np.ones((2, 3, 6, 6), np.float32)}
    met = timing.recorded_cases(net(), lambda recorder: recorder.rehearsed_step(feed, None))
    by_weight = {(case.kernel, case.weight): each for case, each in met.items()}
    second = by_weight["forward", (4, 8, 3, 3)]
    (x, weight, *_), _ = second.operands
    assert (second.name, x.shape, weight.shape) == ("conv2d", (2, 8, 6, 6), (4, 8, 3, 3))
    assert x.strides[1] == x.itemsize, "channels come last after the first convolution"
    assert weight.flags.c_contiguous
    (dy, *_), _ = by_weight["data", (4, 4, 3, 3)].operands
    assert dy.shape == (2, 4, 6, 6)


def test_a_constant_weight_is_laid_out_before(path):
    made = net()
    constant = ConstantNet(made, made.device)
    feed = {"first": np.ones((2, 3, 6, 6), np.float32)}
    met = timing.recorded_cases(constant, lambda recorder: constant.record(recorder, feed))
    assert {case.kernel for case in met} == {"constant"}
    for case, each in met.items():
        given = cpu_ops(), each.name, each.operands, case, "direct"
        alone = timing._SingleKernel(*given, lambda route, nbytes: np.zeros(nbytes, np.uint8))
        # The net's input is brought into the order of channels last, as at each prediction.
        assert len(alone._calls) == (2 if case.x[1] == 3 else 1)
        alone()
