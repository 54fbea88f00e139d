"""Every row of the guide from SINGA runs, and does what is said of it."""

import inspect
import re

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, data, layers, loss, metric, optimizer
from singanet.data import transforms
from tests.migration.rows import PAGES

TEXT = (PAGES / "singa.md").read_text("utf-8")
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", TEXT, re.M)
CHECKS = {}
W = {"init": "gaussian", "mean": 0, "std": 0.01}


def row(*starts):
    def register(check):
        CHECKS.update(dict.fromkeys(starts, check))
        return check

    return register


def lenet():
    parts = [
        layers.Conv2D("conv", 4, 3, W_specs=W, input_sample_shape=(1, 8, 8)),
        layers.MaxPooling2D("pool", 3, 2), layers.Flatten("flat"),
        layers.Dense("ip", 10, W_specs=W),
    ]  # fmt: skip
    net = FeedForwardNet(loss.SoftmaxCrossEntropy(), metric.Accuracy(), seed=0)
    for part in parts:
        net.add(part)
    rng = np.random.default_rng(0)
    return net, rng.normal(size=(6, 1, 8, 8)).astype("f"), rng.integers(0, 10, 6)


@row("`from singa import net, layer", "`tensor.Tensor`, `tensor.from_numpy`")
def imports(tmp_path):
    net, x, _ = lenet()
    assert type(net.forward(False, x)) is np.ndarray


@row("`ffnet.add(layer, src)`", "`Split` wherever an output is used twice")
def sources(tmp_path):
    x = np.arange(10, dtype="f").reshape(2, 5)
    net = FeedForwardNet(seed=0)
    first = net.add(layers.Dense("fc", 5, input_sample_shape=(5,)))
    net.add(layers.Slice("cut", 1, [2]), first)
    net.add(layers.Activation("a1", "tanh"), ("cut", 1))
    net.add(layers.Activation("a2", "relu"), "a1")
    split = net.add(layers.Split("split", 2), "a2")
    net.add(layers.Merge("merge"), [split, "a2"])
    whole = net.forward(False, x, ["cut", "merge"])
    wanted = 2 * np.maximum(np.tanh(whole["cut"][1]), 0)
    np.testing.assert_allclose(whole["merge"], wanted, rtol=1e-6)


@row("`ffnet.to_device(device.create_cuda_gpu())`", "`opt.DistOpt(sgd)` and its four updates")
@row("`sonnx.prepare(model).run(x)`", "`converter.CaffeConverter`")
def names_alone(tmp_path):
    """Other tests run these."""
    for path in re.findall(r"singanet\.(\w+)\.(\w+)\(", "".join(code for _, code in ROWS)):
        assert callable(getattr(getattr(singanet, path[0]), path[1])), path
    assert callable(singanet.parallel.AllReduce)


@row("`W_specs={'init': 'gaussian'")
def filled(tmp_path):
    layer = layers.Dense("fc", 300, W_specs=W, input_sample_shape=(200,))
    assert layer.params["weight"].value.std() == pytest.approx(0.01, rel=0.05)
    net, x, _ = lenet()
    for value, spec in zip(net.param_values(), net.param_specs(), strict=True):
        value[...] = 0.5 if spec.name.endswith("weight") else 0.0
    assert np.ptp(net.forward(False, x), axis=1).max() < 1e-4


@row("`ffnet.forward(flag, x)`, `backward(dy)`", "`for names, values, grads, layer_grads in")
def passes(tmp_path):
    net, x, y = lenet()
    for flag in (True, singanet.kTrain):
        net.loss.forward(flag, net.forward(flag, x), y)
        mean = net.loss.backward()
    net.forward(singanet.kEval, x)
    summed = loss.SoftmaxCrossEntropy(reduction="sum")
    summed.forward(True, net.forward(True, x), y)
    np.testing.assert_allclose(summed.backward(), 6 * mean, rtol=1e-4, atol=1e-7)
    seen = {}
    for item in net.backward(mean, ["flat", "ip"]):
        names, values, grads = item
        assert len(names) == len(values) == len(grads)
        seen = item.output_grads
    assert {*seen} == {"flat", "ip"}
    np.testing.assert_array_equal(seen["ip"], mean)


@row('`forward(True, {"b": data})`')
def fed_inside(tmp_path):
    net = FeedForwardNet(seed=0)
    net.add(layers.Dense("a", 3, input_sample_shape=(4,)))
    net.add(layers.Dummy("more", (2,)), [])
    net.add(layers.Concat("both", 1), ["a", "more"])
    net.add(layers.Dense("b", 2))
    feed = {"a": np.ones((5, 4), "f"), "more": np.ones((5, 2), "f")}
    assert net.forward(True, feed).shape == (5, 2)


@row("`ffnet.train(x, y)` → gradients", "`opt.apply_with_lr(epoch, lr, g, p, name, step)`")
@row("`optimizer.SGD(...)` called once a parameter")
def loops(tmp_path):
    """Three ways to one training."""
    made = []
    for way in ("apply", "update", "step"):
        net, x, y = lenet()
        opt = optimizer.SGD(lr=0.1, momentum=0.9)
        for step in range(3):
            if way == "step":
                net.step(x, y, opt)
                continue
            grads, (value, accuracy) = net.train(x, y)
            names, values = net.param_names(), net.param_values()
            assert [g.shape for g in grads] == [v.shape for v in values]
            assert value > 0 <= accuracy
            if way == "update":
                opt.update(names, values, grads)
            for name, p, g in zip(names, values, grads, strict=True):
                if way == "apply":
                    opt.apply_with_lr(0, 0.1, g, p, name, step)
        made.append(np.concatenate([v.ravel() for v in net.param_values()]))
    np.testing.assert_allclose(made[1:], [made[0]] * 2, rtol=1e-5, atol=1e-7)
    falling = optimizer.SGD(lr=optimizer.schedules.Step(0.1, every=2))
    lenet()[0].step(*lenet()[1:], falling)


@row("`MaxPooling2D('pool', 3)`, stride 2 by default")
def pooling(tmp_path):
    for stride, found in (([], (3, 3)), ([2], (2, 2))):
        pool = layers.MaxPooling2D("pool", 3, *stride, input_sample_shape=(1, 9, 9))
        assert pool.window.stride == found


@row("`forward(..., freeze=layer)` of 1.2")
def freezing(tmp_path):
    net, x, y = lenet()
    net.freeze("ip")
    before = [value.copy() for value in net.param_values()]
    net.step(x, y, optimizer.SGD(lr=1.0))
    moved = [not np.array_equal(a, b) for a, b in zip(before, net.param_values(), strict=True)]
    assert moved == [False, False, True, True]


@row("`snapshot.Snapshot`, `ffnet.save(f)`, `load(f)`")
def files(tmp_path):
    net, x, _ = lenet()
    net.save(str(tmp_path / "model"))
    assert {p.suffix for p in tmp_path.iterdir()} == {".bin", ".desc"}
    net.save(str(tmp_path / "model.pickle"))
    for name in ("model", "model.pickle"):
        other = lenet()[0]
        for value in other.param_values():
            value[...] = 1.0
        assert other.load(str(tmp_path / name)).complete
        np.testing.assert_array_equal(other.forward(False, x), net.forward(False, x))


@row("`RNN`, `LSTM`, `GRU` on cuDNN, one packed `weight`")
def recurrent(tmp_path):
    for kind in (layers.LSTM, layers.GRU):
        layer = kind("rnn", 3, input_sample_shape=(4, 2))
        packed = layer.pack()
        assert packed.ndim == 1
        layer.unpack(packed[::-1].copy())
        np.testing.assert_array_equal(layer.pack(), packed[::-1])


@row("`data.ImageBatchIter`, `image_tool.ImageTool`")
def images(tmp_path):
    assert "(#images)" in dict(ROWS)["`data.ImageBatchIter`, `image_tool.ImageTool`"]


# --- images ---------------------------------------------------------------------------------------

IMAGES = re.findall(r"^\| (`.*?) \| (.*) \|$", TEXT.partition("\n## Images\n")[2], re.M)
CODED = [
    (theirs, code)
    for theirs, ours in IMAGES
    for code in re.findall(r"`([^`]*\([^`]*)`", ours)
    if not code.startswith(("for ", "transforms=", "FolderLoader"))
]


@pytest.mark.parametrize(("theirs", "code"), CODED)
def test_a_row_of_images(theirs, code, tmp_path, monkeypatch):
    """The code of the row is a transform, or gives an image or a list of them."""
    monkeypatch.chdir(tmp_path)
    image = pytest.importorskip("PIL.Image")
    scipy = pytest.importorskip("scipy")
    pytest.importorskip("scipy.ndimage")
    image.new("RGB", (16, 12), (9, 80, 200)).save("x.png")
    img = data.read_image("x.png")
    names = {
        **vars(transforms), "np": np, "numpy": np, "scipy": scipy, "singanet": singanet, "img": img,
        "rng": np.random.default_rng(0), "random": __import__("random"), "path": "x.png",
        "grayscale": False, "s": 8, "h": 6, "w": 7, "a": 8, "b": 10, "c": 8, "d": 10,
        "position": "left_top", "scale": 0.2, "offset": 20, "items": [1, 2, 3], "n": 2,
    }  # fmt: skip
    found = eval(code, names)  # noqa: S307 - the guide's code is the project's own
    found = found(img, names["rng"]) if inspect.isfunction(found) else found
    if "random.sample" in code:
        assert len(found) == 2
        return
    for each in found if isinstance(found, list) else [found]:
        assert each.shape[0] == 3
        assert each.dtype == img.dtype
    size = re.search(r"size=\((\w), (\w)\)", code)
    if size:
        assert found.shape[1:] == (names[size[1]], names[size[2]])


@row(*(theirs for theirs, _ in IMAGES))
def of_images(tmp_path):
    """`test_a_row_of_images` and the code of the page."""


@pytest.mark.parametrize(("theirs", "ours"), ROWS, ids=lambda cell: cell[:30])
def test_a_row(theirs, ours, tmp_path):
    found = [check for start, check in CHECKS.items() if theirs.startswith(start)]
    assert found, f"write a case for the row: {theirs} | {ours}"
    found[0](tmp_path)


def test_folder_of_images(tmp_path):
    """The last rows: a folder a class, with transforms, read ahead; numbers from 0 to 1."""
    image = pytest.importorskip("PIL.Image")
    for k, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        image.new("RGB", (12, 12), (100 * k, 255, 0)).save(tmp_path / name / "x.png")
    flip = transforms.random_flip
    loader = data.FolderLoader(str(tmp_path), 2, transforms=[flip])
    for x, y in data.Prefetch(loader):
        assert 0 <= x.min() < x.max() <= 1
        assert sorted(y.tolist()) == [0, 1]
