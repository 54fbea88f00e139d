"""What `net.memory` tells beside what the process takes, for nets of every kind.

Rows are kinds of nets, not sizes: stacks of recurrent layers, large vocabularies, Llama blocks
plain, recomputed, with words of bfloat16 and with LoRA pairs, float16 with Adam, U-Nets, depthwise
nets, several outputs, wide products, convnets. Each is three steps in a process of its own, the
first by the layers, the second recorded, the third replayed, beside `net.memory`. Taken is the most
anonymous memory of the process beyond what it held with every module of singanet imported and a
few products trained. "first" processes have an empty cache folder, and measure and compile what
later ones find in it. Outside is what the process has more of its libraries' pages, by their files.
Off is what is told less what is taken; it should be within 2 % + 2 MB.

    python benchmarks/memory_kinds.py [WORD OF A ROW ...]
"""

from __future__ import annotations

import gc
import importlib
import os
import pkgutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cases
import numpy as np
from apart import begin, forget_peak, fresh, on_threads, peak, resident
from report import introduction, publish, table

from singanet import FeedForwardNet
from singanet.base.heap import trim
from singanet.layers import (
    GRU,
    LSTM,
    RNN,
    Activation,
    Conv2D,
    Dense,
    Embedding,
    Flatten,
    GlobalAvgPooling2D,
    Input,
)
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.models import build
from singanet.optimizer import SGD, Adam

MB = 1e6
LEAST = 0.02, 2 * MB
"""The share and the bytes by which a row may be off."""


class Kind(NamedTuple):
    """A net, a batch for it, its optimizer, and what a step is recorded with."""

    net: FeedForwardNet
    x: Any
    y: Any
    optimizer: Any
    recompute: Any = None


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _ids(count: int, *shape: int) -> Any:
    return np.random.default_rng(1).integers(0, count, shape)


def recurrent(
    layer: Any, width: int, steps: int, batch: int, stacks: int = 2, **options: Any
) -> Kind:
    """Sequences of 64 numbers, and a class for each."""
    x = Input("x", (steps, 64))
    last = layer("rnn", width, num_stacks=stacks, return_sequences=False, **options)(x)
    net = FeedForwardNet(SoftmaxCrossEntropy(), inputs=x, outputs=Dense("scores", 10)(last), seed=0)
    return Kind(net, _numbers(batch, steps, 64), _ids(10, batch), Adam(lr=1e-3))


def words_after(layer: Any, words: int, batch: int, steps: int = 32) -> Kind:
    """A recurrent language model."""
    ids = Input("ids", (steps,))
    x = layer("rnn", 256)(Embedding("table", words, 128)(ids))
    net = FeedForwardNet(
        SoftmaxCrossEntropy(), inputs=ids, outputs=Dense("scores", words)(x), seed=0
    )
    given = _ids(words, batch, steps)
    return Kind(net, given, given, Adam(lr=1e-3))


def llama(
    blocks: int = 4, width: int = 256, steps: int = 512, words: int = 2000, batch: int = 1
) -> Kind:
    """A language model of Llama's blocks."""
    given = _ids(words, batch, steps)
    return Kind(cases.llama(blocks, width, steps, words), given, given, Adam(lr=1e-3))


def narrow(kind: Kind, rounding: str = "stochastic") -> Kind:
    """The same with its matrices in words of bfloat16."""
    kind.net.as_type("bfloat16", rounding)
    return kind


def paired(kind: Kind, rank: int = 8) -> Kind:
    """The same with LoRA pairs, which alone are trained."""
    kind.net.adapt(rank, "all")
    return kind


def half(kind: Kind) -> Kind:
    """The same compiled for float16, with the optimizer scaled as `fit` has it."""
    kind.net.compile(kind.optimizer, mixed_precision="float16")
    return kind


def ready(name: str, batch: int, shape: Any = None, **options: Any) -> Kind:
    """A net of the list, with SGD and momentum."""
    net = build(name, shape, seed=0, **options)
    plan = net._execution_plan()
    of = plan.by_name[plan.inputs[0]].layer.in_shapes
    to = plan.by_name[plan.outputs[0]].out_shapes[0]
    x = _ids(90, batch, *of) if name == "char_rnn" else _numbers(batch, *of)
    return Kind(net, x, _ids(2, batch, *to[:-1]), SGD(lr=1e-3, momentum=0.9))


def several(batch: int) -> Kind:
    """A class, a box and a mask of each image."""
    image = Input("image", (3, 64, 64))
    x = image
    for k, channels in enumerate((32, 64, 64)):
        x = Conv2D(f"conv{k}", channels, 3, 1 + (k == 1))(x)
        x = Activation(f"relu{k}", "relu")(x)
    pooled = GlobalAvgPooling2D("pooled")(x)
    outputs = [Dense("kind", 10)(pooled), Dense("box", 4)(pooled), Conv2D("mask", 1, 1)(x)]
    losses: Any = {"kind": SoftmaxCrossEntropy(), "box": SquaredError(), "mask": SquaredError()}
    net = FeedForwardNet(MultiLoss(losses), inputs=image, outputs=outputs, seed=0)
    y = {
        "kind": _ids(10, batch),
        "box": _numbers(batch, 4),
        "mask": _numbers(batch, *net._execution_plan().by_name["mask"].out_shapes[0]),
    }
    return Kind(net, _numbers(batch, 3, 64, 64), y, Adam(lr=1e-3))


def wide(width: int, depth: int, batch: int, optimizer: Any = None) -> Kind:
    """Products alone."""
    x = y = Input("x", (width,))
    for k in range(depth):
        y = Activation(f"relu{k}", "relu")(Dense(f"fc{k}", width)(y))
    net = FeedForwardNet(
        SoftmaxCrossEntropy(), inputs=x, outputs=Dense("scores", 10)(Flatten("flat")(y)), seed=0
    )
    return Kind(net, _numbers(batch, width), _ids(10, batch), optimizer or Adam(lr=1e-3))


KINDS: dict[str, Callable[[], Kind]] = {
    "LSTM, 2 of 256": partial(recurrent, LSTM, 256, 64, 32),
    "LSTM, both ways": partial(recurrent, LSTM, 128, 64, 32, 1, bidirectional=True),
    "GRU, 2 of 256": partial(recurrent, GRU, 256, 64, 16),
    "GRU, long": partial(recurrent, GRU, 384, 200, 8, 1),
    "RNN, 2 of 256": partial(recurrent, RNN, 256, 100, 32),
    "char_rnn 32": partial(ready, "char_rnn", 32),
    "LSTM, 20,000 words": lambda: words_after(LSTM, 20_000, 8),
    "GRU, 8,000 words": lambda: words_after(GRU, 8_000, 16),
    "Llama, 8,000 words": lambda: llama(2, words=8000),
    "Llama, 16,000 words": lambda: llama(1, words=16_000, batch=2),
    "Llama": llama,
    "Llama, 4 texts": lambda: llama(2, batch=4, steps=256),
    "Llama, recomputed": lambda: llama(batch=2)._replace(recompute="blocks"),
    "Llama, words of bfloat16": lambda: narrow(llama()),
    "Llama, bfloat16 and rest": lambda: narrow(llama(), "remainder"),
    "Llama, pairs": lambda: paired(llama()),
    "Llama, small, pairs": lambda: paired(llama(1, 128, 64, 500)),
    "LSTM, float16": lambda: half(recurrent(LSTM, 256, 32, 16)),
    "wide, float16": lambda: half(wide(1024, 8, 64)),
    "resnet20 8, float16": lambda: half(ready("resnet20", 8)._replace(optimizer=Adam(lr=1e-3))),
    "unet 1": partial(ready, "unet", 1),
    "unet of 32, 2": partial(ready, "unet", 2, (3, 128, 128), width=32),
    "unet of 16, 8": partial(ready, "unet", 8, (3, 64, 64), width=16),
    "mobilenet 1": partial(ready, "mobilenet", 1),
    "mobilenet_v2 1": partial(ready, "mobilenet_v2", 1),
    "mobilenet_v3_small 4": partial(ready, "mobilenet_v3_small", 4),
    "several outputs": partial(several, 16),
    "wide, Adam": partial(wide, 2048, 4, 256),
    "wide, SGD": lambda: wide(3072, 3, 128, SGD(lr=1e-3, momentum=0.9)),
    "googlenet 4": partial(ready, "googlenet", 4),
    "vgg16 8": partial(ready, "vgg16", 8),
    "resnet20 32": partial(ready, "resnet20", 32),
    "wrn-16-4 8": partial(ready, "wrn-16-4", 8),
    "densenet121 1": partial(ready, "densenet121", 1),
    "vit_tiny 4": partial(ready, "vit_tiny", 4),
}

ROWS = [
    ("LSTM, 2 of 256", "onednn", 1, "later"),
    ("LSTM, 2 of 256", "onednn", 2, "later"),
    ("LSTM, 2 of 256", "numpy", 1, "later"),
    ("LSTM, both ways", "onednn", 1, "later"),
    ("GRU, 2 of 256", "onednn", 1, "later"),
    ("GRU, 2 of 256", "numpy", 1, "later"),
    ("GRU, long", "onednn", 1, "first"),
    ("RNN, 2 of 256", "onednn", 1, "later"),
    ("char_rnn 32", "onednn", 2, "later"),
    ("LSTM, 20,000 words", "onednn", 1, "later"),
    ("GRU, 8,000 words", "numpy", 2, "later"),
    ("Llama, 8,000 words", "onednn", 1, "later"),
    ("Llama, 8,000 words", "numpy", 1, "later"),
    ("Llama, 16,000 words", "onednn", 2, "later"),
    ("Llama", "onednn", 1, "later"),
    ("Llama", "onednn", 1, "first"),
    ("Llama", "numpy", 1, "later"),
    ("Llama, 4 texts", "onednn", 2, "later"),
    ("Llama, recomputed", "onednn", 1, "later"),
    ("Llama, recomputed", "numpy", 1, "later"),
    ("Llama, words of bfloat16", "onednn", 1, "later"),
    ("Llama, words of bfloat16", "numpy", 1, "later"),
    ("Llama, bfloat16 and rest", "onednn", 2, "later"),
    ("Llama, pairs", "onednn", 1, "later"),
    ("Llama, small, pairs", "onednn", 1, "later"),
    ("Llama, small, pairs", "numpy", 1, "later"),
    ("LSTM, float16", "onednn", 1, "later"),
    ("wide, float16", "onednn", 1, "later"),
    ("wide, float16", "numpy", 1, "later"),
    ("resnet20 8, float16", "onednn", 1, "later"),
    ("unet 1", "onednn", 1, "later"),
    ("unet of 32, 2", "onednn", 1, "first"),
    ("unet of 16, 8", "numpy", 1, "later"),
    ("mobilenet 1", "onednn", 2, "later"),
    ("mobilenet_v2 1", "numpy", 1, "later"),
    ("mobilenet_v3_small 4", "onednn", 1, "later"),
    ("several outputs", "onednn", 1, "later"),
    ("wide, Adam", "onednn", 1, "later"),
    ("wide, SGD", "numpy", 2, "later"),
    ("googlenet 4", "onednn", 1, "later"),
    ("vgg16 8", "onednn", 1, "later"),
    ("resnet20 32", "onednn", 1, "first"),
    ("wrn-16-4 8", "numpy", 1, "later"),
    ("densenet121 1", "onednn", 1, "later"),
    ("vit_tiny 4", "onednn", 2, "later"),
]


def measured(name: str) -> dict[str, Any]:
    """What is told and taken, by this process, which has done nothing else yet."""
    _import_all()
    small = wide(32, 2, 4)
    for _ in range(3):
        small.net.step(small.x, small.y, small.optimizer)
    small.net.memory(1)
    del small
    gc.collect()
    trim()
    before, files = resident("RssAnon"), resident("RssFile")
    forget_peak()
    net, x, y, optimizer, recompute = KINDS[name]()
    if recompute is not None:
        net.programs.recompute = recompute
    steps = []
    for _ in range(3):
        if net.compiled is None:
            net.step(x, y, optimizer)
        else:
            net.fit(x, y, len(x), 1, verbose=False)
        steps.append(peak() - before)
        forget_peak()
    files = resident("RssFile") - files
    # As it was before: parameters are yet to be filled, and the optimizer's state to be made.
    fresh_net, x, _, optimizer, recompute = KINDS[name]()
    told = fresh_net.memory(len(x), optimizer, recompute=recompute)
    return {"taken": max(steps), "steps": steps, "told": told.total, "outside": files, **told.parts}


def _import_all() -> None:
    """Every module that needs no library but those that are there with NumPy and oneDNN."""
    for package in ("base", "engine", "layers", "loss", "ops", "optimizer", "params", "program"):
        root = importlib.import_module(f"singanet.{package}")
        for found in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
            if ".compiled" not in found.name or found.name.startswith("singanet.program"):
                importlib.import_module(found.name)
    importlib.import_module("singanet.training.fit")


def row(name: str, kernels: str, threads: int, process: str, cache: str) -> list[str]:
    """A line of the table."""
    environment = {"SINGANET_OPS": kernels, "XDG_CACHE_HOME": cache, **on_threads(threads)}
    if process == "later":
        fresh(__file__, [name], **environment)
    found = fresh(__file__, [name], **environment)
    if isinstance(found, str):
        return [name, kernels, str(threads), process, "", "", "", "", "", found.strip()[-80:]]
    taken, off = found["taken"], found["told"] - found["taken"]
    good = abs(off) <= LEAST[0] * taken + LEAST[1]
    print(name, kernels, threads, process, found, file=sys.stderr, flush=True)
    return [
        name,
        kernels,
        str(threads),
        process,
        f"{found['told'] / MB:,.1f}",
        f"{taken / MB:,.1f}",
        f"{off / MB:+,.1f}",
        f"{off / taken:+.1%}",
        f"{found['outside'] / MB:,.1f}",
        "" if good else "no",
    ]


def main(words: list[str]) -> None:
    """The table."""
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        for name, *where in ROWS:
            told = " ".join(map(str, (name, *where)))
            if all(word in told for word in words):
                cache = tempfile.mkdtemp(dir=scratch)
                lines.append(row(name, *where, cache))  # type: ignore[arg-type]
                print(lines[-1], file=sys.stderr, flush=True)
    head = ["net", "kernels", "threads", "process", "told MB", "taken MB", "off MB", "off"]
    body = table([*head, "outside MB", "within"], lines)
    off = sum(bool(line[-1]) for line in lines)
    body = f"{body}\n\n{len(lines)} rows, {off} of them off."
    if words:
        print(body)
        return
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    said = f"ONEDNN_MAX_CPU_ISA={limit}\n\n" if limit else ""
    name = "_".join(["memory_kinds", *[limit.lower()] * bool(limit)])
    publish(name, "Memory by kinds of nets", f"{introduction(__doc__)}\n\n{said}{body}")


if __name__ == "__main__":
    begin(measured, main)
