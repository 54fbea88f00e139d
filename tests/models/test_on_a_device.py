"""Ready nets on a GPU's arrays: fed from the host they train, predict, and go on as on the CPU."""

import gc

import numpy as np
import pytest

import singanet
from singanet.engine.backward import arrays_in
from singanet.layers import Embedding
from singanet.models import build, find
from singanet.optimizer import SGD, Adam
from singanet.program.layout import ALIGNMENT
from singanet.testing import strict_device, watch_device

SLOW = pytest.mark.slow
IMAGE = (3, 32, 32)
SMALL = {
    "mlp": ((1, 6, 6), {}, ()), "lenet": ((1, 12, 12), {}, ()), "alexnet": ((3, 16, 16), {}, ()),
    "vgg11": (IMAGE, {}, SLOW), "resnet20": ((3, 8, 8), {}, ()),
    "preresnet20": ((3, 8, 8), {}, ()), "wrn-16-4": ((3, 8, 8), {}, SLOW),
    "resnet18": (IMAGE, {}, SLOW), "resnet50": (IMAGE, {}, SLOW), "googlenet": (IMAGE, {}, SLOW),
    "mobilenet": (IMAGE, {}, SLOW), "mobilenet_v2": ((3, 16, 16), {"dropout": 0.1}, SLOW),
    "mobilenet_v3_small": ((3, 16, 16), {"dropout": 0.1}, SLOW),
    "efficientnet_b0": ((3, 16, 16), {}, SLOW),
    "densenet121": ((2, 4, 5), {"blocks": (1, 2), "growth": 4}, ()),
    "vit_tiny": ((1, 4, 4), {"width": 8, "depth": 1, "heads": 2, "dropout": 0.1}, ()),
    "unet": ((1, 5, 4), {"width": 2}, ()), "lstm": ((28, 28), {"hidden": 8, "stacks": 1}, ()),
    "char_rnn": (None, {}, ()), "transformer": (None, {}, ()), "wide_deep": (None, {}, ()),
    "deepfm": (None, {}, ()), "autoencoder": (None, {}, ()),
}  # fmt: skip
KINDS, COUNT = 3, 12


def data(name, shape, rng):
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


def trained(name, device, folder, recorded=True):
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
        net.programs.enabled = recorded
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


NAMES = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks) for name, (*_, marks) in SMALL.items()]
)


@pytest.mark.few(2, full=4)
@NAMES
@pytest.mark.parametrize("recorded", [True, False])
def test_a_ready_net_trains_there_as_on_the_cpu(name, recorded, gpu, tmp_path):
    wanted = trained(name, singanet.device.cpu(), tmp_path)
    for found, told in zip(trained(name, gpu, tmp_path, recorded), wanted, strict=True):
        np.testing.assert_allclose(found, told, rtol=1e-6, atol=1e-9)


@pytest.mark.few(2, full=4)
@NAMES
@pytest.mark.parametrize("rule", [SGD, Adam])
def test_a_recorded_step_asks_the_device_for_its_launches_alone(name, rule):
    with watch_device() as memory:
        net, x, y, sent = there(name)
        optimizer = rule(lr=0.01)
        for _ in range(3):
            net.step(x, y, optimizer)
        with watch_device() as step:
            net.step(x, y, optimizer)
        gc.collect()
    report = net.programs.reports()[-1]
    launches = report.launches
    # CuPy's products of stacks by einsum cannot be captured: those of convolutions by channels.
    products = sum(kernel.name == "einsum" for kernel in report.kernels)
    assert (step.graphs, products) == (launches.graphs, launches.singly), str(report)
    # Draws would be kernels of CUDA's, which these arrays have not. Adam's rates are others.
    assert step.to_device == launches.draws + (rule is Adam)
    assert (step.to_host, step.waits) == (0, 0)
    assert step.reads == looks(net), step.places
    # What was handed out is what is told, to the byte.
    assert step.live_bytes == 0
    more = memory.live_bytes - sent - report.peak_bytes - ALIGNMENT
    # State of rows, which Python updates, is no buffer of the program.
    assert more == 0 or (tables(net) and rule is Adam and more > 0)


def looks(net):
    """What the host looks at in a recorded step."""
    # The loss; labels for the loss and for the metric, and the metric; indices, and which differ.
    return 1 + (0 if net.metric is None else 3) + 2 * tables(net)


def tables(net):
    """How many layers look rows up in a table."""
    return sum(isinstance(layer, Embedding) for layer in net.layers)


def there(name):
    """A net on a strict device, a batch there, and the bytes of the batch."""
    shape, options, _ = SMALL[name]
    net = build(name, shape, find(name).num_classes if shape is None else KINDS, seed=1, **options)
    net.to_device(strict_device())
    x, y = data(name, shape, np.random.default_rng(3))
    put = net.device.put
    x, y = {key: put(part) for key, part in x.items()} if isinstance(x, dict) else put(x), put(y)
    return net, x, y, sum(array.nbytes for array in arrays_in((x, y)))
