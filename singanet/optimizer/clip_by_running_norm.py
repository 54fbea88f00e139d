"""Clipping by an estimate of the norm of all gradients of a net."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError
from singanet.optimizer.checks import Grad
from singanet.optimizer.global_norm import squares_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
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

    def __init__(self, optimizer: Optimizer | Wrapper, max_norm: float, decay: float = 0.9) -> None:
        super().__init__(optimizer)
        self.max_norm = at(checked("ClipByRunningNorm", "max_norm", max_norm), 0)
        self.decay = at(checked("ClipByRunningNorm", "decay", decay, 0.0, 1.0), 0)
        self.estimate = 0.0
        self._squares = 0.0
        self._seen: frozenset[str] = frozenset()

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`; the norm is that of ``scale`` · gradients."""
        estimate, squares, seen = self.estimate, self._squares, self._seen
        if not seen.isdisjoint(names):
            norm = math.sqrt(squares)
            estimate = self.decay * estimate + (1.0 - self.decay) * norm if estimate else norm
            squares, seen = 0.0, frozenset()
        squares += scale * scale * squares_of(grads)
        norm = max(estimate, math.sqrt(squares))
        if norm > self.max_norm:
            scale *= self.max_norm / norm
        self.optimizer.update(names, values, grads, scale)
        # Only now: an update that was refused leaves the estimate as it was.
        self.estimate, self._squares, self._seen = estimate, squares, seen.union(names)

    def _own_state(self) -> dict[str, Array]:
        numbers = dict(zip(_KEYS, (self.estimate, self._squares), strict=True))
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
        seen = frozenset(key[len(_SEEN) :] for key in own if key.startswith(_SEEN))
        return float(own[_KEYS[0]]), float(own[_KEYS[1]]), seen

    def _take(self, parsed: Any) -> None:
        self.estimate, self._squares, self._seen = parsed
