"""Recurrent cells, what sets the modes apart: their gates, their states and their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.initializer import Initializer
from singanet.ops import NumpyOps
from singanet.ops.numpy.sequences import befores
from singanet.types import Array, Shape

Trace = dict[str, Any]
"""What a run of one direction leaves: states "h" around the steps, what `Cell.backward` needs.

The last entry of each state, or in reverse the first, is the final one.
"""

Params = Mapping[str, Array | None]
"""The arrays of one direction by kind; only ``weight_x`` may be missing."""


def weights_of(params: Mapping[str, Array]) -> tuple[Array, Array]:
    """Those of the input and of the state."""
    return params["weight_x"], params["weight_h"]


class Cell(ABC):
    """The formula of one step; the kernels run it over all steps of one direction.

    ``gates`` are the names of the blocks of the weights in SINGA's and cuDNN's order, ``states``
    the names of what is handed from step to step.
    """

    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)

    def input_bias(self, ops: NumpyOps, bias_x: Array, bias_h: Array) -> Array:
        """What is added to x W_x once for all steps."""
        return ops.add(bias_x, bias_h)

    def bias_start(self) -> Initializer | None:
        """How ``bias_x`` starts when it is not zero."""
        return None

    def forward(
        self,
        ops: NumpyOps,
        x: Array,
        params: Params,
        starts: Sequence[Array | None],
        counts: Sequence[int],
        reverse: bool,
        keep: bool,
    ) -> Trace:
        """All steps of one direction on ``x`` (T, N, in); ``keep`` what backward needs."""
        arrays: Any = params
        if params["weight_x"] is not None:
            return self.run_layer(ops, x, arrays, starts, counts, reverse, keep)
        steps, n, size = x.shape
        bias = self.input_bias(ops, arrays["bias_x"], arrays["bias_h"])
        gates = ops.add(x[:, :, None], bias.reshape(-1, size)).reshape(steps, n, len(bias))
        return self.run(ops, gates, arrays, starts, counts, reverse)

    def backward(
        self,
        ops: NumpyOps,
        dy: Array | None,
        dstates: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Params,
        counts: Sequence[int],
        reverse: bool,
        needs_dx: bool,
    ) -> tuple[Array | None, dict[str, Array]]:
        """The gradient of ``x`` where it is wanted, and those of the parameters by kind.

        ``dstates`` hold the gradients of the last states and on return those of the first.
        """
        arrays: Any = params
        if params["weight_x"] is not None:
            return self.run_layer_back(
                ops, dy, dstates, trace, x, arrays, counts, reverse, needs_dx
            )
        of_x, of_h = self.run_back(ops, dy, dstates, trace, arrays["weight_h"], counts, reverse)
        before = befores(trace["h"], reverse)
        size = before.shape[2]
        rows_h = of_h.reshape(-1, of_h.shape[2])
        grads = {"weight_h": ops.matmul(before.reshape(-1, size).T, rows_h)}
        # Summed over time and then over samples: two short sums lose less than one long one.
        grads["bias_x"] = ops.sum(ops.sum(of_x, axis=0), axis=0)
        grads["bias_h"] = ops.sum(ops.sum(of_h, axis=0), axis=0)
        if not needs_dx:
            return None, grads
        blocks = of_x.reshape(*x.shape[:2], of_x.shape[2] // size, size)
        return ops.sum(blocks, axis=2), grads

    @abstractmethod
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
        """`forward` with a product with the input, as one kernel."""

    @abstractmethod
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
        """`backward` with a product with the input, as one kernel."""

    @abstractmethod
    def run(
        self,
        ops: NumpyOps,
        gates: Array,
        params: Mapping[str, Array],
        starts: Sequence[Array | None],
        counts: Sequence[int],
        reverse: bool,
    ) -> Trace:
        """All steps of one direction from the ``gates`` (T, N, G·H), which are overwritten."""

    @abstractmethod
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
        """Gradients of the input's and of the state's share of the gates, (T, N, G·H) each.

        They may be one array. ``dstates`` hold the gradients of the last states and on return
        those of the first.
        """


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


def _pairs(params: Mapping[str, Array]) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return weights_of(params), (params["bias_x"], params["bias_h"])


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
