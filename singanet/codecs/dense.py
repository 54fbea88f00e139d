"""Products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet import layers
from singanet.checkpoint.keras.layer import Variable
from singanet.codecs.arrays import Arrays, StoredArray, stored
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import WHOLE, DescribedLayer, unknown
from singanet.codecs.orders import Uses, along
from singanet.types import Array

QUANTIZED = {"lora_rank": None, "quantization_config": None}


def _expect_rows(d: DescribedLayer) -> dict[str, Any]:
    if len(d.shapes[0]) > 2:
        raise unknown(d.where, "rows or sequences", f"samples of {len(d.shapes[0])} axes")
    return {}


def _kernel(layer: layers.Dense, uses: Uses) -> list[Variable]:
    """kernel (in, units), bias (units), both in the order that other layers of Keras want."""
    turned = layer.W_transpose
    ours = layer.params["weight"].shape
    (rows, rows_back), (units, units_back) = along(uses.read), along(uses.made)

    def there(w: Array) -> Array:
        return units(rows(w.T if turned else w).T).T

    def back(w: Array) -> tuple[Array]:
        made = rows_back(units_back(w.T).T)
        return (made.T if turned else made,)

    shape = ours[::-1] if turned else ours
    found = [Variable("vars/0", "kernel", shape, ("weight",), there, back)]
    if layer.use_bias:
        width = layer.params["bias"].shape
        split = lambda b: (units_back(b),)  # noqa: E731
        found.append(Variable("vars/1", "bias", width, ("bias",), units, split))
    return found


def _order(layer: layers.Dense, rank: int) -> Sequence[int]:
    """PyTorch has (out, in)."""
    return (0, 1) if layer.W_transpose else (1, 0)


_IN_TORCH = stored(
    StoredArray("weight", "", "weight", order=_order), StoredArray("bias", "", "bias")
)

DENSE = (
    LayerCodec(
        layers.Dense,
        Arrays(_kernel, _IN_TORCH.torch),
        {
            "Dense": KerasClass(
                {"units": ("num_output", None), "use_bias": bool},
                {"W_specs": ("kernel", {(0,): 0}), "b_specs": ("bias", WHOLE)},
                QUANTIZED,
                _expect_rows,
                DescribedLayer.activated,
                masked=True,
            )
        },
        elements="units",
    ),
)
