"""Parts of the net in another shape of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from singanet.onnx.drawing import Use
from singanet.onnx.values import BATCHES, RefusedError, Tensor


def in_shape(use: Use, x: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """``x`` in the graph's shape, which is given for each of `BATCHES`.

    The samples may be merged with axes beside them, never cut or mixed.
    """
    first, second = (list(shape) for shape in shapes)
    if x.axis is None:
        if first != second:
            raise RefusedError("a shape that is known", f"{first}")
        return replace(x, symbol=use.reshaped(x, first))
    moving = [k for k, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    times = 0
    if len(moving) == 1:
        times = first[moving[0]] // BATCHES[0]
        shown = [first[moving[0]], second[moving[0]]]
        times = times if shown == [times * n for n in BATCHES] else 0
    in_front = prod(x.sample[: x.axis]) * x.before
    left = prod(first[: moving[0]]) if moving else 0
    if not times or in_front % left or times % (in_front // left):
        raise RefusedError("samples that stay apart", f"{x.dims(BATCHES[0])} as {first}")
    at, before = moving[0], in_front // left
    made = replace(x, axis=at, before=before, after=times // before)
    sample = (*first[:at], *made.folds, *first[at + 1 :])
    return replace(made, symbol=use.reshaped(x, sample))
