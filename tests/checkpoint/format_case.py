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

from singanet.base import files as flushing
from singanet.checkpoint import (
    FORMATS,
    Source,
    convert,
    diff,
    entry,
    inspect,
    open_state,
    write_state,
)
from singanet.errors import (
    ArgumentError,
    CheckpointError,
    ChecksumError,
    FileAccessError,
    FileFormatError,
    ShapeError,
    UnknownNameError,
)
from tests.kit.files import (
    checksum_by_hand,
    expect_refused,
    expect_same_state,
    flipped,
    names_in,
    read_state,
)

ALL_TYPES = ("?", "u1", "i1", "<u2", "<i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8")
HOSTILE = ["../w", "a/../w", "a/..", "/w", "./w", "a\0b", "a\nb", "n" * 4097, "n" * (10 << 20)]
FINE = ["w", "größe/重み", "a b/c.d", "n" * 4000]
LARGEST = 12 << 20
BESIDE = 10 << 20
ALLOWED = LARGEST + BESIDE


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
    shape = (1024, LARGEST // 4096)
    return [
        Source(f"layer{i}/w", shape, np.dtype("f4"), lambda: np.ones(shape, "f4"))
        for i in range(count)
    ]


SOME = pytest.mark.parametrize(
    "some",
    [
        "some",
        pytest.param("most", marks=pytest.mark.full),
        pytest.param("all", marks=pytest.mark.slow),
    ],
)


class ReaderCase:
    """A reader; a subclass says how its files come about.

    Attributes:
        name: The name of the format.
        suffix: A suffix of its files.
        step: Every which byte is cut off and changed with ``-m full``; all are with ``-m slow``.
        after: Whether bytes after the end are another's business; otherwise they are refused.
        counts: Whether arrays are counted one by one; otherwise their bytes bound their number.
        forged: Bytes of files, each with a part of the message that refuses it, and the error if
            it is another than `FileFormatError`.
    """

    name = ""
    suffix = ""
    step = 1
    after = False
    counts = True
    forged = ()

    def make(self, path, state):
        """Write ``state`` to ``path``."""
        write_state(path, state)

    def named(self, path, name):
        """Write a file whose one array has ``name``, as another program might.

        Returns False if the format has no place for such a name.
        """
        raise NotImplementedError

    def holder(self, path):
        """The file that has the arrays: an index names its own."""
        return path

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
        expect_same_state(read_state(path), small_state())
        if self.name in FORMATS:
            expect_same_state(read_state(path, self.name), small_state())
        path = path.rename(tmp_path / "renamed.txt")
        with open_state(path) as reader:
            assert reader.format == self.name
            expect_same_state(dict(reader), small_state())

    def test_arrays_are_read_in_any_order_whole_in_pieces_and_into_others(self, path):
        state = small_state()
        self.make(path, state)
        with open_state(path) as reader:
            found = reader.entries["conv/weight"]
            assert (found.shape, found.dtype, found.nbytes) == ((4, 9), np.dtype("f4"), 144)
            for name in [*reversed(list(state)), *state]:
                assert reader.read(name).tobytes() == state[name].tobytes()
            parts = [reader.pieces("conv/weight"), reader.pieces("conv/weight")]
            for rows in parts:  # two at once
                np.testing.assert_array_equal(np.concatenate(list(rows)), state["conv/weight"])
            for out in (
                np.zeros((4, 9), "f4"),
                np.zeros((9, 4), "f8").T,
                np.zeros((4, 18))[:, ::2],
            ):
                reader.read_into("conv/weight", out)
                np.testing.assert_array_equal(out, state["conv/weight"])
            name = "conv/weight"
            with pytest.raises(ShapeError, match=r"shape \(4, 9\) to read into; received \(9, 4\)"):
                reader.read_into(name, np.zeros((9, 4)))
            with pytest.raises(ArgumentError, match="which float32 can be cast; received int32"):
                reader.read_into(name, np.zeros((4, 9), "i4"))
            with pytest.raises(UnknownNameError, match="conv/weigh'.*did you mean 'conv/weight'"):
                reader.read("conv/weigh")

    def _places(self, whole, some):
        """Some forty places of a file by default, and all, or all of a sample, in CI."""
        steps = {"some": max(1, len(whole) // 40), "most": self.step, "all": 1}
        if some == "all" and self.step == 1:
            pytest.skip("most are all of this format")
        return range(0, len(whole), steps[some])

    @SOME
    def test_cut_short_at_any_byte(self, whole, path, some):
        for size in self._places(whole, some):
            path.write_bytes(whole[:size])
            expect_refused(lambda: read_state(path, self._format), "model")

    @SOME
    def test_any_changed_byte_is_found_or_harmless(self, whole, path, some):
        expected = {name: array.tobytes() for name, array in small_state().items()}
        for at in self._places(whole, some):
            path.write_bytes(flipped(whole, at, 0x10))
            try:
                found = read_state(path, self._format)
            except CheckpointError:
                continue
            # Names and shapes may change unseen; the numbers under a name of ours may not.
            for name in found.keys() & expected.keys():
                assert found[name].tobytes() == expected[name], f"byte {at}"

    @property
    def _format(self):
        return self.name if self.name in FORMATS else None

    def test_bytes_after_the_end(self, whole, path):
        path.write_bytes(whole + b"more")
        if self.after:
            expect_same_state(read_state(path, self._format), small_state())
        else:
            expect_refused(lambda: read_state(path, self._format), "model")

    def test_forged_files_are_refused(self, path):
        for raw, message, *error in self.forged:
            path.write_bytes(raw)
            read = lambda: read_state(path, self._format)  # noqa: E731
            assert "model" in expect_refused(read, message, *error)

    def test_as_many_arrays_as_may_be_and_no_more(self, path, monkeypatch):
        if not self.counts:
            pytest.skip("the bytes of such a file bound the number of its arrays")
        self.make(path, small_state())
        for most in (4, 3):
            for module in (entry, import_module(f"singanet.checkpoint.{self.name}")):
                monkeypatch.setattr(module, "MAX_ARRAYS", most, raising=False)
            if most == 4:
                assert len(read_state(path)) == 4
            else:
                expect_refused(lambda: read_state(path), "at most 3 arrays")

    def test_a_file_of_another_format(self, tmp_path):
        if not self._format:
            pytest.skip("users cannot name this format")
        other = "npz" if self.name == "pickle" else "pickle"
        write_state(tmp_path / f"model.{other}", small_state())
        expect_refused(lambda: read_state(tmp_path / f"model.{other}", self.name), "model")

    def test_names_that_no_array_may_carry(self, path):
        for name in HOSTILE:
            if self.named(path, name) is False:
                continue
            before = names_in(path.parent)
            # The name itself is not repeated at length.
            text = expect_refused(lambda: read_state(path), path.name)
            assert "names of 1 to 4096" in text or len(name) > 4096, name
            assert len(text) < 500, name[:9]
            assert names_in(path.parent) == before

    def test_names_that_are_fine(self, path):
        for name in FINE:
            self.named(path, name)
            with open_state(path) as reader:
                assert list(reader.entries) == [name]

    def test_a_pipe_is_not_read(self, path):
        os.mkfifo(path)
        for format in {None, self._format}:
            with pytest.raises(FileAccessError, match="a device or pipe, which may never end"):
                open_state(path, format)

    def test_a_file_that_may_not_be_read(self, nobody):
        path = nobody / f"model{self.suffix}"
        self.make(path, {"x": np.ones(2)})
        path.chmod(0o200)
        with pytest.raises(FileAccessError, match="Permission denied; check the path"):
            read_state(path)

    @pytest.fixture
    def nobody(self, tmp_path):
        """Whom permissions stop, if the tests run as root; a folder of theirs."""
        path = tmp_path / f"model{self.suffix}"
        self.make(path, {"x": np.ones(1)})
        read_state(path)  # nobody may not even read the modules that this needs
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
        write_state(path, state)
        return state

    # -- what comes back ---------------------------------------------------------------------------

    def test_every_suffix_chooses_the_format(self, tmp_path):
        for suffix in FORMATS[self.name].suffixes:
            write_state(tmp_path / f"m{suffix}", small_state())
            with open_state(tmp_path / f"m{suffix}") as reader:
                assert reader.format == self.name

    def test_every_type_keeps_its_bits(self, tmp_path, path):
        for code in ALL_TYPES:
            raw = np.random.default_rng(3).integers(0, 2, 64).astype(code)
            state = {"a/b": raw.reshape(4, 16), "0": raw[:0].reshape(0, 3), "1": raw[0].reshape(())}
            if code in self.types:
                write_state(path, state)
                expect_same_state(read_state(path), state)
                for each in tmp_path.iterdir():
                    each.unlink()
            else:
                with pytest.raises(ArgumentError, match=r"array 'a/b'.*safetensors, hdf5 or npz"):
                    write_state(path, state)
                assert names_in(tmp_path) == []

    def test_layout_in_memory_does_not_matter(self, path):
        table = np.arange(24, dtype="f4").reshape(4, 6)
        state = {
            "strided": table[::2, ::3],
            "backwards": table[::-1, ::-1],
            "fortran": np.asfortranarray(table),
            "big-endian": table.astype(">f4"),
            "broadcast": np.broadcast_to(np.float32(2.0), (3, 4)),
            "list": [1.5, 2.5],
        }
        write_state(path, state)
        for name, read in read_state(path).items():
            np.testing.assert_array_equal(read, state[name])
            assert read.flags.c_contiguous

    def test_a_state_without_arrays(self, path):
        write_state(path, {})
        with open_state(path) as reader:
            assert dict(reader) == {}
            assert reader.version == "singanet format 1"

    @settings(
        max_examples=settings.default.max_examples // 3,
        # Each format draws from its own types.
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(data=st.data())
    def test_any_state(self, data, path):
        part = st.text(
            st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"),
            min_size=1,
            max_size=7,
        ).filter(lambda text: text not in (".", ".."))
        # One depth for all names: in HDF5 no array can be the folder of another.
        names = st.lists(part, min_size=2, max_size=2).map("/".join)
        array = st.sampled_from(self.types).flatmap(
            lambda code: hnp.arrays(code, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0))
        )
        state = data.draw(st.dictionaries(names, array, max_size=5))
        write_state(path, state)
        expect_same_state(read_state(path), state)

    # -- checksums ---------------------------------------------------------------------------------

    def test_a_wrong_number_is_named(self, path):
        array = np.full(1000, 1.0, "f4")
        write_state(path, {"first/weight": array, "second/weight": array + 1})
        file = self.holder(path)
        whole = file.read_bytes()
        file.write_bytes(flipped(whole, whole.index((array + 1).tobytes()) + 1234, 0x55))
        with open_state(path) as reader:
            assert reader.entries["first/weight"].checksum
            reader.read("first/weight")
            error = FileFormatError if self.name == "npz" else ChecksumError
            for read in (reader.read, reader._verify_array):
                with pytest.raises(error, match="second/weight"):
                    read("second/weight")
        assert "second/weight" in inspect(path, values=False)  # which reads no array
        with pytest.raises(error, match="second/weight"):
            inspect(path)

    def test_sums_in_a_second_thread_are_the_same(self, monkeypatch, path):
        """As of large arrays that are written, and without zlib-ng of all but small ones."""
        array = np.random.default_rng(0).standard_normal(600_000).astype("f4")
        for at_once in (1 << 10, 1 << 40):
            monkeypatch.setattr(entry, "_AT_ONCE", at_once)
            write_state(path, {"small": array[:9], "large": array})
            with open_state(path) as reader:
                assert reader.read("large").tobytes() == array.tobytes()
                found = reader.entries["large"].checksum
            if self.name != "npz":  # which has zip's
                assert found == checksum_by_hand(array.tobytes()).hex()

    # -- refusals, before anything is written ------------------------------------------------------

    def test_what_cannot_be_written_leaves_no_file(self, tmp_path, path):
        one = np.ones(1, "f4")
        wrong_names = ["", "/a", "a/", "a//b", "../a", "a/..", ".", "a\0b", "\ud800", "n" * 4097]
        for name in wrong_names:
            message = "expected names of 1 to 4096 bytes of printable"
            expect_refused(lambda name=name: write_state(path, {name: one}), message)
        for value in (np.array(["a"]), np.array([object()]), np.array([1j])):
            with pytest.raises(ArgumentError, match="'x': expected booleans, integers or floats"):
                write_state(path, {"x": value})
        with pytest.raises(ArgumentError, match="names that are strings; received 3"):
            write_state(path, {3: one})
        for state in (None, 3, "x", [one], [("a", one)]):
            with pytest.raises(ArgumentError, match="a dict from parameter name to array"):
                write_state(path, state)
        if not self.nests:
            for above, below in (("a/b", "a/b/c/d"), ("a", "a/b")):
                with pytest.raises(ArgumentError, match=f"'{above}' and '{below}'"):
                    write_state(path, {above: one, below: one})
        assert names_in(tmp_path) == []

    # -- a file appears whole or not at all --------------------------------------------------------

    def test_an_array_that_cannot_be_made(self, tmp_path, path, old):
        def fail():
            raise ZeroDivisionError

        sources = [
            Source("a", (2,), np.dtype("f4"), lambda: np.ones(2, "f4")),
            Source("b", (2,), np.dtype("f4"), fail),
        ]
        before = names_in(tmp_path)
        with pytest.raises(ZeroDivisionError):
            write_state(path, sources)
        assert names_in(tmp_path) == before
        expect_same_state(read_state(path), old)

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
                before = names_in(tmp_path)
                try:
                    write_state(path, state)
                except FileAccessError as error:
                    assert "a place to write; received File too large" in str(error)  # noqa: PT017
                    assert names_in(tmp_path) == before
                    expect_same_state(read_state(path), old)
                else:
                    old = state
                    assert size < 60_000
                    expect_same_state(read_state(path), state)
                assert len(names_in(tmp_path)) <= 2
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
        path = nobody / f"model{self.suffix}"
        state = {"a/w": np.arange(50, dtype="f4")}
        write_state(path, state)
        before = names_in(nobody)
        nobody.chmod(0o500)
        try:
            with pytest.raises(FileAccessError, match="Permission denied; choose a folder"):
                write_state(path, {"x": np.ones(2)})
        finally:
            nobody.chmod(0o700)
        assert names_in(nobody) == before
        expect_same_state(read_state(path), state)

    def test_a_folder_that_refuses_vanishes_or_is_not_there(self, tmp_path, path, old, monkeypatch):
        """What a read-only folder answers, for those whom permissions do not stop."""

        def refuse(*args, **kwargs):
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.replace", refuse)
            with pytest.raises(FileAccessError, match="received Permission denied; ") as caught:
                write_state(path, {"x": np.ones(2)})
            said = str(caught.value)
            existed = Path(said.split("'")[1]).is_file()
            assert ("the previous file is unchanged" in said) == existed, said
        expect_same_state(read_state(path), old)
        with pytest.raises(
            FileAccessError, match=r"gone.*No such file.*; make the folder .*gone' [^;]*$"
        ):
            write_state(tmp_path / "gone" / path.name, {"x": np.ones(2)})
        folder = tmp_path / "run"
        folder.mkdir()

        def vanish():
            for each in folder.iterdir():
                each.unlink()
            folder.rmdir()
            return np.ones(2)

        with pytest.raises(FileAccessError, match="run"):
            write_state(folder / path.name, [Source("x", (2,), np.dtype("f8"), vanish)])

    def test_links_permissions_and_pipes_stay(self, tmp_path, path, old):
        link = tmp_path / f"link{self.suffix}"
        link.symlink_to(path)
        path.chmod(0o640)
        write_state(link, {"x": np.ones(3, "f4")})
        assert link.is_symlink()
        assert path.stat().st_mode & 0o777 == 0o640
        expect_same_state(read_state(path), {"x": np.ones(3, "f4")})
        pipe = tmp_path / "new" / path.name
        pipe.parent.mkdir()
        os.mkfifo(pipe)
        with pytest.raises(FileAccessError, match="a file, or none yet; received a device"):
            write_state(pipe, {"x": np.ones(2)})
        assert pipe.is_fifo()
        # A snapshot's description is written beside it first.
        assert names_in(pipe.parent) == [pipe.name]

    def test_what_killed_writers_left_is_removed(self, tmp_path, path):
        write_state(path, {"x": np.ones(2, "f4")})
        ended = subprocess.Popen(["true"])
        ended.wait()
        host = flushing._host()
        dead = tmp_path / f".{path.name}.{host}-{ended.pid}-0123abcd.tmp"
        alive = tmp_path / f".{path.name}.{host}-1-0123abcd.tmp"
        elsewhere = tmp_path / f".{path.name}.otherhost-{ended.pid}-0123abcd.tmp"
        for each in (dead, alive, elsewhere):
            each.touch()
        write_state(path, {"x": np.ones(2, "f4")})
        assert [each.exists() for each in (dead, alive, elsewhere)] == [False, True, True]

    @pytest.mark.slow
    def test_killed_at_forty_random_moments(self, path):
        """One whole checkpoint is always there."""
        last, rng = 0, random.Random(2)
        for moment in range(40):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
            ) as writer:
                for _ in range(2 + moment % 3):  # "ready", and one that is complete or more
                    writer.stdout.readline()
                time.sleep(rng.uniform(0.0, 0.05))
                writer.send_signal(signal.SIGKILL)
                printed = [int(line) for line in writer.stdout.read().split()]
            read = read_state(path)
            turn = int(read.pop("turn"))
            assert turn >= max([1, *printed]), "a checkpoint that was complete is gone"
            assert len(read) == 5
            assert all((array == turn).all() for array in read.values())
            last = max(last, turn)
        assert last > 1, "each was killed at its first"
        write_state(path, {"x": np.ones(1, "f4")})
        assert not [name for name in names_in(path.parent) if name.endswith(".tmp")]

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

        def make(index):
            def fetch():
                deadline = time.monotonic() + 30
                while not waiting(index) and time.monotonic() < deadline:
                    time.sleep(0.001)
                return np.full(50_000, index, "f4")

            return fetch

        return [Source(f"w{i}", (50_000,), np.dtype("f4"), make(i)) for i in range(4)]

    def test_the_disk_works_before_the_end(self, path, flushes):
        write_state(path, self.slow_state(lambda index: len(flushes) >= index))
        assert len(flushes) >= 3
        assert flushes == sorted(flushes)
        assert flushes[0] < self.holder(path).stat().st_size
        assert [array[0] for array in read_state(path).values()] == [0, 1, 2, 3]

    def test_a_disk_that_fails_meanwhile(self, path, old, flushes):
        """It tells of a page that it lost once, so that the last flush would succeed."""
        flushes[:] = ["fail"]
        with pytest.raises(FileAccessError, match="Input/output error"):
            write_state(path, self.slow_state(lambda index: flushes != ["fail"] or not index))
        assert flushes == ["fail", 0]
        expect_same_state(read_state(path), old)
        assert not [name for name in names_in(path.parent) if name.endswith(".tmp")]

    def test_a_small_file_has_no_thread_and_no_file_needs_one(self, path, monkeypatch):
        """A thread would take as long as a part of the file, and some systems have no such call."""
        monkeypatch.setattr(flushing, "flushed_meanwhile", None)
        write_state(path, {"w": np.ones(3, "f4")})
        monkeypatch.undo()
        monkeypatch.delattr(os, "fdatasync", raising=False)
        monkeypatch.setattr(flushing, "_STEP", 1)
        write_state(path, {"x": np.ones(3, "f4")})
        assert read_state(path)["x"].tolist() == [1, 1, 1]

    # -- memory ------------------------------------------------------------------------------------

    def test_sources_are_fetched_one_at_a_time(self, path):
        alive = []

        def fetch(index):
            assert not alive, "the array before is still held"
            alive.append(index)
            array = np.full(100, index, "f4")

            class Counted(np.ndarray):
                def __del__(self):
                    alive.clear()

            return array.view(Counted)

        sources = [Source(f"a{i}", (100,), np.dtype("f4"), lambda i=i: fetch(i)) for i in range(5)]
        write_state(path, sources)
        assert [int(array[99]) for array in read_state(path).values()] == list(range(5))

    def test_writing_takes_one_array_of_memory(self, path, peak):
        """An array made as it is asked for counts as extra; Fortran's order may take a copy."""
        peak()
        write_state(path, large_sources(3))
        assert peak() <= ALLOWED
        for order, allowed in (("C", BESIDE), ("F", ALLOWED)):
            state = {f"w{i}": np.ones((1024, LARGEST // 4096), "f4", order) for i in range(2)}
            peak()
            write_state(path, state)
            assert peak() <= allowed

    @pytest.mark.full
    def test_reading_takes_one_array_of_memory(self, tmp_path, path, peak):
        write_state(path, large_sources(4))
        peak()
        with open_state(path) as reader:
            assert peak() <= 4 << 20  # the table alone
            for _, array in reader:
                del array
            assert peak() <= ALLOWED
            for name in reader.entries:
                reader._verify_array(name)
            assert peak() <= ALLOWED
        write_state(tmp_path / "other.npz", large_sources(4))
        peak()
        inspect(path)
        assert peak() <= ALLOWED
        convert(path, tmp_path / "there.safetensors")
        assert peak() <= ALLOWED
        assert diff(path, tmp_path / "other.npz").equal
        assert peak() <= ALLOWED + LARGEST  # the array of either side

    # -- tools -------------------------------------------------------------------------------------

    def test_the_tools_take_it(self, tmp_path, path):
        state = {
            "a/w": np.array([[1.0, np.nan], [-2.0, 4.0]], "f4"),
            "a/n": np.array([3, 5], "i4"),
            "none": np.zeros((0, 2), "f4"),
        }
        write_state(path, state)
        lines = inspect(path).splitlines()
        assert lines[0] == f"{path}: {self.name}, singanet format 1"
        start = next(at for at, line in enumerate(lines) if line.startswith("name"))
        rows = [line.split() for line in lines[start:-1]]
        assert " ".join(rows[0]) == "name shape type bytes checksum min max mean NaN"
        by_name = {row[0]: row for row in rows[1:]}
        assert by_name["a/w"][1:5] == ["(2,", "2)", "float32", "16"]
        assert by_name["a/w"][-4:] == ["-2", "4", "1", "1"]
        assert by_name["a/n"][-4:] == ["3", "5", "4", "0"]
        assert by_name["none"][-4:] == ["nan", "nan", "nan", "0"]
        assert lines[-1] == "3 arrays, 24 bytes"
        (tmp_path / "there").mkdir()
        for suffix in (".bin", ".pickle", ".h5", ".npz", ".safetensors"):
            there = tmp_path / "there" / f"m{suffix}"
            assert "3 arrays from" in convert(path, there)
            expect_same_state(read_state(there), state)
        found = diff(path, there)
        assert found.equal
        assert str(found) == "3 arrays equal, 0 not"


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
