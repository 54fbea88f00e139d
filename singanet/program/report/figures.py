"""The figures of a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from singanet.engine.recompute.decisions import Decisions
from singanet.errors import ArgumentError
from singanet.optimizer.traffic import Traffic
from singanet.program.ir import Buffer, Kernel
from singanet.program.launches import Launches
from singanet.program.layout.arena import Layout, rounded_sizes
from singanet.program.layout.dependencies import edges
from singanet.program.layout.in_place import shared_memory


@dataclass(frozen=True, repr=False)
class Figures:
    """The figures of a program's report.

    ``seconds`` has the time of each kernel, None if they were not measured; ``notes`` name what
    does not run as kernels; ``kept_bytes`` is the size of the arena without recomputation;
    ``recomputed`` tells which layers are recomputed, and why: its ``str`` is a table; ``traffic``
    is what a run exchanges with other processes, None if it was not measured; ``launches`` is what
    the host asks a device for at a replay, None on the CPU and before the first; ``undo_bytes`` is
    the size of the copy of running state that a refused step goes back to. Sizes within the
    arena are rounded up as in `Layout`, sizes of parameters and constants outside are not. Errors:
    another number of seconds than kernels.
    """

    kernels: Sequence[Kernel]
    buffers: Sequence[Buffer]
    layout: Layout
    seconds: Sequence[float] | None = None
    notes: Sequence[str] = ()
    kept_bytes: int = 0
    recomputed: Decisions = field(default_factory=Decisions)
    traffic: Traffic | None = None
    rank: int = 0
    launches: Launches | None = None
    undo_bytes: int = 0

    def __post_init__(self) -> None:
        if self.seconds is not None and len(self.seconds) != len(self.kernels):
            raise ArgumentError(
                "ProgramReport",
                expected=f"seconds of each of {len(self.kernels)} kernels",
                received=f"{len(self.seconds)} of them",
                advice="measure every kernel, or leave the seconds out",
            )

    @property
    def outside_bytes(self) -> int:
        """Bytes of the parameters and constants that kernels use, and of the copy of state."""
        used = sum(buffer.nbytes for buffer in self.buffers if not buffer.planned)
        return used + self.undo_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes of the arena and of what lies outside."""
        return self.layout.nbytes + self.outside_bytes

    @property
    def recomputed_kernels(self) -> int:
        """Kernels that run again for the backward pass."""
        return sum(kernel.phase == "recompute" for kernel in self.kernels)

    @property
    def saved(self) -> float:
        """The part of the bytes before planning that the arena does without."""
        before = self.layout.unplanned_bytes
        return 1 - self.layout.nbytes / before if before else 0.0

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes needed at each kernel, results in place counted once."""
        live = shared_memory(self.kernels, self.buffers).live_bytes(rounded_sizes(self.buffers))
        return tuple(live[1:-1].tolist())

    @property
    def peak_kernel(self) -> int | None:
        """The number of the first kernel at which most bytes are needed; None without kernels."""
        return int(np.argmax(self.live_bytes)) if self.kernels else None

    @cached_property
    def edges(self) -> int:
        """Reasons to wait, those of leaves and of what comes from outside counted in."""
        return len(edges(self.kernels))

    @cached_property
    def leaves(self) -> int:
        """Buffers whose last write nobody reads."""
        return sum(edge.target is None for edge in edges(self.kernels))
