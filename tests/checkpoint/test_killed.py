"""A process that writes checkpoints is killed: one whole checkpoint is always there."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from singanet.checkpoint import open_state, write_state

WRITER = """
import sys, numpy as np
from singanet.checkpoint import write_state
path, turn = sys.argv[1], 0
print("ready", flush=True)
while True:
    turn += 1
    arrays = {f"layer{i}/w": np.full(40_000, turn, "f4") for i in range(5)}
    write_state(path, {"turn": np.array(turn, "i4"), **arrays})
    print(turn, flush=True)
"""


def kill_and_look(path, moments, rng):
    """Kill a process that writes checkpoints in a loop; each time one whole state is there."""
    last = 0
    for moment in range(moments):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            for _ in range(2 + moment % 3):  # "ready", and one that is complete or more
                writer.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.05))
            writer.send_signal(signal.SIGKILL)
            printed = [int(line) for line in writer.stdout.read().split()]
        with open_state(path) as reader:
            read = dict(reader)
        turn = int(read.pop("turn"))
        assert turn >= max([1, *printed]), "a checkpoint that was complete is gone"
        assert len(read) == 5
        assert all((array == turn).all() for array in read.values())
        last = max(last, turn)
    assert last > 1, "each was killed at its first"
    write_state(path, {"x": np.ones(1, "f4")})
    left = [each.name for each in path.parent.iterdir() if each.name.endswith(".tmp")]
    assert left == []


@pytest.mark.slow
def test_killed_at_a_random_moment(path):
    kill_and_look(path, 2, random.Random(1))


@pytest.mark.slow
def test_killed_at_forty_random_moments(path):
    """Five formats: two hundred moments in all."""
    kill_and_look(path, 40, random.Random(2))
