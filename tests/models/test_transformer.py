"""The causal transformer."""

from __future__ import annotations

import numpy as np
import pytest

from singanet.errors import UnknownNameError
from singanet.models import build
from singanet.optimizer import Adam


def test_the_count_is_that_of_its_matrices(count):
    net = build("transformer", (20,), 50, width=16, depth=3, heads=2)
    block = 4 * (16 * 16 + 16) + 2 * 2 * 16 + 16 * 64 + 64 + 64 * 16 + 16
    assert count(net) == (50 * 16 + 20 * 16 + 3 * block + 2 * 16 + 17 * 50, 0)


def test_rotary_and_tied_nets_have_no_table_but_the_embedding(count):
    net = build("transformer_lm", (20,), 50, width=16, depth=3, heads=4, kv_heads=2)
    attention = 2 * (16 * 16 + 16) + 2 * (16 * 8 + 8)
    block = attention + 2 * 2 * 16 + 16 * 64 + 64 + 64 * 16 + 16
    assert count(net) == (50 * 16 + 3 * block + 2 * 16 + 50, 0)


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

    def transposed(x):
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
            transposed(q), transposed(k), v, is_causal=True, enable_gqa=True
        )
        x = x + linear(seen.transpose(1, 2).reshape(2, 7, 16), name, "output_")
        y = linear(norm(x, f"{block}_dense_norm"), f"{block}_dense1")
        x = x + linear(torch.nn.functional.gelu(y), f"{block}_dense2")
    want = norm(x, "norm") @ w["embedding/weight"].T + w["fc/bias"]
    np.testing.assert_allclose(net.forward(False, ids), want.numpy(), rtol=1e-4, atol=1e-4)


def test_positions_are_learned_or_rotary():
    with pytest.raises(UnknownNameError, match="positions: expected 'learned' or 'rotary'"):
        build("transformer", (6,), 5, positions="sines")


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_a_character_depends_on_those_before_it_alone(model, rng):
    net = build(model, (6,), 5, seed=0, width=8, heads=2)
    ids = rng.integers(0, 5, (2, 6))
    changed = ids.copy()
    changed[:, 4] = (changed[:, 4] + 1) % 5
    a, b = net.forward(False, ids), net.forward(False, changed)
    assert a.shape == (2, 6, 5)
    np.testing.assert_allclose(a[:, :4], b[:, :4], rtol=0, atol=1e-6)
    assert (abs(a[:, 4:] - b[:, 4:]).max(axis=2) > 1e-3).all()


@pytest.mark.parametrize("model", ["transformer", "transformer_lm"])
def test_it_learns_a_text_that_repeats(model):
    net = build(model, (8,), 3, seed=0, width=16, depth=1, dropout=0.0)
    text = np.tile([0, 1, 2, 1], 9)
    x, y = text[:32].reshape(4, 8), text[1:33].reshape(4, 8)
    optimizer = Adam(lr=0.01)
    for _ in range(80):
        loss, accuracy = net.step(x, y, optimizer)
    assert loss < 0.2
    assert accuracy > 0.9
