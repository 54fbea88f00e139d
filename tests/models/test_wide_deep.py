"""Wide and deep, DeepFM, and the deep and cross network."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ShapeError
from singanet.layers import Input
from singanet.models import build
from singanet.models.tabular import crossed, pairs
from singanet.optimizer import Adam

OPTIONS = {"vocabulary_size": 20, "embedding": 4, "hidden": (8, 6)}
DEEP = (3 * 4 + 2 + 1) * 8 + 9 * 6 + 7 * 2


def rows(rng, count):
    """Rows of three categorical and two numeric columns, and what of them decides the label."""
    categorical = rng.integers([0, 6, 12], [6, 12, 18], (count, 3))
    numeric = rng.standard_normal((count, 2)).astype(np.float32)
    label = ((categorical[:, 0] + categorical[:, 1]) % 2).astype(np.int32)
    return {"categorical": categorical, "numeric": numeric}, label


def test_the_counts_are_those_of_their_matrices(count):
    wide = build("wide_deep", (3, 2), 2, **OPTIONS)
    assert count(wide) == (20 * 2 + 2 * 2 + 20 * 4 + DEEP, 0)
    factors = build("deepfm", (3, 2), 2, **OPTIONS)
    assert count(factors) == (20 * 2 + 4 * 2 + 20 * 4 + DEEP, 0)
    size = 3 * 4 + 2
    crossing = build("dcn", (3, 2), 2, cross=3, **OPTIONS)
    assert count(crossing) == (20 * 4 + 3 * (size * size + size) + size * 2 + DEEP, 0)


def test_the_scores_of_wide_and_deep_are_by_the_formula(rng):
    net = build("wide_deep", (3, 2), 2, seed=0, **OPTIONS)
    p = dict(zip(net.param_names(), net.param_values(), strict=True))
    p["wide/weight"][:] = rng.standard_normal((20, 2))
    x, _ = rows(rng, 5)
    wide = p["wide/weight"][x["categorical"]].sum(axis=1) + x["numeric"] @ p["wide_numeric/weight"]
    vectors = p["embedding/weight"][x["categorical"]].reshape(5, -1)
    h = np.concatenate([vectors, x["numeric"]], axis=1)
    for k in (1, 2):
        h = np.maximum(h @ p[f"deep_fc{k}/weight"] + p[f"deep_fc{k}/bias"], 0)
    deep = h @ p["deep_scores/weight"] + p["deep_scores/bias"]
    np.testing.assert_allclose(net.forward(False, x), wide + deep, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("columns", [1, 2, 5])
def test_pairs_are_the_sum_of_the_products_of_all_pairs(columns, rng):
    vectors = Input("vectors", (columns, 3))
    net = FeedForwardNet(inputs=vectors, outputs=pairs(vectors))
    x = rng.standard_normal((4, columns, 3)).astype(np.float32)
    expected = np.zeros((4, 3))
    for i, j in itertools.combinations(range(columns), 2):
        expected += x[:, i] * x[:, j]
    np.testing.assert_allclose(net.forward(False, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_cross_layers_are_by_the_formula(depth, rng):
    x = Input("x", (5,))
    net = FeedForwardNet(inputs=x, outputs=crossed(x, depth), seed=1)
    given = rng.standard_normal((4, 5)).astype(np.float32)
    expected = given.astype(float)
    for k in range(1, depth + 1):
        weight, bias = (net[f"cross{k}"].params[name].value for name in ("weight", "bias"))
        bias[:] = rng.standard_normal(5)
        expected = given * (expected @ weight + bias) + expected
    np.testing.assert_allclose(net.forward(False, given), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_they_learn_what_two_columns_say_together(name, rng):
    net = build(name, (3, 2), 2, seed=0, dropout=0.0, **OPTIONS)
    x, y = rows(rng, 400)
    optimizer = Adam(lr=0.02)
    for _ in range(150):
        net.step(x, y, optimizer)
    assert net.evaluate(*rows(rng, 400))[1] > 0.95


@pytest.mark.parametrize("name", ["wide_deep", "deepfm", "dcn"])
def test_rows_of_another_shape_are_refused(name):
    with pytest.raises(ShapeError, match=rf"model {name}: expected the shape \(C, D\)"):
        build(name, (1, 28, 28), 2)
