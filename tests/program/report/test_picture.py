"""The picture of the arena: a rectangle where and when each buffer lies."""

import re
from xml.etree import ElementTree

import pytest

from singanet.errors import ArgumentError, FileAccessError
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import plan_arena
from singanet.program.report import PHASES, ProgramReport
from tests.charts import NEEDED, SVG, groups, texts
from tests.program.report.test_report import report
from tests.program.steps import residual

pytestmark = NEEDED


def boxes(svg):
    """Name → (left, top, width, height, phase) of every buffer's rectangle."""
    found = {}
    for phase in ("input", *PHASES):
        for name, group in groups(svg, phase).items():
            corners = re.findall(r"[ML] (\S+) (\S+)", group.find(f"{SVG}path").get("d"))
            xs, ys = ([float(pair[k]) for pair in corners] for k in (0, 1))
            place = (min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys))
            number, _, label = name.partition(" ")
            found[label or number] = (*place, phase)
    return found


def test_every_buffer_of_the_arena_is_shown_for_as_long_as_it_is_needed():
    found = boxes(report().plot())
    # Parameters are not in the arena.
    assert set(found) == {"x", "y", "relu", "loss", "dy", "dw"}
    wide = found["x"][2] / 4  # needed by kernels 0 to 3
    assert found["y"][2] == pytest.approx(2 * wide, abs=0.02)
    assert found["dw"][2] == pytest.approx(3 * wide, abs=0.02)
    assert found["dw"][3] == pytest.approx(3 * found["x"][3], abs=0.02)
    assert found["y"][1] == found["relu"][1]  # in place
    assert found["dw"][0] == pytest.approx(found["x"][0] + 3 * wide, abs=0.02)
    phases = {name: box[4] for name, box in found.items()}
    assert phases["x"] == "input"
    assert phases["relu"] == "forward"
    assert phases["dy"] == "loss"
    assert phases["dw"] == "backward"
    assert {"x", "y", "relu", "dy", "dw"} <= {*texts(report().plot())}  # those that are large


def test_rectangles_of_nothing_but_pairs_in_place_overlap():
    kernels, buffers = residual((1, 1), 8, 64, 2)
    made = ProgramReport(kernels, buffers, plan_arena(kernels, buffers))
    # On a grid of kernels: half a kernel in from both sides, so that touching is no overlap.
    found = sorted(boxes(made.plot()).values())
    assert len(found) > 50
    tight = [(x + 0.3, y + 0.02, x + w - 0.3, y + h - 0.02) for x, y, w, h, _ in found]
    pairs = len(made.layout.in_place)
    meets = sum(
        a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
        for i, a in enumerate(tight)
        for b in tight[i + 1 :]
    )
    assert 0 < meets <= pairs


def test_the_phases_are_named():
    words = texts(report().plot())
    for phase in ("input", "forward", "loss", "backward", "communication", "update"):
        assert phase in words
    assert any("arena of 6." in text for text in words)


def test_the_line_shows_the_bytes_needed():
    (line,) = groups(report().plot(), "needed").values()
    heights = re.findall(r"[ML] \S+ (\S+)", line.find(f"{SVG}path").get("d"))
    assert len({*heights}) == 1 + len({*report().live_bytes})  # from the ground and back


def test_labels_cannot_smuggle_markup():
    buffers = [Buffer(64, "input"), Buffer(64, label="<script>x</script>")]
    kernels = [Kernel("k", (0,), (1,), "</svg>")]
    svg = ProgramReport(kernels, buffers, plan_arena(kernels, buffers)).plot()
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    assert "<script>x</script>" in boxes(svg)


def test_an_empty_program_is_an_empty_picture():
    assert boxes(ProgramReport([], [], plan_arena([], [])).plot()) == {}


def test_the_file_is_the_text(tmp_path):
    svg = report().plot(tmp_path / "arena.svg")
    assert (tmp_path / "arena.svg").read_text(encoding="utf-8") == svg
    with pytest.raises(FileAccessError, match="missing"):
        report().plot(tmp_path / "missing" / "arena.svg")
    with pytest.raises(ArgumentError, match=r"\.svg"):
        report().plot(tmp_path / "arena.pdf")
