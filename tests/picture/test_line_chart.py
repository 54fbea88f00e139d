from __future__ import annotations

import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.picture.line_chart import MOST_LINES, line_chart, line_mark, ticks

numbers = st.floats(-1e12, 1e12)


@given(numbers, numbers)
def test_ticks_rise_and_enclose(a, b):
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    slack = 1e-6 * max(abs(low), abs(high), 1e-300) + 1e-12
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert 2 <= len(found) <= 12
    assert all(x < y for x, y in itertools.pairwise(found))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]), (0.3, 7.9, [0, 2, 4, 6, 8])],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_one_value_stands_between_ticks():
    assert ticks(1, 1)[0] < 1 < ticks(1, 1)[-1]
    assert ticks(0, 0)[0] < 0 < ticks(0, 0)[-1]


def test_points_stand_where_their_values_are():
    chart = line_chart("loss", "epoch", {"loss": [(1, 0.0), (2, 1.0), (3, math.nan), (4, 0.5)]})
    root = ElementTree.fromstring(chart)
    (line,) = root.iter("polyline")
    points = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    assert len(points) == 3
    assert points[0][1] > points[2][1] > points[1][1]  # y grows downwards
    assert points[2][1] == pytest.approx((points[0][1] + points[1][1]) / 2, abs=0.1)
    steps = [b[0] - a[0] for a, b in itertools.pairwise(points)]
    assert steps[1] == pytest.approx(2 * steps[0], abs=0.2)
    assert [dot.find("title").text for dot in root.iter("circle")][1] == "loss: 1 at 2"


def test_lines_differ_in_dashes_and_have_names():
    chart = line_chart("loss", "epoch", {"loss": [(1, 1)], "<b>": [(1, 2)]})
    root = ElementTree.fromstring(chart)
    first, second = root.iter("polyline")
    assert first.get("stroke-dasharray") != second.get("stroke-dasharray")
    assert {"loss", "<b>", "epoch"} <= {text.text for text in root.iter("text")}


def test_so_many_lines_all_look_different_and_as_their_marks():
    names = [f"run {k}" for k in range(MOST_LINES)]
    root = ElementTree.fromstring(
        line_chart("loss", "epoch", {name: [(1, 1)] for name in names}, with_legend=False)
    )
    looks = [(line.get("class"), line.get("stroke-dasharray")) for line in root.iter("polyline")]
    assert len(set(looks)) == MOST_LINES
    marks = [ElementTree.fromstring(line_mark(k)).find("line") for k in range(MOST_LINES)]
    assert [(mark.get("class"), mark.get("stroke-dasharray")) for mark in marks] == looks
    assert [line.find("title").text for line in root.iter("polyline")] == names
    assert not {*names} & {text.text for text in root.iter("text")}


@given(st.integers(0, 10**6), st.integers(0, 10**4))
def test_whole_ticks_enclose_too(low, span):
    found = ticks(low, low + span, whole=True)
    assert found[0] <= low <= low + span <= found[-1]
    assert all(tick == int(tick) for tick in found)
    assert 2 <= len(found) <= 12
    assert all(x < y for x, y in itertools.pairwise(found))


@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 7, 30])
def test_epochs_have_no_fractions(epochs):
    chart = line_chart("loss", "epoch", {"loss": [(k, 1 / k) for k in range(1, epochs + 1)]})
    below = [t for t in ElementTree.fromstring(chart).iter("text") if t.get("y") == "228"]
    assert len(below) > 1
    assert all(re.fullmatch(r"-?\d+", text.text) for text in below)


HUGE = [(1, 1.7e308), (2, -1.7e308), (3, 1.0)]


@pytest.mark.parametrize(
    "lines",
    [
        *({}, {"a": []}, {"a": [(1, math.inf)]}, {"a": [(1, 2.0)]}, {"a": HUGE}),
        *({"a": [(1, 0.0), (2, 5e-324)]}, {"a": [(1, 1e-310), (2, 1e-310)]}, {"a": [(1e299, 1)]}),
        {"a": [(0, -9e299), (1, 9e299)]},
    ],
)
def test_little_or_nothing_to_draw_still_draws(lines):
    drawn = ElementTree.fromstring(line_chart("t", "x", lines))
    assert drawn.tag.endswith("svg")
    assert {"nan", "inf", "-inf"}.isdisjoint(" ".join(drawn.itertext()).split())
