"""Training in float16 with updates in float32."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.base.described import Configurable
from singanet.base.kinds import native
from singanet.errors import ArgumentError, DataError, brief, did_you_mean, one_of
from singanet.ops import ops_for
from singanet.optimizer.hyper import Scale, at, checked, in_type, put
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grad, Grads, Names, Owners, Values
from singanet.optimizer.wrapper import Handed, StageTraits, Wrapper
from singanet.params.grads import LayerGradients
from singanet.params.param import Param, owner_of
from singanet.types import Array, RowSparse

_LEAST, _MOST = 2.0**-24, 2.0**128
_NUMBERS = ("scale", "good", "skipped")
_MASTER = "master/"


class MixedPrecision(Configurable):
    """Training in float16, for `net.compile`: dynamic loss scaling and float32 masters.

    The loss is multiplied by ``scale``, so that small gradients do not vanish in float16
    (Micikevicius et al. 2018). If a gradient of a step is not finite, the step is skipped:
    parameters, running state, draws and the optimizer do not change. Updates change a float32
    master of each parameter, which is then rounded. A write to a parameter changes its master, too.
    Memory: the float16 gradients of one step and a float32 copy of the trained parameters.

    Args:
        dtype: The dtype of parameters and activations, "float16".
        scale: The first factor of the loss.
        growth: The factor of the scale after ``growth_interval`` good steps in a row, at least 1.
        backoff: The factor of the scale after a skipped step, below 1.
        growth_interval: The number of good steps.

    Examples:
        >>> net = singanet.FeedForwardNet([singanet.layers.Dense("fc", 2, input_shape=(3,))])
        >>> precision = singanet.optimizer.MixedPrecision()
        >>> sgd, loss = singanet.optimizer.SGD(0.1), singanet.loss.SquaredError()
        >>> net.compile(sgd, loss, mixed_precision=precision)
        >>> precision.scale, net.params()[0].value.dtype
        (32768.0, dtype('float16'))
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
        # An array, so that programs read its current value.
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
        """The current factor of the loss."""
        return float(self._scale)

    @scale.setter
    def scale(self, value: float) -> None:
        self._scale[...] = value

    def scaled(self, dy: Array) -> Array:
        """Return ``dy`` times the scale."""
        xp = ops_for(dy).xp
        return dy * in_type(xp, put(xp, self._scale), dy.dtype)

    def settle(self, name: str, value: Array) -> Array:
        """Return the float32 master of the parameter ``value``, which may be out of date.

        ``name`` is the full name of the parameter.
        """
        xp, root = ops_for(value).xp, owner_of(value)
        if root is not None:
            self._owners.turn(name, root, self.masters)
        kept = self.masters.get(name)
        if kept is None or kept.shape != value.shape:
            kept = self.masters[name] = value.astype("float32")
        elif ops_for(kept).xp.__name__ != xp.__name__:
            kept = self.masters[name] = put(xp, kept)
        if root is not None and owner_of(kept) is not root:
            # The rule finds its state by the owner of the array.
            root.own(kept)
        return kept

    def _has_master(self, param: Param) -> bool:
        """Whether there is a master of ``param``, which its first update makes."""
        self._owners.turn(param.name, param.root, self.masters)
        return param.name in self.masters

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the masters and the scale of the net of ``params``.

        ``other`` is whether it is another net than before.
        """
        for param in params:
            self._owners.turn(param.name, param.root, self.masters)
        roots, now = [param.root for param in params], (self._scale, self.good, self.skipped)
        new = np.array(self._first), 0, 0
        self._scale, self.good, self.skipped = self._owners.turn_all(roots, other, now, new)

    def master(self, name: str, value: Array) -> Array:
        """Return the float32 master of the parameter ``value`` by its ``name``, updated from it."""
        xp = ops_for(value).xp
        kept = self.settle(name, value)
        if type(kept) is not type(value):
            # Recorded if the value is.
            kept = xp.asarray(kept)
        # If they differ, the parameter was written to, for example from a file.
        xp.copyto(kept, value, where=kept.astype(value.dtype) != value)
        return kept

    def unscaled(self, grad: Grad) -> Grad:
        """Return ``grad`` / ``scale`` in float32, as a new array."""
        if grad is None:
            return None
        if isinstance(grad, tuple):
            indices, rows = grad
            return RowSparse(indices, self._unscaled(rows))
        return self._unscaled(grad)

    def _unscaled(self, array: Array) -> Array:
        xp = ops_for(array).xp
        return array.astype("float32") / in_type(xp, put(xp, self._scale), np.float32)

    def _succeeded(self) -> None:
        """Count a good step; the scale may grow."""
        self.good += 1
        if self.good == self.growth_interval:
            self.good = 0
            grown = self.scale * self.growth
            # It multiplies a float32 loss, which must not overflow.
            self.scale = grown if grown < _MOST else self.scale

    def failed(self, layer: str) -> None:
        """Count a skipped step, with non-finite gradients of ``layer``, and reduce the scale.

        Errors: `DataError` if the scale is too small to be the reason.
        """
        self.good = 0
        self.skipped += 1
        if self.scale * self.backoff < _LEAST:
            raise DataError(
                f"layer {layer!r}, gradient",
                expected=f"finite numbers at some loss scale down to {_LEAST:g}",
                received=f"NaN or infinity at every scale, {self.skipped} steps skipped",
                advice="lower the learning rate, check the data, or train in float32",
            )
        self.scale *= self.backoff

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the masters, the scale, and the counts."""
        numbers = (self.scale, self.good, self.skipped)
        state = {k: np.array(v, np.float64) for k, v in zip(_NUMBERS, numbers, strict=True)}
        return {**state, **{_MASTER + name: a.copy() for name, a in self.masters.items()}}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Load ``state``, the result of `state_dict`. Errors: a missing or unknown entry."""
        masters = {k[len(_MASTER) :]: a for k, a in state.items() if k.startswith(_MASTER)}
        if len(masters) + len(_NUMBERS) != len(state) or any(k not in state for k in _NUMBERS):
            raise DataError(
                "MixedPrecision.load_state_dict",
                expected=f"{one_of(_NUMBERS)} and masters",
                received=one_of(sorted(state), 6) or "nothing",
                advice="load a state_dict of MixedPrecision",
            )
        self.scale = float(state["scale"])
        self.good, self.skipped = int(state["good"]), int(state["skipped"])
        self._owners.forget()
        self.masters = {name: native(array).copy() for name, array in masters.items()}


class NotFiniteError(Exception):
    """A step is skipped, since a gradient of ``layer`` is not finite."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)
        self.layer = layer


class ScaledUpdates(Wrapper):
    """A stage that updates the float32 masters of ``precision`` by unscaled gradients.

    It then rounds the masters to the float16 parameters.
    """

    traits = StageTraits(holds_all=True, needs=(terms.WHOLE, terms.TOGETHER), takes=(terms.BEGUN,))

    def __init__(self, optimizer: Optimizer | Wrapper, precision: MixedPrecision) -> None:
        super().__init__(optimizer)
        self.precision = precision

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        names, masters, exact = self.in_float32(names, values, grads)
        yield names, masters, exact, scale
        for value, master in zip(values, masters, strict=True):
            value[...] = master

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the masters and the scale of the net of ``params``."""
        self.precision.turn(params, other)

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """Create and return the masters."""
        return [self.precision.settle(n, v) for n, v in zip(names, values, strict=True)]

    def refresh(self, names: Names, values: Values) -> None:
        """Update the masters from ``values``."""
        for name, value in zip(names, values, strict=True):
            self.precision.master(name, value)

    def _move(self, params: Sequence[Param], values: Sequence[Array], rest: bool) -> None:
        """Move the masters, and round them to the parameters."""
        pairs = [
            (param, value)
            for param, value in zip(params, values, strict=True)
            if self.precision._has_master(param)
        ]
        given = [param for param, _ in pairs]
        masters = [self.precision.master(param.name, value) for param, value in pairs]
        self.optimizer._move(given, masters, rest)
        for (_, value), master in zip(pairs, masters, strict=True):
            value[...] = master

    def previewed(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            yield self.in_float32(*item)
            # Releases one layer's gradients before the next layer's exist.
            del item

    def _conclude(self, refused: str | None) -> None:
        """Count the step and adapt the scale."""
        if refused is None:
            self.precision._succeeded()
        else:
            self.precision.failed(refused)

    def updated(self, names: Names, values: Values) -> None:
        """Round the masters to the parameters."""
        self.written(names, values)

    def written(self, names: Names, values: Values) -> None:
        """Round the masters to the parameters."""
        for name, value in zip(names, values, strict=True):
            value[...] = self.precision.masters[name]

    def case(self) -> Hashable:
        """Return the identity of the masters, which loading changes."""
        return id(self.precision.masters)

    def in_float32(
        self, names: Names, values: Values, grads: Grads
    ) -> tuple[Sequence[str], list[Array], list[Grad]]:
        """Return names, masters and unscaled gradients."""
        masters = [self.precision.master(n, v) for n, v in zip(names, values, strict=True)]
        return names, masters, [self.precision.unscaled(grad) for grad in grads]

    def around(self, optimizer: Optimizer | Wrapper) -> ScaledUpdates:
        """Return another stage of the same precision, around ``optimizer``."""
        return ScaledUpdates(optimizer, self.precision)

    def unscaled(self, item: LayerGradients) -> LayerGradients:
        """Return ``item`` with unscaled gradients."""
        grads: list[Any] = list(map(self.precision.unscaled, item.grads))
        return LayerGradients(item.names, item.values, grads, item.layer)


FACTORS = ("bfloat16", "float32_fast", "auto")
"""Precisions with float32 arrays that round the factors of convolutions and products."""


def as_precision(given: Any) -> MixedPrecision | None:
    """Return ``given``, a new `MixedPrecision` for "float16", or None for names in `FACTORS`."""
    if given is None or isinstance(given, MixedPrecision) or given in FACTORS:
        return None if isinstance(given, str) else given
    if given != "float16":
        names = ("float16", *FACTORS)
        raise ArgumentError(
            "argument mixed_precision",
            expected=f"{one_of(names)} or a MixedPrecision",
            received=brief(given)[:60],
            advice=did_you_mean(
                str(given).replace("fp", "float"), names, "omit it to train in float32"
            ),
        )
    return MixedPrecision(given)


def _checked_type(dtype: Any) -> str:
    if dtype != "float16":
        raise ArgumentError(
            "MixedPrecision(dtype=)",
            expected="'float16'",
            received=brief(dtype),
            advice=f"pass {one_of(FACTORS)} to net.compile by name",
        )
    return "float16"
