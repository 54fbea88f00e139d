"""Clipping of gradients by value and norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from singanet.base import terms
from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, norm_of, squares_of
from singanet.optimizer.hyper import Scale, at, checked, in_type, is_one, module_of, put, within
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grad, Grads, Names, Owners, Values
from singanet.optimizer.wrapper import Handed, StageTraits, Wrapper
from singanet.params.param import Param, ParamRoot, owner_of
from singanet.params.storage import served_by
from singanet.types import Array, RowSparse


class ClipByGlobalNorm(Wrapper):
    """Scales the gradients of a whole step so that their joint norm is ≤ ``max_norm``.

    The norm must be known before the first layer is updated: pass it to `knowing`. `net.step`,
    `net.fit` and the like compute it in an additional forward and backward pass, and drop each
    layer's gradients after reading them. If the norm is not finite, nothing is clipped, so that
    the error is not hidden.

    Args:
        optimizer: The optimizer of the scaled gradients.
        max_norm: The largest L2 norm, at least 0.

    Examples:
        >>> w, g = np.ones(2), np.array([3.0, -4.0])
        >>> sgd = singanet.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = singanet.optimizer.ClipByGlobalNorm(sgd, max_norm=1.0)
        >>> with optimizer.knowing(5.0):
        ...     optimizer.update(["w"], [w], [g])
        >>> w.round(4)
        array([0.94, 1.08])
    """

    traits = StageTraits(
        reads="sums", needs_norm=True, takes=(terms.ORDER,), remedy="clip by value"
    )

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByGlobalNorm", "max_norm", max_norm), 0)
        self._factor: Scale | None = None

    @property
    def knows(self) -> bool:
        """Whether the norm of the current step is known."""
        return self._factor is not None

    def case(self) -> Hashable:
        """Return True if the norm of the next step is known."""
        return self.knows

    @contextmanager
    def knowing(self, norm: Scale) -> Iterator[None]:
        """Use ``norm`` as the norm of all gradients of the updates within the block."""
        xp = np if isinstance(norm, (int, float)) else ops_for(norm).xp
        self._factor = within(xp, xp.where(xp.isfinite(norm), norm, 0.0), self.max_norm)
        try:
            yield
        finally:
            self._factor = None

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Scale the gradients. Errors: `CallOrderError` outside of `knowing`."""
        if self._factor is None:
            raise CallOrderError(
                "ClipByGlobalNorm",
                expected="the norm of all gradients before the first update of a step",
                received="an update without it",
                advice="use net.step, net.fit(clip_by='global'), or: with clip.knowing(norm): ...",
            )
        yield names, values, grads, scale * self._factor


def clip_by_global_norm(
    optimizer: Any,
    max_norm: float,
    passes: Callable[[], Iterable[Any]],
    scale: float = 1.0,
    rehearsal: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Update by gradients clipped to the joint norm ``max_norm``, and return the norm.

    ``passes()`` is called twice, once for the norm and once for the update, so that only one
    layer's gradients exist at a time. The cost is a second forward and backward; clipping the list
    of all gradients costs their memory instead. Errors: `ArgumentError` if the norm is not finite.

    Args:
        optimizer: The optimizer.
        max_norm: The largest L2 norm, at least 0.
        passes: A function that runs forward and loss and returns ``net.backward(dy)``, with the
            same gradients both times.
        scale: A factor of the gradients.
        rehearsal: The context of the first call. With ``net.rehearsal`` random layers draw the
            same numbers in both calls, and running statistics change once.

    """
    chain = UpdateChain(optimizer)
    limit = at(checked("clip_by_global_norm", "max_norm", max_norm), 0)
    with rehearsal():
        items = passes()
        joined: Any = None
        for stage in chain.reducers:
            items, joined = stage.previewed(items), stage.joined
        norm = abs(scale) * float(norm_of(items) if joined is None else norm_of(items, joined))
    if not math.isfinite(norm):
        raise ArgumentError(
            "clip_by_global_norm",
            expected="gradients with a finite norm",
            received=f"a norm of {norm}",
            advice="skip this batch, or lower the learning rate",
        )
    if norm > limit:
        scale *= limit / norm
    chain.apply(passes(), scale=scale)
    return norm


class ClipByLayerNorm(Wrapper):
    """Scales the gradients of one `update` call so that their joint norm is ≤ ``max_norm``.

    With the streaming backward a call has the gradients of one layer. The cost is one reading of
    the gradients, without additional memory.

    Args:
        optimizer: The optimizer of the scaled gradients.
        max_norm: The largest L2 norm, at least 0.

    Examples:
        >>> w, g = np.ones(2), np.array([3.0, -4.0])
        >>> sgd = singanet.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = singanet.optimizer.ClipByLayerNorm(sgd, max_norm=1.0)
        >>> optimizer.update(["w"], [w], [g])
        >>> w.round(4)
        array([0.94, 1.08])
    """

    traits = StageTraits(reads="sums", remedy="clip by value")

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByLayerNorm", "max_norm", max_norm), 0)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Scale by the norm of ``scale`` · gradients."""
        xp = module_of(values)
        norm = abs(scale) * xp.sqrt(self.joined(squares_of(grads)))
        yield names, values, grads, scale * within(xp, norm, self.max_norm)


_KEYS = ("*/clip.estimate", "*/clip.squares")
_SEEN = "*/clip.seen."


class ClipByRunningNorm(Wrapper):
    """Multiplies gradients by min(1, max_norm / n), n an estimate of the norm of a whole step.

    n is the larger of the moving mean of earlier steps' norms and the norm of this step's layers so
    far, so that no layer exceeds ``max_norm``. A step ends at the first repeated name. A sudden
    large gradient is clipped from its own layer on, but not in the layers before it. There is no
    additional pass and no additional memory.

    Args:
        optimizer: The optimizer of the scaled gradients.
        max_norm: The largest L2 norm, at least 0.
        decay: The factor of the moving mean at each step, in [0, 1).

    Examples:
        >>> w, g = np.ones(2), np.array([3.0, -4.0])
        >>> sgd = singanet.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = singanet.optimizer.ClipByRunningNorm(sgd, max_norm=1.0)
        >>> optimizer.update(["w"], [w], [g])
        >>> w.round(4)
        array([0.94, 1.08])
    """

    traits = StageTraits(
        reads="sums", needs=(terms.LAYERS,), remedy="clip by the norm of all gradients, or by value"
    )

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float, decay: float = 0.9) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByRunningNorm", "max_norm", max_norm), 0)
        self.decay = at(checked("ClipByRunningNorm", "decay", decay, 0.0, 1.0), 0)
        self._estimate, self._squares = np.zeros(()), np.zeros(())
        # A dict instead of a set, since it has an order.
        self._seen: dict[str, None] = {}
        self._owners = Owners()

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """Switch to the estimate of the net of ``params``."""
        for param in params:
            self._owners.turn(param.name, param.root)
        self._turn_all([param.root for param in params], other)

    def _turn_all(self, roots: Sequence[ParamRoot], other: bool) -> None:
        now = self._estimate, self._squares, self._seen
        new = np.zeros(()), np.zeros(()), dict[str, None]()
        found = self._owners.turn_all(roots, other, now, new)
        self._estimate, self._squares, self._seen = found

    def _turn_by(self, names: Names, values: Values) -> None:
        """Switch to the net of ``values`` at the start of a step, for a user's own loop."""
        begins = not self._seen or self._ends_with(names)
        roots = [(name, owner_of(value)) for name, value in zip(names, values, strict=True)]
        known = [(name, root) for name, root in roots if root is not None]
        others = [self._owners.turn(name, root) for name, root in known]
        if begins:
            self._turn_all([root for _, root in known], any(others))

    @property
    def estimate(self) -> float:
        """The moving mean of the norms of earlier steps; 0 before the second step."""
        return float(self._estimate)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Scale by the estimate for ``scale`` · gradients."""
        self._turn_by(names, values)
        xp = module_of(values)
        estimate = self._estimate = put(xp, self._estimate)
        squares = self._squares = put(xp, self._squares)
        if self._ends_with(names):
            norm = xp.sqrt(squares)
            mean = self.decay * estimate + (1.0 - self.decay) * norm
            estimate, squares = xp.where(estimate != 0.0, mean, norm), 0.0
        squares = squares + scale * scale * self.joined(squares_of(grads))
        norm = xp.fmax(estimate, xp.sqrt(squares))
        yield names, values, grads, scale * within(xp, norm, self.max_norm)
        # After the update, so that a refused update does not change the estimate.
        self._estimate[...], self._squares[...] = estimate, squares
        self.skip(names)

    def settle(self, names: Names, values: Values) -> Sequence[Array]:
        """Move the estimate to the device of ``values``, where recorded calls change it."""
        xp = module_of(values)
        self._estimate, self._squares = put(xp, self._estimate), put(xp, self._squares)
        return super().settle(names, values)

    def _ends_with(self, names: Names) -> bool:
        """Return True if the gradients of ``names`` belong to a new step."""
        return any(name in self._seen for name in names)

    def case(self) -> Hashable:
        """Return the names of this step so far."""
        return tuple(self._seen)

    def skip(self, names: Names) -> None:
        if self._ends_with(names):
            self._seen.clear()
        self._seen.update(dict.fromkeys(names))

    def _own_state(self) -> dict[str, Array]:
        """Return the estimate, the squares of this step and its names."""
        numbers = dict(zip(_KEYS, (self.estimate, float(self._squares)), strict=True))
        numbers.update((_SEEN + name, 1.0) for name in sorted(self._seen))
        return {key: np.array(number, np.float64) for key, number in numbers.items()}

    def _is_own(self, key: str) -> bool:
        return key in _KEYS or key.startswith(_SEEN)

    def _parsed(self, own: Mapping[str, Array]) -> Any:
        if not all(key in own for key in _KEYS):
            raise DataError(
                "ClipByRunningNorm.load_state_dict",
                expected=f"the keys {_KEYS[0]!r} and {_KEYS[1]!r}",
                received="a state without them",
                advice="load the state of a ClipByRunningNorm",
            )
        seen = dict.fromkeys(key[len(_SEEN) :] for key in own if key.startswith(_SEEN))
        return float(own[_KEYS[0]]), float(own[_KEYS[1]]), seen

    def _take(self, parsed: Any) -> None:
        self._owners.forget()
        estimate, squares, self._seen = parsed
        self._estimate, self._squares = np.array(estimate), np.array(squares)


class ClipByValue(Wrapper):
    """Clips every element of a gradient to [−limit, limit].

    The cost is a clipped copy of the gradients of one layer during its update.

    Args:
        optimizer: The optimizer of the clipped gradients.
        limit: The largest absolute value, at least 0.

    Examples:
        >>> w, g = np.ones(2), np.array([3.0, -4.0])
        >>> sgd = singanet.optimizer.SGD(learning_rate=0.1)
        >>> optimizer = singanet.optimizer.ClipByValue(sgd, limit=1.0)
        >>> optimizer.update(["w"], [w], [g])
        >>> w.round(4)
        array([0.9, 1.1])
    """

    traits = StageTraits(reads="elements")

    def __init__(self, optimizer: Optimizer | Wrapper, limit: float) -> None:
        super().__init__(optimizer)
        self.limit = at(checked("ClipByValue", "limit", limit), 0)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """Clip ``scale`` · gradient.

        A table that sums the rows of all processes first clips these rows itself.
        """
        jobs = [*zip(names, values, grads, strict=True)]
        there = [job for job in jobs if _is_clipped_elsewhere(job[1])]
        if there:
            yield [n for n, _, _ in there], [v for _, v, _ in there], [g for *_, g in there], scale
            jobs = [job for job in jobs if not _is_clipped_elsewhere(job[1])]
            if not jobs:
                return
            names, values = [n for n, _, _ in jobs], [v for _, v, _ in jobs]
            grads = [g for *_, g in jobs]
        yield names, values, [_clipped(self.limit, grad, scale) for grad in grads], 1.0


def _clipped(limit: float, grad: Grad, scale: Scale) -> Grad:
    """Clip every element of ``scale`` · ``grad``."""
    if grad is None:
        return None
    if isinstance(grad, tuple):
        rows = ops_for(grad[1]).map_rows(partial(_clipped_rows, limit), *grad, scale)
        return RowSparse(*rows)
    xp = ops_for(grad).xp
    if not is_one(scale):
        grad = grad * in_type(xp, scale, grad.dtype)
    clipped: Array = xp.clip(grad, -limit, limit)
    return clipped


def _clipped_rows(limit: float, grad: RowSparse, scale: Scale) -> RowSparse:
    rows: Any = _clipped(limit, grad.rows, scale)
    return RowSparse(grad.indices, rows)


def _is_clipped_elsewhere(value: Array) -> bool:
    table = served_by(value)
    return table is not None and table.sums_first
