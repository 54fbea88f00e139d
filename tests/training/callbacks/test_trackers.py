"""MLflow, Optuna, TensorBoard and Weights & Biases; event files are read back by hand."""

import json
import struct
from contextlib import nullcontext

import pytest

from singanet.base.files import is_held
from singanet.errors import ArgumentError
from singanet.report import recorders
from singanet.training import callbacks as cb
from singanet.training.callbacks import Callback, EarlyStopping, MLflow, OptunaPruning, WandB
from tests.kit.callbacks import at
from tests.training.callbacks.trackers import Trial, TrialPruned


class Failing(Callback):
    """Adds a number that MLflow takes under another name, then raises, if it has an error."""

    def __init__(self, error=None):
        self.error = error

    def on_epoch_end(self, epoch, logs):
        logs["p@5 (top) of café"] = 1.0
        if self.error:
            raise self.error


@pytest.fixture
def prune(build, data, optuna):
    def run(*callbacks, net=None):
        return (net or build()).fit(
            *data, epochs=4, validation_split=0.2, callbacks=callbacks, verbose=False
        )

    return run


def test_mlflow_has_parameters_and_every_epoch(build, data, mlflow):
    callback = MLflow({"note": {"deep": "x" * 900}}, every_steps=4)
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[callback], verbose=False)
    run = mlflow.runs[callback.run_id].data
    assert run.status == "FINISHED"
    assert mlflow.active is None
    assert run.params["epochs"] == "2"
    assert run.params["learning_rate"] == "0.1"
    assert run.params["note.deep"] == "x" * 500
    epochs = [(step, logs) for step, logs in run.metrics if "loss" in logs]
    assert epochs == [(k, history.row(k)) for k in range(2)]
    assert [step for step, logs in run.metrics if "step/loss" in logs] == [4, 8]


def test_an_active_mlflow_run_is_used(build, data, mlflow):
    mlflow.start_run()
    for epochs in (1, 2):
        callback = MLflow({f"fit {epochs}": True})
        build().fit(*data, epochs=epochs, callbacks=[callback], verbose=False)
    run = mlflow.active.data
    assert run.status is None
    assert run.params["epochs"] == "1"  # as it was first said
    assert run.params["fit 2"] == "True"


@pytest.mark.parametrize(("error", "status"),
    [(None, "FINISHED"), (ValueError(), "FAILED"), (KeyboardInterrupt(), "KILLED")])  # fmt: skip
def test_a_run_says_how_it_ended(build, data, mlflow, wandb, error, status):
    callback = MLflow()
    with pytest.raises(type(error)) if error else nullcontext():
        build().fit(*data, callbacks=[Failing(error), callback, WandB()], verbose=False)
    found = mlflow.runs[callback.run_id].data
    assert found.status == status
    assert wandb.runs[0].code == (error is not None)
    if not error:
        assert "p_5 _top_ of café" in found.metrics[0][1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of its own packages' ways with each other
def test_mlflow_itself_has_it_in_a_local_file(build, data, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", exc_type=ImportError)
    pytest.importorskip("sqlalchemy")
    import mlflow

    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.set_experiment("singanet")
    callback = MLflow({"note": "x" * 900, "café": 1}, every_steps=4)
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[callback], verbose=False)
    client = mlflow.MlflowClient()
    run = client.get_run(callback.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["epochs"] == "2"
    found = client.get_metric_history(callback.run_id, "loss")
    assert [(each.step, each.value) for each in found] == list(enumerate(history["loss"]))
    assert {each.step for each in client.get_metric_history(callback.run_id, "step/loss")} == {4, 8}
    # A second fit in a run that is open, with another number of epochs.
    with mlflow.start_run() as open_run:
        for epochs in (1, 2):
            build().fit(*data, epochs=epochs, callbacks=[MLflow()], verbose=False)
    assert client.get_run(open_run.info.run_id).data.params["epochs"] == "1"


def test_a_run_of_its_own_has_a_row_an_epoch(build, data, wandb, tmp_path):
    callback = WandB("digits", tmp_path, "offline", {"note": 1}, every_steps=4)
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[callback], verbose=False)
    (run,) = wandb.runs
    assert run.arguments == {"project": "digits", "dir": str(tmp_path), "mode": "offline"}
    assert run.code == 0
    assert run.config["note"] == 1
    assert run.config["epochs"] == 2
    epochs = [row for row in run.rows if "epoch" in row]
    assert epochs == [{"epoch": k, "step": 4 * (k + 1), **history.row(k)} for k in range(2)]
    assert [row["step"] for row in run.rows if "step/loss" in row] == [4, 8]


def test_an_active_wandb_run_is_used(build, data, wandb):
    run = wandb.init(config={"epochs": 7})
    build().fit(*data, callbacks=[WandB()], verbose=False)
    assert wandb.run is run
    assert run.config["epochs"] == 1
    assert len(run.rows) == 1


@pytest.mark.slow
def test_wandb_itself_has_it_offline(build, data, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", exc_type=ImportError)
    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = WandB("digits", tmp_path, "offline", {"note": 1}, every_steps=4)
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[callback], verbose=False)
    assert wandb.run is None
    (folder,) = (tmp_path / "wandb").glob("offline-run-*")
    (log,) = folder.glob("*.wandb")
    content = log.read_bytes()
    assert b"step/loss" in content
    assert all(repr(value).encode() in content for value in history["loss"])
    # One that is open already.
    with wandb.init(project="digits", dir=str(tmp_path), mode="offline") as run:
        build().fit(*data, batch_size=10, callbacks=[WandB(settings={"a": 1})], verbose=False)
        assert run.config["a"] == 1
        assert wandb.run is run


def scalars(folder, event_type):
    found = {}
    for path in folder.glob("events.*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = event_type()
            event.ParseFromString(content[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += 16 + length
    return found


def test_scalars_stand_in_the_event_file(build, data, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    history = build().fit(
        *data, batch_size=10, epochs=2, callbacks=[cb.TensorBoard(tmp_path, 4)], verbose=False
    )
    found = scalars(tmp_path, Event)
    assert found["loss"] == [(k, pytest.approx(v)) for k, v in enumerate(history["loss"])]
    assert found["lr"] == [(0, pytest.approx(0.1)), (1, pytest.approx(0.1))]
    assert [step for step, _ in found["step/loss"]] == [4, 8]


def test_a_pruned_one_leaves_all_in_order_first(prune, build, data, tmp_path):
    ended, net = [], build()
    behind = at("on_train_end", lambda session: ended.append((session.error, session.stopped)))
    callbacks = [EarlyStopping(patience=9), OptunaPruning(Trial(at=1)), behind]
    with pytest.raises(TrialPruned, match="pruned after epoch 2, at val_loss"):
        prune(*recorders(tmp_path), *callbacks, net=net)
    ((error, stopped),) = ended
    outcome = json.loads((tmp_path / "outcome.json").read_text("utf-8"))
    assert (outcome["epochs"], outcome["error"], error) == (2, None, None)
    assert "pruned after epoch 2" in stopped
    assert "pruned after epoch 2" in outcome["stopped"]
    assert not is_held(tmp_path)
    assert net.compiled.epochs == 2
    net.fit(*data, verbose=False)  # it is usable
    # An error is not hidden by the pruning.
    with pytest.raises(ValueError, match="no more"):
        prune(OptunaPruning(Trial(at=0)), Failing(ValueError("no more")))


@pytest.mark.full
def test_optuna_itself_prunes(build, data):
    optuna = pytest.importorskip("optuna", exc_type=ImportError)
    from singanet.optimizer import SGD

    optuna.logging.disable_default_handler()
    rates = iter([0.1, 0.1, 0.0, 0.1])
    done = []

    def objective(trial):
        net = build(optimizer=SGD(lr=next(rates)))
        history = net.fit(
            *data, epochs=6, validation_split=0.2, callbacks=[OptunaPruning(trial)], verbose=False
        )
        done.append(trial.number)
        return history["val_loss"][-1]

    pruner = optuna.pruners.MedianPruner(n_startup_trials=2, n_warmup_steps=1)
    study = optuna.create_study(pruner=pruner)
    study.optimize(objective, n_trials=4)
    states = [trial.state.name for trial in study.trials]
    assert states[2] == "PRUNED"
    assert 2 not in done
    assert states.count("COMPLETE") >= 2
    assert 1 < len(study.trials[2].intermediate_values) < 6
    several = optuna.create_study(directions=["minimize", "minimize"]).ask()
    with pytest.raises(ArgumentError, match="received a study with 2"):
        OptunaPruning(several)


def test_a_trial_hears_of_every_epoch_and_a_study_of_the_opposite_is_refused(prune):
    for monitor, directions, words in (
        ("val_accuracy", ["MINIMIZE"], r"more is better; pass direction='maximize'"),
        ("auto", ["MAXIMIZE"], "'val_loss': less is better"),
    ):
        with pytest.raises(ArgumentError, match=words):
            prune(OptunaPruning(Trial(directions=directions), monitor))
    for monitor, trial in (("auto", Trial()), ("val_accuracy", Trial(directions=["MAXIMIZE"]))):
        history = prune(OptunaPruning(trial, monitor))
        assert trial.reports == list(enumerate(history[monitor.replace("auto", "val_loss")]))
    with pytest.raises(ArgumentError, match="one objective; received a study with 2"):
        OptunaPruning(Trial(directions=["MINIMIZE", "MAXIMIZE"]))
