"""The unsent part of a rank's gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from singanet.errors import DataError, ShapeError
from singanet.optimizer.state import Owners
from singanet.params.param import Param
from singanet.types import Array

_WHOSE = "*/unsent"
_PARTS = ("unsent", "unsent_momentum")


class Unsent:
    """By parameter, flat and on the host: the sum of what was not sent, and with momentum that.

    With ``momentum`` m and gradients g it is r = r + u of u = m u + g, and where an element is
    sent both begin at 0 (Lin et al. 2018, Deep Gradient Compression, momentum correction and
    factor masking); else r = r + g. Without ``feedback`` nothing is kept.
    """

    def __init__(self, where: str, feedback: bool, momentum: float = 0.0) -> None:
        self._where, self.feedback, self.momentum = where, feedback, momentum
        self.sums: dict[str, Array] = {}
        self.momenta: dict[str, Array] = {}
        self.steps = 0
        self._owners = Owners()
        self.ranks: set[tuple[int, int]] = set()
        """Rank and number of ranks that this one was before others died."""

    def turn(self, params: Sequence[Param], other: bool, *beside: dict[str, Any]) -> None:
        """As `Wrapper.turn`; ``beside`` are other dicts by parameter that turn with it."""
        for param in params:
            self._owners.turn(param.name, param.root, self.sums, self.momenta, *beside)
        self.steps = self._owners.turn_all([p.root for p in params], other, self.steps, 0)

    def plus(self, name: str, grad: Array, factor: float, keep: bool, alone: bool) -> Array:
        """The flat sum with ``factor`` · ``grad``, which is stored if ``keep``.

        A rank that is ``alone`` has nothing to keep but the momentum.
        """
        sums = np.multiply(grad, grad.dtype.type(factor), order="C").reshape(-1)
        if not self.feedback:
            return sums
        if self.momentum:
            moved = self._of(self.momenta, name, sums, keep)
            moved *= moved.dtype.type(self.momentum)
            moved += sums
            sums = moved
        if alone:
            return sums
        total = self._of(self.sums, name, sums, keep)
        total += sums
        return total

    def drop(self, name: str, places: Array) -> None:
        """These elements of the kept sum were sent."""
        for kept in (self.sums, self.momenta):
            if name in kept:
                kept[name][places] = 0

    def _of(self, kept: dict[str, Array], name: str, like: Array, keep: bool) -> Array:
        found = kept.get(name)
        if found is None:
            found = np.zeros_like(like)
        elif found.dtype != like.dtype:
            found = found.astype(like.dtype)
        elif not keep:
            return found.copy()
        if keep:
            kept[name] = found
        return found

    def expect_fit(self, params: Iterable[Param], like: Callable[[Param], Array]) -> None:
        """Errors: `ShapeError` where what is kept is of other parameters."""
        for param in params:
            found = self.sums.get(param.name, self.momenta.get(param.name))
            if found is not None and found.size != like(param).size:
                raise ShapeError(
                    f"{self._where}, parameter {param.name!r}",
                    expected=f"{like(param).size} elements that were not sent, as it has",
                    received=f"{found.size}",
                    advice=f"load the state of the same net, or make a new {self._where}",
                )

    # -- saving -----------------------------------------------------------------------------------

    def state(self, rank: int, size: int) -> dict[str, Array]:
        """Copies of all, and whose it is."""
        saved = {_WHOSE: np.array([rank, size, self.steps], np.int64)}
        for part, kept in zip(_PARTS, (self.sums, self.momenta), strict=True):
            saved |= {f"{name}/{part}": array.copy() for name, array in kept.items()}
        return saved

    def parsed(self, own: Mapping[str, Array], rank: int, size: int) -> Any:
        """What `take` takes of the entries of a state. Errors: they are not whole."""
        whose = np.asarray(own.get(_WHOSE, ()))
        if whose.shape != (3,) or whose.dtype.kind not in "iu" or whose[2] < 0:
            raise DataError(
                f"{self._where}.load_state_dict",
                expected=f"{_WHOSE!r}: rank, number of ranks and steps",
                received="nothing" if _WHOSE not in own else f"an array {whose.shape}",
                advice=f"load a complete state_dict of a {self._where}",
            )
        sums, momenta = (
            {
                key.rpartition("/")[0]: np.array(array).reshape(-1)
                for key, array in own.items()
                if key != _WHOSE and key.endswith(f"/{part}")
            }
            for part in _PARTS
        )
        if (sums or momenta) and tuple(whose[:2].tolist()) not in {(rank, size), *self.ranks}:
            warnings.warn(
                f"rank {rank} of {size} goes on from the state of rank {whose[0]} of {whose[1]}: "
                "what that rank had not sent is left out, and this one begins with nothing unsent",
                RuntimeWarning,
                stacklevel=4,
            )
            return int(whose[2]), {}, {}
        return int(whose[2]), sums, momenta

    def take(self, parsed: Any) -> None:
        """Go on from what `parsed` gave."""
        self._owners.forget()
        self.steps, self.sums, self.momenta = parsed


def is_unsent(key: str) -> bool:
    """Whether ``key`` of a state is of `Unsent`."""
    return key == _WHOSE or key.rpartition("/")[2] in _PARTS
