"""Where arrays lie in memory, who has it, and what the system gives for it."""

import ctypes
import mmap
import os
import re
import subprocess
import sys
import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import singanet
from singanet.base import heap
from singanet.base.heap import LentMemory, address, steps
from singanet.base.kinds import resident_bytes, union
from singanet.program.trace.traced import Traced
from tests.keeping import WAYS

PACKAGE = Path(singanet.__file__).parent
ASKS_FIRST = {
    "ops/numpy/pointwise.py", "ops/onednn/eltwise.py", "ops/llvm/kernels.py",
    "ops/onednn/products.py",
}  # fmt: skip
"""Files of kernels that ask for extents above 1 first, or whether two arrays lie alike."""
WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
READ_ONLY = WHOLE.copy()
READ_ONLY.flags.writeable = False
ARRAYS = {
    "whole": WHOLE, "traced": WHOLE.view(Traced), "rows": WHOLE[1:3], "columns": WHOLE[:, 2:],
    "turned": WHOLE.T, "backwards": WHOLE[::-1], "read-only": READ_ONLY,
    "repeated": np.broadcast_to(WHOLE[0], (3, 6)),
    "without axes": np.float32(2) + np.zeros((), np.float32)[...],
    "truth values": np.zeros(3, bool), "halves": np.zeros(3, np.float16),
    "dates": np.zeros(3, "M8[s]"), "records": np.zeros(3, [("a", "f4"), ("b", "i8")]),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_the_first_element_lies_there(name):
    array = np.asanyarray(ARRAYS[name])
    assert address(array) == array.__array_interface__["data"][0]


def test_an_array_without_elements_has_an_address():
    assert isinstance(address(np.empty((0, 3), np.float32)), int)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 3), (2, 1, 3, 1), (1, 1), (0, 2), (2, 0)])
def test_an_axis_of_one_element_has_the_step_of_c_order(shape):
    plain = np.zeros(shape)
    odd = [s + 8 * (n < 2) for n, s in zip(plain.shape, plain.strides, strict=True)]
    for array in (plain, as_strided(plain, shape, odd)):
        extents = [max(n, 1) for n in shape]
        assert steps(array) == tuple(8 * int(np.prod(extents[k + 1 :])) for k in range(len(shape)))


def test_other_axes_keep_theirs():
    array = np.zeros((4, 3, 2))[::2, ::-1].transpose(2, 0, 1)
    assert steps(array) == array.strides
    assert steps(array[:1]) == (2 * array.strides[1], *array.strides[1:])


def test_kernels_read_no_strides_but_those():
    """Whoever needs one takes `steps`, as NumPy leaves the stride of one element open."""
    read = {
        str(path.relative_to(PACKAGE))
        for room in ("ops", "layers", "loss", "metric", "optimizer")
        for path in (PACKAGE / room).rglob("*.py")
        if re.search(r"(?<!self)\.strides\b", path.read_text(encoding="utf-8"))
    }
    assert read == ASKS_FIRST


ONCE = """
import numpy as np
from singanet.base import heap

with heap.large_arrays_apart():
    with heap.once_in_a_process():
        some = np.ones(4 << 20, np.uint8)
        with heap.once_in_a_process():
            more = np.ones(2 << 20, np.uint8)
    print(heap.once_bytes())
"""


def _alone(code):
    """What ``code`` prints in a process whose allocator has no memory left over from others."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(Path(singanet.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.fixture(autouse=True)
def _looked_up_anew():
    heap._function.cache_clear()
    yield
    heap._function.cache_clear()


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_freed_blocks_leave_the_process():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library has no malloc_trim")
    # Small blocks come from the heap; the last one keeps its end from being given back by itself.
    blocks = [np.ones(8192) for _ in range(2000)]
    end = np.ones(8192)
    before = resident()
    del blocks
    heap.trim()
    assert end.sum() == 8192
    assert before - resident() > 100 << 20


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_libraries_are_left_alone(monkeypatch, error):
    def refused(name):
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", refused)
    heap.trim()


UNTOUCHED = """
import numpy as np
from singanet.base import heap

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before = resident()
with heap.small_pages():
    arrays = [np.empty(8 << 20, np.uint8) for _ in range(20)]
    print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_arrays_that_are_never_touched_take_a_small_page_each():
    assert int(_alone(UNTOUCHED)) < 20 << 16


def test_large_pages_are_asked_for_again_after_an_error():
    choose = np._core.multiarray._set_madvise_hugepage
    before = choose(True)
    try:
        with pytest.raises(ZeroDivisionError), heap.small_pages():
            raise ZeroDivisionError
        assert choose(False)
        with heap.small_pages():
            pass
        assert not choose(False)
    finally:
        choose(before)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_pages_of_a_library_are_those_of_its_file(tmp_path):
    path, page = tmp_path / "libsome.so.3", mmap.PAGESIZE
    path.write_bytes(bytes(20 * page))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    memory.madvise(mmap.MADV_RANDOM)
    before = heap.library_pages(some="libsome").get("some", 0)
    for k in range(3):
        # Written on, a page is the process's own.
        memory[k * page] = 1
    read = sum(memory[k * page] for k in range(20))
    assert read == 3
    assert heap.library_pages(some="libsome", other="libother") == {"some": 17 * page}
    assert before <= 20 * page


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_what_is_done_once_counts_once():
    assert int(_alone(ONCE)) == pytest.approx(6 << 20, abs=300_000)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_mapped_file_of_any_name_is_no_trouble(tmp_path):
    path = os.fsencode(tmp_path) + b"/of latin-1 \xff"
    with open(path, "wb") as file:
        file.write(b"\0" * mmap.PAGESIZE)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not mapped[0]
        assert not heap.library_pages(none="no library is called so")


FLOAT = np.dtype(np.float32)


def expect_lent_while_kept(memory, keep):
    """Whoever keeps what ``keep`` makes has it, and nobody once that is gone."""
    assert not memory.is_lent
    kept = keep(memory.lend((60, 7), FLOAT))
    assert memory.is_lent
    del kept
    assert not memory.is_lent


OF_HOST = [keep for keep, _ in WAYS.values()] + [memoryview, np.broadcast_arrays, iter]
EVERYWHERE = [
    lambda array: array,
    lambda array: array.T[1:],
    lambda array: array.reshape(-1)[3:].view(np.int32),
    lambda array: (each for each in [array]),
    lambda array: {"deep": [(array[:, 2],)]},
]


@pytest.mark.parametrize("keep", OF_HOST)
def test_every_way_of_keeping_counts(keep):
    memory = LentMemory(np.empty(60 * 7 * 4, np.uint8))
    for _ in range(2):
        expect_lent_while_kept(memory, keep)


@pytest.mark.parametrize("keep", EVERYWHERE)
def test_on_a_device_as_well(keep, xp):
    expect_lent_while_kept(LentMemory(xp.empty(60 * 7 * 4, np.uint8)), keep)


def test_it_is_one_array_of_the_same_memory_for_as_long_as_somebody_has_it(xp):
    memory = LentMemory(xp.zeros((60, 7), np.float32))
    lent = memory.lend((60, 7), FLOAT)
    assert memory.lend((60, 7), FLOAT) is lent
    lent[3, 4] = 5
    gone, view = weakref.ref(lent), lent.T
    del lent
    assert gone() is None
    assert memory.lend((60, 7), FLOAT).T is not view
    assert memory.lend((60, 7), FLOAT)[3, 4] == view[4, 3] == 5
    del view
    assert not memory.is_lent
    assert memory.lend((420,), FLOAT)[3 * 7 + 4] == 5


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_nothing_can_be_lent(shape, xp):
    memory = LentMemory(xp.empty(shape, np.float32))
    assert memory.lend(shape, FLOAT).shape == shape
    assert memory.nbytes == 0


MB = 1 << 20
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple))


@given(RANGES)
def test_a_union_has_the_same_bytes_in_order_and_apart(ranges):
    found = union(ranges)
    bytes_of = [{*range(start, end)} for start, end in ranges]
    assert {b for start, end in found for b in range(start, end)} == set().union(*bytes_of)
    assert all(start < end for start, end in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))


def test_whole_pages_count():
    # Half a page more at each end, but within the array.
    assert resident_bytes(((0, 100_000),), MB) == 102_048
    assert resident_bytes(((200_000, 300_000),), MB) == 104_096
    assert resident_bytes(((0, MB),), MB) == MB
    assert resident_bytes(((0, 5000), (6000, 10_000)), MB) == 12_048
    assert resident_bytes((), 50 * MB) == 0
    assert resident_bytes(((0, MB), (9 * MB, 10 * MB)), 50 * MB) == 2 * MB + 3 * 2048


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux")
def test_the_system_agrees():
    def resident():
        lines = Path("/proc/self/status").read_bytes().split(b"\n")
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"RssAnon"))

    memory = mmap.mmap(-1, 40 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    ranges = ((1_000_000, 3_000_000), (3_500_000, 9_000_000), (30_000_000, 30_000_100))
    array = np.frombuffer(memory, np.uint8)
    before = resident()
    for start, end in ranges:
        array[start:end] = 1
    took = resident() - before
    assert resident_bytes(ranges, 40 * MB) == pytest.approx(took, abs=200_000)
    del array
    memory.close()
