"""What histories show in notebooks is well-formed and cannot act."""

from __future__ import annotations

from singanet.training import History
from tests.html_check import read_html


def test_a_history_shows_its_curves():
    history = History()
    history.record(0, {"loss": 2.0, "val_loss": 2.5})
    history.record(1, {"loss": 1.0, "val_loss": float("nan")})
    reader = read_html(history._repr_html_())
    assert "svg" in reader.tags
    assert {"loss", "val_loss"} <= set(reader.text)


def test_names_of_measures_cannot_smuggle_markup():
    evil = "<script>alert(1)</script>"
    history = History()
    history.record(0, {evil: 1.0})
    reader = read_html(history._repr_html_())
    assert evil in reader.text


def test_an_empty_history_is_no_error():
    reader = read_html(History()._repr_html_())
    assert "svg" in reader.tags
    assert "polyline" not in reader.tags
