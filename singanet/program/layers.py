"""Layers on the tape: their kernels where they can be recorded, else one Python step each way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.context import Context
from singanet.execution import Plan, Step
from singanet.layers.layer import Layer
from singanet.program.tape import NotRecordableError, Tape, map_arrays
from singanet.program.traced import Traced, plain
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.net import FeedForwardNet


class TracedStep(Step):
    """A step of a plan whose layer writes its kernels on ``tape``."""

    __slots__ = ("recorded",)

    def __init__(self, step: Step, net: FeedForwardNet, tape: Tape) -> None:
        for name in Step.__slots__:
            setattr(self, name, getattr(step, name))
        self.recorded = TracedLayer(step, net, tape)
        self.layer = self.recorded  # type: ignore[assignment]

    def params(self) -> dict[str, Array]:
        """The live arrays, traced."""
        return {key: value.view(Traced) for key, value in super().params().items()}


class TracedLayer:
    """What a walk sees of a layer: its two passes, and its parameters."""

    def __init__(self, step: Step, net: FeedForwardNet, tape: Tape) -> None:
        self.layer: Layer = step.layer
        self.step = step
        self.net = net
        self.tape = tape
        self.name = step.name
        self.params = step.layer.params
        self.reasons: list[str] = []
        self._python: dict[int, PythonPass] = {}

    @property
    def trainable(self) -> bool:
        """As the layer's."""
        return self.layer.trainable

    def forward(self, ctx: Context, x: Any) -> Any:
        """As the layer's."""
        self._enter("forward")
        if not is_pure(self.layer):
            return self._forward_in_python(ctx, x, "a class that does not say that it is pure")
        mark = len(self.tape.calls)
        draws = self.net.rng.bit_generator.state
        state = [(p, p.value.copy()) for p in self.params.values() if p.is_state]
        try:
            return self.layer.forward(ctx, x)
        except NotRecordableError as error:
            del self.tape.calls[mark:]
            self.net.rng.bit_generator.state = draws
            for param, before in state:
                param.value[...] = before
            ctx.saved.clear()
            return self._forward_in_python(ctx, x, str(error))

    def _forward_in_python(self, ctx: Context, x: Any, why: str) -> Any:
        if not _is_own(self.layer):
            self.tape.does.expect_values()
        self.reasons.append(f"forward: {why}")
        run = self._python[id(ctx)] = PythonPass(self, ctx)
        outs = own(self.tape, run.made(map_arrays(x, plain)))
        self._step(run.forward, (x,), outs)
        run.inputs = x
        return outs

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, Mapping[str, Any]]:
        """As the layer's."""
        self._enter("backward")
        run = self._python.pop(id(ctx), None)
        if run is None:
            mark = len(self.tape.calls)
            try:
                return self.layer.backward(ctx, dy)
            except NotRecordableError as error:
                del self.tape.calls[mark:]
                if not _is_own(self.layer):
                    self.tape.does.expect_values()
                run = PythonPass(self, ctx)
                self.reasons.append(f"backward: {error}")
        run.needs_input_grad = ctx.needs_input_grad
        saved = {} if run.context is not None else ctx.saved
        dx, grads = run.gradients(map_arrays(saved, plain), map_arrays(dy, plain))
        outs = own(self.tape, (dx, {key: g for key, g in grads.items() if not _sparse(g)}))
        # What a forward in Python has kept of its inputs lies in the arena, until now.
        self._step(run.backward, (saved, run.inputs, dy), outs)
        run.inputs = ()
        for key, grad in grads.items():
            if _sparse(grad):
                outs[1][key] = live_rows(grad, RowsSource(run, key), self.tape)
        return outs

    def _enter(self, phase: Any) -> None:
        self.tape.layer, self.tape.phase = self.name, phase

    def _step(self, function: Any, arguments: tuple[Any, ...], outs: Any) -> None:
        filled: list[Array] = []
        map_arrays(outs, filled.append)
        call = self.tape.add(function, (*arguments, outs), {}, filled, "hidden", name="python step")
        call.barrier = True


class PythonPass:
    """A pass of a layer that runs the layer's own Python at each replay.

    ``context`` is what the forward pass left, None where that pass is recorded kernels; it may
    hold ``inputs``.
    """

    def __init__(self, layer: TracedLayer, ctx: Context) -> None:
        self.layer = layer
        self.train, self.keep = ctx.train, ctx.keep
        self.needs_input_grad = ctx.needs_input_grad
        self.relu, self.through = ctx.relu, ctx.through
        self.out_shapes = ctx.out_shapes
        self.context: Context | None = None
        self.inputs: Any = ()
        self.sparse: dict[str, RowSparse] = {}

    def _fresh(self) -> Context:
        net, step = self.layer.net, self.layer.step
        ctx = Context(net.device.ops, net.rng, Step.params(step), self.train, self.keep)
        ctx.out_shapes = self.out_shapes
        ctx.relu, ctx.through = self.relu, self.through
        return ctx

    def made(self, x: Any) -> Any:
        """The layer's output."""
        self.context = self._fresh()
        y = self.layer.layer.forward(self.context, x)
        self.context.out_shapes = [p.shape for p in y] if self.layer.step.many_out else []
        return y

    def forward(self, x: Any, out: Any) -> None:
        """Fill ``out`` with the layer's output."""
        keep(self.made(x), out)

    def gradients(self, saved: dict[str, Any], dy: Any) -> tuple[Any, Mapping[str, Any]]:
        """What the layer's backward returns."""
        ctx = self.context
        if ctx is None:
            ctx = self._fresh()
            ctx.saved = dict(saved)
        ctx.needs_input_grad = self.needs_input_grad
        dx, grads = self.layer.layer.backward(ctx, dy)
        self.sparse = {k: grad for k, grad in grads.items() if isinstance(grad, RowSparse)}
        return dx, grads

    def backward(self, saved: dict[str, Any], inputs: Any, dy: Any, out: Any) -> None:
        """Fill ``out`` with the gradients that are arrays, and keep the others."""
        dx, grads = self.gradients(saved, dy)
        if self.context is not None:
            self.context = self._fresh()
        keep((dx, {key: grads[key] for key in out[1]}), out)


class RowsSource:
    """Where a row-sparse gradient of the replay that is running comes from."""

    def __init__(self, run: PythonPass, key: str) -> None:
        self._run = run
        self._key = key

    def now(self) -> RowSparse:
        """The gradient, handed over."""
        return self._run.sparse.pop(self._key)


class LiveRows(RowSparse):
    """A row-sparse gradient whose rows are other ones at each replay.

    No kernel may be recorded on it; ``source`` has those of a replay.
    """

    source: RowsSource


def live_rows(grad: RowSparse, source: RowsSource, tape: Tape) -> LiveRows:
    """``grad`` as rows that no recorded kernel may read."""
    for array in grad:
        tape.hold(array, poison="rows of a table that are others at each step")
    made = LiveRows(*(array.view(Traced) for array in grad))
    made.source = source
    return made


def sources(grads: list[Any]) -> list[Any]:
    """``grads`` with the source in the place of each that is `LiveRows`."""
    return [grad.source if isinstance(grad, LiveRows) else grad for grad in grads]


def is_pure(layer: Layer) -> bool:
    """Whether the layer does the same at each call but for its arrays and draws.

    singanet's own do; a user's class says so by ``pure = True``.
    """
    return _is_own(layer) or bool(getattr(layer, "pure", False))


def _is_own(layer: Layer) -> bool:
    return type(layer).__module__.partition(".")[0] == "singanet"


def traced_plan(plan: Plan, net: FeedForwardNet, tape: Tape) -> Plan:
    """``plan`` with layers that write on ``tape``."""
    made = object.__new__(Plan)
    made.__dict__.update(plan.__dict__)
    made.steps = [TracedStep(step, net, tape) for step in plan.steps]
    made.by_name = {step.name: step for step in made.steps}
    return made


def own(tape: Tape, values: Any) -> Any:
    """Copies of the arrays in ``values`` that the tape knows."""

    def adopted(array: Array) -> Array:
        fresh = plain(array).copy(order="K")
        tape.adopt(fresh)
        return fresh.view(Traced)

    return map_arrays(values, adopted)


def keep(values: Any, out: Any) -> None:
    """Copy the arrays of ``values`` into those that stand at the same places of ``out``."""
    if isinstance(out, np.ndarray):
        np.copyto(out, values)
    elif isinstance(out, dict):
        for key, part in out.items():
            keep(values[key], part)
    elif isinstance(out, (list, tuple)):
        for value, part in zip(values, out, strict=True):
            keep(value, part)


def _sparse(grad: Any) -> bool:
    return isinstance(grad, RowSparse)
