"""Optimizer state of parameters in buckets lies side by side, too; what is computed is the same."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.optimizer import SGD, Adafactor, Adam, ClipByValue


def make(dtype="float32"):
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("one", 8, input_sample_shape=(5,)))
    net.add(Activation("relu"))
    net.add(Dense("two", 3))
    net.as_type(dtype)
    return net


def grads_of(net, rng):
    return [rng.standard_normal(v.shape).astype(v.dtype) for v in net.param_values()]


def update(net, optimizer, grads):
    optimizer.update(net.param_names(), net.param_values(), grads)


def bases(optimizer, slot=0):
    return {id(state.arrays[slot].base) for state in optimizer.states()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_state_lies_as_the_parameters_do(dtype, rng):
    net, optimizer = make(dtype), Adam(lr=0.1)
    for _ in range(3):
        update(net, optimizer, grads_of(net, rng))
    assert len(bases(optimizer)) == len(bases(optimizer, 1)) == 1
    assert bases(optimizer) != bases(optimizer, 1)
    (bucket,) = net.buckets()
    for name, part in zip(bucket.names, bucket.slices, strict=True):
        first, second = optimizer.state(name).arrays
        np.testing.assert_array_equal(first.base[part], first)
        assert first.dtype == second.dtype == np.dtype(dtype)


@pytest.mark.parametrize("kind", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.1),
                                  lambda: Adafactor(lr=0.1)])  # fmt: skip
def test_updates_are_those_of_arrays_apart(kind, rng):
    net, one, other = make(), kind(), kind()
    apart = [value.copy() for value in net.param_values()]
    for _ in range(4):
        grads = grads_of(net, rng)
        update(net, one, grads)
        other.update(net.param_names(), apart, grads)
    for a, b in zip(net.param_values(), apart, strict=True):
        np.testing.assert_array_equal(a, b)
    saved, also = one.state_dict(), other.state_dict()
    assert saved.keys() == also.keys()
    for key, array in saved.items():
        np.testing.assert_array_equal(array, also[key])


@pytest.mark.parametrize("how", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o)), None])
def test_copied_and_loaded_state_goes_on(how, rng):
    net, optimizer = make(), Adam(lr=0.1)
    for _ in range(2):
        update(net, optimizer, grads_of(net, rng))
    if how is None:
        made = Adam(lr=0.1)
        made.load_state_dict(optimizer.state_dict())
    else:
        made = how(optimizer)
    grads, twin = grads_of(net, rng), copy.deepcopy(net)
    update(net, optimizer, grads)
    update(twin, made, grads)
    for a, b in zip(net.param_values(), twin.param_values(), strict=True):
        np.testing.assert_array_equal(a, b)
    for name, value in zip(twin.param_names(), twin.param_values(), strict=True):
        before = [array.copy() for array in made.state(name).arrays]
        after = made.settle(name, value).arrays
        assert made.settle(name, value).arrays is after
        for a, b in zip(before, after, strict=True):
            np.testing.assert_array_equal(a, b)
    assert len(bases(made)) == 1


def test_two_names_of_one_array_have_state_of_their_own(rng):
    net, optimizer = make(), SGD(lr=0.1, momentum=0.9)
    value = net.param_values()[0]
    optimizer.update(["a"], [value], [np.ones_like(value)])
    optimizer.update(["b"], [value], [np.ones_like(value)])
    a, b = optimizer.state("a").arrays[0], optimizer.state("b").arrays[0]
    assert not np.shares_memory(a, b)
    np.testing.assert_array_equal(a, b)


def test_a_user_s_slices_of_one_large_array_have_small_state(rng):
    large = np.zeros(10_000, np.float32)
    optimizer = ClipByValue(SGD(lr=0.1, momentum=0.9), 1.0)
    optimizer.update(["w"], [large[5:9]], [np.ones(4, np.float32)])
    (state,) = optimizer.optimizer.states()
    assert state.arrays[0].size == 4
    assert state.arrays[0].base is None


def test_state_that_was_forgotten_begins_with_zeros(rng):
    net, optimizer = make(), SGD(lr=0.1, momentum=0.9)
    update(net, optimizer, grads_of(net, rng))
    optimizer.load_state_dict({})
    start = [value.copy() for value in net.param_values()]
    grads = grads_of(net, rng)
    update(net, optimizer, grads)
    for value, before, grad in zip(net.param_values(), start, grads, strict=True):
        np.testing.assert_array_equal(value, before - grad * np.float32(0.1))


def test_on_a_device(xp, rng):
    net, optimizer = make(), Adam(lr=0.1)
    if xp is not np:
        net.to_device(singanet.device.Device("there", singanet.ops.ops_for(xp.zeros(1))))
    optimizer.update(
        net.param_names(), net.param_values(), list(map(xp.asarray, grads_of(net, rng)))
    )
    for state in optimizer.states():
        assert all(isinstance(array, xp.ndarray) for array in state.arrays)
