"""The machine that a pickle's program moves: its stack and memo hold tokens, never objects."""

from __future__ import annotations

import io
import struct
from typing import Any, BinaryIO

from singanet.checkpoint.pickle.strings import ESCAPED, LATIN, UNICODE, UTF8, decoded
from singanet.checkpoint.pickle.tokens import ALLOWED, Global, Made, Text
from singanet.checkpoint.streaming import truncated
from singanet.errors import FileFormatError, UnsafeFileError

_SHORT = 4096  # a name may be that long
_LONGEST_LINE = 4096
MARK = object()
_MOST_BYTES = 16 << 20


class Machine:
    """A stack, a memo, and ``stream`` of ``size`` bytes, in which long strings are left.

    The methods raise IndexError, ValueError or TypeError where the program makes no sense.
    """

    def __init__(self, stream: BinaryIO, size: int, where: str) -> None:
        self._stream = stream
        self._size = size
        self._where = where
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self._left = _MOST_BYTES

    # -- reading ----------------------------------------------------------------------------

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        data = self._stream.read(count) if count <= _LONGEST_LINE else b""
        if len(data) < count:
            raise truncated(self._where, f"{count} bytes", f"{len(data)} bytes")
        return data

    def number(self, form: str) -> Any:
        """The next number, laid out as ``form`` tells struct."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> bytes:
        """The next line, without its end."""
        line = self._stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise truncated(self._where, "the end of a line", f"{len(line)} bytes")
        return line[:-1]

    def string(self, size: int, coding: str) -> Any:
        """A string of ``size`` bytes: itself when it is short, else where to find it."""
        start = self._stream.tell()
        if not 0 <= size <= self._size - start:
            raise truncated(self._where, f"{size} bytes", f"{self._size - start} bytes")
        if size > _SHORT:
            self._stream.seek(size, io.SEEK_CUR)
            return Text(start, size, coding)
        return decoded(self.take(size), coding)

    def long_line(self, coding: str) -> Any:
        """A string that ends at the next line end; quoted, if it is escaped."""
        start = self._stream.tell()
        end = -1
        while end < 0:
            piece = self._stream.read(1 << 20)
            if not piece:
                raise truncated(self._where, "the end of a line", "none")
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

    def push(self, value: Any) -> None:
        """Put ``value`` on the stack."""
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        """Take everything above the last mark off the stack, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not MARK:
            at -= 1
            if at < 0:
                raise IndexError
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def make_tuple(self, count: int) -> None:
        """Replace the last ``count`` items by a tuple of them."""
        items = tuple(self.stack[len(self.stack) - count :])
        if len(items) < count:
            raise IndexError
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

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top."""
        if type(self.stack[-1]) is not list:
            raise TypeError
        self.stack[-1].extend(items)

    def remember(self, index: int) -> None:
        """Keep what is on top in the memo."""
        self.memo[index] = self.stack[-1]

    # -- names and calls --------------------------------------------------------------------

    def name(self, module: Any, name: Any) -> None:
        """Put a mention of ``module.name`` on the stack. Errors: it is not on the list."""
        if (module, name) not in ALLOWED:
            raise UnsafeFileError(
                self._where,
                expected="arrays, and no name but NumPy's own for them",
                received=f"{str(module)[:60]}.{str(name)[:60]}",
                advice="do not load it; ask its author for safetensors or npz",
            )
        self.push(Global(module, name))

    def reduce(self) -> None:
        """Take a maker and its arguments; put what they stand for."""
        args, maker = self.stack.pop(), self.stack.pop()
        if not isinstance(maker, Global) or type(args) is not tuple:
            raise TypeError
        if maker.name == "OrderedDict":
            self.push({})
            pairs = list(args[0]) if args else []
            self._spend(200 * len(pairs))
            self.set_items([part for key, value in pairs for part in (key, value)])
        elif maker.name == "encode":
            text, coding = args
            if coding not in ("latin1", "latin-1"):
                raise ValueError
            self._spend(0 if isinstance(text, Text) else len(text))
            self.push(_latin(text))
        elif maker.name == "bytes":
            self.push(b"" if not args else self.broken("a call of bytes"))
        else:
            self.push(Made(maker.name, args))

    def build(self) -> None:
        """Take a state and set it on the token below."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Made):
            raise TypeError
        self.stack[-1].state = state

    def _spend(self, size: int) -> None:
        """Count what one instruction makes: repeated, it could fill the memory."""
        self._left -= size
        if self._left < 0:
            self.broken(f"calls that make more than {_MOST_BYTES} bytes")

    def broken(self, what: str) -> Any:
        """Raise the error for a program that is damaged in this way."""
        raise FileFormatError(
            self._where,
            expected="a whole pickle of a dict of arrays",
            received=what,
            advice="the file is damaged: copy it again, or use an earlier checkpoint",
        )


def _latin(text: Any) -> Any:
    """``text`` as the bytes it stands for, one a character."""
    if isinstance(text, Text):
        codings = {UTF8: LATIN, UNICODE: UNICODE}
        return Text(text.offset, text.size, codings[text.coding])
    if not isinstance(text, str):
        raise TypeError
    return text.encode("latin-1")
