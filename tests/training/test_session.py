"""A training interrupted anywhere and resumed ends as if nothing had happened, to the bit."""

import json
import shutil

import numpy as np
import pytest

from singanet import errors
from singanet.errors import FileAccessError, FileFormatError, SingaNetError, StateMismatchError
from singanet.optimizer import SGD
from singanet.report import recorders
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping, ModelCheckpoint, ReduceOnPlateau
from tests.interrupts import struck_at
from tests.kit.callbacks import at, raise_at

EPOCHS, BATCH = 3, 16
STEPS = EPOCHS * 4  # 50 samples: four batches an epoch, the last of two


class Stop(Callback):
    """Stops after ``at`` steps, or lets them pass where it is None; keeps the state at the end."""

    _runs_last = True

    def __init__(self, at=None):
        self.at, self.state = at, None

    def on_batch_end(self, batch, logs):
        if self.session.step == self.at:
            self.session.stop("interrupted")
            self.state = self.session.state()


def fit(net, data, **more):
    given = {"batch_size": BATCH, "epochs": EPOCHS, "validation_data": data, "verbose": False}
    return net.fit(*data, **given, **more)


@pytest.mark.parametrize("format", ["npz", "safetensors", "hdf5"])
def test_through_a_file(build, data, same, tmp_path, format):
    def callbacks(*more):
        return [ModelCheckpoint(tmp_path / "run", format=format), ReduceOnPlateau(), *more]

    whole, net, second = build(), build(), build(seed=1)
    expected = fit(whole, data, callbacks=[ReduceOnPlateau()])
    with pytest.raises(KeyboardInterrupt):
        fit(net, data, callbacks=callbacks(raise_at(6, KeyboardInterrupt())))
    got = fit(second, data, callbacks=callbacks(), resume=tmp_path / "run")
    same(whole, second)
    assert got == expected
    # One that is over returns its history.
    third = build(seed=3)
    assert fit(third, data, callbacks=callbacks(), resume=tmp_path / "run") == expected
    same(whole, third)


# Python ends an interrupt within a weak reference's callback with these words.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("share", np.linspace(0.05, 0.99, 12).tolist())
@pytest.mark.full
def test_interrupted_at_any_line_of_a_fit_and_gone_on_from(build, data, same, tmp_path, share):
    def run(net, folder, **more):
        callbacks = [EMA(0.9), EarlyStopping(), ModelCheckpoint(folder, every_steps=3)]
        return fit(net, data, callbacks=callbacks, **more)

    lines, part = 30_000, tmp_path / "part"  # such a fit has a few more
    whole, net, second = build(), build(), build(seed=7)
    expected = run(whole, tmp_path / "whole")
    assert struck_at(int(lines * share), lambda: run(net, part))
    if part.is_dir() and list(part.glob("[es]*.npz")):  # else before the first checkpoint
        assert run(second, part, resume=part) == expected
        same(whole, second)


def test_a_state_is_not_given_within_a_step(build, data):
    refused = []

    class Ask(Callback):
        def ask(self, *_):
            try:
                self.session.state()
            except errors.CallOrderError as error:
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


@pytest.mark.parametrize(("change", "error", "words"), [
    (lambda s: {}, FileFormatError, "'session'"),
    (lambda s: {**s, "session": np.zeros(3, np.uint8)}, FileFormatError, "state of a training"),
    (lambda s: changed(s, format="other"), FileFormatError, "'other'"),
    (lambda s: changed(s, version=99), errors.VersionError, "99"),
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
])  # fmt: skip
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


@pytest.mark.parametrize("about", [*SPOILT.values(), "data"], ids=[*SPOILT, "a seed of the order"])
def test_a_spoilt_text_changes_nothing(build, data, same, state, about):
    if about == "data":
        about = {"data": {**json.loads(bytes(state["session"]))["data"], "seed": -3}}
    optimizer = SGD(lr=0.1, momentum=0.9)
    net, untouched = build(optimizer=optimizer), build()
    with pytest.raises(SingaNetError) as caught:
        fit(net, data, callbacks=[Stop(), EMA()], resume=changed(state, **about))
    assert len(str(caught.value)) < 400
    same(net, untouched)
    assert optimizer.state_dict() == {}


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


def test_other_callbacks_data_and_state_of_another_size_are_refused(build, data, same, state):
    net, untouched = build(), build()
    wrong = {**state, "optimizer/fc1/weight/momentum": np.zeros(3, np.float32)}
    with pytest.raises(errors.ShapeError, match="fc1/weight"):
        fit(net, data, callbacks=[Stop(), EMA()], resume=wrong)
    same(net, untouched)
    with pytest.raises(StateMismatchError, match=r"'1.EMA'"):
        fit(net, data, callbacks=[Stop()], resume=state)
    given = {"callbacks": [Stop(), EMA()], "resume": state, "verbose": False}
    with pytest.raises(errors.ArgumentError, match="batch_size"):
        net.fit(*data, batch_size=10, **given)
    with pytest.raises(errors.DataError, match="kind of data"):
        net.fit([data], **given)
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


@pytest.mark.parametrize("kind", [ModelCheckpoint, recorders])
def test_a_folder_that_is_removed_meanwhile_is_named(build, data, tmp_path, kind):
    def remove(session, _):
        if session.step == 2:
            shutil.rmtree(tmp_path / "run")

    made = kind(tmp_path / "run")
    made = [*(made if isinstance(made, list) else [made]), at("on_batch_begin", remove)]
    with pytest.raises(FileAccessError, match=r"file '.*run.*': expected a place to write"):
        fit(build(), data, callbacks=made)
