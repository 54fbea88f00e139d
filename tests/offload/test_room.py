"""Nets of a GPU whose parameters are in a folder."""

import os
from functools import partial

import numpy as np
import pytest

import singanet
from singanet.device import Device
from singanet.errors import BackendError, FileAccessError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Adafactor, Adam
from singanet.training.callbacks import ModelCheckpoint
from tests.offload.twins import Twins, arrays_of, expect_same

WIDTH, DEPTH, KEEP = 160, 4, 700_000


@pytest.fixture
def device(gpu) -> Device:
    return gpu


def net_on(device: Device) -> singanet.FeedForwardNet:
    first = Dense("fc0", WIDTH, input_sample_shape=(WIDTH,))
    rest = [Dense(f"fc{k}", WIDTH) for k in range(1, DEPTH)]
    extra = [BatchNormalization("norm"), Dropout("drop", 0.2), Activation("relu")]
    net = singanet.FeedForwardNet([first, *extra, *rest], loss=SquaredError(), seed=3)
    net.to_device(device)
    return net


def batch_on(device: Device):
    rng = np.random.default_rng(0)
    return [device.put(each) for each in rng.standard_normal((2, 4, WIDTH), np.float32)]


@pytest.mark.parametrize(
    "rule", [lambda: Adam(lr=0.01), lambda: SGD(lr=0.1, momentum=0.9), lambda: Adafactor(lr=0.01)]
)
def test_steps_are_those_in_the_memory_of_the_device(tmp_path, device, rule):
    twins, batch = Twins(partial(net_on, device), tmp_path / "net", KEEP, rule), batch_on(device)
    plain, net = twins.plain, twins.net
    for _ in range(3):
        twins.step(*batch)
    assert net.executor.shelf.peak <= KEEP
    np.testing.assert_array_equal(
        device.ops.host(net.predict(batch[0])), device.ops.host(plain.predict(batch[0]))
    )
    net.onload()
    twins.expect_same()
    assert all(type(value) is type(batch[0]) for value in net.param_values())


def test_a_loop_of_ones_own_updates_in_place(tmp_path, device):
    nets = net_on(device), net_on(device)
    nets[1].offload(tmp_path / "net", KEEP)
    batch = batch_on(device)
    for net in nets:
        for _ in range(2):
            out = net.forward(True, batch[0])
            for _, values, grads in net.backward(out - batch[1]):
                for value, grad in zip(values, grads, strict=True):
                    value -= 0.01 * grad
    expect_same(arrays_of(nets[1]), arrays_of(nets[0]))


def test_a_training_goes_on_from_the_folder_and_from_checkpoints(tmp_path, device):
    plain, net = net_on(device), net_on(device)
    x, y = (each.repeat(4, axis=0) for each in batch_on(device))
    net.offload(tmp_path / "net", KEEP)
    for each in (plain, net):
        each.compile(Adam(lr=0.01))
        each.fit(x, y, batch_size=4, epochs=1, verbose=False)
    kept = ModelCheckpoint(tmp_path / "kept", monitor=None)
    net.fit(x, y, batch_size=4, epochs=2, initial_epoch=1, callbacks=[kept], verbose=False)
    plain.fit(x, y, batch_size=4, epochs=2, initial_epoch=1, verbose=False)
    net.executor.end()
    again = net_on(device)
    again.compile(Adam(lr=0.01))
    again.offload(tmp_path / "net", KEEP, resume=True)
    expect_same(arrays_of(again), arrays_of(plain))
    other = net_on(device)
    other.compile(Adam(lr=0.01))
    other.fit(x, y, batch_size=4, epochs=2, resume=tmp_path / "kept", verbose=False)
    expect_same(arrays_of(other), arrays_of(plain))


def test_a_step_that_the_folder_fails_is_undone(tmp_path, device, monkeypatch):
    net = net_on(device)
    rule = Adam(lr=0.01)
    net.offload(tmp_path / "net", KEEP)
    batch = batch_on(device)
    net.step(*batch, rule)
    before = arrays_of(net)

    def fails(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(FileAccessError, match="No space left"):
            net.step(*batch, rule)
    expect_same(arrays_of(net), before)
    net.step(*batch, rule)


def test_activations_stay_on_the_device(tmp_path, device):
    net = net_on(device)
    with pytest.raises(BackendError, match=r"activations: expected a net on the CPU"):
        net.offload(tmp_path / "net", KEEP, activations=True)
    assert not (tmp_path / "net").exists()
