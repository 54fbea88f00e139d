"""The arithmetic of a rule as one function, which reads and writes each array once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations
from typing import Any, NamedTuple, Protocol

from singanet.base.heap import address
from singanet.ops import Ops
from singanet.program.ir import Bind, Call, Ref, Token
from singanet.types import Array

Operand = Ref | Array
"""An array of the program, or a number: one without axes, the program's or a constant."""

_LEAST = 1 << 19
"""Elements from which compiling pays: LLVM itself takes some 4 MB. Fewer stay in a cache."""


class JoinedStep(Protocol):
    """A ``call`` that makes ``out`` by a ``function`` of NumPy of arrays of ``size`` elements."""

    @property
    def size(self) -> int:
        """The elements of each array."""

    @property
    def call(self) -> Call:
        """The recorded call."""

    @property
    def function(self) -> Any:
        """The function of NumPy."""

    @property
    def out(self) -> Ref:
        """The result."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of the function."""


class JointSweep(NamedTuple):
    """A function of ``arrays``: see `joined`."""

    arrays: tuple[Ref, ...]
    plan: Any
    bind: Bind


def joined(
    sweeps: Sequence[JoinedStep],
    private: Callable[[], Collection[int]],
    tokens: Sequence[Token],
    ops: Ops,
) -> JointSweep | None:
    """Return ``sweeps`` as one function, or None if ``ops`` has none for them.

    The ``private`` tokens, which no other call uses, need no memory if they are made here.
    """
    if len(sweeps) < 2 or sweeps[0].size < _LEAST:
        return None
    alone = private()
    made: set[int] = set()
    seen: set[int] = set()
    for sweep in sweeps:
        token = sweep.out.token
        if token not in seen and token not in sweep.call.reads and token in alone:
            made.add(token)
        seen.update(sweep.call.reads, sweep.call.writes)
    between: dict[Any, Operand] = {}
    arrays: dict[Any, Operand] = {}
    numbers: dict[Any, Operand] = {}
    used: list[Any] = [each for sweep in sweeps for each in (*sweep.operands, sweep.out)]
    for operand in used:
        if not operand.shape:
            kind = numbers
        else:
            is_made = operand.token in made and tokens[operand.token].held is None
            kind = between if is_made else arrays
        kind.setdefault(_key(operand), operand)
    if _overlap([*between, *arrays], sweeps[0]):
        return None
    places = {key: place for place, key in enumerate((*arrays, *numbers, *between))}
    steps = tuple(
        (s.function.__name__, places[_key(s.out)], tuple(places[_key(o)] for o in s.operands))
        for s in sweeps
    )
    plan = ops.joint_sweep(sweeps[0].size, len(arrays), len(numbers), steps)
    if plan is None:
        return None
    operands = *arrays.values(), *numbers.values()

    def bind(array_of: Any) -> Any:
        found = [array_of(each) if type(each) is Ref else each for each in operands]
        return plan.bound([*map(address, found)], 0)

    refs = tuple(each for each in operands if type(each) is Ref)
    return JointSweep(refs, plan, bind)


def _key(operand: Operand) -> Any:
    return (operand.token, operand.offset) if type(operand) is Ref else id(operand)


def _overlap(places: Collection[tuple[int, int]], sweep: JoinedStep) -> bool:
    """Whether two of the places have some memory in common."""
    nbytes = sweep.size * sweep.out.dtype.itemsize
    return any(
        one == other and abs(first - second) < nbytes
        for (one, first), (other, second) in combinations(places, 2)
    )
