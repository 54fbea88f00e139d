"""Attention that was written out, and what nearly is: outputs and training are the operators'."""

from types import SimpleNamespace

import numpy as np
import pytest

from singanet import layers
from singanet.errors import FileFormatError
from singanet.onnx import load
from singanet.optimizer import SGD
from singanet.saving.codecs import dense
from tests.onnx.runtime import file_of, onnx, ran

node = onnx.helper.make_node
STEPS, BATCHES = 5, (1, 2, 7)
BOOLEAN = {"seen": onnx.TensorProto.BOOL}
FACTORS = ("q", "k", "v", "scores", "weights", "heads", "merged")
READ = ("q", "k", "v", "scores", "weights", "heads", "merged")
FILLS = (-1e9, -np.inf, -3.0, -2e4, float(np.finfo(np.float32).min))
MASKS = ("keys", "queries", "causal", "constant", "added")


class Graph:
    """Nodes, arrays and names of a graph while it is written."""

    def __init__(self, rng):
        self.rng, self.nodes, self.arrays, self.count = rng, [], {}, 0

    def new(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(node(op, list(inputs), [f"t{self.count}"], **attributes))
        return f"t{self.count}"

    def array(self, name, value, kind=np.float32):
        self.arrays[name] = np.asarray(value, kind)
        return name

    def number(self, value):
        return self.array(f"n{len(self.arrays)}", value)

    def times(self, x, factor):
        return x if factor == 1 else self.new("Mul", x, self.number(factor))

    def dense(self, x, name, inward, outward, biased):
        weight = self.rng.standard_normal((inward, outward)) / 2
        y = self.new("MatMul", x, self.array(f"{name}.weight", weight))
        if not biased:
            return y
        return self.new("Add", self.array(f"{name}.bias", self.rng.standard_normal(outward)), y)


def masked(g, scores, kind, fill, number):
    """Scores, some of which give way to ``fill``, and the name of what is seen."""
    if kind == "added":
        return g.new("Add", scores, "added"), ""
    if kind in ("causal", "constant"):
        seen = np.tri(STEPS, dtype=bool) if kind == "causal" else g.rng.random((STEPS, STEPS)) > 0.4
        told = g.array(f"seen{number}", seen, bool)
    else:
        axes = g.array(f"axes{number}", [1, 2] if kind == "keys" else [1, 3], np.int64)
        told = g.new("Unsqueeze", "seen", axes)
    return g.new("Where", told, scores, g.number(fill)), told


def written(p):
    """The graph of attention by the settings ``p``, with the output ``y``."""
    g = Graph(np.random.default_rng(p.seed))
    wide = p.heads * p.size
    kept = {}

    def through(name, x):
        kept[name] = g.times(x, p.factors.get(name, 1))
        return kept[name]

    def split(x):
        shaped = g.new("Reshape", x, g.array("split", [0, STEPS, p.heads, p.size], np.int64))
        return g.new("Transpose", shaped, perm=[0, 2, 1, 3])

    source = {"q": "x", "k": "z" if p.cross else "x", "v": "z" if p.cross else "x"}
    q, k, v = (
        through(name, split(g.dense(source[name], name, 6, wide, name in p.biased)))
        for name in "qkv"
    )
    transposed = g.new("Transpose", k, perm=[0, 1, 3, 2])
    scores = g.new("MatMul", q, transposed)
    seen = ""
    if not p.late:
        scores = g.times(scores, p.scale)
    for number, (kind, fill) in enumerate(p.masks):
        scores, seen = masked(g, scores, kind, fill, number)
    if p.late:
        scores = g.times(scores, p.scale)
    scores = through("scores", scores)
    weights = g.new("Softmax", scores, axis=p.axis)
    if p.after and seen:
        weights = g.new("Where", seen, weights, g.number(0.0))
    weights = through("weights", weights)
    heads = through("heads", g.new("MatMul", weights, v))
    order = [0, 2, 1, 3] if not p.twisted else [0, 1, 2, 3]
    joined = g.new("Transpose", heads, perm=order)
    merged = g.new("Reshape", joined, g.array("merge", [0, STEPS, wide], np.int64))
    merged = through("merged", merged)
    y = g.dense(merged, "out", wide, 6, "out" in p.biased)
    for name in p.read:
        more = g.new("ReduceSum", kept[name], g.array("all", [-1, -2], np.int64), keepdims=1)
        more = more if name == "merged" else g.new("ReduceSum", more, g.array("one", [1], np.int64))
        more = g.new("Reshape", more, g.array("flat", [0, 1, 1], np.int64))
        y = g.new("Add", y, more)
    g.nodes.append(node("Identity", [y], ["y"]))
    return g


def drawn_settings(seed):
    """Attention with a few things that are not as the layer has them, or none."""
    rng = np.random.default_rng(seed)

    def some(names, chance):
        return [name for name in names if rng.random() < chance]

    size = int(rng.integers(1, 5))
    few = rng.choice([0.0, 0.06, 0.2])
    fill = float(rng.choice(FILLS))
    masks = [(kind, fill) for kind in some(MASKS, rng.choice([0.0, 0.25]))]
    return SimpleNamespace(
        seed=seed,
        heads=int(rng.integers(1, 4)),
        size=size,
        cross=bool(rng.random() < 0.2),
        biased=["q", "k", "v", "out"] if rng.random() < 0.5 else some(["q", "k", "v", "out"], 0.5),
        factors={name: float(rng.choice([0.5, 3.0])) for name in some(FACTORS, few)},
        scale=size**-0.5 if rng.random() < 0.9 else 1.0,
        late=bool(rng.random() < 0.1),
        masks=masks,
        after=bool(rng.random() < 0.3),
        axis=-1 if rng.random() < 0.95 else 2,
        twisted=bool(rng.random() < 0.05),
        read=some(READ, few / 2),
    )


def plain_load(path, monkeypatch):
    """The net of the operators as they are written."""
    with monkeypatch.context() as patched:
        patched.setattr(dense, "attention", lambda *arguments: None)
        return load(path)


@np.errstate(all="ignore")  # scores of which nothing is seen are no numbers
def expect_as_the_operators(p, path, monkeypatch):
    """What the file gives here is what ONNX Runtime gives, and it trains as it is written."""
    g = written(p)
    shapes = {
        "x": ["N", STEPS, 6],
        "z": ["N", STEPS, 6],
        "seen": ["N", STEPS],
        "added": ["N", 1, 1, STEPS],
    }
    used = {name for each in g.nodes for name in each.input}
    shapes = {name: shape for name, shape in shapes.items() if name in used}
    file_of(g.nodes, shapes, ["y"], g.arrays, path, ir_version=10, kinds=BOOLEAN)
    net, plain = load(path), plain_load(path, monkeypatch)
    rng = np.random.default_rng(p.seed)
    for n in BATCHES:
        feed = {k: rng.standard_normal((n, *s[1:])).astype(np.float32) for k, s in shapes.items()}
        if "seen" in feed:
            feed["seen"] = rng.random((n, STEPS)) > 0.4
        wanted = ran(path, feed)["y"]
        given = feed if len(feed) > 1 else feed["x"]
        there = np.isfinite(wanted)
        most = np.abs(wanted[there]).max(initial=1.0)
        np.testing.assert_allclose(
            net.forward(False, given)[there], wanted[there], rtol=0, atol=1e-4 * most
        )
    trained = sum(param.value.size for param in net.params() if param.trainable)
    assert trained == sum(a.size for name, a in g.arrays.items() if "." in name)
    if not there.all():
        return net
    dy = rng.standard_normal(wanted.shape).astype(np.float32)
    for each in (net, plain):
        rule = SGD(lr=0.01)
        each.forward(True, given)
        for names, values, grads in each.backward(dy):
            rule.update(names, values, grads)
    one, other = net.forward(False, given), plain.forward(False, given)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-3 * max(1.0, np.abs(other).max()))
    return net


def is_whole(net):
    return any(isinstance(layer, layers.MultiHeadAttention) for layer in net.layers)


def settings(**more):
    usual = {
        "seed": 3, "heads": 2, "size": 4, "cross": False, "biased": ["q", "k", "v", "out"],
        "factors": {}, "scale": 0.5, "late": False, "masks": [], "after": False, "axis": -1,
        "twisted": False, "read": [],
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **more})


@pytest.mark.parametrize(
    ("more", "whole"),
    [
        ({}, True),
        ({"cross": True}, True),
        ({"biased": []}, True),
        ({"biased": ["out"]}, True),
        ({"biased": ["q", "k", "v"]}, True),
        ({"factors": {"q": 0.5}, "scale": 1.0}, True),  # √4 divides, wherever it stands
        ({"factors": {"heads": 0.5}}, False),
        ({"factors": {"merged": 0.25}}, False),
        ({"factors": {"q": 0.3}}, False),
        ({"factors": {"v": 2.0}}, False),
        ({"read": ["merged"]}, False),
        ({"read": ["scores"]}, False),
        ({"masks": [("causal", -1e9)]}, True),
        ({"masks": [("causal", -np.inf)]}, True),
        ({"masks": [("causal", -2e4)], "late": True, "scale": 1e-4}, False),
        ({"masks": [("keys", -1e9)]}, False),  # uniform where a sample has none
        ({"masks": [("keys", -1e9)], "after": True}, True),
        ({"masks": [("keys", -np.inf)]}, True),
        ({"masks": [("queries", -1e9)]}, False),
        ({"masks": [("keys", -1e9), ("queries", -1e9)], "after": True}, False),
        ({"masks": [("causal", -1e9), ("keys", -1e9)]}, False),
        ({"masks": [("added", 0.0)]}, True),
        ({"axis": 2}, False),
        ({"twisted": True}, False),
    ],
)
def test_only_what_the_layer_does_is_the_layer(more, whole, tmp_path, monkeypatch):
    net = expect_as_the_operators(settings(**more), tmp_path / "net.onnx", monkeypatch)
    assert is_whole(net) == whole


def some_of(seeds, tmp_path, monkeypatch):
    kinds = []
    for seed in seeds:
        try:
            path = tmp_path / f"{seed}.onnx"
            net = expect_as_the_operators(drawn_settings(seed), path, monkeypatch)
        except FileFormatError:
            kinds.append(None)
        except AssertionError as error:
            raise AssertionError(f"{drawn_settings(seed)}") from error
        else:
            kinds.append(is_whole(net))
    assert {True, False} <= set(kinds)
    assert kinds.count(None) < len(kinds) / 10


def test_near_misses(tmp_path, monkeypatch):
    some_of(range(24), tmp_path, monkeypatch)


@pytest.mark.slow
def test_more_near_misses(tmp_path, monkeypatch):
    some_of(range(24, 174), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_near_misses(part, tmp_path, monkeypatch):
    some_of(range(1000 + 300 * part, 1300 + 300 * part), tmp_path, monkeypatch)
