"""Recurrent layers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from singanet.base.arguments import is_number, is_training
from singanet.base.collectives import SharedBatch
from singanet.base.tracebacks import users_level
from singanet.base.words import REQUIRED
from singanet.errors import ArgumentError, CallOrderError, ShapeError, brief
from singanet.initializer import Orthogonal
from singanet.layers.cells import (
    CELLS,
    KINDS,
    Backward,
    Forward,
    RNNSpecs,
    StackDirection,
    all_runs,
    normal_specs,
    read_shapes,
    read_skips,
    spec_of,
)
from singanet.layers.context import Context
from singanet.layers.layer import Layer, Name, expect_int, expect_one_input, expect_one_of
from singanet.layers.symbol import Unnamed
from singanet.layers.words import RecurrentWords
from singanet.ops import ops_for
from singanet.types import Array, GivenShape, GivenShapes, InputKind, Shape, Shapes, Traits

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Recurrent(RecurrentWords, total=False):
    """The keyword arguments of every recurrent layer; `RNN` has their defaults as attributes."""

    dropout: float
    num_layers: int
    input_mode: str
    bidirectional: bool
    return_sequences: bool
    return_state: bool
    use_bias: bool
    go_backwards: bool
    input_dropout: float
    recurrent_dropout: float
    stateful: int | None
    round_states: bool
    activation: str
    recurrent_activation: str


class RNN(Layer):
    """A stack of recurrent layers over sequences (N, T, F), with the cell ``rnn_mode``.

    Inputs: the sequences; then, optionally, the initial states, (N, stacks·directions, H) each, h
    and for lstm c; then, optionally, a mask (N, T), 0 at padded steps, or the lengths (N,) of
    padded sequences. Samples (T, F) may have T None, for any number of steps. At padded steps the
    output is zero and the states do not change, in both directions.

    Outputs: (N, T, H·directions), or without ``return_sequences`` the last states of the top stack,
    (N, H·directions); with ``return_state`` also the final states, in the form of the initial ones.

    Parameters of each stack and direction, ``l0/forward/...`` and ``l0/backward/...``: ``weight_x``
    (in, G·H), ``weight_h`` (H, G·H), and with ``use_bias`` also ``bias_x`` and ``bias_h`` (G·H,).
    The gates are blocks in the order i f g o, r z n, or a single one.

    `pack` and `unpack` convert to and from the single array of SINGA and cuDNN: the matrices of
    each stack and direction, first the input's gates and then the state's, each (H, in) in
    row-major order; then the biases in the same order. With ``input_mode='skip'`` the first stack
    has no input matrices.

    Args:
        name: Name of the layer, a string.
        units: Positive int H, the size of a state.
        rnn_mode: "lstm", "gru", "tanh", "relu", or "gru_before", a GRU whose reset gate is before
            the matrix (Keras' ``reset_after=False``).
        param_specs: One spec for all parameters, or a dict from a kind such as "weight_x" (or a
            full suffix) to its spec.
        input_shape: Sample shape (T, F), to create the parameters at once.
        **shared: The keyword arguments below, and Keras' ``kernel_initializer`` (of ``weight_x``),
            ``recurrent_regularizer`` (of ``weight_h``), ``bias_constraint`` and similar ones.

    Keyword Args:
        dropout (float): The probability of dropping the output of one stack to the next (Keras'
            ``dropout`` is ``input_dropout`` here).
        num_layers (int): Positive int, the number of stacks.
        input_mode (str): "linear", or "skip" to add the input to every gate of the first stack
            without a matrix.
        bidirectional (bool): Whether to run both directions.
        return_sequences (bool): Whether to return the outputs of all steps; True by default (Keras:
            False).
        return_state (bool): Whether to return the final states as well.
        use_bias (bool): Whether to add biases.
        go_backwards (bool): Whether to process the steps from last to first, and to return outputs
            in this order.
        input_dropout (float): The probability of dropping a feature of a sample at all steps.
        recurrent_dropout (float): The probability of dropping a unit of the state as the weights
            read it, at all steps (Gal and Ghahramani 2016).
        stateful (int | None): None, or an int n, the batch size: each batch starts with the final
            states of the previous one, in training and evaluation. They are saved as ``state/h``
            and ``state/c``, have no gradient, and `reset_state` sets them to zero.
        round_states (bool): Whether the weights read states rounded to 8 bits of the range of their
            sample, as in ONNX Runtime's DynamicQuantizeLSTM; gradients pass the rounding.
        activation (str): "tanh", or "relu" for the modes "tanh" and "relu".
        recurrent_activation (str): "sigmoid".

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.RNN(units=32, rnn_mode="gru", bidirectional=True)(x).shape
        (10, 64)
    """

    # Lengths may be integers, and follow all initial states.
    traits = Traits(input_kinds=("floats", "any", "any", "any"), any_extent=True, gives_steps=True)

    dropout = input_dropout = recurrent_dropout = 0.0
    num_layers = 1
    input_mode = "linear"
    bidirectional = return_state = go_backwards = round_states = False
    return_sequences = use_bias = True
    stateful: int | None = None
    activation, recurrent_activation = "tanh", "sigmoid"
    _shared = Recurrent
    _activates_itself = True
    _moved = ("param_specs",)

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        rnn_mode: str = "lstm",
        *,
        param_specs: RNNSpecs = None,
        input_shape: GivenShapes | None = None,
        **shared: Unpack[Recurrent],
    ) -> None:
        super().__init__(name, input_shape)
        for argument, value in shared.items():
            setattr(self, argument, value)
        expect_one_of(name, "rnn_mode", rnn_mode, tuple(CELLS))
        expect_one_of(name, "input_mode", self.input_mode, ("linear", "skip"))
        self._expect_functions(rnn_mode)
        self.units = expect_int(name, "units", units)
        self.rnn_mode = rnn_mode
        for argument in ("dropout", "input_dropout", "recurrent_dropout"):
            given = getattr(self, argument)
            setattr(self, argument, _expect_probability(name, argument, given))
        if self.stateful is not None:
            self.stateful = expect_int(name, "stateful", self.stateful)
        if not self.return_sequences:
            self.traits = replace(self.traits, masks="ends")
        elif not self.go_backwards:
            self.traits = replace(self.traits, masks="keeps")
        self.num_layers = expect_int(name, "num_layers", self.num_layers, most=1000)
        if self.dropout and self.num_layers == 1:
            warnings.warn(
                f"layer {name!r}: dropout={self.dropout} applies between stacks, but there is one;"
                f" pass input_dropout={self.dropout} for Keras' dropout, or num_layers=2",
                UserWarning,
                stacklevel=users_level(),
            )
        self.param_specs_given = normal_specs(name, param_specs)
        self.cell = CELLS[rnn_mode]
        self.runs: list[StackDirection] = list(all_runs(self.num_layers, self.bidirectional))
        self.directions = 2 if self.bidirectional else 1

    def _expect_functions(self, rnn_mode: str) -> None:
        """Errors: `UnknownNameError` if cells of ``rnn_mode`` do not have these functions."""
        known = ("tanh", "relu") if rnn_mode in ("tanh", "relu") else ("tanh",)
        if self.activation != rnn_mode:
            expect_one_of(self.name, "activation", self.activation, known)
        expect_one_of(self.name, "recurrent_activation", self.recurrent_activation, ("sigmoid",))

    def _reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """Return the sequences, unless lengths or a mask are an input."""
        others = ((), (1,), shapes[0][:1])
        return None if len(shapes) > 1 and shapes[-1] in others else 0

    def _input_kind(self, k: int) -> InputKind:
        """Return "floats", but "any" for the mask or lengths, which the shapes identify."""
        last = isinstance(self.in_shapes, list) and k == len(self.in_shapes) - 1
        tells = last and bool(self.inputs.tells)
        return "any" if tells or (k > 0 and self.in_shapes is None) else "floats"

    def setup(self, in_shapes: Any) -> Shapes:
        """(T, F), with or without states and lengths → the output(s)."""
        state = (len(self.runs), self.units)
        (steps, features), self.inputs = read_shapes(self, in_shapes, state, len(self.cell.states))
        if self.input_mode == "skip" and features != self.units:
            raise self.shape_error(
                f"{self.units} features, the hidden size, for input_mode='skip'",
                f"{features}",
                "use input_mode='linear', or a hidden size equal to the features",
            )
        if self.stateful and self.inputs.states:
            raise self.shape_error(
                "no initial states, for a layer that has its own",
                f"{self.inputs.states}",
                "omit stateful, or the states",
            )
        self._add_params(features)
        width = self.directions * self.units
        out: Shape = (steps, width) if self.return_sequences else (width,)
        return [out] + [state] * len(self.cell.states) if self.return_state else out

    def _add_params(self, features: int) -> None:
        size = self.units
        width = len(self.cell.gates) * size
        suffixes = [f"{run.prefix}/{kind}" for run in self.runs for kind in KINDS]
        for run in self.runs:
            below = self.directions * size if run.stack else features
            shapes = {"weight_x": (below, width), "weight_h": (size, width)}
            defaults = {"weight_h": Orthogonal(), "bias_x": self.cell.bias_start()}
            for kind in KINDS:
                without = kind == "weight_x" and self.skips(run.stack)
                if without or (kind.startswith("bias") and not self.use_bias):
                    continue
                self.add_param(
                    f"{run.prefix}/{kind}",
                    shapes.get(kind, (width,)),
                    spec_of(self.name, self.param_specs_given, f"{run.prefix}/{kind}", suffixes),
                    default=defaults.get(kind),
                    fans=shapes.get(kind, (0, 0)),
                )
        for state in self.cell.states if self.stateful else ():
            self.add_state(f"state/{state}", (self.stateful or 0, len(self.runs), size))

    def reset_state(self) -> None:
        """Start the next batch of a stateful layer from zero."""
        for param in self.params.values():
            if param.is_state:
                param.value[...] = 0.0

    def share(self, batch: Any) -> None:
        """Refuse to share a stateful layer, since its states belong to its own samples."""
        if self.stateful:
            raise ArgumentError(
                f"layer {self.name!r}",
                expected="layers without states of single samples, for several processes",
                received=f"stateful={self.stateful}",
                advice="pass the states as inputs and outputs",
            )

    def skips(self, stack: int) -> bool:
        """Whether ``stack`` adds its input without a matrix."""
        return stack == 0 and self.input_mode == "skip"

    def forward(self, ctx: Context, x: Any) -> Any:
        """Return the output, or a list of it and the final states."""
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        n, steps = parts[0].shape[:2]
        skips: Array | None = None
        if self.inputs.tells:
            skips = read_skips(self, ctx.ops, self.inputs.tells, parts[-1], n, steps)
        states = parts[1 : 1 + self.inputs.states]
        if ctx.past is not None:
            states = ctx.past.get("states") or states
        elif self.stateful:
            if n != self.stateful:
                raise self.shape_error(
                    f"batches of {self.stateful} samples, since stateful={self.stateful}",
                    f"{n} samples",
                    "choose a batch size that divides the data, and predict by it",
                )
            states = [ctx.params[f"state/{state}"] for state in self.cell.states]
        y, finals = Forward(self, ctx, skips).run(parts[0], states)
        if ctx.past is not None:
            ctx.past.put("states", finals)
        elif self.stateful:
            for state, final in zip(self.cell.states, finals, strict=True):
                ctx.update_state(f"state/{state}", final)
        return [y, *finals] if self.return_state else y

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, dict[str, Array]]:
        """Return the gradients of all inputs but the mask or lengths, and of every parameter."""
        parts: Sequence[Array] = list(dy) if self.return_state else [dy]
        dx, dstates, grads = Backward(self, ctx).run(parts[0], parts[1:])
        if not ctx.needs_input_grad:
            return None, grads
        rest = [*dstates[: self.inputs.states], *([None] * bool(self.inputs.tells))]
        return [dx, *rest] if rest else dx, grads

    def gates(self) -> dict[str, Array]:
        """Return the arrays of each gate as views: ``l0/forward/i/weight_x`` is (in, H)."""
        self._expect_built()
        size = self.units
        return {
            f"{prefix}/{gate}/{kind}": param.value[..., k * size : (k + 1) * size]
            for suffix, param in self.params.items()
            if not param.is_state
            for prefix, _, kind in [suffix.rpartition("/")]
            for k, gate in enumerate(self.cell.gates)
        }

    def _packed_size(self) -> int:
        """Return the size of the packed form: Σ G·D·H·(in + H + 2) over the stacks."""
        self._expect_built()
        return sum(prod(param.shape) for param in self.params.values() if not param.is_state)

    def pack(self, arrays: Mapping[str, Array] | None = None) -> Array:
        """Return the parameters, or ``arrays`` by suffix, in the packed form: a new array."""
        # A block (in, H) of the fused matrix is SINGA's gate (H, in) transposed.
        rows = [block.T.reshape(-1) for block in self._blocks(arrays or self._values())]
        return ops_for(rows[0]).concat(rows, axis=0)

    def unpack(self, array: Array) -> None:
        """Fill the parameters from the packed form, an ``array`` of one axis.

        Errors: `ShapeError` for another shape; nothing is changed then.
        """
        size = self._packed_size()
        if tuple(array.shape) != (size,):
            raise self.shape_error(
                f"packed weights of shape ({size},)",
                f"shape {tuple(array.shape)}",
                "the file is from a layer with other sizes, stacks, directions or mode",
            )
        start = 0
        for block in self._blocks(self._values()):
            part = array[start : start + block.size]
            # An array from a file is on the host, the parameters may be on a device.
            block.T[...] = ops_for(block).xp.asarray(part.reshape(block.T.shape))
            start += block.size

    def _values(self) -> dict[str, Array]:
        self._expect_built()
        return {suffix: param.value for suffix, param in self.params.items()}

    def _blocks(self, arrays: Mapping[str, Array]) -> Iterator[Array]:
        """Iterate over the gates' blocks of each array in the packed order."""
        size = self.units
        for kinds in (("weight_x", "weight_h"), ("bias_x", "bias_h")):
            for run in self.runs:
                for suffix in (f"{run.prefix}/{kind}" for kind in kinds):
                    for k in range(len(self.cell.gates) if suffix in self.params else 0):
                        yield arrays[suffix][..., k * size : (k + 1) * size]

    def _expect_built(self) -> None:
        if not self.params:
            raise CallOrderError(
                f"layer {self.name!r}",
                expected="a built layer",
                received="a layer without parameters",
                advice="add it to a net, or pass input_shape and call get_output_sample_shape()",
            )


class _OfOneMode(RNN):
    """`RNN` in the mode of a subclass."""

    mode: ClassVar[str]

    def __init__(
        self,
        name: Name = None,
        units: int = REQUIRED,
        *,
        param_specs: RNNSpecs = None,
        input_shape: GivenShapes | None = None,
        **shared: Unpack[Recurrent],
    ) -> None:
        specs, mode = param_specs, self.mode
        if mode == "tanh" and shared.get("activation") == "relu":
            mode = "relu"
        super().__init__(name, units, mode, param_specs=specs, input_shape=input_shape, **shared)


class LSTM(_OfOneMode):
    """`RNN` with ``rnn_mode='lstm'``: gates i, f, g, o; states h and c.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the size of a state.
        param_specs: One spec for all parameters, or a dict from a kind such as "weight_x" (or a
            full suffix) to its spec.
        input_shape: Sample shape (T, F), to create the parameters at once.
        **shared: The keyword arguments below, and Keras' ``kernel_initializer`` (of ``weight_x``),
            ``recurrent_regularizer`` (of ``weight_h``), ``bias_constraint`` and similar ones.

    Keyword Args:
        dropout (float): The probability of dropping the output of one stack to the next (Keras'
            ``dropout`` is ``input_dropout`` here).
        num_layers (int): Positive int, the number of stacks; 1 by default.
        input_mode (str): "linear", or "skip" to add the input to every gate of the first stack
            without a matrix.
        bidirectional (bool): Whether to run both directions; False by default.
        return_sequences (bool): Whether to return the outputs of all steps; True by default (Keras:
            False).
        return_state (bool): Whether to return the final states as well; False by default.
        use_bias (bool): Whether to add biases; True by default.
        go_backwards (bool): Whether to process the steps from last to first, and to return outputs
            in this order.
        input_dropout (float): The probability of dropping a feature of a sample at all steps.
        recurrent_dropout (float): The probability of dropping a unit of the state as the weights
            read it, at all steps (Gal and Ghahramani 2016).
        stateful (int | None): None, or an int n, the batch size: each batch starts with the final
            states of the previous one, in training and evaluation. They are saved as ``state/h``
            and ``state/c``,
            have no gradient, and `reset_state` sets them to zero.
        activation (str): "tanh".
        recurrent_activation (str): "sigmoid".

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.LSTM(units=32)(x).shape
        (10, 32)
    """

    mode = "lstm"


class GRU(_OfOneMode):
    """`RNN` with ``rnn_mode='gru'``: gates r, z, n, the reset gate after the matrix; state h.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the size of a state.
        param_specs: One spec for all parameters, or a dict from a kind such as "weight_x" (or a
            full suffix) to its spec.
        input_shape: Sample shape (T, F), to create the parameters at once.
        **shared: The keyword arguments below, and Keras' ``kernel_initializer`` (of ``weight_x``),
            ``recurrent_regularizer`` (of ``weight_h``), ``bias_constraint`` and similar ones.

    Keyword Args:
        dropout (float): The probability of dropping the output of one stack to the next (Keras'
            ``dropout`` is ``input_dropout`` here).
        num_layers (int): Positive int, the number of stacks; 1 by default.
        input_mode (str): "linear", or "skip" to add the input to every gate of the first stack
            without a matrix.
        bidirectional (bool): Whether to run both directions; False by default.
        return_sequences (bool): Whether to return the outputs of all steps; True by default (Keras:
            False).
        return_state (bool): Whether to return the final states as well; False by default.
        use_bias (bool): Whether to add biases; True by default.
        go_backwards (bool): Whether to process the steps from last to first, and to return outputs
            in this order.
        input_dropout (float): The probability of dropping a feature of a sample at all steps.
        recurrent_dropout (float): The probability of dropping a unit of the state as the weights
            read it, at all steps (Gal and Ghahramani 2016).
        stateful (int | None): None, or an int n, the batch size: each batch starts with the final
            states of the previous one, in training and evaluation. They are saved as ``state/h``,
            have no gradient, and `reset_state` sets them to zero.
        activation (str): "tanh".
        recurrent_activation (str): "sigmoid".

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.GRU(units=32, return_sequences=False)(x).shape
        (32,)
    """

    mode = "gru"


class SimpleRNN(_OfOneMode):
    """`RNN` with ``rnn_mode='tanh'``, the cell of Elman: one matrix each; state h.

    Args:
        name: Name of the layer, a string.
        units: Positive int, the size of a state.
        param_specs: One spec for all parameters, or a dict from a kind such as "weight_x" (or a
            full suffix) to its spec.
        input_shape: Sample shape (T, F), to create the parameters at once.
        **shared: The keyword arguments below, and Keras' ``kernel_initializer`` (of ``weight_x``),
            ``recurrent_regularizer`` (of ``weight_h``), ``bias_constraint`` and similar ones.

    Keyword Args:
        dropout (float): The probability of dropping the output of one stack to the next (Keras'
            ``dropout`` is ``input_dropout`` here).
        num_layers (int): Positive int, the number of stacks; 1 by default.
        input_mode (str): "linear", or "skip" to add the input to every gate of the first stack
            without a matrix.
        bidirectional (bool): Whether to run both directions; False by default.
        return_sequences (bool): Whether to return the outputs of all steps; True by default (Keras:
            False).
        return_state (bool): Whether to return the final states as well; False by default.
        use_bias (bool): Whether to add biases; True by default.
        go_backwards (bool): Whether to process the steps from last to first, and to return outputs
            in this order.
        input_dropout (float): The probability of dropping a feature of a sample at all steps.
        recurrent_dropout (float): The probability of dropping a unit of the state as the weights
            read it, at all steps (Gal and Ghahramani 2016).
        stateful (int | None): None, or an int n, the batch size: each batch starts with the final
            states of the previous one, in training and evaluation. They are saved as ``state/h``,
            have no gradient, and `reset_state` sets them to zero.
        activation (str): "tanh", or "relu" for ``rnn_mode='relu'``.
        recurrent_activation (str): "sigmoid".

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.SimpleRNN(units=32, return_sequences=False)(x).shape
        (32,)
    """

    mode = "tanh"


def _expect_probability(layer: str, what: str, value: Any) -> float:
    if not is_number(value) or not 0.0 <= value < 1.0:
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected="the probability of dropping, from 0 to below 1",
            received=brief(value),
            advice=f"use {what}=0.5 to drop half",
        )
    return float(value)


class StepList:
    """An adapter that calls ``layer`` as SINGA does: [x1..xT, hx(, cx)] in, [y1..yT, hy(, cy)] out.

    x_t is (batch_t, F) with batch sizes that never grow, y_t (batch_t, H·directions); the states
    are (stacks·directions, batch_1, H), and an empty array or None means zeros.

    Args:
        layer: A recurrent layer with ``return_state=True`` that is not part of a net.
        rng: The generator of random numbers; None for a new one.
    """

    def __init__(self, layer: RNN, rng: np.random.Generator | None = None) -> None:
        if not isinstance(layer, RNN) or not (layer.return_state and layer.return_sequences):
            raise ArgumentError(
                "StepList",
                expected="an RNN, LSTM or GRU with return_sequences=True and return_state=True",
                received=brief(layer),
                advice="make the layer with return_state=True",
            )
        self.layer = layer
        self.rng = np.random.default_rng() if rng is None else rng
        self._pass: tuple[Context, list[int]] | None = None

    def forward(self, flag: int | bool, inputs: Sequence[Array | None]) -> list[Array]:
        """Run all steps of ``inputs``, [x1..xT, hx(, cx)]; return [y1..yT, hy(, cy)].

        If ``flag`` is True or ``kTrain``, a backward may follow.
        """
        layer, count = self.layer, len(self.layer.cell.states)
        self._pass = None
        xs = [x for x in inputs[:-count] if x is not None]
        padded, lengths = steps_to_padded(xs)
        ops = ops_for(padded)
        shape = (len(layer.runs), len(padded), layer.units)
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
        """Return the gradients of the inputs, and the packed gradient of the parameters in a list.

        ``grads`` is ``[dy1..dyT, dhy(, dcy)]``, the result ``([dx1..dxT, dhx(, dcx)], [packed])``.
        ``flag`` is ignored.
        """
        if self._pass is None:
            raise CallOrderError(
                f"StepList of layer {self.layer.name!r}",
                expected="a training forward before each backward",
                received="none, or a second backward",
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
        shape = (len(dy), len(self.layer.runs), self.layer.units)
        dstates = [
            ctx.ops.zeros(shape, dy) if d is None or d.size == 0 else d.transpose(1, 0, 2)
            for d in grads[-count:]
        ]
        self._pass = None
        (dx, *dstarts, _), by_suffix = self.layer.backward(ctx, [dy, *dstates])
        dxs = padded_to_steps(dx, sizes) + [d.transpose(1, 0, 2) for d in dstarts]
        return dxs, [self.layer.pack(by_suffix)]


def steps_to_padded(steps: Sequence[Array]) -> tuple[Array, Array]:
    """Return a list of steps as one zero-padded array (N, T, F), and the lengths (N,).

    N is the first batch size; the sizes never grow, so sample n is row n of every step that has it.
    Errors: no step, a growing batch, or steps with different features.

    Args:
        steps: List of arrays [x1..xT], each (batch_t, F).
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
    """Return (N, T, F) as [y1..yT], views of the first ``sizes[t]`` rows of each step.

    Args:
        y: Array (N, T, F).
        sizes: T ints, the batch size of each step, at most N.
    """
    if len(sizes) != y.shape[1] or any(not 0 <= size <= len(y) for size in sizes):
        raise ShapeError(
            "padded_to_steps",
            expected=f"{y.shape[1]} batch sizes of at most {len(y)}",
            received=f"{list(sizes)[:12]}",
            advice="pass the batch sizes of the padded list",
        )
    return [y[:size, t] for t, size in enumerate(sizes)]


def _bad_steps(expected: str, steps: Sequence[Array]) -> ShapeError:
    return ShapeError(
        "steps_to_padded",
        expected=expected,
        received=f"shapes {[tuple(step.shape) for step in steps[:12]]}",
        advice="sort the samples by decreasing length",
    )


class TimeDistributed(Layer):
    """A layer that applies ``layer`` to each step of samples (T, ...), as if steps were samples.

    The parameters are the parameters of ``layer``, under its names: they are shared if a net also
    has the layer itself. The layer must have one input and one output; batch statistics are over
    samples and steps together.

    Args:
        name: Name of the layer, a string.
        layer: The `Layer` to apply.
        input_shape: Sample shape (T, ...), to create the parameters at once.

    Examples:
        >>> x = singanet.Input("x", (10, 8))
        >>> singanet.layers.TimeDistributed(layer=singanet.layers.Dense(units=3))(x).shape
        (10, 3)
    """

    traits = Traits(any_extent=True, masks="keeps", gives_steps=True)

    def __init__(
        self, name: Name = None, layer: Layer = REQUIRED, input_shape: GivenShape | None = None
    ) -> None:
        super().__init__(name, input_shape)
        if not isinstance(layer, Layer):
            raise ArgumentError(
                f"layer {name!r}, argument layer",
                expected="a Layer",
                received=type(layer).__name__,
                advice="wrap an instance, such as Dense('fc', 10)",
            )
        self.layer, self.activation = layer, layer.activation
        self._activates_itself = layer._activates_itself
        self._units_axis = layer._units_axis + (layer._units_axis > 0)
        self._built_it = False
        inner = layer.traits
        self.traits = replace(
            self.traits,
            input_kinds=inner.input_kinds,
            gives_integers=inner.gives_integers,
            moves_only=inner.moves_only,
            stops_gradient=inner.stops_gradient,
            owns_gradients=inner.owns_gradients,
        )

    def _take_name(self, name: str) -> None:
        """Rename the layer; a wrapped layer without a name is named after it."""
        super()._take_name(name)
        if isinstance(self.layer.name, Unnamed):
            self.layer._take_name(f"{name}/{self.layer.name}")

    def setup(self, in_shapes: Any) -> Shapes:
        """Sample shape (T, *s) → (T, *(output shape of the layer for s))."""
        shape = expect_one_input(self, in_shapes)
        if not shape:
            raise self.shape_error(
                "samples of shape (steps, ...)", f"sample shape {shape}", "omit the wrapper"
            )
        self._built_it = self.layer.out_shapes is None
        out = self.layer.build(shape[1:])
        if isinstance(out, list):
            self._unbuild()
            raise self.shape_error(
                "a layer of one output", f"{self.layer!r}", "wrap the layers behind it one by one"
            )
        self.params.update(self.layer.params)
        return (shape[0], *out)

    def _unbuild(self) -> None:
        """Reset the shapes, and the wrapped layer's if this layer built it."""
        super()._unbuild()
        if self._built_it:
            self.layer._unbuild()

    def forward(self, ctx: Context, x: Array) -> Array:
        """(N, T, ...) → (N, T, ...); the layer decides which arrays are saved."""
        y: Any = self.layer.forward(ctx, x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]))
        return _unfold(y, x.shape[:2])

    def backward(self, ctx: Context, dy: Array) -> tuple[Array | None, Any]:
        """Return the layer's gradients over all samples and steps."""
        folded = dy.reshape(dy.shape[0] * dy.shape[1], *dy.shape[2:])
        dx, grads = self.layer.backward(ctx, folded)
        return None if dx is None else _unfold(dx, dy.shape[:2]), grads

    @property
    def synchronized(self) -> bool:
        """Whether the wrapped layer's statistics are over all processes."""
        return self.layer.synchronized

    def share(self, batch: SharedBatch) -> None:
        """Share the batch with the wrapped layer."""
        self.layer.share(batch)
        if self.shared is not self.layer.shared:
            self.shared = self.layer.shared

    def merged_state(self, states: Mapping[str, Array], shares: Array) -> dict[str, Array]:
        """Return the merged state of the wrapped layer."""
        return self.layer.merged_state(states, shares)


def _unfold(folded: Array, leading: Shape) -> Array:
    return folded.reshape(*leading, *folded.shape[1:])
