"""Recorded layers, and layers that run as Python.

Python code may read a value from an array unnoticed; the recording would then contain this value
for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from singanet.base.collectives import SharedBatch
from singanet.base.described import with_inner
from singanet.engine.backward import arrays_in, root_of
from singanet.engine.feeds import shapes_of
from singanet.engine.foreign import run_backward, run_forward
from singanet.engine.plan import NodeStep, Plan, StoredArrays
from singanet.errors import ShapeError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.params.narrow import NarrowWeights
from singanet.program.guard import is_as_shipped
from singanet.program.ir import Call, NotRecordableError, Ref, map_arrays
from singanet.program.loads import LoadedArray
from singanet.program.trace.abstract import not_recording
from singanet.program.trace.foreign_code import arrays_of, is_pure, no_draws, stand_in
from singanet.program.trace.sparse_rows import RowsSource, live_rows
from singanet.program.trace.tape import Tape
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.engine.net import Net


class TrialMemory:
    """Memory for a few calls, with random numbers in arrays that they only read.

    Arrays from outside have their own values.
    """

    def __init__(self, tape: Tape, calls: Sequence[Call]) -> None:
        self._tape = tape
        self._calls = calls
        self._memory: dict[int, Array] = {}
        self._rng = np.random.default_rng(1)

    def given(self, values: Any) -> Any:
        """Return copies of the values of the arrays in ``values`` in this trial."""
        return map_arrays(values, lambda array: self._array(self._tape.ref(array)).copy(order="K"))

    def expect_same(self, wanted: Any, made: Any) -> None:
        """Run the calls and compare. Raises `NotRecordableError`."""
        for call in self._calls:
            self._tape.lowering.once(call, self._array)
        theirs, ours = arrays_in(wanted), self.given(arrays_in(made))
        if len(theirs) != len(ours) or not all(map(_same, theirs, ours)):
            raise NotRecordableError("its recorded kernels do not make what it makes")

    def _array(self, ref: Ref) -> Array:
        token, lowering = self._tape.tokens[ref.token], self._tape.lowering
        if type(token.held) is LoadedArray:
            return ref.array(token.held.now())
        if token.held is not None:
            return lowering.outside({ref: self._tape.outside[ref]})[ref]
        if ref.token not in self._memory:
            made = self._memory[ref.token] = lowering.memory(token.nbytes)
            lowering.fill(made, self._drawn(token.nbytes, ref.dtype).view(np.uint8)[: token.nbytes])
        return lowering.array(ref, self._memory[ref.token], 0)

    def _drawn(self, nbytes: int, dtype: np.dtype[Any]) -> Array:
        count = -(-nbytes // dtype.itemsize)
        if dtype.kind == "f":
            return self._rng.standard_normal(count).astype(dtype)
        return self._rng.integers(0, 2, count).astype(dtype)


def _same(one: Array, other: Array) -> bool:
    same = (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
    return same and one.tobytes() == other.tobytes()


class Recorded(Protocol):
    """The layer of a step of a net; ``own`` means that it is singanet's."""

    layer: Layer
    step: NodeStep
    net: Net
    own: bool


class PythonPass:
    """A pass of a layer that runs the layer's own Python at each replay.

    ``context`` is the context of the forward, None if the forward is recorded as kernels; it may
    refer to ``inputs``.
    """

    def __init__(self, layer: Recorded, ctx: Context) -> None:
        self.layer = layer
        self.train, self.keep = ctx.train, ctx.keep
        self.needs_input_grad = ctx.needs_input_grad
        self.in_shapes, self.out_shapes = ctx.in_shapes, ctx.out_shapes
        self.context: Context | None = None
        self.inputs: Any = ()
        self.sparse: dict[str, RowSparse] = {}

    def _fresh(self, layer: Layer) -> Context:
        net = self.layer.net
        params: Any = {suffix: param.value for suffix, param in layer.params.items()}
        if any(param.storage.loads for param in layer.params.values()):
            params = StoredArrays(layer, self.layer.step.foreign)
        ctx = Context(net.device.ops, net.rng, params, self.train, self.keep, net.dtype)
        ctx.in_shapes, ctx.out_shapes = self.in_shapes, self.out_shapes
        return ctx

    def made(self, layer: Layer, x: Any) -> Any:
        """The output of ``layer``, which is a copy while recording."""
        self.context = self._fresh(layer)
        step = self.layer.step
        if step.foreign:
            y = run_forward(step.owner, layer, self.context, x, step.out_shapes)
        else:
            y = layer.forward(self.context, x)
        self.context.out_shapes = [p.shape for p in y] if step.many_out else []
        return y

    def forward(self, x: Any, out: Any) -> None:
        """Fill ``out`` with the layer's output."""
        made = self.made(self.layer.layer, self._theirs(x))
        if shapes_of(made) != shapes_of(out):
            raise ShapeError(
                f"layer {self.layer.step.owner!r}",
                expected=f"forward to return {shapes_of(out)}, as when the step was recorded",
                received=f"{shapes_of(made)} for inputs of the same shapes",
                advice="set net.programs.enabled = False if shapes depend on values",
            )
        self._copy_into(made, out)

    def gradients(
        self, layer: Layer, saved: dict[str, Any], dy: Any
    ) -> tuple[Any, Mapping[str, Any]]:
        """The result of the backward of ``layer``."""
        ctx = self.context
        if ctx is None:
            ctx = self._fresh(layer)
            ctx.saved = dict(saved)
        ctx.needs_input_grad = self.needs_input_grad
        step = self.layer.step
        if step.foreign:
            shapes = layer.in_shapes or ()
            inputs = [] if step.fed else shapes if isinstance(shapes, list) else [shapes]
            dx, grads = run_backward(step.owner, layer, ctx, dy, inputs)
        else:
            dx, grads = layer.backward(ctx, dy)
        self.sparse = {k: grad for k, grad in grads.items() if isinstance(grad, RowSparse)}
        return dx, grads

    def _theirs(self, arrays: Any) -> Any:
        """Copies of the arrays, which a user's layer may change; singanet's gets them directly."""
        return arrays if self.layer.own else map_arrays(arrays, copied)

    def sparse_now(self, key: str) -> RowSparse:
        """Return the row-sparse gradient of a parameter, and drop it."""
        return self.sparse.pop(key)

    def sparse_look(self, key: str) -> RowSparse:
        """Return the row-sparse gradient of a parameter."""
        return self.sparse[key]

    def backward(self, saved: dict[str, Any], inputs: Any, dy: Any, out: Any) -> None:
        """Fill ``out`` with the dense gradients, and store the row-sparse ones."""
        dx, grads = self.gradients(self.layer.layer, self._theirs(saved), self._theirs(dy))
        if self.context is not None:
            # Whatever it saved is not needed until the next pass.
            self.context = self._fresh(self.layer.layer)
        self._copy_into((dx, {key: grads[key] for key in out[1]}), out)

    def _copy_into(self, made: Any, out: Any) -> None:
        copy_into(made, out, self.layer.net.device.ops.xp.copyto)


def copy_into(values: Any, out: Any, copy: Callable[[Array, Any], object] = np.copyto) -> None:
    """Copy the arrays of ``values`` to the arrays at the same positions of ``out``."""
    if isinstance(out, dict):
        for key, part in out.items():
            copy_into(values[key], part, copy)
    elif isinstance(out, (list, tuple)):
        for value, part in zip(values, out, strict=True):
            copy_into(value, part, copy)
    elif out is not None:
        copy(out, values)


def copied(array: Array) -> Array:
    """Return a copy of the same layout, for code that may keep it."""
    return array.copy(order="K")


def is_sparse(grad: Any) -> TypeGuard[RowSparse]:
    """Whether a gradient is of some rows only."""
    return isinstance(grad, RowSparse)


class RecordedNode(NodeStep):
    """A step of a plan whose layer writes its kernels on ``tape``."""

    __slots__ = ("recorded",)

    def __init__(self, step: NodeStep, net: Net, tape: Tape) -> None:
        for name in NodeStep.__slots__:
            setattr(self, name, getattr(step, name))
        self.recorded = RecordedLayer(step, net, tape)
        self.layer = self.recorded  # type: ignore[assignment]

    def params(self) -> dict[str, Any]:
        """Return the places of the live arrays, and narrow matrices.

        Raises `NotRecordableError` for a parameter that must not be read whole.
        """
        if (
            any(p.storage.by_rows for p in self.layer.params.values())
            and not self.layer.traits.looks_up
        ):
            raise NotRecordableError(f"layer {self.name!r} reads a whole table that is served")
        tape = self.recorded.tape
        held = [
            suffix
            for suffix, param in self.layer.params.items()
            if isinstance(param.storage, NarrowWeights)
        ]
        if not held:
            return {key: tape.place(value) for key, value in super().params().items()}
        if self.foreign or not self.recorded.layer.matrices().keys() >= {*held}:
            raise NotRecordableError(f"layer {self.name!r} reads whole what is held in fewer bits")
        return {
            suffix: param.factor() if suffix in held else tape.place(param.value)
            for suffix, param in self.layer.params.items()
        }


class RecordedLayer:
    """A layer as a walk uses it: its two passes, and its parameters."""

    def __init__(self, step: NodeStep, net: Net, tape: Tape) -> None:
        self.layer: Layer = step.layer
        self.step = step
        self.net = net
        self.tape = tape
        self.name = step.owner
        self.params, self.traits = step.layer.params, step.layer.traits
        self.recompute, self.synchronized = step.layer.recompute, step.layer.synchronized
        # The layer, and those inside it.
        self.inner = with_inner(self.layer)
        self.own = all(map(is_as_shipped, self.inner))
        self.pure = self.own or is_pure(self.layer)
        self.reasons: list[str] = []
        self.stand_in: Any = self.layer if self.own else stand_in(self.layer)
        arrays = [] if self.own else arrays_of(self.stand_in, net.device.ops.xp.ndarray)
        self._constants = frozenset(id(root_of(array)) for array in arrays)
        self._python: dict[int, PythonPass] = {}
        # A user's error is raised again when its Python runs, if it is a real one.
        self._refusals: Any = NotRecordableError if self.own else Exception

    @property
    def trainable(self) -> bool:
        """The layer's ``trainable``."""
        return self.layer.trainable

    @staticmethod
    def matrices() -> dict[str, bool]:
        """Return nothing: parameters are abstract arrays, or narrow."""
        return {}

    def forward(self, ctx: Context, x: Any) -> Any:
        """Record the layer's forward."""
        self._enter("forward")
        shared = self.layer.shared
        if shared is not None and (ctx.train or not isinstance(shared, SharedBatch)):
            # Other processes would be asked while this one records, and they do not.
            raise NotRecordableError(f"layer {self.name!r} waits for other processes")
        if ctx.past is not None and not self.own:
            raise NotRecordableError(f"layer {self.name!r}, a user's, may keep earlier steps")
        if not self.pure:
            return self._forward_in_python(ctx, x, "a class that does not say that it is pure")
        mark = len(self.tape.calls)
        try:
            if self.own:
                return self.stand_in.forward(ctx, x)
            with self._strictly():
                y = self._placed(self.stand_in.forward(ctx, x))
                self._try_out(mark, ctx, x, (y, ctx.saved), self._tried_forward)
                return y
        except self._refusals as error:
            self.tape.delete_from(mark)
            ctx.saved.clear()
            return self._forward_in_python(ctx, x, str(error))

    def _forward_in_python(self, ctx: Context, x: Any, why: str) -> Any:
        if ctx.past is not None:
            raise NotRecordableError(f"layer {self.name!r}, {why}")
        if not self.own and self.layer.recompute:
            raise NotRecordableError(f"layer {self.name!r}, {why}, is to be recomputed")
        self.reasons.append(f"forward: {why}")
        run = self._python[id(ctx)] = PythonPass(self, ctx)
        shown = self.tape.shown(x)
        with no_draws(self.layer), not_recording():
            made = run.made(self.stand_in, shown)
        outs = own(self.tape, made)
        kept = {} if run.context is None else run.context.saved
        # Copies of its inputs, and the arrays of its context, are outside the arena.
        self.tape.beside += sum(array.nbytes for array in arrays_in((() if self.own else x, kept)))
        self.tape.note(sum(array.nbytes for array in arrays_in(kept)), owner=-id(run))
        self._step(run.forward, (x,), outs)
        # A user's layer gets copies.
        run.inputs = x if self.own else ()
        return outs

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, Mapping[str, Any]]:
        """Record the layer's backward."""
        self._enter("backward")
        run = self._python.pop(id(ctx), None)
        if run is None:
            mark = len(self.tape.calls)
            try:
                if self.own:
                    dx, grads = self.stand_in.backward(ctx, dy)
                    return dx, dict(grads)
                with self._strictly():
                    dx, grads = self.stand_in.backward(ctx, dy)
                    made = self._placed(dx), self._placed(dict(grads))
                    self._try_out(mark, ctx, (ctx.saved, dy), made, self._tried_backward)
                    return made
            except self._refusals as error:
                self.tape.delete_from(mark)
                run = PythonPass(self, ctx)
                self.reasons.append(f"backward: {error}")
        run.needs_input_grad = ctx.needs_input_grad
        saved = {} if run.context is not None else ctx.saved
        shown = self.tape.shown((saved, dy))
        with no_draws(self.layer), not_recording():
            dx, grads = run.gradients(self.stand_in, *shown)
        dense = {key: grad for key, grad in grads.items() if not is_sparse(grad)}
        outs = own(self.tape, (dx, dense))
        # Inputs in the context of a Python forward are in the arena, until now.
        self._step(run.backward, (saved, run.inputs, dy), outs)
        run.inputs = ()
        self.tape.freed(-id(run))
        for key, grad in grads.items():
            if is_sparse(grad):
                source = RowsSource(partial(run.sparse_now, key), partial(run.sparse_look, key))
                outs[1][key] = live_rows(grad, source, self.tape)
        return outs

    def _try_out(self, mark: int, ctx: Context, given: Any, made: Any, run: Any) -> None:
        """Let a user's layer that was recorded run by itself, too, and compare."""
        trial = TrialMemory(self.tape, self.tape.calls[mark:])
        with not_recording():
            self._compared(trial, ctx, given, made, run)

    def _compared(self, trial: TrialMemory, ctx: Context, given: Any, made: Any, run: Any) -> None:
        ops, draws = self.net.device.ops, self.net.rng.bit_generator.state
        before = [(p, p.value.copy()) for p in self.params.values()]
        other = Context(ops, self.net.rng, self._plain_params(), ctx.train, ctx.keep, ctx.dtype)
        other.out_shapes = ctx.out_shapes
        other.needs_input_grad = ctx.needs_input_grad
        wanted = run(other, trial.given(given))
        for again in (False, True):
            self.net.rng.bit_generator.state = draws
            for param, value in before:
                param.value[...] = value
            if not again:
                trial.expect_same(wanted, made)

    def _tried_forward(self, ctx: Context, x: Any) -> Any:
        return self.stand_in.forward(ctx, x), ctx.saved

    def _tried_backward(self, ctx: Context, given: Any) -> Any:
        ctx.saved, dy = given
        dx, grads = self.stand_in.backward(ctx, dy)
        return dx, dict(grads)

    def _plain_params(self) -> dict[str, Array]:
        return {suffix: param.value for suffix, param in self.params.items()}

    @contextmanager
    def _strictly(self) -> Iterator[None]:
        """Take no array for a constant that the layer, a user's, has not."""
        self.tape.allowed = self._constants
        try:
            with no_draws(self.layer):
                yield
        finally:
            self.tape.allowed = None

    def _placed(self, made: Any) -> Any:
        """What a user's layer makes, as abstract arrays. Unknown ones are refused."""
        return map_arrays(made, self.tape.place)

    def _enter(self, phase: Any) -> None:
        self.tape.layer, self.tape.phase, self.tape.lane = self.name, phase, None

    def _step(self, function: Any, arguments: tuple[Any, ...], outs: Any) -> None:
        # It may store its parameters, and loads them into memory of their own.
        stored = [param.nbytes for param in self.params.values() if param.storage.loads]
        self.tape.loads = max(self.tape.loads, sum(stored))
        filled = arrays_in(outs)
        call = self.tape.add(function, (*arguments, outs), {}, filled, "hidden", name="python step")
        call.barrier = True


def recorded_plan(plan: Plan, net: Net, tape: Tape) -> Plan:
    """``plan`` with layers that write on ``tape``. Raises `NotRecordableError`."""
    layers = {id(step.layer): step.layer for step in plan.steps}.values()
    params = [id(param) for layer in layers for param in layer.params.values()]
    if len(set(params)) < len(params) and not plan.has_shared:
        raise NotRecordableError("a parameter that was shared after the net had been sorted")
    made = object.__new__(type(plan))
    made.__dict__.update(plan.__dict__)
    made.take([RecordedNode(step, net, tape) for step in plan.steps])
    return made


def own(tape: Tape, values: Any) -> Any:
    """Places of the program's memory, laid out as copies of the arrays in ``values``."""

    def placed(array: Any) -> Any:
        made = tape.like(array)
        tape.fed.append((made.ref, array))
        return made

    return map_arrays(values, placed)
