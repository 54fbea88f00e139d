"""Optimizers, their wrappers and parts as plain data and back."""

import json

import numpy as np
import pytest

import singanet
from singanet import optimizer as rules
from singanet.base.described import Configurable
from singanet.base.elsewhere import NoAttributeError
from singanet.errors import ConfigError, SingaNetError, UnknownNameError
from singanet.layers import Dense
from singanet.optimizer import SGD, Accumulator, Adam, ClipByLayerNorm, Optimizer, Wrapper
from singanet.optimizer import schedules as curves
from singanet.saving.objects import object_from_config

WRAPPERS = [
    lambda inner: Accumulator(inner, 2, mean=False),
    lambda inner: rules.ClipByLayerNorm(inner, 0.3),
    lambda inner: rules.ClipByRunningNorm(inner, 0.3, decay=0.5),
    lambda inner: rules.ClipByValue(inner, 0.01),
    lambda inner: Accumulator(ClipByLayerNorm(inner, 0.3), 3),
]


def through_json(thing):
    """What a file keeps of it, and what comes of that."""
    return type(thing).from_config(json.loads(json.dumps(thing.to_config())))


def trained(optimizer, rng):
    """A parameter after five updates with the same gradients for every optimizer."""
    values = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    for _ in range(5):
        gradient = rng.standard_normal((3, 4)).astype(np.float32)
        optimizer.update(["w"], [values], [gradient])
    return values


def alike(a, b):
    np.testing.assert_array_equal(
        trained(a, np.random.default_rng(1)), trained(b, np.random.default_rng(1))
    )


@pytest.mark.parametrize("wrap", WRAPPERS)
def test_wrappers_come_back_with_what_they_wrap(wrap):
    made = wrap(SGD(lr=0.1, momentum=0.9, weight_decay=np.float32(0.25)))
    other = through_json(made)
    assert other.to_config() == made.to_config()
    alike(made, other)


@pytest.mark.parametrize(
    "part",
    [rules.L2Constraint(0.5), rules.MaxNorm(2.0, axis=(0, 1)), rules.L2Regularizer(0.1)],
    ids=lambda part: type(part).__name__,
)
def test_constraints_and_regularizers_come_back(part):
    other = through_json(part)
    assert type(other) is type(part)
    assert vars(other) == vars(part)
    made = rules.ClipByGlobalNorm(SGD(lr=0.1), 0.3)
    assert (type(through_json(made)), through_json(made).max_norm) == (type(made), 0.3)


def test_what_was_learnt_is_state_and_not_configuration():
    made = SGD(lr=curves.Plateau(0.4, factor=0.5, patience=0))
    made.lr.observe(1.0)
    made.lr.observe(1.0)
    assert made.lr(0) == 0.2
    other = through_json(made)
    assert other.lr(0) == 0.4
    other.load_state_dict(made.state_dict())
    assert other.lr(0) == 0.2


def test_a_net_whose_parameters_are_constrained_describes_itself():
    specs = {"constraint": rules.MaxNorm(1.0, axis=0), "regularizer": rules.L1Regularizer(0.1)}
    net = singanet.FeedForwardNet([Dense("fc", 3, W_specs=specs, input_sample_shape=(2,))], seed=0)
    spec = through_json(net).param_specs()[0]
    assert isinstance(spec.constraint, rules.MaxNorm)
    assert (spec.constraint.axis, spec.regularizer.coefficient) == (0, 0.1)


def test_a_function_is_no_data_and_is_named():
    with pytest.raises(ConfigError, match="SGD, argument 'learning_rate'") as caught:
        SGD(lr=lambda step: 0.1).to_config()
    assert "schedules" in str(caught.value)


def test_a_class_of_the_users_own_is_registered(monkeypatch):
    monkeypatch.setattr(singanet.saving.objects, "_registered", {})

    class Halved(SGD):
        pass

    with pytest.raises(ConfigError, match="Halved"):
        Halved(lr=0.1).to_config()
    singanet.register("test.halved.v1")(Halved)
    other = Optimizer.from_config(Halved(lr=0.1).to_config())
    assert type(other) is Halved


@pytest.mark.parametrize(("base", "entry", "error"), [
    (Optimizer, {"class": "Dense", "arguments": {"name": "a", "num_output": 1}}, None),
    (Optimizer, {"class": "Optimizer", "arguments": {}}, ConfigError),
    (Wrapper, Adam(lr=0.1).to_config(), UnknownNameError),
    (SGD, {"class": "SGD", "arguments": {"rate": 0.1}}, ConfigError),
    (SGD, {"class": "SGD", "arguments": {"lr": -1}}, None), (SGD, {"class": "SGD"}, ConfigError),
    (SGD, ["SGD"], ConfigError),
    (Accumulator, {"class": "Accumulator", "arguments": {"optimizer": 3, "every": 2}}, None),
])  # fmt: skip
def test_data_that_describe_no_optimizer_are_refused(base, entry, error):
    with pytest.raises(error or SingaNetError):
        base.from_config(entry)


def test_any_of_them_is_built_where_the_kind_is_not_known():
    made = Configurable.from_config(Accumulator(SGD(lr=0.1), 2).to_config())
    assert isinstance(made, Accumulator)
    assert isinstance(object_from_config(made.to_config(), {}, Wrapper), Accumulator)


@pytest.mark.parametrize(("said", "earlier"), [
    (rules.SGD(0.3, 0.9), {"lr": 0.3, "momentum": 0.9}),
    (rules.Adafactor(beta_2_decay=-0.7, clip_threshold=2.0),
     {"beta2_decay": -0.7, "clip": 2.0}),
    (rules.MaxNorm(2.0, axis=0), {"threshold": 2.0, "axis": 0}),
    (curves.Cosine(0.1, 4, 0.01), {"value": 0.1, "steps": 4, "final": 0.01}),
    (curves.CosineRestarts(0.1, 4, t_mul=2, m_mul=0.5),
     {"value": 0.1, "steps": 4, "longer": 2, "shrink": 0.5}),
    (curves.Exponential(0.1, 4, 0.5), {"value": 0.1, "steps": 4, "rate": 0.5}),
    (curves.Polynomial(0.1, 4, power=2.0), {"value": 0.1, "steps": 4, "power": 2.0}),
    (curves.Step(0.1, 4), {"value": 0.1, "every": 4}),
    (curves.Plateau(0.1, min_lr=0.01), {"value": 0.1, "lowest": 0.01}),
])  # fmt: skip
def test_descriptions_in_earlier_words_load(said, earlier):
    entry = {**said.to_config(), "arguments": earlier}
    assert type(said).from_config(entry).to_config() == said.to_config()


@pytest.mark.parametrize("made", [lambda w=w: w(SGD(0.1)) for w in WRAPPERS])
@pytest.mark.parametrize("name", ["lr", "learning_rate", "momentum"])
def test_an_attribute_of_the_rule_inside_is_refused(made, name):
    stage = made()
    with pytest.raises(NoAttributeError, match=rf"assign \.optimizer.*\.{name}, of the SGD"):
        setattr(stage, name, 0.3)
    assert not hasattr(stage, name)


def test_a_misspelled_attribute_is_refused_and_ones_own_is_taken():
    rule = SGD(0.1)
    with pytest.raises(NoAttributeError, match="did you mean 'momentum'"):
        rule.moment = 0.9
    rule.lr, rule.seen = 0.3, []
    assert (rule.learning_rate, rule.seen) == (0.3, [])
    with pytest.raises(NoAttributeError, match="did you mean 'max_norm'"):
        ClipByLayerNorm(rule, 1.0).max_norms = 3
