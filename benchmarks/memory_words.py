"""What steps and fits of nets with large vocabularies take, beside what is told before.

Two blocks of SmolLM2-135M's shape (576 wide, 9 heads, 3 of keys and values, SwiGLU of 1,536) with
49,152 words, and the same 256 wide with 151,936; one text of 512 steps, some of whose labels are
ignored. "steps" are three of `net.step`, the first by the layers, beside `net.memory`; "clipped" by
the norm of all gradients, "gathered" over four micro-batches, and "both", ten of them. Of fits
"recompute" has a budget of 0.9 of that, or the least that is accepted, "metric" a perplexity,
"bfloat16" mixed precision, "folder" parameters and state beside memory, within the least. Each
figure comes from a process of its own, by one thread: the most resident memory beyond what it
held before the net was built, after a small net had been trained. It should be within 2 % + 2 MB of
the prediction, and no more than 1 % above a budget. Of a table that is not tied AdamW's state is
there for the rows that came alone, and told for all: such lines are marked.

    python benchmarks/memory_budget.py --words [numpy] [onednn]
"""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from apart import begin, forget_peak, fresh, on_threads, peak, resident
from report import introduction, publish, table

from singanet import FeedForwardNet
from singanet.base.heap import trim
from singanet.errors import ArgumentError
from singanet.layers import (
    Activation,
    Add,
    Dense,
    Embedding,
    Input,
    MultiHeadAttention,
    Multiply,
    RMSNorm,
    RotaryEmbedding,
)
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Perplexity
from singanet.models import build
from singanet.optimizer import SGD, Accumulator, Adafactor, AdamW, ClipByGlobalNorm

MB = 1e6
STEPS = 512
SHAPES = {49_152: 576, 151_936: 256}
"""Widths by words."""

RULES: dict[str, Callable[[], Any]] = {
    "SGD": lambda: SGD(lr=1e-3),
    "Adafactor": lambda: Adafactor(lr=1e-3),
    "AdamW": lambda: AdamW(lr=1e-3),
}
WAYS = ("steps", "fit, recompute")
STAGES: dict[str, Callable[[Any], Any]] = {
    "steps": lambda rule: rule,
    "steps, clipped": lambda rule: ClipByGlobalNorm(rule, 1.0),
    "steps, gathered": lambda rule: Accumulator(rule, 4),
    "steps, both": lambda rule: Accumulator(ClipByGlobalNorm(rule, 1.0), 4),
}
OTHERS = {
    "steps, clipped": ("SGD", "Adafactor", "AdamW"),
    "steps, gathered": ("Adafactor",),
    "steps, both": ("SGD", "Adafactor", "AdamW"),
    "fit, metric": ("Adafactor",),
    "fit, bfloat16": ("AdamW",),
    "fit, folder": ("AdamW",),
}
"""Rules of the other ways, which are measured with 49,152 words."""


class Case(NamedTuple):
    """A row of the table."""

    words: int
    tied: bool
    rule: str
    way: str


def net_of(words: int, width: int, tied: bool) -> FeedForwardNet:
    """The net, with a loss that ignores labels of -100."""
    heads = width // 64
    ids, embed = Input("ids", (STEPS,)), Embedding("embed", words, width)
    x = embed(ids)
    for k in (1, 2):
        attention = MultiHeadAttention(
            f"attention{k}",
            heads,
            use_bias=False,
            causal=True,
            num_kv_heads=max(1, heads // 3),
            rotary=RotaryEmbedding(),
        )
        x = Add(f"add{k}")(x, attention(RMSNorm(f"before{k}")(x)))
        y = RMSNorm(f"after{k}")(x)
        gate = Activation(f"silu{k}", "silu")(Dense(f"gate{k}", width * 8 // 3, use_bias=False)(y))
        y = Multiply(f"product{k}")(gate, Dense(f"up{k}", width * 8 // 3, use_bias=False)(y))
        x = Add(f"sum{k}")(x, Dense(f"down{k}", width, use_bias=False)(y))
    shared = {"W_specs": embed.params["weight"], "W_transpose": True} if tied else {}
    scores = Dense("head", words, use_bias=False, **shared)(RMSNorm("norm")(x))
    loss = SoftmaxCrossEntropy(ignore_index=-100)
    return FeedForwardNet(loss, inputs=ids, outputs=scores, seed=0)


def measured(words: int, tied: bool, rule: str, way: str, budget: int = 10**13) -> dict[str, Any]:
    """The prediction, and the resident peak of this process, which has done nothing else yet."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, words, (2, STEPS))
    labels = np.where(rng.random(ids.shape) < 0.2, -100, ids)
    _train_a_small_net()
    before = resident("RssAnon")
    forget_peak()
    net = net_of(words, SHAPES[words], tied)
    if way not in STAGES:
        return _fitted(net, RULES[rule](), ids, labels, way, budget, before)
    optimizer = STAGES[way](RULES[rule]())
    for _ in range(10 if optimizer.every > 1 else 3):
        net.step(ids[:1], labels[:1], optimizer)
    taken = peak() - before
    told = net_of(words, SHAPES[words], tied).memory(1, STAGES[way](RULES[rule]()))
    return {"measured": taken, "told": told.total}


def _fitted(
    net: FeedForwardNet, rule: Any, ids: Any, labels: Any, way: str, budget: int, before: int
) -> dict[str, Any]:
    metrics = [Perplexity(ignore_index=-100)] if way.endswith("metric") else []
    net.compile(rule, metrics=metrics, mixed_precision="bfloat16" if "bfloat16" in way else None)
    said = io.StringIO()
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch, contextlib.redirect_stderr(said):
        where = {"offload_folder": str(Path(scratch) / "net")} if way.endswith("folder") else {}
        try:
            net.fit(ids, labels, 1, 2, memory_budget=budget, allow=_allowed(way), **where)
        except ArgumentError as error:
            return {"least": int(error.advice.split()[2].rstrip(",;"))}
        taken = peak() - before
    lines = said.getvalue().splitlines()
    last = next(line for line in lines if line.startswith("memory: "))
    told = last.partition("predicted ")[2].partition(" (")[0]
    return {"measured": taken, "told": _bytes(told), "how": lines[0].partition(": ")[2]}


def _allowed(way: str) -> list[str]:
    return {"fit, recompute": ["recompute"], "fit, folder": ["offload"]}.get(way, [])


def _bytes(text: str) -> float:
    number, unit = text.replace(",", "").split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def _train_a_small_net() -> None:
    """Modules, libraries and threads, which no net takes along."""
    small, optimizer = build("transformer_lm", seed=0), SGD(lr=0.01, momentum=0.9)
    ids = np.random.default_rng(0).integers(0, 90, (2, 64))
    for _ in range(3):
        small.step(ids, ids, optimizer)
    small.memory(1)
    small.compile(optimizer)
    small.fit(ids, ids, batch_size=2, memory_budget="1GB", verbose=False)
    del small, optimizer
    gc.collect()
    trim()


def cases(kernels: str) -> Iterator[Case]:
    """All that are measured with these kernels."""
    for words, tied, rule in product(SHAPES, (True, False), RULES):
        yield from (Case(words, tied, rule, way) for way in WAYS)
    for tied, (way, rules) in product((True, False), OTHERS.items()):
        if kernels == "onednn" or not way.endswith("bfloat16"):
            yield from (Case(min(SHAPES), tied, rule, way) for rule in rules)


def row(kernels: str, case: Case, plain: dict[Case, float]) -> list[str]:
    """A line; ``plain`` has what was told of steps, by their case."""
    budget = 10**13
    if case.way == "fit, recompute":
        budget = int(0.9 * plain[case._replace(way="steps")])
    elif case.way == "fit, folder":
        budget = 1
    found: Any = _child(kernels, case, budget)
    if "least" in found:
        budget = found["least"]
        found = _child(kernels, case, budget)
    plain[case] = found["told"]
    took, off = found["measured"], found["told"] - found["measured"]
    limited = budget < 10**13
    rows = "the rows that came" if not case.tied and case.rule == "AdamW" else ""
    good = took <= 1.01 * budget and abs(off) <= 0.02 * took + 2 * MB
    return [
        kernels,
        f"{case.words:,}",
        "tied" if case.tied else "apart",
        case.rule,
        case.way,
        found.get("how", ""),
        f"{budget / MB:,.1f}" if limited else "",
        f"{found['told'] / MB:,.1f}",
        f"{took / MB:,.1f}",
        f"{off / MB:+,.1f}",
        "" if good else rows or ("above" if took > 1.01 * budget else "no"),
    ]


def _child(kernels: str, case: Case, budget: int) -> dict[str, Any]:
    found = fresh(__file__, [*case, budget], SINGANET_OPS=kernels, **on_threads(1))
    if isinstance(found, str):
        raise SystemExit(f"{case}: {found}")
    return found


def main(arguments: list[str]) -> None:
    """The table."""
    kinds = [each for each in arguments if each in ("numpy", "onednn")] or ["onednn", "numpy"]
    head = ["kernels", "words", "table", "rule", "way", "how", "budget MB", "predicted MB"]
    lines = []
    for kernels in kinds:
        plain: dict[Case, float] = {}
        for case in cases(kernels):
            lines.append(row(kernels, case, plain))
            print(lines[-1], file=sys.stderr, flush=True)
    body = table([*head, "measured MB", "off MB", "within"], lines)
    publish("memory_words", "Memory with large vocabularies", f"{introduction(__doc__)}\n\n{body}")


if __name__ == "__main__":
    begin(measured, main)
