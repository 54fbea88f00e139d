"""Graphs that leave the number of steps open."""

import warnings

import numpy as np
import pytest

from singanet.errors import FileFormatError
from singanet.layers import GRU, MultiHeadAttention
from singanet.loss import SquaredError
from singanet.onnx import load, save
from singanet.optimizer import Adam
from tests.onnx.runtime import file_of, node, ran

torch = pytest.importorskip("torch")
nn = torch.nn


class Tagger(nn.Module):
    """Letters, steps both ways, a convolution over them, scores of each step."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(11, 6)
        self.steps = nn.LSTM(6, 4, batch_first=True, bidirectional=True)
        self.near = nn.Conv1d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8)
        self.scores = nn.Linear(8, 5)

    def forward(self, x):
        y = self.steps(self.letters(x))[0]
        y = y + self.near(y.transpose(1, 2)).transpose(1, 2)
        return torch.softmax(self.scores(torch.nn.functional.gelu(self.norm(y))), -1)


class Reader(nn.Module):
    """Attention over steps that gives one row a sample."""

    def __init__(self, last):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.own, self.scores = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 3)
        self.last = last

    def forward(self, x):
        parts = (each(x) for each in (self.query, self.key, self.value))
        parts = (part.view(x.shape[0], -1, 2, 4).transpose(1, 2) for part in parts)
        y = nn.functional.scaled_dot_product_attention(*parts)
        y = x + self.out(y.transpose(1, 2).reshape(*x.shape))
        y = self.own(torch.cat([y, x.flip(1)], -1)[..., 4:12])[0]
        return self.scores(y[:, -1] if self.last else y.mean(1))


def exported(module, x, path):
    torch.manual_seed(0)
    more = {"input_names": ["x"], "opset_version": 17, "dynamo": False, "verbose": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "batch", 1: "steps"}}
        torch.onnx.export(module.eval(), (x,), path, dynamic_axes=axes, **more)
    return path


X = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(0))
CASES = {
    "tagger": (Tagger, torch.arange(18).reshape(2, 9) % 11),
    "mean": (lambda: Reader(False), X), "last": (lambda: Reader(True), X),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_net_takes_every_number_of_steps_trains_and_is_written_again(name, tmp_path):
    module, x = CASES[name]
    path = exported(module(), x, tmp_path / "net.onnx")
    net = load(path, seed=0)
    save(net, tmp_path / "again.onnx")
    for steps in (1, 4):
        part = x.numpy()[:steps, :steps]
        (wanted,) = ran(path, {"x": part}).values()
        found = net.forward(False, part)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        (there,) = ran(tmp_path / "again.onnx", {"x": part}).values()
        np.testing.assert_allclose(there, found, rtol=1e-4, atol=1e-5)
    net.loss, adam = SquaredError(), Adam(lr=1e-2)
    losses = []
    for _ in range(3):
        for steps in (3, 9):
            part = x.numpy()[:, :steps]
            target = np.zeros_like(net.forward(False, part))
            losses.append(net.step(part, target, adam)[0])
    assert losses[-1] < losses[1]
    if name != "tagger":
        assert {MultiHeadAttention, GRU} <= {type(layer) for layer in net.layers}


def graph(nodes, shapes, path, arrays=None, opset=18):
    """A file of those nodes, from inputs of those shapes to y."""
    return file_of(nodes, shapes, ["y"], arrays or {}, path, opset)


KERNEL = np.ones((2, 4, 3), np.float32)
BOUND = {
    "fewer steps": (node("Conv", ["x", "w"], ["y"]), {"w": KERNEL}),
    "half of them": (node("Conv", ["x", "w"], ["y"], strides=[2], pads=[1, 1]), {"w": KERNEL}),
    "more": (node("Concat", ["x", "x"], ["y"], axis=2), {}),
    "again": (node("Tile", ["x", "w"], ["y"]), {"w": np.array([1, 1, 2])}),
    "a part": (node("Slice", ["x", "a", "b", "c"], ["y"]),
               {"a": np.array([0]), "b": np.array([5]), "c": np.array([2])}),
    "the third": (node("Gather", ["x", "w"], ["y"], axis=2), {"w": np.array(3)}),
    "one row": (node("Flatten", ["x"], ["y"]), {}),
    "a number each": (node("Mul", ["x", "w"], ["y"]), {"w": np.ones((4, 13), np.float32)}),
    "all of them": (node("MatMul", ["x", "w"], ["y"]), {"w": np.ones((13, 2), np.float32)}),
}  # fmt: skip


def test_sums_by_letters_take_any_number_of_steps(tmp_path):
    nodes = [
        node("Einsum", ["x", "x"], ["s"], equation="nqhd,nkhd->nhqk"),
        node("Einsum", ["s", "x"], ["m"], equation="nhqk,nkhd->nqhd"),
        node("Einsum", ["m", "w"], ["y"], equation="nqhd,hdo->nqo"),
    ]
    w = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    net = load(graph(nodes, {"x": ["N", "T", 2, 3]}, tmp_path / "net.onnx", {"w": w}))
    for steps in (1, 5):
        x = np.random.default_rng(steps).standard_normal((2, steps, 2, 3)).astype(np.float32)
        s = np.einsum("nqhd,nkhd->nhqk", x, x)
        wanted = np.einsum("nhqk,nkhd,hdo->nqo", s, x, w)
        np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"left_window_size": 2}])
def test_attention_whose_mask_would_need_the_steps_is_refused(attributes, tmp_path):
    made = node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, **attributes)
    path = graph([made], {"x": ["N", "T", 4]}, tmp_path / "net.onnx", opset=24)
    if attributes:
        words = r"a known number of steps, for is_causal and windows.*pass shapes"
        with pytest.raises(FileFormatError, match=words):
            load(path)
        return
    net = load(path)
    for steps in (1, 5):
        x = np.random.default_rng(steps).standard_normal((2, steps, 4)).astype(np.float32)
        np.testing.assert_allclose(net.forward(False, x), by_heads(x), rtol=1e-5, atol=1e-6)


def by_heads(x):
    """Attention of x to itself, each half of the features for itself."""
    halves = []
    for h in (x[..., :2], x[..., 2:]):
        e = np.exp(h @ h.transpose(0, 2, 1) / np.sqrt(2.0))
        halves.append(e / e.sum(-1, keepdims=True) @ h)
    return np.concatenate(halves, -1)


@pytest.mark.parametrize("name", BOUND)
def test_what_would_give_others_than_come_in_is_refused_and_says_what_to_do(name, tmp_path):
    made, arrays = BOUND[name]
    path = graph([made], {"x": ["N", 4, "T"]}, tmp_path / "net.onnx", arrays)
    with pytest.raises(FileFormatError, match=r"pass shapes=\{'x': \(...\)\} with a number"):
        load(path)
    assert load(path, {"x": (4, 13)}).forward(False, np.ones((2, 4, 13), np.float32)).size


@pytest.mark.parametrize("shapes", [{"x": ["N", "H", "W"]}, {"x": ["N", "S", "S"]},
                                    {"x": ["N", 4, "T"], "z": ["N", 4, "S"]},
                                    {"x": ["N", None, 4]}])  # fmt: skip
def test_two_extents_that_are_open_have_to_be_given(shapes, tmp_path):
    names = [*shapes, "x"][:2]
    path = graph([node("Add", names, ["y"])], shapes, tmp_path / "net.onnx")
    with pytest.raises(FileFormatError, match="one time axis"):
        load(path)
    load(path, dict.fromkeys(shapes, (4, 4)))


def test_shapes_may_leave_the_steps_open_themselves(tmp_path):
    shapes = {"x": ["N", "A", "B"], "z": ["N", "C", 4]}
    path = graph([node("Add", ["x", "z"], ["y"])], shapes, tmp_path / "net.onnx")
    net = load(path, {"x": (None, 4), "z": (None, 4)})
    for steps in (2, 3):
        x = np.ones((1, steps, 4), np.float32)
        np.testing.assert_array_equal(net.forward(False, {"x": x, "z": x}), x + x)
