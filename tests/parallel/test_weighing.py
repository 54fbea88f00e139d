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
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
)
from singanet.parallel import AllReduce, Hybrid, ParameterServer, SparseAllReduce
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


def sums():
    return {name: SoftmaxCrossEntropy(ignore_index=-1, reduction="sum") for name in "ab"}


def steps(net, optimizer, part=slice(None), recorded=True, count=5):
    net.programs.enabled = recorded
    y = {name: labels[part] for name, labels in Y.items()}
    for _ in range(count):
        net.step(X[part], y, optimizer)
    return values_of(net)


@pytest.mark.few(5)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("losses", [ignoring, mixed, sums])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda rule, comm: AllReduce(rule, comm),
        lambda rule, comm: AllReduce(ClipByGlobalNorm(rule, 0.1), comm),
        lambda rule, comm: SparseAllReduce(rule, comm, ratio=1.0),
        lambda rule, comm: Accumulator(AllReduce(rule, comm), 2),
    ],
    ids=["all", "clipped", "sparse", "accumulated"],
)
def test_each_output_weighs_by_what_its_loss_counts(wrap, losses, recorded):
    def work(comm):
        return steps(heads(losses), wrap(SGD(0.1, momentum=0.5), comm), PARTS[comm.rank], recorded)

    made = together(work)
    alone = steps(heads(losses), wrap(SGD(0.1, momentum=0.5), singanet.parallel.SingleProcess()))
    expect_same_values(made)
    for name, value in alone.items():
        np.testing.assert_allclose(made[0][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


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


def test_a_rank_without_samples_joins():
    def work(comm):
        net, optimizer = heads(ignoring), AllReduce(SGD(0.1), comm)
        optimizer.meet(net)
        if comm.rank == 0:
            steps(net, optimizer, recorded=False)
        optimizer.join()
        return values_of(net)

    made = together(work)
    expect_same_values(made)
    alone = steps(heads(ignoring), SGD(0.1))
    for name, value in alone.items():
        np.testing.assert_allclose(made[0][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


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


@pytest.mark.parametrize("kind", ["server", "hybrid", "sparse", "all"])
def test_rows_of_samples_whose_labels_are_ignored_are_touched(kind):
    """As in one process: Adam goes on moving them by what it remembers."""
    x, y = np.arange(30).reshape(10, 3) * 5 % 12, np.arange(10) % 3
    rounds = [y, np.where(np.arange(10) < 3, -1, y), y]

    def train(optimizer, part=slice(None)):
        net = bag()
        for labels in rounds:
            net.step(x[part], labels[part], optimizer)
        return net

    def work(comm, ranks=None):
        optimizer = {
            "server": lambda: ParameterServer(Adam(0.1), comm=comm, servers=ranks),
            "hybrid": lambda: Hybrid(Adam(0.1), comm, servers=ranks),
            "sparse": lambda: SparseAllReduce(Adam(0.1), comm, ratio=1.0),
            "all": lambda: AllReduce(Adam(0.1), comm),
        }[kind]()
        net = train(optimizer, PARTS[comm.rank])
        optimizer.unify(net)
        found = values_of(net)
        comm.barrier("the values")
        return found

    made = (served if kind in ("server", "hybrid") else together)(work)
    expect_same_values(made)
    for name, value in values_of(train(Adam(0.1))).items():
        np.testing.assert_allclose(made[0][name], value, rtol=1e-9, atol=1e-12, err_msg=name)


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
