"""Features of SINGA, MXNet and Hetu: each has a test here, or a sentence in a guide."""

import copy
import re
from collections import OrderedDict
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet, Input, layers, optimizer, parallel
from singanet.base import elsewhere
from singanet.errors import ArgumentError, SignatureError, SingaNetError, UnknownNameError
from singanet.executor import gradients
from singanet.layers import Dense, Embedding
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD

ROWS = np.ones((4, 3), np.float32)


@pytest.fixture(scope="module")
def net():
    return FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,))], loss=SoftmaxCrossEntropy())


@pytest.fixture(scope="module")
def drawn():
    x, y = Input("x", (3,)), Input("y", (), dtype="int64")
    return SoftmaxCrossEntropy()(Dense("fc", 2)(x), y)


def trained(loss, **others):
    return Executor({"train": [loss, SGD(0.1).minimize(loss)]}, **others)


ATTRIBUTES = [
    (lambda net, drawn: optimizer.DistOpt, "AllReduce"),
    (lambda net, drawn: parallel.DistOpt, "SparseAllReduce"),
    (lambda net, drawn: SGD(0.1).backward_and_update, "AllReduce"),
    (lambda net, drawn: SGD(0.1).backward_and_sparse_update, "SparseAllReduce"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_sparse_update, "ratio=0.05"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_partial_update, "PartialUpdate"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).backward_and_update_half, "'float16'"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).world_size, "optimizer.comm.size"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).global_rank, "optimizer.comm.rank"),
    (lambda net, drawn: singanet.device.EnableGraph, "net.programs.enabled"),
    (lambda net, drawn: singanet.device.cpu().EnableGraph, "net.programs.enabled"),
    (lambda net, drawn: singanet.device.cpu().SetVerbosity, r"report\(\).table"),
    (lambda net, drawn: singanet.device.create_cuda_gpu, r"device.cuda\(0\)"),
    (lambda net, drawn: net.topo_sort, r"net.ordered\(\)"),
    (lambda net, drawn: net.ordered_layers, "net.layers"),
    (lambda net, drawn: net.src_of_layer, r"net.nodes\(\)"),
    (lambda net, drawn: net.dst_of_layer, r"net.nodes\(\)"),
    (lambda net, drawn: net.verbose, r"net.summary\(\)"),
    (lambda net, drawn: singanet.tensor, "NumPy's or CuPy's"),
    (lambda net, drawn: singanet.snapshot, r"net.save\(path\)"),
    (lambda net, drawn: trained(drawn).get_batch_num, r"executor.batches\(name\)"),
    (lambda net, drawn: trained(drawn).subexecutor, "executor.programs"),
    (lambda net, drawn: trained(drawn).topo_order, "executor.net.layers"),
    (lambda net, drawn: trained(drawn).param_nodes, r"executor.net.params\(\)"),
    (lambda net, drawn: singanet.executor.HetuConfig, "device= and parallel="),
    (lambda net, drawn: singanet.executor.Variable, r"Input\(name, sample_shape\)"),
    (lambda net, drawn: parallel.server_init, "singanet launch --servers"),
    (lambda net, drawn: singanet.worker_init, "singanet launch"),
    (lambda net, drawn: parallel.worker_init, "singanet launch"),
    (lambda net, drawn: singanet.executor.dataloader_op, "from_loader"),
]
"""Attributes of SINGA and Hetu, and words of the error for each."""

ARGUMENTS = [
    (lambda net, drawn: net.compile("sgd", use_graph=True), "net.programs.enabled"),
    (lambda net, drawn: net.forward(True, ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.backward(ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.train(ROWS, ROWS, freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: net.step(ROWS, ROWS, SGD(0.1), freeze="fc"), r"net.freeze\(layer\)"),
    (lambda net, drawn: trained(drawn, ctx=None), "called device here"),
    (lambda net, drawn: trained(drawn, comm_mode="PS"), "ParameterServer"),
    (lambda net, drawn: trained(drawn, cstable_policy="LFU"), "Embedding"),
    (lambda net, drawn: trained(drawn, cache_bound=10), "pull_bound"),
    (lambda net, drawn: trained(drawn, bsp=0), "consistency="),
    (lambda net, drawn: trained(drawn, enable_lazy=True), "leave it out: shapes are known"),
    (lambda net, drawn: trained(drawn, use_sparse_pull=True), "leave it out: only the rows"),
    (lambda net, drawn: parallel.Hybrid(SGD(0.1), bsp=0), "called consistency here"),
    (lambda net, drawn: Embedding("e", 9, 2, ctx=None), r"net.to_device"),
    (lambda net, drawn: trained(drawn).run("train", feed_dict={}), "executor.run.*called feed"),
    (lambda net, drawn: trained(drawn).run("train", eval_node_list=[]), "called outputs here"),
    (lambda net, drawn: trained(drawn).run("train", convert_to_numpy_ret_vals=True), "leave it"),
    (lambda net, drawn: SGD(0.1).minimize(drawn, var_list=[]), "called params here"),
    (lambda net, drawn: parallel.AllReduce(SGD(0.1)).minimize(drawn, var_list=[]), "called params"),
    (lambda net, drawn: gradients(drawn, ["fc/weight"], insert_grad=drawn), "called dys here"),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), spars=0.05), "ratio=.*threshold="),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), topK=True), "ratio=.*threshold="),
    (lambda net, drawn: parallel.SparseAllReduce(SGD(0.1), corr=True), "called error_feedback"),
]
"""Their arguments, and words of the error for each."""


@pytest.mark.parametrize(("ask", "words"), ATTRIBUTES)
def test_attributes_that_users_of_singa_and_hetu_type(net, drawn, ask, words):
    with pytest.raises(UnknownNameError, match=words) as caught:
        ask(net, drawn)
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(("call", "words"), ARGUMENTS)
def test_arguments_that_users_of_singa_and_hetu_type(net, drawn, call, words):
    with pytest.raises(SignatureError, match=words) as caught:
        call(net, drawn)
    assert isinstance(caught.value, TypeError)


def test_what_advice_names_is_there():
    texts = [*elsewhere._GONE.values(), *elsewhere._INSTEAD.values()]
    texts += [text for table in elsewhere._ATTRIBUTES.values() for text in table.values()]
    found = [name for text in texts for name in re.findall(r"\bsinganet(?:\.\w+)+", text)]
    for name in found:
        thing = singanet
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)
    assert len(set(found)) > 10


def two_branches():
    x, z, t = Input("x", (3,)), Input("z", (None, 3)), Input("t", (4,), dtype="int64")
    words = layers.Embedding("words", 9, 2)(t)
    parts = [Dense("left", 2)(x), layers.LSTM("steps", 2, return_sequences=True)(z)]
    return FeedForwardNet(inputs=[x, z, t], outputs=[*parts, words], seed=0)


@pytest.mark.parametrize("level", ["none", "sqrt"])
@pytest.mark.parametrize("recorded", [False, True])
def test_every_layer_in_output_is_answered(level, recorded):
    """ "At the end the key set includes all layers in the output arg", of SINGA-315."""
    net = two_branches()
    net.programs.enabled, net.programs.recompute = recorded, level
    rng = np.random.default_rng(0)
    names = ["x", "z", "t", "words", "steps", "left"]
    for _ in range(4):
        batch = int(rng.integers(1, 5))
        x = rng.standard_normal((batch, 3)).astype(np.float32)
        z = rng.standard_normal((batch, 6, 3)).astype(np.float32)
        net.forward(True, {"x": x, "z": z, "t": np.ones((batch, 4), int)})
        dy = rng.standard_normal((batch, 2)).astype(np.float32)
        seen, passed = set(), []
        for item in net.backward({"left": dy}, names):
            assert seen < item.output_grads.keys()
            seen = set(item.output_grads)
            passed.append(item.layer)
        assert seen == set(names)
        assert set(passed) == seen, "each once"
        assert len(passed) == len(seen)
        grads = item.output_grads
        want = dy @ net["left"].params["weight"].value.T
        np.testing.assert_allclose(grads["x"], want, rtol=1e-5, atol=1e-6)
        assert grads["t"] is None
        for name, shape in [("z", (6, 3)), ("words", (4, 2)), ("steps", (6, 2))]:
            assert grads[name].shape == (batch, *shape)
            assert grads[name].dtype == np.float32
            assert not grads[name].any()


def drawn_at_random(rng):
    """A net of one to three inputs whose layers read any of those before."""
    inputs = [Input(f"in{k}", (3,)) for k in range(rng.integers(1, 4))]
    symbols = list(inputs)
    for k in range(int(rng.integers(2, 9))):
        one, two = (symbols[int(rng.integers(len(symbols)))] for _ in range(2))
        made = [
            lambda k=k, one=one: Dense(f"fc{k}", 3)(one),
            lambda k=k, one=one: layers.Activation(f"bend{k}", "tanh")(one),
            lambda k=k, one=one, two=two: layers.Merge(f"sum{k}")(one, two),
            lambda k=k, one=one: layers.StopGradient(f"stop{k}")(one),
        ]
        symbols.append(made[int(rng.choice(4, p=[0.4, 0.25, 0.25, 0.1]))]())
    read = {symbol for made in symbols for symbol in made.call.inputs}
    ends = [symbol for symbol in symbols if symbol not in read]
    used = [symbol for symbol in inputs if symbol in read or symbol in ends]
    return FeedForwardNet(inputs=used, outputs=ends, seed=int(rng.integers(99)))


def answered_as_asked(seed):
    """Compare the gradients of backward with those of net.gradients, which walks otherwise."""
    rng = np.random.default_rng(seed)
    made = drawn_at_random(rng)
    made.programs.enabled = bool(rng.integers(2))
    made.programs.recompute = str(rng.choice(["none", "sqrt"]))
    names = [node.name for node in made.nodes()]
    ends = [name for name, _ in made.ports().outputs]
    starts = list(rng.permutation(list(dict.fromkeys(ends)))[: int(rng.integers(1, len(ends) + 1))])
    asked = list(rng.permutation(names)[: int(rng.integers(1, len(names) + 1))])
    feed = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in made.ports().inputs}
    dy = {name: rng.standard_normal((2, 3)).astype(np.float32) for name in map(str, starts)}
    for _ in range(int(rng.integers(1, 4))):
        made.forward(True, feed, asked)
        grads, passed = {}, []
        for item in made.backward(dict(dy), asked):
            grads = item.output_grads
            passed.append(item.layer)
        assert grads.keys() == set(asked)
        assert len(passed) == len(set(passed))
        assert passed == sorted(passed, key=[n.name for n in made.ordered()].index, reverse=True)
    wanted = made.gradients(list(dy), asked, feed, list(dy.values()), unreachable="zeros")
    for name in asked:
        np.testing.assert_allclose(grads[name], wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(20))
def test_answers_are_those_of_gradients(seed):
    answered_as_asked(seed)


@pytest.mark.slow
def test_answers_are_those_of_gradients_3000():
    for seed in range(100, 3100):
        answered_as_asked(seed)


def test_layers_that_nothing_trained_is_behind_are_answered(net):
    x, z = Input("x", (3,)), Input("z", (3,))
    made = FeedForwardNet(inputs=[x, z], outputs=[layers.Flatten("a")(x), layers.Flatten("b")(z)])
    made.forward(True, {"x": ROWS, "z": ROWS})
    *_, last = made.backward({"a": ROWS}, ["z"])
    assert not last.output_grads["z"].any()


@pytest.mark.parametrize("flag", [np.True_, np.bool_(False), np.int64(4), 8])
def test_flags_of_numpy(net, flag):
    out = net.forward(flag, ROWS)
    if flag in (True, 4):
        assert len(list(net.backward(np.ones_like(out)))) == 1
    layer = Dense("fc", 2)
    layer.recompute = np.True_
    assert layer.recompute is True


def test_data_for_a_layer_that_reads_others():
    """SINGA: put a Dummy before it; the advice, followed, works."""
    made = FeedForwardNet([Dense("a", 4, input_sample_shape=(3,)), Dense("b", 2)], seed=0)
    with pytest.raises(UnknownNameError, match="'b', which reads other layers; add a Dummy"):
        made.forward(False, {"a": ROWS, "b": np.ones((4, 4), np.float32)})
    made = FeedForwardNet(seed=0)
    a = made.add(Dense("a", 4, input_sample_shape=(3,)))
    beside = made.add(layers.Dummy("beside", input_sample_shape=(4,)), src=[])
    made.add(Dense("b", 2), made.add(layers.Merge("both"), [a, beside]))
    zero = made.forward(False, {"a": ROWS, "beside": np.zeros((4, 4), np.float32)})
    one = made.forward(False, {"a": ROWS, "beside": np.ones((4, 4), np.float32)})
    want = made["b"].params["weight"].value.sum(axis=0)
    np.testing.assert_allclose(one - zero, np.broadcast_to(want, one.shape), rtol=1e-5)


def test_known_names_are_listed_once():
    x = Input("x", (3,))
    made = FeedForwardNet(inputs=x, outputs=Dense("h", 2)(x))
    with pytest.raises(UnknownNameError) as caught:
        made.gradients("h", "q", ROWS)
    assert caught.value.expected.count("'x'") == 1


@pytest.mark.parametrize("ask", ["memory", "plan", "summary"])
def test_an_extent_that_is_missing_is_told_by_no_other_name(ask):
    x = Input("steps", (None, 3))
    made = FeedForwardNet(inputs=x, outputs=layers.LSTM("h", 2)(x))
    with pytest.raises(SingaNetError, match="layer 'steps': expected extent") as caught:
        getattr(made, ask)(2)
    assert "net." not in str(caught.value).replace(f"net.{ask}", "")


# -- short programs that no other test has --------------------------------------------------------


def two_inputs():
    a, b = Input("a", (3,)), Input("b", (3,))
    top = Dense("top", 2)(layers.Merge("both")(Dense("da", 4)(a), Dense("db", 4)(b)))
    return FeedForwardNet(SoftmaxCrossEntropy(), inputs=[a, b], outputs=top, seed=0)


class Kept(dict):
    """A dict of a user's own."""


@pytest.mark.parametrize("kind", [dict, OrderedDict, Kept, MappingProxyType])
def test_dicts_go_in_everywhere(kind):
    rng = np.random.default_rng(0)
    x = {name: rng.standard_normal((6, 3)).astype(np.float32) for name in "ab"}
    given, y = kind(x), rng.integers(0, 2, 6)
    made = two_inputs()
    weights = {param.name: param.value.astype(float) for param in made.params()}
    low = sum(x[n] @ weights[f"d{n}/weight"] + weights[f"d{n}/bias"] for n in "ab")
    want = low @ weights["top/weight"] + weights["top/bias"]
    np.testing.assert_allclose(made.forward(False, given), want, rtol=1e-4, atol=1e-5)
    chances = np.exp(want) / np.exp(want).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(made.predict(given), chances, rtol=1e-4, atol=1e-5)
    loss = -np.log(chances[np.arange(6), y]).mean()
    np.testing.assert_allclose(made.evaluate(given, y)[0], loss, rtol=1e-4)
    np.testing.assert_allclose(made.train(given, y)[1][0], loss, rtol=1e-4)
    np.testing.assert_allclose(made.step(given, y, SGD(0.01))[0], loss, rtol=1e-4)
    made.compile(SGD(0.01))
    assert len(made.fit(dict(given), y, batch_size=3, verbose=False)["loss"]) == 1
    single = FeedForwardNet([Dense("fc", 2, input_sample_shape=(3,))], seed=0)
    one = single.forward(False, kind({"fc": ROWS}))
    np.testing.assert_array_equal(one, single.forward(False, ROWS))


def test_one_array_for_two_inputs():
    with pytest.raises(ArgumentError, match="the inputs 'a', 'b'"):
        two_inputs().forward(False, ROWS)


def test_streamed_updates_against_numpy():
    rng = np.random.default_rng(1)
    made = FeedForwardNet(
        [
            Dense("a", 5, input_sample_shape=(3,)), layers.Activation("t", "tanh"), Dense("b", 2)
        ],
        loss=SoftmaxCrossEntropy(), seed=1
    )  # fmt: skip
    w, u, v, t = (param.value.astype(float) for param in made.params())
    for _ in range(30):
        x, y = rng.standard_normal((4, 3)).astype(np.float32), rng.integers(0, 2, 4)
        out = made.forward(True, x)
        made.loss.forward(True, out, y)
        for _, values, grads in made.backward(made.loss.backward()):
            for value, grad in zip(values, grads, strict=True):
                value -= 0.1 * grad
        h = np.tanh(x @ w + u)
        z = h @ v + t
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        dz = (p - np.eye(2)[y]) / 4
        dh = dz @ v.T * (1 - h**2)
        v, t = v - 0.1 * h.T @ dz, t - 0.1 * dz.sum(axis=0)
        w, u = w - 0.1 * x.T @ dh, u - 0.1 * dh.sum(axis=0)
    for value, want in zip(made.param_values(), (w, u, v, t), strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("axis", "shape"), [(1, (5,)), (-1, (5,)), (1, (4, 3)), (2, (4, 3))])
def test_softmax_backward_is_the_original_s_formula(axis, shape):
    """dx = y (dy − Σ dy y), by layers and recorded; SINGA writes it by einsum."""
    made = FeedForwardNet([layers.Softmax("soft", axis, input_sample_shape=shape)], seed=0)
    rng = np.random.default_rng(2)
    for _ in range(4):
        x, dy = rng.standard_normal((2, 3, *shape)).astype(np.float32)
        y = made.forward(True, x)
        e = np.exp(x - x.max(axis=axis, keepdims=True))
        np.testing.assert_allclose(y, e / e.sum(axis=axis, keepdims=True), rtol=1e-5)
        *_, item = made.backward(dy, ["soft"]) or [None]
        found = made.gradients("soft", "input", x, dy)["input"]
        want = y * (dy - (dy * y).sum(axis=axis, keepdims=True))
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
        assert item.output_grads["soft"].shape == dy.shape


MODES = ("relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "leaky_relu")


@pytest.mark.parametrize("parts", [
    [layers.Conv2D("c", 4, 3), layers.BatchNormalization("b"), layers.MaxPooling2D("p", 2)],
    [layers.LRN("l"), layers.PReLU("r"), layers.Dropout("d", 0.5), layers.AvgPooling2D("p", 2)],
    [layers.Reshape("r", (3, 64)), layers.LSTM("m", 5), layers.L2Norm("n")],
    [layers.Reshape("r", (3, 64)), layers.GRU("m", 5), layers.LayerNorm("n")],
    [layers.Activation(mode, mode) for mode in MODES],
], ids=["conv", "norms", "lstm", "gru", "activations"])  # fmt: skip
def test_layers_run_without_python_when_recorded(parts):
    first = layers.Activation("begin", "tanh", input_sample_shape=(3, 8, 8))
    parts = [first, *copy.deepcopy(parts), layers.Flatten("flat"), Dense("top", 3)]
    made = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    program = made.record(x, np.array([0, 1, 2, 0]), SGD(0.1))
    assert not program.notes
    assert not made.programs.refusals


def test_sources_and_readers_of_layers():
    made = two_inputs()
    nodes = [(n.name, [source.name for source, _ in n.inputs]) for n in made.nodes()]
    assert dict(nodes) == {
        "a": [], "b": [], "da": ["a"], "db": ["b"], "both": ["da", "db"], "top": ["both"],
    }  # fmt: skip
    assert [name for name, sources in nodes if "both" in sources] == ["top"]
    assert [node.name for node in made.ordered()] == [layer.name for layer in made.layers]


def test_labels_whole_or_one_hot():
    """SINGA's test_train_one_batch, with labels that fit."""
    made = FeedForwardNet(
        [Dense("fc", 4, input_sample_shape=(3,))], loss=SoftmaxCrossEntropy(), seed=0
    )
    whole = np.array([0, 3, 1, 2])
    grads, (loss, metric) = made.train(ROWS, whole)
    for hot in (np.eye(4, dtype=np.int32)[whole], np.eye(4, dtype=np.float32)[whole]):
        others, (same, _) = made.train(ROWS, hot)
        assert loss == pytest.approx(same)
        assert metric is None
        for one, two in zip(grads, others, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-7)


def test_forward_gives_an_array_or_a_dict(net):
    assert isinstance(net.forward(False, ROWS, output=[]), np.ndarray)
    assert list(net.forward(False, ROWS, ["fc"])) == ["fc"]


def test_products_stay_as_they_are():
    """MXNet mirrors no convolution and no product: "cheap" runs the layers between them again.

    Those of few channels take little time beside an activation, and run again.
    """
    parts = [layers.Activation("begin", "tanh", input_sample_shape=(3, 16, 16))]
    for k in range(3):
        parts += [layers.Conv2D(f"conv{k}", 32, 3), layers.BatchNormalization(f"norm{k}")]
        parts += [layers.Activation(f"gelu{k}", "gelu")]
    parts += [layers.Flatten("flat"), Dense("top", 2)]
    made = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=0)
    x = np.ones((16, 3, 16, 16), np.float32)
    program = made.record(x, np.zeros(16, int), SGD(0.1), recompute="cheap")
    runs = {each.layer: each.runs for each in program.report().recomputed}
    why = {each.layer: each.why for each in program.report().recomputed}
    assert runs["norm1"] == runs["gelu1"] == 1
    assert all(runs[name] == 0 for name in ("conv0", "conv1", "conv2", "top"))
    assert why["conv1"] == "takes long"


def test_gradients_that_nothing_reaches():
    x, t = Input("x", (3,)), Input("t", (2,), dtype="int64")
    parts = [Dense("a", 2)(x), layers.Embedding("words", 5, 2)(t)]
    made = FeedForwardNet(inputs=[x, t], outputs=parts, seed=0)
    feed = {"x": ROWS, "t": np.ones((4, 2), int)}
    with pytest.raises(SingaNetError, match=r"no gradient reaches.*'zeros'"):
        made.gradients("a", "words", feed)
    zeros = made.gradients("a", ["words", "words/weight"], feed, unreachable="zeros")
    assert zeros["words"].shape == (4, 2, 2)
    assert zeros["words/weight"].shape == (5, 2)
    assert not any(value.any() for value in zeros.values())
    with pytest.raises(SingaNetError, match="integers and have no gradient"):
        made.gradients("words", "t", feed)


def test_gradients_by_itself(net):
    dy = np.arange(8, dtype=np.float32).reshape(4, 2)
    np.testing.assert_array_equal(net.gradients("fc", "fc", ROWS, dy)["fc"], dy)


def test_twelve_contributions():
    x = Input("x", (3,))
    parts = [layers.Scale(f"s{k}", factor=float(k + 1))(x) for k in range(12)]
    made = FeedForwardNet(SquaredError(), inputs=x, outputs=layers.Add("all")(*parts), seed=0)
    dy = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    for _ in range(3):
        found = made.gradients("all", "x", ROWS, dy)["x"]
        np.testing.assert_allclose(found, 78 * dy, rtol=1e-5)


def test_arrays_of_their_own():
    a, b = Input("a", (3,)), Input("b", (3,))
    made = FeedForwardNet(inputs=[a, b], outputs=layers.Merge("both")(a, b), seed=0)
    dy = np.ones((4, 3), np.float32)
    for _ in range(3):
        found = made.gradients("both", ["a", "b"], {"a": ROWS, "b": ROWS}, dy)
        found["a"] += 1
        assert (found["b"] == 1).all()
        assert (dy == 1).all()


def test_several_executors_of_one_graph(drawn):
    one, two = trained(drawn, seed=1), trained(drawn, seed=1)
    feed = {"x": ROWS, "y": np.array([0, 1, 0, 1])}
    first = [one.run("train", feed)[0] for _ in range(3)]
    # Both have the layers and parameters of the graph, so the other one goes on from there.
    assert two.run("train", feed)[0] < first[-1] < first[0]


def test_dropout_in_evaluation_is_no_kernel():
    def kernels(*beside):
        parts = [Dense("a", 4, input_sample_shape=(3,)), *beside, Dense("b", 2)]
        program = FeedForwardNet(parts, seed=0).record(ROWS)
        program.run(ROWS)
        return program.report().as_dict()["kernels"]

    assert kernels(layers.Dropout("d", 0.5)) == kernels()


# -- all of them ----------------------------------------------------------------------------------

SECTIONS = {
    "Design card": 28, "000, backward_and_sparse_update": 35, "001, SINGA-505": 21,
    "002, SINGA-315": 53, "003, gradient pass with mirroring": 39, "004, Hetu executor": 74
}  # fmt: skip
"""How many items of each of the originals there are."""


def test_each_item_is_reached_by_a_program_or_told_on_a_page():
    """``carried_on.txt`` has a line for each item, with its test or the words of a guide."""
    root = Path(__file__).parents[1]
    found, section, texts = dict.fromkeys(SECTIONS, 0), "", {}
    for line in (root / "tests" / "carried_on.txt").read_text("utf-8").splitlines():
        if line.startswith("# "):
            section = line[2:]
        elif line:
            item, _, where = line.rpartition(" | ")
            place, _, words = where.partition(": ")
            told = place.endswith(".md")
            path = root / place if told else root / "tests" / f"{place}.py"
            if path not in texts:
                texts[path] = " ".join(path.read_text("utf-8").split())
            assert item, line
            assert (words if told else f"def test_{words}(") in texts[path], line
            found[section] += 1
    assert found == SECTIONS
