"""A process that trains by itself is a world of one."""

import inspect
import sys

import numpy as np
import pytest

import singanet
from singanet.layers import BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import Adam
from singanet.parallel import AllReduce
from singanet.parallel.communicators.communicator import SingleProcess
from singanet.training import Callback
from singanet.training.ranks import FitRanks, ProcessGroup

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((23, 4), np.float32), RNG.integers(0, 2, 23)


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
    net = singanet.FeedForwardNet(
        [Dense("a", 5, input_sample_shape=(4,)), BatchNormalization("n"), Dense("b", 2)], seed=3
    )
    stage = AllReduce(Adam(lr=0.01), SingleProcess())
    net.compile(stage, SoftmaxCrossEntropy(), metrics=[Accuracy(), AUC()])
    monkeypatch.setattr(sys.modules["singanet.training.fit"], "ranks_of", lambda *_: ranks(stage))
    keeps = Keeps()
    history = net.fit(
        X, Y, batch_size=4, epochs=3, validation_split=0.2, callbacks=[keeps], verbose=False,
        **given,
    )  # fmt: skip
    return net, history, keeps


def several(stage):
    return FitRanks([stage], stage.comm)


def lone(stage):
    return ProcessGroup()


@pytest.mark.parametrize("given", [{}, {"accumulate": 2}, {"steps_per_epoch": 3}], ids=str)
def test_it_trains_as_several_ranks_do_of_which_there_is_one(given, monkeypatch):
    net, history, keeps = fitted(lone, monkeypatch, **given)
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
