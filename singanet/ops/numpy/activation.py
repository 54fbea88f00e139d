"""Activations and their gradients."""

from __future__ import annotations

from singanet.ops.numpy.activation_modes import MODES, Function, relu, relu_backward, sigmoid
from singanet.ops.numpy.windows import Windows, blocks
from singanet.types import Array

_BLOCK_BYTES = 1 << 18
"""Of one operand; formulas of many steps run block by block, so that their steps stay cached."""


class Activations(Windows):
    """Element-wise functions by name; ``slope`` is the negative slope, or elu's alpha."""

    activations = tuple(MODES)

    def activation(self, mode: str, x: Array, slope: float = 0.01) -> Array:
        """The function ``mode`` of every element."""
        return self._in_blocks(MODES[mode].forward, slope, x)

    def activation_keeps(self, mode: str) -> str:
        """Whether `activation_backward` wants the input "x" or the output "y"."""
        return MODES[mode].keeps

    def activation_backward(self, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
        """``dy`` times the derivative, from what `activation_keeps` names."""
        return self._in_blocks(MODES[mode].backward, slope, dy, kept)

    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)) without overflow."""
        return self._in_blocks(sigmoid, 0.0, x)

    def _in_blocks(self, function: Function, slope: float, *arrays: Array) -> Array:
        """``function(xp, *arrays, slope)``, a few samples at a time where they are large."""
        first = arrays[0]
        if first.nbytes <= _BLOCK_BYTES or function in (relu, relu_backward):
            return function(self.xp, *arrays, slope)
        out: Array = self.xp.empty_like(first)
        step = first.nbytes // len(first)
        for samples, _ in blocks(len(first), 1, step, self.scratch(_BLOCK_BYTES)):
            out[samples] = function(self.xp, *(array[samples] for array in arrays), slope)
        return out
