"""Activations by oneDNN."""

from __future__ import annotations

from singanet.ops.onednn.base import OneDnnBase, in_order, is_dense
from singanet.ops.onednn.binding import Algorithm as Alg
from singanet.ops.onednn.binding import Arg, Prop
from singanet.ops.onednn.builder import Builder
from singanet.types import Array

_CHEAP, _LONG, _LONGEST = 1 << 17, 1 << 14, 1 << 11
"""Elements from which oneDNN is faster, by how many passes NumPy's formula takes."""

_LEAST_FORWARD = {"relu": _CHEAP, "tanh": _CHEAP, "leaky_relu": _CHEAP, "gelu": _LONGEST}
_LEAST_BACKWARD = {**_LEAST_FORWARD, "sigmoid": _CHEAP}

_ALGORITHMS = {
    "relu": (Alg.RELU, Alg.RELU_BY_DST),
    "sigmoid": (Alg.LOGISTIC, Alg.LOGISTIC_BY_DST),
    "tanh": (Alg.TANH, Alg.TANH_BY_DST),
    "leaky_relu": (Alg.RELU, Alg.RELU),
    "elu": (Alg.ELU, Alg.ELU),
    "gelu": (Alg.GELU_ERF, Alg.GELU_ERF),
    "silu": (Alg.SWISH, Alg.SWISH),
    "softplus": (Alg.SOFT_RELU, Alg.SOFT_RELU),
}
"""Forward, and backward from what `NumpyOps.activation_keeps` names."""

_ALPHAS = {"relu": 0.0, "silu": 1.0, "softplus": 1.0}
"""Parameters of the formulas that are not the caller's slope."""


class OneDnnActivations(OneDnnBase):
    """Memory without gaps is gone over from end to end, whatever the order of its axes."""

    def activation(self, mode: str, x: Array, slope: float = 0.01) -> Array:
        """See `NumpyOps`."""
        least = _LEAST_FORWARD.get(mode, _LONG)
        if self.serves(least, x) and is_dense(x):
            y = self.xp.empty_like(x)
            alpha = _ALPHAS.get(mode, slope)
            if self.runs(_forward, (x.size, int(_ALGORITHMS[mode][0]), alpha), x, y):
                if mode == "relu":
                    # oneDNN's makes zero of NaN, which would hide that a net has diverged.
                    self.show_nan(in_order(y), in_order(x))
                return y
        return super().activation(mode, x, slope)

    def activation_backward(self, mode: str, dy: Array, kept: Array, slope: float = 0.01) -> Array:
        """See `NumpyOps`."""
        least = _LEAST_BACKWARD.get(mode, _LONG)
        if self.serves(least, dy, kept) and is_dense(kept):
            slopes = dy if dy.strides == kept.strides else self._like(dy, kept)
            dx = self.xp.empty_like(kept)
            forward, backward = (int(algorithm) for algorithm in _ALGORITHMS[mode])
            key = (dy.size, forward, backward, _ALPHAS.get(mode, slope))
            if self.runs(_backward, key, dx, slopes, kept):
                return dx
        return super().activation_backward(mode, dy, kept, slope)

    def _like(self, array: Array, like: Array) -> Array:
        """A copy of ``array`` in the memory order of ``like``."""
        copy: Array = self.xp.empty_like(like)
        self.xp.copyto(copy, array)
        return copy

    def sigmoid(self, x: Array) -> Array:
        """See `NumpyOps`."""
        return self.activation("sigmoid", x)


def _forward(build: Builder, size: int, algorithm: int, alpha: float) -> None:
    line, prop = build.rows((size,)), int(Prop.FORWARD_TRAINING)
    desc = build.primitive_desc("eltwise_forward", prop, algorithm, line, line, alpha, 0.0)
    build.stage(desc, build.operands((Arg.SRC, Arg.DST), [line] * 2))


def _backward(build: Builder, size: int, forward: int, backward: int, alpha: float) -> None:
    line, prop = build.rows((size,)), int(Prop.FORWARD_TRAINING)
    hint = build.primitive_desc("eltwise_forward", prop, backward, line, line, alpha, 0.0)
    desc = build.primitive_desc("eltwise_backward", backward, line, line, line, alpha, 0.0, hint)
    kept = Arg.SRC if forward == backward else Arg.DST
    build.stage(desc, build.operands((Arg.DIFF_SRC, Arg.DIFF_DST, kept), [line] * 3))
