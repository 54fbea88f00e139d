"""Operators on each element and what our layers call them: the reader and the writer go by it."""

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


def turned(table: Mapping[str, str]) -> Mapping[str, str]:
    """The operators by what we call them."""
    return {ours: op for op, ours in table.items()}
