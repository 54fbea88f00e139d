"""Trainings drawn at random: several processes, on ranks that are threads, end as one does.

Or they are refused, for one of the reasons that are known.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import singanet
from singanet import optimizer as kinds
from singanet import parallel
from singanet.data import ArrayLoader
from singanet.errors import SingaNetError
from singanet.layers import Activation, Add, Dense, Embedding, Flatten, Input, LayerNorm
from singanet.loss import MultiLoss, SoftmaxCrossEntropy
from singanet.metric import Accuracy, ConfusionMatrix, Perplexity
from singanet.parallel import AllReduce
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from tests.kit.callbacks import stop_at
from tests.kit.nets import values_of
from tests.kit.ranks import served, together

IGNORED = -1
LONG, WORDS = 4, 12
SMALLEST = 64
"""Bytes of what is not cut: bias vectors, and nothing else."""


def classes(given, outputs=1):
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


def words(given):
    x = Input("x", (LONG,))
    h = Embedding("e", WORDS, 5)(x)
    h = Activation("t", "tanh")(Dense("a", 6)(h))
    if given.normed:
        h = LayerNorm("n")(h)
    return singanet.FeedForwardNet(inputs=[x], outputs=Dense("o0", 3)(h), seed=1)


def bag(given):
    table = Embedding("e", WORDS, 5, input_sample_shape=(LONG,))
    layers = [table, Flatten("f"), Activation("t", "tanh"), Dense("a", 6), Dense("o0", 3)]
    return singanet.FeedForwardNet(layers, seed=1)


NETS = {"classes": classes, "two": partial(classes, outputs=2), "words": words, "bag": bag}


def falling(step):
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


def draw(seed):
    rng = random.Random(seed)

    def maybe(share):
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
    given = SimpleNamespace(
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
        stopped=None,
        resumed_on=1,
        seed=seed,
    )
    if way == "local":
        # Each rank's own mean over what it does not ignore.
        given.ignore = given.ignore and net != "two"
        given.accumulate, given.clip, given.changes = 1, None, {}
        given.summed = given.averaged = False
    if given.by != "step" and maybe(0.3):
        given.ranks = rng.choice([1, given.ranks])
        given.resumed_on = rng.choice([1, 2, 3])
        given.stopped = rng.randint(1, 6)
    return given


def draw_sharded(seed):
    """The training of this number, of which each rank keeps a part."""
    given = draw(seed)
    given.way = ("state", "gradients", "parameters")[seed % 3]
    return given


def data(given, seed=0):
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


def loss_of(given):
    ignore = {"ignore_index": IGNORED} if given.ignore else {}
    reduction = {"reduction": "sum"} if given.summed else {}
    first = SoftmaxCrossEntropy(**ignore, **reduction)
    if given.net != "two":
        return first
    return MultiLoss({"o0": first, "o1": SoftmaxCrossEntropy(**reduction)}, {"o1": 0.5})


class Changes(Callback):
    """What the training's user does before the step of a number."""

    def __init__(self, given):
        self.given, self.done = given, 0

    def on_batch_begin(self, batch, logs=None):
        net = self.session.net
        # A training that is resumed has them all.
        for step in range(self.done, self.session.step + 1):
            change(self.given, step, net, net.compiled.optimizer)
        self.done = self.session.step + 1


def change(given, step, net, optimizer):
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


CLIPS = {
    "value": kinds.ClipByValue, "layer": kinds.ClipByLayerNorm, "global": kinds.ClipByGlobalNorm,
}  # fmt: skip
WAYS = {
    "all": parallel.AllReduce,
    "window": partial(parallel.AllReduce, window=1),
    "sparse": partial(parallel.SparseAllReduce, ratio=1.0),
    "state": partial(parallel.Sharded, level=1, smallest=SMALLEST),
    "gradients": partial(parallel.Sharded, level=2, smallest=SMALLEST),
    "parameters": partial(parallel.Sharded, level=3, smallest=SMALLEST),
    "local": partial(parallel.LocalSGD, every=1),
    "server": parallel.ParameterServer,
    "hybrid": parallel.Hybrid,
}


def wrapped(given, comm, servers):
    rule = RULES[given.rule]()
    if given.by == "step" and given.clip is not None:
        rule = CLIPS[given.clip](rule, 0.05)
    if comm is not None:
        more = {} if servers is None else {"servers": servers}
        rule = WAYS[given.way](rule, comm=comm, **more)
    if given.by == "step" and given.accumulate > 1:
        rule = kinds.Accumulator(rule, given.accumulate, mean=not given.summed)
    return rule


def train(given, comm=None, servers=None, folder=None, resume=False):
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
    found = values_of(net), numbers
    if comm is not None:
        comm.barrier("the values")
    return found


def by_step(given, net, optimizer, comm):
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


def by_fit(given, net, optimizer, comm, folder, resume):
    x, y, weights = data(given)
    metrics = []
    if given.metrics:
        one = given.net in ("classes", "bag") and not given.ignore
        metrics = [Accuracy(), ConfusionMatrix()] if one else []
        if given.net == "words":
            metrics = [Perplexity(ignore_index=IGNORED)]
    net.compile(optimizer, metrics=metrics)
    callbacks = [Changes(given)]
    if given.averaged:
        callbacks.append(EMA(0.5))
    if folder is not None:
        callbacks.append(ModelCheckpoint(folder, monitor=None))
        if not resume:
            callbacks.append(stop_at(given.stopped or 0))
    fed = {"batch_size": given.batch, "drop_last": given.drop_last}
    arrays = (x, y)
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


def on_ranks(given, ranks, **how):
    if ranks == 1:
        return [train(given, **how)]
    if given.way in ("server", "hybrid"):
        return served(partial(train, given, **how), ranks, given.servers)
    return together(partial(train, given, **how), ranks)


def differs(made, values, numbers, near=(1e-7, 1e-9), near_numbers=(1e-6, 1e-9)):
    """What of the values and numbers of ranks is not as wanted; empty for nothing."""
    for rank, (own, told) in enumerate(made):
        for name, value in values.items():
            if not np.array_equal(own[name], made[0][0][name]):
                return f"{name} of rank {rank} is not that of rank 0"
            if not np.allclose(own[name], value, *near):
                off = np.abs(own[name] - value).max()
                return f"{name} of rank {rank} is off by {off:.2g}"
        if told.keys() != numbers.keys():
            return f"{sorted(told.keys() ^ numbers.keys())} on one side alone"
        for name, number in numbers.items():
            if not np.allclose(told[name], number, *near_numbers, equal_nan=True):
                return f"{name!r} of rank {rank} is {told[name]}, not {number}"
    return ""


def difference(given):
    """What several processes do otherwise than one; empty for nothing."""
    values, numbers = train(given)
    with tempfile.TemporaryDirectory() as folder:
        if given.stopped is None:
            made = on_ranks(given, given.ranks)
        else:
            on_ranks(given, given.ranks, folder=Path(folder))
            made = on_ranks(given, given.resumed_on, folder=Path(folder), resume=True)
    return differs(made, values, numbers)


REFUSED = (
    # Rows are with servers, which see neither other gradients nor those of one step together.
    "in Hybrid: expected ",
    "in ParameterServer: expected ",
    "ParameterServer, the loss of several outputs",
    # No whole batch, with drop_last.
    "ArrayLoader: expected a batch",
    # What ranks had of their own says nothing to others.
    "ranks, as before, between micro-batches",
    "'*/unsent'",
    "/unsent'",
    "'*/averaging'",
)


def check(given, difference=difference, known=REFUSED):
    refused = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = difference(given)
    except SingaNetError as error:
        found, refused = "", str(error)
    assert not found, f"{given}: {found}"
    assert not refused or any(each in refused for each in known), f"{given}: {refused}"


@pytest.mark.few(8, full=22)
@pytest.mark.parametrize("seed", [*range(60), 2957, 3024])
def test_several_processes_are_one(seed):
    check(draw(seed))


@pytest.mark.few(8, full=22)
@pytest.mark.parametrize("seed", range(60))
def test_processes_that_each_keep_a_part_are_one(seed):
    check(draw_sharded(seed))


@pytest.mark.few(2)
@pytest.mark.parametrize("ranks", [(1, 2), (1, 3), (2, 1), (3, 2), (2, 3), (4, 1)])
def test_averages_in_slices_go_on_in_those_of_other_ranks(ranks):
    given = draw_sharded(164)
    assert (given.way, given.averaged) == ("parameters", True)
    assert given.stopped
    given.ranks, given.resumed_on = ranks
    assert not difference(given)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100, 5_100, 250))
@pytest.mark.parametrize("drawn", [draw, draw_sharded])
def test_several_processes_are_one_5000(drawn, start):
    for seed in range(start, start + 250):
        check(drawn(seed))


def test_a_lost_weight_is_seen(monkeypatch):
    """That ranks weigh alike, whatever their losses count, is what the comparison is to find."""
    begin = AllReduce.begin
    monkeypatch.setattr(AllReduce, "begin", lambda self, count: begin(self, 1.0))
    given = draw(0)
    given.way, given.by, given.net, given.ranks, given.stopped = "all", "step", "words", 2, None
    given.clip, given.accumulate, given.summed, given.ignore = None, 1, False, True
    assert "off by" in difference(given)
