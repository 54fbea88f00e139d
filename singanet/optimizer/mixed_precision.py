"""Half the memory for parameters and activations: float16, with updates in float32."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.base.kinds import native
from singanet.errors import ArgumentError, DataError, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, at, checked, in_type
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grad, Grads, Names, Owners, Values
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.grads import LayerGradients
from singanet.params.param import Param, owner_of
from singanet.types import Array, RowSparse

_LEAST, _MOST = 2.0**-24, 2.0**128
_NUMBERS = ("scale", "good", "skipped")
_MASTER = "master/"


class MixedPrecision(Configurable):
    """Training in float16, for `net.compile`: dynamic loss scaling, and float32 masters.

    The loss is multiplied by ``scale``, so that small gradients do not vanish in float16. A step
    whose gradients are not all finite is skipped, parameters, running state, draws and optimizer
    left as they were, and the scale multiplied by ``backoff``; after ``growth_interval`` good steps
    in a row it is multiplied by ``growth`` (Micikevicius et al. 2018). Updates change a float32
    master of each parameter, which is then rounded; a parameter written from elsewhere takes its
    master along. Holds the float16 gradients of one step, and one float32 copy of what is trained.
    """

    _moved = ("scale",)
    _moving = ("good", "skipped", "masters")

    def __init__(
        self,
        dtype: str = "float16",
        scale: float = 2.0**15,
        growth: float = 2.0,
        backoff: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        where = "MixedPrecision"
        self.dtype = _checked_type(dtype)
        # An array, so that programs read what it has become.
        self._first = at(checked(where, "scale", scale, _LEAST), 0)
        self._scale = np.array(self._first)
        self.growth = at(checked(where, "growth", growth, 1.0), 0)
        self.backoff = at(checked(where, "backoff", backoff, 2.0**-10, 1.0), 0)
        self.growth_interval = checked_count(
            where, "growth_interval", growth_interval, 1, advice="2000 is usual"
        )
        self.good = 0
        self.skipped = 0
        self.masters: dict[str, Array] = {}
        self._owners = Owners()

    @property
    def scale(self) -> float:
        """The factor of the loss."""
        return float(self._scale)

    @scale.setter
    def scale(self, value: float) -> None:
        self._scale[...] = value

    def scaled(self, dy: Array) -> Array:
        """``dy`` times the scale."""
        xp = ops_for(dy).xp
        return dy * in_type(xp, xp.asarray(self._scale), dy.dtype)

    def settle(self, name: str, value: Array) -> Array:
        """The float32 array behind the parameter ``value``, whatever is in it."""
        xp, root = ops_for(value).xp, owner_of(value)
        if root is not None:
            self._owners.turn(name, root, self.masters)
        kept = self.masters.get(name)
        if kept is None or kept.shape != value.shape:
            kept = self.masters[name] = value.astype("float32")
        elif ops_for(kept).xp.__name__ != xp.__name__:
            kept = self.masters[name] = xp.asarray(kept)
        if root is not None and owner_of(kept) is not root:
            # By its owner the rule knows whose state is the right one.
            root.own(kept)
        return kept

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Have the masters and the scale of the net of ``params``, as `Wrapper.turn`."""
        for param in params:
            self._owners.turn(param.name, param.root, self.masters)
        roots, now = [param.root for param in params], (self._scale, self.good, self.skipped)
        new = np.array(self._first), 0, 0
        self._scale, self.good, self.skipped = self._owners.turn_all(roots, other, now, new)

    def master(self, name: str, value: Array) -> Array:
        """The float32 array behind the parameter ``value``, brought up to date with it."""
        xp = ops_for(value).xp
        kept = self.settle(name, value)
        if type(kept) is not type(value):
            # Traced where the value is.
            kept = xp.asarray(kept)
        # Where they differ, somebody wrote to the parameter: a file was loaded, say.
        xp.copyto(kept, value, where=kept.astype(value.dtype) != value)
        return kept

    def unscaled(self, grad: Grad) -> Grad:
        """``grad`` / ``scale`` in float32, as a new array."""
        if grad is None:
            return None
        if isinstance(grad, tuple):
            indices, rows = grad
            return RowSparse(indices, self._unscaled(rows))
        return self._unscaled(grad)

    def _unscaled(self, array: Array) -> Array:
        xp = ops_for(array).xp
        return array.astype("float32") / in_type(xp, xp.asarray(self._scale), np.float32)

    def _succeeded(self) -> None:
        """Count a step that was taken; the scale may grow."""
        self.good += 1
        if self.good == self.growth_interval:
            self.good = 0
            grown = self.scale * self.growth
            # The loss that it multiplies is a float32.
            self.scale = grown if grown < _MOST else self.scale

    def failed(self, layer: str) -> None:
        """Count a step that is skipped since the gradients of ``layer`` are not finite.

        Errors: `DataError` where the scale has become so small that this cannot be the reason.
        """
        self.good = 0
        self.skipped += 1
        if self.scale * self.backoff < _LEAST:
            raise DataError(
                f"layer {layer!r}, gradient",
                expected=f"finite numbers at some loss scale down to {_LEAST:g}",
                received=f"NaN or infinity at every one, {self.skipped} steps skipped",
                advice="lower the learning rate, check the data, or train in float32",
            )
        self.scale *= self.backoff

    def state_dict(self) -> dict[str, Array]:
        """Copies of the masters, the scale, and the counts."""
        numbers = (self.scale, self.good, self.skipped)
        state = {k: np.array(v, np.float64) for k, v in zip(_NUMBERS, numbers, strict=True)}
        return {**state, **{_MASTER + name: a.copy() for name, a in self.masters.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Go on where the one of the `state_dict` stood. Errors: an entry is missing or unknown."""
        masters = {k[len(_MASTER) :]: a for k, a in state.items() if k.startswith(_MASTER)}
        if len(masters) + len(_NUMBERS) != len(state) or any(k not in state for k in _NUMBERS):
            raise DataError(
                "MixedPrecision.load_state_dict",
                expected=f"{one_of(_NUMBERS)} and masters",
                received=one_of(sorted(state), 6) or "nothing",
                advice="load what MixedPrecision.state_dict gave",
            )
        self.scale = float(state["scale"])
        self.good, self.skipped = int(state["good"]), int(state["skipped"])
        self._owners.forget()
        self.masters = {name: native(array).copy() for name, array in masters.items()}


class NotFiniteError(Exception):
    """The gradients of ``layer`` are not all finite, so that a step is not taken."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer


class ScaledUpdates(Wrapper):
    """Float16 parameters, and gradients times the scale of ``precision``, for ``optimizer``.

    It updates the float32 masters by the gradients without the scale, and rounds them.
    """

    _holds_all = True

    def __init__(self, optimizer: Optimizer | Wrapper, precision: MixedPrecision) -> None:
        super().__init__(optimizer)
        self.precision = precision

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        names, masters, exact = self.in_float32(names, values, grads)
        yield names, masters, exact, scale
        for value, master in zip(values, masters, strict=True):
            value[...] = master

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`: masters and scale."""
        self.precision.turn(params, other)

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """As `Wrapper.settle`: the masters."""
        return [self.precision.settle(n, v) for n, v in zip(names, values, strict=True)]

    def refresh(self, names: Names, values: Values) -> None:
        """As `Wrapper.refresh`: the masters."""
        for name, value in zip(names, values, strict=True):
            self.precision.master(name, value)

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            yield self.in_float32(*item)
            # As the walk itself: one layer's gradients are let go before the next one's exist.
            del item

    def _conclude(self, refused: str | None) -> None:
        """As `Wrapper._conclude`: count the step, from which the scale follows."""
        if refused is None:
            self.precision._succeeded()
        else:
            self.precision.failed(refused)

    def updated(self, names: Names, values: Values) -> None:
        """As `Wrapper.updated`: round the masters."""
        self.written(names, values)

    def written(self, names: Names, values: Values) -> None:
        """As `Wrapper.written`: round the masters."""
        for name, value in zip(names, values, strict=True):
            value[...] = self.precision.masters[name]

    def case(self) -> Hashable:
        """Which masters these are: loaded ones are others."""
        return id(self.precision.masters)

    def in_float32(
        self, names: Names, values: Values, grads: Grads
    ) -> tuple[Sequence[str], list[Array], list[Grad]]:
        """Names, masters, and gradients without the scale."""
        masters = [self.precision.master(n, v) for n, v in zip(names, values, strict=True)]
        return names, masters, [self.precision.unscaled(grad) for grad in grads]

    def around(self, optimizer: Optimizer | Wrapper) -> ScaledUpdates:
        """Another stage of the same precision, around ``optimizer``."""
        return ScaledUpdates(optimizer, self.precision)

    def unscaled(self, item: LayerGradients) -> LayerGradients:
        """``item`` with its gradients as they are without the scale."""
        grads: list[Any] = list(map(self.precision.unscaled, item.grads))
        return LayerGradients(item.names, item.values, grads, item.layer)


FACTORS = ("bfloat16", "float32_fast", "auto")
"""Precisions that leave arrays float32, and round what convolutions and products multiply."""


def as_precision(given: Any) -> MixedPrecision | None:
    """``given``, or mixed precision of the type ``given`` as text; None for texts in `FACTORS`."""
    if given is None or isinstance(given, MixedPrecision) or given in FACTORS:
        return None if isinstance(given, str) else given
    if given != "float16":
        names = ("float16", *FACTORS)
        raise ArgumentError(
            "argument mixed_precision",
            expected=f"{one_of(names)} or a MixedPrecision",
            received=repr(given)[:60],
            advice=did_you_mean(
                str(given).replace("fp", "float"), names, "leave it out to train in float32"
            ),
        )
    return MixedPrecision(given)


def _checked_type(dtype: Any) -> str:
    if dtype != "float16":
        raise ArgumentError(
            "MixedPrecision(dtype=)",
            expected="'float16'",
            received=repr(dtype),
            advice=f"{one_of(FACTORS)} go to net.compile by name, without a scale",
        )
    return "float16"
