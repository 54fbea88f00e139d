"""What a pair of features is compared with, and how nearly it has to be that."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.pairs.by_hand import by_hand
from tests.pairs.declared import BITS, CLOSE, is_exact
from tests.pairs.training import Case, Outcome, carried_out, multiplying_bfloat16

PRECISIONS = {"float16": 2.0**-8, "bfloat16": 2.0**-4, "narrow weights": 2.0**-5}
"""Features that round, and what a number may be off by beside the largest of its array."""
NEAR = 1e-6


@dataclass(frozen=True)
class Comparison:
    """The features that stay on in what a pair is compared with, and the tolerance, 0 for bits."""

    against: frozenset[str]
    formula: bool
    tolerance: float
    dtype: str


def comparison_of(features: frozenset[str]) -> Comparison:
    """How ``features`` are compared.

    Those that promise the bits are left away, and the rest has to be the same. Else those that sum
    in another order are left away. What is left has its formula.
    """
    rounded = max((PRECISIONS[name] for name in PRECISIONS if name in features), default=0.0)
    near, dtype = (rounded, "float32") if rounded else (NEAR, "float64")
    if features & BITS and not is_exact(features):
        return Comparison(features - BITS - CLOSE, False, near, dtype)
    if features & BITS:
        return Comparison(features - BITS, False, 0.0, "float32")
    if features & CLOSE:
        return Comparison(features - CLOSE, False, near, dtype)
    return Comparison(features, True, near, dtype)


@cache
def expected(shape: frozenset[str], made: Comparison, seed: int = 0, rule: str = "sgd") -> Outcome:
    """What a training leaves with the features of ``made``, of a net for all of ``shape``."""
    case = Case(shape, made.against, made.dtype, seed, rule)
    if made.formula:
        with multiplying_bfloat16() if "bfloat16" in case else nullcontext():
            return by_hand(case)
    with tempfile.TemporaryDirectory() as folder:
        return carried_out(case, Path(folder))[0]


def difference(found: list[Outcome], wanted: Outcome, tolerance: float, least: float = 0.0) -> str:
    """In what the outcomes of ranks are not ``wanted``; "" for nothing.

    ``least`` is the least size of arrays that numbers are compared with.
    """
    for rank, each in enumerate(found):
        if each.values.keys() != wanted.values.keys():
            return f"other parameters on rank {rank}"
        for name, value in wanted.values.items():
            off = np.abs(each.values[name].astype(float) - value).max()
            if not off <= tolerance * max(np.abs(value).max(), least):
                return f"{name} of rank {rank} is off by {off:.2g} of {np.abs(value).max():.2g}"
    losses: Any = np.mean([each.losses for each in found], axis=0)
    if not np.allclose(losses, wanted.losses, max(tolerance, NEAR), 0):
        return f"losses {losses}, and not {wanted.losses}"
    return ""
