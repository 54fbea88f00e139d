"""The recurrent modes: their gates, their states and their kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from singanet.initializer import Initializer
from singanet.ops.direction import (
    Direction,
    RecurrentCase,
    RecurrentGradients,
    RecurrentStates,
)
from singanet.ops.interface import Ops
from singanet.types import Array, Shape

Params = Mapping[str, Array | None]
"""The arrays of one direction by kind; all but ``weight_h`` may be missing."""


class Cell(ABC):
    """The formula of one step; the kernels run it over all steps of one direction.

    ``gates`` are the names of the blocks of the weights in SINGA's and cuDNN's order, ``states``
    the names of what is handed from step to step. If the cell ``joins_biases``, both are added to
    the gates as one array, which is worked out once and kept for backward.
    """

    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    joins_biases: ClassVar[bool] = True
    mode: str = "tanh"

    def bias_start(self) -> Initializer | None:
        """How ``bias_x`` starts when it is not zero."""
        return None

    def case(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        direction: Direction,
        biases: tuple[Array, ...] | None = None,
    ) -> RecurrentCase:
        """The case for the kernels; ``biases`` that a forward has kept need not be made again."""
        arrays: Any = params
        weights = arrays["weight_x"], arrays["weight_h"]
        if biases is None:
            biases = _biases(ops, arrays)
            if self.joins_biases:
                one, other = biases
                biases = (one if one is other else ops.add(one, other),)
        return RecurrentCase(x, weights, biases, direction, self.mode)

    @abstractmethod
    def forward(
        self, ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """All steps of one direction; ``keep`` what backward needs."""

    @abstractmethod
    def backward(
        self,
        ops: Ops,
        case: RecurrentCase,
        made: RecurrentStates,
        dy: Array | None,
        ends: Sequence[Array],
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
        self, ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        return ops.lstm_layer(case, starts, keep)

    def backward(
        self,
        ops: Ops,
        case: RecurrentCase,
        made: RecurrentStates,
        dy: Array | None,
        ends: Sequence[Array],
        needs_dx: bool,
    ) -> RecurrentGradients:
        return ops.lstm_layer_backward(case, made, dy, ends, needs_dx)


class GRUCell(Cell):
    """Gated recurrent unit; the bias of n behind the reset gate is added step by step."""

    gates = ("r", "z", "n")
    joins_biases = False

    def forward(
        self, ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        return ops.gru_layer(case, starts, keep)

    def backward(
        self,
        ops: Ops,
        case: RecurrentCase,
        made: RecurrentStates,
        dy: Array | None,
        ends: Sequence[Array],
        needs_dx: bool,
    ) -> RecurrentGradients:
        return ops.gru_layer_backward(case, made, dy, ends, needs_dx)


@dataclass(frozen=True)
class ElmanCell(Cell):
    """Simple recurrent unit with the function ``mode``: tanh or relu."""

    mode: str
    gates = ("h",)

    def forward(
        self, ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        return ops.elman_layer(case, starts, keep)

    def backward(
        self,
        ops: Ops,
        case: RecurrentCase,
        made: RecurrentStates,
        dy: Array | None,
        ends: Sequence[Array],
        needs_dx: bool,
    ) -> RecurrentGradients:
        return ops.elman_layer_backward(case, made, dy, ends, needs_dx)


def _biases(ops: Ops, arrays: Any) -> tuple[Array, ...]:
    """Both, zero where there are none."""
    if arrays["bias_x"] is None:
        weight = arrays["weight_h"]
        return (ops.zeros(weight.shape[1:], weight),) * 2
    return arrays["bias_x"], arrays["bias_h"]


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
