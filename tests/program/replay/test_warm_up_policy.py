"""Waiting before a net that changes is recorded again."""

from __future__ import annotations

import numpy as np

import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.program.replay import replay as recorded
from singanet.program.replay.shared_arena import LONGEST, WORTH, WarmUpPolicy


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
