"""Ranks that keep slices of parameters: what a net does then; ranks are threads."""

import copy
import pickle

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.base.heap import LentMemory
from singanet.checkpoint import open_state
from singanet.errors import RankError, SingaNetError
from singanet.layers import BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam, Wrapper
from singanet.parallel import AllReduce, Pipeline, Sharded
from singanet.testing import communicators
from singanet.training.callbacks import EMA, Callback, EarlyStopping, ModelCheckpoint
from tests.keeping import WAYS, keeping_net
from tests.kit.nets import dense_net, uneven_net, values_of
from tests.kit.ranks import expect_same_values, together

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def cut(rule, comm, **more):
    """Small nets are cut too."""
    return Sharded(rule, comm, 3, **{"smallest": 100, **more})


def trained(comm, build=uneven_net, wrap=cut, steps=3):
    net, optimizer = build(), wrap(Adam(lr=0.01), comm)
    for _ in range(steps):
        net.step(X[comm.rank :: comm.size], Y[comm.rank :: comm.size], optimizer)
    return net, optimizer


def by_all_reduce(comm, **more):
    return trained(comm, wrap=AllReduce, **more)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_holds_its_rows_and_two_layers_at_most(size):
    def work(comm):
        net, _ = trained(comm)
        held, gathers = [], net.executor.gathers
        read = gathers.read

        def watched(slices):
            found = read(slices)
            held.append([array.nbytes for array, *_ in gathers._held.values()])
            return found

        gathers.read = watched
        net.forward(False, X)
        own = sum(param.storage.nbytes for param in net.params())
        return own, held, [param.nbytes for param in net.params()]

    made = together(work, size)
    whole = made[0][2]
    assert sum(own for own, *_ in made) <= sum(whole) + size * 1000
    for own, held, _ in made:
        assert own < 1.2 * sum(whole) / size
        # Layers b and c are two.
        assert max(map(sum, held)) <= sum(sorted(whole)[-2:]) + 2 * 2000
        assert not trained_is_kept(held[-1], whole)


def held_at_each_read(gathers):
    """A list that has, after each read, the names of what is held and the bytes that are free."""
    seen, read = [], gathers.read

    def watched(slices):
        found = read(slices)
        names = sorted(each.name for each in gathers._held)
        seen.append((names, sum(memory.nbytes for memory in gathers._free)))
        return found

    gathers.read = watched
    return seen


def test_a_layer_is_gathered_while_the_one_before_it_is_used():
    """The next one in the order of the pass, forward and back, and no further one."""
    names = [f"d{k}/weight" for k in range(6)]

    def work(comm):
        layers = [Dense(f"d{k}", 24, use_bias=False) for k in range(6)]
        layers[0].input_sample_shape = (24,)
        net = FeedForwardNet(layers, loss=SquaredError(), seed=1)
        optimizer, x = cut(Adam(lr=0.01), comm), np.zeros((4, 24), np.float32)
        net.step(x, x, optimizer)
        seen = held_at_each_read(net.executor.gathers)
        net.forward(False, x)
        evaluated = seen[:]
        seen.clear()
        net.step(x, x, optimizer)
        return evaluated, seen

    def following(order):
        return [sorted({*order[k : k + 2]}) for k in range(len(order))]

    for evaluated, seen in together(work):
        assert [held for held, _ in evaluated] == following(names)
        # The last one is there when the way back begins. The first one passes no gradient on, so it
        # needs no values there.
        assert [held for held, _ in seen] == [
            *following(names), names[-1:], *following(names[-2:0:-1])
        ]  # fmt: skip


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
        net.forward(False, np.zeros((4, 24), np.float32))
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
        net.forward(False, np.zeros((4, 24), np.float32))

    monkeypatch.setattr("singanet.parallel.slices.LentMemory", Counted)
    together(work)
    # Two on each rank, and some that another thread had for a moment longer.
    assert 4 <= len(made) <= 12


def test_memory_that_fits_no_layer_is_let_go():
    """What is free never exceeds the largest layer, with layers of different sizes."""
    widths = range(80, 40, -4)

    def work(comm):
        layers = [Dense(f"d{n}", n, use_bias=False) for n in widths]
        layers[0].input_sample_shape = (84,)
        net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)
        cut(Adam(lr=0.01), comm).meet(net)
        seen = held_at_each_read(net.executor.gathers)
        net.forward(False, np.zeros((4, 84), np.float32))
        return [free for _, free in seen], [param.nbytes for param in net.params()]

    for free, sizes in together(work):
        assert len(free) == len(sizes) == len(widths)
        assert max(free) <= max(sizes)


def trained_is_kept(last, whole):
    """Whether all is still there when the last layer runs."""
    return sum(last) > sum(whole) / 2


@pytest.mark.parametrize("way", WAYS)
def test_layers_may_keep_arrays(way):
    x, y = RNG.standard_normal((2, 8, 24), np.float32)

    def work(comm, wrap):
        net, optimizer = keeping_net(24, way), wrap(Adam(lr=0.01), comm)
        losses = [net.step(x[comm.rank :: 2], y[comm.rank :: 2], optimizer)[0] for _ in range(3)]
        return {**values_of(net), "losses": np.array(losses)}

    whole, sliced = (together(lambda comm, w=wrap: work(comm, w)) for wrap in (AllReduce, cut))
    expect_same_values([whole[0], sliced[0]])


def test_a_net_says_on_all_ranks_what_it_says_on_one(tmp_path):
    def work(comm, make):
        net, _ = make(comm)
        net.metric = Accuracy()
        path = tmp_path / f"{make.__name__}{comm.rank}.npz"
        net.save(path)
        twin = copy.deepcopy(net)
        made = {
            "predicted": net.predict(X, batch_size=5),
            "loss": np.array(net.evaluate(X, Y)),
            **{f"copy/{name}": array for name, array in values_of(twin).items()},
            **{f"file/{name}": array for name, array in open_all(path).items()},
            **{f"pickled/{n}": a for n, a in values_of(pickle.loads(pickle.dumps(net))).items()},
        }
        assert all(param.storage.in_memory for param in twin.params())
        twin.step(X, Y, SGD(0.1))
        return made

    expected, found = (together(lambda c, m=make: work(c, m)) for make in (by_all_reduce, trained))
    for one, two in zip(expected, found, strict=True):
        assert one.keys() == two.keys()
        expect_same_values([one, two])


def open_all(path):
    with open_state(path) as reader:
        return {name: np.array(array) for name, array in dict(reader).items()}


class Looks(Callback):
    """Looks at the whole net, and changes it, on all ranks."""

    def on_epoch_end(self, epoch, logs):
        net = self.session.net
        logs["mean"] = float(np.mean([abs(param.peek()).mean() for param in net.params()]))
        if epoch == 1:
            net["b"].params["weight"].value *= 0.5


@pytest.mark.parametrize("validated", [23, 3])
def test_a_fit_with_all_that_looks_at_the_net(validated, tmp_path):
    def work(comm, wrap, name):
        net = dense_net(more=[BatchNormalization("n")])
        # Adam would enlarge what rounding leaves of the gradient of a bias before the layer n.
        net.compile(wrap(SGD(lr=0.05, momentum=0.9), comm), metrics=[Accuracy()])
        history = net.fit(
            X[:23], Y[:23], 8, 4, validation_data=(X[:validated], Y[:validated]), verbose=False,
            clip=0.1, clip_by="global",
            callbacks=[EMA(0.5), Looks(), EarlyStopping("val_loss", 9, restore_best=True),
                       ModelCheckpoint(tmp_path / name, "val_loss")],
        )  # fmt: skip
        seen = {k: np.array(v) for k, v in history.items() if "bytes" not in k}
        return {**seen, **values_of(net), "evaluated": np.array(net.evaluate(X[:5], Y[:5]))}

    expected = together(lambda comm: work(comm, AllReduce, "one"))
    found = together(lambda comm: work(comm, cut, "two"))
    for one, two in zip(expected, found, strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            np.testing.assert_allclose(two[name], value, 1e-4, 1e-5, err_msg=name)
    for file in ("best.npz", "epoch-0004.npz"):
        one, two = open_all(tmp_path / "one" / file), open_all(tmp_path / "two" / file)
        names = {name for name in one if "EMA" not in name and name != "session"}
        assert names <= two.keys()
        for name in names:
            np.testing.assert_allclose(two[name], one[name], 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize(("first", "then"), [(2, 2), (2, 3), (3, 1), (1, 2)])
@pytest.mark.few(2)
def test_a_fit_goes_on_from_its_checkpoint(first, then, tmp_path):
    def fit(comm, epochs, resume=None, folder=tmp_path / "other"):
        net = uneven_net()
        net.compile(cut(Adam(lr=0.01), comm))
        more = [EMA(0.5)] if first == then else []
        net.fit(X, Y, 8, epochs, shuffle=False, verbose=False, resume=resume,
                callbacks=[ModelCheckpoint(folder, monitor=None), *more])  # fmt: skip
        return values_of(net)

    whole = together(lambda comm: fit(comm, 4), first)
    together(lambda comm: fit(comm, 2, folder=tmp_path / "half"), first)
    again = together(lambda comm: fit(comm, 4, tmp_path / "half"), then)
    expect_same_values(again)
    if first == then:
        expect_same_values([whole[0], again[0]])
    for name, value in whole[0].items():
        np.testing.assert_allclose(again[0][name], value, 1e-4, 1e-5, err_msg=name)


def test_values_that_a_loop_of_ones_own_changes_are_kept():
    def work(comm, slices):
        net = uneven_net()
        if slices:
            cut(SGD(0.0), comm).meet(net)
        for _ in range(3):
            net.loss.forward(True, net.forward(True, X), Y)
            for _, values, grads in net.backward(net.loss.backward()):
                for value, grad in zip(values, grads, strict=True):
                    value -= 0.1 * grad
        net["b"].params["weight"].value[2:4] = 7.0
        net.params()[0].put(np.full(net.params()[0].shape, 0.5, np.float32))
        return values_of(net)

    for one, two in zip(*(together(lambda c, s=s: work(c, s)) for s in (False, True)), strict=True):
        expect_same_values([one, two])


def test_walks_left_half_way_and_forwards_without_one_leave_no_trace():
    def work(comm, make):
        net, optimizer = make(comm, steps=1)
        net.loss.forward(True, net.forward(True, X), Y)
        walk = net.backward(net.loss.backward())
        next(walk)
        net.forward(True, X)
        del walk
        net.forward(False, X)
        net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return values_of(net)

    one, two = (together(lambda c, m=make: work(c, m)) for make in (by_all_reduce, trained))
    expect_same_values([one[0], two[0], two[1]])


@pytest.mark.parametrize("stage", [AllReduce, lambda rule, comm: Nudged(AllReduce(rule, comm))])
def test_an_optimizer_that_knows_no_slices_updates_whole_values(stage):
    def work(comm, slices):
        net, optimizer = uneven_net(), stage(SGD(0.1, momentum=0.9), comm)
        if slices:
            cut(SGD(0.0), comm).meet(net)
        for _ in range(3):
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return values_of(net)

    one, two = (together(lambda c, s=s: work(c, s)) for s in (False, True))
    expect_same_values([one[0], two[0], two[1]])


@pytest.mark.parametrize("way", ["recompute", "frozen", "by layer"])
def test_other_ways_to_run_it(way):
    def work(comm, wrap):
        net = uneven_net()
        if way == "recompute":
            net.programs.recompute = "blocks"
        if way == "frozen":
            net.freeze("c")
        net, optimizer = trained(comm, lambda: net, wrap)
        seen = {}

        def look(item):
            for name, value, grad in zip(item.names, item.values, item.grads, strict=True):
                seen[f"value/{name}"], seen[f"grad/{name}"] = value.copy(), grad.copy()

        batch = X[comm.rank :: 2], Y[comm.rank :: 2]
        net.step(*batch, optimizer, look if way == "by layer" else None)
        assert len(seen) == (2 * len(net.params()) if way == "by layer" else 0)
        return {**values_of(net), **seen}

    one, two = (together(lambda c, w=wrap: work(c, w)) for wrap in (AllReduce, cut))
    for whole, sliced in zip(one, two, strict=True):
        expect_same_values([whole, sliced])


def test_ranks_that_do_different_things_are_told():
    def steps(comm):
        net, optimizer = trained(comm)
        if comm.rank:
            optimizer.join()
        else:
            net.step(X, Y, optimizer)

    def evaluates(comm):
        net, optimizer = trained(comm)
        if comm.rank:
            net.predict(X)
        else:
            net.step(X, Y, optimizer)

    for work, told in ((steps, "the end of its batches"), (evaluates, "in an evaluation")):
        with pytest.raises(RankError, match=told):
            together(work)


class FirstAlone(Callback):
    """Evaluates on rank 0 only."""

    first_rank_only = True

    def on_epoch_end(self, epoch, logs):
        self.session.net.evaluate(X, Y)


def test_what_does_not_combine_is_refused_and_changes_nothing(tmp_path):
    def refused(make):
        def work(comm):
            net = uneven_net()
            before = values_of(net)
            with pytest.raises(SingaNetError) as error:
                make(net, comm)
            if net.dtype == np.float32 and all(p.storage.in_memory for p in net.params()):
                expect_same_values([before, values_of(net)])
            return str(error.value)

        return together(work)[0]

    def offloaded(net, comm):
        net.offload(tmp_path / str(comm.rank), "1MB")
        net.step(X, Y, cut(SGD(0.1), comm))

    def afterwards(change):
        def make(net, comm):
            net.step(X, Y, cut(SGD(0.1), comm))
            change(net)

        return make

    def half(net, comm):
        net.compile(cut(SGD(0.1), comm), mixed_precision="float16")
        net.fit(X, Y, verbose=False)

    def alone(net, comm):
        net.compile(cut(SGD(0.1), comm))
        net.fit(X, Y, verbose=False, callbacks=[FirstAlone()])

    assert "in a folder" in refused(offloaded) or "in memory" in refused(offloaded)
    assert "masters are whole" in refused(half)
    assert "copy.deepcopy" in refused(afterwards(lambda net: net.as_type("float64")))
    assert "copy.deepcopy" in refused(afterwards(lambda net: net.offload(tmp_path / "f", "1MB")))
    assert "in slices" in refused(afterwards(lambda net: net.programs))
    assert "in slices" in refused(
        lambda n, c: (n.step(X, Y, cut(SGD(0.1), c)), Pipeline(n, comm=c))
    )
    with pytest.raises(RankError, match="rank 0 alone"):
        together(lambda comm: alone(uneven_net(), comm))


class Nudged(Wrapper):
    """A stage of a user's own around the ranks, which looks at values."""

    _reads_gradients = False

    def take(self, names, values, grads, scale):
        self.seen = [float(abs(value).mean()) for value in values]
        yield names, values, grads, scale


def test_a_stage_of_a_users_own_sees_whole_values():
    def work(comm, wrap):
        net = dense_net()
        optimizer, seen = Nudged(wrap(SGD(0.05), comm)), []
        for _ in range(2):
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
            seen += optimizer.seen
        return {**values_of(net), "seen": np.array(seen)}

    one, two = (together(lambda c, w=wrap: work(c, w)) for wrap in (AllReduce, cut))
    expect_same_values([one[0], two[0], two[1]])


def test_a_net_without_values_is_filled_slice_by_slice():
    def work(comm):
        whole = uneven_net()
        net = uneven_net(seed=1 + comm.rank)
        made = []

        def drawn(param):
            alive = [p.name for s in net.planned().steps for p in s.layer.params.values()
                     if p.filled and p.storage.in_memory and p.nbytes > 100]  # fmt: skip
            made.append(alive)
            return param.initial()

        with net._filled_by(drawn):
            cut(SGD(0.1), comm).meet(net)
        assert made
        assert not any(made)
        return values_of(whole), values_of(net)

    for whole, found in together(work):
        expect_same_values([whole, found])


def test_a_lone_process_is_the_plain_rule():
    net, other = uneven_net(), uneven_net()
    with communicators(1) as comms:
        optimizer = cut(Adam(lr=0.01), comms[0])
    rule = Adam(lr=0.01)
    for _ in range(3):
        assert net.step(X, Y, optimizer) == other.step(X, Y, rule)
    expect_same_values([values_of(net), values_of(other)])
    assert net.programs.reports()
