"""What sets the recurrent modes apart: their gates, their states and their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.initializer import Initializer
from singanet.ops.direction import Direction, RecurrentGradients
from singanet.ops.interface import Ops
from singanet.types import Array, Shape

Trace = dict[str, Any]
"""What a run of one direction leaves: its states around the steps, what `Cell.backward` needs."""

Params = Mapping[str, Array | None]
"""The arrays of one direction by kind; all but ``weight_h`` may be missing."""


class Cell(ABC):
    """The formula of one step; the kernels run it over all steps of one direction.

    ``gates`` are the names of the blocks of the weights in SINGA's and cuDNN's order, ``states``
    the names of what is handed from step to step.
    """

    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)

    def bias_start(self) -> Initializer | None:
        """How ``bias_x`` starts when it is not zero."""
        return None

    @abstractmethod
    def forward(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        starts: Sequence[Array | None],
        direction: Direction,
        keep: bool,
    ) -> Trace:
        """All steps of one direction on ``x`` (T, N, in); ``keep`` what backward needs."""

    @abstractmethod
    def backward(
        self,
        ops: Ops,
        dy: Array | None,
        ends: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Params,
        direction: Direction,
        needs_dx: bool,
    ) -> RecurrentGradients:
        """The gradients for those of each h ``dy``, or None, and of the final states ``ends``."""


class LSTMCell(Cell):
    """Long short-term memory; the forget gate's bias starts at 1 (Jozefowicz et al. 2015)."""

    gates = ("i", "f", "g", "o")
    states = ("h", "c")

    def bias_start(self) -> Initializer:
        """1 in the block of the forget gate."""
        return _OneInBlock(self.gates.index("f"), len(self.gates))

    def forward(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        starts: Sequence[Array | None],
        direction: Direction,
        keep: bool,
    ) -> Trace:
        weights, bias = _weights(params), _joint_bias(ops, params)
        h, c, notes = ops.lstm_layer(x, weights, bias, (starts[0], starts[1]), direction, keep)
        return {"h": h, "c": c, "notes": notes}

    def backward(
        self,
        ops: Ops,
        dy: Array | None,
        ends: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Params,
        direction: Direction,
        needs_dx: bool,
    ) -> RecurrentGradients:
        weights, h, notes = _weights(params), trace["h"], trace["notes"]
        return ops.lstm_layer_backward(dy, ends, x, weights, h, notes, direction, needs_dx)


class GRUCell(Cell):
    """Gated recurrent unit; the bias of n behind the reset gate is added step by step."""

    gates = ("r", "z", "n")

    def forward(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        starts: Sequence[Array | None],
        direction: Direction,
        keep: bool,
    ) -> Trace:
        weights, biases = _weights(params), _biases(ops, params)
        h, notes = ops.gru_layer(x, weights, biases, starts[0], direction, keep)
        return {"h": h, "notes": notes}

    def backward(
        self,
        ops: Ops,
        dy: Array | None,
        ends: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Params,
        direction: Direction,
        needs_dx: bool,
    ) -> RecurrentGradients:
        weights, biases = _weights(params), _biases(ops, params)
        h, notes = trace["h"], trace["notes"]
        return ops.gru_layer_backward(
            dy, ends[0], x, weights, biases, h, notes, direction, needs_dx
        )


@dataclass(frozen=True)
class ElmanCell(Cell):
    """Simple recurrent unit with the function ``mode``: tanh or relu."""

    mode: str
    gates = ("h",)

    def forward(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        starts: Sequence[Array | None],
        direction: Direction,
        keep: bool,
    ) -> Trace:
        weights, bias = _weights(params), _joint_bias(ops, params)
        h, notes = ops.elman_layer(x, weights, bias, starts[0], direction, self.mode, keep)
        return {"h": h, "notes": notes, "bias": bias}

    def backward(
        self,
        ops: Ops,
        dy: Array | None,
        ends: Sequence[Array],
        trace: Mapping[str, Any],
        x: Array,
        params: Params,
        direction: Direction,
        needs_dx: bool,
    ) -> RecurrentGradients:
        weights, bias, h, notes = _weights(params), trace["bias"], trace["h"], trace["notes"]
        return ops.elman_layer_backward(
            dy, ends[0], x, weights, bias, h, notes, direction, self.mode, needs_dx
        )


def _weights(params: Params) -> tuple[Array | None, Array]:
    """Those of the input and of the state."""
    arrays: Any = params
    return arrays["weight_x"], arrays["weight_h"]


def _biases(ops: Ops, params: Params) -> tuple[Array, Array]:
    """Both, zero where there are none."""
    arrays: Any = params
    if arrays["bias_x"] is None:
        weight = arrays["weight_h"]
        return (ops.zeros(weight.shape[1:], weight),) * 2
    return arrays["bias_x"], arrays["bias_h"]


def _joint_bias(ops: Ops, params: Params) -> Array:
    """What is added to the gates once for all steps."""
    bias_x, bias_h = _biases(ops, params)
    joint: Array = bias_x if bias_x is bias_h else ops.add(bias_x, bias_h)
    return joint


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
