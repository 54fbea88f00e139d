"""Weights under PyTorch's names: turned where they say so, refused where nobody can tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.checkpoint import write_state
from singanet.errors import ArgumentError, StateMismatchError
from singanet.layers import LSTM, Activation, Conv2D, Dense, Flatten

RENAME = {
    "0.weight": "c/weight", "0.bias": "c/bias", "3.weight": "a/weight", "3.bias": "a/bias",
    "5.weight": "b/weight", "5.bias": "b/bias",
}  # fmt: skip


def net(width: int) -> FeedForwardNet:
    parts = [
        Conv2D("c", 4, 3, input_sample_shape=(2, 5, 5)),
        Activation("relu"),
        Flatten("f"),
        Dense("a", width),
        Activation("relu2"),
        Dense("b", 3),
    ]
    return FeedForwardNet(parts, seed=0)


def peer(width: int) -> Any:
    torch = pytest.importorskip("torch")
    return torch.nn.Sequential(
        torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(100, width), torch.nn.ReLU(), torch.nn.Linear(width, 3),
    )  # fmt: skip


@pytest.mark.parametrize("width", [7, 100])
def test_it_predicts_as_pytorch_does(width: int, tmp_path: Path) -> None:
    """A square matrix was taken as it came, and the report said that all fitted."""
    torch = pytest.importorskip("torch")
    theirs, made = peer(width), net(width)
    path = tmp_path / "w.safetensors"
    write_state(path, {k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    report = made.load(path, rename=RENAME, layout="torch")
    assert report.complete
    assert "'3.weight' in PyTorch's layout" in report.table()
    x = np.random.default_rng(0).normal(size=(6, 2, 5, 5)).astype(np.float32)
    np.testing.assert_allclose(
        made.predict(x), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    before = made.predict(x)
    with pytest.raises(ArgumentError if width == 100 else StateMismatchError, match="a/weight"):
        made.load(path, rename=RENAME)
    assert np.array_equal(made.predict(x), before)


def test_ours_under_names_with_dots_is_taken_as_it_is_said(tmp_path: Path) -> None:
    made, path = (
        FeedForwardNet([Dense("a", 4, input_sample_shape=(4,))], seed=0),
        tmp_path / "w.npz",
    )
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    write_state(path, {"a.w": weight, "a.b": np.zeros(4, np.float32)})
    rename = {"a.w": "a/weight", "a.b": "a/bias"}
    made.load(path, rename=rename, layout="singanet")
    assert np.array_equal(made["a"].params["weight"].value, weight)
    made.load(path, rename=rename, layout="torch")
    assert np.array_equal(made["a"].params["weight"].value, weight.T)
    with pytest.raises(ArgumentError, match="'torch', 'singanet' or None"):
        made.load(path, rename=rename, layout="pytorch")


def test_recurrent_weights_are_turned(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LSTM(4, 5, batch_first=True)
    made = FeedForwardNet([LSTM("l", 5, input_sample_shape=(6, 4))], seed=0)
    path = tmp_path / "w.npz"
    write_state(path, {k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    kinds = {
        "weight_ih": "weight_x",
        "weight_hh": "weight_h",
        "bias_ih": "bias_x",
        "bias_hh": "bias_h",
    }
    rename = {f"{k}_l0": f"l/l0/forward/{v}" for k, v in kinds.items()}
    made.load(path, rename=rename, layout="torch")
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    want = theirs(torch.tensor(x))[0].detach().numpy()
    np.testing.assert_allclose(made.predict(x), want, rtol=1e-4, atol=1e-5)
