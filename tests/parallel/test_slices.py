"""Ranks that keep slices of parameters: what a net does then; ranks are threads."""

import copy
import pickle

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.base.heap import LentMemory
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError, RankError, SingaNetError
from singanet.layers import Activation, BatchNormalization, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam, StageTraits, Wrapper
from singanet.parallel import (
    AllReduce,
    Pipeline,
    Sharded,
    SingleProcess,
    SplitDense,
    SplitEmbedding,
)
from singanet.training.callbacks import EMA, Callback, EarlyStopping, ModelCheckpoint
from tests.keeping import WAYS, keeping_net
from tests.kit.nets import dense_net, uneven_net, values_of
from tests.kit.ranks import expect_near_values, expect_same_values, together

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
ZEROS = np.zeros((4, 24), np.float32)
IDS, KINDS = RNG.integers(0, 11, (9, 3)), RNG.integers(0, 4, 9)


def cut(rule, comm, **more):
    """Small nets are cut too."""
    return Sharded(rule, comm, 3, **{"smallest": 100, **more})


def trained(comm, wrap=cut, build=uneven_net, steps=3):
    net, optimizer = build(), wrap(Adam(lr=0.01), comm)
    for _ in range(steps):
        net.step(X[comm.rank :: comm.size], Y[comm.rank :: comm.size], optimizer)
    return net, optimizer


def expect_alike(work):
    """Check that ``work(comm, wrap)`` of ranks with slices finds what whole ranks find."""
    whole, sliced = (together(lambda comm, w=wrap: work(comm, w)) for wrap in (AllReduce, cut))
    np.testing.assert_equal(sliced, whole)


def dense_of(widths, loss=SquaredError):
    first, *widths = widths
    layers = [Dense(f"d{k}", n, use_bias=False) for k, n in enumerate(widths)]
    layers[0].input_sample_shape = (first,)
    return FeedForwardNet(layers, loss=loss(), seed=1)


# -- what a rank holds ----------------------------------------------------------------------------


def watched(gathers):
    """A list that has, after each read, the names and bytes of what is held, and what is free."""
    seen, read = [], gathers.read

    def watch(slices):
        found = read(slices)
        names = sorted(each.name for each in gathers._held)
        nbytes = sum(array.nbytes for array, *_ in gathers._held.values())
        seen.append((names, nbytes, sum(memory.nbytes for memory in gathers._free)))
        return found

    gathers.read = watch
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_holds_its_rows_and_two_layers_at_most(size):
    def work(comm):
        net, _ = trained(comm)
        seen = watched(net.executor.gathers)
        net.forward(False, X)
        own = sum(param.storage.nbytes for param in net.params())
        return own, [nbytes for _, nbytes, _ in seen], [param.nbytes for param in net.params()]

    made = together(work, size)
    whole = made[0][2]
    assert sum(own for own, *_ in made) <= sum(whole) + size * 1000
    for own, held, _ in made:
        assert own < 1.2 * sum(whole) / size
        # Layers b and c are two.
        assert max(held) <= sum(sorted(whole)[-2:]) + 2 * 2000
        # When the last layer runs, not all is still there.
        assert held[-1] <= sum(whole) / 2


def test_a_layer_is_gathered_while_the_one_before_it_is_used():
    """The next one in the order of the pass, forward and back, and no further one."""
    names = [f"d{k}/weight" for k in range(6)]

    def work(comm):
        net, optimizer = dense_of([24] * 7), cut(Adam(lr=0.01), comm)
        net.step(ZEROS, ZEROS, optimizer)
        seen = watched(net.executor.gathers)
        net.forward(False, ZEROS)
        evaluated = [held for held, *_ in seen]
        seen.clear()
        net.step(ZEROS, ZEROS, optimizer)
        return evaluated, [held for held, *_ in seen]

    def following(order):
        return [sorted({*order[k : k + 2]}) for k in range(len(order))]

    for evaluated, seen in together(work):
        assert evaluated == following(names)
        # The last one is there when the way back begins. The first one passes no gradient on, so it
        # needs no values there.
        assert seen == [*following(names), names[-1:], *following(names[-2:0:-1])]


def test_who_looks_back_at_a_layer_disturbs_no_pass():
    def work(comm):
        net, held = keeping_net(24), []
        cut(Adam(lr=0.01), comm).meet(net)
        gathers, tables = net.executor.gathers, [param.storage for param in net.params()]
        read = gathers.read

        def looks_back(slices):
            found = read(slices)
            if slices is tables[3]:
                read(tables[0])
                held.extend(sorted(each.name for each in gathers._held))
            return found

        gathers.read = looks_back
        net.forward(False, ZEROS)
        return held

    assert together(work) == [["k0/table", "k3/table", "k4/table"]] * 2


def test_memory_of_layers_that_were_is_used_again(monkeypatch):
    made = []

    class Counted(LentMemory):
        def __init__(self, owner):
            super().__init__(owner)
            made.append(self)

    def work(comm):
        net = keeping_net(24, depth=12)
        cut(Adam(lr=0.01), comm).meet(net)
        net.forward(False, ZEROS)

    monkeypatch.setattr("singanet.parallel.slices.LentMemory", Counted)
    together(work)
    # Two on each rank, and some that another thread had for a moment longer.
    assert 4 <= len(made) <= 12


def test_memory_that_fits_no_layer_is_let_go():
    """What is free never exceeds the largest layer, with layers of different sizes."""
    widths = range(84, 40, -4)

    def work(comm):
        net = dense_of(widths, SoftmaxCrossEntropy)
        cut(Adam(lr=0.01), comm).meet(net)
        seen = watched(net.executor.gathers)
        net.forward(False, np.zeros((4, 84), np.float32))
        return [free for *_, free in seen], [param.nbytes for param in net.params()]

    for free, sizes in together(work):
        assert len(free) == len(sizes) == len(widths) - 1
        assert max(free) <= max(sizes)


def test_a_net_without_values_is_filled_slice_by_slice():
    def work(comm):
        whole, net, made = uneven_net(), uneven_net(seed=1 + comm.rank), []

        def drawn(param):
            made.extend(p.name for s in net.planned().steps for p in s.layer.params.values()
                        if p.filled and p.storage.in_memory and p.nbytes > 100)  # fmt: skip
            made.append(None)
            return param.initial()

        with net._filled_by(drawn):
            cut(SGD(0.1), comm).meet(net)
        assert made
        assert not any(made)
        return values_of(whole), values_of(net)

    for whole, found in together(work):
        expect_same_values([whole, found])


# -- as ranks that have all -----------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_layers_may_keep_arrays(way):
    x, y = RNG.standard_normal((2, 8, 24), np.float32)

    def work(comm, wrap):
        net, optimizer = keeping_net(24, way), wrap(Adam(lr=0.01), comm)
        losses = [net.step(x[comm.rank :: 2], y[comm.rank :: 2], optimizer)[0] for _ in range(3)]
        return {**values_of(net), "losses": np.array(losses)}

    expect_alike(work)


def open_all(path):
    with open_state(path) as reader:
        return {name: np.array(array) for name, array in dict(reader).items()}


def test_a_net_says_on_all_ranks_what_it_says_on_one(tmp_path):
    def work(comm, wrap):
        net, _ = trained(comm, wrap)
        net.metric = Accuracy()
        path = tmp_path / f"{wrap.__name__}{comm.rank}.npz"
        net.save(path)
        twins = {"copy": copy.deepcopy(net), "pickled": pickle.loads(pickle.dumps(net))}
        made = {
            "predicted": net.predict(X, batch_size=5),
            "loss": np.array(net.evaluate(X, Y)),
            **{f"{way}/{n}": a for way, twin in twins.items() for n, a in values_of(twin).items()},
            **{f"file/{name}": array for name, array in open_all(path).items()},
        }
        assert all(param.storage.in_memory for param in twins["copy"].params())
        twins["copy"].step(X, Y, SGD(0.1))
        return made

    expect_alike(work)


class Looks(Callback):
    """Looks at the whole net, and changes it, on all ranks."""

    def on_epoch_end(self, epoch, logs):
        net = self.session.net
        logs["mean"] = float(np.mean([abs(param.peek()).mean() for param in net.params()]))
        if epoch == 1:
            net["b"].params["weight"].value *= 0.5


@pytest.mark.parametrize("validated", [23, 3])
def test_a_fit_with_all_that_looks_at_the_net(validated, tmp_path):
    def work(comm, wrap):
        net = dense_net(more=[BatchNormalization("n")])
        # Adam would enlarge what rounding leaves of the gradient of a bias before the layer n.
        net.compile(wrap(SGD(lr=0.05, momentum=0.9), comm), metrics=[Accuracy()])
        history = net.fit(
            X[:23], Y[:23], 8, 4, validation_data=(X[:validated], Y[:validated]), verbose=False,
            clip=0.1, clip_by="global",
            callbacks=[EMA(0.5), Looks(), EarlyStopping("val_loss", 9, restore_best=True),
                       ModelCheckpoint(tmp_path / wrap.__name__, "val_loss")],
        )  # fmt: skip
        seen = {k: np.array(v) for k, v in history.items() if "bytes" not in k}
        return {**seen, **values_of(net), "evaluated": np.array(net.evaluate(X[:5], Y[:5]))}

    whole, sliced = (together(lambda comm, w=wrap: work(comm, w)) for wrap in (AllReduce, cut))
    for one, two in zip(whole, sliced, strict=True):
        expect_near_values(two, one, 1e-4, 1e-5)
    for file in ("best.npz", "epoch-0004.npz"):
        one, two = (open_all(tmp_path / name / file) for name in ("AllReduce", "cut"))
        names = {name for name in one if "EMA" not in name and name != "session"}
        assert names <= two.keys()
        expect_near_values({n: two[n] for n in names}, {n: one[n] for n in names}, 1e-4, 1e-5)


def test_values_that_a_loop_of_ones_own_changes_are_kept():
    def work(comm, wrap):
        net = uneven_net()
        wrap(SGD(0.0), comm).meet(net)
        for _ in range(3):
            net.loss.forward(True, net.forward(True, X), Y)
            for _, values, grads in net.backward(net.loss.backward()):
                for value, grad in zip(values, grads, strict=True):
                    value -= 0.1 * grad
        net["b"].params["weight"].value[2:4] = 7.0
        net.params()[0].put(np.full(net.params()[0].shape, 0.5, np.float32))
        return values_of(net)

    expect_alike(work)


def test_walks_left_half_way_and_forwards_without_one_leave_no_trace():
    def work(comm, wrap):
        net, optimizer = trained(comm, wrap, steps=1)
        net.loss.forward(True, net.forward(True, X), Y)
        walk = net.backward(net.loss.backward())
        next(walk)
        net.forward(True, X)
        del walk
        net.forward(False, X)
        net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return values_of(net)

    expect_alike(work)


class Nudged(Wrapper):
    """A stage of a user's own around the ranks, which looks at values."""

    traits = StageTraits(reads="nothing")
    seen = ()

    def take(self, names, values, grads, scale):
        self.seen = [float(abs(value).mean()) for value in values]
        yield names, values, grads, scale


@pytest.mark.parametrize(
    "around", [lambda wrap: wrap, lambda wrap: lambda rule, comm: Nudged(wrap(rule, comm))]
)
@pytest.mark.parametrize("cut_before", [False, True])
def test_an_optimizer_that_knows_no_slices_or_looks_at_values_sees_whole_ones(around, cut_before):
    def work(comm, wrap):
        net = uneven_net()
        if cut_before:
            wrap(SGD(0.0), comm).meet(net)
        optimizer = around(AllReduce if cut_before else wrap)(SGD(0.1, momentum=0.9), comm)
        seen = []
        for _ in range(3):
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
            seen += getattr(optimizer, "seen", ())
        return {**values_of(net), "seen": np.array(seen)}

    expect_alike(work)


@pytest.mark.parametrize("way", ["recompute", "frozen", "by layer"])
def test_other_ways_to_run_it(way):
    def build():
        net = uneven_net()
        if way == "recompute":
            net.programs.recompute = "blocks"
        if way == "frozen":
            net.freeze("c")
        return net

    def work(comm, wrap):
        (net, optimizer), seen = trained(comm, wrap, build), {}

        def look(item):
            for name, value, grad in zip(item.names, item.values, item.grads, strict=True):
                seen[f"value/{name}"], seen[f"grad/{name}"] = value.copy(), grad.copy()

        batch = X[comm.rank :: 2], Y[comm.rank :: 2]
        net.step(*batch, optimizer, look if way == "by layer" else None)
        assert len(seen) == (2 * len(net.params()) if way == "by layer" else 0)
        return {**values_of(net), **seen}

    expect_alike(work)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda net, optimizer: optimizer.join(), "the end of its batches"),
        (lambda net, optimizer: net.predict(X), "in an evaluation"),
    ],
)
def test_ranks_that_do_different_things_are_told(other, told):
    def work(comm):
        net, optimizer = trained(comm)
        if comm.rank:
            other(net, optimizer)
        else:
            net.step(X, Y, optimizer)

    with pytest.raises(RankError, match=told):
        together(work)


class FirstAlone(Callback):
    first_rank_only = True

    def on_epoch_end(self, epoch, logs):
        self.session.net.evaluate(X, Y)


def sliced(net, comm):
    net.step(X, Y, cut(SGD(0.1), comm))
    return net


def offloaded(net, comm, folder):
    net.offload(folder / str(comm.rank), "1MB")
    sliced(net, comm)


def half(net, comm, folder):
    net.compile(cut(SGD(0.1), comm), mixed_precision="float16")
    net.fit(X, Y, verbose=False)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (offloaded, "stay in memory"),
        (half, "whole parameters on each rank"),
        (lambda n, c, f: sliced(n, c).as_type("float64"), "copy.deepcopy"),
        (lambda n, c, f: sliced(n, c).offload(f / "f", "1MB"), "copy.deepcopy"),
        (lambda n, c, f: sliced(n, c).programs, "in slices"),
        (lambda n, c, f: Pipeline(sliced(n, c), comm=c), "in slices"),
    ],
)
def test_what_does_not_combine_is_refused_and_changes_nothing(make, told, tmp_path):
    def work(comm):
        net = uneven_net()
        before = values_of(net)
        with pytest.raises(SingaNetError) as error:
            make(net, comm, tmp_path)
        if net.dtype == np.float32 and all(p.storage.in_memory for p in net.params()):
            expect_same_values([before, values_of(net)])
        return str(error.value)

    assert any(each in together(work)[0] for each in told.split("|"))


def test_an_evaluation_of_rank_0_alone_is_refused():
    def work(comm):
        net = uneven_net()
        net.compile(cut(SGD(0.1), comm))
        net.fit(X, Y, verbose=False, callbacks=[FirstAlone()])

    with pytest.raises(RankError, match="rank 0 alone"):
        together(work)


# -- layers of which each rank has a slice ---------------------------------------------------------


def whole(transposed):
    made = [Flatten("f"), Dense("a", 7, W_transpose=transposed), Activation("r"), Dense("b", 4)]
    table = Embedding("e", 11, 5, input_sample_shape=(3,))
    return FeedForwardNet([table, *made], loss=SoftmaxCrossEntropy(), seed=2)


def split(comm, transposed, first, second, third):
    made = [SplitEmbedding("e", 11, 5, first, comm, input_sample_shape=(3,)), Flatten("f")]
    made += [SplitDense("a", 7, second, comm, W_transpose=transposed), Activation("r")]
    made.append(SplitDense("b", 4, third, comm))
    return FeedForwardNet(made, loss=SoftmaxCrossEntropy(), seed=2)


@pytest.mark.parametrize(("ranks", "transposed"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize(
    "kinds", [("rows", "columns", "rows"), ("columns", "rows", "columns")], ids="-".join
)
def test_ranks_train_slices_as_one_process_the_whole(ranks, transposed, kinds):
    alone = whole(transposed)
    rule = Adam(lr=0.05)
    losses = [alone.step(IDS, KINDS, rule)[0] for _ in range(5)]
    outputs = [alone.forward(False, IDS) for _ in range(3)]
    wanted = {param.name: param.value for param in alone.params()}

    def work(comm):
        net = split(comm, transposed, *kinds)
        rule = Adam(lr=0.05)
        told = [net.step(IDS, KINDS, rule)[0] for _ in range(5)]
        # A recording would ask the others while it only tries what it has written down.
        shown = [net.forward(False, IDS) for _ in range(3)]
        assert len(net.programs.refusals) == 2
        return told, shown, {param.name: param.value for param in net.params()}

    runs = together(work, ranks)
    for told, shown, _ in runs:
        np.testing.assert_allclose(told, losses, rtol=1e-5)
        np.testing.assert_allclose(shown, outputs, rtol=1e-4, atol=1e-5)
    for name, value in wanted.items():
        parts = [values[name] for _, _, values in runs]
        axis = next((k for k in range(value.ndim) if parts[0].shape[k] != value.shape[k]), None)
        made = parts[0] if axis is None else np.concatenate(parts, axis)
        np.testing.assert_allclose(made, value, rtol=1e-4, atol=1e-5, err_msg=name)
        assert sum(part.size for part in parts) < value.size + len(value) * ranks


def test_layers_that_do_not_split_are_refused():
    def other_samples(comm):
        net = split(comm, False, "rows", "rows", "rows")
        net.step((IDS + comm.rank) % 11, KINDS, Adam(lr=0.1))

    with pytest.raises(RankError, match="same samples"):
        together(other_samples)
    with pytest.raises(ArgumentError, match="ranks"):
        together(
            lambda comm: SplitDense("a", 2, "columns", comm, input_sample_shape=(5,)).build((5,)), 3
        )
    with pytest.raises(ArgumentError, match="columns"):
        SplitDense("a", 2, "diagonals", SingleProcess())
