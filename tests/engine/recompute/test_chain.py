"""Schedules of chains: exhaustive search, and an independent dynamic program."""

import math
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.engine.recompute.cheapest_path import ChainStage, Option, Schedules

INFINITE = float("inf")


def stage(time, output, extra, forward=0, backward=0):
    """A stage that saves its output and ``extra``; each way takes bytes of its own on top."""
    saved = output + extra
    option = Option(saved, saved + forward, saved + output + backward)
    return ChainStage(float(time), output, output + forward, (option,))


def drawn(count, seed, most=5):
    draw = random.Random(seed)
    return [
        stage(
            *(draw.randint(1, most) for _ in range(2)), *(draw.randint(0, most) for _ in range(3))
        )
        for _ in range(count)
    ]


def recursion(stages, remember):
    """By first stage, last stage and room: the least time of all ways to go backward through them.

    Either the first stage is saved; or some first ones run for their output alone, the others go
    backward, and the first ones begin again. ``remember`` is `cache`, to work out each case once.
    """

    @remember
    def best(first, last, room):
        if first > last:
            return 0.0
        gradient = stages[last].output if last < len(stages) - 1 else 0
        found = INFINITE
        for option in stages[first].options:
            if max(option.forward + gradient, option.backward) <= room:
                rest = best(first + 1, last, room - option.saved)
                found = min(found, stages[first].time + option.cost + rest)
        need = time = 0
        for split in range(first + 1, last + 1):
            before = stages[split - 2].output if split - 1 > first else 0
            need = max(need, before + stages[split - 1].sweep)
            time += stages[split - 1].time
            if need + gradient > room:
                break
            right = best(split, last, room - stages[split - 1].output)
            if right < INFINITE:
                found = min(found, time + right + best(first, split - 1, room))
        return found

    return best


def exhaustive(stages, room):
    """The least time of all ways, none left out or remembered."""
    return recursion(stages, lambda best: best)(0, len(stages) - 1, room)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_as_exhaustive_search_has_it(count, seed):
    stages = drawn(count, seed)
    whole = sum(s.options[0].saved for s in stages) + 15
    found = Schedules(stages, whole)
    for room in range(0, whole + 1, max(whole // 20, 1)):
        assert found.time(room) == exhaustive(stages, room)


def test_twelve_stages_as_exhaustive_search_has_it():
    stages = drawn(12, 7, 3)
    whole = sum(s.options[0].saved for s in stages) + 10
    found = Schedules(stages, whole)
    room = found.least()
    assert found.time(room) == exhaustive(stages, room)
    assert found.time(room - 1) == exhaustive(stages, room - 1) == INFINITE


def advances(length, checkpoints):
    """Forwards beside those that save: Griewank's closed form for equal stages.

    "Revolve", ACM TOMS 26 (2000), (4): r l − C(c + r, c + 1), with l ≤ C(c + r, c) for the least r.
    """
    repeats = next(
        r for r in range(length + 1) if math.comb(checkpoints + r, checkpoints) >= length
    )
    return repeats * length - math.comb(checkpoints + repeats, checkpoints + 1)


@pytest.mark.parametrize("count", [10, 40, 100, 200])
@pytest.mark.parametrize("checkpoints", [2, 6])
def test_equal_stages_as_griewanks_formula_has_them(count, checkpoints):
    """One stage at a time can be saved; all else is for checkpoints."""
    saved = 40
    stages = [ChainStage(1.0, 1, 0, (Option(saved, saved, saved + 1),)) for _ in range(count)]
    # One more for the input of the stage that is saved.
    room = saved + 1 + checkpoints
    assert Schedules(stages, room).time(room) == count + advances(count, checkpoints)


def remembered(stages, rooms):
    """As `exhaustive`, for more stages: each case once."""
    best = recursion(stages, cache)
    return [best(0, len(stages) - 1, room) for room in rooms]


@pytest.mark.parametrize("count", [16, 30])
def test_longer_chains_as_another_dynamic_program_has_them(count):
    stages = drawn(count, count, 3)
    whole = sum(s.options[0].saved for s in stages) + 10
    found = Schedules(stages, whole)
    rooms = [found.least(), (found.least() + whole) // 3]
    assert [found.time(room) for room in rooms] == remembered(stages, rooms)


def test_two_ways_to_save_a_stage():
    """The first stage half for a little time, or whole for none."""
    ways = (Option(4, 4, 5), Option(1, 4, 5, cost=0.25))
    stages = [ChainStage(1.0, 1, 1, ways), stage(1, 1, 2)]
    found = Schedules(stages, 12)
    assert found.time(12) == 2.0
    least = next(room for room in range(13) if found.time(room) == 2.25)
    assert [a.option for a in found.actions(least) if a.stage == 0 and a.kind == "save"] == [1]
    for room in range(13):
        assert found.time(room) == exhaustive(stages, room)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 999), st.floats(0.0, 1.0))
def test_actions_are_as_long_as_is_told_and_each_goes_backward_once(count, seed, part):
    stages = drawn(count, seed)
    whole = sum(s.options[0].saved for s in stages) + 15
    found = Schedules(stages, whole)
    room = int(found.least() + part * (whole - found.least()))
    actions = found.actions(room)
    time = sum(stages[a.stage].time for a in actions if a.kind != "backward")
    assert time == found.time(room)
    back = [a.stage for a in actions if a.kind == "backward"]
    assert back == list(reversed(range(count)))
    saved = set()
    for action in actions:
        if action.kind == "save":
            assert action.stage not in saved
            saved.add(action.stage)
        elif action.kind == "backward":
            saved.remove(action.stage)


def test_too_little_memory_has_no_schedule():
    found = Schedules(drawn(4, 0), 3)
    assert found.least() is None
    assert found.time(3) == INFINITE
