"""The report of a program: figures that add up, tables, data, HTML."""

import json
import re
import time
from xml.etree import ElementTree

import numpy as np
import pytest

from singanet.errors import ArgumentError, CallOrderError, FileAccessError
from singanet.models import build
from singanet.optimizer import SGD
from singanet.program.ir import Buffer, Kernel
from singanet.program.layout import plan_arena
from singanet.program.report import PHASES, ProgramReport
from tests.charts import HERE, NEEDED, SVG, groups, texts
from tests.html_check import read_html
from tests.program.steps import at_random, residual
from tests.program.test_layout import check

MB = 10**6
BUFFERS = (
    Buffer(MB, "input", "x"), Buffer(3 * MB, "parameter", "fc/weight"), Buffer(2 * MB, label="y"),
    Buffer(2 * MB, label="relu"), Buffer(4, "output", "loss"), Buffer(2 * MB, label="dy"),
    Buffer(3 * MB, label="dw"),
)  # fmt: skip
KERNELS = (
    Kernel("matmul", (0, 1), (2,), "fc", "forward"),
    Kernel("relu", (2,), (3,), "relu", "forward", ((2, 3),)),
    Kernel("loss", (3,), (4, 5), "", "loss"),
    Kernel("matmul", (0, 5), (6,), "fc", "backward"),
    Kernel("reduce", (6,), (6,), "fc", "communication"),
    Kernel("sgd", (1, 6), (1,), "fc", "update"),
)
SECONDS = (0.004, 0.001, 0.0005, 0.008, 0.002, 0.0015)


def report(seconds=SECONDS, notes=()):
    return ProgramReport(KERNELS, BUFFERS, plan_arena(KERNELS, BUFFERS), seconds, notes)


def test_memory_adds_up():
    made = report()
    # x 1 MB, y and relu 2 MB in one place, then dy 2 and dw 3 beside x: the fourth kernel needs 6.
    assert made.live_bytes == (3 * MB, 3 * MB, 5 * MB + 64, 6 * MB + 64, 3 * MB + 64, 3 * MB + 64)
    assert made.peak_kernel == 3
    assert made.layout.lower_bound == 6 * MB + 64
    assert made.layout.unplanned_bytes == 10 * MB + 64
    assert made.outside_bytes == 3 * MB
    assert made.peak_bytes == made.layout.nbytes + 3 * MB
    assert made.saved == 1 - made.layout.nbytes / (10 * MB + 64)


def test_phases_and_layers_share_kernels_bytes_and_seconds():
    phases, layers = report().phases(), report().layers()
    assert list(phases) == ["forward", "loss", "backward", "communication", "update"]
    assert list(layers) == ["fc", "relu", "(no layer)"]
    assert phases["forward"].kernels == 2
    assert phases["forward"].nbytes == 4 * MB
    assert phases["forward"].seconds == pytest.approx(0.005)
    assert layers["fc"].kernels == 4
    assert layers["fc"].nbytes == 5 * MB
    assert layers["fc"].seconds == pytest.approx(0.0155)
    for shares in (phases, layers):
        assert sum(share.kernels for share in shares.values()) == 6
        assert sum(share.seconds for share in shares.values()) == pytest.approx(sum(SECONDS))


def test_the_text_says_what_it_takes():
    text = str(report(notes=["layer 'mine' runs in Python"]))
    assert text.startswith("6 kernels, 7 buffers, ")
    assert "most at kernel 3 'matmul' of layer 'fc', backward" in text
    assert "before planning 10.0 MB: 40% saved; results in place: 1" in text
    assert "+ 3.0 MB parameters and constants" in text
    assert "note: layer 'mine' runs in Python" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert rows["forward"] == ["2", "4.00", "0.00", "5.000", "29.4"]
    assert rows["relu"] == ["1", "2.00", "0.00", "1.000", "5.9"]
    assert rows["backward"] == ["1", "3.00", "3.00", "8.000", "47.1"]


def test_levels_are_those_of_singa():
    made = report()
    memory, phases, kernels, talk = (made.table(level).splitlines() for level in range(4))
    assert phases[: len(memory)] == kernels[: len(memory)] == talk[: len(memory)] == memory
    assert not any("ms" in line for line in memory)
    assert [line.split()[0] for line in kernels[-6:]] == list("012345")
    assert kernels[-3].split() == ["3", "matmul", "fc", "backward", "3.00", "8.000"]
    assert talk[-1].split() == ["4", "reduce", "fc", "communication", "0.00", "2.000"]
    assert talk[-2].startswith("---")


def test_without_times_there_is_no_column_of_them():
    made = report(None)
    assert "ms" not in made.table(2).split()
    assert "%" not in str(made).split()
    assert made.as_dict()["seconds"] is None
    assert made.phases()["loss"].seconds is None


def test_the_data_go_through_json():
    figures = json.loads(json.dumps(report(notes=("a",)).as_dict()))
    assert figures["kernels"] == 6
    assert figures["bytes"]["least possible"] == 6 * MB + 64
    assert figures["bytes"]["peak"] == figures["bytes"]["arena"] + figures["bytes"]["outside"]
    assert figures["phases"]["update"] == {
        "kernels": 1,
        "bytes": 0,
        "held at the peak": 0,
        "seconds": 0.0015,
    }
    assert [call["seconds"] for call in figures["calls"]] == list(SECONDS)
    assert figures["calls"][3]["live bytes"] == 6 * MB + 64
    assert figures["notes"] == ["a"]


def test_live_bytes_reach_the_lower_bound_of_the_layout():
    for kernels, buffers in (residual((1, 1), 8, 64, 2), at_random(40, seed=4)):
        made = ProgramReport(kernels, buffers, plan_arena(kernels, buffers))
        # Outputs alone are needed after the last kernel, inputs alone before the first.
        assert max(made.live_bytes) == made.layout.lower_bound


def test_what_is_held_at_the_peak_is_what_is_live_there():
    layers = report().layers()
    assert layers["fc"].held == 3 * MB  # its gradient
    assert layers["(no layer)"].held == 2 * MB + 4  # dy and the loss; x is an input
    kernels, buffers = residual((2, 1), 16, 256, 4)
    made = ProgramReport(kernels, buffers, plan_arena(kernels, buffers))
    inputs = sum(b.nbytes for b in buffers if b.kind == "input")
    held = sum(share.held for share in made.phases().values())
    rounding = 64 * len(buffers)
    assert made.layout.lower_bound - inputs - rounding <= held <= made.layout.lower_bound


def test_an_empty_program():
    made = ProgramReport((), (), plan_arena((), ()), ())
    assert made.peak_kernel is None
    assert "0 kernels" in str(made)
    assert made.saved == 0.0
    assert made.as_dict()["phases"] == {}
    assert repr(report()) == "<ProgramReport: 6 kernels, arena 6.0 MB>"
    assert not HERE or boxes(made.plot()) == {}


def test_notebooks_show_the_phases_and_names_stay_text():
    evil = "<script>alert(1)</script>"
    kernels = (Kernel(evil, (0,), (1,), evil),)
    buffers = (Buffer(64, "input"), Buffer(64, label=evil))
    made = ProgramReport(kernels, buffers, plan_arena(kernels, buffers), (0.5,), (evil,))
    reader = read_html(made._repr_html_())
    assert reader.tags == ["pre"]
    assert "".join(reader.text) == made.table(1)
    assert evil in made.table(1)


# -- The trace file, held against the rules of the Trace Event Format -------------------------


def read(text):
    """The events after the rules of each kind: what they must have, and of what type."""
    content = json.loads(text)
    assert set(content) <= {"traceEvents", "displayTimeUnit", "otherData", "systemTraceEvents"}
    assert content["displayTimeUnit"] in ("ms", "ns")
    for event in content["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert isinstance(event["tid"], int)
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
        elif event["ph"] == "C":
            assert event["ts"] >= 0
            assert all(isinstance(value, (int, float)) for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            key = {"process_name": "name", "thread_name": "name"}.get(event["name"], "sort_index")
            assert set(event["args"]) == {key}
    return content["traceEvents"]


def lanes(events):
    return {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}


def test_kernels_follow_one_another_in_microseconds():
    events = [event for event in read(report().trace()) if event["ph"] == "X"]
    assert [event["name"] for event in events] == [kernel.name for kernel in KERNELS]
    assert [event["dur"] for event in events] == pytest.approx([4000, 1000, 500, 8000, 2000, 1500])
    ends = [event["ts"] + event["dur"] for event in events]
    assert events[0]["ts"] == 0
    assert [event["ts"] for event in events[1:]] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(1e6 * sum(SECONDS))
    # The bytes are counted beside.
    made = report()
    counted = [event["args"]["live"] for event in read(made.trace()) if event["ph"] == "C"]
    assert counted == list(made.live_bytes)


@pytest.mark.parametrize(
    ("kind", "order"),
    [
        ("phase", ["forward", "loss", "backward", "communication", "update"]),
        ("layer", ["fc", "relu", "(no layer)"]),
    ],
)
def test_every_kernel_lies_in_the_lane_of_its_phase_or_layer(kind, order):
    events = read(report().trace(lanes=kind))
    names = lanes(events)
    assert [names[lane] for lane in sorted(names)] == order
    kernels = [event for event in events if event["ph"] == "X"]
    for event, kernel in zip(kernels, KERNELS, strict=True):
        assert names[event["tid"]] == (getattr(kernel, kind) or "(no layer)")


REFUSED = [
    *((lambda path, level=level: report().table(level), ArgumentError, "a level from 0 to 3")
      for level in (-1, 4, "2", None)),
    (lambda path: report(SECONDS[:5]), ArgumentError, "seconds of each of 6 kernels; received 5"),
    (lambda path: report().trace(path / "trace.json", lanes="kernel"), ArgumentError,
     r"lanes='phase'.*received 'kernel'"),
    (lambda path: report(None).trace(path / "trace.json"), CallOrderError,
     "measure the program first"),
    (lambda path: report().trace(path / "missing" / "trace.json"), FileAccessError, "missing"),
    *((lambda path, name=name: report().plot(path / name), error, words)
      for name, error, words in [
        ("missing/arena.svg", FileAccessError, "missing"), ("arena.pdf", ArgumentError, r"\.svg"),
      ] if HERE),
]  # fmt: skip


@pytest.mark.parametrize(("act", "error", "words"), REFUSED)
def test_refusals_write_nothing(act, error, words, tmp_path):
    with pytest.raises(error, match=words):
        act(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_files_are_the_texts(tmp_path):
    text = report().trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text(encoding="utf-8") == text
    if HERE:
        svg = report().plot(tmp_path / "arena.svg")
        assert (tmp_path / "arena.svg").read_text(encoding="utf-8") == svg


# -- Reports of real nets: layouts without overlap, layers and phases that are the net's ------


def recorded(name="lenet", batch=2):
    net = build(name, seed=0)
    x = np.zeros((batch, *net.nodes()[0].layer.in_shapes), np.float32)
    y, optimizer = np.zeros(batch, np.int64), SGD(lr=0.1, momentum=0.9)
    return net, net.record(x, y, optimizer), x, y


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_nothing_needed_at_one_time_overlaps(name):
    report = recorded(name)[1].report()
    check(report.kernels, report.buffers, report.layout)
    assert max(report.live_bytes) == report.layout.lower_bound
    assert report.layout.nbytes <= 1.02 * report.layout.lower_bound


def test_layers_and_phases_are_those_of_the_net():
    net, program, x, _ = recorded()
    report = program.report()
    names = {node.name for node in net.nodes()}
    assert set(report.layers()) - {"(no layer)", "loss"} == names
    assert list(report.phases()) == ["forward", "loss", "backward", "update"]
    updated = {kernel.layer for kernel in report.kernels if kernel.phase == "update"}
    # Small parameters, in buckets, have the kernels of their updates in common.
    small = {name for bucket in net.buckets() for name in bucket.names}
    alone = {name.partition("/")[0] for name in net.param_names() if name not in small}
    assert updated == {"", *alone}
    evaluation = net.record(x).report()
    assert list(evaluation.phases()) == ["forward"]
    assert evaluation.layout.nbytes < report.layout.nbytes


def test_kernels_take_no_longer_than_the_runs_did():
    _, program, x, y = recorded(batch=16)
    assert program.report().seconds is None
    start = time.perf_counter()
    for _ in range(3):
        program.run(x, y, timed=True)
    elapsed = time.perf_counter() - start
    report = program.report()
    assert 0 < 3 * sum(report.seconds) <= elapsed
    assert all(share.seconds > 0 for name, share in report.layers().items() if name != "(no layer)")


def test_figures_traces_and_pictures_of_a_real_program(tmp_path):
    _, program, x, y = recorded()
    program.run(x, y, timed=True)
    report = program.report()
    figures = json.loads(json.dumps(report.as_dict()))
    assert len(figures["calls"]) == figures["kernels"] == len(report.kernels)
    events = [event for event in read(report.trace(lanes="layer")) if event["ph"] == "X"]
    assert len(events) == figures["kernels"]
    if HERE:
        assert len(groups(report.plot(tmp_path / "arena.svg"), "forward")) > 5


# -- The picture of the arena: a rectangle where and when each buffer lies ------------------


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


@NEEDED
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


@NEEDED
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


@NEEDED
def test_the_phases_are_named():
    words = texts(report().plot())
    for phase in ("input", "forward", "loss", "backward", "communication", "update"):
        assert phase in words
    assert any("arena of 6." in text for text in words)


@NEEDED
def test_the_line_shows_the_bytes_needed():
    (line,) = groups(report().plot(), "needed").values()
    heights = re.findall(r"[ML] \S+ (\S+)", line.find(f"{SVG}path").get("d"))
    assert len({*heights}) == 1 + len({*report().live_bytes})  # from the ground and back


@NEEDED
def test_labels_cannot_smuggle_markup():
    buffers = [Buffer(64, "input"), Buffer(64, label="<script>x</script>")]
    kernels = [Kernel("k", (0,), (1,), "</svg>")]
    svg = ProgramReport(kernels, buffers, plan_arena(kernels, buffers)).plot()
    root = ElementTree.fromstring(svg)
    assert not list(root.iter(f"{SVG}script"))
    assert "<script>x</script>" in boxes(svg)
