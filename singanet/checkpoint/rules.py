"""How names and shapes were spelled before: an ordered list, each rule with its version."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from singanet.types import Shape


@dataclass(frozen=True)
class NameRule:
    """Files from before ``version`` call ``name`` what ``spell`` gives; None if it never was so."""

    version: str
    title: str
    spell: Callable[[str], str | None]


@dataclass(frozen=True)
class ShapeRule:
    """Files from before ``version`` keep an array in a shape of the same numbers in order.

    With ``of_caffe`` only files with kernels of four axes do, and in reverse order.
    """

    version: str
    title: str
    fits: Callable[[Shape, Shape], bool]
    of_caffe: bool = False


def _last_slash(sign: str) -> Callable[[str], str | None]:
    def spell(name: str) -> str | None:
        return sign.join(name.rsplit("/", 1)) if "/" in name else None

    return spell


def _kernel(there: Shape, wanted: Shape) -> bool:
    """A convolution's (F, C, kh, kw) as (F, C·kh·kw)."""
    return (
        len(there) == 4
        and len(wanted) == 2
        and there[0] == wanted[0]
        and math.prod(there[1:]) == wanted[1]
    )


def _turned(there: Shape, wanted: Shape) -> bool:
    """A dense layer's (out, in) as (in, out)."""
    return len(there) == 2 and there == wanted[::-1]


# Tried in this order, whatever version a file states: SINGA's own releases disagreed about it.
NAME_RULES = (
    NameRule("SINGA 1101", "'_' for the last '/'", _last_slash("_")),
    NameRule("SINGA 1101", "'-' for the last '/', in recurrent layers", _last_slash("-")),
)

SHAPE_RULES = (
    ShapeRule("SINGA 1101", "kernels of four axes, as Caffe's", _kernel),
    ShapeRule("SINGA 1101", "a matrix (out, in), as Caffe's", _turned, of_caffe=True),
)

PACKED_RULE = "all weights of a recurrent layer as one array, as in every SINGA"
"""cuDNN's form, which snapshots and pickles keep; the net says which layers have it, and how."""
