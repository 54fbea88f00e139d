"""Pickles read without running them: dicts, lists, texts, numbers and NumPy's arrays.

A pickle is a program. Its instructions move tokens on a stack of ours; no name in it is imported,
called or built, and what it makes is taken off a `Budget`.
"""

from __future__ import annotations

from singanet.data.pickles.arrays import Pickled, recognise, text
from singanet.data.pickles.steps import run_program
from singanet.data.pickles.strings import RAW, pieces
from singanet.data.pickles.tokens import ALLOWED, Global, Made, StoredText

__all__ = [
    "ALLOWED",
    "RAW",
    "Global",
    "Made",
    "Pickled",
    "StoredText",
    "pieces",
    "recognise",
    "run_program",
    "text",
]
