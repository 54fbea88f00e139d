import copy
import gc
import pickle
import signal
import threading
import traceback
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import ArrayLoader, GeneratorLoader, Prefetch
from singanet.data.prefetch import Background
from singanet.errors import ArgumentError
from tests.interrupts import struck_at, threads_gone


def numbers(n=11, batch=2):
    return ArrayLoader(np.arange(n), np.arange(n), batch, seed=2)


def rows(batches):
    return [x.tolist() for x, _ in batches]


def endless(loader):
    while True:
        yield from loader


def workers():
    return [t for t in threading.enumerate() if t.name == "singanet-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.collect()
    assert workers() == []


def rows_of_epoch(epoch):
    return [(np.arange(k, k + 2), epoch) for k in range(6)]


COPIED = [copy.deepcopy, copy.copy, lambda ahead: pickle.loads(pickle.dumps(ahead))]


@given(st.integers(0, 14), st.integers(1, 4), st.booleans(), st.sampled_from(COPIED[::2]))
def test_a_copy_goes_on_behind_the_last_batch_taken(taken, capacity, generated, copied):

    def fresh():
        return GeneratorLoader(rows_of_epoch) if generated else numbers()

    straight = rows(islice(endless(fresh()), 24))
    ahead = Prefetch(fresh(), capacity)
    running = endless(ahead)
    assert rows(islice(running, taken)) == straight[:taken]
    made = copied(ahead)
    assert made.state_dict() == ahead.state_dict()
    assert rows(islice(running, 5)) == straight[taken : taken + 5]
    for _ in range(2):
        # An epoch that was left and begun again goes on, too.
        other = endless(made)
        assert rows(islice(other, 5)) == straight[taken : taken + 5]
        other.close()
        taken += 5
    running.close()


@pytest.mark.parametrize("copied", COPIED)
def test_to_copy_ends_no_iteration(copied):
    ahead = Prefetch(numbers())
    running = iter(ahead)
    next(running)
    copied(ahead).close()
    assert rows(running) == rows(islice(numbers(), 1, None))


def test_leaving_a_loop_ends_the_thread_and_keeps_the_place():
    ahead, expected = Prefetch(numbers()), rows(numbers())
    for x, _ in ahead:
        assert x.tolist() == expected[0]
        break
    assert workers() == []
    assert rows(ahead) == expected[1:]


def test_close_and_a_second_iteration_end_the_first():
    ahead, expected = Prefetch(numbers()), rows(numbers())
    next(first := iter(ahead))
    second = iter(ahead)
    assert next(second)[0].tolist() == expected[1]
    assert list(first) == []
    assert len(workers()) == 1
    ahead.close()
    ahead.close()
    assert workers() == []
    assert ahead.state_dict()["position"] == 2


def test_an_iterator_never_started_starts_nothing():
    ahead = Prefetch(numbers())
    waiting = iter(ahead)
    assert workers() == []
    ahead.load_state_dict(ahead.state_dict())
    assert list(waiting) == []
    assert len(rows(ahead)) == 6


def test_an_error_of_the_thread_is_raised_with_its_traceback_after_the_good_batches():
    def where_it_fails(epoch):
        yield 1, 1
        yield 2, 2
        raise LookupError("third batch")

    ahead = Prefetch(GeneratorLoader(where_it_fails), 8)
    seen = []
    with pytest.raises(LookupError, match="third batch") as caught:
        seen.extend(x for x, _ in ahead)
    assert seen == [1, 2]
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "where_it_fails" in names
    assert ahead.state_dict()["position"] == 2
    assert workers() == []


def test_it_is_ahead_by_its_capacity_and_no_more():
    made = []
    gate = threading.Semaphore(0)

    def source(epoch):
        for k in range(10):
            made.append(k)
            gate.release()
            yield k, k

    ahead = iter(Prefetch(GeneratorLoader(source), 3))
    next(ahead)
    # Taken 1, in the queue 3, in the hands of the thread 1.
    for _ in range(5):
        assert gate.acquire(timeout=30)
    assert not gate.acquire(timeout=0.2)
    assert made == [0, 1, 2, 3, 4]
    ahead.close()


@pytest.mark.parametrize("capacity", [0, -1, 1.5, None])
def test_bad_capacity(capacity):
    with pytest.raises(ArgumentError, match="capacity"):
        Prefetch(numbers(), capacity)
    with pytest.raises(ArgumentError, match="a list without state_dict.*GeneratorLoader"):
        Prefetch([(1, 1)])


def test_an_interrupt_while_the_loader_hangs_ends_at_once():
    hangs, goes_on = threading.Event(), threading.Event()

    def slow(epoch):
        for k in range(4):
            if k == 2 and not goes_on.is_set():
                hangs.set()
                goes_on.wait()
            yield np.array([epoch, k]), k

    ahead = Prefetch(GeneratorLoader(slow), 1)
    batches = iter(ahead)
    assert rows(islice(batches, 2)) == [[0, 0], [0, 1]]
    hangs.wait()
    main = threading.main_thread().ident

    def interrupted():
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        next(batches)

    # Without the interrupt it would wait for ever, as nobody lets the loader go on.
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ahead.state_dict() == {"epoch": 0, "position": 2, "world_size": 1, "before": 0}
    goes_on.set()
    assert rows(ahead) == [[0, 2], [0, 3]]
    assert rows(islice(ahead, 1)) == [[1, 0]]


# Python drops what strikes as it closes a loop that was left.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wherever_it_is_interrupted_it_goes_on_behind_the_last_batch_taken():
    line, struck = 0, True
    while struck:
        line += 1
        ahead, before = Prefetch(numbers()), set(threading.enumerate())
        struck = struck_at(line, lambda: rows(islice(ahead, 3)))  # noqa: B023
        taken = ahead.state_dict()["position"]
        assert rows(ahead) == rows(numbers())[taken:] or taken == 6
        assert threads_gone(before), line
    assert line > 40


def test_a_thread_ends_that_was_forgotten():
    before = set(threading.enumerate())
    batches = Background(iter(range(100)), 2, "singanet-prefetch")
    batches.start()
    assert next(iter(batches)) == 0
    del batches
    gc.collect()
    assert threads_gone(before)
