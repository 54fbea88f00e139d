"""The instructions of pickle programs that arrays need; every other one is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable, Set
from typing import Any, BinaryIO

from singanet.base.budget import Budget, Refusal
from singanet.data.pickles.machine import MARK, Machine
from singanet.data.pickles.strings import ESCAPED, RAW, UNICODE, UTF8
from singanet.data.pickles.tokens import ALLOWED
from singanet.errors import SingaNetError

_AT_ONCE = 64
"""Steps that are taken off the budget together."""


def run_program(
    stream: BinaryIO,
    size: int,
    budget: Budget,
    unsafe: Refusal,
    names: Set[tuple[str, str]] = ALLOWED,
    outside: Callable[[Any], Any] | None = None,
) -> Any:
    """The result of the pickle in ``stream``, of ``size`` bytes: tokens for all but plain values.

    Each step takes a node off ``budget``, whose error is raised for a damaged program; that of
    ``unsafe`` for a name outside ``names`` or an instruction that only live objects need.
    ``outside`` makes the token for what the program says is kept beside it, as PyTorch's arrays.
    """
    machine = Machine(stream, size, budget, unsafe, names, outside)
    spend, read = budget.spend, stream.read
    steps = 0
    while True:
        if not steps:
            steps = _AT_ONCE
            spend(0, steps)
        steps -= 1
        code = read(1) or machine.take(1)
        if code == b".":
            if len(machine.stack) == 1:
                return machine.stack.pop()
            machine.broken(f"{len(machine.stack)} results")
        step = _STEPS.get(code)
        if step is None or (code == b"Q" and outside is None):
            raise unsafe(
                "a pickle of a dict of arrays",
                f"the instruction {code!r} before byte {stream.tell()}, which arrays do not need",
            )
        try:
            step(machine)
        except SingaNetError:
            raise
        except (IndexError, ValueError, TypeError, LookupError, struct.error) as error:
            machine.broken(f"{type(error).__name__} before byte {stream.tell()}")


def _int_line(machine: Machine) -> None:
    line = machine.line()
    # How protocols 0 and 1 spell booleans.
    machine.push({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line))


def _long(machine: Machine, count: int) -> None:
    if count > 16:
        raise ValueError
    machine.push(int.from_bytes(machine.take(count), "little", signed=True))


def _from_stack(machine: Machine) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    machine.name(module, name)


def _set_one(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _dict(machine: Machine) -> None:
    items = machine.since_mark()
    machine.push({})
    machine.set_items(items)


_STEPS: dict[bytes, Callable[[Machine], Any]] = {
    b"\x80": lambda m: m.take(1),
    b"\x95": lambda m: m.take(8),
    b"(": lambda m: m.push(MARK),
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.since_mark(),
    b"2": lambda m: m.push(m.stack[-1]),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"I": _int_line,
    b"L": lambda m: m.push(int(m.line().rstrip(b"L"))),
    b"J": lambda m: m.push(m.whole(4, signed=True)),
    b"K": lambda m: m.push(m.byte()),
    b"M": lambda m: m.push(m.whole(2)),
    b"\x8a": lambda m: _long(m, m.byte()),
    b"F": lambda m: m.push(float(m.line())),
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"S": lambda m: m.push(m.long_line(ESCAPED)),
    b"V": lambda m: m.push(m.long_line(UNICODE)),
    b"T": lambda m: m.push(m.string(m.whole(4, signed=True), RAW)),
    b"U": lambda m: m.push(m.string(m.byte(), RAW)),
    b"X": lambda m: m.push(m.string(m.whole(4), UTF8)),
    b"\x8c": lambda m: m.push(m.string(m.byte(), UTF8)),
    b"\x8d": lambda m: m.push(m.string(m.whole(8), UTF8)),
    b"B": lambda m: m.push(m.string(m.whole(4), RAW)),
    b"C": lambda m: m.push(m.string(m.byte(), RAW)),
    b"\x8e": lambda m: m.push(m.string(m.whole(8), RAW)),
    b"\x96": lambda m: m.push(m.string(m.whole(8), RAW)),
    b"}": lambda m: m.push({}),
    b"d": _dict,
    b"s": _set_one,
    b"u": lambda m: m.set_items(m.since_mark()),
    b"]": lambda m: m.push([]),
    b"l": lambda m: m.push(m.since_mark()),
    b"a": lambda m: m.extend([m.stack.pop()]),
    b"e": lambda m: m.extend(m.since_mark()),
    b")": lambda m: m.push(()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.make_tuple(1),
    b"\x86": lambda m: m.make_tuple(2),
    b"\x87": lambda m: m.make_tuple(3),
    b"c": lambda m: m.name(m.line().decode("latin-1"), m.line().decode("latin-1")),
    b"\x93": _from_stack,
    b"R": lambda m: m.reduce(),
    b"b": lambda m: m.build(),
    b"Q": lambda m: m.refer(),
    b"g": lambda m: m.push(m.memo[int(m.line())]),
    b"h": lambda m: m.push(m.memo[m.byte()]),
    b"j": lambda m: m.push(m.memo[m.whole(4)]),
    b"p": lambda m: m.remember(int(m.line())),
    b"q": lambda m: m.remember(m.byte()),
    b"r": lambda m: m.remember(m.whole(4)),
    b"\x94": lambda m: m.remember(len(m.memo)),
}
