"""A model file, ready to be tried on data."""

from __future__ import annotations

from pathlib import Path

from singanet import data as sets
from singanet.errors import ArgumentError, DataError, one_of
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.model_file import load_model
from singanet.net import FeedForwardNet
from singanet.runs.tasks import Classification


def whole_model(path: Path, data: str | None) -> tuple[FeedForwardNet, Classification]:
    """The net in the model file at ``path``, and the task to tell the classes of ``data`` apart.

    Errors: a net that does something else, no data, samples of another shape or more classes.
    """
    net = load_model(path, training=False)
    ports = net.ports()
    nodes = {node.name: node for node in net.nodes()}
    if type(net.loss) is not SoftmaxCrossEntropy or len(ports.inputs) + len(ports.outputs) != 2:
        raise ArgumentError(
            f"file {str(path)!r}",
            expected="a net that tells classes apart: one input, one output, softmax cross-entropy",
            received=f"inputs {one_of(ports.inputs)}, loss {type(net.loss).__name__}",
            advice="add --model NAME where it is a ready net, or call net.evaluate",
        )
    if data is None:
        raise ArgumentError(
            "--data",
            expected="data to test on, which a model file does not name",
            received="none",
            advice="add --data, a name such as digits or an .npz file",
        )
    task = Classification(sets.load(data))
    shape, out = nodes[ports.inputs[0]].layer.in_shapes, nodes[ports.outputs[0][0]].out_shapes
    if tuple(task.input_shape) != shape or (task.num_classes,) > tuple(out or ())[-1:]:
        raise DataError(
            f"data {task.name!r}",
            expected=f"samples of shape {shape} and classes that outputs {out} tell apart",
            received=f"shape {tuple(task.input_shape)} and {task.num_classes} classes",
            advice="bring them to the net's shape",
        )
    net.metric = net.metric or Accuracy()
    return net, task
