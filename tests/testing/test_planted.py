"""Mistakes that are planted in a user's layer, and that a strict device finds where they are."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.layers import Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.testing import DeviceUseError, strict_device, watch_device
from singanet.testing.device_like import device_like


class Scaled(Layer):
    """Twice its input."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x * 2.0

    def backward(self, ctx, dy):
        return dy * 2.0, {}


class Looks(Scaled):
    """Asks for a value, to clip by the largest one."""

    def forward(self, ctx, x):
        return x * (2.0 if float(abs(x).max()) < 1e30 else 0.0)


class Hurries(Scaled):
    """Computes on a stream of its own, which another reads without an event."""

    waits = False

    def forward(self, ctx, x):
        cuda = device_like.cuda
        own, current = cuda.Stream(non_blocking=True), cuda.get_current_stream()
        own.wait_event(current.record())
        with own:
            y = x * 2.0
        if self.waits:
            current.wait_event(own.record())
        return y


class Waits(Hurries):
    """As it should be."""

    waits = True


def stepping(layer, recorded):
    """A step of a net with the layer, and its net."""
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", 5, input_sample_shape=(4,)))
    net.add(layer("own"))
    net.add(Dense("scores", 3))
    net.to_device(strict_device())
    net.programs.enabled = recorded
    x, y = np.random.default_rng(1).standard_normal((6, 4), np.float32), np.arange(6) % 3
    x, y, rule = net.device.put(x), net.device.put(y), SGD(lr=0.1)
    return lambda: net.step(x, y, rule)


RECORDED = pytest.mark.parametrize("recorded", [True, False])


def reads_of(layer, recorded):
    step = stepping(layer, recorded)
    for _ in range(3):
        step()
    with watch_device() as watch:
        step()
    return watch


@RECORDED
def test_a_hidden_read_is_counted_and_told_by_its_line(recorded):
    plain, planted = (reads_of(layer, recorded) for layer in (Scaled, Looks))
    assert planted.reads == plain.reads + 1
    own = {place for place in planted.places if __file__ in place}
    assert [place.split(" at ")[0] for place in own] == ["float"]


@RECORDED
def test_a_hidden_read_is_refused_where_it_is(recorded):
    step = stepping(Looks, recorded)
    for _ in range(3):
        step()
    with watch_device(refuse=("reads",)), pytest.raises(DeviceUseError) as caught:
        step()
    assert caught.traceback[-1].path.name.startswith("device_")
    assert "float(abs(x)" in "".join(str(entry.statement) for entry in caught.traceback)


@RECORDED
def test_a_stream_that_is_read_too_early_is_found(recorded, monkeypatch):
    step = stepping(Waits, recorded)
    for _ in range(3):
        step()
    monkeypatch.setattr(Waits, "waits", False)
    with pytest.raises(DeviceUseError, match="another stream writes, while this one reads it"):
        step()


@RECORDED
def test_a_stream_that_is_waited_for_is_as_none(recorded):
    steps = [stepping(layer, recorded) for layer in (Waits, Scaled)]
    for _ in range(4):
        one, other = (step()[0] for step in steps)
        assert one == other


def test_a_recorded_step_makes_its_reads_alone():
    step = stepping(Scaled, recorded=True)
    for _ in range(3):
        step()
    with watch_device(refuse=("transfers", "waits")) as watch:
        step()
    # The labels are looked at, and the loss is returned.
    assert watch.reads == 2
