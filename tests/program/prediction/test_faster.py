"""The faster of two ways, on a clock that stands still between calls."""

from hypothesis import assume, given
from hypothesis import strategies as st

from singanet.program.prediction.faster import Faster

SECONDS = st.floats(4e-3, 0.1)


class Day:
    """A clock, and two functions that take seconds of it; ``spent`` are those of each."""

    def __init__(self, shared, alone, expected):
        self.now, self.spent, self.calls = 0.0, [0.0, 0.0], []
        self.taken = [shared, alone]
        self.faster = Faster(*map(self._way, range(2)), expected, self._clock)

    def _clock(self):
        return self.now

    def _way(self, k):
        def make(*what):
            self.now += self.taken[k]
            self.spent[k] += self.taken[k]
            self.calls.append(k)
            return k, what

        return make

    def run(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.faster("x", 1)


def test_arguments_and_results_pass():
    assert Day(1.0, 2.0, 2.0).faster("x", 1) == (0, ("x", 1))


def test_one_thread_is_not_tried_while_it_cannot_win():
    day = Day(0.01, 0.02, 0.015)
    day.run(2.0)
    assert set(day.calls) == {0}


@given(SECONDS, SECONDS, st.floats(0.2, 1.0))
def test_the_slower_way_takes_a_small_part_of_the_time(shared, alone, part):
    day = Day(shared, alone, part * min(shared, alone))
    day.run(20 * max(shared, alone, 0.04))
    day.spent, day.calls = [0.0, 0.0], []
    day.run(400 * max(shared, alone, 0.02))
    best = day.taken.index(min(day.taken))
    assert day.calls.count(best) > 0
    lost = day.spent[1 - best] * (1 - day.taken[best] / day.taken[1 - best])
    assert lost < 0.1 * sum(day.spent)


@given(SECONDS, SECONDS)
def test_a_change_is_noticed(one, other):
    assume(max(one, other) > 1.1 * min(one, other))
    day = Day(one, other, 0.9 * min(one, other))
    for _ in range(4):
        day.run(200 * max(one, other, 0.02))
        day.taken.reverse()
        day.run(200 * max(one, other, 0.02))
        day.calls = []
        day.run(100 * max(one, other, 0.02))
        best = day.taken.index(min(day.taken))
        assert day.calls.count(best) > day.calls.count(1 - best)


def test_a_way_that_fails_counts_no_time():
    def fail():
        raise ValueError("no")

    faster = Faster(fail, fail, 1.0, iter([0.0, 1.0]).__next__)
    for _ in range(2):
        try:
            faster()
        except ValueError:
            continue
        raise AssertionError("expected the error of the function")
