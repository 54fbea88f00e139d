"""What programs of an executor take of a device's memory, planned and as they ran."""

from __future__ import annotations

import numpy as np
import pytest

from singanet import Executor, Input, layers
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Activation, Dense, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm
from singanet.testing import communicators, strict_device

BATCH = 8
CONV = layers.Conv2D, layers.BatchNormalization, layers.MaxPooling2D
ATTENTION = layers.MultiHeadAttention, layers.LayerNorm
NETS = {
    "dense": ((6,), lambda: [Dense("a", 9), Activation("r"), layers.Dropout("o", 0.3)]),
    "conv": (
        (2, 8, 8), lambda: [CONV[0]("a", 4, 3), CONV[1]("n"), Activation("r"), CONV[2]("p", 2, 2)],
    ),
    "attention": ((5, 6), lambda: [ATTENTION[0]("a", 2), ATTENTION[1]("n")]),
}  # fmt: skip
RULES = {
    "sgd": (lambda: SGD(0.1, momentum=0.9), 1),
    "clipped": (lambda: ClipByGlobalNorm(Adam(lr=0.01), 1.0), 2),
}
"""Rules, and how many arrays each keeps for a parameter."""


def executor_of(name, rule="sgd", device=None, **given):
    shape, made = NETS[name]
    x, y, w = Input("x", shape), Input("y", (), dtype="int64"), Input("w", ())
    scores = x
    for layer in [*made(), Flatten("f"), Dense("b", 4)]:
        scores = layer(scores)
    loss = SoftmaxCrossEntropy()(scores, y, sample_weight=w)
    programs = {"train": [loss, RULES[rule][0]().minimize(loss)], "infer": [scores]}
    return Executor(programs, seed=0, device=device, **given)


def feed_of(name, program, seed=0):
    rng = np.random.default_rng(seed)
    feed = {"x": rng.standard_normal((BATCH, *NETS[name][0])).astype(np.float32)}
    labels = {"y": rng.integers(0, 4, BATCH), "w": rng.random(BATCH).astype(np.float32)}
    return feed if program == "infer" else feed | labels


def shapes_of(name, program):
    return {key: array.shape for key, array in feed_of(name, program).items()}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", NETS)
def test_what_is_planned_is_what_a_recorded_program_takes(name, rule):
    executor = executor_of(name, rule, strict_device())
    trained = [param.nbytes for param in executor.net.params() if not param.is_state]
    before = [value.get() for value in executor.net.param_values()]
    planned = {each: executor.memory(each, shapes_of(name, each)) for each in ("train", "infer")}
    # It has changed nothing.
    np.testing.assert_equal([value.get() for value in executor.net.param_values()], before)
    for each, plan in planned.items():
        for seed in range(3):
            executor.run(each, feed_of(name, each, seed))
        told = executor.report(each).as_dict()["bytes"]
        assert told["arena"] == plan.parts["arena"]
        lying = ("parameters", "optimizer state", "other")
        assert told["outside"] == sum(plan.parts[part] for part in lying)
        # Python's objects and the kernels' plans are the host's.
        assert plan.parts["program"] == plan.parts["kernels"] == 0
    assert planned["train"].parts["optimizer state"] == RULES[rule][1] * sum(trained)
    assert planned["infer"].parts["optimizer state"] == 0
    assert planned["infer"].total < planned["train"].total


@pytest.mark.parametrize("name", NETS)
def test_parameters_and_state_are_those_of_the_cpu_and_so_is_training(name, gpu):
    near, far = both = [executor_of(name, device=there) for there in (None, gpu)]
    one, other = (each.memory("train", shapes_of(name, "train")).parts for each in both)
    for part in ("parameters", "optimizer state"):
        assert one[part] == other[part]
    for seed in range(4):  # by the layers, and recorded
        feed = feed_of(name, "train", seed)
        assert near.run("train", feed)[0] == pytest.approx(far.run("train", feed)[0], rel=1e-5)
        far.memory("train", shapes_of(name, "train"))


def test_bad_input_has_its_errors_there():
    executor = executor_of("dense", device=strict_device())
    for program, shapes, kind, words in (
        ("train", {"z": (8, 6)}, UnknownNameError, "'z'"),
        ("trained", {"x": (8, 6)}, UnknownNameError, "expected a program"),
        ("infer", {"x": (8, 7)}, ShapeError, "'x'"),
    ):
        with pytest.raises(kind, match=words):
            executor.memory(program, shapes)
    with communicators(2) as comms:
        alone = executor_of("dense", device=strict_device(), parallel=comms[0])
        with pytest.raises(ArgumentError, match="waits for other processes"):
            alone.memory("train", shapes_of("dense", "train"))
