import sys
from types import ModuleType, SimpleNamespace

import pytest

from singanet.errors import ArgumentError, BackendError
from singanet.training.callbacks import Callback, MLflow


class StandIn(ModuleType):
    """Of MLflow what the callback calls, as strict about parameters as its stores."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.active = {}, None

    def _new(self):
        data = SimpleNamespace(params={}, metrics=[], status=None)
        run = SimpleNamespace(info=SimpleNamespace(run_id=f"run{len(self.runs)}"), data=data)
        self.runs[run.info.run_id] = run
        return run

    def active_run(self):
        return self.active

    def start_run(self):
        assert self.active is None
        self.active = self._new()
        return self.active

    def get_run(self, run_id):
        return self.runs[run_id]

    def log_params(self, params, run_id):
        known = self.runs[run_id].data.params
        assert not known.keys() & params.keys()
        assert all(len(value) <= 500 for value in params.values())
        known.update(params)

    def log_metrics(self, metrics, step, run_id):
        self.runs[run_id].data.metrics.append((step, metrics))

    def end_run(self, status):
        self.active.data.status, self.active = status, None


@pytest.fixture
def mlflow(monkeypatch):
    made = StandIn()
    monkeypatch.setitem(sys.modules, "mlflow", made)
    return made


def test_a_run_of_its_own_has_parameters_and_every_epoch(build, data, mlflow):
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


def test_an_active_run_is_used_and_left_open(build, data, mlflow):
    mlflow.start_run()
    for epochs in (1, 2):
        callback = MLflow({f"fit {epochs}": True})
        build().fit(*data, epochs=epochs, callbacks=[callback], verbose=False)
    run = mlflow.active.data
    assert run.status is None
    assert run.params["epochs"] == "1"  # as it was first said
    assert run.params["fit 2"] == "True"


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")]
)
def test_a_run_says_how_it_ended(build, data, mlflow, error, status):
    class Failing(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["p@5 of café"] = 1.0
            raise error

    callback = MLflow()
    with pytest.raises(error):
        build().fit(*data, callbacks=[Failing(), callback], verbose=False)
    assert mlflow.runs[callback.run_id].data.status == status


def test_names_are_such_as_mlflow_takes(build, data, mlflow):
    class Adding(Callback):
        def on_epoch_end(self, epoch, logs):
            logs["p@5 (top)"] = 1.0

    callback = MLflow()
    build().fit(*data, callbacks=[Adding(), callback], verbose=False)
    assert "p_5 _top_" in mlflow.runs[callback.run_id].data.metrics[0][1]


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(BackendError, match=r"MLflow: .*run: pip install mlflow-skinny"):
        MLflow()


def test_steps_are_counted_from_one(mlflow):
    with pytest.raises(ArgumentError, match="every_steps"):
        MLflow(every_steps=0)


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
