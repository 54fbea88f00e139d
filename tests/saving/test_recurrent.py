"""Recurrent weights as SINGA keeps them: one array a layer."""

import pickle

import numpy as np
import pytest

from singanet import layers
from singanet.checkpoint import open_state, write_state
from singanet.checkpoint.core_pb2 import TensorProto
from singanet.errors import StateMismatchError
from singanet.net import FeedForwardNet
from tests.kit.files import bytes_of

FEATURES, HIDDEN = 3, 4


def make(layer=layers.LSTM, seed=1, **options):
    net = FeedForwardNet(seed=seed)
    net.add(layer("rnn", HIDDEN, input_sample_shape=(5, FEATURES), **options))
    net.add(layers.Flatten("flat"))
    net.add(layers.Dense("fc", 2))
    for param in net.params():
        param.value[...] = np.random.default_rng(seed).standard_normal(param.shape)
    return net


def singas(packed, key, net):
    """The file's arrays by SINGA's names."""
    sign = "/" if "/" in key else "_"
    return {key: packed} | {f"fc{sign}{s}": p.value for s, p in net["fc"].params.items()}


def elman(x, packed):
    """h = tanh(W x + R h + b + c), W, R, b, c in the order of cuDNN's convention."""
    cut = np.cumsum([HIDDEN * FEATURES, HIDDEN * HIDDEN, HIDDEN])
    w, r, b, c = np.split(packed.astype(np.float64), cut)
    w, r, h, ys = w.reshape(HIDDEN, FEATURES), r.reshape(HIDDEN, HIDDEN), np.zeros(HIDDEN), []
    for step in x:
        h = np.tanh(w @ step + r @ h + b + c)
        ys.append(h)
    return np.array(ys)


@pytest.mark.parametrize("key", ["rnn/weight", "rnn_weight", "rnn-weight"])
@pytest.mark.parametrize("name", ["m.bin", "m.pickle"])
def test_every_spelling_is_read(tmp_path, rng, name, key):
    net = make(layers.RNN, rnn_mode="tanh")
    packed = rng.standard_normal(HIDDEN * (FEATURES + HIDDEN + 2)).astype("f4")
    arrays = singas(packed, key, make(layers.RNN, 9, rnn_mode="tanh"))
    if name == "m.bin":
        write_state(tmp_path / name, arrays, plain=True)
        for path in tmp_path.iterdir():  # written for a SINGA that looks for underscores
            path.write_bytes(path.read_bytes().replace(b"rnn_weight", key.encode()))
    else:
        (tmp_path / name).write_bytes(pickle.dumps({**arrays, "SINGA_VERSION": 1101}, 0))
    report = net.load(tmp_path / name)
    assert report.complete
    [found] = [match for match in report.matched if match.name == "rnn/weight"]
    assert (found.file_name, found.shape) == (key, (36,))
    assert found.rule.endswith(
        "unpacked into 4: all weights of a recurrent layer as one array, as in every SINGA"
    )
    assert ("for the last" in found.rule) == (key != "rnn/weight")
    x = rng.standard_normal((1, 5, FEATURES)).astype("f4")
    y = elman(x[0], packed).reshape(1, -1) @ arrays[next(k for k in arrays if "fc" in k)]
    bias = arrays[[k for k in arrays if "fc" in k][1]]
    np.testing.assert_allclose(net.forward(False, x), y + bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_weights_of_torch_give_its_outputs(tmp_path, rng, bidirectional):
    """torch keeps gates and matrices in cuDNN's order, and biases beside them."""
    torch = pytest.importorskip("torch")
    module = torch.nn.LSTM(FEATURES, HIDDEN, 2, batch_first=True, bidirectional=bidirectional)
    parts = {name: part.detach().numpy() for name, part in module.named_parameters()}
    matrices = [part.ravel() for name, part in parts.items() if name.startswith("weight")]
    biases = [part for name, part in parts.items() if name.startswith("bias")]
    write_state(tmp_path / "m.bin", {"rnn-weight": np.concatenate(matrices + biases)})
    more = {"dropout": 0.0, "num_layers": 2, "bidirectional": bidirectional}
    lstm = layers.LSTM("rnn", HIDDEN, input_mode="linear", input_sample_shape=(5, 3), **more)
    net = FeedForwardNet([lstm])
    assert net.load(tmp_path / "m").complete
    x = rng.standard_normal((2, 5, FEATURES)).astype("f4")
    expected = module(torch.from_numpy(x))[0].detach().numpy()
    np.testing.assert_allclose(net.forward(False, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU])
@pytest.mark.parametrize("suffix", [".bin", ".pickle"])
def test_files_for_singa_hold_one_array(tmp_path, layer, suffix):
    net, other = make(layer), make(layer, 2)
    net.save(tmp_path / f"m{suffix}")
    if suffix == ".pickle":
        with (tmp_path / "m.pickle").open("rb") as file:
            there = pickle.load(file, encoding="latin1")
        written = there["rnn_weight"]
    else:
        raw = (tmp_path / "m.bin").read_bytes()
        start = raw.index(b"rnn_weight") + len(b"rnn_weight")
        size = int.from_bytes(raw[start : start + 8], "little")
        written = np.array(TensorProto.FromString(raw[start + 8 : start + 8 + size]).float_data)
    assert written.astype("f4").tobytes() == net["rnn"].pack().tobytes()
    with open_state(tmp_path / f"m{suffix}") as reader:
        assert list(reader.entries) == ["rnn/weight", "fc/weight", "fc/bias"]
    assert other.load(tmp_path / f"m{suffix}").complete
    assert bytes_of(other) == bytes_of(net)


@pytest.mark.parametrize("suffix", [".h5", ".npz", ".safetensors", ".weights.h5"])
def test_other_files_hold_the_named_arrays(tmp_path, suffix):
    net, other = make(), make(seed=2)
    net.save(tmp_path / f"m{suffix}")
    assert other.load(tmp_path / f"m{suffix}").complete
    if suffix != ".weights.h5":  # Keras has one bias for our two
        assert bytes_of(other) == bytes_of(net)
        with open_state(tmp_path / f"m{suffix}") as reader:
            assert list(reader.entries) == net.param_names()


def test_a_renamed_layer_and_another_type(tmp_path):
    net, other, path = make(seed=1), make(seed=2), tmp_path / "m.npz"
    packed = net["rnn"].pack()
    write_state(path, singas(packed, "old_lstm", net))
    report = other.load(path, rename={"old_lstm": "rnn/weight"})
    assert report.matched[0].rule.startswith("rename=; unpacked into 4")
    assert bytes_of(other) == bytes_of(net)
    write_state(path, singas(packed.astype("f8"), "rnn_weight", net))
    other = make(seed=2)
    with pytest.raises(StateMismatchError, match="float64, not float32; pass cast=True"):
        other.load(path)
    other.load(path, cast=True)
    assert bytes_of(other) == bytes_of(net)


def test_a_name_from_the_specs(tmp_path):
    """In SINGA it names the packed array."""
    net, other = (make(seed=seed, param_specs={"name": "mine"}) for seed in (1, 2))
    net.save(tmp_path / "m.bin")
    with open_state(tmp_path / "m.bin") as reader:
        assert next(iter(reader.entries)) == "mine"
    assert other.load(tmp_path / "m.bin").complete
    assert bytes_of(other) == bytes_of(net)


@pytest.mark.parametrize(("size", "gates"), [(35, 1), (37, 1), (0, 1), (36 * 4, 4)])
def test_a_size_that_does_not_fit(tmp_path, size, gates):
    net = make(layers.RNN, rnn_mode="tanh")
    before = bytes_of(net)
    write_state(tmp_path / "m.bin", singas(np.ones(size, "f4"), "rnn_weight", net))
    with pytest.raises(StateMismatchError) as caught:
        net.load(tmp_path / "m.bin")
    text = str(caught.value)
    assert len(text) < 400
    assert "m.bin': expected every array of the net with its shape and type" in text
    assert f"received rnn/weight of ({size},), not (36,)" in text
    assert "use the saved net" in text
    assert "another shape, '_' for the last '/'" in caught.value.report.table()
    assert bytes_of(net) == before
    report = net.load(tmp_path / "m.bin", strict=False)
    assert [each.name for each in report.mismatched] == ["rnn/weight"]
    assert bytes_of(net) == before


def test_neither_form_and_both(tmp_path):
    """The arrays are missing under the net's names for them; the packed one is too many."""
    net, path = make(), tmp_path / "m.npz"
    write_state(path, {"fc/weight": net["fc"].params["weight"].value})
    missing = net.load(path, strict=False).missing
    assert list(missing) == [*(n for n in net.param_names() if "rnn" in n), "fc/bias"]
    state = {param.name: param.value for param in net.params()}
    write_state(path, {**state, "rnn/weight": net["rnn"].pack()})
    report = net.load(path, strict=False)
    assert (list(report.extra), report.missing) == (["rnn/weight"], {})


def test_weights_under_other_names_are_transposed_by_their_layout(tmp_path):
    torch = pytest.importorskip("torch")
    theirs = torch.nn.LSTM(4, 5, batch_first=True)
    net = FeedForwardNet([layers.LSTM("l", 5, input_sample_shape=(6, 4))], seed=0)
    write_state(tmp_path / "w.npz", {k: v.detach().numpy() for k, v in theirs.state_dict().items()})
    parts = {"weight_ih": "weight_x", "weight_hh": "weight_h"}
    parts |= {"bias_ih": "bias_x", "bias_hh": "bias_h"}
    rename = {f"{k}_l0": f"l/l0/forward/{v}" for k, v in parts.items()}
    net.load(tmp_path / "w.npz", rename=rename, layout="torch")
    x = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    want = theirs(torch.tensor(x))[0].detach().numpy()
    np.testing.assert_allclose(net.predict(x), want, rtol=1e-4, atol=1e-5)
