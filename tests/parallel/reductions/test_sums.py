"""Dense sums by `AllReduce`: the weights of ranks, layers that only some reach, float16."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, RankError
from singanet.layers import Activation, Dense, Embedding, Flatten, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByLayerNorm
from singanet.optimizer.chain import UpdateChain
from singanet.parallel import AllReduce, Hybrid, ParameterServer
from tests.kit.nets import two_heads, uneven_net, values_of
from tests.kit.ranks import (
    expect_near_values,
    expect_same_bits,
    expect_same_values,
    served,
    together,
)

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def steps_alone(build, optimizer, batches):
    net = build()
    return net, [net.step(x, y, optimizer)[0] for x, y in batches]


def expect_one_process(alone, wrap, batches, size=2, cuts=None):
    """Check ranks by the net and losses of one process; a rank's shard may be empty."""
    net, wanted = alone

    def work(comm):
        own_net, optimizer, told = net(), wrap(comm), []
        stage = UpdateChain(optimizer).reducers[0]
        for k, (x, y) in enumerate(batches):
            bounds = cuts[k] if cuts else [len(x) * r // size for r in range(size + 1)]
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            told.append((own.stop - own.start, 0.0))
            if own.stop > own.start:
                told[-1] = own.stop - own.start, own_net.step(x[own], y[own], optimizer)[0]
            else:
                stage.meet(own_net)
                stage.begin(0)
                stage.end()
        return own_net, told

    made = together(work, size)
    of_steps = zip(*(told for _, told in made), strict=True)
    means = [sum(n * loss for n, loss in each) / sum(n for n, _ in each) for each in of_steps]
    np.testing.assert_allclose(means, wanted[1], rtol=1e-5, atol=1e-6)
    expect_same_bits([each for each, _ in made])
    expect_near_values(values_of(made[0][0]), values_of(wanted[0]))


@pytest.mark.parametrize("clip", [lambda inner: inner, lambda inner: ClipByGlobalNorm(inner, 0.1)])
def test_what_is_accumulated_is_reduced_once_and_weighs_as_it_should(clip):
    batches = [(X[:12], Y[:12]), (X[12:17], Y[12:17]), (X[17:], Y[17:])] * 2
    sent = []

    def wrap(comm):
        sent.append(comm)
        return Accumulator(AllReduce(clip(SGD(lr=0.5)), comm), 3)

    alone = steps_alone(uneven_net, Accumulator(clip(SGD(lr=0.5)), 3), batches)
    expect_one_process((uneven_net, alone), wrap, batches)
    rounds = 2 if clip(SGD(lr=1.0)).__class__ is SGD else 4
    # The values once, and each round of gradients.
    nbytes = sum(value.nbytes for value in alone[0].param_values())
    assert sent[0].bytes_sent < (1 + rounds) * nbytes * 1.05


def test_a_rank_whose_samples_have_ended_joins_through_the_stages_around():
    def work(comm):
        net, optimizer = uneven_net(), Accumulator(AllReduce(SGD(lr=0.5), comm), 2)
        for k in range(4 if comm.rank == 0 else 2):
            net.step(X[k::8], Y[k::8], optimizer)
        optimizer.join()
        return net

    net, optimizer = uneven_net(), SGD(lr=0.5)
    for k, weight in ((0, 2), (2, 1)):
        rows = np.concatenate([np.arange(len(X))[j::8] for j in (k, k + 1)] * weight)
        net.step(X[rows], Y[rows], optimizer)
    Accumulator(SGD(lr=0.1), 2).join()  # no other processes
    nets = together(work)
    expect_same_bits(nets)
    expect_near_values(values_of(nets[0]), values_of(net))


def small():
    layers = [Dense("a", 7, input_sample_shape=(6,)), Activation("tanh", "tanh"), Dense("b", 4)]
    return singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=3)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 4))
def test_uneven_shards_and_empty_ones_train_as_one_process(data, size):
    batches, cuts = [], []
    for _ in range(4):
        n = data.draw(st.integers(1, 24))
        inner = data.draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1))
        cuts.append([0, *sorted(inner), n])
        batches.append((X[:n], Y[:n]))
    alone = steps_alone(small, SGD(lr=0.2, momentum=0.9), batches)
    wrap = lambda comm: AllReduce(SGD(lr=0.2, momentum=0.9), comm)  # noqa: E731
    expect_one_process((small, alone), wrap, batches, size, cuts)


def test_layers_that_one_rank_does_not_reach_count_as_zeros_and_none_stand_still():
    dy = {"left": RNG.random((4, 3), np.float32), "right": RNG.random((4, 2), np.float32)}

    def walked(net, k, rank):
        # Nobody reaches "right" at first, then rank 1 alone does.
        name = "right" if k >= 2 and rank == 1 else "left"
        net.forward(True, X[2 * rank :][:2])
        return net.backward({name: dy[name][2 * rank * (name == "left") :][:2]})

    def work(comm):
        net, optimizer = two_heads(), AllReduce(SGD(lr=0.1, weight_decay=0.1), comm)
        optimizer.meet(net)
        for k in range(4):
            optimizer.begin(2)
            for item in walked(net, k, comm.rank):
                optimizer.update(*item)
            optimizer.end()
        return net

    # By hand: means of both ranks' gradients, the ones that are missing as zeros.
    net, rule = two_heads(), SGD(lr=0.1, weight_decay=0.1)
    for k in range(4):
        total, order = {}, {}
        for rank in range(2):
            for names, values, grads in walked(net, k, rank):
                order |= dict(zip(names, values, strict=True))
                for name, grad in zip(names, grads, strict=True):
                    total[name] = total.get(name, 0) + 0.5 * grad
        rule.update(list(total), [order[n] for n in total], [np.asarray(g) for g in total.values()])
    nets = together(work)
    expect_same_bits(nets)
    expect_near_values(values_of(nets[0]), values_of(net))


def test_what_is_too_large_for_float16_is_cut_and_counted():
    def work(comm):
        layer = Dense("a", 1, input_sample_shape=(2,), use_bias=False)
        net = singanet.FeedForwardNet([layer], loss=SquaredError(), seed=0)
        (value,), optimizer = net.param_values(), AllReduce(SGD(lr=1.0), comm, dtype="float16")
        before = value.copy()
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
        net, gathered = uneven_net(), Accumulator(AllReduce(SGD(lr=0.05), comm), 2)
        net.compile(gathered, mixed_precision="float16")
        optimizer = net.compiled.scaled(gathered)
        for k in range(4):
            net.step(X[k : k + 3], Y[k : k + 3], optimizer)
        before, sums = values_of(net), gathered.optimizer.traffic.sums
        gathered.every = 2 + comm.rank
        with pytest.raises(RankError, match=r"equal numbers of micro-batches .*\[2, 3\]"):
            net.step(X[:3], Y[:3], optimizer)
        assert gathered.optimizer.traffic.sums == sums
        expect_same_values([before, values_of(net)])

    together(work)


def test_a_copy_of_the_optimizer_alone_meets_its_net_anew():
    """A copy does not know nets by the ids of this process."""
    net, optimizer = uneven_net(), AllReduce(Adam())
    net.step(X, Y, optimizer)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (optimizer._has_met, made._has_met) == (True, False)
        net.step(X, Y, made)
        assert made._has_met


# -- losses that count otherwise than samples -----------------------------------------------------

FEW = (np.arange(60).reshape(10, 6) % 7 - 3).astype(np.float32)
LABELS = {"a": np.arange(10) % 3, "b": np.arange(10) % 4}
LABELS["a"][[0, 1, 2, 5]] = -1
PARTS = (slice(0, 3), slice(3, 10))


class Halved(SoftmaxCrossEntropy):
    """A user's own, that counts every other sample alone."""

    def count(self, x, y):
        return len(x) / 2 if len(x) > 4 else len(x)


def heads(**first):
    """Two outputs, of which the first ignores labels."""
    x = Input("x", (6,))
    h = Dense("h", 5)(x)
    outputs = [Dense("a", 3)(h), Dense("b", 4)(h)]
    of = {"a": SoftmaxCrossEntropy(ignore_index=-1, **first), "b": SoftmaxCrossEntropy()}
    net = singanet.FeedForwardNet(inputs=[x], outputs=outputs, seed=1, loss=MultiLoss(of))
    net.as_type("float64")
    return net


def steps(net, optimizer, part=slice(None), recorded=True, count=5):
    net.programs.enabled = recorded
    y = {name: labels[part] for name, labels in LABELS.items()}
    for _ in range(count):
        net.step(FEW[part], y, optimizer)
    return values_of(net)


def test_by_hand():
    """One step of SGD is by the sum over both outputs of its own mean, over all samples."""
    before = values_of(heads())
    after = together(
        lambda comm: steps(heads(), AllReduce(SGD(1.0), comm), PARTS[comm.rank], count=1)
    )[0]
    hidden = FEW @ before["h/weight"] + before["h/bias"]
    wanted = 0.0
    for name in "ab":
        scores = hidden @ before[f"{name}/weight"] + before[f"{name}/bias"]
        share = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        counts = LABELS[name] != -1
        dy = (share - np.eye(scores.shape[1])[LABELS[name]]) * counts[:, None] / counts.sum()
        wanted = wanted + dy @ before[f"{name}/weight"].T
    np.testing.assert_allclose(before["h/bias"] - after["h/bias"], wanted.sum(axis=0), rtol=1e-9)


def test_a_rank_without_samples_clips_by_the_norm_of_all_and_holds_nothing_back(monkeypatch):
    norms, knowing = [], ClipByGlobalNorm.knowing
    monkeypatch.setattr(
        ClipByGlobalNorm, "knowing", lambda self, n: (norms.append(float(n)), knowing(self, n))[1]
    )

    def work(comm):
        net, optimizer = heads(), AllReduce(ClipByGlobalNorm(SGD(0.1), 0.1), comm)
        optimizer.meet(net)
        if comm.rank == 0:
            steps(net, optimizer, recorded=False, count=1)
        optimizer.join()
        return values_of(net)

    expect_same_values(together(work))
    own, other = norms
    assert own == other > 0.1


@pytest.mark.parametrize("first", [{}, {"reduction": "sum"}], ids=str)
@pytest.mark.parametrize("clip", [None, 0.1])
def test_workers_of_servers_weigh_each_output_too(first, clip):
    """One of them leaves before the others, and still takes part in what they tell each other."""

    def rule():
        return SGD(0.1) if clip is None else ClipByGlobalNorm(SGD(0.1), clip)

    def work(comm, ranks):
        net, optimizer = heads(**first), ParameterServer(rule(), comm=comm, servers=ranks)
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
    net, optimizer = heads(**first), rule()
    steps(net, optimizer)
    expect_near_values(made[0], steps(net, optimizer, count=2), 1e-9, 1e-12)


def test_norms_of_rows_that_servers_sum_are_refused():
    def work(comm, ranks):
        layers = [Embedding("e", 12, 4, input_sample_shape=(3,)), Flatten("f"), Dense("d", 3)]
        net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(ignore_index=-1), seed=1)
        optimizer = Hybrid(ClipByLayerNorm(SGD(0.1), 1.0), comm, servers=ranks)
        with pytest.raises(ArgumentError, match="clip by value"):
            optimizer.meet(net)
        return net["e"].params["weight"].served

    assert served(work) == [None, None], "nothing was changed"


def test_a_users_own_count_is_asked_for():
    assert MultiLoss({"a": Halved(), "b": SquaredError()})._counts_apart
    assert not MultiLoss({"a": SquaredError(), "b": SoftmaxCrossEntropy()})._counts_apart


def test_what_is_thawed_between_micro_batches_counts_as_zeros_before():
    """By hand: the mean over both micro-batches, of which one gave the layer nothing."""
    net, other = (
        singanet.FeedForwardNet(
            [Dense("a", 2, input_sample_shape=(2,))], loss=SquaredError(), seed=0
        )
        for _ in range(2)
    )
    x, y, bias = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32), net["a"].params["bias"]
    optimizer, before = Accumulator(SGD(0.5), 2), bias.value.copy()
    for thawed in (False, True):
        bias.trainable = thawed
        net.step(x, y, optimizer)
    other.step(x, y, SGD(0.5))
    whole = values_of(other)
    np.testing.assert_allclose(bias.value - before, (whole["a/bias"] - before) / 2, rtol=1e-6)
    np.testing.assert_allclose(net["a"].params["weight"].value, whole["a/weight"], rtol=1e-6)
