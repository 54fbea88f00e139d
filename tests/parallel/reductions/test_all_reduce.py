"""Ranks train as one process with all their samples; on ranks that are threads."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import RankError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
)
from singanet.parallel import AllReduce
from tests.kit.nets import uneven_net, values_of
from tests.kit.ranks import expect_same_bits, together

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def steps_alone(build, optimizer, batches):
    net, losses = build(), []
    for x, y in batches:
        losses.append(net.step(x, y, optimizer)[0])
    return net, losses


def steps_together(build, wrap, batches, size, cuts=None):
    """The nets of all ranks, and the losses over all samples; a rank's shard may be empty."""

    def work(comm):
        net, optimizer = build(), wrap(comm)
        stage = singanet.optimizer.chain.UpdateChain(optimizer).reducers[0]
        told = []
        for k, (x, y) in enumerate(batches):
            bounds = cuts[k] if cuts else [len(x) * r // size for r in range(size + 1)]
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            n = own.stop - own.start
            if n:
                told.append((n, net.step(x[own], y[own], optimizer)[0]))
            else:
                stage.meet(net)
                stage.begin(0)
                stage.end()
                told.append((0, 0.0))
        return net, told

    made = together(work, size)
    losses = [
        sum(n * loss for n, loss in each) / sum(n for n, _ in each)
        for each in zip(*(told for _, told in made), strict=True)
    ]
    return [net for net, _ in made], losses


def expect_near(net, nets, rtol=2e-5, atol=2e-6):
    expect_same_bits(nets)
    for name, value in values_of(net).items():
        np.testing.assert_allclose(values_of(nets[0])[name], value, rtol, atol, err_msg=name)


@pytest.mark.parametrize("clip", [lambda inner: inner, lambda inner: ClipByGlobalNorm(inner, 0.1)])
def test_what_is_accumulated_is_reduced_once_and_weighs_as_it_should(clip):
    batches = [(X[:12], Y[:12]), (X[12:17], Y[12:17]), (X[17:], Y[17:])] * 2
    sent = []

    def wrap(comm):
        sent.append(comm)
        return Accumulator(AllReduce(clip(SGD(lr=0.5)), comm), 3)

    net, losses = steps_alone(uneven_net, Accumulator(clip(SGD(lr=0.5)), 3), batches)
    nets, together = steps_together(uneven_net, wrap, batches, 2)
    np.testing.assert_allclose(together, losses, rtol=1e-5)
    expect_near(net, nets)
    bytes_of_net = sum(value.nbytes for value in net.param_values())
    rounds = 2 if clip(SGD(lr=1.0)).__class__ is SGD else 4
    # The values once, and each round of gradients.
    assert sent[0].bytes_sent < (1 + rounds) * bytes_of_net * 1.05


def test_a_rank_whose_samples_have_ended_joins_through_the_stages_around():
    def work(comm):
        net = uneven_net()
        optimizer = Accumulator(AllReduce(SGD(lr=0.5), comm), 2)
        for k in range(4 if comm.rank == 0 else 2):
            net.step(X[k::8], Y[k::8], optimizer)
        optimizer.join()
        return net

    def alone():
        net, optimizer = uneven_net(), SGD(lr=0.5)
        for k, weight in ((0, 2), (2, 1)):
            rows = np.concatenate([np.arange(len(X))[j::8] for j in (k, k + 1)] * weight)
            net.step(X[rows], Y[rows], optimizer)
        return net

    Accumulator(SGD(lr=0.1), 2).join()  # no other processes
    nets = together(work)
    expect_near(alone(), nets)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 4))
def test_uneven_shards_and_empty_ones_train_as_one_process(data, size):
    build = lambda: singanet.FeedForwardNet(  # noqa: E731
        [
            Dense("a", 7, input_sample_shape=(6,)),
            Activation("tanh", mode="tanh"),
            Dense("b", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=3,
    )
    batches, cuts = [], []
    for _ in range(4):
        n = data.draw(st.integers(1, 24))
        inner = data.draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1))
        cuts.append([0, *sorted(inner), n])
        batches.append((X[:n], Y[:n]))
    net, losses = steps_alone(build, SGD(lr=0.2, momentum=0.9), batches)
    wrap = lambda c: AllReduce(SGD(lr=0.2, momentum=0.9), c)  # noqa: E731
    nets, together = steps_together(build, wrap, batches, size, cuts)
    np.testing.assert_allclose(together, losses, rtol=1e-5, atol=1e-6)
    expect_near(net, nets)


def two_heads():
    net = singanet.FeedForwardNet(seed=2)
    trunk = net.add(Dense("trunk", 5, input_sample_shape=(6,)))
    net.add(Dense("left", 3), trunk)
    net.add(Dense("right", 2), trunk)
    return net


def test_layers_that_one_rank_does_not_reach_count_as_zeros_and_none_stand_still():
    left, right = RNG.random((4, 3), np.float32), RNG.random((4, 2), np.float32)

    def walked(net, optimizer, x, dy, count=None):
        net.forward(True, x)
        if count is not None:
            optimizer.begin(count)
        for item in net.backward(dy):
            optimizer.update(*item)
        if count is not None:
            optimizer.end()

    def work(comm):
        net = two_heads()
        optimizer = AllReduce(SGD(lr=0.1, weight_decay=0.1), comm)
        optimizer.meet(net)
        for k in range(4):
            # Nobody reaches "right" at first, then rank 1 alone does.
            reached = k >= 2 and comm.rank == 1
            dy = {"right": right[:2]} if reached else {"left": left[2 * comm.rank :][:2]}
            walked(net, optimizer, X[2 * comm.rank :][:2], dy, count=2)
        return net

    # By hand: means of both ranks' gradients, the ones that are missing as zeros.
    net, rule = two_heads(), SGD(lr=0.1, weight_decay=0.1)
    for k in range(4):
        total, order = {}, {}
        for rank in range(2):
            reached = k >= 2 and rank == 1
            dy = {"right": right[:2]} if reached else {"left": left[2 * rank :][:2]}
            net.forward(True, X[2 * rank :][:2])
            for names, values, grads in net.backward(dy):
                for name, value, grad in zip(names, values, grads, strict=True):
                    total[name] = total.get(name, 0) + 0.5 * grad
                    order[name] = value
        rule.update(list(total), [order[n] for n in total], [np.asarray(g) for g in total.values()])
    expect_near(net, together(work))


def test_what_is_too_large_for_float16_is_cut_and_counted():
    def work(comm):
        net = singanet.FeedForwardNet(
            [Dense("a", 1, input_sample_shape=(2,), use_bias=False)], loss=SquaredError(), seed=0
        )
        before = net.param_values()[0].copy()
        optimizer = AllReduce(SGD(lr=1.0), comm, dtype="float16")
        optimizer.meet(net)
        optimizer.begin(1)
        grad = np.array([[1e6], [-2.0]], np.float32).reshape(before.shape)
        optimizer.update(net.param_names(), net.param_values(), [grad])
        optimizer.end()
        return (before - net.param_values()[0]).ravel(), optimizer.overflowed

    made = together(work)
    for moved, _ in made:
        np.testing.assert_allclose(moved, [65504 / 2, -2.0], rtol=1e-3)
    # Both ranks' parts, and their sum, which one of them makes.
    assert sum(count for _, count in made) == 3


def test_micro_batches_that_differ_by_rank_are_refused_before_gradients_are_exchanged():
    """In mixed precision ranks agree on each micro-batch: they once met at other points of it."""

    def work(comm):
        net = uneven_net()
        gathered = Accumulator(AllReduce(SGD(lr=0.05), comm), 2)
        net.compile(gathered, mixed_precision="float16")
        optimizer = net.compiled.scaled(gathered)
        for k in range(4):
            net.step(X[k : k + 3], Y[k : k + 3], optimizer)
        before = net.param_values()
        sums = gathered.optimizer.traffic.sums
        gathered.every = 2 + comm.rank
        with pytest.raises(RankError, match=r"equal numbers of micro-batches .*\[2, 3\]"):
            net.step(X[:3], Y[:3], optimizer)
        assert gathered.optimizer.traffic.sums == sums
        for now, was in zip(net.param_values(), before, strict=True):
            np.testing.assert_array_equal(now, was)

    together(work)


def test_a_copy_of_the_optimizer_alone_meets_its_net_anew():
    """A copy does not know nets by the ids of this process."""
    net, optimizer = uneven_net(), AllReduce(Adam())
    net.step(X, Y, optimizer)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert optimizer._has_met
        assert not made._has_met
        net.step(X, Y, made)
        assert made._has_met
