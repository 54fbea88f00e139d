"""The recurrent layers: the way of a batch through stacks and directions, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, ClassVar

from singanet.base.arguments import is_number
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError, did_you_mean, one_of
from singanet.initializer import Orthogonal
from singanet.layers.arguments import expect_int
from singanet.layers.cells import CELLS
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.recurrent import (
    KINDS,
    Ragged,
    RNNSpecs,
    Run,
    all_runs,
    check_batches,
    normal_specs,
    read_lengths,
    read_shapes,
    spec_of,
)
from singanet.ops import ops_for
from singanet.ops.direction import Direction
from singanet.types import Array, Shape, Shapes


class RNN(Layer):
    """A stack of recurrent layers over sequences (N, T, F), by ``rnn_mode``: lstm, gru, tanh, relu.

    Inputs: the sequences; then, if wanted, the initial states, (N, stacks·directions, H) each,
    h and for lstm c; then, if wanted, the lengths (N,) of padded sequences. Samples (T, F) may
    have T None, for any number of steps. Outputs: (N, T, H·directions), or with
    ``return_sequences=False`` the last states of the top stack, (N, H·directions); with
    ``return_state`` also the final states, as initial ones. Past its length an output is zero,
    the final states are those of the last step that is there, and the backward direction starts
    at it.

    ``dropout`` is the probability of dropping what goes from one stack to the next.
    ``input_mode='skip'`` adds the input to every gate of the first stack without a matrix.
    Parameters for each stack and direction, ``l0/forward/...`` and ``l0/backward/...``:
    ``weight_x`` (in, G·H), ``weight_h`` (H, G·H), ``bias_x`` and ``bias_h`` (G·H,), the gates in
    blocks i f g o, r z n, or one. ``param_specs`` is one spec for all, or a dict from such a kind
    (or a whole suffix) to its spec.

    `pack` and `unpack` give and take SINGA's and cuDNN's one array with everything: the matrices
    of each stack and direction, the input's gates and then the state's, each (H, in) row by row;
    then the biases in the same order. With ``input_mode='skip'`` the first stack has no input
    matrices.
    """

    any_extent = True

    def __init__(
        self,
        name: str,
        hidden_size: int,
        rnn_mode: str = "lstm",
        dropout: float = 0.0,
        num_stacks: int = 1,
        input_mode: str = "linear",
        bidirectional: bool = False,
        param_specs: RNNSpecs = None,
        input_sample_shape: Shapes | None = None,
        *,
        return_sequences: bool = True,
        return_state: bool = False,
    ) -> None:
        super().__init__(name, input_sample_shape)
        _expect_one_of(name, "rnn_mode", rnn_mode, tuple(CELLS))
        _expect_one_of(name, "input_mode", input_mode, ("linear", "skip"))
        if not is_number(dropout) or not 0.0 <= dropout < 1.0:
            raise ArgumentError(
                f"layer {name!r}, argument dropout",
                expected="the probability of dropping, from 0 to below 1",
                received=repr(dropout),
                advice="use dropout=0.5 to drop half between stacks",
            )
        self.hidden_size = expect_int(name, "hidden_size", hidden_size)
        self.rnn_mode = rnn_mode
        self.dropout = dropout
        self.num_stacks = expect_int(name, "num_stacks", num_stacks, most=1000)
        self.input_mode = input_mode
        self.bidirectional = bidirectional
        self.param_specs_given = normal_specs(name, param_specs)
        self.return_sequences = return_sequences
        self.return_state = return_state
        self.cell = CELLS[rnn_mode]
        self.runs: list[Run] = list(all_runs(self.num_stacks, bidirectional))
        self.directions = 2 if bidirectional else 1

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, F), with or without states and lengths → the output(s)."""
        state = (len(self.runs), self.hidden_size)
        (steps, features), self.inputs = read_shapes(self, in_shapes, state, len(self.cell.states))
        if self.input_mode == "skip" and features != self.hidden_size:
            raise self.shape_error(
                f"{self.hidden_size} features, the hidden size, for input_mode='skip'",
                f"{features}",
                "use input_mode='linear', or a hidden size equal to the features",
            )
        self._add_params(features)
        width = self.directions * self.hidden_size
        out: Shape = (steps, width) if self.return_sequences else (width,)
        return [out] + [state] * len(self.cell.states) if self.return_state else out

    def _add_params(self, features: int) -> None:
        size = self.hidden_size
        width = len(self.cell.gates) * size
        suffixes = [f"{run.prefix}/{kind}" for run in self.runs for kind in KINDS]
        for run in self.runs:
            below = self.directions * size if run.stack else features
            shapes = {"weight_x": (below, width), "weight_h": (size, width)}
            defaults = {"weight_h": Orthogonal(), "bias_x": self.cell.bias_start()}
            for kind in KINDS:
                if kind == "weight_x" and self.skips(run.stack):
                    continue
                self.add_param(
                    f"{run.prefix}/{kind}",
                    shapes.get(kind, (width,)),
                    spec_of(self.name, self.param_specs_given, f"{run.prefix}/{kind}", suffixes),
                    default=defaults.get(kind),
                    fans=shapes.get(kind, (0, 0)),
                )

    def skips(self, stack: int) -> bool:
        """Whether ``stack`` takes its input without a matrix."""
        return stack == 0 and self.input_mode == "skip"

    def forward(self, ctx: Context, x: Any) -> Any:
        """The output, or a list of it and the final states."""
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        check_batches(self, parts)
        ragged: Ragged | None = None
        if self.inputs.lengths:
            n, steps = parts[0].shape[:2]
            ragged = read_lengths(self, ctx.ops, parts[-1], n, steps)
        starts = parts[1 : 1 + self.inputs.states]
        if ctx.past is not None:
            starts = ctx.past.get("states") or starts
        y, finals = _Forward(self, ctx, ragged).run(parts[0], starts)
        if ctx.past is not None:
            ctx.past.put("states", finals)
        return [y, *finals] if self.return_state else y

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Gradients of all inputs but the lengths, and of every array."""
        parts: Sequence[Array] = list(dy) if self.return_state else [dy]
        dx, dstates, grads = _Backward(self, ctx).run(parts[0], parts[1:])
        if not ctx.needs_input_grad:
            return None, grads
        rest = [*dstates[: self.inputs.states], *([None] * self.inputs.lengths)]
        return [dx, *rest] if rest else dx, grads

    def gates(self) -> dict[str, Array]:
        """Each gate's own live arrays as views: ``l0/forward/i/weight_x`` is (in, H)."""
        self._expect_built()
        size = self.hidden_size
        return {
            f"{prefix}/{gate}/{kind}": param.value[..., k * size : (k + 1) * size]
            for suffix, param in self.params.items()
            for prefix, _, kind in [suffix.rpartition("/")]
            for k, gate in enumerate(self.cell.gates)
        }

    def packed_size(self) -> int:
        """The number of elements of the packed form: Σ G·D·H·(in + H + 2) over the stacks."""
        self._expect_built()
        return sum(prod(param.shape) for param in self.params.values())

    def pack(self, arrays: Mapping[str, Array] | None = None) -> Array:
        """The parameters, or ``arrays`` by their suffixes, in the packed form: a new array."""
        # A block (in, H) of the fused matrix is SINGA's gate (H, in) transposed.
        rows = [block.T.reshape(-1) for block in self._blocks(arrays or self._values())]
        return ops_for(rows[0]).concat(rows, axis=0)

    def unpack(self, array: Array) -> None:
        """Fill the parameters from the packed form. Errors: a wrong shape; nothing changed then."""
        size = self.packed_size()
        if tuple(array.shape) != (size,):
            raise self.shape_error(
                f"packed weights of shape ({size},)",
                f"shape {tuple(array.shape)}",
                "the file is from a layer with other sizes, stacks, directions or mode",
            )
        start = 0
        for block in self._blocks(self._values()):
            part = array[start : start + block.size]
            # A file's array lies on the host, the parameters perhaps on a device.
            block.T[...] = ops_for(block).xp.asarray(part.reshape(block.T.shape))
            start += block.size

    def _values(self) -> dict[str, Array]:
        self._expect_built()
        return {suffix: param.value for suffix, param in self.params.items()}

    def _blocks(self, arrays: Mapping[str, Array]) -> Iterator[Array]:
        """The gates' blocks of each array in the packed order."""
        size = self.hidden_size
        for kinds in (("weight_x", "weight_h"), ("bias_x", "bias_h")):
            for run in self.runs:
                for suffix in (f"{run.prefix}/{kind}" for kind in kinds):
                    for k in range(len(self.cell.gates) if suffix in self.params else 0):
                        yield arrays[suffix][..., k * size : (k + 1) * size]

    def _expect_built(self) -> None:
        if not self.params:
            raise CallOrderError(
                f"layer {self.name!r}",
                expected="a layer that was set up",
                received="one without parameters",
                advice="add it to a net, or pass input_sample_shape and call"
                " get_output_sample_shape()",
            )


class _OfOneMode(RNN):
    """`RNN` in the mode that a subclass says."""

    mode: ClassVar[str]

    def __init__(
        self,
        name: str,
        hidden_size: int,
        dropout: float = 0.0,
        num_stacks: int = 1,
        input_mode: str = "linear",
        bidirectional: bool = False,
        param_specs: RNNSpecs = None,
        input_sample_shape: Shapes | None = None,
        *,
        return_sequences: bool = True,
        return_state: bool = False,
    ) -> None:
        super().__init__(
            name,
            hidden_size,
            self.mode,
            dropout,
            num_stacks,
            input_mode,
            bidirectional,
            param_specs,
            input_sample_shape,
            return_sequences=return_sequences,
            return_state=return_state,
        )


class LSTM(_OfOneMode):
    """`RNN` with ``rnn_mode='lstm'``: gates i, f, g, o; states h and c."""

    mode = "lstm"


class GRU(_OfOneMode):
    """`RNN` with ``rnn_mode='gru'``: gates r, z, n, the reset gate behind the matrix; state h."""

    mode = "gru"


class _Forward:
    """One forward call of a recurrent layer; keeps in the context what `_Backward` needs."""

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
        finals = ends if layer.return_state or ctx.past is not None else []
        return y, [ops.take_rows(ops.xp.stack(end, axis=1), inverse) for end in finals]

    def _dropped(self, x: Array, stack: int) -> Array:
        layer, ctx = self.layer, self.ctx
        if stack == 0 or not ctx.train or layer.dropout == 0.0:
            return x
        mask = ctx.ops.keep_mask(ctx.rng, x.shape, 1.0 - layer.dropout)
        ctx.save(**{f"l{stack}/mask": mask})
        return _masked(ctx, x, mask, layer.dropout)

    def _run(
        self, run: Run, x: Array, states: Sequence[Array], direction: Direction
    ) -> dict[str, Any]:
        """One direction of one stack on x (T, N, in)."""
        layer, ctx = self.layer, self.ctx
        starts: list[Any] = [state[:, run.index] for state in states]
        starts = starts or [None] * len(layer.cell.states)
        params = _arrays_of(ctx, run)
        trace = layer.cell.forward(ctx.ops, x, params, starts, direction, ctx.keep)
        ctx.save(**{f"{run.prefix}/{key}": value for key, value in trace.items()})
        return trace


class _Backward:
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
            above = dx if mask is None or dx is None else _masked(ctx, dx, mask, layer.dropout)
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
            _arrays_of(ctx, run),
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


def _arrays_of(ctx: Context, run: Run) -> dict[str, Array | None]:
    """The parameters of one direction by kind, None for one that it does not have."""
    return {kind: ctx.params.get(f"{run.prefix}/{kind}") for kind in KINDS}


def _masked(ctx: Context, x: Array, mask: Array, dropout: float) -> Array:
    """``x`` where the mask is set, scaled so that its mean stays."""
    y: Array = ctx.ops.multiply(x, mask)
    ctx.ops.multiply(y, 1.0 / (1.0 - dropout), out=y)
    return y


def _expect_one_of(layer: str, what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(
            f"layer {layer!r}, argument {what}",
            expected=f"one of {one_of(known)}",
            received=repr(value),
            advice=did_you_mean(str(value), known, "choose one of these"),
        )
