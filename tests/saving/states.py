"""States of trainings, the ways in which they are saved, and the ways in which they come back."""

import copy
import multiprocessing
import pickle
import random
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import singanet
from singanet import Executor, FeedForwardNet, optimizer, parallel
from singanet import layers as kinds
from singanet.checkpoint import FORMATS, open_state
from singanet.errors import RankError, SingaNetError
from singanet.executor import from_loader
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer.chain import UpdateChain
from singanet.training import callbacks
from tests.kit.nets import values_of
from tests.kit.ranks import served, together

SAMPLES, CLASSES = 8, 4


def _nested():
    parts = [kinds.Dense("n", 32, input_sample_shape=(32,)), kinds.BatchNormalization("bn")]
    return [FeedForwardNet(parts, name="inner"), kinds.LayerNorm("ln")]


BODIES = {
    "plain": ((32,), lambda: [kinds.Dense("a", 32), kinds.Activation("t", mode="tanh")]),
    "normed": ((32,), lambda: [kinds.Dense("a", 32), kinds.BatchNormalization("bn")]),
    "held norm": ((32,), lambda: [kinds.Dense("a", 32), kinds.BatchNormalization("bn")]),
    "dropout": ((32,), lambda: [kinds.Dense("a", 32), kinds.Dropout("drop", 0.3)]),
    "frozen": ((32,), lambda: [kinds.Dense("z", 32), kinds.Dense("a", 32)]),
    "images": ((1, 6, 6), lambda: [kinds.Conv2D("c", 2, 3), kinds.BatchNormalization("bn"),
                                   kinds.Flatten("f"), kinds.Dense("a", 32)]),
    "steps": ((5, 4), lambda: [kinds.LSTM("l", 8), kinds.Flatten("f")]),
    "words": ((3,), lambda: [kinds.Embedding("e", 20, 32), kinds.Flatten("f")]),
    "nested": ((32,), _nested),
    "attention": ((4, 8), lambda: [kinds.MultiHeadAttention("m", 2), kinds.Flatten("f")]),
}  # fmt: skip

RULES = {
    "sgd": lambda: optimizer.SGD(lr=0.1),
    "momentum": lambda: optimizer.SGD(lr=0.05, momentum=0.9),
    "adam": lambda: optimizer.Adam(lr=0.01),
    "decayed": lambda: optimizer.AdamW(lr=0.01, weight_decay=0.1),
    "amsgrad": lambda: optimizer.AMSGrad(lr=0.01),
    "lion": lambda: optimizer.Lion(lr=0.01),
    "rmsprop": lambda: optimizer.RMSProp(lr=0.01),
    "adagrad": lambda: optimizer.AdaGrad(lr=0.05),
    "muon": lambda: optimizer.Muon(lr=0.02),
    "schedule free": lambda: optimizer.ScheduleFreeAdamW(lr=0.02),
    "adafactor": lambda: optimizer.Adafactor(lr=0.01),
    "scheduled": lambda: optimizer.SGD(lr=optimizer.schedules.Exponential(0.1, 2, 0.5)),
    "assigned": lambda: optimizer.Adam(lr=0.3),
    "patient": lambda: optimizer.SGD(lr=optimizer.schedules.Plateau(0.1)),
}

WRAPS = {
    "bare": lambda rule: rule,
    "by value": lambda rule: optimizer.ClipByValue(rule, 0.05),
    "by global norm": lambda rule: optimizer.ClipByGlobalNorm(rule, 0.5),
    "gathered": lambda rule: optimizer.Accumulator(rule, 2),
}

REDUCERS = {
    "alone": lambda rule, comm, ranks: rule,
    "all-reduce": lambda rule, comm, ranks: parallel.AllReduce(rule, comm),
    "sparse": lambda rule, comm, ranks: parallel.SparseAllReduce(rule, comm, ratio=0.1),
    "power": lambda rule, comm, ranks: parallel.PowerSGD(rule, comm, rank=1),
    "sharded 1": lambda rule, comm, ranks: parallel.Sharded(rule, comm, smallest=0),
    "sharded 2": lambda rule, comm, ranks: parallel.Sharded(rule, comm, level=2, smallest=0),
    "sharded 3": lambda rule, comm, ranks: parallel.Sharded(rule, comm, level=3, smallest=0),
    "local": lambda rule, comm, ranks: parallel.LocalSGD(rule, comm, every=3),
    "partial": lambda rule, comm, ranks: parallel.PartialUpdate(rule, comm, partitions=3),
    "hybrid": lambda rule, comm, ranks: parallel.Hybrid(rule, comm, servers=ranks),
    "servers": lambda rule, comm, ranks: parallel.ParameterServer(rule, comm=comm, servers=ranks),
}

STORAGES = (
    "memory", "memory", "memory", "float64", "int8", "int4", "bfloat16", "remainder",
    "offload", "read-only", "mixed",
)  # fmt: skip

CALLBACKS = {
    "none": list,
    "ema": lambda: [callbacks.EMA(0.9)],
    "early": lambda: [callbacks.EarlyStopping("loss", patience=9)],
    "plateau": lambda: [callbacks.ReduceOnPlateau("loss", patience=1)],
    "rate": lambda: [callbacks.LearningRate(lambda epoch: 0.05 / (1 + epoch))],
}

FILES = ("npz", "safetensors", "hdf5", "snapshot", "pickle", "sharded", "gguf", "keras", "torch")

WAYS_OUT = {
    "weights": ("in place", "anew", "process"), "model": ("anew", "process"),
    "state_dict": ("in place", "anew", "process"), "pickle": ("anew", "process"),
    "deepcopy": ("anew",), "predictor": ("anew", "process"),
    "checkpoint": ("in place", "anew", "process"), "executor": ("in place", "anew", "process"),
    "executor pickle": ("anew", "process"), "executor deepcopy": ("anew",),
}  # fmt: skip
"""The ways in of each way out."""


@dataclass(frozen=True)
class Triple:
    """A state, a way out, a way in."""

    body: str = "plain"
    rule: str = "adam"
    wrap: str = "bare"
    storage: str = "memory"
    reducer: str = "alone"
    workers: int = 1
    steps: int = 3
    callbacks: str = "none"
    way_out: str = "weights"
    file: str = "npz"
    way_in: str = "anew"

    def __str__(self):
        blank = Triple()
        told = {k: v for k, v in asdict(self).items() if v != getattr(blank, k)}
        return ", ".join(f"{k}={v!r}" for k, v in told.items())


def drawn(seed, processes=0.1):
    """A random triple; the share ``processes`` of them goes through another process."""
    draw = random.Random(seed)
    way_out = draw.choice(list(WAYS_OUT))
    way_in = draw.choice([way for way in WAYS_OUT[way_out] if way != "process"])
    if "process" in WAYS_OUT[way_out] and draw.random() < processes:
        way_in = "process"
    workers = draw.choice((1, 1, 2)) if way_in != "process" else 1
    reducer = draw.choice(list(REDUCERS) if workers > 1 else ["alone", *REDUCERS])
    if reducer == "alone":
        workers = 1
    if reducer == "servers" and workers == 1:
        reducer = "hybrid"
    if workers > 1 and way_out in ("pickle", "executor pickle", "model"):
        # Pickles of ranks that are threads, and model files, train alone where they are read.
        workers, reducer = 1, "alone"
    body, storage = draw.choice(list(BODIES)), draw.choice(STORAGES)
    if draw.random() < 0.4 or (body == "words" and reducer in ("hybrid", "servers")):
        # A table is served in float32: copies of fewer bits are rounded, as documented.
        storage = "memory"
    if storage == "mixed" and reducer in ("local", "partial"):
        # Ranks that skip steps by themselves drift apart, saved or not.
        storage = "memory"
    return Triple(
        body=body,
        rule=draw.choice(list(RULES)),
        wrap=draw.choice(("bare", "bare", *WRAPS)),
        storage=storage,
        reducer=reducer,
        workers=workers,
        # Generators that are saved by hand are those of before the ranks have met.
        steps=max(draw.choice((0, 1, 2, 3, 5)), int(workers > 1 and way_out == "state_dict")),
        callbacks=draw.choice(list(CALLBACKS)) if way_out == "checkpoint" else "none",
        way_out=way_out,
        file=draw.choice(FILES),
        way_in=way_in,
    )


# -- trainings --------------------------------------------------------------------------------


def batch(given, k):
    """Samples and labels of step ``k``, the same everywhere."""
    shape, rng = BODIES[given.body][0], np.random.default_rng([7, k])
    labels = rng.integers(0, CLASSES, SAMPLES)
    if given.body == "words":
        return rng.integers(0, 20, (SAMPLES, *shape)), labels
    return rng.standard_normal((SAMPLES, *shape)).astype(np.float32), labels


class Going:
    """The training of ``given`` on one rank, with parameters from ``seed``."""

    def __init__(self, given, folder, seed=1, comm=None, ranks=None):
        self.given, self.folder, self.comm, self.ranks = given, folder, comm, ranks
        rank = 0 if comm is None else comm.rank
        alone = comm is None or comm.size == 1
        self.part = slice(None) if alone else (slice(0, 3), slice(3, SAMPLES))[rank]
        self._make(seed)

    def _make(self, seed):
        self.net = self._net(seed)
        self.optimizer = self._optimizer()
        if self.given.storage == "offload":
            self._offload()
        if self.given.way_out in ("model", "checkpoint"):
            precision = "float16" if self.given.storage == "mixed" else None
            self.net.compile(self.optimizer, mixed_precision=precision)

    def _offload(self):
        folder = tempfile.mkdtemp(dir=self.folder)
        self.net.offload(folder, keep=1 << 14, optimizer=self.optimizer)

    def _net(self, seed):
        given = self.given
        shape, body = BODIES[given.body]
        # Blocks and read-only arrays are the same in all nets.
        fixed = given.storage in ("int8", "int4", "read-only")
        net = FeedForwardNet(loss=SoftmaxCrossEntropy(), seed=1 if fixed else seed)
        start = kinds.Input("x", shape, dtype="int64" if given.body == "words" else None)
        for layer in (start.call.layer, *body(), kinds.Dense("top", CLASSES)):
            net.add(layer)
        if given.body == "held norm":
            net["bn"].params["mean"].held = net["bn"].params["var"].held = True
        if given.body == "frozen":
            net.freeze("a")
        if given.storage in ("float64", "bfloat16"):
            net.as_type(given.storage)
        elif given.storage == "remainder":
            net.as_type("bfloat16", rounding="remainder")
        elif given.storage in ("int8", "int4"):
            net.quantize(given.storage)
            net.adapt(lora=2, where="all")
        elif given.storage == "read-only":
            param = net.params()[0]
            param.trainable = False
            _ = net.param_values()
            param.value.flags.writeable = False
        return net

    def _optimizer(self):
        given, self.rule = self.given, RULES[self.given.rule]()
        gathered = given.wrap == "gathered"
        wrapped = self.rule if gathered else WRAPS[given.wrap](self.rule)
        made = REDUCERS[given.reducer](wrapped, self.comm, self.ranks)
        return optimizer.Accumulator(made, 2) if gathered else made

    def assign(self, rate):
        """Assign a rate, if the triple says so."""
        if self.given.rule == "assigned":
            self.rule.lr = rate

    def run(self, first, last):
        """The losses of the steps from ``first`` up to ``last``."""
        batches = (batch(self.given, k) for k in range(first, last))
        return [self._step(x[self.part], y[self.part]) for x, y in batches]

    def _step(self, x, y):
        if self.given.way_out == "model":
            return self.net.train_on_batch(x, y)["loss"]
        return self.net.step(x, y, self.optimizer)[0]

    def settle(self):
        """Unify the ranks, as before an evaluation or a file."""
        for stage in UpdateChain(self.optimizer).reducers:
            if not stage._alone and getattr(stage, "_has_met", True):
                stage.unify(self.net)

    def values(self):
        return values_of(self.net)

    def predicted(self):
        x, _ = batch(self.given, 99)
        return np.array(self.net.forward(False, x))


class GoingExecutor(Going):
    """A training by an executor, with batches from a loader."""

    def _make(self, seed):
        given, comm = self.given, self.comm
        self.optimizer = self._optimizer()
        x, labels = (np.concatenate([batch(given, k)[part] for k in range(4)]) for part in (0, 1))
        rank, every = (0, 1) if comm is None else (comm.rank, comm.size)
        loader = singanet.data.ArrayLoader(x, labels, 4, seed=3, rank=rank, world_size=every)
        top, y = from_loader(loader)
        for layer in (*BODIES[given.body][1](), kinds.Dense("top", CLASSES)):
            top = layer(top)
        loss = SoftmaxCrossEntropy()(top, y)
        graph = {"train": [loss, self.optimizer.minimize(loss)], "look": [top]}
        self.one = Executor(graph, seed=seed)
        self.net = self.one.net
        if given.storage == "float64":
            self.net.as_type(given.storage)
        elif given.storage == "offload":
            self._offload()

    def run(self, first, last):
        return [self.one.run("train")[0] for _ in range(first, last)]

    def predicted(self):
        x, _ = batch(self.given, 99)
        return self.one.run("look", {"x": x})[0]


def going(given, folder, seed=1, comm=None, ranks=None):
    """The training of ``given``."""
    kind = GoingExecutor if given.way_out.startswith("executor") else Going
    return kind(given, folder, seed, comm, ranks)


# -- comparisons ------------------------------------------------------------------------------


def expect_same(found, wanted, what):
    """Equal to the bit, NaN to NaN."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), (what, found.keys() ^ wanted.keys())
        for key, value in wanted.items():
            expect_same(found[key], value, f"{what}, {key}")
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=what)


def expect_finite(path):
    """No array in the file at ``path`` has a NaN."""
    with open_state(path) as reader:
        for name, array in reader:
            if array.dtype.kind == "f" and not name.startswith(("callback", "optimizer/*")):
                assert not np.isnan(array).any(), name


# -- ways out and in --------------------------------------------------------------------------


def suffix(given):
    """The suffix of the triple's file."""
    return ".safetensors" if given.file == "torch" else FORMATS[given.file].suffixes[0]


class Ways:
    """The ways out and in, by the file ``path``."""

    def __init__(self, given, folder):
        self.given = given
        self.folder = folder
        self.path = folder / f"state{suffix(given)}"

    def out(self, one):
        """Save ``one``. Returns what the way in needs beside files."""
        given, way = self.given, self.given.way_out
        if way in ("weights", "predictor", "state_dict"):
            one.settle()
        if way == "weights":
            first = one.comm is None or one.comm.rank == 0
            if first or given.reducer == "sharded 3":
                torch = given.file == "torch"
                how = {"layout": "torch"} if torch else {"format": given.file}
                one.net.save(self._own(one, suffix(given)), **how)
        elif way == "model":
            one.net.save_model(self._own(one, ".singanet"))
        elif way == "predictor":
            one.net.predictor().save(self._own(one, ".singanet"))
        elif way == "executor":
            one.one.save(self.path)
        told = {
            "state_dict": lambda: (
                one.values(), one.optimizer.state_dict(), one.net.rng.bit_generator.state,
            ),
            "pickle": lambda: pickle.dumps((one.net, one.optimizer)),
            "deepcopy": lambda: copy.deepcopy((one.net, one.optimizer)),
            "executor pickle": lambda: pickle.dumps(one.one),
            "executor deepcopy": lambda: copy.deepcopy(one.one),
        }  # fmt: skip
        return told[way]() if way in told else None

    def _own(self, one, ending):
        """The file of the rank: the first rank's is the one that all read."""
        rank = 0 if one.comm is None else one.comm.rank
        return self.folder / (f"state{ending}" if not rank else f"rank{rank}{ending}")

    def back(self, other, told):
        """``other`` goes on from what was saved and ``told``."""
        way = self.given.way_out
        if way == "weights":
            layout = {"layout": "torch"} if self.given.file == "torch" else {}
            other.net.load(self.path, **layout)
        elif way == "model":
            other.net = singanet.load_model(self._own(other, ".singanet"))
            other.optimizer = other.net.compiled.optimizer
        elif way == "predictor":
            other.predictor = singanet.load_predictor(self._own(other, ".singanet"))
        elif way == "state_dict":
            arrays, learnt, generator = told
            other.optimizer.load_state_dict(learnt)
            for param in other.net.params():
                if not param.is_constant:
                    param.put(arrays[param.name])
            other.net.rng.bit_generator.state = generator
            if other.comm is not None:
                other.comm.barrier()
        elif way == "executor":
            other.one.load(self.path)
        elif way in ("pickle", "deepcopy"):
            other.net, other.optimizer = pickle.loads(told) if way == "pickle" else told
        elif way == "executor pickle":
            other.one = pickle.loads(told)
            other.net = other.one.net
        elif way == "executor deepcopy":
            other.one, other.net = told, told.net
        return other


CARRIES_ALL = {
    "model", "state_dict", "pickle", "deepcopy", "executor", "executor pickle",
    "executor deepcopy",
}  # fmt: skip
MORE, TWO_BIASES = 4, ("steps", "attention")


def saved_and_gone_on(given, folder, comm=None, ranks=None):
    """Save after some steps, bring it back, and go on, beside a twin that was never saved."""
    if given.way_out == "checkpoint":
        return by_fit(given, folder, comm, ranks)
    rank = 0 if comm is None else comm.rank
    n = given.steps
    one = going(given, folder, 1, comm, ranks)
    one.run(0, n)
    one.assign(0.02)
    if comm is None or comm.size == 1:
        twin = going(given, folder, 1)
        twin.run(0, n)
        twin.assign(0.02)
    else:
        # Ranks that meet now and then unify when they save: such a rank is its own twin.
        twin = None
    ways = Ways(given, folder)
    before = one.values()
    told = ways.out(one)
    if comm is not None:
        comm.barrier()
    saved = one.values()
    if twin is not None:
        expect_same(saved, before, "the source, once saved")
        expect_same(saved, twin.values(), "the source, beside its twin")
    if rank == 0 and given.way_out in ("weights", "model", "executor") and ways.path.exists():
        expect_finite(ways.path)
    shown = one.predicted()
    if twin is not None:
        wanted = twin.run(n, n + MORE), twin.values()
    if given.way_in == "in place":
        if twin is None:
            wanted = one.run(n, n + MORE), one.values()
        one.assign(0.5)
        one.run(40, 43)
        other = ways.back(one, told)
    else:
        mine = one.run(n, n + MORE), one.values()
        if twin is None:
            wanted = mine
        expect_same(mine[0], wanted[0], "losses of the source")
        expect_same(mine[1], wanted[1], "values of the source")
        if given.way_in == "process":
            return elsewhere(given, folder, told, saved, shown, wanted)
        other = ways.back(going(given, folder, 5, comm, ranks), told)
    compare(given, other, saved, shown, wanted)
    return "equal"


def compare(given, other, saved, shown, wanted):
    """Compare ``other``, which came back, with ``saved``, and its next steps with ``wanted``."""
    if given.way_out == "predictor":
        found = other.predictor(batch(given, 99)[0])
        e = np.exp(shown.astype(np.float64) - shown.max(-1, keepdims=True).astype(np.float64))
        held = given.storage in ("int8", "int4", "bfloat16", "remainder")
        near = 1e-2 if held else 1e-5
        np.testing.assert_allclose(found, e / e.sum(-1, keepdims=True), rtol=0, atol=near)
    elif (given.way_out, given.file) == ("weights", "keras") and given.body in TWO_BIASES:
        # Keras has one bias for the sum of two here.
        np.testing.assert_allclose(other.predicted(), shown, rtol=0, atol=1e-5)
    elif given.way_out == "model" and given.storage in ("int8", "int4"):
        # A model file has the floats of blocks: the same values, by other products.
        expect_same(other.values(), saved, "what came back")
        np.testing.assert_allclose(other.predicted(), shown, rtol=0, atol=1e-5)
    else:
        expect_same(other.values(), saved, "what came back")
        expect_same(other.predicted(), shown, "what it predicts")
        if given.way_out in CARRIES_ALL:
            losses = other.run(given.steps, given.steps + MORE)
            expect_same(losses, wanted[0], "losses that follow")
            expect_same(other.values(), wanted[1], "values that follow")


def by_fit(given, folder, comm, ranks):
    """Compare a fit that is resumed from a `ModelCheckpoint` with one that ran through."""
    rank = 0 if comm is None else comm.rank
    wanted = fit(going(given, folder, 1, comm, ranks), folder / "whole", 4)
    one = going(given, folder, 1, comm, ranks)
    fit(one, folder / "parts", 2)
    if comm is not None:
        comm.barrier()
    if rank == 0:
        for path in (folder / "parts").iterdir():
            if path.name.endswith((".npz", ".h5", ".safetensors.index.json")):
                expect_finite(path)
    if given.way_in == "process":
        return elsewhere(given, folder, None, wanted)
    other = one if given.way_in == "in place" else going(given, folder, 5, comm, ranks)
    if given.way_in == "in place":
        other.run(40, 42)
    return resumed(other, folder, wanted)


def fit(one, place, epochs, resume=False):
    """The history of a fit of three batches an epoch, and the values after it."""
    given = one.given
    x, y = (np.concatenate([batch(given, k)[part] for k in range(3)]) for part in (0, 1))
    one.assign(0.02)
    keep = {
        "format": given.file if given.file in ("safetensors", "hdf5", "sharded") else "npz",
        "asynchronous": given.steps == 2, "every_steps": 2 if given.steps > 2 else None, "keep": 9,
    }  # fmt: skip
    beside = [*CALLBACKS[given.callbacks](), callbacks.ModelCheckpoint(place, "loss", **keep)]
    options = {"resume": place} if resume else {}
    how = {"batch_size": 6, "epochs": epochs, "verbose": False, **options}
    history = one.net.fit(x, y, callbacks=beside, **how)
    # Saving lets ranks meet, which takes more bytes.
    told = {name: value for name, value in history.items() if not name.startswith("bytes")}
    return told, one.values()


def resumed(other, folder, wanted):
    """Resume ``other`` from the file, and compare it with the fit that was never saved."""
    found = fit(other, folder / "parts", 4, resume=True)
    expect_same(found[0], wanted[0], "history")
    expect_same(found[1], wanted[1], "values that follow")
    return "equal"


# -- another process --------------------------------------------------------------------------

_other = None


def elsewhere(given, folder, told, *compared):
    """Do the rest of a triple in another process."""
    global _other
    if _other is None:
        _other = multiprocessing.get_context("spawn").Pool(1)
    outcome = _other.apply(_there, (given, folder, told, compared))
    return outcome


def close():
    """End the other process."""
    global _other
    if _other is not None:
        _other.close()
        _other.join()
        _other = None


def _there(given, folder, told, compared):
    other = going(given, folder, 5)
    if given.way_out == "checkpoint":
        return resumed(other, folder, *compared)
    compare(given, Ways(given, folder).back(other, told), *compared)
    return "equal"


# -- outcomes ---------------------------------------------------------------------------------


def outcome(given):
    """ "equal", or "refused" with an error of the library's own. Errors: anything else."""
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            if given.workers == 1:
                return saved_and_gone_on(given, folder)
            if given.reducer in ("hybrid", "servers"):
                return served(lambda comm, ranks: saved_and_gone_on(given, folder, comm, ranks))[0]
            return together(lambda comm: saved_and_gone_on(given, folder, comm))[0]
    except RankError:
        raise
    except SingaNetError as error:
        return f"refused: {type(error).__name__}: {error}"
