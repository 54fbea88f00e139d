"""Texts as tokens: the tokenizer of a published model, and loaders that read texts from disk."""

from __future__ import annotations

from singanet.data.tokens.chat import Chat
from singanet.data.tokens.rows import Fragment, fragments
from singanet.data.tokens.text_files import TextRecord
from singanet.data.tokens.text_folder import TextFolder
from singanet.data.tokens.text_stream import TextStream
from singanet.data.tokens.token_loader import TokenLoader
from singanet.data.tokens.tokenizer import Tokenizer

__all__ = [
    "Chat",
    "Fragment",
    "TextFolder",
    "TextRecord",
    "TextStream",
    "TokenLoader",
    "Tokenizer",
    "fragments",
]
