"""The way of a recurrent kernel through the steps of a batch, and what it hands back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from singanet.types import Array


@dataclass(frozen=True)
class Direction:
    """Forward or in ``reverse``; step t concerns the first ``counts[t]`` rows of the batch.

    In a ragged batch the samples stand in order of falling length, so no kernel needs a mask. An
    array of states has an entry more than there are steps: one before the first, or in reverse
    after the last, and one after each step.
    """

    counts: Sequence[int]
    reverse: bool = False

    @property
    def start(self) -> int:
        """Where the state before all steps lies among the states."""
        return -1 if self.reverse else 0

    @property
    def end(self) -> int:
        """Where the state after all steps lies among the states."""
        return 0 if self.reverse else -1

    def steps(self) -> range:
        """The steps in the order in which they are taken."""
        count = len(self.counts)
        return range(count - 1, -1, -1) if self.reverse else range(count)

    def steps_back(self) -> range:
        """The steps in the order of their gradients."""
        count = len(self.counts)
        return range(count) if self.reverse else range(count - 1, -1, -1)

    def around(self, t: int) -> tuple[int, int]:
        """Where the states before and after step ``t`` lie among the states."""
        return (t + 1, t) if self.reverse else (t, t + 1)

    def befores(self, states: Array) -> Array:
        """The states before every step, (T, N, H)."""
        return states[1:] if self.reverse else states[:-1]

    def afters(self, states: Array) -> Array:
        """The states after every step, (T, N, H)."""
        return states[:-1] if self.reverse else states[1:]

    def is_full(self, n: int) -> bool:
        """Whether every step concerns all of ``n`` rows."""
        return min(self.counts) == n


class RecurrentGradients(NamedTuple):
    """What a backward kernel makes; that of x is None where nobody wants it.

    That of the input's weight is None where there is none. The gradients of the biases, which are
    added with the input's and with the state's product, may be one array. ``starts`` are those of
    the first states, arrays (N, H).
    """

    x: Array | None
    weight_x: Array | None
    weight_h: Array
    bias_x: Array
    bias_h: Array
    starts: tuple[Array, ...]
