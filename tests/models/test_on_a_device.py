"""Ready nets on a GPU's arrays: fed from the host they train, predict, and go on as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.models import build, find
from singanet.optimizer import SGD

FULL, SLOW = pytest.mark.full, pytest.mark.slow
IMAGE = (3, 32, 32)
SMALL = {
    "mlp": ((1, 6, 6), {}, ()),
    "lenet": ((1, 12, 12), {}, FULL),
    "alexnet": ((3, 16, 16), {}, FULL),
    "vgg11": (IMAGE, {}, SLOW),
    "resnet20": ((3, 8, 8), {}, ()),
    "preresnet20": ((3, 8, 8), {}, FULL),
    "wrn-16-4": ((3, 8, 8), {}, SLOW),
    "resnet18": (IMAGE, {}, SLOW),
    "resnet50": (IMAGE, {}, SLOW),
    "googlenet": (IMAGE, {}, SLOW),
    "mobilenet": (IMAGE, {}, SLOW),
    "mobilenet_v2": ((3, 16, 16), {"dropout": 0.1}, SLOW),
    "mobilenet_v3_small": ((3, 16, 16), {"dropout": 0.1}, SLOW),
    "efficientnet_b0": ((3, 16, 16), {}, SLOW),
    "densenet121": ((2, 4, 5), {"blocks": (1, 2), "growth": 4}, FULL),
    "vit_tiny": ((1, 4, 4), {"width": 8, "depth": 1, "heads": 2, "dropout": 0.1}, ()),
    "unet": ((1, 5, 4), {"width": 2}, FULL),
    "lstm": ((28, 28), {"hidden": 8, "stacks": 1}, ()),
    "char_rnn": (None, {}, FULL),
    "transformer": (None, {}, FULL),
    "wide_deep": (None, {}, ()),
    "deepfm": (None, {}, FULL),
    "autoencoder": (None, {}, FULL),
}
KINDS, COUNT = 3, 12


def data(name, shape, rng):
    """Inputs and targets of the host."""
    entry = find(name)
    if name in ("char_rnn", "transformer"):
        ids = rng.integers(0, KINDS, (COUNT, *entry.input_shape))
        return ids, rng.integers(0, KINDS, ids.shape)
    if name in ("wide_deep", "deepfm"):
        columns, measures = entry.input_shape
        ids = rng.integers(0, entry.options["vocabulary_size"], (COUNT, columns))
        numbers = rng.standard_normal((COUNT, measures), np.float32)
        return {"categorical": ids, "numeric": numbers}, rng.integers(0, 2, COUNT)
    x = rng.random((COUNT, *(shape or entry.input_shape)), np.float32)
    if name == "autoencoder":
        return x, x
    return x, rng.integers(0, KINDS, (COUNT, *shape[1:]) if name == "unet" else COUNT)


def trained(name, device, folder):
    """Losses, evaluations and predictions of a training that is saved, read, and gone on with."""
    shape, options, _ = SMALL[name]
    classes = find(name).num_classes if shape is None else KINDS
    net = build(name, shape, classes, seed=1, **options)
    # Norms of few samples magnify what float32 rounds.
    net.as_type(np.float64)
    x, y = data(name, shape, np.random.default_rng(3))
    told = []
    for epochs in (1, 2):
        net.to_device(device)
        if epochs == 1:
            net.compile(SGD(lr=0.01, momentum=0.9))
        fitted = net.fit(
            x, y, batch_size=5, epochs=epochs, initial_epoch=epochs - 1, shuffle=False,
            verbose=False,
        )  # fmt: skip
        told += [*fitted["loss"], net.evaluate(x, y).loss, net.evaluate(x, y, batch_size=5).loss]
        path = folder / f"{device.name[:4]}.singanet"
        net.save_model(path)
        net = singanet.load_model(path)
    net.to_device(device)
    made = net.predict(x), net.predict(x, 5), net.predictor()(x)
    return np.array(told), *map(device.ops.host, made)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks) for name, (*_, marks) in SMALL.items()]
)
def test_a_ready_net_trains_there_as_on_the_cpu(name, gpu, tmp_path):
    wanted = trained(name, singanet.device.cpu(), tmp_path)
    for found, told in zip(trained(name, gpu, tmp_path), wanted, strict=True):
        np.testing.assert_allclose(found, told, rtol=1e-6, atol=1e-9)
