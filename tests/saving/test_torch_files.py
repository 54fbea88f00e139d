"""State dicts of PyTorch to and from nets, whole: names, layouts, trainings."""

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers
from singanet.checkpoint import open_state
from singanet.errors import ArgumentError, SingaNetError, StateMismatchError, UnknownNameError

torch = pytest.importorskip("torch", reason="compares with PyTorch: pip install '.[peers]'")
nn = torch.nn

IMAGE, SIGNAL, STEPS, VOLUME = (4, 7, 6), (4, 9), (5, 6), (4, 3, 4, 5)


class First(nn.Module):
    """The first of what a recurrent module or attention returns."""

    def __init__(self, made, times=1):
        super().__init__()
        self.it, self.times = made, times

    def forward(self, x):
        return self.it(*[x] * self.times)[0]


def recurrent(kind, **given):
    return First(kind(6, 4, batch_first=True, bidirectional=True, num_layers=2, **given))


BOTH = {"num_stacks": 2, "bidirectional": True}
KINDS = {
    "Linear": (layers.Dense("it", 5), nn.Linear(6, 5), (6,)),
    "square Linear": (layers.Dense("it", 6), nn.Linear(6, 6), (6,)),
    "Linear without bias": (layers.Dense("it", 6, use_bias=False), nn.Linear(6, 6, False), (6,)),
    "Linear as it is": (layers.Dense("it", 6, W_transpose=True), nn.Linear(6, 6), (6,)),
    "Linear of steps": (layers.TimeDistributed("each", layers.Dense("it", 6)), nn.Linear(6, 6),
                        STEPS),
    "Conv1d": (layers.Conv1D("it", 4, 3), nn.Conv1d(4, 4, 3, padding=1), SIGNAL),
    "Conv2d": (layers.Conv2D("it", 6, (3, 2), groups=2, pad=(1, 0)),
               nn.Conv2d(4, 6, (3, 2), groups=2, padding=(1, 0)), IMAGE),
    "Conv3d": (layers.Conv3D("it", 6, (3, 1, 2), pad=(1, 0, 0)),
               nn.Conv3d(4, 6, (3, 1, 2), padding=(1, 0, 0)), VOLUME),
    "ConvTranspose1d": (layers.Conv1DTranspose("it", 6, 3, 2, pad=1),
                        nn.ConvTranspose1d(4, 6, 3, 2, 1), SIGNAL),
    "ConvTranspose2d": (layers.Conv2DTranspose("it", 6, 3, stride=2, border_mode="valid"),
                        nn.ConvTranspose2d(4, 6, 3, stride=2), IMAGE),
    "ConvTranspose3d": (layers.Conv3DTranspose("it", 6, (3, 1, 2), border_mode="valid"),
                        nn.ConvTranspose3d(4, 6, (3, 1, 2)), VOLUME),
    "depthwise Conv1d": (layers.DepthwiseConv1D("it", depth_multiplier=2),
                         nn.Conv1d(4, 8, 3, padding=1, groups=4), SIGNAL),
    "depthwise Conv2d": (layers.DepthwiseConv2D("it", 3, depth_multiplier=2),
                         nn.Conv2d(4, 8, 3, padding=1, groups=4), IMAGE),
    "BatchNorm1d": (layers.BatchNormalization("it", momentum=0.1), nn.BatchNorm1d(4), SIGNAL),
    "BatchNorm2d": (layers.BatchNormalization("it", momentum=0.1), nn.BatchNorm2d(4), IMAGE),
    "LayerNorm": (layers.LayerNorm("it"), nn.LayerNorm(6), STEPS),
    "RMSNorm": (layers.RMSNorm("it", epsilon=1e-5), nn.RMSNorm(6, 1e-5), STEPS),
    "GroupNorm": (layers.GroupNorm("it", 2), nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm2d": (layers.InstanceNorm("it"), nn.InstanceNorm2d(4, affine=True), IMAGE),
    "PReLU": (layers.PReLU("it"), nn.PReLU(4), IMAGE),
    "LSTM": (layers.LSTM("it", 4, **BOTH), recurrent(nn.LSTM), STEPS),
    "GRU": (layers.GRU("it", 4, **BOTH), recurrent(nn.GRU), STEPS),
    "RNN": (layers.RNN("it", 4, "tanh", **BOTH), recurrent(nn.RNN), STEPS),
    "LSTM without bias": (layers.LSTM("it", 4, use_bias=False),
                          First(nn.LSTM(6, 4, batch_first=True, bias=False)), STEPS),
    "MultiheadAttention": (layers.MultiHeadAttention("it", 2),
                           First(nn.MultiheadAttention(6, 2, batch_first=True), 3), STEPS),
}  # fmt: skip


def saved(path):
    """As ``safetensors.torch.load_file`` gives it."""
    with open_state(path) as reader:
        return {name: torch.from_numpy(array) for name, array in reader}


def shaken(module):
    """The module with every array drawn anew, running state too."""
    with torch.no_grad():
        for array in module.state_dict().values():
            if array.is_floating_point():
                array.uniform_(0.1, 0.9)
    return module.eval()


def outputs(module, x):
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


@pytest.mark.parametrize("name", KINDS)
def test_every_layer_goes_there_and_back(name, tmp_path):
    layer, module, shape = KINDS[name]
    net = FeedForwardNet(inputs=[x := Input("x", shape)], outputs=[layer(x)], seed=0)
    shaken(module)
    torch.save(module.state_dict(), tmp_path / "m.pt")
    assert net.load(tmp_path / "m.pt").complete
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype("f4")
    want = outputs(module, x)
    np.testing.assert_allclose(net.predict(x), want, rtol=2e-5, atol=2e-5)

    at = "it" if isinstance(module, First) else ""
    net.save(tmp_path / "m.safetensors", layout="torch")
    found = saved(tmp_path / "m.safetensors")
    found = {(key if at else key.removeprefix("it.")): array for key, array in found.items()}
    with torch.no_grad():
        for array in module.state_dict().values():
            array.zero_()
    module.load_state_dict(found, strict=True)
    np.testing.assert_allclose(outputs(module, x), want, rtol=2e-5, atol=2e-5)


def test_embeddings_and_keys_of_other_sizes(tmp_path):
    net = FeedForwardNet([layers.Embedding("it", 9, 4, input_sample_shape=(5,))], seed=0)
    table = nn.Embedding(9, 4)
    torch.save(table.state_dict(), tmp_path / "m.pt")
    net.load(tmp_path / "m.pt")
    ids = np.arange(10).reshape(2, 5) % 9
    np.testing.assert_array_equal(net.predict(ids), outputs(table, ids))

    module = shaken(nn.MultiheadAttention(6, 2, kdim=4, vdim=3, batch_first=True))
    parts = [Input("q", (5, 6)), Input("v", (7, 3)), Input("k", (7, 4))]
    net = FeedForwardNet(inputs=parts, outputs=[layers.MultiHeadAttention("it", 2)(*parts)])
    torch.save(module.state_dict(), tmp_path / "m.pt")
    net.load(tmp_path / "m.pt")
    rng = np.random.default_rng(0)
    q, v, k = (rng.normal(size=(2, *each.shape)).astype("f4") for each in parts)
    with torch.no_grad():
        want = module(*map(torch.from_numpy, (q, k, v)))[0].numpy()
    np.testing.assert_allclose(net.predict({"q": q, "v": v, "k": k}), want, rtol=2e-5, atol=2e-5)


def encoder(names):
    """A TransformerEncoder of one layer, whose norms stand between its other layers."""
    attention, norm1, linear1, linear2, norm2 = names
    x = y = Input("x", (5, 6))
    y = layers.LayerNorm(norm1)(layers.Add("a1")(y, layers.MultiHeadAttention(attention, 2)(y)))
    z = layers.Activation("r")(layers.TimeDistributed("t1", layers.Dense(linear1, 8))(y))
    z = layers.TimeDistributed("t2", layers.Dense(linear2, 6))(z)
    y = layers.LayerNorm(norm2)(layers.Add("a2")(y, z))
    return FeedForwardNet(inputs=[x], outputs=[y], seed=0)


def test_a_transformer_is_found_by_its_names_and_not_by_guessing(tmp_path):
    module = shaken(nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), 1))
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype("f4")
    want = module(torch.from_numpy(x)).detach().numpy()
    wrapped = nn.DataParallel(module)
    torch.save(wrapped.state_dict(), tmp_path / "m.pt")

    theirs = ["self_attn", "norm1", "linear1", "linear2", "norm2"]
    net = encoder([f"layers.0.{name}" for name in theirs])
    net.load(tmp_path / "m.pt")
    np.testing.assert_allclose(net.predict(x), want, rtol=1e-5, atol=1e-5)

    net = encoder([f"block/{name}" for name in theirs])
    net.load(tmp_path / "m.pt", rename={"module.layers.0": "block"})
    np.testing.assert_allclose(net.predict(x), want, rtol=1e-5, atol=1e-5)
    net.save(tmp_path / "m.safetensors", layout="torch", rename={"block": "layers.0"})
    module.load_state_dict(saved(tmp_path / "m.safetensors"), strict=True)

    other = encoder(["attn", "n1", "up", "down", "n2"])
    before = [value.copy() for value in other.param_values()]
    with pytest.raises(ArgumentError, match=r"'n1'.*norm1'.*norm2'.*rename="):
        other.load(tmp_path / "m.pt")
    for old, value in zip(before, other.param_values(), strict=True):
        np.testing.assert_array_equal(old, value)
    norms = {"module.layers.0.norm1": "n1", "module.layers.0.norm2": "n2"}
    other.load(tmp_path / "m.pt", rename=norms)
    np.testing.assert_allclose(other.predict(x), want, rtol=1e-5, atol=1e-5)


def mlp():
    return FeedForwardNet([layers.Dense("a", 4, input_sample_shape=(4,)), layers.Dense("b", 4)])


def test_trainings(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    # As torch.optim writes it, which takes five seconds to import.
    slots = {0: {"step": torch.tensor(1.0), "exp_avg": torch.ones(4, 4)}}
    path, net = tmp_path / "m.pt", mlp()
    whole = {
        "model": module.state_dict(), "optimizer": {"state": slots}, "epoch": 3,
        "rng": torch.get_rng_state(), "shape": torch.Size([2]), "device": torch.device("cpu"),
        "dtype": torch.float16, "loss": np.float64(0.5), "best": None,
    }  # fmt: skip
    torch.save(whole, path)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    net.load(path, by_order=True)
    np.testing.assert_allclose(net.predict(x), outputs(module, x), rtol=1e-5, atol=1e-6)

    averaged = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    torch.save({**whole, "ema": {"shadow": averaged.state_dict()}}, path)
    with pytest.raises(ArgumentError, match=r"one state dict.*'model'.*'ema/shadow'.*key='model'"):
        net.load(path)
    with pytest.raises(ArgumentError, match="'emma'"):
        net.load(path, key="emma")
    net.load(path, key="ema/shadow", by_order=True)
    np.testing.assert_allclose(net.predict(x), outputs(averaged, x), rtol=1e-5, atol=1e-6)
    net.save(tmp_path / "n.npz")
    with pytest.raises(ArgumentError, match="argument key"):
        net.load(tmp_path / "n.npz", key="model")


def test_tied_half_and_bfloat16(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    net, path = mlp(), tmp_path / "m.pt"
    for dtype in (torch.float16, torch.bfloat16):
        torch.save(module.to(dtype).state_dict(), path)
        net.load(path, cast=True, by_order=True)
        want = module[1].weight.detach().float().numpy().T
        np.testing.assert_array_equal(net["b"].params["weight"].value, want)


def test_what_does_not_fit(tmp_path):
    net, path = mlp(), tmp_path / "m.pt"
    torch.save(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).state_dict(), path)
    with pytest.raises(StateMismatchError, match=r"b/weight of \(3, 4\), not \(4, 4\)"):
        net.load(path, by_order=True)
    report = net.load(path, strict=False, by_order=True)
    assert [found.name for found in report.matched] == ["a/weight", "a/bias"]
    for rename in ({"0": "c"}, {"9": "a"}, {"0.weight": "a/wait"}):
        with pytest.raises(UnknownNameError):
            net.load(path, rename=rename)
    scaled = FeedForwardNet([layers.Scale("s", input_sample_shape=(4,))])
    for made, name, more, words in (
        (net, "m.bin", {"layout": "torch"}, "safetensors"),
        (net, "m.npz", {"rename": {"a": "0"}}, "layout='torch'"),
        (net, "m.pt", {}, "layout='torch'"),
        (scaled, "m.npz", {"layout": "torch"}, "a form in PyTorch"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=words):
            made.save(tmp_path / name, **more)
    torch.save(nn.LSTM(4, 4, proj_size=2).state_dict(), path)
    with pytest.raises(SingaNetError, match="no l/l0/forward/weight_x"):
        FeedForwardNet([layers.LSTM("l", 4, input_sample_shape=(5, 4))]).load(path)
