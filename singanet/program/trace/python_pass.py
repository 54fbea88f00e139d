"""A pass of a layer in Python, inside a recorded program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

import numpy as np

from singanet.engine.feeds import shapes_of
from singanet.engine.foreign import run_backward, run_forward
from singanet.engine.plan import NodeStep
from singanet.errors import ShapeError
from singanet.layers.context import Context
from singanet.layers.layer import Layer
from singanet.program.array_tree import map_arrays
from singanet.program.ir import NotRecordableError
from singanet.types import Array, RowSparse

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.program.trace.tape import Tape


class Recorded(Protocol):
    """The layer of a step of a net; ``own`` says that it is singanet's."""

    layer: Layer
    step: NodeStep
    net: Net
    own: bool


@contextmanager
def unseen_values(tape: Tape, what: str) -> Iterator[None]:
    """A block of Python on what ``tape`` has `shown` of ``what``.

    Numbers that stand for a device's may well be refused: the error comes again by the layers if it
    is one. Raises `NotRecordableError`.
    """
    try:
        yield
    except Exception as error:
        if tape.far is None:
            raise
        why = f"{what}, tried on ones in the place of values: {error}"
        raise NotRecordableError(why) from error


class PythonPass:
    """A pass of a layer that runs the layer's own Python at each replay.

    ``context`` is what the forward pass left, None if that pass is recorded kernels; it may hold
    ``inputs``.
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
        params = {suffix: param.value for suffix, param in layer.params.items()}
        ctx = Context(net.device.ops, net.rng, params, self.train, self.keep, net.dtype)
        ctx.in_shapes, ctx.out_shapes = self.in_shapes, self.out_shapes
        return ctx

    def made(self, layer: Layer, x: Any) -> Any:
        """The output of ``layer``, which while recording is a copy."""
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
                advice="set net.programs.enabled = False where shapes depend on numbers",
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
        """Arrays to keep or change; those of the arena where the layer is singanet's."""
        return arrays if self.layer.own else map_arrays(arrays, copied)

    def sparse_now(self, key: str) -> RowSparse:
        """The row-sparse gradient of a parameter, handed over."""
        return self.sparse.pop(key)

    def sparse_look(self, key: str) -> RowSparse:
        """The same, still here."""
        return self.sparse[key]

    def backward(self, saved: dict[str, Any], inputs: Any, dy: Any, out: Any) -> None:
        """Fill ``out`` with the gradients that are arrays, and keep the others."""
        dx, grads = self.gradients(self.layer.layer, self._theirs(saved), self._theirs(dy))
        if self.context is not None:
            # Whatever it saved is not needed until the next pass.
            self.context = self._fresh(self.layer.layer)
        self._copy_into((dx, {key: grads[key] for key in out[1]}), out)

    def _copy_into(self, made: Any, out: Any) -> None:
        copy_into(made, out, self.layer.net.device.ops.xp.copyto)


def copy_into(values: Any, out: Any, copy: Callable[[Array, Any], object] = np.copyto) -> None:
    """Copy the arrays of ``values`` into those that stand at the same places of ``out``."""
    if isinstance(out, dict):
        for key, part in out.items():
            copy_into(values[key], part, copy)
    elif isinstance(out, (list, tuple)):
        for value, part in zip(values, out, strict=True):
            copy_into(value, part, copy)
    elif out is not None:
        copy(out, values)


def copied(array: Array) -> Array:
    """A copy that lies as ``array`` does, for code that may keep it."""
    return array.copy(order="K")


def is_sparse(grad: Any) -> TypeGuard[RowSparse]:
    """Whether a gradient is of some rows only."""
    return isinstance(grad, RowSparse)
