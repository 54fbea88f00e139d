from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from singanet.report.pages import heat_map


def test_cells_are_stronger_for_larger_values_by_powers_of_ten():
    chart = heat_map("t", ["1", "2", "3"], {"a/w": [0.01, 0.1, 1.0], "b/w": [0.0, math.nan, 1e-2]})
    root = ElementTree.fromstring(chart)
    cells = [float(r.get("fill-opacity")) for r in root.iter("rect") if r.get("class") == "heat"]
    assert cells == pytest.approx([0.08, 0.54, 1.0, 0.08])
    assert len([r for r in root.iter("rect") if r.get("class") == "bad"]) == 1
    assert any("b/w, 2: nan" in title.text for title in root.iter("title"))


def test_a_map_of_equal_values_or_of_none():
    ElementTree.fromstring(heat_map("t", [], {}))
    root = ElementTree.fromstring(heat_map("t", ["1"], {"a": [2.0], "b": [2.0]}))
    assert {r.get("fill-opacity") for r in root.iter("rect")} == {"1.000"}


def test_a_long_name_takes_no_room_from_the_cells():
    name = "encoder/" * 30 + "weight"
    drawn = heat_map("norms", ["epoch 1"], {name: [1.0]})
    width = float(re.search(r'viewBox="0 0 (\d+) ', drawn)[1])
    assert width < 400
    assert f"{name}, epoch 1: 1" in drawn
