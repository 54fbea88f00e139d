"""What ONNX and our layers call the same: the reader goes one way by it, the writer the other."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.layers import operation

ACTIVATIONS: Mapping[str, str] = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softplus": "softplus",
    "Softsign": "softsign", "HardSwish": "hard_swish", "Mish": "mish", "Selu": "selu",
    "LeakyRelu": "leaky_relu", "Elu": "elu", "Celu": "celu",
}  # fmt: skip
"""Modes of `Activation`."""

ALPHAS: Mapping[str, float] = {"LeakyRelu": 0.01, "Elu": 1.0, "Celu": 1.0}
"""The usual alpha of those that have one."""

OPERATIONS: Mapping[str, str] = {
    **{
        mode.capitalize(): mode
        for mode, row in operation.OPERATIONS.items()
        if row.inputs == 1 and mode != "truncate"
    },
    "Pow": "power",
}
"""Modes of `Operation`."""

COMPARISONS: Mapping[str, str] = {
    "Equal": "==", "Greater": ">", "GreaterOrEqual": ">=", "Less": "<", "LessOrEqual": "<="
}  # fmt: skip
"""How a `Compare` compares."""

PAD_MODES: Mapping[str, str] = {
    "constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"
}  # fmt: skip
"""Modes of `Pad`."""

GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Which of our gates each of theirs is: i o f c of i f g o, z r h of r z n."""


def turned(table: Mapping[str, str]) -> Mapping[str, str]:
    """Theirs by ours."""
    return {ours: theirs for theirs, ours in table.items()}
