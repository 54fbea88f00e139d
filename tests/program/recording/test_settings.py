"""What layers and losses were set to."""

from __future__ import annotations

import pytest

from singanet.layers import Dense, Dropout, TimeDistributed
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.program.recording.settings import Settings


def test_nothing_assigned_nothing_changed():
    layers = [Dropout("drop", 0.3), Dense("fc", 3)]
    settings = Settings(layers)
    layers[0].p = layers[0].p
    assert settings.changed() == ""


def test_an_assigned_attribute_is_named():
    layers = [Dropout("drop", 0.3), Dense("fc", 3)]
    settings = Settings(layers)
    layers[0].p = 0.5
    assert settings.changed() == "'p' of layer 'drop' was assigned"


def test_a_layer_within_a_layer_counts():
    inner = Dropout("drop", 0.3)
    settings = Settings([TimeDistributed("each", inner)])
    assert settings.changed() == ""
    inner.p = 0.5
    assert "'p'" in settings.changed()


@pytest.mark.parametrize("which", ["a", "b"])
def test_a_loss_within_a_loss_counts(which):
    parts = {"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy()}
    settings = Settings([MultiLoss(parts)])
    parts[which].label_smoothing = 0.1
    assert settings.changed() == "'label_smoothing' of the SoftmaxCrossEntropy was assigned"


def test_what_a_class_keeps_for_itself_does_not_count():
    loss = SquaredError()
    settings = Settings([loss])
    loss._kept = object()
    assert settings.changed() == ""


def test_another_class_is_another_layer():
    class Mine(Dropout):
        pass

    layer = Dropout("drop", 0.3)
    settings = Settings([layer])
    layer.__class__ = Mine
    assert settings.changed() == "'class' of layer 'drop' was assigned"
