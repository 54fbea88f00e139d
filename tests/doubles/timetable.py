"""A step of a pipeline on a clock that is only counted, by its schedule."""

from __future__ import annotations

from typing import NamedTuple

from singanet.parallel import schedule
from singanet.parallel.pipeline.timetable import Op


class Span(NamedTuple):
    """From when to when a stage does something, in seconds."""

    op: Op
    start: float
    end: float


def simulate(name, stages, micro_batches, forward=1.0, backward=2.0, message=0.0):
    """What each stage does when; times are one number or one a stage."""
    ops = schedule(name, stages, micro_batches)
    seconds = {"forward": _each(forward, stages), "backward": _each(backward, stages)}
    ends = {}
    spans = [[] for _ in ops]
    left = [list(reversed(each)) for each in ops]
    while any(left):
        before = sum(map(len, left))
        for k, todo in enumerate(left):
            while todo and (came := _arrival(ends, k, todo[-1], stages, message)) is not None:
                op = todo.pop()
                start = max(came, spans[k][-1].end if spans[k] else 0.0)
                ends[k, op] = start + seconds[op.kind][k]
                spans[k].append(Span(op, start, ends[k, op]))
        assert sum(map(len, left)) < before, "stages wait for each other"
    return spans


def _arrival(ends, k, op, stages, message):
    """When stage ``k`` has what it needs for ``op``; None where nobody has made it yet."""
    source = k - 1 if op.kind == "forward" else k + 1
    if not 0 <= source < stages:
        # The last stage turns round: its own forward comes before, as its list has it.
        return 0.0
    made = ends.get((source, op))
    return None if made is None else made + message


def _each(given, count):
    return list(given) if isinstance(given, list) else [given] * count
