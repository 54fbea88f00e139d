"""One small training, with any of the features on: which net, which data, which way of stepping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from singanet import Executor, FeedForwardNet, parallel
from singanet import functional as F
from singanet.budget import fitting
from singanet.budget.search import _Search
from singanet.device import cpu
from singanet.engine.recompute.recomputer import Recomputer
from singanet.errors import CallOrderError
from singanet.layers import (
    Activation,
    Add,
    Cache,
    Conv2D,
    Dense,
    Embedding,
    Flatten,
    Input,
    LayerNorm,
    Reduce,
)
from singanet.layers.symbol import Symbol
from singanet.loss import (
    MultiLoss,
    SoftmaxCrossEntropy,
    SquaredError,
    from_function,
    head_loss,
)
from singanet.offload.offloaded import OffloadExecutor
from singanet.ops.onednn.base import OneDnnBase
from singanet.optimizer import (
    LAMB,
    SGD,
    Accumulator,
    Adafactor,
    AdaGrad,
    Adam,
    BlockCoordinate,
    ClipByGlobalNorm,
    ElementWise,
    MixedPrecision,
    Muon,
    ScheduleFreeAdamW,
)
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.parallel.server import ServerRanks, serve
from singanet.program.programs import Programs
from singanet.testing import communicators
from singanet.training import Callback
from singanet.training.callbacks import EMA
from singanet.training.fit import fit
from singanet.training.options import FitOptions

BATCH, BATCHES, TURN = 9, 3, 3
SAMPLES = BATCH * BATCHES - 3
"""The last batch of an epoch is smaller."""
COLUMNS, WORDS, STEPS, KINDS = 10, 12, 4, 3
LR, MOMENTUM, CLIP, GATHERED, DECAY, SCALE, KEPT = 0.1, 0.5, 0.25, 2, 0.5, 2.0**8, "400kB"
WEIGHT_DECAY = 0.1
RANK, ALPHA = 2, 6.0
WIDE = 136
"""A layer of so many inputs and outputs is larger than what an offloaded net keeps in memory."""


RECORDED = {"recorded", "budget", "bfloat16", "Executor"}
"""Features that are programs."""

SHARDED = {"sharded state": 1, "sharded gradients": 2, "sharded parameters": 3}
"""The levels of features by which ranks keep parts of parameters."""

SUMS = {"all-reduce", "sparse all-reduce", "parameter server", "PowerSGD", *SHARDED}
"""Features that make several ranks one."""

HYBRID = frozenset({"all-reduce", "parameter server"})
"""Both together: what is dense is summed over the ranks, rows are with servers."""


LONG = {frozenset({"one block at a time"}): 6, frozenset({"recorded", "accumulation"}): 4}
"""How many epochs it takes until each step came twice, of features with steps of several kinds."""


def rounds_to_bfloat16() -> bool:
    """Whether there is a oneDNN that multiplies bfloat16, or plays it, as it does with AVX-512.

    Elsewhere it multiplies float32, and the feature would change nothing.
    """
    ops = cpu().ops
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    return library is not None and bool(library.c.dnnl_get_effective_cpu_isa() & _AVX512)


_AVX512 = 0x20
"""The bit of ``dnnl_cpu_isa_t`` that all instruction sets with AVX-512 share."""


RULES: dict[str, Callable[[], Any]] = {
    "sgd": lambda: SGD(lr=LR, momentum=MOMENTUM),
    "adam": lambda: Adam(LR, epsilon=1.0),
    "adagrad": lambda: AdaGrad(LR, epsilon=1.0),
    "adafactor": lambda: Adafactor(LR, epsilon_1=1.0),
    "lamb": lambda: LAMB(LR, epsilon=1.0),
    "muon": lambda: Muon(LR, others=Adam(LR, epsilon=1.0)),
}
"""Rules of random trainings; with so large an ε that what is rounded does not decide."""

PRECISIONS = {"float16", "bfloat16"}
"""Features for which a net is compiled before its layers go to several ranks."""

SHAPING = {"recorded", "offload", "bfloat16", "cached embeddings", "masks", "several outputs"}
"""Features for which a training without them has another net, or is carried out otherwise."""


def shape_of(features: frozenset[str]) -> frozenset[str]:
    """Those of ``features`` that the net of a `Case` is made for."""
    pairs = [HYBRID, *LONG]
    return (features & SHAPING).union(*(pair for pair in pairs if pair <= features))


class Damped(ElementWise):
    """w −= lr g / (1 + m), m a moving mean of g²: a rule of a user's own."""

    slots = ("mean",)

    def _scalars(self, state, rate):
        return (rate,)

    def _rule(self, xp, w, g, arrays, s, *numbers):
        xp.multiply(g, g, out=s)
        xp.subtract(s, arrays[0], out=s)
        xp.multiply(s, 0.25, out=s)
        xp.add(arrays[0], s, out=arrays[0])
        xp.add(arrays[0], 1.0, out=s)
        xp.divide(g, s, out=s)
        xp.multiply(s, numbers[0], out=s)
        xp.subtract(w, s, out=w)


@dataclass
class Case:
    """A training with the features ``on``, of a net and data made for all those of ``shape``.

    So a training without some of them has the same net. ``dtype`` is that of the net where no
    precision is asked for; ``seed`` draws further layers, 0 none; ``rule`` is one of `RULES`.
    """

    shape: frozenset[str]
    on: frozenset[str]
    dtype: str = "float32"
    seed: int = 0
    rule: str = "sgd"
    nets: list[Any] = field(default_factory=list)
    recomputed: list[Any] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """As many as bring each batch twice in each turn of what is gathered."""
        return next((LONG[pair] for pair in LONG if pair <= self.shape), 2)

    def __contains__(self, feature: str) -> bool:
        return feature in self.on

    @property
    def tables(self) -> bool:
        """Whether the net looks rows up, which ranks that sum the rest may leave to servers."""
        return "cached embeddings" in self.shape or self.shape >= HYBRID

    @property
    def servers(self) -> int:
        rows = "cached embeddings" in self and bool(SUMS & self.on)
        return int("parameter server" in self or rows)

    @property
    def workers(self) -> int:
        return (2 if SUMS & self.on else 1) * (2 if "pipeline" in self else 1)


# -- the net ------------------------------------------------------------------------------------


def inputs(case: Case) -> dict[str, Symbol]:
    found = {"x": Input("x", (COLUMNS,), sparse="sparse inputs" in case)}
    if case.tables:
        found["ids"] = Input("ids", (2,))
    if "masks" in case.shape:
        found["text"] = Input("text", (STEPS,))
    if "bfloat16" in case.shape:
        found["image"] = Input("image", (4, 6, 6))
    return found


def outputs(case: Case, given: dict[str, Symbol], masked: bool = True) -> list[Symbol]:
    parts = [Dense("a", 8)(given["x"])]
    if case.tables:
        cache = Cache("lru", 0.5, 0, 0) if "cached embeddings" in case else None
        parts.append(
            Dense("b", 8)(Flatten("flat")(Embedding("e", WORDS, 3, cache=cache)(given["ids"])))
        )
    if "masks" in case.shape:
        words = Embedding("words", WORDS, 3, mask_index=0 if masked else None)(given["text"])
        parts.append(Dense("c", 8)(Reduce("mean", "mean", axes=1)(words)))
    if "bfloat16" in case.shape:
        image = Activation("bend", "relu")(Conv2D("conv", 16, 3)(given["image"]))
        parts.append(Dense("d", 8)(Flatten("pixels")(Conv2D("conv2", 16, 3)(image))))
    h = Activation("t", "tanh")(Add("sum")(parts) if len(parts) > 1 else parts[0])
    if "offload" in case.shape:
        h = Dense("narrower", 8)(Dense("wide", WIDE)(Dense("wider", WIDE)(h)))
    h = Activation("u", "tanh")(Dense("g", 6)(drawn(case.seed, h)))
    made = [Dense("kinds", KINDS)(h)]
    if "several outputs" in case.shape:
        made.append(Dense("numbers", 2)(h))
    return made


def drawn(seed: int, h: Symbol) -> Symbol:
    """``h`` through layers drawn by ``seed``, some of them beside one another."""
    rng = np.random.default_rng(seed)
    kinds = ["tanh", "softplus", "sigmoid", "norm", "beside"]
    for k in range(int(rng.integers(1, 5)) if seed else 0):
        kind, before = rng.choice(kinds), h
        if kind == "norm":
            kinds.remove("norm")
            h = LayerNorm(f"m{k}")(h)
        else:
            wide = 8 if kind == "beside" else int(rng.integers(6, 12))
            h = Activation(f"n{k}", "tanh" if kind == "beside" else str(kind))(
                Dense(f"m{k}", wide)(h)
            )
        if kind == "beside":
            h = Add(f"o{k}")([h, Dense(f"p{k}", 8, use_bias=False)(before)])
    return h


def entropy_of(case: Case) -> Any:
    return from_function(entropy) if "loss of a function" in case else SoftmaxCrossEntropy()


def entropy(x: Symbol, y: Symbol) -> Symbol:
    """What `SoftmaxCrossEntropy` computes."""
    own = F.where(F.equal(F.expand_dims(y, 1), np.arange(KINDS)), x, 0.0)
    return F.logsumexp(x, axis=1) - F.sum(own, axis=1)


def loss_of(case: Case) -> Any:
    if "several outputs" in case.shape:
        return MultiLoss({"kinds": entropy_of(case), "numbers": SquaredError()})
    return entropy_of(case)


def net_of(case: Case) -> FeedForwardNet:
    """The net of a case, noted in it."""
    given = inputs(case)
    net = FeedForwardNet(
        inputs=[*given.values()], outputs=outputs(case, given), loss=loss_of(case), seed=7
    )
    prepare(case, net)
    return net


def prepare(case: Case, net: Any) -> None:
    """What is said to a net before it trains."""
    if case.dtype != "float32":
        net.as_type(case.dtype)
    # Where recording is compared, what it is compared with runs by the layers.
    off = "recorded" in case.shape and "recorded" not in case
    net.programs.enabled = not off and bool(RECORDED & case.on)
    if "recompute" in case:
        net.programs.recompute = "cheap"
        net["t"].recompute = True
    if "freezing" in case:
        net.freeze("g")
    if "low-rank pairs" in case:
        net.adapt(RANK, adapted(case), alpha=ALPHA)
    if "narrow weights" in case:
        net.as_type("bfloat16", "remainder")
    case.nets.append(net)


def adapted(case: Case) -> list[str]:
    """The layers with pairs beside their weights: none can be beside what reads sparse inputs."""
    return ["g"] if "sparse inputs" in case else ["a", "g"]


# -- the data -----------------------------------------------------------------------------------


def data(case: Case) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(1)
    count = SAMPLES
    x = rng.standard_normal((count, COLUMNS)).astype(np.float32)
    x[rng.random(x.shape) < 0.7] = 0
    # So that some rows rest in some steps.
    x[:, -2:] *= np.arange(count)[:, None] % BATCH == 0
    x[BATCH : 2 * BATCH, -1] = 0
    kinds = rng.integers(0, KINDS, count)
    numbers = rng.standard_normal((count, 2)).astype(np.float32)
    found: dict[str, Any] = {"x": scipy.sparse.csr_array(x) if "sparse inputs" in case else x}
    ids = rng.integers(0, WORDS, (count, 2))
    text = rng.integers(1, WORDS, (count, STEPS))
    lengths = rng.integers(1, STEPS + 1, count)
    text[np.arange(STEPS) >= lengths[:, None]] = 0
    image = rng.standard_normal((count, 4, 6, 6)).astype(np.float32)
    if case.tables:
        found["ids"] = ids
    if "masks" in case.shape:
        found["text"] = text
    if "bfloat16" in case.shape:
        found["image"] = image
    several = "several outputs" in case.shape
    return found, {"kinds": kinds, "numbers": numbers} if several else kinds


def part_of(data: Any, rows: Any) -> Any:
    if isinstance(data, dict):
        return {name: each[rows] for name, each in data.items()}
    return data[rows]


# -- the optimizer ------------------------------------------------------------------------------


def rule_of(case: Case) -> Any:
    """The rule alone, or behind what takes blocks in turns."""
    rule = Damped(lr=LR) if "user's optimizer" in case else RULES[case.rule]()
    if "schedule-free" in case:
        # So large an ε that what is rounded does not decide where a step goes.
        rule = ScheduleFreeAdamW(LR, MOMENTUM, epsilon=1.0, weight_decay=WEIGHT_DECAY)
    return BlockCoordinate(rule, TURN, "ascending") if "one block at a time" in case else rule


def reduced(case: Case, rule: Any, comm: Any, servers: Any) -> Any:
    if "PowerSGD" in case:
        # Of so many columns nothing is lost.
        rule = parallel.PowerSGD(rule, comm, rank=WIDE, gain=0.0)
    for feature in SHARDED.keys() & case.on:
        rule = parallel.Sharded(rule, comm, SHARDED[feature], smallest=0)
    if "sparse all-reduce" in case:
        rule = parallel.SparseAllReduce(rule, comm, ratio=1.0)
    if case.on >= HYBRID or {"all-reduce", "cached embeddings"} <= case.on:
        return parallel.Hybrid(rule, comm, servers=servers)
    if "parameter server" in case:
        return parallel.ParameterServer(rule, comm=comm, servers=servers)
    if "cached embeddings" in case:
        return parallel.Hybrid(rule, comm, servers=servers)
    return parallel.AllReduce(rule, comm) if "all-reduce" in case else rule


# -- the training -------------------------------------------------------------------------------


def batches(case: Case) -> list[slice]:
    starts = [*range(0, SAMPLES, BATCH)] * case.epochs
    return [slice(first, min(first + BATCH, SAMPLES)) for first in starts]


def epochs_of(losses: Sequence[float]) -> list[float]:
    """Their means over an epoch, of the losses of its steps."""
    each = np.reshape(losses, (-1, BATCHES))
    return [*np.average(each, axis=1, weights=[BATCH, BATCH, SAMPLES - 2 * BATCH])]


@dataclass
class Outcome:
    """The parameters that a training left, by name, its losses, and what was not done of it."""

    values: dict[str, Any]
    losses: list[float]
    missing: str = ""


class Watches(Callback):
    missing = ""

    def __init__(self, case: Case) -> None:
        self.case = case

    def on_batch_end(self, batch, logs):
        self.missing = missing(self.case, self.session.net)


def missing(case: Case, net: Any, report: Callable[[], Any] | None = None) -> str:
    """What of the features is not done in the steps of ``net``, and why; "" for none.

    ``report`` is that of the last step, by default the net's.
    """
    programs = net.executor
    if "offload" in case and not isinstance(programs, OffloadExecutor):
        return "the net is in memory"
    programs = getattr(programs, "programs", programs)
    reports = programs.reports() if isinstance(programs, Programs) else []
    if report is not None:
        with suppress(CallOrderError):
            reports = [report()]
    again = case.recomputed or any(each.recomputed_kernels for each in reports)
    # Before a frozen layer there is nothing to compute again.
    if "recompute" in case and not again and "freezing" not in case:
        return f"a {type(programs).__name__} recomputes nothing"
    if "head in blocks" in case and not headed(net):
        return "its scores are whole"
    # A first step was refused while ranks did not know the kinds of their gradients.
    whole = any("\nupdate" in str(each) for each in reports)
    if "recorded" not in case or (reports and (whole or not programs.refusals)):
        return ""
    reasons = getattr(programs, "refusals", []) or getattr(programs, "notes", [])
    if reports and set(reasons) == {"a batch of no samples"}:
        # The rank's part of a small batch, not a feature.
        return ""
    return reasons[0] if reasons else f"a {type(programs).__name__} records nothing"


def headed(net: Any) -> bool:
    """Whether steps of ``net`` have made scores by blocks of rows."""
    return hasattr(net, "_execution_plan") and bool(net._execution_plan().headed)


def train(case: Case, folder: Path, comm: Any = None, servers: Any = None) -> Outcome:
    """Carry it out, as one process or as a rank."""
    own = folder / f"rank{0 if comm is None else comm.rank}"
    way = by_executor if "Executor" in case else by_fit
    return way(case, own, comm, servers)


def piped(case: Case, net: Any, comm: Any) -> Any:
    """The pipeline of ``net``, if there is one, and the ranks that have the same stage."""
    if "pipeline" not in case:
        return None, comm
    made = parallel.Pipeline(net, ["g"], 2, comm=comm, replicas=case.workers // 2)
    return made, made.replicas


def by_fit(case: Case, folder: Path, comm: Any, servers: Any) -> Outcome:
    """As `FeedForwardNet.fit` has it."""
    net = net_of(case)
    x, y = data(case)
    pipeline, alike = None, comm
    if "pipeline" in case and PRECISIONS & case.on:
        alike = comm.group(range(comm.rank % 2, comm.size, 2))
    else:
        pipeline, alike = piped(case, net, comm)
    optimizer = reduced(case, rule_of(case), alike, servers)
    precision: Any = "bfloat16" if "bfloat16" in case else None
    net.compile(optimizer, mixed_precision=scaling() if "float16" in case else precision)
    if PRECISIONS & case.on:
        pipeline, _ = piped(case, net, comm)
    if "offload" in case and "budget" not in case:
        net.offload(folder, KEPT)
    watches = Watches(case)
    callbacks: list[Any] = [EMA(DECAY), watches] if "EMA" in case else [watches]
    said: dict[str, Any] = {}
    if "clipping by global norm" in case:
        said |= {"clip": CLIP, "clip_by": "global"}
    if "accumulation" in case:
        said["accumulate"] = GATHERED
    said |= {"callbacks": callbacks, "shuffle": False, "verbose": False}
    if "budget" in case:
        said |= {"memory_budget": "1GB", **measures(case, folder)}
    if "micro-batches" in case and "budget" not in case:
        options = FitOptions(x, y, BATCH, case.epochs, **said).in_parts(BATCH // 2)
        history = fit(net, options)
    else:
        history = net.fit(x, y, BATCH, case.epochs, **said)
    if hasattr(optimizer, "unify"):
        optimizer.unify(net)
    if pipeline is not None:
        pipeline.gather()
    return outcome(net, history["loss"], watches.missing, comm)


def staged(case: Case, comm: Any, servers: Any) -> tuple[Any, Averaged | None]:
    """The rule behind the stages that `fit` would put around it, and what averages."""
    rule: Any = rule_of(case)
    if "clipping by global norm" in case:
        rule = ClipByGlobalNorm(rule, CLIP)
    if comm is not None or "cached embeddings" in case:
        rule = reduced(case, rule, comm, servers)
    if "accumulation" in case:
        rule = Accumulator(rule, GATHERED)
    averaged = Averaged(rule, DECAY) if "EMA" in case else None
    rule = averaged or rule
    return ScaledUpdates(rule, scaling()) if "float16" in case else rule, averaged


def by_executor(case: Case, folder: Path, comm: Any, servers: Any) -> Outcome:
    """As a program of an `Executor` has it; stages that `fit` would add are put around by hand."""
    given = inputs(case)
    scores = outputs(case, given)
    given["kinds"] = Input("of kinds", (), dtype="int64")
    losses = [entropy_of(case)(scores[0], given["kinds"])]
    if "several outputs" in case:
        given["numbers"] = Input("of numbers", (2,))
        losses.append(SquaredError()(scores[1], given["numbers"]))
    loss = losses[0] if len(losses) == 1 else Add("both")(losses)
    own = SUMS & case.on == {"all-reduce"} and not case.tables
    rule, averaged = staged(case, None if own else comm, servers)
    executor = Executor(
        {"train": [loss, rule.minimize(loss)]}, seed=7, parallel=comm if own else None
    )
    net = executor.net
    prepare(case, net)
    for kind in PRECISIONS & case.on:
        if kind == "bfloat16":
            net._run_on(net.device._narrowed("tests"), net.dtype)
        else:
            net.as_type(kind)
    if averaged is not None:
        averaged.begin_with(net.params())
    piped(case, net, comm)
    if "offload" in case:
        net.offload(folder, KEPT, optimizer=rule)
    x, y = data(case)
    fed = {**x, **(y if isinstance(y, dict) else {"kinds": y})}
    told = []
    for rows in batches(case):
        own = rows if comm is None else slice(rows.start + comm.rank, rows.stop, comm.size)
        feed = {given[name]: each[own] for name, each in fed.items()}
        loss = executor.run("train", feed)[0]
        if comm is not None:
            share = len(feed[given["kinds"]]) / (rows.stop - rows.start)
            loss = float(comm.all_reduce(np.array([loss * share]))[0])
        told.append(loss)
    found = missing(case, net, partial(executor.report, "train"))
    rule.rest(net.params())
    if averaged is not None:
        for param in net.params():
            param.value[...] = averaged.averages[param.name]
    if hasattr(rule, "unify"):
        rule.unify(net)
    return outcome(net, epochs_of(told), found, comm)


def outcome(net: Any, losses: Any, found: str, comm: Any) -> Outcome:
    values = {param.name: param.peek().copy() for param in net.params()}
    if comm is not None:
        comm.barrier("the values")
    return Outcome(values, list(losses), found)


@contextmanager
def noticing(found: list[Any]) -> Iterator[None]:
    """Inside, passes by the layers that recompute are noted."""
    forward = Recomputer.forward

    def by_layers(self: Any, *given: Any) -> Any:
        made = forward(self, *given)
        found.extend([] if made is None else [made])
        return made

    Recomputer.forward = by_layers
    try:
        yield
    finally:
        Recomputer.forward = forward


def scaling() -> MixedPrecision:
    """With a scale that no step is skipped for."""
    return MixedPrecision(scale=SCALE)


def measures(case: Case, folder: Path) -> dict[str, Any]:
    if "offload" in case:
        return {"allow": (), "offload_folder": folder}
    return {"allow": ("micro-batches",) if "micro-batches" in case else ("recompute",)}


@contextmanager
def taking_measures(way: int = 1) -> Iterator[None]:
    """Inside, a budget is kept by the ``way`` of this number, of those that are allowed.

    No tiny net would be worth them: what is recomputed takes less than the code that does it.
    """
    plan, every = fitting.plan_memory, _Search._every

    def last(*given: Any, **named: Any) -> Any:
        made = plan(*given[:3], None, *given[4:], **named)
        return replace(made, chosen=made.table[min(way, len(made.table) - 1)])

    def of_all(self: _Search, allowed: frozenset[str], in_parts: bool) -> Iterator[Any]:
        for micro in self._sizes(in_parts):
            for level in (self.level, "cheap") if self.recomputes else (self.level,):
                yield self._way(micro, level, False)
        if "offload" in allowed:
            yield from self._offloaded(self.size)

    fitting.plan_memory = last
    _Search._every = of_all
    try:
        yield
    finally:
        fitting.plan_memory, _Search._every = plan, every


@contextmanager
def by_blocks() -> Iterator[None]:
    before = head_loss.BLOCK, head_loss.FEWEST_ROWS
    head_loss.BLOCK, head_loss.FEWEST_ROWS = KINDS * 8, 1
    try:
        yield
    finally:
        head_loss.BLOCK, head_loss.FEWEST_ROWS = before


@contextmanager
def multiplying_bfloat16() -> Iterator[None]:
    """Inside, oneDNN multiplies bfloat16, played where the processor has AVX-512 without it."""
    ops = cpu().ops
    if not hasattr(ops, "library"):
        yield
        return
    library = ops.library()
    before = library.bfloat16
    object.__setattr__(library, "bfloat16", True)
    try:
        yield
    finally:
        object.__setattr__(library, "bfloat16", before)


def carried_out(case: Case, folder: Path) -> list[Outcome]:
    """What each rank leaves of it."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        if "bfloat16" in case.on:
            stack.enter_context(multiplying_bfloat16())
        if "recompute" in case.on:
            stack.enter_context(noticing(case.recomputed))
        if "head in blocks" in case.on:
            stack.enter_context(by_blocks())
        if "budget" in case.on:
            stack.enter_context(taking_measures())
        size = case.workers + case.servers
        if size == 1:
            return [train(case, folder)]
        comms = stack.enter_context(communicators(size))

        def one(comm):
            if not case.servers:
                return train(case, folder, comm)
            ranks = ServerRanks(comm, [case.workers])
            part = comm.group(ranks.workers if comm.rank < case.workers else ranks.ranks)
            return train(case, folder, part, ranks) if comm.rank < case.workers else serve(ranks)

        return comms.run(one)[: case.workers]
