"""The traces of all ranks in one file, for chrome://tracing and Perfetto."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from singanet.base.files import replacing
from singanet.parallel.communicators.board import trace_part


def remove_parts(trace: Path, ranks: int) -> None:
    """Remove what ranks wrote beside ``trace``."""
    for rank in range(ranks):
        trace_part(trace, rank).unlink(missing_ok=True)


def merge_traces(trace: Path, ranks: int) -> None:
    """Write ``trace`` from the parts that its ranks wrote, which go.

    The last line of a rank that was killed may not be whole, and is left out.
    """
    events: list[str] = []
    for rank in range(ranks):
        with suppress(FileNotFoundError):
            lines = trace_part(trace, rank).read_text(encoding="utf-8").splitlines(True)
            events += [line.rstrip() for line in lines if line.endswith("}\n")]
    with replacing(trace) as beside:
        text = ",\n".join(events)
        beside.write_text(f'{{"displayTimeUnit": "ms", "traceEvents": [\n{text}\n]}}\n')
    remove_parts(trace, ranks)
