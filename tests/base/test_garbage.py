"""Blocks without Python's garbage collection."""

import gc

import pytest

from singanet.base import garbage
from singanet.base.garbage import no_collections


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
    monkeypatch.setattr(garbage, "_FOUND_FROZEN", [])
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
