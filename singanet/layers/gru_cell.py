"""The gated recurrent unit as a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singanet.layers.recurrent_cell import Cell, Trace, weights_of
from singanet.ops import NumpyOps
from singanet.types import Array


class GRUCell(Cell):
    """Gated recurrent unit; the bias of n behind the reset gate is added step by step."""

    gates = ("r", "z", "n")

    def input_bias(self, ops: NumpyOps, bias_x: Array, bias_h: Array) -> Array:
        """Both biases for r and z, the input's alone for n."""
        split = 2 * (len(bias_x) // 3)
        return ops.concat([ops.add(bias_x[:split], bias_h[:split]), bias_x[split:]], axis=0)

    def run_layer(
        self,
        ops: NumpyOps,
        x: Array,
        params: Mapping[str, Array],
        starts: Sequence[Array | None],
        counts: Sequence[int],
        reverse: bool,
        keep: bool,
    ) -> Trace:
        """See `Cell.run_layer`."""
        weights, biases = _pairs(params)
        h, notes = ops.gru_layer(x, weights, biases, starts[0], counts, reverse, keep)
        return {"h": h, "notes": notes}

    def run_layer_back(
        self,
        ops: NumpyOps,
        dy: Array | None,
        dstates: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Mapping[str, Array],
        counts: Sequence[int],
        reverse: bool,
        needs_dx: bool,
    ) -> tuple[Array | None, dict[str, Array]]:
        """See `Cell.run_layer_back`."""
        weights, biases = _pairs(params)
        h, notes = trace["h"], trace["notes"]
        dx, *grads = ops.gru_layer_backward(
            dy, dstates[0], x, weights, biases, h, notes, counts, reverse, needs_dx
        )
        return dx, dict(zip(("weight_x", "weight_h", "bias_x", "bias_h"), grads, strict=True))

    def run(
        self,
        ops: NumpyOps,
        gates: Array,
        params: Mapping[str, Array],
        starts: Sequence[Array | None],
        counts: Sequence[int],
        reverse: bool,
    ) -> Trace:
        """See `Cell.run`."""
        weight = params["weight_h"]
        bias_n = params["bias_h"][2 * len(weight) :]
        h, linear = ops.gru(gates, weight, bias_n, starts[0], counts, reverse)
        return {"gates": gates, "linear": linear, "h": h}

    def run_back(
        self,
        ops: NumpyOps,
        dy: Array | None,
        dstates: Sequence[Array],
        trace: Mapping[str, Array],
        weight: Array,
        counts: Sequence[int],
        reverse: bool,
    ) -> tuple[Array, Array]:
        """See `Cell.run_back`."""
        kept = trace["gates"], trace["linear"], trace["h"]
        return ops.gru_backward(dy, dstates[0], *kept, weight, counts, reverse)


def _pairs(params: Mapping[str, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return weights_of(params), (params["bias_x"], params["bias_h"])
