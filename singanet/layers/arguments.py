"""Checks of the plain arguments that layers take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from singanet.base.arguments import checked_count, is_number
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.layers.layer import Layer
from singanet.types import Shape

__all__ = ["expect_int", "expect_one_input", "expect_one_of", "expect_positive"]


def expect_int(
    layer: str,
    what: str,
    value: Any,
    least: int = 1,
    advice: str = "",
    most: int | None = None,
) -> int:
    """`checked_count` of the argument ``what`` of ``layer``."""
    advice = advice or f"pass for example {what}={max(least, 8)}"
    return checked_count(f"layer {layer!r}", f"argument {what}", value, least, most, advice)


def expect_positive(layer: str, what: str, value: Any) -> float:
    """``value`` as a float when it is a positive finite number; else an `ArgumentError`."""
    if not is_number(value) or not value > 0:
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected="a positive number",
            received=repr(value),
            advice=f"pass for example {what}=1e-5",
        )
    return float(value)


def expect_one_input(layer: Layer, in_shapes: Any) -> Shape:
    """``in_shapes`` itself when it is the sample shape of one input; else a `ShapeError`."""
    if isinstance(in_shapes, list):
        raise layer.shape_error(
            "one input",
            f"{len(in_shapes)} inputs of sample shapes {in_shapes}",
            "join them with Merge or Concat first",
        )
    return in_shapes


def expect_one_of(layer: str, what: str, value: Any, known: Iterable[str]) -> str:
    """``value`` itself when it is among ``known``; else an `UnknownNameError`."""
    names = list(known)
    if value not in names:
        raise UnknownNameError(
            f"layer {layer!r}, argument {what}",
            expected=f"one of {one_of(map(repr, names))}",
            received=repr(value),
            advice=did_you_mean(str(value), names, "choose one of these"),
        )
    return str(value)
