"""Small nets of PyTorch after the published ones, as (module, arguments), by name."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn


class Basic(nn.Module):
    def __init__(self, i, o, st):
        super().__init__()
        self.c1 = nn.Conv2d(i, o, 3, st, 1, bias=False)
        self.b1 = nn.BatchNorm2d(o)
        self.c2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(o)
        self.down = (
            nn.Sequential(nn.Conv2d(i, o, 1, st, bias=False), nn.BatchNorm2d(o))
            if st > 1 or i != o
            else nn.Identity()
        )

    def forward(self, x):
        return F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))) + self.down(x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 8, 7, 2, 3)
        self.p = nn.MaxPool2d(3, 2, 1)
        self.l = nn.Sequential(Basic(8, 8, 1), Basic(8, 16, 2))
        self.g = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x):
        return self.fc(torch.flatten(self.g(self.l(self.p(F.relu(self.c(x))))), 1))


class SE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a = nn.Conv2d(c, 4, 1)
        self.b = nn.Conv2d(4, c, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.b(F.relu(self.a(F.adaptive_avg_pool2d(x, 1)))))


class Mobile(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, 2, 1)
        self.d = nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.se = SE(8)
        self.p = nn.Conv2d(8, 8, 1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        x = F.hardswish(self.a(x))
        y = F.relu6(self.d(x))
        y = self.se(y)
        y = self.p(y) + x
        return self.fc(F.hardswish(y.mean([2, 3])))


class UNet(nn.Module):
    def __init__(self, up):
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(8, 16, 3, padding=1)
        self.u = (
            nn.ConvTranspose2d(16, 8, 2, 2)
            if up
            else nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
                nn.Conv2d(16, 8, 1),
            )
        )
        self.c = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        u = self.u(b)
        dy = a.shape[2] - u.shape[2]
        dx = a.shape[3] - u.shape[3]
        u = F.pad(u, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        return self.c(torch.cat([a, u], 1))


class Rec(nn.Module):
    def __init__(self, kind, bi):
        super().__init__()
        self.r = getattr(nn, kind)(6, 8, 2, batch_first=True, bidirectional=bi)
        self.fc = nn.Linear(16 if bi else 8, 3)

    def forward(self, x):
        y, _ = self.r(x)
        return self.fc(y[:, -1])


class CharRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(20, 6)
        self.r = nn.LSTM(6, 8, 2, batch_first=True)
        self.fc = nn.Linear(8, 20)

    def forward(self, x):
        y, _ = self.r(self.e(x))
        return self.fc(y)


class Enc(nn.Module):
    def __init__(self, first=True, act="gelu", mask=False):
        super().__init__()
        self.e = nn.Embedding(20, 16)
        self.p = nn.Parameter(torch.randn(1, 7, 16))
        block = nn.TransformerEncoderLayer(16, 4, 32, 0.0, act, batch_first=True, norm_first=first)
        self.enc = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.fc = nn.Linear(16, 3)
        self.mask = mask

    def forward(self, x):
        m = (x == 0) if self.mask else None
        return self.fc(self.enc(self.e(x) + self.p, src_key_padding_mask=m).mean(1))


class MHA(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.a(x, x, x, need_weights=False)[0]


class SDPA(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.o = nn.Linear(16, 16)
        self.c = causal

    def forward(self, x):
        n, t, e = x.shape
        q, k, v = self.qkv(x).chunk(3, -1)
        heads = [a.view(n, t, 4, 4).transpose(1, 2) for a in (q, k, v)]
        y = F.scaled_dot_product_attention(*heads, is_causal=self.c)
        return self.o(y.transpose(1, 2).reshape(n, t, e))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 16))
        self.p = nn.Parameter(torch.randn(1, 10, 16))
        block = nn.TransformerEncoderLayer(
            16, 4, 32, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.enc = nn.TransformerEncoder(block, 1, enable_nested_tensor=False)
        self.n = nn.LayerNorm(16)
        self.fc = nn.Linear(16, 3)

    def forward(self, x):
        x = self.c(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.p
        return self.fc(self.n(self.enc(x))[:, 0])


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.ModuleList(nn.Embedding(10, 4) for _ in range(3))
        self.m = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        self.w = nn.ModuleList(nn.Embedding(10, 1) for _ in range(3))

    def forward(self, x):
        d = torch.cat([e(x[:, k]) for k, e in enumerate(self.e)], 1)
        w = sum(e(x[:, k]) for k, e in enumerate(self.w))
        return torch.sigmoid(self.m(d) + w)


class Vgg(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2, ceil_mode=True),
        )
        self.a = nn.AvgPool2d(3, 1, 1)
        self.c = nn.Sequential(nn.Linear(8 * 3 * 3, 16), nn.ReLU(), nn.Dropout(), nn.Linear(16, 4))

    def forward(self, x):
        return self.c(torch.flatten(self.a(self.f(x)), 1))


class AE(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Sequential(
            nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.LeakyReLU(0.2)
        )
        self.l = nn.Linear(8 * 3 * 3, 6)
        self.d = nn.Linear(6, 72)
        self.u = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 3, 2, 1, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
            nn.Sigmoid(),
        )

    def forward(self, x):
        z = self.l(self.e(x).flatten(1))
        return self.u(self.d(z).view(-1, 8, 3, 3))


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv2d(3, 16, 3, padding=1)
        self.g = nn.GroupNorm(4, 16)
        self.i = nn.InstanceNorm2d(16, affine=True)
        self.l = nn.LocalResponseNorm(5)
        self.p = nn.PReLU(16)
        self.s = nn.PixelShuffle(2)
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        y = self.s(self.p(self.l(self.i(self.g(self.c(x))))))
        y = F.normalize(y.mean((2, 3)), dim=1)
        return F.log_softmax(self.fc(y), -1)


class Conv1(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv1d(4, 8, 3, dilation=2, padding=2)
        self.b = nn.Conv1d(8, 8, 3, stride=2, groups=2)
        self.bn = nn.BatchNorm1d(8)
        self.p = nn.MaxPool1d(2)

    def forward(self, x):
        y = self.p(F.elu(self.a(x)))
        return torch.cat([F.softplus(self.bn(self.b(y))).amax(-1), y.mean(-1)], 1)


class Arith(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(6) + 0.5)

    def forward(self, x):
        a = torch.exp(-x.abs()) * self.w + torch.sqrt(x * x + 1) / self.w
        b = torch.where(x > 0, a, x * 0.1)
        c = torch.clamp(b, -1, 1) ** 2
        return torch.cat(
            [
                c,
                torch.log(a + 2),
                torch.sin(x),
                x.max(1, keepdim=True)[0],
                x.unsqueeze(1).repeat(1, 2, 1).sum(1),
            ],
            -1,
        )


def _floats(*shape):
    return torch.randn(2, *shape)


def _integers(*shape):
    return torch.randint(0, 10, (2, *shape))


MODELS = {
    "resnet": (ResNet, _floats(3, 32, 32)),
    "mobile": (Mobile, _floats(3, 16, 16)),
    "unet": (lambda: UNet(True), _floats(3, 16, 16)),
    "unet, bilinear": (lambda: UNet(False), _floats(3, 16, 16)),
    "lstm": (lambda: Rec("LSTM", True), _floats(5, 6)),
    "gru": (lambda: Rec("GRU", True), _floats(5, 6)),
    "rnn": (lambda: Rec("RNN", False), _floats(5, 6)),
    "char_rnn": (CharRNN, _integers(7)),
    "encoder": (Enc, _integers(7)),
    "encoder, norm last": (lambda: Enc(False, "relu"), _integers(7)),
    "encoder with a mask": (lambda: Enc(True, "gelu", True), _integers(7)),
    "attention": (MHA, _floats(5, 16)),
    "causal attention": (SDPA, _floats(5, 16)),
    "vit": (ViT, _floats(3, 12, 12)),
    "wide_deep": (Wide, _integers(3)),
    "vgg": (Vgg, _floats(3, 12, 12)),
    "autoencoder": (AE, _floats(1, 12, 12)),
    "norms": (Norms, _floats(3, 8, 8)),
    "sequences": (Conv1, _floats(4, 20)),
    "arithmetic": (Arith, _floats(6)),
}


class Recurrent(nn.Module):
    """One of PyTorch's recurrent layers, of which ``head`` takes all steps, the last, or states."""

    def __init__(self, kind, stacks, bidirectional, batch_first, head):
        super().__init__()
        self.r = getattr(nn, kind)(
            5, 7, stacks, bidirectional=bidirectional, batch_first=batch_first
        )
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
