"""Objects that show themselves: in notebooks, at a prompt and printed."""

import math
import pickle
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.report import plot_confusion
from singanet.training import History
from singanet.training.rate_range import RateRange
from tests.charts import NEEDED, images, lines, texts, without_images
from tests.html_check import read_html
from tests.program.report.test_report import report

EVIL = "<script>alert(1)</script>&"


def net():
    made = singanet.FeedForwardNet(
        [Dense(EVIL, 3, input_shape=(4,)), Activation("relu"), Dense("b", 2)], seed=0
    )
    made.compile(singanet.optimizer.SGD(lr=0.1), singanet.loss.SoftmaxCrossEntropy())
    return made


def history(epochs=3):
    made = History()
    for k in range(epochs):
        made.record(k, {"loss": 1 / (k + 1), EVIL: math.nan, **{f"m{j}": 0.5 for j in range(30)}})
    return made


def rates():
    return RateRange(np.geomspace(1e-3, 1, 60).tolist(), [*np.linspace(3, 1, 60)])


SHOWN = {
    "net": net,
    "summary": lambda: net().summary(),
    "summary with memory": lambda: net().summary(4),
    "summary, not built": lambda: singanet.FeedForwardNet([Dense(EVIL, 3)]).summary(),
    "folded summary": lambda: singanet.models.build("vit_tiny", (3, 32, 32), 9).summary(),
    "plot": lambda: net().plot(),
    "folded plot": lambda: singanet.models.build("vit_tiny", (3, 32, 32), 9).plot(),
    "plot, not built": lambda: singanet.FeedForwardNet([Dense(EVIL, 3)]).plot(),
    "memory": lambda: net().memory(4),
    "plan": lambda: net().plan(4, memory_budget="30MB"),
    "picture of a plan": lambda: net().plan(4).picture(),
    "report": report,
    "history": history,
    "history of many epochs": lambda: history(1000),
    "rates": rates,
    **{
        name: pytest.param(draw, marks=NEEDED)
        for name, draw in {
            "history.plot": lambda: history().plot(),
            "rates.plot": lambda: rates().plot(),
            "confusion": lambda: plot_confusion(np.eye(2), labels=[EVIL, "b"]),
            "report.plot": lambda: report().plot(),
        }.items()
    },
}


@pytest.mark.few(6)
@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_objects_show_themselves(make, monkeypatch):
    shown = make()
    assert type(str(shown)) is str
    assert len(repr(shown)) <= 100
    assert "\n" not in repr(shown)
    assert repr(pickle.loads(pickle.dumps(shown))) == repr(shown)
    html = getattr(shown, "_repr_html_", lambda: None)()
    svg = getattr(shown, "_repr_svg_", lambda: None)()
    assert html or svg
    for each in filter(None, (html, svg)):
        assert "var(" not in each
    if svg:
        assert not [*ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}script")]
        assert svg == str(shown)
    if html:
        assert "\n" not in html.partition("<pre>")[0].partition("<svg")[0]
        read_html(without_images(html))
        # Without the extra there is something to see, too.
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        reader = read_html(make()._repr_html_())
        assert "".join(reader.text).strip()


@NEEDED
def test_a_history_shows_its_curves():
    history = History()
    history.record(0, {"loss": 2.0, "val_loss": 2.5})
    history.record(1, {"loss": 1.0, "val_loss": float("nan")})
    ((alt, svg),) = images(history._repr_html_())
    assert alt == "curves"
    assert {"loss", "val_loss"} <= {*texts(svg)}


@NEEDED
def test_names_of_measures_cannot_smuggle_markup():
    shown = history()._repr_html_()
    ((_, svg),) = images(shown)
    assert EVIL in texts(svg)
    assert without_images(shown) == ""


@NEEDED
def test_an_empty_history_is_no_error():
    ((_, svg),) = images(History()._repr_html_())
    assert lines(svg) == {}
    assert repr(History()) == "<History: 0 epochs>"


def test_without_the_extra_a_history_is_a_table_of_both_ends(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = read_html(history(1000)._repr_html_()).text
    assert {"epoch", "loss", EVIL, "10", "…", "991"} <= {*text}
    assert not {"11", "990"} & {*text}
    assert str(history(2)) == str(dict(history(2)))
