"""A training interrupted anywhere and resumed ends as if nothing had happened, to the bit."""

import json
import shutil

import numpy as np
import pytest

from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    FileAccessError,
    FileFormatError,
    ShapeError,
    SingaNetError,
    StateMismatchError,
    VersionError,
)
from singanet.optimizer import SGD
from singanet.report import recorders
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint, ReduceOnPlateau
from tests.interrupts import struck_at
from tests.kit.callbacks import at

EPOCHS, BATCH = 3, 16
STEPS = EPOCHS * 4  # 50 samples: four batches an epoch, the last of two


class Stop(Callback):
    """Stops after ``at`` steps, or lets them pass where it is None; keeps the state at the end."""

    _runs_last = True

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


def fit(net, data, **more):
    return net.fit(
        *data, batch_size=BATCH, epochs=EPOCHS, validation_data=data, verbose=False, **more
    )


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


# Python ends an interrupt within a weak reference's callback with these words.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("share", np.linspace(0.05, 0.99, 12).tolist())
@pytest.mark.full
def test_interrupted_at_any_line_of_a_fit_and_gone_on_from(build, data, same, tmp_path, share):

    def callbacks(folder):
        return [EMA(0.9), EarlyStopping(), ModelCheckpoint(folder, every_steps=3)]

    def run(net, folder, **more):
        return fit(net, data, callbacks=callbacks(folder), **more)

    lines = 30_000  # such a fit has a few more
    whole, net = build(), build()
    expected = run(whole, tmp_path / "whole")
    assert struck_at(int(lines * share), lambda: run(net, tmp_path / "part"))
    resume = tmp_path / "part"
    if not resume.is_dir() or not list(resume.glob("[es]*.npz")):
        return  # before the first checkpoint
    second = build(seed=7)
    assert run(second, tmp_path / "part", resume=resume) == expected
    same(whole, second)


def test_a_state_is_not_given_within_a_step(build, data):
    refused = []

    class Ask(Callback):
        def ask(self, *_):
            try:
                self.session.state()
            except CallOrderError as error:
                refused.append(str(error))

        on_batch_begin = on_layer_gradients = ask

    fit(build(), data, callbacks=[Ask()])
    assert len(refused) > STEPS
    assert "expected the end of a step" in refused[0]


def test_an_error_of_the_data_leaves_the_step_before_it(build, data, same, tmp_path):
    x, y = data

    def source(fails):
        def batches(epoch):
            for k, a in enumerate(range(0, 50, BATCH)):
                if fails and (epoch, k) == (1, 2):
                    raise OSError("disk gone")
                yield x[a : a + BATCH], y[a : a + BATCH]

        return batches

    whole, first, second = build(), build(), build(seed=3)
    expected = whole.fit(source(False), epochs=3, verbose=False)
    with pytest.raises(OSError, match="disk gone"):
        first.fit(source(True), epochs=3, callbacks=[ModelCheckpoint(tmp_path)], verbose=False)
    assert (tmp_path / "stopped.npz").exists()
    kept = [ModelCheckpoint(tmp_path)]
    got = second.fit(source(False), epochs=3, callbacks=kept, resume=tmp_path, verbose=False)
    assert got == expected
    same(whole, second)


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
            lambda s: {k: v for k, v in s.items() if k != "net/fc2/weight"}, StateMismatchError,
            r"'fc2/weight': expected shape \(8, 3\).*no such parameter"
        ),
        (
            lambda s: {**s, "net/fc2/weight": np.zeros((8, 4))}, StateMismatchError,
            r"'fc2/weight': expected shape \(8, 3\).*received shape \(8, 4\)"
        ),
        (lambda s: {**s, "net/fc3/weight": np.zeros(1)}, StateMismatchError, "fc3/weight"),
        (
            lambda s: {k: v for k, v in s.items() if k != "optimizer/fc1/weight/momentum"},
            SingaNetError, "fc1/weight"
        )
    ],
)  # fmt: skip
def test_a_state_that_does_not_fit_changes_nothing(build, data, same, state, change, error, words):
    net, untouched = build(), build()
    with pytest.raises(error, match=words) as caught:
        fit(net, data, callbacks=[Stop(), EMA()], resume=change(state))
    assert len(str(caught.value)) < 400
    same(net, untouched)


SPOILT = {
    **{f"no {key}": {key: None} for key in (
        "epoch", "batch", "step", "begun", "losses", "samples", "metrics", "data", "seed",
        "generator", "history",
    )},
    "an epoch below 0": {"epoch": -1},
    "an epoch of long ago": {"epoch": -(10**30)},
    "an epoch beyond all": {"epoch": 10**30},
    "a batch beyond the epoch": {"batch": 5},
    "a batch beyond the steps": {"batch": 10**9},
    "a batch that is text": {"batch": "1"},
    "a step of half": {"step": 1.5},
    "a true epoch": {"epoch": True},
    "a seed below 0": {"seed": -3},
    "a history of other lengths": {"history": {"epochs": [0], "values": {"loss": []}}},
    "a history of text": {"history": {"epochs": [0], "values": {"loss": ["x"]}}},
    "a history of epochs of text": {"history": {"epochs": ["x"], "values": {}}},
    "data of text": {"data": {"epoch": "x"}},
    "data beyond all": {"data": {"epoch": 1, "position": 10**30}},
    "metrics with a method": {"metrics": {"accuracy": {"update": 1}}},
    "metrics of another class": {"metrics": {"accuracy": {"__class__": 1}}},
    "a generator of another kind": {"generator": {"bit_generator": "MT19937"}},
}  # fmt: skip


@pytest.mark.parametrize("about", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_text_changes_nothing(build, data, same, state, about):
    optimizer = SGD(lr=0.1, momentum=0.9)
    net, untouched = build(optimizer=optimizer), build()
    with pytest.raises(SingaNetError) as caught:
        fit(net, data, callbacks=[Stop(), EMA()], resume=changed(state, **about))
    assert len(str(caught.value)) < 400
    same(net, untouched)
    assert optimizer.state_dict() == {}


def test_a_negative_seed_of_the_order_changes_nothing(build, data, same, state):
    position = json.loads(bytes(state["session"]))["data"]
    net, wrong = build(), changed(state, data={**position, "seed": -3})
    with pytest.raises(SingaNetError, match="seed"):
        fit(net, data, callbacks=[Stop(), EMA()], resume=wrong)
    same(net, build())


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"a":' * 50_000, b"[" + b"[]," * 3_000_000 + b"1]", b"\xff", b"7"]
)
def test_a_text_that_is_none_of_ours(build, data, text):
    with pytest.raises(FileFormatError, match="the state of a training"):
        fit(build(), data, resume={"session": np.frombuffer(text, np.uint8)})


def test_what_a_failed_resumption_loaded_is_put_back(build, data, same, state):
    class Choosy(EMA):
        def load_state_dict(self, given):
            if given:
                raise ZeroDivisionError("mine")

    wrong = {key.replace(".EMA", ".Choosy"): array for key, array in state.items()}
    net, untouched = build(), build()
    fit(net, data), fit(untouched, data)
    with pytest.raises(StateMismatchError, match="ZeroDivisionError: mine"):
        fit(net, data, callbacks=[Stop(), Choosy()], resume=wrong)
    same(net, untouched)
    fit(net, data), fit(untouched, data)
    same(net, untouched)


def test_optimizer_state_of_another_size_is_refused_before_a_step(build, data, same, state):
    net, untouched = build(), build()
    wrong = {**state, "optimizer/fc1/weight/momentum": np.zeros(3, np.float32)}
    with pytest.raises(ShapeError, match="fc1/weight"):
        fit(net, data, callbacks=[Stop(), EMA()], resume=wrong)
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


def test_a_folder_without_checkpoints_begins_and_says_so(build, data, same, tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("none here")
    np.savez(tmp_path / "weights.npz", a=np.zeros(3))
    plain, first = build(), build()
    expected = fit(plain, data)
    got = first.fit(*data, batch_size=BATCH, epochs=EPOCHS, validation_data=data, resume=tmp_path)
    assert f"no checkpoint in {tmp_path} yet" in capsys.readouterr().err
    assert got == expected
    same(plain, first)
    with pytest.raises(FileAccessError, match="check the path"):
        fit(build(), data, resume=tmp_path / "missing")


def test_a_training_that_is_over_returns_its_history(build, data, same, tmp_path):
    net = build()
    expected = fit(net, data, callbacks=[ModelCheckpoint(tmp_path)])
    second = build(seed=3)
    got = fit(second, data, callbacks=[ModelCheckpoint(tmp_path)], resume=tmp_path)
    assert got == expected
    same(net, second)


@pytest.mark.parametrize("kind", [ModelCheckpoint, recorders])
def test_a_folder_that_is_removed_meanwhile_is_named(build, data, tmp_path, kind):
    def remove(session, _):
        if session.step == 2:
            shutil.rmtree(tmp_path / "run")

    made = kind(tmp_path / "run")
    made = [*(made if isinstance(made, list) else [made]), at("on_batch_begin", remove)]
    with pytest.raises(FileAccessError, match=r"file '.*run.*': expected a place to write"):
        fit(build(), data, callbacks=made)
