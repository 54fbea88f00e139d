"""Recorded steps of several ranks: the same bits as by the layers, whoever records; on threads."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import CallOrderError, RankError
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
    Optimizer,
)
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, SparseAllReduce
from singanet.testing import communicators
from singanet.training.callbacks import EMA
from tests.kit.nets import uneven_net, words_net

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
WORDS = RNG.integers(0, 30, (24, 3))


def trained(comm, wrap, records, build=uneven_net, x=X, counts=(24,) * 6):
    """The net, the optimizer and the losses of a rank; its steps are recorded where it ``records``.

    ``counts`` are the samples of all ranks in each step.
    """
    net, optimizer = build(), wrap(comm)
    net.programs.enabled = records
    losses = []
    for count in counts:
        own = slice(comm.rank, count, comm.size)
        losses.append(net.step(x[own], Y[own], optimizer)[0])
    return net, optimizer, losses


def some_ignored():
    """Of a batch the labels tell how much it counts, so that its gradients do."""
    net = uneven_net()
    net.loss = SoftmaxCrossEntropy(ignore_index=2)
    return net


def of_ranks(size, records, wrap, **more):
    with communicators(size) as comms:
        return comms.run(lambda comm: trained(comm, wrap, comm.rank in records, **more))


def state_of(made):
    net, optimizer, losses = made
    values = zip(net.param_names(), net.param_values(), strict=True)
    return {**dict(values), **optimizer.state_dict(), "losses": np.array(losses)}


def expect_same(made, others):
    for one, other in zip(made, others, strict=True):
        expected, found = state_of(one), state_of(other)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


CASES = {
    "momentum": (lambda c: AllReduce(SGD(lr=0.1, momentum=0.9), c), {}),
    "adam": (lambda c: AllReduce(Adam(lr=0.003), c, window=1), {}),
    "value": (lambda c: AllReduce(ClipByValue(SGD(lr=0.1), 0.02), c), {}),
    "layer": (lambda c: AllReduce(ClipByLayerNorm(SGD(lr=0.1), 0.1), c), {}),
    "global": (lambda c: AllReduce(ClipByGlobalNorm(SGD(lr=0.1), 0.1), c), {}),
    "decay": (lambda c: AllReduce(SGD(lr=0.1, weight_decay=0.01, constraint=0.1), c), {}),
    "half": (lambda c: AllReduce(SGD(lr=0.1), c, dtype="float16"), {}),
    "rows": (
        lambda c: AllReduce(SGD(lr=0.1, momentum=0.9), c),
        {"build": words_net, "x": WORDS},
    ),
    "uneven": (lambda c: AllReduce(SGD(lr=0.1), c), {"counts": (24, 24, 23, 23, 24, 22, 23)}),
    "accumulated": (
        lambda c: Accumulator(AllReduce(SGD(lr=0.1), c), 2),
        {"counts": (24, 17, 24, 17, 24, 17, 24, 17, 24, 17)},
    ),
    "sparse": (lambda c: SparseAllReduce(SGD(lr=0.1, momentum=0.9), c, ratio=0.1), {}),
    "sparse, uneven": (
        lambda c: SparseAllReduce(SGD(lr=0.1), c, ratio=0.2, momentum=0.9, warm_up=3),
        {"counts": (24, 24, 23, 23, 24, 22, 23)},
    ),
    "sparse, clipped": (
        lambda c: SparseAllReduce(ClipByGlobalNorm(Adam(lr=0.01), 0.1), c, threshold=0.01),
        {},
    ),
    "sparse, accumulated": (
        lambda c: Accumulator(SparseAllReduce(SGD(lr=0.1), c, ratio=0.1), 2),
        {"counts": (24,) * 8},
    ),
    "local": (lambda c: LocalSGD(SGD(lr=0.1, momentum=0.9), c, every=2), {}),
    "local, clipped": (lambda c: LocalSGD(ClipByGlobalNorm(Adam(lr=0.01), 0.1), c, every=3), {}),
    "local, accumulated": (
        lambda c: Accumulator(LocalSGD(SGD(lr=0.1), c, every=2), 2),
        {"counts": (24, 17, 24, 17, 24, 17, 24, 17, 24, 17)},
    ),
    "partial": (
        lambda c: PartialUpdate(SGD(lr=0.1, weight_decay=0.01), c, partitions=3),
        {"counts": (24, 24, 23, 23, 24, 22, 23)},
    ),
    "accumulated, clipped": (
        lambda c: Accumulator(AllReduce(ClipByGlobalNorm(SGD(lr=0.1), 0.1), c), 2),
        {"counts": (24,) * 8},
    ),
    "ignored": (lambda c: AllReduce(SGD(lr=0.1), c), {"build": some_ignored}),
    "ignored, accumulated": (
        lambda c: Accumulator(AllReduce(SGD(lr=0.1, momentum=0.9), c), 3),
        {"build": some_ignored, "counts": (24, 17, 24) * 4},
    ),
    "ignored, accumulated, clipped": (
        lambda c: Accumulator(AllReduce(ClipByGlobalNorm(SGD(lr=0.1), 0.1), c), 2),
        {"build": some_ignored, "counts": (24, 17) * 5},
    ),
    "ignored, accumulated, sparse": (
        lambda c: Accumulator(SparseAllReduce(SGD(lr=0.1), c, ratio=0.1), 2),
        {"build": some_ignored, "counts": (24, 17) * 5},
    ),
}


OF_THREE = ("momentum", "uneven", "sparse, uneven", "local, accumulated")
"""A third rank sums in another order, whatever the case: the others are tried with ``slow``."""


@pytest.mark.parametrize(
    ("case", "size"),
    [
        *((case, 2) for case in CASES),
        *(
            pytest.param(case, 3, marks=[pytest.mark.slow] * (case not in OF_THREE))
            for case in CASES
        ),
    ],
)
@pytest.mark.few(12)
def test_recorded_steps_have_the_bits_of_the_layers_whoever_records(case, size):
    wrap, more = CASES[case]
    by_layers = of_ranks(size, (), wrap, **more)
    recorded = of_ranks(size, range(size), wrap, **more)
    expect_same(by_layers, recorded)
    expect_same(by_layers, of_ranks(size, (1,), wrap, **more))
    for net, _, _ in recorded:
        assert not net.programs.refusals
        # Which labels count the loss asks in Python.
        assert case.startswith("ignored") or not net.programs.notes
        assert any("communication" in report.phases() for report in net.programs.reports())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fifty_recorded_steps_have_the_losses_of_one_process(size):
    wrap = lambda comm: AllReduce(SGD(lr=0.1, momentum=0.9), comm)  # noqa: E731
    made = of_ranks(size, range(size), wrap, counts=(24,) * 50)
    again = of_ranks(size, range(size), wrap, counts=(24,) * 50)
    expect_same(made, again)
    net, rule = uneven_net(), SGD(lr=0.1, momentum=0.9)
    alone = [net.step(X, Y, rule)[0] for _ in range(50)]
    together = np.mean([losses for _, _, losses in made], axis=0)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    for other, _, _ in made[1:]:
        for a, b in zip(made[0][0].param_values(), other.param_values(), strict=True):
            np.testing.assert_array_equal(a, b)


LAYERS = st.lists(
    st.tuples(st.sampled_from([3, 17, 200]), st.booleans(), st.sampled_from(["relu", "tanh"])),
    min_size=1,
    max_size=4,
)
RULES = {
    "sgd": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": lambda: Adam(lr=0.01),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.1), 0.05),
}


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(
    LAYERS,
    st.sampled_from(sorted(RULES)),
    st.integers(2, 3),
    st.integers(1, 5),
    st.lists(st.integers(3, 24), min_size=2, max_size=4),
    st.data(),
)
def test_random_nets_batches_and_ranks_agree(layers, rule, size, window, counts, data):
    def build():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        net.add(Dense("first", 5, input_sample_shape=(6,)))
        for k, (width, bias, mode) in enumerate(layers):
            net.add(Dense(f"dense{k}", width, use_bias=bias))
            net.add(Activation(f"{mode}{k}", mode=mode))
        net.add(Dense("last", 4))
        if len(layers) > 2:
            net.freeze("dense0")
        return net

    wrap = lambda comm: AllReduce(RULES[rule](), comm, window)  # noqa: E731
    records = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    # Twice, so that each shape is recorded.
    more = {"build": build, "counts": (*counts, *counts)}
    expect_same(of_ranks(size, (), wrap, **more), of_ranks(size, records, wrap, **more))


@pytest.mark.parametrize("recompute", ["none", "cheap"])
def test_mixed_precision_skips_on_all_ranks_and_averages_follow(recompute):
    def fitted(comm, records):
        net, ema = uneven_net(), EMA(0.5)
        net.programs.enabled, net.programs.recompute = records, recompute
        x = X.copy()
        # The gradients of one batch are not finite on the rank that has this sample alone.
        x[11, 0] = np.nan
        net.compile(AllReduce(SGD(lr=0.05, momentum=0.9), comm), mixed_precision="float16")
        net.fit(x, Y, batch_size=4, epochs=3, shuffle=False, callbacks=[ema], verbose=False)
        precision = net.compiled.precision
        return net, [precision.skipped, precision.scale], {**precision.masters, **ema.averages}

    with communicators(2) as comms:
        by_layers = comms.run(lambda comm: fitted(comm, False))
    with communicators(2) as comms:
        recorded = comms.run(lambda comm: fitted(comm, True))
    assert recorded[0][0].programs.reports()
    for _, numbers, arrays in recorded:
        assert numbers == by_layers[0][1]
        assert numbers[0] == 3
        for name, array in by_layers[0][2].items():
            np.testing.assert_array_equal(arrays[name], array, err_msg=name)


class Signs(Optimizer):
    """A rule of a user's own, which takes whole arrays."""

    def __init__(self):
        super().__init__(lr=0.01)

    def update(self, names, values, grads, scale=1.0):
        for value, grad in zip(values, grads, strict=True):
            value -= 0.01 * np.sign(grad * scale)

    def _scalars(self, state, rate):
        return ()

    def _sweep(self, *arguments):
        raise AssertionError

    _sweep_rows = _sweep


def test_a_rule_of_ones_own_gets_the_sums_in_a_python_step_that_is_told():
    wrap = lambda comm: AllReduce(Signs(), comm)  # noqa: E731
    recorded = of_ranks(2, (0, 1), wrap)
    expect_same(of_ranks(2, (), wrap), recorded)
    assert any("Signs is not singanet's" in note for note in recorded[0][0].programs.notes)


class Twice(Layer):
    """A layer of a user's own, in Python; it fails when it is told to."""

    fails = False

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return 2 * x

    def backward(self, ctx, dy):
        if self.fails:
            raise KeyError("lost")
        return 2 * dy, {}


def test_layers_in_python_run_between_the_sums():
    wrap = lambda comm: AllReduce(SGD(lr=0.01), comm)  # noqa: E731
    more = {"build": lambda: uneven_net(more=[Twice("twice")])}
    recorded = of_ranks(2, (0, 1), wrap, **more)
    expect_same(of_ranks(2, (), wrap, **more), recorded)
    assert "layer 'twice'" in recorded[0][0].programs.notes[0]


@pytest.mark.parametrize("records", [True, False])
def test_after_an_error_among_the_sums_no_step_is_taken(records):
    heard = []

    def work(comm):
        layer = Twice("twice")
        # Before it comes a sum that is under way, behind it others.
        net = singanet.FeedForwardNet(
            [Dense("a", 8, input_sample_shape=(6,)), layer, Dense("b", 30_000), Dense("d", 4)],
            loss=SoftmaxCrossEntropy(),
            seed=1,
        )
        net.programs.enabled = records
        optimizer = AllReduce(SGD(lr=0.01), comm)
        for _ in range(3):
            net.step(X, Y, optimizer)
        layer.fails = comm.rank == 1
        before = None
        try:
            net.step(X, Y, optimizer)
        except KeyError:
            layer.fails = False
            before = [value.copy() for value in net.param_values()]
            with pytest.raises(CallOrderError, match=r"an error ended|one gradient a step"):
                net.step(X, Y, optimizer)
            # The memory that others write to still is nobody else's.
            out = net.predict(X)
            np.testing.assert_array_equal(out, net.predict(X))
            for old, new in zip(before, net.param_values(), strict=True):
                np.testing.assert_array_equal(old, new)
            heard.append(True)
            raise

    with communicators(2) as comms, pytest.raises((KeyError, RankError)):
        comms.run(work)
    assert heard


class Masked(SoftmaxCrossEntropy):
    """A loss of a user's own: a mean over targets that are not −1, which may be none."""

    def forward(self, flag, x, y, *weight):
        self.counts = (y >= 0).astype(np.float32)
        self.total = self.counts.sum()
        super().forward(flag, x, np.maximum(y, 0), *weight)
        self.mean_over = float(self.total)
        return np.zeros(len(x), np.float32)

    def count(self, x, y):
        return float((y >= 0).sum())

    def backward(self):
        return super().backward() * self.counts[:, None] * (len(self.counts) / max(self.total, 1))


def test_a_batch_that_counts_nothing_weighs_nothing_and_one_that_counts_more_weighs_more():
    y = np.where(np.arange(24) % 3 == 0, -1, Y)
    y[1::2] = -1  # nothing on rank 1

    def work(comm, records):
        net = uneven_net()
        net.loss = Masked()
        net.programs.enabled = records
        optimizer = AllReduce(SGD(lr=0.1), comm)
        for _ in range(5):
            net.step(X[comm.rank :: 2], y[comm.rank :: 2], optimizer)
        return net

    made = []
    for records in (True, False):
        with communicators(2) as comms:
            made += comms.run(lambda comm, r=records: work(comm, r))
    alone = uneven_net()
    alone.loss = Masked()
    rule = SGD(lr=0.1)
    for _ in range(5):
        alone.step(X[::2], y[::2], rule)
    for net in made:
        for own, first, other in zip(
            net.param_values(), made[0].param_values(), alone.param_values(), strict=True
        ):
            np.testing.assert_array_equal(own, first)
            np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)


def test_freezing_in_between_is_a_new_program():
    def work(comm, records):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm)
        net.programs.enabled = records
        for k in range(9):
            if k == 3:
                net.freeze("c")
            if k == 6:
                net.unfreeze()
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return net, optimizer, []

    with communicators(2) as comms:
        by_layers = comms.run(lambda comm: work(comm, False))
    with communicators(2) as comms:
        recorded = comms.run(lambda comm: work(comm, True))
    expect_same(by_layers, recorded)


def test_a_program_by_hand_tells_what_was_exchanged(tmp_path):
    def work(comm):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm, window=2)
        net.step(X, Y, optimizer)
        program = net.record(X, Y, optimizer)
        for _ in range(3):
            program.run(X, Y, timed=True)
        return program.report(), sum(value.nbytes for value in net.param_values())

    with communicators(2) as comms:
        made = comms.run(work)
    for rank, (report, nbytes) in enumerate(made):
        figures = report.as_dict()["communication"]
        # An element beside each of the eight parameters tells who has it.
        assert figures["bytes"] == nbytes + 8 * 4
        assert figures["seconds under way"] >= figures["seconds waited"] >= 0
        assert 0 <= figures["hidden"] <= 1
        assert f"communication: {figures['sums']} sums of 164.0 kB" in report.table(0)
        events = json.loads(report.trace(tmp_path / f"{rank}.json"))["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        begun = [e for e in events if e["ph"] == "b"]
        ended = [e for e in events if e["ph"] == "e"]
        assert [e["id"] for e in begun] == [e["id"] for e in ended]
        assert len(begun) == figures["sums"]
        assert all(a["ts"] <= b["ts"] for a, b in zip(begun, ended, strict=True))


def test_a_program_by_hand_before_the_first_step_is_refused():
    def work(comm):
        with pytest.raises(CallOrderError, match="other processes"):
            uneven_net().record(X, Y, AllReduce(SGD(lr=0.1), comm))

    with communicators(2) as comms:
        comms.run(work)
