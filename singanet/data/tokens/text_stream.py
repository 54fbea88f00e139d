"""Tokens as text while they come, no sooner than their characters are whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_LONG, _BEFORE = 48, 8
"""Tokens that are decoded together at most, and those that stay as what came before."""


class TextStream:
    """The text of tokens that come one by one; `Tokenizer.stream` makes it.

    `push` gives what is new and final: a character of which bytes are missing is held back. All
    that is given, with what `close` gives, is `Tokenizer.decode` of all tokens.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._given = 0

    def push(self, *ids: int) -> str:
        """The text that these tokens complete, "" while a character is not whole."""
        self._ids += map(int, ids)
        text = self._decode(self._ids)
        # What is no character yet is decoded as the replacement character.
        whole = len(text.rstrip("\ufffd"))
        new = text[self._given : whole]
        self._given = max(self._given, whole)
        if whole == len(text) and len(self._ids) > _LONG:
            self._shorten(text)
        return new

    def close(self) -> str:
        """The bytes held back, which make no character, as text. The stream is as new then."""
        rest = self._decode(self._ids)[self._given :]
        self._ids, self._given = [], 0
        return rest

    def _shorten(self, text: str) -> None:
        """Let old tokens go, where what follows does not depend on them."""
        for kept in range(_BEFORE, _LONG):
            part = self._decode(self._ids[-kept:])
            if part and text.endswith(part):
                self._ids, self._given = self._ids[-kept:], len(part)
                return
