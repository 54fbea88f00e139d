"""The commands that train: ``train``, ``finetune``, ``tune`` and ``bench``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, TypeAlias

from singanet.base.processes import LEAVING
from singanet.base.progress import progress
from singanet.commands.looking_commands import Classes, InputShape, Named, named_net
from singanet.commands.parser import UsageError
from singanet.commands.runs.run_options import OptionHint, RunOptions, positive

_WORDS = {2: "interrupted", 15: "terminated"}
DIVERGED = 3

NOT_OF_TEXTS = (
    *("model", "from_", "leave_out", "min_count", "class_weight", "drop_last", "initial_epoch"),
)
"""Options that do not apply to a published model."""

PUBLISHED = OptionHint(
    "from_",
    str,
    "FOLDER|FILE.gguf|OWNER/REPO",
    "a published model, or its name on the hub",
)

Config: TypeAlias = Annotated[Path | None, "FILE", "TOML with these options; these here win"]


def train(*, config: Config = None, **given: Any) -> int:
    """Train a ready net, or a file's net, and print its test accuracy.

    The learning rate rises in the first epoch and then falls to 0. A signal (Ctrl-C) ends the
    training after the current step; with --out its state is saved. The exit status is 3 if the loss
    is not finite.

    Examples:
      singanet train lenet --data digits --epochs 10 --out runs/lenet
      singanet train --out runs/lenet --resume --epochs 20
      singanet train --from net.onnx --data unseen.npz --lr 0.0005
    """
    return _trained("train", "MODEL, or --from FILE", config=config, **given)


def finetune(*, config: Config = None, **given: Any) -> int:
    """Train a published language model on texts or conversations.

    DATA is .txt or .jsonl, a file or a folder: texts, with training on every token, or
    conversations, with training on the answers. RUN_DIR/model is the tuned model, in transformers'
    format. With --head sequence-classification DATA is a table of texts, and --target its column of
    classes. Resume with --out RUN_DIR --resume.

    Examples:
      singanet finetune SmolLM2-135M-Instruct --data chats.jsonl --memory-budget 1.5GB --out tuned
    """
    return _trained("finetune", "FOLDER or OWNER/REPO", config=config, **given)


def _trained(command: str, needed: str, **given: Any) -> int:
    from singanet.commands.runs.folder import gathered
    from singanet.commands.runs.run import DivergedError, RunInterrupted, run
    from singanet.parallel import init

    options = gathered(given, published=command == "finetune")
    if not {"model", "from_"} & options.keys():
        raise UsageError(f"the following arguments are required: {needed}")
    try:
        result = run(RunOptions(**options))
    except RunInterrupted as stop:
        number, how = int(stop.number), ""
        if stop.folder is not None:
            how = f"; resume with: singanet {command} --out {stop.folder} --resume"
        # The launcher resumes it, and prints so.
        if not LEAVING.begun:
            print(f"singanet: {_WORDS[number]}{how}", file=sys.stderr)
        return 128 + number
    except DivergedError as error:
        print(f"singanet: {error}", file=sys.stderr)
        return DIVERGED
    if init().rank == 0:
        print(f"{result.report}  {result.figures['seconds']:.1f} s", flush=True)
        if not options.get("quiet"):
            print(result.kept, file=sys.stderr)
    return 0


def tune(
    model: Named,
    *,
    input_shape: InputShape = None,
    classes: Classes = None,
    batch_size: Annotated[int, "N", "samples in a step"],
    again: Annotated[bool, "", "repeat earlier measurements"] = False,
) -> int:
    """Measure the fastest kernels for each convolution of a net on this machine.

    Examples:
      singanet tune resnet20 --batch-size 64
    """
    net = named_net("tune", model, input_shape, classes)
    print(net.tune_kernels(batch_size, again=again))
    return 0


_BENCHED = 64
"""The most batches that a measurement reads."""

Do: TypeAlias = Callable[[Any, Any], object]
"""A function of the inputs and labels of a batch."""


def bench(
    model: Annotated[str, "MODEL|RUN_DIR|FILE", "a ready net, a run or a model file"],
    *,
    data: Annotated[str | None, "DATA", "as for train"] = None,
    batch_size: Annotated[int | None, "N", "samples in a step (default: the net's recipe)"] = None,
    rounds: Annotated[int, "N", "number of rounds", positive("pass 1")] = 5,
    seconds: Annotated[float, "S", "seconds of each round", positive("pass 1")] = 1.0,
) -> int:
    """Measure samples per second of a ready net.

    Examples:
      singanet bench lenet --batch-size 64 --rounds 9
    """
    from dataclasses import replace
    from statistics import median

    from singanet.commands.runs.optimizers import make_optimizer
    from singanet.commands.runs.recipe import checked_recipe
    from singanet.commands.runs.tasks import load_task
    from singanet.commands.runs.trained import is_run, is_whole, seeded_on
    from singanet.models import build, find

    if is_run(model) or is_whole(model):
        recipe = checked_recipe(RunOptions(from_=model, batch_size=batch_size))
        net, task = seeded_on(model, data, 0)
    else:
        entry = find(model)
        recipe = checked_recipe(RunOptions(entry.name, batch_size=batch_size))
        task = load_task(entry, data)
        net = build(entry.name, seed=0, **task.settings)
    # Images are shifted outside the timed part: the net is measured.
    train = task.train_batches(replace(recipe, augment=False), 0)
    batches = list(islice(train, _BENCHED))
    optimizer = make_optimizer("sgd", 1e-6, 0.0, steps=1, warm_up=0)
    print(f"{model} on {task.name}, batches of {recipe.batch_size}, {rounds} rounds")
    ways: dict[str, tuple[Do, list[Any]]] = {
        "train": (lambda x, y: net.step(x, y, optimizer), batches),
        "predict": (lambda x, y: net.predict(x), batches),
    }
    predictor: Any = net.predictor()
    ways["predictor"] = lambda x, y: predictor(x), batches
    peer, without = _onnx_runtime(predictor, batches)
    if peer is not None:
        ways["ONNX Runtime"] = peer
    for what, taken in _interleaved(ways, rounds, seconds).items():
        rates = sorted(taken)
        spread = f"{rates[0]:,.0f} to {rates[-1]:,.0f}"
        print(f"{what:<13}{median(rates):>12,.0f} samples/s  ({spread})")
    if without:
        print(f"ONNX Runtime is not measured: {without}")
    return 0


def _onnx_runtime(
    predictor: Any, batches: Sequence[Any]
) -> tuple[tuple[Do, list[Any]] | None, str]:
    """Return ONNX Runtime's predictions of the same graph and threads, or why there are none.

    The ``batches`` have its dtypes.
    """
    import tempfile

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
    """Return samples per second of each way and round, in turns, after a warm-up batch."""
    sources = {name: cycle(batches) for name, (_, batches) in ways.items()}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for name, (do, _) in ways.items():
        do(*next(sources[name]))
    for name in progress([*ways] * rounds, "bench"):
        rates[name].append(_rate(ways[name][0], sources[name], seconds))
    return rates


def _rate(do: Do, source: Iterator[Any], seconds: float) -> float:
    samples, start = 0, perf_counter()
    end = start + seconds
    while True:
        x, y = next(source)
        do(x, y)
        samples += len(y)
        now = perf_counter()
        if now >= end:
            return samples / (now - start)
