"""Executors of several ranks go on to the bit from their file: in place, anew, on other ranks."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Executor, Input
from singanet.checkpoint import open_state
from singanet.layers import BatchNormalization, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Accumulator, Adam
from tests.kit.nets import values_of
from tests.kit.ranks import served, together
from tests.saving import states

RNG = np.random.default_rng(5)
IDS = RNG.integers(0, 20, (40, 8, 3))
LABELS = RNG.integers(0, 4, (40, 8))

# With "alone" and "gathered" the executor itself reduces, by parallel=.
REDUCERS = {**states.REDUCERS, "gathered": lambda rule, comm, ranks: Accumulator(rule, 2)}
del REDUCERS["sharded 3"]


class Job:
    """The executor of one rank, which takes an uneven part of each batch."""

    def __init__(self, name, comm, ranks=None, seed=1):
        ids, y = Input("x", (3,), dtype="int64"), Input("y", (), dtype="int64")
        body = Flatten("f")(Embedding("e", 20, 4)(ids))
        body = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("a", 12)(body)))
        loss = SoftmaxCrossEntropy()(Dense("b", 4)(body), y)
        self.rule = Adam(lr=0.05)
        optimizer = REDUCERS[name](self.rule, comm, ranks)
        programs = {"train": [loss, optimizer.minimize(loss)], "look": [loss]}
        self.executor = Executor(programs, seed=seed, parallel=comm)
        even = comm is None or comm.size != 2
        self.part = slice(None) if even else [slice(0, 3), slice(3, 8)][comm.rank]

    def run(self, *batches):
        feeds = ({"x": IDS[k][self.part], "y": LABELS[k][self.part]} for k in range(*batches))
        return [self.executor.run("train", feed)[0] for feed in feeds]

    def values(self):
        return values_of(self.executor.net)


def ranks(name, work):
    """The results of ``work(comm)`` or ``work(comm, servers)`` on two ranks."""
    return (served if name in ("hybrid", "servers") else together)(work)


def expect_same(found, wanted):
    assert found[0] == wanted[0]
    for key, value in found[1].items():
        np.testing.assert_array_equal(value, wanted[1][key], err_msg=key)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", REDUCERS)
def test_ranks_go_on_to_the_bit(tmp_path, name):
    """In place after other steps at another rate, and anew before the first run."""
    path = tmp_path / "run.npz"

    def saved(comm, *servers):
        job = Job(name, comm, *servers)
        job.run(5)
        job.rule.lr = 0.02
        job.executor.save(path)
        comm.barrier()
        wanted = job.run(5, 11), job.values()
        job.rule.lr = 0.5
        job.run(3)
        job.executor.load(path)
        expect_same((job.run(5, 11), job.values()), wanted)
        return wanted

    every = ranks(name, saved)
    with open_state(path) as reader:
        floats = [array for array in dict(reader).values() if array.dtype.kind == "f"]
    assert all(np.isfinite(array).all() for array in floats)

    def anew(comm, *servers):
        job = Job(name, comm, *servers, seed=7 + comm.rank)
        job.executor.load(path)
        expect_same((job.run(5, 11), job.values()), every[comm.rank])

    ranks(name, anew)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["alone", "sharded 2", "local", "hybrid"])
def test_other_ranks_go_on_from_the_same_values(tmp_path, name):
    """From two ranks to one and back; after that each rank has random draws of its own."""
    path, back = tmp_path / "run.npz", tmp_path / "back.npz"

    def saved(comm, *servers):
        job = Job(name, comm, *servers)
        job.run(5)
        job.executor.save(path)
        job.executor.run("look", {"x": IDS[0], "y": LABELS[0]})
        return job.values()

    every = ranks(name, saved)
    lone = Job(name, None)
    lone.executor.load(path)
    for key, value in lone.values().items():
        # Running state of all is the mean of each rank's own.
        if key not in ("bn/mean", "bn/var"):
            np.testing.assert_array_equal(value, every[0][key], err_msg=key)
    lone.run(5, 8)
    lone.executor.save(back)
    wanted = lone.values()

    def anew(comm, *servers):
        job = Job(name, comm, *servers)
        job.executor.load(back)
        for key, value in job.values().items():
            np.testing.assert_array_equal(value, wanted[key], err_msg=key)
        return job.run(8, 11), job.executor.net.rng.random()

    (one, drawn), (other, drawn_there) = ranks(name, anew)
    assert np.isfinite(one).all()
    assert np.isfinite(other).all()
    assert drawn != drawn_there
