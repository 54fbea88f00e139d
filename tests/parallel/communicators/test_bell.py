"""Bells by which processes of one machine wake each other."""

import threading
import time

import pytest

pytest.importorskip("mpi4py", exc_type=ImportError)

from singanet.parallel.communicators.mpi import _made, own_bell


@pytest.fixture
def bells():
    made = _made(), _made()
    if None in made:
        pytest.skip("only Linux has sockets without files")
    yield made
    for each in made:
        each._own.close()


def waited(bell, seconds):
    began = time.monotonic()
    bell.wait(seconds)
    return time.monotonic() - began


def test_who_waits_is_woken(bells):
    one, other = bells
    later = threading.Timer(0.05, lambda: other.ring(one.name))
    later.start()
    assert waited(one, 30) < 20
    later.join()


def test_it_is_heard_by_who_waits_next_once(bells):
    one, other = bells
    assert other.ring(one.name)
    assert other.ring(one.name)
    assert waited(one, 30) < 20
    assert waited(one, 0.02) >= 0.015


def test_rings_that_nobody_hears_are_no_error(bells):
    one, other = bells
    assert all(other.ring(one.name) for _ in range(5000))
    one._own.close()
    assert not other.ring(one.name)


def test_a_process_has_one():
    assert own_bell() is own_bell()
