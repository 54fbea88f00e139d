"""Pictures in programs other than browsers, which know no CSS variables."""

import re
import shutil
import subprocess
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.base.charts import themed
from singanet.models import build
from singanet.report import plot_confusion
from singanet.training.display import History
from singanet.training.rate_range import RateRange
from tests.charts import NEEDED
from tests.program.report.test_report import report

RSVG = shutil.which("rsvg-convert")


def history():
    made = History()
    made.record(0, {"loss": 2.0, "val_loss": 1.5})
    made.record(1, {"loss": 1.0, "val_loss": 1.0})
    return made


PICTURES = {
    "net": build("mlp", (4,), 3).plot,
    "history": history().plot,
    "rates": RateRange(np.geomspace(1e-3, 1, 20).tolist(), [1.0] * 20).plot,
    "confusion": lambda path=None: plot_confusion(np.eye(3), path),
    "arena": report().plot,
    "on a page": lambda: themed(history().plot()),
}
NAMES = ["net", *(pytest.param(name, marks=NEEDED) for name in PICTURES if name != "net")]


@pytest.mark.parametrize("name", NAMES)
def test_colours_are_literal_with_rules_for_dark_pages_apart(name):
    root = ElementTree.fromstring(PICTURES[name]())
    rules = "".join("".join(each.itertext()) for each in root.iter() if "style" in each.tag)
    styles = [each.get("style", "") for each in root.iter()]
    assert "var(" not in "".join(styles) + rules
    if "@media" in rules:
        known = re.findall(r'\*="((?:fill|stroke): #\w{6})"', rules)
        of_theme = {
            each for style in styles for each in re.findall(r"(?:fill|stroke): #\w+", style)
        }
        assert of_theme
        assert of_theme <= {*known}
    # Sizes are attributes: "auto" is a height of nothing for some.
    assert "auto" not in rules


@NEEDED
@pytest.mark.parametrize("name", list(PICTURES)[:5])
def test_each_is_a_png_of_twice_its_size_too(name, tmp_path):
    image = pytest.importorskip("PIL.Image")
    svg = PICTURES[name](tmp_path / "picture.png")
    assert repr(svg).startswith("<SVG picture of ")
    width, height = map(int, re.findall(r"\d+", repr(svg)))
    with image.open(tmp_path / "picture.png") as found:
        assert found.format == "PNG"
        assert found.size == pytest.approx((2 * width, 2 * height), abs=2)
        pixels = np.asarray(found.convert("L"))
    assert pixels[0, 0] == 255  # the ground of a picture is its own
    assert (pixels < 128).any()


@pytest.mark.skipif(RSVG is None, reason="no rsvg-convert on this machine: librsvg2-bin has it")
@pytest.mark.parametrize("name", NAMES)
def test_they_are_dark_on_light_without_a_browser(name):
    image = pytest.importorskip("PIL.Image")
    command = [RSVG, "--background-color=white"]
    done = subprocess.run(command, input=PICTURES[name]().encode(), capture_output=True, check=True)
    pixels = np.asarray(image.open(BytesIO(done.stdout)).convert("L"))
    assert (pixels < 20).mean() < 0.05
    assert pixels[0, 0] == 255
    assert (pixels < 128).any()
