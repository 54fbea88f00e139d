"""Checkpoints that ranks write together, and those that are written while steps go on."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet.checkpoint import convert, formats, open_state, sharded, write_state
from singanet.checkpoint.entry import sources_of
from singanet.errors import ArgumentError, FileAccessError, FileFormatError, SingaNetError
from singanet.layers import BatchNormalization, Dense, Dropout
from singanet.loss import SquaredError
from singanet.optimizer import Accumulator, Adam, ClipByLayerNorm
from singanet.optimizer.schedules import Cosine
from singanet.parallel import AllReduce, Sharded
from singanet.params.storage import ParamStorage
from singanet.testing import communicators
from singanet.testing.communicators import FakeCommunicator
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint, StopOnSignal
from singanet.training.files import FilesInFlight
from tests.kit.callbacks import at, raise_at
from tests.kit.files import bytes_of
from tests.kit.nets import dense_net, values_of
from tests.kit.ranks import expect_same_values, together

RNG = np.random.default_rng(3)
X = RNG.standard_normal((32, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 32)
INDEX = ".safetensors.index.json"


def cut(level):
    """Small nets are cut too."""
    return lambda rule, comm: Sharded(rule, comm, level, smallest=100)


def fit(comm, wrap, epochs, folder, resume=None, format="sharded", more=(), steps=None,
        asynchronous=False):  # fmt: skip
    net = dense_net(more=[BatchNormalization("n"), Dropout("r", 0.3)])
    optimizer = Adam(lr=0.001) if wrap is None else wrap(Adam(lr=0.001), comm)
    net.compile(optimizer)
    net.fit(
        X, Y, 8, epochs, verbose=False, resume=resume, validation_data=(X[:5], Y[:5]),
        callbacks=[ModelCheckpoint(folder, every_steps=steps, format=format, keep=2,
                                   asynchronous=asynchronous), *more],
    )  # fmt: skip
    return {**values_of(net), **optimizer.state_dict()}


def whole(path):
    with open_state(path) as reader:
        return {name: np.array(array) for name, array in dict(reader).items()}


def expect_same_states(every):
    assert len({frozenset(each) for each in every}) == 1
    expect_same_values(every)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.few(2)
def test_it_has_what_the_file_of_rank_0_has_and_goes_on_to_the_bit(level, tmp_path):
    wrap, many = cut(level) if level else AllReduce, tmp_path / "many"

    def run(epochs, *more):
        return together(lambda c: fit(c, wrap, epochs, *more, more=[EMA(0.5)]), 3)

    made = run(4, tmp_path / "whole")
    run(2, tmp_path / "one", None, "safetensors")
    run(2, many)
    for name in ("epoch-0002", "best"):
        pair = [whole(tmp_path / "one" / f"{name}.safetensors"), whole(many / (name + INDEX))]
        for each in pair:
            each.pop("session", None)
        expect_same_states(pair)
    again = run(4, many, many)
    expect_same_values([made[0], again[0], again[2]])
    # Of three checkpoints the last two stay, with nothing of the first.
    left = {path.name.split(".")[0].split("-0000")[0] for path in many.iterdir()}
    assert left == {"epoch-0003", "epoch-0004", "best"}


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 1), (1, 2)])
@pytest.mark.parametrize("level", [2, 3])
@pytest.mark.few(2)
def test_any_number_of_ranks_takes_it(level, first, then, tmp_path):
    together(lambda c: fit(c, cut(level), 2, tmp_path), first)
    saved = whole(tmp_path / f"epoch-0002{INDEX}")

    def look(session, _):
        if session.step == 8:
            own = {**values_of(session.net), **session.optimizer.state_dict()}
            for name in (p.name for p in session.net.params() if not p.is_state):
                np.testing.assert_array_equal(own[name], saved[f"net/{name}"])
                slot = f"{name}/mean" if f"{name}/mean" in own else f"{name}/step"
                np.testing.assert_array_equal(own[slot], saved[f"optimizer/{slot}"])

    def run(comm):  # each rank has a callback of its own
        more = [at("on_batch_begin", look)]
        return fit(comm, cut(level), 3, tmp_path / "then", tmp_path, more=more)

    again = together(run, then)
    expect_same_values(again)


def test_each_rank_writes_its_part_and_no_more(tmp_path):
    together(lambda c: fit(c, cut(3), 1, tmp_path), 3)
    sizes = sorted(path.stat().st_size for path in tmp_path.glob("epoch-*-of-*.safetensors"))
    assert len(sizes) == 3
    assert sizes[-1] < 1.3 * sum(sizes) / 3


def test_it_becomes_one_file_array_by_array(tmp_path):
    together(lambda c: fit(c, cut(3), 1, tmp_path), 2)
    index = tmp_path / f"epoch-0001{INDEX}"
    convert(index, tmp_path / "one.safetensors")
    expect_same_values([whole(index), whole(tmp_path / "one.safetensors")])
    net = dense_net(more=[BatchNormalization("n"), Dropout("r", 0.3)])
    net.load(index)
    expect_same_values([whole(index), {f"net/{k}": v for k, v in values_of(net).items()}])
    with open_state(index) as reader:
        pieces = list(reader.pieces("net/b/weight"))
        assert len(pieces) == 2
        np.testing.assert_array_equal(np.concatenate(pieces), reader.read("net/b/weight"))


def full(*arguments):
    raise FileAccessError("index", expected="room", received="a full disk", advice="none")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("when", ["part", "index"])
def test_a_rank_that_cannot_write_leaves_the_state_before(rank, when, tmp_path, monkeypatch):
    rows, path = np.arange(6.0).reshape(6, 1), tmp_path / f"state{INDEX}"

    def written(comm, value, failing):
        start = 3 * comm.rank
        own = sources_of({"w": rows[start : start + 3] + value}, "test")
        if failing and when == "part" and comm.rank == rank:
            own = [type(own[0])("w", (3, 1), own[0].dtype, full)]
        try:
            file = sharded.RanksFile(path, own, comm, {"w": start})
            file.write()
            file.finish()
        except SingaNetError as error:
            return str(error)
        return ""

    assert together(lambda comm: written(comm, 0, False)) == ["", ""]
    kept = sorted(each.name for each in tmp_path.iterdir())
    if when == "index":
        monkeypatch.setattr(sharded, "write_index", full)
    told = together(lambda comm: written(comm, 1, True))
    assert all("a full disk" in each for each in told)
    assert sorted(each.name for each in tmp_path.iterdir()) == kept
    np.testing.assert_array_equal(whole(path)["w"], rows)
    monkeypatch.undo()
    assert together(lambda comm: written(comm, 2, False)) == ["", ""]
    np.testing.assert_array_equal(whole(path)["w"], rows + 2)
    assert len([*tmp_path.iterdir()]) == len(kept)


def test_rows_that_do_not_go_together_are_refused(tmp_path):
    index = tmp_path / f"m{INDEX}"
    for k in (0, 1):
        write_state(tmp_path / f"m-{k}.safetensors", {"w": np.ones((2, 3 + k), np.float32)})
    for files, error, match in [
        (["m-0.safetensors", "m-1.safetensors"], FileFormatError, "rows of one array"),
        (["m-0.safetensors"] * 2, FileFormatError, "once"), ([], SingaNetError, None),
    ]:  # fmt: skip
        index.write_text(json.dumps({"weight_map": {"w": files}}))
        with pytest.raises(error, match=match):
            open_state(index)


@pytest.mark.parametrize("level", [1, 3])
def test_what_micro_batches_have_gathered_is_each_ranks_own(level, tmp_path):
    def work(comm, resume=None):
        net = dense_net()
        net.compile(Accumulator(cut(level)(ClipByLayerNorm(Adam(lr=0.01), 0.1), comm), 3))
        net.fit(X, Y, 8, 3, shuffle=False, verbose=False, resume=resume,
                callbacks=[ModelCheckpoint(tmp_path, None, format="sharded")])  # fmt: skip
        return values_of(net)

    expected = together(work)
    for path in tmp_path.glob("epoch-0003*"):
        path.unlink()
    # Four batches an epoch, three of them an update.
    expect_same_values([*expected, *together(lambda comm: work(comm, tmp_path))])


def test_one_process_writes_it_alone(tmp_path):
    net, other = dense_net(), dense_net()
    for each in (net, other):
        each.compile(Adam(lr=0.01))
    keeps = ModelCheckpoint(tmp_path, None, format="sharded")
    net.fit(X, Y, 8, 1, verbose=False, callbacks=[keeps])
    found = whole(tmp_path / f"epoch-0001{INDEX}")
    expect_same_values([found, {f"net/{k}": v for k, v in values_of(net).items()}])
    with communicators(1):
        other.fit(X, Y, 8, 1, verbose=False, resume=tmp_path)
    expect_same_values([values_of(net), values_of(other)])


ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {"sharded": INDEX, "hdf5": ".h5"}


def expect_same_files(here, there):
    names = [sorted(p.name for p in folder.iterdir()) for folder in (here, there)]
    assert names[0] == names[1]
    for name in names[0]:
        expect_same_states([whole(here / name), whole(there / name)])


class OffloadStore(ParamStorage):
    """A user's: lends one live array, which steps change."""

    place, way_back = "on a shelf", "take it down"

    def __init__(self, array):
        self.kept = np.array(array)

    dtype = property(lambda self: self.kept.dtype)

    def lend(self):
        return self.kept

    read = lend

    def write(self, array):
        self.kept[...] = array


class Gate(Callback):
    """A user's: lets files be written after so many more steps, or where the training waits."""

    def __init__(self, monkeypatch, steps=2):
        self.steps, self.under_way, self.most, self.threads = steps, 0, 0, set()
        self.open, self.taken, self.begun, self.later = threading.Event(), 0, 0, []
        self.failing, self.write = None, formats.write_state
        wait = FilesInFlight._writings_done
        start = FilesInFlight.start

        def waits(background):
            if background._thread is not None:
                self.open.set()
            return wait(background)

        def starts(background, *what):
            background.finish()
            self.begun = self.taken
            self.open.clear()
            start(background, *what)

        monkeypatch.setattr(formats, "write_state", self.written)
        monkeypatch.setattr(FilesInFlight, "start", starts)
        monkeypatch.setattr(FilesInFlight, "_writings_done", waits)

    def written(self, path, *arguments, **options):
        self.threads.add(threading.current_thread().name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        assert self.open.wait(60)
        self.later.append(self.taken - self.begun)
        try:
            if self.failing is not None:
                raise self.failing
            self.write(path, *arguments, **options)
        finally:
            self.under_way -= 1

    def on_batch_begin(self, batch):
        self.taken += 1
        if self.taken - self.begun > self.steps:
            self.open.set()


def adam():
    return Adam(lr=Cosine(0.01, 60))


def trained(build, data, folder, more=(), epochs=4, resume=None, net=None, **options):
    net = net or build(optimizer=adam())
    checkpoint = ModelCheckpoint(folder, **options)
    history = net.fit(
        *data, batch_size=10, epochs=epochs, callbacks=[*more, EMA(0.9), checkpoint], clip=1.0,
        resume=resume, verbose=False,
    )  # fmt: skip
    return net, history


class Nothing(Callback):
    """Stands where `Gate` does."""


@pytest.mark.parametrize("format", ["npz", "safetensors", "hdf5", "sharded"])
@pytest.mark.few(2)
def test_files_are_those_of_the_step_at_which_they_were_asked_for(
    build, data, same, tmp_path, monkeypatch, format
):
    more = {"format": format, "every_steps": 3, "keep": 2}
    fore, said = trained(build, data, tmp_path / "fore", [Nothing()], **more)
    gate = Gate(monkeypatch)
    back, heard = trained(build, data, tmp_path / "back", [gate], asynchronous=True, **more)
    assert said == heard
    assert (gate.threads, gate.most) == ({"checkpoint"}, 1)
    assert max(gate.later) >= 2
    same(fore, back)
    if format != "sharded":
        expect_same_files(tmp_path / "fore", tmp_path / "back")
        return
    for name in ("best", "step", "epoch-0003", "epoch-0004"):
        expect_same_states([whole(tmp_path / side / f"{name}{INDEX}") for side in ("fore", "back")])


@pytest.mark.parametrize("format", ["npz", "sharded"])
@pytest.mark.few(1)
def test_it_goes_on_to_the_bit(build, data, tmp_path, format):
    expected, history = trained(build, data, tmp_path / "whole")
    options, part = {"format": format, "every_steps": 2, "asynchronous": True}, tmp_path / "part"
    stop = raise_at(13, KeyError("power cut"))
    with pytest.raises(KeyError):
        trained(build, data, part, [Nothing(), stop], **options)
    net = build(seed=5, optimizer=adam())
    _, got = trained(build, data, part, [Nothing(), Nothing()], 4, part, net, **options)
    assert bytes_of(expected) == bytes_of(net)
    assert got == history


def test_a_storage_of_ones_own_is_copied(build, data, tmp_path, monkeypatch):
    found, gate = [], Gate(monkeypatch)
    gate.open.set()
    for way in (False, True):
        net = build(optimizer=adam())
        net.predict(data[0])
        for param in net.params():
            if not param.is_state:
                param.storage = OffloadStore(param.value)
        trained(build, data, tmp_path / str(way), [gate], net=net, asynchronous=way)
        found.append(whole(tmp_path / str(way) / "epoch-0003.npz"))
    assert max(gate.later) >= 2
    expect_same_states(found)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), FileAccessError("file 'run/step.npz'",
     expected="a place to write", received="No space left", advice="free some")],
)  # fmt: skip
def test_an_error_is_told_at_the_next_step_with_the_file(build, data, tmp_path, monkeypatch, error):
    gate = Gate(monkeypatch, steps=0)
    gate.failing = error
    steps = []

    class Waits(Callback):
        """For the writer to have failed: what happens then is not left to chance."""

        def on_batch_end(self, batch, logs):
            steps.append(self.session.step)
            if self.session.step > 2:
                for thread in threading.enumerate():
                    if thread.name == "checkpoint":
                        thread.join(60)

    net = build()
    with pytest.raises(FileAccessError, match=r"step\.npz.*No space left"):
        net.fit(
            *data, batch_size=10, epochs=3, verbose=False,
            callbacks=[gate, Waits(), ModelCheckpoint(tmp_path, every_steps=2, asynchronous=True)],
        )  # fmt: skip
    assert steps == [1, 2, 3]
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".npz"]
    # The net is usable, and so is the folder.
    gate.failing = None
    net.fit(*data, callbacks=[ModelCheckpoint(tmp_path, asynchronous=True)], verbose=False)
    assert (tmp_path / "epoch-0001.npz").exists()


def test_the_last_error_is_told_at_the_end_of_the_fit(build, data, tmp_path, monkeypatch):
    gate = Gate(monkeypatch, steps=99)
    gate.failing = ValueError("no such word")
    with pytest.raises(FileAccessError, match=r"(best|epoch-0001)\.npz.*ValueError: no such word"):
        build().fit(
            *data, epochs=1, verbose=False,
            callbacks=[gate, ModelCheckpoint(tmp_path, asynchronous=True)],
        )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, None])
def test_a_signal_and_an_error_wait_for_what_is_in_flight(
    build, data, tmp_path, monkeypatch, number
):
    def end(session, _):
        if session.step == 3:
            if number is None:
                raise KeyboardInterrupt
            os.kill(os.getpid(), number)

    gate = Gate(monkeypatch, steps=99)
    checkpoint = ModelCheckpoint(tmp_path, every_steps=2, asynchronous=True)
    callbacks = [
        gate, *([] if number is None else [StopOnSignal()]), at("on_batch_begin", end), checkpoint
    ]  # fmt: skip
    with nullcontext() if number else pytest.raises(KeyboardInterrupt):
        build().fit(*data, batch_size=10, epochs=3, verbose=False, callbacks=callbacks)
    # With the signal the step ends, and its file is written; an interrupt strikes within a step.
    files = {path.stem for path in tmp_path.iterdir()}
    assert files == ({"step"} if number is None else {"step", "stopped"})
    assert all("session" in whole(path) for path in tmp_path.iterdir())
    assert "checkpoint" not in {thread.name for thread in threading.enumerate()}


def test_nets_that_keep_to_so_much_memory_are_refused(build, data, tmp_path):
    checkpoint = ModelCheckpoint(tmp_path / "run", asynchronous=True)
    with pytest.raises(ArgumentError, match=r"asynchronous=True.*leave out asynchronous"):
        build().fit(*data, memory_budget="500MB", callbacks=[checkpoint], verbose=False)
    wide = singanet.FeedForwardNet(
        [Dense("a", 4000, input_sample_shape=(5,)), Dense("b", 3)], loss=SquaredError(), seed=0
    )
    wide.compile(adam())
    wide.offload(tmp_path / "net", keep="1MB")
    with pytest.raises(ArgumentError, match=r"in a folder.*omit asynchronous"):
        wide.fit(data[0], data[0][:, :3], callbacks=[checkpoint], verbose=False)
    wide.onload()
    assert not (tmp_path / "run").exists()


def test_the_parameters_are_held_once(build, data, tmp_path):
    sizes = []

    class Looks(Callback):
        _runs_last = True

        def on_epoch_end(self, epoch, logs):
            copies = self.session._copies(tmp_path / "a.npz", tmp_path / "b.npz")
            held = [source.array() for each in copies for source in each._sources]
            sizes.append(sum({a.ctypes.data: a.nbytes for a in held}.values()))
            sizes.append(sum(source.nbytes for source in self.session._sources()))
            for each in copies:
                each.write()
                assert each._sources == ()

    build(optimizer=adam()).fit(*data, epochs=1, callbacks=[Looks()], verbose=False)
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("level", [3, 0, 1, 2])
@pytest.mark.parametrize("format", ["sharded", "safetensors"])
@pytest.mark.few(2)
def test_ranks_write_by_themselves_and_talk_in_one_thread(level, format, tmp_path, monkeypatch):
    speakers = set()
    talk = FakeCommunicator.all_gather

    def all_gather(self, *arguments, **options):
        speakers.add(threading.current_thread().name)
        return talk(self, *arguments, **options)

    monkeypatch.setattr(FakeCommunicator, "all_gather", all_gather)
    wrap, sides = cut(level) if level else AllReduce, (tmp_path / "fore", tmp_path / "back")

    def run(comm, side):
        return fit(comm, wrap, 2, side, None, format, [EMA(0.5)], 3, side.name == "back")

    made = [together(lambda c, side=side: run(c, side), 3) for side in sides]
    assert speakers
    assert "checkpoint" not in speakers
    for pair in zip(*made, strict=True):
        expect_same_values(pair)
    suffix = SUFFIXES.get(format, f".{format}")
    for name in ("best", "step", "epoch-0001", "epoch-0002"):
        expect_same_states([whole(side / f"{name}{suffix}") for side in sides])
    assert len({len([*side.iterdir()]) for side in sides}) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_cannot_write_tells_all(rank, tmp_path, monkeypatch):
    write = sharded.write_safetensors

    def written(path, *arguments, **options):
        if path.name.startswith("epoch-0002") and f"0000{rank + 1}-of" in path.name:
            raise OSError(28, "a full disk")
        write(path, *arguments, **options)

    monkeypatch.setattr(sharded, "write_safetensors", written)

    def work(comm):
        try:
            fit(comm, cut(2), 4, tmp_path, asynchronous=True)
        except SingaNetError as error:
            return str(error)
        return ""

    told = together(work)
    assert all("epoch-0002" in each and "a full disk" in each for each in told)
    left = {path.name.split("-0000")[0] for path in tmp_path.glob("epoch*")}
    assert f"epoch-0001{INDEX}" in left
    assert f"epoch-0002{INDEX}" not in left
    assert len(whole(tmp_path / f"epoch-0001{INDEX}")) > 4


KILLED = """
import sys
import numpy as np
import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import Adam
from singanet.training.callbacks import Callback, ModelCheckpoint

class Tells(Callback):
    def on_batch_end(self, batch, logs):
        print(self.session.step, flush=True)

net = singanet.FeedForwardNet([Dense("a", 700, input_sample_shape=(700,))],
                              loss=SquaredError(), seed=0)
net.compile(Adam(lr=1e-3))
x = np.random.default_rng(0).standard_normal((64, 700)).astype(np.float32)
net.fit(x, x, batch_size=8, epochs=1000, verbose=False, callbacks=[Tells(),
        ModelCheckpoint(sys.argv[1], None, every_steps=1, every_epochs=10**6,
                        format=sys.argv[2], asynchronous=True)])
"""


def killed(folder, format, steps, more=0.0):
    """The state that is left of a process killed ``more`` seconds after so many steps."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(folder), format],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert process.stdout is not None
    for _ in range(steps):
        process.stdout.readline()
    time.sleep(more)
    process.kill()
    process.communicate()
    return whole(folder / f"step{SUFFIXES.get(format, f'.{format}')}")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal")
@pytest.mark.parametrize("format", ["npz", "safetensors", "sharded"])
def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path, format):
    rng = np.random.default_rng(7)
    for turn in range(8):
        state = killed(tmp_path / str(turn), format, 4 + turn, float(rng.uniform(0, 0.05)))
        assert np.isfinite(state["net/a/weight"]).all()
        assert bytes(state["session"]).startswith(b'{"version"')


@pytest.mark.slow
def test_the_states_that_kills_leave_are_of_their_steps(tmp_path):
    state = killed(tmp_path / "run", "npz", 9)
    step = json.loads(bytes(state["session"]))["step"]
    code = (
        KILLED.replace("epochs=1000", f"epochs={-(-step // 8)}")
        .replace("asynchronous=True", "asynchronous=False")
        .replace("every_steps=1", f"every_steps={step}")
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "again"), "npz"],
        stdout=subprocess.DEVNULL, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    again = whole(tmp_path / "again" / "step.npz")
    del state["session"]
    expect_same_values([again, state])
