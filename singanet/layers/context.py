"""The context of one forward call of a layer, for its backward and for later steps."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import numpy as np

from singanet.errors import SignatureError
from singanet.ops.interface import Ops
from singanet.types import Array, Shape


class Past:
    """What one layer has left for the further steps of its sequences, at most ``limit`` steps.

    A context has one where sequences come in parts. The layer then computes as if the steps
    before stood in front of those it is given: it reads ``get`` and `before`, and leaves behind
    what it `put` and what it has `extended`. That counts once the whole net has taken the part
    (`advance`), so after an error the part may be given again.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.counts = False
        self._before = 0
        self._left: dict[str, Any] = {}
        self._coming: dict[str, Any] = {}
        self._rows: dict[str, Array] = {}
        # Which step the first row is of.
        self._at: dict[str, int] = {}

    @property
    def before(self) -> int:
        """How many steps came before; a layer that asks has a limit."""
        self.counts = True
        return self._before

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept."""
        left = [part for parts in self._left.values() for part in parts]
        return sum(array.nbytes for array in [*left, *self._rows.values()])

    def get(self, key: str) -> Any:
        """The arrays that the last part has `put` there, None before the first."""
        return self._left.get(key)

    def put(self, key: str, arrays: list[Array]) -> None:
        """Leave ``arrays`` for the next part."""
        self._coming[key] = arrays

    def extended(self, ops: Ops, key: str, new: Array, last: int | None = None) -> Array:
        """(N, h, all steps so far, d), of which ``new`` (N, h, t, d) are the last.

        With ``last`` they begin at `first_of` it: each new step sees so many, itself included.
        """
        first, start = self.first_of(last), self.before
        end = start + new.shape[2]
        rows, at = self._rows.get(key), self._at.get(key, 0)
        if rows is None or rows.shape[2] < end - at:
            room = end - first
            if rows is not None:
                # Steps that none sees any more are left behind.
                room = max(room, 2 * min(rows.shape[2], last or rows.shape[2]))
            room = min(room, max(self.limit or room, end - first))
            grown = ops.empty((*new.shape[:2], room, new.shape[3]), new)
            if rows is not None:
                ops.copyto(grown[:, :, : start - first], rows[:, :, first - at : start - at])
            rows, at = grown, first
            self._rows[key], self._at[key] = rows, at
        ops.copyto(rows[:, :, start - at : end - at], new)
        return rows[:, :, first - at : end - at]

    def first_of(self, last: int | None) -> int:
        """The first step that the next one sees, if that is the ``last`` ones with itself."""
        return 0 if last is None else max(0, self.before - last + 1)

    def advance(self, steps: int) -> None:
        """The net has taken a part of ``steps`` steps."""
        self._before += steps
        self._left.update(self._coming)
        self._coming.clear()


class Context:
    """The surroundings of one call of one layer; it belongs to the call, not to the layer.

    ``ops`` are the kernels, ``rng`` the generator for every random draw, ``params`` the live
    parameter arrays by suffix, ``train`` tells training from evaluation, and
    ``needs_input_grad`` tells in `Layer.backward` whether anybody wants the input gradient,
    ``needs_param_grads`` whether one of a parameter is wanted: else a layer may leave them all out.
    Of which ones it is, `wants` tells.
    ``dtype`` is the net's float type, for layers that make floats of something else. ``past`` is
    what the layer has left of the steps before, where sequences come in parts, else None.
    ``in_shapes`` are those of what a user's layer was given.
    """

    __slots__ = (
        "dtype",
        "in_shapes",
        "keep",
        "needs_input_grad",
        "needs_param_grads",
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
        self.needs_input_grad = self.needs_param_grads = True
        self.wanted: Container[str] | None = None
        self.in_shapes: list[Shape] | None = None
        self.out_shapes: list[Shape] = []
        self.saved: dict[str, Any] = {}
        self.past: Past | None = None

    @property
    def before(self) -> int:
        """How many steps of the sequences came before those of this call."""
        return 0 if self.past is None else self.past.before

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
        return self.needs_param_grads and (self.wanted is None or suffix in self.wanted)

    def update_state(self, suffix: str, array: Array) -> None:
        """Replace the content of the state parameter ``suffix``, a running mean for example."""
        self.ops.copyto(self.params[suffix], array)
