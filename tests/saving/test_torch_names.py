"""Weights under PyTorch's names: which is which, what is turned, and modules that it has not."""

import copy

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.checkpoint import open_state, write_state
from singanet.errors import ArgumentError, StateMismatchError
from singanet.layers import Activation, Conv2D, Dense, Flatten, Input
from tests.kit.files import bytes_of, read_state, safetensors_entry, safetensors_file

COUNT = 12


def by_texts(folder, arrays):
    """A file as the package safetensors writes it: names sorted as texts."""
    table, data = {}, b""
    for name, array in sorted(arrays.items()):
        offsets = len(data), len(data) + array.nbytes
        table[name] = safetensors_entry(shape=array.shape, offsets=offsets)
        data += array.tobytes()
    (folder / "m.safetensors").write_bytes(safetensors_file(table, data))
    return folder / "m.safetensors"


def squares(names):
    """Weights as PyTorch's Linear has them, each full of the number of its place."""
    return {f"{name}.weight": np.full((3, 3), k, np.float32) for k, name in enumerate(names)}


def chain(names):
    symbol = x = Input("x", (3,))
    for name in names:
        symbol = Dense(name, 3, use_bias=False)(symbol)
    return FeedForwardNet(inputs=x, outputs=symbol)


def loaded(tmp_path, theirs, ours, **more):
    """The number that each layer got."""
    net = chain(ours)
    path = by_texts(tmp_path, squares(theirs))
    report = net.load(path, layout="torch", **more)
    assert report.complete
    return [float(value[0, 0]) for value in net.param_values()], report


PLACES = list(map(float, range(COUNT)))
THEIRS = [f"blocks.{k}.fc" for k in range(COUNT)]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([str(k) for k in range(COUNT)], [f"fc{k}" for k in range(COUNT)]),
        (THEIRS, [f"h{k}/fc" for k in range(COUNT)]),
        ([f"layers.{k}" for k in range(COUNT)], [f"enc{k}" for k in range(COUNT)]),
        ([f"layers.{k}" for k in range(COUNT)], [f"layers/{k}" for k in range(COUNT)]),
    ],
)
def test_numbers_in_names_are_numbers(tmp_path, theirs, ours):
    found, report = loaded(tmp_path, theirs, ours)
    assert found == PLACES
    assert not any("order" in match.rule for match in report.matched)


@pytest.mark.parametrize(
    "ours",
    [
        [f"fc{'abcdefghijkl'[k]}" for k in range(COUNT)],
        [f"h{k + 1}/fc" for k in range(COUNT)],  # counted from 1: perhaps, and perhaps not
    ],
)
def test_the_order_alone_tells_where_it_is_asked(tmp_path, ours):
    with pytest.raises(ArgumentError, match=r"'blocks\.0\.fc'.*by_order=True"):
        loaded(tmp_path, THEIRS, ours)
    found, report = loaded(tmp_path, THEIRS, ours, by_order=True)
    assert found == PLACES
    assert all(match.rule.endswith("by order") for match in report.matched)


def test_a_refusal_leaves_the_net_as_it_was(tmp_path):
    net = chain(["a", "b"])
    before = bytes_of(net)
    path = by_texts(tmp_path, squares(["first", "second"]))
    with pytest.raises(ArgumentError, match="by_order"):
        net.load(path, layout="torch")
    assert bytes_of(net) == before
    net.load(path, layout="torch", rename={"first": "b", "second": "a"})
    assert [float(value[0, 0]) for value in net.param_values()] == [1.0, 0.0]


def test_shapes_that_occur_once_tell(tmp_path):
    x = Input("x", (3,))
    net = FeedForwardNet(inputs=x, outputs=Dense("b", 2, use_bias=False)(Dense("a", 4)(x)))
    arrays = {
        "one.weight": np.ones((4, 3)),
        "one.bias": np.ones(4),
        "other.weight": np.ones((2, 4)),
    }
    arrays = {name: (k // 2 + array).astype("f4") for k, (name, array) in enumerate(arrays.items())}
    assert net.load(by_texts(tmp_path, arrays), layout="torch").complete
    assert [float(value.flat[0]) for value in net.param_values()] == [1.0, 1.0, 2.0]


# -- heads and units of published decoders --

KINDS = {
    "grouped": {"num_kv_heads": 2, "use_bias": False},
    "grouped with biases": {"num_kv_heads": 1},
    "biases by part": {"use_bias": ("query", "key", "value")},
    "norm": {"norm": layers.QueryKeyNorm(), "use_bias": False},
    "norm of all heads": {"norm": layers.QueryKeyNorm(joint=True), "num_kv_heads": 2},
    "relative": {"relative": layers.RelativePositions(8, 20)},
    "wide": {"key_dim": 3, "value_dim": 5},
}


def net_of(seed, block="model/layers/{}/self_attn", **given):
    x = y = Input("x", (5, 8))
    for k in range(2):
        y = layers.MultiHeadAttention(block.format(k), 4, **given)(y)
    net = FeedForwardNet(inputs=x, outputs=Dense("head", 3)(y), seed=seed)
    rng = np.random.default_rng(seed)
    for param in net.params():
        param.value[...] = rng.standard_normal(param.shape)
    return net


@pytest.mark.parametrize("kind", KINDS)
def test_heads_go_there_and_back(kind, tmp_path):
    net, path = net_of(0, **KINDS[kind]), tmp_path / "m.safetensors"
    net.save(path, layout="torch")
    again = net_of(1, **KINDS[kind])
    assert again.load(path, layout="torch").complete
    assert bytes_of(again) == bytes_of(net)


def test_names_and_layouts_are_those_of_published_decoders(tmp_path):
    given = {"num_kv_heads": 2, "norm": layers.QueryKeyNorm()}
    net, path = net_of(0, "{}", use_bias=("query", "key"), **given), tmp_path / "m.npz"
    net.save(path, layout="torch", rename={"0": "model.layers.0.self_attn"})
    found = read_state(path)
    at = "model.layers.0.self_attn"
    assert {name.removeprefix(f"{at}.") for name in found if name.startswith(at)} == {
        "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias", "v_proj.weight",
        "o_proj.weight", "q_norm.weight", "k_norm.weight",
    }  # fmt: skip
    params = net["0"].params
    np.testing.assert_array_equal(found[f"{at}.k_proj.weight"], params["key_weight"].value.T)
    assert found[f"{at}.k_proj.weight"].shape == (4, 8)
    np.testing.assert_array_equal(found[f"{at}.q_norm.weight"], params["query_gamma"].value)


@pytest.mark.parametrize(
    ("made", "shapes"),
    [
        ([layers.GatedUnit("mlp", 6, 4)], {"mlp.gate_proj": (6, 4), "mlp.up_proj": (6, 4),
                                           "mlp.down_proj": (4, 6)}),
        ([Dense(f"att/{part}_proj", 6, use_bias=False) for part in "qkvo"],
         {f"att.{part}_proj": (6, 4) for part in "qkvo"}),
    ],
)  # fmt: skip
def test_units_and_dense_layers_of_published_names(made, shapes, tmp_path):
    """The latter stay dense layers."""
    x, path = Input("x", (4,)), tmp_path / "m.npz"
    net = FeedForwardNet(inputs=x, outputs=[layer(x) for layer in made], seed=0)
    again = copy.deepcopy(net)
    net.save(path, layout="torch")
    for param in again.params():
        param.value[...] = 0
    found = {name.removesuffix(".weight"): array.shape for name, array in read_state(path).items()}
    assert found == shapes
    assert again.load(path, layout="torch").complete
    assert bytes_of(again) == bytes_of(net)


def test_a_shard_has_some_of_the_modules(tmp_path):
    net, path = net_of(0, num_kv_heads=2), tmp_path / "m.npz"
    net.save(path, layout="torch")
    with open_state(path) as reader:
        some = {name: array for name, array in reader if ".1." in name}
    write_state(path, some)
    again = net_of(1, num_kv_heads=2)
    kept = bytes_of(again)
    report = again.load(path, layout="torch", strict=False)
    assert len(report.matched) == 8
    wanted = bytes_of(net)
    for name, found in bytes_of(again).items():
        assert found == (wanted if "/1/" in name else kept)[name]


# -- matrices that are turned --

RENAME = {
    "0.weight": "c/weight", "0.bias": "c/bias", "3.weight": "a/weight", "3.bias": "a/bias",
    "5.weight": "b/weight", "5.bias": "b/bias",
}  # fmt: skip


@pytest.mark.parametrize("width", [7, 100])
def test_it_predicts_as_pytorch_does(width, tmp_path):
    """A square matrix was taken as it came, and the report said that all fitted."""
    torch = pytest.importorskip("torch")
    nn, path = torch.nn, tmp_path / "w.safetensors"
    theirs = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(100, width), nn.ReLU(),
        nn.Linear(width, 3),
    )  # fmt: skip
    first = [Conv2D("c", 4, 3, input_sample_shape=(2, 5, 5)), Activation("relu"), Flatten("f")]
    made = FeedForwardNet([*first, Dense("a", width), Activation("relu2"), Dense("b", 3)], seed=0)
    write_state(path, {k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    report = made.load(path, rename=RENAME, layout="torch")
    assert report.complete
    assert "'3.weight' in PyTorch's layout" in report.table()
    x = np.random.default_rng(0).normal(size=(6, 2, 5, 5)).astype(np.float32)
    before, wanted = made.predict(x), theirs(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(before, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(ArgumentError if width == 100 else StateMismatchError, match="a/weight"):
        made.load(path, rename=RENAME)
    assert np.array_equal(made.predict(x), before)


def test_ours_under_names_with_dots_is_taken_as_it_is_said(tmp_path):
    made = FeedForwardNet([Dense("a", 4, input_sample_shape=(4,))], seed=0)
    path = tmp_path / "w.npz"
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    write_state(path, {"a.w": weight, "a.b": np.zeros(4, np.float32)})
    rename = {"a.w": "a/weight", "a.b": "a/bias"}
    made.load(path, rename=rename, layout="singanet")
    assert np.array_equal(made["a"].params["weight"].value, weight)
    made.load(path, rename=rename, layout="torch")
    assert np.array_equal(made["a"].params["weight"].value, weight.T)
    with pytest.raises(ArgumentError, match="'torch', 'singanet' or None"):
        made.load(path, rename=rename, layout="pytorch")
