"""Steps with every optimizer: recorded and by the layers, equal to the bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import singanet
from singanet import optimizer as kinds
from singanet.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import schedules
from tests.program.twins import Twins

ELEMENT_WISE = {
    "SGD": kinds.SGD,
    "SGD, momentum": lambda **k: kinds.SGD(momentum=lambda step: min(0.9, step / 5), **k),
    "SGD, nesterov": lambda **k: kinds.SGD(momentum=0.9, nesterov=True, **k),
    "Nesterov": kinds.Nesterov,
    "AdaGrad": kinds.AdaGrad,
    "Adam": kinds.Adam,
    "AdamW": kinds.AdamW,
    "AMSGrad": kinds.AMSGrad,
    "RMSProp": lambda **k: kinds.RMSProp(rho=lambda step: 0.9 - 0.1 / (step + 1), **k),
    "Lion": kinds.Lion,
    "SGD, decoupled": lambda **k: kinds.SGD(momentum=0.9, decoupled=True, **k),
    "Adam, decoupled": lambda **k: kinds.Adam(decoupled=True, **k),
    "SGD, dampened": lambda **k: kinds.SGD(momentum=0.9, dampening=0.3, **k),
    "RMSProp, centered": lambda **k: kinds.RMSProp(centered=True, momentum=0.5, **k),
    "AdamW, largest": lambda **k: kinds.AdamW(amsgrad=True, **k),
    "NAdam": kinds.NAdam,
    "RAdam": lambda **k: kinds.RAdam(beta_2=0.6, **k),
    "Adamax": kinds.Adamax,
    "Adadelta": kinds.Adadelta,
}
OF_WHOLE_PARAMETERS = {
    "LAMB": kinds.LAMB,
    "LAMB, decoupled": lambda **k: kinds.LAMB(decoupled=True, **k),
    "FactoredAdam": kinds.FactoredAdam,
    "Adafactor": kinds.Adafactor,
    "AdaLomo": kinds.AdaLomo,
    "GaLore": kinds.GaLore,
    "AccumulatingSGD": lambda **k: kinds.AccumulatingSGD(2, decoupled=True, **k),
    "AccumulatingAdam": lambda **k: kinds.AccumulatingAdam(3, **k),
}
WRAPPED = {
    "ClipByValue": lambda o: kinds.ClipByValue(o, 0.01),
    "ClipByLayerNorm": lambda o: kinds.ClipByLayerNorm(o, 0.01),
    "ClipByRunningNorm": lambda o: kinds.ClipByRunningNorm(o, 0.01),
    "Accumulator": lambda o: kinds.Accumulator(o, 2),
    "Accumulator, sum of 3": lambda o: kinds.Accumulator(o, 3, mean=False),
    "clipped mean": lambda o: kinds.Accumulator(kinds.ClipByLayerNorm(o, 0.01), 2),
    "mean of clipped": lambda o: kinds.ClipByValue(kinds.Accumulator(o, 2), 0.01),
    "value of norm": lambda o: kinds.ClipByRunningNorm(kinds.ClipByValue(o, 1e-3), 0.1, 0.5),
}


class Signs(kinds.SGD):
    """A user's own, which counts by itself."""

    calls = 0

    def _rule(self, xp, w, g, arrays, s, *n):
        self.calls += 1
        xp.multiply(xp.sign(g), n[0] * self.calls, out=s)
        xp.subtract(w, s, out=w)


def net():
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=3)
    specs = {"lr_mult": 2.0, "decay_mult": 0.5}
    made.add(Conv2D("conv", 4, 3, W_specs=specs, input_sample_shape=(2, 6, 6)))
    made.add(BatchNormalization("norm"))
    made.add(Activation("relu"))
    made.add(Dropout("drop", 0.3))
    made.add(Flatten("flat"))
    # More elements than a block of the optimizers.
    made.add(Dense("wide", 300, b_specs={"decay_mult": 0.0}))
    made.add(Dense("out", 5))
    return made


def batches(count=6):
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((8, 2, 6, 6)).astype(np.float32), rng.integers(0, 5, 8))
        for _ in range(count)
    ]


def falling(step):
    return 0.05 / (1 + step)


@pytest.mark.parametrize("kind", ELEMENT_WISE)
@pytest.mark.parametrize(
    "options",
    [{}, {"lr": 0.01, "weight_decay": 0.01}, {"regularizer": kinds.L1Regularizer(0.01)}],
    ids=["scheduled", "constant, decay", "l1"],
)
@pytest.mark.few(19)
def test_updates_element_by_element_are_kernels(kind, options):
    twins = Twins(net, lambda: ELEMENT_WISE[kind](**{"lr": falling, **options}))
    for x, y in batches():
        twins.step(x, y)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize(
    "options",
    [{}, {"constraint": 0.1}, {"constraint": kinds.MaxNorm(1.0, axis=0)}, {"regularizer": 0.01}],
    ids=["bare", "clip", "max norm", "l2"],
)
@pytest.mark.parametrize("kind", OF_WHOLE_PARAMETERS)
def test_updates_that_look_at_whole_parameters_are_kernels(kind, options):
    twins = Twins(net, lambda: OF_WHOLE_PARAMETERS[kind](lr=falling, **options))
    for x, y in batches(10):
        twins.step(x, y)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("rule", [kinds.SGD, kinds.LAMB, kinds.Adam])
@pytest.mark.parametrize("kind", WRAPPED)
def test_stages_are_kernels(kind, rule):
    twins = Twins(net, lambda: WRAPPED[kind](rule(lr=falling)))
    for x, y in batches(12):
        twins.step(x, y)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("constraint", [0.1, kinds.MaxNorm(1.0), kinds.L2Constraint(1e-5)])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "Lion"])
def test_constraints_are_kernels(kind, constraint):
    twins = Twins(net, lambda: ELEMENT_WISE[kind](lr=0.01, constraint=constraint))
    for x, y in batches():
        twins.step(x, y)
    assert twins.expect_recorded() == []


@pytest.mark.parametrize("kind", ["SGD", "Adam", "LAMB", "Adafactor", "AccumulatingSGD"])
@pytest.mark.parametrize(
    ("penalty", "coefficient"),
    [
        (kinds.L1Regularizer, lambda step: 0.01 * step),
        (kinds.L1Regularizer, lambda step: 0.0),
        (kinds.L2Regularizer, schedules.Cosine(0.1, 4)),
    ],
)
def test_scheduled_regularizers_are_numbers_of_the_step(kind, coefficient, penalty):
    make = {**ELEMENT_WISE, **OF_WHOLE_PARAMETERS}[kind]
    twins = Twins(net, lambda: make(lr=0.01, regularizer=penalty(coefficient)))
    for x, y in batches(9):
        twins.step(x, y)
    assert twins.expect_recorded() == []


def test_a_schedule_of_the_users_is_asked_as_often_as_by_the_layers():
    def make():
        asked = []

        def counting(step):
            asked.append(step)
            return 0.01 * len(asked)

        optimizer = kinds.SGD(lr=0.01, regularizer=kinds.L2Regularizer(counting))
        optimizer.seen = asked
        return optimizer

    twins = Twins(net, make)
    for x, y in batches():
        twins.step(x, y)
    assert twins.expect_recorded() == []
    assert twins.optimizers[0].seen == twins.optimizers[1].seen


def test_recorded_penalties_follow_their_schedule():
    """Without gradients weights shrink by each step's share: Dense of zeros has none."""
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    made.add(Dense("fc", 3, input_sample_shape=(4,)))
    optimizer = kinds.SGD(lr=1.0, weight_decay=lambda step: 0.1 * step)
    wanted = made.param_values()[0].astype(np.float64)
    for step in range(6):
        made.step(np.zeros((2, 4), np.float32), np.array([0, 1]), optimizer)
        wanted = wanted * (1 - 0.1 * step)
    assert made.programs.reports()
    np.testing.assert_allclose(made.param_values()[0], wanted, rtol=1e-5)


def test_another_coefficient_records_anew():
    twins = Twins(net, lambda: kinds.SGD(lr=0.01, regularizer=kinds.L2Regularizer(0.1)))
    for k, (x, y) in enumerate(batches(9)):
        if k == 4:
            for optimizer in twins.optimizers:
                optimizer.regularizer.coefficient = lambda step: 0.1 * step
        if k == 6:
            for optimizer in twins.optimizers:
                optimizer.regularizer.coefficient = 0.0
        twins.step(x, y)
    assert twins.expect_recorded() == []


def test_scheduled_decay_apart_from_the_gradient_is_a_number_of_the_step():
    twins = Twins(net, lambda: kinds.AdamW(lr=0.01, weight_decay=lambda step: 0.1 * step))
    for x, y in batches():
        twins.step(x, y)
    assert twins.expect_recorded() == []


def test_what_one_parameter_decays_by_is_not_taken_for_the_next_one():
    twins = Twins(net, lambda: kinds.Lion(lr=0.01, weight_decay=0.5))
    bias = twins.recorded.param_names().index("wide/bias")
    for x, y in batches(3):
        before = twins.recorded.param_values()[bias].copy()
        twins.step(x, y)
        # Without decay every element moves by the rate, or by nothing.
        moved = np.abs(twins.recorded.param_values()[bias] - before)
        assert ((moved < 1e-8) | (np.abs(moved - 0.01) < 1e-6)).all()


def test_a_plateau_that_lowers_the_rate_is_seen():
    twins = Twins(net, lambda: kinds.SGD(lr=schedules.Plateau(0.1, patience=1)))
    data = batches()
    for x, y in data:
        twins.step(x, y)
        for optimizer in twins.optimizers:
            optimizer.lr.observe(1.0)
    rates = [optimizer.lr(0) for optimizer in twins.optimizers]
    assert rates[0] == rates[1] < 0.1


def assign_rate(optimizer):
    optimizer.lr = 0.5


def assign_momentum(optimizer):
    optimizer.momentum = 0.25


def assign_coefficient(optimizer):
    optimizer.regularizer.coefficient = 0.5


def schedule_coefficient(optimizer):
    optimizer.regularizer.coefficient = lambda step: 0.1 * step


def bound_weights(optimizer):
    for spec in net().param_specs():
        optimizer.register(spec.name, dataclasses.replace(spec, constraint=kinds.MaxNorm(0.1)))


def register_again(optimizer):
    for spec in net().param_specs():
        optimizer.register(spec.name, dataclasses.replace(spec, lr_mult=0.25, decay_mult=3.0))


@pytest.mark.parametrize(
    "change",
    [assign_rate, assign_momentum, assign_coefficient, schedule_coefficient, bound_weights,
     register_again],
)  # fmt: skip
def test_settings_changed_between_steps_are_those_of_the_next(change):
    twins = Twins(net, lambda: kinds.SGD(lr=0.05, momentum=0.9, weight_decay=0.01))
    still = Twins(net, lambda: kinds.SGD(lr=0.05, momentum=0.9, weight_decay=0.01))
    for number, (x, y) in enumerate(batches(8)):
        if number == 4:
            for optimizer in twins.optimizers:
                change(optimizer)
        twins.step(x, y)
        still.step(x, y)
    twins.expect_recorded()
    changed, kept = (pair.recorded.param_values()[0] for pair in (twins, still))
    assert not np.array_equal(changed, kept)


def test_a_loaded_state_is_that_of_the_next_step():
    twins = Twins(net, lambda: kinds.Adam(lr=falling))
    data = batches(8)
    for x, y in data[:3]:
        twins.step(x, y)
    saved = twins.optimizers[0].state_dict()
    for x, y in data[3:6]:
        twins.step(x, y)
    for optimizer in twins.optimizers:
        optimizer.load_state_dict(saved)
    for x, y in data:
        twins.step(x, y)
    assert int(twins.optimizers[0].state_dict()["out/weight/step"]) == 3 + len(data)
    twins.expect_recorded()


def test_a_second_optimizer_has_a_program_of_its_own():
    twins = Twins(net, lambda: kinds.Adam(lr=falling))
    data = batches(8)
    for x, y in data[:4]:
        twins.step(x, y)
    first = twins.optimizers
    twins.optimizers = kinds.SGD(lr=0.1), kinds.SGD(lr=0.1)
    for x, y in data[4:]:
        twins.step(x, y)
    twins.optimizers = first
    for x, y in data:
        twins.step(x, y)
    assert twins.expect_recorded() == []


def test_a_rate_that_is_not_finite_leaves_all_as_it_was():
    twins = Twins(net, lambda: kinds.SGD(lr=falling, momentum=0.9))
    data = batches()
    for x, y in data[:3]:
        twins.step(x, y)
    before = [value.copy() for value in twins.recorded.param_values()]
    for one, optimizer in zip(twins.nets, twins.optimizers, strict=True):
        optimizer.lr = lambda step: float("nan")
        with pytest.raises(singanet.errors.ArgumentError, match="finite learning rate"):
            one.step(*data[3], optimizer)
        optimizer.lr = falling
    for param, value in zip(twins.recorded.params(), before, strict=True):
        assert param.is_state or np.array_equal(param.value, value)
