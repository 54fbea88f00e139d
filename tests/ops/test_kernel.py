"""Routes of kernels: which one is taken, and what stands in where it cannot after all."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from singanet.ops.kernel import NEVER, Route, by_cost, cheapest, in_order, kernel


@kernel(half="native")
def last(ops, x, *, twice=False):
    """What every route does."""
    return f"last {x}{x if twice else ''}"


def says(name, fits, cost=1.0):
    """A route that tells its name."""
    return Route(name, lambda ops, x: f"{name} {x}", lambda ops, x: fits(x), lambda ops, x: cost)


def too_late(name, fits, cost=1.0):
    """A route that finds out only when it runs that it cannot."""
    return Route(name, lambda ops, x: None, lambda ops, x: fits(x), lambda ops, x: cost)


even = says("even", lambda x: x % 2 == 0)


def test_the_first_route_that_fits_is_taken():
    kernels = in_order(
        too_late("late", lambda x: x > 10), even, says("low", lambda x: x < 3), last=last
    )
    assert [kernels(None, x) for x in (1, 2, 5, 11, 12)] == [
        "low 1",
        "even 2",
        "last 5",
        "last 11",
        "even 12",
    ]
    assert [in_order(even, last=last)(None, x) for x in (4, 5)] == ["even 4", "last 5"]
    assert in_order(too_late("late", lambda x: True), last=last)(None, 4) == "last 4"


@pytest.mark.parametrize("count", [1, 2])
def test_a_kernel_is_what_its_last_route_is(count):
    routes = [says("no", lambda x: False)] * count
    made = in_order(*routes, last=last)
    assert made.half == "native"
    assert made.__doc__ == "What every route does."
    assert inspect.signature(made) == inspect.signature(last)
    assert made.routes == tuple(routes)
    options = Route("no", last, lambda ops, x, twice=False: False)
    assert in_order(*[options] * count, last=last)(None, 2, twice=True) == "last 22"


def table(*routes, limit=9):
    """A kernel for numbers up to a limit, and what its chooser is asked."""
    asked = []

    def choose(ops, case, estimates):
        asked.append((case, dict(estimates)))
        return cheapest(estimates)

    made = by_cost(*routes, case=lambda ops, x: x if x <= limit else None, last=last)
    ops = SimpleNamespace(chooser=SimpleNamespace(version=0, choose=choose))
    return lambda x: made(ops, x), asked


def test_of_routes_that_fit_the_chooser_takes_one():
    call, asked = table(says("dear", lambda x: True, 2.0), says("cheap", lambda x: x > 1, 0.5))
    assert [call(x) for x in (5, 1, 10)] == ["cheap 5", "dear 1", "last 10"]
    # With one route there is nothing to choose, and none serves above the limit.
    assert asked == [(5, {"dear": 2.0, "cheap": 0.5})]


def test_the_next_cheapest_stands_in_but_none_that_only_measuring_could_choose():
    late = too_late("late", lambda x: True, 0.5)
    never = says("never", lambda x: True, NEVER)
    call, asked = table(late, says("dear", lambda x: x > 1, 2.0), never)
    assert [call(5), call(1)] == ["dear 5", "last 1"]
    assert asked[0] == (5, {"late": 0.5, "dear": 2.0, "never": NEVER})
    assert np.isinf(NEVER)
