"""Charts, and their colours in programs other than browsers."""

import itertools
import math
import re
import shutil
import subprocess
import sys
from base64 import b64decode
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.base.charts import (
    MOST_LINES,
    LineChart,
    heat_map,
    line_charts,
    line_rules,
    selectable,
    themed,
)
from singanet.errors import BackendError
from singanet.models import build
from singanet.report import plot_confusion
from singanet.training.display import History
from singanet.training.rate_range import RateRange
from tests.charts import NEEDED, SVG, groups, lines, points, texts
from tests.program.report.test_report import report


def drawn(shown, **options):
    return line_charts("test", [LineChart("loss", "epoch", shown, **options)])


def test_without_the_extra_the_line_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(BackendError, match=r"test: .*matplotlib.*pip install 'singanet\[report\]'"):
        drawn({})


@NEEDED
def test_points_stand_where_their_values_are():
    found = lines(drawn({"loss": [(1, 0.0), (2, 1.0), (3, math.nan), (4, 0.5)]}))["loss"]
    assert len(found) == 3
    assert found[0][1] > found[2][1] > found[1][1]  # y grows downwards
    assert found[2][1] == pytest.approx((found[0][1] + found[1][1]) / 2, abs=0.1)
    steps = [b[0] - a[0] for a, b in itertools.pairwise(found)]
    assert steps[1] == pytest.approx(2 * steps[0], abs=0.2)


@NEEDED
def test_a_long_line_keeps_its_ends_and_its_peaks():
    values = [(k, k % 2) for k in range(10_000)]
    values[5_000] = (5_000, 7.0)
    found = lines(drawn({"loss": values}))["loss"]
    assert 300 < len(found) <= 400
    heights = sorted(y for _, y in found)
    assert heights[1] - heights[0] > 0.5 * (heights[-1] - heights[0])
    short = lines(drawn({"loss": values[:5]}))["loss"]
    assert (found[0][0], found[-1][0]) == (short[0][0], short[-1][0])
    # Each of many lines has fewer points.
    many = lines(drawn({f"run {k}": values[:200] for k in range(64)}, legend=False))
    assert {len(line) for line in many.values()} == {100}


FALLING = [(k, 5.0 * 0.9**k) for k in range(100)]


@NEEDED
def test_a_loss_that_falls_by_powers_of_ten_has_a_logarithmic_axis():
    found = lines(drawn({"loss": FALLING}))["loss"]
    slopes = [b[1] - a[1] for a, b in itertools.pairwise(found)]
    assert slopes == pytest.approx([slopes[0]] * 99, abs=1e-3)
    assert {"0.01", "1"} <= {*texts(drawn({"loss": FALLING}))}
    # Zero has no logarithm.
    assert len(lines(drawn({"loss": [*FALLING, (100, 0.0)]}))["loss"]) == 101


@NEEDED
@pytest.mark.parametrize("lost", [1e5, 1e20, 1e120, -1e5])
def test_a_value_far_off_is_cut_and_marked(lost):
    good = {f"run {k}": [(1, 2.0), (2, 1.0)] for k in range(2)}
    alone = lines(drawn(good))["run 0"]
    svg = drawn({**good, "run 2": [(1, 2.0), (2, lost)]})
    found = lines(svg)
    assert np.allclose(found["run 0"], alone, atol=0.1)
    assert (found["run 2"][1][1] < found["run 0"][0][1]) == (lost > 0)
    ((name, mark),) = groups(svg, "mark").items()
    assert (name, len(points(mark))) == ("run 2", 1)
    assert look(mark)[-1] == "#b42318"
    sign = "\u25b2 above 10" if lost > 0 else "\u25bc below -10"
    assert f"epoch · {sign}" in texts(svg)


def look(group):
    """Colour and dashes of the first path."""
    style = next(group.iter(f"{SVG}path")).get("style")
    return re.findall(r"(?:stroke|stroke-dasharray): ([^;]+)", style)


@NEEDED
def test_so_many_lines_all_look_different():
    names = [f"_run $k {k}" for k in range(MOST_LINES)]
    shown = {name: [(k, k) for k in range(30)] for name in names}
    svg = drawn(shown, legend=False)
    looks = [look(group) for group in groups(svg, "line").values()]
    assert list(groups(svg, "line")) == names
    assert len({*map(tuple, looks)}) == MOST_LINES
    assert not {*names} & {*texts(svg)}
    assert {*names[:2], "loss", "epoch"} <= {*texts(drawn({n: shown[n] for n in names[:2]}))}


@NEEDED
def test_lines_of_a_page_are_shown_by_their_numbers():
    shown = {"0": [(1, 1.0), (2, 0.5)], "1": [(1, 1.0)], "2": [(1, 0.5), (2, math.nan)], "3": []}
    svg = selectable(themed(drawn(shown, legend=False)), {1: 0, 2: 15})
    found = ElementTree.fromstring(svg).findall(f".//{SVG}g[@data-run]")
    assert [(each.get("data-run"), each.get("data-slot")) for each in found] == [
        *(("0", None), ("1", "0"), ("2", "15")),
        ("2", "15"),  # the mark
    ]
    assert [len(re.findall("[ML]", each[0].get("d"))) for each in found[:3]] == [2, 1, 1]
    assert found[1][0].get("d").endswith("h 0")  # a dot
    assert not re.search(r'<g id="', svg)
    rules = re.findall(r'\[data-slot="(\d+)"\] .line\{(.*?)\}', line_rules())
    assert [int(slot) for slot, _ in rules] == [*range(MOST_LINES)]
    assert len({look for _, look in rules}) == MOST_LINES


@NEEDED
@pytest.mark.parametrize(("title", "beside"), [("loss", True), ("loss_of_the_second_head", False)])
def test_a_legend_that_is_too_long_for_the_title_stands_below_it(title, beside):
    svg = line_charts("test", [LineChart(title, "epoch", {title: [], f"val_{title}": []})])
    found = [each for each in ElementTree.fromstring(svg).iter(f"{SVG}text") if title in each.text]
    heights = [float(each.get("y")) for each in found]
    assert len(heights) == 3
    assert (max(heights) - min(heights) < 5) == beside


@NEEDED
@pytest.mark.parametrize("epochs", [1, 2, 3, 4, 7, 30])
def test_epochs_have_no_fractions(epochs):
    svg = drawn({"loss": [(k, 1 / k) for k in range(1, epochs + 1)]})
    axis = ElementTree.fromstring(svg).find(f".//{SVG}g[@id='matplotlib.axis_1']")
    *below, name = [text.text for text in axis.iter(f"{SVG}text")]
    assert name == "epoch"
    assert below
    assert all(re.fullmatch(r"[-−]?\d+", text) for text in below)


HUGE = [(1, 1.7e308), (2, -1.7e308), (3, 1.0)]


@NEEDED
@pytest.mark.parametrize(
    "shown",
    [
        *({}, {"a": []}, {"a": [(1, math.inf)]}, {"a": [(1, 2.0)]}, {"a": HUGE}),
        *({"a": [(1, 0.0), (2, 5e-324)]}, {"a": [(1, 1e-310), (2, 1e-310)]}, {"a": [(1e299, 1)]}),
        *({"a": [(0, -9e299), (1, 9e299)]}, {"a": [(0, -9e99), (1, 9e99)]}),
        {"$\\bad$": [(1, 1)], "\x00\ud800\n": [(2, 2)], "数": [(1, 0)], "a" * 9000: [(1, 1)]},
    ],
)
def test_whatever_is_to_be_drawn_is_well_formed(shown):
    root = ElementTree.fromstring(themed(drawn(shown)))
    assert root.tag == f"{SVG}svg"
    assert {"nan", "inf", "-inf"}.isdisjoint(" ".join(root.itertext()).split())


@NEEDED
def test_drawing_leaves_the_settings_of_matplotlib_as_they_were():
    import matplotlib

    before, loaded = matplotlib.rcParams.copy(), "matplotlib.pyplot" in sys.modules
    assert drawn({"loss": [(1, 1)]}) == drawn({"loss": [(1, 1)]})
    assert matplotlib.rcParams.copy() == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded


def cells(svg, rows, columns):
    """A pixel of each cell of a heat map, its first image."""
    from PIL import Image

    image = next(ElementTree.fromstring(svg).iter(f"{SVG}image"))
    data = image.get("{http://www.w3.org/1999/xlink}href").partition(",")[2]
    found = np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGBA"))
    sharp = min(4, 768 // max(rows, columns))  # also where a viewer smooths it
    assert min(found.shape[0] // rows, found.shape[1] // columns) >= sharp
    return found[:: found.shape[0] // rows, :: found.shape[1] // columns]


@NEEDED
def test_cells_are_coloured_by_powers_of_ten():
    rows = {"a/w": [0.01, 0.1, 1.0], "b/w": [0.0, math.nan, 1e-2]}
    found = cells(heat_map("test", ["epoch 1", "2", "epoch 3"], rows), 2, 3).astype(int)
    middle = cells(heat_map("test", ["1", "2", "3"], {"a": [1.0, 10.0, 100.0]}), 1, 3)[0]
    assert found[0].tolist() == middle.tolist()  # as far apart from each other
    assert found[0, 0].tolist() == found[1, 2].tolist()
    assert found[1, 0, 3] == 0
    assert found[1, 1].tolist() == [180, 35, 24, 255]
    shown = texts(heat_map("test", ["epoch 1", "2", "epoch 3"], rows))
    assert {"a/w", "b/w", "epoch 1", "epoch 3"} <= {*shown}
    for values in ({"a": [2.0], "b": [2.0]}, {"a": [0.0]}, {"a": [5e-324, 1e299]}):
        svg = heat_map("test", ["1", "2"][: len(values["a"])], values)
        assert "nan" not in "".join(texts(svg))


@NEEDED
@pytest.mark.parametrize("high", [0.29, 300.0, 5e9])
def test_the_scale_of_a_map_is_labelled_in_plain_text(high):
    rows = {name: [0.21, high] for name in "abcdefgh"}
    columns = ["epoch 1", "epoch 2"]
    found = texts(heat_map("test", columns, rows))
    labels = [float(text.replace("\u2212", "-")) for text in found if text not in {*rows, *columns}]
    assert labels == sorted(labels)
    assert (labels[0], labels[-1]) == (0.21, high)
    assert len(labels) == 4


@NEEDED
def test_a_long_name_takes_no_room_from_the_cells():
    name = "encoder/" * 30 + "weight"
    svg = heat_map("test", ["epoch 1"], {name: [1.0]})
    assert float(re.search(r'viewBox="0 0 (\S+) ', svg)[1]) < 500
    assert "…" + name[-43:] in texts(svg)


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
        of_theme = {*re.findall(r"(?:fill|stroke): #\w+", " ".join(styles))}
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
