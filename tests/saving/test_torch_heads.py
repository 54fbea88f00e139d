"""Attention that PyTorch has no module for: grouped heads, biases by part, norms, wide heads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers
from singanet.checkpoint import open_state, write_state

KINDS = {
    "grouped": {"num_kv_heads": 2, "use_bias": False},
    "grouped with biases": {"num_kv_heads": 1},
    "biases by part": {"use_bias": ("query", "key", "value")},
    "norm": {"norm": layers.QueryKeyNorm(), "use_bias": False},
    "norm of all heads": {"norm": layers.QueryKeyNorm(joint=True), "num_kv_heads": 2},
    "relative": {"relative": layers.RelativePositions(8, 20)},
    "wide": {"key_dim": 3, "value_dim": 5},
}


def net_of(seed: int, block: str = "model/layers/{}/self_attn", **given: object) -> FeedForwardNet:
    x = y = Input("x", (5, 8))
    for k in range(2):
        y = layers.MultiHeadAttention(block.format(k), 4, **given)(y)
    net = FeedForwardNet(inputs=x, outputs=layers.Dense("head", 3)(y), seed=seed)
    rng = np.random.default_rng(seed)
    for param in net.params():
        param.value[...] = rng.standard_normal(param.shape)
    return net


@pytest.mark.parametrize("kind", KINDS)
def test_heads_go_there_and_back(kind: str, tmp_path: Path) -> None:
    net, path = net_of(0, **KINDS[kind]), tmp_path / "m.safetensors"
    net.save(path, layout="torch")
    again = net_of(1, **KINDS[kind])
    assert again.load(path, layout="torch").complete
    for ours, theirs in zip(net.params(), again.params(), strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)


def test_names_and_layouts_are_those_of_published_decoders(tmp_path: Path) -> None:
    given = {"num_kv_heads": 2, "norm": layers.QueryKeyNorm()}
    net, path = net_of(0, "{}", use_bias=("query", "key"), **given), tmp_path / "m.npz"
    net.save(path, layout="torch", rename={"0": "model.layers.0.self_attn"})
    with open_state(path) as reader:
        found = dict(reader)
    at = "model.layers.0.self_attn"
    assert {name.removeprefix(f"{at}.") for name in found if name.startswith(at)} == {
        "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "v_proj.weight",
        "o_proj.weight", "q_norm.weight", "k_norm.weight",
    }  # fmt: skip
    params = net["0"].params
    np.testing.assert_array_equal(found[f"{at}.k_proj.weight"], params["key_weight"].value.T)
    assert found[f"{at}.k_proj.weight"].shape == (4, 8)
    np.testing.assert_array_equal(found[f"{at}.q_norm.weight"], params["query_gamma"].value)


def test_gated_units_are_those_of_published_decoders(tmp_path: Path) -> None:
    def made(seed: int) -> FeedForwardNet:
        x = Input("x", (4,))
        return FeedForwardNet(inputs=x, outputs=layers.GatedUnit("mlp", 6, 4)(x), seed=seed)

    net, again, path = made(0), made(1), tmp_path / "m.npz"
    net.save(path, layout="torch")
    with open_state(path) as reader:
        found = dict(reader)
    assert {name: array.shape for name, array in found.items()} == {
        "mlp.gate_proj.weight": (6, 4), "mlp.up_proj.weight": (6, 4),
        "mlp.down_proj.weight": (4, 6),
    }  # fmt: skip
    assert again.load(path, layout="torch").complete
    for ours, theirs in zip(net.params(), again.params(), strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)


def test_a_shard_has_some_of_the_modules(tmp_path: Path) -> None:
    net, path = net_of(0, num_kv_heads=2), tmp_path / "m.npz"
    net.save(path, layout="torch")
    with open_state(path) as reader:
        some = {name: array for name, array in reader if ".1." in name}
    write_state(path, some)
    again = net_of(1, num_kv_heads=2)
    kept = [value.copy() for value in again["model/layers/0/self_attn"].param_values()]
    report = again.load(path, layout="torch", strict=False)
    assert len(report.matched) == 8
    for name, want in net["model/layers/1/self_attn"].params.items():
        got = again["model/layers/1/self_attn"].params[name].value
        np.testing.assert_array_equal(got, want.value)
    for value, before in zip(again["model/layers/0/self_attn"].param_values(), kept, strict=True):
        np.testing.assert_array_equal(value, before)


def test_dense_layers_of_these_names_stay_dense_layers(tmp_path: Path) -> None:
    names = [f"att/{part}_proj" for part in "qkvo"]
    x = Input("x", (6,))
    parts = [layers.Dense(name, 6)(x) for name in names]
    net = FeedForwardNet(inputs=x, outputs=parts, seed=0)
    net.save(tmp_path / "m.npz", layout="torch")
    again = FeedForwardNet(
        inputs=(z := Input("x", (6,))), outputs=[layers.Dense(name, 6)(z) for name in names], seed=1
    )
    assert again.load(tmp_path / "m.npz", layout="torch").complete
    for ours, theirs in zip(net.params(), again.params(), strict=True):
        np.testing.assert_array_equal(ours.value, theirs.value)
