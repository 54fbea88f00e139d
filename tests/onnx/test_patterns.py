"""Attention, norms, GELU, SiLU, biases and factors that were written out, and what nearly is one.

The net gives what ONNX Runtime gives, at three batch sizes, and trains as the operators do that are
loaded one by one; or the file is refused by name.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from singanet import layers
from singanet.errors import FileFormatError
from singanet.onnx import load
from singanet.optimizer import SGD
from singanet.saving.codecs import dense as dense_codec
from tests.onnx.runtime import file_of, node, onnx, running

WIDE, LONG, STEPS, BATCHES = 4, 5, 5, (1, 2, 7)
BOOLEAN = {"seen": onnx.TensorProto.BOOL}
LIKE = {
    "heads": layers.MultiHeadAttention, "norm": layers.LayerNorm, "gelu": layers.Activation,
    "gated": layers.Activation, "dense": layers.TimeDistributed, "affine": layers.Scale,
}  # fmt: skip


class Graph:
    """Nodes, arrays and names of a graph.

    With a ``chance`` something is not as usual, or the choice of the number ``forced`` alone.
    """

    def __init__(self, rng, chance=0.0, forced=None):
        self.rng, self.nodes, self.arrays, self.count = rng, [], {}, 0
        self.chance, self.forced, self.asked, self.missed, self.inner = chance, forced, 0, [], []

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

    def misses(self, what):
        """Whether here the pattern is missed, by ``what``."""
        self.asked += 1
        missed = self.asked == self.forced if self.forced else self.rng.random() < self.chance
        if missed:
            self.missed.append(what)
        return missed

    def any_of(self, usual, *others):
        """One of the others where the pattern is missed."""
        return usual if not self.misses("choice") else others[self.rng.integers(len(others))]

    def of(self, op, a, b):
        """Two operands in any order, where that makes no difference."""
        made = self.new(op, *((a, b) if self.rng.random() < 0.5 else (b, a)))
        self.inner.append(made)
        return made

    def step(self, op, *inputs, **attributes):
        made = self.new(op, *inputs, **attributes)
        self.inner.append(made)
        return self.times(made, self.any_of(1, -1.0, 0.5, 2.0))

    def ordered(self, op, a, b):
        return self.step(op, *self.any_of((a, b), (b, a)))

    def vector(self, name, shape):
        """Numbers to train, of ``shape`` or another one."""
        shape = self.any_of(shape, (1,), (1, WIDE), (LONG, 1), (1, 1, WIDE), (LONG, WIDE))
        return self.array(f"{name}.values", self.rng.standard_normal(shape) + 0.5)

    def axes(self, usual):
        axes = self.any_of(usual, [-2], [1], [2], [-2, -1], [1, 2])
        return self.array(f"axes{len(self.arrays)}", axes, np.int64)


# -- attention ------------------------------------------------------------------------------------

FACTORS = ("q", "k", "v", "scores", "weights", "heads", "merged")
FILLS = (-1e9, -np.inf, -3.0, -2e4, float(np.finfo(np.float32).min))
MASKS = ("keys", "queries", "causal", "constant", "added")
PARTS = ["q", "k", "v", "out"]


def masked(g, scores, kind, fill, number):
    """Scores, some of which give way to ``fill``, and the name of what is seen."""
    if kind == "added":
        return g.new("Add", scores, "added"), ""
    if kind in ("future", "slope"):  # added, and in the second also the less the nearer
        back = np.arange(STEPS)[:, None] - np.arange(STEPS)
        bias = np.where(back < 0, fill, -0.5 * back * (kind == "slope"))
        return g.new("Add", scores, g.array("bias" if kind == "future" else "a.bias", bias)), ""
    if kind in ("causal", "constant"):
        seen = np.tri(STEPS, dtype=bool) if kind == "causal" else g.rng.random((STEPS, STEPS)) > 0.4
        told = g.array(f"seen{number}", seen, bool)
    else:
        axes = g.array(f"axes{number}", [1, 2] if kind == "keys" else [1, 3], np.int64)
        told = g.new("Unsqueeze", "seen", axes)
    return g.new("Where", told, scores, g.number(fill)), told


def written(p):
    """The graph of attention by the settings ``p``, with the output ``y``."""
    g, wide, kept = Graph(np.random.default_rng(p.seed)), p.heads * p.size, {}

    def projected(x, name, inward, outward):
        weight = g.rng.standard_normal((inward, outward)) / 2
        y = g.new("MatMul", x, g.array(f"{name}.weight", weight))
        if name not in p.biased:
            return y
        return g.new("Add", g.array(f"{name}.bias", g.rng.standard_normal(outward)), y)

    def through(name, x):
        kept[name] = g.times(x, p.factors.get(name, 1))
        return kept[name]

    def split(x):
        shaped = g.new("Reshape", x, g.array("split", [0, STEPS, p.heads, p.size], np.int64))
        return g.new("Transpose", shaped, perm=[0, 2, 1, 3])

    source = {"q": "x", "k": "z" if p.cross else "x", "v": "z" if p.cross else "x"}
    q, k, v = (through(name, split(projected(source[name], name, 6, wide))) for name in "qkv")
    scores, seen = g.new("MatMul", q, g.new("Transpose", k, perm=[0, 1, 3, 2])), ""
    scores = scores if p.late else g.times(scores, p.scale)
    for number, (kind, fill) in enumerate(p.masks):
        scores, seen = masked(g, scores, kind, fill, number)
    scores = through("scores", g.times(scores, p.scale) if p.late else scores)
    weights = g.new("Softmax", scores, axis=p.axis)
    if p.after and seen:
        weights = g.new("Where", seen, weights, g.number(0.0))
    heads = through("heads", g.new("MatMul", through("weights", weights), v))
    joined = g.new("Transpose", heads, perm=[0, 1, 2, 3] if p.twisted else [0, 2, 1, 3])
    merged = g.new("Reshape", joined, g.array("merge", [0, STEPS, wide], np.int64))
    y = projected(through("merged", merged), "out", wide, 6)
    for name in p.read:
        more = g.new("ReduceSum", kept[name], g.array("all", [-1, -2], np.int64), keepdims=1)
        more = more if name == "merged" else g.new("ReduceSum", more, g.array("one", [1], np.int64))
        y = g.new("Add", y, g.new("Reshape", more, g.array("flat", [0, 1, 1], np.int64)))
    g.nodes.append(node("Identity", [y], ["y"]))
    return g


def settings(**more):
    usual = {
        "seed": 3, "heads": 2, "size": 4, "cross": False, "biased": PARTS, "factors": {},
        "scale": 0.5, "late": False, "masks": [], "after": False, "axis": -1, "twisted": False,
        "read": [],
    }  # fmt: skip
    return SimpleNamespace(**{**usual, **more})


def drawn_settings(seed):
    """Attention with a few things that are not as the layer has them, or none."""
    rng = np.random.default_rng(seed)

    def some(names, chance):
        return [name for name in names if rng.random() < chance]

    size, few = int(rng.integers(1, 5)), rng.choice([0.0, 0.06, 0.2])
    fill = float(rng.choice(FILLS))
    return settings(
        masks=[(kind, fill) for kind in some(MASKS, rng.choice([0.0, 0.25]))],
        seed=seed, heads=int(rng.integers(1, 4)), size=size, cross=bool(rng.random() < 0.2),
        biased=PARTS if rng.random() < 0.5 else some(PARTS, 0.5),
        factors={name: float(rng.choice([0.5, 3.0])) for name in some(FACTORS, few)},
        scale=size**-0.5 if rng.random() < 0.9 else 1.0, late=bool(rng.random() < 0.1),
        after=bool(rng.random() < 0.3), axis=-1 if rng.random() < 0.95 else 2,
        twisted=bool(rng.random() < 0.05), read=some(FACTORS, few / 2),
    )  # fmt: skip


# -- other patterns -------------------------------------------------------------------------------


def norm(g, x):
    axes = [-1] if g.rng.random() < 0.7 else [-2, -1]
    mean = g.step("ReduceMean", x, g.axes(axes), keepdims=1)
    other = g.step("Neg", x) if g.misses("source") else x
    centred = g.ordered("Sub", other, mean)
    if g.rng.random() < 0.5:
        square = g.step("Pow", centred, g.number(g.any_of(2.0, 4.0)))
    else:
        square = g.of("Mul", centred, g.any_of(centred, x, g.number(2.0)))
    variance = g.step("ReduceMean", square, g.axes(axes), keepdims=1)
    epsilon = g.number(g.rng.choice([1e-5, 1e-3, 0.5]))
    root = g.step("Sqrt", g.of("Add", variance, epsilon) if not g.misses("epsilon") else variance)
    made = g.ordered("Div", centred, root)
    shape = (WIDE,) if axes == [-1] else (LONG, WIDE)
    scaled = g.of("Mul", made, g.vector("gamma", shape)) if not g.misses("gamma") else made
    return g.of("Add", scaled, g.vector("beta", shape))


def gelu(g, x):
    if g.rng.random() < 0.5:
        inside = g.ordered("Div", x, g.number(g.any_of(np.sqrt(2.0), 1.41)))
    else:
        inside = g.of("Mul", x, g.number(g.any_of(np.sqrt(0.5), 0.7)))
    erf, one = g.step(g.any_of("Erf", "Tanh"), inside), g.number(g.any_of(1.0, 0.9))
    plus = g.step("Sub", one, erf) if g.misses("order") else g.of("Add", erf, one)
    other = g.step("Abs", x) if g.misses("source") else x
    parts = [other, plus, g.number(g.any_of(0.5, 0.25))]
    g.rng.shuffle(parts)
    return g.of("Mul", g.of("Mul", parts[0], parts[1]), parts[2])


def gated(g, x):
    other = g.step("Neg", x) if g.misses("source") else x
    if g.rng.random() < 0.5:
        return g.of("Mul", other, g.step(g.any_of("Sigmoid", "Tanh"), x))
    alpha, beta = g.any_of(1 / 6, 0.2, 0.16), g.any_of(0.5, 0.4)
    return g.of("Mul", other, g.step("HardSigmoid", x, alpha=alpha, beta=beta))


def dense(g, x):
    matrix = g.rng.standard_normal(g.any_of((WIDE, 3), (1, WIDE, 3)))
    made = g.step("MatMul", x, g.array("w.values", matrix))
    bias = [(3,), (1, 3), (1, 1, 3)][g.rng.integers(3)]
    bias = g.any_of(bias, (1,), (LONG, 3), (LONG, 1), (1, 1, 1, 3))
    return g.of("Add", made, g.array("b.values", g.rng.standard_normal(bias)))


def affine(g, x):
    channels = (LONG, 1)
    return g.of("Add", g.of("Mul", x, g.vector("gamma", channels)), g.vector("beta", channels))


PATTERNS = {"norm": norm, "gelu": gelu, "gated": gated, "dense": dense, "affine": affine}


def drawn_pattern(seed):
    rng = np.random.default_rng(seed)
    g = Graph(rng, rng.choice([0.0, 0.05, 0.15]))
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
        y = g.times(y, -0.5)
    g.nodes.append(node("Identity", [y], ["y"]))
    return kind, g


# -- what is expected of any of them --------------------------------------------------------------

SHAPES = {
    "heads": {"x": (STEPS, 6), "z": (STEPS, 6), "seen": (STEPS,), "added": (1, 1, STEPS)},
    **{kind: {"x": (LONG, WIDE)} for kind in PATTERNS},
}


def fed(shapes, rng, n):
    feed = {name: rng.standard_normal((n, *s)).astype(np.float32) for name, s in shapes.items()}
    if "seen" in feed:
        feed["seen"] = rng.random((n, STEPS)) > 0.4
    return feed


@np.errstate(all="ignore")  # roots of what is negative and scores of nothing are no numbers
def expect_as_the_operators(kind, g, seed, path, monkeypatch):
    """The net of the file, whose outputs are ONNX Runtime's, and whose training is as written."""
    used = {name for each in g.nodes for name in each.input}
    shapes = {name: shape for name, shape in SHAPES[kind].items() if name in used}
    inputs = {name: ["N", *shape] for name, shape in shapes.items()}
    file_of(g.nodes, inputs, ["y"], g.arrays, path, ir_version=10, kinds=BOOLEAN)
    net, rng = load(path), np.random.default_rng(seed)
    runs = running(path, as_written=kind != "heads")

    def close(found, wanted, tolerance):
        there = np.isfinite(wanted) & (np.abs(wanted) < (100 if kind != "heads" else np.inf))
        most = np.abs(wanted[there]).max(initial=1.0)
        np.testing.assert_allclose(found[there], wanted[there], rtol=0, atol=tolerance * most)

    for n in BATCHES:
        feed = fed(shapes, rng, n)
        wanted = runs(feed)["y"]
        # Samples stand in front here, where an array of more axes has moved them, too.
        wanted = np.moveaxis(wanted, wanted.ndim - 3, 0)
        given = feed if len(feed) > 1 else feed["x"]
        found = net.forward(False, given)
        assert found.shape == wanted.shape
        close(found, wanted, 1e-4)
    with monkeypatch.context() as patched:
        patched.setattr(sys.modules[load.__module__], "PATTERNS", {})
        patched.setattr(dense_codec, "attention", lambda *arguments: None)
        plain = load(path)
    trained = [sum(p.value.size for p in n.params() if p.trainable) for n in (net, plain)]
    if kind == "heads":
        assert trained[0] == sum(a.size for name, a in g.arrays.items() if "." in name)
    if trained[0] == trained[1] and trained[0] and np.isfinite(wanted).all():
        dy = rng.standard_normal(wanted.shape).astype(np.float32)
        for each in (net, plain):
            rule = SGD(lr=0.01)
            each.forward(True, given)
            for names, values, grads in each.backward(dy):
                rule.update(names, values, grads)
        close(net.forward(False, given), plain.forward(False, given), 1e-3)
    return any(type(layer) is LIKE[kind] for layer in net.layers)


CAUSAL, KEYS = ("causal", -1e9), ("keys", -1e9)


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
        ({"masks": [CAUSAL]}, True),
        ({"masks": [("causal", -np.inf)]}, True),
        ({"masks": [("causal", -2e4)], "late": True, "scale": 1e-4}, False),
        ({"masks": [("future", -1e9)]}, True),
        ({"masks": [("slope", -1e9)]}, True),
        ({"masks": [KEYS]}, False),  # uniform where a sample has none
        ({"masks": [KEYS], "after": True}, True),
        ({"masks": [("keys", -np.inf)]}, True),
        ({"masks": [("queries", -1e9)]}, False),
        ({"masks": [KEYS, ("queries", -1e9)], "after": True}, False),
        ({"masks": [CAUSAL, KEYS]}, False),
        ({"masks": [("added", 0.0)]}, True),
        ({"axis": 2}, False),
        ({"twisted": True}, False),
    ],
)
def test_only_what_the_layer_does_is_the_layer(more, whole, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    made = expect_as_the_operators("heads", written(settings(**more)), 3, path, monkeypatch)
    assert made == whole
    if whole:
        (attention,) = (e for e in load(path).layers if isinstance(e, layers.MultiHeadAttention))
        masks = {kind for kind, _ in more.get("masks", ())}
        assert attention.causal == bool(masks & {"causal", "future"})


def some_of(kind, seeds, tmp_path, monkeypatch):
    """As the operators, or refused by name: few of attention, and of patterns none that is met."""
    kinds = []
    for seed in seeds:
        of_heads = kind == "heads"
        like, g = (kind, written(drawn_settings(seed))) if of_heads else drawn_pattern(seed)
        try:
            made = expect_as_the_operators(like, g, seed, tmp_path / f"{seed}.onnx", monkeypatch)
            assert made or g.missed or like == "heads", "a layer of its own"
        except FileFormatError:
            made = None
        except AssertionError as error:
            raise AssertionError(f"{seed}: {like}, {g.missed}, {drawn_settings(seed)}") from error
        kinds.append(made)
    assert {True, False} <= set(kinds)
    assert kind != "heads" or kinds.count(None) < len(kinds) / 10


@pytest.mark.parametrize("kind", PATTERNS)
def test_a_single_choice_that_is_missed(kind, tmp_path, monkeypatch):
    for seed in range(8):
        g, forced = Graph(np.random.default_rng(seed), forced=1), 1
        while forced <= g.asked + 1:  # the last one misses nothing
            g = Graph(np.random.default_rng(seed), forced=forced)
            y = PATTERNS[kind](g, "x")
            g.nodes.append(node("Identity", [y], ["y"]))
            try:
                path = tmp_path / f"{seed}-{forced}.onnx"
                made = expect_as_the_operators(kind, g, seed, path, monkeypatch)
                assert made or g.missed
            except FileFormatError:
                assert g.missed
            except AssertionError as error:
                raise AssertionError(f"{seed}, {forced}: {g.missed}") from error
            forced += 1
        assert not g.missed


@pytest.mark.parametrize("kind", ["heads", "patterns"])
def test_near_misses(kind, tmp_path, monkeypatch):
    some_of(kind, range(24 if kind == "heads" else 30), tmp_path, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["heads", "patterns"])
def test_more_near_misses(kind, tmp_path, monkeypatch):
    some_of(kind, range(30, 130), tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["heads", "patterns"])
@pytest.mark.parametrize("part", range(10))
def test_many_near_misses(part, kind, tmp_path, monkeypatch):
    some_of(kind, range(1000 + 300 * part, 1300 + 300 * part), tmp_path, monkeypatch)
