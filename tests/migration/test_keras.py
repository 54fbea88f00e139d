"""Every row of the guide from Keras, run beside the installed Keras."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.migration.rows import Compared, Guide

keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
torch = pytest.importorskip("torch")

GUIDE = Guide("keras.md", keras)
LAYERS = "keras.layers"
FEW, MANY = 3, 40
row = GUIDE.case


def first(x):
    """Channels last as channels first, of images and volumes alone."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if x.ndim > 3 else x


@dataclass
class Model:
    """A Keras layer as a model."""

    layer: Any
    shapes: list
    dtype: str = "float32"
    files: str = ".weights.h5"

    def __post_init__(self):
        inputs = [keras.Input(shape, dtype=self.dtype) for shape in self.shapes]
        self.model = keras.Model(inputs, self.layer(inputs if len(inputs) > 1 else inputs[0]))

    def __call__(self, *xs):
        return self.model(xs if len(xs) > 1 else xs[0], training=True)

    def save(self, path):
        self.model.save_weights(path)

    def load(self, path):
        self.model.load_weights(path)

    def weights(self):
        return {v.path: v.value for v in self.model.weights if "seed" not in v.path}

    def trained(self):
        return {v.path: v.value for v in self.model.trainable_variables}


@pytest.fixture
def same(tmp_path):
    """Compare our layer with theirs on arrays as Keras has them."""

    def compare(ours, layer, *xs, turn=first, **how):
        dtype = "int32" if xs[0].dtype.kind == "i" else "float32"
        theirs = Model(layer, [x.shape[1:] for x in xs], dtype)
        rng = np.random.default_rng(0)
        for weight in theirs.weights().values():
            weight.data.add_(torch.tensor(rng.uniform(0.0, 0.3, tuple(weight.shape)).astype("f")))
        Compared(tmp_path, turn, turn, **how).layers(ours, theirs, *xs)

    return compare


@row(LAYERS, "Dense", units=[1, 4], use_bias=[True, False])
def check_dense(pair, same):
    shape = pair.pick((5,), (3, 5))
    same(pair.ours(), pair.theirs(), pair.normal(6, *shape), turn=lambda x: x)


@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row(heading, theirs, number, same):
    GUIDE.run(heading, theirs, number, range(FEW), same)


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row_often(heading, theirs, number, same):
    GUIDE.run(heading, theirs, number, range(FEW, MANY), same)
