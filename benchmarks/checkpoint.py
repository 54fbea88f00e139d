"""Write and read nets as files: every format beside its peers, large and small, disk and memory.

Seconds, GB/s and peak extra memory of float32 in 200 large arrays, and milliseconds of a net of
the size of ResNet-20, in each folder that is named: one on a disk, and one in memory, where no disk
adds its noise. Files are flushed to disk, ours and the peers', as a checkpoint must be; ours are
also written beside the old file, moved over it and checked, which no peer does. Goal: at most 1.1 ×
the fastest peer in memory with zlib-ng, the extra ``fast``, and 1.3 × without; small nets 2 ×. The
peer of a format is the library that others take for it, where there is one.

    python benchmarks/checkpoint.py /dev/shm /tmp
    python benchmarks/checkpoint.py --kinds snapshot,hdf5 --rounds 3 --mib 512 /dev/shm
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
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
from report import introduction, publish, table

COUNT = 200
SMALL = (60, 4500)
"""Arrays of a small net, and numbers in each."""
OFTEN = 40
"""Times that a process writes or reads a small net."""
OURS = {
    "snapshot": ".bin",
    "hdf5": ".h5",
    "safetensors": ".safetensors",
    "npz": ".npz",
    "pickle": ".pickle",
}
GOALS = ("snapshot", "hdf5", "safetensors", "pickle")
# Without zlib-ng, whose CRC-32 is the same.
SLOW = " (zlib)"


def flush(path: Path) -> None:
    """Wait until ``path`` is on the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


Runs = tuple[Callable[[Mapping], None], Callable[[], object]]
"""How a state is written, and read into new arrays."""


def of_torch(path: Path, sizes: Sequence[int]) -> Runs:
    """PyTorch's."""
    import torch

    def save(state: Mapping) -> None:
        torch.save({name: torch.from_numpy(array) for name, array in state.items()}, path)

    return save, lambda: torch.load(path, weights_only=True)


def of_safetensors(path: Path, sizes: Sequence[int]) -> Runs:
    """The package's."""
    from safetensors.numpy import load_file, save_file

    return lambda state: save_file(dict(state), path), lambda: load_file(path)


def of_h5py(path: Path, sizes: Sequence[int]) -> Runs:
    """A dataset an array."""
    import h5py

    def save(state: Mapping) -> None:
        with h5py.File(path, "w") as file:
            for name, array in state.items():
                file.create_dataset(name, data=array)

    def read() -> object:
        with h5py.File(path) as file:
            return [layer["weight"][()] for layer in file.values()]

    return save, read


def of_numpy(path: Path, sizes: Sequence[int]) -> Runs:
    """Bare bytes."""

    def save(state: Mapping) -> None:
        with path.open("wb") as file:
            for array in state.values():
                array.tofile(file)

    def read() -> object:
        with path.open("rb") as file:
            return [np.fromfile(file, np.float32, size) for size in sizes]

    return save, read


def of_savez(path: Path, sizes: Sequence[int]) -> Runs:
    """A member an array."""

    def save(state: Mapping) -> None:
        with path.open("wb") as file:  # else the suffix is added
            np.savez(file, **state)

    def read() -> object:
        with np.load(path) as file:
            return dict(file)

    return save, read


def of_pickle(path: Path, sizes: Sequence[int]) -> Runs:
    """Python's own."""

    def save(state: Mapping) -> None:
        with path.open("wb") as file:
            pickle.dump(dict(state), file)

    def read() -> object:
        with path.open("rb") as file:
            return pickle.load(file)

    return save, read


PEERS = {
    "numpy.tofile": of_numpy,
    "torch": of_torch,
    "safetensors package": of_safetensors,
    "h5py": of_h5py,
    "numpy.savez": of_savez,
    "pickle.dump": of_pickle,
}
ALIKE = {
    "hdf5": "h5py",
    "safetensors": "safetensors package",
    "npz": "numpy.savez",
    "pickle": "pickle.dump",
}
"""The peer that others take for the format; SINGA's own snapshots have none."""


def runs(kind: str, folder: Path, sizes: Sequence[int]) -> Runs:
    """How ``kind`` writes a state to ``folder`` and reads arrays of such ``sizes``."""
    if kind in PEERS:
        path = folder / "m.x"
        write, read = PEERS[kind](path, sizes)

        def flushed(state: Mapping) -> None:
            write(state)
            flush(path)

        return flushed, read
    if kind.endswith(SLOW):
        sys.modules["zlib_ng"] = None  # type: ignore[assignment]
        kind = kind.removesuffix(SLOW)
    from singanet.checkpoint import open_state, write_state

    path = folder / f"m{OURS[kind]}"

    def opened() -> object:
        with open_state(path) as reader:
            return dict(reader)

    return lambda state: write_state(path, state), opened


def memory(key: str) -> int:
    """Bytes this process holds (VmRSS) or held at most (VmHWM) since the mark was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0


def child(kind: str, task: str, folder: Path, count: int, size: int) -> dict[str, float]:
    """Writes or reads, in this process: seconds of one, and peak bytes beyond the state itself."""
    write, read = runs(kind, folder, [size] * count)
    numbers = np.random.default_rng(0).random(size, np.float32)
    with tempfile.TemporaryDirectory() as elsewhere:  # imports are no part of either
        warm_write, warm_read = runs(kind, Path(elsewhere), [4])
        warm_write({"layer0/weight": numbers[:4].copy()})
        warm_read()
    if task == "write":
        state = {f"layer{k}/weight": numbers + k for k in range(count)}
        job: Callable[[], object] = lambda: write(state)  # noqa: E731
        result = 0
    else:
        job, result = read, count * size * 4
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    seconds, busy = [], []
    for _ in range(OFTEN if count * size == SMALL[0] * SMALL[1] else 1):
        cpu, start = time.process_time(), time.perf_counter()
        kept = job()
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - cpu)
    extra = memory("VmHWM") - before - result
    del kept
    times = {"seconds": statistics.median(seconds), "busy": statistics.median(busy)}
    return {**times, "extra": max(extra, 0)}


def measure(kind: str, task: str, folder: Path, net: tuple[int, int]) -> dict[str, float]:
    """`child` in a process of its own."""
    words = [sys.executable, __file__, "--child", kind, task, str(folder), *map(str, net)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def compare(folder: str, kinds: Sequence[str], net: tuple[int, int], rounds: int) -> str:
    """The ``kinds`` and the peers in rounds, shuffled: who runs after much was freed pays."""
    kinds = [*kinds, *(f"{kind}{SLOW}" for kind in kinds if kind in GOALS), *PEERS]
    found: dict[tuple[str, str], list[dict[str, float]]] = {}
    order = random.Random(0)
    for _ in range(rounds):
        for kind in order.sample(kinds, len(kinds)):
            place = Path(tempfile.mkdtemp(dir=folder))
            try:
                for task in ("write", "read"):
                    found.setdefault((kind, task), []).append(measure(kind, task, place, net))
            finally:
                shutil.rmtree(place)
    rows = []
    bytes_, small = 4 * net[0] * net[1], net == SMALL
    for task in ("write", "read"):
        of = {
            (what, each): by([run[what] for run in found[each, task]])
            for what, by in (("seconds", statistics.median), ("busy", min))
            for each in kinds
        }
        fastest = {what: min(of[what, peer] for peer in PEERS) for what in ("seconds", "busy")}
        for kind in kinds:
            results = found[kind, task]
            row = [f"{kind} (peer)" if kind in PEERS else kind, task]
            for what in ("seconds", "busy"):
                took = of[what, kind]
                row += [f"{1e3 * took:.2f}" if small else f"{took:.2f}"]
                row += [f"{took / fastest[what]:.2f}"]
                alike = ALIKE.get(kind.removesuffix(SLOW))
                row += [f"{took / of[what, alike]:.2f}" if alike else ""]
            row += [f"{bytes_ / of['seconds', kind] / 1e9:.2f}"]
            row += [f"{max(r['extra'] for r in results) / (1 << 20):.0f}"]
            rows.append(row)
    unit = "ms" if small else "s"
    header = ["format", ""]
    header += [unit, "× fastest peer", "× its peer"]
    header += [f"{unit} of CPU (least)", "× least peer", "× its peer"]
    return table([*header, "GB/s", "peak extra MiB"], rows)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", default=[tempfile.gettempdir()])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024, help="of the large net")
    parser.add_argument("--nets", choices=("both", "large", "small"), default="both")
    parser.add_argument("--kinds", default="", help="formats of ours, with commas; else all")
    return parser.parse_args()


def main() -> None:
    """Compare in each of the folders and publish the tables."""
    given = options()
    kinds = given.kinds.split(",") if given.kinds else list(OURS)
    nets = {"large": (COUNT, (given.mib << 20) // (4 * COUNT)), "small": SMALL}
    wanted = {name: net for name, net in nets.items() if given.nets in (name, "both")}
    load = os.getloadavg()[0]
    parts = [
        f"## In `{folder}`, {net[0]} arrays of {net[1]} float32\n\n"
        f"{compare(folder, kinds, net, given.rounds)}"
        for net in wanted.values()
        for folder in given.folders
    ]
    note = (
        f"{given.rounds} rounds, each write and read in a process of its own, in another order "
        "every round; medians, and the least of the processor's time. Reads are from the page "
        f"cache into new arrays. Ours sum checksums with zlib-ng's CRC-32 or Python's{SLOW}; "
        "pickle is SINGA's, and a `.singanet` file is our safetensors with the layers beside. Of "
        f"a small net each process takes the median of {OFTEN}. Load of the machine before and "
        f"after: {load:.1f} and {os.getloadavg()[0]:.1f}."
    )
    suffix = "_part" * (given.kinds != "" or given.nets != "both")
    text = "\n\n".join([introduction(__doc__), note, *parts])
    publish(f"checkpoint{suffix}", "Checkpoints", text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        what, task, place, count, size = sys.argv[2:]
        sys.stdout.write(json.dumps(child(what, task, Path(place), int(count), int(size))))
    else:
        main()
