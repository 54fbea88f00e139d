"""Sums of matrices by a few columns and rows: the formula, exact where rank is enough; threads."""

import zlib

import numpy as np
import pytest

import singanet
from singanet.layers import Dense
from singanet.optimizer import SGD
from singanet.parallel import AllReduce, PowerSGD
from tests.kit.nets import dense_net, uneven_net, values_of
from tests.kit.ranks import expect_same_values, together

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def stepped(comm, wrap, build=uneven_net, x=X, steps=6, records=True, cuts=None):
    net, optimizer = build(), wrap(comm)
    net.programs.enabled = records
    bounds = cuts or [24 * rank // comm.size for rank in range(comm.size + 1)]
    own = slice(bounds[comm.rank], bounds[comm.rank + 1])
    losses = [net.step(x[own], Y[own], optimizer)[0] for _ in range(steps)]
    return {**values_of(net), **optimizer._own_state(), "losses": np.array(losses)}, net


def of_ranks(size, wrap, **more):
    return together(lambda comm: stepped(comm, wrap, **more), size)


def expect_alike(made):
    """Ranks have the same parameters to the bit."""
    names = [param.name for param in made[0][1].params()]
    expect_same_values([{name: each[name] for name in names} for each, _ in made])


def gradients(net, x, y):
    net.loss.forward(True, net.forward(True, x), y)
    found = {}
    for names, _, grads in net.backward(net.loss.backward()):
        found |= dict(zip(names, (np.array(grad) for grad in grads), strict=True))
    return found


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("warm", [True, False])
def test_the_formula(feedback, warm):
    cuts, rank, steps = [0, 5, 24], 2, 4
    wrap = lambda c: PowerSGD(SGD(lr=0.2), c, rank, warm, feedback)  # noqa: E731

    def wide():
        net = dense_net(wide=60)
        net.as_type("float64")
        return net

    for records in (True, False):
        found = of_ranks(2, wrap, build=wide, cuts=cuts, steps=steps, records=records)
        expect_alike(found)
        net = wide()
        by_name = {param.name: param for param in net.params()}
        # Of d, 40 × 4, as many numbers would be sent as it has, but for a few.
        low = ["a/weight", "b/weight", "c/weight"]
        rest = {(k, name): 0.0 for k in range(2) for name in low}
        start = {}
        for step in range(steps):
            parts = [gradients(net, X[a:b], Y[a:b]) for a, b in ((0, 5), (5, 24))]
            shares = (5 / 24, 19 / 24)
            sums = {
                name: shares[0] * parts[0][name] + shares[1] * parts[1][name] for name in by_name
            }
            for name in low:
                shape = by_name[name].shape
                seed = [zlib.crc32(name.encode()), step if not warm else 0]
                drawn = np.random.default_rng(seed).standard_normal((shape[1], rank))
                q = start.get(name, drawn) if warm else drawn
                mine = [shares[k] * parts[k][name] + rest[k, name] for k in range(2)]
                p, _ = np.linalg.qr((mine[0] + mine[1]) @ q)
                if feedback:
                    for k in range(2):
                        rest[k, name] = mine[k] - p @ (p.T @ mine[k])
                start[name] = (mine[0] + mine[1]).T @ p
                sums[name] = p @ p.T @ (mine[0] + mine[1])
            for name, param in by_name.items():
                param.value[...] -= 0.2 * sums[name]
        for each, _ in found:
            for name, param in by_name.items():
                np.testing.assert_allclose(each[name], param.value, 1e-8, 1e-10, err_msg=name)
        for k, (each, _) in enumerate(found):
            for name in low if feedback else ():
                kept = each[f"{name}/unsent"].reshape(by_name[name].shape)
                np.testing.assert_allclose(kept, rest[k, name], 1e-7, 1e-10)


def test_what_is_not_sent_comes_later():
    """The updates of many steps add up to those by whole gradients, which here stay the same."""

    def work(comm):
        net = singanet.FeedForwardNet(
            [Dense("a", 40, use_bias=False, input_sample_shape=(40,))],
            loss=singanet.loss.SquaredError(),
            seed=1,
        )
        optimizer = PowerSGD(SGD(lr=1.0), comm, rank=1)
        optimizer.meet(net)
        before = values_of(net)["a/weight"]
        grad = np.random.default_rng(comm.rank).standard_normal((40, 40)).astype(np.float32)
        for _ in range(400):
            optimizer.begin(1)
            optimizer.update(["a/weight"], [net.param_values()[0]], [grad])
            optimizer.end()
        return (before - values_of(net)["a/weight"]) / 400

    moved = together(work)[0]
    grads = [np.random.default_rng(rank).standard_normal((40, 40)) for rank in range(2)]
    mean = (grads[0] + grads[1]) / 2
    assert np.linalg.norm(moved - mean) < 0.25 * np.linalg.norm(mean)


@pytest.mark.parametrize("size", [2, 3])
def test_few_bytes_are_sent(size):
    def sent(comm, wrap):
        net, optimizer = dense_net(wide=2000), wrap(comm)
        optimizer.meet(net)
        for _ in range(2):
            net.step(X, Y, optimizer)
        before = comm.exchanged
        net.step(X, Y, optimizer)
        return comm.exchanged.since(before).sent

    whole = together(lambda comm: sent(comm, lambda c: AllReduce(SGD(lr=0.1), c)), size)
    few = together(lambda comm: sent(comm, lambda c: PowerSGD(SGD(lr=0.1), c, rank=2)), size)
    numbers = 2 * (40 + 2000) * 2 + 6 * 40 + 40 + 2000 + 40 + 40 * 4 + 4
    dense = 40 * 2000 * 2 + 6 * 40 + 40 + 2000 + 40 + 40 * 4 + 4
    assert few[0] / whole[0] == pytest.approx(numbers / dense, rel=0.05)


def test_a_parameter_whose_gradients_begin_as_zeros_is_trained():
    def work(comm, wrap):
        net, optimizer = dense_net(wide=100), wrap(comm)
        # So that the first gradient of b is zero, and the later ones are not.
        net["c"].params["weight"].value[...] = 0
        before = values_of(net)["b/weight"]
        for _ in range(20):
            net.step(X, Y, optimizer)
        return np.linalg.norm(values_of(net)["b/weight"] - before)

    whole = together(lambda c: work(c, lambda c: AllReduce(SGD(lr=0.5), c)))[0]
    found = together(lambda c: work(c, lambda c: PowerSGD(SGD(lr=0.5), c, rank=2)))[0]
    assert 0.5 * whole < found < 2 * whole
