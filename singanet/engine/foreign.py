"""What a layer of the user's own gives back, compared with what it said it would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.origin import is_library
from singanet.errors import ShapeError
from singanet.layers.layer import Layer
from singanet.params.param import Param
from singanet.types import Shape


def is_foreign(layer: Layer) -> bool:
    """Whether the class of ``layer`` is not singanet's."""
    return not is_library(type(layer))


def apart(x: Any, feed: Iterable[Any]) -> Any:
    """``x``, in a copy where it is memory of the caller's, so that a layer may work in place."""
    if isinstance(x, list):
        return [apart(part, feed) for part in x]
    shared = type(x) is np.ndarray and any(
        isinstance(given, np.ndarray) and np.may_share_memory(x, given) for given in feed
    )
    return x.copy() if shared else x


def expect_output(name: str, made: Any, shapes: Sequence[Shape]) -> None:
    """Errors: what `Layer.forward` gave is not of the sample shapes that setup returned."""
    parts = [made] if len(shapes) == 1 else made
    good = isinstance(parts, (list, tuple)) and len(parts) == len(shapes)
    if not good or not all(map(_fits, parts, shapes)):
        raise ShapeError(
            f"layer {name!r}",
            expected=f"forward to return {_batches(shapes)}, as its setup said",
            received=_kind(made),
            advice="mend forward, or the shape that setup returns",
        )


def expect_gradients(
    name: str, made: Any, in_shapes: Sequence[Shape], params: Mapping[str, Param]
) -> None:
    """Errors: what `Layer.backward` gave is no ``(dx, {suffix: gradient})`` of the right shapes."""
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Mapping):
        raise ShapeError(
            f"layer {name!r}",
            expected="backward to return the input gradient and a dict of those of parameters",
            received=_kind(made),
            advice="write return dx, {'weight': dw}, or return dx, {} where there are none",
        )
    dx, by_suffix = made
    parts = [dx] if len(in_shapes) == 1 else dx
    good = isinstance(parts, (list, tuple)) and len(parts) == len(in_shapes)
    if in_shapes and not (
        good and all(p is None or _fits(p, s) for p, s in zip(parts, in_shapes, strict=True))
    ):
        raise ShapeError(
            f"layer {name!r}",
            expected=f"backward to return {_batches(in_shapes)} for its input, or None",
            received=_kind(dx),
            advice="an input gradient has the shape of the input",
        )
    for suffix, grad in by_suffix.items():
        shape = params[suffix].shape if suffix in params else None
        if grad is not None and shape is not None and getattr(grad, "shape", shape) != shape:
            raise ShapeError(
                f"layer {name!r}, gradient of {suffix!r}",
                expected=f"the parameter's shape {shape}",
                received=_kind(grad),
                advice="sum over the batch: a gradient has the shape of its parameter",
            )


def _fits(array: Any, shape: Shape) -> bool:
    found = getattr(array, "shape", None)
    if found is None or len(found) != len(shape) + 1:
        return False
    return all(want in (-1, have) for have, want in zip(found[1:], shape, strict=True))


def _batches(shapes: Sequence[Shape]) -> str:
    texts = [
        f"({', '.join(['batch', *('any' if a == -1 else str(a) for a in shape)])})"
        for shape in shapes
    ]
    return f"an array {texts[0]}" if len(texts) == 1 else f"arrays {', '.join(texts)}"


def _kind(made: Any) -> str:
    if isinstance(made, (list, tuple)):
        return f"a {type(made).__name__} of {', '.join(map(_kind, made)) or 'nothing'}"
    shape = getattr(made, "shape", None)
    return f"a {type(made).__name__}" if shape is None else f"an array of shape {tuple(shape)}"
