"""The packed form of recurrent weights: SINGA's and cuDNN's one array with everything.

First the matrices of each stack and direction, the input's gates and then the state's, each
(H, in) row by row; then the biases in the same order. Gates stand as in `Cell.gates`. With
``input_mode='skip'`` the first stack has no input matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import TYPE_CHECKING

from singanet.errors import CallOrderError
from singanet.ops import ops_for
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.layers.rnn import RNN


def packed_size(layer: RNN) -> int:
    """The number of elements: the sum over stacks of G·D·H·(in + H + 2)."""
    _expect_built(layer)
    return sum(prod(param.shape) for param in layer.params.values())


def pack(layer: RNN, arrays: Mapping[str, Array]) -> Array:
    """``arrays``, the parameters or their gradients by suffix, as one array of one axis."""
    # A block (in, H) of the fused matrix is SINGA's gate (H, in) transposed.
    rows = [block.T.reshape(-1) for block in _blocks(layer, arrays)]
    return ops_for(rows[0]).concat(rows, axis=0)


def unpack(layer: RNN, packed: Array) -> None:
    """Fill the parameters from ``packed``. Errors: a wrong shape; the layer stays as it was."""
    size = packed_size(layer)
    if tuple(packed.shape) != (size,):
        raise layer.shape_error(
            f"packed weights of shape ({size},)",
            f"shape {tuple(packed.shape)}",
            "the file is from a layer with other sizes, stacks, directions or mode",
        )
    start = 0
    for block in _blocks(layer, {s: p.value for s, p in layer.params.items()}):
        part = packed[start : start + block.size]
        # A file's array lies on the host, the parameters perhaps on a device.
        block.T[...] = ops_for(block).xp.asarray(part.reshape(block.T.shape))
        start += block.size


def gate_views(layer: RNN) -> dict[str, Array]:
    """Each gate's own arrays as views: ``l0/forward/i/weight_x`` is (in, H)."""
    _expect_built(layer)
    size = layer.hidden_size
    return {
        f"{prefix}/{gate}/{kind}": param.value[..., k * size : (k + 1) * size]
        for suffix, param in layer.params.items()
        for prefix, _, kind in [suffix.rpartition("/")]
        for k, gate in enumerate(layer.cell.gates)
    }


def _blocks(layer: RNN, arrays: Mapping[str, Array]) -> Iterator[Array]:
    """The gates' blocks of each array in the packed order."""
    _expect_built(layer)
    size = layer.hidden_size
    for kinds in (("weight_x", "weight_h"), ("bias_x", "bias_h")):
        for run in layer.runs:
            for suffix in (f"{run.prefix}/{kind}" for kind in kinds):
                for k in range(len(layer.cell.gates) if suffix in layer.params else 0):
                    yield arrays[suffix][..., k * size : (k + 1) * size]


def _expect_built(layer: RNN) -> None:
    if not layer.params:
        raise CallOrderError(
            f"layer {layer.name!r}",
            expected="a layer that was set up",
            received="one without parameters",
            advice="add it to a net, or pass input_sample_shape and call get_output_sample_shape()",
        )
