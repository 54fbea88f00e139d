"""Memory given back, or left alone where the C library cannot; pages of arrays."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet.base import heap

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
