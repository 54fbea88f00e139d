"""Weights of classes on the command line."""

from __future__ import annotations

import argparse


def weights(text: str) -> dict[int, float]:
    """``0=1,3=5`` as a dict. Errors: those that argparse reports."""
    try:
        pairs = [part.split("=") for part in text.split(",")]
        found = {int(key): float(value) for key, value in pairs}
        if len(found) == len(pairs):
            return found
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"expected classes with weights, each once, such as 0=1,3=5; received {text!r}"
    )
