"""Ready nets for texts, sequences, tables and samples of any shape."""

import itertools

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ShapeError, UnknownNameError
from singanet.layers import Input
from singanet.models import build
from singanet.models.tabular import crossed, pairs
from singanet.optimizer import Adam

TABULAR = {"vocabulary_size": 20, "embedding": 4, "hidden": (8, 6)}
DEEP = (3 * 4 + 2 + 1) * 8 + 9 * 6 + 7 * 2
CROSSED = 3 * 4 + 2


def block(width, inner, kv):
    """Numbers of a transformer's block: attention, two norms, two dense layers."""
    attention = 2 * (width * width + width) + 2 * (width * kv + kv)
    return attention + 4 * width + width * inner + inner + inner * width + width


COUNTS = [
    ("transformer", ((20,), 50), {"width": 16, "depth": 3, "heads": 2},
     50 * 16 + 20 * 16 + 3 * block(16, 64, 16) + 2 * 16 + 17 * 50),
    # Rotary and tied: there is no table but the embedding.
    ("transformer_lm", ((20,), 50), {"width": 16, "depth": 3, "heads": 4, "kv_heads": 2},
     50 * 16 + 3 * block(16, 64, 8) + 2 * 16 + 50),
    *(
        ("char_rnn", ((20,), 50), {"hidden": 32, "stacks": stacks, "embedding": 8},
         50 * 8 + sum(4 * 32 * (into + 32 + 2) for into in (8, 32)[:stacks]) + 33 * 50)
        for stacks in (1, 2)
    ),
    *(
        ("lstm", (shape, 3), {"hidden": 8, "bidirectional": True},
         2 * 4 * 8 * (features + 8 + 2) + 17 * 3)
        for shape, features in (((7, 5), 5), ((3, 7, 4), 12), ((6,), 1), ((1, 1), 1))
    ),
    ("wide_deep", ((3, 2), 2), TABULAR, 20 * 2 + 2 * 2 + 20 * 4 + DEEP),
    ("deepfm", ((3, 2), 2), TABULAR, 20 * 2 + 4 * 2 + 20 * 4 + DEEP),
    ("dcn", ((3, 2), 2), {"cross": 3, **TABULAR},
     20 * 4 + 3 * (CROSSED * CROSSED + CROSSED) + CROSSED * 2 + DEEP),
    ("mlp", ((2, 3, 4), 5), {"hidden": (7, 6)}, 25 * 7 + 8 * 6 + 7 * 5),
    ("autoencoder", ((2, 5),), {"hidden": (8, 6), "code": 3},
     sum((a + 1) * b for a, b in itertools.pairwise((10, 8, 6, 3, 6, 8, 10)))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "options", "numbers"), COUNTS)
def test_the_counts_are_those_of_the_matrices(name, given, options, numbers, count):
    assert count(build(name, *given, **options)) == (numbers, 0)


# -- texts ----------------------------------------------------------------------------------

TEXTS = {
    "transformer": {"width": 8, "heads": 2},
    "transformer_lm": {"width": 8, "heads": 2},
    "char_rnn": {"hidden": 8},
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_character_depends_on_those_before_it_alone(name, rng):
    net = build(name, (6,), 5, seed=0, **TEXTS[name])
    ids = rng.integers(0, 5, (2, 6))
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 5
    a, b = net.forward(False, ids), net.forward(False, changed)
    assert a.shape == (2, 6, 5)
    exact = name == "char_rnn"
    np.testing.assert_allclose(a[:, :4], b[:, :4], rtol=0, atol=0 if exact else 1e-6)
    assert (abs(a[:, 4:] - b[:, 4:]).max(axis=2) > (0 if exact else 1e-3)).all()


@pytest.mark.parametrize(
    ("name", "options", "rate", "steps"),
    [("transformer", {"width": 16, "depth": 1}, 0.01, 80),
     ("transformer_lm", {"width": 16, "depth": 1}, 0.01, 80),
     ("char_rnn", {"hidden": 16}, 0.02, 60)],
)  # fmt: skip
def test_it_learns_a_text_that_repeats(name, options, rate, steps):
    net = build(name, (8,), 3, seed=0, dropout=0.0, **options)
    text = np.tile([0, 1, 2, 1], 9)
    x, y = text[:32].reshape(4, 8), text[1:33].reshape(4, 8)
    optimizer = Adam(lr=rate)
    for _ in range(steps):
        loss, accuracy = net.step(x, y, optimizer)
    # The character after a 1 at the very start of a stretch cannot be known.
    assert loss < 0.2
    assert accuracy > 0.9


def test_positions_are_learned_or_rotary():
    with pytest.raises(UnknownNameError, match="positions: expected 'learned' or 'rotary'"):
        build("transformer", (6,), 5, positions="sines")


def test_outputs_equal_a_gpt_of_pytorch(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    net = build("transformer_lm", (7,), 11, seed=0, width=16, depth=2, heads=4, kv_heads=2)
    for param in net.params():
        param.value[...] += 0.1 * rng.standard_normal(param.shape)
    w = {param.name: torch.tensor(param.value) for param in net.params()}

    def norm(x, name):
        return torch.nn.functional.layer_norm(x, (16,), w[f"{name}/gamma"], w[f"{name}/beta"], 1e-5)

    def linear(x, name, part=""):
        return x @ w[f"{name}/{part}weight"] + w[f"{name}/{part}bias"]

    def heads(x, name, part, count):
        return linear(x, name, f"{part}_").reshape(2, 7, count, 4).transpose(1, 2)

    def rotated(x):
        angle = torch.outer(torch.arange(7.0), 10000.0 ** (-torch.arange(2.0) / 2))
        turns = torch.polar(torch.ones_like(angle), angle)
        z = torch.complex(x[..., :2].contiguous(), x[..., 2:].contiguous()) * turns
        return torch.cat([z.real, z.imag], dim=-1)

    ids = rng.integers(0, 11, (2, 7))
    x = w["embedding/weight"][torch.tensor(ids)]
    for block in ("block1", "block2"):
        name = f"{block}_attention"
        y = norm(x, f"{name}_norm")
        q, k, v = (heads(y, name, part, n) for part, n in (("query", 4), ("key", 2), ("value", 2)))
        seen = torch.nn.functional.scaled_dot_product_attention(
            rotated(q), rotated(k), v, is_causal=True, enable_gqa=True
        )
        x = x + linear(seen.transpose(1, 2).reshape(2, 7, 16), name, "output_")
        y = linear(norm(x, f"{block}_dense_norm"), f"{block}_dense1")
        x = x + linear(torch.nn.functional.gelu(y), f"{block}_dense2")
    want = norm(x, "norm") @ w["embedding/weight"].T + w["fc/bias"]
    np.testing.assert_allclose(net.forward(False, ids), want.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 4), (6,), (1, 1)])
def test_samples_are_read_step_by_step_and_images_row_by_row(shape, rng):
    net = build("lstm", shape, 3, seed=0, hidden=8, bidirectional=True)
    x = rng.standard_normal((2, *shape)).astype(np.float32)
    made = net.forward(False, x, output=["sequence"] if len(shape) == 3 else ())
    if len(shape) == 3:
        for row in range(shape[1]):
            np.testing.assert_array_equal(made["sequence"][:, row], x[:, :, row].reshape(2, -1))
    else:
        assert made.shape == (2, 3)


# -- tables ---------------------------------------------------------------------------------


def rows(rng, count):
    """Rows of three categorical and two numeric columns; two columns decide the label."""
    categorical = rng.integers([0, 6, 12], [6, 12, 18], (count, 3))
    numeric = rng.standard_normal((count, 2)).astype(np.float32)
    label = ((categorical[:, 0] + categorical[:, 1]) % 2).astype(np.int32)
    return {"categorical": categorical, "numeric": numeric}, label


def test_the_scores_of_wide_and_deep_are_by_the_formula(rng):
    net = build("wide_deep", (3, 2), 2, seed=0, **TABULAR)
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
    net = build(name, (3, 2), 2, seed=0, dropout=0.0, **TABULAR)
    x, y = rows(rng, 400)
    optimizer = Adam(lr=0.02)
    for _ in range(150):
        net.step(x, y, optimizer)
    assert net.evaluate(*rows(rng, 400))[1] > 0.95
    with pytest.raises(ShapeError, match=rf"model {name}: expected the shape \(C, D\)"):
        build(name, (1, 28, 28), 2)


# -- samples of any shape -------------------------------------------------------------------


def test_mlp_flattens_samples_of_any_shape(rng):
    net = build("mlp", (2, 3, 4), 5, hidden=(7, 6))
    x = rng.standard_normal((3, 2, 3, 4)).astype(np.float32)
    w1, b1, w2, b2, w3, b3 = net.param_values()
    h = np.maximum(np.maximum(x.reshape(3, -1) @ w1 + b1, 0) @ w2 + b2, 0)
    np.testing.assert_allclose(net.forward(False, x), h @ w3 + b3, rtol=1e-5, atol=1e-6)


def test_autoencoder_learns_samples_that_are_made_of_a_few_numbers(rng):
    assert build("autoencoder", (2, 5), hidden=(8, 6), code=3)["code"].out_shapes == (3,)
    basis = rng.standard_normal((2, 12))
    x = (rng.standard_normal((200, 2)) @ basis).reshape(200, 3, 4).astype(np.float32)
    net = build("autoencoder", (3, 4), seed=0, hidden=(32,), code=2)
    optimizer = Adam(lr=0.01)
    start = net.evaluate(x, x)[0]
    for _ in range(200):
        net.step(x, x, optimizer)
    assert net.evaluate(x, x)[0] < 0.05 * start
    assert net.predict(x).shape == x.shape
