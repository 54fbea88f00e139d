"""The way of a batch through stacks and directions, and of its gradient back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from singanet.context import Context
from singanet.layers.recurrent_inputs import Ragged
from singanet.layers.recurrent_params import KINDS, Run
from singanet.ops.direction import Direction
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.layers.rnn import RNN


class Forward:
    """One forward call of a recurrent layer; keeps in the context what `Backward` needs."""

    def __init__(self, layer: RNN, ctx: Context, ragged: Ragged | None) -> None:
        self.layer = layer
        self.ctx = ctx
        self.ragged = ragged

    def run(self, x: Array, states: Sequence[Array]) -> tuple[Array, list[Array]]:
        """The output and the final states, batch first."""
        layer, ctx, ops, ragged = self.layer, self.ctx, self.ctx.ops, self.ragged
        order = ragged.order if ragged else None
        inverse = ragged.inverse if ragged else None
        ragged_counts = ragged.counts if ragged else None
        below = ops.time_major(x, order, ragged_counts)
        counts = ragged_counts or [len(x)] * x.shape[1]
        ctx.save(ragged=ragged, counts=counts)
        starts = [ops.take_rows(state, order) for state in states]
        ends: list[list[Array]] = [[] for _ in layer.cell.states]
        for stack in range(layer.num_stacks):
            below = self._dropped(below, stack)
            ctx.save(**{f"l{stack}/x": below})
            outs = []
            for run in layer.runs[stack * layer.directions : (stack + 1) * layer.directions]:
                direction = Direction(counts, run.reverse)
                trace = self._run(run, below, starts, direction)
                outs.append(direction.afters(trace["h"]))
                for end, state in zip(ends, layer.cell.states, strict=True):
                    end.append(trace[state][direction.end])
            if stack < layer.num_stacks - 1 or layer.return_sequences:
                below = ops.side_by_side(outs, ragged_counts)
        if layer.return_sequences:
            y = ops.batch_major(below, inverse)
        else:
            y = ops.take_rows(ops.concat(ends[0][-layer.directions :], axis=1), inverse)
        finals = ends if layer.return_state else []
        return y, [ops.take_rows(ops.xp.stack(end, axis=1), inverse) for end in finals]

    def _dropped(self, x: Array, stack: int) -> Array:
        layer, ctx = self.layer, self.ctx
        if stack == 0 or not ctx.train or layer.dropout == 0.0:
            return x
        mask = ctx.ops.keep_mask(ctx.rng, x.shape, 1.0 - layer.dropout)
        ctx.save(**{f"l{stack}/mask": mask})
        return masked(ctx, x, mask, layer.dropout)

    def _run(
        self, run: Run, x: Array, states: Sequence[Array], direction: Direction
    ) -> dict[str, Any]:
        """One direction of one stack on x (T, N, in)."""
        layer, ctx = self.layer, self.ctx
        starts: list[Any] = [state[:, run.index] for state in states]
        starts = starts or [None] * len(layer.cell.states)
        params = arrays_of(ctx, run)
        trace = layer.cell.forward(ctx.ops, x, params, starts, direction, ctx.keep)
        ctx.save(**{f"{run.prefix}/{key}": value for key, value in trace.items()})
        return trace


class Backward:
    """The way back of one forward call."""

    def __init__(self, layer: RNN, ctx: Context) -> None:
        self.layer = layer
        self.ctx = ctx
        self.grads: dict[str, Array] = {}

    def run(
        self, dy: Array, dfinals: Sequence[Array]
    ) -> tuple[Array | None, list[Array], dict[str, Array]]:
        """Gradients of the sequences, of the initial states, and of the parameters."""
        layer, ctx, ops = self.layer, self.ctx, self.ctx.ops
        ragged: Ragged | None = ctx.saved["ragged"]
        order = ragged.order if ragged else None
        inverse = ragged.inverse if ragged else None
        above = ops.time_major(dy, order) if layer.return_sequences else None
        dstates = self._state_gradients(dy, dfinals, order)
        for stack in reversed(range(layer.num_stacks)):
            dx: Array | None = None
            for run in layer.runs[stack * layer.directions : (stack + 1) * layer.directions]:
                part = self._run(run, above, [d[run.index] for d in dstates])
                if part is not None:
                    dx = part if dx is None else ops.add(dx, part, out=dx)
            mask = ctx.saved.get(f"l{stack}/mask")
            above = dx if mask is None or dx is None else masked(ctx, dx, mask, layer.dropout)
        grads = {suffix: self.grads[suffix] for suffix in layer.params}
        if above is None:
            return None, [], grads
        states = [ops.take_rows(d.transpose(1, 0, 2), inverse) for d in dstates]
        return ops.batch_major(above, inverse), states, grads

    def _state_gradients(
        self, dy: Array, dfinals: Sequence[Array], order: Array | None
    ) -> list[Array]:
        """The gradients of the final states, (stacks·directions, N, H) each, ours to change."""
        layer, ops = self.layer, self.ctx.ops
        shape = (len(layer.runs), len(dy), layer.hidden_size)
        if dfinals:
            rows = [ops.take_rows(d, order).transpose(1, 0, 2) for d in dfinals]
            dstates = [ops.xp.array(d, order="C") for d in rows]
        else:
            dstates = [ops.zeros(shape, dy) for _ in layer.cell.states]
        if not layer.return_sequences:
            top = dstates[0][-layer.directions :]
            last = ops.take_rows(dy, order).reshape(len(dy), layer.directions, layer.hidden_size)
            ops.add(top, last.transpose(1, 0, 2), out=top)
        return dstates

    def _run(self, run: Run, above: Array | None, dstates: Sequence[Array]) -> Array | None:
        """One direction of one stack; the gradient of its input where that is wanted."""
        layer, ctx = self.layer, self.ctx
        size, prefix = layer.hidden_size, f"{run.prefix}/"
        trace = {k[len(prefix) :]: v for k, v in ctx.saved.items() if k.startswith(prefix)}
        if above is not None:
            first = size if run.reverse else 0
            above = above[:, :, first : first + size]
        needs_dx = run.stack > 0 or ctx.needs_input_grad
        grads = layer.cell.backward(
            ctx.ops,
            above,
            dstates,
            trace,
            ctx.saved[f"l{run.stack}/x"],
            arrays_of(ctx, run),
            Direction(ctx.saved["counts"], run.reverse),
            needs_dx,
        )
        for state, start in zip(dstates, grads.starts, strict=True):
            ctx.ops.copyto(state, start)
        for kind in KINDS:
            if (grad := getattr(grads, kind)) is not None:
                self.grads[f"{prefix}{kind}"] = grad
        if grads.bias_h is grads.bias_x:
            # Two parameters, of which each has an array of its own.
            self.grads[f"{prefix}bias_h"] = grads.bias_h.copy()
        return grads.x


def arrays_of(ctx: Context, run: Run) -> dict[str, Array | None]:
    """The parameters of one direction by kind, None for one that it does not have."""
    return {kind: ctx.params.get(f"{run.prefix}/{kind}") for kind in KINDS}


def masked(ctx: Context, x: Array, mask: Array, dropout: float) -> Array:
    """``x`` where the mask is set, scaled so that its mean stays."""
    y: Array = ctx.ops.multiply(x, mask)
    ctx.ops.multiply(y, 1.0 / (1.0 - dropout), out=y)
    return y
