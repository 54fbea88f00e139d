"""The recurrent layer in all modes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.initializer import Orthogonal
from singanet.layers import packed
from singanet.layers.arguments import expect_int, is_number
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.layers.recurrent_cells import CELLS
from singanet.layers.recurrent_inputs import Ragged, check_batches, read_lengths, read_shapes
from singanet.layers.recurrent_params import KINDS, RNNSpecs, Run, all_runs, normal_specs, spec_of
from singanet.layers.recurrent_walk import Backward, Forward
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
    (or a whole suffix) to its spec. `pack` and `unpack` give SINGA's and cuDNN's single array.
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
        y, finals = Forward(self, ctx, ragged).run(parts[0], parts[1 : 1 + self.inputs.states])
        return [y, *finals] if self.return_state else y

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Gradients of all inputs but the lengths, and of every array."""
        parts: Sequence[Array] = list(dy) if self.return_state else [dy]
        dx, dstates, grads = Backward(self, ctx).run(parts[0], parts[1:])
        if not ctx.needs_input_grad:
            return None, grads
        rest = [*dstates[: self.inputs.states], *([None] * self.inputs.lengths)]
        return [dx, *rest] if rest else dx, grads

    def gates(self) -> dict[str, Array]:
        """Each gate's own live arrays as views, by names such as ``l0/forward/i/weight_x``."""
        return packed.gate_views(self)

    def packed_size(self) -> int:
        """The number of elements of the packed form."""
        return packed.packed_size(self)

    def pack(self) -> Array:
        """The parameters in SINGA's and cuDNN's packed form, a new array of one axis."""
        return packed.pack(self, {suffix: param.value for suffix, param in self.params.items()})

    def unpack(self, array: Array) -> None:
        """Fill the parameters from the packed form. Errors: a wrong shape."""
        packed.unpack(self, array)


def _expect_one_of(layer: str, what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UnknownNameError(
            f"layer {layer!r}, argument {what}",
            expected=f"one of {one_of(known)}",
            received=repr(value),
            advice=did_you_mean(str(value), known, "choose one of these"),
        )
