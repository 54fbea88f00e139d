"""Recorded steps of several ranks: the same bits as by the layers, whoever records; on threads."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import CallOrderError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import (
    SGD,
    Adam,
    ClipByGlobalNorm,
    Optimizer,
)
from singanet.parallel import AllReduce
from tests.kit.nets import uneven_net
from tests.kit.ranks import together

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


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


def of_ranks(size, records, wrap, **more):
    return together(lambda comm: trained(comm, wrap, comm.rank in records, **more), size)


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


class Plain(Optimizer):
    """A user's own rule with an `update` of its own, which no program can record."""

    def __init__(self):
        super().__init__(lr=0.01)

    def update(self, names, values, grads, scale=1.0):
        for value, grad in zip(values, grads, strict=True):
            value -= 0.01 * grad * scale

    def _scalars(self, state, rate):
        return ()

    def _sweep(self, *arguments):
        raise AssertionError

    _sweep_rows = _sweep


def test_a_rule_of_ones_own_gets_the_sums_in_a_python_step_that_is_told():
    wrap = lambda comm: AllReduce(Plain(), comm)  # noqa: E731
    recorded = of_ranks(2, (0, 1), wrap)
    expect_same(of_ranks(2, (), wrap), recorded)
    assert any("Plain is not singanet's" in note for note in recorded[0][0].programs.notes)


def test_a_program_by_hand_tells_what_was_exchanged(tmp_path):
    def work(comm):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm, window=2)
        net.step(X, Y, optimizer)
        program = net.record(X, Y, optimizer)
        for _ in range(3):
            program.run(X, Y, timed=True)
        return program.report(), sum(value.nbytes for value in net.param_values())

    made = together(work)
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

    together(work)
