"""Read mutated files of every kind: only errors of ours, in bounds of time and memory.

Run as a program, which goes on where it was ended and tells counts:
``python -m tests.mutation.mutate COUNT [PROGRESS.json] [WORKERS]``.
Files are read in worker processes, so that a crash of a library underneath is told, not suffered.
"""

import codecs
import collections
import concurrent.futures
import concurrent.futures.process
import contextlib
import json
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from unittest import mock

from singanet.errors import SingaNetError
from tests.mutation.kinds import KINDS
from tests.mutation.watching import Peak, watch

SECONDS = 2.0
"""Of the processor's time."""
GROUP = 20
"""Files between two looks at the memory, which take as long as reading one."""


def outcome(kind, path):
    """The name of the error that reading raises, or "read". Any error but ours is raised."""
    try:
        kind.read(path)
    except SingaNetError as error:
        if len(str(error)) > 1500:
            raise ValueError(f"an error of {len(str(error))} characters: {path}") from error
        return type(error).__name__
    return "read"


def work(job):
    """Read ``count`` mutated files of a kind; counts by outcome, and the most memory taken."""
    name, count, seed, folder = job
    kind, rng, folder = KINDS[name], random.Random(seed), Path(folder) / f"{name}-{seed}"
    folder.mkdir(exist_ok=True)
    found, peak, most = collections.Counter(), Peak(), 0
    with warnings.catch_warnings(), mock.patch("os.fsync"):  # the disk would take longest
        warnings.simplefilter("ignore")
        seeds = list(kind.seeds(folder))
        for coding in ("cp437", "ascii"):
            codecs.lookup(coding)  # imported for names that are not in UTF-8
        for suffix, spoil in seeds:  # so that all modules are there before the watch
            _read(kind, folder / f"warm{suffix}", spoil(random.Random(0)))
        for start in range(0, count, GROUP):
            peak.start()
            largest = 0
            for _ in range(min(GROUP, count - start)):
                suffix, spoil = rng.choice(seeds)
                data, path = spoil(rng), folder / f"m{suffix}"
                largest = max(largest, len(data))
                with watch().over(path) if kind.watched else contextlib.nullcontext():
                    found[_read(kind, path, data)] += 1
            most = max(most, peak.bytes())
            if peak.bytes() > 10 * largest + kind.floor:
                raise MemoryError(f"{peak.bytes()} bytes: {job}, {start}")
    shutil.rmtree(folder)
    return found, most


def _read(kind, path, data):
    path.write_bytes(data)
    start = time.process_time()
    found = outcome(kind, path)
    if time.process_time() - start > SECONDS:
        raise TimeoutError(f"{time.process_time() - start} seconds: {path}")
    return found


def jobs(count, folder, batch=500):
    """``count`` files over all kinds, by their shares, in batches, each with a seed of its own."""
    whole = sum(kind.share for kind in KINDS.values())
    for kind in KINDS.values():
        wanted = -(-count * kind.share // whole)
        for start in range(0, wanted, batch):
            yield kind.name, min(batch, wanted - start), start, folder


def run(todo, workers=2, patience=600):
    """Work the jobs off in processes; yields each with its counts and memory.

    Raises what should not have come out, a crash or a hang of a worker among it.
    """
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(workers, context)
    waiting = {pool.submit(work, job): job for job in todo}
    folder = next(iter(waiting.values()))[-1] if waiting else ""
    try:
        while waiting:
            done, _ = concurrent.futures.wait(waiting, patience, concurrent.futures.FIRST_COMPLETED)
            if not done:
                raise TimeoutError(f"a file in {_keep(folder)} is read for ever")
            for each in done:
                yield waiting.pop(each), *each.result()
    except BaseException as error:
        kept = _keep(folder)
        if isinstance(error, concurrent.futures.process.BrokenProcessPool):
            raise RuntimeError(f"a file in {kept} ended its reader") from None
        error.args = (*error.args, f"files in {kept}")
        raise
    finally:
        for process in (pool._processes or {}).values():
            process.kill()
        pool.shutdown(cancel_futures=True)


def _keep(folder):
    """A copy of ``folder`` that stays, to look into."""
    return shutil.copytree(folder, tempfile.mkdtemp(), dirs_exist_ok=True)


def main(count, progress=None, workers=1):
    """Read ``count`` files, but for those that ``progress``, a file, tells of already."""
    path = None if progress is None else Path(progress)
    done = json.loads(path.read_text("utf-8")) if path and path.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        todo = [j for j in jobs(count, folder) if f"{j[0]} {j[1]} {j[2]}" not in done]
        for job, counts, most in run(todo, workers):
            done[f"{job[0]} {job[1]} {job[2]}"] = {**counts, "bytes": most}
            if path is not None:
                path.write_text(json.dumps(done))
    totals = collections.Counter()
    for key, counts in done.items():
        for name, number in counts.items():
            if name != "bytes":
                totals[f"{key.split()[0]:12}{name}"] += number
    for name, number in sorted(totals.items()):
        sys.stdout.write(f"{number:9} {name}\n")
    sys.stdout.write(f"{sum(totals.values()):9} in all\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3], *map(int, sys.argv[3:4]))
