"""What a rank's trace tells of time."""

import itertools
import json
from types import SimpleNamespace

from singanet.parallel import SingleProcess
from singanet.parallel.communicators import timeline as timelines


def test_events_are_as_long_as_they_were(tmp_path, monkeypatch):
    seconds = itertools.count(100.0)
    monkeypatch.setattr(timelines, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    timeline = timelines.Timeline(tmp_path / "part", SingleProcess())
    # The clock was read twice, and is read once to tell of an event: at 102, 103 and 105.
    timeline.add("waiting", "the gradients of fc", 101.0)
    timeline.step(1)
    timeline.step(2)
    events = [json.loads(line) for line in (tmp_path / "part").read_text("utf-8").splitlines()]
    found = [(e["name"], e["ts"] / 1e6, e["dur"] / 1e6) for e in events if e["ph"] == "X"]
    wanted = [("the gradients of fc", 1.0, 1.0), ("step 0", 1.0, 2.0), ("step 1", 4.0, 1.0)]
    assert found == wanted
