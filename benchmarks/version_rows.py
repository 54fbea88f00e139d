"""The rows of `against_version.py`, and the process in which one version runs one of them.

Everything here runs on both versions: rows go by public names alone, and import what they measure
when they are made, so that what one version lacks fails one row and no other.

    python benchmarks/version_rows.py names              # all rows, as JSON
    python benchmarks/version_rows.py serve train/mlp:32 # answers on its standard output
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import streaming_memory
from apart import WARM_UP, Entrant, forget_peak, peak, resident, turn
from cases import CASES, WITHOUT_TWIN, Case, batch_of, build, predictor
from import_time import beyond_numpy, own_modules
from recording import CASES as RECORDED
from recording import CHAINS, chain, recorded
from rivals import LR, MOMENTUM
from rules import EVERY, LIMIT, RULES

import singanet

RULE_NETS = {"small": Case("64-64-10", 32), "middle": Case("mlp", 32), "deep": Case("resnet20", 1)}
"""The nets of the update rules: the deep one has many small parameters and little arithmetic."""

FIT_NETS = {"64-64-10": ("small", 400), "lenet": ("lenet", 6)}
"""Functions of `fit_overhead` and the steps of an epoch."""

FITS = ("clipping by the global norm", "EMA", "mixed precision")
"""What a rule needs `fit` for."""


RANK_STEPS = 50
"""Steps of a job of several ranks, which are made anew for each: it is a part of both versions'."""

METHODS = ("all-reduce", "sparse all-reduce", "parameter server")


@dataclass(frozen=True)
class Reading:
    """Figures that a version tells at once: how much of ``unit`` each of them is.

    What is ``settled`` is the same each time and read once.
    """

    read: Callable[[], dict[str, float]]
    unit: str
    settled: bool = True


Made = Entrant | Reading


def _sgd() -> Any:
    return singanet.optimizer.SGD(lr=LR, momentum=MOMENTUM)


def _step(case: Case, optimizer: Callable[[], Any] = _sgd, steps: int = 1) -> Entrant:
    net, (x, y), rule = build(case.model), batch_of(case.model, case.batch), optimizer()

    def run() -> None:
        for _ in range(steps):
            net.step(x, y, rule)

    return Entrant(run, {"calls": steps})


def _prediction(case: Case, constant: bool) -> Entrant:
    net, (x, _) = build(case.model), batch_of(case.model, case.batch)
    return Entrant(partial(predictor(net) if constant else net.predict, x))


def _epoch(net: str, loop: str) -> Entrant:
    import fit_overhead

    function, steps = FIT_NETS[net]
    made = getattr(fit_overhead, function)()
    return Entrant(fit_overhead.runs(made, steps)[loop], {"calls": steps})


def _recording(way: str, name: str, batch: int) -> Entrant:
    from recording import made, stepper

    if way == "first":
        net, optimizer, x, y = made(name, batch, "none")
        net.step(x, y, optimizer)
        return Entrant(lambda: net.record(x, y, optimizer).run(x, y))
    return Entrant(stepper(name, batch, "layers" if way == "by layers" else "none")[2])


def _chain(kind: str, layers: int) -> Reading:
    # A tenth as many layers before, so that imports and what is compiled once are no part of it.
    recorded(*chain(kind, layers // 10))
    return Reading(lambda: {"": recorded(*chain(kind, layers))}, "s", settled=layers >= 10_000)


def _fit(case: Case, what: str, steps: int = 20) -> Entrant:
    """Epochs of ``steps``: what an epoch costs at its ends is in it, for both versions."""
    net, (x, y) = build(case.model), batch_of(case.model, case.batch * steps)
    return _fitted(net, x, y, case.batch, what)


def _fitted(net: Any, x: Any, y: Any, batch: int, what: str) -> Entrant:
    from singanet.training.callbacks import EMA

    given: dict[str, Any] = {}
    if what == "clipping by the global norm":
        given = {"clip": LIMIT, "clip_by": "global"}
    elif what == "EMA":
        given = {"callbacks": [EMA()]}
    net.compile(_sgd(), mixed_precision="float16" if what == "mixed precision" else None)
    run = partial(net.fit, x, y, batch, verbose=False, **given)
    return Entrant(run, {"calls": len(y) // batch})


def _recurrent_half(kind: str) -> Entrant:
    """Recurrent cells in float16, whose kernels lift their operands."""
    import numpy as np

    from singanet import layers

    first = getattr(layers, kind)("cells", 64, input_sample_shape=(16, 32), return_sequences=False)
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), seed=0)
    net.add(first)
    net.add(layers.Dense("fc", 10))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((32 * 20, 16, 32), np.float32)
    return _fitted(net, x, rng.integers(0, 10, len(x)), 32, "mixed precision")


def _executor(net: str, batch: int, way: str) -> Entrant:
    from executor import STEPS, runs

    return Entrant(runs(net, batch)[way], {"calls": STEPS})


def _ranks(model: str, batch: int, method: str) -> Entrant:
    """Steps of two ranks that are threads; one more rank serves, where there are servers."""
    import numpy as np

    from singanet import parallel
    from singanet.parallel.server import ServerRanks, serve
    from singanet.testing import communicators

    case = Case(model, batch)
    x, y = batch_of(case.model, case.batch)
    wraps: dict[str, Callable[[Any], Any]] = {
        "all-reduce": lambda comm: parallel.AllReduce(_sgd(), comm),
        "sparse all-reduce": lambda comm: parallel.SparseAllReduce(_sgd(), comm, ratio=0.01),
    }

    def trained(comm: Any, rule: Any) -> None:
        net = build(case.model)
        own = np.array_split(np.arange(len(y)), 2)[comm.rank]
        for _ in range(RANK_STEPS):
            net.step(x[own], y[own], rule)

    def one(comm: Any) -> None:
        if method in wraps:
            trained(comm, wraps[method](comm))
            return
        ranks = ServerRanks(comm, [2])
        if comm.rank == 2:
            serve(ranks)
            return
        workers = comm.group(ranks.workers)
        trained(workers, parallel.ParameterServer(_sgd(), comm=workers, servers=ranks))

    def run() -> None:
        with communicators(2 if method in wraps else 3, deadline=1e9) as comms:
            comms.run(one)

    return Entrant(run, {"calls": RANK_STEPS})


def _bytes(loop: str) -> Reading:
    def read() -> dict[str, float]:
        grads, most = streaming_memory.taken(streaming_memory.build(), loop)
        first, later = streaming_memory.recorded(streaming_memory.build(), loop)
        alone = {", gradients": grads, ", a step by layers": most}
        return {**alone, ", all while recording": first, ", all while replaying": later}

    return Reading(read, "B")


def _seconds_of_import() -> Reading:
    beyond_numpy()  # modules are compiled at their first import
    return Reading(lambda: {"": beyond_numpy()}, "s", settled=False)


def _modules() -> Reading:
    return Reading(lambda: {"": own_modules()}, "modules")


def _loops() -> Iterator[tuple[str, Callable[[], Made]]]:
    """What a step costs beyond its arithmetic, by each way of making it."""
    for size in (1, 32, 128):
        yield f"small_step/{size}", partial(_step, Case("64-64-10", size))
    for net in FIT_NETS:
        for loop in ("bare loop", "fit", "fit, a callback a batch", "fit, a callback a layer"):
            yield f"fit_overhead/{net}, {loop}", partial(_epoch, net, loop)
    for name, batch, _ in RECORDED:
        for way in ("first", "replayed", "by layers"):
            yield f"recording/{name}:{batch}, {way}", partial(_recording, way, name, batch)
    for kind, layers in CHAINS:
        yield f"recording/{kind} chain of {layers}", partial(_chain, kind, layers)


def _nets() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Training and both kinds of predictions of the ready nets."""
    cases = [*CASES, *WITHOUT_TWIN]
    yield from ((f"train/{case.name}", partial(_step, case)) for case in cases)
    yield from ((f"infer/{case.name}", partial(_prediction, case, True)) for case in cases)
    yield from ((f"predict/{case.name}", partial(_prediction, case, False)) for case in cases)


def _rules() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Update rules, in seconds and in bytes."""
    for net, case in RULE_NETS.items():
        for rule, optimizer in RULES.items():
            steps = EVERY if rule.startswith("accumulation") else 1
            yield f"rules/{net}, {rule}", partial(_step, case, optimizer, steps)
        for what in FITS:
            yield f"rules/{net}, {what}", partial(_fit, case, what)
    for kind in ("GRU", "LSTM"):
        yield f"rules/{kind}, mixed precision", partial(_recurrent_half, kind)
    yield from (
        (f"streaming_memory/{loop}", partial(_bytes, loop)) for loop in streaming_memory.LOOPS
    )


def _several() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Named programs, and steps of several ranks."""
    for net, batch in (("64-64-10", 1), ("64-64-10", 32), ("lenet", 32)):
        for way in ("executor.run", "executor.run, fed by name", "executor.run of scores"):
            yield f"executor/{net}:{batch}, {way}", partial(_executor, net, batch, way)
    for model, batch in (("64-64-10", 32), ("mlp", 32)):
        for method in METHODS:
            yield f"parallel/{model}:{batch}, {method}", partial(_ranks, model, batch, method)


ROWS: dict[str, Callable[[], Made]] = {
    **dict(_loops()),
    **dict(_nets()),
    **dict(_rules()),
    **dict(_several()),
    "import_time/seconds beyond numpy": _seconds_of_import,
    "import_time/modules of its own": _modules,
}
"""Each row's ``group/name``, and what makes it in a process of its own."""


def serve(row: str) -> None:
    """Make the row, then answer a line of JSON to each line of standard input until it ends."""
    # What the library prints must not come among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**told: Any) -> None:
        answers.write(json.dumps(told) + "\n")

    try:
        before = resident("RssAnon")
        made = ROWS[row]()
        if isinstance(made, Entrant):
            for _ in range(WARM_UP):
                made.run()
            forget_peak()
        answer(package=singanet.__file__, **_kind(made))
        for question in sys.stdin:
            if question.strip() == "memory":
                answer(memory=peak() - before)
            elif isinstance(made, Reading):
                answer(values=made.read())
            else:
                answer(values={"": turn(made.run, *_turns()) / made.facts.get("calls", 1)})
    except Exception as error:  # noqa: BLE001 - a version may fail in any way; the table tells it
        answer(failure=f"{type(error).__name__}: {str(error)[:300]}")


def _turns() -> tuple[float, ...]:
    """Seconds to wake and to measure in a turn: many short ones, where no threads have to wake."""
    return (0.005, 0.02) if os.environ["OMP_NUM_THREADS"] == "1" else ()


def _kind(made: Made) -> dict[str, Any]:
    if isinstance(made, Entrant):
        return {"unit": "s", "settled": False, "memory": True}
    return {"unit": made.unit, "settled": made.settled, "memory": False}


if __name__ == "__main__":
    if sys.argv[1] == "names":
        print(json.dumps(list(ROWS)))
    else:
        serve(sys.argv[2])
