"""Graphs of launches, on a device that captures what it is told."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from singanet.program.on_device.device_products import Graphs
from singanet.testing import watch_device
from singanet.testing.device_like import device_like

NAMES = "abcdef"


class Calls:
    """A call for each name, which notes it behind those before; some are not to be captured."""

    def __init__(self, refused="", breaking=""):
        self.noted = device_like.zeros(len(NAMES) + 1, np.int64)
        self.refused, self.breaking = refused, breaking
        self.graphs = Graphs(device_like, [lambda name=name: self.call(name) for name in NAMES])

    def call(self, name):
        captured = device_like.cuda.get_current_stream().capture is not None
        if captured and name in self.refused:
            raise NotImplementedError(f"{name} cannot be captured")
        if captured and name in self.breaking:
            with contextlib.suppress(device_like.cuda.runtime.CUDARuntimeError):
                float(self.noted[0])
        # How many there are so far, as a new array that a pool has to hold.
        count = self.noted[:1] + 1
        self.noted[NAMES.index(name) + 1 :][:1] = count
        self.noted[:1] = count

    def run(self):
        """The names in the order of the calls, and what was launched."""
        self.noted.fill(0)
        with watch_device() as watch:
            self.graphs()
        count, *places = self.noted.tolist()
        assert count == len(NAMES)
        return "".join(sorted(NAMES, key=lambda name: places[NAMES.index(name)])), watch


def test_the_first_time_is_by_calls_and_then_one_graph():
    calls = Calls()
    for time in range(3):
        order, watch = calls.run()
        assert order == NAMES
        assert (watch.graphs, bool(watch.launches)) == ((1, False) if time else (0, True))
    assert calls.graphs.refused == {}
    assert (calls.graphs.graphs, calls.graphs.captured) == (1, len(NAMES))


@pytest.mark.parametrize(
    ("refused", "graphs"),
    [
        ("c", ["ab", "def"]),
        ("a", ["bcdef"]),
        ("f", ["abcde"]),
        ("bd", ["a", "c", "ef"]),
        ("cd", ["ab", "ef"]),
        ("abcdef", []),
    ],
)
def test_what_is_refused_is_called_between_graphs(refused, graphs):
    calls = Calls(refused)
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    made = calls.graphs
    assert watch.graphs == made.graphs
    # One call alone is as well launched by itself.
    assert made.graphs == sum(len(graph) > 1 for graph in graphs)
    assert made.captured == sum(len(graph) for graph in graphs if len(graph) > 1)
    assert sorted(made.refused) == [NAMES.index(name) for name in refused]
    assert all("cannot be captured" in why for why in made.refused.values())


def test_a_capture_that_breaks_leaves_all_to_calls():
    calls = Calls(breaking="d")
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    assert (watch.graphs, calls.graphs.graphs) == (0, 0)
    assert "invalidated by float" in calls.graphs.refused[0]


def test_a_call_that_waits_is_made_between_graphs():
    calls = Calls()
    calls.graphs = Graphs(
        device_like, [*calls.graphs._calls[:3], calls.noted.tolist, *calls.graphs._calls[3:]]
    )
    calls.run()
    order, watch = calls.run()
    assert order == NAMES
    assert (watch.graphs, watch.reads) == (2, 1)
    assert "tolist" in calls.graphs.refused[3]
