"""Checks of the arrays that go into a net: what is fed forward and what is handed back."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages
from singanet.base.csr import by_rows, is_sparse
from singanet.base.text import reshaping
from singanet.device import Device
from singanet.engine.plan import NodeStep, Plan
from singanet.errors import ArgumentError, ShapeError, UnknownNameError, did_you_mean, one_of
from singanet.layers.dummy import Dummy
from singanet.types import Array, Shape


def check_feed(
    plan: Plan,
    x: Any,
    device: Device,
    dtype: np.dtype[Any],
    where: str = "net.forward",
    parts: Collection[str] = (),
) -> dict[str, Any]:
    """``x`` as a dict input name → array(s) on ``device``, in ``dtype`` where a layer computes.

    A list stands for several inputs as symbols gave them, else in topological order.

    ``parts`` are inputs of which some steps come, whatever the net says how many there are.
    Errors: a value that is no such array, or batches of unlike sizes that meet in a layer.
    """
    if isinstance(x, (list, tuple)) and len(x) == len(plan.listed) > 1:
        x = dict(zip(plan.listed, x, strict=True))
    if not isinstance(x, Mapping):
        if len(plan.inputs) != 1:
            raise ArgumentError(
                where,
                expected=f"a dict with the inputs {one_of(plan.inputs)}",
                received=type(x).__name__,
                advice="pass {layer name: array}",
            )
        x = {plan.inputs[0]: x}
    _expect_same_names(f"{where}, argument x", x, plan)
    feed = {
        name: _check_input(plan.by_name[name], x[name], device, dtype, name in parts)
        for name in plan.inputs
    }
    if plan.joins:
        _expect_one_batch(plan, feed)
    return feed


def _expect_one_batch(plan: Plan, feed: Mapping[str, Any]) -> None:
    """Errors: `ShapeError` where inputs of unlike batch sizes meet in a layer."""
    sizes = {name: _sizes(part) for name, part in feed.items()}
    if len({size for some in sizes.values() for size in some}) == 1 and not plan.stacks:
        return
    counts: list[int | None] = [None] * len(plan.slot_shapes)
    for step in plan.steps:
        given = sizes[step.name] if step.fed else [counts[slot] for slot in step.in_slots]
        count = step.samples(given)
        for slot in step.out_slots:
            counts[slot] = count


def _sizes(x: Any) -> list[int | None]:
    return [part.shape[0] for part in x] if isinstance(x, list) else [x.shape[0]]


def _check_input(step: NodeStep, x: Any, device: Device, dtype: np.dtype[Any], part: bool) -> Any:
    layer = step.layer
    shapes = layer.in_shapes
    if part and isinstance(shapes, tuple):
        shapes = (-1, *shapes[1:])
    if isinstance(shapes, list):
        parts = list(x) if isinstance(x, (list, tuple)) else [x]
        if len(parts) != len(shapes):
            raise layer.shape_error(
                f"a list of {len(shapes)} arrays", f"{len(parts)}", "pass one array an input"
            )
        pairs = zip(parts, shapes, strict=True)
        return [
            _check_array(step, k, part, shape, device, dtype)
            for k, (part, shape) in enumerate(pairs)
        ]
    return _check_array(step, 0, x, shapes or (), device, dtype)


def _check_array(
    step: NodeStep, k: int, x: Any, shape: Shape, device: Device, dtype: np.dtype[Any]
) -> Any:
    if step.layer.traits.sparse is not is_sparse(x):
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="a sparse matrix of SciPy" if step.layer.traits.sparse else "an array",
            received=type(x).__name__,
            advice="convert it with scipy.sparse.csr_array"
            if step.layer.traits.sparse
            else "draw Input(..., sparse=True), or feed x.toarray()",
        )
    if not hasattr(x, "dtype") or not hasattr(x, "shape"):
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="an array",
            received=type(x).__name__,
            advice="convert it with numpy.asarray",
        )
    if not x.shape or not _fits(tuple(x.shape[1:]), shape):
        raise ShapeError(
            f"layer {step.name!r}, input",
            expected=f"an array of shape {batch_of(shape)}",
            received=f"shape {tuple(x.shape)}",
            advice=_shape_advice(x.shape, shape),
        )
    if x.dtype.kind not in "fiub":
        raise ArgumentError(
            f"layer {step.name!r}, input",
            expected="numbers",
            received=f"an array of type {x.dtype}",
            advice="convert it with array.astype('float32')",
        )
    if step.layer.traits.sparse:
        return by_rows(f"layer {step.name!r}, input", x).mapped(device.put, dtype)
    if isinstance(step.layer, Dummy) and step.layer.dtype is not None:
        return device.put(step.layer.typed(x))
    x = device.put(x)
    if not (k in step.integers or x.dtype == dtype):
        return x.astype(dtype)
    # Kernels treat arrays with gaps in another way, and programs have none.
    return x if type(x) is not np.ndarray or x.flags.forc or _is_dense(x) else x.copy(order="K")


def _is_dense(array: Array) -> bool:
    """Whether elements lie side by side, in whatever order of the axes."""
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)


def _fits(received: Shape, shape: Shape) -> bool:
    """Whether ``received`` is ``shape``, in which -1 stands for any extent."""
    return received == shape or (
        -1 in shape
        and len(received) == len(shape)
        and all(want in (-1, got) for got, want in zip(received, shape, strict=True))
    )


def _shape_advice(received: Shape, shape: Shape) -> str:
    if tuple(received) == shape:
        return "add the batch axis in front: x[None]"
    own, wanted = ([n for n in each if n != 1] for each in (received[1:], shape))
    if len(received) == 4 and len(shape) == 3 and (received[3], *received[1:3]) == shape:
        return "images are NCHW: use x.transpose(0, 3, 1, 2)"
    # Axes of one step are put in and left out, and rows of all numbers laid out, without harm.
    if None not in shape and own in (wanted, [math.prod(wanted)]):
        return f"lay the samples out anew: {reshaping('x', shape)}"
    return "the batch axis comes first, then the layer's input sample shape"


def check_gradients(
    plan: Plan, dy: Any, shapes: Mapping[str, Any], device: Device, dtype: np.dtype[Any]
) -> dict[int, Array]:
    """``dy`` as a dict slot → gradient; every array has the shape of the output it belongs to."""
    if not isinstance(dy, Mapping):
        if len(plan.outputs) != 1:
            raise ArgumentError(
                "net.backward",
                expected=f"a dict with gradients for outputs among {one_of(plan.outputs)}",
                received=type(dy).__name__,
                advice="pass {layer name: gradient}",
            )
        dy = {plan.outputs[0]: dy}
    for name in dy:
        if name not in shapes:
            raise UnknownNameError(
                "net.backward, argument dy",
                expected=f"names among {one_of(shapes)}",
                received=repr(name),
                advice=did_you_mean(name, shapes, "name it in the output of forward"),
            )
    if not dy:
        raise ArgumentError(
            "net.backward, argument dy",
            expected=f"gradients for outputs among {one_of(shapes)}",
            received="an empty dict",
            advice="pass the gradient of at least one output",
        )
    slot_grads: dict[int, Array] = {}
    for name, given in dy.items():
        step = plan.by_name[name]
        parts = list(given) if step.many_out else [given]
        expected = shapes[name] if step.many_out else [shapes[name]]
        for slot, part, shape in zip(step.out_slots, parts, expected, strict=False):
            if not hasattr(part, "shape") or tuple(part.shape) != shape:
                raise _wrong_gradient(name, shape, part)
            part = device.put(part)
            slot_grads[slot] = part if part.dtype == dtype else part.astype(dtype)
        if len(parts) != len(step.out_slots):
            raise _wrong_gradient(name, f"list of {len(step.out_slots)} arrays", given)
    return slot_grads


def _wrong_gradient(name: str, shape: Any, part: Any) -> ShapeError:
    received = getattr(part, "shape", type(part).__name__)
    return ShapeError(
        f"net.backward, gradient of layer {name!r}",
        expected=f"shape {shape}, as the layer's output",
        received=f"shape {received}" if isinstance(received, tuple) else f"{received}",
        advice="pass the gradient of the loss with respect to that output",
    )


def _expect_same_names(where: str, given: Mapping[str, Any], plan: Plan) -> None:
    known = plan.inputs
    for name in given:
        if name not in known:
            inner = name in plan.by_name
            raise UnknownNameError(
                where,
                expected=f"the inputs {one_of(known)}",
                received=f"the extra key {name!r}" + ", which reads other layers" * inner,
                advice="put a Dummy layer where its data come in, and name that"
                if inner
                else MESSAGES
                if are_messages(given)
                else did_you_mean(str(name), known, "remove it"),
            )
    for name in known:
        if name not in given:
            raise UnknownNameError(
                where,
                expected=f"the inputs {one_of(known)}",
                received=f"keys without {name!r}",
                advice=f"add an array for {name!r}",
            )


def shapes_of(value: Any) -> Any:
    """The shape of an array, or the list of shapes of several."""
    if isinstance(value, (list, tuple)):
        return [tuple(part.shape) for part in value]
    return tuple(value.shape)


def batch_of(shape: Shape) -> str:
    """``shape`` written with its batch axis."""
    return "(batch" + "".join(f", {'any' if axis == -1 else axis}" for axis in shape) + ")"
