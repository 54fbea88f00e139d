import json

from singanet.parallel.communicators.rank_file import trace_part
from singanet.parallel.communicators.timeline import Timeline
from singanet.parallel.launch.start import merge_traces
from tests.kit.ranks import together


def test_each_rank_is_a_process_in_one_trace(tmp_path):
    trace = tmp_path / "trace.json"

    def rank(comm):
        timeline = Timeline(trace_part(trace, comm.rank), comm)
        for step in (1, 2):
            timeline.add("sums", "the gradients of fc", timeline._since)
            timeline.add("waiting", "the gradients of fc", timeline._since)
            timeline.step(step)
        timeline.write()

    together(rank)
    with trace_part(trace, 1).open("a") as killed:
        killed.write('{"ph": "X", "na')
    merge_traces(trace, 3)
    events = json.loads(trace.read_text("utf-8"))["traceEvents"]
    assert list(tmp_path.iterdir()) == [trace]
    for number in (0, 1):
        own = [event for event in events if event["pid"] == number]
        names = {event["args"]["name"] for event in own if event["name"] == "process_name"}
        assert names == {f"rank {number}"}
        steps = [e for e in own if e["ph"] == "X" and e["tid"] == 0]
        assert [event["name"] for event in steps] == ["step 0", "step 1"]
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in steps)
        under_way = [event["ph"] for event in own if event.get("cat") == "sums"]
        assert under_way == ["b", "e"] * 2
