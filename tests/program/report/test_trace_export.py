"""The trace file, held against the rules of the Trace Event Format."""

from __future__ import annotations

import json

import pytest

from singanet.errors import ArgumentError, CallOrderError, FileAccessError
from tests.program.report.test_report import KERNELS, SECONDS, report


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


def test_the_bytes_are_counted_beside():
    made = report()
    counted = [event["args"]["live"] for event in read(made.trace()) if event["ph"] == "C"]
    assert counted == list(made.live_bytes)


def test_the_file_is_the_text(tmp_path):
    text = report().trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text(encoding="utf-8") == text


def test_other_lanes_and_missing_times_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match=r"lanes='phase'.*received 'kernel'"):
        report().trace(tmp_path / "trace.json", lanes="kernel")
    with pytest.raises(CallOrderError, match="measure the program first"):
        report(None).trace(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FileAccessError, match="missing"):
        report().trace(tmp_path / "missing" / "trace.json")
