"""Write and read 1 GiB of float32 in 200 arrays: every format beside its peers.

Seconds, GB/s and peak extra memory. Files are flushed to disk, ours and the peers', as a checkpoint
must be. Goal: snapshot and HDF5 within 1.25 × the fastest peer.
Usage: ``python benchmarks/checkpoint.py [FOLDER] [GIB]``.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from report import publish, table

COUNT = 200
ROUNDS = 5
OURS = {
    "snapshot": ".bin",
    "hdf5": ".h5",
    "safetensors": ".safetensors",
    "npz": ".npz",
    "pickle": ".pickle",
}
PEERS = ("numpy.tofile", "torch", "safetensors package")


def names() -> list[str]:
    """The names of the arrays."""
    return [f"layer{i}/weight" for i in range(COUNT)]


def flush(path: Path) -> None:
    """Wait until ``path`` is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def runs(
    kind: str, folder: Path, size: int
) -> tuple[Callable[[Mapping], None], Callable[[], object]]:
    """How ``kind`` writes a state to ``folder`` and reads it into new arrays."""
    path = folder / f"m{OURS.get(kind, '.x')}"
    if kind in OURS:
        from singanet.checkpoint import open_state, write_state

        def read() -> object:
            with open_state(path) as reader:
                return dict(reader)

        return lambda state: write_state(path, state), read
    if kind == "torch":
        import torch

        def save(state: Mapping) -> None:
            torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)
            flush(path)

        return save, lambda: torch.load(path, weights_only=True)
    if kind == "safetensors package":
        from safetensors.numpy import load_file, save_file

        def save(state: Mapping) -> None:
            save_file(dict(state), path)
            flush(path)

        return save, lambda: load_file(path)

    def save(state: Mapping) -> None:
        with path.open("wb") as file:
            for array in state.values():
                array.tofile(file)
        flush(path)

    def read() -> object:
        with path.open("rb") as file:
            return [np.fromfile(file, np.float32, size) for _ in range(COUNT)]

    return save, read


def memory(key: str) -> int:
    """Bytes this process holds (VmRSS) or held at most (VmHWM) since the mark was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0


def child(kind: str, task: str, folder: Path, size: int) -> dict[str, float]:
    """One write or one read, in this process: seconds, and peak bytes beyond the state itself."""
    write, read = runs(kind, folder, size)
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as elsewhere:  # imports are no part of either
        warm_write, warm_read = runs(kind, Path(elsewhere), size)
        warm_write({"small": rng.random(4, np.float32)})
        warm_read()
    if task == "write":
        state = {name: rng.random(size, np.float32) for name in names()}
        job: Callable[[], object] = lambda: write(state)  # noqa: E731
        result = 0
    else:
        job, result = read, COUNT * size * 4
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    start = time.perf_counter()
    kept = job()
    seconds = time.perf_counter() - start
    extra = memory("VmHWM") - before - result
    del kept
    return {"seconds": seconds, "extra": max(extra, 0)}


def measure(kind: str, task: str, folder: Path, size: int) -> dict[str, float]:
    """`child` in a process of its own."""
    words = [sys.executable, __file__, "--child", kind, task, str(folder), str(size)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(folder: str | None = None, gibibytes: str = "1") -> None:
    """Run every kind in turn, several rounds, and publish the medians."""
    size = int(float(gibibytes) * (1 << 30)) // (4 * COUNT)
    whole = 4 * COUNT * size
    kinds = [*OURS, *PEERS]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for kind in kinds:
            place = Path(tempfile.mkdtemp(dir=folder))
            try:
                for task in ("write", "read"):
                    found.setdefault((kind, task), []).append(measure(kind, task, place, size))
            finally:
                shutil.rmtree(place)
    rows = []
    for task in ("write", "read"):
        medians = {k: statistics.median(r["seconds"] for r in found[k, task]) for k in kinds}
        fastest = min(medians[peer] for peer in PEERS)
        for kind, seconds in medians.items():
            results = found[kind, task]
            row = [kind + ("" if kind in OURS else " (peer)"), task, f"{seconds:.2f}"]
            row += [f"{min(r['seconds'] for r in results):.2f}", f"{whole / seconds / 1e9:.2f}"]
            row += [f"{seconds / fastest:.2f}"]
            row += [f"{max(r['extra'] for r in results) / (1 << 20):.0f}"]
            rows.append(row)
    header = ["format", "", "s (median)", "s (least)", "GB/s", "× fastest peer", "peak extra MiB"]
    note = (
        f"{COUNT} arrays of {size} float32, {whole / (1 << 30):.2f} GiB; {ROUNDS} rounds, each "
        "write and read in a process of its own, interleaved; every file flushed to disk before "
        "its time is taken; reads from the page cache. Ours sum and compare checksums; pickle is "
        f"SINGA's.\nLargest array: {size * 4 / (1 << 20):.1f} MiB.\n\n"
    )
    publish("checkpoint", "Checkpoints: 1 GiB in 200 arrays", note + table(header, rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        what, task, place, size = sys.argv[2:]
        sys.stdout.write(json.dumps(child(what, task, Path(place), int(size))))
    else:
        main(*sys.argv[1:])
