"""SINGA's flags for training and evaluation."""

from __future__ import annotations

from singanet.base.arguments import is_flag, is_int
from singanet.errors import ArgumentError

__all__ = ["is_training", "kEval", "kTrain"]

kTrain = 4  # noqa: N816 - SINGA's spelling, which its users' code imports
"""The flag of a forward that trains, as True."""

kEval = 8  # noqa: N816
"""The flag of a forward that evaluates, as False."""


def is_training(flag: bool | int) -> bool:
    """Whether ``flag`` (True or kTrain, False or kEval) asks for training.

    Any other value is an ArgumentError: a flag that was meant to be something else must not
    silently train or evaluate.
    """
    if is_flag(flag):
        return bool(flag)
    if is_int(flag) and flag in (kTrain, kEval):
        return int(flag) == kTrain
    raise ArgumentError(
        "flag",
        expected=f"True or kTrain ({kTrain}), False or kEval ({kEval})",
        received=repr(flag),
        advice="pass one of these",
    )
