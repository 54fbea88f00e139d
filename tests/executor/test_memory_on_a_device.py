"""What programs of an executor take of a device's memory, planned and as they ran."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Executor, Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import (
    Activation,
    BatchNormalization,
    Conv2D,
    Dense,
    Dropout,
    Flatten,
    LayerNorm,
    MaxPooling2D,
    MultiHeadAttention,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm
from singanet.testing import communicators, strict_device

BATCH = 8
NETS = {
    "dense": ((6,), lambda: [Dense("a", 9), Activation("r"), Dropout("o", 0.3), Dense("b", 4)]),
    "conv": (
        (2, 8, 8),
        lambda: [
            Conv2D("a", 4, 3),
            BatchNormalization("n"),
            Activation("r"),
            MaxPooling2D("p", 2, 2),
            Flatten("f"),
            Dense("b", 4),
        ],
    ),
    "attention": (
        (5, 6),
        lambda: [MultiHeadAttention("a", 2), LayerNorm("n"), Flatten("f"), Dense("b", 4)],
    ),
}
RULES = {
    "sgd": lambda: SGD(0.1, momentum=0.9),
    "clipped": lambda: ClipByGlobalNorm(Adam(lr=0.01), 1.0),
}
STATES = {"sgd": 1, "clipped": 2}
"""Arrays that a rule keeps for each parameter."""


def executor_of(name, rule, device=None, **given):
    """Programs that train by a weighted loss, and infer."""
    shape, layers = NETS[name]
    x, y, w = Input("x", shape), Input("y", (), dtype="int64"), Input("w", ())
    scores = x
    for layer in layers():
        scores = layer(scores)
    loss = SoftmaxCrossEntropy()(scores, y, sample_weight=w)
    programs = {
        "train": [loss, rule.minimize(loss)],
        "infer": [scores],
    }
    return Executor(programs, seed=0, device=device, **given)


def shapes_of(name, program):
    shapes = {"x": (BATCH, *NETS[name][0]), "y": (BATCH,), "w": (BATCH,)}
    return {"x": shapes["x"]} if program == "infer" else shapes


def feed_of(name, program, seed=0):
    rng = np.random.default_rng(seed)
    feed = {
        "x": rng.standard_normal((BATCH, *NETS[name][0])).astype(np.float32),
        "y": rng.integers(0, 4, BATCH),
        "w": rng.random(BATCH).astype(np.float32),
    }
    return {key: feed[key] for key in shapes_of(name, program)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETS)
def test_what_is_planned_is_what_a_recorded_program_takes(name, rule):
    executor = executor_of(name, RULES[rule](), strict_device())
    trained = [param.nbytes for param in executor.net.params() if not param.is_state]
    before = [value.get() for value in executor.net.param_values()]
    planned = {each: executor.memory(each, shapes_of(name, each)) for each in ("train", "infer")}
    # It has changed nothing.
    for one, value in zip(before, executor.net.param_values(), strict=True):
        np.testing.assert_array_equal(one, value.get())
    for each, plan in planned.items():
        for seed in range(3):
            executor.run(each, feed_of(name, each, seed))
        told = executor.report(each).as_dict()["bytes"]
        assert told["arena"] == plan.parts["arena"]
        lying = ("parameters", "optimizer state", "other")
        assert told["outside"] == sum(plan.parts[part] for part in lying)
        # Python's objects and the kernels' plans are the host's.
        assert plan.parts["program"] == plan.parts["kernels"] == 0
    assert planned["train"].parts["optimizer state"] == STATES[rule] * sum(trained)
    assert planned["infer"].parts["optimizer state"] == 0
    assert planned["infer"].total < planned["train"].total


@pytest.mark.parametrize("name", NETS)
def test_parameters_and_state_are_those_of_the_cpu_and_so_is_training(name, gpu):
    near, far = (executor_of(name, RULES["sgd"](), there) for there in (None, gpu))
    for part in ("parameters", "optimizer state"):
        one, other = (each.memory("train", shapes_of(name, "train")) for each in (near, far))
        assert one.parts[part] == other.parts[part]
    for seed in range(4):
        # By the layers, and recorded.
        one, other = (each.run("train", feed_of(name, "train", seed))[0] for each in (near, far))
        assert one == pytest.approx(other, rel=1e-5)
        far.memory("train", shapes_of(name, "train"))


def test_bad_input_has_its_errors_there():
    executor = executor_of("dense", RULES["sgd"](), strict_device())
    with pytest.raises(UnknownNameError, match="'z'"):
        executor.memory("train", {"z": (8, 6)})
    with pytest.raises(UnknownNameError, match="expected a program"):
        executor.memory("trained", {"x": (8, 6)})
    with pytest.raises(ShapeError, match="'x'"):
        executor.memory("infer", {"x": (8, 7)})
    with communicators(2) as comms:
        alone = executor_of("dense", RULES["sgd"](), strict_device(), parallel=comms[0])
        with pytest.raises(ArgumentError, match="waits for other processes"):
            alone.memory("train", shapes_of("dense", "train"))
