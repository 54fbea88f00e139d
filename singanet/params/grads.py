"""The gradients of a layer as the backward walk hands them out."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from singanet.base.described import shown
from singanet.ops.interface import Ops
from singanet.types import Array, Gradient, RowSparse, Shape


class LayerGradients(tuple[list[str], list[Array], list[Gradient]]):
    """The item that backward yields for a layer, a tuple ``(names, values, grads)``.

    ``values`` are the arrays of the parameters, not copies; a gradient may be `RowSparse`.
    ``output_grads`` maps each layer of backward's ``output`` that has run so far to the gradient of
    its output, zeros if none arrived; ``layer`` is the name of this layer.
    """

    layer: str
    output_grads: dict[str, Any]
    _unfinished: tuple[str, ...] = ()
    """The parameters with further gradients by other uses: the parts of one update."""

    def __new__(
        cls,
        names: list[str],
        values: list[Array],
        grads: list[Gradient],
        layer: str = "",
        output_grads: dict[str, Any] | None = None,
    ) -> LayerGradients:
        """``names``, ``values`` and ``grads`` have equal length."""
        item = super().__new__(cls, (names, values, grads))
        item.layer = layer
        item.output_grads = {} if output_grads is None else output_grads
        return item

    def __repr__(self) -> str:
        return shown("LayerGradients", {"layer": self.layer, "names": self[0]})

    def __getnewargs__(self) -> tuple[list[str], list[Array], list[Gradient]]:
        return (self[0], self[1], self[2])

    @property
    def names(self) -> list[str]:
        """Parameter names."""
        return self[0]

    @property
    def values(self) -> list[Array]:
        """Live parameter arrays."""
        return self[1]

    @property
    def grads(self) -> list[Gradient]:
        """Their gradients."""
        return self[2]


def split(item: LayerGradients, names: Collection[str]) -> tuple[LayerGradients, LayerGradients]:
    """``item`` as two: the parameters ``names``, and the others."""
    found: list[list[Any]] = [[], []]
    for row in zip(*item, strict=True):
        found[row[0] not in names].append(row)
    made = []
    for rows in found:
        names, values, grads = [list(column) for column in zip(*rows, strict=True)] or ([], [], [])
        made.append(LayerGradients(names, values, grads, item.layer, item.output_grads))
    return made[0], made[1]


def add_gradients(ops: Ops, a: Gradient, b: Gradient, over: bool = False) -> Gradient:
    """The sum of two gradients of one parameter, row-sparse if both are.

    The sum is a new array, or with ``over`` in the memory of ``a`` if that is an array.
    """
    if isinstance(a, RowSparse):
        if not isinstance(b, RowSparse):
            return ops.add_to_rows(b, a.indices, a.rows)
        return RowSparse(*ops.add_rows(a, b))
    out = a if over else None
    if isinstance(b, RowSparse):
        return ops.add_to_rows(a, b.indices, b.rows, out)
    return ops.add(a, b, out=out)


def dense_gradient(ops: Ops, grad: Gradient, shape: Shape) -> Array:
    """``grad`` as an array of the parameter's ``shape``."""
    if isinstance(grad, RowSparse):
        whole = ops.zeros(shape, grad.rows)
        return ops.add_to_rows(whole, grad.indices, grad.rows, whole)
    return grad
