"""Long short-term memory by oneDNN: all steps of a direction, the products with them, in one call.

Gates stand in the same order as in `NumpyOps`, so that weights need no rearranging by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from singanet.ops.numpy.lstm_layer import LSTMGradients
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import Arg, Direction, Prop, Query
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.runtime import SHARED
from singanet.types import Array

_ADDS_A_PASS = 1
_OVERWRITE = 1
"""Gradients of weights are not added to what is there (``dnnl_rnn_flags_...``)."""


class OneDnnLSTM(OneDnnBase):
    """Ragged batches and float64 stay with NumPy."""

    def lstm_layer(
        self,
        x: Array,
        weights: tuple[Array, Array],
        bias: Array,
        starts: tuple[Array | None, Array | None],
        counts: Sequence[int],
        reverse: bool,
        keep: bool,
    ) -> tuple[Array, Array, tuple[Array, ...]]:
        """See `NumpyOps`; of the cells there is only the final one."""
        if self.serves(1, x, *weights, bias) and min(counts) == x.shape[1]:
            (steps, n, size), width = x.shape, len(weights[1])
            key, build = (steps, n, size, width, reverse), _train if keep else _infer
            h = self.state_buffer((steps + 1, n, width), starts[0], x, reverse)
            c, c0 = self.xp.empty((1, n, width), x.dtype), self._start(starts[1], h)
            states = [h[-1 if reverse else 0], c0]
            images = self.ordered(x)
            given = [images, *states, *map(self.ordered, weights), bias, _after(h, reverse), c]
            work = _passes(x, width)
            if self.prepared and not keep:
                # Threads as else, and the same for each of the calls.
                work = SHARED if images.size * work >= SHARED else 0
                given[3:5] = [
                    self._weight_laid_out(key, k, w, work) for k, w in enumerate(given[3:5])
                ]
                build = _infer_laid_out
            notes = [self.room(build, key, len(given), images, work)] if keep else []
            if self.runs(build, key, *given, *notes, passes=work):
                return h, c, (*notes, c0, c, bias) if keep else ()
        return super().lstm_layer(x, weights, bias, starts, counts, reverse, keep)

    def lstm_layer_backward(
        self,
        dy: Array | None,
        ends: Sequence[Array],
        x: Array,
        weights: tuple[Array, Array],
        h: Array,
        notes: tuple[Array, ...],
        counts: Sequence[int],
        reverse: bool,
        needs_dx: bool,
    ) -> LSTMGradients:
        """See `NumpyOps`."""
        if notes[0].dtype != np.uint8:
            return super().lstm_layer_backward(
                dy, ends, x, weights, h, notes, counts, reverse, needs_dx
            )
        xp, (steps, n, size), width = self.xp, x.shape, h.shape[2]
        room, c0, c, bias = notes
        slopes = xp.zeros((steps, n, width), x.dtype) if dy is None else self.ordered(dy)
        made = [xp.empty(like.shape, like.dtype) for like in (x, *ends, *weights, bias)]
        first, last = (-1, 0) if reverse else (0, -1)
        given = [self.ordered(x), h[first], c0, *map(self.ordered, weights), bias]
        given += [_after(h, reverse), h[last], c, room, slopes, *map(self.ordered, ends)]
        self.runs(
            _backward, (steps, n, size, width, reverse), *given, *made, passes=_passes(x, width)
        )
        xp.copyto(ends[0], made[1])
        xp.copyto(ends[1], made[2])
        return made[0] if needs_dx else None, made[3], made[4], made[5]

    def _weight_laid_out(self, key: tuple[Any, ...], which: int, weight: Array, work: int) -> Array:
        """A weight as oneDNN wants it, by a call that reads nothing else."""
        made = self.room(_lay_out, (*key, which), 0, weight, work)
        self.runs(_lay_out, (*key, which), made, self.ordered(weight), passes=work)
        return made

    def _start(self, state: Array | None, h: Array) -> Array:
        if state is None:
            return self.xp.zeros(h.shape[1:], h.dtype)
        return self.xp.array(state, order="C")


def _passes(x: Array, width: int) -> int:
    """Threads pay by the work of a step, after which they wait for each other."""
    step = x.shape[1] * width * 4 * width // _ADDS_A_PASS
    return max(1, -(-step // x.size))


def _after(h: Array, reverse: bool) -> Array:
    return h[:-1] if reverse else h[1:]


class _Layouts:
    """The memory of one direction: sequences, states, weights, bias."""

    def __init__(self, build: Builder, steps: int, n: int, size: int, width: int) -> None:
        self.x, self.y = build.rows((steps, n, size)), build.rows((steps, n, width))
        self.state = build.rows((1, 1, n, width))
        self.of_x, self.of_h = (1, 1, size, 4, width), (1, 1, width, 4, width)
        self.bias = build.rows((1, 1, 4, width))

    def all(self, build: Builder) -> list[Any]:
        """In the order in which descriptors are made."""
        states, weights = [self.state] * 2, [build.free(self.of_x), build.free(self.of_h)]
        return [self.x, *states, *weights, None, None, self.bias, self.y, *states]


def _desc(build: Builder, prop: Prop, layouts: _Layouts, reverse: bool) -> Any:
    way = int(Direction.REVERSE if reverse else Direction.FORWARD)
    # Training runs by kernels that call themselves a reference; they are made of good products.
    return build.primitive_desc("lstm_forward", int(prop), way, *layouts.all(build), 0, slow=True)


def _inputs(build: Builder, desc: Any, layouts: _Layouts, laid_out: bool = False) -> dict[Arg, int]:
    """The operands 0 to 5, whose weights may be ``laid_out``."""
    order, states = (Arg.SRC, Arg.SRC_ITER, Arg.SRC_ITER_C), [layouts.state] * 2
    given = build.operands(order, [layouts.x, *states])
    for k, (arg, shape) in enumerate(
        ((Arg.WEIGHTS, layouts.of_x), (Arg.WEIGHTS_ITER, layouts.of_h))
    ):
        wanted = build.layout(desc, Query.WEIGHTS, k)
        plain = wanted if laid_out else build.rows(shape)
        given[arg] = build.packed_input(3 + k, plain, wanted)
    return {**given, Arg.BIAS: build.operand(5, layouts.bias)}


def _forward(
    build: Builder, sizes: tuple[int, ...], reverse: bool, prop: Prop, laid_out: bool = False
) -> None:
    layouts = _Layouts(build, *sizes)
    desc = _desc(build, prop, layouts, reverse)
    given = _inputs(build, desc, layouts, laid_out)
    given[Arg.DST] = build.operand(6, layouts.y)
    given[Arg.DST_ITER] = build.inner(layouts.state)
    given[Arg.DST_ITER_C] = build.operand(7, layouts.state)
    if prop is Prop.FORWARD_TRAINING:
        given[Arg.WORKSPACE] = build.operand(8, build.layout(desc, Query.WORKSPACE))
    build.stage(desc, given)


def _infer(build: Builder, *key: Any) -> None:
    _forward(build, key[:4], key[4], Prop.FORWARD_INFERENCE)


def _infer_laid_out(build: Builder, *key: Any) -> None:
    _forward(build, key[:4], key[4], Prop.FORWARD_INFERENCE, laid_out=True)


def _lay_out(build: Builder, *key: Any) -> None:
    """Operands: one of the weights as `_infer_laid_out` wants it, and as it is."""
    layouts, which = _Layouts(build, *key[:4]), key[5]
    desc = _desc(build, Prop.FORWARD_INFERENCE, layouts, key[4])
    wanted, plain = build.layout(desc, Query.WEIGHTS, which), (layouts.of_x, layouts.of_h)[which]
    given = build.rows(plain)
    made, weight = build.operand(0, wanted), build.operand(1, given)
    build.reorder(given, weight, wanted, made)


def _train(build: Builder, *key: Any) -> None:
    _forward(build, key[:4], key[4], Prop.FORWARD_TRAINING)


def _backward(build: Builder, *key: Any) -> None:
    layouts, way = _Layouts(build, *key[:4]), Direction.REVERSE if key[4] else Direction.FORWARD
    hint = _desc(build, Prop.FORWARD_TRAINING, layouts, key[4])
    both = [*layouts.all(build), *layouts.all(build)]
    desc = build.primitive_desc(
        "lstm_backward", int(Prop.BACKWARD), int(way), *both, _OVERWRITE, hint, slow=True
    )
    given = _inputs(build, desc, layouts)
    state = layouts.state
    order = [Arg.DST, Arg.DST_ITER, Arg.DST_ITER_C, Arg.WORKSPACE]
    order += [Arg.DIFF_DST, Arg.DIFF_DST_ITER, Arg.DIFF_DST_ITER_C]
    order += [Arg.DIFF_SRC, Arg.DIFF_SRC_ITER, Arg.DIFF_SRC_ITER_C]
    notes = build.layout(hint, Query.WORKSPACE)
    kinds = [layouts.y, state, state, notes, layouts.y, state, state, layouts.x, state, state]
    for k, (arg, layout) in enumerate(zip(order, kinds, strict=True)):
        given[arg] = build.operand(6 + k, layout)
    bring = []
    for k, (arg, shape) in enumerate(
        ((Arg.DIFF_WEIGHTS, layouts.of_x), (Arg.DIFF_WEIGHTS_ITER, layouts.of_h))
    ):
        made = build.layout(desc, Query.DIFF_WEIGHTS, k)
        given[arg], then = build.packed_output(16 + k, build.rows(shape), made)
        bring.append(then)
    given[Arg.DIFF_BIAS] = build.operand(18, layouts.bias)
    # The notes of the forward steps are overwritten on the way back.
    notes_too = (Arg.WORKSPACE,)
    build.stage(desc, given, notes_too, notes_too)
    for then in bring:
        then()
