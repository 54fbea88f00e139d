"""The shares of phases, layers and kernels in a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

from singanet.program.ir import Buffer, Kernel, Phase
from singanet.program.layout.in_place import merge_in_place
from singanet.program.layout.liveness import lifetimes

if TYPE_CHECKING:
    from singanet.program.report.figures import Figures

PHASES: tuple[str, ...] = get_args(Phase)
OUTSIDE = "(no layer)"
"""Stands for the layer of kernels that belong to none."""


class Share(NamedTuple):
    """Kernels, the bytes in the arena that they are the first to write, and their seconds.

    ``held`` are those of the bytes that are still needed when most is needed.
    """

    kernels: int
    nbytes: int
    held: int
    seconds: float | None

    def as_dict(self) -> dict[str, float | int | None]:
        """The fields by name."""
        return {
            "kernels": self.kernels,
            "bytes": self.nbytes,
            "held at the peak": self.held,
            "seconds": self.seconds,
        }


def made_bytes(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], at: int | None = None
) -> list[int]:
    """For each kernel the bytes of the planned buffers that it is the first to write.

    With ``at`` only buffers count that are needed at that kernel; of two that share their memory
    there, the read one.
    """
    counted = [buffer.planned for buffer in buffers]
    if at is not None:
        lives = lifetimes(kernels, buffers)
        _, pairs = merge_in_place(kernels, buffers, lives)
        here = (lives.first <= at) & (at <= lives.last)
        for read, written in pairs:
            here[written] &= not here[read]
        counted = [planned and bool(now) for planned, now in zip(counted, here, strict=True)]
    seen: set[int] = set()
    made = []
    for kernel in kernels:
        fresh = [n for n in dict.fromkeys(kernel.writes) if n not in seen]
        seen.update(fresh)
        made.append(sum(buffers[n].nbytes for n in fresh if counted[n]))
    return made


def shares(report: Figures, key: Callable[[Kernel], str]) -> dict[str, Share]:
    """The kernels gathered by ``key``, in the order in which the keys come first."""
    kernels, buffers, seconds = report.kernels, report.buffers, report.seconds
    members: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        members.setdefault(key(kernel), []).append(number)
    made, held = made_bytes(kernels, buffers), made_bytes(kernels, buffers, report.peak_kernel)
    return {
        name: Share(
            kernels=len(numbers),
            nbytes=sum(made[n] for n in numbers),
            held=sum(held[n] for n in numbers),
            seconds=None if seconds is None else float(sum(seconds[n] for n in numbers)),
        )
        for name, numbers in members.items()
    }


def by_phase(report: Figures) -> dict[str, Share]:
    """Shares of the phases that there are, in the order of a step."""
    found = shares(report, lambda kernel: kernel.phase)
    return {phase: found[phase] for phase in PHASES if phase in found}


def by_layer(report: Figures) -> dict[str, Share]:
    """Shares of the layers, in the order in which they run forward."""
    return shares(report, lambda kernel: kernel.layer or OUTSIDE)
