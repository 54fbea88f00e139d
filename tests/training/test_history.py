import math

import pytest

from singanet.errors import ArgumentError, FileAccessError
from singanet.training import History
from tests.charts import NEEDED, groups, lines, points, texts


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
    history._amend({"more": 7.0, "lr": 0.3})
    assert history["loss"][:2] == [1.0, 2.0]
    assert math.isnan(history["loss"][2])
    assert math.isnan(history["lr"][0])
    assert history["lr"][1:] == [0.1, 0.3]
    assert math.isnan(history["more"][1])
    assert history["more"][2] == 7.0


@NEEDED
def test_only_measured_values_are_marked_as_not_finite():
    history = History()
    history.record(0, {"loss": 1.0, "score": 1.0})
    history.record(1, {"loss": 1.0})
    assert not groups(history.plot(), "mark")
    history.record(2, {"loss": math.nan, "score": 2.0})
    history.record(3, {"loss": math.nan, "score": 2.0})
    assert {name: len(points(mark)) for name, mark in groups(history.plot(), "mark").items()} == {
        "loss": 1
    }
    assert "epoch · \u00d7 not finite" in texts(history.plot())


@NEEDED
def test_the_picture_has_a_chart_a_quantity_and_a_line_a_name(history, tmp_path):
    for name in ("history.jpg", "history.pdf", "history"):
        with pytest.raises(ArgumentError, match=r"history\.plot.*a file name that ends in \.svg"):
            history.plot(tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    text = history.plot(tmp_path / "history.svg")
    assert (tmp_path / "history.svg").read_text(encoding="utf-8") == text
    found = lines(text)
    assert list(found) == list(history)
    assert [len(each) for each in found.values()] == [3, 3, 3]
    # Left to right; a falling loss goes down, which in SVG is a rising y.
    assert found["loss"] == sorted(found["loss"])
    assert found["loss"][0][1] < found["loss"][1][1] < found["loss"][2][1]
    low, high = found["loss"][2][1], found["val_loss"][0][1]
    # 2.5 is the highest of the chart and 0.5 the lowest; 1.5 lies in the middle of them.
    assert found["val_loss"][1][1] == pytest.approx((low + high) / 2, abs=0.11)
    assert found["accuracy"][0][0] > found["loss"][2][0]  # side by side


@NEEDED
@pytest.mark.parametrize("values", [[], [1.0], [1.0, 1.0], [math.nan, 2.0], [math.inf, math.nan]])
def test_any_history_can_be_drawn(values):
    history = History()
    for k, value in enumerate(values):
        history.record(k, {"<loss> & more": value})
    finite = sum(math.isfinite(value) for value in values)
    assert sum(map(len, lines(history.plot()).values())) == finite
    assert "nan" not in "".join(texts(history.plot()))


@NEEDED
def test_a_place_that_cannot_be_written(history, tmp_path):
    with pytest.raises(FileAccessError):
        history.plot(tmp_path / "missing" / "file.svg")
