import csv
from functools import partial
from types import SimpleNamespace

import pytest

from singanet.errors import FileAccessError
from singanet.training import Callback
from singanet.training.callbacks import CSVLogger, ModelCheckpoint
from singanet.training.display import History
from tests.interrupts import struck_at


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_line_an_epoch_with_the_same_floats(build, data, tmp_path):
    path = tmp_path / "new folder" / "log.csv"
    history = build().fit(
        *data, epochs=3, validation_data=data, callbacks=[CSVLogger(path)], verbose=False
    )
    rows = read(path)
    assert list(rows[0]) == ["epoch", "loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    for name, values in history.items():
        assert [float(row[name]) for row in rows] == values


def test_lines_are_there_while_training_goes_on(build, data, tmp_path):
    counts = []

    class Look(Callback):
        _runs_last = True

        def on_epoch_end(self, epoch, logs):
            counts.append(len(read(tmp_path / "log.csv")))

    log = CSVLogger(tmp_path / "log.csv")
    build().fit(*data, epochs=3, callbacks=[log, Look()], verbose=False)
    assert counts == [1, 2, 3]


def test_a_resumed_training_keeps_what_came_before(build, data, tmp_path):
    def callbacks():
        return [CSVLogger(tmp_path / "log.csv"), ModelCheckpoint(tmp_path / "run")]

    build().fit(*data, epochs=2, callbacks=callbacks(), verbose=False)
    # A line written after the checkpoint: its epoch is trained again.
    with (tmp_path / "log.csv").open("a") as file:
        file.write("2,9.9,0.9\n")
    history = build().fit(
        *data, epochs=4, callbacks=callbacks(), resume=tmp_path / "run", verbose=False
    )
    assert [float(row["loss"]) for row in read(tmp_path / "log.csv")] == history["loss"]
    build().fit(*data, epochs=1, callbacks=[CSVLogger(tmp_path / "log.csv")], verbose=False)
    assert len(read(tmp_path / "log.csv")) == 1


def test_an_unwritable_place_is_said_at_once(build, data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match="no step was taken"):
        build().fit(*data, callbacks=[CSVLogger(tmp_path / "file" / "log.csv")], verbose=False)


def test_a_file_that_was_lost_comes_back_with_the_resumption(build, data, tmp_path):
    """As a process leaves it that is killed while the file is begun anew."""
    path = tmp_path / "log.csv"
    for epochs in (2, 3, 4):
        history = build().fit(
            *data,
            epochs=epochs,
            callbacks=[CSVLogger(path), ModelCheckpoint(tmp_path / "run")],
            resume=tmp_path / "run" if epochs > 2 else None,
            verbose=False,
        )
        assert [float(row["loss"]) for row in read(path)] == history["loss"]
        path.write_text("" if epochs == 2 else "epoch,loss\n0,1\n1")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_no_interrupt_takes_a_line_of_the_epochs_before(tmp_path):
    path, history, line = tmp_path / "log.csv", History(), 0
    for epoch in range(3):
        history.record(epoch, {"loss": 1 / (epoch + 1)})
    before = ["epoch,loss", "0,1.0", "1,0.5"]
    path.write_text("\n".join([*before, f"2,{1 / 3}\n"]), "utf-8")
    more = True
    while more:
        line += 1
        logger = CSVLogger(path)
        logger._session = SimpleNamespace(history=history, resumed=True)
        more = struck_at(line, partial(logger.on_epoch_end, 2, {"loss": 1 / 3}))
        logger.on_train_end()
        assert path.read_text("utf-8").splitlines()[:3] == before
    assert line > 50
    assert len(path.read_text("utf-8").splitlines()) == 4
