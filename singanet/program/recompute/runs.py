"""Calls of a trace with those that run again put in, each reader led to what it has to find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from singanet.program.ir import Call, Token
from singanet.program.recompute.units import TracedUnits
from singanet.program.relocate import placed

_DEEPEST = 500
"""Calls that one may need to run again beside it, one for the other."""


class CannotRepeatError(Exception):
    """A kernel to be run again needs a lost buffer, whose kernel must not run twice."""

    def __init__(self, kernel: int) -> None:
        super().__init__(kernel)
        self.kernel = kernel


def with_runs(
    calls: Sequence[Call],
    runs: Sequence[tuple[TracedUnits, Mapping[int, Sequence[int]]]],
    tokens: list[Token],
) -> list[Call]:
    """``calls`` where before the backward of a unit others run once more, by their numbers.

    What they write then is added to ``tokens``. Raises `CannotRepeatError`.
    """
    before: dict[int, list[int]] = {}
    once: frozenset[int] = frozenset()
    for traced, again in runs:
        once |= traced.once
        for unit in sorted(again, reverse=True):
            kernels = [at for other in again[unit] for at in traced.kernels[other]]
            before.setdefault(traced.begins[unit], []).extend(kernels)
    writer = _Writer(calls, once, tokens)
    for at in range(len(calls)):
        for other in before.get(at, ()):
            try:
                writer.run(other)
            except _GoneError as error:
                raise CannotRepeatError(other) from error
        writer.go_on(at)
    return without_unread(writer.made)


class _GoneError(Exception):
    """The value that a call has read is lost."""


class _Writer:
    """Writes calls down, and knows what lies where: by token, whose work each copy holds."""

    def __init__(self, calls: Sequence[Call], once: frozenset[int], tokens: list[Token]) -> None:
        self.calls, self.once, self.tokens = calls, once, tokens
        self.made: list[Call] = []
        self._reads: list[tuple[int, ...]] = []
        # The kernel that has written to a token last, for each that reads it.
        self._found: list[dict[int, int]] = []
        written: dict[int, int] = {}
        for at, call in enumerate(calls):
            reads = (*call.reads, *(token for token in call.partly if token in written))
            self._reads.append(tuple(dict.fromkeys(reads)))
            self._found.append({token: written.get(token, -1) for token in self._reads[-1]})
            written.update(dict.fromkeys(call.writes, at))
        # Newest first: (where, whose work it holds).
        self._copies: dict[int, list[tuple[int, int]]] = {}

    def go_on(self, at: int) -> None:
        """The next of the calls, which reads the newest of what is the same."""
        call = self.calls[at]
        led = {token: self._where(token, at) for token in self._reads[at] if token in self._copies}
        for token in call.writes:
            where = led.get(token, token)
            self._note(token, where, at)
        led = {token: where for token, where in led.items() if where != token}
        self.made.append(_led(call, led) if led else call)

    def run(self, at: int, depth: int = 0) -> None:
        """Kernel ``at`` once more, after the kernels that make its lost inputs anew."""
        if at < 0 or at in self.once or depth > _DEEPEST:
            raise _GoneError
        call = self.calls[at]
        led: dict[int, int] = {}
        for token in self._reads[at]:
            if not self._is_there(token, at) or (
                token in call.writes and self._where(token, at) == token
            ):
                self.run(self._found[at][token], depth + 1)
        for token in self._reads[at]:
            led[token] = self._where(token, at)
        for token in call.writes:
            if token not in led:
                led[token] = len(self.tokens)
                self.tokens.append(Token(self.tokens[token].nbytes))
            self._note(token, led[token], at)
        made = _led(call, {token: where for token, where in led.items() if token != where})
        self.made.append(replace(made, phase="recompute"))

    def _is_there(self, token: int, at: int) -> bool:
        """Whether what kernel ``at`` has read from ``token`` is still somewhere."""
        copies = self._copies.get(token)
        wanted = self._found[at][token]
        return wanted == -1 if copies is None else any(held == wanted for _, held in copies)

    def _where(self, token: int, at: int) -> int:
        wanted = self._found[at][token]
        for where, held in self._copies.get(token, ()):
            if held == wanted:
                return where
        if wanted == -1:
            return token
        raise _GoneError

    def _note(self, token: int, where: int, at: int) -> None:
        """``where`` holds the work of kernel ``at`` now."""
        others = [copy for copy in self._copies.get(token, ()) if copy[0] != where]
        self._copies[token] = [(where, at), *others]


def without_unread(calls: Sequence[Call]) -> list[Call]:
    """``calls`` without recomputations whose results are not read."""
    read: set[int] = set()
    kept: list[Call] = []
    for call in reversed(calls):
        if call.phase == "recompute" and read.isdisjoint(call.writes):
            continue
        # What is overwritten whole is not needed from before.
        if call.phase == "recompute":
            read.difference_update(set(call.writes) - set(call.partly) - set(call.reads))
        read.update(call.reads, call.partly)
        kept.append(call)
    return kept[::-1]


def _led(call: Call, led: Mapping[int, int]) -> Call:
    """``call`` on other tokens."""
    return placed(
        call, lambda ref: ref._replace(token=led[ref.token]) if ref.token in led else ref, led
    )
