"""The simple recurrent unit as a cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from singanet.layers.recurrent_cell import Cell, Trace, weights_of
from singanet.ops import NumpyOps
from singanet.types import Array


@dataclass(frozen=True)
class ElmanCell(Cell):
    """Simple recurrent unit with the function ``mode``: tanh or relu."""

    mode: str
    gates = ("h",)

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
        bias = self.input_bias(ops, params["bias_x"], params["bias_h"])
        weights = weights_of(params)
        h, notes = ops.elman_layer(x, weights, bias, starts[0], counts, reverse, self.mode, keep)
        return {"h": h, "notes": notes, "bias": bias}

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
        weights, bias, h, notes = weights_of(params), trace["bias"], trace["h"], trace["notes"]
        dx, weight_x, weight_h, grad, _ = ops.elman_layer_backward(
            dy, dstates[0], x, weights, bias, h, notes, counts, reverse, self.mode, needs_dx
        )
        grads = {"weight_x": weight_x, "weight_h": weight_h, "bias_x": grad, "bias_h": grad.copy()}
        return dx, grads

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
        return {"h": ops.elman(gates, params["weight_h"], starts[0], counts, reverse, self.mode)}

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
        dgates = ops.elman_backward(dy, dstates[0], trace["h"], weight, counts, reverse, self.mode)
        return dgates, dgates
