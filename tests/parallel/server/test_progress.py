"""Nobody is further ahead than the bound says."""

import threading

import numpy as np
import pytest

from singanet.initializer import Constant
from singanet.optimizer import SGD
from singanet.parallel.server import Servers
from singanet.parallel.server.service import WorkerProgress
from singanet.params.param import Param, ParamSpec
from tests.kit.ranks import served


def test_readers_wait_for_the_slowest_but_not_for_those_away():
    progress = WorkerProgress(3, 1)
    for worker in (0, 0, 1):
        progress.finish(worker)
    assert progress.allows(0, 1)
    assert not progress.allows(0, 2)
    # What is asked ahead of a step waits for its end.
    assert not progress.allows(2, 1)
    progress.leave(2)
    assert progress.allows(0, 2)
    progress.finish(0)
    assert not progress.allows(0, 3)
    progress.leave(0)
    assert progress.leave(1)
    # All are back, where the furthest was.
    assert (progress.finished, progress.least, progress.ahead) == ([3, 3, 3], 3, 1)


def leads(staleness, seeds, workers=3, steps=5):
    """How far ahead of the slowest workers were, over one random interleaving a seed; by servers.

    Each worker begins a step by a pull and ends it by a push, at paces that differ by far.
    """
    done, lock, found = [0] * workers, threading.Lock(), []

    def work(comm, ranks):
        servers = Servers(comm, ranks, SGD(lr=1.0), staleness)
        servers.open([], [Param(ParamSpec("table"), (4, 1), Constant(0.0))])
        comm.barrier()
        table, row = servers.tables["table"], np.array([comm.rank])
        for seed in seeds:
            paces = np.random.default_rng(seed).exponential(size=(workers, steps)) ** 2
            for pace in paces[comm.rank]:
                table.pull(row)
                with lock:
                    found.append(done[comm.rank] - min(done))
                ranks.world.advance(float(pace))
                table.push(row, np.ones((1, 1), np.float32))
                with lock:
                    done[comm.rank] += 1
                servers.finish(1.0)
            comm.barrier()
        return servers.loads()[1], table.pull(np.arange(4))[0].ravel().tolist()

    told = served(work, workers, 1)
    assert told[0][1] == [-float(steps * len(seeds))] * workers + [0.0]
    return max(found), told[0][0]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_holds_in_random_interleavings(staleness):
    # It is reached, and measured.
    assert leads(staleness, range(8)) == (staleness, staleness)


def test_without_a_bound_nobody_waits():
    assert leads(None, range(6))[0] > 3


@pytest.mark.slow
@pytest.mark.parametrize("staleness", range(5))
@pytest.mark.parametrize("part", range(10))
def test_the_bound_holds_in_ten_thousand_interleavings(staleness, part):
    seeds = range(200 * part, 200 * (part + 1))
    assert leads(staleness, seeds, steps=5) == (staleness, staleness)
