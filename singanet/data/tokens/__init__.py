"""Tokenizers of published models, and loaders of tokens from text files."""

from __future__ import annotations

from singanet.data.tokens.chat import Chat, TextFolder
from singanet.data.tokens.masking_loader import MaskingLoader
from singanet.data.tokens.pairs import Pairs
from singanet.data.tokens.text_files import Fragment, TextRecord, TextStream, fragments
from singanet.data.tokens.token_loader import TokenLoader
from singanet.data.tokens.tokenizer import Tokenizer

__all__ = [
    "Chat",
    "Fragment",
    "MaskingLoader",
    "Pairs",
    "TextFolder",
    "TextRecord",
    "TextStream",
    "TokenLoader",
    "Tokenizer",
    "fragments",
]
