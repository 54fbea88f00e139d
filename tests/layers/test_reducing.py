"""Reductions, elements picked along an axis, and where the largest are."""

from functools import partial

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, DataError, ShapeError, UnknownNameError
from singanet.layers import Dense, Embedding, Gather, Reduce, TopIndices
from singanet.testing import check_net_gradients
from tests.kit.layers import beside_torch, case, cases, expect_refused, refuses, run


def of_steps(mode, function=None):
    """Under a mask: some steps, all, none."""

    def draw(rng, shape, mask):
        there = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [0, 1, 0]])
        return [rng.standard_normal(shape), there[: mask[0]]]

    def expected(p, x):
        rows = [sample[mask > 0] for sample, mask in zip(*x, strict=True)]
        reduce = function or getattr(np, mode)
        return np.array([reduce(row, axis=0) if len(row) else [0.0, 0.0] for row in rows])

    return case(partial(Reduce, "it", mode, axes=1), [(3, 2), (3,)], expected, draw, batch=4)


def places(rng, shape, index):
    return [rng.standard_normal(shape), rng.integers(-5, 5, index)]


def ranked(row, k, largest=True):
    """Indices by a sort of pairs: of equal numbers the first index first."""
    return [j for _, j in sorted(((-v if largest else v), j) for j, v in enumerate(row))][:k]


CASES = {
    "sum": case(lambda: Reduce("it", "sum", (1, -1)), (2, 3, 4),
                lambda p, x: np.einsum("nijk->nj", x)),
    "mean of all": case(lambda: Reduce("it", "mean"), (2, 3),
                        lambda p, x: np.einsum("nij->n", x) / 6),
    "max": case(lambda: Reduce("it", "max", [2], keepdims=True), (2, 3, 4),
                lambda p, x: np.sort(x, axis=2)[:, :, -1:]),
    "min": case(lambda: Reduce("it", "min", -1), (5,), lambda p, x: np.sort(x, axis=1)[:, 0]),
    "logsumexp": case(lambda: Reduce("it", "logsumexp", (1, 2)), (2, 3, 4),
                      lambda p, x: np.log(np.exp(x).sum(axis=(1, 2)))),
    "logsumexp of steps": of_steps("logsumexp", lambda x, axis: np.log(np.exp(x).sum(axis=axis))),
    "mean of steps": of_steps("mean"),
    "max of steps": of_steps("max"),
    "Gather": case(lambda: Gather("it", 1, [4, 0, 4, -2]), (5, 3), lambda p, x:
                   np.stack([x[:, 4], x[:, 0], x[:, 4], x[:, 3]], axis=1)),
    "Gather of the last axis": case(lambda: Gather("it", -1, (2,)), (2, 3, 4),
                                    lambda p, x: x[..., 2:3]),
    "Gather by an input": case(
        lambda: Gather("it"), [(5, 3), (4, 1)], lambda p, x:
        np.array([[sample[k] for k in own[:, 0]] for sample, own in zip(*x, strict=True)]), places),
    "Gather of spread samples": case(
        lambda: Gather("it", 2), [(1, 5), (3, 2)], lambda p, x:
        np.take_along_axis(np.repeat(x[0], 3, axis=1), x[1], 2),
        lambda rng, *shapes: [a if k == 0 else a.astype("i4")
                              for k, a in enumerate(places(rng, *shapes))]),
    "TopIndices": case(lambda: TopIndices("it", 3), (3, 5), lambda p, x:
                       np.array([[ranked(row, 3) for row in sample] for sample in x])),
    # Of rounded numbers many are equal.
    "the smallest": case(
        lambda: TopIndices("it", 2, axis=1, largest=False), (6, 2), lambda p, x:
        np.array([[ranked(column, 2, False) for column in sample.T] for sample in x])
        .transpose(0, 2, 1), lambda rng, shape: rng.integers(0, 3, shape).astype(float)),
    "the first": case(lambda: TopIndices("it"), (4,), lambda p, x:
                      np.array([ranked(row, 1) for row in x])),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


@pytest.mark.parametrize("mode", ["max", "min"])
def test_equal_extremes_share_the_gradient_as_in_pytorch(mode):
    x = np.array([[1.0, 3.0, 3.0, 1.0]])
    torch = pytest.importorskip("torch")
    beside_torch(lambda: Reduce("it", mode), (4,), lambda f, t, p:
                 getattr(torch, f"a{mode}")(t, 1), x=x)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gather_equals_pytorch(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    x, index = rng.standard_normal((4, 6, 3)).astype(dtype), rng.integers(0, 6, (4, 9, 3))
    dy = rng.standard_normal((4, 9, 3)).astype(dtype)
    leaf = torch.tensor(x, requires_grad=True)
    y = torch.gather(leaf, 1, torch.tensor(index))
    y.backward(torch.tensor(dy))
    a, b = Input("a", (6, 3)), Input("b", (9, 3), "int64")
    net = FeedForwardNet(inputs=[a, b], outputs=Gather("it")(a, b))
    net.as_type(dtype)
    feed = {"a": x, "b": index}
    np.testing.assert_array_equal(net.forward(False, feed), y.detach().numpy())
    found = net.gradients("it", "a", feed, dys=dy)["a"]
    np.testing.assert_allclose(found, leaf.grad.numpy(), rtol=1e-5)


def test_symbols_are_indexed_by_lists():
    a = Input("a", (5, 3))
    net = FeedForwardNet(inputs=a, outputs=Dense("fc", 2)(a[:, [4, 0, 4], 1]), seed=0)
    x = np.random.default_rng(0).random((2, 5, 3), np.float32)
    weight, bias = net.param_values()
    wanted = x[:, [4, 0, 4], 1] @ weight + bias
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-6)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    np.testing.assert_array_equal(again.forward(False, x), net.forward(False, x))


def test_picked_integers_stay_integers():
    words, big = Input("words", (3,), "int64"), 2**24 + 1
    y = Embedding("table", big + 1, 1, W_specs={"init": "constant", "value": 0.5})(words[:, [2]])
    net = FeedForwardNet(inputs=words, outputs=y, seed=0)
    assert net.forward(False, np.array([[0, 1, big]])).tolist() == [[[0.5]]]


@pytest.mark.parametrize("largest", [True, False])
def test_with_gather_it_is_what_pytorch_calls_topk(largest):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).permutation(24.0 * np.arange(24)).reshape(2, 4, 3)
    values, indices = torch.topk(torch.tensor(x), 2, dim=1, largest=largest)
    a = Input("x", (4, 3))
    at = TopIndices("top", 2, 1, largest)(a)
    net = FeedForwardNet(inputs=[a], outputs=[Gather("best", 1)([a, at]), at])
    found = net.forward(False, x)
    np.testing.assert_array_equal(found["best"], values)
    np.testing.assert_array_equal(found["top"], indices)


def test_gradients_go_to_what_was_chosen():
    a = Input("x", (4,))
    y = Dense("fc", 6)(a)
    net = FeedForwardNet(inputs=[a], outputs=Gather("best")([y, TopIndices("top", 2)(y)]), seed=0)
    check_net_gradients(net, np.random.default_rng(0).standard_normal((3, 4)))


AXES, PAIRED = "argument axis", "indices with the same number"
WRONG_SHAPES = [
    (Reduce("it", "sum", 3), ShapeError, "each of the axes", (4, 5)),
    (Reduce("it", "sum", (1, -2)), ShapeError, "each of the axes", (4, 5)),
    (Gather("it", 1, [3]), DataError, "from 0 to 2", (3, 2)),
    (Gather("it", 3, [0]), ShapeError, "an axis 3", (3, 2)),
    (Gather("it", 1), ShapeError, PAIRED, (3, 2)),
    (Gather("it", 1), ShapeError, PAIRED, [(3, 2), (4,)]),
    (Gather("it", 1), ShapeError, "of equal extent or 1", [(3, 2), (4, 3)]),
    (Gather("it", 1, [0]), ShapeError, "an axis 1", [(3,), (3,)]),
    *[(TopIndices("it", k, axis), ShapeError, f"at least k={k} elements along axis {axis}", shape)
      for k, axis, shape in ((4, 1, (3, 5)), (2, 3, (3, 5)), (1, -4, (2, 2)))],
]  # fmt: skip


def test_logsumexp_beside_pytorch_and_of_nothing():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    beside_torch(lambda: Reduce("it", "logsumexp", -1, True), (3, 4),
                 lambda f, x, p: torch.logsumexp(x, -1, True))  # fmt: skip
    x = np.array([[-np.inf, -np.inf], [1000.0, -np.inf]])
    y, dx, _ = run(Reduce("it", "logsumexp"), x, np.ones(2))
    assert y.tolist() == [-np.inf, 1000.0]
    assert dx.tolist() == [[0, 0], [1, 0]]


@refuses([
    (lambda: Reduce("it", "prod"), UnknownNameError, "argument mode"),
    *[(partial(Reduce, "it", "sum", axis), ArgumentError, AXES) for axis in (0, "last", ())],
    (lambda: Gather("it", 0), ArgumentError, "axis of the sample"),
    (lambda: Gather("it", 1, []), ArgumentError, "whole numbers"),
    (lambda: Gather("it", 1, [0.5]), ArgumentError, "whole numbers"),
    *[(partial(TopIndices, "it", **bad), ArgumentError, f"argument {next(iter(bad))}")
      for bad in ({"k": 0}, {"k": 1.5}, {"axis": 0}, {"axis": None})],
    *[(partial(layer.build, shape), error, words) for layer, error, words, shape in WRONG_SHAPES],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, f"layer 'it'.*{words}")


@pytest.mark.parametrize("bad", [5, -6])
def test_indices_beyond_the_axis_are_refused_also_in_a_program(bad):
    a, b = Input("a", (5,)), Input("b", (1,), "int64")
    net = FeedForwardNet(inputs=[a, b], outputs=Gather("it")(a, b))
    feed = {"a": np.ones((2, 5)), "b": np.array([[0], [4]])}
    for _ in range(3):
        net.forward(False, feed)
    with pytest.raises(DataError, match=r"layer 'it': expected indices from 0 to 4"):
        net.forward(False, {**feed, "b": np.array([[0], [bad]])})
