"""Layers that move the batch axis, and sums of products: what `singanet.functional` draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from singanet.base.arguments import is_int
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, brief
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name
from singanet.ops import Ops
from singanet.ops.kernel import in_float32
from singanet.types import Array, GivenShape, GivenShapes, Shapes, Traits


class Rearrange(Layer):
    """A layer that permutes, inserts and removes axes, the batch axis among them.

    Axis k of the output is axis ``order[k]`` of the input; None inserts an axis of extent 1. Axes
    that ``order`` omits have extent 1. Order (None, 0, 1) makes one sample of a batch of vectors,
    and (1, 2) makes a batch of its steps again.

    Args:
        name: Name of the layer, a string.
        order: Sequence of ints, each once, and Nones; 0 is the batch axis.
        input_shape: Sample shape, to set the layer up at once.

    Examples:
        >>> x = singanet.Input("x", (4, 3))
        >>> singanet.layers.Rearrange(order=(0, 2, None, 1))(x).shape
        (3, 1, 4)
    """

    traits = Traits(moves_only=True, any_extent=True)

    def __init__(
        self,
        name: Name = None,
        order: Sequence[int | None] = REQUIRED,
        *,
        input_shape: GivenShape | None = None,
    ) -> None:
        super().__init__(name, input_shape)
        several = isinstance(order, (tuple, list)) and len(order) > 0
        axes = [k for k in order if k is not None] if several else []
        if not several or not all(is_int(k, 0) for k in axes) or len(set(axes)) < len(axes):
            raise ArgumentError(
                f"layer {name!r}, argument order",
                expected="axes of the input from 0, the batch, each at most once, and Nones",
                received=brief(order),
                advice="use (1, 0) to transpose a batch of vectors",
            )
        self.order = tuple(order)
        if self.order[0] != 0:
            self.traits = replace(self.traits, samples="own")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape → the extents of the axes behind the first of ``order``, -1 for a batch."""
        whole = () if isinstance(in_shapes, list) else (-1, *in_shapes)
        gone = [k for k in range(1, len(whole)) if k not in self.order]
        axes = [k for k in self.order if k is not None]
        if not whole or max(axes, default=0) >= len(whole) or any(whole[k] != 1 for k in gone):
            raise self.shape_error(
                f"one input with the axes of {self.order}, and extent 1 along all others",
                f"sample shape {in_shapes}",
                "0 is the batch, 1 the first axis of the sample",
            )
        return tuple(1 if k is None else whole[k] for k in self.order[1:])

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return a view. Errors: `ShapeError` if an omitted axis has another extent than 1."""
        gone = tuple(k for k in range(x.ndim) if k not in self.order)
        if any(x.shape[k] != 1 for k in gone):
            raise self.shape_error(
                f"extent 1 along the axes {gone}", f"shape {x.shape}", "name them in order"
            )
        kept = sorted(k for k in self.order if k is not None)
        moved = x.squeeze(gone).transpose([kept.index(k) for k in self.order if k is not None])
        ctx.save(shape=x.shape)
        return moved[tuple(None if k is None else slice(None) for k in self.order)]

    def backward(self, ctx: Context, dy: Array) -> tuple[Array, dict[str, Array]]:
        """Return ``dy`` with the axes in the original order, as a view if possible."""
        axes = [k for k in self.order if k is not None]
        new = tuple(k for k, axis in enumerate(self.order) if axis is None)
        moved = dy.squeeze(new).transpose(sorted(range(len(axes)), key=axes.__getitem__))
        return moved.reshape(ctx.saved["shape"]), {}


class Einsum(Layer):
    """A layer that computes sums of products of one or two inputs, as `numpy.einsum`.

    The letters of an input name its axes with the batch axis, each once. The first axis of an input
    is the first of the output, or has extent 1: samples do not mix.

    Args:
        name: Name of the layer, a string.
        equation: The letters, such as "nij,njk->nik".
        input_shape: Sample shape, or a list of two, to set the layer up at once.

    Examples:
        >>> a, b = singanet.Input("a", (4, 3)), singanet.Input("b", (5, 3))
        >>> singanet.layers.Einsum(equation="nij,nkj->nki")(a, b).shape
        (5, 4)
    """

    traits = Traits(any_extent=True)

    def __init__(
        self, name: Name = None, equation: str = REQUIRED, *, input_shape: GivenShapes | None = None
    ) -> None:
        super().__init__(name, input_shape)
        plain = equation.replace(" ", "") if isinstance(equation, str) else ""
        sources, arrow, out = plain.partition("->")
        terms = sources.split(",")
        letters = [*terms, out]
        if (
            not arrow
            or len(terms) > 2
            or not all(term.isalpha() and len(set(term)) == len(term) for term in letters)
            or not set(out) <= set(sources)
        ):
            raise ArgumentError(
                f"layer {name!r}, argument equation",
                expected="one or two inputs and the output, each with distinct letters",
                received=brief(equation),
                advice="write for example 'nij,njk->nik', whose first letter is the batch",
            )
        self.equation = plain
        self._terms, self._out = terms, out
        if any(term[0] != out[0] for term in terms):
            self.traits = replace(self.traits, samples="own")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shapes with equal extents of equal letters → the output's extents."""
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        if [len(shape) + 1 for shape in shapes] != [len(term) for term in self._terms]:
            raise self._unfit(in_shapes)
        extents: dict[str, int] = {}
        for shape, term in zip(shapes, self._terms, strict=True):
            for letter, size in zip(term[1:], shape, strict=True):
                if extents.setdefault(letter, size) not in (size, -1) and size != -1:
                    raise self._unfit(in_shapes)
                extents[letter] = max(extents[letter], size)
        return tuple(extents.get(letter, -1) for letter in self._out[1:])

    def _unfit(self, shapes: Any) -> Exception:
        return self.shape_error(
            f"inputs with the axes of {self.equation!r}, the batch first, of one extent each",
            f"sample shapes {shapes}",
            "give each axis of an input one letter",
        )

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the sums; two inputs are saved."""
        parts = x if isinstance(x, list) else [x]
        extents: dict[str, int] = {}
        for part, term in zip(parts, self._terms, strict=True):
            if term[0] != self._out[0] and part.shape[0] != 1:
                raise self.shape_error(
                    f"one sample of the input {term!r}, whose first axis is not the output's",
                    f"{part.shape[0]} samples",
                    "put Rearrange before it",
                )
            for letter, size in zip(term, part.shape, strict=True):
                if extents.setdefault(letter, size) != size:
                    raise self._unfit([each.shape[1:] for each in parts])
        ctx.save(extents=extents)
        if len(parts) == 1:
            return _summed(ctx.ops, parts[0], self._terms[0], self._out)
        ctx.save(x=parts)
        (a, b), (of_a, of_b) = parts, self._terms
        return _product(ctx.ops, a, b, of_a, of_b, self._out)

    def backward(self, ctx: Context, dy: Array) -> tuple[Any, dict[str, Array]]:
        """Return the sums of products of ``dy`` and the other input."""
        extents = ctx.saved["extents"]
        if len(self._terms) == 1:
            return _spread(ctx.ops, dy, self._out, self._terms[0], extents), {}
        grads = []
        for k, term in enumerate(self._terms):
            other, of_other = ctx.saved["x"][1 - k], self._terms[1 - k]
            there = "".join(c for c in term if c in self._out or c in of_other)
            found = _product(ctx.ops, dy, other, self._out, of_other, there)
            grads.append(_spread(ctx.ops, found, there, term, extents))
        return grads, {}


def _summed(ops: Ops, x: Array, term: str, out: str) -> Array:
    """Return ``x`` with the axes of ``out``, summed along all others."""
    gone = tuple(k for k, letter in enumerate(term) if letter not in out)
    y = ops.sum(x, axis=gone) if gone else x
    kept = [letter for letter in term if letter in out]
    return y.transpose([kept.index(letter) for letter in out])


def _spread(ops: Ops, y: Array, term: str, out: str, extents: dict[str, int]) -> Array:
    """Return ``y`` with the axes of ``out``, repeated along those that ``term`` lacks."""
    moved = y.transpose([term.index(letter) for letter in out if letter in term])
    if len(term) == len(out):
        return moved
    made = ops.empty(tuple(extents[letter] for letter in out), moved)
    ops.copyto(made, moved[tuple(slice(None) if letter in term else None for letter in out)])
    return made


@in_float32
def _product(ops: Ops, a: Array, b: Array, of_a: str, of_b: str, out: str) -> Array:
    """Return the sums of products with the axes of ``out``, by one product of matrices."""
    left = "".join(c for c in of_a if c in of_b or c in out)
    right = "".join(c for c in of_b if c in of_a or c in out)
    a, b = _summed(ops, a, of_a, left), _summed(ops, b, of_b, right)
    size = dict(zip(left + right, a.shape + b.shape, strict=True))
    both = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows, columns = ([c for c in term if c in out and c not in both] for term in (left, right))

    def extent(letters: Sequence[str]) -> int:
        return prod(size[c] for c in letters)

    a = a.transpose([left.index(c) for c in (*both, *rows, *inner)])
    b = b.transpose([right.index(c) for c in (*both, *inner, *columns)])
    y = ops.matmul(
        a.reshape(extent(both), extent(rows), extent(inner)),
        b.reshape(extent(both), extent(inner), extent(columns)),
    )
    made = [*both, *rows, *columns]
    return y.reshape([size[c] for c in made]).transpose([made.index(c) for c in out])
