"""Graphs that Keras writes: as in ONNX Runtime, trained on, and written again."""

import numpy as np
import pytest

from singanet import layers
from singanet.loss import SquaredError
from singanet.onnx import load, save
from singanet.optimizer import Adam
from tests.onnx.runtime import checked, running

keras_models = pytest.importorskip("tests.onnx.keras_models", exc_type=ImportError)

QUICK = ("mobile", "attention")
NAMES = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
    for name in keras_models.MODELS
]


def there(path, x, count):
    """What ONNX Runtime makes of ``x``, ``count`` samples at a time."""
    runs, (port,) = running(path), checked(path).graph.input
    parts = [runs({port.name: x[k : k + count]}) for k in range(0, len(x), count)]
    return np.concatenate([next(iter(part.values())) for part in parts])


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize("name", NAMES)
def test_what_keras_writes_predicts_trains_and_goes_out_again(name, tmp_path):
    path = tmp_path / "net.onnx"
    x, theirs = keras_models.export(name, path)
    wanted = there(path, x, 1 if name in keras_models.FIXED else len(x))
    close(wanted, theirs, 1e-5)
    net = load(path, seed=0)
    close(net.forward(False, x), wanted, 1e-4)
    net.loss, adam = SquaredError(), Adam(lr=1e-3)
    losses = [net.step(x, np.zeros_like(wanted), adam)[0] for _ in range(6)]
    assert losses[-1] < losses[0]
    assert net.programs.notes == []
    save(net, path)
    found = net.forward(False, x)
    close(there(path, x, len(x)), found, 1e-5)
    close(load(path).forward(False, x), found, 1e-5)
    assert np.abs(found - wanted).max() > 0


@pytest.mark.parametrize(
    "name", ["attention", pytest.param("cross attention", marks=pytest.mark.slow)]
)
def test_its_attention_is_a_layer_with_as_many_parameters(name, tmp_path):
    keras_models.export(name, tmp_path / "net.onnx")
    model, _ = keras_models.made(name)
    net = load(tmp_path / "net.onnx")
    assert any(isinstance(layer, layers.MultiHeadAttention) for layer in net.layers)
    sizes = [param.value.size for param in net.params() if param.trainable]
    assert sum(sizes) == model.count_params()
