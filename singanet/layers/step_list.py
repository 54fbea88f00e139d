"""SINGA's lists of steps: a recurrent layer called on them, and padded batches made of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from singanet.base.flags import is_training
from singanet.errors import ArgumentError, CallOrderError, ShapeError
from singanet.layers.context import Context
from singanet.layers.rnn import RNN
from singanet.ops import ops_for
from singanet.types import Array


class StepList:
    """Calls ``layer`` as SINGA does: [x1..xT, hx(, cx)] in, [y1..yT, hy(, cy)] out.

    x_t is (batch_t, F) with batch sizes that never grow, y_t (batch_t, H·directions); the states
    are (stacks·directions, batch_1, H), and an empty array or None stands for zeros.
    ``layer`` is a recurrent layer with ``return_state=True`` that is not part of a net. Random
    draws come from ``rng``.
    """

    def __init__(self, layer: RNN, rng: np.random.Generator | None = None) -> None:
        if not isinstance(layer, RNN) or not (layer.return_state and layer.return_sequences):
            raise ArgumentError(
                "StepList",
                expected="an RNN, LSTM or GRU with return_sequences=True and return_state=True",
                received=repr(layer),
                advice="make the layer with return_state=True",
            )
        self.layer = layer
        self.rng = np.random.default_rng() if rng is None else rng
        self._pass: tuple[Context, list[int]] | None = None

    def forward(self, flag: int | bool, inputs: Sequence[Array | None]) -> list[Array]:
        """Run all steps; with ``flag`` True or ``kTrain`` a backward may follow."""
        layer, count = self.layer, len(self.layer.cell.states)
        self._pass = None
        xs = [x for x in inputs[:-count] if x is not None]
        padded, lengths = steps_to_padded(xs)
        ops = ops_for(padded)
        shape = (len(layer.runs), len(padded), layer.hidden_size)
        states = []
        for given in inputs[-count:]:
            state = ops.zeros(shape, padded) if given is None or given.size == 0 else given
            if tuple(state.shape) != shape:
                raise layer.shape_error(
                    f"initial states of shape {shape}, or empty ones, after the steps",
                    f"shape {tuple(state.shape)}",
                    "(stacks x directions, batch of the first step, hidden)",
                )
            states.append(state.transpose(1, 0, 2))
        per_sample = [shape[::2]] * count
        layer.build([(None, padded.shape[2]), *per_sample, ()])
        params = {suffix: param.value for suffix, param in layer.params.items()}
        ctx = Context(ops, self.rng, params, is_training(flag), dtype=padded.dtype)
        y, *finals = layer.forward(ctx, [padded, *states, lengths])
        sizes = [len(x) for x in xs]
        if ctx.train:
            self._pass = ctx, sizes
        return padded_to_steps(y, sizes) + [final.transpose(1, 0, 2) for final in finals]

    def backward(
        self, flag: int | bool, grads: Sequence[Array | None]
    ) -> tuple[list[Array], list[Array]]:
        """``[dy1..dyT, dhy(, dcy)]`` → ``([dx1..dxT, dhx(, dcx)], [packed gradient])``."""
        if self._pass is None:
            raise CallOrderError(
                f"StepList of layer {self.layer.name!r}",
                expected="a training forward before each backward",
                received="none, or one whose backward was already taken",
                advice="call forward(True, inputs) first",
            )
        (ctx, sizes), count = self._pass, len(self.layer.cell.states)
        dys = [dy for dy in grads[:-count] if dy is not None]
        if [len(dy) for dy in dys] != sizes:
            raise self.layer.shape_error(
                f"gradients of {len(sizes)} steps, with batches {sizes[:12]}, then of the states",
                f"batches {[len(dy) for dy in dys][:12]}",
                "pass one gradient for each output of forward",
            )
        dy, _ = steps_to_padded(dys)
        shape = (len(dy), len(self.layer.runs), self.layer.hidden_size)
        dstates = [
            ctx.ops.zeros(shape, dy) if d is None or d.size == 0 else d.transpose(1, 0, 2)
            for d in grads[-count:]
        ]
        self._pass = None
        (dx, *dstarts, _), by_suffix = self.layer.backward(ctx, [dy, *dstates])
        dxs = padded_to_steps(dx, sizes) + [d.transpose(1, 0, 2) for d in dstarts]
        return dxs, [self.layer.pack(by_suffix)]


def steps_to_padded(steps: Sequence[Array]) -> tuple[Array, Array]:
    """``steps`` [x1..xT] of shape (batch_t, F) as (N, T, F), zero-padded, and lengths (N,).

    N is the first batch size; the sizes never grow, so sample n is row n of every step that has
    it. Errors: no step, a growing batch, or steps of different features.
    """
    if not steps or steps[0].ndim != 2:
        raise _bad_steps("at least one step of shape (batch, features)", steps)
    sizes = [len(step) for step in steps]
    if any(step.ndim != 2 or step.shape[1] != steps[0].shape[1] for step in steps):
        raise _bad_steps("steps of equally many features", steps)
    if any(size > before for before, size in pairwise(sizes)):
        raise _bad_steps("batch sizes that never grow from step to step", steps)
    ops = ops_for(steps[0])
    padded = ops.zeros((sizes[0], len(steps), steps[0].shape[1]), steps[0])
    for t, step in enumerate(steps):
        ops.copyto(padded[: sizes[t], t], step)
    xp = ops.xp
    lengths: Array = (xp.asarray(sizes)[None, :] > xp.arange(sizes[0])[:, None]).sum(axis=1)
    return padded, lengths


def padded_to_steps(y: Array, sizes: Sequence[int]) -> list[Array]:
    """(N, T, F) as [y1..yT], views of the first ``sizes[t]`` rows of each step."""
    if len(sizes) != y.shape[1] or any(not 0 <= size <= len(y) for size in sizes):
        raise ShapeError(
            "padded_to_steps",
            expected=f"{y.shape[1]} batch sizes of at most {len(y)}",
            received=f"{list(sizes)[:12]}",
            advice="pass the batch sizes of the list that was padded",
        )
    return [y[:size, t] for t, size in enumerate(sizes)]


def _bad_steps(expected: str, steps: Sequence[Array]) -> ShapeError:
    return ShapeError(
        "steps_to_padded",
        expected=expected,
        received=f"shapes {[tuple(step.shape) for step in steps[:12]]}",
        advice="sort the samples so that their lengths fall",
    )
