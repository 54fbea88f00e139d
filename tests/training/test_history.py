from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree

import pytest

from singanet.errors import ArgumentError, FileAccessError
from singanet.training import History

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def history():
    made = History()
    made.record(0, {"loss": 2.0, "val_loss": 2.5, "accuracy": 0.1})
    made.record(1, {"loss": 1.0, "val_loss": 1.5, "accuracy": 0.5})
    made.record(2, {"loss": 0.5, "val_loss": 1.75, "accuracy": 1 / 3})
    return made


def test_is_a_dict_of_lists(history):
    assert history["loss"] == [2.0, 1.0, 0.5]
    assert list(history) == ["loss", "val_loss", "accuracy"]
    assert history.epochs == [0, 1, 2]
    assert history.row(1) == {"loss": 1.0, "val_loss": 1.5, "accuracy": 0.5}


def test_what_an_epoch_did_not_measure_is_nan():
    history = History()
    history.record(0, {"loss": 1.0})
    history.record(1, {"loss": 2.0, "lr": 0.1})
    history.record(2, {"lr": 0.2})
    history.amend({"more": 7.0, "lr": 0.3})
    assert history["loss"][:2] == [1.0, 2.0]
    assert math.isnan(history["loss"][2])
    assert math.isnan(history["lr"][0])
    assert history["lr"][1:] == [0.1, 0.3]
    assert math.isnan(history["more"][1])
    assert history["more"][2] == 7.0


def test_the_picture_has_a_chart_a_quantity_and_a_line_a_name(history, tmp_path):
    for name in ("history.png", "history.pdf", "history"):
        with pytest.raises(ArgumentError, match=r"history\.plot.*a file name that ends in \.svg"):
            history.plot(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    text = history.plot(tmp_path / "history.svg")
    assert (tmp_path / "history.svg").read_text(encoding="utf-8") == text
    root = ElementTree.fromstring(text)
    charts = root.findall(f"{SVG}g")
    lines = [[line.get("points") for line in chart.iter(f"{SVG}polyline")] for chart in charts]
    assert [len(each) for each in lines] == [2, 1]
    points = [tuple(map(float, pair.split(","))) for pair in lines[0][0].split()]
    assert len(points) == 3
    # Left to right; a falling loss goes down, which in SVG is a rising y.
    assert points == sorted(points)
    assert points[0][1] < points[1][1] < points[2][1]
    low = max(y for _, y in points)
    high = min(float(p.split(",")[1]) for p in lines[0][1].split())
    # 2.5 is the highest of the chart and 0.5 the lowest; 1.5 lies in the middle of them.
    middle = float(lines[0][1].split()[1].split(",")[1])
    assert middle == pytest.approx((low + high) / 2, abs=0.11)
    # Side by side, and no rule of the style sheet that reaches beyond the charts.
    assert [chart.get("transform") for chart in charts] == ["translate(0,0)", "translate(460,0)"]
    rules = root.find(f"{SVG}style").text.split("}")
    assert all(rule.strip().startswith(".singanet-chart") for rule in rules if rule.strip())


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [math.nan, 2.0], [math.inf, math.nan]])
def test_any_history_can_be_drawn(values):
    history = History()
    for k, value in enumerate(values):
        history.record(k, {"<loss> & more": value})
    root = ElementTree.fromstring(history.plot())
    finite = sum(math.isfinite(value) for value in values)
    assert len(list(root.iter(f"{SVG}circle"))) == finite
    assert "nan" not in history.plot().lower().replace("finance", "")


def test_a_place_that_cannot_be_written(history, tmp_path):
    with pytest.raises(FileAccessError):
        history.plot(tmp_path / "missing" / "file.svg")
