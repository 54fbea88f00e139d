"""The report of a recorded program: its kernels, its memory, and its time."""

from __future__ import annotations

from os import PathLike
from typing import Any

from singanet.base.sizes import bytes_text
from singanet.errors import ArgumentError
from singanet.program.report.figures import Figures
from singanet.program.report.report_text import kernel_table, memory_lines, report_html, share_table
from singanet.program.report.shares import Share, by_layer, by_phase, made_bytes


class ProgramReport(Figures):
    """Figures of a program; ``str`` gives them as tables, `as_dict` as data for JSON."""

    def phases(self) -> dict[str, Share]:
        """Kernels, bytes and seconds of forward, loss, backward, communication and update."""
        return by_phase(self)

    def layers(self) -> dict[str, Share]:
        """Kernels, bytes and seconds by layer."""
        return by_layer(self)

    def table(self, level: int = 1) -> str:
        """Text at one of the levels of SINGA's profiling.

        0 is the memory alone; 1 adds the phases, 2 every kernel, 3 the kernels of communication.
        Errors: another level.
        """
        if level not in (0, 1, 2, 3):
            raise ArgumentError(
                "report.table",
                expected="a level from 0 to 3",
                received=repr(level),
                advice="0 shows memory, 1 phases, 2 every kernel, 3 communication",
            )
        lines = memory_lines(self)
        if level == 1:
            lines += ["", *share_table("phase", self.phases())]
        elif level:
            chosen = [
                number
                for number, kernel in enumerate(self.kernels)
                if level == 2 or kernel.phase == "communication"
            ]
            lines += ["", *kernel_table(self, chosen)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        arena = bytes_text(self.layout.nbytes)
        return f"<ProgramReport: {len(self.kernels):,} kernels, arena {arena}>"

    def __str__(self) -> str:
        return "\n".join([self.table(1), "", *share_table("layer", self.layers())])

    def as_dict(self) -> dict[str, Any]:
        """All figures as numbers, strings, lists and dicts."""
        made = made_bytes(self.kernels, self.buffers)
        again = self.recomputed_kernels
        return {
            "kernels": len(self.kernels),
            "buffers": len(self.buffers),
            "edges": self.edges,
            "leaves": self.leaves,
            "bytes": {
                "before planning": self.layout.unplanned_bytes,
                "arena": self.layout.nbytes,
                "least possible": self.layout.lower_bound,
                "outside": self.outside_bytes,
                "peak": self.peak_bytes,
            },
            "recomputed": {
                "kernels": again,
                "bytes saved": self.kept_bytes - self.layout.nbytes if again else 0,
                "layers": self.recomputed.as_dicts(),
            },
            "in place": len(self.layout.in_place),
            "strategy": self.layout.strategy,
            "seconds": None if self.seconds is None else float(sum(self.seconds)),
            "phases": {name: share.as_dict() for name, share in self.phases().items()},
            "layers": {name: share.as_dict() for name, share in self.layers().items()},
            "calls": [
                {
                    "name": kernel.name,
                    "layer": kernel.layer,
                    "phase": kernel.phase,
                    "bytes": made[k],
                    "live bytes": self.live_bytes[k],
                    "seconds": None if self.seconds is None else float(self.seconds[k]),
                }
                for k, kernel in enumerate(self.kernels)
            ],
            "communication": None if self.traffic is None else self.traffic.as_dict(),
            "launches": None if self.launches is None else self.launches._asdict(),
            "notes": list(self.notes),
        }

    def trace(self, path: str | PathLike[str] | None = None, lanes: str = "phase") -> str:
        """The kernels on a line of time, as JSON for chrome://tracing and Perfetto.

        ``lanes`` is "phase" or "layer". Returns the text, and writes it to ``path`` where one is
        given. Errors: other lanes, no seconds, `FileAccessError`.
        """
        from singanet.program.report.trace_export import write_trace

        return write_trace(self, path, lanes)

    def plot(self, path: str | PathLike[str] | None = None) -> str:
        """The arena over time as SVG: a rectangle a buffer, in the colour of its phase.

        Returns the text, and writes it to ``path`` where one is given. Errors: `FileAccessError`.
        """
        from singanet.program.report.picture import plot_arena

        return plot_arena(self, path)

    def _repr_html_(self) -> str:
        """The table of phases, for notebooks."""
        return report_html(self)
