import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

from singanet import layers, load_model
from singanet.errors import ArgumentError, FileFormatError, UnsafeFileError
from singanet.loss import SquaredError
from singanet.onnx import inspect, load, save
from singanet.optimizer import Adam
from tests.onnx.runtime import file_of, node, onnx, ran

torch_models = pytest.importorskip("tests.onnx.torch_models", exc_type=ImportError)
torch = torch_models.torch
FLOAT = onnx.TensorProto.FLOAT

# PyTorch has no form of its attention in opset 13; ONNX Runtime refuses the mask of opset 23.
LEFT_OUT = {(name, 13) for name in ("vit", "encoder", "encoder, norm last", "encoder with a mask",
                                    "attention", "causal attention")}  # fmt: skip
LEFT_OUT |= {("encoder with a mask", 23)}
CASES = [(n, o) for n in torch_models.MODELS for o in (13, 17, 18, 23) if (n, o) not in LEFT_OUT]
QUICK = {("lstm", 17), ("encoder", 17), ("mobile", 17)}
RECURRENT = [
    (kind, *form)
    for kind in ("LSTM", "GRU", "RNN")
    for form in itertools.product(
        (1, 2), (False, True), (True, False), ("all", "steps", "last", "states")
    )
]
FOR_SO_MANY = [
    (form, count, dynamo)
    for form in [*torch_models.MODELS, *RECURRENT]
    for count in (1, 2, None)
    for dynamo in (True, False)
    if count is not None or isinstance(form, tuple)
]
QUICKLY = {
    (("GRU", 1, True, True, "all"), 2, False), (("LSTM", 2, True, False, "states"), 1, False),
    (("LSTM", 1, False, True, "last"), 2, False), ("encoder, norm last", 1, False),
}  # fmt: skip


def quick(cases, chosen):
    """The ``cases``, of which those that are not ``chosen`` are slow."""
    return [pytest.param(*c, marks=() if c in chosen else pytest.mark.slow) for c in cases]


def exported(write, *arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(*arguments)


def close(found, wanted, tolerance):
    np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance * np.abs(wanted).max())


@pytest.mark.parametrize(("name", "opset"), quick(CASES, QUICK))
def test_what_pytorch_writes_predicts_as_in_onnx_runtime_and_trains(name, opset, tmp_path):
    path = tmp_path / "net.onnx"
    exported(torch_models.export, name, path, opset, opset >= 18)
    net = load(path, seed=0)
    x = torch_models.MODELS[name][1].numpy()
    rng = np.random.default_rng(1)
    for count in (1, 2, 5):
        many = rng.permutation(np.concatenate([x] * 3).reshape(-1)).reshape(6, *x.shape[1:])[:count]
        (wanted,) = ran(path, {"x": many}).values()
        found = net.forward(False, many)
        close(found, wanted, 1e-4)
    net.loss, adam = SquaredError(), Adam(lr=1e-3)
    losses = [net.step(many, np.zeros_like(found), adam)[0] for _ in range(6)]
    assert losses[-1] < losses[0]
    assert net.programs.notes == []
    save(net, path)
    found = net.forward(False, many)
    (there,) = ran(path, {"x": many}).values()
    for other in (there, load(path).forward(False, many)):
        close(other, found, 1e-5)


@pytest.mark.parametrize(("form", "count", "dynamo"), quick(FOR_SO_MANY, QUICKLY))
def test_what_pytorch_writes_for_so_many_samples_takes_any(form, count, dynamo, tmp_path):
    if isinstance(form, tuple):
        module = torch_models.ready(lambda: torch_models.Recurrent(*form))
        axis, many = 0 if module.batch_first else 1, torch.randn(6, 4, 5)
    else:
        module, x = torch_models.made(form)
        axis, many = 0, torch.cat([x] * 3)
    path, free = tmp_path / "net.onnx", axis if count is None else None
    some = many[: count or 2].movedim(0, axis)
    exported(torch_models.write, module, some, path, 18, dynamo, free)
    net = load(path, batch_axis=axis)
    for n in (1, 2, 5):
        with torch.no_grad():
            wanted = module(many[:n].movedim(0, axis))
        # Of time-major modules that give all steps the samples stand second, too.
        wanted = wanted.movedim(axis, 0) if wanted.ndim == 3 else wanted
        found = net.predict(many[:n].numpy())
        assert found.shape == tuple(wanted.shape)
        close(found, wanted.numpy(), 1e-4)


def recurrent_for(count, steps, ways):
    """What the newer exporter writes of a GRU: the number of samples stands in its constants."""
    both = "bidirectional" if ways == 2 else "forward"
    more = {"hidden_size": 4, "linear_before_reset": 1, "direction": both}
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("GRU", ["t", "w", "r", "", "", "h"], ["s"], **more),
        node("Transpose", ["s"], ["d"], perm=[0, 2, 1, 3]),
        node("Reshape", ["d", "sizes"], ["m"]), node("Transpose", ["m"], ["y"], perm=[1, 0, 2]),
    ]  # fmt: skip
    shapes = {"w": (ways, 12, 3), "r": (ways, 12, 4), "h": (ways, count, 4)}
    return nodes, shapes, {"sizes": [steps, count, 4 * ways]}


def heads_for(count, steps, heads):
    """The shapes of attention in time-major order: merged with heads, with steps, and apart."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("MatMul", ["t", "w"], ["p"]),
        node("Reshape", ["p", "split"], ["h"]), node("Transpose", ["h"], ["hn"], perm=[1, 0, 2]),
        node("Reshape", ["hn", "apart"], ["four"]),
        node("Transpose", ["four"], ["back"], perm=[2, 0, 1, 3]),
        node("Reshape", ["back", "rows"], ["flat"]), node("Gemm", ["flat", "v"], ["g"]),
        node("Reshape", ["g", "sizes"], ["whole"]), node("Expand", ["start", "spread"], ["starts"]),
        node("Add", ["whole", "starts"], ["sum"]),
        node("Transpose", ["sum"], ["y"], perm=[1, 0, 2]),
    ]  # fmt: skip
    wide = 4 * heads
    shapes = {"w": (3, wide), "v": (wide, 5), "start": (1, 1, 5)}
    return nodes, shapes, {
        "split": [steps, count * heads, 4], "apart": [count, heads, steps, 4],
        "rows": [steps * count, wide], "sizes": [steps, count, 5], "spread": [1, count, 5],
    }  # fmt: skip


@pytest.mark.parametrize("graph", [recurrent_for, heads_for])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_graph_for_so_many_samples_takes_any(graph, count, tmp_path):
    rng = np.random.default_rng(count)
    for steps, more in ((5, 1), (4, 2), (1, 2)):
        nodes, shapes, sizes = graph(count, steps, more)
        arrays = {n: (0.3 * rng.standard_normal(s)).astype("f4") for n, s in shapes.items()}
        if "h" in arrays:
            # Only what is the same for every sample is known of any other number of them.
            arrays["h"][:] = arrays["h"][:, :1]
        arrays |= {name: np.array(shape) for name, shape in sizes.items()}
        path = file_of(nodes, {"x": [count, steps, 3]}, ["y"], arrays, tmp_path / "net.onnx")
        many = rng.standard_normal((2 * count, steps, 3)).astype(np.float32)
        halves = [ran(path, {"x": many[k : k + count]})["y"] for k in (0, count)]
        net = load(path)
        np.testing.assert_allclose(net.predict(many), np.concatenate(halves), rtol=0, atol=1e-5)
        np.testing.assert_allclose(net.predict(many[:1]), halves[0][:1], rtol=0, atol=1e-5)


def test_exported_attention_is_a_layer_of_it_again(tmp_path):
    exported(torch_models.export, "causal attention", tmp_path / "net.onnx", 17, False)
    net = load(tmp_path / "net.onnx")
    (attention,) = (each for each in net.layers if not isinstance(each, layers.Dummy))
    assert isinstance(attention, layers.MultiHeadAttention)
    assert (attention.causal, attention.num_heads) == (True, 4)


def test_parameters_are_called_as_in_the_file_and_come_back_from_a_model_file(tmp_path):
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    nodes = [
        node("MatMul", ["x", "block.fc.weight"], ["m"]), node("Erf", ["y"], ["z"]),
        node("Add", ["m", "block.fc.bias"], ["y"]),
    ]  # fmt: skip
    arrays = {"block.fc.weight": w, "block.fc.bias": np.ones(3, np.float32)}
    net = load(file_of(nodes, {"x": ["N", 4]}, ["z"], arrays, tmp_path / "net.onnx"))
    assert net.param_names() == ["block.fc/weight", "block.fc/bias"]
    np.testing.assert_array_equal(net["block.fc"].params["weight"].value, w)
    assert isinstance(net["erf"], layers.Operation)
    net.save_model(tmp_path / "net.singanet")
    x = np.ones((2, 4), np.float32)
    again = load_model(tmp_path / "net.singanet")
    np.testing.assert_array_equal(again.forward(False, x), net.forward(False, x))


def test_several_outputs_are_called_as_in_the_file(tmp_path):
    nodes = [
        node("Relu", ["x"], ["first"], name="a"), node("Tanh", ["first"], ["second"], name="b"),
        node("LSTM", ["t", "w", "r"], ["s", "h", ""], hidden_size=2),
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node("Identity", ["h"], ["state"]),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal((1, 8, n)).astype("f4") for name, n in (("w", 3), ("r", 2))}
    # In the graph the last two have the samples behind.
    outputs = {"first": None, "second": None, "s": (2, 0, 1, 3), "state": (1, 0, 2)}
    path = file_of(nodes, {"x": ["N", 4, 3]}, [*outputs], arrays, tmp_path / "net.onnx")
    x = rng.standard_normal((5, 4, 3)).astype(np.float32)
    wanted, found = ran(path, {"x": x}), load(path).predict(x)
    assert found.keys() == wanted.keys()
    for name, axes in outputs.items():
        there = wanted[name].transpose(axes) if axes else wanted[name]
        np.testing.assert_allclose(found[name], there, atol=1e-6)


def test_inputs_and_outputs_have_any_names_though_nodes_have_them_too(tmp_path):
    nodes = [
        node("Tanh", ["a/b::0"], ["c"], name="d/e:1"), node("Relu", ["c"], ["d/e:1"], name="z"),
        node("Neg", ["c"], ["z"], name="n"),
    ]  # fmt: skip
    path = file_of(nodes, {"a/b::0": ["N", 3]}, ["d/e:1", "z"], {}, tmp_path / "net.onnx")
    feed = {"a/b::0": np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)}
    net = load(path)
    net.save_model(tmp_path / "net.singanet")
    for each in (net, load_model(tmp_path / "net.singanet")):
        found = each.predict(feed)
        for name, wanted in ran(path, feed).items():
            np.testing.assert_allclose(found[name], wanted, atol=1e-6)


def test_a_name_that_leaves_its_folder_has_dots(tmp_path):
    nodes = [node("Relu", ["/x/../y"], ["/a/b"]), node("Neg", ["/x/../y"], ["c"])]
    path = file_of(nodes, {"/x/../y": ["N", 3]}, ["/a/b", "c"], {}, tmp_path / "net.onnx")
    net = load(path)
    assert [net.layers[0].name, *net.predict(np.ones((2, 3), np.float32))] == ["x....y", "a.b", "c"]


def branching(condition, path):
    """A file whose `If` gives 2 x or −x + w; both branches have the same names."""
    helper = onnx.helper
    port = helper.make_tensor_value_info
    twice = [
        node("Add", ["h", "h"], ["t"]), node("Cast", ["t"], ["m"], to=1),
        node("Relu", ["m"], ["e"]),
    ]  # fmt: skip
    other = [node("Neg", ["h"], ["m"]), node("Add", ["m", "w"], ["e"])]
    branches = {
        f"{side}_branch": helper.make_graph(body, side, [], [port(body[-1].output[0], FLOAT, None)])
        for side, body in (("then", twice), ("else", other))
    }
    nodes = [node("Relu", ["x"], ["h"]), *condition, node("If", ["c"], ["y"], **branches)]
    arrays = {"w": np.array([1.0, 2.0], "f4"), "one": np.float32(1), "rate": np.int64(16000)}
    arrays["last"] = np.array([1])
    kinds = {"sr": onnx.TensorProto.INT64}
    inputs = {"x": [1, 2]} | ({"sr": []} if "sr" in condition[0].input else {})
    return file_of(nodes, inputs, ["y"], arrays, path, kinds=kinds)


def test_the_value_of_an_input_chooses_a_branch(tmp_path):
    path = branching([node("Equal", ["sr", "rate"], ["c"])], tmp_path / "net.onnx")
    x = np.array([[1.0, -1.0]], np.float32)
    for rate in (16000, 8000):
        net = load(path, constants={"sr": rate})
        feed = {"x": x, "sr": np.array(rate)}
        np.testing.assert_allclose(net.predict(x), ran(path, feed)["y"])
    for constants in ({"rate": 8000}, {"sr": [8000]}):
        with pytest.raises(ArgumentError, match="argument constants"):
            load(path, constants=constants)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_each_sample_chooses_its_branch(keepdims, tmp_path):
    condition = [
        node("ReduceSum", ["x", "last"], ["s"], keepdims=keepdims),
        node("Greater", ["s", "one"], ["c"]),
    ]
    path = branching(condition, tmp_path / "net.onnx")
    x = np.array([[1.0, -1.0], [2.0, 3.0]], np.float32)
    net = load(path)
    wanted = [ran(path, {"x": each[None]})["y"][0] for each in x]
    np.testing.assert_allclose(net.predict(x), wanted)


def test_dynamic_quantization_has_the_range_of_a_sample(tmp_path):
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("DequantizeLinear", ["rows", "unit", "middle"], ["x"]),
        node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        node("MatMulInteger", ["q", "w", "zero", "less"], ["p"]), node("Cast", ["p"], ["f"], to=1),
        node("Mul", ["scale", "sizes"], ["both"]), node("Mul", ["f", "both"], ["y"]),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    # With AVX2 alone ONNX Runtime adds pairs of products in 16 bits, which larger weights exceed.
    arrays = {
        "table": rng.integers(0, 256, (9, 4), np.uint8), "unit": np.float32(0.1),
        "middle": np.uint8(100), "w": rng.integers(-64, 64, (4, 3), np.int8),
        "less": np.array([1, 0, -2], np.int8), "sizes": np.array([0.1, 0.2, 0.3], "f4"),
    }  # fmt: skip
    kinds = {"ids": onnx.TensorProto.INT64}
    path = file_of(nodes, {"ids": ["N", 5]}, ["y"], arrays, tmp_path / "net.onnx", kinds=kinds)
    ids = rng.integers(0, 9, (6, 5))
    wanted = [ran(path, {"ids": each[None]})["y"][0] for each in ids]
    np.testing.assert_allclose(load(path).predict(ids), wanted, rtol=1e-5)


@pytest.mark.parametrize("way", ["forward", "reverse", "bidirectional"])
def test_an_lstm_that_quantizes_its_steps(way, tmp_path):
    """As in ONNX Runtime for a batch of one; rounding moves the outputs by 1e-3."""
    rng, ways, size, features = np.random.default_rng(0), 1 + (way == "bidirectional"), 6, 4
    arrays = {
        "w": rng.integers(-64, 64, (ways, features, 4 * size), np.int8),
        "r": rng.integers(-64, 64, (ways, size, 4 * size), np.int8),
        "b": rng.normal(size=(ways, 8 * size)).astype(np.float32),
        "sw": np.full(ways, 0.01, "f4"), "zw": np.full(ways, 3, np.int8),
        "sr": np.full(ways, 0.02, "f4"), "zr": np.full(ways, -2, np.int8),
    }  # fmt: skip
    lstm = node(
        "DynamicQuantizeLSTM", ["t", "w", "r", "b", "", "", "", "", "sw", "zw", "sr", "zr"],
        ["y", "h", "c"], domain="com.microsoft", direction=way, hidden_size=size,
    )  # fmt: skip
    nodes = [node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), lstm]
    outputs, imports = ["y", "h", "c"], [onnx.helper.make_opsetid("com.microsoft", 1)]
    shape = {"x": ["N", 5, features]}
    path = file_of(nodes, shape, outputs, arrays, tmp_path / "net.onnx", imports=imports)
    x = rng.normal(size=(3, 5, features)).astype(np.float32)
    net = load(path)
    found = net.predict(x, by_name=True)
    for k in range(3):
        for name, wanted in ran(path, {"x": x[k : k + 1]}).items():
            axis = 2 if name == "y" else 1
            np.testing.assert_allclose(found[name][k], wanted.take(0, axis), atol=1e-5)
    with pytest.raises(ArgumentError, match="round_states=True"):
        save(net, tmp_path / "again.onnx")


def test_samples_are_along_the_only_free_axis_of_an_input(tmp_path):
    nodes = [node("Add", ["x", "t"], ["y"]), node("Transpose", ["s"], ["t"], perm=[1, 0])]
    path = file_of(nodes, {"x": [None, 3], "s": [3, None]}, ["y"], {}, tmp_path / "net.onnx")
    x, s = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
    found = load(path).predict({"x": x, "s": s})
    np.testing.assert_allclose(found, ran(path, {"x": x, "s": s.T})["y"])


def test_an_empty_array_that_is_joined_adds_nothing(tmp_path):
    """As `torch.ones(n, 0, 1)`, whose first extent is the batch."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Concat", ["n", "rest"], ["shape"], axis=0),
        node("ConstantOfShape", ["shape"], ["none"]),
        node("Concat", ["x", "none"], ["y"], axis=1), node("Relu", ["y"], ["z"]),
    ]  # fmt: skip
    arrays = {"zero": np.array([0]), "rest": np.array([0, 3])}
    path = file_of(nodes, {"x": ["N", 4, 3]}, ["z"], arrays, tmp_path / "net.onnx")
    x = np.random.default_rng(0).standard_normal((5, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(load(path).predict(x), ran(path, {"x": x})["z"])


@pytest.mark.parametrize("by_channel", [True, False])
def test_quantized_pairs_round_as_in_onnx_runtime(by_channel, tmp_path):
    """Weights by channel or all alike, a bias of int32, arrays of a net by uint8 and int16."""
    rng = np.random.default_rng(0)
    count = 4 if by_channel else 1
    scales = rng.uniform(0.01, 0.02, count).astype("f4")
    arrays = {
        "w": rng.integers(-127, 128, (4, 3, 3, 3)).astype("i1"), "sw": scales.squeeze(),
        "b": rng.integers(-99, 99, 4).astype("i4"), "sb": (scales * 0.03).squeeze(),
        "s": np.float32(0.03), "z": np.uint8(130), "t": np.float32(0.002), "zt": np.int16(-40),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "sw"], ["wf"], axis=0),
        node("DequantizeLinear", ["b", "sb"], ["bf"], axis=0),
        node("Conv", ["d", "wf", "bf"], ["c"]), node("Relu", ["c"], ["r"]),
        node("QuantizeLinear", ["r", "t", "zt"], ["p"]),
        node("DequantizeLinear", ["p", "t", "zt"], ["y"]),
    ]  # fmt: skip
    path = file_of(nodes, {"x": ["N", 3, 6, 5]}, ["y"], arrays, tmp_path / "q.onnx", opset=21)
    x = rng.normal(size=(5, 3, 6, 5)).astype("f4") * 3
    found, wanted = load(path).predict(x), ran(path, {"x": x}, as_written=True)["y"]
    # A sum that is rounded otherwise may fall to the next step.
    np.testing.assert_allclose(found, wanted, atol=1e-6 + 0.002)
    assert np.mean(np.abs(found - wanted) > 1e-6) < 0.01


def test_all_operators_without_a_layer_are_named_at_once(tmp_path):
    nodes = [
        node("Unique", ["x"], ["a"], name="here"), node("Det", ["x"], ["b"], name="there"),
        node("Fancy", ["x"], ["c"], domain="com.example"),
    ]  # fmt: skip
    own = {"imports": [onnx.helper.make_opsetid("com.example", 1)]}
    path = file_of(nodes, {"x": ["N", 4]}, ["a", "b", "c"], {}, tmp_path / "net.onnx", **own)
    with pytest.raises(FileFormatError) as error:
        load(path)
    for part in ("'Unique' at 'here'", "'Det' at 'there'", "'com.example.Fancy' at 'c'"):
        assert part in str(error.value)
    assert "Unique 1 (no layer)" in inspect(path)


@pytest.mark.parametrize("op", ["Cast", "Identity"])
def test_a_node_that_is_given_nothing_is_no_error_of_python(op, tmp_path):
    more = {"to": FLOAT} if op == "Cast" else {}
    nodes = [node(op, [""], ["a"], **more), node("Relu", ["x"], ["y"])]
    path = file_of(nodes, {"x": ["N", 4]}, ["y"], {}, tmp_path / "net.onnx")
    try:
        net = load(path)
    except FileFormatError:
        return
    np.testing.assert_array_equal(net.forward(False, -np.ones((2, 4), np.float32)), 0)


def test_uses_that_mix_samples_are_refused_and_a_whole_array_may_be_one(tmp_path):
    total = node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    path = file_of([total], {"x": ["T", 3]}, ["y"], {"axes": np.array([0])}, tmp_path / "net.onnx")
    with pytest.raises(FileFormatError, match="an operation within samples"):
        load(path)
    net = load(path, {"x": (5, 3)}, batch_axis=None)
    x = np.random.default_rng(0).standard_normal((2, 5, 3)).astype(np.float32)
    np.testing.assert_allclose(net.forward(False, x), x.sum(axis=1), rtol=1e-5)
    with pytest.raises(ArgumentError, match="'x'"):
        load(path, {"z": (5, 3)})


def test_local_functions_stand_where_they_are_used(tmp_path):
    body = [node("Mul", ["a", "a"], ["b"]), node("LeakyRelu", ["b"], ["c"])]
    body[1].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=1))
    imports = [onnx.helper.make_opsetid("", 18)]
    function = onnx.helper.make_function("own", "Twice", ["a"], ["c"], body, imports, ["slope"])
    nodes = [
        node("Twice", ["x"], ["y"], domain="own", slope=0.5),
        node("Twice", ["y"], ["z"], domain="own", slope=0.25),
    ]
    own = {"imports": [onnx.helper.make_opsetid("own", 1)], "functions": [function]}
    path = file_of(nodes, {"x": ["N", 3]}, ["z"], {}, tmp_path / "net.onnx", **own)
    x = np.array([[1.0, -2.0, 3.0]], np.float32)
    np.testing.assert_allclose(load(path).forward(False, x), x**4)


LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


LIGHTEST = ("shufflenet", "squeezenet")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            path.stem, marks=pytest.mark.full if path.stem[6:] in LIGHTEST else pytest.mark.slow
        )
        for path in sorted(LIGHT.glob("*.onnx"))
    ],
)
def test_the_package_s_light_models_give_their_scores(name, tmp_path):
    """The scores before the last softmax are those of ONNX Runtime.

    Weights of these models are all alike, and so are the scores: some in the billions, where a
    rounding of one is all that a softmax shows.
    """
    model = onnx.load(LIGHT / f"{name}.onnx")
    if model.graph.node[-1].op_type == "Softmax":
        model.graph.output[0].name = model.graph.node.pop().input[0]
        model.graph.output[0].type.tensor_type.ClearField("shape")
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    net = load(path, max_bytes=3 << 30)
    shape = net.layers[0].in_shapes
    x = np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(1, *shape)
    (data,) = {i.name for i in model.graph.input} - {a.name for a in model.graph.initializer}
    (wanted,) = ran(path, {data: x}).values()
    np.testing.assert_allclose(net.forward(False, x), wanted, rtol=1e-3, atol=1e-7)


def test_a_file_that_makes_more_than_it_may_is_refused():
    with pytest.raises(UnsafeFileError, match="max_bytes"):
        load(LIGHT / "light_vgg19.onnx")
