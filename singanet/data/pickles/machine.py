"""The machine that a pickle's program moves: its stack and memo hold tokens, never objects."""

from __future__ import annotations

import io
from collections.abc import Callable, Set
from functools import cache
from typing import Any, BinaryIO

from singanet.base.budget import Budget, Refusal
from singanet.data.pickles.strings import ESCAPED, LATIN, RAW, UNICODE, UTF8, decoded
from singanet.data.pickles.tokens import Global, Made, StoredText

_SHORT = 4096  # a name may be that long
_LONGEST_LINE = 4096
MARK = object()
# What a token, and a place in a list, takes in memory.
_TOKEN, _PLACE = 100, 8
# A string with escapes takes as long as so many other steps.
_ESCAPES = 20
_mention = cache(Global)  # of names on a list


class Machine:
    """A stack, a memo, and ``stream`` of ``size`` bytes, in which long strings are left.

    What is made is taken off ``budget``; ``unsafe`` makes the error for a name that is not one of
    ``names``, ``outside`` the token for what is kept beside the program. The methods raise
    IndexError, ValueError or TypeError where the program makes no sense.
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
        # Puts a value on the stack; half of all steps do little else.
        self.push = self.stack.append
        self.memo: dict[int, Any] = {}

    # -- reading ----------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        data = self._stream.read(count) if count <= _LONGEST_LINE else b""
        if len(data) < count:
            raise self._truncated(f"{count} bytes", f"{len(data)} bytes")
        return data

    def byte(self) -> int:
        """The next byte."""
        data = self._stream.read(1)
        return data[0] if data else self.take(1)[0]

    def whole(self, count: int, signed: bool = False) -> int:
        """The next whole number, of ``count`` bytes."""
        return int.from_bytes(self.take(count), "little", signed=signed)

    def line(self) -> bytes:
        """The next line, without its end."""
        line = self._stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise self._truncated("the end of a line", f"{len(line)} bytes")
        return line[:-1]

    def string(self, size: int, coding: str) -> Any:
        """A string of ``size`` bytes: itself when it is short, else where to find it."""
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
        """A string that ends at the next line end; quoted, if it is escaped."""
        start = self._stream.tell()
        end, most = -1, 1 << 8
        while end < 0:
            # Little at first: most lines are short.
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
        """Take everything above the last mark off the stack, and the mark."""
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
        """Set keys and values, in turn, in the dict on top."""
        target = self.stack[-1]
        if type(target) is not dict:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
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
        """Keep what is on top in the memo."""
        self.memo[index] = self.stack[-1]
        self._spend(_TOKEN)

    # -- names and calls --------------------------------------------------------------------

    def name(self, module: Any, name: Any) -> None:
        """Put a mention of ``module.name`` on the stack. Errors: it is not on the list."""
        # Nothing else is hashed or shown: tuples in tuples take for ever, or end the process.
        if not (isinstance(module, str) and isinstance(name, str)):
            raise TypeError
        if (module, name) not in self._names:
            raise self._unsafe(
                "arrays, and no name but those for them", f"{module[:60]}.{name[:60]}"
            )
        self.push(_mention(module, name))

    def reduce(self) -> None:
        """Take a maker and its arguments; put what they stand for."""
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
        """Take a state and set it on the token below."""
        state, made = self.stack.pop(), self.stack[-1]
        if isinstance(made, Made):
            made.state = state
        elif type(made) is not dict:  # attributes of an OrderedDict tell nothing of its items
            raise TypeError

    def refer(self) -> None:
        """Replace the name of what is kept beside the program by a token for it."""
        assert self._outside is not None
        self._spend(_TOKEN)
        self.push(self._outside(self.stack.pop()))

    def broken(self, what: str) -> Any:
        """Raise the error for a program that is damaged in this way."""
        raise self._refuse("a whole pickle of a dict of arrays", what)

    def _truncated(self, expected: str, received: str) -> Exception:
        return self._refuse(expected, f"{received}, then the end of the file")


def _latin(text: Any) -> Any:
    """``text`` as the bytes it stands for, one a character."""
    if isinstance(text, StoredText):
        codings = {UTF8: LATIN, UNICODE: UNICODE}
        return StoredText(text.offset, text.size, codings[text.coding])
    if not isinstance(text, str):
        raise TypeError
    return text.encode("latin-1")
