"""Rates that were assigned after construction are part of an optimizer's state."""

import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, Adam, AdamW, ClipByValue, Lion, RMSProp, schedules
from singanet.optimizer.chain import state_sources
from singanet.training.callbacks import ModelCheckpoint

RNG = np.random.default_rng(2)
X = RNG.standard_normal((16, 3)).astype(np.float32)
Y = RNG.standard_normal((16, 2)).astype(np.float32)

MADE = {
    "sgd": (lambda: SGD(lr=0.1, momentum=0.9), {"learning_rate": 0.03, "momentum": 0.5}),
    "adam": (lambda: Adam(lr=0.1), {"learning_rate": 0.02, "beta_1": 0.7, "epsilon": 1e-3}),
    "adamw": (lambda: AdamW(lr=0.1), {"weight_decay": 0.3}),
    "rmsprop": (lambda: RMSProp(), {"rho": 0.5}),
    "lion": (lambda: Lion(lr=0.1), {"learning_rate": 0.01}),
    "a schedule": (lambda: SGD(lr=schedules.Exponential(0.1, 2, 0.5)), {"learning_rate": 0.02}),
    "clipped": (lambda: ClipByValue(SGD(lr=0.1), 0.5), {"learning_rate": 0.03}),
    "gathered": (lambda: Accumulator(SGD(lr=0.1), 2), {"learning_rate": 0.03}),
}


def rule_of(optimizer):
    return getattr(optimizer, "optimizer", optimizer)


def net_of():
    return singanet.FeedForwardNet(
        [Dense("a", 4, input_sample_shape=(3,)), Dense("b", 2)], loss=SquaredError(), seed=1
    )


def values(net):
    return [value.copy() for value in net.param_values()]


def set_values(net, given):
    for param, value in zip(net.params(), given, strict=True):
        param.value[...] = value


@pytest.mark.parametrize("name", MADE)
def test_a_state_goes_on_at_its_rates(name):
    make, assigned = MADE[name]
    net, one = net_of(), make()
    net.step(X, Y, one), net.step(X, Y, one)
    for key, number in assigned.items():
        setattr(rule_of(one), key, number)
    net.step(X, Y, one)
    state, stood = one.state_dict(), values(net)
    assert {key for key in state if key.startswith("*/")} == {f"*/{key}" for key in assigned}
    sources = {source.name: source.array() for source in state_sources(one)}
    assert sources.keys() == state.keys()
    for _ in range(4):
        net.step(X, Y, one)
    wanted = values(net)
    for other in (make(), one):
        rule_of(other).lr = 7.0
        other.load_state_dict(state)
        set_values(net, stood)
        for _ in range(4):
            net.step(X, Y, other)
        for mine, theirs in zip(values(net), wanted, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_what_was_as_constructed_is_so_again():
    one = SGD(lr=0.1, momentum=0.9)
    state = one.state_dict()
    assert not state
    one.lr, one.momentum = 0.5, 0.1
    one.load_state_dict(state)
    assert (one.lr, one.momentum) == (0.1, 0.9)


def test_a_state_of_other_schedules_changes_nothing():
    one = SGD(lr=schedules.Plateau(0.1))
    one.momentum = 0.5
    state = one.state_dict()
    other = SGD(lr=0.2)
    other.momentum = 0.3
    for wrong in (state, {"*/learning_rate": np.zeros(2)}, {"*/learning_rate": np.array("x")}):
        with pytest.raises(DataError):
            other.load_state_dict(wrong)
        assert (other.lr, other.momentum) == (0.2, 0.3)
    # An assigned number overrides the schedule.
    plain = SGD(lr=0.2)
    plain.lr = 0.04
    one.load_state_dict(plain.state_dict())
    assert one.lr == 0.04
    assert one.momentum == 0.0


def test_a_fit_goes_on_at_the_rate_that_was_assigned(tmp_path):
    """A rate that is assigned before resuming stays, if the file has none."""

    def fit(assigned, folder, **options):
        net, optimizer = net_of(), SGD(lr=0.1)
        net.compile(optimizer, SquaredError())
        if assigned is not None:
            optimizer.lr = assigned
        callbacks = [ModelCheckpoint(folder)]
        net.fit(X, Y, batch_size=4, verbose=False, callbacks=callbacks, **options)
        return values(net), optimizer.lr

    for k, (before, after, rate) in enumerate([(0.02, None, 0.02), (None, 0.03, 0.03)]):
        folder = tmp_path / str(k)
        fit(before, folder, epochs=1)
        resumed, now = fit(after, folder, epochs=2, resume=folder)
        assert now == rate
        if not k:
            first = resumed
    whole = fit(0.02, tmp_path / "whole", epochs=2)[0]
    for mine, theirs in zip(first, whole, strict=True):
        np.testing.assert_array_equal(mine, theirs)
