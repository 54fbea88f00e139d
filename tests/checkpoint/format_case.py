"""All that holds for any reader, and for any writer, of named arrays: a class of a few lines each.

Peak memory is the largest array and 16 MB, however large the state; here half of that beside it,
so that small arrays tell whether a second one was made.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from singanet import checkpoint, errors
from singanet.base import files as flushing
from singanet.errors import ArgumentError, FileAccessError, FileFormatError
from tests.kit import files

ALL_TYPES = ("?", "u1", "i1", "<u2", "<i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
HOSTILE = ["../w", "a/../w", "a/..", "/w", "./w", "a\0b", "a\nb", "n" * 4097, "n" * (5 << 20)]
FINE = ["w", "größe/重み", "a b/c.d", "n" * 4000]
LARGEST = 12 << 20
BESIDE = 10 << 20
ALLOWED = LARGEST + BESIDE
FULL, SLOW = pytest.mark.full, pytest.mark.slow


def small_state():
    """A small net's worth of arrays that every format can hold."""
    rng = np.random.default_rng(7)
    return {
        "conv/weight": rng.standard_normal((4, 9)).astype("f4"),
        "conv/bias": np.array([0.0, -0.0, np.inf, np.nan], "f4"),
        "bn/mean": rng.standard_normal(4),
        "count": np.array([-1, 0, 2**31 - 1, -(2**31)], "i4"),
    }


def large_sources(count):
    """Arrays of 12 MB, each made when it is asked for."""
    shape, kind = (1024, LARGEST // 4096), np.dtype("f4")
    return [
        checkpoint.Source(f"l{i}/w", shape, kind, lambda: np.ones(shape, "f4"))
        for i in range(count)
    ]


class ReaderCase:
    """A reader; a subclass says how its files come about.

    Attributes:
        name: The name of the format.
        suffix: A suffix of its files.
        step: Every which byte is cut off and changed with ``-m full``; all are with ``-m slow``.
        after: Whether bytes after the end are another's business; otherwise they are refused.
        forged: Bytes of files, each with a part of the message that refuses it, and the error if
            it is another than `FileFormatError`.
    """

    name = ""
    suffix = ""
    step = 1
    after = False
    forged = ()

    def make(self, path, state):
        """Write ``state`` to ``path``."""
        checkpoint.write_state(path, state)

    def named(self, path, name):
        """Write a file whose one array has ``name``, as another program might.

        Returns False if the format has no place for such a name.
        """
        raise NotImplementedError

    def holder(self, path):
        """The file that has the arrays: an index names its own."""
        return path

    @property
    def _format(self):
        return self.name if self.name in checkpoint.FORMATS else None

    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / f"model{self.suffix}"

    @pytest.fixture
    def whole(self, path):
        """The bytes of the file of a small state, alone in its folder."""
        self.make(path, small_state())
        path.with_suffix(".desc").unlink(missing_ok=True)
        return path.read_bytes()

    def test_a_state_comes_back_whatever_its_suffix(self, tmp_path, path):
        self.make(path, small_state())
        for format in {None, self._format}:
            files.expect_same_state(files.read_state(path, format), small_state())
        with checkpoint.open_state(path.rename(tmp_path / "renamed.txt")) as reader:
            assert reader.format == self.name
            files.expect_same_state(dict(reader), small_state())

    def test_arrays_are_read_in_any_order_whole_in_pieces_and_into_others(self, path):
        state, name = small_state(), "conv/weight"
        self.make(path, state)
        with checkpoint.open_state(path) as reader:
            found = reader.entries[name]
            assert (found.shape, found.dtype, found.nbytes) == ((4, 9), np.dtype("f4"), 144)
            for each in [*reversed(list(state)), *state]:
                assert reader.read(each).tobytes() == state[each].tobytes()
            for rows in [reader.pieces(name), reader.pieces(name)]:  # two at once
                np.testing.assert_array_equal(np.concatenate(list(rows)), state[name])
            for out in (np.zeros((4, 9), "f4"), np.zeros((9, 4)).T, np.zeros((4, 18))[:, ::2]):
                reader.read_into(name, out)
                np.testing.assert_array_equal(out, state[name])
            words = r"shape \(4, 9\) to read into; received \(9, 4\)"
            with pytest.raises(errors.ShapeError, match=words):
                reader.read_into(name, np.zeros((9, 4)))
            with pytest.raises(ArgumentError, match="which float32 can be cast; received int32"):
                reader.read_into(name, np.zeros((4, 9), "i4"))
            with pytest.raises(errors.UnknownNameError, match="weigh'.*did you mean 'conv/weight'"):
                reader.read("conv/weigh")

    @pytest.mark.parametrize(
        "some", ["some", pytest.param("most", marks=FULL), pytest.param("all", marks=SLOW)]
    )
    def test_cut_short_or_changed_at_any_byte(self, whole, path, some):
        """Some forty places of a file by default, and all, or all of a sample, in CI."""
        if some == "all" and self.step == 1:
            pytest.skip("most are all of this format")
        step = {"some": max(1, len(whole) // 40), "most": self.step, "all": 1}[some]
        expected = {name: array.tobytes() for name, array in small_state().items()}
        for at in range(0, len(whole), step):
            path.write_bytes(whole[:at])
            files.expect_refused(lambda: files.read_state(path, self._format), "model")
            path.write_bytes(files.flipped(whole, at, 0x10))
            try:
                found = files.read_state(path, self._format)
            except errors.CheckpointError:
                continue
            # Names and shapes may change unseen; the numbers under a name of ours may not.
            for name in found.keys() & expected.keys():
                assert found[name].tobytes() == expected[name], f"byte {at}"

    def test_forged_files_and_those_of_other_formats_are_refused(self, whole, path, tmp_path):
        def read():
            return files.read_state(path, self._format)

        for raw, message, *error in self.forged:
            path.write_bytes(raw)
            assert "model" in files.expect_refused(read, message, *error)
        path.write_bytes(whole + b"more")
        if self.after:
            files.expect_same_state(read(), small_state())
        else:
            files.expect_refused(read, "model")
        if self._format:
            other = tmp_path / ("model.npz" if self.name == "pickle" else "model.pickle")
            checkpoint.write_state(other, small_state())
            files.expect_refused(lambda: files.read_state(other, self.name), "model")

    def test_as_many_arrays_as_may_be_and_no_more(self, path, monkeypatch):
        self.make(path, small_state())
        for most in (4, 3):
            for module in (checkpoint.entry, import_module(f"singanet.checkpoint.{self.name}")):
                monkeypatch.setattr(module, "MAX_ARRAYS", most, raising=False)
            if most == 4:
                assert len(files.read_state(path)) == 4
            else:
                files.expect_refused(lambda: files.read_state(path), "at most 3 arrays")

    def test_names_that_an_array_may_carry_and_not(self, path):
        for name in HOSTILE:
            if self.named(path, name) is False:
                continue
            before = files.names_in(path.parent)
            # The name itself is not repeated at length.
            text = files.expect_refused(lambda: files.read_state(path), path.name)
            assert "names of 1 to 4096" in text, name[:9]
            assert len(name) < 4000 or str(len(name)) in text
            assert len(text) < 500, name[:9]
            assert files.names_in(path.parent) == before
        for name in FINE:
            self.named(path, name)
            with checkpoint.open_state(path) as reader:
                assert list(reader.entries) == [name]

    def test_a_pipe_is_not_read(self, path):
        os.mkfifo(path)
        for format in {None, self._format}:
            with pytest.raises(FileAccessError, match="a device or pipe, which may never end"):
                checkpoint.open_state(path, format)

    def test_a_file_that_may_not_be_read(self, nobody):
        path = nobody / f"model{self.suffix}"
        self.make(path, {"x": np.ones(2)})
        path.chmod(0o200)
        with pytest.raises(FileAccessError, match="Permission denied; check the path"):
            files.read_state(path)

    @pytest.fixture
    def nobody(self, path):
        """Whom permissions stop, if the tests run as root; a folder of theirs."""
        self.make(path, {"x": np.ones(1)})
        files.read_state(path)  # nobody may not even read the modules that this needs
        with tempfile.TemporaryDirectory() as folder:
            root = os.geteuid() == 0
            if root:
                os.chown(folder, 65534, 65534)
                os.seteuid(65534)
            try:
                yield Path(folder)
            finally:
                if root:
                    os.seteuid(0)


class FormatCase(ReaderCase):
    """A reader and writer.

    Attributes:
        types: What it can hold.
        nests: Whether an array's name may be the folder of another's.
    """

    types = ALL_TYPES
    nests = True

    @pytest.fixture
    def old(self, path):
        """A checkpoint that is at ``path`` already."""
        state = {"a/w": np.arange(50, dtype="f4")}
        checkpoint.write_state(path, state)
        return state

    # -- what comes back ---------------------------------------------------------------------------

    def test_every_suffix_chooses_the_format_and_a_state_may_be_empty(self, tmp_path):
        for suffix in checkpoint.FORMATS[self.name].suffixes:
            checkpoint.write_state(tmp_path / f"m{suffix}", {})
            with checkpoint.open_state(tmp_path / f"m{suffix}") as reader:
                assert dict(reader) == {}
                assert (reader.format, reader.version) == (self.name, "singanet format 1")

    def test_every_type_keeps_its_bits(self, tmp_path, path):
        for code in ALL_TYPES:
            raw = np.random.default_rng(3).integers(0, 2, 64).astype(code)
            state = {"a/b": raw.reshape(4, 16), "0": raw[:0].reshape(0, 3), "1": raw[0].reshape(())}
            if code in self.types:
                checkpoint.write_state(path, state)
                files.expect_same_state(files.read_state(path), state)
                for each in tmp_path.iterdir():
                    each.unlink()
            else:
                with pytest.raises(ArgumentError, match=r"array 'a/b'.*safetensors, hdf5 or npz"):
                    checkpoint.write_state(path, state)
                assert files.names_in(tmp_path) == []

    def test_layout_in_memory_does_not_matter(self, path):
        table = np.arange(24, dtype="f4").reshape(4, 6)
        state = {
            "strided": table[::2, ::3], "backwards": table[::-1, ::-1], "list": [1.5, 2.5],
            "fortran": np.asfortranarray(table), "big-endian": table.astype(">f4"),
            "broadcast": np.broadcast_to(np.float32(2.0), (3, 4)),
        }  # fmt: skip
        checkpoint.write_state(path, state)
        for name, read in files.read_state(path).items():
            np.testing.assert_array_equal(read, state[name])
            assert read.flags.c_contiguous

    # Each format draws from its own types.
    UNHEALTHY = (HealthCheck.function_scoped_fixture, HealthCheck.differing_executors)

    @settings(max_examples=settings.default.max_examples // 3, suppress_health_check=UNHEALTHY)
    @given(data=st.data())
    def test_any_state(self, data, path):
        without = {"exclude_categories": ["Cc", "Cs"], "exclude_characters": "/"}
        signs = st.characters(codec="utf-8", **without)
        part = st.text(signs, min_size=1, max_size=7).filter(lambda text: text not in (".", ".."))
        # One depth for all names: in HDF5 no array can be the folder of another.
        names = st.lists(part, min_size=2, max_size=2).map("/".join)
        shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0)
        array = st.sampled_from(self.types).flatmap(lambda code: hnp.arrays(code, shapes))
        state = data.draw(st.dictionaries(names, array, max_size=5))
        checkpoint.write_state(path, state)
        files.expect_same_state(files.read_state(path), state)

    # -- checksums ---------------------------------------------------------------------------------

    def test_a_wrong_number_is_named(self, path):
        array = np.full(1000, 1.0, "f4")
        checkpoint.write_state(path, {"first/weight": array, "second/weight": array + 1})
        file = self.holder(path)
        whole = file.read_bytes()
        file.write_bytes(files.flipped(whole, whole.index((array + 1).tobytes()) + 1234, 0x55))
        error = FileFormatError if self.name == "npz" else errors.ChecksumError
        with checkpoint.open_state(path) as reader:
            assert reader.entries["first/weight"].checksum
            reader.read("first/weight")
            for read in (reader.read, reader._verify_array):
                with pytest.raises(error, match="second/weight"):
                    read("second/weight")
        assert "second/weight" in checkpoint.inspect(path, values=False)  # which reads no array
        with pytest.raises(error, match="second/weight"):
            checkpoint.inspect(path)

    def test_sums_in_a_second_thread_are_the_same(self, monkeypatch, path):
        """As of large arrays that are written, and without zlib-ng of all but small ones."""
        array = np.random.default_rng(0).standard_normal(600_000).astype("f4")
        for at_once in (1 << 10, 1 << 40):
            monkeypatch.setattr(checkpoint.entry, "_AT_ONCE", at_once)
            checkpoint.write_state(path, {"small": array[:9], "large": array})
            with checkpoint.open_state(path) as reader:
                assert reader.read("large").tobytes() == array.tobytes()
                found = reader.entries["large"].checksum
            if self.name != "npz":  # which has zip's
                assert found == files.checksum_by_hand(array.tobytes()).hex()

    # -- refusals, before anything is written ------------------------------------------------------

    def test_what_cannot_be_written_leaves_no_file(self, tmp_path, path):
        one = np.ones(1, "f4")
        names = ["", "/a", "a/", "a//b", "../a", "a/..", ".", "a\0b", "\ud800", "n" * 4097]
        refused = [({name: one}, "names of 1 to 4096 bytes of printable") for name in names]
        for value in (np.array(["a"]), np.array([object()]), np.array([1j])):
            refused += [({"x": value}, "'x': expected booleans, integers or floats")]
        refused += [({3: one}, "names that are strings; received 3")]
        for state in (None, 3, "x", [one], [("a", one)]):
            refused += [(state, "a dict from parameter name to array")]
        for above, below in () if self.nests else (("a/b", "a/b/c/d"), ("a", "a/b")):
            refused += [({above: one, below: one}, f"'{above}' and '{below}'")]
        for state, message in refused:
            with pytest.raises((ArgumentError, FileFormatError), match=message):
                checkpoint.write_state(path, state)
        assert files.names_in(tmp_path) == []

    # -- a file appears whole or not at all --------------------------------------------------------

    def test_an_array_that_cannot_be_made(self, tmp_path, path, old):
        kind = np.dtype("f4")
        good = checkpoint.Source("a", (2,), kind, lambda: np.ones(2, "f4"))
        before = files.names_in(tmp_path)
        with pytest.raises(ZeroDivisionError):
            checkpoint.write_state(path, [good, checkpoint.Source("b", (2,), kind, lambda: 1 / 0)])
        assert files.names_in(tmp_path) == before
        files.expect_same_state(files.read_state(path), old)

    def test_a_full_disk(self, tmp_path, path, old):
        """No file may grow above 100 kB: Python ignores the signal, so writes fail with an error.

        The later sizes are those at which the tables at the file's end no longer fit.
        """
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            for size in (60_000, 23_000, 24_000, 24_500, 24_900, 24_990):
                state = {"w": np.ones(size, "f4")}
                if size == 60_000:
                    state = {f"w{k}": np.ones(20_000, "f4") for k in range(3)}
                before = files.names_in(tmp_path)
                try:
                    checkpoint.write_state(path, state)
                except FileAccessError as error:
                    assert "a place to write; received File too large" in str(error)  # noqa: PT017
                    assert files.names_in(tmp_path) == before
                else:
                    old = state
                    assert size < 60_000
                files.expect_same_state(files.read_state(path), old)
                assert len(files.names_in(tmp_path)) <= 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    @pytest.mark.slow
    def test_a_small_disk(self, tmp_path, path):
        """A file system of its own, with room for an old checkpoint and half of a new one."""
        small = tmp_path / "small"
        small.mkdir()
        mount = f"mount -t tmpfs -o size=128k none '{small}' && exec \"$@\""
        prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
        try:
            tried = subprocess.run([*prefix, "true"], capture_output=True, check=False)
        except OSError:
            pytest.skip("no unshare here")
        if tried.returncode:
            pytest.skip("this user may not mount")
        words = [*prefix, sys.executable, "-c", ON_A_SMALL_DISK, str(small / path.name)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == 5
        assert all("No space left on device; free some space" in line for line in lines), lines

    def test_a_read_only_folder(self, nobody):
        path, state = nobody / f"model{self.suffix}", {"a/w": np.arange(50, dtype="f4")}
        checkpoint.write_state(path, state)
        before = files.names_in(nobody)
        nobody.chmod(0o500)
        try:
            with pytest.raises(FileAccessError, match="Permission denied; choose a folder"):
                checkpoint.write_state(path, {"x": np.ones(2)})
        finally:
            nobody.chmod(0o700)
        assert files.names_in(nobody) == before
        files.expect_same_state(files.read_state(path), state)

    def test_a_folder_that_refuses_vanishes_or_is_not_there(self, tmp_path, path, old, monkeypatch):
        """What a read-only folder answers, for those whom permissions do not stop."""

        def refuse(*args, **kwargs):
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.replace", refuse)
            with pytest.raises(FileAccessError, match="received Permission denied; ") as caught:
                checkpoint.write_state(path, {"x": np.ones(2)})
            said = str(caught.value)
            existed = Path(said.split("'")[1]).is_file()
            assert ("the previous file is unchanged" in said) == existed, said
        files.expect_same_state(files.read_state(path), old)
        words = r"gone.*No such file.*; make the folder .*gone' [^;]*$"
        with pytest.raises(FileAccessError, match=words):
            checkpoint.write_state(tmp_path / "gone" / path.name, {"x": np.ones(2)})
        folder = tmp_path / "run"
        folder.mkdir()

        def vanish():
            for each in folder.iterdir():
                each.unlink()
            folder.rmdir()
            return np.ones(2)

        with pytest.raises(FileAccessError, match="run"):
            checkpoint.write_state(
                folder / path.name, [checkpoint.Source("x", (2,), np.dtype("f8"), vanish)]
            )

    def test_links_permissions_and_pipes_stay(self, tmp_path, path, old):
        link, state = tmp_path / f"link{self.suffix}", {"x": np.ones(3, "f4")}
        link.symlink_to(path)
        path.chmod(0o640)
        checkpoint.write_state(link, state)
        assert link.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o640
        files.expect_same_state(files.read_state(path), state)
        pipe = tmp_path / "new" / path.name
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        with pytest.raises(FileAccessError, match="a file, or none yet; received a device"):
            checkpoint.write_state(pipe, state)
        assert pipe.is_fifo()
        # A snapshot's description is written beside it first.
        assert files.names_in(pipe.parent) == [pipe.name]

    def test_what_killed_writers_left_is_removed(self, tmp_path, path):
        checkpoint.write_state(path, {"x": np.ones(2, "f4")})
        ended = subprocess.Popen(["true"])
        ended.wait()
        host = flushing._host()
        dead, alive, elsewhere = (
            tmp_path / f".{path.name}.{writer}-0123abcd.tmp"
            for writer in (f"{host}-{ended.pid}", f"{host}-1", f"otherhost-{ended.pid}")
        )
        for each in (dead, alive, elsewhere):
            each.touch()
        checkpoint.write_state(path, {"x": np.ones(2, "f4")})
        assert [each.exists() for each in (dead, alive, elsewhere)] == [False, True, True]

    @pytest.mark.slow
    def test_killed_at_forty_random_moments(self, path):
        """One whole checkpoint is always there."""
        last, rng, words = 0, random.Random(2), [sys.executable, "-c", WRITER, str(path)]
        for moment in range(40):
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
                for _ in range(2 + moment % 3):  # "ready", and one that is complete or more
                    writer.stdout.readline()
                time.sleep(rng.uniform(0.0, 0.05))
                writer.send_signal(signal.SIGKILL)
                printed = [int(line) for line in writer.stdout.read().split()]
            read = files.read_state(path)
            turn = int(read.pop("turn"))
            assert turn >= max([1, *printed]), "a checkpoint that was complete is gone"
            assert len(read) == 5
            assert all((array == turn).all() for array in read.values())
            last = max(last, turn)
        assert last > 1, "each was killed at its first"
        checkpoint.write_state(path, {"x": np.ones(1, "f4")})
        assert not [name for name in files.names_in(path.parent) if name.endswith(".tmp")]

    # -- flushed while it is written ---------------------------------------------------------------

    @pytest.fixture
    def flushes(self, monkeypatch):
        """The size of the file at each flush, which come often; `fail` in it makes them fail."""
        if not hasattr(os, "fdatasync"):
            pytest.skip("this system has no fdatasync")
        monkeypatch.setattr(flushing, "_STEP", 1 << 16)
        monkeypatch.setattr(flushing, "_PAUSE", 0.001)
        sizes, real = [], os.fdatasync

        def flush(handle):
            if sizes == ["fail"]:
                sizes.append(0)
                raise OSError(5, "Input/output error")
            real(handle)
            sizes.append(os.fstat(handle).st_size)

        monkeypatch.setattr(os, "fdatasync", flush)
        return sizes

    def slow_state(self, waiting):
        """Arrays that come one by one, each when ``waiting`` says so."""

        def fetch(index):
            deadline = time.monotonic() + 30
            while not waiting(index) and time.monotonic() < deadline:
                time.sleep(0.001)
            return np.full(50_000, index, "f4")

        kind = np.dtype("f4")
        return [checkpoint.Source(f"w{i}", (50_000,), kind, lambda i=i: fetch(i)) for i in range(4)]

    def test_the_disk_works_before_the_end(self, path, flushes):
        checkpoint.write_state(path, self.slow_state(lambda index: len(flushes) >= index))
        assert len(flushes) >= 3
        assert flushes == sorted(flushes)
        assert flushes[0] < self.holder(path).stat().st_size
        assert [array[0] for array in files.read_state(path).values()] == [0, 1, 2, 3]

    def test_a_disk_that_fails_meanwhile(self, path, old, flushes):
        """It tells of a page that it lost once, so that the last flush would succeed."""
        flushes[:] = ["fail"]
        with pytest.raises(FileAccessError, match="Input/output error"):
            checkpoint.write_state(
                path, self.slow_state(lambda index: flushes != ["fail"] or not index)
            )
        assert flushes == ["fail", 0]
        files.expect_same_state(files.read_state(path), old)
        assert not [name for name in files.names_in(path.parent) if name.endswith(".tmp")]

    def test_a_small_file_has_no_thread_and_no_file_needs_one(self, path, monkeypatch):
        """A thread would take as long as a part of the file, and some systems have no such call."""
        monkeypatch.setattr(flushing, "flushed_meanwhile", None)
        checkpoint.write_state(path, {"w": np.ones(3, "f4")})
        monkeypatch.undo()
        monkeypatch.delattr(os, "fdatasync", raising=False)
        monkeypatch.setattr(flushing, "_STEP", 1)
        checkpoint.write_state(path, {"x": np.ones(3, "f4")})
        assert files.read_state(path)["x"].tolist() == [1, 1, 1]

    # -- memory ------------------------------------------------------------------------------------

    def test_sources_are_fetched_one_at_a_time(self, path):
        alive = []

        class Counted(np.ndarray):
            def __del__(self):
                alive.clear()

        def fetch(index):
            assert not alive, "the array before is still held"
            alive.append(index)
            return np.full(100, index, "f4").view(Counted)

        kind = np.dtype("f4")
        checkpoint.write_state(
            path, [checkpoint.Source(f"a{i}", (100,), kind, lambda i=i: fetch(i)) for i in range(5)]
        )
        assert [int(array[99]) for array in files.read_state(path).values()] == list(range(5))

    def test_writing_takes_one_array_of_memory(self, path, peak):
        """An array made as it is asked for counts as extra; Fortran's order may take a copy."""
        peak()
        checkpoint.write_state(path, large_sources(3))
        assert peak() <= ALLOWED
        for order, allowed in (("C", BESIDE), ("F", ALLOWED)):
            state = {f"w{i}": np.ones((1024, LARGEST // 4096), "f4", order) for i in range(2)}
            peak()
            checkpoint.write_state(path, state)
            assert peak() <= allowed

    @pytest.mark.full
    def test_reading_takes_one_array_of_memory(self, tmp_path, path, peak):
        checkpoint.write_state(path, large_sources(4))
        checkpoint.write_state(tmp_path / "other.npz", large_sources(4))
        peak()
        with checkpoint.open_state(path) as reader:
            assert peak() <= 4 << 20  # the table alone
            for _, array in reader:
                del array
            assert peak() <= ALLOWED
            for name in reader.entries:
                reader._verify_array(name)
            assert peak() <= ALLOWED
        checkpoint.inspect(path)
        assert peak() <= ALLOWED
        checkpoint.convert(path, tmp_path / "there.safetensors")
        assert peak() <= ALLOWED
        assert checkpoint.diff(path, tmp_path / "other.npz").equal
        assert peak() <= ALLOWED + LARGEST  # the array of either side

    # -- tools -------------------------------------------------------------------------------------

    def test_the_tools_take_it(self, tmp_path, path):
        state = {
            "a/w": np.array([[1.0, np.nan], [-2.0, 4.0]], "f4"),
            "a/n": np.array([3, 5], "i4"), "none": np.zeros((0, 2), "f4"),
        }  # fmt: skip
        checkpoint.write_state(path, state)
        lines = checkpoint.inspect(path).splitlines()
        assert lines[0] == f"{path}: {self.name}, singanet format 1"
        start = next(at for at, line in enumerate(lines) if line.startswith("name"))
        rows = [line.split() for line in lines[start:-1]]
        assert " ".join(rows[0]) == "name shape type bytes checksum min max mean NaN"
        by_name = {row[0]: row for row in rows[1:]}
        assert by_name["a/w"][1:5] == ["(2,", "2)", "float32", "16"]
        ends = {"a/w": "-2 4 1 1", "a/n": "3 5 4 0", "none": "nan nan nan 0"}
        assert {name: " ".join(row[-4:]) for name, row in by_name.items()} == ends
        assert lines[-1] == "3 arrays, 24 bytes"
        (tmp_path / "there").mkdir()
        for suffix in (".bin", ".pickle", ".h5", ".npz", ".safetensors"):
            there = tmp_path / "there" / f"m{suffix}"
            assert "3 arrays from" in checkpoint.convert(path, there)
            files.expect_same_state(files.read_state(there), state)
        found = checkpoint.diff(path, there)
        assert (found.equal, str(found)) == (True, "3 arrays equal, 0 not")


ON_A_SMALL_DISK = """
import os, sys, numpy as np
from pathlib import Path
from singanet.checkpoint import open_state, write_state
from singanet.errors import FileAccessError
path = Path(sys.argv[1])
write_state(path, {"a/w": np.arange(50, dtype="f4")})
before = sorted(os.listdir(path.parent))
for size in (40_000, 60_000, 70_000, 75_000, 200_000):
    try:
        write_state(path, {f"w{i}": np.ones(size // 4, "f4") for i in range(4)})
    except FileAccessError as error:
        print(size, error)
    else:
        raise SystemExit(f"{size} fitted")
    assert sorted(os.listdir(path.parent)) == before
    with open_state(path) as reader:
        assert reader.read("a/w").tolist() == list(range(50))
"""
WRITER = """
import sys, numpy as np
from singanet.checkpoint import write_state
path, turn = sys.argv[1], 0
print("ready", flush=True)
while True:
    turn += 1
    arrays = {f"layer{i}/w": np.full(40_000, turn, "f4") for i in range(5)}
    write_state(path, {"turn": np.array(turn, "i4"), **arrays})
    print(turn, flush=True)
"""
