"""What sets the recurrent modes apart: their gates, their states and their kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.initializer import Initializer
from singanet.layers.elman_cell import ElmanCell
from singanet.layers.gru_cell import GRUCell
from singanet.layers.recurrent_cell import Cell, Trace, weights_of
from singanet.ops import NumpyOps
from singanet.types import Array, Shape


class LSTMCell(Cell):
    """Long short-term memory; the forget gate's bias starts at 1 (Jozefowicz et al. 2015)."""

    gates = ("i", "f", "g", "o")
    states = ("h", "c")

    def bias_start(self) -> Initializer:
        """1 in the block of the forget gate."""
        return _OneInBlock(self.gates.index("f"), len(self.gates))

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
        first = starts[0], starts[1]
        h, c, notes = ops.lstm_layer(x, weights_of(params), bias, first, counts, reverse, keep)
        return {"h": h, "c": c, "notes": notes}

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
        dx, weight_x, weight_h, bias = ops.lstm_layer_backward(
            dy,
            dstates,
            x,
            weights_of(params),
            trace["h"],
            trace["notes"],
            counts,
            reverse,
            needs_dx,
        )
        grads = {"weight_x": weight_x, "weight_h": weight_h, "bias_x": bias, "bias_h": bias.copy()}
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
        h, c = ops.lstm(gates, params["weight_h"], starts[0], starts[1], counts, reverse)
        return {"gates": gates, "h": h, "c": c}

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
        dh, dc = dstates
        gates, c = trace["gates"], trace["c"]
        dgates = ops.lstm_backward(dy, dh, dc, gates, c, weight, counts, reverse)
        return dgates, dgates


@dataclass(frozen=True)
class _OneInBlock(Initializer):
    """Zero, but 1 in one of ``blocks`` equal parts."""

    block: int
    blocks: int

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Fill; see `Initializer`."""
        values: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(shape)
        size = shape[0] // self.blocks
        values[self.block * size : (self.block + 1) * size] = 1.0
        return values


CELLS: dict[str, Cell] = {
    "lstm": LSTMCell(),
    "gru": GRUCell(),
    "tanh": ElmanCell("tanh"),
    "relu": ElmanCell("relu"),
}
"""The cells by SINGA's ``rnn_mode``."""
