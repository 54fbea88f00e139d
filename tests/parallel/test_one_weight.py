"""A sample counts the same on ranks, stages and in micro-batches as in one batch.

Trainings are drawn at random: synchronized statistics, ignored labels, sums, several outputs,
clipping, accumulation, averages, float16. The whole batch is computed by formulas in NumPy.
"""

import random
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet import optimizer as kinds
from singanet import parallel
from singanet.engine.step import Counts
from singanet.layers import Activation, BatchNormalization, Dense, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.chain import UpdateChain
from singanet.training.callbacks import EMA
from tests.kit.nets import values_of
from tests.kit.ranks import served, together
from tests.parallel.test_random_settings import WAYS, check, differs

IGNORED, STEPS = -1, 6
RATE, CLIP, DECAY, MOVES, EPSILON = 0.1, 0.2, 0.75, 0.3, 1e-5
WAYS = {
    **{name: WAYS[name] for name in ("all", "sparse")},
    "power": partial(parallel.PowerSGD, rank=8, warm_start=False, error_feedback=False, gain=0.0),
    **{name: WAYS[name] for name in ("state", "gradients", "parameters", "local")},
    "partial": partial(parallel.PartialUpdate, partitions=1),
    "server": parallel.ParameterServer,
    "stages": lambda rule, comm: rule,
    "rows": parallel.AllReduce,
}


def draw(seed):
    rng = random.Random(seed)

    def maybe(share):
        return rng.random() < share

    way = rng.choice([*WAYS, "all", "stages"])
    staged = way in ("stages", "rows")
    ranks = rng.choice([2, 3]) if way != "rows" else 4
    outputs = rng.choice([1, 2])
    normed = maybe(0.6) and not staged
    by_itself = way in ("local", "partial")
    ignore = tuple(maybe(0.6) for _ in range(outputs))
    sums = tuple(maybe(0.2) for _ in range(outputs))
    half = maybe(0.25) and not (way in ("parameters", "sparse", "power") or by_itself)
    clip = maybe(0.3) and not by_itself and not (way == "server" and half)
    if by_itself and not normed and outputs == 2:
        # Each rank updates by its own means, and has one weight for all outputs.
        ignore = False, False
    overflows = half and way != "server" and maybe(0.5)
    return SimpleNamespace(
        way=way,
        ranks=ranks,
        by=rng.choice(["step", "fit"]),
        recorded=maybe(0.6),
        normed=normed,
        outputs=outputs,
        ignore=ignore,
        sums=(False,) * outputs if by_itself else sums,
        weighted=maybe(0.3),
        momentum=0.0 if by_itself else rng.choice([0.0, 0.5]),
        clip=clip,
        accumulate=1 if by_itself or way == "parameters" else rng.choice([1, 1, 2]),
        averaged=maybe(0.3) and not by_itself and way not in ("parameters", "server"),
        half=half,
        overflows=rng.randrange(STEPS) if overflows else None,
        samples=rng.randint(6, 14),
        micro=rng.randint(2, 4),
        seed=seed,
        cuts=[sorted(rng.randint(0, 1 << 20) for _ in range(5)) for _ in range(STEPS)],
    )


def batches(given):
    """Inputs, targets by output and weights of each step; in some parts all labels are ignored."""
    rng = np.random.default_rng(given.seed)
    n, made = given.samples, []
    for step in range(STEPS):
        x = rng.standard_normal((n, 6))
        y = {}
        for k, ignores in enumerate(given.ignore):
            labels = rng.integers(0, 3 + k, n)
            if ignores:
                labels[rng.random(n) < 0.3] = IGNORED
                own = parts(given, step)[rng.integers(0, rows_of(given))]
                if rng.random() < 0.5:
                    labels[own] = IGNORED
            y[f"o{k}"] = labels
        weight = rng.integers(1, 4, n) / 2 if given.weighted else None
        if step == given.overflows:
            # On one rank alone.
            x[0] *= 1e6
        made.append((x, y, weight))
    return made


def rows_of(given):
    return {"stages": 1, "rows": 2}.get(given.way, given.ranks)


def parts(given, step):
    """The part of each rank; it may be empty, except in rows of a pipeline."""
    count = rows_of(given)
    if given.way == "rows":
        # A row needs samples for its micro-batches.
        edges = [given.samples * k // count for k in range(count + 1)]
    else:
        edges = [0, *sorted(c % (given.samples + 1) for c in given.cuts[step][: count - 1])]
        edges.append(given.samples)
    return [slice(a, b) for a, b in pairwise(edges)]


# -- one process, by formulas ----------------------------------------------------------------------


class Twin:
    """Trains the net of `build` by hand, in float64, from the values ``before``."""

    def __init__(self, given, before):
        self.given = given
        self.w = {name: np.array(value, np.float64) for name, value in before.items()}
        self.average = {name: value.copy() for name, value in self.w.items()}
        self.moving = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.gathered, self.weights = [], []

    def forward(self, x, train):
        w = self.w
        a = x @ w["a/weight"] + w["a/bias"]
        made = {"x": x, "a": a}
        if self.given.normed:
            mean, var = (a.mean(0), a.var(0)) if train else (w["n/mean"], w["n/var"])
            made |= {"mean": mean, "var": var, "hat": (a - mean) / np.sqrt(var + EPSILON)}
            a = made["hat"] * w["n/gamma"] + w["n/beta"]
        made["t"] = np.tanh(a)
        made["m"] = np.tanh(made["t"] @ w["m/weight"] + w["m/bias"])
        # It shares the weight of the layer before.
        made["l"] = np.tanh(made["m"] @ w["m/weight"] + w["l/bias"])
        return made

    def losses(self, made, y, weight):
        """By output the loss, its count, and the gradient of the scores."""
        found = {}
        for k, summed in enumerate(self.given.sums):
            scores = made["l"] @ self.w[f"o{k}/weight"] + self.w[f"o{k}/bias"]
            labels, there = y[f"o{k}"], y[f"o{k}"] != IGNORED
            p = np.exp(scores - scores.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            factor = there * (1.0 if weight is None else weight)
            picked = np.where(there, labels, 0)
            own = -np.log(p[np.arange(len(p)), picked]) * factor
            count = there.sum()
            dy = (p - np.eye(p.shape[1])[picked]) * factor[:, None]
            scale = 1.0 if summed else 1.0 / max(count, 1)
            found[f"o{k}"] = own.sum() / max(count, 1), count, dy * scale * self.share(k)
        return found

    def share(self, k):
        return 0.5 if k else 1.0

    def loss(self, batches):
        """The loss of several batches: each output has a mean of its own."""
        total = 0.0
        for k in range(self.given.outputs):
            own = [found[f"o{k}"][:2] for found in batches]
            counted = sum(count for _, count in own)
            total += self.share(k) * sum(loss * count for loss, count in own) / max(counted, 1)
        return total

    def gradients(self, made, found):
        w, g = self.w, {}
        dl = 0.0
        for name, (_, _, dy) in found.items():
            g |= {f"{name}/weight": made["l"].T @ dy, f"{name}/bias": dy.sum(0)}
            dl = dl + dy @ w[f"{name}/weight"].T
        dl = dl * (1 - made["l"] ** 2)
        g["l/bias"] = dl.sum(0)
        dm = dl @ w["m/weight"].T * (1 - made["m"] ** 2)
        g |= {"m/weight": made["m"].T @ dl + made["t"].T @ dm, "m/bias": dm.sum(0)}
        da = dm @ w["m/weight"].T * (1 - made["t"] ** 2)
        if self.given.normed:
            hat = made["hat"]
            g |= {"n/gamma": (da * hat).sum(0), "n/beta": da.sum(0)}
            dhat = da * w["n/gamma"]
            da = (dhat - dhat.mean(0) - hat * (dhat * hat).mean(0)) / np.sqrt(made["var"] + EPSILON)
        return g | {"a/weight": made["x"].T @ da, "a/bias": da.sum(0)}

    def step(self, x, y, weight, skipped=False):
        made = self.forward(x, True)
        found = self.losses(made, y, weight)
        if skipped:
            return found
        if self.given.normed:
            n = len(x)
            for name, new in {"n/mean": made["mean"], "n/var": made["var"] * n / (n - 1)}.items():
                self.w[name] = (1 - MOVES) * self.w[name] + MOVES * new
        counts = [count for _, count, _ in found.values()]
        weighs = 1.0 if all(self.given.sums) else counts[0] if len(counts) == 1 else len(x)
        self.gathered.append(self.gradients(made, found))
        self.weights.append(weighs)
        if len(self.gathered) == self.given.accumulate:
            self.update()
        return found

    def update(self):
        total = sum(self.weights) or 1.0
        g = {
            name: sum(
                w / total * each[name] for w, each in zip(self.weights, self.gathered, strict=True)
            )
            for name in self.gathered[0]
        }
        self.gathered, self.weights = [], []
        norm = np.sqrt(sum((each**2).sum() for each in g.values()))
        scale = min(1.0, CLIP / norm) if self.given.clip and norm else 1.0
        for name, each in g.items():
            self.moving[name] = self.given.momentum * self.moving[name] + scale * each
            self.w[name] = self.w[name] - RATE * self.moving[name]
        for name, value in self.w.items():
            self.average[name] = DECAY * self.average[name] + (1 - DECAY) * value


# -- the library -----------------------------------------------------------------------------------


def build(given):
    with parallel.stage(0):
        x = Input("x", (6,))
        h = Dense("a", 5)(x)
        if given.normed:
            h = BatchNormalization("n", momentum=MOVES, epsilon=EPSILON, synchronized=True)(h)
        middle = Dense("m", 5)
        h = Activation("m t", "tanh")(middle(Activation("t", "tanh")(h)))
    with parallel.stage(1):
        h = Activation("l t", "tanh")(Dense("l", 5, W_specs=middle.params["weight"])(h))
    with parallel.stage(2 if given.way == "stages" and given.ranks == 3 else 1):
        heads = [Dense(f"o{k}", 3 + k)(h) for k in range(given.outputs)]
    net = singanet.FeedForwardNet(inputs=[x], outputs=heads, seed=1)
    if not given.half:
        net.as_type("float64")
    net.programs.enabled = given.recorded
    losses = {
        f"o{k}": SoftmaxCrossEntropy(
            ignore_index=IGNORED if ignores else None, reduction="sum" if summed else "mean"
        )
        for k, (ignores, summed) in enumerate(zip(given.ignore, given.sums, strict=True))
    }
    net.loss = losses["o0"] if given.outputs == 1 else MultiLoss(losses, {"o1": 0.5})
    if given.half:
        net.compile(kinds.SGD(RATE), mixed_precision=kinds.MixedPrecision(scale=1024.0))
    return net


def rule_of(given, comm, servers):
    rule = kinds.SGD(lr=RATE, momentum=given.momentum)
    if given.clip:
        rule = kinds.ClipByGlobalNorm(rule, CLIP)
    return WAYS[given.way](rule, comm=comm, **({} if servers is None else {"servers": servers}))


def targets(given, y):
    return y if given.outputs == 2 else y["o0"]


def train(given, comm, servers=None):
    net, pipeline, rank = build(given), None, comm.rank
    if given.way in ("stages", "rows"):
        pipeline = parallel.Pipeline(
            net, micro_batches=given.micro, comm=comm, replicas=rows_of(given)
        )
        comm, rank = pipeline.replicas, pipeline.replica
    optimizer = rule_of(given, comm, servers)
    run = by_fit if given.by == "fit" else by_step
    numbers = run(given, net, optimizer, rank, pipeline)
    for stage in UpdateChain(optimizer).reducers:
        stage.unify(pipeline.part if pipeline else net)
    if pipeline is not None:
        pipeline.gather()
    found = values_of(net)
    comm.barrier("the values")
    return found, numbers


def by_step(given, net, optimizer, rank, pipeline):
    if given.accumulate > 1:
        optimizer = kinds.Accumulator(optimizer, given.accumulate)
    averaged = None
    if given.averaged:
        averaged = optimizer = Averaged(optimizer, DECAY)
    scaled = net.compiled.scaled(optimizer) if given.half else optimizer
    if averaged is not None:
        averaged.begin_with((pipeline.part if pipeline else net).params())
    losses = []
    for step, (x, y, weight) in enumerate(batches(given)):
        own = parts(given, step)[rank]
        y = targets(given, {name: labels[own] for name, labels in y.items()})
        with np.errstate(all="ignore"):
            told = net.step(
                x[own], y, scaled, sample_weight=None if weight is None else weight[own]
            )
        losses.append(told[0])
    if averaged is not None:
        for param in (pipeline.part if pipeline else net).params():
            param.value[...] = averaged.averages[param.name]
    return {"loss": losses} if given.way == "stages" else {}


def by_fit(given, net, optimizer, rank, pipeline):
    if given.half:
        net.compiled.optimizer = optimizer
    else:
        net.compile(optimizer)
    steps = batches(given)
    x = np.concatenate([x for x, _, _ in steps])
    y = {name: np.concatenate([y[name] for _, y, _ in steps]) for name in steps[0][1]}
    weight = np.concatenate([w for *_, w in steps]) if given.weighted else None
    y = targets(given, y)
    history = net.fit(
        x, y, given.samples, 1, shuffle=False, sample_weight=weight, accumulate=given.accumulate,
        callbacks=[EMA(DECAY)] if given.averaged else [], verbose=False,
        validation_data=(np.clip(x, -3, 3), y),
    )  # fmt: skip
    return {name: history[name] for name in ("loss", "val_loss")}


def by_hand(given):
    twin = Twin(given, values_of(build(given)))
    steps = batches(given)
    found = [
        twin.step(x, y, weight, step == given.overflows)
        for step, (x, y, weight) in enumerate(steps)
    ]
    numbers = {}
    if given.way == "stages" and given.by == "step":
        numbers["loss"] = [twin.loss([each]) for each in found]
    if given.by == "fit":
        again = [twin.losses(twin.forward(np.clip(x, -3, 3), False), y, None) for x, y, _ in steps]
        numbers = {"loss": [twin.loss(found)], "val_loss": [twin.loss(again)]}
    return twin.average if given.averaged else twin.w, numbers


def difference(given):
    """Where ranks differ from the formulas; empty if they do not."""
    wanted, numbers = by_hand(given)
    if given.way == "server":
        made = served(lambda comm, servers: train(given, comm, servers), given.ranks, 1)
    else:
        made = together(lambda comm: train(given, comm), given.ranks)
    near = (0.05, 0.02) if given.half else (1e-7, 1e-9)
    if given.overflows is not None:
        numbers, made = {}, [(values, {}) for values, _ in made]
    return differs(made, wanted, numbers, near, near)


@pytest.mark.few(12, full=24)
@pytest.mark.parametrize("seed", range(60))
def test_ranks_and_stages_are_one_batch(seed):
    check(draw(seed), difference, ())


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 5_100, 250))
def test_ranks_and_stages_are_one_batch_5000(start):
    for seed in range(start, start + 250):
        check(draw(seed), difference, ())


def test_a_lost_share_is_seen(monkeypatch):
    monkeypatch.setattr(Counts, "shares", lambda self, whole: {})
    given = draw(0)
    given.way, given.by, given.ranks, given.outputs, given.half = "all", "step", 2, 2, False
    given.overflows, given.ignore, given.sums, given.accumulate = None, (True, False), (0, 0), 1
    assert "off by" in difference(given)
