"""Layers at extent 1, in odd memory and in float16, beside PyTorch and themselves in float64."""

import os
import time

import numpy as np
import pytest

from singanet import initializer, layers
from singanet.device import Device
from singanet.errors import SingaNetError
from singanet.layers.context import Context
from singanet.ops import cpu_ops, numpy_ops
from singanet.params.grads import dense_gradient
from singanet.testing.layer_case import RecordedPair, laid_out, map_parts, parts_of

torch = pytest.importorskip("torch")
F = torch.nn.functional

MOST = 60000.0
"""The largest input; float16 results above it may be infinite and are not compared."""

TOLERANCE = {"float64": 1e-8, "float32": 3e-4, "float16": 2e-2}
"""The difference allowed, relative to the largest number of an array."""

FLOOR = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-3}
"""The difference allowed, relative to a gradient of 1 or the slope by an input."""

LEAST = {"float64": 0.0, "float32": 1e-44, "float16": 6e-8}
"""The least number of the type."""


class Drawn:
    """A layer, its sample shapes, PyTorch's function of ``(params, x)``, and the largest x."""

    def __init__(self, make, shapes, torchs=None, magnitude=MOST):
        self.make, self.shapes, self.torchs, self.magnitude = make, shapes, torchs, magnitude


def small(rng, most=4):
    """An extent, which is 1 in half of the cases."""
    return 1 if rng.random() < 0.5 else int(rng.integers(1, most + 1))


def sizes(rng, rank, most=4):
    return tuple(small(rng, most) for _ in range(rank))


def yes(rng):
    return bool(rng.integers(2))


def convolution(rng):
    rank = int(rng.integers(1, 4))
    kernel, stride, dilation = (sizes(rng, rank, 3) for _ in range(3))
    groups, pad = small(rng, 3), tuple(int(n) for n in rng.integers(0, 2, rank))
    channels, kernels, bias = groups * small(rng, 3), groups * small(rng, 3), yes(rng)
    kind = (layers.Conv1D, layers.Conv2D, layers.Conv3D)[rank - 1]
    first = (lambda v: v[0]) if rank == 1 else (lambda v: v)

    def torchs(p, x):
        weight = p["weight"].reshape(kernels, channels // groups, *kernel)
        of_rank = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        return of_rank(x, weight, p.get("bias"), stride, pad, dilation, groups)

    return Drawn(
        lambda: kind("it", kernels, first(kernel), first(stride), pad=first(pad), groups=groups,
                     dilation=first(dilation), use_bias=bias),
        (channels, *sizes(rng, rank, 6)), torchs,
    )  # fmt: skip


def depthwise(rng):
    kernel, stride, dilation = (sizes(rng, 2, 3) for _ in range(3))
    pad, channels, times = tuple(int(n) for n in rng.integers(0, 2, 2)), small(rng), small(rng, 2)

    def torchs(p, x):
        weight = p["weight"].reshape(channels * times, 1, *kernel)
        return F.conv2d(x, weight, p.get("bias"), stride, pad, dilation, channels)

    return Drawn(
        lambda: layers.DepthwiseConv2D("it", kernel, stride, depth_multiplier=times, pad=pad,
                                       dilation=dilation),
        (channels, *sizes(rng, 2, 6)), torchs,
    )  # fmt: skip


def pooling(rng):
    rank, mean = int(rng.integers(1, 4)), yes(rng)
    kernel, stride = sizes(rng, rank, 3), sizes(rng, rank, 3)
    kinds = ("Avg" if mean else "Max") + f"Pooling{rank}D"
    first = (lambda v: v[0]) if rank == 1 else (lambda v: v)
    pooled = {"A": (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d),
              "M": (F.max_pool1d, F.max_pool2d, F.max_pool3d)}[kinds[0]][rank - 1]  # fmt: skip
    return Drawn(
        lambda: getattr(layers, kinds)("it", first(kernel), first(stride), "valid"),
        (small(rng), *sizes(rng, rank, 6)),
        lambda p, x: pooled(x, kernel, stride),
    )


def over_all(rng):
    rank, mean = int(rng.integers(1, 4)), yes(rng)
    axes = tuple(range(2, rank + 2))
    return Drawn(
        lambda: getattr(layers, f"Global{'Avg' if mean else 'Max'}Pooling{rank}D")("it"),
        (small(rng), *sizes(rng, rank, 6)),
        lambda p, x: x.mean(axes) if mean else x.flatten(2).max(-1).values,
    )


def batch_norm(rng):
    shape = (small(rng), *sizes(rng, int(rng.choice([0, 1, 2])), 5))
    return Drawn(lambda: layers.BatchNormalization("it", momentum=0.2, axis=1), shape)


def layer_norm(rng):
    shape, axis = sizes(rng, int(rng.integers(1, 4)), 6), -1
    if yes(rng):
        return Drawn(
            lambda: layers.LayerNorm("it", axis), shape,
            lambda p, x: F.layer_norm(x, shape[axis:], p["gamma"], p["beta"], 1e-5),
        )  # fmt: skip
    return Drawn(
        lambda: layers.RMSNorm("it", axis), shape,
        lambda p, x: p["gamma"] * x / (x.square().mean(-1, True) + 1e-6).sqrt(),
    )  # fmt: skip


def group_norm(rng):
    groups, rank = small(rng, 3), int(rng.integers(1, 4))
    channels = groups * small(rng, 3)
    if yes(rng):
        groups = channels
    kind = layers.InstanceNorm if groups == channels else layers.GroupNorm
    given = () if groups == channels else (groups,)
    return Drawn(
        lambda: kind("it", *given), (channels, *sizes(rng, rank, 5)),
        lambda p, x: F.group_norm(x, groups, p["gamma"], p["beta"], 1e-5),
    )  # fmt: skip


def l2_norm(rng):
    return Drawn(
        lambda: layers.L2Norm("it"), sizes(rng, int(rng.integers(1, 4)), 6),
        lambda p, x: x / (x.square().sum(-1, keepdim=True) + 1e-8).sqrt(),
    )  # fmt: skip


def lrn(rng):
    return Drawn(lambda: layers.LRN("it", 3, 0.5), (small(rng, 6), *sizes(rng, 2)))


def softmax(rng):
    shape = sizes(rng, int(rng.integers(1, 4)), 6)
    kind, of = (layers.Softmax, F.softmax) if yes(rng) else (layers.LogSoftmax, F.log_softmax)
    return Drawn(lambda: kind("it"), shape[:1], lambda p, x: of(x, 1))


def dense(rng):
    size, many, transposed = small(rng, 40), small(rng, 40), yes(rng)

    def torchs(p, x):
        weight = p["weight"]
        return x @ (weight.T if transposed else weight) + p["bias"]

    return Drawn(lambda: layers.Dense("it", many, W_transpose=transposed), (size,), torchs)


def recurrent(rng):
    kind, hidden = rng.choice(["LSTM", "GRU", "RNN"]), small(rng)
    given = ("tanh",) if kind == "RNN" else ()
    both, last = yes(rng), yes(rng)
    return Drawn(
        lambda: getattr(layers, kind)("it", hidden, *given, bidirectional=both,
                                      return_sequences=last),
        (small(rng, 5), small(rng, 5)), magnitude=3.0,
    )  # fmt: skip


def attention(rng):
    heads, size = small(rng, 2), small(rng, 3)
    causal = yes(rng)
    return Drawn(
        lambda: layers.MultiHeadAttention("it", heads, key_dim=size, causal=causal),
        (small(rng, 5), heads * size), magnitude=3.0,
    )  # fmt: skip


def activation(rng):
    known = {"relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu,
             "silu": F.silu, "softplus": F.softplus, "elu": F.elu, "gelu_tanh": None,
             "leaky_relu": None, "mish": None, "hard_swish": None, "selu": None}  # fmt: skip
    mode = str(rng.choice([*known]))
    of = known[mode]
    return Drawn(
        lambda: layers.Activation("it", mode), sizes(rng, int(rng.integers(1, 4)), 6),
        None if of is None else lambda p, x: of(x),
    )  # fmt: skip


def reduce(rng):
    shape = sizes(rng, int(rng.integers(1, 4)), 6)
    axes = tuple(k + 1 for k in range(len(shape)) if yes(rng)) or (1,)
    mode = str(rng.choice(["mean", "sum", "max", "min"]))
    of = {"mean": torch.mean, "sum": torch.sum, "max": torch.amax, "min": torch.amin}[mode]
    return Drawn(
        lambda: layers.Reduce("it", mode, axes, True), shape, lambda p, x: of(x, axes, keepdim=True)
    )


def adaptive(rng):
    kind = layers.AdaptiveAvgPooling2D if yes(rng) else layers.AdaptiveMaxPooling2D
    out = sizes(rng, 2, 3)
    of = F.adaptive_avg_pool2d if kind is layers.AdaptiveAvgPooling2D else F.adaptive_max_pool2d
    return Drawn(lambda: kind("it", out), (small(rng), *sizes(rng, 2, 6)), lambda p, x: of(x, out))


def upsampling(rng):
    mode = str(rng.choice(["nearest", "bilinear"]))
    factors = sizes(rng, 2, 3)
    more = {"align_corners": False} if mode == "bilinear" else {}
    return Drawn(
        lambda: layers.Upsampling2D("it", factors, mode=mode), (small(rng), *sizes(rng, 2, 4)),
        lambda p, x: F.interpolate(x, scale_factor=factors, mode=mode, **more),
    )  # fmt: skip


def by_channel(rng):
    shape = (small(rng), *sizes(rng, int(rng.integers(0, 3)), 4))
    wide = (-1, *[1] * (len(shape) - 1))
    if yes(rng):
        return Drawn(
            lambda: layers.Scale("it"), shape,
            lambda p, x: x * p["gamma"].reshape(wide) + p["beta"].reshape(wide),
        )  # fmt: skip
    return Drawn(lambda: layers.PReLU("it"), shape, lambda p, x: F.prelu(x, p["a"]))


def joined(rng):
    shape = sizes(rng, int(rng.integers(1, 4)), 4)
    kind = rng.choice(["Add", "Average", "Dot", "Merge", "Maximum", "Multiply", "Subtract"])
    count = 2 if kind in ("Dot", "Subtract") or yes(rng) else 3
    return Drawn(lambda: getattr(layers, kind)("it"), [shape] * count)


def gated(rng):
    size, many = small(rng, 4), small(rng)
    if yes(rng):
        return Drawn(lambda: layers.GLU("it"), (small(rng), 2 * size), lambda p, x: F.glu(x, -1))
    return Drawn(
        lambda: layers.GatedUnit("it", size, many), (small(rng), small(rng)), magnitude=3.0
    )


def transposed(rng):
    rank = int(rng.integers(1, 4))
    kernel, stride = sizes(rng, rank, 3), sizes(rng, rank, 2)
    groups = small(rng, 2)
    kind = (layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)[rank - 1]
    first = (lambda v: v[0]) if rank == 1 else (lambda v: v)
    kernels = groups * small(rng, 2)
    return Drawn(
        lambda: kind("it", kernels, first(kernel), first(stride), groups=groups),
        (groups * small(rng, 3), *sizes(rng, rank, 5)),
    )


def separable(rng):
    kernels, times, stride = small(rng, 3), small(rng, 2), small(rng, 2)
    window = kernels, small(rng, 3), stride, str(rng.choice(["same", "valid"]))
    if yes(rng):
        return Drawn(
            lambda: layers.SeparableConv2D("it", *window, depth_multiplier=times),
            (small(rng), *sizes(rng, 2, 6)), magnitude=300.0,
        )  # fmt: skip
    return Drawn(
        lambda: layers.SeparableConv1D("it", *window, depth_multiplier=times),
        (small(rng), small(rng, 6)), magnitude=300.0,
    )  # fmt: skip


def others(rng):
    mode = str(rng.choice(["constant", "reflect", "replicate", "circular"]))
    shape = (small(rng), *sizes(rng, 2, 4))
    step, features, exponent = small(rng), small(rng), float(rng.choice([2, 3]))
    choices = [
        Drawn(lambda: layers.Pad("it", ((0, 0), (1, 0), (0, 2)), mode=mode), shape),
        Drawn(lambda: layers.Power("it", exponent), shape, magnitude=30.0),
        Drawn(lambda: layers.PositionEmbedding("it", 6), (step, features)),
        Drawn(lambda: layers.ClassToken("it", 2), (step, features)),
        Drawn(lambda: layers.RepeatVector("it", 3), (features,)),
        Drawn(lambda: layers.Expand("it", (-1, 3)), (step, 1)),
        Drawn(lambda: layers.TimeDistributed("it", layers.Dense("each", 3)), (step, features)),
        Drawn(lambda: layers.MatMul("it"), [(step, features), (features, step)]),
        Drawn(lambda: layers.SinusoidalPosition("it"), (step, 2 * features)),
        Drawn(
            lambda: layers.Weight("it", (2, step), W_specs={"init": initializer.Uniform(-1, 1)}),
            (3,),
        ),
        Drawn(lambda: layers.Permute("it", (2, 1)), (step, features)),
        Drawn(lambda: layers.Clip("it", -0.5, 900.0), shape),
    ]
    return choices[int(rng.integers(len(choices)))]


FAMILIES = [convolution, depthwise, pooling, over_all, batch_norm, layer_norm, group_norm, l2_norm,
            lrn, softmax, dense, recurrent, attention, activation, reduce, adaptive, upsampling,
            by_channel, joined, gated, transposed, separable, others]  # fmt: skip


class Case:
    """A drawn layer with inputs, parameters and gradients that are exact in float16."""

    def __init__(self, rng):
        self.rng = rng
        self.drawn = FAMILIES[int(rng.integers(len(FAMILIES)))](rng)
        self.batch = small(rng, 4)
        one = self.drawn.make()
        self.several = isinstance(self.drawn.shapes, list)
        one.build(self.drawn.shapes)
        magnitude = float(min(rng.choice([1.0, 300.0, 5000.0, MOST]), self.drawn.magnitude))
        shapes = self.drawn.shapes if self.several else [self.drawn.shapes]
        self.x = [self.numbers((self.batch, *shape), magnitude) for shape in shapes]
        self.x[0][rng.random(self.x[0].shape) < 0.1] = magnitude
        self.values = {
            s: np.abs(self.numbers(p.shape)) + np.float16(0.5) if p.is_state
            else self.numbers(p.shape)
            for s, p in one.params.items()
        }  # fmt: skip
        self.train = yes(rng)
        self.dys = None
        sizes = [np.abs(x[x != 0]) for x in self.x]
        # Layers that divide each row by its length have one slope for each row.
        if isinstance(one, (layers.L2Norm, layers.RMSNorm)):
            self.slope = 1 / max(float(sizes[0].min(initial=MOST)), 1e-3)
        else:
            self.slope = 1 / max(1.0, *(float(x.max(initial=0)) for x in sizes))

    def numbers(self, shape, magnitude=1.0):
        drawn = np.clip(self.rng.standard_normal(shape) / 3, -1, 1) * magnitude
        return drawn.astype(np.float16)

    def built(self, dtype):
        layer = self.drawn.make()
        layer.build(self.drawn.shapes)
        for suffix, param in layer.params.items():
            param.retype(self.values[suffix].astype(dtype))
        return layer

    def given(self, arrays, dtype, layout):
        made = [laid_out(array.astype(dtype))[layout] for array in arrays]
        return made if len(made) > 1 or (arrays is self.x and self.several) else made[0]

    def outcome(self, dtype, ops, layout=0):
        """Outputs, gradients and state."""
        layer = self.built(dtype)
        params = {suffix: param.value for suffix, param in layer.params.items()}
        ctx = Context(ops, np.random.default_rng(0), params, self.train, True, np.dtype(dtype))
        y = layer.forward(ctx, self.given(self.x, dtype, layout))
        if self.dys is None:
            self.dys = [self.numbers(part.shape) for part in parts_of(y)]
        dx, grads = layer.backward(ctx, self.given(self.dys, dtype, layout))
        dense = {s: dense_gradient(ops, g, layer.params[s].shape) for s, g in grads.items()}
        found = {f"y{k}": part for k, part in enumerate(parts_of(y))}
        found |= {f"dx{k}": part for k, part in enumerate(parts_of(dx)) if part is not None}
        assert {part.dtype.name for part in [*found.values(), *dense.values()]} == {dtype}
        return found | dense | {f"new {s}": p.value for s, p in layer.params.items() if p.is_state}

    def by_torch(self):
        """The same, by PyTorch in float64."""
        x = torch.tensor(self.x[0].astype(np.float64), requires_grad=True)
        leaves = {
            s: torch.tensor(v.astype(np.float64), requires_grad=True)
            for s, v in self.values.items()
        }
        y = self.drawn.torchs(leaves, x)
        y.backward(torch.tensor(self.dys[0].astype(np.float64)))
        grads = {s: leaf.grad.numpy() for s, leaf in leaves.items() if leaf.grad is not None}
        return {"y0": y.detach().numpy(), "dx0": x.grad.numpy(), **grads}

    def recorded(self, dtype, ops, layout):
        """Expect the same bits from recorded steps as by layers."""
        pair = RecordedPair([self.built(dtype) for _ in range(2)])
        for net in pair.nets:
            net.to_device(Device("cpu", ops))
            net.as_type(dtype)
        x = self.given(self.x, dtype, layout)
        for _ in range(3):
            if self.train:
                pair.train(x, lambda y: map_parts(np.ones_like, y))
            else:
                pair.evaluate(x)


def expect_close(found, exact, dtype, slope=1.0):
    """Expect the same numbers; ``slope`` is the size of the inputs' gradients.

    Gradients of a constant row are the rounding errors of a sum that is 0.
    """
    for name, wanted in exact.items():
        if name not in found:
            continue
        got = np.asarray(found[name], np.float64)
        fits = np.isfinite(wanted) & (np.abs(wanted) < MOST)
        floor = LEAST[dtype] + FLOOR[dtype] * (slope if name[:2] == "dx" else 1.0)
        room = TOLERANCE[dtype] * np.abs(np.where(fits, wanted, 0)).max(initial=0) + floor
        assert got.shape == wanted.shape, name
        off = np.abs(np.where(fits, got - np.where(fits, wanted, 0), 0))
        assert (off <= room).all(), f"{name}: {off.max()} beyond {room}"


def compare(seed):
    """How many comparisons the case of the ``seed`` made."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            case = Case(rng)
            exact = case.outcome("float64", numpy_ops)
            break
        except SingaNetError:
            continue
    count = 0
    if case.drawn.torchs is not None:
        expect_close(exact, case.by_torch(), "float64")
        count += 1
    for ops in (numpy_ops, cpu_ops()):
        for dtype in ("float64", "float32", "float16"):
            layout = int(rng.integers(4))
            expect_close(case.outcome(dtype, ops, layout), exact, dtype, case.slope)
            count += 1
    if rng.random() < 0.25:
        kind, ops = str(rng.choice(["float32", "float16"])), (numpy_ops, cpu_ops())[yes(rng)]
        case.recorded(kind, ops, int(rng.integers(4)))
        count += 3
    return count


def searched(seeds):
    made = 0
    for seed in seeds:
        with np.errstate(all="ignore"):
            try:
                made += compare(seed)
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error
    return made


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_extents_memory_and_types():
    assert searched(range(120)) > 700


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_more_extents_memory_and_types():
    """100,000 comparisons, or as many as fit SINGANET_SECONDS, from SINGANET_SEED on."""
    start, made = int(os.environ.get("SINGANET_SEED", "1000")), 0
    limit = float(os.environ.get("SINGANET_SECONDS", "inf"))
    began = time.monotonic()
    while made < 100_000 and time.monotonic() - began < limit:
        made += searched(range(start, start + 50))
        start += 50
    assert made, start
