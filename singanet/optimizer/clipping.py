"""Clipping of gradients by value and norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from singanet.errors import ArgumentError, CallOrderError, DataError
from singanet.ops import ops_for
from singanet.optimizer.chain import UpdateChain, norm_of, squares_of
from singanet.optimizer.hyper import Scale, at, checked, in_type, is_one, module_of, within
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import Grad, Grads, Names, Owners, Values
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.param import Param, ParamRoot, owner_of
from singanet.params.storage import served_by
from singanet.types import Array, RowSparse


class ClipByGlobalNorm(Wrapper):
    """The gradients of a whole step are scaled so that their joint norm is ≤ ``max_norm``.

    The norm has to be known before the first layer is updated: say it with `knowing`. `net.step`
    and all above it find it by running forward and backward once before, each layer's gradients
    dropped once they are read. A norm that is not finite clips nothing, so that it is seen.
    """

    _needs_norm = True
    _by_parts = True

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByGlobalNorm", "max_norm", max_norm), 0)
        self._factor: Scale | None = None

    @property
    def knows(self) -> bool:
        """Whether the norm of the step in work was said."""
        return self._factor is not None

    def case(self) -> Hashable:
        """Whether the norm of the next step was said."""
        return self.knows

    @contextmanager
    def knowing(self, norm: Scale) -> Iterator[None]:
        """Within the block, ``norm`` is that of all gradients that `update` is given."""
        xp = np if isinstance(norm, (int, float)) else ops_for(norm).xp
        self._factor = within(xp, xp.where(xp.isfinite(norm), norm, 0.0), self.max_norm)
        try:
            yield
        finally:
            self._factor = None

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`. Errors: `CallOrderError` outside of `knowing`."""
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
    """Update so that the norm of all gradients together is ≤ ``max_norm``; returns the norm.

    ``passes()`` runs forward and loss and returns ``net.backward(dy)``; it is called twice, once
    for the norm and once for the update, so that never more than one layer's gradients exist.
    It must give the same gradients both times: pass ``rehearsal=net.rehearsal``, and random layers
    draw the same numbers and running statistics move once. Costs a second forward and backward;
    clipping the list of all gradients costs their memory instead.
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
    """The gradients of one `update` call are scaled so that their joint norm is ≤ ``max_norm``.

    With the streaming backward that is one layer. Costs a reading of the gradients, no memory.
    """

    _by_parts = True

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByLayerNorm", "max_norm", max_norm), 0)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`; the norm is that of ``scale`` · gradients."""
        xp = module_of(values)
        norm = abs(scale) * xp.sqrt(self.joined(squares_of(grads)))
        yield names, values, grads, scale * within(xp, norm, self.max_norm)


_KEYS = ("*/clip.estimate", "*/clip.squares")
_SEEN = "*/clip.seen."


class ClipByRunningNorm(Wrapper):
    """Gradients times min(1, max_norm / n), n an estimate of the norm of all of them.

    n is the larger of the moving mean of the steps before (``decay`` a step) and of the norm of
    the layers that this step has handed out so far, so that no layer ever exceeds ``max_norm``.
    A step ends when a name comes again. The estimate lags behind: after a quiet time a sudden
    large gradient is clipped from the layer on in which it shows. Costs no pass and no memory.
    """

    _across_layers = True
    _by_parts = True

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float, decay: float = 0.9) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByRunningNorm", "max_norm", max_norm), 0)
        self.decay = at(checked("ClipByRunningNorm", "decay", decay, 0.0, 1.0), 0)
        self._estimate, self._squares = np.zeros(()), np.zeros(())
        # In place of a set, for the order and for copies of it.
        self._seen: dict[str, None] = {}
        self._owners = Owners()

    def turn(self, params: Sequence[Param], other: bool) -> None:
        """As `Wrapper.turn`: each net has an estimate of its own."""
        for param in params:
            self._owners.turn(param.name, param.root)
        self._turn_all([param.root for param in params], other)

    def _turn_all(self, roots: Sequence[ParamRoot], other: bool) -> None:
        now = self._estimate, self._squares, self._seen
        new = np.zeros(()), np.zeros(()), dict[str, None]()
        found = self._owners.turn_all(roots, other, now, new)
        self._estimate, self._squares, self._seen = found

    def _turn_by(self, names: Names, values: Values) -> None:
        """`turn` in a loop of the user's own, where the first arrays of a step tell the net."""
        begins = not self._seen or self._ends_with(names)
        roots = [(name, owner_of(value)) for name, value in zip(names, values, strict=True)]
        known = [(name, root) for name, root in roots if root is not None]
        others = [self._owners.turn(name, root) for name, root in known]
        if begins:
            self._turn_all([root for _, root in known], any(others))

    @property
    def estimate(self) -> float:
        """The moving mean of the norms of the steps before; 0 before there is one."""
        return float(self._estimate)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`; the norm is that of ``scale`` · gradients."""
        self._turn_by(names, values)
        xp = module_of(values)
        estimate = self._estimate = xp.asarray(self._estimate)
        squares = self._squares = xp.asarray(self._squares)
        if self._ends_with(names):
            norm = xp.sqrt(squares)
            mean = self.decay * estimate + (1.0 - self.decay) * norm
            estimate, squares = xp.where(estimate != 0.0, mean, norm), 0.0
        squares = squares + scale * scale * self.joined(squares_of(grads))
        norm = xp.fmax(estimate, xp.sqrt(squares))
        yield names, values, grads, scale * within(xp, norm, self.max_norm)
        # Only now: an update that was refused leaves the estimate as it was.
        self._estimate[...], self._squares[...] = estimate, squares
        self.skip(names)

    def _ends_with(self, names: Names) -> bool:
        """Whether a step is over now that the gradients of ``names`` come."""
        return any(name in self._seen for name in names)

    def case(self) -> Hashable:
        """The names seen since the step began."""
        return tuple(self._seen)

    def skip(self, names: Names) -> None:
        if self._ends_with(names):
            self._seen.clear()
        self._seen.update(dict.fromkeys(names))

    def _own_state(self) -> dict[str, Array]:
        """As `Wrapper._own_state`: the estimate, and what it is of."""
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
    """Every element of a gradient is brought into [−limit, limit].

    Costs a clipped copy of the gradients of one layer, for as long as the update lasts.
    """

    _by_element = True

    def __init__(self, optimizer: Optimizer | Wrapper, limit: float) -> None:
        super().__init__(optimizer)
        self.limit = at(checked("ClipByValue", "limit", limit), 0)

    def take(self, names: Names, values: Values, grads: Grads, scale: Scale) -> Iterator[Handed]:
        """As `Wrapper.take`; the limit is on ``scale`` · gradient.

        Rows of a table that sums those of all processes first are clipped there.
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
        yield names, values, [self._clipped(grad, scale) for grad in grads], 1.0

    def _clipped(self, grad: Grad, scale: Scale) -> Grad:
        if grad is None:
            return None
        if isinstance(grad, tuple):
            indices, rows = grad
            return RowSparse(indices, self._clip(rows, scale))
        return self._clip(grad, scale)

    def _clip(self, array: Array, scale: Scale) -> Array:
        xp = ops_for(array).xp
        if not is_one(scale):
            array = array * in_type(xp, scale, array.dtype)
        return xp.clip(array, -self.limit, self.limit)


def _is_clipped_elsewhere(value: Array) -> bool:
    table = served_by(value)
    return table is not None and table.sums_first
