"""Low-rank pairs beside weights: against formulas, in every way of stepping, merged and saved."""

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet
from singanet import layers as nn
from singanet.errors import ArgumentError, CallOrderError, ConfigError, UnknownNameError
from singanet.layers import Activation, Dense, Embedding, GatedUnit, Input, MultiHeadAttention
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Adam
from singanet.testing import check_gradients, check_net_gradients
from singanet.training.callbacks import EMA
from tests.kit.ranks import expect_same_bits
from tests.program.twins import Twins

RNG = np.random.default_rng(3)
X = RNG.standard_normal((6, 5, 8)).astype(np.float32)
Y = np.arange(6) % 3


def net_of(seed=1):
    """Attention, a gated unit and a Dense; called as in published models."""
    layers = [
        MultiHeadAttention("attention", 2, num_kv_heads=1, input_sample_shape=(5, 8)),
        GatedUnit("unit", 12, 8), nn.Reduce("mean", "mean", axes=1), Dense("head", 3)
    ]  # fmt: skip
    return FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=seed)


def drawn(net, scale=0.3):
    """The net with pairs that add something."""
    rng = np.random.default_rng(0)
    for param in net.params():
        if param.name.endswith("lora_b"):
            param.value[...] = scale * rng.standard_normal(param.shape)
    return net


def adapted(where="all", **more):
    net = net_of()
    net.adapt(2, where, **{"alpha": 3.0, **more})
    return drawn(net)


def values(net):
    return {param.name: param.value.copy() for param in net.params()}


def moved(net, before):
    """The names of the parameters that are not as before."""
    found = values(net)
    return {name for name in found if not np.array_equal(found[name], before.get(name))}


def chain(*layers, loss=None, **more):
    return FeedForwardNet([*layers], loss=loss or SoftmaxCrossEntropy(), seed=0, **more)


def by_formula(net):
    """A net of the same base, whose weights are W + (alpha / rank) A B, in float64."""
    plain, found = net_of(), values(net)
    for param in plain.params():
        a, b = (found.get(f"{param.name}.lora_{side}") for side in "ab")
        pair = 0.0 if a is None else 1.5 * (a.astype(float) @ b.astype(float))
        param.value[...] = found[param.name] + pair
    return plain


# -- layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize(("make", "shape"), [
    (lambda: Dense("l", 4), (2, 3, 6)),
    (lambda: Dense("l", 4, W_transpose=True, use_bias=False), (5, 6)),
    (lambda: GatedUnit("l", 7, 4, use_bias=True), (5, 6)), (lambda: GatedUnit("l", 7), (5, 6)),
    (lambda: MultiHeadAttention("l", 2, causal=True), (2, 4, 6)),
])  # fmt: skip
def test_gradients_are_the_numerical_ones(make, shape, dropout):
    layer = make()
    layer.input_sample_shape = shape[1:]
    net = FeedForwardNet([layer], seed=0)
    net.adapt(2, "all", alpha=5.0, dropout=dropout)
    drawn(net)
    rows = check_gradients(layer, np.random.default_rng(1).standard_normal(shape))
    assert any("lora_a" in row.what for row in rows)
    assert not any(row.what == "parameter 'weight'" for row in rows)


def test_dense_is_the_formula_of_the_paper():
    rng = np.random.default_rng(2)
    net = FeedForwardNet([Dense("fc", 4, input_sample_shape=(6,))], loss=SquaredError(), seed=0)
    net.as_type("float64")
    assert net.adapt(3, "fc", alpha=6.0) == ["fc/weight"]
    w, b, a, up = (drawn(net)["fc"].params[s].value for s in net["fc"].params)
    x, dy = rng.standard_normal((5, 6)), rng.standard_normal((5, 4))
    y = net.forward(True, x)
    np.testing.assert_allclose(y, x @ w + b + 6.0 / 3 * (x @ a) @ up, rtol=1e-12)
    grads = {n: g for item in net.backward(dy) for n, g in zip(item.names, item.grads, strict=True)}
    assert set(grads) == {"fc/weight.lora_a", "fc/weight.lora_b"}
    np.testing.assert_allclose(grads["fc/weight.lora_a"], 2.0 * x.T @ dy @ up.T, rtol=1e-12)
    np.testing.assert_allclose(grads["fc/weight.lora_b"], 2.0 * (x @ a).T @ dy, rtol=1e-12)


# -- nets ---------------------------------------------------------------------------------------


def test_begins_as_the_base_and_says_what_it_chose():
    net = net_of()
    before, parameters = net.forward(False, X), values(net)
    assert net.adapt(2) == [f"attention/{p}_weight" for p in ("query", "value", "key", "output")]
    np.testing.assert_array_equal(net.forward(False, X), before)
    trained = [p.name for p in net.params() if p.trainable]
    assert len(trained) == 8
    assert all(name.startswith("attention/") and "_weight.lora_" in name for name in trained)
    shapes = [net["attention"].params[f"key_weight.lora_{side}"].shape for side in "ab"]
    assert shapes == [(8, 2), (2, 4)]
    net.step(X, Y, Adam(lr=0.1))
    assert not moved(net, parameters) & parameters.keys()
    assert (net.forward(False, X) != before).any()


def test_pairs_are_drawn_by_the_seed_of_the_net():
    nets = [net_of(seed) for seed in (1, 1, 2)]
    for net in nets:
        net.adapt(2, "head")
    one, same, other = (net["head"].params["weight.lora_a"].value for net in nets)
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()
    assert 0.1 < np.abs(one).max() <= 8**-0.5


@pytest.mark.parametrize(
    ("where", "count"),
    [("all", 8), ("attention", 4), ("unit", 3), ("*_weight", 7), (["head", "*/query_weight"], 2),
     (["head", "head"], 1)],
)  # fmt: skip
def test_where_names_layers_weights_and_patterns(where, count):
    net = net_of()
    assert len(net.adapt(1, where)) == count
    assert sum("lora_a" in name for name in net.param_names()) == count


def test_outputs_and_gradients_are_those_of_the_summed_weight():
    net = adapted()
    check_net_gradients(net, X)
    np.testing.assert_allclose(net.forward(False, X), by_formula(net).forward(False, X), atol=1e-6)


def test_recorded_steps_are_those_by_layers():
    twins = Twins(lambda: adapted(dropout=0.2), lambda: SGD(lr=0.1, momentum=0.5))
    for _ in range(4):
        twins.step(X, Y)
    assert not twins.expect_recorded()


def test_no_product_makes_the_gradient_of_a_frozen_weight(monkeypatch):
    net = adapted("head")
    net.programs.enabled = False
    seen = []
    kernels = type(net.device.ops)
    own = kernels.matmul

    def matmul(ops, a, b, **more):
        seen.append((a.shape[0], b.shape[1]))
        return own(ops, a, b, **more)

    monkeypatch.setattr(kernels, "matmul", matmul)
    net.forward(True, X)
    for _ in net.backward(np.ones((6, 3), np.float32)):
        pass
    assert (8, 3) not in seen
    assert (8, 2) in seen  # A's
    assert (2, 3) in seen  # B's


def test_what_is_trained_moves():
    net = adapted("head")
    net["head"].params["weight"].trainable = True
    before = values(net)
    net.step(X, Y, SGD(lr=0.1))
    assert moved(net, before) == {"head/weight", "head/weight.lora_a", "head/weight.lora_b"}
    fc = Dense("fc", 4, input_sample_shape=(6,))
    net = chain(fc, nn.BatchNormalization("norm"), Dense("top", 3))
    net.adapt(1, "fc")
    before = values(net)
    net.step(X[:, 0, :6], Y, SGD(lr=0.1))
    # Of A the gradient is zero while B is, and running state is held.
    assert moved(net, before) == {"fc/weight.lora_b"}


@pytest.mark.parametrize(
    "more",
    [{}, {"clip": 0.1, "clip_by": "global"}, {"accumulate": 2}, {"callbacks": [EMA(0.5)]}],
    ids=["plain", "clip", "accumulate", "ema"],
)
@pytest.mark.parametrize("precision", [None, "float16"])
def test_fit_moves_pairs_alone(more, precision):
    net = net_of()
    net.compile(SGD(lr=0.5), **({"mixed_precision": precision} if precision else {}))
    base = values(net)
    net.adapt(2, "all")
    net.fit(X, Y, batch_size=3, epochs=4, verbose=False, **more)
    assert not moved(net, base) & base.keys()
    ups = [value for name, value in values(net).items() if name.endswith("lora_b")]
    assert len(ups) == 8
    assert all(value.any() for value in ups)


def test_an_offloaded_base_gives_the_same_bits(tmp_path):
    def made():
        net = chain(Dense("wide", 200, input_sample_shape=(40,)), Dense("back", 200), Dense("t", 3))
        net.adapt(2, ["wide", "back"])
        return drawn(net)

    net, other, x = made(), made(), X.reshape(6, 40)
    rules = SGD(lr=0.1), SGD(lr=0.1)
    other.programs.enabled = False
    net.offload(tmp_path / "o", keep="400kB", optimizer=rules[0])
    for _ in range(3):
        assert net.step(x, Y, rules[0])[0] == other.step(x, Y, rules[1])[0]
    assert not net["back"].params["weight"].storage.in_memory
    for call in (net.merge, lambda: net.adapt(1)):
        with pytest.raises(CallOrderError, match=r"net\.(merge|adapt)"):
            call()
    net.onload()
    expect_same_bits([net, other])


def test_decoding_goes_by_the_pairs():
    words = Embedding("words", 9, 8, input_sample_shape=(None,))
    net = chain(words, MultiHeadAttention("attention", 2, causal=True), Dense("logits", 9))
    net.adapt(2, "all")
    ids = np.array([[1, 5, 2, 7]])
    whole, decoder = drawn(net).predict(ids), net.decoder(max_length=8)
    parts = [decoder(ids[:, :3]), decoder(ids[:, 3:])]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, atol=1e-6)
    [row] = net.generate(ids, 4, temperature=0, max_length=8)
    net.merge()
    [again] = net.generate(ids, 4, temperature=0, max_length=8)
    np.testing.assert_array_equal(row, again)


def test_a_head_in_blocks_is_none_with_a_pair(monkeypatch):
    from singanet.loss import head_loss

    monkeypatch.setattr(head_loss, "FEWEST_ROWS", 1)
    monkeypatch.setattr(head_loss, "BLOCK", 8)
    net = adapted("head")
    other = by_formula(net)
    for _ in range(3):  # recorded, too
        told = [each.step(X, Y, SGD(lr=0.0))[0] for each in (net, other)]
        assert told[0] == pytest.approx(told[1], 1e-5)


# -- merged and saved ---------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_merged_is_the_sum_rounded_once(transposed):
    layer = Dense("fc", 4, W_transpose=transposed, input_sample_shape=(6,))
    net = FeedForwardNet([layer], seed=0)
    net.adapt(2, "fc", alpha=3.0)
    before = values(drawn(net))
    assert net.merge() == ["fc/weight"]
    a, b = (before[f"fc/weight.lora_{side}"] for side in "ab")
    pair = np.float32(1.5) * a @ b
    np.testing.assert_array_equal(
        net["fc"].params["weight"].value, before["fc/weight"] + (pair.T if transposed else pair)
    )
    assert [*net["fc"].params] == ["weight", "bias"]


def test_merged_equals_apart_and_may_be_adapted_again():
    net = adapted()
    apart = net.forward(False, X)
    net.merge()
    np.testing.assert_allclose(net.forward(False, X), apart, atol=1e-5)
    np.testing.assert_allclose(net.forward(False, X), by_formula(net).forward(False, X), atol=1e-6)
    assert not any(param.trainable for param in net.params())
    net.adapt(1, "head")
    net.step(X, Y, SGD(lr=0.1))


def test_predictors_have_merged_constants(tmp_path):
    net = adapted()
    predictor = net.predictor()
    np.testing.assert_allclose(predictor(X), net.predict(X), atol=1e-6)
    with predictor.constants() as constants:
        assert not any("lora" in param.name for param in constants.params())
    predictor.save(tmp_path / "p.singanet")
    np.testing.assert_array_equal(singanet.load_predictor(tmp_path / "p.singanet")(X), predictor(X))
    net.step(X, Y, SGD(lr=0.1))  # which has its own pairs still


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "hdf5"])
def test_checkpoints_have_the_pairs_by_name(tmp_path, suffix):
    net = adapted()
    net.save(tmp_path / f"w.{suffix}")
    other = net_of(seed=5)
    other.adapt(2, "all", alpha=3.0)
    other.load(tmp_path / f"w.{suffix}")
    np.testing.assert_array_equal(other.forward(False, X), net.forward(False, X))
    assert "attention/query_weight.lora_a" in net.param_names()


def test_a_saved_model_goes_on_as_it_was(tmp_path):
    net = adapted(dropout=0.1)
    net.compile(Adam(lr=0.01))
    net.fit(X, Y, batch_size=3, verbose=False)
    net.save_model(tmp_path / "m.singanet")
    other = singanet.load_model(tmp_path / "m.singanet")
    assert [p.trainable for p in other.params()] == [p.trainable for p in net.params()]
    assert other["unit"].adapters == net["unit"].adapters
    for each in (net, other):
        each.fit(X, Y, batch_size=3, verbose=False, shuffle=False)
    np.testing.assert_array_equal(other.forward(False, X), net.forward(False, X))


def test_what_a_config_tells_of_pairs_is_checked():
    config = adapted("head").to_config()
    assert config["adapted"] == {"head": {"weight": {"rank": 2, "alpha": 3.0, "dropout": 0.0}}}
    FeedForwardNet.from_config(config)
    pair = config["adapted"]["head"]["weight"]
    bad = [pair | more for more in ({"rank": 99}, {"more": 1}, {"alpha": "x"})]
    bad = [{"head": {"weight": each}} for each in bad]
    for told in (7, {"head": 7}, {"other": {"weight": pair}}, {"head": {"bias": pair}}, *bad):
        with pytest.raises((ConfigError, ArgumentError)):
            FeedForwardNet.from_config(config | {"adapted": told})


@pytest.mark.parametrize("write", [
    lambda net, path: net.save(path / "w.weights.h5", format="keras"),
    lambda net, path: net.save(path / "w.safetensors", layout="torch"),
    lambda net, path: singanet.onnx.save(net, path / "w.onnx"),
])  # fmt: skip
def test_formats_without_pairs_refuse_them(tmp_path, write):
    with pytest.raises(ArgumentError, match=r"low-rank pairs.*net\.merge"):
        write(adapted("attention"), tmp_path)
    assert not [*tmp_path.iterdir()]


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "kind", "says"), [
    ({"lora": 0}, ArgumentError, "lora"), ({"lora": 2.5}, ArgumentError, "lora"),
    ({"lora": 5, "where": "all"}, ArgumentError, "'attention/value_weight'|at most [34]"),
    ({"lora": 2, "alpha": 0.0}, ArgumentError, "alpha"),
    ({"lora": 2, "dropout": 1.0}, ArgumentError, "dropout"),
    ({"lora": 2, "where": "haed"}, UnknownNameError, "head"),
    ({"lora": 2, "where": ["head", "mean"]}, UnknownNameError, "'mean'"),
    ({"lora": 2, "where": [3]}, ArgumentError, "where"),
    ({"lora": 2, "where": []}, ArgumentError, "where"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name_and_leave_the_net(arguments, kind, says):
    net = net_of()
    with pytest.raises(kind, match=says):
        net.adapt(**arguments)
    assert all(param.trainable for param in net.params())
    assert not any("lora" in name for name in net.param_names())


def test_twice_and_merged_without_pairs_are_refused():
    net = net_of()
    with pytest.raises(CallOrderError, match=r"net\.adapt first"):
        net.merge()
    net.adapt(1, "head")
    with pytest.raises(CallOrderError, match="adapted already: 'head'"):
        net.adapt(1, "unit")
    net = chain(Dense("head", 32, input_sample_shape=(32,)))
    net.quantize("int8")
    net.adapt(1, "head")
    with pytest.raises(ArgumentError, match=r"call net\.as_type\('float32'\) first"):
        net.merge()
    net.as_type("float32")
    assert net.merge() == ["head/weight"]


def test_shared_weights_and_sparse_inputs_are_left_out():
    table = Embedding("words", 9, 8, input_sample_shape=(4,))
    net = chain(table, Dense("fc", 8))
    net.add(Dense("logits", 9, use_bias=False, W_specs=table.params["weight"], W_transpose=True))
    assert net.adapt(2, "all") == ["fc/weight"]
    net.merge()
    with pytest.raises(ArgumentError, match="'logits/weight': other layers have this weight"):
        net.adapt(2, "logits")
    x = Input("x", (8,), sparse=True)
    net = FeedForwardNet(inputs=[x], outputs=[Dense("top", 3)(Dense("fc", 6)(x))], seed=0)
    assert net.adapt(2, "all") == ["top/weight"]


def nested(adapt=True):
    net = chain(Dense("fc", 3, input_sample_shape=(8,)), name="inner")
    if adapt:
        net.adapt(2, "fc")
    return drawn(net)


def test_nested_nets_are_adapted_before_they_are_nested():
    late = nested(adapt=False)
    outer = chain(late, Dense("top", 3))
    with pytest.raises(CallOrderError, match="nested"):
        late.adapt(2, "fc")
    with pytest.raises(ArgumentError, match="in a nested net"):
        outer.adapt(2, "inner/fc")
    outer = chain(nested(), Dense("top", 3))
    assert "inner/fc/weight.lora_a" in outer.param_names()
    assert FeedForwardNet.from_config(outer.to_config()).param_names() == outer.param_names()
    outer.step(X[:, 0], Y, SGD(lr=0.1))


def test_an_executor_trains_the_pairs_of_a_net_that_was_adapted_before():
    x, y = Input("x", (8,)), Input("y", (), dtype="int64")
    loss = SoftmaxCrossEntropy()(nested()(x), y)
    executor = Executor({"train": [loss, SGD(lr=0.1).minimize(loss)]}, seed=7)
    with pytest.raises(ArgumentError, match="in a nested net"):
        executor.net.merge()
    with pytest.raises(CallOrderError, match="an Executor's net"):
        Executor({"see": [Dense("fc", 3)(x)]}, seed=7).net.adapt(2, "fc")
    net, rule = chain(nested()), SGD(lr=0.1)
    for _ in range(3):
        [told, *_] = executor.run("train", {x: X[:, 0], y: Y})
        assert told == pytest.approx(net.step(X[:, 0], Y, rule)[0], 1e-6)
    for name, value in values(net).items():
        np.testing.assert_allclose(values(executor.net)[name], value, rtol=1e-6)


class Doubled(Dense):
    """A Dense of a user's own."""

    def forward(self, ctx, x):
        return 2 * super().forward(ctx, x)

    def backward(self, ctx, dy):
        return super().backward(ctx, 2 * dy)


def test_a_users_layer_over_ours_has_pairs_too():
    fc = Doubled("fc", 4, input_sample_shape=(8,))
    net = chain(fc, Activation("t", "tanh"), loss=SquaredError())
    net.adapt(2, "fc")
    check_net_gradients(drawn(net), X[:, 0])
    before = values(net)
    net.step(X[:, 0], X[:, 0, :4], SGD(lr=0.1))
    assert moved(net, before) == {"fc/weight.lora_a", "fc/weight.lora_b"}
