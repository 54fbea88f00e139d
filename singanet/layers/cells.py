"""Recurrent cells and their scan over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from singanet.errors import ArgumentError, DataError, UnknownNameError, brief, did_you_mean, one_of
from singanet.initializer import Initializer
from singanet.layers.context import Context
from singanet.layers.layer import Layer, ParamSpecs
from singanet.ops.interface import Ops
from singanet.ops.window import (
    Direction,
    RecurrentCase,
    RecurrentGradients,
    RecurrentSlopes,
    RecurrentStates,
)
from singanet.params.param import Param
from singanet.types import Array, Shape

Params = Mapping[str, Array | None]
"""The arrays of one direction by kind; all but ``weight_h`` may be missing."""


class Cell:
    """The formula of one step; the kernels run it over all steps of one direction.

    ``kernel`` is the name of the forward kernel, ``gates`` are the names of the blocks of the
    weights in the order of SINGA and cuDNN, ``states`` the names of the states. If the cell
    ``joins_biases``, the kernels add the sum of both to the gates, which is computed once and saved
    for backward.
    """

    kernel: ClassVar[str]
    gates: tuple[str, ...]
    states: tuple[str, ...] = ("h",)
    joins_biases: ClassVar[bool] = True
    mode: str = "tanh"

    def bias_start(self) -> Initializer | None:
        """Return the initializer of ``bias_x``, or None for zeros."""
        return None

    def case(
        self,
        ops: Ops,
        x: Array,
        params: Params,
        direction: Direction,
        biases: tuple[Array, ...] | None = None,
    ) -> RecurrentCase:
        """Return the case for the kernels; backward passes the ``biases`` that forward computed."""
        arrays: Any = params
        weights = arrays["weight_x"], arrays["weight_h"]
        if biases is None:
            biases = _biases(ops, arrays)
            if self.joins_biases:
                one, other = biases
                biases = (one if one is other else ops.add(one, other),)
        return RecurrentCase(x, weights, biases, direction, self.mode)

    def forward(
        self, ops: Ops, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
    ) -> RecurrentStates:
        """Run all steps of one direction; ``keep`` saves the arrays for backward."""
        made: RecurrentStates = getattr(ops, self.kernel)(case, starts, keep)
        return made

    def backward(
        self, ops: Ops, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
    ) -> RecurrentGradients:
        """Return all gradients."""
        found: RecurrentGradients = getattr(ops, f"{self.kernel}_backward")(case, made, slopes)
        return found


class LSTMCell(Cell):
    """Long short-term memory; the forget gate's bias starts at 1 (Jozefowicz et al. 2015)."""

    gates = ("i", "f", "g", "o")
    kernel = "lstm_layer"
    states = ("h", "c")

    def bias_start(self) -> Initializer:
        """Return an initializer that is 1 in the block of the forget gate."""
        return _OneInBlock(self.gates.index("f"), len(self.gates))


class GRUCell(Cell):
    """Gated recurrent unit; the bias of n behind the reset gate is added step by step."""

    gates = ("r", "z", "n")
    kernel = "gru_layer"
    joins_biases = False


class ResetBeforeCell(Cell):
    """Gated recurrent unit of Cho et al. 2014: the reset gate is before the product of n."""

    gates = ("r", "z", "n")
    kernel = "gru_before_layer"


@dataclass(frozen=True)
class ElmanCell(Cell):
    """Simple recurrent unit with the function ``mode``: tanh or relu."""

    mode: str
    gates = ("h",)
    kernel = "elman_layer"


def _biases(ops: Ops, arrays: Any) -> tuple[Array, ...]:
    """Return both biases, zero if there are none."""
    if arrays["bias_x"] is None:
        weight = arrays["weight_h"]
        return (ops.zeros(weight.shape[1:], weight),) * 2
    return arrays["bias_x"], arrays["bias_h"]


@dataclass(frozen=True)
class _OneInBlock(Initializer):
    """Zero, but 1 in one of ``blocks`` equal parts."""

    block: int
    blocks: int

    def __call__(self, rng: np.random.Generator, shape: Shape, fans: tuple[int, int]) -> Array:
        """Fill; see `Initializer`."""
        values: np.ndarray[Any, np.dtype[np.float64]] = np.zeros(shape)
        size = shape[0] // self.blocks
        values[self.block * size : (self.block + 1) * size] = 1.0
        return values


CELLS: dict[str, Cell] = {
    "lstm": LSTMCell(),
    "gru": GRUCell(),
    "gru_before": ResetBeforeCell(),
    "tanh": ElmanCell("tanh"),
    "relu": ElmanCell("relu"),
}
"""The cells by SINGA's ``rnn_mode``."""


KINDS = ("weight_x", "weight_h", "bias_x", "bias_h")
"""The arrays of one direction: (in, G·H), (H, G·H), (G·H,), (G·H,)."""

RNNSpecs = ParamSpecs | Sequence[ParamSpecs] | Mapping[str, ParamSpecs]
"""One spec for all arrays (also SINGA's list of one), or a dict from kind or suffix to spec."""


@dataclass(frozen=True)
class StackDirection:
    """One direction of one stack; ``index`` is its place among the states."""

    stack: int
    index: int
    reverse: bool

    @property
    def prefix(self) -> str:
        """The start of its parameters' suffixes."""
        return f"l{self.stack}/{'backward' if self.reverse else 'forward'}"


def all_runs(num_layers: int, bidirectional: bool) -> Iterator[StackDirection]:
    """Iterate over the directions of every stack, in the order of states and of the packed form."""
    directions = 2 if bidirectional else 1
    for stack in range(num_layers):
        for d in range(directions):
            yield StackDirection(stack, stack * directions + d, d == 1)


def normal_specs(layer: str, specs: RNNSpecs) -> ParamSpecs | Mapping[str, ParamSpecs]:
    """Return ``specs`` without SINGA's list around a single spec."""
    if not isinstance(specs, (list, tuple)):
        return specs  # type: ignore[return-value]
    if len(specs) != 1:
        raise ArgumentError(
            f"layer {layer!r}, argument param_specs",
            expected="one spec, or a dict from array to spec",
            received=f"a list of {len(specs)}",
            advice="pass {'weight_x': {...}, 'bias_x': {...}} for different specs",
        )
    only: ParamSpecs = specs[0]
    return only


def spec_of(
    layer: str, specs: ParamSpecs | Mapping[str, ParamSpecs], suffix: str, suffixes: Sequence[str]
) -> ParamSpecs:
    """Return the spec of the array ``suffix``; a name in a spec for several is a prefix."""
    if specs is None or isinstance(specs, Param):
        return specs
    if any(key in KINDS or "/" in key for key in specs):
        return _by_array(layer, specs, suffix, suffixes)
    return _with_prefix(specs, suffix)


def _by_array(
    layer: str, specs: Mapping[str, Any], suffix: str, suffixes: Sequence[str]
) -> ParamSpecs:
    known = (*KINDS, *suffixes)
    for key in specs:
        if key not in known:
            raise UnknownNameError(
                f"layer {layer!r}, argument param_specs",
                expected=f"keys among {one_of(known)}",
                received=brief(key),
                advice=did_you_mean(key, known, "remove it"),
            )
    if suffix in specs:
        exact: ParamSpecs = specs[suffix]
        return exact
    shared: ParamSpecs = specs.get(suffix.rpartition("/")[2])
    if isinstance(shared, Mapping):
        return _with_prefix(shared, suffix)
    return shared


def _with_prefix(spec: Mapping[str, Any], suffix: str) -> Mapping[str, Any]:
    return {**spec, "name": f"{spec['name']}/{suffix}"} if "name" in spec else spec


_ADVICE = (
    "give (time, features), then all initial states of shape (stacks x directions, hidden) or"
    " none, then a mask of shape (time,), lengths of shape (), or nothing"
)


@dataclass(frozen=True)
class Inputs:
    """The inputs after the sequences: ``states`` states, then the mask or the lengths.

    ``tells`` is the kind of the last one: "mask", "lengths" or "".
    """

    states: int
    tells: str


def read_shapes(
    layer: Layer, in_shapes: Any, state: Shape, states: int
) -> tuple[tuple[int, int], Inputs]:
    """Return (T, F) of the sequences, and the other inputs, found by their sample shapes.

    ``state`` is the shape of each of the ``states`` initial states, if they are passed.
    """
    shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
    rest = shapes[1:]
    tells = "lengths" if rest and rest[-1] in ((), (1,)) else ""
    if not tells and rest and rest[-1] == shapes[0][:1]:
        tells = "mask"
    given = rest[:-1] if tells else rest
    fits = bool(shapes) and len(shapes[0]) == 2 and shapes[0][1] > 0
    if not fits or given not in ([], [state] * states):
        raise layer.shape_error(
            f"sequences of sample shape (time, features), then no or {states} initial states of"
            f" shape {state}, then nothing, a mask of shape (time,) or lengths of shape ()",
            str(in_shapes),
            _ADVICE,
        )
    return (shapes[0][0], shapes[0][1]), Inputs(len(given), tells)


def read_skips(layer: Layer, ops: Ops, tells: str, given: Array, n: int, steps: int) -> Array:
    """Return (T, N, 1), True for padded steps, from the mask or lengths ``given``.

    Errors: a mask of another shape than (n, steps); the errors of `read_whole_lengths`.
    """
    if tells == "lengths":
        lengths = read_whole_lengths(layer, ops, given, n, steps)
        missing = ops.xp.arange(steps)[:, None] >= lengths
    elif given.shape != (n, steps):
        raise layer.shape_error(
            f"a mask of shape {(n, steps)}",
            f"shape {given.shape}",
            "pass one number for every step of every sequence",
        )
    else:
        missing = (given == 0).T
    return missing[:, :, None]


def read_whole_lengths(layer: Layer, ops: Ops, lengths: Array, n: int, steps: int) -> Array:
    """Return ``lengths`` (N,) or (N, 1) as N integers.

    Errors: a number of lengths other than N; a length that is not an integer from 0 to ``steps``.
    """
    if lengths.size != n or lengths.ndim > 2:
        raise layer.shape_error(
            f"one length a sample, shape ({n},) or ({n}, 1)",
            f"shape {lengths.shape}",
            "pass a length for every sequence",
        )
    flat = lengths.reshape(n)
    ops.check(partial(_expect_lengths, layer.name, steps), flat)
    return flat.astype(np.int64)


def _expect_lengths(layer: str, steps: int, lengths: Array) -> None:
    right = (lengths >= 0) & (lengths <= steps) & (lengths == np.floor(lengths))
    if not bool(right.all()):
        first = int((~right).argmax())
        raise DataError(
            f"layer {layer!r}, input lengths",
            expected=f"whole numbers from 0 to {steps}, the number of steps",
            received=f"{lengths[first]} for sample {first}",
            advice="cut the sequence, or pad all of them to more steps",
        )


class Stacks(Protocol):
    """The attributes of a recurrent layer that `Forward` and `Backward` use; see `RNN`."""

    cell: Cell
    params: dict[str, Param]
    runs: list[StackDirection]
    num_layers: int
    directions: int
    units: int
    dropout: float
    input_dropout: float
    recurrent_dropout: float
    go_backwards: bool
    return_sequences: bool
    return_state: bool
    stateful: int | None
    round_states: bool


class Forward:
    """One forward call of a recurrent layer; saves the arrays for `Backward` in the context."""

    def __init__(self, layer: Stacks, ctx: Context, skips: Array | None) -> None:
        self.layer = layer
        self.ctx = ctx
        self.skips = skips[::-1] if skips is not None and layer.go_backwards else skips

    def run(self, x: Array, states: Sequence[Array]) -> tuple[Array, list[Array]]:
        """Return the output and the final states, batch first."""
        layer, ctx, ops = self.layer, self.ctx, self.ctx.ops
        below = ops.time_major(x[:, ::-1] if layer.go_backwards else x, self.skips)
        below = self._dropped(below, "input", (1, len(x), x.shape[2]), layer.input_dropout)
        ctx.save(skips=self.skips)
        ends: list[list[Array]] = [[] for _ in layer.cell.states]
        for stack in range(layer.num_layers):
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
            if stack < layer.num_layers - 1 or layer.return_sequences:
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
            mask = ctx.ops.keep_mask(ctx.rng, (x.shape[1], layer.units), keep)
            drop = ctx.ops.multiply(mask.astype(x.dtype), 1.0 / keep)
        return Direction(len(x), run.reverse, self.skips, drop, layer.round_states)

    def _run(
        self, run: StackDirection, x: Array, states: Sequence[Array], direction: Direction
    ) -> tuple[Array, ...]:
        """Return the states of one direction of one stack on x (T, N, in)."""
        cell, ctx, prefix = self.layer.cell, self.ctx, run.prefix
        starts: list[Any] = [state[:, run.index] for state in states]
        case = cell.case(ctx.ops, x, _arrays_of(ctx, run), direction)
        made = cell.forward(ctx.ops, case, starts or [None] * len(cell.states), ctx.keep)
        ctx.save(**{f"{prefix}/made": made, f"{prefix}/drop": direction.drop})
        if cell.joins_biases:
            ctx.save(**{f"{prefix}/biases": case.biases})
        return made.states


class Backward:
    """The backward pass of one forward call."""

    def __init__(self, layer: Stacks, ctx: Context) -> None:
        self.layer = layer
        self.ctx = ctx
        self.grads: dict[str, Array] = {}

    def run(
        self, dy: Array, dfinals: Sequence[Array]
    ) -> tuple[Array | None, list[Array], dict[str, Array]]:
        """Return the gradients of the sequences, of the initial states, and of the parameters."""
        layer, ctx, ops = self.layer, self.ctx, self.ctx.ops
        above = ops.time_major(dy, ctx.saved["skips"]) if layer.return_sequences else None
        dstates = self._state_gradients(dy, dfinals)
        for stack in reversed(range(layer.num_layers)):
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
        """Return the gradients of the final states, (stacks·directions, N, H), as new arrays."""
        layer, ops = self.layer, self.ctx.ops
        shape = (len(layer.runs), len(dy), layer.units)
        if dfinals:
            dstates = [ops.xp.array(d.transpose(1, 0, 2), order="C") for d in dfinals]
        else:
            dstates = [ops.zeros(shape, dy) for _ in layer.cell.states]
        if not layer.return_sequences:
            top = dstates[0][-layer.directions :]
            last = dy.reshape(len(dy), layer.directions, layer.units)
            ops.add(top, last.transpose(1, 0, 2), out=top)
        return dstates

    def _run(
        self, run: StackDirection, above: Array | None, dstates: Sequence[Array]
    ) -> Array | None:
        """Run one direction of one stack; return the input gradient, None if it is not wanted."""
        layer, ctx = self.layer, self.ctx
        size, prefix, saved = layer.units, run.prefix, ctx.saved
        if above is not None:
            first = size if run.reverse else 0
            above = above[:, :, first : first + size]
        needs_dx = run.stack > 0 or ctx.needs_input_grad
        x = saved[f"l{run.stack}/x"]
        drop = saved[f"{prefix}/drop"]
        direction = Direction(len(x), run.reverse, saved["skips"], drop, layer.round_states)
        biases = saved.get(f"{prefix}/biases")
        case = layer.cell.case(ctx.ops, x, _arrays_of(ctx, run), direction, biases)
        made = saved[f"{prefix}/made"]
        grads = layer.cell.backward(ctx.ops, case, made, RecurrentSlopes(above, dstates, needs_dx))
        for state, start in zip(dstates, grads.starts, strict=True):
            ctx.ops.copyto(state, start)
        for kind in KINDS:
            if (grad := getattr(grads, kind)) is not None:
                self.grads[f"{prefix}/{kind}"] = grad
        if grads.bias_h is grads.bias_x:
            # Two parameters need two gradient arrays.
            self.grads[f"{prefix}/bias_h"] = grads.bias_h.copy()
        return grads.x


def _arrays_of(ctx: Context, run: StackDirection) -> dict[str, Array | None]:
    """Return the parameters of one direction by kind, None for a missing one."""
    return {kind: ctx.params.get(f"{run.prefix}/{kind}") for kind in KINDS}


def _masked(ctx: Context, x: Array, mask: Array, dropout: float) -> Array:
    """Multiply ``x`` by the mask, scaled so that the mean stays the same."""
    y: Array = ctx.ops.multiply(x, mask)
    ctx.ops.multiply(y, 1.0 / (1.0 - dropout), out=y)
    return y
