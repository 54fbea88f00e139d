"""Every row of the guide from PyTorch, run beside the installed PyTorch."""

import copy
import re

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input, layers, loss, optimizer
from singanet import functional as F
from singanet.errors import SingaNetError
from singanet.optimizer import schedules
from singanet.types import RowSparse
from tests.migration.rows import PAGES, Guide, parameters

torch = pytest.importorskip("torch", reason="compares with PyTorch: pip install '.[peers]'")
from torch import nn  # noqa: E402

NN, OPTIM = "torch.nn", "torch.optim"
RATES, INIT = "torch.optim.lr_scheduler", "torch.nn.init"


def signature(kind):
    """PyTorch's recurrent modules hand their arguments on to their base."""
    if kind in (nn.RNN, nn.LSTM, nn.GRU):
        base = parameters(nn.RNNBase)
        own = {"nonlinearity": "tanh"} if kind is nn.RNN else {}
        return {name: default for name, default in base.items() if name != "mode"} | own
    return parameters(kind)


def room(heading, found):
    functions = heading == INIT
    return {
        n: f for n, f in vars(found).items() if functions and re.fullmatch(r"[a-z]\w*[a-z]_", n)
    }


GUIDE = Guide("pytorch.md", torch, signature, room)
row = GUIDE.case
BOTH = [True, False]


def name_of(pair):
    return pair.theirs_kind.__name__


def told(pair, words, ours=0.0, theirs=1.0):
    """The row, or that of all, has the ``words``, and ours and theirs differ as these say."""
    module = pair.theirs_kind.__module__
    heading = max((h for h in GUIDE.rows if module.startswith(h)), key=len)
    common = [each.line for each in GUIDE.rows[heading] if not each.theirs]
    text = "\n".join([GUIDE.row(heading, name_of(pair)).line, *common])
    assert words in text, f"the row has to say: {words}\n{text}"
    alike = np.shape(ours) == np.shape(theirs) and np.allclose(ours, theirs, 1e-4, 1e-4)
    assert not alike, f"no longer so, take it out of the row: {words}"


def close(ours, theirs, what="", rtol=1e-9, atol=1e-10):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape, f"{what}: {ours.shape} here, {theirs.shape} there"
    atol *= max(1.0, float(np.abs(theirs).max(initial=0.0)))
    np.testing.assert_allclose(ours, theirs, rtol, atol, err_msg=what)


def live(array, grad=False):
    """A tensor of float64, or of whole numbers."""
    array = np.array(array)
    array = array.astype(float) if array.dtype.kind == "f" else array
    return torch.tensor(array, requires_grad=grad and array.dtype.kind == "f")


def weights(module):
    return {name: weight.detach().numpy() for name, weight in module.named_parameters()}


def arrays(net):
    """What is trained, by name; of one layer by what stands behind the layer's."""
    found = {p.name: p.value for p in net.params() if not p.is_state}
    if len({name.partition("/")[0] for name in found}) > 1:
        return found
    return {name.partition("/")[2]: value for name, value in found.items()}


def filled(net, values):
    """``net`` in float64 with these values."""
    net.as_type("float64")
    for name, array in arrays(net).items():
        assert array.shape == values[name].shape, name
        array[...] = values[name]
    return net


def built(ours, xs, values):
    """A net of the layer, and what it is fed."""
    kinds = ["int64" if x.dtype.kind == "i" else None for x in xs]
    inputs = [Input(f"x{k}", x.shape[1:], kinds[k]) for k, x in enumerate(xs)]
    made = ours(*inputs)
    made = list(made) if isinstance(made, tuple) else made
    net = filled(FeedForwardNet(inputs=inputs, outputs=made, seed=0), values)
    return net, {f"x{k}": x for k, x in enumerate(xs)}


def same(ours, module, *xs, carry=dict, given=None, rtol=1e-9):
    """Outputs, gradients of inputs and parameters, and both after three steps of SGD.

    ``carry`` makes arrays by our names of those by theirs, ``given`` the inputs of theirs of ours.
    """
    rng = np.random.default_rng(0)
    module.double()
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(live(rng.normal(size=weight.shape)))
    xs = [x.astype(float if x.dtype.kind == "f" else "int64") for x in xs]
    net, feed = built(ours, xs, carry(weights(module)))
    floats, last = [n for n, x in feed.items() if x.dtype.kind == "f"], net.layers[-1].name
    sgd = optimizer.SGD(lr=0.1)
    for _ in range(3):
        tensors = [live(x, True) for x in xs]
        y = module(*(given(*tensors) if given else tensors))
        y = y[0] if isinstance(y, tuple) else y
        close(net.forward(True, feed, [*floats, last])[last], y.detach(), "output")
        dy = rng.normal(size=tuple(y.shape))
        module.zero_grad()
        y.backward(live(dy))
        there = {
            name: (torch.zeros_like(w) if w.grad is None else w.grad.to_dense()).numpy()
            for name, w in module.named_parameters()
        }
        wanted = carry(there)
        for item in net.backward(dy, floats):
            for name, grad in zip(item.names, item.grads, strict=True):
                there_too = wanted[name if name in wanted else name.partition("/")[2]]
                if isinstance(grad, RowSparse):
                    rows, grad = grad, np.zeros_like(there_too)
                    grad[rows.indices] = rows.rows
                close(grad, there_too, f"gradient of {name}")
            found = item.output_grads
            sgd.update(item.names, item.values, item.grads)
        for name, tensor in zip(feed, tensors, strict=True):
            if name in floats:
                close(found[name], tensor.grad, f"gradient of {name}", rtol)
        with torch.no_grad():
            for name, weight in module.named_parameters():
                weight -= 0.1 * torch.tensor(there[name])
        values = carry(weights(module))
        for name, array in arrays(net).items():
            close(array, values[name], f"{name} after a step")
    return net


def outputs(ours, module, x, train=False):
    """What comes out of ours and of theirs, for differences that are told."""
    net, feed = built(ours, [x.astype(float)], {})
    module.double().train(train)
    return net.forward(train, feed), module(live(x)).detach()


def by_axes(*kinds):
    return [f"{kind}{axes}d" for kind in kinds for axes in (1, 2, 3)]


def transposed(given):
    return {name: value.T for name, value in given.items()}


def filters(given):
    return {n: v.reshape(len(v), -1) if v.ndim > 1 else v for n, v in given.items()}


def gamma_beta(given):
    names = {"weight": "gamma", "bias": "beta"}
    return {names[name]: value for name, value in given.items()}


# --- layers ---------------------------------------------------------------------------------------

EXTENTS = {"1d": (8,), "2d": (7, 6), "3d": (5, 5, 6)}


def image(pair, batch=2):
    return pair.normal(batch, 4, *EXTENTS[name_of(pair)[-2:]])


def plain(*theirs, shape=None, needs=None, both=None, carry=dict, **settings):
    """Layers that need nothing but their arguments; without a ``shape`` for images."""

    @row(NN, *theirs, **settings)
    def check(pair):
        x = pair.normal(*shape) if shape else image(pair)
        also = both or {}
        same(pair.ours(**also), pair.theirs(**(needs or {}), **also), x, carry=carry)


EPS, SLID = {"eps": [1e-5, 1e-2]}, {"dilation": [1, 2], "groups": [1, 2], "bias": BOTH}
POOLED = {"kernel_size": [2, 3], "stride": [1, 2, 3], "padding": [0, 1], "ceil_mode": BOTH}
WITHIN = {"padding_mode": ["zeros", "reflect", "replicate", "circular"], "padding": [0, 1]}
SIZES = {"out_channels": [4, 6], "kernel_size": [2, 3], "stride": [1, 2]}
SHIFTED = {"out_channels": [4], "kernel_size": [3], "padding": [0, 1], "output_padding": [0, 1]}
FOUR = {"in_channels": 4}
# fmt: off
plain("AdaptiveAvgPool1d", "AdaptiveMaxPool1d", output_size=[1, 3])
plain("AdaptiveAvgPool2d", "AdaptiveMaxPool2d", output_size=[1, 3, (2, 3), (None, 2)])
plain("AdaptiveAvgPool3d", "AdaptiveMaxPool3d", output_size=[2, (2, 3, 1)])
plain(*by_axes("AvgPool"), count_include_pad=BOTH, **POOLED)
plain(*by_axes("MaxPool"), dilation=[1, 2], **POOLED)
plain(*by_axes("Conv"), needs=FOUR, carry=filters, **SIZES, **SLID, **WITHIN)
plain(*by_axes("ConvTranspose"), needs=FOUR, carry=filters, padding=[0, 1], output_padding=[0], **SIZES, **SLID)  # noqa: E501
plain(*by_axes("ConvTranspose"), needs=FOUR, both={"stride": 2}, carry=filters, **SHIFTED)
plain("Conv2d", needs=FOUR, carry=filters, out_channels=[4], kernel_size=[(2, 3), (3, 1)], stride=[(1, 2)], padding=[(1, 0)], dilation=[(2, 1)])  # noqa: E501
plain("ConvTranspose2d", needs=FOUR, carry=filters, out_channels=[4], kernel_size=[(2, 3), (3, 1)], stride=[(1, 2)], padding=[(1, 0)], dilation=[(2, 1)], output_padding=[0])  # noqa: E501
UNEVEN = {"kernel_size": [(2, 3), (3, 2)], "stride": [(1, 2)], "padding": [(1, 0)]}
plain("MaxPool2d", ceil_mode=BOTH, **UNEVEN)
plain("AvgPool2d", count_include_pad=BOTH, ceil_mode=BOTH, **UNEVEN)
plain("BatchNorm1d", shape=(4, 3), needs={"num_features": 3}, carry=gamma_beta, momentum=[0.1, 0.3], **EPS)  # noqa: E501
plain("GroupNorm", shape=(3, 4, 5), needs={"num_channels": 4}, carry=gamma_beta, num_groups=[1, 2, 4], affine=BOTH, bias=BOTH, **EPS)  # noqa: E501
plain("Linear", shape=(3, 2, 5), needs={"in_features": 5}, carry=transposed, out_features=[1, 4], bias=BOTH)  # noqa: E501
plain("PReLU", shape=(3, 4, 5), carry=lambda given: {"a": given["weight"]}, num_parameters=[1, 4], values={"num_parameters": lambda n: n == 1})  # noqa: E501
plain("GELU", shape=(4, 5), approximate=["none", "tanh"], values={"approximate": {"none": "gelu", "tanh": "gelu_tanh"}.get})  # noqa: E501
plain("Hardtanh", shape=(4, 5), min_val=[-1.0, -0.5], max_val=[1.0, 0.2])
plain("Softmax2d", shape=(3, 4, 6, 5))
plain("Identity", shape=(3, 4))
# fmt: on
FUNCTIONS = ["Hardsigmoid", "Hardswish", "Mish", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid"]
FUNCTIONS += ["Softsign", "Tanh"]
CALLED = {"Hardsigmoid": "hard_sigmoid", "Hardswish": "hard_swish", "LeakyReLU": "leaky_relu"}
SLOPE, USUAL = "negative_slope", {"alpha": lambda a: None if a == 1 else a}


@row(NN, *FUNCTIONS)
@row(NN, "CELU", "ELU", alpha=[0.5, 1.0, 2.0], values=USUAL)
@row(NN, "LeakyReLU", negative_slope=[0.2], values={SLOPE: lambda a: None if a == 0.01 else a})
def activation(pair):
    mode = CALLED.get(name_of(pair), name_of(pair).lower())
    told(pair, f'"{mode}"')
    # PyTorch's sixth in the gradient of the first is a float32.
    rtol = 1e-7 if mode == "hard_sigmoid" else 1e-9
    same(pair.ours(mode=mode), pair.theirs(), 3 * pair.normal(4, 5), rtol=rtol)


@row(NN, "Softplus")
def softplus(pair):
    x, ours = pair.normal(4, 5), pair.ours(mode="softplus")
    same(ours, pair.theirs(), x)
    b = pair.pick(0.5, 3.0)
    before, after = layers.Scale("a", b, use_bias=False), layers.Scale("b", 1 / b, use_bias=False)
    again = pair.ours(mode="softplus")
    same(lambda x: after(again(before(x))), pair.theirs(beta=b, threshold=100), x)
    told(pair, "others by `Scale` around it")
    told(pair, "exact everywhere", *outputs(ours, pair.theirs(threshold=0.0), x))


@row(NN, "Dropout", "AlphaDropout", *by_axes("Dropout"), p=[0.1, 0.5])
def dropout(pair):
    shape = (6, 50, *EXTENTS.get(name_of(pair)[-2:], ()))
    x = np.ones(shape)
    close(*outputs(pair.ours(), pair.theirs(), x), "evaluated")
    mine, theirs = outputs(pair.ours(), pair.theirs(), x, train=True)
    # As many values, and whole channels of them, drawn by other generators.
    low, high = np.unique(theirs)
    close(np.unique(mine), [low, high])
    assert abs(np.isclose(mine, low).mean() - pair.of("p")) < 0.15
    each = mine.reshape(*shape[:2], -1)
    assert (each == each[:, :, :1]).all()


@row(NN, *by_axes("BatchNorm"), "SyncBatchNorm", momentum=[0.1, 0.3],
     apart=["affine", "bias"], **EPS)  # fmt: skip
def batch_norm(pair):
    affine, kind = pair.pick(*BOTH), name_of(pair)
    x = pair.normal(3, 4, 6) if kind == "SyncBatchNorm" else image(pair, batch=3)
    module = pair.theirs(num_features=4, affine=affine)
    if kind == "SyncBatchNorm":  # which trains on GPUs alone
        alone = nn.BatchNorm1d(4, pair.of("eps"), pair.of("momentum"), affine)
        assert repr(module).partition("(")[2] == repr(alone).partition("(")[2]
        module = alone
    net = same(pair.ours(center=affine, scale=affine), module, x, carry=gamma_beta)
    told(pair, "`track_running_stats`: always")
    told(pair, "the mean of all batches, None there, is missing")
    with pytest.raises(SingaNetError):
        pair.ours(momentum=None)
    held = {p.name.partition("/")[2]: p.value for p in net.params() if p.is_state}
    close(held["mean"], module.running_mean)
    close(held["var"], module.running_var)
    close(net.forward(False, {"x0": x.astype(float)}), module.eval()(live(x)).detach())


@row(NN, *by_axes("InstanceNorm"), affine=BOTH, bias=BOTH, **EPS)
def instance_norm(pair):
    x = image(pair)
    same(pair.ours(), pair.theirs(num_features=4), x, carry=gamma_beta)
    kept = pair.theirs(num_features=4, affine=False, track_running_stats=True)
    kept.double()(live(x))
    told(pair, "always by the sample", *outputs(pair.ours(affine=False), kept, x))


@row(NN, "LayerNorm", "RMSNorm", elementwise_affine=BOTH, bias=BOTH,
     apart=["normalized_shape"], **EPS)  # fmt: skip
def layer_norm(pair):
    axes, x = pair.pick(1, 2), pair.normal(3, 4, 5)
    ours = pair.ours(axis=-axes, eps=pair.of("eps") or np.finfo(float).eps)
    same(ours, pair.theirs(normalized_shape=x.shape[-axes:]), x, carry=gamma_beta)


@row(NN, "PReLU")
def start_of_prelu(pair):
    for more, there in [({}, {}), ({"a_specs": {"init": "constant", "value": 0.5}}, {"init": 0.5})]:
        net = FeedForwardNet([pair.ours(input_shape=(4, 5), **more)], seed=0)
        close(arrays(net)["a"][:1], pair.theirs(**there).weight.detach())


@row(NN, "AvgPool2d", "AvgPool3d")
def divisor(pair):
    told(pair, "`Scale` behind it")
    ours, larger = pair.ours(kernel_size=2, padding=0), layers.Scale("larger", 2.0, use_bias=False)
    theirs = pair.theirs(kernel_size=2, divisor_override=2 ** (int(name_of(pair)[-2]) - 1))
    same(lambda x: larger(ours(x)), theirs, image(pair))


@row(NN, "Softmax", "LogSoftmax", "GLU", apart=["dim"])
def along(pair):
    dim = pair.pick(1, 2, -1)
    same(pair.ours(axis=dim), pair.theirs(dim=dim), pair.normal(3, 4, 6))


@row(NN, "Flatten", apart=["start_dim"])
def flatten(pair):
    x = pair.normal(3, 2, 4, 3)
    same(pair.ours(), pair.theirs(), x)
    told(pair, "(3·2, 12) here", *outputs(pair.ours(axis=2), pair.theirs(start_dim=2), x))
    same(layers.Reshape("r", (2, 12)), pair.theirs(start_dim=2), x)
    same(layers.Reshape("r", (8, 3)), pair.theirs(end_dim=2), x)


@row(NN, "Unflatten", apart=["unflattened_size"])
def unflatten(pair):
    theirs = pair.theirs(dim=1, unflattened_size=(2, 2))
    same(pair.ours(shape=(2, 2, 5)), theirs, pair.normal(3, 4, 5))


@row(NN, *by_axes("Conv"), out_channels=[4], kernel_size=[1, 2, 3], dilation=[1, 2],
     apart=["padding"])  # fmt: skip
def convolution_by_words(pair):
    padding = pair.pick("same", "valid")
    theirs = pair.theirs(in_channels=4, padding=padding)
    same(pair.ours(padding=padding), theirs, image(pair), carry=filters)


PADS = {"Constant": "constant", "Zero": "constant", "Circular": "circular"}
PADS |= {"Reflection": "reflect", "Replication": "replicate"}


@row(NN, *by_axes("CircularPad", "ReflectionPad", "ReplicationPad", "ZeroPad"), apart=["padding"])
@row(NN, *by_axes("ConstantPad"), value=[0.0, 2.0], apart=["padding"])
def pad(pair):
    kind, axes = re.fullmatch(r"(\w+)Pad(\d)d", name_of(pair)).groups()
    pads = pair.draw.integers(0, 3, (int(axes), 2)).tolist()
    if kind != "Constant":
        told(pair, f'"{PADS[kind]}"')
    told(pair, "an axis at a time, the first axis first")
    theirs = pair.theirs(padding=tuple(n for two in reversed(pads) for n in two))
    same(pair.ours(pad=pads, mode=PADS[kind]), theirs, image(pair))


@row(NN, "LocalResponseNorm", size=[3, 5], beta=[0.5, 0.75], k=[1.0, 2.0], apart=["alpha"])
def lrn(pair):
    alpha, x = pair.pick(1e-4, 0.3), pair.normal(2, 6, 4, 3)
    same(pair.ours(alpha=alpha / pair.of("size")), pair.theirs(alpha=alpha), x)
    words = "theirs over the size"
    told(pair, words, *outputs(pair.ours(alpha=0.5), pair.theirs(alpha=0.5), x))
    told(pair, "even sizes: refused")
    with pytest.raises(SingaNetError):
        pair.ours(size=4)


@row(NN, "Embedding", sparse=BOTH, padding_idx=[None, 0, 3], num_embeddings=[7], embedding_dim=[4],
     apart=["_weight"])  # fmt: skip
def embedding(pair):
    same(pair.ours(), pair.theirs(), pair.draw.integers(0, 7, (3, 5)))


def gates(given):
    """The parameters of a recurrent module by our names."""
    found = {}
    for name, value in given.items():
        kind, way, stack, back = re.fullmatch(r"(\w+)_(i|h)h_l(\d)(_reverse)?", name).groups()
        direction, way = "backward" if back else "forward", {"i": "x"}.get(way, way)
        found[f"l{stack}/{direction}/{kind}_{way}"] = value.T
    return found


STACKED = {"hidden_size": [4], "num_layers": [1, 2], "bidirectional": BOTH, "bias": BOTH}


@row(NN, "LSTM", "GRU", apart=["dropout"], **STACKED)
@row(NN, "RNN", apart=["dropout"], **STACKED)
def recurrent(pair):
    x, module = pair.normal(3, 5, 6).astype(float), pair.theirs(input_size=6, batch_first=True)
    same(pair.ours(), module, x, carry=gates)
    net, feed = built(pair.ours(return_state=True), [x], gates(weights(module)))
    finals = module(live(x))[1]
    mine = net.forward(False, feed)
    told(pair, "by `return_state=True`, (N, stacks, H) each")
    pairs = finals if name_of(pair) == "LSTM" else [finals]
    for ours, theirs in zip(mine[1:], pairs, strict=True):
        close(ours, theirs.detach().transpose(0, 1))
    told(pair, "initial states: inputs behind the sequences")
    starts = [pair.normal(*state.shape).astype(float) for state in mine[1:]]
    net, feed = built(pair.ours(), [x, *starts], gates(weights(module)))
    there = [live(state).transpose(0, 1).contiguous() for state in starts]
    y = module(live(x), tuple(there) if name_of(pair) == "LSTM" else there[0])[0]
    close(net.forward(False, feed), y.detach())
    told(pair, "pack_padded_sequence: lengths (N,) as the last input")
    lengths, packing = np.array([5, 2, 3]), nn.utils.rnn
    net, feed = built(pair.ours(), [x, lengths], gates(weights(module)))
    packed = packing.pack_padded_sequence(live(x), lengths, batch_first=True, enforce_sorted=False)
    y = packing.pad_packed_sequence(module(packed)[0], batch_first=True)[0]
    close(net.forward(False, feed), y.detach())


@row(NN, "RNN", **STACKED)
def relu_recurrent(pair):
    told(pair, 'for relu the class `RNN` with rnn_mode "relu"')
    theirs = pair.theirs(input_size=6, batch_first=True, nonlinearity="relu")
    ours = layers.RNN("layer", **pair.told, rnn_mode="relu")
    same(ours, theirs, pair.normal(3, 5, 6), carry=gates)


def projections(given):
    found = {}
    for kind in {"weight", "bias"} & {name.rpartition("_")[2] for name in given}:
        parts = np.split(given[f"in_proj_{kind}"], 3)
        found |= {f"{p}_{kind}": parts[k].T for k, p in enumerate(("query", "key", "value"))}
        found[f"output_{kind}"] = given[f"out_proj.{kind}"].T
    return found


@row(NN, "MultiheadAttention", embed_dim=[8], num_heads=[1, 2, 4], bias=BOTH, apart=["dropout"])
def attention(pair):
    module, x = pair.theirs(batch_first=True), pair.normal(3, 5, 8).astype(float)
    same(pair.ours(), module, x, carry=projections, given=lambda x: (x, x, x))
    told(pair, "queries, values, keys")
    xs = x, pair.normal(3, 6, 8), pair.normal(3, 6, 8)
    same(pair.ours(), module, *xs, carry=projections, given=lambda q, v, k: (q, k, v))
    told(pair, "masks: 0 where a query does not see a key, theirs true there")
    seen, values = np.tril(np.ones((5, 5))), projections(weights(module))
    net, feed = built(pair.ours(mask="boolean"), [x, np.broadcast_to(seen, (3, 5, 5))], values)
    theirs = module(*[live(x)] * 3, attn_mask=live(seen == 0))[0]
    close(net.forward(False, feed), theirs.detach())
    told(pair, "is_causal: `causal=True`")
    net, feed = built(pair.ours(causal=True), [x], values)
    close(net.forward(False, feed), theirs.detach())
    told(pair, "weights: by `return_weights=True`")
    net, feed = built(pair.ours(return_weights=True), [x], values)
    close(
        net.forward(False, feed)[1], module(*[live(x)] * 3, average_attn_weights=False)[1].detach()
    )


@row(NN, "Upsample", mode=["nearest", "bilinear"], apart=["scale_factor"])
@row(NN, "UpsamplingNearest2d", apart=["scale_factor"])
def upsample(pair):
    scale, x = pair.pick(2, 3, (2, 3)), pair.normal(2, 3, 4, 5)
    same(pair.ours(size=scale), pair.theirs(scale_factor=scale), x)
    corners = nn.Upsample(None, scale, "bilinear", align_corners=True)
    ours = pair.ours_kind("u", scale, mode="bilinear")
    told(pair, "corners are not aligned", *outputs(ours, corners, x))
    told(pair, '"linear", "bicubic" and "trilinear" are missing')
    with pytest.raises(SingaNetError):
        pair.ours(mode="bicubic")


class Square(layers.Layer):
    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * x

    def backward(self, ctx, dy):
        return 2 * dy * ctx.saved["x"], {}


class Calls(nn.Module):
    """A module of ``parts``, which ``run(module, x)`` calls."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


@row(NN, "Module")
def module(pair):
    same(Square("square"), Calls(lambda m, x: x * x), pair.normal(3, 4))


@row(NN, "ModuleList", "Sequential")
def sequential(pair):
    net, module, x, _ = mlp()
    close(net.forward(False, x), module(live(x)).detach())
    assert [layer.name for layer in net.layers] == [name for name, _ in module.named_children()]


# --- losses ---------------------------------------------------------------------------------------


def same_loss(pair, x, y, given=lambda x, y: (x, y), here=None, there=None, sums=True):
    """The mean, and the gradients of mean and sum.

    ``given`` makes of ours what theirs takes; ``here`` and ``there`` are further arguments.
    """
    for reduction in ["mean", "sum"] if sums else ["mean"]:
        mine, tensor = pair.ours(reduction=reduction, **(here or {})), live(x, True)
        value = pair.theirs(reduction=reduction, **(there or {}))(*given(tensor, live(y)))
        value.backward()
        losses = mine.forward(True, x.astype(float), y)
        if reduction == "mean":
            mean = value.item()
            close(losses.mean(), mean, "mean")
        close(mine.backward(), tensor.grad, f"gradient of the {reduction}")
    if sums and losses.any():
        words = '"sum" is of the gradient alone, the value told stays the mean'
        told(pair, words, losses.mean(), value.item())
    return mean


def reduced(*theirs, **settings):
    apart = ["reduction", *settings.pop("apart", ())]
    return row(NN, *theirs, apart=apart, **settings)


@reduced("L1Loss", "MSELoss")
@reduced("HuberLoss", delta=[0.3, 1.0, 2.0])
@reduced("SmoothL1Loss", beta=[0.3, 1.0, 2.0])
def regression_loss(pair):
    x, y = pair.normal(4, 3, 2).astype(float), pair.normal(4, 3, 2).astype(float)
    same_loss(pair, x, y)
    told(pair, '"none" is what forward gives, a number a sample')
    each = pair.theirs(reduction="none")(live(x), live(y))
    close(pair.ours().forward(False, x, y), each.mean((1, 2)))


def weighed(pair, name="class_weight", theirs="weight", classes=3):
    given = pair.draw.uniform(0.2, 2.0, classes)
    return {"here": {name: given}, "there": {theirs: live(given)}}


@reduced("BCELoss", "BCEWithLogitsLoss", apart=["weight", "pos_weight"])
def binary_loss(pair):
    x, y = pair.normal(4, 3).astype(float), pair.draw.uniform(size=(4, 3))
    if name_of(pair) == "BCELoss":
        x, sure, right = 1 / (1 + np.exp(-x)), np.zeros((1, 1), "f"), np.ones((1, 1), "f")
        wrong = pair.ours().forward(False, sure, right).item()
        there = pair.theirs()(torch.tensor(sure), torch.tensor(right)).item()
        told(pair, "end at −87 in float32, there at −100", wrong, there)
        close([wrong, there], [87.3, 100.0], rtol=1e-2)
    else:
        same_loss(pair, x, y, **weighed(pair, "pos_weight", "pos_weight"))
    same_loss(pair, x, y)
    same_loss(pair, x, y, **weighed(pair))


@reduced("CrossEntropyLoss", ignore_index=[2], label_smoothing=[0.0, 0.1], apart=["weight"])
@reduced("NLLLoss", ignore_index=[2], apart=["weight"])
def cross_entropy(pair):
    shape, logs = pair.pick((5,), (5, 3)), name_of(pair) == "NLLLoss"
    labels, soft = pair.draw.integers(0, 4, shape), pair.draw.dirichlet(np.ones(4), shape)
    labels.flat[0] = pair.of("ignore_index")
    labels.flat[1:3] = 3, 1
    x = pair.draw.dirichlet(np.ones(4), shape) if logs else pair.normal(*shape, 4)

    def moved(x, y):
        x = x.log() if logs else x
        return x.movedim(-1, 1), y.movedim(-1, 1) if y.ndim > len(shape) else y

    told(pair, "axis of the classes: the last, there axis 1")
    if logs:
        told(pair, "outputs: probabilities, not their logarithms")
    same_loss(pair, x, labels, moved)
    if not logs and pair.of("ignore_index") == -100:  # any other one is refused there
        same_loss(pair, x, soft, moved)
    more = weighed(pair, classes=4)
    with pytest.raises(AssertionError, match="mean"):
        same_loss(pair, x, labels, moved, sums=False, **more)
    told(pair, "the mean divides by positions")
    tensor, mine = live(x, True), pair.ours(reduction="sum", **more["here"])
    pair.theirs(reduction="sum", **more["there"])(*moved(tensor, live(labels))).backward()
    mine.forward(True, x.astype(float), labels)
    close(mine.backward(), tensor.grad, "gradient of a weighed sum", 1e-10)


@reduced("CTCLoss", blank=[0, 3], zero_infinity=BOTH)
def ctc(pair):
    lengths, y = [3, 1, 2], np.full((3, 3), -1)
    for k, n in enumerate(lengths):
        y[k, :n] = pair.draw.choice([k for k in range(5) if k != pair.of("blank")], n)

    def given(x, y):
        logs = x.transpose(0, 1).log_softmax(2)
        return logs, y.clamp(min=0), torch.full((3,), 8), torch.tensor(lengths)

    same_loss(pair, pair.normal(3, 8, 5), y, given)
    told(pair, "outputs: scores (N, T, C)")
    told(pair, "targets are padded with −1")


@reduced("KLDivLoss")
def kl_divergence(pair):
    x, y = pair.normal(4, 3), pair.draw.dirichlet(np.ones(3), 4)
    tensor, ours = live(x, True), pair.ours()
    logs = tensor.log_softmax(1)
    there = pair.theirs(reduction="batchmean")(logs, live(y))
    there.backward(retain_graph=True)
    found = ours.forward(True, x.astype(float), y).mean()
    close(found, there.item())
    close(ours.backward(), tensor.grad, rtol=1e-10)
    mean = pair.theirs()(logs, live(y)).item()
    told(pair, 'the mean: over rows, "batchmean" there', found, mean)
    told(pair, "targets are probabilities, outputs scores")


@reduced("PoissonNLLLoss")
def poisson(pair):
    x, y = pair.normal(4, 3), pair.draw.poisson(2.0, (4, 3)).astype(float)
    mean = same_loss(pair, x, y)
    rates = {"there": {"log_input": False, "eps": 0.0}}
    same_loss(pair, x, y, lambda x, y: (x.exp(), y), **rates)
    full = pair.theirs(full=True)(live(x), live(y)).item()
    told(pair, "`full`, `eps`: missing, a constant", mean, full)


@reduced("GaussianNLLLoss")
def gaussian(pair):
    x, y = pair.normal(4, 6), pair.normal(4, 3).astype(float)
    told(pair, "the means and the logarithms of variances, (B, 2 D)")

    def given(x, y):
        return x[:, :3], y, x[:, 3:].exp()

    mean = same_loss(pair, x, y, given, sums=False)
    full = pair.theirs(full=True)(*given(live(x), live(y))).item()
    told(pair, "`full`: missing, a constant", mean, full)
    close(full - mean, 0.5 * np.log(2 * np.pi))


@reduced("TripletMarginLoss", margin=[0.5, 1.0, 3.0])
def triplet(pair):
    same_loss(pair, pair.normal(4, 3, 5), np.ones(4, int), lambda x, _: tuple(x.unbind(1)))
    told(pair, "outputs: one array (B, 3, D); targets: 1")


@reduced("MarginRankingLoss", margin=[0.0, 0.5, 2.0])
def ranking(pair):
    x, y = pair.normal(4, 2), 2 * pair.draw.integers(0, 2, 4) - 1
    same_loss(pair, x, y, lambda x, y: (*x.unbind(1), y))
    told(pair, "outputs: one array (B, 2); targets: 1 and -1")


# --- rules ----------------------------------------------------------------------------------------


def stepped(ours, theirs, shape=(5, 4), steps=12, sparse=False, rate=None):
    """A parameter after the same gradients, of magnitudes from 0.001 to 10, here and there."""
    rng = np.random.default_rng(0)
    value = rng.normal(size=shape)
    weight = nn.Parameter(live(value))
    peer = theirs([weight])
    falling = torch.optim.lr_scheduler.StepLR(peer, 4) if rate else None
    if rate:
        ours.lr = schedules.Step(rate, 4)
    for _ in range(steps):
        grad = rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1)
        weight.grad = live(grad).to_sparse(1) if sparse else live(grad)
        peer.step()
        if falling:
            falling.step()
        ours.update(["a/weight"], [value], [grad])
    return value, weight.detach().numpy()


PLAIN = {"lr": [0.1, 0.003], "weight_decay": [0, 0.1]}
COMMON = {**PLAIN, "eps": [1e-8, 1e-2]}
BETAS = {"betas": [(0.9, 0.999), (0.5, 0.9)]}
ADAMS = {**COMMON, **BETAS}
AFTER = "PyTorch's ε: `epsilon_after_correction=True`"


def same_rule(pair, here=None, there=None, **how):
    """At a constant rate, and at one that falls."""
    # PyTorch multiplies the momenta of NAdam in float32.
    near = (1e-8, 1e-8) if name_of(pair) == "NAdam" else (1e-10, 1e-12)
    for rate in (None, pair.of("lr")):
        ours = pair.ours(**(here or {}))
        found = stepped(ours, lambda p: pair.theirs(params=p, **(there or {})), rate=rate, **how)
        if rate and pair.of("momentum"):
            words = "after a change of the rate: the momentum has the rates of its steps"
            told(pair, words, *(each / rate for each in found))
        else:
            close(*found, "a falling rate" if rate else "steps", *near)


@row(OPTIM, "SGD", momentum=[0, 0.9], values={"momentum": lambda m: m or None},
     apart=["dampening", "nesterov"], **PLAIN)  # fmt: skip
def sgd(pair):
    for more in [{}, *([{"nesterov": True}, {"dampening": 0.3}] if pair.of("momentum") else [])]:
        same_rule(pair, more, more)


@row(OPTIM, "Adam", amsgrad=BOTH, decoupled_weight_decay=BOTH, **ADAMS)
@row(OPTIM, "AdamW", amsgrad=BOTH, **ADAMS)
@row(OPTIM, "NAdam", momentum_decay=[0.004, 0.1], decoupled_weight_decay=BOTH, **ADAMS)
def adam(pair):
    same_rule(pair, {"epsilon_after_correction": True})
    more = {"eps": 1e-2, "lr": 0.1}
    found = stepped(pair.ours(**more), lambda p: pair.theirs(params=p, **more))
    told(pair, AFTER, *found)


@row(OPTIM, "RAdam", decoupled_weight_decay=BOTH, **ADAMS)
@row(OPTIM, "Adadelta", rho=[0.9, 0.5], **COMMON)
@row(OPTIM, "SparseAdam", lr=[0.1, 0.003], eps=[1e-8, 1e-2], **BETAS)
def as_it_is(pair):
    same_rule(pair, sparse=name_of(pair) == "SparseAdam")


@row(OPTIM, "Adamax", **ADAMS)
def adamax(pair):
    same_rule(pair, {"epsilon_in_norm": True})
    more = {"lr": 0.1, "eps": 0.3}
    found = stepped(pair.ours(**more), lambda p: pair.theirs(params=p, **more))
    told(pair, "PyTorch's ε: `epsilon_in_norm=True`", *found)


@row(OPTIM, "Adagrad")
def falling_adagrad(pair):
    told(pair, "`lr_decay`: a schedule as `learning_rate`")
    ours = pair.ours(learning_rate=lambda step: 0.1 / (1 + 0.3 * step), eps=1e-60)
    close(*stepped(ours, lambda p: pair.theirs(params=p, lr=0.1, lr_decay=0.3, eps=1e-30)))


@row(OPTIM, "Adagrad", apart=["eps"], **PLAIN)
@row(OPTIM, "RMSprop", alpha=[0.99, 0.9], momentum=[0.0, 0.5], centered=BOTH,
     apart=["eps"], **PLAIN)  # fmt: skip
def under_the_root(pair):
    same_rule(pair, {"eps": 1e-60}, {"eps": 1e-30})
    found = stepped(pair.ours(eps=1e-2), lambda p: pair.theirs(params=p, eps=1e-2))
    told(pair, "under the root", *found)


@row(OPTIM, "Adafactor", eps=[(None, 1e-3), (None, 0.1)], beta2_decay=[-0.8, -0.5], d=[1.0, 2.0],
     **PLAIN)  # fmt: skip
def adafactor(pair):
    for shape in ((5, 4), (5,)):
        same_rule(pair, shape=shape)
    found = stepped(pair.ours(), lambda p: pair.theirs(params=p), (5, 4, 3))
    told(pair, "kernels are factored as (F, C·kh·kw)", *found)


@row(OPTIM, "Muon", momentum=[0.95, 0.5], nesterov=BOTH, ns_steps=[5, 2], **PLAIN)
def muon(pair):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
        for rate in (None, pair.of("lr")):
            found = stepped(pair.ours(), lambda p: pair.theirs(params=p), (5, 5), rate=rate)
            close(*found, "in one precision", 1e-8, 1e-8)
        found = stepped(pair.ours(), lambda p: pair.theirs(params=p), (3, 5))
        told(pair, "matrices: (in, out)", *found)
    found = stepped(pair.ours(lr=0.1), lambda p: pair.theirs(params=p, lr=0.1), (5, 5))
    told(pair, "the iteration: in float32", *found)


@row(OPTIM, "Optimizer")
def rule(pair):
    told(pair, "`defaults`: the arguments")
    told(pair, "`maximize`: taken at the value that asks for nothing")
    nothing = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
    optimizer.Adam(lr=0.1, maximize=False, **nothing)
    with pytest.raises((SingaNetError, TypeError)):
        optimizer.Adam(lr=0.1, maximize=True)
    assert optimizer.SGD(lr=0.1).lr == torch.optim.SGD([torch.zeros(1)], lr=0.1).defaults["lr"]


# --- schedules ------------------------------------------------------------------------------------

BASE = 0.5


def rates(make, steps=40, seen=None):
    """The rates that a scheduler of theirs gives, step by step."""
    peer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], BASE)
    scheduler, found = make(peer), []
    for k in range(steps):
        found.append(peer.param_groups[0]["lr"])
        peer.step()
        scheduler.step(*([] if seen is None else [seen[k]]))
    return np.array(found)


def same_rates(pair, here=None, there=None, steps=40):
    ours = pair.ours(**{n: v for n, v in (here or {}).items() if n not in pair.told})
    made = rates(lambda o: pair.theirs(optimizer=o, **(there or {})), steps)
    close([ours(k) for k in range(steps)], made, "rates", 1e-12)
    return ours


@row(RATES, "StepLR", step_size=[1, 7], gamma=[0.1, 0.5])
@row(RATES, "MultiStepLR", milestones=[[3], [2, 5, 5], [3, 9, 20]], gamma=[0.1, 0.5])
@row(RATES, "PolynomialLR", total_iters=[7, 30], power=[1.0, 2.0])
@row(RATES, "CosineAnnealingWarmRestarts", T_0=[5, 9], T_mult=[1, 2], eta_min=[0.0, 0.1])
@row(RATES, "ExponentialLR", gamma=[0.9, 0.5])
def schedule(pair):
    usual = {"PolynomialLR": {"total_iters": 5}, "ExponentialLR": {"decay_steps": 1}}
    same_rates(pair, {"initial_learning_rate": BASE, **usual.get(name_of(pair), {})})
    if name_of(pair) == "ExponentialLR":
        told(pair, "a factor a step: decay_steps=1")


@row(RATES, "CosineAnnealingLR", T_max=[10, 25], eta_min=[0.0, 0.1])
def cosine(pair):
    ours = same_rates(pair, {"initial_learning_rate": BASE}, steps=pair.of("T_max") + 1)
    found = [ours(k) for k in range(40)], rates(lambda o: pair.theirs(optimizer=o))
    told(pair, "after it: the rate stays, there it rises again", *found)


TIMES = {"start_factor": lambda factor: factor * BASE, "end_factor": lambda factor: factor * BASE}


@row(RATES, "LinearLR", values=TIMES, start_factor=[0.1, 0.4], end_factor=[1.0, 0.5],
     total_iters=[5, 12])  # fmt: skip
def linear_rate(pair):
    ours = same_rates(pair, {"initial_learning_rate": BASE / 3, "total_iters": 5})
    steps = ours.decay_steps
    warm = schedules.WarmUp(BASE, steps, ours.initial_learning_rate)
    found = rates(lambda o: pair.theirs(optimizer=o, end_factor=1.0), steps)
    told(pair, "WarmUp, whose rise is one step ahead", [warm(k) for k in range(steps)], found)


@row(RATES, "OneCycleLR", max_lr=[0.1, 1.0], total_steps=[41, 60], pct_start=[0.3, 0.5],
     div_factor=[25.0, 4.0], final_div_factor=[1e4, 10.0])  # fmt: skip
def one_cycle(pair):
    steps = pair.of("total_steps") or 42
    theirs = {} if pair.of("total_steps") else {"epochs": 6, "steps_per_epoch": 7}
    pair.told.pop("steps", None)
    same_rates(pair, {"steps": steps}, {"cycle_momentum": False, **theirs})


SHRUNK = {"mode": {"triangular": 1.0, "triangular2": 0.5, "exp_range": 1.0}.get}


@row(RATES, "CyclicLR", values=SHRUNK, base_lr=[0.01, 0.1], max_lr=[0.5, 1.0], step_size_up=[5, 8],
     step_size_down=[None, 3], mode=list(SHRUNK["mode"].__self__), apart=["gamma"])  # fmt: skip
def cyclic(pair):
    gamma = 0.9 if pair.of("mode") == "exp_range" else 1.0
    same_rates(pair, {"up": 2000, "decay": gamma}, {"gamma": gamma, "cycle_momentum": False})


WAITS = {"patience": lambda n: n + 1, "threshold_mode": lambda mode: mode == "abs"}


@row(RATES, "ReduceLROnPlateau", values=WAITS, mode=["min", "max"], factor=[0.1, 0.5],
     patience=[0, 2], threshold=[1e-4, 0.1], threshold_mode=["rel", "abs"], cooldown=[0],
     min_lr=[0, 0.01])  # fmt: skip
def plateau(pair):
    for cooldown, seen in ((0, pair.draw.uniform(0.5, 1.5, 40).tolist()), (3, [1.0] * 40)):
        ours, found = pair.ours(value=BASE, cooldown=cooldown), []
        for metric in seen:
            found.append(ours(0))
            ours.observe(metric)
        made = rates(lambda o, rest=cooldown: pair.theirs(optimizer=o, cooldown=rest), seen=seen)
        if not cooldown:
            close(found, made, "rates", 1e-12, 1e-7)  # theirs leaves out a change below 1e-8
        elif pair.of("patience") < 10:
            told(pair, "the first observation after a rest counts, as in Keras", found, made)


@row(RATES, "SequentialLR", apart=["schedulers", "milestones"])
def chained(pair):
    rate = torch.optim.lr_scheduler
    parts = [schedules.Exponential(BASE, 1, 0.9), schedules.Step(BASE, 4)]
    ours = pair.ours(parts=parts, milestones=[7])

    def made(peer):
        each = [rate.ExponentialLR(peer, 0.9), rate.StepLR(peer, 4)]
        return pair.theirs(optimizer=peer, schedulers=each, milestones=[7])

    close([ours(k) for k in range(40)], rates(made), "rates", 1e-12)


class Halved(schedules.Schedule):
    def __call__(self, step):
        return BASE * 0.5**step


class TheirHalved(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [BASE * 0.5**self.last_epoch]


@row(RATES, "LRScheduler")
def any_schedule(pair):
    close([Halved()(k) for k in range(40)], rates(TheirHalved))


# --- initializers ---------------------------------------------------------------------------------


def dense(size=(300, 200), **spec):
    layer = layers.Dense("layer", size[1], W_specs=spec, input_shape=size[:1])
    return arrays(FeedForwardNet([layer], seed=0))["weight"]


def kernels(**spec):
    layer = layers.Conv2D("layer", 64, 5, W_specs=spec, input_shape=(32, 8, 8))
    return arrays(FeedForwardNet([layer], seed=0))["weight"]


def drawn_alike(pair, ours, *args, weight=None, **kwargs):
    """The quantiles of two draws, beside their spread."""
    torch.manual_seed(0)
    theirs = pair.theirs_kind(torch.empty(200, 300) if weight is None else weight, *args, **kwargs)
    theirs = theirs.detach().numpy()
    ways = [np.quantile(a, [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]) for a in (ours, theirs)]
    close(*(each / theirs.std() for each in ways), "quantiles", 0, 0.05)


@row(INIT, "constant_", apart=["val"])
@row(INIT, "ones_", "zeros_", "eye_")
def constant(pair):
    if name_of(pair) == "eye_":
        close(dense((3, 5), init="eye"), pair.theirs_kind(torch.empty(5, 3)).T)
        return
    value = {"ones_": 1.0, "zeros_": 0.0}.get(name_of(pair), 0.3)
    given = [0.3] if name_of(pair) == "constant_" else []
    ours = dense((3, 2), init="constant", value=value)
    close(ours, pair.theirs_kind(torch.empty(3, 2), *given), rtol=1e-7)


@row(INIT, "dirac_", apart=["groups"])
def dirac(pair):
    groups = pair.pick(1, 2)
    spec = {"init": "dirac", "kernel": (3, 3), "groups": groups}
    layer = layers.Conv2D("layer", 6, 3, W_specs=spec, groups=groups, input_shape=(4, 5, 5))
    wanted = pair.theirs_kind(torch.empty(6, 4 // groups, 3, 3), groups)
    close(arrays(FeedForwardNet([layer], seed=0))["weight"], wanted.reshape(6, -1))
    told(pair, "they need the kernel, Dirac((3, 3))")


DRAWN = {
    "uniform_": ({"init": "uniform", "low": -0.1, "high": 0.3}, (-0.1, 0.3)),
    "normal_": ({"init": "gaussian", "mean": 1.0, "std": 0.3}, (1.0, 0.3)),
    "trunc_normal_": ({"init": "truncated_normal", "mean": 0.1, "std": 0.3}, (0.1, 0.3, -0.5, 0.7)),
}


@row(INIT, "uniform_", apart=["a", "b"])
@row(INIT, "normal_", "trunc_normal_", apart=["mean", "std"])
def drawn_by_numbers(pair):
    spec, given = DRAWN[name_of(pair)]
    drawn_alike(pair, dense(**spec), *given)
    if name_of(pair) == "trunc_normal_":
        words = (
            "theirs are values, -2 and 2 by default, which cut nothing off a small std: Gaussian"
        )
        told(pair, words)
        drawn_alike(pair, dense(**{**spec, "init": "gaussian"}), *given[:2])


@row(INIT, "orthogonal_", apart=["gain"])
def orthogonal(pair):
    for size in ((6, 4), (4, 6)):
        theirs = pair.theirs_kind(torch.empty(size), 0.5).numpy()
        for w in (dense(size, init="orthogonal", gain=0.5), theirs):
            gram = w.T @ w if size[1] == 4 else w @ w.T
            close(gram, 0.25 * np.eye(4), rtol=0, atol=1e-6)


@row(INIT, "xavier_normal_", "xavier_uniform_", apart=["gain"])
@row(INIT, "kaiming_normal_", "kaiming_uniform_", apart=["mode"])
def scaled(pair):
    rule, distribution, _ = name_of(pair).split("_")
    xavier = rule == "xavier"
    mode = "fan_avg" if xavier else pair.pick("fan_in", "fan_out")
    scale = {"init": "variance_scaling", "mode": mode, "distribution": distribution}
    told(pair, 'distribution "normal" or "uniform"')
    told(pair, 'with mode "fan_avg"' if xavier else "torch.nn.init.calculate_gain, 2 for relu")
    for ours, weight in ((dense, None), (kernels, torch.empty(64, 32, 5, 5))):
        plain = ours(init=f"{'glorot' if xavier else 'he'}_{distribution}")
        drawn_alike(pair, plain, weight=weight, **({} if xavier else {"nonlinearity": "relu"}))
        given = {"gain": 2.0} if xavier else {"mode": mode, "nonlinearity": "relu"}
        drawn_alike(pair, ours(scale=4.0 if xavier else 2.0, **scale), weight=weight, **given)


# --- what is what ---------------------------------------------------------------------------------

TABLE = (PAGES / "pytorch.md").read_text("utf-8").partition("\n## Names in PyTorch and here\n")[2]
WHAT = [line for line in TABLE.partition("\n## ")[0].splitlines() if line.startswith("| ")][1:]
CHECKS = {}


def what(*starts):
    def register(check):
        CHECKS.update(dict.fromkeys(starts, check))
        return check

    return register


def mlp(**specs):
    """A small net, its peer with the same weights, a batch and labels."""
    chain = [layers.Dense("0", 6, input_shape=(5,)), layers.Activation("1", "relu")]
    net = FeedForwardNet([*chain, layers.Dense("2", 3, W_specs=specs)], seed=0)
    net.loss = loss.SoftmaxCrossEntropy()
    module = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    net.as_type("float64")
    for name, value in weights(module).items():
        net[name[0]].params[name[2:]].value[...] = value.T
    rng = np.random.default_rng(0)
    return net, module, rng.normal(size=(8, 5)), rng.integers(0, 3, 8)


def alike(net, module, rtol=1e-10, atol=1e-12):
    for name, value in weights(module).items():
        close(net[name[0]].params[name[2:]].value.T, value, name, rtol, atol)


def cross_entropy_of(module, x, y):
    return nn.functional.cross_entropy(module(torch.as_tensor(x)), torch.as_tensor(y))


def torch_step(module, peer, x, y, clip=None):
    peer.zero_grad()
    cross_entropy_of(module, x, y).backward()
    if clip:
        nn.utils.clip_grad_norm_(module.parameters(), clip)
    peer.step()


@what("`torch.Tensor`", "`nn.Sequential(...)`", "sizes in and out: `nn.Linear(64, 10)`")
def nets(rng, tmp_path):
    net, module, x, _ = mlp()
    assert type(net.forward(False, x)) is np.ndarray
    close(net.forward(False, x), module(live(x)).detach())
    inner = FeedForwardNet(net.layers[1:], name="inner")
    outer = FeedForwardNet([layers.Dense("0", 6, input_shape=(5,)), inner], seed=0)
    assert [p.shape for p in outer.params()] == [p.shape for p in net.params()]


@what("`nn.Module` with `forward`")
def drawn_module(rng, tmp_path):
    def drawn(x):
        return x + layers.Activation("act", "relu")(layers.Dense("fc", 5)(x))

    def carry(given):
        return transposed({name.partition(".")[2]: value for name, value in given.items()})

    residual = Calls(lambda m, x: x + m.fc(x).relu(), fc=nn.Linear(5, 5))
    same(drawn, residual, rng.normal(size=(4, 5)), carry=carry)


@what("`nn.Linear.weight` (out, in)", "`nn.Conv2d.weight` (F, C, kh, kw)", "`nn.LSTM(i, h,")
def layouts(rng, tmp_path):
    x, steps, images = (rng.normal(size=shape) for shape in ((4, 5), (3, 6, 5), (2, 4, 5, 6)))
    same(layers.Dense("fc", 3), nn.Linear(5, 3), x, carry=transposed)
    same(layers.Dense("fc", 3, W_transpose=True), nn.Linear(5, 3), x)
    same(layers.Conv2D("c", 6, 3, pad=0), nn.Conv2d(4, 6, 3), images, carry=filters)
    lstm = nn.LSTM(5, 4, 2, batch_first=True)
    same(layers.LSTM("lstm", 4, num_layers=2), lstm, steps, carry=gates)


@what("`weight`, `bias`, `running_mean`, `running_var`", "`net.train()`, `net.eval()`")
def norms(rng, tmp_path):
    ours, module = layers.BatchNormalization("bn", momentum=0.1), nn.BatchNorm2d(4)
    net = same(ours, module, rng.normal(size=(3, 4, 5, 6)), carry=gamma_beta)
    found = {p.name: p.value for p in net.params()}
    there = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "var": "running_var"}
    for name, theirs in there.items():
        close(found[f"bn/{name}"], getattr(module, theirs).detach())
    x = rng.normal(size=(3, 4, 5, 6))
    for train in BOTH:
        close(net.forward(train, {"x0": x}), module.train(train)(live(x)).detach())


def each_alike(inputs, pairs, given, rtol=1e-10):
    """Symbols of ours give what functions of theirs do."""
    net = FeedForwardNet(inputs=inputs, outputs=[ours for ours, _ in pairs], seed=0)
    net.as_type("float64")
    names = [symbol.call.layer.name for symbol in inputs]
    found = net.forward(False, dict(zip(names, given, strict=True)))
    for ours, theirs in pairs:
        close(found[ours.call.layer.name], theirs(*map(live, given)), rtol=rtol)


@what("`a + b`, `a * 2`, `a[:, 0]`", "`a.expand(-1, 4)`", "`torch.cat([a, b], -1)`")
def operators(rng, tmp_path):
    a, b = Input("a", (4,)), Input("b", (4,))
    pairs = [
        (a + b, lambda a, b: a + b), (a * 2, lambda a, b: a * 2), (a[:, 0], lambda a, b: a[:, 0]),
        (F.mean(a, 1), lambda a, b: a.mean(1)),
        (F.max(a, 1), lambda a, b: a.amax(1)),
        (F.clip(a, 0, 1), lambda a, b: a.clamp(0, 1)),
        (F.einsum("nj,nj->n", a, b), lambda a, b: torch.einsum("nj,nj->n", a, b)),
        (layers.Expand("e", (4,))(a[:, :1]), lambda a, b: a[:, :1].expand(-1, 4)),
        (layers.Concat("both", -1)(a, b), lambda a, b: torch.cat([a, b], -1)),
    ]  # fmt: skip
    each_alike([a, b], pairs, rng.normal(size=(2, 3, 4)))


@what("`conv1d(embedding(x).permute(0, 2, 1))`")
def text_cnn(rng, tmp_path):
    def run(m, x):
        y = m.conv(m.embedding(x).permute(0, 2, 1))
        return y.permute(0, 2, 1) if m.back else y

    def carry(given):
        conv = filters({"weight": given["conv.weight"], "bias": given["conv.bias"]})
        return {"e/weight": given["embedding.weight"]} | {f"c/{n}": v for n, v in conv.items()}

    x, parts = rng.integers(0, 9, (3, 7)), {"embedding": nn.Embedding(9, 4)}
    for back in BOTH:
        how = {"data_format": "channels_last"} if back else {}
        embedding, conv = layers.Embedding("e", 9, 4), layers.Conv1D("c", 5, 3, padding=0, **how)
        turns = [] if back else [layers.Permute("turn", (2, 1))]

        def ours(x, chain=(embedding, *turns, conv)):
            for layer in chain:
                x = layer(x)
            return x

        same(ours, Calls(run, **parts, conv=nn.Conv1d(4, 5, 3), back=back), x, carry=carry)
    with pytest.raises(SingaNetError):
        layers.Conv1D("c", 5, 3)(layers.Embedding("e", 9, 4)(Input("x", (7,), "int64")))


@what("`torch.where(a > 0, a, b)`", "`i = a.argmax(1, keepdim=True)`")
def choices(rng, tmp_path):
    a, b, i = Input("a", (4,)), Input("b", (4,)), Input("i", (2,), dtype="int64")
    top = layers.TopIndices("t", 3, 1)(a)
    pairs = [
        ((a > 0).where(a, b), lambda a, b, i: torch.where(a > 0, a, b)),
        ((a * 3).astype("int64"), lambda a, b, i: (a * 3).long()),
        (a[:, [2, 0]], lambda a, b, i: a.index_select(1, torch.tensor([2, 0]))),
        (layers.Gather("g", 1)(a, i), lambda a, b, i: torch.gather(a, 1, i)),
        (layers.TopIndices("i1", 1, 1)(a), lambda a, b, i: a.argmax(1, keepdim=True)),
        (top, lambda a, b, i: a.topk(3, 1).indices),
        (layers.Gather("g2", 1)(a, top), lambda a, b, i: a.topk(3, 1).values),
    ]  # fmt: skip
    each_alike([a, b, i], pairs, [*rng.normal(size=(2, 3, 4)), rng.integers(0, 4, (3, 2))])


def test_layers_start_as_the_guide_says():
    """The fourth of the things that bite."""
    first = layers.Dense("a", 300, input_shape=(200,)), nn.Linear(200, 300), 200, 500
    other = layers.Conv2D("a", 64, 5, input_shape=(32, 8, 8)), nn.Conv2d(32, 64, 5), 800, 2400
    for layer, module, fan_in, fans in (first, other):
        for weight in module.parameters():
            close(abs(weight.detach()).max(), fan_in**-0.5, rtol=0.1)
        drawn = arrays(FeedForwardNet([layer], seed=0))
        close(abs(drawn["weight"]).max(), (6 / fans) ** 0.5, rtol=0.02)
        assert not drawn["bias"].any()
    close(nn.Embedding(500, 40).weight.std().item(), 1.0, rtol=0.05)


def test_predict_applies_the_link_and_rows_that_no_batch_names_stay():
    net, module, x, _ = mlp()
    close(net.predict(x), module(live(x)).softmax(1).detach(), rtol=1e-6)
    for sparse in BOTH:
        net = FeedForwardNet([layers.Embedding("e", 5, 2, sparse=sparse, input_shape=(2,))], seed=0)
        rule, before = optimizer.SGD(0.1, momentum=0.9), net.param_values()[0].copy()
        for batch in ([[0, 1]], [[2, 2]]):
            net.forward(True, np.array(batch))
            for names, values, grads in net.backward(np.ones((1, 2, 2), "f")):
                rule.update(names, values, grads)
            if batch == [[0, 1]]:
                before = net.param_values()[0].copy()
        moved = (net.param_values()[0] != before).any(axis=1)
        assert moved.tolist() == [not sparse, not sparse, True, False, False]


def test_what_is_not_here_but_to_be_drawn():
    """The modules without parameters of that line."""
    rng = np.random.default_rng(0)
    (up, off), a, b = rng.normal(size=(2, 3, 8)), Input("a", (8,)), Input("b", (8,))
    low, relu, tanh = (layers.Activation(m, m) for m in ("softplus", "relu", "tanh"))
    product = layers.L2Norm("unit0")(a) * layers.L2Norm("unit1")(b)
    pairs = [
        (-low(-a), lambda a, b: nn.LogSigmoid()(a)),
        (layers.Softmax("least")(-a), lambda a, b: nn.Softmin(1)(a)),
        (a - tanh(a), lambda a, b: nn.Tanhshrink()(a)),
        ((a > 0.5).where(a, 2.0), lambda a, b: nn.Threshold(0.5, 2.0)(a)),
        ((a * a > 0.25).where(a, 0.0), lambda a, b: nn.Hardshrink(0.5)(a)),
        (relu(a - 0.5) - relu(-a - 0.5), lambda a, b: nn.Softshrink(0.5)(a)),
        (layers.Reduce("cosine", "sum", 1)(product), nn.CosineSimilarity()),
        (layers.Reduce("squares", "sum", 1)((a - b + 1e-6) ** 2) ** 0.5, nn.PairwiseDistance()),
    ]
    each_alike([a, b], pairs, (up, off), 1e-8)  # the norms of ours have an ε
    image, size = Input("image", (8, 3, 4)), (8, 3, 4)

    def moved(name, first, axes, last):
        made = layers.Reshape(f"{name}1", first)(image)
        return layers.Reshape(name, last)(layers.Permute(f"{name}2", axes)(made))

    pairs = [
        (moved("shuffle", (2, 4, 3, 4), (2, 1, 3, 4), size), nn.ChannelShuffle(2)),
        (moved("pixels", (2, 2, 2, 3, 4), (1, 4, 2, 5, 3), (2, 6, 8)), nn.PixelShuffle(2)),
    ]
    each_alike([image], pairs, (rng.normal(size=(2, *size)),))


@what("`down_proj(F.silu(gate_proj(x)) * up_proj(x))`")
def gated(rng, tmp_path):
    def carry(given):
        return transposed({name.replace(".", "_"): value for name, value in given.items()})

    for mode, function in (({}, nn.SiLU()), ({"mode": "gelu_tanh"}, nn.GELU("tanh"))):
        sizes = {"gate": (5, 6), "up": (5, 6), "down": (6, 4)}
        parts = {name: nn.Linear(*size, bias=False) for name, size in sizes.items()}
        unit = Calls(lambda m, x, f=function: m.down(f(m.gate(x)) * m.up(x)), **parts)
        same(layers.GatedUnit("mlp", 6, 4, **mode), unit, rng.normal(size=(3, 5)), carry=carry)


@what("`zero_grad(); loss.backward(); opt.step()`", "Lightning's `Trainer`", "`clip_grad_norm_`")
@what("`register_post_accumulate_grad_hook`")
def steps(rng, tmp_path):
    for clip in (None, 0.1):
        net, module, x, y = mlp()
        by_fit, by_hand = copy.deepcopy(net), copy.deepcopy(net)
        rules = [optimizer.SGD(lr=0.1, momentum=0.9) for _ in range(3)]
        peer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
        for _ in range(4):
            torch_step(module, peer, x, y, clip)
            net.step(x, y, rules[0])
            by_hand.loss.forward(True, by_hand.forward(True, x), y)
            for names, values, grads in by_hand.backward(by_hand.loss.backward()):
                rules[1].update(names, values, grads)
        by_fit.compile(rules[2])
        how = {"clip": clip, "clip_by": "global"} if clip else {}
        by_fit.fit(x, y, epochs=4, batch_size=8, shuffle=False, verbose=False, **how)
        for each in [by_fit] if clip else [net, by_fit, by_hand]:
            alike(each, module, atol=1e-5 if clip else 1e-12)  # theirs adds 1e-6 to the norm


@what("`torch.autograd.grad(ys, xs)`", "`torch.func.jvp(torch.func.grad(f), ...)`")
def slopes(rng, tmp_path):
    net, module, x, y = mlp()
    tensor, v, feed = live(x, True), rng.normal(size=x.shape), {"input": x, "targets": y}
    wanted = torch.autograd.grad(cross_entropy_of(module, tensor, y), tensor)[0]
    close(net.gradients("loss", "input", feed)["input"], wanted)
    slope = torch.func.grad(lambda x: cross_entropy_of(module, x, y))
    wanted = torch.func.jvp(slope, (live(x),), (live(v),))[1].detach()
    close(net.hessian_vector_product("loss", "input", feed, {"input": v})["input"], wanted)


@what("`tensor.detach()`")
def detached(rng, tmp_path):
    stopped = Calls(lambda m, x: x * x.detach())
    same(lambda x: x * layers.StopGradient("stop")(x), stopped, rng.normal(size=(3, 4)))


@what("`torch.autocast`, `GradScaler`")
def mixed(rng, tmp_path):
    net, module, x, y = mlp()
    net.as_type("float32")
    net.compile(optimizer.SGD(lr=0.1), mixed_precision="float16")
    net.fit(x.astype("f"), y, epochs=3, batch_size=8, shuffle=False, verbose=False)
    peer = torch.optim.SGD(module.parameters(), 0.1)
    for _ in range(3):
        torch_step(module, peer, x, y)
    alike(net, module, 0.02, 0.002)


@what("`param_groups`")
def groups(rng, tmp_path):
    net, module, x, y = mlp(lr_mult=0.1, decay_mult=0)
    slow = module[2].weight
    fast = [weight for weight in module.parameters() if weight is not slow]
    own = {"params": [slow], "lr": 0.01, "weight_decay": 0.0}
    peer = torch.optim.SGD([{"params": fast}, own], 0.1, weight_decay=0.1)
    rule = optimizer.SGD(lr=0.1, weight_decay=0.1)
    for _ in range(3):
        torch_step(module, peer, x, y)
        net.step(x, y, rule)
    alike(net, module)


@what("`requires_grad_(False)`")
def frozen(rng, tmp_path):
    for how in ("trainable", "freeze"):
        net, module, x, y = mlp()
        module[0].requires_grad_(False)
        if how == "trainable":
            net["0"].trainable = False
        else:
            net.freeze("2")
        torch_step(module, torch.optim.SGD(module.parameters(), 0.1), x, y)
        net.step(x, y, optimizer.SGD(lr=0.1))
        alike(net, module)
    net = FeedForwardNet([layers.BatchNormalization("bn", input_shape=(5,))], seed=0)
    net["bn"].trainable = False
    net.forward(True, x.astype("f"))
    close(net["bn"].params["mean"].value, np.zeros(5))


@what("`DataLoader`")
def loaders(rng, tmp_path):
    net, module, x, y = mlp()
    data = torch.utils.data.TensorDataset(live(x), live(y))
    net.compile(optimizer.SGD(lr=0.1))
    net.fit(torch.utils.data.DataLoader(data, 4), epochs=2, verbose=False)
    peer = torch.optim.SGD(module.parameters(), 0.1)
    own = singanet.data.ArrayLoader(x, y, batch_size=4, shuffle=False)
    for _ in range(2):
        for batch in own:
            torch_step(module, peer, *batch)
    alike(net, module)


@what("`state_dict()`, `torch.save`")
def kept(rng, tmp_path):
    net, module, *_ = mlp()
    for suffix in ("pt", "safetensors"):
        path, other = str(tmp_path / f"w.{suffix}"), mlp()[0]
        if suffix == "pt":
            torch.save(module.state_dict(), path)
            names = {name: name.replace(".", "/") for name in module.state_dict()}
            assert other.load(path, rename=names, layout="torch").complete
        else:
            net.save(path)
            assert other.load(path).complete
        alike(other, module, 1e-6)


@what('`model.to("cuda")`', "`DistributedDataParallel`, `torchrun`")
def elsewhere(rng, tmp_path):
    """Other tests run these; the names are there."""
    assert callable(singanet.device.cuda)
    assert callable(singanet.FeedForwardNet.to_device)
    assert callable(singanet.parallel.AllReduce)


@pytest.mark.parametrize("line", WHAT, ids=lambda line: line[2:30])
def test_names_as_the_page_has_them(line, tmp_path):
    found = [check for start, check in CHECKS.items() if line.startswith(f"| {start}")]
    assert len(found) == 1, f"write a case for the row: {line}"
    found[0](np.random.default_rng(0), tmp_path)


FEW, MANY = 3, 40


@pytest.mark.few(60)
@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row(heading, theirs, number):
    GUIDE.run(heading, theirs, number, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "theirs", "number"), GUIDE.all_cases())
def test_row_often(heading, theirs, number):
    GUIDE.run(heading, theirs, number, range(FEW, MANY))


@pytest.mark.parametrize(("heading", "room"), [(NN, layers), (NN, loss), (OPTIM, optimizer)])
def test_the_name_of_a_class_of_theirs_tells_ours(heading, room):
    for each in GUIDE.rows[heading]:
        ours = [name for name in each.ours if hasattr(room, name)]
        for name in (name for name in each.theirs if ours and not hasattr(room, name)):
            with pytest.raises(AttributeError) as caught:
                getattr(room, name)
            advice = str(caught.value).rpartition("; ")[2]
            assert any(own in advice for own in ours), (name, advice)


@pytest.mark.parametrize("heading", GUIDE.rows)
def test_each_row_has_a_case_and_each_argument_its_place(heading):
    assert GUIDE.wrong_cases(heading) == []
    assert GUIDE.wrong_rows(heading) == [], "write the rows of docs/migration/pytorch.md by hand"
    assert {*GUIDE.rows} == {NN, OPTIM, RATES, INIT}
    gone = [s for s in CHECKS if not any(line.startswith(f"| {s}") for line in WHAT)]
    assert gone == []


def test_defaults_that_differ_are_listed():
    assert {*GUIDE.told_defaults} == GUIDE.differing_lines()
