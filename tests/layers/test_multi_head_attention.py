"""MultiHeadAttention against loops, PyTorch and Keras."""

from functools import partial

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, ShapeError
from singanet.layers import (
    Alibi,
    Context,
    Input,
    MultiHeadAttention,
    QueryKeyNorm,
    RelativePositions,
)
from singanet.layers.rotary import RotaryEmbedding
from singanet.net import FeedForwardNet
from singanet.ops import numpy_ops
from tests.kit.layers import beside_torch, built, case, cases, expect_refused, refuses


def transposed(rows, position, theta, interleaved):
    """One head's features at one position, as complex numbers turned about the origin."""
    half = len(rows) // 2
    pairs = rows.reshape(half, 2) if interleaved else rows.reshape(2, half).T
    angle = position * theta ** (-2.0 * np.arange(half) / len(rows))
    z = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angle)
    pairs = np.stack([z.real, z.imag], axis=1)
    return (pairs if interleaved else pairs.T).reshape(-1)


def normed(layer, gamma, x):
    """Rows of a head, or of all heads, by their root mean square."""
    if gamma is None:
        return x
    rows = x.reshape(*x.shape[:2], -1, len(gamma))
    root = np.sqrt((rows * rows).mean(axis=-1, keepdims=True) + layer.norm.epsilon)
    return (rows / root * (layer.norm.offset + gamma)).reshape(x.shape)


def bucket(relative, distance):
    """T5's bucket of one distance, by a loop over where buckets begin."""
    count, start = relative.buckets, 0
    if relative.bidirectional:
        count //= 2
        start = count if distance > 0 else 0
    far = abs(distance) if relative.bidirectional else max(-distance, 0)
    exact = count // 2
    if far < exact:
        return start + far
    ratio = (relative.max_distance / exact) ** (1.0 / (count - exact))
    begins = [exact * ratio**k for k in range(count - exact)]
    return start + exact + sum(far >= at * (1 - 1e-9) for at in begins) - 1


def loops(layer, p, query, value, key, lengths, mask, segments=None):
    """Outputs and weights sample by sample, head by head, query by query."""
    n, queries, _ = query.shape
    keys, heads = key.shape[1], layer.num_heads
    kd, vd = layer.dims["key"], layer.dims["value"]
    share = heads // (layer.num_kv_heads or heads)
    q, v, k = (
        normed(layer, p.get(f"{part}_gamma"), x @ p[f"{part}_weight"] + p.get(f"{part}_bias", 0))
        for part, x in (("query", query), ("value", value), ("key", key))
    )

    def at(rows, s, t, h):
        part = rows[s, t, h * kd : (h + 1) * kd]
        turn = layer.rotary
        if turn is None:
            return part
        n = int(turn.fraction * kd)
        return np.r_[transposed(part[:n], t, turn.theta, turn.interleaved), part[n:]]

    if mask is None:
        mask = np.full(1, layer.mask != "added", float)
    mask = np.broadcast_to(
        mask.reshape(len(mask), *[1] * (4 - mask.ndim), *mask.shape[1:]), (n, heads, queries, keys)
    )
    out, weights = np.zeros((n, queries, heads * vd)), np.zeros((n, heads, queries, keys))
    for s in range(n):
        for h in range(heads):
            for t in range(queries):
                seen = [
                    j
                    for j in range(keys if lengths is None else int(lengths.reshape(n)[s]))
                    if (not layer.causal or j <= t)
                    and (layer.window is None or j > t - layer.window)
                    and (layer.window is None or layer.causal or j < t + layer.window)
                    and (segments is None or segments[0][s, t] == segments[1][s, j])
                    and (mask[s, h, t, j] if layer.mask != "added" else mask[s, h, t, j] > -np.inf)
                ]
                if seen:
                    scale = layer.scale or 1 / np.sqrt(kd)
                    scores = np.array(
                        [at(q, s, t, h) @ at(k, s, j, h // share) * scale for j in seen]
                    )
                    if layer.softcap:
                        scores = layer.softcap * np.tanh(scores / layer.softcap)
                    if isinstance(layer.relative, Alibi):
                        # Of 3 heads the first two have the slopes of 2, the last one of 4.
                        slope = {3: [2**-4, 2**-8, 2**-2], 4: [2**-2, 2**-4, 2**-6, 2**-8]}
                        scores -= slope[heads][h] * (t - np.array(seen))
                    elif layer.relative is not None:
                        scores += [
                            p["relative_weight"][bucket(layer.relative, j - t), h] for j in seen
                        ]
                    if layer.mask == "added":
                        scores += mask[s, h, t, seen]
                    w = np.exp(scores)
                    weights[s, h, t, seen] = w / w.sum()
                    rows = v[s, seen, h // share * vd : (h // share + 1) * vd]
                    out[s, t, h * vd : (h + 1) * vd] = w @ rows / w.sum()
    return out @ p["output_weight"] + p.get("output_bias", 0), weights


def attention(shapes, draw=None, modes=(True,), batch=3, **given):
    """A layer of two heads, unless ``given`` says another number, against the loops."""
    make = partial(MultiHeadAttention, "att", **{"num_heads": 2, **given})

    def expected(params, x):
        layer = built(make(), shapes)
        parts = list(x) if isinstance(x, list) else [x]
        mask = parts.pop() if layer.mask else None
        ids = [parts.pop() for _ in range(layer.segments * (1 + (layer.given > 1)))]
        segments = (ids[-1], ids[0]) if ids else None
        lengths = parts[-1] if layer.has_lengths else None
        query, *rest = parts[: layer.given]
        value = rest[0] if rest else query
        key = rest[1] if len(rest) == 2 else value
        y, weights = loops(layer, params, query, value, key, lengths, mask, segments)
        return [y, weights] if layer.return_weights else y

    return case(make, shapes, expected, draw, _modes=modes, batch=batch)


def told(*given):
    """Draw floats, except for inputs of which ``given`` says each sample's; None is a float."""

    def draw(rng, *shapes):
        rows = [None] * (len(shapes) - len(given)) + [*given]
        return [rng.standard_normal(shape) if row is None else np.array(row)[: shape[0]]
                if len(shape) == 1 else np.tile(np.array(row), (shape[0], 1))
                for shape, row in zip(shapes, rows, strict=True)]  # fmt: skip

    return draw


def seen(rng, x, mask):
    there = rng.integers(0, 2, mask)
    there[:, 0] = 0
    return [rng.standard_normal(x), there.astype(bool)]


LENGTHS = {"draw": told([2, 4, 0, 1]), "batch": 4}
ADDED = {"shapes": [(4, 6), (3, 5), (3, 5), (), (2, 1, 3)], "draw": told([3, 1, 2, 0], None),
         "mask": "added"}  # fmt: skip
FOUR = {"shapes": [(5, 4), (4, 3), (4, 2), ()], **LENGTHS, "causal": True}
CASES = {
    "self": attention((5, 6)),
    "causal": attention((5, 6), num_heads=3, causal=True, use_bias=False),
    "of another sequence": attention([(3, 4), (5, 7)], key_dim=3, value_dim=5),
    "query, value, key, lengths, causal": attention(**FOUR),
    "lengths": attention([(4, 6), ()], num_heads=1, **LENGTHS),
    "grouped heads and weights": attention([(3, 4), (5, 7)], num_heads=4, key_dim=3, value_dim=2,
                                           num_kv_heads=2, num_output=5, return_weights=True),
    "rotary": attention((5, 8), causal=True, num_kv_heads=1, rotary=RotaryEmbedding()),
    "rotary, interleaved": attention([(5, 8), (4, 6)],
                                     rotary=RotaryEmbedding(100.0, interleaved=True)),
    "rotary in part": attention((5, 10), rotary=RotaryEmbedding(50.0, fraction=0.8)),
    "rotary in part, interleaved": attention(
        (5, 10), causal=True, rotary=RotaryEmbedding(50.0, interleaved=True, fraction=0.4)),
    "relative": attention((7, 6), relative=RelativePositions(8, 5), scale=1.0),
    "alibi": attention((7, 12), relative=Alibi(), causal=True, num_heads=3),
    "alibi, packed": attention([(7, 8), (7,)], told([1, 1, 1, 2, 2, 3, 3]), num_heads=4,
                               causal=True, segments=True, relative=Alibi()),
    "relative, backwards, lengths": attention(
        [(4, 6), (6, 5), ()], told([3, 6, 1, 4]), num_kv_heads=1,
        relative=RelativePositions(4, 3, bidirectional=False)),
    "relative under a mask": attention([(5, 6), (2, 1, 5)], relative=RelativePositions(8, 5),
                                       return_weights=True, mask="added", causal=True),
    "norm of each head": attention((5, 6), key_dim=4, causal=True, num_kv_heads=1,
                                   use_bias=["value", "query"], rotary=RotaryEmbedding(),
                                   norm=QueryKeyNorm(1e-3)),
    "norm of all heads, offset": attention([(3, 6), (5, 4)], num_heads=4, key_dim=2, num_kv_heads=2,
                                           norm=QueryKeyNorm(0.1, joint=True, offset=1.0),
                                           use_bias=("output",)),
    "boolean mask": attention([(4, 6), (4, 4)], seen, mask="boolean", return_weights=True),
    "boolean mask of keys, causal": attention([(4, 6), (4,)], told([0, 1, 1, 0]), causal=True,
                                              mask="boolean"),
    "added mask": attention(**ADDED, dropout=0.0),
    "window": attention((6, 8), num_heads=4, causal=True, window=2, scale=0.7, num_kv_heads=2),
    "window on both sides": attention((6, 8), num_heads=4, window=2),
    "softcap of an added mask": attention(**ADDED, softcap=0.8),
    "segments": attention([(5, 4), (5,)], told([1, 1, 2, 2, 2]), causal=True, segments=True),
    "segments of two under a mask": attention(
        [(4, 6), (3, 5), (), (4,), (3,), (3,)],
        told([2] * 4, [7, 8, 8, 9], [8, 8, 7], [1, 0, 1]), segments=True, mask="boolean"),
    "dropout": attention((5, 6), modes=(True, False), dropout=0.4),
}  # fmt: skip


@cases(CASES)
def test_layer(case, xp):
    case.test_layer(xp)


@pytest.mark.parametrize("name", ["query, value, key, lengths, causal", "added mask"])
def test_layer_of_sequences_that_are_not_short(name, monkeypatch):
    monkeypatch.setattr("singanet.layers.multi_head_attention.are_few", lambda *_: False)
    CASES[name].test_layer(np)


def run(layer, x, train=True):
    params = {suffix: param.value for suffix, param in layer.params.items()}
    ctx = Context(numpy_ops, np.random.default_rng(0), params, train)
    return ctx, layer.forward(ctx, x)


def in_torch(f, x, p, heads, hidden=None, causal=False):
    """Attention of ``x`` by PyTorch's kernel; ``hidden`` keys are not seen."""
    rows = (x @ p[f"{part}_weight"] + p[f"{part}_bias"] for part in ("query", "key", "value"))
    q, k, v = (each.unflatten(2, (heads, -1)).transpose(1, 2) for each in rows)
    seen = None if hidden is None else ~hidden[:, None, None]
    y = f.scaled_dot_product_attention(q, k, v, seen, is_causal=causal)
    return y.transpose(1, 2).flatten(2) @ p["output_weight"] + p["output_bias"]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("causal", "ragged"), [(False, False), (True, False), (False, True)])
def test_outputs_and_gradients_equal_pytorch(causal, ragged, dtype, rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    x, lengths = rng.standard_normal((4, 7, 12)), np.array([7, 3, 1, 5] if ragged else [7] * 4)
    hidden = torch.tensor(np.arange(7) >= lengths[:, None]) if ragged else None
    beside_torch(partial(MultiHeadAttention, "att", 3, causal=causal), [(7, 12), ()],
                 lambda f, x, p: in_torch(f, x[0], p, 3, hidden, causal), dtype,
                 x=[x, lengths])  # fmt: skip


def of_torch(torch, layer, theirs):
    """Give ``layer`` the arrays of PyTorch's."""
    size = theirs.embed_dim
    for k, part in enumerate(("query", "key", "value")):
        rows = slice(k * size, (k + 1) * size)
        weight, bias = theirs.in_proj_weight[rows], theirs.in_proj_bias[rows]
        layer.params[f"{part}_weight"].value[...] = weight.detach().numpy().T
        layer.params[f"{part}_bias"].value[...] = bias.detach().numpy()
    layer.params["output_weight"].value[...] = theirs.out_proj.weight.detach().numpy().T
    layer.params["output_bias"].value[...] = theirs.out_proj.bias.detach().numpy()


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_masks_and_weights_equal_pytorch(kind, rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    layer = built(MultiHeadAttention("att", 2, mask=kind, return_weights=True), [(5, 8), (2, 5, 5)])
    of_torch(torch, layer, theirs)
    x = rng.standard_normal((3, 5, 8)).astype(np.float32)
    mask = rng.standard_normal((3, 2, 5, 5)).astype(np.float32)
    if kind == "boolean":
        mask = mask > -0.5
        mask[..., 0] = True
    dy, dw = (rng.standard_normal(s).astype(np.float32) for s in (x.shape, (3, 2, 5, 5)))
    ctx, (y, weights) = run(layer, [x, mask])
    (dx, dmask), _ = layer.backward(ctx, [dy, dw])
    tx = torch.tensor(x, requires_grad=True)
    # PyTorch's boolean mask is True where a key is not seen.
    tmask = torch.tensor(~mask) if kind == "boolean" else torch.tensor(mask, requires_grad=True)
    ty, tweights = theirs(tx, tx, tx, attn_mask=tmask.reshape(6, 5, 5), average_attn_weights=False)
    torch.autograd.backward([ty, tweights], [torch.tensor(dy), torch.tensor(dw)])
    close = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose(y, ty.detach().numpy(), **close)
    np.testing.assert_allclose(weights, tweights.detach().numpy(), **close)
    np.testing.assert_allclose(dx, tx.grad.numpy(), **close)
    if kind == "added":
        np.testing.assert_allclose(dmask, tmask.grad.numpy(), **close)
    else:
        assert dmask is None


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_a_query_that_sees_no_key_is_zero_as_in_pytorch(kind, rng):
    """Zeros as of its kernel; its own layer, asked for weights, gives NaN, Keras the plain mean."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: the peers extra")
    layer = MultiHeadAttention("att", 2, use_bias=False, mask=kind, return_weights=True)
    layer.build([(3, 4), (3, 3)])
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    seen = np.ones((2, 3, 3), bool)
    seen[:, 1] = False
    mask = seen if kind == "boolean" else np.where(seen, 0, -np.inf).astype(np.float32)
    ctx, (y, weights) = run(layer, [x, mask])
    (dx, _), grads = layer.backward(ctx, [np.ones_like(y), np.ones_like(weights)])
    tx = torch.tensor(x, requires_grad=True)
    p = {name: torch.tensor(param.value) for name, param in layer.params.items()}
    q, k, v = (
        (tx @ p[f"{part}_weight"]).reshape(2, 3, 2, 2).transpose(1, 2)
        for part in ("query", "key", "value")
    )
    kernel = torch.nn.functional.scaled_dot_product_attention
    theirs = kernel(q, k, v, attn_mask=torch.tensor(mask)[:, None])
    ty = theirs.transpose(1, 2).reshape(2, 3, 4) @ p["output_weight"]
    ty.backward(torch.ones(2, 3, 4))
    assert not y[:, 1].any()
    assert not weights[:, :, 1].any()
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-5, atol=1e-5)
    # The sum of a query's weights is constant, so their own gradient adds nothing.
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-5, atol=1e-5)
    assert all(np.isfinite(grad).all() for grad in grads.values())


def of_keras(keras, layer, theirs):
    """Give ``layer`` the arrays of Keras'."""
    for part in ("query", "key", "value", "output"):
        dense = getattr(theirs, f"_{part}_dense")
        w, b = (keras.ops.convert_to_numpy(v) for v in (dense.kernel, dense.bias))
        weight = layer.params[f"{part}_weight"].value
        weight[...] = w.reshape(weight.shape)
        layer.params[f"{part}_bias"].value[...] = b.reshape(-1)


def test_grouped_heads_and_plain_ones_equal_keras(rng):
    keras = pytest.importorskip("keras", reason="Keras is not installed: the peers extra")

    def beside(theirs, layer, inputs, shapes, **given):
        theirs.build(*(each.shape for each in inputs))
        theirs.set_weights([rng.standard_normal(w.shape) for w in theirs.get_weights()])
        layer.build(shapes)
        of_keras(keras, layer, theirs)
        want = theirs(*inputs, **given)
        found = run(layer, [*inputs, *given.values()][: len(shapes)], train=False)[1]
        pairs = [(found, want)] if len(inputs) == 3 else zip(found, want, strict=True)
        for ours, other in pairs:
            other = keras.ops.convert_to_numpy(other)
            np.testing.assert_allclose(ours, other, rtol=1e-5, atol=1e-5)

    query, value = (rng.standard_normal((2, t, 6)).astype(np.float32) for t in (5, 4))
    seen = rng.random((2, 5, 4)) < 0.6
    seen[:, :, 0] = True
    more = {"num_kv_heads": 2, "causal": True, "mask": "boolean", "return_weights": True}
    beside(keras.layers.GroupQueryAttention(3, 4, 2), MultiHeadAttention("att", 4, 3, **more),
           [query, value], [(5, 6), (4, 6), (5, 4)], attention_mask=seen, use_causal_mask=True,
           return_attention_scores=True)  # fmt: skip
    shapes = [(5, 6), (4, 7), (4, 3)]
    inputs = [rng.standard_normal((2, *shape)).astype(np.float32) for shape in shapes]
    theirs = keras.layers.MultiHeadAttention(2, 3, value_dim=4)
    beside(theirs, MultiHeadAttention("att", 2, 3, 4), inputs, shapes)


def test_parameters_have_names_shapes_and_order_and_are_there_by_part():
    layer = MultiHeadAttention("att", 2, key_dim=3, value_dim=4)
    assert layer.build([(5, 6), (None, 7)]) == (5, 6)
    assert {name: param.shape for name, param in layer.params.items()} == {
        "query_weight": (6, 6), "query_bias": (6,), "value_weight": (7, 8), "value_bias": (8,),
        "key_weight": (7, 6), "key_bias": (6,), "output_weight": (8, 6), "output_bias": (6,)
    }  # fmt: skip
    norm = QueryKeyNorm(offset=1.0)
    layer = MultiHeadAttention("att", 2, num_kv_heads=1, use_bias=("key", "query"), norm=norm)
    layer.build((5, 6))
    assert list(layer.params) == [
        "query_weight", "query_bias", "value_weight", "key_weight", "key_bias", "output_weight",
        "query_gamma", "key_gamma",
    ]  # fmt: skip
    assert not layer.params["key_gamma"].value.any()
    joint = MultiHeadAttention("att", 2, num_kv_heads=1, norm=QueryKeyNorm(joint=True))
    joint.build((5, 6))
    assert joint.params["query_gamma"].value.tolist() == [1.0] * 6
    assert joint.params["key_gamma"].shape == (3,)


def test_scores_of_any_size_stay_finite_and_a_causal_prefix_does_not_see_what_follows(rng):
    layer = built(MultiHeadAttention("att", 2, causal=True), (None, 4))
    x = rng.standard_normal((2, 9, 4)).astype(np.float32)
    _, whole = run(layer, x, train=False)
    _, part = run(layer, x[:, :5], train=False)
    np.testing.assert_allclose(whole[:, :5], part, rtol=1e-5, atol=1e-6)
    ctx, y = run(layer, 1e4 * x)
    assert np.isfinite(y).all()
    assert np.isfinite(layer.backward(ctx, y)[0]).all()


@pytest.mark.parametrize("few", [True, False])
def test_dropout_is_the_probability_of_dropping(few, monkeypatch):
    monkeypatch.setattr("singanet.layers.multi_head_attention.are_few", lambda *_: few)
    layer = MultiHeadAttention("att", 1, dropout=0.25, use_bias=False)
    layer.build([(40, 100), (100, 100)])
    for suffix, param in layer.params.items():
        param.value[...] = np.eye(100) * (suffix in ("value_weight", "output_weight"))
    # Equal weights of 1/100 on unit rows: the output shows each weight, times 4/3 or nothing.
    x = np.broadcast_to(np.eye(100, dtype=np.float32), (5, 100, 100))
    _, y = run(layer, [x[:, :40], x])
    assert set(np.unique(y.round(6))) == {0.0, np.float32(0.013333)}
    assert abs((y == 0).mean() - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 20_000)


@pytest.mark.parametrize("wrong", [5, -1, 0.5])
def test_refuses_a_length_that_is_not_there(wrong):
    layer = built(MultiHeadAttention("att", 1), [(4, 2), ()])
    with pytest.raises(DataError, match="'att', input lengths: expected whole numbers from 0 to 4"):
        run(layer, [np.zeros((1, 4, 2), np.float32), np.array([wrong])])


@pytest.mark.parametrize("dtype", ["bool", None])
def test_a_mask_that_is_fed_or_drawn_is_the_same_in_a_net(dtype, rng):
    x, mask = Input("x", (5, 4)), Input("mask", (5,), dtype)
    make = {"mask": "boolean", "W_specs": {"init": "constant", "value": 0.3}}
    one = MultiHeadAttention("one", 2, **make)(x, mask)
    other = MultiHeadAttention("other", 2, **make)(x, x[:, :, 0] > 0)
    net = FeedForwardNet(inputs=[x, mask], outputs=[one, other])
    given = rng.standard_normal((3, 5, 4)).astype(np.float32)
    out = net.predict({"x": given, "mask": given[:, :, 0] > 0})
    np.testing.assert_array_equal(out["one"], out["other"])
    unmasked = net.predict({"x": given, "mask": np.ones((3, 5), bool)})
    assert (unmasked["one"] != out["one"]).any()


def test_a_mask_of_any_extent_is_checked_when_it_comes():
    layer = built(MultiHeadAttention("att", 2, mask="boolean"), [(None, 6), (None, None)])
    x = np.zeros((2, 5, 6), np.float32)
    assert run(layer, [x, np.ones((1, 5, 5), bool)])[1].shape == x.shape
    for wrong in ((2, 4, 5), (3, 5, 5), (2, 5, 2)):
        with pytest.raises(ShapeError, match="a mask over 2 samples, 5 queries and 5 keys"):
            run(layer, [x, np.ones(wrong, bool)])


@pytest.mark.parametrize("mask", [None, "boolean", "added"])
@pytest.mark.parametrize("segments", [False, True])
@pytest.mark.parametrize("dtype", ["int64", "int32", "float32"])
def test_lengths_and_segments_are_of_any_type_of_numbers(mask, segments, dtype):
    rng = np.random.default_rng(3)
    x, lengths = rng.standard_normal((3, 5, 8)).astype(np.float32), np.array([5, 3, 2])
    ids = np.array([[0, 0, 0, 1, 1], [2, 2, 2, 2, 2], [0, 1, 1, 1, 1]])
    there = np.ones((3, 5, 5), bool)
    there &= (np.arange(5) < lengths[:, None])[:, None]
    inputs = [Input("x", (5, 8)), Input("n", (), dtype=dtype)]
    feed = {"x": x, "n": lengths.astype(dtype)}
    if segments:
        there &= ids[:, :, None] == ids[:, None]
        inputs.append(Input("ids", (5,), dtype=dtype))
        feed["ids"] = ids.astype(dtype)
    if mask is not None:
        said = "bool" if mask == "boolean" else "float32"
        inputs.append(Input("mask", (5, 5), dtype=said))
        feed["mask"] = np.full((3, 5, 5), mask == "boolean", said)
    made = MultiHeadAttention("a", 2, mask=mask, segments=segments)(*inputs)
    found = FeedForwardNet(inputs=inputs, outputs=made, seed=0).predict(feed)
    masked = [Input("x", (5, 8)), Input("mask", (5, 5), dtype="bool")]
    plain = MultiHeadAttention("a", 2, mask="boolean")(*masked)
    wanted = FeedForwardNet(inputs=masked, outputs=plain, seed=0).predict({"x": x, "mask": there})
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("mask", [None, "added"])
def test_whole_numbers_are_no_values_and_are_not_added(mask):
    inputs = [Input("x", (5, 8)), Input("more", (5, 8) if mask is None else (5, 5), dtype="int64")]
    layer = MultiHeadAttention("a", 2, mask=mask)
    with pytest.raises(ArgumentError, match="input 1: expected floats to compute with"):
        layer(*inputs)
    assert layer.in_shapes is None


BAD = [{"num_heads": 0}, {"key_dim": -1}, {"value_dim": 1.5}, {"dropout": 1.0}, {"num_kv_heads": 3},
       {"output_dim": 0}, {"mask": "bool"}, {"mask": []}, {"rotary": True}, {"norm": True},
       {"relative": 32}, {"use_bias": "query"}, {"use_bias": 1}, {"use_bias": ("q",)},
       {"use_bias": [[]]}]  # fmt: skip
WRONG_SHAPES = [
    *[({}, "expected one to three inputs", shapes)
      for shapes in ((4,), (), [(), (4, 6)], [(4, 6), (4, 6), (5, 6)], [(4, 6), (4,)], [(4, 6)] * 4,
                     [(4, 6), (2,)])],
    ({"num_heads": 4}, "expected .*divisible by num_heads=4; received 6 features", (5, 6)),
    *[({"segments": True}, "expected .*segments of", [(5, 6), *ids])
      for ids in ([(4,)], [(5,), (5,)], [])],
    *[({"mask": "added"}, r"expected a mask of the last of the axes \(2, 5, 5", [(5, 6), shape])
      for shape in ((4,), (5, 4), (3, 5, 5), (1, 2, 5, 5))],
]  # fmt: skip
PAIRS = "argument rotary: expected an even number"


@refuses([
    *[(partial(MultiHeadAttention, "att", **{"num_heads": 2, **bad}), ArgumentError,
       f"argument {next(iter(bad))}: expected") for bad in BAD],
    *[(partial(MultiHeadAttention("att", 2, rotary=rotary).build, (5, 6)), ArgumentError, PAIRS)
      for rotary in (RotaryEmbedding(), RotaryEmbedding(fraction=0.1))],
    *[(partial(MultiHeadAttention("att", **{"num_heads": 2, **given}).build, shapes), ShapeError,
       f"layer 'att': {words}") for given, words, shapes in WRONG_SHAPES],
    *[(partial(QueryKeyNorm, **given), ArgumentError,
       f"QueryKeyNorm, {next(iter(given))}: expected a")
      for given in ({"epsilon": 0.0}, {"epsilon": "small"}, {"offset": None})],
    *[(partial(RotaryEmbedding, theta), ArgumentError,
       "RotaryEmbedding, theta: expected a positive number")
      for theta in (0, -1.0, float("nan"), "10000")],
])  # fmt: skip
def test_refusals(make, error, words):
    expect_refused(make, error, words)
    if error is ShapeError:
        assert make.func.__self__.params == {}
