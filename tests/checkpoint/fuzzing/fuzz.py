"""Mutate checkpoint files and read them: only the project's own errors may come out.

Run as a program: ``python tests/checkpoint/fuzzing/fuzz.py [COUNT] [SEED]``.
Files are read in worker processes, so that a crash of a library underneath is counted, not
suffered. Reading may open no other file and start no code; its memory is what the system says,
libhdf5's included. The tests run a few with `fuzz`; ``-m slow`` runs 100,000.
"""

from __future__ import annotations

import collections
import concurrent.futures
import concurrent.futures.process
import io
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.watching import Peak, watch

MEMORY = 64 << 20
INTERESTING = [
    0,
    1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0xFFFFFFFF,
    2**63 - 1,
    2**64 - 1,
]


def seeds():
    """Whole files of every format, ours and others', as (suffix, bytes)."""
    from singanet.checkpoint import FORMATS, write_state

    rng = np.random.default_rng(0)
    state = {
        "conv/weight": rng.standard_normal((3, 8)).astype("f4"),
        "conv/bias": np.zeros(3, "f4"),
        "n": np.array(5, "i4"),
        "b/mean": rng.standard_normal(40),
    }
    with tempfile.TemporaryDirectory() as folder:
        for format in FORMATS.values():
            if format.name.startswith("keras"):
                continue
            path = Path(folder) / f"m{format.suffixes[0]}"
            write_state(path, state)
            yield format.suffixes[0], path.read_bytes()
        yield from _others(Path(folder), state)
    for protocol in range(6):
        yield ".pickle", pickle.dumps({**state, "SINGA_VERSION": 1101}, protocol)


def dense():
    """The layer whose weights the Keras files hold."""
    from singanet.checkpoint import LayerDescription

    return LayerDescription(
        "Dense", "fc", {"weight": ("fc/weight", (3, 2)), "bias": ("fc/bias", (2,))}
    )


def _others(folder, state):
    import h5py

    from singanet.checkpoint import write_state

    weights = {"fc/weight": np.ones((3, 2), "f4"), "fc/bias": np.zeros(2, "f4")}
    for format in ("keras", "keras-legacy"):
        write_state(folder / "k", weights, format, layers=[dense()])
        yield ".weights.h5", (folder / "k").read_bytes()
    with h5py.File(folder / "k", "w") as file:  # as Keras 3 writes legacy files
        file.attrs["layer_names"] = ["fc"]
        file.create_group("fc").attrs["weight_names"] = ["fc/kernel", "fc/bias"]
        for name, array in zip(("kernel", "bias"), weights.values(), strict=True):
            file[f"fc/fc/{name}"] = array
    yield ".weights.h5", (folder / "k").read_bytes()

    packed = io.BytesIO()
    np.savez_compressed(packed, **state)
    yield ".npz", packed.getvalue()
    with h5py.File(folder / "k.h5", "w", libver="latest") as file:
        file.create_dataset("a/x", data=np.zeros((64, 64)), compression="gzip", shuffle=True)
        file.create_dataset("a/y", data=np.ones(9), chunks=(4,), fletcher32=True)
    yield ".h5", (folder / "k.h5").read_bytes()


def mutate(raw, rng):
    """``raw`` with one to eight changes of the kinds that break parsers."""
    data = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 4, 8])):
        at = rng.randrange(len(data)) if data else 0
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            size = rng.choice([1, 2, 4, 8])
            value = rng.choice(INTERESTING) & ((1 << 8 * size) - 1)
            data[at : at + size] = value.to_bytes(size, rng.choice(["little", "big"]))
        elif kind == 3:
            del data[at : at + rng.choice([1, 2, 8, 64])]
        elif kind == 4:
            data[at:at] = rng.randbytes(rng.choice([1, 2, 8, 64]))
        elif kind == 5:
            other = rng.randrange(len(data)) if data else 0
            size = rng.choice([4, 16, 64])
            data[at : at + size] = data[other : other + size]
        else:
            del data[at:]
    return bytes(data)


def read(path):
    """Read everything; the kind of error, or "read". Any other exception is raised."""
    from singanet.checkpoint import open_state
    from singanet.errors import CheckpointError

    keras = path.name.endswith(".weights.h5")
    options = {"format": "keras", "layers": [dense()]} if keras else {}
    try:
        with open_state(path, **options) as reader:
            for _ in reader:
                pass
    except CheckpointError as error:
        return type(error).__name__
    return "read"


def warm(folder, whole):
    """Read each whole file and a broken one, so that all modules are there before the watch."""
    for suffix, raw in whole:
        for data in (raw, raw[:-1], raw[: len(raw) // 2], raw[:9], b"\0" * 9):
            path = Path(folder) / f"warm-{os.getpid()}{suffix}"
            path.write_bytes(data)
            read(path)


def work(job):
    """Fuzz ``count`` files; counts of what came out, and the worst of memory."""
    count, seed, folder = job
    rng = random.Random(seed)
    whole = list(seeds())
    found = collections.Counter()
    warm(folder, whole)
    peak, most = Peak(), 0
    for turn in range(count):
        suffix, raw = rng.choice(whole)
        data = mutate(raw, rng)
        path = Path(folder) / f"{seed}{suffix}"
        path.write_bytes(data)
        peak.start()
        with watch().over(path):
            outcome = read(path)
        most = max(most, peak.bytes())
        if peak.bytes() > 10 * len(data) + MEMORY:
            raise MemoryError(f"{peak.bytes()} bytes for {len(data)}: {path} {turn}")
        found[f"{suffix} {outcome}"] += 1
    return found, most


def fuzz(count, seed=0, workers=2, batch=250, patience=120):
    """Fuzz ``count`` files in ``workers`` processes; counts of what came out, and the
    worst of memory.

    Raises what should not have come out, a crash or a hang of a worker among it.
    """
    found, most = collections.Counter(), 0
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        jobs = [(min(batch, count - at), seed + at, folder) for at in range(0, count, batch)]
        pool = concurrent.futures.ProcessPoolExecutor(workers, context)
        try:
            waiting = {pool.submit(work, job): job for job in jobs}
            while waiting:
                done, _ = concurrent.futures.wait(
                    waiting, patience, concurrent.futures.FIRST_COMPLETED
                )
                if not done:
                    raise TimeoutError(f"a file in {keep(folder)} is read for ever")
                for each in done:
                    del waiting[each]
                    counts, highest = each.result()
                    found, most = found + counts, max(most, highest)
        except concurrent.futures.process.BrokenProcessPool:
            raise RuntimeError(f"a file in {keep(folder)} ended its reader") from None
        finally:
            for process in (pool._processes or {}).values():
                process.kill()
            pool.shutdown(cancel_futures=True)
    return found, most


def keep(folder):
    """A copy of ``folder`` that stays, to look into."""
    return shutil.copytree(folder, tempfile.mkdtemp(), dirs_exist_ok=True)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    start = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    counts, memory = fuzz(wanted, start)
    sys.stdout.write(f"{memory:8} extra bytes at most\n")
    for name, number in sorted(counts.items()):
        sys.stdout.write(f"{number:8} {name}\n")
