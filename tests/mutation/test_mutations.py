"""Mutated files of every kind: 10,000 in every run, a million under ``slow``; see mutate.py."""

import mmap
import os
import pickle
from pathlib import Path

import pytest

from tests.mutation import kinds, mutate, watching

COUNT, BATCH = 10_000, 1000


@pytest.mark.full
def test_every_seed_is_whole(tmp_path):

    class Same:
        """Draws that change nothing."""

        def choice(self, options):
            return 0 if isinstance(options[0], int) else options[0]

    for suffix, raw in kinds.checkpoints(tmp_path):
        path = tmp_path / f"whole{suffix}"
        path.write_bytes(raw)
        kinds.read_checkpoint(path)
    for kind in kinds.KINDS.values():
        for suffix, spoil in kind.seeds(tmp_path):
            if getattr(spoil, "args", None):
                path = tmp_path / f"whole{suffix}"
                path.write_bytes(spoil.args[0])
                kind.read(path)


def test_no_checkpoint_is_read_when_it_is_cut(tmp_path):
    for index, (suffix, raw) in enumerate(kinds.checkpoints(tmp_path)):
        path = tmp_path / f"{index}{suffix}"
        for size in {*range(0, len(raw), max(1, len(raw) // 40)), len(raw) - 1}:
            path.write_bytes(raw[:size])
            assert mutate.outcome(kinds.KINDS["checkpoint"], path) != "read", (suffix, size)


JOBS = [(name, count, seed) for name, count, seed, _ in mutate.jobs(COUNT, "", BATCH)]


@pytest.mark.parametrize("job", [
    *JOBS[:2], *(pytest.param(job, marks=pytest.mark.full) for job in JOBS[2::3]),
    *(pytest.param(job, marks=pytest.mark.slow) for job in [*JOBS[3::3], *JOBS[4::3]]),
], ids=lambda job: "-".join(map(str, job)))  # fmt: skip
def test_only_our_errors_come_out(tmp_path, job):
    counts, _ = mutate.work((*job, tmp_path))
    assert sum(counts.values()) == job[1]
    assert len(counts) > 1


def test_so_many_are_read():
    assert sum(count for _, count, _ in JOBS) >= COUNT
    assert {name for name, _, _ in JOBS} == set(kinds.KINDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", kinds.KINDS)
def test_only_our_errors_come_out_of_a_million(tmp_path, name):
    count = int(os.environ.get("SINGANET_MUTATED_FILES", 1_000_000))
    todo = [job for job in mutate.jobs(count, tmp_path) if job[0] == name]
    for _ in mutate.run(todo):
        pass


@pytest.mark.parametrize("misdeed", [
    lambda folder: eval("1 + 1"),  # noqa: S307
    lambda folder: os.system("true"), lambda folder: (folder / "other").write_text(""),
    lambda folder: pickle.loads(b"cbuiltins\nlen\n."),
])  # fmt: skip
def test_the_watch_sees(tmp_path, misdeed):
    with pytest.raises(PermissionError, match="m.npz"), watching.watch().over(tmp_path / "m.npz"):
        misdeed(tmp_path)


def test_the_peak_sees():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not tell")
    peak = watching.Peak()
    peak.start()
    # New memory: the allocator may have some left over from other tests.
    with mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        for page in range(0, len(memory), mmap.PAGESIZE):
            memory[page] = 1
    assert 38 << 20 < peak.bytes() < 48 << 20
