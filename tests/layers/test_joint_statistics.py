"""Ranks with synchronized batch normalization are one process with the whole batch."""

import numpy as np
import pytest

import singanet
from singanet.base.collectives import SharedBatch
from singanet.errors import CallOrderError, DataError
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Flatten, TimeDistributed
from singanet.layers.context import Context
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops import ops_for
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm, MixedPrecision
from singanet.parallel import AllReduce
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values, together

RNG = np.random.default_rng(3)
X = RNG.standard_normal((12, 3, 5, 5)).astype(np.float32) + 2
Y = RNG.integers(0, 4, 12)


def convolved(synchronized=True, loss=None):
    more = {"synchronized": synchronized}
    parts = [Conv2D("c", 4, 3, input_sample_shape=(3, 5, 5)), BatchNormalization("bn", **more)]
    parts += [Activation("relu"), Flatten("f"), Dense("d", 6)]
    parts += [BatchNormalization("bn2", momentum=0.3, **more), Dense("o", 4)]
    return singanet.FeedForwardNet(parts, loss=loss or SoftmaxCrossEntropy(), seed=0)


def ignoring():
    return convolved(loss=SoftmaxCrossEntropy(ignore_index=-1))


def on_ranks(build, optimizer, x, y, cuts, steps=3):
    def work(comm):
        net, chain = build(), optimizer(lambda rule: AllReduce(rule, comm))
        own = slice(cuts[comm.rank], cuts[comm.rank + 1])
        for _ in range(steps):
            net.step(x[own], y[own], chain)
        return net

    return together(work, len(cuts) - 1)


def expect_as_alone(build, chain, x, y, cuts, steps=4):
    """Check that nets of ranks have the values of one process with the whole batch."""
    alone, optimizer = build(), chain(lambda rule: rule)
    for _ in range(steps):
        alone.step(x, y, optimizer)
    for net in on_ranks(build, chain, x, y, cuts, steps):
        expect_near_values(values_of(net), values_of(alone), 2e-4, 2e-5)


CHAINS = {
    "plain": lambda wrap: wrap(SGD(lr=0.1, momentum=0.9)),
    "global norm": lambda wrap: wrap(ClipByGlobalNorm(SGD(lr=0.1), 0.2)),
    "accumulated": lambda wrap: Accumulator(wrap(SGD(lr=0.1)), 2),
}


@pytest.mark.parametrize(
    ("chain", "cuts"),
    [("plain", (0, 6, 12)), ("plain", (0, 1, 12)), ("plain", (0, 4, 5, 12)),
     ("global norm", (0, 12, 12)), ("accumulated", (0, 4, 4, 12))],
)  # fmt: skip
def test_parameters_and_running_state_are_those_of_one_process(cuts, chain):
    expect_as_alone(convolved, CHAINS[chain], X, Y, cuts)


IGNORED = np.where(np.arange(12) < 5, -1, Y)


@pytest.mark.parametrize("chain", CHAINS)
def test_what_others_losses_owe_to_samples_without_a_label_that_counts(chain):
    expect_as_alone(ignoring, CHAINS[chain], X, IGNORED, (0, 5, 12))


@pytest.mark.parametrize("told", [True, False])
def test_a_loop_of_ones_own_tells_what_its_loss_counts(told):
    def work(comm):
        net, own = ignoring(), slice(0, 5) if comm.rank == 0 else slice(5, 12)
        optimizer = AllReduce(SGD(lr=0.1), comm)
        optimizer.meet(net)
        out = net.forward(True, X[own])
        net.loss.forward(True, out, IGNORED[own])
        count, share = net.loss.count(out, IGNORED[own]), 1.0
        if told:
            share, count = optimizer.shares(len(out), {"o": count})["o"], len(out)
        optimizer.begin(count)
        for item in net.backward(net.loss.backward() * np.float32(share)):
            optimizer.update(*item)
        optimizer.end()
        return net

    if not told:
        with pytest.raises(CallOrderError, match="optimizer.shares"):
            together(work)
        return
    alone = ignoring()
    alone.step(X, IGNORED, SGD(lr=0.1))
    for net in together(work):
        expect_near_values(values_of(net), values_of(alone), 2e-4, 2e-5)


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_all_ranks_skip_a_step_of_which_gradients_of_one_are_not_finite(recorded, clipped):
    x, y = X.astype(np.float16), np.eye(4, dtype=np.float32)[Y]

    def build():
        net = convolved(loss=SquaredError())
        net.compile(SGD(lr=0.1), mixed_precision=MixedPrecision(scale=2.0**10))
        net.programs.enabled = recorded
        return net

    def work(comm):
        net = build()
        rule = ClipByGlobalNorm(SGD(lr=0.1), 0.2) if clipped else SGD(lr=0.1)
        optimizer = net.compiled.scaled(AllReduce(rule, comm))
        own, seen = slice(6 * comm.rank, 6 * comm.rank + 6), []
        for step in range(4):
            large = 1e6 if step == 2 and comm.rank else 1.0
            with np.errstate(all="ignore"):
                net.step(x[own], y[own] * large, optimizer)
            seen.append([param.value.copy() for param in net.params()])
        return seen, net.compiled.precision.skipped

    for seen, skipped in together(work):
        assert skipped == 1
        for before, after, later in zip(*seen[1:], strict=True):
            np.testing.assert_array_equal(after, before)
            assert not np.array_equal(later, after)


def test_gradients_of_inputs_are_right_numerically():
    x = RNG.standard_normal((5, 3)).astype(np.float32)
    y = RNG.standard_normal((5, 3)).astype(np.float32)
    gamma = np.array([1.5, -0.5, 2.0], np.float32)

    def loss(values):
        z = values.astype(np.float64)
        out = gamma * (z - z.mean(0)) / np.sqrt(z.var(0) + 1e-5)
        return 0.5 * ((out - y) ** 2).sum() / len(z)

    step = 1e-4
    expected = np.zeros_like(x)
    for place in np.ndindex(*x.shape):
        up, down = x.astype(np.float64), x.astype(np.float64)
        up[place] += step
        down[place] -= step
        expected[place] = (loss(up) - loss(down)) / (2 * step)

    def layerwise(comm):
        own = slice(0, 2) if comm.rank == 0 else slice(2, 5)
        layer = BatchNormalization("bn", synchronized=True)
        layer.shared = SharedBatch(comm)
        part, targets = x[own], y[own]
        layer.shared.weight = float(len(part))
        params = {"gamma": gamma, "beta": np.zeros(3, np.float32)}
        params |= {"mean": np.zeros(3, np.float32), "var": np.ones(3, np.float32)}
        ctx = Context(ops_for(x), RNG, params, True)
        out = layer.forward(ctx, part)
        dx, _ = layer.backward(ctx, (out - targets) / np.float32(len(part)))
        return dx * len(part) / len(x)

    found = np.concatenate(together(layerwise))
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-4)


def test_the_steps_of_sequences_are_shared_too():
    def build():
        norm = BatchNormalization("bn", synchronized=True)
        parts = [TimeDistributed("t", norm, input_sample_shape=(3, 5)), Flatten("f")]
        parts += [Dense("o", 4)]
        return singanet.FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)

    expect_as_alone(build, CHAINS["plain"], X[:, :, 0], Y, (0, 5, 12), 3)


def test_one_value_a_channel_on_all_ranks_is_refused_on_all():
    with pytest.raises(DataError, match="bn2"):
        on_ranks(convolved, CHAINS["plain"], X[:1], Y[:1], (0, 0, 1), 1)


def test_without_it_each_rank_has_statistics_of_its_own():
    first, second = on_ranks(lambda: convolved(False), CHAINS["plain"], X, Y, (0, 6, 12))
    assert not np.array_equal(first["bn"].params["mean"].value, second["bn"].params["mean"].value)


def test_it_is_in_the_description_of_a_net_and_evaluates_alone():
    net = convolved()
    again = singanet.FeedForwardNet.from_config(net.to_config())
    assert again["bn"].synchronized
    net.step(X, Y, SGD(lr=0.1))
    assert net.forward(False, X).shape == (12, 4)
