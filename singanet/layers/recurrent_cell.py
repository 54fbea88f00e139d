"""A recurrent cell: the passes of one direction of one stack around its kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from singanet.initializer import Initializer
from singanet.ops import NumpyOps
from singanet.ops.numpy.sequences import befores
from singanet.types import Array

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
