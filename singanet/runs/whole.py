"""Files of whole models, ours and others': which they are, and what their nets can learn."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from singanet import keras, onnx
from singanet.engine.step import probabilities_of
from singanet.errors import ArgumentError, DataError
from singanet.loss import (
    CategoricalCrossEntropy,
    Loss,
    SoftmaxCrossEntropy,
    SoftmaxFocal,
    SquaredError,
)
from singanet.metric import Accuracy
from singanet.model_file import is_model_file, load_model, save_model
from singanet.models import ModelEntry
from singanet.net import FeedForwardNet
from singanet.runs.recipe import FINE_TUNING
from singanet.runs.tasks import Task, load_task
from singanet.types import Shape

_OTHERS: Mapping[str, Callable[[Path], FeedForwardNet]] = {
    ".keras": keras.load_model,
    ".onnx": onnx.load,
}
"""Files told by their suffix, since many other files begin with the same bytes."""

_OF_CLASSES = (SoftmaxCrossEntropy, CategoricalCrossEntropy, SoftmaxFocal)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file of a whole model at ``path``."""
    path = Path(path)
    return is_model_file(path) or (path.suffix.lower() in _OTHERS and path.is_file())


def whole_net(path: str | os.PathLike[str]) -> FeedForwardNet:
    """The net in a file of a whole model, without what it was trained with."""
    path = Path(path)
    load = _OTHERS.get(path.suffix.lower())
    return load(path) if load is not None else load_model(path, training=False)


def seeded_net(path: str | os.PathLike[str], seed: int) -> FeedForwardNet:
    """`whole_net` to be trained: draws are as ``seed`` decides, float16 is widened to float32."""
    net = whole_net(path)
    if net.dtype == np.float16:
        net.as_type("float32")
    net.seed, net.rng = seed, np.random.default_rng(seed)
    return net


def task_for(
    net: FeedForwardNet, path: str | os.PathLike[str], data: str | None, for_testing: bool = False
) -> Task:
    """What the net of the file at ``path`` learns from ``data``, both seen to fit.

    A net without a loss gets that of the ready nets of its task, and each their metric. Errors: a
    net that does something else, no data, samples of another shape or more classes.
    """
    entry = learner(net, path)
    if data is None:
        raise ArgumentError(
            "--data",
            expected="data, which a model file does not name",
            received="none",
            advice="add --data, a name such as digits or an .npz file",
        )
    task = load_task(entry, data, for_testing=for_testing)
    _expect_fitting(task, entry)
    if net.loss is None:
        net.loss = _usual_loss(net, entry.task)
    net.metric = None if entry.task == "reconstruction" else Accuracy()
    return task


def learner(net: FeedForwardNet, path: str | os.PathLike[str]) -> ModelEntry:
    """``net`` as a line of the table of ready nets has it: shapes, recipe and task.

    The task is told by the shapes and the loss. Errors: `ArgumentError` for a net of several
    inputs or outputs, or with a loss of something else.
    """
    ports, nodes = net.ports(), {node.name: node for node in net.nodes()}
    received = f"{len(ports.inputs)} inputs, {len(ports.outputs)} outputs"
    if len(ports.inputs) == len(ports.outputs) == 1:
        name, index = ports.outputs[0]
        shape = nodes[ports.inputs[0]].layer.in_shapes
        out = nodes[name].output_shapes()[index]
        task = _task(net.loss, shape, out)
        if task is not None and isinstance(shape, tuple):
            name = f"the net of {path}"
            return ModelEntry(name, "", "", {}, shape, out[-1], task, FINE_TUNING)
        received = f"shape {shape} to {out}, loss {type(net.loss).__name__}"
    raise ArgumentError(
        f"file {str(path)!r}",
        expected="a net of one input and one output that tells classes apart by softmax "
        "cross-entropy, or gives samples back by SquaredError",
        received=received,
        advice="train and test another one by net.fit and net.evaluate",
    )


def _task(loss: object, shape: object, out: Shape) -> str | None:
    """What a net from ``shape`` to ``out`` does, with its ``loss`` if it has one."""
    if not isinstance(shape, tuple):
        return None  # a layer that reads several inputs
    if shape == out and (type(loss) is SquaredError or (loss is None and len(shape) > 1)):
        return "reconstruction"
    if loss is not None and type(loss) not in _OF_CLASSES:
        return None
    if len(out) == 1:
        return "classification"
    if len(out) == 2 and out[:1] == shape:
        return "text"
    return "segmentation" if len(shape) == len(out) == 3 and shape[1:] == out[:2] else None


def _expect_fitting(task: Task, entry: ModelEntry) -> None:
    """Errors: `DataError` for other shapes, classes without an output, another vocabulary."""
    shape, classes = entry.input_shape, entry.num_classes
    found, many = tuple(task.input_shape), task.num_classes
    wanted, received = f"samples of shape {shape}", f"shape {found}"
    fits = True
    if entry.task != "reconstruction":
        # Each character has the number that its text gives it: fewer are another text's.
        fits = many == classes if entry.task == "text" else many <= classes
        wanted += f" and {classes} classes, for which there are outputs"
        received += f" and {many} classes"
    if found != shape or not fits:
        advice = "bring them to the net's shape, or take another net"
        raise DataError(f"data {task.name!r}", expected=wanted, received=received, advice=advice)


def _usual_loss(net: FeedForwardNet, task: str) -> Loss:
    """The loss of the ready nets for ``task``, in the form for a net that ends in a softmax."""
    if task == "reconstruction":
        return SquaredError()
    plan = net.planned()
    _, function = probabilities_of(plan, plan.outputs[0])
    return CategoricalCrossEntropy() if function == "softmax" else SoftmaxCrossEntropy()


def convert_whole(source: Path, target: Path, format: str | None) -> str | None:
    """Write the net in another library's file as a model file of ours, or its weights.

    What was done, as a text; None if ``source`` is no such file.
    """
    if source.suffix.lower() not in _OTHERS:
        return None
    net = whole_net(source)
    if target.suffix.lower() == ".singanet":
        save_model(net, target)
        return f"{target}: model; {len(net.layers)} layers"
    net.save(target, format=format)
    return f"{target}: {len(net.param_names())} arrays of {len(net.layers)} layers"
