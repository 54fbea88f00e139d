"""A layer that passes its input on, and the start of a net drawn with symbols."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from singanet.base.calls import checked_call
from singanet.errors import ArgumentError, DataError
from singanet.layers.context import Context
from singanet.layers.layer import InputKind, Layer, Traits
from singanet.layers.symbol import Symbol, source
from singanet.types import Array, GivenShape, GivenShapes, Shapes


class Dummy(Layer):
    """y = x; names a place in a net where data go in or gradients come out.

    With a ``dtype`` of whole numbers or booleans it is an input for labels or indices, which are
    fed as that type and have no gradient. With ``sparse`` it is an input for SciPy's sparse
    matrices, which `Dense` layers alone read.
    """

    traits = Traits(moves_only=True, any_extent=True, masks="keeps")

    def __init__(
        self,
        name: str,
        input_sample_shape: GivenShapes | None = None,
        dtype: str | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__(name, input_sample_shape)
        self.dtype = None if dtype is None else _checked_type(name, dtype)
        whole = self.dtype is not None
        kinds: tuple[InputKind, ...] = ("integers",) if whole else ()
        self.traits = replace(self.traits, input_kinds=kinds, gives_integers=whole, sparse=sparse)

    def setup(self, in_shapes: Shapes) -> Shapes:
        """Any sample shape; (n,) where it is sparse."""
        if self.traits.sparse and (self.dtype is not None or not _is_vector(in_shapes)):
            raise self.shape_error(
                "floats of sample shape (n,), as its input is sparse",
                f"{in_shapes}" if self.dtype is None else f"dtype {self.dtype}",
                "leave sparse out, or feed a row a sample",
            )
        return in_shapes

    def forward(self, ctx: Context, x: Any) -> Any:
        """x."""
        return x

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """dy."""
        return dy, {}

    def typed(self, x: Array) -> Array:
        """``x`` in the type of the input. Errors: a type of which some values would be others."""
        if self.dtype is None or x.dtype == self.dtype:
            return x
        if not np.can_cast(x.dtype, self.dtype):
            raise DataError(
                f"input {self.name!r}",
                expected=f"{self.dtype}, or what it holds exactly",
                received=f"an array of type {x.dtype}",
                advice=f"convert it with array.astype('{self.dtype}')",
            )
        return x.astype(self.dtype)


@checked_call
def Input(  # noqa: N802 - reads as the layer it makes
    name: str, sample_shape: GivenShape, dtype: Any = None, sparse: bool = False
) -> Symbol:
    """A symbol for an array of ``sample_shape`` (no batch axis) that the user feeds by ``name``.

    ``dtype`` "int64", or another type of whole numbers or booleans, is for labels and indices,
    which are then fed and used as such. Numbers to compute with are of the net's float type, for
    which ``dtype`` is None or any float type. With ``sparse`` SciPy's sparse matrices of
    ``sample_shape`` (n,) are fed, CSR, CSC or COO, for `Dense` layers to read. Errors: other types.
    """
    found = _type(dtype)
    floats = dtype is None or (found is not None and found.kind == "f")
    kind = None if floats else found.name if found else dtype
    layer = Dummy(name, sample_shape, kind, sparse)
    layer.build(sample_shape)
    return source(layer, layer.out_shapes)  # type: ignore[arg-type]


def _is_vector(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) == 1 and shape[0] > 0


def _type(dtype: Any) -> np.dtype[Any] | None:
    try:
        return np.dtype(dtype)
    except TypeError:
        return None


def _checked_type(name: str, dtype: Any) -> np.dtype[Any]:
    found = _type(dtype)
    if found is None or found.kind not in "iub":
        raise ArgumentError(
            f"input {name!r}, argument dtype",
            expected="a type of whole numbers or booleans; of floats all are the net's",
            received=repr(dtype),
            advice="write 'int64' for labels and indices; leave it out for numbers",
        )
    return found
