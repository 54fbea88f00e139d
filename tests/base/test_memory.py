"""Arrays in memory: addresses, strides, lent memory, pages and the allocator."""

from __future__ import annotations

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
from tests.keeping import WAYS

PACKAGE = Path(singanet.__file__).parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
MB = 1 << 20

# -- Addresses and strides ------------------------------------------------------------------------

WHOLE = np.arange(24, dtype=np.float32).reshape(4, 6)
READ_ONLY = WHOLE.copy()
READ_ONLY.flags.writeable = False
ARRAYS = [
    WHOLE, WHOLE[1:3], WHOLE[:, 2:], WHOLE.T, WHOLE[::-1], READ_ONLY,
    np.broadcast_to(WHOLE[0], (3, 6)), np.float32(2) + np.zeros((), np.float32)[...],
    np.zeros(3, bool), np.zeros(3, np.float16), np.zeros(3, "M8[s]"),
    np.zeros(3, [("a", "f4"), ("b", "i8")]),
]  # fmt: skip


def test_the_address_is_the_first_elements():
    for array in map(np.asanyarray, ARRAYS):
        assert address(array) == array.__array_interface__["data"][0]
    assert isinstance(address(np.empty((0, 3), np.float32)), int)


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (1, 3), (2, 1, 3, 1), (1, 1), (0, 2), (2, 0)])
def test_an_axis_of_one_element_has_the_step_of_c_order(shape):
    plain = np.zeros(shape)
    odd = [s + 8 * (n < 2) for n, s in zip(plain.shape, plain.strides, strict=True)]
    for array in (plain, as_strided(plain, shape, odd)):
        extents = [max(n, 1) for n in shape]
        assert steps(array) == tuple(8 * int(np.prod(extents[k + 1 :])) for k in range(len(shape)))
    array = np.zeros((4, 3, 2))[::2, ::-1].transpose(2, 0, 1)
    assert steps(array) == array.strides
    assert steps(array[:1]) == (2 * array.strides[1], *array.strides[1:])


def test_kernels_read_strides_by_steps_alone():
    """NumPy does not define the stride of one element."""
    # `windows` and `case` have strides of functions to compile, not of arrays.
    read = {
        str(path.relative_to(PACKAGE))
        for room in ("ops", "layers", "loss", "metric", "optimizer")
        for path in (PACKAGE / room).rglob("*.py")
        if re.search(r"(?<!self)(?<!windows)(?<!case)\.strides\b", path.read_text(encoding="utf-8"))
    }
    # These ask for extents above 1 first, or if two arrays have the same strides, or multiply
    # strides by places, which are 0 along an axis of one element.
    assert read == {
        "ops/llvm/attend_blocks.py", "ops/llvm/few.py", "ops/llvm/kernels.py",
        "ops/numpy/pointwise.py", "ops/onednn/eltwise.py", "ops/onednn/products.py",
    }  # fmt: skip


# -- The allocator --------------------------------------------------------------------------------

HEAD = """
import numpy as np
from singanet.base import heap
"""
ONCE = """
with heap.large_arrays_apart():
    with heap.once_in_a_process():
        some = np.ones(4 << 20, np.uint8)
        with heap.once_in_a_process():
            more = np.ones(2 << 20, np.uint8)
    print(heap.once_bytes())
"""
UNTOUCHED = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

before = resident()
with heap.small_pages():
    arrays = [np.empty(8 << 20, np.uint8) for _ in range(20)]
    print(resident() - before)
"""


def alone(code):
    """The number that ``code`` prints in a new process, whose allocator has no free memory."""
    return int(subprocess.run(
        [sys.executable, "-c", HEAD + code], env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True, text=True, check=True,
    ).stdout)  # fmt: skip


@pytest.fixture(autouse=True)
def _looked_up_anew():
    heap._function.cache_clear()
    yield
    heap._function.cache_clear()


def resident(kind="RssAnon"):
    lines = Path("/proc/self/status").read_bytes().split(b"\n")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(kind.encode()))


@LINUX
def test_freed_blocks_leave_the_process():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library has no malloc_trim")
    # Small blocks come from the heap; the last one keeps its end in use.
    blocks = [np.ones(8192) for _ in range(2000)]
    end = np.ones(8192)
    before = resident()
    del blocks
    heap.trim()
    assert end.sum() == 8192
    assert before - resident() > 100 << 20


@pytest.mark.parametrize("error", [AttributeError, OSError, TypeError])
def test_other_c_libraries_are_not_called(monkeypatch, error):
    def refused(name):
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", refused)
    heap.trim()


@LINUX
def test_pages_and_counts_of_a_new_process():
    assert alone(UNTOUCHED) < 20 << 16
    assert alone(ONCE) == pytest.approx(6 << 20, abs=300_000)


def test_large_pages_are_chosen_again_after_an_error():
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


@LINUX
def test_pages_of_a_library_are_those_of_its_file(tmp_path):
    path, page = tmp_path / "libsome.so.3", mmap.PAGESIZE
    path.write_bytes(bytes(20 * page))
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    memory.madvise(mmap.MADV_RANDOM)
    before = heap.library_pages(some="libsome").get("some", 0)
    for k in range(3):
        # A written page is the process's own.
        memory[k * page] = 1
    assert sum(memory[k * page] for k in range(20)) == 3
    assert heap.library_pages(some="libsome", other="libother") == {"some": 17 * page}
    assert before <= 20 * page


@LINUX
def test_a_mapped_file_of_any_name(tmp_path):
    path = os.fsencode(tmp_path) + b"/of latin-1 \xff"
    with open(path, "wb") as file:
        file.write(b"\0" * mmap.PAGESIZE)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert not mapped[0]
        assert not heap.library_pages(none="no library is called so")


# -- Lent memory ----------------------------------------------------------------------------------

FLOAT = np.dtype(np.float32)


def expect_lent_while_kept(memory, keep):
    """Check that memory is lent exactly as long as the result of ``keep`` exists."""
    assert not memory.is_lent
    kept = keep(memory.lend((60, 7), FLOAT))
    assert memory.is_lent
    del kept
    assert not memory.is_lent


@pytest.mark.parametrize(
    "keep", [keep for keep, _ in WAYS.values()] + [memoryview, np.broadcast_arrays, iter]
)
def test_every_way_of_keeping_counts(keep):
    memory = LentMemory(np.empty(60 * 7 * 4, np.uint8))
    for _ in range(2):
        expect_lent_while_kept(memory, keep)


@pytest.mark.parametrize(
    "keep",
    [lambda array: array, lambda array: array.T[1:],
     lambda array: array.reshape(-1)[3:].view(np.int32), lambda array: (each for each in [array]),
     lambda array: {"deep": [(array[:, 2],)]}],
)  # fmt: skip
def test_memory_of_a_device_is_lent_alike(keep, xp):
    expect_lent_while_kept(LentMemory(xp.empty(60 * 7 * 4, np.uint8)), keep)


def test_it_is_one_array_of_the_same_memory_while_it_is_lent(xp):
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
    for shape in ((0,), (3, 0)):
        nothing = LentMemory(xp.empty(shape, np.float32))
        assert nothing.lend(shape, FLOAT).shape == shape
        assert nothing.nbytes == 0


# -- Resident pages -------------------------------------------------------------------------------

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple))


@given(RANGES)
def test_a_union_has_the_same_bytes_in_order_and_apart(ranges):
    found = union(ranges)
    bytes_of = [{*range(start, end)} for start, end in ranges]
    assert {b for start, end in found for b in range(start, end)} == set().union(*bytes_of)
    assert all(start < end for start, end in found)
    assert all(one[1] < other[0] for one, other in pairwise(found))


@pytest.mark.parametrize(
    ("ranges", "size", "wanted"),
    # Half a page more at each end, but within the array.
    [(((0, 100_000),), MB, 102_048), (((200_000, 300_000),), MB, 104_096), (((0, MB),), MB, MB),
     (((0, 5000), (6000, 10_000)), MB, 12_048), ((), 50 * MB, 0),
     (((0, MB), (9 * MB, 10 * MB)), 50 * MB, 2 * MB + 3 * 2048)],
)  # fmt: skip
def test_whole_pages_count(ranges, size, wanted):
    assert resident_bytes(ranges, size) == wanted


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="asks Linux")
def test_the_system_agrees():
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


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="the system has no large pages")
def test_lasting_arrays_share_blocks_that_end_with_them():
    kept = [heap.lasting((300, 100), kind) for kind in (np.float32, np.float16, np.float32)]
    assert heap.lasting((3, 5), np.float32).base is None
    for array in kept:
        assert not array.any()
        array[...] = 1
    first, last = kept[0], kept[2]
    assert first.base is not last.base
    assert not np.shares_memory(first, last)
    assert abs(address(last) - address(first)) < heap._BLOCK
    block = weakref.ref(
        last.base.base.obj if isinstance(last.base.base, memoryview) else last.base.base
    )
    del kept, first, array
    assert block() is not None
    assert last.all()
    del last
    assert block() is None


@pytest.mark.parametrize("count", [0, 3, heap.LARGE - 1, heap.LARGE + 5, 3 * heap.LARGE + 4097])
def test_populated_arrays_keep_their_values(count):
    wanted = np.arange(count + 1) % 251
    given = wanted.astype(np.uint8)[1:]
    made = heap.populated(given)
    assert made is given
    assert np.array_equal(made, wanted[1:])


@LINUX
def test_populated_arrays_have_their_pages_before_they_are_written():
    if tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 14):
        pytest.skip("Linux gives pages at once from 5.14 on")
    nbytes = 16 * MB
    array = np.frombuffer(heap.own_pages(nbytes), np.uint8)
    before = heap.private_bytes()
    heap.populated(array)
    assert heap.private_bytes() - before > nbytes // 2
    assert not array.any()


def test_own_pages_are_counted_as_private_until_they_are_freed():
    if heap.private_bytes() is None:
        pytest.skip("the system does not count")
    nbytes = 64 << 20
    before = heap.private_bytes()
    pages = np.frombuffer(heap.own_pages(nbytes), np.uint8)
    pages[:: 1 << 12] = 1
    held = heap.private_bytes()
    assert held - before > 0.9 * nbytes
    del pages
    assert held - heap.private_bytes() > 0.9 * nbytes
