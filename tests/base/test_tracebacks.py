"""Tracebacks: frames of the user's code are kept, those of the library between them are not."""

import linecache
import subprocess
import sys
import traceback

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet
from singanet.base.tracebacks import TRACEBACK
from singanet.errors import ShapeError
from singanet.layers import Dense, Layer
from singanet.loss import Huber, SquaredError
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback

X = np.ones((8, 3), np.float32)
ENTRY = 1 if sys.version_info < (3, 11) else 0
"""Python 3.10 raises an error again with the frame of the function that users call."""


@pytest.fixture(autouse=True)
def shortened(monkeypatch):
    monkeypatch.delenv(TRACEBACK, raising=False)


class Own(Layer):
    """A user's layer: the derived classes fail in one method."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x

    def backward(self, ctx, dy):
        return dy, {}


class FailsForward(Own):
    def forward(self, ctx, x):
        raise KeyError("forward")


class FailsBackward(Own):
    def backward(self, ctx, dy):
        raise KeyError("backward")


class FailsSetup(Own):
    def setup(self, in_shape):
        raise KeyError("setup")


class LossThatFails(Huber):
    def forward(self, flag, x, y, sample_weight=None, mask=None):
        return super().forward(flag, x, y[:1], sample_weight, mask)


class FailsCallback(Callback):
    def on_batch_end(self, batch, logs):
        raise KeyError("on_batch_end")


def compiled(*layers, loss=None):
    net = FeedForwardNet([Dense("fc", 3, input_shape=(3,)), *layers])
    net.compile(SGD(lr=0.1), loss or SquaredError())
    return net


def walk(net):
    net.forward(True, X)
    for _ in net.backward(X):
        pass


def failing_data():
    yield X, X
    raise KeyError("failing_data")


def frames_of(error):
    """The functions of the traceback after the test's own, those of the library with its name."""
    frames = [
        f"singanet.{frame.name}" if "/singanet/" in frame.filename else frame.name
        for frame in traceback.extract_tb(error.__traceback__)[1:]
    ]
    entries = {"singanet.call", "singanet.run", "singanet.__call__"} if ENTRY else set()
    return [name for name in frames if name not in entries]


USERS = {
    "a library's layer": (lambda: compiled().fit(X[:, :2], X), []),
    "a layer's forward": (lambda: compiled(FailsForward()).fit(X, X, verbose=False), ["forward"]),
    "a layer's backward": (lambda: compiled(FailsBackward()).fit(X, X, verbose=False),
                           ["backward"]),
    "a layer's setup": (lambda: compiled(FailsSetup()), ["compiled", "setup"]),
    "a loss": (lambda: compiled(loss=LossThatFails()).fit(X, X, verbose=False), ["forward"]),
    "a callback": (lambda: compiled().fit(X, X, callbacks=[FailsCallback()], verbose=False),
                   ["on_batch_end"]),
    "data, through a bar": (lambda: compiled().fit(failing_data(), steps_per_epoch=2),
                            ["failing_data"]),
    "a step": (lambda: compiled(FailsForward()).step(X, X, SGD(lr=0.1)), ["forward"]),
    "a loop over the gradients": (lambda: walk(compiled(FailsBackward())), ["walk", "backward"]),
    "a layer's constructor": (lambda: Dense(units="3"), []),
    "words of another library": (lambda: singanet.layers.Linear, []),
    "an unknown layer": (lambda: compiled()["fc1"], []),
    "an unknown argument": (lambda: compiled().fit(X, X, epoch=3), []),
    "an unknown argument of predict": (lambda: compiled().predict(X, batchsize=3), []),
    "a ready net": (lambda: singanet.models.build("lenet", (3,), 10), []),
    "a predictor": (lambda: compiled().predictor()(X[:, :2]), []),
}  # fmt: skip


@pytest.mark.parametrize("name", USERS)
def test_the_users_frames_alone_are_kept(name):
    mistake, users = USERS[name]
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each has its own kind
        mistake()
    assert frames_of(caught.value) == ["<lambda>", *users]


ENDS = """
import numpy as np
from singanet import FeedForwardNet
from singanet.layers import Dense

net = FeedForwardNet([Dense(2, input_shape=(2,)), Dense(2)])
walk = net.backward(net.forward(True, np.ones((1, 2))))
next(walk)
"""


def test_a_walk_that_the_interpreter_ends_says_nothing():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_all_frames_with_the_variable(monkeypatch):
    monkeypatch.setenv(TRACEBACK, "full")
    with pytest.raises(KeyError) as caught:
        compiled(FailsForward()).fit(X, X, verbose=False)
    frames = frames_of(caught.value)
    assert frames[-1] == "forward"
    assert {"singanet.fit", "singanet.step", "singanet.run_forward"} < set(frames)


def test_errors_behind_an_error_are_shortened_too(tmp_path):
    with pytest.raises(singanet.errors.FileAccessError) as caught:
        singanet.load_model(tmp_path / "none.singanet")
    assert isinstance(caught.value.__cause__, OSError)
    assert "".join(traceback.format_exception(caught.value)).count("/singanet/") == ENTRY

    class Wraps(Own):
        def forward(self, ctx, x):
            try:
                return compiled(FailsForward()).predict(x)
            except KeyError as error:
                raise ValueError("mine") from error

    with pytest.raises(ValueError, match="mine") as caught:
        compiled(Wraps()).fit(X, X, verbose=False)
    text = "".join(traceback.format_exception(caught.value))
    assert text.count("/singanet/") == ENTRY
    assert text.count('KeyError("forward")') == text.count('raise ValueError("mine")') == 1


def test_errors_that_the_library_handled_are_left_out():
    """A net that predicts records a user's layer first, and computes it if it cannot."""

    def predict():
        try:
            raise OSError("the user's own")
        except OSError:
            compiled(FailsForward()).predictor()(X)

    with pytest.raises(KeyError) as caught:
        predict()
    behind = caught.value.__context__
    assert isinstance(behind, OSError)
    assert behind.__context__ is sys.exc_info()[1]  # of whoever runs the test, or None
    assert "/singanet/" not in "".join(traceback.format_exception(behind))


CELL = """
class Fails(FailsForward):
    def forward(self, ctx, x):
        return super().forward(ctx, x)

compiled(Fails()).fit(X, X, verbose=False)
"""


def test_in_a_notebook_an_error_fits_on_a_screen(monkeypatch):
    ultratb = pytest.importorskip("IPython.core.ultratb")
    lines = CELL.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, "<cell>", (len(CELL), None, lines, "<cell>"))
    with pytest.raises(KeyError) as caught:
        exec(compile(CELL, "<cell>", "exec"), dict(globals()))  # noqa: S102
    shown = ultratb.AutoFormattedTB(mode="Context").text(
        KeyError, caught.value, caught.value.__traceback__.tb_next
    )
    assert "/singanet/" not in shown or ENTRY
    assert len(shown.splitlines()) <= 30


@pytest.mark.parametrize(
    ("error", "kept"),
    [(IndexError, ["singanet.fit", "broken"]), (KeyboardInterrupt, []), (ShapeError, [])],
)
def test_a_bug_of_the_library_keeps_its_frames(error, kept, monkeypatch):
    """An interrupt and the library's own errors do not."""
    # A function of the package, as its module's name says.
    there = {"__name__": "singanet.training.fit", "error": error.__new__(error)}
    there["error"].where = "data"
    exec("def broken(*_):\n    raise error", there)  # noqa: S102
    monkeypatch.setattr("singanet.training.fit.fit", there["broken"])
    with pytest.raises(error) as caught:
        compiled().fit(X, X)
    assert frames_of(caught.value) == kept


def test_a_copy_for_another_caller_keeps_the_frames():
    try:
        raise ShapeError("here", expected="a", received="b", advice="c")
    except ShapeError as error:
        again = error.within("there").advising("d")
    assert str(again) == "there, here: expected a; received b; d"
    assert [frame.name for frame in traceback.extract_tb(again.__traceback__)] == [
        "test_a_copy_for_another_caller_keeps_the_frames"
    ]
