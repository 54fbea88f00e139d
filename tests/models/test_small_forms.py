"""Nets for large images in forms of few numbers: gradients, recorded steps, memory told before."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest

from singanet.models import build
from singanet.optimizer import SGD, Adam
from tests.program.twins import Twins

LARGE = pytest.mark.slow
FORMS = {
    "vgg11": ((1, 4, 4), {}, LARGE),
    "mobilenet_v2": ((1, 4, 4), {"dropout": 0.1}, LARGE),
    "mobilenet_v3_small": ((1, 4, 4), {"dropout": 0.1}, LARGE),
    "mobilenet_v3_large": ((1, 4, 4), {}, LARGE),
    "efficientnet_b0": ((1, 4, 4), {}, LARGE),
    "densenet121": ((2, 4, 5), {"blocks": (1, 2), "growth": 4}, ()),
    "vit_tiny": ((1, 4, 4), {"width": 8, "depth": 1, "heads": 2, "dropout": 0.1}, ()),
    "unet": ((1, 5, 4), {"width": 2}, ()),
}
forms = pytest.mark.parametrize(
    ("name", "shape", "options"),
    [pytest.param(name, *form, marks=marks) for name, (*form, marks) in FORMS.items()],
)


def batch(name, shape, size=2):
    """Images and labels, of U-Net for every pixel."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((size, *shape), np.float32)
    return x, rng.integers(0, 3, (size, *shape[1:]) if name == "unet" else size)


@forms
def test_the_slope_is_that_of_differences(name, shape, options):
    net = build(name, shape, 3, seed=3, **options)
    net.as_type(np.float64)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, *shape))
    params = {p.name: p for p in net.params() if not p.is_state}
    for p in params.values():
        # Factors of zero put what is behind them on the kink of a relu.
        p.value += 0.1 * rng.standard_normal(p.shape) * (p.value.ndim == 1)
    along = {key: rng.standard_normal(p.shape) for key, p in params.items()}
    length = np.sqrt(sum((v**2).sum() for v in along.values()))
    y = net._execution_plan().outputs[0]
    dy = rng.standard_normal(net.forward(False, x).shape)
    found = net.gradients(y, list(along), x, dy)
    slope = sum(float((found[key] * v).sum()) for key, v in along.items()) / length
    starts = {key: p.value.copy() for key, p in params.items()}

    def value(step):
        for key, p in params.items():
            p.value[...] = starts[key] + step / length * along[key]
        return float((net.forward(False, x) * dy).sum())

    assert slope == pytest.approx((value(1e-6) - value(-1e-6)) / 2e-6, rel=1e-5, abs=1e-6)


@forms
def test_recorded_steps_are_those_of_the_layers(name, shape, options):
    twins = Twins(lambda: build(name, shape, 3, seed=0, **options), lambda: Adam(lr=0.01))
    x, y = batch(name, shape)
    for _ in range(3):
        twins.step(x, y)
    twins.forward(False, x)
    assert not twins.recorded.programs.refusals
    assert not twins.recorded.programs.notes


@pytest.mark.slow
@forms
def test_the_memory_of_a_step_is_told_before(name, shape, options):
    x, y = batch(name, shape, 16)
    gc.collect()
    tracemalloc.start()
    try:
        net, optimizer = build(name, shape, 3, seed=0, **options), SGD(lr=0.1)
        for _ in range(2):
            net.step(x, y, optimizer)
        gc.collect()
        tracemalloc.reset_peak()
        net.step(x, y, optimizer)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    parts = net.memory(16, optimizer).parts
    told = sum(size for part, size in parts.items() if part not in ("first step", "kernels"))
    # Beside it are the net's other objects, some kB a layer and a call of the program.
    assert 0.95 * told <= measured <= 1.05 * told + 12_000 * len(net.nodes())
