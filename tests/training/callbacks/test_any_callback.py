"""All that holds for any callback: a member is a line of `MAKERS`."""

import inspect
import io
import signal
import sys

import numpy as np
import pytest

from singanet.errors import ArgumentError, BackendError, CallOrderError, UnknownNameError
from singanet.errors import FileAccessError as Unwritable
from singanet.training import Callback, callbacks
from tests.kit.files import bytes_of
from tests.training.callbacks.trackers import Trial

PUBLIC = {name: getattr(callbacks, name) for name in callbacks.__all__}
PUBLIC = {name: kind for name, kind in PUBLIC.items() if issubclass(kind, Callback)}
MAKERS = {
    "EMA": lambda kind, folder: kind(0.5, keep_at_end=False),
    "SWA": lambda kind, folder: kind(0, keep_at_end=False),
    "CSVLogger": lambda kind, folder: kind(folder / "log.csv"),
    "Callback": lambda kind, folder: kind(),
    "EarlyStopping": lambda kind, folder: kind(patience=99, restore_best_weights=False),
    "JSONLinesLogger": lambda kind, folder: kind(folder / "log.jsonl", every_steps=3),
    "LayerStatistics": lambda kind, folder: kind(folder / "stats.jsonl"),
    "LayerTiming": lambda kind, folder: kind(),
    "LearningRate": lambda kind, folder: kind(lambda epoch, rate: rate),
    "MLflow": lambda kind, folder: kind({"note": 1}, every_steps=3),
    "MemoryCheck": lambda kind, folder: kind(2**40, stream=io.StringIO()),
    "MemoryLine": lambda kind, folder: kind(io.StringIO()),
    "ModelCheckpoint": lambda kind, folder: kind(folder / "files", every_steps=3),
    "OptunaPruning": lambda kind, folder: kind(Trial()),
    "ReduceOnPlateau": lambda kind, folder: kind(patience=99),
    "StopOnNaN": lambda kind, folder: kind(),
    "StopOnSignal": lambda kind, folder: kind(),
    "TensorBoard": lambda kind, folder: kind(folder / "board", 3),
    "WandB": lambda kind, folder: kind(folder=folder / "runs", every_steps=3),
}
"""Each makes a callback that has no reason to end or change the training."""


class Ends(Callback):
    """Ends the fit in the step ``at``, by `stop` or an error."""

    def __init__(self, at, error=None):
        self.at, self.error = at, error

    def on_batch_end(self, batch, logs):
        if self.session.step == self.at:
            if self.error:
                raise self.error
            self.session.stop("enough")


@pytest.fixture(params=PUBLIC)
def make(request, tmp_path, wandb, mlflow, optuna):
    """Makes the callback, each time in the same folder."""
    if request.param == "TensorBoard":
        pytest.importorskip("tensorboardX")
    return lambda: MAKERS[request.param](PUBLIC[request.param], tmp_path)


@pytest.fixture
def fit(build, data):
    def fitted(*given, epochs=3, net=None, **arguments):
        net = net or build()
        done = net.fit(
            *data, batch_size=10, epochs=epochs, callbacks=given, verbose=False, **arguments
        )
        return net, done

    return fitted


def test_every_public_callback_is_a_member():
    assert MAKERS.keys() == PUBLIC.keys()


def test_it_changes_no_bit_and_leaves_the_process_as_it_was(fit, data, make):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    plain, expected = fit(validation_data=data)
    net, history = fit(make(), validation_data=data)
    assert bytes_of(net) == bytes_of(plain)
    assert history == expected
    assert history.stopped is None
    assert net.rng.bit_generator.state == plain.rng.bit_generator.state
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert not any({"forward", "backward"} & {*vars(layer)} for layer in net.layers)


@pytest.mark.parametrize("step", [4, 6])
def test_a_fit_resumes_with_it_at_an_end_of_an_epoch_and_within_one(fit, make, tmp_path, step):
    plain, expected = fit()
    kept = callbacks.ModelCheckpoint
    fit(make(), Ends(step), kept(tmp_path / "run"))
    net, history = fit(make(), Callback(), kept(tmp_path / "run"), resume=tmp_path / "run")
    assert bytes_of(net) == bytes_of(plain)
    assert history == expected


def test_it_serves_again_after_a_fit_and_after_an_error(fit, make):
    callback, net = make(), None
    for error in (None, RuntimeError("mine"), KeyboardInterrupt()):
        for other in ((), (Ends(2, error),)) if error else ((),):
            try:
                net, _ = fit(callback, *other, net=net)
            except (RuntimeError, KeyboardInterrupt) as caught:
                assert caught is error  # noqa: PT017 - either of two
            with pytest.raises(CallOrderError, match="callbacks="):
                _ = callback.session
        assert not any({"forward", "backward"} & {*vars(layer)} for layer in net.layers)
    with pytest.raises(ArgumentError, match="twice"):
        fit(callback, callback)


WITH = {name: inspect.signature(kind).parameters for name, kind in PUBLIC.items()}


@pytest.mark.parametrize("name", [name for name, given in WITH.items() if "every_steps" in given])
@pytest.mark.parametrize("steps", [0, -1, 1.5, "3", True])
def test_steps_are_counted_from_one(name, steps, tmp_path, wandb, mlflow):
    place = {key: tmp_path / "x" for key in ("path", "folder") if key in WITH[name]}
    with pytest.raises(ArgumentError, match="every_steps"):
        PUBLIC[name](**place, every_steps=steps)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", [name for name, given in WITH.items() if "monitor" in given])
def test_what_is_not_measured_is_refused_before_a_step(build, fit, optuna, name, tmp_path):
    first = {"ModelCheckpoint": [tmp_path / "run"], "OptunaPruning": [Trial()]}.get(name, [])
    net = build()
    for monitor, words in (("val_loss", "validation_data"), ("acuracy", "did you mean 'accuracy'")):
        with pytest.raises(UnknownNameError, match=words):
            fit(PUBLIC[name](*first, monitor=monitor), net=net)
    assert bytes_of(net) == bytes_of(build())


@pytest.mark.parametrize("name",
    [name for name, given in WITH.items() if {"path", "folder"} & given.keys()])  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_before_a_step(build, fit, wandb, name, tmp_path):
    if name == "TensorBoard":
        pytest.importorskip("tensorboardX")
    (tmp_path / "file").write_text("")
    key, net = "path" if "path" in WITH[name] else "folder", build()
    with pytest.raises(Unwritable, match="file"):
        fit(PUBLIC[name](**{key: tmp_path / "file" / "x"}), net=net)
    assert bytes_of(net) == bytes_of(build())
    assert not wandb.runs


@pytest.mark.parametrize(
    ("name", "package"),
    [("MLflow", "mlflow-skinny"), ("OptunaPruning", "optuna"), ("WandB", "wandb"),
     ("TensorBoard", "tensorboardX")],
)  # fmt: skip
def test_without_the_package_it_says_what_to_install(fit, monkeypatch, tmp_path, name, package):
    for each in ("mlflow", "optuna", "wandb", "tensorboardX", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, each, None)
    with pytest.raises(BackendError, match=rf"{name}: .*pip install {package}"):
        fit(MAKERS[name](PUBLIC[name], tmp_path))


@pytest.mark.parametrize(("make", "words"), [
    (lambda: callbacks.EMA(1.0), "decay"),
    (lambda: callbacks.SWA(-1), "start"),
    (lambda: callbacks.EarlyStopping(patience=-1), "patience"),
    (lambda: callbacks.LearningRate(0.1), "function of the epoch"),
    (lambda: callbacks.ReduceOnPlateau(factor=2.0), "factor"),
    (lambda: callbacks.ModelCheckpoint("x", keep=0), "keep"),
    (lambda: callbacks.ModelCheckpoint("x", format="npy"), "did you mean 'npz'"),
    (lambda: callbacks.Monitor("here", "loss", "up"), "mode"),
    *(
        (lambda m=m: callbacks.ModelCheckpoint("x", every_minutes=m), "every_minutes: expected")
        for m in (0, -1, float("nan"), float("inf"), "5", True)
    ),
])  # fmt: skip
def test_arguments_that_are_refused(make, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ArgumentError, UnknownNameError), match=words):
        make()


# -- the callbacks of a fit together ---------------------------------------------------------------


def test_those_that_run_last_do_so_wherever_they_stand(fit):
    order = []

    class Note(Callback):
        def __init__(self, name, last=False):
            self.name, self._runs_last = name, last

        def on_epoch_end(self, epoch, logs):
            order.append(self.name)

    fit(Note("a", True), Note("b"), Note("c"), epochs=1)
    assert order == ["b", "c", "a"]


def test_an_error_within_on_error_does_not_hide_the_first(fit):
    class Bad(Callback):
        def on_batch_end(self, batch, logs):
            raise RuntimeError("first")

        def on_error(self, error):
            raise OSError("second")

    with (
        pytest.raises(RuntimeError, match="first"),
        pytest.warns(RuntimeWarning, match="on_error failed: second"),
    ):
        fit(Bad())


@pytest.mark.parametrize("first", [True, False])
def test_the_best_weights_come_last_whatever_the_order(build, data, first):
    plain, both, ema, seen = build(), build(), callbacks.EMA(0.5), []
    stops = [callbacks.EarlyStopping("loss"), callbacks.EarlyStopping("loss")]
    plain.fit(*data, epochs=4, callbacks=[stops[0]], verbose=False)

    class Looks(Callback):
        def __init__(self, last):
            self._runs_last = last

        def on_train_end(self):
            seen.append(bytes_of(self.session.net))

    given = [ema, Looks(True), stops[1]] if first else [stops[1], Looks(False), ema]
    both.fit(*data, epochs=4, callbacks=given, verbose=False)
    # What others save or measure at the end is of these, too.
    assert bytes_of(plain) == bytes_of(both) == seen[0]
    assert not np.array_equal(ema.averages["fc1/weight"], both.param_values()[0])
