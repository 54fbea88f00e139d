"""Norms, GELU, SiLU, biases and factors that were written out, and what nearly is one of them.

The net gives what ONNX Runtime gives, at three batch sizes, or the file is refused by name.
"""

import sys

import numpy as np
import pytest

from singanet import layers
from singanet.errors import FileFormatError
from singanet.onnx import load
from singanet.optimizer import SGD
from tests.onnx.runtime import file_of, onnx, ran
from tests.onnx.test_heads import Graph

BATCHES = (1, 2, 7)
WIDE, LONG = 4, 5
LIKE = {
    "norm": layers.LayerNorm,
    "gelu": layers.Activation,
    "gated": layers.Activation,
    "dense": layers.TimeDistributed,
    "affine": layers.Scale,
}


class Drawn(Graph):
    """A graph in which now and then something is not as the pattern has it."""

    def __init__(self, rng, chance):
        super().__init__(rng)
        self.chance, self.missed, self.inner = chance, [], []

    def misses(self, what):
        """Whether here the pattern is missed, by ``what``."""
        if self.rng.random() < self.chance:
            self.missed.append(what)
            return True
        return False

    def of(self, op, a, b):
        """Two operands in any order, where that makes no difference."""
        made = self.new(op, *((a, b) if self.rng.random() < 0.5 else (b, a)))
        self.inner.append(made)
        return made

    def step(self, op, *inputs, **attributes):
        made = self.new(op, *inputs, **attributes)
        self.inner.append(made)
        if self.misses("factor"):
            made = self.new("Mul", made, self.number(self.rng.choice([-1.0, 0.5, 2.0])))
        return made

    def vector(self, name, shape):
        """Numbers to train, of ``shape`` or another one."""
        usual = shape
        if self.misses("shape"):
            usual = [(1,), (1, WIDE), (LONG, 1), (1, 1, WIDE), (LONG, WIDE)][self.rng.integers(5)]
        return self.array(f"{name}.values", self.rng.standard_normal(usual) + 0.5)

    def axes(self, usual):
        given = (
            usual
            if not self.misses("axes")
            else [[-2], [1], [2], [-2, -1], [1, 2]][self.rng.integers(5)]
        )
        return self.array(f"axes{len(self.arrays)}", given, np.int64)


def norm(g, x):
    axes = [-1] if g.rng.random() < 0.7 else [-2, -1]
    mean = g.step("ReduceMean", x, g.axes(axes), keepdims=1)
    other = x if not g.misses("source") else g.step("Neg", x)
    centred = g.step("Sub", *((other, mean) if not g.misses("order") else (mean, other)))
    if g.rng.random() < 0.5:
        square = g.step("Pow", centred, g.number(2.0 if not g.misses("power") else 4.0))
    else:
        square = g.of("Mul", centred, centred if not g.misses("base") else x)
    variance = g.step("ReduceMean", square, g.axes(axes), keepdims=1)
    epsilon = g.number(g.rng.choice([1e-5, 1e-3, 0.5]))
    root = g.step("Sqrt", g.of("Add", variance, epsilon) if not g.misses("epsilon") else variance)
    made = g.step("Div", *((centred, root) if not g.misses("order") else (root, centred)))
    shape = (WIDE,) if axes == [-1] else (LONG, WIDE)
    scaled = g.of("Mul", made, g.vector("gamma", shape)) if not g.misses("gamma") else made
    return g.of("Add", scaled, g.vector("beta", shape))


def gelu(g, x):
    if g.rng.random() < 0.5:
        inside = g.step("Div", x, g.number(np.sqrt(2.0) if not g.misses("constant") else 1.41))
    else:
        inside = g.of("Mul", x, g.number(np.sqrt(0.5) if not g.misses("constant") else 0.7))
    erf = g.step("Erf" if not g.misses("function") else "Tanh", inside)
    one = g.number(1.0 if not g.misses("constant") else 0.9)
    plus = g.of("Add", erf, one) if not g.misses("order") else g.step("Sub", one, erf)
    half = g.number(0.5 if not g.misses("constant") else 0.25)
    other = x if not g.misses("source") else g.step("Abs", x)
    parts = [other, plus, half]
    g.rng.shuffle(parts)
    return g.of("Mul", g.of("Mul", parts[0], parts[1]), parts[2])


def gated(g, x):
    other = x if not g.misses("source") else g.step("Neg", x)
    if g.rng.random() < 0.5:
        return g.of("Mul", other, g.step("Sigmoid" if not g.misses("function") else "Tanh", x))
    alpha = 1 / 6 if not g.misses("constant") else g.rng.choice([0.2, 0.16])
    beta = 0.5 if not g.misses("constant") else 0.4
    return g.of("Mul", other, g.step("HardSigmoid", x, alpha=float(alpha), beta=float(beta)))


def dense(g, x):
    shape = (WIDE, 3) if not g.misses("matrix") else (1, WIDE, 3)
    matrix = g.array("w.values", g.rng.standard_normal(shape))
    made = g.step("MatMul", x, matrix)
    bias = [(3,), (1, 3), (1, 1, 3)][g.rng.integers(3)]
    if g.misses("shape"):
        bias = [(1,), (LONG, 3), (LONG, 1), (1, 1, 1, 3)][g.rng.integers(4)]
    return g.of("Add", made, g.array("b.values", g.rng.standard_normal(bias)))


def affine(g, x):
    channels = (LONG, 1)
    return g.of("Add", g.of("Mul", x, g.vector("gamma", channels)), g.vector("beta", channels))


PATTERNS = {"norm": norm, "gelu": gelu, "gated": gated, "dense": dense, "affine": affine}


def graph_of(seed):
    rng = np.random.default_rng(seed)
    g = Drawn(rng, rng.choice([0.0, 0.05, 0.15]))
    kind = rng.choice([*PATTERNS])
    y = PATTERNS[kind](g, "x")
    if g.inner and rng.random() < 0.15:
        # Another reader of what the layer would swallow.
        inner = g.inner[rng.integers(len(g.inner))]
        if inner != y:
            g.missed.append("read")
            everything = g.array("all", [1, 2], np.int64)
            y = g.new("Add", y, g.new("ReduceSum", g.new("Abs", inner), everything, keepdims=1))
    if rng.random() < 0.1:
        g.missed.append("again")
        y = g.new("Mul", y, g.number(-0.5))
    g.nodes.append(onnx.helper.make_node("Identity", [y], ["y"]))
    return kind, g


@np.errstate(all="ignore")  # roots of what is negative are no numbers
def expect_as_the_operators(seed, path, monkeypatch):
    """Whether the pattern was seen; outputs are ONNX Runtime's, training is as it is written."""
    kind, g = graph_of(seed)
    file_of(g.nodes, {"x": ["N", LONG, WIDE]}, ["y"], g.arrays, path, ir_version=10)
    rng = np.random.default_rng(seed)
    feeds = [rng.standard_normal((n, LONG, WIDE)).astype(np.float32) for n in BATCHES]
    wanted = [ran(path, {"x": x}, as_written=True)["y"] for x in feeds]
    net = load(path)
    for x, each in zip(feeds, wanted, strict=True):
        # Samples stand in front here, where an array of more axes has moved them, too.
        each = np.moveaxis(each, each.ndim - 3, 0)
        there = np.isfinite(each) & (np.abs(each) < 100)
        most = np.abs(each[there]).max(initial=1.0)
        found = net.forward(False, x)
        assert found.shape == each.shape
        np.testing.assert_allclose(found[there], each[there], rtol=0, atol=1e-4 * most)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[load.__module__], "PATTERNS", {})
        plain = load(path)
    names = {p.name.rpartition("/")[2] for p in net.params() if p.trainable}
    trained = [sum(p.value.size for p in n.params() if p.trainable) for n in (net, plain)]
    if trained[0] == trained[1] and np.isfinite(wanted[-1]).all() and names:
        dy = rng.standard_normal(found.shape).astype(np.float32)
        for each in (net, plain):
            rule = SGD(lr=0.01)
            each.forward(True, feeds[-1])
            for layer_names, values, grads in each.backward(dy):
                rule.update(layer_names, values, grads)
        one, other = net.forward(False, feeds[-1]), plain.forward(False, feeds[-1])
        there = np.isfinite(other) & (np.abs(other) < 100)
        most = np.abs(other[there]).max(initial=1.0)
        np.testing.assert_allclose(one[there], other[there], rtol=0, atol=1e-3 * most)
    whole = any(type(layer) is LIKE[kind] for layer in net.layers)
    assert whole or g.missed, f"{kind}: a layer of its own"
    return whole


def some_of(seeds, tmp_path, monkeypatch):
    kinds = []
    for seed in seeds:
        try:
            made = expect_as_the_operators(seed, tmp_path / f"{seed}.onnx", monkeypatch)
        except FileFormatError:
            made = None
        except AssertionError as error:
            kind, g = graph_of(seed)
            raise AssertionError(f"{seed}: {kind}, {g.missed}") from error
        kinds.append(made)
    assert {True, False} <= set(kinds)
    return kinds


def test_near_misses(tmp_path, monkeypatch):
    some_of(range(30), tmp_path, monkeypatch)


@pytest.mark.full
def test_more_near_misses(tmp_path, monkeypatch):
    some_of(range(30, 230), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_near_misses(part, tmp_path, monkeypatch):
    some_of(range(1000 + 300 * part, 1300 + 300 * part), tmp_path, monkeypatch)
