"""Checks of arguments, flags of a forward, and the budget that a reader of a file keeps.

A stranger's file may ask for far more than it holds: lists doubled by reference, numbers that claim
memory, trees without end. Every reader spends what it makes from a `Budget`, so that any such file
ends in an error of ours, within about ten times its size and a fixed floor.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from numbers import Integral, Real
from operator import index
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

from singanet.errors import ArgumentError, SingaNetError
from singanet.types import Shape

MAX_NAME_BYTES = 4096
NAMES = (
    f"names of 1 to {MAX_NAME_BYTES} bytes of printable characters without empty, '.' or '..' parts"
)
"""The expectation in errors."""
_NO_PARTS = frozenset(("", ".", ".."))


def is_flag(value: Any) -> TypeGuard[bool]:
    """Whether ``value`` is True or False, of Python or NumPy."""
    if isinstance(value, bool):
        return True
    # The launcher checks arguments without NumPy. A NumPy flag exists only once NumPy is imported.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_)


def is_int(value: Any, least: int = 1) -> TypeGuard[int]:
    """Whether ``value`` is an int, or a NumPy one, of at least ``least``; a bool is not."""
    if type(value) is int:
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """Whether ``value`` is one finite real number; a bool is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def checked_number(
    where: str, value: Any, expected: str, fits: Callable[[float], bool], advice: str
) -> float:
    """``value`` as a float. Errors: `ArgumentError` unless it is a finite number that ``fits``."""
    if not is_number(value) or not fits(value):
        raise ArgumentError(where, expected=expected, received=repr(value), advice=advice)
    return float(value)


def checked_count(
    where: str,
    name: str,
    value: SupportsIndex,
    least: int,
    most: int | None = None,
    advice: str = "",
) -> int:
    """``value`` as an int from ``least`` to ``most``. Errors: `ArgumentError` naming the argument.

    Where so many things are made at once, ``most`` keeps a number from a file from filling the
    memory.
    """
    try:
        whole = None if isinstance(value, bool) else index(value)
    except TypeError:
        whole = None
    if whole is None or whole < least or (most is not None and whole > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ArgumentError(
            f"{where}, {name}",
            expected=f"an int {bounds}",
            received=f"{value!r}",
            advice=advice or f"give a plain int {bounds}",
        )
    return whole


MESSAGES = (
    "make ids of messages by tokenizer.prompt(messages), to have them answered, or by "
    "tokenizer.chat(messages); singanet.data.Chat reads many to learn from, in .jsonl files"
)
"""The advice to rows of a chat in the place of numbers."""


def are_messages(value: Any) -> bool:
    """Whether ``value`` is a message with its role, or a row or lists of them."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, Mapping) and ("role" in value or "messages" in value)


def are_texts(value: Any) -> bool:
    """Whether ``value`` is a text, or a list of them."""
    return isinstance(value[0] if isinstance(value, (list, tuple)) and value else value, str)


def name_trouble(name: str) -> str:
    """The fault of ``name`` in words, "" if there is none.

    Refused: an empty, overlong or unprintable name, and a part between slashes that is empty, ``.``
    or ``..``, by which a folder could be escaped.
    """
    plain = name.isascii()
    size = len(name) if plain else len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        return f"{len(name)} characters"
    if not name:
        return "an empty name"
    # Most names by far are plain: a look at each sign takes longer than reading a small array.
    if not (plain and name.isprintable()):
        if any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in name):
            return f"control characters in {name[:60]!r}"
        if any(0xD800 <= ord(sign) < 0xE000 for sign in name):
            return f"no Unicode text in {name[:60]!r}"
    if not _NO_PARTS.isdisjoint(name.split("/")):
        return f"{name[:60]!r}"
    return ""


kTrain = 4  # noqa: N816 - SINGA's spelling, which its users' code imports
"""The flag of a forward that trains, as True."""

kEval = 8  # noqa: N816
"""The flag of a forward that evaluates, as False."""


def is_training(flag: bool | int) -> bool:
    """Whether ``flag`` (True or kTrain, False or kEval) asks for training.

    Any other value is an ArgumentError: a flag that was meant to be something else must not
    silently train or evaluate.
    """
    if is_flag(flag):
        return bool(flag)
    if is_int(flag) and flag in (kTrain, kEval):
        return int(flag) == kTrain
    raise ArgumentError(
        "flag",
        expected=f"True or kTrain ({kTrain}), False or kEval ({kEval})",
        received=repr(flag),
        advice="pass one of these",
    )


FLOOR = 16 << 20
"""Bytes that any file may make, however small."""
TIMES = 8
"""Bytes that a file may make for each of its own."""
DEEPEST = 200
"""How many levels of lists, dicts, groups and nets may stand inside each other."""
MAX_RANK = 32
"""Axes of an array; no layer has more than five."""

Refusal: TypeAlias = Callable[[str, str], Exception]
"""Makes the reader's own error of what it expected and what it received."""


FOREIGN = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError,
    StopIteration, MemoryError, RecursionError,
)  # fmt: skip
"""Errors of Python and NumPy that arithmetic on a file's values may raise."""


@contextmanager
def own_errors(refuse: Refusal, expected: str) -> Iterator[None]:
    """Within the block, `FOREIGN` errors become the reader's own; those of the library stay."""
    try:
        yield
    except SingaNetError:
        raise
    except FOREIGN as error:
        told = f"{type(error).__name__}: {str(error)[:100]}"
        raise refuse(expected, told) from None


class Budget:
    """Bytes, nodes and depth that a file of ``size`` bytes may still ask for.

    ``nodes`` bounds what takes time rather than memory: instructions, layers, groups. Where more
    is asked for than is left, ``refuse(expected, received)`` is raised.
    """

    __slots__ = ("_depth", "_left", "_nodes", "_nodes_left", "_size", "refuse")

    def __init__(self, size: int, refuse: Refusal, nodes: int = 1_000_000) -> None:
        self.refuse = refuse
        self._size = size
        self._left = FLOOR + TIMES * size
        self._nodes = self._nodes_left = nodes
        self._depth = 0

    def spend(self, nbytes: int = 0, nodes: int = 1) -> None:
        """Take so much off what is left."""
        self._left -= nbytes
        self._nodes_left -= nodes
        if self._left < 0:
            most = FLOOR + TIMES * self._size
            raise self.refuse(f"what takes at most {most} bytes of memory", "more")
        if self._nodes_left < 0:
            raise self.refuse(f"at most {self._nodes} parts", "more")

    def has(self, nbytes: int) -> bool:
        """Whether so much is left for what is let go at once, of which an eighth is spent."""
        if nbytes > self._left:
            return False
        self.spend(nbytes // 8)
        return True

    def grant(self, size: int) -> None:
        """Another file, of ``size`` bytes, that counts as well."""
        self._size += size
        self._left += TIMES * size

    @contextmanager
    def deeper(self, most: int = DEEPEST) -> Iterator[None]:
        """One level down, of at most ``most``, for the length of the block."""
        self._depth += 1
        try:
            self.expect_depth(self._depth, most)
            yield
        finally:
            self._depth -= 1

    def expect_depth(self, levels: int, most: int = DEEPEST) -> None:
        """Refuse more levels than ``most``."""
        if levels > most:
            raise self.refuse(f"at most {most} levels inside each other", "more")


def read_json(
    text: bytes,
    budget: Budget,
    what: str = "text",
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:
    """The data that ``text`` encodes in JSON, called ``what`` in errors; ``pairs`` makes the dicts.

    Errors: those of the budget.
    """
    # Measured with the smallest of each kind, CPython 3.11.
    parts = text.count(b",") + text.count(b"[") + text.count(b"{")
    budget.spend(2 * len(text) + 48 * parts + 64 * text.count(b":"), parts)
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise budget.refuse(f"{what} in JSON", f"{type(error).__name__}: {error}"[:200]) from None
    inner, levels = iter([found]), 0
    while level := [each for each in inner if isinstance(each, (dict, list))]:
        levels += 1
        budget.expect_depth(levels)
        inner = chain.from_iterable(
            each.values() if isinstance(each, dict) else each for each in level
        )
    return found


def checked_shape(shape: Sequence[Any], itemsize: int, limit: int, refuse: Refusal) -> Shape:
    """``shape`` as a tuple, if it claims no more than ``limit`` bytes and NumPy can have it."""
    # The rank first: a product of very many axes would take long.
    fine = len(shape) <= MAX_RANK and all(is_int(axis, 0) for axis in shape)
    axes = tuple(map(int, shape)) if fine else ()
    claimed = math.prod(axes) * itemsize
    # NumPy refuses an empty array, too, whose other axes overflow.
    most = claimed or math.prod([axis or 1 for axis in axes]) * itemsize
    if not fine or most >= 1 << 62:
        received = f"{len(shape)} axes, {tuple(shape[: MAX_RANK + 1])}"
        raise refuse(f"up to {MAX_RANK} axes, none negative, less than 2^62 bytes", received[:300])
    if claimed > limit:
        raise refuse(f"a shape of at most {limit} bytes", f"{axes}, which needs {claimed}")
    return axes
