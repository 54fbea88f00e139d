"""What of a program belongs to a phase, a layer or a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from singanet.program.kernel import Buffer, Kernel, Phase

PHASES: tuple[str, ...] = get_args(Phase)
OUTSIDE = "(no layer)"
"""Stands for the layer of kernels that belong to none."""


@dataclass(frozen=True)
class Share:
    """Kernels, the bytes in the arena that they are the first to write, and their seconds."""

    kernels: int
    nbytes: int
    seconds: float | None

    def as_dict(self) -> dict[str, float | int | None]:
        """The fields by name."""
        return {"kernels": self.kernels, "bytes": self.nbytes, "seconds": self.seconds}


def made_bytes(kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> list[int]:
    """For each kernel the bytes of the planned buffers that it is the first to write."""
    seen: set[int] = set()
    made = []
    for kernel in kernels:
        fresh = [n for n in dict.fromkeys(kernel.writes) if n not in seen and buffers[n].planned]
        seen.update(fresh)
        made.append(sum(buffers[n].nbytes for n in fresh))
    return made


def shares(
    kernels: Sequence[Kernel],
    buffers: Sequence[Buffer],
    seconds: Sequence[float] | None,
    key: Callable[[Kernel], str],
) -> dict[str, Share]:
    """The kernels gathered by ``key``, in the order in which the keys come first."""
    members: dict[str, list[int]] = {}
    for number, kernel in enumerate(kernels):
        members.setdefault(key(kernel), []).append(number)
    made = made_bytes(kernels, buffers)
    return {
        name: Share(
            kernels=len(numbers),
            nbytes=sum(made[n] for n in numbers),
            seconds=None if seconds is None else float(sum(seconds[n] for n in numbers)),
        )
        for name, numbers in members.items()
    }


def by_phase(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], seconds: Sequence[float] | None
) -> dict[str, Share]:
    """Shares of the phases that there are, in the order of a step."""
    found = shares(kernels, buffers, seconds, lambda kernel: kernel.phase)
    return {phase: found[phase] for phase in PHASES if phase in found}


def by_layer(
    kernels: Sequence[Kernel], buffers: Sequence[Buffer], seconds: Sequence[float] | None
) -> dict[str, Share]:
    """Shares of the layers, in the order in which they run forward."""
    return shares(kernels, buffers, seconds, lambda kernel: kernel.layer or OUTSIDE)
