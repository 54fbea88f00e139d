"""The base class of constraints."""

from __future__ import annotations

from singanet.base.described import Configurable
from singanet.base.edits import Counted
from singanet.errors import ArgumentError
from singanet.ops import ops_for
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.scale import Scale, in_type
from singanet.types import Array, RowSparse


class Constraint(Counted, Configurable):
    """Keeps a parameter, or its gradient, within bounds; a subclass overrides what it needs."""

    def __init__(self, threshold: float) -> None:
        self.threshold = at(checked(type(self).__name__, "threshold", threshold), 0)
        if not self.threshold:
            raise ArgumentError(
                f"{type(self).__name__}(threshold=)",
                expected="a number above 0",
                received=repr(threshold),
                advice="leave the constraint out, or freeze the parameter",
            )

    def factor(self, grad: Array | RowSparse, scale: Scale = 1.0) -> Scale:
        """The factor of ``grad`` in the place of ``scale``, before all else is done with it."""
        return scale

    def project(self, value: Array) -> None:
        """Change the updated parameter, or its updated rows, in place."""

    def apply(self, epoch: int, value: Array, grad: Array, step: int = -1) -> Array:
        """The constrained gradient as a new array (SINGA's interface); only ``grad`` matters."""
        return grad * in_type(ops_for(grad).xp, self.factor(grad), grad.dtype)
