"""The most memory that a program takes, known before it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from singanet.errors import ArgumentError
from singanet.program.arena import Layout
from singanet.program.kernel import Buffer


@dataclass(frozen=True)
class PeakMemory:
    """Bytes by what they are for: "arena", "parameters", "optimizer state", ..."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        named = (f"{size / (1 << 20):,.2f} MB {name}" for name, size in self.parts.items() if size)
        return f"{self.total / (1 << 20):,.2f} MB = {' + '.join(named) or 'nothing'}"


def peak_memory(
    layout: Layout,
    parameters: Iterable[int] = (),
    optimizer_state: Iterable[int] = (),
    other: Iterable[int] = (),
) -> PeakMemory:
    """The peak of a program with ``layout``, beside arrays of the given bytes outside of it.

    ``other`` are constants, the caller's own batch, scratch of kernels. An array that is listed in
    two places counts twice.
    """
    return PeakMemory(
        {
            "arena": layout.nbytes,
            "parameters": sum(parameters),
            "optimizer state": sum(optimizer_state),
            "other": sum(other),
        }
    )


def buffers_for(
    batch_size: int, small: Sequence[Buffer], large: Sequence[Buffer], batches: tuple[int, int]
) -> list[Buffer]:
    """The buffers of a program for ``batch_size``, from two recordings of other sizes.

    ``small`` and ``large`` were recorded with the two ``batches``. Every buffer grows by equal
    amounts a sample. Errors: recordings of different programs, equal batches.
    """
    low, high = batches
    kinds = [buffer.kind for buffer in small]
    if low >= high or kinds != [buffer.kind for buffer in large]:
        raise ArgumentError(
            "buffers_for",
            expected="two recordings of one program, the second with the larger batch",
            received=f"{len(small)} and {len(large)} buffers for batches of {low} and {high}",
            advice="record the same net with two batch sizes",
        )
    return [
        replace(a, nbytes=a.nbytes + (b.nbytes - a.nbytes) * (batch_size - low) // (high - low))
        for a, b in zip(small, large, strict=True)
    ]
