import sys
from types import ModuleType

import pytest

from singanet.errors import BackendError, FileAccessError
from singanet.training.callbacks import Callback, WandB


class Config(dict):
    def update(self, values, allow_val_change=False):
        assert allow_val_change or not self.keys() & values.keys()
        super().update(values)


class Run:
    def __init__(self, module, arguments):
        self.module, self.arguments = module, arguments
        self.config, self.rows, self.code = Config(arguments.pop("config", {})), [], None

    def log(self, row):
        assert self.code is None
        self.rows.append(row)

    def finish(self, exit_code):
        self.code, self.module.run = exit_code, None


class StandIn(ModuleType):
    def __init__(self):
        super().__init__("wandb")
        self.run, self.runs = None, []

    def init(self, **arguments):
        self.run = Run(self, arguments)
        self.runs.append(self.run)
        return self.run


@pytest.fixture
def wandb(monkeypatch):
    made = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


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


def test_an_active_run_is_used_and_left_open(build, data, wandb):
    run = wandb.init(config={"epochs": 7})
    build().fit(*data, callbacks=[WandB()], verbose=False)
    assert wandb.run is run
    assert run.config["epochs"] == 1
    assert len(run.rows) == 1


def test_an_error_is_told_by_the_exit_code(build, data, wandb):
    class Failing(Callback):
        def on_epoch_end(self, epoch, logs):
            raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        build().fit(*data, callbacks=[WandB(), Failing()], verbose=False)
    assert wandb.runs[0].code == 1


def test_a_folder_that_cannot_be_written_is_refused_first(build, data, wandb, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError):
        build().fit(*data, callbacks=[WandB(folder=tmp_path / "file")], verbose=False)
    assert not wandb.runs


def test_without_the_package_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BackendError, match=r"WandB: .*run: pip install wandb"):
        WandB()


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
