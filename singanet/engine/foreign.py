"""Calls of users' layers, and checks of the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from singanet.base.described import misdefined, never_began
from singanet.base.elsewhere import NoEntryError
from singanet.errors import ShapeError, did_you_mean, one_of
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.params.param import Param
from singanet.types import Gradient, RowSparse, Shape

_SHOWN = 4
"""The number of parts of a wrong list that an error describes."""


def apart(x: Any, feed: Iterable[Any]) -> Any:
    """``x``, copied if the caller owns its memory, so that a layer may work in place."""
    if isinstance(x, list):
        return [apart(part, feed) for part in x]
    shared = type(x) is np.ndarray and any(
        isinstance(given, np.ndarray) and np.may_share_memory(x, given) for given in feed
    )
    # The copy has the same layout, as in a program.
    return x.copy(order="K") if shared else x


class _Entries(dict[str, Any]):
    """``entries`` of a context, with an error in three parts for missing names."""

    def __init__(self, entries: Mapping[str, Any], where: str, named: str, advice: str) -> None:
        super().__init__(entries)
        self._terms = where, named, advice

    def __missing__(self, key: object) -> Any:
        where, named, advice = self._terms
        raise NoEntryError(
            where,
            expected=f"one of the entries of {named}: {one_of(self) or 'none'}",
            received=f"{named}[{key!r}]",
            advice=did_you_mean(str(key), self, advice),
        )


def run_forward(name: str, layer: Layer, ctx: Context, x: Any, shapes: Sequence[Shape]) -> Any:
    """The checked output of a user's `Layer.forward` for ``x``; the step is called ``name``.

    Errors: it does not have the sample ``shapes``; ``ctx`` lacks a value that forward reads; wrong
    arguments.
    """
    ctx.in_shapes = _shapes_of(x)
    with _explaining(name, layer, ctx):
        made = _called(name, layer.forward, "def forward(self, ctx, x)", ctx, x)
    count = None if layer.traits.samples != "same" else ctx.in_shapes[0][0]
    expect_output(name, made, shapes, count)
    return made


def run_backward(
    name: str, layer: Layer, ctx: Context, dy: Any, in_shapes: Sequence[Shape]
) -> tuple[Any, Mapping[str, Gradient]]:
    """The checked result of a user's `Layer.backward` for ``dy``; the step is called ``name``.

    Errors: it does not fit the sample shapes ``in_shapes``, the inputs of forward or the
    parameters; ``ctx`` lacks a value that backward reads; wrong arguments.
    """
    with _explaining(name, layer, ctx):
        made = _called(name, layer.backward, "def backward(self, ctx, dy)", ctx, dy)
    dx, by_suffix = expect_gradients(name, made, in_shapes, ctx.in_shapes, layer.params)
    return dx, by_suffix


def _called(name: str, method: Callable[..., Any], wanted: str, *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except TypeError as error:
        if never_began(error):
            raise misdefined(f"layer {name!r}", method, wanted) from None
        raise


@contextmanager
def _explaining(name: str, layer: Layer, ctx: Context) -> Iterator[None]:
    """A block in which missing entries of ``ctx`` raise an error in three parts."""
    if not isinstance(layer, Layer):
        # It is being recorded: a user's code, if any, runs further inside.
        yield
        return
    where, params = f"layer {name!r}", ctx.params
    advice = "keep it in forward, by ctx.save(name=value)"
    ctx.saved = _Entries(ctx.saved, where, "ctx.saved", advice)
    if isinstance(ctx.params, dict):
        advice = "make it in setup, by self.add_param(name, shape)"
        ctx.params = _Entries(ctx.params, where, "ctx.params", advice)
    try:
        yield
    finally:
        # A plain dict, as all that goes through contexts expects.
        ctx.saved, ctx.params = dict(ctx.saved), params


def expect_output(name: str, made: Any, shapes: Sequence[Shape], count: int | None = None) -> None:
    """Errors: `Layer.forward` returned other sample shapes than setup, or not ``count`` samples.

    A ``count`` of None allows any number.
    """
    parts = [made] if len(shapes) == 1 else made
    good = isinstance(parts, (list, tuple)) and len(parts) == len(shapes)
    if not good or not all(map(_fits, parts, shapes)):
        raise ShapeError(
            f"layer {name!r}",
            expected=f"forward to return {_batches(shapes)}, as setup promised",
            received=_kind(made),
            advice="mend forward, or the shape that setup returns",
        )
    for part in parts:
        if count is not None and part.shape[0] != count:
            raise ShapeError(
                f"layer {name!r}",
                expected=f"forward to return {count} samples, as it was given",
                received=f"{part.shape[0]}",
                advice="mend forward, or set traits = Traits(samples='own') in the class",
            )


def expect_gradients(
    name: str,
    made: Any,
    in_shapes: Sequence[Shape],
    given: Sequence[Shape] | None,
    params: Mapping[str, Param],
) -> tuple[Any, Mapping[str, Gradient]]:
    """Return the checked result of `Layer.backward` for inputs of sample shapes ``in_shapes``.

    ``given`` are the shapes of forward's inputs. Errors: anything but ``(dx, {suffix: gradient})``
    of the right shapes.
    """
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], Mapping):
        raise ShapeError(
            f"layer {name!r}",
            expected="backward to return the input gradient and a dict of parameter gradients",
            received=_kind(made),
            advice="write return dx, {'weight': dw}, or return dx, {} without parameters",
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
    for part, had in zip(parts if in_shapes else (), given or (), strict=False):
        if part is not None and tuple(part.shape) != had:
            raise ShapeError(
                f"layer {name!r}",
                expected=f"backward to return an array of shape {had}, as its input had",
                received=_kind(part),
                advice="an input gradient has a row for each sample",
            )
    for suffix, grad in by_suffix.items():
        shape = params[suffix].shape if suffix in params else None
        if grad is None or shape is None or isinstance(grad, RowSparse):
            continue
        if getattr(grad, "shape", None) != shape or not _is_real(grad):
            raise ShapeError(
                f"layer {name!r}, gradient of {suffix!r}",
                expected=f"an array of real numbers of the parameter's shape {shape}",
                received=_kind(grad),
                advice="sum over the batch: a gradient has the shape of its parameter",
            )
    return dx, by_suffix


def _is_real(array: Any) -> bool:
    return bool(array.dtype.kind in "fiub")


def _shapes_of(x: Any) -> list[Shape]:
    return [tuple(part.shape) for part in (x if isinstance(x, (list, tuple)) else [x])]


def _fits(array: Any, shape: Shape) -> bool:
    found = getattr(array, "shape", None)
    if found is None or len(found) != len(shape) + 1 or not _is_real(array):
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
        more = f", ... ({len(made)} in all)" if len(made) > _SHOWN else ""
        parts = ", ".join(map(_kind, made[:_SHOWN])) + more
        return f"a {type(made).__name__} of {parts or 'nothing'}"
    shape = getattr(made, "shape", None)
    if shape is None:
        return f"a {type(made).__name__}"
    kind = "" if _is_real(made) else f" of type {made.dtype}"
    return f"an array{kind} of shape {tuple(shape)}"
