"""Shapes on the command line."""

from __future__ import annotations

import argparse


def shape(text: str) -> tuple[int, ...]:
    """``1,28,28`` as a tuple. Errors: those that argparse reports."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected ints such as 1,28,28; received {text!r}"
        ) from None
