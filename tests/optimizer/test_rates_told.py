"""What was said last of a parameter counts, to the optimizer or by assigning a spec."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import SGD, Accumulator, ClipByValue
from singanet.params.param import ParamSpec

X = np.arange(12, dtype=np.float32).reshape(4, 3) / 8
Y = np.ones((4, 2), np.float32)


def net_of(recorded=True):
    net = singanet.FeedForwardNet(
        [Dense("a", 3, input_sample_shape=(3,)), Dense("b", 2)], loss=SquaredError(), seed=1
    )
    net.programs.enabled = recorded
    return net


def moved(net, optimizer, steps=1):
    """The parameters that steps of ``optimizer`` change."""
    before = {param.name: param.value.copy() for param in net.params()}
    for _ in range(steps):
        net.step(X, Y, optimizer)
    return {p.name for p in net.params() if (p.value != before[p.name]).any()}


ALL = {"a/weight", "a/bias", "b/weight", "b/bias"}


def still(name):
    return [ParamSpec(name, lr_mult=0.0)]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    "around", [lambda rule: rule, lambda rule: Accumulator(ClipByValue(rule, 9.0), 1)]
)
def test_what_was_told_before_the_first_step_stays(recorded, around):
    net, optimizer = net_of(recorded), around(SGD(0.1))
    optimizer.register_all(still("a/weight"))
    assert moved(net, optimizer, 3) == ALL - {"a/weight"}
    assert moved(net, SGD(0.1)) == ALL, "the rates are those of one optimizer"


@pytest.mark.parametrize("recorded", [True, False])
def test_the_later_one_counts(recorded):
    net, optimizer = net_of(recorded), SGD(0.1)
    optimizer.register_all(net.param_specs())
    weight = net.params()[0]
    weight.spec = replace(weight.spec, lr_mult=0.0)
    assert moved(net, optimizer, 3) == ALL - {weight.name}
    optimizer.register(weight.name, ParamSpec(weight.name))
    assert moved(net, optimizer, 3) == ALL
    optimizer.register_all(still("b/bias"))
    assert moved(net, optimizer) == ALL - {"b/bias"}
    net.layers[1].trainable = False
    net.layers[1].trainable = True
    assert moved(net, optimizer) == ALL - {"b/bias"}, "as another change does not take it back"
    weight.spec = replace(weight.spec, constraint=1e-30)
    assert moved(net, optimizer) == ALL - {"b/bias", weight.name}


def test_fit_keeps_what_was_told():
    net = net_of()
    optimizer = SGD(0.1)
    optimizer.register_all(still("a/bias"))
    net.compile(optimizer, loss=SquaredError())
    before = net.layers[0].params["bias"].value.copy()
    net.fit(X, Y, epochs=2, batch_size=2, verbose=0)
    np.testing.assert_array_equal(net.layers[0].params["bias"].value, before)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_go_by_the_same(copied):
    net, optimizer = net_of(), SGD(0.1)
    optimizer.register_all(still("a/bias"))
    net, optimizer = copied((net, optimizer))
    assert moved(net, optimizer) == ALL - {"a/bias"}
    bias = net.layers[0].params["bias"]
    bias.spec = replace(bias.spec, lr_mult=1.0)
    assert moved(net, optimizer) == ALL


def test_a_nested_net_has_the_rates_of_its_own_parameters():
    inner = singanet.FeedForwardNet([Dense("a", 2, input_sample_shape=(3,))], name="inner")
    weight = inner.layers[0].params["weight"]
    outer = singanet.FeedForwardNet([inner, Dense("c", 2)], loss=SquaredError(), seed=1)
    optimizer = SGD(0.1)
    moved(outer, optimizer)
    weight.spec = replace(weight.spec, lr_mult=0.0)
    named = next(param for param in outer.params() if param.root is weight.root)
    assert named.spec == ParamSpec(named.name, lr_mult=0.0)
    assert named.name not in moved(outer, optimizer)
    named.spec = ParamSpec(named.name)
    assert weight.spec == ParamSpec("a/weight")
    assert named.name in moved(outer, optimizer)
