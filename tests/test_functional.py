"""`singanet.functional`: NumPy's results of arrays and of symbols, and PyTorch's gradients."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import singanet
from singanet import Executor, FeedForwardNet, Input
from singanet import functional as F
from singanet.budget.search import not_in_parts
from singanet.errors import ArgumentError, GraphError, ShapeError, SingaNetError
from singanet.executor.symbols import inputs_of
from singanet.layers import Dense, Rearrange
from singanet.loss import SquaredError, from_function
from singanet.optimizer import SGD, Accumulator
from singanet.testing import check_loss

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((5, 6)), RNG.standard_normal((5, 2, 3))
ROW, COLUMN = RNG.standard_normal(3), RNG.standard_normal((2, 1))
MATRIX = RNG.standard_normal((6, 4))


def graph_of(symbol):
    """A net of the symbol, which may mix samples."""
    net = FeedForwardNet(seed=0)
    net.start(None, inputs_of([symbol]), [symbol])
    return net


def value_of(symbol, **feed):
    """The array of ``symbol``, with the axes of its `full`."""
    net = graph_of(symbol)
    net.as_type("float64")
    found = net.forward(False, {name: feed[name] for name in net._execution_plan().inputs})
    found = found[symbol.index] if isinstance(found, list) else found
    return found if symbol.full and symbol.full[0] < -1 else found[0]


def both(fn):
    """The results of ``fn`` for symbols and for arrays."""
    symbol = fn(Input("a", (6,)), Input("b", (2, 3)))
    return symbol, value_of(symbol, a=A, b=B), fn(A, B)


def pairwise(a):
    return F.sum(F.square(F.expand_dims(a, 1) - F.expand_dims(a, 0)), axis=-1)


RESULTS = {
    "exp": lambda a, b: F.exp(a),
    "log": lambda a, b: F.log(F.abs(a) + 1.0),
    "sqrt": lambda a, b: F.sqrt(F.square(a) + 0.5),
    "tanh": lambda a, b: F.tanh(b),
    "sigmoid": lambda a, b: F.sigmoid(b),
    "relu": lambda a, b: F.relu(b),
    "softmax": lambda a, b: F.softmax(b),
    "softmax of samples": lambda a, b: F.softmax(b, axis=0),
    "log_softmax": lambda a, b: F.log_softmax(b, axis=-2),
    "logsumexp": lambda a, b: F.logsumexp(3 * b, axis=(1, 2), keepdims=True),
    "logsumexp of all": lambda a, b: F.logsumexp(b),
    "sum": lambda a, b: F.sum(b, axis=1),
    "sum of samples": lambda a, b: F.sum(b, axis=0),
    "sum of all": lambda a, b: F.sum(b) * a,
    "mean": lambda a, b: F.mean(b, axis=(0, -1), keepdims=True) + b,
    "mean from samples": lambda a, b: a - F.mean(a, axis=0),
    "max": lambda a, b: F.max(b, axis=-1),
    "max of samples": lambda a, b: F.max(a, axis=0, keepdims=True),
    "min": lambda a, b: F.min(a, axis=(0, 1)),
    "var": lambda a, b: F.var(b, axis=2),
    "var of samples": lambda a, b: a / F.sqrt(F.var(a, axis=0) + 1e-3),
    "matmul": lambda a, b: F.matmul(b, F.transpose(b, (0, 2, 1))),
    "matmul of samples": lambda a, b: F.matmul(a, F.transpose(a)),
    "matmul with a constant": lambda a, b: F.matmul(a, MATRIX),
    "matmul with a vector": lambda a, b: b @ ROW if isinstance(b, np.ndarray) else F.matmul(b, ROW),
    "matmul from a constant": lambda a, b: F.matmul(MATRIX[:3, :2], b),
    "matmul that broadcasts": lambda a, b: F.matmul(b, F.transpose(a[:, :3])),
    "einsum": lambda a, b: F.einsum("nij,nj->ni", b, a[:, :3]),
    "einsum of samples": lambda a, b: F.einsum("nd,md->nm", a, a),
    "einsum of all": lambda a, b: F.einsum("nd,nd->", a, a),
    "einsum of one": lambda a, b: F.einsum("...ij->...ji", b),
    "einsum of three": lambda a, b: F.einsum("nij,jk,nk->ni", b, MATRIX[:3], a[:, 2:]),
    "einsum, implicit": lambda a, b: F.einsum("ij,jk", a, MATRIX),
    "concatenate": lambda a, b: F.concatenate([a, a[:, 1:3]], axis=1),
    "concatenate samples": lambda a, b: F.concatenate([a, 2.0 * a], axis=0),
    "stack": lambda a, b: F.stack([a, -a], axis=1),
    "stack before samples": lambda a, b: F.stack([a, -a]),
    "split": lambda a, b: F.split(a, 3, axis=1)[1],
    "split at points": lambda a, b: F.split(a, [1, 4], axis=-1)[2],
    "where": lambda a, b: F.where(b > 0.2, b, -1.0),
    "where of numbers": lambda a, b: F.where(a <= 0, 1.0, 2.5),
    "where of a constant": lambda a, b: F.where(ROW > 0, b, COLUMN),
    "minimum": lambda a, b: F.minimum(b, ROW),
    "maximum": lambda a, b: F.maximum(0.3, b),
    "clip": lambda a, b: F.clip(b, -0.5, 0.5),
    "clip by arrays": lambda a, b: F.clip(b, None, ROW),
    "reshape": lambda a, b: F.reshape(b, (-1, 6)) * a,
    "reshape with ones": lambda a, b: F.reshape(F.max(b, (1, 2), True), (-1,)),
    "reshape of a sum": lambda a, b: F.reshape(F.sum(b, axis=0), (3, -1)),
    "transpose": lambda a, b: F.transpose(b),
    "transpose, samples second": lambda a, b: F.transpose(b, (1, 0, 2)) + a[:, :3],
    "expand_dims": lambda a, b: F.expand_dims(a, (0, -1)),
    "squeeze": lambda a, b: F.squeeze(F.sum(b, axis=2, keepdims=True)),
    "take": lambda a, b: F.take(b, [[2, 0], [1, -1]], axis=2),
    "take one": lambda a, b: F.take(b, 1, axis=1),
    "take of a sum": lambda a, b: F.take(F.sum(b, axis=0), [1, 1], axis=0),
    "equal": lambda a, b: F.equal(F.sum(b > 0, axis=2), 2.0),
    "equal of samples": lambda a, b: F.equal(a[:, :1] > 0, F.transpose(a[:, :1] > 0)),
    "operators by NumPy": lambda a, b: np.less(ROW, b) + np.power(2.0, b) - np.add(b, 1.0),
    "operators": lambda a, b: (1 - b) / (2 + b**2) - ROW * -b + COLUMN,
    "operators of booleans": lambda a, b: (a > 0) * a + 3 * (a < a[:, :1]),
    "powers": lambda a, b: 2.0**a + (abs(a) + 0.5) ** a,
    "array first": lambda a, b: ROW / (1.5 + F.abs(b)) - b,
    "slices": lambda a, b: b[:, None, ..., 1:] + b[..., :1, [0, 2]],
    "pairs of samples": lambda a, b: pairwise(a),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_symbols_give_what_arrays_give(name):
    symbol, found, wanted = both(RESULTS[name])
    assert (
        found.shape
        == np.shape(wanted)
        == tuple(len(A) * (-1 - size) if size < -1 else size for size in symbol.full)
    )
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name", RESULTS)
def test_gradients_are_numerical_ones(name):
    weight = np.cos(np.arange(6.0))

    def fn(x, y):
        found = RESULTS[name](x[:, :6] + 0.01 * x[:, 6:], F.reshape(x[:, 6:], (-1, 2, 3)))
        axes = [k for k, size in enumerate(found.full) if k or size != -2]
        every = F.sum(found * 1.0, axis=axes) if axes else found
        return every + F.sum(x * weight.repeat(2), axis=1)

    x = np.concatenate([A, B.reshape(5, 6)], axis=1)
    check_loss(from_function(fn), x, np.zeros(5), tolerance=1e-5)


# -- arrays ---------------------------------------------------------------------------------------

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)
FLOATS = st.sampled_from(["float32", "float64"]).flatmap(
    lambda kind: hnp.arrays(kind, SHAPES, elements=st.floats(-8, 8, width=16))
)


@given(FLOATS, st.data())
def test_functions_of_arrays_are_numpys(x, data):
    for name in ("exp", "abs", "square", "tanh"):
        np.testing.assert_allclose(getattr(F, name)(x), getattr(np, name)(x), rtol=1e-5)
    np.testing.assert_allclose(F.sigmoid(x), 1 / (1 + np.exp(-x)), rtol=1e-5)
    axis = data.draw(st.sampled_from([None, 0, -1, tuple(range(x.ndim))]))
    keep = data.draw(st.booleans())
    for name in ("sum", "mean", "max", "min", "var"):
        found = getattr(F, name)(x, axis=axis, keepdims=keep)
        assert np.array_equal(found, getattr(np, name)(x, axis=axis, keepdims=keep))
    wanted = np.log(np.exp(x.astype(np.float64)).sum(axis=axis, keepdims=keep))
    found = F.logsumexp(x, axis=axis, keepdims=keep)
    assert np.shape(found) == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(F.softmax(x, -1).sum(axis=-1), 1, rtol=1e-5)
    assert F.exp(x).dtype == F.softmax(x).dtype == F.relu(x).dtype == x.dtype


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.booleans())
def test_symbols_broadcast_as_arrays(shapes, swapped):
    """Operands of samples, with a batch of 7, beside a constant or another one of samples."""
    one, other = shapes.input_shapes
    rng = np.random.default_rng(len(one))
    a, b = rng.standard_normal((7, *one)), rng.standard_normal(other)
    x = Input("x", one)
    for right, given_ in ((b, {}), (Input("y", other), {"y": np.stack([b] * 7)})):
        operands = [x, right][:: -1 if swapped else 1]
        arrays = [a, given_.get("y", b)][:: -1 if swapped else 1]
        try:
            wanted = arrays[0] - 2 * arrays[1]
        except ValueError:
            with pytest.raises(ShapeError, match="operator"):
                operands[0] - 2 * operands[1]
            continue
        try:
            made = operands[0] - 2 * operands[1]
        except ShapeError:
            # A constant along the batch, or an axis that has the extent of the batch by chance.
            continue
        found = value_of(made, x=a, **given_)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_gradients_are_pytorchs():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")

    def theirs(x, y):
        scores = torch.matmul(x, x.T) / 0.3
        same = (y == y.T).double()
        logs = torch.log_softmax(scores, 1)
        spread = torch.var(x, dim=0, correction=0).max()
        return -(same * logs).sum(1) / same.sum(1) + torch.logsumexp(x, 1) * spread

    def ours(x, y):
        same = F.equal(y, F.transpose(y))
        logs = F.log_softmax(F.matmul(x, F.transpose(x)) / 0.3, axis=1)
        spread = F.max(F.var(x, axis=0))
        return -F.sum(same * logs, axis=1) / F.sum(same, axis=1) + F.logsumexp(x, 1) * spread

    labels = np.array([[0], [1], [0], [2], [1]])
    x = torch.tensor(A, requires_grad=True)
    losses = theirs(x, torch.tensor(labels))
    losses.mean().backward()
    loss = from_function(ours)
    np.testing.assert_allclose(loss.forward(True, A, labels), losses.detach(), rtol=1e-12)
    np.testing.assert_allclose(loss.backward(), x.grad, rtol=1e-9, atol=1e-12)


# -- nets -----------------------------------------------------------------------------------------


def test_a_net_of_functions_is_saved_and_trains_alike_recorded(tmp_path):
    a, b = Input("a", (6,)), Input("b", (2, 3))
    rows = F.reshape(F.einsum("nij,nj->ni", b + ROW, a[:, :3]), (-1, 2))
    out = Dense("out", 2)(F.concatenate([F.matmul(a, MATRIX), rows], axis=1))
    net = FeedForwardNet(inputs=[a, b], outputs=F.log_softmax(out), seed=0)
    x, y = [A.astype("f4"), B.astype("f4")], RNG.standard_normal((5, 2)).astype("f4")
    net.compile(SGD(0.1), from_function(lambda x, y: F.sum(pairwise(x - y), axis=1)))
    plain = copy.deepcopy(net)
    plain.programs.enabled = False
    for _ in range(4):
        found, wanted = (each.step(x, y, each.compiled.optimizer) for each in (net, plain))
        assert found == wanted
    assert [p.name for p in net.params() if p.trainable] == ["out/weight", "out/bias"]
    net.compile(SGD(0.1), "mse")
    net.save_model(tmp_path / "net.singanet")
    again = singanet.load_model(tmp_path / "net.singanet")
    np.testing.assert_array_equal(again.predict(x), net.predict(x))
    assert again.to_config() == net.to_config()


def test_second_derivatives_of_a_loss_of_a_function():
    found = []
    feed = {"input": A.astype("f4"), "targets": B[:, 0].astype("f4")}
    for loss in (SquaredError(), from_function(lambda x, y: F.mean(F.square(x - y), axis=1) / 2)):
        parts = [Dense("a", 4, activation="tanh", input_shape=(6,)), Dense("b", 3)]
        net = FeedForwardNet(parts, loss=loss, seed=0)
        ones = {"a/weight": np.ones((6, 4))}
        found.append(net.hessian_vector_product("loss", ["a/weight"], feed, ones)["a/weight"])
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)


def test_a_loss_of_the_whole_batch_in_an_executor():
    """The mean squared deviation of scores from their mean over the batch."""
    x, w = Input("x", (6,)), RNG.standard_normal((5, 6)).astype("f4")
    scores = Dense("d", 3)(x)
    loss = F.mean(F.square(scores - F.mean(scores, axis=0))) + 0.5
    executor = Executor({"train": [loss, SGD(0.1).minimize(loss)], "look": [loss, scores]}, seed=0)
    values = [executor.run("train", {x: w})[0] for _ in range(4)]
    assert values == sorted(values, reverse=True)
    last, found = executor.run("look", {x: w})
    assert last == pytest.approx(found.var(axis=0).mean() + 0.5, rel=1e-5)
    slopes = Executor({"look": [scores, *singanet.executor.gradients(loss, [scores])]}, seed=0)
    before, dx = slopes.run("look", {x: w})
    np.testing.assert_allclose(
        dx, 2 * (before - before.mean(axis=0)) / before.size, rtol=1e-4, atol=1e-6
    )


def test_batches_of_losses_of_the_whole_weigh_by_their_samples():
    """Two batches that are accumulated are as their weighted mean."""
    x, found = Input("x", (6,)), []
    for sizes, wrap in (((4, 1), lambda rule: Accumulator(rule, 2)), ((5,), lambda rule: rule)):
        loss = F.mean(F.square(Dense("d", 3)(x)))
        executor = Executor({"train": [loss, wrap(SGD(0.1)).minimize(loss)]}, seed=0)
        for rows in np.split(A.astype("f4"), np.cumsum(sizes)[:-1]):
            executor.run("train", {x: rows})
        found.append(executor.net.params()[0].value)
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_where_batches_are_cut_samples_do_not_depend_on_others():
    a = Input("a", (6,))
    with pytest.raises(GraphError, match="batches are cut; received layer 'rearranged'"):
        FeedForwardNet(inputs=a, outputs=a - F.mean(a, axis=0))
    with pytest.raises(GraphError, match=r"'sum', of shape \(6\); layers compute sample by sample"):
        Dense("d", 2)(F.sum(a, axis=0))
    with pytest.raises(GraphError, match=r"of shape \(batch, batch\)"):
        Dense("d", 2)(F.matmul(a, F.transpose(a)))
    with pytest.raises(GraphError, match="program 'look'"):
        Executor({"look": [F.sum(a, axis=0)]})
    executor = Executor({"look": [a - F.mean(a, axis=0)]})
    assert "rearranged" in executor.plot("look")
    with pytest.raises(GraphError, match="batches are cut"):
        executor.as_net("look")
    net = FeedForwardNet([Rearrange((None, 1, 0), input_shape=(6,))])
    assert "moves the batch axis" in not_in_parts(net, None)


def test_booleans_beside_numbers_are_joined_as_numbers():
    """An input without a type has numbers, as other columns of a table beside a one-hot one."""
    number, kind = Input("number", ()), Input("kind", (), dtype="int64")
    one_hot = F.equal(F.expand_dims(kind, -1), np.arange(3))
    both = F.concatenate([F.expand_dims(number, -1), one_hot], axis=1)
    net = FeedForwardNet(inputs=[number, kind], outputs=Dense(2)(both), seed=0)
    found = net.predict({"number": np.array([0.5, 2.0]), "kind": np.array([1, 2])})
    given = np.array([[0.5, 0, 1, 0], [2.0, 0, 0, 1]], np.float32)
    np.testing.assert_allclose(found, given @ net.param_values()[-2], rtol=1e-5)


def test_masks_pass_constants_and_end_in_sums_of_steps():
    x = Input("x", (4, 3))
    x.mask = Input("there", (4,))
    y = x * ROW + 1.0
    assert y.mask is x.mask
    total = F.sum(y, axis=1)
    assert total.mask is None
    there = np.array([[1, 1, 0, 0]])
    found = value_of(total, x=np.ones((1, 4, 3)), there=there)
    np.testing.assert_allclose(found[0], 2 * (ROW + 1), rtol=1e-6)
    with pytest.raises(GraphError, match="mix padded steps"):
        F.mean(y, axis=0)


@pytest.mark.parametrize(("make", "words"), [
    (lambda a, b: a + b, r"operator \+: .* received \(batch, 6\) and \(batch, 2, 3\)"),
    (lambda a, b: a + np.ones((5, 6)), r"received \(batch, 6\) and \(5, 6\)"),
    (lambda a, b: a / 0, "received 0 as divisor"),
    (lambda a, b: F.exp(a) + "b", "symbols, numbers and arrays of numbers"),
    (lambda a, b: F.sum(a, axis=2), r"mean|sum: expected axes of an array of shape \(batch, 6\)"),
    (lambda a, b: F.mean(a, axis=(1, -1)), "each axis once"),
    (lambda a, b: F.matmul(a, b), r"matmul: .* received \(batch, 6\) and \(batch, 2, 3\)"),
    (lambda a, b: F.einsum("nii->n", b), "multiply by numpy.eye and sum"),
    (lambda a, b: F.reshape(b, (3, -1)), r"shape \(3, -1\) for \(batch, 2, 3\)"),
    (lambda a, b: F.reshape(b, (-1, 4)), "as many elements as a sample"),
    (lambda a, b: F.transpose(a, (0,)), "each of the axes 0 to 1"),
    (lambda a, b: F.squeeze(b, 0), "the batch is an axis of any extent"),
    (lambda a, b: F.split(a, 5, axis=0), "the batch, whose extent is not known"),
    (lambda a, b: F.split(a, 4, axis=1), "a divisor of it"),
    (lambda a, b: F.take(a, [0], axis=0), "axis 0 of a symbol is the batch"),
    (lambda a, b: F.take(a, a, axis=1), "Gather"),
    (lambda a, b: F.split(a, [0.5], axis=1), "functional.split: expected cuts inside an axis"),
    (lambda a, b: F.split(a, [], axis=1), "functional.split: expected cuts inside an axis"),
    (lambda a, b: F.softmax(a, axis=None), "softmax: expected axes of an array of shape"),
    (lambda a, b: F.transpose(a, 1), "transpose: expected each of the axes"),
    (lambda a, b: F.stack(a), "stack: expected several symbols.*received one symbol"),
    (lambda a, b: F.concatenate([]), "concatenate: expected several symbols.*received none"),
    (lambda a, b: F.concatenate([a, A]), "symbols alone, or arrays alone"),
    (lambda a, b: F.concatenate([a, b]), "shapes that agree"),
    (lambda a, b: np.exp(a), r"np.exp: expected arrays; received Symbol.*functional.exp"),
    (lambda a, b: np.concatenate([a, a]), "functional.concatenate"),
    (lambda a, b: np.sin(a), "np.sin: .*a layer of your own"),
    (lambda a, b: np.maximum(ROW, a), "functional.maximum"),
])  # fmt: skip
def test_what_functions_refuse(make, words):
    with pytest.raises(SingaNetError, match=words) as caught:
        make(Input("a", (6,)), Input("b", (2, 3)))
    assert isinstance(caught.value, (ArgumentError, ShapeError))
