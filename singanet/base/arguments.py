"""Checks of arguments, the flag of a forward, and the budget of a file's reader.

An untrusted file may request far more than its size: lists doubled by reference, huge claims,
endless trees. Every reader charges its objects to a `Budget`, so that any such file ends in an
error of ours, within about ten times its size and a fixed minimum.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from numbers import Integral, Real
from operator import index
from typing import Any, SupportsIndex, TypeAlias, TypeGuard

from singanet.errors import ArgumentError, SingaNetError, brief
from singanet.types import Shape

MAX_NAME_BYTES = 4096
NAMES = (
    f"names of 1 to {MAX_NAME_BYTES} bytes of printable characters without empty, '.' or '..' parts"
)
"""The expected names, for errors."""
_NO_PARTS = frozenset(("", ".", ".."))


def is_flag(value: Any) -> TypeGuard[bool]:
    """Return whether ``value`` is True or False, of Python or NumPy."""
    if isinstance(value, bool):
        return True
    # The launcher checks arguments without NumPy. A NumPy flag exists only once NumPy is imported.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.bool_)


def is_int(value: Any, least: int = 1) -> TypeGuard[int]:
    """Return whether ``value`` is an int, or a NumPy one, of at least ``least``; a bool is not."""
    if type(value) is int:
        return value >= least
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def is_number(value: Any) -> bool:
    """Return whether ``value`` is one finite real number that a float can be; a bool is not."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # of an int
        return False


def checked_number(
    where: str, value: Any, expected: str, fits: Callable[[float], bool], advice: str
) -> float:
    """Return ``value`` as a float. Errors: `ArgumentError` unless it is finite and ``fits``."""
    if not is_number(value) or not fits(value):
        raise ArgumentError(where, expected=expected, received=brief(value), advice=advice)
    return float(value)


def checked_count(
    where: str,
    name: str,
    value: SupportsIndex,
    least: int,
    most: int | None = None,
    advice: str = "",
) -> int:
    """Return ``value`` as an int from ``least`` to ``most``. Errors: `ArgumentError`.

    ``most`` bounds a number from a file that would otherwise fill the memory.
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
            received=brief(value),
            advice=advice or f"give a plain int {bounds}",
        )
    return whole


MESSAGES = (
    "make ids of messages by tokenizer.prompt(messages), to have them answered, or by "
    "tokenizer.chat(messages); singanet.data.Chat reads many to learn from, in .jsonl files"
)
"""The advice for chat messages instead of numbers."""


def are_messages(value: Any) -> bool:
    """Return whether ``value`` is a message with its role, or a record or nested lists of them."""
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return isinstance(value, Mapping) and ("role" in value or "messages" in value)


def are_texts(value: Any) -> bool:
    """Return whether ``value`` is a text, or a list of texts."""
    return isinstance(value[0] if isinstance(value, (list, tuple)) and value else value, str)


def name_trouble(name: str) -> str:
    """Return the fault of ``name`` as text, "" if there is none.

    Refused are empty, overlong or unprintable names, and empty, ``.`` or ``..`` parts between
    slashes, which could escape a folder.
    """
    plain = name.isascii()
    size = len(name) if plain else len(name.encode("utf-8", "surrogatepass"))
    if size > MAX_NAME_BYTES:
        return f"{len(name)} characters"
    if not name:
        return "an empty name"
    # Nearly all names are plain: a check of each character is slower than reading a small array.
    if not (plain and name.isprintable()):
        if any(ord(sign) < 32 or 0x7F <= ord(sign) < 0xA0 for sign in name):
            return f"control characters in {name[:60]!r}"
        if any(0xD800 <= ord(sign) < 0xE000 for sign in name):
            return f"no Unicode text in {name[:60]!r}"
    if not _NO_PARTS.isdisjoint(name.split("/")):
        return f"{name[:60]!r}"
    return ""


def are_plain_names(names: Collection[str]) -> bool:
    """Return whether `name_trouble` would find no fault with any of ``names``.

    It looks at all of them together: one by one takes as long as reading small arrays.
    """
    whole = f"/{'/'.join(names)}/"
    short = max(map(len, names), default=0) <= MAX_NAME_BYTES
    plain = short and whole.isascii() and whole.isprintable()
    return not names or (plain and not any(f"/{part}/" in whole for part in _NO_PARTS))


kTrain = 4  # noqa: N816 - SINGA's spelling, which its users' code imports
"""The flag of a training forward, like True."""

kEval = 8  # noqa: N816
"""The flag of an evaluation forward, like False."""


def is_training(flag: bool | int) -> bool:
    """Return whether ``flag`` (True or kTrain, False or kEval) requests training.

    Any other value is an ArgumentError: a wrong argument must not silently train or evaluate.
    """
    if is_flag(flag):
        return bool(flag)
    if is_int(flag) and flag in (kTrain, kEval):
        return int(flag) == kTrain
    raise ArgumentError(
        "flag",
        expected=f"True or kTrain ({kTrain}), False or kEval ({kEval})",
        received=brief(flag),
        advice="pass True or False",
    )


FLOOR = 16 << 20
"""The bytes that any file may use, however small."""
TIMES = 8
"""The bytes that a file may use for each of its own."""
DEEPEST = 200
"""The most levels of nested lists, dicts, groups and nets."""
MAX_RANK = 32
"""The most axes of an array; no layer has more than five."""

Refusal: TypeAlias = Callable[[str, str], Exception]
"""``refuse(expected, received)`` makes the reader's own error."""


FOREIGN = (
    LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError,
    StopIteration, MemoryError, RecursionError,
)  # fmt: skip
"""The errors of Python and NumPy that arithmetic on a file's values may raise."""


@contextmanager
def own_errors(refuse: Refusal, expected: str) -> Iterator[None]:
    """Within the block, `FOREIGN` errors become the reader's own; the library's errors pass."""
    try:
        yield
    except SingaNetError:
        raise
    except FOREIGN as error:
        reason = f"{type(error).__name__}: {str(error)[:100]}"
        raise refuse(expected, reason) from None


class Budget:
    """The remaining bytes, nodes and depth for a file of ``size`` bytes.

    ``nodes`` limits time rather than memory: instructions, layers, groups. An excess raises
    ``refuse(expected, received)``.
    """

    __slots__ = ("_depth", "_nodes", "_nodes_left", "_remaining", "_size", "refuse")

    def __init__(self, size: int, refuse: Refusal, nodes: int = 1_000_000) -> None:
        self.refuse = refuse
        self._size = size
        self._remaining = FLOOR + TIMES * size
        self._nodes = self._nodes_left = nodes
        self._depth = 0

    def spend(self, nbytes: int = 0, nodes: int = 1) -> None:
        """Subtract ``nbytes`` and ``nodes`` from the budget."""
        self._remaining -= nbytes
        self._nodes_left -= nodes
        if self._remaining < 0:
            most = FLOOR + TIMES * self._size
            raise self.refuse(f"contents of at most {most} bytes of memory", "more")
        if self._nodes_left < 0:
            raise self.refuse(f"at most {self._nodes} parts", "more")

    def has(self, nbytes: int) -> bool:
        """Return whether ``nbytes`` are left for a temporary object; charge an eighth of them."""
        if nbytes > self._remaining:
            return False
        self.spend(nbytes // 8)
        return True

    def grant(self, size: int) -> None:
        """Add another file of ``size`` bytes."""
        self._size += size
        self._remaining += TIMES * size

    @contextmanager
    def deeper(self, most: int = DEEPEST) -> Iterator[None]:
        """Within the block, count one more level, at most ``most``."""
        self._depth += 1
        try:
            self.expect_depth(self._depth, most)
            yield
        finally:
            self._depth -= 1

    def expect_depth(self, levels: int, most: int = DEEPEST) -> None:
        """Refuse more levels than ``most``."""
        if levels > most:
            raise self.refuse(f"at most {most} nested levels", "more")


def read_json(
    text: bytes,
    budget: Budget,
    what: str = "text",
    pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:
    """Parse JSON ``text``, called ``what`` in errors; ``pairs`` makes the dicts.

    Errors: as for the budget.
    """
    signs = text.translate(None, _NO_SIGNS)
    # The sizes of the smallest objects of each kind, in CPython 3.11.
    parts = signs.count(b",") + signs.count(b"[") + signs.count(b"{")
    budget.spend(2 * len(text) + 48 * parts + 64 * signs.count(b":"), parts)
    try:
        found = json.loads(text.decode("utf-8"), object_pairs_hook=pairs)
    except SingaNetError:  # of ``pairs``
        raise
    except (ValueError, RecursionError) as error:
        raise budget.refuse(f"{what} in JSON", f"{type(error).__name__}: {error}"[:200]) from None
    if _are_few_levels(signs):
        return found
    inner, levels = iter([found]), 0
    while level := [each for each in inner if type(each) in _NESTED]:
        levels += 1
        budget.expect_depth(levels)
        inner = chain.from_iterable(each.values() if type(each) is dict else each for each in level)
    return found


def _are_few_levels(signs: bytes) -> bool:
    """Return whether JSON with ``signs`` certainly has few levels; those in strings may hide it."""
    brackets = signs.translate(None, b",:")
    for _ in range(_FEW_LEVELS // 2):
        brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if not brackets:
            return True
    return False


_FEW_LEVELS = 8
_NO_SIGNS = bytes(set(range(256)) - set(b"[]{},:"))
_NESTED = frozenset((dict, list))
"""The types of values with values in them, of which the parser makes no subclasses."""


def checked_shape(shape: Sequence[Any], itemsize: int, limit: int, refuse: Refusal) -> Shape:
    """Return ``shape`` as a tuple. Errors: it claims over ``limit`` bytes, or NumPy refuses it."""
    # Check the rank first: a product of very many axes would take long.
    fine = len(shape) <= MAX_RANK and all(is_int(axis, 0) for axis in shape)
    axes = tuple(map(int, shape)) if fine else ()
    claimed = math.prod(axes) * itemsize
    # NumPy also refuses an empty array whose other axes overflow.
    most = claimed or math.prod([axis or 1 for axis in axes]) * itemsize
    if not fine or most >= 1 << 62:
        received = f"{len(shape)} axes, {tuple(shape[: MAX_RANK + 1])}"
        raise refuse(f"up to {MAX_RANK} axes, none negative, less than 2^62 bytes", received[:300])
    if claimed > limit:
        raise refuse(f"a shape of at most {limit} bytes", f"{axes}, which needs {claimed}")
    return axes
