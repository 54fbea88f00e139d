"""State that is each rank's own, a process that is a world of one, and one batch at a time."""

import inspect
import sys
import warnings
import weakref

import numpy as np
import pytest

import singanet
from singanet.data import GeneratorLoader
from singanet.errors import StateMismatchError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD, Adam
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, Sharded, SparseAllReduce
from singanet.parallel.communicators.communicator import SingleProcess
from singanet.testing import communicators
from singanet.training.callbacks import Callback, ModelCheckpoint
from singanet.training.course import with_all_rows
from singanet.training.ranks import FitRanks, ProcessGroup
from tests.kit.callbacks import at
from tests.kit.nets import values_of
from tests.kit.ranks import together

RNG = np.random.default_rng(3)
X = RNG.standard_normal((22, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 22)
METHODS = {
    "dense": lambda comm: AllReduce(Adam(lr=0.01), comm),
    "sparse": lambda comm: SparseAllReduce(SGD(lr=0.1, momentum=0.9), comm, ratio=0.02),
    "dgc": lambda comm: SparseAllReduce(SGD(lr=0.1), comm, ratio=0.02, momentum=0.9, warm_up=9),
    "local": lambda comm: LocalSGD(Adam(lr=0.01), comm, every=2),
    "partial": lambda comm: PartialUpdate(SGD(lr=0.1, momentum=0.9), comm, partitions=3),
}


def trained(comm, method, folder, epochs, resume=False, n=22, **more):
    layers = [Dense("a", 20, input_sample_shape=(6,)), Activation("relu"), Dense("b", 4)]
    net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)
    net.compile(METHODS[method](comm))
    more |= {"callbacks": [ModelCheckpoint(folder, monitor=None, every_steps=3)], "verbose": False}
    net.fit(X[:n], Y[:n], 4, epochs, resume=folder if resume else None, **more)
    return net.compiled.optimizer.state_dict() | values_of(net)


def ranks_trained(size, *args, **more):
    return together(lambda comm: trained(comm, *args, **more), size)


@pytest.mark.parametrize(("method", "accumulate"),
    [*((method, 1) for method in METHODS), ("dense", 2), ("sparse", 2)])  # fmt: skip
@pytest.mark.full
def test_all_ranks_go_on_to_the_bit_from_one_file(method, accumulate, tmp_path):
    ranks_trained(2, method, tmp_path / "cut", 1, accumulate=accumulate)
    resumed = ranks_trained(2, method, tmp_path / "cut", 2, True, accumulate=accumulate)
    whole = ranks_trained(2, method, tmp_path / "whole", 2, accumulate=accumulate)
    for state, other in zip(resumed, whole, strict=True):
        assert sorted(state) == sorted(other)
        for key, array in other.items():
            np.testing.assert_array_equal(state[key], array, err_msg=key)


@pytest.mark.parametrize("method", METHODS)
def test_another_number_of_ranks_goes_on_with_what_they_have_in_common(method, tmp_path):
    ranks_trained(2, method, tmp_path, 1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        made = ranks_trained(3, method, tmp_path, 2, True)
    if method in ("sparse", "dgc"):
        assert any("are dropped" in str(each.message) for each in told)
    for state in made[1:]:
        for name in ("a/weight", "b/bias"):
            np.testing.assert_array_equal(state[name], made[0][name])


def test_parts_of_micro_batches_are_not_for_another_number_of_ranks(tmp_path):
    # Five batches, of which the last is still waiting for a second one.
    ranks_trained(2, "dense", tmp_path, 1, n=18, accumulate=2)
    with pytest.raises(StateMismatchError, match="between micro-batches"):
        ranks_trained(3, "dense", tmp_path, 2, True, n=18, accumulate=2)


def test_rank_0_holds_one_array_of_another_rank_at_a_time():
    def ask(session, *_):
        sources, comm = session._sources(), session.ranks.comm
        own = [] if comm.rank else [each for each in sources if each.name.startswith("rank/")]
        assert {each.name.split("/")[1] for each in own} == (set() if comm.rank else {"1", "2"})
        for each in own:
            before = comm.bytes_received
            each.array()
            assert comm.bytes_received - before == each.nbytes > 0

    def work(comm):
        net = singanet.FeedForwardNet([Dense("a", 4, input_sample_shape=(6,))], seed=1)
        net.compile(METHODS["sparse"](comm), SoftmaxCrossEntropy())
        asks = at("on_epoch_end", ask, _runs_last=True)
        net.fit(X, Y, batch_size=6, callbacks=[asks], verbose=False)

    with communicators(3) as comms:
        comms.run(work)


def test_rows_of_all_ranks_are_put_together_where_all_have_theirs():
    whole, start = np.arange(12.0).reshape(6, 2), "callback/0.Mine/"
    own = {  # "same" has the same bytes on both, so that the second was left out
        "w": whole[:3], "same": np.zeros((2, 1)), "all": whole, "odd": whole[:3],
        "gone": whole[:3], "number": np.array(2.0),
    }  # fmt: skip
    state = {
        **{start + name: array for name, array in own.items()}, "other": whole[:3],
        f"rank/1/{start}w": whole[3:], f"absent/1/{start}gone": np.empty(0),
        "rank/1/other": whole[3:],
    }  # fmt: skip
    shapes = {"w": (6, 2), "same": (4, 1), "all": (6, 2), "odd": (7, 2), "gone": (6, 2)}
    shapes |= {"number": (), "missing": (3,)}
    found = with_all_rows(state, 2, {start + name: shape for name, shape in shapes.items()})
    assert {key.removeprefix(start) for key in found} == {"w", "same", "all", "number"}
    np.testing.assert_array_equal(found[start + "w"], whole)
    np.testing.assert_array_equal(found[start + "same"], np.zeros((4, 1)))
    assert found[start + "all"] is whole
    assert found[start + "number"] == 2.0


class Longest(Callback):
    """A user's callback: the largest value that each element of a parameter has had."""

    _goes_by_params = True

    def __init__(self):
        self.most = {}

    def on_batch_end(self, batch, logs):
        for param in self.session.params():
            before = self.most.setdefault(param.name, param.here.copy())
            np.maximum(before, param.here, out=before)

    def state_dict(self):
        return dict(self.most)

    def load_state_dict(self, state):
        own = {param.name: param.storage for param in self.session.params()}
        self.most = {name: own[name].here_of(array).copy() for name, array in state.items()}


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 2), (1, 3)])
def test_a_callback_of_a_user_s_goes_on_with_rows_of_other_ranks(before, after, tmp_path):
    x = np.random.default_rng(0).standard_normal((24, 6)).astype(np.float32)

    def train(ranks, epochs, resume, folder):
        def work(comm):
            layers = [Dense("a", 8, input_sample_shape=(6,)), Dense("b", 3)]
            net = singanet.FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)
            net.compile(Sharded(SGD(lr=0.5), comm, level=3, smallest=0))
            seen = Longest()
            net.fit(x, np.arange(24) % 3, 12, epochs, shuffle=False, verbose=False,
                    callbacks=[seen, ModelCheckpoint(folder)],
                    resume=folder if resume else None)  # fmt: skip
            return seen.most

        every = together(work, ranks)
        return {name: np.concatenate([own[name] for own in every]) for name in every[0]}

    whole = train(1, 4, False, tmp_path / "whole")
    train(before, 2, False, tmp_path / "cut")
    found = train(after, 4, True, tmp_path / "cut")
    for name, most in whole.items():
        np.testing.assert_allclose(found[name], most, rtol=1e-5, atol=1e-6)


PRNG = np.random.default_rng(0)
PX, PY = PRNG.standard_normal((23, 4), np.float32), PRNG.integers(0, 2, 23)


class Keeps(Callback):
    """The state after the fifth step, and what was heard."""

    _runs_last = True

    def on_train_begin(self):
        self.heard, self.state = [], {}

    def on_batch_end(self, batch, logs):
        self.heard.append(logs["loss"])
        if self.session.step == 5:
            self.state = self.session.state()
        if self.session.step == 9:
            self.session.stop("enough")


def fitted(ranks, monkeypatch, **given):
    layers = [Dense("a", 5, input_sample_shape=(4,)), BatchNormalization("n"), Dense("b", 2)]
    net, stage = singanet.FeedForwardNet(layers, seed=3), AllReduce(Adam(lr=0.01), SingleProcess())
    net.compile(stage, SoftmaxCrossEntropy(), metrics=[Accuracy(), AUC()])
    monkeypatch.setattr(sys.modules["singanet.training.fit"], "ranks_of", lambda *_: ranks(stage))
    keeps = Keeps()
    given |= {"validation_split": 0.2, "callbacks": [keeps], "verbose": False}
    return net, net.fit(PX, PY, batch_size=4, epochs=3, **given), keeps


@pytest.mark.parametrize("given", [{}, {"accumulate": 2}, {"steps_per_epoch": 3}], ids=str)
def test_it_trains_as_several_ranks_do_of_which_there_is_one(given, monkeypatch):
    def several(stage):
        return FitRanks([stage], stage.comm)

    net, history, keeps = fitted(lambda stage: ProcessGroup(), monkeypatch, **given)
    other, theirs, heard = fitted(several, monkeypatch, **given)
    counted = {name: theirs.pop(name) for name in FitRanks.counted}
    assert not any(map(any, counted.values()))  # nobody is told anything
    assert dict(history) == dict(theirs)
    assert history.stopped == theirs.stopped == "enough"
    assert keeps.heard == heard.heard
    for own, its in zip(net.params(), other.params(), strict=True):
        assert own.value.tobytes() == its.value.tobytes(), own.name
    saved = {key: value for key, value in heard.state.items() if not key.startswith("local/")}
    assert keeps.state.keys() == saved.keys()
    for key in saved.keys() - {"session"}:
        assert keeps.state[key].tobytes() == saved[key].tobytes(), key


def test_several_ranks_are_asked_what_one_is():
    asked = {name for name in vars(ProcessGroup) if not name.startswith("_")}
    for name in asked:
        own, theirs = (inspect.getattr_static(kind, name) for kind in (ProcessGroup, FitRanks))
        if callable(own):
            given, taken = (list(inspect.signature(each).parameters) for each in (own, theirs))
            assert given == taken, name


class Counted(np.ndarray):
    """An array that can be asked whether it is still there."""


class Watch:
    """Batches of ``(x, y)``, and how many of their inputs were there as each next one was asked."""

    def __init__(self):
        self.alive, self.seen = [], []

    def _look(self):
        self.seen.append(sum(ref() is not None for ref in self.alive))

    def __iter__(self):
        for _ in range(4):
            self._look()
            x = np.ones((2, 3), np.float32).view(Counted)
            self.alive.append(weakref.ref(x))
            batch = x, np.ones((2, 1), np.float32)
            del x
            yield batch
            del batch
        self._look()

    def __len__(self):
        return 4


def compiled():
    net = singanet.FeedForwardNet([Dense("fc", 1, input_sample_shape=(3,))], seed=0)
    net.compile(SGD(lr=0.1), SquaredError())
    return net


HOLDS_NOTHING = at("on_batch_end", lambda session, batch, logs: logs["loss"] + 1)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("given", [{}, {"steps_per_epoch": 3}, {"callbacks": (HOLDS_NOTHING,)}])
def test_a_fit_lets_go_of_a_batch_before_it_draws_the_next(wrapped, given):
    source = Watch()
    data = GeneratorLoader(lambda epoch: source) if wrapped else source
    compiled().fit(data, epochs=2, verbose=False, **given)
    assert len(source.seen) > 4
    assert max(source.seen) == 0
    source = Watch()
    compiled().evaluate(source)
    assert source.seen == [0] * 5
