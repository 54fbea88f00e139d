"""Write and read 1 GiB of float32 in 200 arrays: every format beside its peers.

Seconds, GB/s and peak extra memory, on disk and in a folder in memory, where no disk adds its
noise. Files are flushed to disk, ours and the peers', as a checkpoint must be. Goal: snapshot and
HDF5 within 1.25 × the fastest peer.
Usage: ``python benchmarks/checkpoint.py [FOLDER...]``: all formats in the first folder, those two
in the others.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from report import publish, table

COUNT = 200
SIZE = (1 << 30) // (4 * COUNT)
ROUNDS = 5
OURS = {
    "snapshot": ".bin",
    "hdf5": ".h5",
    "safetensors": ".safetensors",
    "npz": ".npz",
    "pickle": ".pickle",
}
GOALS = ("snapshot", "hdf5")
# Without zlib-ng, whose CRC-32 is the same.
SLOW = " (zlib)"
PEERS = ("numpy.tofile", "torch", "safetensors package")
WHERE = (
    "Where the time goes: most of a read, ours or a peer's, is the kernel making 1 GiB of new "
    "pages (0.3 s of CPU at best; many times that when the host must find the memory first, "
    "which is the noise of the tables, most of all on disk). On top of it come, for 1 GiB, "
    "0.04 s for sums with zlib-ng or 0.26 s with zlib (which a second core takes over where "
    "one is free), 0.007 s for a snapshot's table, and 0.05 s for 400 objects that libhdf5 "
    "opens. Writes are flushed while they are made, which gains on disk what the sums cost; "
    "in memory nothing is gained."
)


def names() -> list[str]:
    """The names of the arrays."""
    return [f"layer{i}/weight" for i in range(COUNT)]


def flush(path: Path) -> None:
    """Wait until ``path`` is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def runs(kind: str, folder: Path) -> tuple[Callable[[Mapping], None], Callable[[], object]]:
    """How ``kind`` writes a state to ``folder`` and reads it into new arrays."""
    if kind.endswith(SLOW):
        sys.modules["zlib_ng"] = None  # type: ignore[assignment]
        kind = kind.removesuffix(SLOW)
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
            return [np.fromfile(file, np.float32, SIZE) for _ in range(COUNT)]

    return save, read


def memory(key: str) -> int:
    """Bytes this process holds (VmRSS) or held at most (VmHWM) since the mark was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0


def child(kind: str, task: str, folder: Path) -> dict[str, float]:
    """One write or one read, in this process: seconds, and peak bytes beyond the state itself."""
    write, read = runs(kind, folder)
    numbers = np.random.default_rng(0).random(SIZE, np.float32)
    with tempfile.TemporaryDirectory() as elsewhere:  # imports are no part of either
        warm_write, warm_read = runs(kind, Path(elsewhere))
        warm_write({"small": numbers[:4].copy()})
        warm_read()
    if task == "write":
        state = {name: numbers + k for k, name in enumerate(names())}
        job: Callable[[], object] = lambda: write(state)  # noqa: E731
        result = 0
    else:
        job, result = read, COUNT * SIZE * 4
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    busy, start = time.process_time(), time.perf_counter()
    kept = job()
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    extra = memory("VmHWM") - before - result
    del kept
    return {"seconds": seconds, "busy": busy, "extra": max(extra, 0)}


def wait_for_quiet(patience: float = 5.0) -> None:
    """Wait until other programs leave a core and a half idle, or ``patience`` seconds are over."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = _idle()
        time.sleep(0.3)
        if _idle() - before >= 0.3 * 1.5 * os.sysconf("SC_CLK_TCK"):
            return


def _idle() -> int:
    return int(Path("/proc/stat").read_text().split()[4])


def measure(kind: str, task: str, folder: Path) -> dict[str, float]:
    """`child` in a process of its own."""
    wait_for_quiet()
    words = [sys.executable, __file__, "--child", kind, task, str(folder)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(folder: str, ours: Sequence[str]) -> str:
    """``ours`` and the peers in several rounds, shuffled: who runs after much was freed pays."""
    kinds = [*ours, *(f"{kind}{SLOW}" for kind in GOALS), *PEERS]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    order = random.Random(0)
    for _ in range(ROUNDS):
        for kind in order.sample(kinds, len(kinds)):
            place = Path(tempfile.mkdtemp(dir=folder))
            try:
                for task in ("write", "read"):
                    found.setdefault((kind, task), []).append(measure(kind, task, place))
            finally:
                shutil.rmtree(place)
    rows = []
    for task in ("write", "read"):
        times = {k: [each["seconds"] for each in found[k, task]] for k in kinds}
        middle, least = (
            {kind: of(seconds) for kind, seconds in times.items()}
            for of in (statistics.median, min)
        )
        fastest = min(middle[peer] for peer in PEERS)
        fastest_least = min(least[peer] for peer in PEERS)
        for kind in kinds:
            results = found[kind, task]
            row = [f"{kind} (peer)" if kind in PEERS else kind, task, f"{middle[kind]:.2f}"]
            row += [f"{least[kind]:.2f}", f"{min(r['busy'] for r in results):.2f}"]
            row += [f"{4 * COUNT * SIZE / middle[kind] / 1e9:.2f}"]
            row += [f"{middle[kind] / fastest:.2f}", f"{least[kind] / fastest_least:.2f}"]
            row += [f"{max(r['extra'] for r in results) / (1 << 20):.0f}"]
            rows.append(row)
    header = ["format", "", "s (median)", "s (least)", "s of CPU (least)", "GB/s"]
    header += ["× fastest peer", "× (least)", "peak extra MiB"]
    return table(header, rows)


def main(*folders: str) -> None:
    """Compare in each of ``folders`` and publish the tables."""
    note = (
        f"{COUNT} arrays of {SIZE} float32, 1 GiB; {ROUNDS} rounds, each write and read in a "
        "process of its own, in another order every round; every file flushed to disk before its "
        "time is taken, ours and the peers'; reads from the page cache into new arrays. Ours sum "
        f"and compare checksums, with zlib-ng's CRC-32 or Python's{SLOW}; pickle is SINGA's. "
        f"Largest array: {SIZE * 4 / (1 << 20):.1f} MiB. Load of the machine before and after: "
    )
    load = os.getloadavg()[0]
    parts = [
        f"In `{folder}`:\n\n{compare(folder, GOALS if index else list(OURS))}"
        for index, folder in enumerate(folders)
    ]
    note += f"{load:.1f} and {os.getloadavg()[0]:.1f}; each run waited for an idle moment."
    note += f"\n\n{WHERE}"
    publish("checkpoint", "Checkpoints: 1 GiB in 200 arrays", "\n\n".join([note, *parts]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        what, task, place = sys.argv[2:]
        sys.stdout.write(json.dumps(child(what, task, Path(place))))
    else:
        main(*(sys.argv[1:] or [tempfile.gettempdir()]))
