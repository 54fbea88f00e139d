"""What comes of each pair of features, and the table of it in ``docs/features.md``.

``python -m tests.pairs.declared`` writes that table anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

PAGE = Path(__file__).resolve().parents[2] / "docs" / "features.md"
BEGIN, END = "<!-- pairs -->\n", "<!-- end of pairs -->\n"


@dataclass(frozen=True)
class Feature:
    """``way`` is how nearly a feature leaves results as they are: "bits", or "close" to rounding.

    Without it a feature makes other results, for which `tests.pairs.by_hand` has formulas.
    """

    name: str
    way: Literal["bits", "close", ""] = ""


FEATURES = [
    Feature("recorded", "bits"), Feature("recompute", "bits"), Feature("micro-batches", "close"),
    Feature("budget", "bits"), Feature("offload", "bits"), Feature("float16"), Feature("bfloat16"),
    Feature("all-reduce", "close"), Feature("sparse all-reduce", "close"),
    Feature("PowerSGD", "close"), Feature("sharded state", "close"),
    Feature("sharded gradients", "close"), Feature("sharded parameters", "close"),
    Feature("parameter server", "close"), Feature("cached embeddings", "bits"),
    Feature("pipeline", "close"), Feature("clipping by global norm"), Feature("accumulation"),
    Feature("EMA"), Feature("freezing"), Feature("masks"), Feature("sparse inputs"),
    Feature("several outputs"), Feature("user's optimizer"), Feature("Executor", "bits"),
    Feature("head in blocks", "close"), Feature("one block at a time"), Feature("low-rank pairs"),
    Feature("narrow weights"), Feature("schedule-free"), Feature("loss of a function", "close"),
]  # fmt: skip
NAMES = [feature.name for feature in FEATURES]
BITS = frozenset(feature.name for feature in FEATURES if feature.way == "bits")
CLOSE = frozenset(feature.name for feature in FEATURES if feature.way == "close")
PAIRS = [frozenset(pair) for pair in combinations(NAMES, 2)]

NOT_THE_BITS = {
    # What programs keep in bfloat16 the layers do not round.
    frozenset({"recorded", "bfloat16"}),
    # Each begins with what is there, rounded or not.
    frozenset({"float16", "Executor"}),
    # Sums in another order: parts of batches, rows of several ranks, the norm of rows.
    frozenset({"micro-batches", "budget"}),
    frozenset({"all-reduce", "cached embeddings"}),
    frozenset({"cached embeddings", "clipping by global norm"}),
    # A table that is served is not held.
    frozenset({"cached embeddings", "narrow weights"}),
    # A fit moves to the average and back at the end of each epoch.
    frozenset({"Executor", "schedule-free"}),
    # Blocks of a fit, which an Executor has none of.
    frozenset({"Executor", "head in blocks"}),
}
"""Pairs with a feature that promises the bits, and that agree up to rounding."""


@dataclass(frozen=True)
class Apart:
    """Why the features of ``pairs`` do not combine.

    "refused": with an error whose text has ``says``, and nothing has changed. "left out": the
    training is right, without the first feature, and ``says`` is in what the net tells of it.
    "none": there is nothing that could be meant, or nothing to say it by.
    """

    kind: Literal["refused", "left out", "none"]
    why: str
    pairs: tuple[tuple[str, str], ...]
    says: str = ""


def each_with(feature: str, *others: str) -> tuple[tuple[str, str], ...]:
    return tuple((feature, other) for other in others)


SUMMING = [
    "all-reduce", "sparse all-reduce", "PowerSGD", "sharded state", "sharded gradients",
    "sharded parameters", "parameter server", "cached embeddings",
]  # fmt: skip
TOGETHER = {"all-reduce", "parameter server", "cached embeddings"}
"""Ways to sum gradients that combine: tables go one way, and what is dense another."""

APART = [
    Apart("left out", "a net whose parameters are in slices runs by the layers",
        each_with("recorded", "sharded parameters"), "its steps run by the layers"),
    Apart("refused", "a master of float32 is whole on each rank",
        each_with("float16", "sharded parameters"), "masters are whole"),
    Apart("refused", "all ranks make all passes of the net, which stages and parts of it do not",
        (*each_with("sharded parameters", "pipeline", "Executor"),), "expected a whole net"),
    Apart("left out",
        "a stage of a pipeline keeps what it has computed, of as few micro-batches as can be",
        each_with("recompute", "pipeline"), "recomputes nothing"),
    Apart("left out",
        "a sparse batch has other entries each time, so its calls are not those of the one before",
        each_with("recorded", "sparse inputs"), "whose entries are others in each batch"),
    Apart("refused", "rows are where no other stage of the optimizer has their values",
        each_with("cached embeddings", "micro-batches", "accumulation", "EMA", "float16"),
        "expected only clipping stages, since servers have the values"),
    Apart("refused", "the memory of a stage is not planned", each_with("budget", "pipeline"),
        "one that is on several ranks"),
    Apart("refused", "what a step with a sparse input takes depends on its entries",
        each_with("budget", "sparse inputs"),
        "expected inputs whose shapes tell what a step computes"),
    Apart("refused", "a net has one executor, and each of these is one",
        each_with("offload", "pipeline"), "net.offload: expected a net in memory, whole"),
    Apart("refused", "state is kept in parts by ranks, or in folders: not in parts in folders",
        (*each_with("offload", "sharded state", "sharded gradients", "sharded parameters"),),
        "expected parameters in memory; received a parameter that is"),
    Apart("refused", "programs of an Executor are parts of a net, and a stage has a part itself",
        each_with("Executor", "pipeline"), "one that is on several ranks"),
    Apart("refused", "each is a way to sum the same gradients",
        tuple(pair for pair in combinations(SUMMING, 2) if not set(pair) <= TOGETHER),
        "expected a rule, or clipping, inside"),
    Apart("refused", "a server has parameters of all workers, of which each stage has some",
        each_with("parameter server", "pipeline"),
        "ParameterServer(comm=): expected all of the 4 workers"),
    Apart("left out", "a net of one output that steps by its plan has its loss in blocks",
        each_with("head in blocks", "pipeline", "several outputs", "Executor"),
        "its scores are whole"),
    Apart("left out", "a function sees all scores",
        each_with("head in blocks", "loss of a function"), "its scores are whole"),
    Apart("refused",
        "whose turn it is depends on what all layers train, of which a server or a stage sees some",
        each_with("one block at a time", "parameter server", "pipeline"), "BlockCoordinate"),
    Apart("refused", "programs of an Executor would not train the pairs",
        each_with("low-rank pairs", "Executor"), "net.adapt"),
    Apart("refused",
        "the folder is a checkpoint of floats, of which layers are read one after the other",
        each_with("narrow weights", "offload"),
        "is held in bfloat16; call net.as_type('float32') first"),
    Apart("refused", "what is cut over ranks are arrays of floats",
        each_with("narrow weights", "sharded parameters"), "is held in bfloat16"),
    Apart("refused", "the average needs all of a parameter and of its state, in memory",
        each_with("schedule-free", "offload", "sharded state", "sharded gradients",
                  "sharded parameters", "parameter server", "cached embeddings",
                  "one block at a time", "narrow weights"),
        "ScheduleFreeAdamW"),
    Apart("none", "an optimizer has one rule", each_with("schedule-free", "user's optimizer")),
    Apart("none", "a net computes in one type", each_with("float16", "bfloat16")),
    Apart("none", "`run` takes a batch as it is fed, within no budget",
        each_with("Executor", "micro-batches", "budget")),
]  # fmt: skip
"""All pairs that do not combine; any other one does."""

OUTCOMES = {frozenset(pair): apart for apart in APART for pair in apart.pairs}


def table() -> str:
    """The part of the page: a row and a column a feature, and the reasons."""
    lines = [
        "| | " + " | ".join(str(k + 1) for k in range(len(NAMES) - 1)) + " |",
        "|---|" + "---|" * (len(NAMES) - 1),
    ]
    letters = {id(apart): chr(ord("a") + k) for k, apart in enumerate(APART)}
    for row, name in enumerate(NAMES):
        marks = []
        for other in NAMES[:row]:
            pair = frozenset({name, other})
            apart = OUTCOMES.get(pair)
            bits = pair & BITS and pair not in NOT_THE_BITS
            marks.append(("=" if bits else "≈") if apart is None else letters[id(apart)])
        marks += [""] * (len(NAMES) - 1 - row)
        lines.append(f"| {row + 1} {name} | " + " | ".join(marks) + " |")
    told = {"refused": "refused", "left out": "trained without the first", "none": "means nothing"}
    works = len(PAIRS) - len(OUTCOMES)
    lines += [
        "",
        f"Of {len(PAIRS)} pairs {works} combine: `=` to the bit, `≈` to rounding. Of the others:",
        "",
    ]
    for apart in APART:
        lines.append(f"* **{letters[id(apart)]}** ({told[apart.kind]}): {apart.why}.")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text("utf-8")), "utf-8")
