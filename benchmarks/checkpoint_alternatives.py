"""Ways to read and write a checkpoint's bytes that were weighed before the formats took theirs.

1 GiB in 200 arrays, each run in a process of its own, so that its memory is new. Reading: with no
checksum, with CRC-32 by zlib or zlib-ng after each MiB, here or in a second thread; memory filled
by the kernel beforehand; a private map of the file. Writing: with the flush at the end, flushed
meanwhile by a second thread, with the file's length set first. Usage:
``python benchmarks/checkpoint_alternatives.py [FOLDER]``.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from report import publish, table
from zlib_ng import zlib_ng

from singanet.base.files import flushed_meanwhile

COUNT, PIECE, ROUNDS = 200, 1 << 20, 7
SIZE = (1 << 30) // (4 * COUNT)
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, for which Python has no name
Crc = Callable[[memoryview, int], int]


def new() -> np.ndarray:
    """An array as NumPy makes it."""
    return np.empty(SIZE, np.float32)


def filled() -> np.ndarray:
    """An array whose pages the kernel has made, all at once."""
    memory = mmap.mmap(-1, SIZE * 4)
    memory.madvise(_POPULATE_WRITE)
    return np.frombuffer(memory, np.float32)


def reading(crc: Crc | None, make: Callable[[], np.ndarray] = new) -> Callable[[Path], object]:
    """Read each array by the MiB, each followed by ``crc``."""

    def run(path: Path) -> object:
        found = []
        with path.open("rb", buffering=0) as file:
            for _ in range(COUNT):
                array, total = make(), 0
                data = array.view(np.uint8).data
                for start in range(0, len(data), PIECE):
                    file.readinto(data[start : start + PIECE])
                    total = crc(data[start : start + PIECE], total) if crc else 0
                found.append(array)
        return found

    return run


def reading_beside(crc: Crc) -> Callable[[Path], object]:
    """Read each array by the MiB, ``crc`` in a second thread."""

    def run(path: Path) -> object:
        found = []
        with path.open("rb", buffering=0) as file, ThreadPoolExecutor(1) as pool:
            for _ in range(COUNT):
                data = (array := new()).view(np.uint8).data
                for start in range(0, len(data), PIECE):
                    file.readinto(data[start : start + PIECE])
                    last = pool.submit(crc, data[start : start + PIECE], 0)
                last.result()
                found.append(array)
        return found

    return run


def mapped(crc: Crc) -> Callable[[Path], object]:
    """A private map of the file: no copy, and a fault of the program if the file is cut later."""

    def run(path: Path) -> object:
        with path.open("rb") as file:
            memory = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        data = memoryview(memory)
        for start in range(0, len(data), PIECE):
            crc(data[start : start + PIECE], 0)
        return memory

    return run


def fromfile(path: Path) -> object:
    """The peer."""
    with path.open("rb") as file:
        return [np.fromfile(file, np.float32, SIZE) for _ in range(COUNT)]


def writing(path: Path, crc: Crc | None = None, allocate: bool = False) -> None:
    """Write each array, then flush."""
    array = np.random.default_rng(0).random(SIZE, np.float32).view(np.uint8).data
    with path.open("wb", buffering=0) as file:
        if allocate:
            os.posix_fallocate(file.fileno(), 0, COUNT * SIZE * 4)
        for _ in range(COUNT):
            for start in range(0, len(array), PIECE):
                piece = array[start : start + PIECE]
                file.write(piece)
                if crc:
                    crc(piece, 0)
        os.fsync(file.fileno())


def writing_flushed(path: Path, crc: Crc | None = None) -> None:
    """Write each array while a thread flushes what is there."""
    with flushed_meanwhile(path):
        writing(path, crc)


READ: dict[str, Callable[[Path], object]] = {
    "numpy.fromfile": fromfile,
    "readinto": reading(None),
    "and zlib's CRC-32": reading(zlib.crc32),
    "and zlib-ng's CRC-32": reading(zlib_ng.crc32),
    "zlib's in a second thread": reading_beside(zlib.crc32),
    "zlib-ng's in a second thread": reading_beside(zlib_ng.crc32),
    "pages made before, zlib-ng": reading(zlib_ng.crc32, filled),
    "private map, zlib-ng": mapped(zlib_ng.crc32),
}
WRITE: dict[str, Callable[[Path], object]] = {
    "write, flush": writing,
    "length set, write, flush": lambda path: writing(path, allocate=True),
    "zlib's CRC-32": lambda path: writing(path, zlib.crc32),
    "zlib-ng's CRC-32": lambda path: writing(path, zlib_ng.crc32),
    "flushed meanwhile": writing_flushed,
    "flushed meanwhile, zlib-ng": lambda path: writing_flushed(path, zlib_ng.crc32),
}


def child(task: str, name: str, path: Path, answer: multiprocessing.Queue) -> None:
    """Seconds and seconds of CPU of one run."""
    job = (READ if task == "read" else WRITE)[name]
    busy, start = time.process_time(), time.perf_counter()
    kept = job(path)
    answer.put((time.perf_counter() - start, time.process_time() - busy))
    del kept


def compare(task: str, kinds: dict[str, Callable[[Path], object]], path: Path) -> str:
    """A table of ``kinds``, the first of which is what the others are compared with."""
    context = multiprocessing.get_context("fork")
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in kinds}
    order = random.Random(0)
    for _ in range(ROUNDS):
        for name in order.sample(list(kinds), len(kinds)):
            answer = context.Queue()
            process = context.Process(target=child, args=(task, name, path, answer))
            process.start()
            found[name].append(answer.get())
            process.join()
    base = [of(seconds for seconds, _ in found[next(iter(kinds))]) for of in (_median, min)]
    rows = []
    for name, results in found.items():
        middle, least = (of(seconds for seconds, _ in results) for of in (_median, min))
        row = [name, f"{middle:.2f}", f"{middle / base[0]:.2f}", f"{least:.2f}"]
        rows.append([*row, f"{least / base[1]:.2f}", f"{min(busy for _, busy in results):.2f}"])
    return table([task, "s (median)", "×", "s (least)", "×", "s of CPU (least)"], rows)


def _median(values: object) -> float:
    return statistics.median(values)  # type: ignore[call-overload,no-any-return]


def main(folder: str | None = None) -> None:
    """Compare and publish."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "x"
        parts = [compare("write", WRITE, path), compare("read", READ, path)]
    note = f"1 GiB in {COUNT} arrays, {ROUNDS} rounds in shuffled order; × is to the first row.\n\n"
    publish(
        "checkpoint_alternatives", "Ways to move a checkpoint's bytes", note + "\n\n".join(parts)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
