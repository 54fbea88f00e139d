"""What surrounds a recording: Python's collector is kept from what stays."""

import gc
import weakref

import pytest

from singanet.optimizer import Accumulator, ClipByGlobalNorm, ClipByRunningNorm
from singanet.parallel import AllReduce, Sharded
from singanet.program.trace import recorder
from singanet.program.trace.recorder import no_collections
from tests.kit.ranks import together
from tests.program.program_case import IMAGES, adam, sgd


@pytest.fixture(scope="module", autouse=True)
def thawed():
    """What the tests have frozen once they were imported is frozen again at the end."""
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    yield
    gc.collect()
    if frozen:
        gc.freeze()


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch):
    monkeypatch.setattr(recorder, "_FOUND_FROZEN", [])
    yield
    gc.enable()
    gc.unfreeze()


def test_what_is_made_inside_is_old_afterwards():
    with no_collections():
        assert not gc.isenabled()
        kept = [[] for _ in range(1000)]
    assert gc.isenabled()
    young = {id(each) for each in gc.get_objects(generation=0)}
    assert young.isdisjoint(map(id, kept))
    assert not gc.get_freeze_count()


def test_what_a_user_has_frozen_stays_frozen():
    gc.freeze()
    before = gc.get_freeze_count()
    with no_collections():
        pass
    assert gc.get_freeze_count() == before > 0


def test_what_is_frozen_is_counted_once(monkeypatch):
    """Counting takes as long as there are objects: 50 ms for a million, at each recording."""
    gc.freeze()
    counts, count = [], gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    for _ in range(3):
        with no_collections():
            pass
    assert len(counts) == 1


@pytest.mark.full
def test_a_collector_that_is_off_stays_off():
    gc.disable()
    with no_collections(), no_collections():
        pass
    assert not gc.isenabled()


OPTIMIZERS = {
    "rule": lambda comm: sgd(),
    "stages": lambda comm: Accumulator(ClipByRunningNorm(adam(), 0.1), 2),
    "norm": lambda comm: ClipByGlobalNorm(sgd(), 0.1),
    "sums": lambda comm: Accumulator(AllReduce(ClipByGlobalNorm(sgd(), 0.1), comm), 2),
    "parts": lambda comm: Sharded(adam(), comm, 2, smallest=100),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tape_goes_with_its_recording_and_needs_no_collector(name, monkeypatch):
    tapes = []

    class Known(recorder.Tape):
        def __init__(self):
            super().__init__()
            tapes.append(weakref.ref(self))

    monkeypatch.setattr(recorder, "Tape", Known)

    def work(comm):
        net, optimizer = IMAGES.make(), OPTIMIZERS[name](comm)
        for batch in IMAGES.batches(5):
            net.step(*batch, optimizer)
        return net

    gc.disable()
    nets = together(work)
    assert all(net.programs.reports() for net in nets)
    assert tapes
    assert not any(tape() for tape in tapes)
