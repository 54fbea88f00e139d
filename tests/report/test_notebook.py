"""What histories show in notebooks is well-formed and cannot act."""

from __future__ import annotations

import sys

from singanet.training import History
from tests.charts import NEEDED, images, lines, texts, without_images

pytestmark = NEEDED


def test_a_history_shows_its_curves():
    history = History()
    history.record(0, {"loss": 2.0, "val_loss": 2.5})
    history.record(1, {"loss": 1.0, "val_loss": float("nan")})
    ((alt, svg),) = images(history._repr_html_())
    assert alt == "curves"
    assert {"loss", "val_loss"} <= {*texts(svg)}


def test_names_of_measures_cannot_smuggle_markup():
    evil = "<script>alert(1)</script>"
    history = History()
    history.record(0, {evil: 1.0})
    shown = history._repr_html_()
    ((_, svg),) = images(shown)
    assert evil in texts(svg)
    assert without_images(shown) == ""


def test_an_empty_history_is_no_error():
    ((_, svg),) = images(History()._repr_html_())
    assert lines(svg) == {}


def test_without_the_extra_a_history_is_text(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert History()._repr_html_() is None
