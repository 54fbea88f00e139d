"""Schedules of a pipeline."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

from singanet.base.arguments import checked_count
from singanet.errors import UnknownNameError, brief, did_you_mean, one_of

Name: TypeAlias = Literal["gpipe", "1f1b"]
NAMES = ("gpipe", "1f1b")


class Op(NamedTuple):
    """One micro-batch forward or backward through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.micro_batch}"


def schedule(name: str, stages: int, micro_batches: int) -> list[list[Op]]:
    """Return the actions of each stage of a pipeline, in order. Errors: an unknown name.

    Args:
        name: "gpipe" (Huang et al. 2019): all forwards, then all backwards; every stage stores the
            contexts of all micro-batches. "1f1b" (Narayanan et al. 2019, with a flush at each
            step): stage k of p runs p − 1 − k forwards ahead, then one forward and one backward in
            turns, and stores the contexts of at most p − k.
        stages: Number of stages, a positive int.
        micro_batches: Number of micro-batches, a positive int.
    """
    if name not in NAMES:
        raise UnknownNameError(
            "parallel.schedule",
            expected=f"one of {one_of(NAMES)}",
            received=brief(name),
            advice=did_you_mean(str(name), NAMES, "1f1b needs the least memory"),
        )
    stages = checked_count("parallel.schedule", "stages", stages, 1)
    count = checked_count("parallel.schedule", "micro_batches", micro_batches, 1)
    return [_of_stage(count if name == "gpipe" else stages - 1 - k, count) for k in range(stages)]


def _of_stage(ahead: int, count: int) -> list[Op]:
    """``ahead`` forwards, then forwards and backwards in turn, and the remaining backwards."""
    forwards = [Op("forward", i) for i in range(count)]
    backwards = [Op("backward", i) for i in range(count)]
    ahead = min(ahead, count)
    turns = [op for pair in zip(forwards[ahead:], backwards, strict=False) for op in pair]
    return [*forwards[:ahead], *turns, *backwards[count - ahead :]]


def alive(ops: list[Op]) -> int:
    """How many micro-batches have gone forward and not back, at most."""
    now = most = 0
    for op in ops:
        now += 1 if op.kind == "forward" else -1
        most = max(most, now)
    return most
