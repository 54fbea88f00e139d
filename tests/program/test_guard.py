"""What a program takes for granted is seen when it changes."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense, Dropout, TimeDistributed
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, L2Regularizer
from singanet.program.guard import Guard, is_patched


def net():
    made = singanet.FeedForwardNet([Dense("fc", 3, input_sample_shape=(2,)), Activation("act")])
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


def test_nothing_assigned_nothing_changed():
    drop = Dropout("drop", 0.3)
    made, guard = guard_of(drop, Dense("fc", 3))
    drop.p = drop.p
    assert guard.broken(made) == ""


def test_an_assigned_attribute_is_named():
    drop = Dropout("drop", 0.3)
    made, guard = guard_of(drop, Dense("fc", 3))
    drop.p = 0.5
    assert guard.broken(made) == "'rate' of layer 'drop' was assigned"
    # It stays so until it is recorded again.
    assert guard.broken(made) == "'rate' of layer 'drop' was assigned"


def test_a_layer_within_a_layer_counts():
    inner = Dropout("drop", 0.3)
    made, guard = guard_of(TimeDistributed("each", inner))
    inner.p = 0.5
    assert "'rate'" in guard.broken(made)


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_loss_within_a_loss_counts(which):
    parts = {"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()}
    made, guard = guard_of(MultiLoss(parts))
    parts[which].label_smoothing = 0.1
    assert guard.broken(made) == "'label_smoothing' of the SoftmaxCrossEntropy was assigned"


def test_contents_of_dicts_count():
    loss = MultiLoss({"a": SquaredError(), "b": SquaredError()})
    made, guard = guard_of(loss)
    loss.weights["b"] = 0.25
    assert guard.broken(made) == "'weights' of the MultiLoss are others"


def test_contents_of_lists_count():
    drop = Dropout("drop", 0.3)
    drop.mine = [1, 2]
    made, guard = guard_of(drop)
    drop.mine.append(3)
    assert "other contents" in guard.broken(made)


def test_what_a_class_keeps_for_itself_does_not_count():
    loss = SquaredError()
    made, guard = guard_of(loss)
    loss._kept = object()
    assert guard.broken(made) == ""


def test_another_class_is_another_layer():
    class Mine(Dropout):
        pass

    layer = Dropout("drop", 0.3)
    made, guard = guard_of(layer)
    layer.__class__ = Mine
    assert guard.broken(made) == "'class' of layer 'drop' was assigned"


@pytest.mark.parametrize("name", ["update", "_rule"])
def test_methods_of_instances_count(name):
    sgd = SGD(lr=0.1)
    made, guard = guard_of(sgd)
    setattr(sgd, name, lambda *given: None)
    assert is_patched(sgd)
    assert guard.broken(made) == f"{name!r} of the SGD was assigned"
    delattr(sgd, name)
    assert guard.broken(made) == ""


def test_methods_of_classes_count(monkeypatch):
    made, guard = guard_of(Dropout("drop", 0.3))
    monkeypatch.setattr(Dropout, "forward", lambda self, ctx, x: x)
    assert "method" in guard.broken(made)


def test_hyper_parameters_are_asked_anew_and_the_rest_is_not():
    sgd = SGD(lr=0.1, momentum=0.9, regularizer=L2Regularizer(0.1))
    made, guard = guard_of(sgd)
    sgd.lr, sgd.momentum = 0.2, 0.5
    assert guard.broken(made) == ""
    sgd.regularizer.coefficient = 0.2
    assert guard.broken(made) == "'coefficient' of the L2Regularizer was assigned"


def test_parameters_their_arrays_and_where_they_hang():
    made = net()
    weight, bias = made.params()
    guard = Guard(made)
    guard.ties(made.layers[0])
    for param in (weight, bias):
        guard.param(param, param.value)
    assert guard.broken(made) == ""
    weight.value = weight.value.copy()
    assert "another one" in guard.broken(made)
    # The backward pass keeps to the arrays of its forward.
    assert guard.broken(made, begun=True) == ""
    weight.trainable = False
    assert "trainable" in guard.broken(made, begun=True)


def test_an_array_made_read_only_and_a_parameter_tied():
    made = net()
    guard = Guard(made)
    layer = made.layers[0]
    guard.param(layer.params["bias"], layer.params["bias"].value)
    guard.ties(layer)
    layer.params["bias"].value.flags.writeable = False
    assert "read-only" in guard.broken(made)
    layer.params["bias"].value.flags.writeable = True
    assert guard.broken(made) == ""
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
    class Mine(singanet.FeedForwardNet):
        def backward(self, dy, output=()):
            return super().backward(np.float32(2) * dy, output)

    plain = net()
    assert plain._passes_are_its_own
    assert not Mine()._passes_are_its_own
    plain.forward = plain.forward
    assert not plain._passes_are_its_own
