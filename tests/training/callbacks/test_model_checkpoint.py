"""Files of a training: when they are written, which are kept, and what a fit that ends leaves."""

import itertools
import json
import signal
import threading
from contextlib import nullcontext

import numpy as np
import pytest

import singanet
from singanet.base.processes import Leaving
from singanet.errors import FileAccessError
from singanet.training import Callback
from singanet.training.callbacks import ModelCheckpoint, StopOnSignal, keeping
from singanet.training.files import read_training
from tests.kit.callbacks import at, raise_at, stop_at
from tests.kit.files import bytes_of, flipped, read_state
from tests.kit.files import names_in as names


def test_the_last_k_epochs_and_the_best_stay(build, data, feign, tmp_path):
    net, kept = build(), []
    copies = at("on_epoch_end", lambda *_: kept.append(bytes_of(net)))
    checkpoint = ModelCheckpoint(tmp_path, "loss", keep=2)
    watched = feign(loss=[3.0, 1.0, 2.0, 4.0, 5.0])
    net.fit(*data, epochs=5, callbacks=[checkpoint, watched, copies], verbose=False)
    assert names(tmp_path) == ["best.npz", "epoch-0004.npz", "epoch-0005.npz"]
    best = read_state(tmp_path / "best.npz")
    assert {name: array.tobytes() for name, array in best.items()} == kept[1]
    # Every so many epochs and steps, in another format.
    more = {"every_epochs": 2, "every_steps": 3, "format": "safetensors"}
    checkpoint = ModelCheckpoint(tmp_path / "more", None, keep=9, **more)
    build().fit(*data, batch_size=10, epochs=5, callbacks=[checkpoint], verbose=False)
    stems = ["epoch-0002", "epoch-0004", "epoch-0005", "step"]
    assert names(tmp_path / "more") == [f"{stem}.safetensors" for stem in stems]


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
    found, clock = [], [100.0]

    class Looks(Callback):
        """Notes after which steps ``step.npz`` changed."""

        def on_batch_begin(self, batch):
            clock[0] += 40.0
            self.on_train_end()

        def on_train_end(self):
            path = tmp_path / "step.npz"
            found.append((self.session.step, path.stat().st_ino if path.exists() else None))

    checkpoint = ModelCheckpoint(tmp_path, None, clock=lambda: clock[0], **options)
    callbacks = [Looks(), checkpoint]
    build().fit(*data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False)
    assert [step for (_, a), (step, b) in itertools.pairwise(found) if a != b] == expected


def test_a_file_by_the_minute_is_gone_on_from(build, data, tmp_path):
    whole, resumed, clock = build(), build(), iter(range(0, 10**6, 50))
    whole.fit(*data, batch_size=10, epochs=3, verbose=False)
    often = {"every_epochs": 9, "every_minutes": 1, "clock": lambda: next(clock)}
    callbacks = [ModelCheckpoint(tmp_path, None, **often), raise_at(7, KeyError("power cut"))]
    with pytest.raises(KeyError):
        build().fit(*data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False)
    assert names(tmp_path) == ["step.npz"]
    resumed.fit(*data, batch_size=10, epochs=3, resume=tmp_path, verbose=False)
    assert bytes_of(whole) == bytes_of(resumed)


def test_a_stop_within_an_epoch_leaves_a_file_and_a_fit_that_fails_at_once_none(
    build, data, tmp_path
):
    x, y = data[0], np.zeros((40, 2), int)
    with pytest.raises(singanet.errors.ShapeError):
        build().fit(x, y, callbacks=[ModelCheckpoint(tmp_path)], verbose=False)
    assert names(tmp_path) == []
    callbacks = [ModelCheckpoint(tmp_path), stop_at(6)]
    build().fit(*data, batch_size=10, epochs=5, callbacks=callbacks, verbose=False)
    assert names(tmp_path) == ["best.npz", "epoch-0001.npz", "stopped.npz"]


@pytest.mark.parametrize(
    ("step", "options", "ends"),
    [
        (6, {"every_steps": 4}, 8), (8, {"every_steps": 4}, 8), (6, {}, 8),
        (6, {"every_epochs": 2}, 8), (10, {"every_steps": 5}, 10),
        (6, {"every_steps": 3, "asynchronous": True, "format": "sharded"}, 6),
        # What ends by itself then needs nobody to go on.
        (13, {"every_epochs": 2}, None), (13, {}, None),
    ],
)  # fmt: skip
def test_a_fit_that_is_asked_to_ends_where_a_file_is_written(
    build, data, tmp_path, monkeypatch, step, options, ends
):
    def fit(*callbacks, **more):
        net = build()
        with nullcontext() if callbacks[:1] != (asks,) or ends is None else raises:
            net.fit(*data, batch_size=10, epochs=4, verbose=False, callbacks=callbacks, **more)
        return net

    leaving, raises = Leaving(), pytest.raises(KeyboardInterrupt, match="launcher")
    asks = at("on_batch_begin", lambda session, _: session.step + 1 == step and leaving.ask())
    monkeypatch.setattr(keeping, "LEAVING", leaving)
    net = fit(asks, ModelCheckpoint(tmp_path, None, **options))
    assert leaving.begun == (ends is not None)
    assert json.loads(bytes(read_training(tmp_path)["session"]))["step"] == (ends or 16)
    if ends is not None:
        monkeypatch.setattr(keeping, "LEAVING", Leaving())
        net = fit(Callback(), ModelCheckpoint(tmp_path / "second", None), resume=tmp_path)
    assert bytes_of(net) == bytes_of(fit())


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(build, data, tmp_path):
    def fit(**arguments):
        net, checkpoint = build(), ModelCheckpoint(tmp_path)
        net.fit(*data, epochs=3, callbacks=[checkpoint], verbose=False, **arguments)
        return bytes_of(net)

    whole, newest = fit(), tmp_path / "epoch-0003.npz"
    raw = newest.read_bytes()
    for damaged in (raw[:-100], flipped(raw, raw.index(whole["fc1/weight"]))):
        newest.write_bytes(damaged)
        with pytest.warns(RuntimeWarning, match=r"skipped: .*epoch-0003\.npz"):
            assert fit(resume=tmp_path) == whole


def test_no_second_training_writes_to_the_folder(build, data, tmp_path):
    tried = []

    def second(*_):
        with pytest.raises(FileAccessError, match="no other training in it; received"):
            build().fit(*data, callbacks=[ModelCheckpoint(tmp_path)], verbose=False)
        tried.append(True)

    callbacks = [ModelCheckpoint(tmp_path), at("on_epoch_end", second)]
    build().fit(*data, callbacks=callbacks, verbose=False)
    assert tried
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_step_is_finished_and_saved(build, data, tmp_path, number):
    def fit(net, *callbacks, **arguments):
        return net.fit(
            *data, batch_size=10, epochs=3, callbacks=callbacks, verbose=False, **arguments
        )

    def send(session, *_):
        if session.step == 2 and session.layer == "relu":
            signal.raise_signal(number)

    before, guard = signal.getsignal(number), StopOnSignal()
    sends = at("on_layer_gradients", send)  # in the middle of the third step
    history = fit(build(), guard, sends, ModelCheckpoint(tmp_path))
    assert guard.received == number
    assert history.stopped == f"received {number.name}"
    assert signal.getsignal(number) is before
    guard = StopOnSignal()
    files = [guard, Callback(), ModelCheckpoint(tmp_path)]
    assert fit(build(seed=4), *files, resume=tmp_path) == fit(build())
    assert guard.received is None


def test_in_another_thread_it_does_nothing(build, data):
    done, give = [], {"callbacks": [StopOnSignal()], "verbose": False}
    thread = threading.Thread(target=lambda: done.append(build().fit(*data, **give).stopped))
    thread.start()
    thread.join()
    assert done == [None]
