"""Trainings drawn at random, that several processes and one are to carry out alike."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import singanet
from singanet import optimizer as kinds
from singanet.data import ArrayLoader
from singanet.layers import Activation, Add, Dense, Embedding, Flatten, Input, LayerNorm
from singanet.loss import MultiLoss, SoftmaxCrossEntropy
from singanet.metric import Accuracy, ConfusionMatrix, Perplexity
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    ParameterServer,
    Sharded,
    SparseAllReduce,
)
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from tests.kit.nets import values_of
from tests.kit.ranks import served, together

IGNORED = -1
LONG, WORDS = 4, 12
SMALLEST = 64
"""Bytes of what is not cut: bias vectors, and nothing else."""


def classes(given: Given, outputs: int = 1) -> Any:
    """Whole pictures, one label each; or two outputs that read the same layers."""
    x = Input("x", (6,))
    h = Activation("t", "tanh")(Dense("a", 8)(x))
    if given.shared:
        again = Dense("again", 8)
        h = Add("sum")(again(h), again(Activation("r", "relu")(h)))
    if given.normed:
        h = LayerNorm("n")(h)
    made = [Dense(f"o{k}", 3)(h) for k in range(outputs)]
    return singanet.FeedForwardNet(inputs=[x], outputs=made if outputs > 1 else made[0], seed=1)


def words(given: Given) -> Any:
    """A label for each step of rows of words."""
    x = Input("x", (LONG,))
    h = Embedding("e", WORDS, 5)(x)
    h = Activation("t", "tanh")(Dense("a", 6)(h))
    if given.normed:
        h = LayerNorm("n")(h)
    return singanet.FeedForwardNet(inputs=[x], outputs=Dense("o0", 3)(h), seed=1)


def bag(given: Given) -> Any:
    """Rows of words with one label."""
    return singanet.FeedForwardNet(
        [
            Embedding("e", WORDS, 5, input_sample_shape=(LONG,)),
            Flatten("f"),
            Activation("t", "tanh"),
            Dense("a", 6),
            Dense("o0", 3),
        ],
        seed=1,
    )


NETS = {
    "classes": classes,
    "two": partial(classes, outputs=2),
    "words": words,
    "bag": bag,
}


def falling(step: int) -> float:
    """A rate that servers can read."""
    return 0.3 / (1 + step)


RULES = {
    "sgd": lambda: kinds.SGD(0.2),
    "momentum": lambda: kinds.SGD(0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda: kinds.Nesterov(0.1, momentum=0.5),
    "adam": lambda: kinds.Adam(0.02),
    "adamw": lambda: kinds.AdamW(0.02, weight_decay=0.1),
    "adagrad": lambda: kinds.AdaGrad(0.1),
    "bounded": lambda: kinds.SGD(0.2, constraint=0.05),
    "falling": lambda: kinds.SGD(falling, regularizer=0.02),
    "lamb": lambda: kinds.LAMB(0.05),
    "rmsprop": lambda: kinds.RMSProp(0.01),
}


@dataclass
class Given:
    """A training as it was drawn."""

    net: str
    rule: str
    way: str
    ranks: int
    servers: int
    by: str
    recorded: bool
    samples: int
    batch: int
    epochs: int
    accumulate: int
    clip: str | None
    ignore: bool
    summed: bool
    weighted: bool
    of_classes: bool
    shared: bool
    normed: bool
    metrics: bool
    validated: bool
    averaged: bool
    drop_last: bool
    changes: dict[int, str] = field(default_factory=dict)
    stopped: int | None = None
    resumed_on: int = 1
    seed: int = 0


def draw(seed: int) -> Given:
    """The training of this number."""
    rng = random.Random(seed)

    def maybe(share: float) -> bool:
        return rng.random() < share

    way = rng.choice(["all", "all", "all", "window", "sparse", "server", "hybrid", "local"])
    net = rng.choice([*NETS, "words"])
    rules = [*RULES]
    if way == "local":
        # A mean of values is one of gradients only where a step is linear in them.
        rules = ["sgd"]
    if way in ("server", "hybrid") and net in ("words", "bag"):
        rules.remove("lamb")
    by = rng.choice(["arrays", "arrays", "loader", "step"])
    steps = 8
    given = Given(
        net=net,
        rule=rng.choice(rules),
        way=way,
        ranks=rng.choice([2, 2, 3, 4]),
        servers=rng.choice([1, 2]),
        by=by,
        recorded=maybe(0.7),
        samples=rng.randint(9, 40),
        batch=rng.randint(4, 12),
        epochs=rng.choice([1, 2, 3]),
        accumulate=rng.choice([1, 1, 2, 3]),
        clip=rng.choice([None, None, "value", "layer", "global"]),
        ignore=maybe(0.5),
        summed=maybe(0.15),
        weighted=maybe(0.3) and net != "words",
        of_classes=maybe(0.2) and net in ("classes", "bag"),
        shared=maybe(0.3),
        normed=maybe(0.3),
        metrics=maybe(0.5),
        validated=maybe(0.4),
        averaged=maybe(0.15) and way in ("all", "window", "sparse"),
        drop_last=maybe(0.2),
        changes={
            rng.randrange(steps): rng.choice(["freeze", "thaw", "rate", "tell", "assign"])
            for _ in range(rng.choice([0, 0, 1, 2]))
        },
        seed=seed,
    )
    if way == "local":
        # Each rank's own mean over what it does not ignore.
        ignore = given.ignore and net != "two"
        given = replace(
            given, accumulate=1, clip=None, changes={}, summed=False, ignore=ignore, averaged=False
        )
    if given.by != "step" and maybe(0.3):
        ranks = rng.choice([1, given.ranks])
        resumed_on = rng.choice([1, 2, 3])
        given = replace(given, ranks=ranks, stopped=rng.randint(1, 6), resumed_on=resumed_on)
    return given


def draw_sharded(seed: int) -> Given:
    """The training of this number, of which each rank keeps a part."""
    way = ("state", "gradients", "parameters")[seed % 3]
    return replace(draw(seed), way=way)


def data(given: Given, seed: int = 0) -> tuple[Any, Any, Any]:
    """Inputs, targets, weights."""
    rng = np.random.default_rng(given.seed + seed)
    n = given.samples
    outputs = 2 if given.net == "two" else 1
    if given.net in ("words", "bag"):
        x = rng.integers(0, WORDS, (n, LONG))
    else:
        x = rng.standard_normal((n, 6))
    shape = (n, LONG) if given.net == "words" else (n,)
    targets = [rng.integers(0, 3, shape) for _ in range(outputs)]
    if given.ignore:
        # Of the first output alone, where there are two; some samples wholly.
        targets[0][rng.random(shape) < 0.4] = IGNORED
    y = {f"o{k}": t for k, t in enumerate(targets)} if outputs == 2 else targets[0]
    weights = rng.integers(0, 4, n).astype(np.float32) / 2 if given.weighted else None
    return x, y, weights


def loss_of(given: Given) -> Any:
    ignore = {"ignore_index": IGNORED} if given.ignore else {}
    reduction = {"reduction": "sum"} if given.summed else {}
    first = SoftmaxCrossEntropy(**ignore, **reduction)
    if given.net != "two":
        return first
    return MultiLoss({"o0": first, "o1": SoftmaxCrossEntropy(**reduction)}, {"o1": 0.5})


class Changes(Callback):
    """What the training's user does before the step of a number."""

    def __init__(self, given: Given) -> None:
        self.given, self.done = given, 0

    def on_batch_begin(self, batch: Any, logs: Any = None) -> None:
        net = self.session.net
        # A training that is resumed has them all.
        for step in range(self.done, self.session.step + 1):
            change(self.given, step, net, net.compiled.optimizer)
        self.done = self.session.step + 1


def change(given: Given, step: int, net: Any, optimizer: Any) -> None:
    what = given.changes.get(step)
    weight = net["a"].params["weight"]
    if what in ("freeze", "thaw"):
        net["a"].trainable = what == "thaw"
    elif what == "rate":
        singanet.optimizer.chain.UpdateChain(optimizer).rule.lr = 0.01
    elif what == "tell":
        optimizer.register(weight.name, replace(weight.spec, lr_mult=0.25))
    elif what == "assign":
        weight.spec = replace(weight.spec, lr_mult=0.5)


class Stops(Callback):
    """Ends a training after its step of a number, its state kept in ``folder`` until then."""

    def __init__(self, step: int) -> None:
        self.at = step

    def on_batch_end(self, batch: Any, logs: Any = None) -> None:
        if self.session.step == self.at:
            self.session.stop("as drawn")


def wrapped(given: Given, comm: Any, servers: Any) -> Any:
    rule = RULES[given.rule]()
    if given.by == "step" and given.clip is not None:
        kind = {
            "value": kinds.ClipByValue,
            "layer": kinds.ClipByLayerNorm,
            "global": kinds.ClipByGlobalNorm,
        }[given.clip]
        rule = kind(rule, 0.05)
    if comm is not None:
        rule = {
            "all": lambda: AllReduce(rule, comm),
            "window": lambda: AllReduce(rule, comm, window=1),
            "sparse": lambda: SparseAllReduce(rule, comm, ratio=1.0),
            "state": lambda: Sharded(rule, comm, level=1, smallest=SMALLEST),
            "gradients": lambda: Sharded(rule, comm, level=2, smallest=SMALLEST),
            "parameters": lambda: Sharded(rule, comm, level=3, smallest=SMALLEST),
            "local": lambda: LocalSGD(rule, comm, every=1),
            "server": lambda: ParameterServer(rule, comm=comm, servers=servers),
            "hybrid": lambda: Hybrid(rule, comm, servers=servers),
        }[given.way]()
    if given.by == "step" and given.accumulate > 1:
        rule = kinds.Accumulator(rule, given.accumulate, mean=not given.summed)
    return rule


@dataclass
class Outcome:
    """What a training left."""

    values: dict[str, Any]
    numbers: dict[str, Any]


def train(
    given: Given, comm: Any = None, servers: Any = None, folder: Any = None, resume: bool = False
) -> Outcome:
    """Carry it out, as one process or as a rank; in ``folder`` it stops, or is resumed there."""
    net = NETS[given.net](given)
    net.as_type("float64")
    net.programs.enabled = given.recorded
    optimizer = wrapped(given, comm, servers)
    net.loss = loss_of(given)
    if given.by == "step":
        numbers = by_step(given, net, optimizer, comm)
    else:
        numbers = by_fit(given, net, optimizer, comm, folder, resume)
    stage = singanet.optimizer.chain.UpdateChain(optimizer).reducers
    if stage:
        stage[0].unify(net)
    found = Outcome(values_of(net), numbers)
    if comm is not None:
        comm.barrier("the values")
    return found


def by_step(given: Given, net: Any, optimizer: Any, comm: Any) -> dict[str, Any]:
    x, y, weights = data(given)
    rng = random.Random(given.seed)
    losses = []
    for step in range(8):
        change(given, step, net, optimizer)
        picked = np.array(rng.sample(range(given.samples), min(given.samples, given.batch + 4)))
        cuts = sorted(rng.sample(range(1, len(picked)), given.ranks - 1))
        own = slice(None)
        if comm is not None:
            own = slice([0, *cuts][comm.rank], [*cuts, len(picked)][comm.rank])
        rows = picked[own]
        part = {k: t[rows] for k, t in y.items()} if isinstance(y, dict) else y[rows]
        weight = None if weights is None else weights[rows]
        losses.append(net.step(x[rows], part, optimizer, sample_weight=weight)[0])
    return {}


def by_fit(
    given: Given, net: Any, optimizer: Any, comm: Any, folder: Any, resume: bool
) -> dict[str, Any]:
    x, y, weights = data(given)
    metrics: Any = []
    if given.metrics:
        one = given.net in ("classes", "bag") and not given.ignore
        metrics = [Accuracy(), ConfusionMatrix()] if one else []
        if given.net == "words":
            metrics = [Perplexity(ignore_index=IGNORED)]
    net.compile(optimizer, metrics=metrics)
    callbacks: list[Any] = [Changes(given)]
    if given.averaged:
        callbacks.append(EMA(0.5))
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, monitor=None))
        if not resume:
            callbacks.append(Stops(given.stopped or 0))
    fed: dict[str, Any] = {"batch_size": given.batch, "drop_last": given.drop_last}
    arrays: Any = (x, y)
    if given.by == "loader" and not isinstance(y, dict) and weights is None:
        rank = {} if comm is None else {"rank": comm.rank, "world_size": comm.size}
        loader = ArrayLoader(
            x, y, given.batch, seed=3, drop_last=given.drop_last, split_batches=True, **rank
        )
        arrays, fed = (loader,), {}
    if len(arrays) == 2 and weights is not None:
        fed["sample_weight"] = weights
    if given.of_classes:
        fed["class_weight"] = {0: 1.0, 1: 2.0, 2: 0.5}
    if given.validated:
        fed["validation_data"] = data(given, 1)[:2]
    if given.clip is not None:
        fed |= {"clip": 0.05, "clip_by": given.clip}
    history = net.fit(
        *arrays,
        epochs=given.epochs,
        accumulate=given.accumulate,
        callbacks=callbacks,
        resume=folder if resume else None,
        verbose=False,
        **fed,
    )
    told = net.evaluate(x, y).logs
    numbers = {name: each for name, each in history.items() if not name.startswith("bytes")}
    return {**numbers, **{f"evaluated {name}": each for name, each in told.items()}}


def on_ranks(given: Given, ranks: int, **how: Any) -> list[Outcome]:
    """What each of ``ranks`` leaves."""
    if ranks == 1:
        return [train(given, **how)]
    if given.way in ("server", "hybrid"):
        return served(partial(train, given, **how), ranks, given.servers)
    return together(partial(train, given, **how), ranks)


def both(given: Given, folder: Any) -> tuple[Outcome, list[Outcome]]:
    """What one process leaves, and what each rank does, on the way perhaps with others."""
    alone = train(given)
    if given.stopped is None:
        return alone, on_ranks(given, given.ranks)
    on_ranks(given, given.ranks, folder=folder)
    return alone, on_ranks(given, given.resumed_on, folder=folder, resume=True)


def difference(given: Given, rtol: float = 1e-7, atol: float = 1e-9) -> str:
    """What several processes do otherwise than one; empty for nothing."""
    with tempfile.TemporaryDirectory() as folder:
        alone, made = both(given, Path(folder))
    for rank, each in enumerate(made):
        for name, value in alone.values.items():
            if not np.array_equal(each.values[name], made[0].values[name]):
                return f"{name} of rank {rank} is not that of rank 0"
            if not np.allclose(each.values[name], value, rtol, atol):
                off = np.abs(each.values[name] - value).max()
                return f"{name} of rank {rank} is off by {off:.2g}"
        if each.numbers.keys() != alone.numbers.keys():
            return f"{sorted(each.numbers.keys() ^ alone.numbers.keys())} on one side alone"
        for name, number in alone.numbers.items():
            if not np.allclose(each.numbers[name], number, 1e-6, 1e-9, equal_nan=True):
                return f"{name!r} of rank {rank} is {each.numbers[name]}, of one process {number}"
    return ""
