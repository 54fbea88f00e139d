import itertools
import json
from contextlib import nullcontext

import numpy as np
import pytest

import singanet
from singanet.base.processes import Leaving
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError, FileAccessError, UnknownNameError
from singanet.training import Callback
from singanet.training.callbacks import ModelCheckpoint, keeping
from singanet.training.files import read_training


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_k_epochs_and_the_best_stay(build, data, feign, tmp_path):
    net = build()
    kept = []

    class Copies(Callback):
        def on_epoch_end(self, epoch, logs):
            kept.append(dict(zip(net.param_names(), map(np.copy, net.param_values()), strict=True)))

    checkpoint = ModelCheckpoint(tmp_path, "loss", keep=2)
    watched = feign(loss=[3.0, 1.0, 2.0, 4.0, 5.0])
    net.fit(*data, epochs=5, callbacks=[checkpoint, watched, Copies()], verbose=False)
    assert names(tmp_path) == ["best.npz", "epoch-0004.npz", "epoch-0005.npz"]
    with open_state(tmp_path / "best.npz") as reader:
        best = dict(reader)
    assert sorted(best) == sorted(net.param_names())
    for name, array in best.items():
        np.testing.assert_array_equal(array, kept[1][name])


def test_every_so_many_epochs_and_steps(build, data, tmp_path):
    checkpoint = ModelCheckpoint(
        tmp_path, None, keep=9, every_epochs=2, every_steps=3, format="safetensors"
    )
    build().fit(*data, batch_size=10, epochs=5, callbacks=[checkpoint], verbose=False)
    assert names(tmp_path) == [
        "epoch-0002.safetensors", "epoch-0004.safetensors", "epoch-0005.safetensors",
        "step.safetensors",
    ]  # fmt: skip


def written(net, data, folder, checkpoint, tick):
    """The steps after which ``step.npz`` changed; the clock goes on by ``tick`` before each."""
    found = []

    class Looks(Callback):
        def on_batch_begin(self, batch):
            clock[0] += tick
            found.append((self.session.step, stamp()))

        def on_train_end(self):
            found.append((self.session.step, stamp()))

    def stamp():
        path = folder / "step.npz"
        return path.stat().st_ino if path.exists() else None

    clock = [100.0]
    checkpoint = checkpoint(lambda: clock[0])
    net.fit(*data, batch_size=10, epochs=3, callbacks=[Looks(), checkpoint], verbose=False)
    return [step for (_, a), (step, b) in itertools.pairwise(found) if a != b]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every_steps": 3}, [3, 6, 9, 12]),
        # 40 s a step, four steps an epoch, whose own file counts too.
        ({"every_minutes": 1.5}, [3, 7, 11]),
        ({"every_minutes": 2}, [3, 7, 11]),
        ({"every_minutes": 100}, []),
        ({"every_minutes": 1.5, "every_epochs": 9}, [3, 6, 9, 12]),
        ({"every_minutes": 1.5, "every_steps": 4, "every_epochs": 9}, [3, 4, 7, 8, 11, 12]),
    ],
)
def test_every_so_many_steps_and_minutes(build, data, tmp_path, options, expected):
    got = written(
        build(),
        data,
        tmp_path,
        lambda clock: ModelCheckpoint(tmp_path, None, clock=clock, **options),
        40.0,
    )
    assert got == expected


def test_a_file_by_the_minute_is_gone_on_from(build, data, tmp_path):
    """To the bit, from the middle of an epoch."""
    whole, part, resumed = build(), build(), build()
    whole.fit(*data, batch_size=10, epochs=3, verbose=False)
    clock = iter(range(0, 10**6, 50))
    checkpoint = ModelCheckpoint(
        tmp_path, None, every_epochs=9, every_minutes=1, clock=lambda: next(clock)
    )

    class Fail(Callback):
        def on_batch_begin(self, batch):
            if self.session.step == 7:
                raise KeyError("power cut")

    with pytest.raises(KeyError):
        part.fit(*data, batch_size=10, epochs=3, callbacks=[checkpoint, Fail()], verbose=False)
    assert names(tmp_path) == ["step.npz"]
    resumed.fit(*data, batch_size=10, epochs=3, resume=tmp_path, verbose=False)
    for name, here, there in zip(
        whole.param_names(), whole.param_values(), resumed.param_values(), strict=True
    ):
        np.testing.assert_array_equal(here, there, err_msg=name)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf"), "5", True])
def test_minutes_that_are_none(tmp_path, minutes):
    with pytest.raises(ArgumentError, match="ModelCheckpoint, every_minutes: expected a number"):
        ModelCheckpoint(tmp_path, every_minutes=minutes)


def test_a_stop_within_an_epoch_leaves_a_file(build, data, tmp_path):
    class Stop(Callback):
        def on_batch_end(self, batch, logs):
            if self.session.step == 6:
                self.session.stop("enough")

    build().fit(
        *data, batch_size=10, epochs=5, callbacks=[ModelCheckpoint(tmp_path), Stop()], verbose=False
    )
    assert names(tmp_path) == ["best.npz", "epoch-0001.npz", "stopped.npz"]


class Asked(Callback):
    """Asks this process, in step ``at``, to end at its next checkpoint."""

    def __init__(self, leaving, at):
        self.leaving, self.at = leaving, at

    def on_batch_begin(self, batch):
        if self.session.step + 1 == self.at:
            self.leaving.ask()


@pytest.mark.parametrize(
    ("at", "options", "ends"),
    [
        (6, {"every_steps": 4}, 8),
        (8, {"every_steps": 4}, 8),
        (6, {}, 8),
        (6, {"every_epochs": 2}, 8),
        (6, {"every_steps": 3, "asynchronous": True, "format": "sharded"}, 6),
        (10, {"every_steps": 5}, 10),
        # What ends by itself then needs nobody to go on.
        (13, {"every_epochs": 2}, None),
        (13, {}, None),
    ],
)
def test_a_fit_that_is_asked_to_ends_where_a_file_is_written(
    build, data, tmp_path, monkeypatch, at, options, ends
):
    leaving = Leaving()
    monkeypatch.setattr(keeping, "LEAVING", leaving)
    straight, net = build(), build()
    straight.fit(*data, batch_size=10, epochs=4, verbose=False)
    checkpoint = ModelCheckpoint(tmp_path, None, **options)
    with nullcontext() if ends is None else pytest.raises(KeyboardInterrupt, match="launcher"):
        net.fit(*data, batch_size=10, epochs=4, verbose=False,
                callbacks=[Asked(leaving, at), checkpoint])  # fmt: skip
    assert leaving.begun == (ends is not None)
    assert json.loads(bytes(read_training(tmp_path)["session"]))["step"] == (ends or 16)
    if ends is not None:
        monkeypatch.setattr(keeping, "LEAVING", Leaving())
        net = build()
        net.fit(*data, batch_size=10, epochs=4, verbose=False, resume=tmp_path,
                callbacks=[Callback(), ModelCheckpoint(tmp_path / "second", None)])  # fmt: skip
    for one, other in zip(net.param_values(), straight.param_values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fit_that_fails_at_once_writes_nothing(build, data, tmp_path):
    with pytest.raises(singanet.errors.ShapeError):
        build().fit(
            data[0], np.zeros((40, 2), int), callbacks=[ModelCheckpoint(tmp_path)], verbose=False
        )
    assert names(tmp_path) == []


def test_what_is_refused(build, data, tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'npz'"):
        ModelCheckpoint(tmp_path, format="npy")
    with pytest.raises(ArgumentError, match="keep"):
        ModelCheckpoint(tmp_path, keep=0)
    with pytest.raises(UnknownNameError, match="monitor"):
        build().fit(*data, callbacks=[ModelCheckpoint(tmp_path, "val_loss")], verbose=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError, match="no step was taken"):
        build().fit(*data, callbacks=[ModelCheckpoint(tmp_path / "file")], verbose=False)


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(build, data, tmp_path):
    def fit(epochs, **arguments):
        net = build()
        checkpoint = ModelCheckpoint(tmp_path / "run")
        net.fit(*data, epochs=epochs, callbacks=[checkpoint], verbose=False, **arguments)
        return net

    whole = fit(3)
    newest = tmp_path / "run" / "epoch-0003.npz"
    raw = newest.read_bytes()
    at = raw.index(whole.param_values()[0].tobytes())
    for damaged in (raw[:-100], raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]):
        newest.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match=r"skipped: .*epoch-0003\.npz"):
            resumed = fit(3, resume=tmp_path / "run")
        for a, b in zip(whole.param_values(), resumed.param_values(), strict=True):
            np.testing.assert_array_equal(a, b)


def test_no_second_training_writes_to_the_folder(build, data, tmp_path):
    class Second(Callback):
        def on_epoch_end(self, epoch, logs):
            with pytest.raises(FileAccessError, match="no other training in it; received"):
                build().fit(*data, callbacks=[ModelCheckpoint(tmp_path)], verbose=False)
            self.tried = True

    second = Second()
    build().fit(*data, callbacks=[ModelCheckpoint(tmp_path), second], verbose=False)
    assert second.tried
    build().fit(*data, callbacks=[ModelCheckpoint(tmp_path)], verbose=False)


def test_a_link_out_of_the_folder_is_neither_written_nor_read(build, data, tmp_path):
    run, other = tmp_path / "run", tmp_path / "other.npz"
    build().fit(*data, callbacks=[ModelCheckpoint(run)], verbose=False)
    (run / "epoch-0001.npz").rename(other)
    (run / "epoch-0001.npz").symlink_to(other)
    before = other.read_bytes()
    for arguments in ({}, {"resume": run}):
        with pytest.raises(FileAccessError, match="a file of the folder itself"):
            build().fit(*data, callbacks=[ModelCheckpoint(run)], verbose=False, **arguments)
    assert other.read_bytes() == before
