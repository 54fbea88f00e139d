"""Parts of the net in another shape of the graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from singanet import layers
from singanet.codecs.onnx.use import Use
from singanet.codecs.onnx.values import BATCHES, STEPS, RefusedError, Tensor
from singanet.layers.layer import Layer


def by_dims(use: Use, x: Tensor, shape: Callable[[list[int]], Sequence[int]]) -> Tensor:
    """``x`` in the shape that ``shape`` makes of its own one, as `in_shape`."""
    return in_shape(use, x, [shape(x.dims(n)) for n in BATCHES])


def in_shape(use: Use, x: Tensor, shapes: Sequence[Sequence[int]]) -> Tensor:
    """``x`` in the graph's shape, which is given for each of `BATCHES`.

    The samples may be merged with axes beside them, never cut or mixed, nor axes of any extent.
    """
    first, second = (list(shape) for shape in shapes)
    both = list(zip(first, second, strict=True))
    sizes = [-1 if pair == STEPS else pair[0] for pair in both]
    moving = [k for k, pair in enumerate(both) if pair[0] != pair[1] and sizes[k] != -1]
    if x.axis is None:
        if moving:
            raise RefusedError("a shape that is known", f"{first}")
        return replace(x, symbol=use.reshaped(x, sizes))
    times = 0
    if len(moving) == 1:
        times = first[moving[0]] // BATCHES[0]
        shown = [first[moving[0]], second[moving[0]]]
        times = times if shown == [times * n for n in BATCHES] else 0
    in_front = prod(x.dims(BATCHES[0])[: x.axis]) * x.before
    left = prod(first[: moving[0]]) if moving else 0
    if not times or in_front % left or times % (in_front // left):
        raise RefusedError("samples that stay apart", f"{x.dims(BATCHES[0])} as {first}")
    at, before = moving[0], in_front // left
    made = replace(x, axis=at, before=before, after=times // before)
    sample = (*sizes[:at], *made.folds, *sizes[at + 1 :])
    return replace(made, symbol=use.reshaped(x, sample))


def over_last(use: Use, x: Tensor, last: int, layer: Layer) -> Tensor:
    """``layer`` on the last axes of the graph's array, whatever stands before them."""
    tail = len(x.sample) - last
    if tail < 0 or (x.axis is not None and x.axis >= x.rank - last):
        raise RefusedError(
            f"samples in front of the last {last} axes", f"axis {x.axis} of {x.rank}"
        )
    lead = x.sample[:tail]
    if not lead:
        return x.like(use.draw(layer, x))
    wrapped = layers.TimeDistributed(use.sheet.names.take(f"{layer.name}.steps"), layer)
    use.drawn.append(wrapped.name)
    flat = use.reshaped(x, (-1 if -1 in lead else prod(lead), *x.sample[tail:]))
    made = x.like(wrapped(flat))
    return made.like(use.reshaped(made, (*lead, *made.sample[1:])))
