"""Predictions of singanet against inference runtimes: ONNX Runtime, OpenVINO, PyTorch compiled.

singanet's side is a predictor. The runtimes read the file that `singanet.onnx.save` writes of it,
softmax included, with the batch as a number and the weights as constants; PyTorch's twin has the
same weights, frozen. All compute in float32: OpenVINO is told so, since it would else multiply
bfloat16 on a processor with AMX. Every rival has a process of its own and its turn in each round;
what it predicts is compared with singanet's. Rivals that are not installed are left out.

    python benchmarks/infer_vs_runtimes.py --threads 1
    python benchmarks/infer_vs_runtimes.py --threads 2 --rows mlp,lenet:1 --compile never
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from versus import COMPILED, left_out, options

OPTIONS = options(__doc__)

import numpy as np  # noqa: E402 - after the number of threads
from apart import Entrant, NoEntryError, Taken, apart  # noqa: E402
from cases import CASES, batch_of, build, chosen, predictor  # noqa: E402
from report import publish, table  # noqa: E402

OURS = "singanet"
RUNTIMES = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino", "PyTorch compiled": "torch"}
"""The rivals, and what has to be installed for each."""

_SHOWN = 64
"""Numbers of a prediction that are compared."""

_APART = 1e-3
"""How far those of two rivals may be apart, as a share of the largest."""

Predict = Callable[[], Any]


def main() -> None:
    """Print and keep the table."""
    rows, rivals = chosen(OPTIONS.rows), [OURS, *filter(_is_there, RUNTIMES)]
    loads = partial(_imports, compile_all=OPTIONS.compile == "all")
    taken = apart(make, rivals, rows, OPTIONS.rounds, OPTIONS.seconds, loads, 60 * OPTIONS.minutes)
    lines, ratios, notes = [], [], [left_out(rows[len(taken) :])]
    for row, results in zip(rows, taken, strict=False):
        name = CASES[row].name
        notes += [f"{name}, {rival}: {result.failure}." for rival, result in results.items()
                  if result.failure not in ("", "not tried")]  # fmt: skip
        there = {rival: result for rival, result in results.items() if not result.failure}
        if OURS in there and len(there) > 1:
            _expect_equal(name, there)
            ratio, cells = _line(there)
            ratios.append(ratio)
            lines.append([CASES[row].model, str(CASES[row].batch), *cells])
    mean = statistics.geometric_mean(ratios)
    lines.append(["**geometric mean**", "", *[""] * (1 + len(RUNTIMES)), f"**{mean:.2f}**", ""])
    lines.append(["**lowest**", "", *[""] * (1 + len(RUNTIMES)), f"**{min(ratios):.2f}**", ""])
    header = ["net", "batch", *(f"{name}, ms" for name in (OURS, *RUNTIMES)), "ratio", "(spread)"]
    missing = [f"{name} is not installed." for name in RUNTIMES if not _is_there(name)]
    body = "\n".join([table(header, lines), "", _explained(), *missing, *notes])
    file = f"infer_vs_runtimes_{OPTIONS.ops}_{OPTIONS.threads}t" + "_part" * bool(OPTIONS.rows)
    title = f"Inference against runtimes: {OPTIONS.ops} kernels, {OPTIONS.threads} thread(s)"
    publish(file, title, body)


def make(name: str, row: int) -> Entrant:
    """A prediction of the rival."""
    case = CASES[row]
    x, _ = batch_of(case.model, case.batch)
    net = build(case.model)
    if name == OURS:
        made: Predict = partial(predictor(net), x)
    elif name == "PyTorch compiled":
        made = _pytorch(net, case.model, x)
    else:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "net.onnx"
            import singanet.onnx

            singanet.onnx.save(net.predictor(), file)
            made = (_onnx_runtime if name == "ONNX Runtime" else _openvino)(file, x)
    del net
    return Entrant(made, {"shown": np.asarray(made()).reshape(-1)[:_SHOWN].tolist()})


def _onnx_runtime(file: Path, x: Any) -> Predict:
    """All optimizations, threads that spin, as is its default."""
    import onnxruntime

    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads, given.inter_op_num_threads = OPTIONS.threads, 1
    given.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    first = next(iter(x.values())) if isinstance(x, dict) else x
    given.add_free_dimension_override_by_name("batch", len(first))
    session = onnxruntime.InferenceSession(file, given, providers=["CPUExecutionProvider"])
    feed = x if isinstance(x, dict) else {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feed)[0]


def _openvino(file: Path, x: Any) -> Predict:
    """For a single request, which has all threads."""
    import openvino

    model = openvino.Core().read_model(file)
    feed = x if isinstance(x, dict) else {model.inputs[0].any_name: x}
    model.reshape({name: list(array.shape) for name, array in feed.items()})
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": OPTIONS.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
    }
    compiled = openvino.Core().compile_model(model, "CPU", hints)
    # Not copied on the way in: singanet's and PyTorch's read the array where it is, too.
    return lambda: compiled(feed, share_inputs=True)[0]


def _pytorch(net: Any, model: str, x: Any) -> Predict:
    import torch
    import torch._inductor.config
    import twins

    torch._inductor.config.freezing = True
    torch.set_num_threads(OPTIONS.threads)
    twin = twins.build(model).eval()
    twins.copy_weights(net, twin)
    inputs = [torch.from_numpy(a) for a in (x.values() if isinstance(x, dict) else [x])]
    if inputs[0].ndim == 4:
        twin = twin.to(memory_format=torch.channels_last)
        inputs = [a.contiguous(memory_format=torch.channels_last) for a in inputs]
    run = torch.compile(twin)

    def predict() -> torch.Tensor:
        with torch.inference_mode():
            return run(*inputs).softmax(-1)

    return predict


def _imports(name: str, row: int, compile_all: bool) -> None:
    # Only the rows in which compiling paid: see versus.py.
    if name == "PyTorch compiled" and not compile_all and CASES[row].model not in COMPILED:
        raise NoEntryError("not tried")
    if name == "PyTorch compiled" and OPTIONS.compile == "never":
        raise NoEntryError("not tried")


def _is_there(rival: str) -> bool:
    return importlib.util.find_spec(RUNTIMES[rival]) is not None


def _expect_equal(row: str, there: dict[str, Taken]) -> None:
    """Refuse a table of rivals that predict something else."""
    ours = np.array(there[OURS].facts["shown"])
    for name, result in there.items():
        far = np.abs(np.array(result.facts["shown"]) - ours).max() / np.abs(ours).max()
        if not far < _APART:
            raise SystemExit(f"{row}: {name} predicts what is {far:.1g} from singanet's")


def _line(there: dict[str, Taken]) -> tuple[float, list[str]]:
    """The ratio of a row, and its cells."""
    middle = {name: statistics.median(result.seconds) for name, result in there.items()}
    best = min((name for name in middle if name != OURS), key=middle.__getitem__)
    pairs = zip(there[best].seconds, there[OURS].seconds, strict=False)
    low, ratio, high = statistics.quantiles([theirs / ours for theirs, ours in pairs], n=4)
    cells = [f"{1e3 * middle[name]:.3g}" if name in middle else "" for name in (OURS, *RUNTIMES)]
    cells = [f"**{cell}**" if name == best else cell
             for name, cell in zip((OURS, *RUNTIMES), cells, strict=True)]  # fmt: skip
    return ratio, [*cells, f"{ratio:.2f}", f"{low:.2f} to {high:.2f}"]


def _explained() -> str:
    versions = ", ".join(
        f"{name} {version(RUNTIMES[name])}" for name in RUNTIMES if _is_there(name)
    )
    return (
        "Ratio: the time of the best runtime, in bold, by singanet's, above 1 where singanet is "
        "faster; median of the rounds, each a pair of neighbours in time, and the quartiles. At "
        f"most {OPTIONS.rounds} rounds, {OPTIONS.seconds:.0f} s a row after three. {versions}; "
        f"torch.compile: {OPTIONS.compile}. All in float32, OpenVINO told to be (it would take "
        f"bfloat16 with AMX); {OPTIONS.clock} time. Load of the machine at the end: "
        f"{os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    main()
