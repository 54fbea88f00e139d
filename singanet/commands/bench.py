"""``singanet bench``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle
from statistics import median
from typing import Any, TypeAlias

Do: TypeAlias = Callable[[Any, Any], object]
"""What is done with the inputs and labels of a batch."""


def add_command(commands: Any) -> None:
    """Add it to argparse's subparsers."""
    parser = commands.add_parser("bench", help="measure samples per second of a ready net")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--data", metavar="DATA", help="as for train")
    parser.add_argument("--batch-size", type=int, metavar="N")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often; 5")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="F", help="of each round; 1")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from singanet.models import build, find
    from singanet.runs.optimizers import make_optimizer
    from singanet.runs.recipe import checked_recipe
    from singanet.runs.run_options import RunOptions
    from singanet.runs.tasks import load_task

    _check(arguments)
    entry = find(arguments.model)
    recipe = checked_recipe(RunOptions(entry.name, batch_size=arguments.batch_size))
    task = load_task(entry, arguments.data)
    net = build(entry.name, task.input_shape, task.num_classes, 0, **task.options)
    # Images are shifted before the clock runs: it is the net that is measured.
    batches = list(task.train_batches(replace(recipe, augment=False), 0))
    optimizer = make_optimizer("sgd", 1e-6, 0.0, steps=1, warm_up=0)
    print(f"{entry.name} on {task.name}, batches of {recipe.batch_size}, {arguments.rounds} rounds")
    ways: dict[str, tuple[Do, list[Any]]] = {
        "train": (lambda x, y: net.step(x, y, optimizer), batches),
        "predict": (lambda x, y: net.predict(x), batches),
    }
    predictor: Any = net.predictor()
    ways["predictor"] = lambda x, y: predictor(x), batches
    peer, without = _onnx_runtime(predictor, batches)
    if peer is not None:
        ways["ONNX Runtime"] = peer
    for what, taken in _interleaved(ways, arguments.rounds, arguments.seconds).items():
        rates = sorted(taken)
        spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
        print(f"{what:<13}{median(rates):>12,.0f} samples/s  ({spread})")
    if without:
        print(f"ONNX Runtime is not beside: {without}")
    return 0


def _onnx_runtime(
    predictor: Any, batches: Sequence[Any]
) -> tuple[tuple[Do, list[Any]] | None, str]:
    """Predictions by ONNX Runtime of the same graph with as many threads, or why there are none.

    With the ``batches`` in the types that it asks for.
    """
    import tempfile
    from pathlib import Path

    from singanet import onnx
    from singanet.errors import ArgumentError
    from singanet.ops.threads import default_threads

    try:
        import onnxruntime
    except ImportError:
        return None, "pip install onnxruntime"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = default_threads(), 1
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "net.onnx")
        try:
            onnx.save(predictor, file)
        except ArgumentError as error:
            return None, str(error).splitlines()[0]
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    types = {
        given.name: "float32" if given.type == "tensor(float)" else given.type[7:-1]
        for given in session.get_inputs()
    }

    def fed(x: Any) -> dict[str, Any]:
        arrays = x if isinstance(x, dict) else {next(iter(types)): x}
        return {name: array.astype(types[name]) for name, array in arrays.items()}

    return (lambda x, y: session.run(None, x), [(fed(x), y) for x, y in batches]), ""


def _interleaved(
    ways: Mapping[str, tuple[Do, Sequence[Any]]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Samples a second of each way in each round, the ways in turn, after a batch that warms up."""
    sources = {name: cycle(batches) for name, (_, batches) in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for name, (do, _) in ways.items():
        do(*next(sources[name]))
    for _ in range(rounds):
        for name, (do, _) in ways.items():
            rates[name].append(_rate(do, sources[name], seconds))
    return rates


def _rate(do: Do, source: Iterator[Any], seconds: float) -> float:
    samples, start = 0, time.perf_counter()
    end = start + seconds
    while True:
        x, y = next(source)
        do(x, y)
        samples += len(y)
        now = time.perf_counter()
        if now >= end:
            return samples / (now - start)


def _check(arguments: argparse.Namespace) -> None:
    from singanet.errors import ArgumentError

    for option in ("rounds", "seconds"):
        value = getattr(arguments, option)
        if not 0 < value < float("inf"):
            raise ArgumentError(
                f"--{option}", expected="a positive number", received=str(value), advice="pass 1"
            )
