"""Clipping by an estimate of the norm of all gradients of a net."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.optimizer.checks import Grad
from singanet.optimizer.global_norm import squares_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale, module_of, within
from singanet.optimizer.state import Owners
from singanet.optimizer.wrapper import Handed, Wrapper
from singanet.params.param import Param, ParamRoot, owner_of
from singanet.types import Array

_KEYS = ("*/clip.estimate", "*/clip.squares")
_SEEN = "*/clip.seen."


class ClipByRunningNorm(Wrapper):
    """Gradients times min(1, max_norm / n), n an estimate of the norm of all of them.

    n is the larger of the moving mean of the steps before (``decay`` a step) and of the norm of
    the layers that this step has handed out so far, so that no layer ever exceeds ``max_norm``.
    A step ends when a name comes again. The estimate lags behind: after a quiet time a sudden
    large gradient is clipped from the layer on in which it shows. Costs no pass and no memory.
    """

    across_layers = True
    by_parts = True

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

    def _turn_by(self, names: Sequence[str], values: Sequence[Array]) -> None:
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

    def take(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: Scale,
    ) -> Iterator[Handed]:
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

    def _ends_with(self, names: Sequence[str]) -> bool:
        """Whether a step is over now that the gradients of ``names`` come."""
        return any(name in self._seen for name in names)

    def case(self) -> Hashable:
        """The names seen since the step began."""
        return tuple(self._seen)

    def skip(self, names: Sequence[str]) -> None:
        if self._ends_with(names):
            self._seen.clear()
        self._seen.update(dict.fromkeys(names))

    def own_state(self) -> dict[str, Array]:
        """As `Wrapper.own_state`: the estimate, and what it is of."""
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
