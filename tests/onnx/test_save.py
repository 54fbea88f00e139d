"""`onnx.save`: what a graph is called and holds; every layer and which are refused."""

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, layers, loss
from singanet import functional as F
from singanet.errors import ArgumentError, ShapeError
from singanet.layers import Activation, Dense, Dropout, Embedding, Layer
from singanet.onnx import load, save
from singanet.saving.codecs.describe import CODECS, REFUSED
from tests.layer_catalogue import CATALOGUE, concrete_layers, inputs_of, net_of
from tests.onnx.runtime import checked, expect_same, filled, onnx, ran


@pytest.fixture
def path(tmp_path):
    return tmp_path / "net.onnx"


def test_every_layer_has_a_form_or_a_reason_to_have_none():
    kinds = {getattr(layers, name) for name in concrete_layers()}
    written = {codec.kind for codec in CODECS if codec.onnx is not None}
    assert kinds - written == REFUSED.keys() & kinds
    assert not written & REFUSED.keys()


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_layer_gives_the_same_there(name, path):
    if getattr(layers, name) in REFUSED:
        pytest.skip("refused, with a reason")
    net = net_of(name)
    expect_same(filled(net, np.random.default_rng(2)), inputs_of(name), path)


@pytest.mark.parametrize("opset", [17, 21, 23])
def test_what_layers_may_leave_out(opset, path):
    image = y = Input("image", (4, 3, 3))
    for layer in (
        layers.GroupNorm("group", 2, scale=False), layers.InstanceNorm("instance", center=False),
        layers.BatchNormalization("batch", scale=False), layers.LayerNorm("row", center=False),
        layers.LayerNorm("shifted", scale=False), layers.GlobalAvgPooling2D("pool", keepdims=True),
    ):  # fmt: skip
        y = layer(y)
    net = FeedForwardNet(inputs=[image], outputs=[y], seed=0)
    x = np.random.default_rng(3).standard_normal((2, 4, 3, 3)).astype(np.float32)
    expect_same(filled(net, np.random.default_rng(2)), {"image": x}, path, opset)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 19, 20, 21, 22, 23])
def test_layers_give_the_same_by_operators_of_other_opsets(opset, path):
    for name in sorted(CATALOGUE):
        if getattr(layers, name) not in REFUSED:
            expect_same(net_of(name), inputs_of(name), path, opset)


def test_a_net_of_functions(path):
    rng = np.random.default_rng(4)
    a, b = Input("a", (6,)), Input("b", (2, 3))
    rows = F.einsum("nij,nj->ni", b + rng.standard_normal(3), a[:, :3])
    parts = [F.matmul(a, rng.standard_normal((6, 4))), F.logsumexp(b, axis=2)]
    parts.append(F.where(F.equal(F.relu(rows), 0.0), 1.0, rows))
    h = F.concatenate(parts, axis=1)
    out = F.softmax(F.tanh(h) / F.sqrt(F.var(h, axis=1, keepdims=True) + 1.0))
    outputs = [out, F.transpose(b[:, None], (0, 3, 1, 2)), F.take(b, [[0, 1], [2, 2]], axis=2)]
    net = FeedForwardNet(inputs=[a, b], outputs=outputs, seed=0)
    x = {"a": rng.standard_normal((5, 6), np.float32), "b": rng.standard_normal((5, 2, 3), "f4")}
    expect_same(net, x, path)
    for name, found in load(path).forward(False, x).items():
        np.testing.assert_allclose(found, net.forward(False, x)[name], rtol=1e-5, atol=1e-6)


def classifier(**given):
    chain = [Dense("fc", 5, input_sample_shape=(4,)), Activation("act", "tanh"), Dropout("drop")]
    net = FeedForwardNet([*chain, Dense("top", 3)], seed=0, **given)
    return filled(net, np.random.default_rng(0))


X = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)


@pytest.mark.parametrize(("opset", "ir"), [(17, 8), (18, 8), (19, 9), (20, 9), (21, 10), (23, 10)])
def test_names_batch_and_versions_are_those_of_the_net(opset, ir, path):
    net = classifier()
    save(net, path, opset)
    model = checked(path)
    assert [node.op_type for node in model.graph.node] == ["Gemm", "Tanh", "Gemm"]
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    assert arrays.keys() == set(net.param_names())
    for param in net.params():
        np.testing.assert_array_equal(arrays[param.name], param.value)
    (given,), (out,) = model.graph.input, model.graph.output
    assert (given.name, out.name) == ("input", "top")
    dims = [list(port.type.tensor_type.shape.dim) for port in (given, out)]
    found = [[dim.dim_param or dim.dim_value for dim in each] for each in dims]
    assert found == [["batch", 4], ["batch", 3]]
    assert (model.ir_version, model.opset_import[0].version) == (ir, opset)
    assert model.producer_name == "singanet"
    np.testing.assert_allclose(ran(path, {"input": X})["top"], net.forward(False, X), atol=1e-6)
    save(net, path)
    assert checked(path).opset_import[0].version == 17


def test_inputs_and_outputs_by_their_names(path):
    a, ids = Input("a", (4,)), Input("ids", (2,), "int32")
    rows = layers.Flatten("rows")(Embedding("table", 9, 3)(ids))
    both = layers.Concat("both", 1)(a, rows)
    outputs = [Dense("x", 2)(both), a, Dropout("again")(both), both]
    net = FeedForwardNet(inputs=[a, ids], outputs=outputs, seed=0)
    feed = {"a": X, "ids": np.arange(12, dtype=np.int32).reshape(6, 2) % 9}
    save(net, path)
    model = checked(path)
    assert [port.name for port in model.graph.input] == ["a", "ids"]
    # The array that is fed as "a" cannot come out under that name.
    assert [port.name for port in model.graph.output] == ["x", "a_2", "again", "both"]
    found, want = ran(path, feed), net.forward(False, feed)
    for name, there in {"x": "x", "a": "a_2", "both": "both", "again": "again"}.items():
        np.testing.assert_allclose(found[there], want[name], atol=1e-6)


def test_several_layers_that_are_fed(path):
    net = FeedForwardNet(seed=0)
    net.add(Dense("left", 3, input_sample_shape=(4,)))
    net.add(layers.Merge("right", input_sample_shape=[(3,), (3,)]), [])
    net.add(layers.Add("sum"), ["left", "right"])
    save(net, path)
    names = [port.name for port in checked(path).graph.input]
    assert names == ["left/input", "right/input/0", "right/input/1"]
    feed = {"left": X, "right": [X[:, :3], X[:, 1:]]}
    found = ran(path, dict(zip(names, [X, X[:, :3], X[:, 1:]], strict=True)))
    np.testing.assert_allclose(found["sum"], net.forward(False, feed), atol=1e-6)


def test_nested_and_shared_nets_share_their_arrays(path):
    x = Input("x", (4,))
    block = FeedForwardNet([Dense("one", 4), Activation("act", "silu")], name="block", seed=1)
    shared = Dense("two", 4, W_transpose=True)
    net = FeedForwardNet(inputs=x, outputs=shared(block(shared(block(x)))), seed=0)
    model = expect_same(filled(net, np.random.default_rng(4)), {"x": X}, path)
    assert {tensor.name for tensor in model.graph.initializer} == set(net.param_names())
    assert len(net.param_names()) == 4


def test_a_recurrent_layer_that_is_used_twice_is_there_once(path):
    x, both = Input("x", (3, 4)), layers.GRU("both", 4)
    net = FeedForwardNet(inputs=x, outputs=both(both(x)), seed=0)
    feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    model = expect_same(net, feed, path)
    names = [tensor.name for tensor in model.graph.initializer if tensor.data_type == 1]
    assert names == ["both/l0/W", "both/l0/R", "both/l0/B"]


def test_a_table_is_tied_to_the_projection_behind_it(path):
    table = Embedding("table", 7, 4)
    ids = Input("ids", (3,))
    rows = layers.Flatten("rows")(layers.Index("first", [0])(table(ids)))
    top = Dense("top", 7, use_bias=False, W_transpose=True, W_specs=table.params["weight"])
    net = FeedForwardNet(inputs=ids, outputs=top(rows), seed=0)
    model = expect_same(net, {"ids": np.arange(6).reshape(2, 3)}, path)
    weights = [list(tensor.dims) for tensor in model.graph.initializer if len(tensor.dims) == 2]
    assert weights == [[7, 4]]


def test_names_that_meet_are_told_apart(path):
    # A layer called as an input is fed, as a parameter and as a node of another layer.
    chain = [
        Dense("a", 3, input_sample_shape=(4,)), Activation("input", "relu"), Dense("b", 3),
        Activation("b/weight", "sigmoid"), Activation("a/Gemm", "tanh"), Dense("c", 2),
    ]  # fmt: skip
    net = FeedForwardNet(chain, seed=0)
    save(net, path)
    (name,) = [port.name for port in checked(path).graph.input]
    np.testing.assert_allclose(ran(path, {name: X})["c"], net.forward(False, X), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_the_float_type_is_the_nets(dtype, path):
    net = classifier(loss=loss.SoftmaxCrossEntropy())
    net.as_type(dtype)
    x, tolerance = X.astype(dtype), 1e-12 if dtype == "float64" else 1e-2
    for thing, want in ((net, net.forward(False, x)), (net.predictor(), net.predict(x))):
        save(thing, path)
        checked(path)
        found = ran(path, {"input": x})["top"]
        assert found.dtype == want.dtype == (dtype if thing is net else np.result_type(dtype, "f4"))
        np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance)


def test_rows_that_are_no_longer_the_batchs_are_called_otherwise(path):
    chain = [Input("input", (3, 4)), layers.Flatten("fold", 2), Dense("fc", 2)]
    feed = {"input": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    model = expect_same(FeedForwardNet(chain, seed=0), feed, path)
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "fold_rows"


def test_a_predictor_is_saved_folded_and_with_its_link(path):
    chain = [
        layers.Conv2D("conv", 4, use_bias=False, input_sample_shape=(3, 8, 8)),
        layers.BatchNormalization("norm"), Activation("act"), layers.DepthwiseConv2D("each"),
        layers.BatchNormalization("norm2"), layers.GlobalAvgPooling2D("pool"), Dense("fc", 3),
    ]  # fmt: skip
    net = FeedForwardNet(chain, loss=loss.SoftmaxCrossEntropy(), seed=0)
    filled(net, np.random.default_rng(5))
    predictor = net.predictor()
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    for _ in range(2):
        save(predictor, path)
        operators = [node.op_type for node in checked(path).graph.node]
        assert "BatchNormalization" not in operators
        assert operators[-1] == "Softmax"
        found = ran(path, {"input": x})["fc"]
        np.testing.assert_allclose(found, net.predict(x), atol=1e-5)
        # Once it has predicted, its constants are laid out for that.
        predictor(x)
    for param in net.params():
        param.value[...] = 0
    np.testing.assert_allclose(ran(path, {"input": x})["fc"], found)


@pytest.mark.parametrize(
    ("given", "function"),
    [
        (loss.SigmoidFocal(), lambda x: 1 / (1 + np.exp(-x))),
        (loss.Poisson(), np.exp),
        (loss.SquaredError(), lambda x: x),
    ],
)
def test_links_of_losses(given, function, path):
    """Of one loss, and of several, one of which is a softmax's."""
    net = classifier(loss=given)
    save(net.predictor(), path)
    checked(path)
    scores = net.forward(False, X)
    np.testing.assert_allclose(ran(path, {"input": X})["top"], function(scores), rtol=1e-5)
    x = Input("x", (4,))
    outputs = [Dense("a", 3)(x), Dense("b", 2)(x), Dense("c", 2)(x)]
    several = loss.MultiLoss({"a": loss.SoftmaxCrossEntropy(), "b": given})
    net = FeedForwardNet(inputs=x, outputs=outputs, loss=several, seed=0)
    save(net.predictor(), path)
    checked(path)
    found, want = ran(path, {"x": X}), net.predict(X)
    for name in "abc":
        np.testing.assert_allclose(found[name], want[name], atol=1e-6)


class Own(Layer):
    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x

    def backward(self, ctx, dy):
        return dy, {}


class Doubled(Dense):
    def forward(self, ctx, x):
        return 2 * super().forward(ctx, x)


class Halved(loss.SquaredError):
    def link(self, x):
        return x / 2


def test_all_layers_without_a_form_are_named_and_the_old_file_stays(path):
    path.write_bytes(b"before")
    patched = Activation("patched")
    patched.forward = lambda ctx, x: -x
    chain = [
        Own("first", input_sample_shape=(3, 4)), layers.TimeDistributed("steps", Own("inside")),
        layers.Flatten("rows"), Doubled("second", 3), patched, Dense("fine", 2),
    ]  # fmt: skip
    with pytest.raises(ArgumentError) as caught:
        save(FeedForwardNet(chain, seed=0), path)
    received = caught.value.received
    for name in ("'first' (Own)", "'steps' (TimeDistributed)", "'second' (Doubled)", "'patched'"):
        assert name in received
    assert "fine" not in received
    x, y = Input("x", (3,)), Input("y", (3,))
    net = FeedForwardNet(inputs=[x, y], outputs=loss.SquaredError()(x, y), seed=0)
    with pytest.raises(ArgumentError, match="only training"):
        save(net, path)
    with pytest.raises(ArgumentError, match="link"):
        save(classifier(loss=Halved()).predictor(), path)
    assert path.read_bytes() == b"before"


class OwnNet(FeedForwardNet):
    def forward(self, flag, x, output=()):
        return 2 * super().forward(flag, x, output)


@pytest.mark.parametrize(
    ("thing", "name", "given"),
    [
        *((classifier, "x.onnx", {"opset": opset}) for opset in (16, 24, "17")),
        (classifier, "x.npz", {}), (lambda: "net", "x.onnx", {}),
        (lambda: OwnNet([Dense("fc", 2, input_sample_shape=(3,))]), "x.onnx", {}),
    ],
)  # fmt: skip
def test_bad_arguments_leave_nothing(thing, name, given, tmp_path):
    with pytest.raises((ArgumentError, ShapeError)):
        save(thing(), tmp_path / name, **given)
    assert not any(tmp_path.iterdir())


def test_the_net_is_as_it_was(path):
    net = classifier()
    net.forward(True, X)
    state, values = net.rng.bit_generator.state, [value.copy() for value in net.param_values()]
    save(net, path)
    assert net.rng.bit_generator.state == state
    for value, before in zip(net.param_values(), values, strict=True):
        np.testing.assert_array_equal(value, before)
    assert singanet.onnx.save is save
