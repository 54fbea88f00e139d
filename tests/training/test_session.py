"""A training interrupted anywhere and resumed ends as if nothing had happened, to the bit."""

from __future__ import annotations

import json

import numpy as np
import pytest

import singanet
from singanet.data import ArrayLoader
from singanet.errors import (
    ArgumentError,
    DataError,
    FileAccessError,
    FileFormatError,
    SingaNetError,
    StateMismatchError,
    VersionError,
)
from singanet.metric import AUC, F1, Accuracy, ConfusionMatrix
from singanet.optimizer import SGD, Adam
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint, ReduceOnPlateau

EPOCHS, BATCH = 3, 16
STEPS = EPOCHS * 4  # 50 samples: four batches an epoch, the last of two


class Stop(Callback):
    """Stops after ``at`` steps, or lets them pass where it is None; keeps the state at the end."""

    runs_last = True

    def __init__(self, at=None):
        self.at = at
        self.state = None

    def on_batch_end(self, batch, logs):
        if self.session.step == self.at:
            self.session.stop("interrupted")
            self.state = self.session.state()


class Break(Stop):
    """Raises instead."""

    def on_batch_end(self, batch, logs):
        if self.session.step == self.at:
            raise KeyboardInterrupt


def others():
    return [EMA(0.9, keep_at_end=False), EarlyStopping(patience=0, restore_best=True)]


def fit(net, data, **more):
    return net.fit(
        *data, batch_size=BATCH, epochs=EPOCHS, validation_data=data, verbose=False, **more
    )


@pytest.mark.parametrize("at", range(1, STEPS))
def test_interrupted_at_any_step_and_resumed(build, data, same, at):
    whole = build(optimizer=Adam(lr=0.01), metrics=[Accuracy(), F1()])
    expected = fit(whole, data, callbacks=[Stop(), EMA(0.9)])
    first, stop = build(optimizer=Adam(lr=0.01), metrics=[Accuracy(), F1()]), Stop(at)
    fit(first, data, callbacks=[stop, EMA(0.9)])
    # Another seed, other parameters: everything comes from the state.
    second = build(seed=99, optimizer=Adam(lr=0.01), metrics=[Accuracy(), F1()])
    got = fit(second, data, callbacks=[Stop(), EMA(0.9)], resume=stop.state)
    same(whole, second)
    assert got == expected
    assert got.epochs == expected.epochs == [0, 1, 2]


def test_twice_interrupted_is_as_good(build, data, same):
    whole, net = build(), build()
    fit(whole, data)
    state = None
    for at in (3, 7):
        stop = Stop(at)
        net = build(seed=0 if state is None else at)
        fit(net, data, callbacks=[stop], resume=state)
        state = stop.state
    fit(net := build(seed=5), data, callbacks=[Stop()], resume=state)
    same(whole, net)


@pytest.mark.parametrize("format", ["npz", "safetensors", "hdf5"])
def test_through_a_file(build, data, same, tmp_path, format):
    def callbacks(*more):
        return [ModelCheckpoint(tmp_path / "run", format=format), ReduceOnPlateau(), *more]

    whole, net = build(), build()
    expected = fit(whole, data, callbacks=[ReduceOnPlateau()])
    with pytest.raises(KeyboardInterrupt):
        fit(net, data, callbacks=callbacks(Break(6)))
    second = build(seed=1)
    got = fit(second, data, callbacks=callbacks(), resume=tmp_path / "run")
    same(whole, second)
    assert got == expected


def test_accumulated_gradients_are_part_of_it(build, data, same):
    whole, first, second = build(), build(), build(seed=8)
    fit(whole, data, accumulate=3, clip=0.5)
    stop = Stop(7)
    fit(first, data, accumulate=3, clip=0.5, callbacks=[stop])
    fit(second, data, accumulate=3, clip=0.5, callbacks=[Stop()], resume=stop.state)
    same(whole, second)


@pytest.mark.parametrize("kind", ["loader", "function", "list"])
def test_sources_of_batches_are_found_again(build, data, same, kind):
    def source():
        x, y = data
        batches = [(x[a : a + BATCH], y[a : a + BATCH]) for a in range(0, 50, BATCH)]
        return {
            "loader": ArrayLoader(x, y, BATCH, seed=4),
            "function": lambda epoch: (batches[(k + epoch) % 4] for k in range(4)),
            "list": batches,
        }[kind]

    def run(net, **more):
        return net.fit(source(), epochs=EPOCHS, verbose=False, **more)

    whole, first, second = build(), build(), build(seed=2)
    run(whole)
    stop = Stop(6)
    run(first, callbacks=[stop])
    run(second, callbacks=[Stop()], resume=stop.state)
    same(whole, second)


def test_an_endless_generator_is_drawn_up_to_the_place(build, data, same):
    def forever():
        k = 0
        while True:
            rows = np.arange(k, k + 8) % 50
            yield data[0][rows], data[1][rows]
            k += 8

    whole, first, second = build(), build(), build(seed=2)
    settings = {"epochs": 3, "steps_per_epoch": 4, "verbose": False}
    whole.fit(forever(), **settings)
    stop = Stop(6)
    first.fit(forever(), callbacks=[stop], **settings)
    second.fit(forever(), callbacks=[Stop()], resume=stop.state, **settings)
    same(whole, second)


@pytest.mark.parametrize("metric", [AUC, ConfusionMatrix, F1])
def test_what_metrics_gathered_is_part_of_it(build, rng, metric):
    x, y = rng.standard_normal((50, 5)).astype(np.float32), rng.integers(0, 2, 50)

    def make(seed):
        net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=seed)
        net.add(singanet.layers.Dense("fc", 2, input_sample_shape=(5,)))
        kept = metric()
        net.compile(SGD(lr=0.1), metrics=[kept])
        return net, kept

    results = []
    for at in (None, 2):
        net, kept = make(0)
        stop = Stop(at)
        net.fit(x, y, batch_size=BATCH, callbacks=[stop], verbose=False)
        if at is not None:
            net, kept = make(1)
            net.fit(x, y, batch_size=BATCH, callbacks=[Stop()], verbose=False, resume=stop.state)
        results.append(kept.result())
    np.testing.assert_array_equal(results[0], results[1])


def test_early_stopping_remembers_across_a_resumption(build, data):
    whole, first, second = build(), build(), build()
    watch, stop, again = EarlyStopping(), Stop(9), EarlyStopping()
    fit(whole, data, callbacks=[Stop(), watch])
    fit(first, data, callbacks=[stop, EarlyStopping()])
    fit(second, data, callbacks=[Stop(), again], resume=stop.state)
    assert (again.best_epoch, again.monitor.best) == (watch.best_epoch, watch.monitor.best)


# -- what does not fit --------------------------------------------------------------------------


@pytest.fixture
def state(build, data):
    stop = Stop(6)
    fit(build(), data, callbacks=[stop, EMA()])
    return stop.state


def changed(state, **about):
    text = json.loads(bytes(state["session"]))
    new = json.dumps({**text, **about}).encode()
    return {**state, "session": np.frombuffer(new, np.uint8)}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda s: {}, FileFormatError, "'session'"),
        (lambda s: {**s, "session": np.zeros(3, np.uint8)}, FileFormatError, "state of a training"),
        (lambda s: changed(s, format="other"), FileFormatError, "'other'"),
        (lambda s: changed(s, version=99), VersionError, "99"),
        (
            lambda s: {k: v for k, v in s.items() if k != "net/fc2/weight"},
            StateMismatchError,
            r"'fc2/weight': expected shape \(8, 3\).*no such parameter",
        ),
        (
            lambda s: {**s, "net/fc2/weight": np.zeros((8, 4))},
            StateMismatchError,
            r"'fc2/weight': expected shape \(8, 3\).*received shape \(8, 4\)",
        ),
        (lambda s: {**s, "net/fc3/weight": np.zeros(1)}, StateMismatchError, "fc3/weight"),
        (
            lambda s: {k: v for k, v in s.items() if k != "optimizer/fc1/weight/momentum"},
            SingaNetError,
            "fc1/weight",
        ),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(build, data, same, state, change, error, words):
    net, untouched = build(), build()
    with pytest.raises(error, match=words) as caught:
        fit(net, data, callbacks=[Stop(), EMA()], resume=change(state))
    assert len(str(caught.value)) < 400
    same(net, untouched)


def test_other_callbacks_or_data_are_refused(build, data, same, state):
    net, untouched = build(), build()
    with pytest.raises(StateMismatchError, match=r"'1.EMA'"):
        fit(net, data, callbacks=[Stop()], resume=state)
    with pytest.raises(ArgumentError, match="batch_size"):
        net.fit(*data, batch_size=10, callbacks=[Stop(), EMA()], resume=state, verbose=False)
    with pytest.raises(DataError, match="kind of data"):
        net.fit([data], callbacks=[Stop(), EMA()], resume=state, verbose=False)
    same(net, untouched)


def test_a_folder_without_checkpoints_says_so(build, data, tmp_path):
    (tmp_path / "notes.txt").write_text("none here")
    np.savez(tmp_path / "weights.npz", a=np.zeros(3))
    with pytest.raises(FileAccessError, match="a training checkpoint; received none"):
        fit(build(), data, resume=tmp_path)


def test_a_training_that_is_over_returns_its_history(build, data, same, tmp_path):
    net = build()
    expected = fit(net, data, callbacks=[ModelCheckpoint(tmp_path)])
    second = build(seed=3)
    got = fit(second, data, callbacks=[ModelCheckpoint(tmp_path)], resume=tmp_path)
    assert got == expected
    same(net, second)
