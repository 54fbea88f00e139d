"""Small nets of PyTorch after the published ones, as (module, arguments), by name."""

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A module of ``parts``, which ``run(module, x)`` calls."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.run(self, x)


def resnet():
    def basic(i, o, stride):
        down = [nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)] * (stride > 1)
        return Net(
            lambda m, x: F.relu(m.b2(m.c2(F.relu(m.b1(m.c1(x))))) + m.down(x)),
            c1=nn.Conv2d(i, o, 3, stride, 1, bias=False), b1=nn.BatchNorm2d(o),
            c2=nn.Conv2d(o, o, 3, 1, 1, bias=False), b2=nn.BatchNorm2d(o),
            down=nn.Sequential(*down),
        )  # fmt: skip

    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), basic(8, 8, 1),
        basic(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip


def mobile():
    def run(m, x):
        x = F.hardswish(m.a(x))
        y = F.relu6(m.d(x))
        y = y * F.hardsigmoid(m.up(F.relu(m.down(F.adaptive_avg_pool2d(y, 1)))))
        return m.fc(F.hardswish((m.p(y) + x).mean([2, 3])))

    return Net(
        run, a=nn.Conv2d(3, 8, 3, 2, 1), d=nn.Conv2d(8, 8, 3, 1, 1, groups=8),
        down=nn.Conv2d(8, 4, 1), up=nn.Conv2d(4, 8, 1), p=nn.Conv2d(8, 8, 1), fc=nn.Linear(8, 5),
    )  # fmt: skip


def unet(up):
    def run(m, x):
        a = F.relu(m.a(x))
        u = m.u(F.relu(m.b(F.max_pool2d(a, 2))))
        dy, dx = a.shape[2] - u.shape[2], a.shape[3] - u.shape[3]
        u = F.pad(u, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return m.c(torch.cat([a, u], 1))

    wider = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
    return Net(
        run, a=nn.Conv2d(3, 8, 3, padding=1), b=nn.Conv2d(8, 16, 3, padding=1),
        u=nn.ConvTranspose2d(16, 8, 2, 2) if up else nn.Sequential(wider, nn.Conv2d(16, 8, 1)),
        c=nn.Conv2d(16, 4, 3, padding=1),
    )  # fmt: skip


def recurrent(kind, bi):
    steps = getattr(nn, kind)(6, 8, 2, batch_first=True, bidirectional=bi)
    return Net(lambda m, x: m.fc(m.r(x)[0][:, -1]), r=steps, fc=nn.Linear(16 if bi else 8, 3))


def char_rnn():
    parts = {"e": nn.Embedding(20, 6), "r": nn.LSTM(6, 8, 2, batch_first=True)}
    return Net(lambda m, x: m.fc(m.r(m.e(x))[0]), **parts, fc=nn.Linear(8, 20))


def blocks(count, act="gelu", first=True):
    block = nn.TransformerEncoderLayer(16, 4, 32, 0.0, act, batch_first=True, norm_first=first)
    return nn.TransformerEncoder(block, count, enable_nested_tensor=False)


def encoder(first=True, act="gelu", mask=False):
    def run(m, x):
        seen = (x == 0) if mask else None
        return m.fc(m.enc(m.e(x) + m.p, src_key_padding_mask=seen).mean(1))

    return Net(
        run, e=nn.Embedding(20, 16), p=nn.Parameter(torch.randn(1, 7, 16)),
        enc=blocks(2, act, first), fc=nn.Linear(16, 3),
    )  # fmt: skip


def attention():
    return Net(
        lambda m, x: m.a(x, x, x, need_weights=False)[0],
        a=nn.MultiheadAttention(16, 4, batch_first=True),
    )


def causal_attention():
    def run(m, x):
        n, t, e = x.shape
        heads = [a.view(n, t, 4, 4).transpose(1, 2) for a in m.qkv(x).chunk(3, -1)]
        y = F.scaled_dot_product_attention(*heads, is_causal=True)
        return m.o(y.transpose(1, 2).reshape(n, t, e))

    return Net(run, qkv=nn.Linear(16, 48), o=nn.Linear(16, 16))


def vit():
    def run(m, x):
        x = m.c(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.cls.expand(x.shape[0], -1, -1), x], 1) + m.p
        return m.fc(m.n(m.enc(x))[:, 0])

    return Net(
        run, c=nn.Conv2d(3, 16, 4, 4), cls=nn.Parameter(torch.randn(1, 1, 16)),
        p=nn.Parameter(torch.randn(1, 10, 16)), enc=blocks(1), n=nn.LayerNorm(16),
        fc=nn.Linear(16, 3),
    )  # fmt: skip


def wide():
    def run(m, x):
        deep = torch.cat([e(x[:, k]) for k, e in enumerate(m.e)], 1)
        return torch.sigmoid(m.m(deep) + sum(e(x[:, k]) for k, e in enumerate(m.w)))

    return Net(
        run, e=nn.ModuleList(nn.Embedding(10, 4) for _ in range(3)),
        m=nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)),
        w=nn.ModuleList(nn.Embedding(10, 1) for _ in range(3)),
    )  # fmt: skip


def vgg():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.AvgPool2d(3, 1, 1), nn.Flatten(),
        nn.Linear(8 * 3 * 3, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4),
    )  # fmt: skip


def autoencoder():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.LeakyReLU(0.2),
        nn.Flatten(), nn.Linear(72, 6), nn.Linear(6, 72), nn.Unflatten(1, (8, 3, 3)),
        nn.ConvTranspose2d(8, 8, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
        nn.Sigmoid(),
    )  # fmt: skip


def norms():
    parts = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.InstanceNorm2d(16, affine=True),
        nn.LocalResponseNorm(5), nn.PReLU(16), nn.PixelShuffle(2),
    )  # fmt: skip
    return Net(
        lambda m, x: F.log_softmax(m.fc(F.normalize(m.s(x).mean((2, 3)), dim=1)), -1),
        s=parts, fc=nn.Linear(4, 3),
    )  # fmt: skip


def sequences():
    def run(m, x):
        y = m.p(F.elu(m.a(x)))
        return torch.cat([F.softplus(m.bn(m.b(y))).amax(-1), y.mean(-1)], 1)

    return Net(
        run, a=nn.Conv1d(4, 8, 3, dilation=2, padding=2), bn=nn.BatchNorm1d(8),
        b=nn.Conv1d(8, 8, 3, stride=2, groups=2), p=nn.MaxPool1d(2),
    )  # fmt: skip


def arithmetic():
    def run(m, x):
        a = torch.exp(-x.abs()) * m.w + torch.sqrt(x * x + 1) / m.w
        c = torch.clamp(torch.where(x > 0, a, x * 0.1), -1, 1) ** 2
        most, twice = x.max(1, keepdim=True)[0], x.unsqueeze(1).repeat(1, 2, 1).sum(1)
        return torch.cat([c, torch.log(a + 2), torch.sin(x), most, twice], -1)

    return Net(run, w=nn.Parameter(torch.rand(6) + 0.5))


def _floats(*shape):
    return torch.randn(2, *shape)


def _integers(*shape):
    return torch.randint(0, 10, (2, *shape))


MODELS = {
    "resnet": (resnet, _floats(3, 32, 32)),
    "mobile": (mobile, _floats(3, 16, 16)),
    "unet": (lambda: unet(True), _floats(3, 16, 16)),
    "unet, bilinear": (lambda: unet(False), _floats(3, 16, 16)),
    "lstm": (lambda: recurrent("LSTM", True), _floats(5, 6)),
    "gru": (lambda: recurrent("GRU", True), _floats(5, 6)),
    "rnn": (lambda: recurrent("RNN", False), _floats(5, 6)),
    "char_rnn": (char_rnn, _integers(7)),
    "encoder": (encoder, _integers(7)),
    "encoder, norm last": (lambda: encoder(False, "relu"), _integers(7)),
    "encoder with a mask": (lambda: encoder(mask=True), _integers(7)),
    "attention": (attention, _floats(5, 16)),
    "causal attention": (causal_attention, _floats(5, 16)),
    "vit": (vit, _floats(3, 12, 12)),
    "wide_deep": (wide, _integers(3)),
    "vgg": (vgg, _floats(3, 12, 12)),
    "autoencoder": (autoencoder, _floats(1, 12, 12)),
    "norms": (norms, _floats(3, 8, 8)),
    "sequences": (sequences, _floats(4, 20)),
    "arithmetic": (arithmetic, _floats(6)),
}


class Recurrent(nn.Module):
    """One of PyTorch's recurrent layers, of which ``head`` takes all steps, the last, or states."""

    def __init__(self, kind, stacks, bidirectional, batch_first, head):
        super().__init__()
        more = {"bidirectional": bidirectional, "batch_first": batch_first}
        self.r = getattr(nn, kind)(5, 7, stacks, **more)
        self.fc = nn.Linear(14 if bidirectional else 7, 3)
        self.head, self.batch_first = head, batch_first

    def forward(self, x):
        y, state = self.r(x)
        if self.head == "states":
            h = state[0] if isinstance(state, tuple) else state
            y = h[-2:].transpose(0, 1).flatten(1)[:, : self.fc.in_features]
        elif self.head == "last":
            y = y[:, -1] if self.batch_first else y[-1]
        return y if self.head == "all" else self.fc(y)


def made(name):
    """The module in evaluation mode, with running statistics as after a training, and inputs."""
    make, x = MODELS[name]
    return ready(make), x


def ready(make):
    """A module as `made` has it."""
    torch.manual_seed(0)
    module = make().eval()
    for each in module.modules():
        if getattr(each, "running_var", None) is not None:
            each.running_var.uniform_(0.5, 2.0)
            each.running_mean.uniform_(-1.0, 1.0)
    return module


def export(name, path, opset, dynamo):
    """Write the module to ``path`` with a free batch."""
    write(*made(name), path, opset, dynamo)


def write(module, x, path, opset, dynamo, batch_axis=0):
    """Write the module to ``path`` with a free batch, or with None for as many as ``x`` has."""
    free = {} if batch_axis is None else {batch_axis: torch.export.Dim("batch", min=1)}
    named = {"input_names": ["x"], "opset_version": opset, "verbose": False}
    if dynamo:
        more = {"dynamic_shapes": (free,)} if free else {}
    else:
        more = {"dynamic_axes": {"x": dict.fromkeys(free, "batch")}}
    torch.onnx.export(module, (x,), path, dynamo=dynamo, **more, **named)
