"""What blocks take as the C library's allocator places them: its rules, worked out by hand."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from singanet.program.trace.heap_use import HeapUse

KB = 1 << 10
MB = 1 << 20


def near(size, blocks=10):
    """``size`` and what surrounds so many blocks."""
    return pytest.approx(size, abs=4096 * blocks)


def test_what_is_small_lies_in_a_heap_whose_holes_are_filled_with_what_fits_best():
    heap = HeapUse()
    blocks = [heap.take(size * KB) for size in (40, 5, 20, 5, 30, 5)]
    for block in blocks[::2]:
        heap.give_back(block)
    # Freed, and kept.
    assert heap.bytes == near(105 * KB)
    fitting = heap.take(19 * KB)
    assert fitting[0] == blocks[2][0]
    assert heap.take(29 * KB)[0] == blocks[4][0]
    assert heap.bytes == heap.most == near(105 * KB)
    # Neighbours that are free are one hole.
    heap.give_back(fitting)
    heap.give_back(blocks[1])
    assert heap.take(64 * KB)[0] == blocks[0][0]


def test_a_large_block_goes_when_it_is_freed_and_raises_what_is_large():
    heap = HeapUse()
    first = heap.take(3 * MB)
    assert first[0] == -1
    heap.give_back(first)
    assert heap.bytes == 0
    assert heap.most == near(3 * MB)
    block = heap.take(3 * MB)
    assert block[0] == 0
    # The heap's end stays up to twice the size of what is large.
    heap.give_back(block)
    assert heap.bytes == near(3 * MB)
    assert heap.take(2 * MB)[0] == 0
    assert heap.take(5 * MB)[0] == -1
    assert heap.most == near(8 * MB)


def test_the_end_of_a_heap_beyond_that_is_given_back():
    heap = HeapUse(2 * MB)
    blocks = [heap.take(MB) for _ in range(6)]
    for block in blocks:
        assert block[0] >= 0
        heap.give_back(block)
    assert heap.bytes == near(0)
    assert heap.most == near(6 * MB)


def test_no_block_above_32_mb_raises_it():
    heap = HeapUse(100 * MB)
    assert heap.take(40 * MB)[0] == -1
    heap = HeapUse()
    heap.give_back(heap.take(40 * MB))
    assert heap.take(MB)[0] == -1


_SIZES = [3, 3, -1, 1, 2, -2, 5, 1, 1, -3, 4, -6, 3, 6, -4, 2, -5, 7, 1]
_PROGRAM = f"""
import ctypes
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
c.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
c.malloc_trim(0)
before, most, held = resident(), 0, []
for size in {_SIZES}:
    if size < 0:
        c.free(held[-size - 1])
    else:
        held.append(c.malloc(size * 700_000))
        c.memset(held[-1], 1, size * 700_000)
        most = max(most, resident() - before)
print(most)
"""


def _has_glibc():
    try:
        ctypes.CDLL(None).gnu_get_libc_version  # noqa: B018 - only whether it is there
    except (AttributeError, OSError, TypeError):
        return False
    return sys.platform == "linux"


@pytest.mark.skipif(not _has_glibc(), reason="glibc's rules")
def test_a_process_of_its_own_takes_as_much():
    run = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    measured = int(subprocess.run(run, capture_output=True, check=True, text=True).stdout)
    heap, held = HeapUse(), []
    for size in _SIZES:
        if size < 0:
            heap.give_back(held[-size - 1])
        else:
            held.append(heap.take(size * 700_000))
    assert heap.most == pytest.approx(measured, abs=400_000)
