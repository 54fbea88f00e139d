"""What the recurrent kernels of oneDNN with a single state share."""

from __future__ import annotations

from typing import Any

from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.one_state_plans import Sizes, backward, infer, train
from singanet.types import Array

_ADDS_A_PASS = 4
"""As for the LSTM's steps."""


Parameters = tuple[Array, Array, Array]
"""The weights of x and of h, and the bias, as oneDNN has them."""


class OneDnnOneState(OneDnnBase):
    """``kind`` is as in `Sizes`."""

    def _states(
        self,
        kind: str,
        x: Array,
        parameters: Parameters,
        start: Array | None,
        reverse: bool,
        keep: bool,
    ) -> tuple[Array, tuple[Array, ...]] | None:
        """The states around the steps, with ``keep`` a note; None where oneDNN has no kernel."""
        (steps, n, size), width = x.shape, len(parameters[1])
        key, build = Sizes(kind, steps, n, size, width, reverse), train if keep else infer
        h = self.state_buffer((steps + 1, n, width), start, x, reverse)
        given = [self.ordered(x), h[-1 if reverse else 0]]
        given += [*map(self.ordered, parameters), _after(h, reverse)]
        work = _passes(key)
        notes = [self.room(build, key, len(given), given[0], work)] if keep else []
        if not self.runs(build, key, *given, *notes, passes=work):
            return None
        return h, tuple(notes)

    def _slopes(
        self,
        kind: str,
        dy: Array | None,
        end: Array,
        x: Array,
        parameters: Parameters,
        h: Array,
        note: Array,
        reverse: bool,
    ) -> tuple[Array, Array, Array, Array]:
        """Gradients of x, of both weights and of the bias; ``end`` as for `NumpyOps`."""
        xp, (steps, n, size), width = self.xp, x.shape, h.shape[2]
        weights = [self.ordered(array) for array in parameters]
        given_y = xp.zeros((steps, n, width), x.dtype) if dy is None else self.ordered(dy)
        made: list[Any] = [xp.empty(like.shape, like.dtype) for like in (x, end, *weights)]
        first, last = (-1, 0) if reverse else (0, -1)
        given = [self.ordered(x), h[first], *weights, _after(h, reverse), h[last], note]
        key = Sizes(kind, steps, n, size, width, reverse)
        given += [given_y, self.ordered(end)]
        self.runs(backward, key, *given, *made, passes=_passes(key))
        xp.copyto(end, made[1])
        return made[0], made[2], made[3], made[4]


def _passes(sizes: Sizes) -> int:
    """Threads pay by the work of a step, after which they wait for each other."""
    step = sizes.n * sizes.width * sizes.gates * sizes.width // _ADDS_A_PASS
    return max(1, -(-step // (sizes.steps * sizes.n * sizes.size)))


def _after(h: Array, reverse: bool) -> Array:
    return h[:-1] if reverse else h[1:]
