"""How time and memory grow with the work: the slope of each series, with the expected one.

Each series runs for three sizes, each twice the one before, in rounds of all three, so that other
processes slow them alike. The slope is that of the logarithm of the processor seconds (of the peak
of traced bytes) over that of the size, by least squares: 1 is linear, 2 quadratic. Seconds and
their slopes are medians of the rounds. A fixed part makes a slope smaller, so that only one above
the expected slope by more than 0.2 is marked. Peaks below 64 KB are not compared.

    python benchmarks/growth.py [words of names]
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from report import introduction, publish, table

import singanet
from singanet.layers import LSTM, Activation, Concat, Dense, Dummy, Embedding, MultiHeadAttention
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD, Adam

RNG = np.random.default_rng(0)
ROUNDS = 5
Run = Callable[[], object]


class Series(NamedTuple):
    """A name, its sizes, expected slopes of time and memory, and what makes a run of a size."""

    name: str
    sizes: tuple[int, int, int]
    time: float
    memory: float
    make: Callable[[int], Run]


SERIES: list[Series] = []


def series(name: str, first: int, time: float = 1.0, memory: float = 1.0) -> Callable[[Any], Any]:
    """Add the decorated maker, for sizes from ``first`` on."""

    def added(make: Callable[[int], Run]) -> Callable[[int], Run]:
        SERIES.append(Series(name, (first, 2 * first, 4 * first), time, memory, make))
        return make

    return added


def chain(count: int, width: int = 4) -> singanet.FeedForwardNet:
    """A net of ``count`` dense layers."""
    parts = [Dense(f"d{k}", width) for k in range(count)]
    net = singanet.FeedForwardNet(parts, loss=SquaredError(), seed=0)
    net.build((width,))
    return net


def batch(rows: int = 2, width: int = 4) -> np.ndarray[Any, Any]:
    """Random float32 rows."""
    return RNG.standard_normal((rows, width)).astype(np.float32)


# -- layers ---------------------------------------------------------------------------------------


@series("layers: building", 250)
def _(n: int) -> Run:
    return lambda: chain(n)


@series("layers: streaming step", 250)
def _(n: int) -> Run:
    net, x, rule = chain(n), batch(), SGD(0.01)

    def step() -> None:
        net.loss.forward(True, net.forward(True, x), x)
        for names, values, grads in net.backward(net.loss.backward()):
            rule.update(names, values, grads)

    return step


@series("layers: first recorded steps", 250)
def _(n: int) -> Run:
    x = batch()

    def steps() -> None:
        net, rule = chain(n), Adam(0.01)
        for _ in range(2):
            net.step(x, x, rule)

    return steps


@series("layers: replayed step", 250)
def _(n: int) -> Run:
    net, x, rule = chain(n), batch(), Adam(0.01)
    for _ in range(3):
        net.step(x, x, rule)
    return lambda: net.step(x, x, rule)


@series("layers: all gradients", 250)
def _(n: int) -> Run:
    net, x = chain(n), batch()
    feed = {"input": x, "targets": x}
    return lambda: sum(1 for _ in net.iter_gradients("loss", net.param_names(), feed))


@series("layers: summary", 250)
def _(n: int) -> Run:
    net = chain(n)
    return lambda: net.summary()


@series("layers: memory", 60)
def _(n: int) -> Run:
    return lambda: chain(n).memory(2, Adam(0.01))


@series("layers: plan", 60)
def _(n: int) -> Run:
    return lambda: chain(n).plan(2, Adam(0.01))


@series("layers: plan with a budget", 60)
def _(n: int) -> Run:
    def plan() -> object:
        net = chain(n, 64)
        return net.plan(4096, SGD(0.01), memory_budget=int(0.8 * net.memory(4096, SGD(0.01)).total))

    return plan


@series("layers: model file, written and read", 100)
def _(n: int) -> Run:
    net, folder = chain(n), tempfile.mkdtemp()

    def both() -> None:
        net.save_model(Path(folder) / "net.singanet")
        singanet.load_model(Path(folder) / "net.singanet")

    return both


@series("layers: ONNX, written and read", 60)
def _(n: int) -> Run:
    net, folder = chain(n), tempfile.mkdtemp()

    def both() -> None:
        singanet.onnx.save(net, Path(folder) / "net.onnx")
        singanet.onnx.load(Path(folder) / "net.onnx")

    return both


@series("layers: predictor", 100)
def _(n: int) -> Run:
    net, x = chain(n), batch()
    return lambda: net.predictor()(x)


# Fewer parameters are in the caches of the processor.
@series("layers: optimizer state out and in", 1000)
def _(n: int) -> Run:
    net, x, rule = chain(n), batch(), Adam(0.01)
    net.step(x, x, rule)
    return lambda: rule.load_state_dict(rule.state_dict())


@series("inputs: one step", 100)
def _(n: int) -> Run:
    net = singanet.FeedForwardNet(loss=SquaredError(), seed=0)
    names = [f"x{k}" for k in range(n)]
    for name in names:
        net.add(Dummy(name, (2,)), [])
    net.add(Concat("all", 1), names)
    net.add(Dense("out", 2))
    feed, y = {f"x{k}": batch(2, 2) for k in range(n)}, batch(2, 2)
    rule = SGD(0.01)
    return lambda: net.step(feed, y, rule)


# -- extents --------------------------------------------------------------------------------------


def stepped(net: singanet.FeedForwardNet, x: Any, y: Any) -> Run:
    """Recorded steps of ``net``."""
    rule = SGD(0.01)
    for _ in range(2):
        net.step(x, y, rule)
    return lambda: net.step(x, y, rule)


# Smaller weights stay in the second-level cache.
@series("width: a dense layer's step", 1024, 2.0, 2.0)
def _(n: int) -> Run:
    return stepped(chain(2, n), batch(8, n), batch(8, n))


@series("rows: a step", 512)
def _(n: int) -> Run:
    return stepped(chain(2, 64), batch(n, 64), batch(n, 64))


@series("rows: predict", 4096)
def _(n: int) -> Run:
    net, x = chain(2, 32), batch(n, 32)
    return lambda: net.predict(x)


@series("rows: an epoch of fit", 1024)
def _(n: int) -> Run:
    net, x = chain(2, 16), batch(n, 16)
    net.compile(SGD(0.01))
    return lambda: net.fit(x, x, 32, 1, verbose=False)


@series("steps: LSTM", 32)
def _(n: int) -> Run:
    net = singanet.FeedForwardNet([LSTM("r", 32)], loss=SquaredError(), seed=0)
    x = RNG.standard_normal((4, n, 16)).astype(np.float32)
    net.build((n, 16))
    return stepped(net, x, np.zeros((4, n, 32), np.float32))


# Shorter ones are not computed in blocks.
@series("steps: attention", 512, 2.0, 1.0)
def _(n: int) -> Run:
    net = singanet.FeedForwardNet([MultiHeadAttention("a", 2, 32)], loss=SquaredError(), seed=0)
    x = RNG.standard_normal((2, n, 32)).astype(np.float32)
    net.build((n, 32))
    return stepped(net, x, x)


@series("classes: softmax loss", 2048)
def _(n: int) -> Run:
    loss, x, y = SoftmaxCrossEntropy(), batch(64, n), RNG.integers(0, n, 64)

    def both() -> None:
        loss.forward(True, x, y)
        loss.backward()

    return both


def _metric(make: Callable[[], Any], binary: bool = False) -> Callable[[int], Run]:
    def of(n: int) -> Run:
        metric = make()
        out = batch(64, n)
        y = RNG.integers(0, n, 64)
        metric.update(out, y)
        return lambda: metric.update(out, y)

    return of


# The matrix itself is quadratic, an update is not.
series("classes: update of ConfusionMatrix", 512)(_metric(singanet.metric.ConfusionMatrix))
series("classes: update of F1", 2048)(_metric(singanet.metric.F1))
series("classes: update of Accuracy", 2048)(_metric(singanet.metric.Accuracy))


@series("rows: AUC", 20_000)
def _(n: int) -> Run:
    scores, y = RNG.random(n).astype(np.float32), RNG.integers(0, 2, n)

    def measured() -> object:
        metric = singanet.metric.AUC()
        metric.update(scores, y)
        return metric.result()

    return measured


@series("rows of a table: a step of Embedding", 20_000)
def _(n: int) -> Run:
    net = singanet.FeedForwardNet([Embedding("e", n, 16)], loss=SquaredError(), seed=0)
    net.build((4,))
    ids = RNG.integers(0, n, (16, 4))
    return stepped(net, ids, np.zeros((16, 4, 16), np.float32))


# -- data -----------------------------------------------------------------------------------------


@series("rows: an epoch of ArrayLoader", 20_000)
def _(n: int) -> Run:
    x = batch(n, 8)
    return lambda: sum(1 for _ in singanet.data.ArrayLoader(x, x, 32))


@series("texts: packed", 5000)
def _(n: int) -> Run:
    from singanet.data.tokens.text_files import Fragment, packed

    ids = np.zeros(512, np.int32)
    parts = [Fragment(ids[:size], ids[:size]) for size in RNG.integers(8, 500, n).tolist()]
    return lambda: packed(parts, 512)


@series("rows of a file: table of text and numbers", 2000)
def _(n: int) -> Run:
    rows = {"a": RNG.random(n), "b": RNG.choice(["x", "y", "z"], n)}

    return lambda: singanet.data.Table.of(rows)


@series("epochs: fit with its history", 100)
def _(n: int) -> Run:
    net, x = chain(1), batch(8)
    net.compile(SGD(0.01))
    return lambda: net.fit(x, x, 8, n, verbose=False)


# -- files ----------------------------------------------------------------------------------------


def _arrays(kind: str) -> Callable[[int], Run]:
    def of(n: int) -> Run:
        arrays = {f"layer{k}/weight": batch(2, 2) for k in range(n)}
        path = Path(tempfile.mkdtemp()) / f"arrays.{kind}"

        def both() -> None:
            singanet.checkpoint.write_state(path, arrays)
            with singanet.checkpoint.open_state(path) as reader:
                for name in reader.entries:
                    reader.read(name)

        return both

    return of


for _kind in ("npz", "safetensors", "h5"):
    series(f"arrays: a file of {_kind}, written and read", 250)(_arrays(_kind))


# -- processes and programs -----------------------------------------------------------------------


@series("ranks: a step of AllReduce", 2)
def _(n: int) -> Run:
    from singanet.testing import communicators

    x = batch(4, 64)

    def work(comm: Any) -> None:
        net = chain(4, 64)
        rule = singanet.parallel.AllReduce(SGD(0.01), comm)
        for _ in range(10):
            net.step(x, x, rule)

    def run() -> None:
        with communicators(n) as comms:
            comms.run(work)

    return run


@series("symbols: executor's first run", 60)
def _(n: int) -> Run:
    x = batch()

    def run() -> object:
        symbol = start = singanet.Input("x", (4,))
        for k in range(n):
            symbol = Activation(f"a{k}", "tanh")(symbol)
        return singanet.Executor({"infer": [symbol]}, seed=0).run("infer", {start: x})

    return run


# -- measuring ------------------------------------------------------------------------------------


def seconds(run: Run) -> float:
    """The processor seconds of a run, the mean of some if it is short."""
    gc.collect()
    start, calls = time.process_time(), 0
    while not calls or time.process_time() - start < 0.02:
        run()
        calls += 1
    return (time.process_time() - start) / calls


def peak(run: Run) -> int:
    """The most bytes that a run holds beside those before it."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    run()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most - before


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size), by least squares."""
    found = np.polyfit(np.log(sizes), np.log(values), 1)
    return float(found[0])


def measured(one: Series) -> list[str]:
    """A row of the table."""
    runs = [one.make(size) for size in one.sizes]
    for run in runs:
        # Warmed up.
        run()
    rounds = [[seconds(run) for run in runs] for _ in range(ROUNDS)]
    by_time = statistics.median(slope(one.sizes, times) for times in rounds)
    last = statistics.median(times[-1] for times in rounds)
    peaks = [max(peak(run), 1) for run in runs]
    by_memory = slope(one.sizes, peaks)
    big = peaks[-1] >= 1 << 16
    slow, large = by_time > one.time + 0.2, big and by_memory > one.memory + 0.2
    return [
        one.name,
        ", ".join(map(str, one.sizes)),
        f"{1e3 * last:.2f}",
        f"{by_time:.2f} ({one.time:g})",
        f"{peaks[-1] / 1e6:.2f}",
        f"{by_memory:.2f} ({one.memory:g})" if big else "",
        " and ".join(["time"] * slow + ["memory"] * large),
    ]


def main() -> None:
    """Measure the series whose names have one of the words."""
    words = sys.argv[1:]
    chosen = [one for one in SERIES if not words or any(word in one.name for word in words)]
    rows = []
    for one in chosen:
        try:
            rows.append(measured(one))
        except Exception as error:  # noqa: BLE001 (the others are measured all the same)
            rows.append([one.name, "", "", "", "", "", repr(error)[:200]])
        print(rows[-1], file=sys.stderr, flush=True)
    header = ["series", "sizes", "ms of the last", "slope (expected)", "MB of the last"]
    header += ["slope (expected)", "above by more than 0.2"]
    text = f"{introduction(__doc__)}\n\n{table(header, rows)}"
    publish("_".join(["growth", *words]), "How costs grow", text)


if __name__ == "__main__":
    main()
