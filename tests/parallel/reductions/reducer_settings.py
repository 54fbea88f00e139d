"""Trainings that each reducer has to carry out on several ranks as one process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import numpy as np

import singanet
from singanet import optimizer as kinds
from singanet.layers import Activation, Add, BatchNormalization, Dense, Input, Layer
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.ops import ops_for
from singanet.optimizer import SGD, Accumulator, Adam, Optimizer, StageTraits, Wrapper
from singanet.params.param import ParamSpec
from tests.kit.nets import uneven_net, values_of, words_net

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
WORDS = RNG.integers(0, 30, (24, 3))


class Signs(Optimizer):
    """A user's own rule, which reads whole arrays: it moves them by their largest element."""

    slots = ("seen",)

    def __init__(self):
        super().__init__(lr=0.01)

    def _scalars(self, state, rate):
        return (rate,)

    def _sweep(self, update):
        value, seen = update.value, update.arrays[0]
        seen += abs(update.grad.reshape(-1))
        value -= 0.01 * np.sign(update.grad * update.scale) * abs(value).max()

    def _sweep_rows(self, indices, update):
        raise AssertionError


class Halves(Wrapper):
    """A user's own stage, which says that it works by elements."""

    traits = StageTraits(reads="elements")

    def take(self, names, values, grads, scale):
        yield names, values, grads, scale * 0.5


class Twice(Layer):
    fails = False

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return 2 * x

    def backward(self, ctx, dy):
        if self.fails:
            raise KeyError("lost")
        return 2 * dy, {}


class Masked(SoftmaxCrossEntropy):
    """A user's own loss: a mean over targets that are not −1, which may be none."""

    def forward(self, flag, x, y, *weight):
        xp = ops_for(x).xp
        self.counts = xp.asarray((y >= 0).astype(np.float32))
        self.total = float(self.counts.sum())
        super().forward(flag, x, y * (y >= 0), *weight)
        self.mean_over = self.total
        return xp.zeros(len(x), np.float32)

    def count(self, x, y):
        return float((y >= 0).sum())

    def backward(self):
        return super().backward() * self.counts[:, None] * (len(self.counts) / max(self.total, 1))


def falling(step):
    """A learning rate that servers can import."""
    return 0.3 / (1 + step)


# -- nets -----------------------------------------------------------------------------------------


def with_loss(loss, build=uneven_net):
    net = build()
    net.loss = loss
    return net


def heads(**losses):
    x = Input("x", (6,))
    h = Dense("h", 5)(x)
    outputs = [Dense("a", 3)(h), Dense("b", 4)(h)]
    net = singanet.FeedForwardNet(inputs=[x], outputs=outputs, seed=1, loss=MultiLoss(losses))
    net.as_type("float64")
    return net


def tied():
    net = singanet.FeedForwardNet(SquaredError(), seed=0)
    net.add(Dense("first", 6, input_sample_shape=(6,)))
    encoder = net.add(Dense("encoder", 3))
    net.add(Dense("decoder", 6, W_specs=encoder.params["weight"], W_transpose=True))
    return net


def twice_used():
    x = Input("x", (6,))
    again = Dense("again", 30)
    h = again(Activation("t", "tanh")(Dense("a", 30)(x)))
    h = Add("sum")(h, again(Activation("r", "relu")(h)))
    loss = SoftmaxCrossEntropy()
    return singanet.FeedForwardNet(inputs=x, outputs=Dense("o", 4)(h), loss=loss, seed=1)


def words_and_layers():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    for layer in words_net(wide=4).layers:
        if layer.name == "d":
            net.add(Dense("h", 5))
        net.add(type(layer)(**layer.arguments))
    return net


# -- what a user changes before step k ------------------------------------------------------------


def tell_before(k, net, optimizer):
    if k == 0:
        optimizer.register_all([ParamSpec("h/weight", lr_mult=0.0), ParamSpec("e/weight", 0.5)])


def tell_later(k, net, optimizer):
    if k == 2:
        optimizer.register("h/weight", ParamSpec("h/weight", lr_mult=0.25))


def assign(k, net, optimizer):
    if k == 2:
        weight, bias = net["d"].params["weight"], net["h"].params["bias"]
        weight.spec = replace(weight.spec, lr_mult=0.25, decay_mult=2.0)
        bias.spec = replace(bias.spec, constraint=0.01)


def faster(k, net, optimizer):
    if k == 2:
        kinds.chain.UpdateChain(optimizer).rule.lr = 0.3


def turns(*turns):
    """Layers that are trainable, or not, from steps on."""

    def change(k, net, optimizer):
        for at, name, trainable in turns:
            if at == k:
                net[name].trainable = trainable

    return change


THAWED = turns((0, "h", False), (3, "h", True), (0, "e", False), (4, "e", True))
FROZEN = turns((0, "h", True), (0, "d", False), (3, "h", False), (3, "d", True))
# At, and between, the updates of three micro-batches each.
BY_TURNS = turns(
    (4, "h", False), (7, "h", True), (8, "e", False), (9, "h", False), (12, "e", True),
    (13, "h", True), (16, "d", False), (17, "d", True),
)  # fmt: skip


# -- trainings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A training; ``inside`` are stages that the reducer reduces for."""

    build: Callable[[], Any] = uneven_net
    rule: Callable[[], Any] = lambda: SGD(lr=0.1, momentum=0.9)
    inside: Callable[[Any], Any] = lambda rule: rule
    every: int = 1
    """The micro-batches of an update."""
    counts: tuple[int, ...] = (24, 24, 17, 24, 24, 17)
    """The samples of all ranks in each step."""
    shards: Callable[[int, int, int], Any] = lambda rank, size, n: slice(rank, n, size)
    joins: bool = False
    """Whether all ranks but the first have no samples in the last steps, and join."""
    change: Callable[[int, Any, Any], None] | None = None
    x: Any = field(default_factory=lambda: X)
    y: Any = field(default_factory=lambda: Y)
    near: tuple[float, float] | None = (2e-5, 2e-6)
    """How near ranks are to one process; None: they are not, as each has statistics of its own."""
    norm: bool = False
    """Whether it looks at norms, which parts round otherwise than the whole."""
    told: str = ""
    """What a note of the recorded programs says, if there is one."""
    losses: bool = True
    """Whether the losses of ranks weigh by their samples."""
    not_recorded: str = "$^"
    """What is said of steps of which only the passes are recorded."""


def falling_shards(rank, size, n):
    """Contiguous parts, of which the last rank has the most, and the first now and then none."""
    bounds = [n * r * (r + 1 - n % 2) // (size * (size + 1 - n % 2)) for r in range(size + 1)]
    return slice(bounds[rank], bounds[rank + 1])


CLIPS = {
    "value": lambda rule: kinds.ClipByValue(rule, 0.02),
    "layer": lambda rule: kinds.ClipByLayerNorm(rule, 0.1),
    "global": lambda rule: kinds.ClipByGlobalNorm(rule, 0.1),
    "running": lambda rule: kinds.ClipByRunningNorm(rule, 0.1),
    "both": lambda rule: kinds.ClipByGlobalNorm(kinds.ClipByValue(rule, 0.01), 0.1),
}
RULES = {
    "adam": lambda: Adam(lr=kinds.schedules.Exponential(0.003, 2, 0.9)),
    "adamw": lambda: kinds.AdamW(lr=0.003, weight_decay=0.1),
    "decoupled": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01, decoupled=True),
    "decay": lambda: SGD(lr=falling, weight_decay=0.01, constraint=0.1),
    "max norm": lambda: Adam(lr=0.01, constraint=kinds.MaxNorm(1.5)),
    "lamb": lambda: kinds.LAMB(lr=0.01),
    "adafactor": lambda: kinds.Adafactor(lr=0.02),
    "galore": lambda: kinds.GaLore(lr=0.01, rank=2),
    "muon": lambda: kinds.Muon(lr=0.01),
    "own rule": Signs,
}
NOT_SMOOTH = ("own rule", "galore")
"""Rules whose updates jump where a gradient or a singular value is near another."""
LABELS = {"a": np.arange(24) % 3, "b": np.arange(24) % 4}
LABELS["a"][[0, 1, 2, 5, 7, 9]] = -1
TWO = {"x": X, "y": LABELS, "near": (1e-9, 1e-12), "losses": False}
ROWS = {"build": words_net, "x": WORDS}
CHANGED = {"build": words_and_layers, "x": WORDS}
CHANGED |= {"rule": partial(SGD, lr=0.3, momentum=0.5)}


def ignoring(**more):
    return SoftmaxCrossEntropy(ignore_index=-1, **more)


def ignoring_words():
    net = with_loss(ignoring(), words_net)
    net.as_type("float64")
    return net


SETTINGS = {
    "momentum": Setting(),
    "uneven": Setting(shards=falling_shards),
    "rows": Setting(**ROWS, rule=partial(SGD, lr=0.5, momentum=0.9, weight_decay=0.01)),
    "ignored": Setting(
        build=lambda: with_loss(SoftmaxCrossEntropy(ignore_index=2)), losses=False, told="?"
    ),
    "clip global": Setting(inside=CLIPS["global"], norm=True),
    "accumulated": Setting(every=2, counts=(24, 17) * 5),
    "joins": Setting(joins=True, losses=False),
    "two losses": Setting(
        **TWO, build=lambda: heads(a=ignoring(), b=SoftmaxCrossEntropy()), told="?"
    ),
    "two losses, joins": Setting(
        **TWO, joins=True, told="?",
        build=lambda: heads(a=ignoring(), b=SoftmaxCrossEntropy()),
    ),
    "thawed": Setting(**CHANGED, change=THAWED),
    "adam": Setting(rule=RULES["adam"], near=(1e-3, 1e-4)),
    "rows, adam": Setting(**ROWS, rule=RULES["adam"], near=(1e-3, 1e-4)),
    "own layer": Setting(
        build=lambda: uneven_net(more=[Twice("twice")]),
        rule=partial(SGD, lr=0.01),
        told="layer 'twice'",
        not_recorded="does not say that it is pure",
    ),
    "told before": Setting(**CHANGED, change=tell_before),
    "clip value": Setting(inside=CLIPS["value"]),
    "ignored, accumulated, clipped": Setting(
        build=lambda: with_loss(SoftmaxCrossEntropy(ignore_index=2)),
        every=2, counts=(24, 17) * 5, inside=CLIPS["global"], norm=True, losses=False, told="?",
    ),
    "shared": Setting(build=tied, y=X, rule=partial(SGD, lr=0.1)),
    "told later": Setting(**CHANGED, change=tell_later),
    "clip layer": Setting(inside=CLIPS["layer"], norm=True),
    "by turns": Setting(
        **CHANGED, change=BY_TURNS, every=3, counts=(6, 11, 16) * 7,
        not_recorded="a gradient of another kind",
    ),
    "sum": Setting(
        build=lambda: with_loss(SoftmaxCrossEntropy(reduction="sum")),
        rule=partial(SGD, lr=0.01), losses=False,
    ),
    "assigned": Setting(**CHANGED, change=assign),
    "own loss": Setting(
        build=lambda: with_loss(Masked()),
        y=np.where((np.arange(24) % 3 == 0) | (np.arange(24) % 2 == 1), -1, Y),
        rule=partial(SGD, lr=0.1), losses=False, told="?",
    ),
    "rows, clip value": Setting(**ROWS, inside=CLIPS["value"]),
    "rows, clip global": Setting(
        **ROWS, inside=CLIPS["global"], norm=True, not_recorded="waits for other processes",
    ),
    "two losses, one a sum": Setting(
        **TWO, told="?",
        build=lambda: heads(a=ignoring(reduction="sum"), b=SoftmaxCrossEntropy()),
    ),
    "two sums": Setting(
        **TWO, told="?", rule=partial(SGD, lr=0.01),
        build=lambda: heads(a=ignoring(reduction="sum"), b=ignoring(reduction="sum")),
    ),
    "frozen": Setting(**CHANGED, change=FROZEN),
    "by turns, clip global": Setting(
        **CHANGED, change=BY_TURNS, every=3, counts=(6, 11, 16) * 7,
        inside=CLIPS["global"], norm=True, not_recorded="waits for other processes|another kind",
    ),
    "rows, ignored": Setting(
        build=ignoring_words, x=WORDS, losses=False, told="?", near=(1e-9, 1e-12),
        y=np.where(np.arange(24) % 2, -1, Y), rule=partial(Adam, lr=0.1),
    ),
    "clip running": Setting(inside=CLIPS["running"], norm=True),
    "clip both": Setting(inside=CLIPS["both"], norm=True),
    "used twice": Setting(build=twice_used),
    "faster": Setting(change=faster),
    "own state": Setting(build=lambda: uneven_net(more=[BatchNormalization("n")]), near=None),
    "own stage": Setting(inside=Halves),
    **{
        f"rule {name}": Setting(rule=make, near=None if name in NOT_SMOOTH else (1e-3, 1e-4))
        for name, make in RULES.items()
        if name != "adam"
    },
}  # fmt: skip


def targets(y, rows):
    return {name: labels[rows] for name, labels in y.items()} if isinstance(y, dict) else y[rows]


def train(
    setting,
    wrap,
    rank=0,
    size=1,
    records=True,
    whole=0,
    place=lambda net: net,
    rule=lambda setting: setting.rule(),
):
    """Return the net, the optimizer and the losses of a rank.

    One process with ``whole`` has the samples of so many ranks.
    """
    net = place(setting.build())
    optimizer = wrap(setting.inside(rule(setting)))
    if setting.every > 1:
        optimizer = Accumulator(optimizer, setting.every)
    net.programs.enabled = records
    losses = []
    for k, count in enumerate(setting.counts):
        if setting.change is not None:
            setting.change(k, net, optimizer)
        rows = np.arange(len(X))[setting.shards(rank, size, count)]
        if whole:
            shards = [np.arange(len(X))[setting.shards(r, whole, count)] for r in range(whole)]
            late = setting.joins and k >= len(setting.counts) - 2
            rows = np.concatenate(shards[:1] if late else shards)
        elif setting.joins and rank and k == len(setting.counts) - 2:
            break
        losses.append(net.step(setting.x[rows], targets(setting.y, rows), optimizer)[0])
    if setting.joins and not whole:
        optimizer.join()
    return net, optimizer, losses


@cache
def alone(name, size):
    net, optimizer, losses = train(SETTINGS[name], lambda rule: rule, whole=size)
    return values_of(net), optimizer.state_dict(), losses
