"""What one forward call of one layer leaves for its backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from singanet.ops.interface import Ops
from singanet.types import Array, Shape


class Context:
    """The surroundings of one call of one layer; it belongs to the call, not to the layer.

    ``ops`` are the kernels, ``rng`` the generator for every random draw, ``params`` the live
    parameter arrays by suffix, ``train`` tells training from evaluation, and
    ``needs_input_grad`` tells in `Layer.backward` whether anybody wants the input gradient,
    ``needs_param_grads`` whether one of a parameter is wanted: else a layer may leave them all out.
    ``relu`` asks a layer that can to do the relu after it too, both ways; ``through`` tells the
    layer after it that so it was done. ``dtype`` is the net's float type, for layers that make
    floats of something else.
    """

    __slots__ = (
        "dtype",
        "keep",
        "needs_input_grad",
        "needs_param_grads",
        "ops",
        "out_shapes",
        "params",
        "relu",
        "rng",
        "saved",
        "through",
        "train",
    )

    def __init__(
        self,
        ops: Ops,
        rng: np.random.Generator,
        params: Mapping[str, Array],
        train: bool,
        keep: bool | None = None,
        dtype: np.dtype[Any] = np.dtype(np.float32),  # noqa: B008 - never changed
    ) -> None:
        self.ops = ops
        self.dtype = dtype
        self.rng = rng
        self.params = params
        self.train = train
        self.keep = train if keep is None else keep
        self.needs_input_grad = self.needs_param_grads = True
        self.relu = self.through = False
        self.out_shapes: list[Shape] = []
        self.saved: dict[str, Any] = {}

    def save(self, **values: Any) -> None:
        """Keep ``values`` for backward, where ``saved[name]`` gives them back.

        Nothing is kept when no backward will follow.
        """
        if self.keep:
            self.saved.update(values)

    def update_state(self, suffix: str, array: Array) -> None:
        """Replace the content of the state parameter ``suffix``, a running mean for example."""
        self.ops.copyto(self.params[suffix], array)
