"""Schedules of a pipeline, and their simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of

Name: TypeAlias = Literal["gpipe", "1f1b"]
NAMES = ("gpipe", "1f1b")


class Op(NamedTuple):
    """One micro-batch forward or backward through a stage."""

    kind: Literal["forward", "backward"]
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind[0].upper()}{self.micro_batch}"


def schedule(name: str, stages: int, micro_batches: int) -> list[list[Op]]:
    """The actions of each of ``stages`` on ``micro_batches``, in order.

    "gpipe" (Huang et al. 2019): all forwards, then all backwards; every stage holds the contexts
    of all micro-batches. "1f1b" (Narayanan et al. 2019, with a flush at each step): stage k of p
    runs p − 1 − k forwards ahead, then one forward and one backward in turns, and holds p − k at
    most. Errors: an unknown name, a count that is not positive.
    """
    if name not in NAMES:
        raise UnknownNameError(
            "parallel.schedule",
            expected=f"one of {one_of(NAMES)}",
            received=repr(name),
            advice=did_you_mean(str(name), NAMES, "1f1b needs the least memory"),
        )
    stages = checked_count("parallel.schedule", "stages", stages, 1)
    count = checked_count("parallel.schedule", "micro_batches", micro_batches, 1)
    return [_of_stage(count if name == "gpipe" else stages - 1 - k, count) for k in range(stages)]


def _of_stage(ahead: int, count: int) -> list[Op]:
    """``ahead`` forwards, then forwards and backwards in turns, and the backwards that are left."""
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


class Span(NamedTuple):
    """From when to when a stage does something, in seconds."""

    op: Op
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A step of a pipeline on a clock that is only counted.

    ``spans`` has what each stage does, ``alive`` the most micro-batches that have gone forward and
    not back, ``nbytes`` the bytes of their contexts, by stage.
    """

    spans: list[list[Span]]
    alive: list[int]
    nbytes: list[float]

    @property
    def seconds(self) -> float:
        """The whole step."""
        return max(spans[-1].end for spans in self.spans)

    @property
    def busy(self) -> list[float]:
        """The seconds in which each stage computes."""
        return [sum(span.end - span.start for span in spans) for spans in self.spans]

    @property
    def bubble(self) -> float:
        """The time of the step beyond that of its busiest stage, as a fraction of the latter.

        (p − 1)/m for p stages that take equally long for each of m micro-batches; of the whole
        step it is `idle`, (p − 1)/(m + p − 1).
        """
        ideal = max(self.busy)
        return (self.seconds - ideal) / ideal

    @property
    def idle(self) -> float:
        """The part of the step in which the busiest stage waits."""
        return 1.0 - max(self.busy) / self.seconds

    def picture(self, width: int = 72) -> str:
        """A line a stage: digits are forwards by micro-batch (mod 10), letters backwards."""
        scale = width / self.seconds
        lines = []
        for k, spans in enumerate(self.spans):
            line = ["."] * width
            for op, start, end in spans:
                number = op.micro_batch
                sign = str(number % 10) if op.kind == "forward" else chr(97 + number % 26)
                first, last = round(start * scale), round(end * scale)
                line[first:last] = sign * (last - first)
            lines.append(f"stage {k} |{''.join(line)}| alive {self.alive[k]}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"Simulation(seconds={self.seconds:.6g}, bubble={self.bubble:.3f}, alive={self.alive})"
        )


def simulate(
    name: str,
    stages: int,
    micro_batches: int,
    forward: float | Sequence[float] = 1.0,
    backward: float | Sequence[float] = 2.0,
    message: float | Sequence[float] = 0.0,
    context_bytes: float | Sequence[float] = 0.0,
) -> Simulation:
    """The step of the schedule ``name`` with so many stages and micro-batches.

    ``forward`` and ``backward`` are seconds of a micro-batch, ``context_bytes`` what it leaves for
    its backward, each one number or one a stage; ``message`` the seconds from a stage to its
    neighbour, one number or one a boundary. Errors: those of `schedule`; numbers that are too few,
    negative, or no times at all.
    """
    ops = schedule(name, stages, micro_batches)
    seconds = {
        "forward": _each("forward", forward, stages),
        "backward": _each("backward", backward, stages),
    }
    if not max(sum(pair) for pair in zip(*seconds.values(), strict=True)) > 0:
        raise _wrong("forward and backward", "times, of which one is positive", "0 of all stages")
    wires = _each("message", message, stages - 1)
    ends: dict[tuple[int, Op], float] = {}
    spans: list[list[Span]] = [[] for _ in ops]
    left = [list(reversed(each)) for each in ops]
    while any(left):
        for k, todo in enumerate(left):
            while todo:
                came = _arrival(ends, k, todo[-1], stages, wires)
                if came is None:
                    break
                op = todo.pop()
                start = max(came, spans[k][-1].end if spans[k] else 0.0)
                ends[k, op] = start + seconds[op.kind][k]
                spans[k].append(Span(op, start, ends[k, op]))
    most = [alive(each) for each in ops]
    sizes = _each("context_bytes", context_bytes, stages)
    return Simulation(spans, most, [n * size for n, size in zip(most, sizes, strict=True)])


def _arrival(
    ends: dict[tuple[int, Op], float], k: int, op: Op, stages: int, wires: Sequence[float]
) -> float | None:
    """When stage ``k`` has what it needs for ``op``; None where nobody has made it yet."""
    source = k - 1 if op.kind == "forward" else k + 1
    if not 0 <= source < stages:
        # The last stage turns round: its own forward comes before, as its list has it.
        return 0.0
    made = ends.get((source, op))
    return None if made is None else made + wires[min(k, source)]


def _each(what: str, given: float | Sequence[float], count: int) -> list[float]:
    found = [float(given)] * count if isinstance(given, (int, float)) else list(map(float, given))
    if len(found) != count or not all(number >= 0 for number in found):
        raise _wrong(what, f"one number, or {count} that are 0 or more", repr(given))
    return found


def _wrong(what: str, expected: str, received: str) -> ArgumentError:
    return ArgumentError(
        f"parallel.simulate, {what}",
        expected=expected,
        received=received,
        advice="give seconds and bytes, one number for all or one a stage (one less of messages)",
    )
