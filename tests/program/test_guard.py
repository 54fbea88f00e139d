"""What a program takes for granted is seen when it changes."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.layers import Activation, Dense, Dropout, TimeDistributed
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, L2Regularizer
from singanet.program.guard import Guard, is_patched


def net():
    made = FeedForwardNet([Dense("fc", 3, input_sample_shape=(2,)), Activation("act")])
    made.params()
    return made


def guard_of(*parts):
    """A net, and a guard of ``parts``."""
    made = net()
    guard = Guard(made)
    for part in parts:
        guard.part(part)
    assert guard.broken(made) == ""
    return made, guard


class Mine(Dropout):
    pass


def listed():
    drop = Dropout("drop", 0.3)
    drop.mine = [1, 2]
    return drop


SMOOTHED = "'label_smoothing' of the SoftmaxCrossEntropy was assigned"


def two():
    return MultiLoss({"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()})


def sgd():
    return SGD(lr=0.1, momentum=0.9, regularizer=L2Regularizer(0.1))


CHANGES = {
    # A part, what is done to it, and what is then said: "" for nothing.
    "nothing": (lambda: Dropout("drop", 0.3), lambda d: setattr(d, "p", d.p), ""),
    "attribute": (
        lambda: Dropout("drop", 0.3), lambda d: setattr(d, "p", 0.5),
        "'rate' of layer 'drop' was assigned"),
    "layer within": (
        lambda: TimeDistributed("each", Dropout("drop", 0.3)), lambda t: setattr(t.layer, "p", 0.5),
        "'rate' of layer 'drop' was assigned"),
    "loss within": (two, lambda m: setattr(m.losses["a"], "label_smoothing", 0.1), SMOOTHED),
    "other loss within": (two, lambda m: setattr(m.losses["b"], "label_smoothing", 0.1), SMOOTHED),
    "contents of a dict": (
        two, lambda m: m.weights.update(b=0.25), "'weights' of the MultiLoss are others"),
    "contents of a list": (
        listed, lambda d: d.mine.append(3), "a list or dict of a layer or loss has other contents"),
    "own": (SquaredError, lambda loss: setattr(loss, "_kept", object()), ""),
    "class": (
        lambda: Dropout("drop", 0.3), lambda d: setattr(d, "__class__", Mine),
        "'class' of layer 'drop' was assigned"),
    # Hyper-parameters are asked anew at each step.
    "hyper-parameters": (sgd, lambda s: vars(s).update(lr=0.2, momentum=0.5), ""),
    "coefficient": (
        sgd, lambda s: setattr(s.regularizer, "coefficient", 0.2),
        "'coefficient' of the L2Regularizer was assigned"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_changes_of_parts_are_named_and_stay_so(name):
    make, change, words = CHANGES[name]
    part = make()
    made, guard = guard_of(part, Dense("fc", 3))
    change(part)
    for _ in range(2):
        assert guard.broken(made) == words


@pytest.mark.parametrize("name", ["update", "_rule"])
def test_methods_of_instances_count(name):
    rule = SGD(lr=0.1)
    made, guard = guard_of(rule)
    setattr(rule, name, lambda *given: None)
    assert is_patched(rule)
    assert guard.broken(made) == f"{name!r} of the SGD was assigned"
    delattr(rule, name)
    assert guard.broken(made) == ""


def test_methods_of_classes_count(monkeypatch):
    made, guard = guard_of(Dropout("drop", 0.3))
    monkeypatch.setattr(Dropout, "forward", lambda self, ctx, x: x)
    assert "method" in guard.broken(made)


def test_parameters_their_arrays_and_where_they_hang():
    made = net()
    layer, (weight, bias) = made.layers[0], made.params()
    guard = Guard(made)
    guard.ties(layer)
    for param in (weight, bias):
        guard.param(param, param.value)
    assert guard.broken(made) == ""
    bias.value.flags.writeable = False
    assert "read-only" in guard.broken(made)
    bias.value.flags.writeable = True
    assert guard.broken(made) == ""
    weight.value = weight.value.copy()
    assert "another one" in guard.broken(made)
    # The backward pass keeps to the arrays of its forward.
    assert guard.broken(made, begun=True) == ""
    weight.trainable = False
    assert "trainable" in guard.broken(made, begun=True)


def test_a_parameter_tied():
    made = net()
    guard, layer = Guard(made), made.layers[0]
    guard.ties(layer)
    layer.params["bias"] = Dense("other", 3, input_sample_shape=(2,)).params.get("bias")
    assert guard.broken(made) == "the parameters of layer 'fc' are others"


def test_whatever_else_is_watched():
    made, seen = net(), [1]
    guard = Guard(made)
    guard.watch("the list is longer", lambda: len(seen))
    assert guard.broken(made) == ""
    seen.append(2)
    assert guard.broken(made) == "the list is longer"


def test_overridden_passes():
    class Doubled(FeedForwardNet):
        def backward(self, dy, output=()):
            return super().backward(np.float32(2) * dy, output)

    plain = net()
    assert plain._passes_are_its_own
    assert not Doubled()._passes_are_its_own
    plain.forward = plain.forward
    assert not plain._passes_are_its_own
