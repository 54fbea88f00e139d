"""The way of a batch through stacks and directions of recurrent layers, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from singanet.layers.cells import Cell
from singanet.layers.context import Context
from singanet.layers.recurrent import KINDS, StackDirection
from singanet.ops.direction import Direction
from singanet.params.param import Param
from singanet.types import Array, Shape


class Stacks(Protocol):
    """What the way goes by, of a recurrent layer; see `singanet.layers.RNN`."""

    cell: Cell
    params: dict[str, Param]
    runs: list[StackDirection]
    num_stacks: int
    directions: int
    hidden_size: int
    dropout: float
    input_dropout: float
    recurrent_dropout: float
    go_backwards: bool
    return_sequences: bool
    return_state: bool
    stateful: int | None


class Forward:
    """One forward call of a recurrent layer; keeps in the context what `Backward` needs."""

    def __init__(self, layer: Stacks, ctx: Context, skips: Array | None) -> None:
        self.layer = layer
        self.ctx = ctx
        self.skips = skips[::-1] if skips is not None and layer.go_backwards else skips

    def run(self, x: Array, states: Sequence[Array]) -> tuple[Array, list[Array]]:
        """The output and the final states, batch first."""
        layer, ctx, ops = self.layer, self.ctx, self.ctx.ops
        below = ops.time_major(x[:, ::-1] if layer.go_backwards else x, self.skips)
        below = self._dropped(below, "input", (1, len(x), x.shape[2]), layer.input_dropout)
        ctx.save(skips=self.skips)
        ends: list[list[Array]] = [[] for _ in layer.cell.states]
        for stack in range(layer.num_stacks):
            if stack:
                below = self._dropped(below, f"l{stack}", below.shape, layer.dropout)
            ctx.save(**{f"l{stack}/x": below})
            outs = []
            for run in layer.runs[stack * layer.directions : (stack + 1) * layer.directions]:
                direction = self._direction(run, below)
                made = self._run(run, below, states, direction)
                outs.append(direction.afters(made[0]))
                for end, state in zip(ends, made, strict=True):
                    end.append(state[direction.end])
            if stack < layer.num_stacks - 1 or layer.return_sequences:
                below = ops.side_by_side(outs, self.skips)
        if layer.return_sequences:
            y = ops.batch_major(below)
        else:
            y = ops.concat(ends[0][-layer.directions :], axis=1)
        finals = ends if layer.return_state or layer.stateful or ctx.past is not None else []
        return y, [ops.xp.stack(end, axis=1) for end in finals]

    def _dropped(self, x: Array, where: str, shape: Shape, dropout: float) -> Array:
        ctx = self.ctx
        if not ctx.train or dropout == 0.0:
            return x
        mask = ctx.ops.keep_mask(ctx.rng, shape, 1.0 - dropout)
        ctx.save(**{f"{where}/mask": mask})
        return _masked(ctx, x, mask, dropout)

    def _direction(self, run: StackDirection, x: Array) -> Direction:
        layer, ctx, drop = self.layer, self.ctx, None
        if ctx.train and layer.recurrent_dropout:
            keep = 1.0 - layer.recurrent_dropout
            mask = ctx.ops.keep_mask(ctx.rng, (x.shape[1], layer.hidden_size), keep)
            drop = ctx.ops.multiply(mask.astype(x.dtype), 1.0 / keep)
        return Direction(len(x), run.reverse, self.skips, drop)

    def _run(
        self, run: StackDirection, x: Array, states: Sequence[Array], direction: Direction
    ) -> tuple[Array, ...]:
        """The states of one direction of one stack on x (T, N, in)."""
        cell, ctx, prefix = self.layer.cell, self.ctx, run.prefix
        starts: list[Any] = [state[:, run.index] for state in states]
        case = cell.case(ctx.ops, x, _arrays_of(ctx, run), direction)
        made = cell.forward(ctx.ops, case, starts or [None] * len(cell.states), ctx.keep)
        ctx.save(**{f"{prefix}/made": made, f"{prefix}/drop": direction.drop})
        if cell.joins_biases:
            ctx.save(**{f"{prefix}/biases": case.biases})
        return made.states


class Backward:
    """The way back of one forward call."""

    def __init__(self, layer: Stacks, ctx: Context) -> None:
        self.layer = layer
        self.ctx = ctx
        self.grads: dict[str, Array] = {}

    def run(
        self, dy: Array, dfinals: Sequence[Array]
    ) -> tuple[Array | None, list[Array], dict[str, Array]]:
        """Gradients of the sequences, of the initial states, and of the parameters."""
        layer, ctx, ops = self.layer, self.ctx, self.ctx.ops
        above = ops.time_major(dy, ctx.saved["skips"]) if layer.return_sequences else None
        dstates = self._state_gradients(dy, dfinals)
        for stack in reversed(range(layer.num_stacks)):
            dx: Array | None = None
            for run in layer.runs[stack * layer.directions : (stack + 1) * layer.directions]:
                part = self._run(run, above, [d[run.index] for d in dstates])
                if part is not None:
                    dx = part if dx is None else ops.add(dx, part, out=dx)
            above = None if dx is None else self._dropped(dx, f"l{stack}", layer.dropout)
        grads = {s: self.grads[s] for s, param in layer.params.items() if not param.is_state}
        if above is None:
            return None, [], grads
        above = ops.batch_major(self._dropped(above, "input", layer.input_dropout))
        states = [d.transpose(1, 0, 2) for d in dstates]
        return above[:, ::-1] if layer.go_backwards else above, states, grads

    def _dropped(self, dx: Array, where: str, dropout: float) -> Array:
        mask = self.ctx.saved.get(f"{where}/mask")
        return dx if mask is None else _masked(self.ctx, dx, mask, dropout)

    def _state_gradients(self, dy: Array, dfinals: Sequence[Array]) -> list[Array]:
        """The gradients of the final states, (stacks·directions, N, H) each, ours to change."""
        layer, ops = self.layer, self.ctx.ops
        shape = (len(layer.runs), len(dy), layer.hidden_size)
        if dfinals:
            dstates = [ops.xp.array(d.transpose(1, 0, 2), order="C") for d in dfinals]
        else:
            dstates = [ops.zeros(shape, dy) for _ in layer.cell.states]
        if not layer.return_sequences:
            top = dstates[0][-layer.directions :]
            last = dy.reshape(len(dy), layer.directions, layer.hidden_size)
            ops.add(top, last.transpose(1, 0, 2), out=top)
        return dstates

    def _run(
        self, run: StackDirection, above: Array | None, dstates: Sequence[Array]
    ) -> Array | None:
        """One direction of one stack; the gradient of its input, None if it is not wanted."""
        layer, ctx = self.layer, self.ctx
        size, prefix, saved = layer.hidden_size, run.prefix, ctx.saved
        if above is not None:
            first = size if run.reverse else 0
            above = above[:, :, first : first + size]
        needs_dx = run.stack > 0 or ctx.needs_input_grad
        x = saved[f"l{run.stack}/x"]
        direction = Direction(len(x), run.reverse, saved["skips"], saved[f"{prefix}/drop"])
        biases = saved.get(f"{prefix}/biases")
        case = layer.cell.case(ctx.ops, x, _arrays_of(ctx, run), direction, biases)
        made = saved[f"{prefix}/made"]
        grads = layer.cell.backward(ctx.ops, case, made, above, dstates, needs_dx)
        for state, start in zip(dstates, grads.starts, strict=True):
            ctx.ops.copyto(state, start)
        for kind in KINDS:
            if (grad := getattr(grads, kind)) is not None:
                self.grads[f"{prefix}/{kind}"] = grad
        if grads.bias_h is grads.bias_x:
            # Two parameters, of which each has an array of its own.
            self.grads[f"{prefix}/bias_h"] = grads.bias_h.copy()
        return grads.x


def _arrays_of(ctx: Context, run: StackDirection) -> dict[str, Array | None]:
    """The parameters of one direction by kind, None for one that it does not have."""
    return {kind: ctx.params.get(f"{run.prefix}/{kind}") for kind in KINDS}


def _masked(ctx: Context, x: Array, mask: Array, dropout: float) -> Array:
    """``x`` where the mask is set, scaled so that its mean stays."""
    y: Array = ctx.ops.multiply(x, mask)
    ctx.ops.multiply(y, 1.0 / (1.0 - dropout), out=y)
    return y
