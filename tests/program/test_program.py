"""Programs recorded by hand."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import singanet
from singanet.errors import ArgumentError, CallOrderError, ShapeError, SingaNetError
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Adam
from singanet.testing import strict_device
from singanet.testing.device_like import device_like

from .twins import Twins, expect_same


def net():
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=3)
    made.add(Conv2D("conv", 4, 3, input_sample_shape=(2, 6, 6)))
    made.add(BatchNormalization("norm"))
    made.add(Activation("relu"))
    made.add(Dropout("drop", 0.3))
    made.add(Flatten("flat"))
    made.add(Dense("out", 5))
    return made


def adam():
    return Adam(lr=lambda step: 0.02 / (1 + step))


def batches(count, batch=8, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.standard_normal((batch, 2, 6, 6)).astype(np.float32), rng.integers(0, 5, batch))
        for _ in range(count)
    ]


def recorded(rerecord=False):
    """A pair of nets, and the program of the first one's step."""
    twins = Twins(net, adam)
    x, y = batches(1)[0]
    made = twins.recorded.record(x, y, twins.optimizers[0], rerecord=rerecord)
    return twins, made


def expect_step(twins, made, x, y, weight=None):
    assert made.run(x, y, weight) == twins.nets[1].step(
        x, y, twins.optimizers[1], sample_weight=weight
    )
    twins.expect_equal()


def test_recording_leaves_all_as_it_was():
    made = net()
    before = [value.copy() for value in made.param_values()]
    draws = made.rng.bit_generator.state
    optimizer = adam()
    x, y = batches(1)[0]
    program = made.record(x, y, optimizer)
    made.record(x)
    expect_same(before, made.param_values())
    assert made.rng.bit_generator.state == draws
    assert optimizer.state_dict() == {}
    assert program.notes == []


def test_steps_equal_those_by_the_layers():
    twins, made = recorded()
    for x, y in batches(6):
        expect_step(twins, made, x, y)


def test_a_step_by_hand_between_others():
    twins, made = recorded()
    for number, (x, y) in enumerate(batches(8)):
        if number % 2:
            twins.step(x, y)
        else:
            expect_step(twins, made, x, y)


def test_evaluations_equal_those_by_the_layers():
    twins = Twins(net)
    made = twins.recorded.record(batches(1)[0][0])
    for x, _ in batches(4):
        np.testing.assert_array_equal(made.run(x), twins.nets[1].forward(False, x))


def test_evaluations_see_what_steps_changed():
    twins, made = recorded()
    shown = twins.recorded.record(batches(1)[0][0])
    for x, y in batches(4):
        expect_step(twins, made, x, y)
        np.testing.assert_array_equal(shown.run(x), twins.nets[1].forward(False, x))


@pytest.mark.parametrize("given", [{"y": True}, {"optimizer": True}])
def test_targets_go_with_an_optimizer(given):
    x, y = batches(1)[0]
    options = {"y": y} if "y" in given else {"optimizer": adam()}
    with pytest.raises(ArgumentError, match="neither"):
        net().record(x, **options)


def test_a_wrong_batch_is_refused_when_recorded():
    with pytest.raises(ShapeError, match="'conv'"):
        net().record(np.zeros((8, 1, 6, 6), np.float32))


def test_labels_that_are_wrong_are_refused_at_the_run():
    twins, made = recorded()
    x, y = batches(1)[0]
    expect_step(twins, made, x, y)
    with pytest.raises(SingaNetError, match="'out'"):
        made.run(x, y + 5)
    with pytest.raises(SingaNetError, match="'out'"):
        twins.nets[1].step(x, y + 5, twins.optimizers[1])
    twins.expect_equal()
    expect_step(twins, made, x, y)


def test_a_net_on_another_device_is_recorded_there():
    made = net()
    x = np.random.default_rng(2).standard_normal((8, 2, 6, 6)).astype(np.float32)
    wanted = made.forward(False, x)
    made.to_device(strict_device())
    program = made.record(device_like.asarray(x))
    for timed in (False, True):
        found = program.run(device_like.asarray(x), timed=timed)
        np.testing.assert_allclose(found.get(), wanted, rtol=1e-5)
    assert "forward" in str(program.report())


def test_another_shape_is_refused_with_both_shapes():
    twins, made = recorded()
    x, y = batches(1, batch=3)[0]
    before = [value.copy() for value in twins.recorded.param_values()]
    with pytest.raises(CallOrderError, match=r"\(8, 2, 6, 6\).*\(3, 2, 6, 6\).*rerecord=True"):
        made.run(x, y)
    expect_same(before, twins.recorded.param_values())


def test_another_shape_is_recorded_again_where_asked():
    twins, made = recorded(rerecord=True)
    for batch in (8, 3, 3, 8):
        x, y = batches(1, batch=batch)[0]
        expect_step(twins, made, x, y)
    weight = np.linspace(0, 2, 8)
    expect_step(twins, made, *batches(1)[0], weight)
    expect_step(twins, made, *batches(1)[0])


def freeze(one):
    one.freeze("flat")


def fix(one):
    one.params()[0].trainable = False


def replace(one):
    one.params()[0].value = one.params()[0].value * 2


def add(one):
    one.add(Dense("more", 5))


def drop_less(one):
    next(layer for layer in one.layers if layer.name == "drop").p = 0.1


def other_loss(one):
    one.loss = SoftmaxCrossEntropy(label_smoothing=0.1)


CHANGES = {
    freeze: "added or frozen",
    add: "added or frozen",
    fix: "trainable of 'conv/weight' is False",
    replace: "array of 'conv/weight' is another",
    drop_less: "'rate' of layer 'drop' was assigned",
    other_loss: "another loss",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_net_is_refused_with_what_changed(change):
    twins, made = recorded()
    x, y = batches(1)[0]
    expect_step(twins, made, x, y)
    change(twins.recorded)
    before = [value.copy() for value in twins.recorded.param_values()]
    with pytest.raises(CallOrderError, match=CHANGES[change]):
        made.run(x, y)
    expect_same(before, twins.recorded.param_values())


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_net_is_recorded_again_where_asked(change):
    twins, made = recorded(rerecord=True)
    for x, y in batches(2):
        expect_step(twins, made, x, y)
    for one in twins.nets:
        change(one)
    for x, y in batches(3):
        expect_step(twins, made, x, y)


def test_a_loaded_optimizer_is_refused():
    twins, made = recorded()
    x, y = batches(1)[0]
    expect_step(twins, made, x, y)
    twins.optimizers[0].load_state_dict(twins.optimizers[0].state_dict())
    with pytest.raises(CallOrderError, match="optimizer"):
        made.run(x, y)


def test_another_thread_is_refused():
    _, made = recorded()
    x, y = batches(1)[0]
    caught = []

    def work():
        try:
            made.run(x, y)
        except CallOrderError as error:
            caught.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "another thread" in caught[0]


def test_targets_of_another_type_are_refused():
    twins, made = recorded()
    x, y = batches(1)[0]
    with pytest.raises(CallOrderError, match=r"float32 weights"):
        made.run(x, y, np.ones(8, np.float32))
    with pytest.raises(
        CallOrderError, match=r"\(8,\) int64 with no weights; received \(8,\) uint8"
    ):
        made.run(x, y.astype(np.uint8))
    twins.expect_equal()


def test_timed_runs_are_steps_whose_kernels_are_measured():
    twins, made = recorded()
    for x, y in batches(3):
        assert made.run(x, y, timed=True) == twins.nets[1].step(x, y, twins.optimizers[1])
        twins.expect_equal()
    report = made.report()
    assert report.seconds is not None
    assert len(report.seconds) == len(report.kernels)
    assert all(seconds >= 0 for seconds in report.seconds)
    assert sum(report.seconds) > 0


def test_loss_that_cannot_be_recorded_is_said_to_be_a_python_step():
    class Mine(SoftmaxCrossEntropy):
        pass

    made = net()
    made.loss = Mine()
    x, y = batches(1)[0]
    assert any("loss" in note for note in made.record(x, y, SGD(lr=0.1)).notes)
