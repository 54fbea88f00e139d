"""Arithmetic, comparisons, casts and parts; layers that join inputs; what symbols compute with."""

import math
from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet import layers as nn
from singanet.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from singanet.layers import Cast, Compare, Dense, MatMul, Merge, Multiply, Operation, Scale, Where
from singanet.layers.elementwise import OPERATIONS
from singanet.testing import check_net_gradients
from tests.kit.layers import case, cases, expect_refused, refuses, run

# Where each is defined and smooth; elsewhere from -2 to 2.
DOMAINS = {
    "acos": (-0.9, 0.9), "acosh": (1.1, 3.0), "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9),
    "log": (0.1, 3.0), "reciprocal": (0.5, 2.0), "sqrt": (0.1, 3.0), "tan": (-1.2, 1.2),
    "power": (0.5, 2.0), "abs": (0.2, 2.0),
}  # fmt: skip
MATH = {"abs": abs, "ceil": math.ceil, "floor": math.floor, "reciprocal": lambda v: 1 / v,
        "round": round, "sign": lambda v: math.copysign(1, v), "truncate": math.trunc}  # fmt: skip


def operation(mode):
    function = np.vectorize(MATH.get(mode) or getattr(math, mode), [float])
    low, high = DOMAINS.get(mode, (-2.0, 2.0))
    return case(lambda: Operation("it", mode), (4, 3),
                lambda p, x: function(x) if x.size else x,
                lambda rng, shape: rng.uniform(low, high, shape), tolerance=1e-5)  # fmt: skip


def remainder(mode, function):
    """Of both signs, away from where it jumps."""
    return case(
        lambda: Operation("it", mode), [(4,), (4,)], lambda p, x: np.vectorize(function)(*x),
        lambda rng, a, b: [(rng.integers(1, 3, a) + rng.uniform(0.2, 0.8, a))
                           * rng.choice([-3.0, 3.0], a), np.full(b, 3.0) * rng.choice([-1, 1], b)],
    )  # fmt: skip


def positive(rng, *shapes):
    drawn = [rng.uniform(0.5, 2.0, shape) for shape in shapes]
    return drawn if len(drawn) > 1 else drawn[0]


def condition_first(rng, condition, *others):
    return [rng.integers(-1, 2, condition), *(rng.standard_normal(shape) for shape in others)]


THREE, SPREAD = [(2, 3)] * 3, [(2, 3), (2, 1)]
CASES = {
    **{mode: operation(mode) for mode, row in OPERATIONS.items() if row.inputs == 1},
    "modulo": remainder("modulo", lambda a, b: a % b),
    "remainder": remainder("remainder", math.fmod),
    "power": case(lambda: Operation("it", "power"), [(3, 2), (3, 1)],
                  lambda p, x: np.exp(x[1] * np.log(x[0])), positive),
    "Power": case(lambda: nn.Power("cube", 3), (3, 2), lambda p, x: x * x * x),
    "Power, root": case(lambda: nn.Power("root", 0.5), (4,), lambda p, x: np.exp(0.5 * np.log(x)),
                        positive),
    "Clip": case(lambda: nn.Clip("bounded", -0.4, 0.7), (3, 4), lambda p, x:
                 np.where(x < -0.4, -0.4, np.where(x > 0.7, 0.7, x))),
    "Index": case(lambda: nn.Index("part", [-1, (None, None, -2)]), (3, 5, 4),
                  lambda p, x: x[:, 2][:, [4, 2, 0]]),
    "Scale": case(lambda: Scale("scale"), (3, 2, 4), lambda p, x:
                  np.einsum("nchw,c->nchw", x, p["gamma"]) + p["beta"][:, None, None]),
    "Scale without bias": case(lambda: Scale("scale", use_bias=False), (5,),
                               lambda p, x: x @ np.diag(*p.values())),
    "Scale by a factor": case(lambda: Scale("scale", factor=-2.5), (),
                              lambda p, x: {0: -2.5 * x}[len(p)]),
    "Scale and offset": case(lambda: Scale("line", -2.0, offset=0.5), (4,),
                             lambda p, x: 0.5 - x - x),
    "Cast to integers": case(lambda: Cast("whole", "int32"), (3, 2),
                             lambda p, x: np.sign(x) * np.floor(np.abs(x)),
                             lambda rng, shape: 5 * rng.standard_normal(shape)),
    "Cast to booleans": case(lambda: Cast("there", "bool"), (3, 2), lambda p, x: x != 0,
                             lambda rng, shape: 5 * rng.standard_normal(shape)),
    "Cast to floats": case(lambda: Cast("floats"), (4,), lambda p, x: x),
    "Where": case(lambda: Where("chosen"), [(3, 1), (3, 4), (1, 4)],
                  lambda p, x: x[0] ** 2 * x[1] + (1 - x[0] ** 2) * x[2], condition_first),
    "Where of a number": case(lambda: Where("masked", b=-2.5), [(1, 4), (3, 4)],
                              lambda p, x: x[0] ** 2 * x[1] - 2.5 * (1 - x[0] ** 2),
                              condition_first),
    "Compare": case(lambda: Compare("later", ">"), [(3, 1), (1, 4)],
                    lambda p, x: np.sign(x[0] - x[1]) == 1),
    "Compare with a number": case(lambda: Compare("few", "<=", 0.25), (4,),
                                  lambda p, x: np.sign(x - 0.25) < 1),
    "Add": case(lambda: nn.Add("sum"), THREE, lambda p, x: np.sum(x, axis=0)),
    # The first two together have the shape of neither, nor has any input that of the output.
    "Add, spread": case(lambda: nn.Add("sum"), [(2, 1, 1), (1, 1, 4), (1, 3, 1)],
                        lambda p, x: x[0] + x[1] + x[2]),
    "Average": case(lambda: nn.Average("mean"), THREE, lambda p, x: np.mean(x, axis=0)),
    "Average, spread": case(lambda: nn.Average("mean"), [(2, 3), (1, 3)],
                            lambda p, x: (x[0] + x[1]) / 2),
    "Maximum": case(lambda: nn.Maximum("max"), THREE, lambda p, x: np.max(x, axis=0)),
    "Maximum, spread": case(lambda: nn.Maximum("max"), SPREAD,
                            lambda p, x: np.where(x[0] > x[1], x[0], x[1])),
    "Minimum": case(lambda: nn.Minimum("least"), [(2, 3), *SPREAD],
                    lambda p, x: np.minimum(np.minimum(x[0], x[1]), x[2])),
    "Multiply": case(lambda: Multiply("product"), THREE, lambda p, x: np.prod(x, axis=0)),
    "Multiply, spread": case(lambda: Multiply("gate"), [(4, 3, 2), (4, 1, 1)], lambda p, x:
                             np.einsum("nchw,nc->nchw", x[0], x[1][:, :, 0, 0])),
    "Merge of two": case(lambda: Merge("sum"), [(3, 4)] * 2, lambda p, x: x[0] + x[1]),
    "Merge of three": case(lambda: Merge("sum"), [(5,)] * 3, lambda p, x: np.sum(x, axis=0)),
    "Subtract": case(lambda: nn.Subtract("less"), [(2, 1), (2, 3)],
                     lambda p, x: x[0] + -1.0 * x[1]),
    "Divide": case(lambda: nn.Divide("quotient"), SPREAD, lambda p, x: x[0] * x[1] ** -1.0,
                   positive),
    "Dot": case(lambda: nn.Dot("dot"), [(2, 3)] * 2,
                lambda p, x: np.einsum("nij,nij->ni", *x)[..., None]),
    "MatMul": case(lambda: MatMul("it"), [(2, 3), (3, 4)],
                   lambda p, x: np.einsum("nmk,nkp->nmp", *x)),
    "MatMul, transposed": case(lambda: MatMul("it", transpose_a=True, transpose_b=True),
                               [(5, 3, 2), (5, 4, 3)],
                               lambda p, x: np.einsum("nhkm,nhpk->nhmp", *x)),
    "MatMul of scores": case(lambda: MatMul("it", transpose_b=True), [(4, 3), (6, 3)],
                             lambda p, x: np.einsum("nqd,nkd->nqk", *x)),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


# -- by hand --------------------------------------------------------------------------------------


def test_of_equal_inputs_the_first_maximum_gets_the_gradient():
    x = [np.array([[1.0, 4.0]]), np.array([[2.0, 4.0]]), np.array([[2.0, 3.0]])]
    y, dx, _ = run(nn.Maximum("max"), x, np.array([[5.0, 6.0]]))
    assert y.tolist() == [[2, 4]]
    assert [part.tolist() for part in dx] == [[[0, 6]], [[5, 0]], [[0, 0]]]


def test_a_zero_factor_is_no_special_case():
    x = [np.array([[0.0, 3.0]]), np.array([[5.0, 0.0]])]
    _, (da, db), _ = run(Multiply("product"), x, np.ones((1, 2)))
    assert (da.tolist(), db.tolist()) == ([[5, 0]], [[0, 3]])


def test_starts_and_shapes():
    layer = Scale("scale", input_sample_shape=(2, 3))
    layer.get_output_sample_shape()
    assert [value.tolist() for value in layer.param_values()] == [[1, 1], [0, 0]]
    assert Merge("sum").build([(2,), (2,)]) == (2,)
    assert Merge("sum", input_sample_shape=[(3,), (3,)]).get_output_sample_shape() == (3,)


def test_a_squeeze_and_excitation_block_has_the_right_gradients(rng):
    image = Input("image", (3, 4, 4))
    squeezed = nn.GlobalAvgPooling2D("squeeze")(image)
    gate = nn.Activation("sigmoid", "sigmoid")(Dense("excite", 3)(squeezed))
    scaled = Multiply("gate")(image, nn.Reshape("spread", (3, 1, 1))(gate))
    net = FeedForwardNet(inputs=image, outputs=scaled, seed=0)
    check_net_gradients(net, rng.standard_normal((2, 3, 4, 4)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_where_of_symbols_equals_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    feed = {key: rng.standard_normal((4, 6)).astype(dtype) for key in "ab"}
    leaves = {key: torch.tensor(value, requires_grad=True) for key, value in feed.items()}
    wanted = torch.where(leaves["a"] >= leaves["b"], leaves["a"] * 2, leaves["b"])
    dy = rng.standard_normal((4, 6)).astype(dtype)
    wanted.backward(torch.tensor(dy))
    a, b = Input("a", (6,)), Input("b", (6,))
    net = FeedForwardNet(inputs=[a, b], outputs=(a >= b).where(a * 2, b), seed=0)
    net.as_type(dtype)
    np.testing.assert_array_equal(net.forward(False, feed), wanted.detach().numpy())
    found = net.gradients("where", ["a", "b"], feed, dys=dy)
    for key, leaf in leaves.items():
        np.testing.assert_array_equal(found[key], leaf.grad.numpy())


def test_what_decides_is_not_trained():
    x = Input("x", (3,))
    gate, value = Dense("gate", 2)(x), Dense("value", 2)(x)
    net = FeedForwardNet(inputs=x, outputs=(gate < 0.1).where(value, 0.0), seed=0)
    rows = np.random.default_rng(0).standard_normal((5, 3))
    y = net.forward(True, rows)
    trained = [name for item in net.backward(np.ones_like(y)) for name in item.names]
    assert trained == ["value/weight", "value/bias"]
    assert [node.name for node in net.nodes()] == ["x", "gate", "value", "less", "where"]
    net["gate"].trainable = False
    check_net_gradients(net, rows)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    np.testing.assert_array_equal(again.forward(False, rows), net.forward(False, rows))


def test_a_mask_is_fed_as_booleans():
    seen, scores = Input("seen", (4,), "bool"), Input("scores", (4,))
    net = FeedForwardNet(inputs=[seen, scores], outputs=Where("masked", b=-1e9)(seen, scores))
    feed = {"seen": np.array([[True, False, True, True]]), "scores": np.ones((1, 4), np.float32)}
    assert net.forward(False, feed).tolist() == [[1.0, -1e9, 1.0, 1.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_integers_become_of_the_nets_type(dtype):
    whole = Input("whole", (2, 3), "uint8")
    y = nn.TimeDistributed("each", Dense("fc", 2))(whole.astype("float") * 0.5)
    net = FeedForwardNet(inputs=whole, outputs=y, seed=0)
    net.as_type(dtype)
    x = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    weight, bias = net.param_values()
    for _ in range(3):
        found = net.forward(False, x)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, 0.5 * x @ weight + bias, rtol=1e-5)
    check_net_gradients(net, x)


def test_floats_become_indices():
    x = Input("x", (2,))
    net = FeedForwardNet(inputs=x, outputs=nn.Embedding("words", 3, 4)((x * 2.0).astype("int64")))
    table = net.param_values()[0]
    np.testing.assert_array_equal(net.forward(False, np.array([[0.9, 0.1]])), table[[[1, 0]]])
    again = FeedForwardNet.from_config(net.to_config())
    assert again.nodes()[2].layer.dtype == "int64"


# -- symbols --------------------------------------------------------------------------------------

FORMULAS = {
    "sums": lambda a, b: 1.5 + a + b - 2 - (3 - b), "products": lambda a, b: (2 * a * b * -1.0) / 4,
    "quotients": lambda a, b: a / b + 1 / b, "powers": lambda a, b: (-a) ** 2 - b**-1,
    "parts": lambda a, b: a[:, 1:, ::-1] * b[:, -1:, :]
}  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
def test_symbols_compute_what_arrays_do(name):
    formula, rng = FORMULAS[name], np.random.default_rng(0)
    a, b = Input("a", (3, 2)), Input("b", (3, 2))
    net = FeedForwardNet(inputs=[a, b], outputs=formula(a, b), seed=0)
    feed = {"a": rng.standard_normal((4, 3, 2)), "b": rng.uniform(0.5, 2, (4, 3, 2))}
    net.as_type("float64")
    np.testing.assert_allclose(net.forward(False, feed), formula(**feed), rtol=1e-12)
    again = FeedForwardNet.from_config(net.to_config())
    again.as_type("float64")
    np.testing.assert_array_equal(again.forward(False, feed), net.forward(False, feed))
    out = net.nodes()[-1].name
    dy = rng.standard_normal(formula(**feed).shape)
    found = net.gradients(out, ["a", "b"], feed, dys=dy)
    for key in feed:
        step = {**feed, key: feed[key].copy()}
        step[key][0, 2, 1] += 1e-6
        slope = ((formula(**step) - formula(**feed)) * dy).sum() / 1e-6
        assert found[key][0, 2, 1] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_layers_of_symbols_have_names_and_train():
    x = Input("x", (4,))
    gate = Dense("gate", 3)(x)
    y = Dense("value", 3)(x) * gate + gate * 0.5 + gate
    net = FeedForwardNet(inputs=x, outputs=y, seed=0)
    names = [node.name for node in net.nodes()]
    assert [name for name in names if name[0] in "pt"] == ["times", "times_1", "plus", "plus_1"]
    check_net_gradients(net, np.random.default_rng(0).standard_normal((3, 4)))


def test_what_symbols_refuse():
    a = Input("a", (3,))
    for compute in (lambda: a + np.array([None]), lambda: a / 0,
                    lambda: a - "b", lambda: "c" * a):  # fmt: skip
        with pytest.raises(ArgumentError, match="expected symbols"):
            compute()
    for part in (lambda: a[0], lambda: a[1:], lambda: a[:, True], lambda: a[..., 0, 0, 0]):
        with pytest.raises(ArgumentError, match="part of a symbol"):
            part()
    with pytest.raises(TypeError, match="not iterable"):
        list(a)
    with pytest.raises(ShapeError, match=r"operator \+: .* received \(batch, 3\) and \(batch, 4\)"):
        a + Input("b", (4,))
    assert a[:] is a


# -- refusals -------------------------------------------------------------------------------------


def test_a_condition_of_floats_is_refused():
    x = Input("x", (2,))
    with pytest.raises(ArgumentError, match="input 0: expected whole numbers or booleans"):
        Where("it", b=0.0)(x * 2, x)
    y = Input("y", (2,))
    net = FeedForwardNet(inputs=[x, y], outputs=Where("it", b=0.0)(x, y))
    with pytest.raises(DataError, match="layer 'it', input 0: expected a condition"):
        net.forward(False, {"x": np.ones((1, 2), np.float32), "y": np.ones((1, 2))})
    with pytest.raises(ShapeError, match="inputs of one batch size"):
        net.forward(False, {"x": np.ones((1, 2), bool), "y": np.ones((3, 2))})


PART, JOIN = "samples that have the part", "expected at least two inputs"
WRONG_SHAPES = [
    *[(nn.Index("it", index), PART, shape)
      for index, shape in (([3], (3, 2)), ([0, 0, 0], (3, 2)), ([(2, 2, None)], (3,)))],
    (Compare("it", ">"), "2 inputs", (3,)),
    (Compare("it", ">", 1), "1 inputs", [(3,), (3,)]),
    (Where("it"), "3 inputs", [(3,), (3,)]),
    (Where("it", 0.0), "agree", [(3,), (4,)]),
    (Cast("it"), "expected one input", [(2,), (2,)]),
    (Scale("it"), r"expected samples of shape \(channels", ()),
    (Operation("it", "exp"), "1 input", [(2,), (2,)]),
    *[(nn.Add("it"), JOIN, shapes)
      for shapes in ((3,), [(3,)], [(3,), (4,)], [(2, 3), (3,)], [(2, 1), (3, 1), (1, 1)])],
    *[(Merge("it"), f"{JOIN} of one sample", shapes)
      for shapes in ((3,), [(3,)], [], [(3,), (4,)], [(3,), (3, 1)], [(2,), (2,), (3,)])],
    *[(kind("it"), "expected .*two inputs", shapes)
      for kind in (nn.Subtract, nn.Divide) for shapes in ((3,), [(3,)] * 3, [(3,), (4,)])],
    *[(nn.Dot("it"), "expected two inputs of one sample shape", shapes)
      for shapes in ((3,), [(3,)] * 3, [(3,), (1,)], [(), ()])],
    *[(MatMul("it"), "expected two inputs .*transpose_a=False", shapes)
      for shapes in ((2, 3), [(2, 3)], [(2, 3), (2, 3)], [(2, 3), (3,)], [(5, 2, 3), (4, 3, 2)],
                     [(2, 2)] * 3)],
]  # fmt: skip


@refuses([
    (lambda: nn.Power("it", "2"), ArgumentError, "argument exponent"),
    *[(partial(nn.Clip, "it", *bounds), ArgumentError, "low, high or both")
      for bounds in ((), (1.0, 0.0), (float("nan"),), (None, float("nan")), ("0",))],
    *[(partial(nn.Index, "it", index), ArgumentError, "argument index")
      for index in ([], [(0, 1)], [(0, 1, 0)])],
    *[(partial(Scale, "it", factor), ArgumentError, "argument factor: expected a number")
      for factor in ("2", float("nan"), [1.0], True)],
    (lambda: Scale("it", offset=1.0), ArgumentError, "argument offset"),
    (lambda: Scale("it", 1.0, offset="1"), ArgumentError, "argument offset"),
    (lambda: Compare("it", "=>"), UnknownNameError, "argument how"),
    (lambda: Compare("it", ">", "1"), ArgumentError, "argument value"),
    (lambda: Where("it", 1.0, 2.0), ArgumentError, "not for both"),
    (lambda: Where("it", a="x"), ArgumentError, "argument a"),
    (lambda: Operation("it", "sqr"), UnknownNameError, "did you mean"),
    *[(partial(Cast, "it", dtype), ArgumentError, "argument dtype")
      for dtype in ("float32", "complex64", "number", None, "<U3")],
    (lambda: Dense("it", 2)(Input("x", (2,)).astype("int64")), ArgumentError,
     "floats to compute with"),
    *[(partial(layer.build, shape), ShapeError, words) for layer, words, shape in WRONG_SHAPES],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")
    if error is ShapeError:
        assert make.func.__self__.out_shapes is None
