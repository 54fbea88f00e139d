"""The context of one forward call of a layer, for its backward and for later steps."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.errors import SignatureError
from singanet.ops.interface import Ops
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.layers.kv_cache import Counts, KVCache


class Context:
    """The surroundings of one call of one layer; it belongs to the call, not to the layer.

    ``ops`` are the kernels, ``rng`` the generator for every random draw, ``params`` the live
    parameter arrays by suffix, ``train`` tells training from evaluation, and
    ``needs_input_grad`` tells in `Layer.backward` whether anybody wants the input gradient,
    ``_needs_param_grads`` whether one of a parameter is wanted: else a layer may leave them all
    out. Of which ones it is, `wants` tells.
    ``dtype`` is the net's float type, for layers that make floats of something else. ``past`` is
    what the layer has left of the steps before, where sequences come in parts, else None.
    ``in_shapes`` are those of what a user's layer was given.
    """

    __slots__ = (
        "_needs_param_grads",
        "dtype",
        "in_shapes",
        "keep",
        "needs_input_grad",
        "ops",
        "out_shapes",
        "params",
        "past",
        "rng",
        "saved",
        "train",
        "wanted",
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
        self.needs_input_grad = self._needs_param_grads = True
        self.wanted: Container[str] | None = None
        self.in_shapes: list[Shape] | None = None
        self.out_shapes: list[Shape] = []
        self.saved: dict[str, Any] = {}
        self.past: KVCache | None = None

    @property
    def before(self) -> int:
        """How many steps of the sequences came before those of this call.

        Errors: sequences that have different numbers of them, which `starts` tells.
        """
        return 0 if self.past is None else self.past.before

    @property
    def starts(self) -> Counts:
        """How many steps came before: a number, or (N,) where sequences have different ones."""
        return 0 if self.past is None else self.past.starts

    def save(self, *nameless: Any, **values: Any) -> None:
        """Keep ``values`` for backward, where ``saved[name]`` gives them back.

        Nothing is kept when no backward will follow. Errors: values without a name.
        """
        if nameless:
            raise SignatureError(
                "ctx.save",
                expected="values with a name each",
                received=f"{len(nameless)} without",
                advice="write ctx.save(x=x), and ctx.saved['x'] in backward",
            )
        if self.keep:
            self.saved.update(values)

    def wants(self, suffix: str) -> bool:
        """Whether anybody wants the gradient of the parameter ``suffix``, which else need not be.

        ``wanted`` are those of which somebody does; None, where that is not known, means all.
        """
        return self._needs_param_grads and (self.wanted is None or suffix in self.wanted)

    def update_state(self, suffix: str, array: Array) -> None:
        """Replace the content of the state parameter ``suffix``, a running mean for example."""
        self.ops.copyto(self.params[suffix], array)
