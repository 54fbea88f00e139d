"""Recordings and what they leave."""

import gc
import weakref

import pytest

from singanet.optimizer import Accumulator, ClipByGlobalNorm, ClipByRunningNorm
from singanet.parallel import AllReduce, Sharded
from singanet.program.trace import recorder
from tests.kit.ranks import together
from tests.program.program_case import IMAGES, adam, sgd

OPTIMIZERS = {
    "rule": lambda comm: sgd(),
    "stages": lambda comm: Accumulator(ClipByRunningNorm(adam(), 0.1), 2),
    "norm": lambda comm: ClipByGlobalNorm(sgd(), 0.1),
    "sums": lambda comm: Accumulator(AllReduce(ClipByGlobalNorm(sgd(), 0.1), comm), 2),
    "parts": lambda comm: Sharded(adam(), comm, 2, smallest=100),
}


@pytest.fixture
def tapes(monkeypatch):
    """Weak references to all tapes, while nothing is collected."""
    found = []

    class Known(recorder.Tape):
        def __init__(self):
            super().__init__()
            found.append(weakref.ref(self))

    monkeypatch.setattr(recorder, "Tape", Known)
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tape_goes_with_its_recording_and_needs_no_collector(name, tapes):
    def work(comm):
        net, optimizer = IMAGES.make(), OPTIMIZERS[name](comm)
        for batch in IMAGES.batches(5):
            net.step(*batch, optimizer)
        return net

    nets = together(work)
    assert all(net.programs.reports() for net in nets)
    assert tapes
    assert not any(tape() for tape in tapes)


@pytest.mark.parametrize("name", ["rule", "stages"])
def test_a_plan_needs_no_collector(name, tapes):
    """A collection looks at all objects of the process, which takes longer than a small plan."""
    net, optimizer = IMAGES.make(), OPTIMIZERS[name](None)
    net.memory(16, optimizer, recompute="cheap")
    net.plan(16, optimizer)
    assert len(tapes) > 1
    assert not any(tape() for tape in tapes)
