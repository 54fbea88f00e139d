"""The context of one forward call of a layer, for its backward and for later steps."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.errors import SignatureError
from singanet.ops.interface import Ops
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.layers.kv_cache import Counts, KVCache


class Context:
    """The state of one call of one layer; it belongs to the call, not to the layer.

    ``needs_input_grad`` is whether `Layer.backward` must return the input gradient,
    ``_needs_param_grads`` whether any parameter gradient; `wants` is true for each of these.
    ``past`` is the layer's `KVCache` for sequences in parts, otherwise None. ``in_shapes`` are the
    input shapes of a user's layer.

    Args:
        ops: The kernels, an `Ops`.
        rng: The NumPy generator of every random draw.
        params: Mapping from the suffix of each parameter to its array.
        train: Whether the net is training.
        keep: Whether `save` stores arrays, since a backward follows; None for ``train``.
        dtype: The net's float type, float32 by default.
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
        """The number of earlier steps of the sequences.

        Errors: sequences with different numbers, for which `starts` has all.
        """
        return 0 if self.past is None else self.past.before

    @property
    def starts(self) -> Counts:
        """The number of earlier steps: one number, or (N,) if sequences differ."""
        return 0 if self.past is None else self.past.starts

    def by_starts(self, function: Callable[..., Array], *given: Any) -> Array:
        """Return ``function(starts, *given)`` as an array of the device.

        A program calls it at each replay, and once for all layers that ask for the same; the shape
        may depend on ``given`` alone, which are hashable.
        """
        if self.past is not None:
            return self.past.by_starts(self.ops, function, *given)
        found: Array = self.ops.xp.asarray(function(0, *given))
        return found

    def save(self, *nameless: Any, **values: Any) -> None:
        """Save ``values`` for backward, which reads them as ``saved[name]``.

        If no backward follows, nothing is saved. Errors: values without a name.
        """
        if nameless:
            raise SignatureError(
                "ctx.save",
                expected="a name for each value",
                received=f"{len(nameless)} values without a name",
                advice="write ctx.save(x=x), and ctx.saved['x'] in backward",
            )
        if self.keep:
            self.saved.update(values)

    def wants(self, suffix: str) -> bool:
        """Whether the gradient of the parameter ``suffix`` is needed.

        ``wanted`` are the suffixes that need one; None means all.
        """
        return self._needs_param_grads and (self.wanted is None or suffix in self.wanted)

    def update_state(self, suffix: str, array: Array) -> None:
        """Replace the content of the state parameter ``suffix``, a running mean for example.

        ``array`` has the same shape.
        """
        self.ops.copyto(self.params[suffix], array)
