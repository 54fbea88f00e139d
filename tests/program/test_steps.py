"""Steps of every rule, stage and net: recorded and by the layers, equal to the bit."""

import random
from functools import partial

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet import optimizer as kinds
from singanet.errors import ArgumentError
from singanet.layers import Dense, Embedding, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Adam, schedules
from singanet.program.replay.passes import ReplayedPass
from singanet.types import RowSparse
from tests.kit.draws import SEED

from .program_case import (
    ACCUMULATING,
    IMAGES,
    NETS,
    OPTIONS,
    RULES,
    STAGES,
    WORDS,
    expect_as_by_the_layers,
    falling,
    public,
    tied_net,
    vectors,
    word_net,
)
from .twins import Twins


def gives_rows(name):
    """Whether gradients are rows: to those of a tied table its other use is added."""
    return isinstance(NETS[name].make().layers[0], Embedding)


def table():
    """Four cases of each rule, drawn by the day: rule, stage, net, options, level, weights."""
    draw = random.Random(SEED)
    dense = [name for name in NETS if not gives_rows(name) and name != "tied"]
    for rule in RULES:
        for k in range(4):
            nets = dense if rule in ACCUMULATING else list(NETS)
            chosen = (
                rule, draw.choice([None, None, *STAGES]), draw.choice(nets),
                draw.choice(list(OPTIONS)), draw.choice(["none", "none", "cheap"]),
                draw.random() < 0.3,
            )  # fmt: skip
            marks = ([], [pytest.mark.full], [pytest.mark.slow], [pytest.mark.slow])[k]
            yield pytest.param(*chosen, marks=marks)


@pytest.mark.parametrize(("rule", "stage", "net", "options", "level", "weighted"), list(table()))
def test_a_recorded_step_is_the_step_by_the_layers(rule, stage, net, options, level, weighted, rng):
    def make():
        made = RULES[rule](**{"lr": falling, **OPTIONS[options]})
        return STAGES[stage](made) if stage else made

    twins = expect_as_by_the_layers(NETS[net], make, rng, weighted=weighted, level=level)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_is_kernels(stage, rng):
    for net, rule in ((IMAGES, partial(kinds.LAMB, falling)), (WORDS, partial(SGD, 0.1, 0.5))):
        twins = expect_as_by_the_layers(net, lambda rule=rule: STAGES[stage](rule()), rng)
        assert twins.expect_recorded() == []


def test_every_stage_of_the_public_list_is_in_the_table():
    made = {type(make(SGD())) for make in STAGES.values()}
    assert made >= set(public(kinds.Wrapper).values()) - {kinds.Wrapper, kinds.BlockCoordinate}


# -- rules ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["schedule", "rate", "regularizer"])
def test_what_is_the_users_is_asked_as_often_as_by_the_layers(kind):
    class Counting:
        """A schedule with state, which is asked once a parameter and step."""

        calls = 0

        def __call__(self, step):
            self.calls += 1
            return 0.2 / (1 + self.calls)

    def make():
        counting = Counting()
        rate, more = (counting if kind != "regularizer" else 0.01), {}
        if kind == "regularizer":
            more["regularizer"] = kinds.L2Regularizer(counting)
        made = SGD(rate, 0.9 if kind == "rate" else 0.0, **more)
        made.seen = counting
        return made

    twins = Twins(IMAGES.make, make)
    for x, y in IMAGES.batches(6, 8):
        twins.step(x, y)
        assert twins.optimizers[0].seen.calls == twins.optimizers[1].seen.calls
    assert twins.expect_recorded() == []


def test_recorded_penalties_follow_their_schedule():
    """Without gradients weights shrink by each step's share: Dense of zeros has none."""
    made = FeedForwardNet(
        [Dense("fc", 3, input_sample_shape=(4,))], loss=SoftmaxCrossEntropy(), seed=0
    )
    optimizer = SGD(lr=1.0, weight_decay=lambda step: 0.1 * step)
    wanted = made.param_values()[0].astype(np.float64)
    for step in range(6):
        made.step(np.zeros((2, 4), np.float32), np.array([0, 1]), optimizer)
        wanted = wanted * (1 - 0.1 * step)
    assert made.programs.reports()
    np.testing.assert_allclose(made.param_values()[0], wanted, rtol=1e-5)


def test_a_plateau_that_lowers_the_rate_is_seen():
    twins = Twins(IMAGES.make, lambda: SGD(lr=schedules.Plateau(0.1, patience=1)))
    for x, y in IMAGES.batches(6, 8):
        twins.step(x, y)
        twins.both(lambda _, optimizer: optimizer.lr.observe(1.0))
    rates = [optimizer.lr(0) for optimizer in twins.optimizers]
    assert rates[0] == rates[1] < 0.1


def test_a_second_optimizer_has_a_program_of_its_own():
    twins, data = Twins(IMAGES.make, lambda: Adam(lr=falling)), IMAGES.batches(8, 8)
    twins.train(data[:4])
    first = twins.optimizers
    twins.optimizers = SGD(lr=0.1), SGD(lr=0.1)
    twins.train(data[4:])
    twins.optimizers = first
    twins.train(data)
    assert twins.expect_recorded() == []


def test_a_rate_that_is_not_finite_leaves_all_as_it_was():
    twins, data = Twins(IMAGES.make, lambda: SGD(lr=falling, momentum=0.9)), IMAGES.batches(6, 8)
    twins.train(data[:3])
    before = [value.copy() for value in twins.recorded.param_values()]
    twins.both(lambda _, optimizer: setattr(optimizer, "lr", lambda step: float("nan")))
    twins.refuse(
        lambda net, optimizer: net.step(*data[3], optimizer), "finite learning rate", ArgumentError
    )
    for param, value in zip(twins.recorded.params(), before, strict=True):
        assert param.is_state or np.array_equal(param.value, value)


LARGE, TABLE = 1 << 18, 4 * 4 << 18
OF_LARGE = {
    "SGD": lambda: SGD(lr=0.1),
    "Adam": lambda: Adam(lr=schedules.Exponential(0.01, 2, 0.5)),
    "bounded": lambda: Adam(lr=0.01, constraint=1.0),
    "clipped": lambda: kinds.ClipByGlobalNorm(kinds.Lion(lr=0.01), 0.1),
    "decay": lambda: SGD(lr=0.1, weight_decay=0.01),
    "l2": lambda: SGD(lr=0.1, regularizer=0.01),
    **{name: partial(RULES[name], lr=0.01) for name in (
        "SGD, momentum", "SGD, nesterov", "AdamW", "Adamax", "AMSGrad", "AdaGrad", "Adadelta",
        "RMSProp", "Lion")},
}  # fmt: skip


def large_net():
    fc = Dense("fc", LARGE, use_bias=False, input_sample_shape=(4,))
    net = FeedForwardNet([fc], loss=SquaredError(), seed=0)
    net.programs.at_once = True
    return net


@pytest.mark.few(4)
@pytest.mark.parametrize("rule", OF_LARGE)
def test_updates_of_large_parameters_take_no_scratch_of_their_size(rule, rng):
    # The gradient, and what the loss has of outputs.
    assert large_net().memory(1, OF_LARGE[rule]()).parts["arena"] < 1.8 * TABLE
    twins = Twins(large_net, OF_LARGE[rule])
    twins.train([(vectors(rng, 2, 4), vectors(rng, 2, LARGE)) for _ in range(3)])
    assert not twins.expect_recorded()
    assert not twins.recorded.programs.refusals


# -- rows of tables -------------------------------------------------------------------------


def kernels(net):
    return net.programs.reports()[-1].kernels


def test_rows_are_summed_and_updated_by_kernels(rng):
    twins = Twins(word_net, lambda: SGD(falling, 0.9, nesterov=True))
    for k in range(12):
        # Other numbers of words and of samples.
        x, y = WORDS.batch(rng, 4 if k % 3 else 2)
        twins.step(x % (1 + k), y)
        twins.forward(True, x)
        assert isinstance(twins.walk(vectors(rng, len(x), 3))[-1].grads[0], RowSparse)
    assert not twins.expect_recorded()
    named = {
        kernel.name: kernel
        for report in twins.recorded.programs.reports()
        for kernel in report.kernels
    }
    assert named["sum rows"].layer == named["update rows"].layer == "words"
    assert named["update rows"].phase == "update"


@pytest.mark.parametrize("again", [False, True])
def test_rows_of_a_tied_table_are_added_to_the_gradient_of_its_other_use(rng, again):
    twins = Twins(lambda: tied_net(again), lambda: Adam(lr=0.01))
    twins.train([NETS["tied"].batch(rng, 4 if k % 3 else 2) for k in range(8)])
    assert not twins.expect_recorded()
    names = [k.name for k in kernels(twins.recorded)]
    assert names.count("add to rows") == 1 + again


def test_a_frozen_table_has_no_gradient_and_a_constraint_set_later_is_seen(rng):
    twins = Twins(word_net, lambda: SGD(lr=0.1))
    twins.train(WORDS.batches(4))
    for optimizer in twins.optimizers:
        optimizer._states["words/weight"].constraint = kinds.ClipNorm(0.01)
    twins.train(WORDS.batches(4))
    twins.both(lambda net, _: setattr(net.layers[0], "trainable", False))
    twins.train(WORDS.batches(4))
    assert "sum rows" not in [k.name for k in kernels(twins.recorded)]


# -- batches --------------------------------------------------------------------------------


def test_partial_last_batches_have_a_program_of_their_own():
    twins = Twins(IMAGES.make, lambda: Adam(lr=falling))
    for _ in range(4):
        twins.train([*IMAGES.batches(2, 8), *IMAGES.batches(1, 3)])
    twins.expect_recorded()
    programs = len(twins.recorded.programs.reports())
    twins.train(IMAGES.batches(1, 3))
    assert len(twins.recorded.programs.reports()) == programs
    for _ in range(3):
        for size in range(1, 12):
            twins.train(IMAGES.batches(2, size))
    assert len(twins.recorded.programs.reports()) <= singanet.program.programs.CAPACITY


def test_outputs_of_evaluations_are_the_callers():
    net, batches = IMAGES.make(), IMAGES.batches(4, 8)
    outs = [net.forward(False, x) for x, _ in batches]
    copies = [out.copy() for out in outs]
    net.forward(False, batches[0][0])
    for number, (out, kept) in enumerate(zip(outs, copies, strict=True)):
        np.testing.assert_array_equal(out, kept)
        assert all(not np.shares_memory(out, other) for other in outs[:number])


def masked(kind, weight):
    """A loss of each step of texts beside their mask, as an output too."""
    x = Input("x", (None,))
    steps = Dense("steps", 3)(Embedding("table", 7, 4, mask_index=0)(x))
    loss = MultiLoss({"steps": kind()}, {"steps": weight}, masks={"steps": "table_mask"})
    return FeedForwardNet(loss, inputs=x, outputs=[steps, steps.mask], seed=1)


@pytest.mark.parametrize("kind", [SoftmaxCrossEntropy, SquaredError])
def test_masked_losses_and_loops_beside_their_mask(kind, rng, monkeypatch):
    twins = Twins(lambda: masked(kind, 0.5), lambda: SGD(0.1))
    again = []
    by_layers = ReplayedPass._by_layers
    monkeypatch.setattr(ReplayedPass, "_by_layers", lambda *a: again.append(1) or by_layers(*a))
    for _ in range(6):
        x = rng.integers(0, 7, (3, 4))
        x[:, 0] = 1
        labels = rng.integers(0, 3, x.shape)
        real = rng.standard_normal((*x.shape, 3)).astype(np.float32)
        twins.step(x, {"steps": labels if kind is SoftmaxCrossEntropy else real})
        twins.loop(x, {"steps": real})
    # A mask has no gradient, so that a loop from the other outputs is one from all.
    assert not again
