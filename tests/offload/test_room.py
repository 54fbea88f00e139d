"""Nets of a GPU whose parameters are in a folder."""

import os
from functools import partial

import numpy as np
import pytest

from singanet.errors import BackendError, FileAccessError
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, Adafactor, Adam, ClipByRunningNorm
from singanet.training.callbacks import ModelCheckpoint
from tests.offload.twins import KEEP, Twins, arrays_of, batch, expect_same, net_of


def net_on(device):
    return net_of(device=device)


def batch_on(device):
    return [device.put(each) for each in batch()]


@pytest.mark.parametrize(
    "rule",
    [
        lambda: Adam(lr=0.01),
        lambda: SGD(lr=0.1, momentum=0.9),
        lambda: Adafactor(lr=0.01),
        lambda: ClipByRunningNorm(SGD(lr=0.1), 0.5),
        lambda: Accumulator(SGD(lr=0.1), 2),
    ],
)
def test_steps_are_those_in_the_memory_of_the_device(tmp_path, gpu, rule):
    twins, batch = Twins(partial(net_on, gpu), tmp_path / "net", KEEP, rule), batch_on(gpu)
    twins.step(*batch, times=4)
    assert twins.net.executor.programs.reports()
    assert not twins.net.executor.programs.refusals
    assert twins.net.executor.shelf.peak <= KEEP
    found, wanted = (gpu.ops.host(each.predict(batch[0])) for each in (twins.net, twins.plain))
    np.testing.assert_array_equal(found, wanted)
    twins.net.onload()
    twins.expect_same()
    assert all(type(value) is type(batch[0]) for value in twins.net.param_values())


class OwnLoss(SquaredError):  # noqa: N818
    """A user's loss, which sees values when a step is recorded."""


def test_a_loss_of_the_users_own_is_shown_outputs(tmp_path, gpu):
    def make():
        net = net_on(gpu)
        net.compile(SGD(lr=0.1), OwnLoss())
        return net

    twins = Twins(make, tmp_path / "net", KEEP, lambda: SGD(lr=0.1))
    twins.step(*batch_on(gpu), times=3)
    assert twins.net.executor.programs.notes
    expect_same(arrays_of(twins.net), arrays_of(twins.plain))


def test_a_loop_of_ones_own_updates_in_place(tmp_path, gpu):
    nets, (x, y) = (net_on(gpu), net_on(gpu)), batch_on(gpu)
    nets[1].offload(tmp_path / "net", KEEP)
    for net in nets:
        for _ in range(2):
            for _, values, grads in net.backward(net.forward(True, x) - y):
                for value, grad in zip(values, grads, strict=True):
                    value -= 0.01 * grad
    expect_same(arrays_of(nets[1]), arrays_of(nets[0]))


def test_a_training_goes_on_from_the_folder_and_from_checkpoints(tmp_path, gpu):
    plain, net, again, other = (net_on(gpu) for _ in range(4))
    data = [each.repeat(4, axis=0) for each in batch_on(gpu)]
    net.offload(tmp_path / "net", KEEP)
    for each in (plain, net, again, other):
        each.compile(Adam(lr=0.01))
    options, kept = {"batch_size": 4, "verbose": False}, ModelCheckpoint(tmp_path / "kept", None)
    for each in (plain, net):
        each.fit(*data, epochs=1, **options)
    net.fit(*data, epochs=2, initial_epoch=1, callbacks=[kept], **options)
    plain.fit(*data, epochs=2, initial_epoch=1, **options)
    net.executor.end()
    again.offload(tmp_path / "net", KEEP, resume=True)
    expect_same(arrays_of(again), arrays_of(plain))
    other.fit(*data, epochs=2, resume=tmp_path / "kept", **options)
    expect_same(arrays_of(other), arrays_of(plain))


def test_a_step_that_the_folder_fails_is_undone(tmp_path, gpu, monkeypatch):
    net, rule, batch = net_on(gpu), Adam(lr=0.01), batch_on(gpu)
    net.offload(tmp_path / "net", KEEP)
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


def test_activations_stay_on_the_device(tmp_path, gpu):
    with pytest.raises(BackendError, match=r"activations: expected a net on the CPU"):
        net_on(gpu).offload(tmp_path / "net", KEEP, activations=True)
    assert not (tmp_path / "net").exists()
