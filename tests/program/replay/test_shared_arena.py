"""The memory that a net's programs take turns with."""

import threading

import numpy as np

import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.program.replay import replay as recorded
from singanet.program.replay.shared_arena import LONGEST, WORTH, SharedArena, WarmUpPolicy


def nothing():
    """Nobody holds the memory."""


class Program:
    """Counts how often it was told to let go."""

    forgotten = 0

    def forget(self):
        self.forgotten += 1


def test_it_grows_and_then_stays():
    arena, program = SharedArena(), Program()
    small = arena.take(100, program.forget)
    arena.give_back(small)
    large = arena.take(1000, program.forget)
    assert len(large) >= 1000
    assert program.forgotten == 2
    arena.give_back(large)
    assert arena.take(10, program.forget) is large
    assert program.forgotten == 2


def test_what_is_taken_nobody_else_gets():
    arena = SharedArena()
    first, second = arena.take(100, nothing), arena.take(200, nothing)
    assert first is not second
    arena.give_back(second)
    arena.give_back(first)
    assert arena.take(50, nothing) is second


def test_threads_never_share():
    arena, meet, taken = SharedArena(), threading.Barrier(4), []

    def take():
        for _ in range(50):
            meet.wait()
            mine = arena.take(64, nothing)
            taken.append(mine)
            meet.wait()
            arena.give_back(mine)

    workers = [threading.Thread(target=take) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rounds = [taken[k : k + 4] for k in range(0, len(taken), 4)]
    assert all(len({id(array) for array in one}) == 4 for one in rounds)


def test_cleared_memory_is_gone():
    arena = SharedArena()
    first = arena.take(100, nothing)
    arena.give_back(first)
    arena.clear()
    assert arena.take(100, nothing) is not first


# -- Waiting before a net that changes is recorded again --------------------------------------


def waited(wait):
    calls = 0
    while wait.goes_on():
        calls += 1
    return calls


def test_nothing_to_wait_for_at_first():
    assert waited(WarmUpPolicy()) == 0


def test_it_doubles_until_a_recording_pays():
    wait, seen = WarmUpPolicy(), []
    for replays in (0, 1, WORTH - 1, WORTH, 0):
        wait.start(replays)
        seen.append(waited(wait))
    assert seen == [2, 4, 8, 1, 2]
    for _ in range(20):
        wait.start(0)
    assert waited(wait) == LONGEST


def test_a_net_that_changes_at_every_step_is_seldom_recorded(monkeypatch):
    made, kept = [], recorded.recorded
    monkeypatch.setattr(recorded, "recorded", lambda *given: made.append(given) or kept(*given))
    net, optimizer = singanet.FeedForwardNet(SquaredError(), seed=0), SGD(lr=0.1)
    net.add(Dense("a", 3, input_sample_shape=(2,)))
    net.add(Dense("b", 1))
    for number in range(200):
        net.params()[0].trainable = bool(number % 2)
        net.step(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), optimizer)
    assert 0 < len(made) < 20
