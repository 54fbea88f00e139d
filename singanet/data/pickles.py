"""Pickles of arrays, read without running code.

A pickle is a program. A `Machine` of ours runs its instructions on tokens; no name in it is
imported, called or built, and a `Budget` limits its memory and steps.
"""

from __future__ import annotations

import codecs
import io
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import cache
from typing import Any, BinaryIO

import numpy as np

from singanet.base.arguments import NAMES, Budget, Refusal, checked_shape
from singanet.errors import DataError, SingaNetError
from singanet.types import Array, Shape

ALLOWED = frozenset(
    {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.numeric", "_frombuffer"),
        ("collections", "OrderedDict"),
        ("_codecs", "encode"),
        # How protocol 2 spells b"": called without arguments, or refused.
        ("__builtin__", "bytes"),
    }
)
"""Every name that a pickle may mention; none is ever imported or called."""


@dataclass(frozen=True, slots=True)
class Global:
    """A mention of one of `ALLOWED`."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class StoredText:
    """A long string that stays in the file; ``coding`` is the encoding of its bytes."""

    offset: int
    size: int
    coding: str


@dataclass(slots=True, eq=False)
class Made:
    """A call that the pickle requests and nobody makes, with the state set on its result."""

    maker: str
    args: tuple[Any, ...]
    state: Any = None


_CODE = re.compile(r"[<>=|]?([biuf]\d{1,2})")


@dataclass(frozen=True, slots=True)
class Pickled:
    """An array whose bytes are ``data``, as ``dtype`` in the given order."""

    shape: Shape
    dtype: np.dtype[Any]
    fortran_order: bool
    data: bytes | StoredText

    @property
    def stored(self) -> int:
        """The bytes of its data in the file, escapes included."""
        return self.data.size if isinstance(self.data, StoredText) else len(self.data)


def recognise(value: Any, size: int, refuse: Refusal, unsafe: Refusal) -> Pickled:
    """Return ``value`` as an array; claims larger than the file's ``size`` are refused.

    Errors: ``unsafe(...)`` for arrays of objects, ``refuse(...)`` for anything else.
    """
    expected = "a NumPy array of booleans, integers or floats"
    if not isinstance(value, Made):
        raise refuse(expected, type(value).__name__)
    try:
        if value.maker == "_reconstruct" and isinstance(value.args[0], Global):
            _, shape, kind, fortran, data = value.state
        elif value.maker == "_frombuffer":
            data, kind, shape, order = value.args
            fortran = text(order) == "F"
        else:
            (kind, data), shape, fortran = value.args, (), False
        dtype = _dtype(kind, unsafe)
        if not isinstance(data, (bytes, StoredText)):
            raise TypeError("no bytes for its elements")
        axes = checked_shape(shape, dtype.itemsize, size, refuse)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        if isinstance(error, SingaNetError):
            raise
        raise refuse(expected, f"an array built otherwise ({error})"[:200]) from None
    return Pickled(axes, dtype, bool(fortran), data)


def text(value: Any) -> str:
    """Return a short string of Python 2 or 3 as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError("no string")
    return value


def _dtype(value: Any, unsafe: Refusal) -> np.dtype[Any]:
    if not isinstance(value, Made) or value.maker != "dtype":
        raise TypeError("no type")
    code = text(value.args[0])
    found = _CODE.fullmatch(code)
    if code.lstrip("<>=|").startswith("O"):
        raise unsafe("an array of numbers", "an array of Python objects")
    if not found:
        raise TypeError(f"the type {code[:40]!r}")
    order = text(value.state[1]) if value.state else "="
    return np.dtype(found[1]).newbyteorder(">" if order == ">" else "<")


RAW = "bytes as they are"
ESCAPED = "Python 2 repr"
UTF8 = "utf-8"
UNICODE = "raw-unicode-escape"
LATIN = "bytes as characters in utf-8"

_PIECE = 1 << 20


def decoded(data: bytes, coding: str) -> Any:
    """Decode a short string that is not `RAW`. Raises ValueError for invalid bytes."""
    if coding == ESCAPED:
        return _unescape(data)
    return data.decode("utf-8" if coding == UTF8 else UNICODE)


def pieces(stream: BinaryIO, text: StoredText) -> Iterator[bytes]:
    """Yield the bytes of ``text``. Raises ValueError as `decoded` does."""
    stream.seek(text.offset)
    left, rest = text.size, b""
    while left:
        data = stream.read(min(_PIECE, left))
        if not data:
            raise ValueError("the file ends inside a string")
        left -= len(data)
        data = rest + data
        cut = len(data) if not left else _whole(data, text.coding)
        rest = data[cut:]
        yield _bytes(data[:cut], text.coding)


def _bytes(data: bytes, coding: str) -> bytes:
    if coding == RAW:
        return data
    if coding == ESCAPED:
        return _unescape(data)
    return data.decode("utf-8" if coding == LATIN else UNICODE).encode("latin-1")


def _whole(data: bytes, coding: str) -> int:
    """Return where to cut ``data`` without splitting a character or an escape."""
    end = len(data)
    if coding == LATIN:
        # Only the two-byte characters C2 and C3 begin occur; a lead byte must not come last.
        return end - 1 if data[-1] >= 0xC0 else end
    if coding not in (ESCAPED, UNICODE):
        return end
    longest = 4 if coding == ESCAPED else 10
    at = data.rfind(b"\\", max(0, end - longest + 1))
    if at < 0:
        return end
    run = len(data[: at + 1]) - len(data[: at + 1].rstrip(b"\\"))
    if run % 2 == 0:
        return end  # pairs: the last backslash is itself escaped
    return at


def _unescape(data: bytes) -> bytes:
    if b"\\" not in data:
        return data
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            raw: bytes = codecs.escape_decode(data)[0]
        except DeprecationWarning as error:
            raise ValueError(str(error)) from None
    return raw


_SHORT = 4096  # the longest string that is read at once
_LONGEST_LINE = 4096
MARK = object()
# Bytes of a token, and of an item in a list.
_TOKEN, _PLACE = 100, 8
# The cost of a string with escapes, in steps.
_ESCAPES = 20
_mention = cache(Global)  # bounded, since only allowed names come here


class Machine:
    """A stack, a memo, and ``stream`` of ``size`` bytes, in which long strings stay.

    ``budget`` pays for every token. ``unsafe`` makes the error for a name that is not in ``names``;
    ``outside`` makes the token for data stored outside of the program. The methods raise
    IndexError, ValueError or TypeError for an invalid program.
    """

    def __init__(
        self,
        stream: BinaryIO,
        size: int,
        budget: Budget,
        unsafe: Refusal,
        names: Set[tuple[str, str]],
        outside: Callable[[Any], Any] | None,
    ) -> None:
        self._stream = stream
        self._size = size
        self._names = names
        self._outside = outside
        self._spend = budget.spend
        self._refuse, self._unsafe = budget.refuse, unsafe
        self.stack: list[Any] = []
        # A bound method, since half of all steps do little else.
        self.push = self.stack.append
        self.memo: dict[int, Any] = {}

    # -- reading ----------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """Read the next ``count`` bytes."""
        data = self._stream.read(count) if count <= _LONGEST_LINE else b""
        if len(data) < count:
            raise self._truncated(f"{count} bytes", f"{len(data)} bytes")
        return data

    def byte(self) -> int:
        """Read the next byte."""
        data = self._stream.read(1)
        return data[0] if data else self.take(1)[0]

    def whole(self, count: int, signed: bool = False) -> int:
        """Read the next integer, of ``count`` bytes."""
        return int.from_bytes(self.take(count), "little", signed=signed)

    def line(self) -> bytes:
        """Read the next line, without its end."""
        line = self._stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise self._truncated("the end of a line", f"{len(line)} bytes")
        return line[:-1]

    def string(self, size: int, coding: str) -> Any:
        """Read a short string of ``size`` bytes, or return a `StoredText` for a long one."""
        if not 0 <= size <= _SHORT:
            start = self._stream.tell()
            if not 0 <= size <= self._size - start:
                raise self._truncated(f"{size} bytes", f"{self._size - start} bytes")
            self._spend(_TOKEN + _SHORT)
            self._stream.seek(size, io.SEEK_CUR)
            return StoredText(start, size, coding)
        self._spend(_TOKEN + size)
        data = self.take(size)
        if coding == RAW:
            return data
        if coding == ESCAPED and b"\\" in data:
            self._spend(0, _ESCAPES)
        return decoded(data, coding)

    def long_line(self, coding: str) -> Any:
        """Read a string up to the next line end; an escaped one is quoted."""
        start = self._stream.tell()
        end, most = -1, 1 << 8
        while end < 0:
            # Small pieces first: most lines are short.
            most = min(4 * most, 1 << 20)
            piece = self._stream.read(most)
            if not piece:
                raise self._truncated("the end of a line", "none")
            found = piece.find(b"\n")
            end = -1 if found < 0 else self._stream.tell() - len(piece) + found
        size = end - start
        self._stream.seek(start)
        if coding == ESCAPED:
            quote = self.take(1)
            self._stream.seek(end - 1)
            if size < 2 or quote not in b"'\"" or self.take(1) != quote:
                self.broken("a string without quotes")
            self._stream.seek(start + 1)
            size -= 2
        value = self.string(size, coding)
        self._stream.seek(end + 1)
        return value

    # -- stack ------------------------------------------------------------------------------

    def since_mark(self) -> list[Any]:
        """Pop everything above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        self._spend(_TOKEN + _PLACE * len(items))
        return items

    def make_tuple(self, count: int) -> None:
        """Replace the last ``count`` items by a tuple of them."""
        items = tuple(self.stack[len(self.stack) - count :])
        if len(items) < count:
            raise IndexError
        self._spend(_TOKEN)
        del self.stack[len(self.stack) - count :]
        self.push(items)

    def set_items(self, items: list[Any]) -> None:
        """Set keys and values, alternating in ``items``, in the dict on top."""
        target = self.stack[-1]
        if type(target) is not dict:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, StoredText):
                raise self._refuse(NAMES, f"a key of {key.size} bytes")
            if not isinstance(key, (str, bytes, int)):
                raise TypeError
            target[key] = value
        self._spend(_TOKEN * (len(items) // 2))

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)
        self._spend(_PLACE * len(items))

    def remember(self, index: int) -> None:
        """Store the top of the stack in the memo."""
        self.memo[index] = self.stack[-1]
        self._spend(_TOKEN)

    # -- names and calls --------------------------------------------------------------------

    def name(self, module: Any, name: Any) -> None:
        """Push a mention of ``module.name``. Errors: the name is not allowed."""
        # Hash and print only strings: nested tuples may take forever, or crash the process.
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError
        if (module, name) not in self._names:
            raise self._unsafe("arrays, and no other names", f"{module[:60]}.{name[:60]}")
        self.push(_mention(module, name))

    def reduce(self) -> None:
        """Pop a maker and its arguments, and push a token for the result."""
        args, maker = self.stack.pop(), self.stack.pop()
        if not isinstance(maker, Global) or type(args) is not tuple:
            raise TypeError
        if maker.name == "OrderedDict":
            self.push({})
            pairs = args[0] if args else []
            if type(pairs) not in (list, tuple):
                raise TypeError
            self._spend(_TOKEN * len(pairs), len(pairs))
            self.set_items([part for key, value in pairs for part in (key, value)])
        elif maker.name == "encode":
            text, coding = args
            if coding not in ("latin1", "latin-1"):
                raise ValueError
            self._spend(_TOKEN + (0 if isinstance(text, StoredText) else len(text)))
            self.push(_latin(text))
        elif maker.name == "bytes":
            self.push(b"" if not args else self.broken("a call of bytes"))
        else:
            self._spend(_TOKEN)
            self.push(Made(maker.name, args))

    def build(self) -> None:
        """Pop a state and set it on the token below."""
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Made):
            made.state = state
        elif type(made) is not dict:  # attributes of an OrderedDict do not affect its items
            raise TypeError

    def refer(self) -> None:
        """Replace the name of data outside of the program by a token for it."""
        assert self._outside is not None
        self._spend(_TOKEN)
        self.push(self._outside(self.stack.pop()))

    def broken(self, what: str) -> Any:
        """Raise the error for a damaged program."""
        raise self._refuse("a whole pickle of a dict of arrays", what)

    def _truncated(self, expected: str, received: str) -> Exception:
        return self._refuse(expected, f"{received}, then the end of the file")


def _latin(text: Any) -> Any:
    """Encode ``text`` to bytes, one a character."""
    if isinstance(text, StoredText):
        codings = {UTF8: LATIN, UNICODE: UNICODE}
        return StoredText(text.offset, text.size, codings[text.coding])
    if not isinstance(text, str):
        raise TypeError
    return text.encode("latin-1")


_AT_ONCE = 64
"""The steps that are charged to the budget together."""


def run_program(
    stream: BinaryIO,
    size: int,
    budget: Budget,
    unsafe: Refusal,
    names: Set[tuple[str, str]] = ALLOWED,
    outside: Callable[[Any], Any] | None = None,
) -> Any:
    """Run the pickle in ``stream``, of ``size`` bytes; return plain values and tokens.

    ``budget`` is charged for each step, and makes the error for a damaged program; ``unsafe`` makes
    it for a name outside ``names`` or an instruction that only live objects need. ``outside`` makes
    the token for data outside of the program, such as PyTorch's arrays.
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


_MOST_STEPS = 600_000
"""CIFAR-100's largest file has 150,000 labels and names, of one or two steps each."""


def load_plain_pickle(content: bytes, where: str) -> dict[str, Any]:
    """Return the dict in a pickle: numbers, text, flat lists of them, numeric arrays (read-only).

    Keys are str; text that Python 2 wrote is bytes. Errors: `DataError` with a forbidden
    instruction or name, and for a file that makes more than ten times its size.
    """

    def refuse(expected: str, received: str) -> DataError:
        return DataError(
            where,
            expected=expected,
            received=received,
            advice="get the file again from its publisher",
        )

    budget = Budget(len(content), refuse, _MOST_STEPS)
    stream = io.BytesIO(content)
    value = run_program(stream, len(content), budget, refuse)
    if type(value) is not dict:
        raise refuse("a pickled dict", f"a {type(value).__name__}")

    def plain(entry: Any) -> Any:
        if isinstance(entry, StoredText):
            budget.spend(entry.size)
            return b"".join(pieces(stream, entry))
        if not (entry is None or isinstance(entry, int | bytes | str)):
            raise refuse("numbers, texts, lists of these and arrays", f"a {type(entry).__name__}")
        return entry

    def flat(entry: Any) -> Any:
        if isinstance(entry, Made):
            found = recognise(entry, len(content), refuse, refuse)
            return _array(plain(found.data), found.dtype, found.shape, found.fortran_order)
        if isinstance(entry, list | tuple):
            budget.spend(8 * len(entry), len(entry))  # many keys may share one list
            return type(entry)(plain(each) for each in entry)
        return plain(entry)

    try:
        return {text(key): flat(entry) for key, entry in value.items()}
    except SingaNetError:
        raise
    except (TypeError, ValueError) as error:
        raise refuse("a pickled dict of plain values", f"{error}"[:200]) from error


def _array(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> Array:
    flat = np.frombuffer(data, dtype)
    if flat.size != int(np.prod(shape, dtype=np.int64)):
        raise ValueError(f"{len(data)} bytes for shape {shape} of {dtype}")
    return flat.reshape(shape, order="F" if fortran else "C")
