"""What ranks' gradients weigh, where losses count otherwise than samples."""

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError
from singanet.layers import Dense, Embedding, Flatten, Input
from singanet.loss import Loss, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import (
    SGD,
    Accumulator,
    ClipByGlobalNorm,
    ClipByLayerNorm,
)
from singanet.parallel import AllReduce, Hybrid, ParameterServer
from tests.kit.nets import values_of
from tests.kit.ranks import expect_same_values, served, together

X = (np.arange(60).reshape(10, 6) % 7 - 3).astype(np.float32)
Y = {"a": np.arange(10) % 3, "b": np.arange(10) % 4}
Y["a"][[0, 1, 2, 5]] = -1
PARTS = (slice(0, 3), slice(3, 10))


class Halved(SoftmaxCrossEntropy):
    """A user's own, that counts every other sample alone."""

    def count(self, x, y):
        return len(x) / 2 if len(x) > 4 else len(x)


def heads(losses):
    x = Input("x", (6,))
    h = Dense("h", 5)(x)
    net = singanet.FeedForwardNet(
        inputs=[x], outputs=[Dense("a", 3)(h), Dense("b", 4)(h)], seed=1, loss=MultiLoss(losses())
    )
    net.as_type("float64")
    return net


def ignoring():
    return {"a": SoftmaxCrossEntropy(ignore_index=-1), "b": SoftmaxCrossEntropy()}


def mixed():
    return {"a": SoftmaxCrossEntropy(ignore_index=-1, reduction="sum"), "b": SoftmaxCrossEntropy()}


def steps(net, optimizer, part=slice(None), recorded=True, count=5):
    net.programs.enabled = recorded
    y = {name: labels[part] for name, labels in Y.items()}
    for _ in range(count):
        net.step(X[part], y, optimizer)
    return values_of(net)


def test_by_hand():
    """One step of SGD is that of Σ over both outputs of its own mean, over all samples."""
    net = heads(ignoring)
    before = values_of(net)

    def work(comm):
        return steps(heads(ignoring), AllReduce(SGD(1.0), comm), PARTS[comm.rank], count=1)

    after = together(work)[0]
    hidden = X @ before["h/weight"] + before["h/bias"]
    wanted = 0.0
    for name in "ab":
        scores = hidden @ before[f"{name}/weight"] + before[f"{name}/bias"]
        share = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        counts = Y[name] != -1
        dy = (share - np.eye(scores.shape[1])[Y[name]]) * counts[:, None] / counts.sum()
        wanted = wanted + dy @ before[f"{name}/weight"].T
    np.testing.assert_allclose(before["h/bias"] - after["h/bias"], wanted.sum(axis=0), rtol=1e-9)


def test_a_rank_without_samples_clips_by_the_norm_of_all_and_holds_nothing_back(monkeypatch):
    norms, knowing = [], ClipByGlobalNorm.knowing

    def noted(self, norm):
        norms.append(float(norm))
        return knowing(self, norm)

    monkeypatch.setattr(ClipByGlobalNorm, "knowing", noted)

    def work(comm):
        net, optimizer = heads(ignoring), AllReduce(ClipByGlobalNorm(SGD(0.1), 0.1), comm)
        optimizer.meet(net)
        if comm.rank == 0:
            steps(net, optimizer, recorded=False, count=1)
        optimizer.join()
        return values_of(net)

    expect_same_values(together(work))
    own, other = norms
    assert own == other > 0.1


@pytest.mark.parametrize("losses", [ignoring, mixed])
@pytest.mark.parametrize("clip", [None, 0.1])
def test_workers_of_servers_weigh_each_output_too(losses, clip):
    """One of them leaves before the others, and still takes part in what they tell each other."""

    def rule():
        return SGD(0.1) if clip is None else ClipByGlobalNorm(SGD(0.1), clip)

    def work(comm, ranks):
        net = heads(losses)
        optimizer = ParameterServer(rule(), comm=comm, servers=ranks)
        steps(net, optimizer, PARTS[comm.rank])
        if comm.rank:
            steps(net, optimizer, recorded=False, count=2)
        optimizer.join()
        optimizer.unify(net)
        found = values_of(net)
        comm.barrier("the values")
        return found

    made = served(work)
    expect_same_values(made)
    net, optimizer = heads(losses), rule()
    steps(net, optimizer)
    for name, value in steps(net, optimizer, count=2).items():
        np.testing.assert_allclose(made[0][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def bag():
    net = singanet.FeedForwardNet(
        [Embedding("e", 12, 4, input_sample_shape=(3,)), Flatten("f"), Dense("d", 3)],
        loss=SoftmaxCrossEntropy(ignore_index=-1),
        seed=1,
    )
    net.as_type("float64")
    return net


def test_norms_of_rows_that_servers_sum_are_refused():
    def work(comm, ranks):
        net = bag()
        optimizer = Hybrid(ClipByLayerNorm(SGD(0.1), 1.0), comm, servers=ranks)
        with pytest.raises(ArgumentError, match="clip by value"):
            optimizer.meet(net)
        return net["e"].params["weight"].served

    assert served(work) == [None, None], "nothing was changed"


def test_a_users_own_count_is_asked_for():
    assert MultiLoss({"a": Halved(), "b": SquaredError()})._counts_apart
    assert not MultiLoss({"a": SquaredError(), "b": SoftmaxCrossEntropy()})._counts_apart
    assert issubclass(Halved, Loss)


def test_what_is_thawed_between_micro_batches_counts_as_zeros_before():
    """By hand: the mean over both micro-batches, of which one gave the layer nothing."""
    net = singanet.FeedForwardNet(
        [Dense("a", 2, input_sample_shape=(2,))], loss=SquaredError(), seed=0
    )
    other = singanet.FeedForwardNet(
        [Dense("a", 2, input_sample_shape=(2,))], loss=SquaredError(), seed=0
    )
    x, y = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32)
    bias = net["a"].params["bias"]
    bias.trainable = False
    optimizer = Accumulator(SGD(0.5), 2)
    net.step(x, y, optimizer)
    bias.trainable = True
    before = {p.name: p.value.copy() for p in net.params()}
    net.step(x, y, optimizer)
    other.step(x, y, SGD(0.5))
    whole = {p.name: p.value for p in other.params()}
    np.testing.assert_allclose(
        bias.value - before["a/bias"], (whole["a/bias"] - before["a/bias"]) / 2, rtol=1e-6
    )
    np.testing.assert_allclose(net["a"].params["weight"].value, whole["a/weight"], rtol=1e-6)
