"""What comes of each pair of features, by their terms, and the table of it in ``docs/features.md``.

``python -m tests.pairs.declared`` writes that table anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from singanet.base.terms import EACH_STEP, FIT, OWN, PARTS, SCORES, SUMMABLE, Terms
from singanet.budget import fitting
from singanet.engine import adapting, backward, fusion
from singanet.engine.executor import RECORDING
from singanet.engine.recompute.recomputer import Recomputer
from singanet.executor import symbols
from singanet.offload import offloaded, offloading
from singanet.optimizer import (
    SGD,
    Accumulator,
    BlockCoordinate,
    ClipByGlobalNorm,
    MixedPrecision,
    ScheduleFreeAdamW,
)
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.optimizer.wrapper import clashes
from singanet.parallel import (
    AllReduce,
    Hybrid,
    ParameterServer,
    Pipeline,
    PowerSGD,
    Sharded,
    SparseAllReduce,
    cached_rows,
    hybrid,
)
from singanet.parallel.communicators.communicator import SingleProcess
from singanet.parallel.server import ServerRanks
from singanet.params.narrow import NarrowWeights
from singanet.testing import communicators
from singanet.training import compiled
from tests.pairs.training import RULES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "features.md"
BEGIN, END = "<!-- pairs -->\n", "<!-- end of pairs -->\n"

RULE, TYPE = "another rule of the optimizer", "another type of a net"
"""Conditions that each of two features would need and take: of a training there is one."""
ORDERED = {OWN, SUMMABLE, EACH_STEP}
"""Conditions of one stage inside another."""
NONE = {FIT, RULE, TYPE}
"""Conditions for whose lack there is nothing to say: the two cannot be asked for together."""


@cache
def reducer(kind: type[Any], inside: str = "", **settings: Any) -> Terms:
    """The terms of a reducer of two ranks around SGD, behind clipping if that is ``inside``."""
    rule: Any = ClipByGlobalNorm(SGD(0.1), 1.0) if inside else SGD(0.1)
    with communicators(3) as comms:
        if kind in (Hybrid, ParameterServer):
            settings["servers"] = ServerRanks(comms[0], [2])
        made = kind(rule, comm=comms[0].group([0, 1]), **settings)
    return made._terms


def joined(*parts: Terms) -> Terms:
    """The terms of a feature of several ``parts``, which leaves results as the first does."""
    needs, uses, exact, takes, inside = (
        tuple(each for part in parts for each in getattr(part, name))
        for name in ("needs", "uses", "exact", "takes", "inside")
    )
    return Terms(needs, uses, exact, takes, inside, parts[0].keeps)


def only(what: str) -> Terms:
    """The terms of a feature of which a training has one."""
    return Terms(needs=(what,), takes=(what,))


SCHEDULE_FREE = ScheduleFreeAdamW(0.1)
OTHER_LOSS = Terms(takes=(SCORES,))
SUM = Terms(keeps="rounding")

PARTED = Terms(needs=(FIT,), takes=(PARTS,))

FEATURES: dict[str, Terms] = {
    "recorded": RECORDING,
    "recompute": Recomputer.terms,
    "micro-batches": joined(SUM, PARTED, Accumulator(SGD(0.1), 2)._terms),
    "budget": fitting.TERMS,
    "offload": joined(offloading.TERMS, Terms(takes=offloaded.FolderPlace.takes)),
    "float16": joined(ScaledUpdates(SGD(0.1), MixedPrecision())._terms, only(TYPE)),
    "bfloat16": joined(compiled.BFLOAT16, only(TYPE)),
    "all-reduce": joined(SUM, reducer(AllReduce)),
    "sparse all-reduce": joined(SUM, reducer(SparseAllReduce)),
    "PowerSGD": joined(SUM, reducer(PowerSGD)),
    "sharded state": joined(SUM, reducer(Sharded)),
    "sharded gradients": joined(SUM, reducer(Sharded, level=2)),
    "sharded parameters": joined(SUM, reducer(Sharded, level=3)),
    "parameter server": joined(SUM, reducer(ParameterServer)),
    "cached embeddings": joined(cached_rows.CACHED, Hybrid(SGD(0.1), SingleProcess())._terms),
    "pipeline": Pipeline.can.terms,
    "clipping by global norm": ClipByGlobalNorm(SGD(0.1), 1.0)._terms,
    "accumulation": Accumulator(SGD(0.1), 2)._terms,
    "EMA": Averaged(SGD(0.1), 0.5)._terms,
    "freezing": Terms(),
    "masks": Terms(),
    "sparse inputs": backward.SPARSE,
    "several outputs": OTHER_LOSS,
    "user's optimizer": only(RULE),
    "Executor": symbols.TERMS,
    "head in blocks": fusion.HEAD,
    "one block at a time": BlockCoordinate(SGD(0.1))._terms,
    "low-rank pairs": adapting.TERMS,
    "narrow weights": Terms(takes=NarrowWeights.takes),
    "schedule-free": joined(SCHEDULE_FREE._terms, only(RULE)),
    "loss of a function": joined(SUM, OTHER_LOSS),
}
NAMES = [*FEATURES]
BITS = frozenset(name for name in NAMES if FEATURES[name].keeps == "bits")
CLOSE = frozenset(name for name in NAMES if FEATURES[name].keeps == "rounding")
"""Features that leave results as they are; for others `tests.pairs.by_hand` has formulas."""
PAIRS = [frozenset(pair) for pair in combinations(NAMES, 2)]
TABLES = "cached embeddings"
RULED = {"user's optimizer", "schedule-free"}
"""Features that have a rule of their own."""


def parts_of(features: frozenset[str], rule: str = "sgd") -> dict[str, Terms]:
    """The terms of ``features`` and a ``rule``; those that become one reducer are one."""
    parts = {name: FEATURES[name] for name in NAMES if name in features}
    clip = "clipping by global norm" if "clipping by global norm" in features else ""
    if "all-reduce" in features and features & {"parameter server", TABLES}:
        # A frozen table is none.
        served = Terms(inside=hybrid.SUMMED if "freezing" not in features else ())
        parts["all-reduce"] = joined(SUM, reducer(Hybrid, clip), served)
        for server in ("parameter server", TABLES):
            parts.pop(server, None)
    if "parameter server" in parts:
        parts["parameter server"] = joined(SUM, reducer(ParameterServer, clip))
        if TABLES in parts:
            parts[TABLES] = cached_rows.CACHED
    if not features & RULED:
        # Innermost.
        parts["rule"] = RULES[rule]()._terms
    return parts


@dataclass(frozen=True)
class Outcome:
    """Why features do not combine: one needs ``conditions``, which another takes away.

    "refused": with an error that names one of them, and nothing has changed. "left out": the
    training is right, without the one feature. "none": the two cannot be asked for together.
    """

    kind: Literal["refused", "left out", "none"]
    conditions: tuple[str, ...]


def outcome(features: frozenset[str], rule: str = "sgd") -> Outcome | None:
    """What comes of ``features`` with a ``rule``; None if they combine."""
    refusals: list[str] = []
    left_out: list[str] = []
    for (_, one), (name, other) in combinations(parts_of(features, rule).items(), 2):
        # Stages are put the one way around that combines, or that is not a matter of order.
        ways = [clashes(one, other)] + ([clashes(other, one)] if name != "rule" else [])
        refusals += min(ways, key=lambda clash: (bool(clash), not {*clash}.isdisjoint(ORDERED)))
        for user, taker in ((one, other), (other, one)):
            left_out += [each for each in user.uses if each in taker.takes]
    if not refusals:
        return Outcome("left out", tuple(left_out)) if left_out else None
    return Outcome("none" if NONE.intersection(refusals) else "refused", tuple(refusals))


def is_exact(features: frozenset[str]) -> bool:
    """Whether features that promise the bits keep them beside the others."""
    parts = [FEATURES[name] for name in features]
    return not any(each in other.takes for one in parts for each in one.exact for other in parts)


OUTCOMES = {pair: found for pair in PAIRS if (found := outcome(pair)) is not None}


def table() -> str:
    """The part of the page: a row and a column a feature, and the reasons."""
    lines = [
        "| | " + " | ".join(str(k + 1) for k in range(len(NAMES) - 1)) + " |",
        "|---|" + "---|" * (len(NAMES) - 1),
    ]
    reasons = list(dict.fromkeys((each.kind, each.conditions[0]) for each in OUTCOMES.values()))
    letters = {reason: chr(ord("a") + k) for k, reason in enumerate(reasons)}
    for row, name in enumerate(NAMES):
        marks = []
        for other in NAMES[:row]:
            pair = frozenset({name, other})
            apart = OUTCOMES.get(pair)
            bits = pair & BITS and is_exact(pair)
            marks.append(
                letters[apart.kind, apart.conditions[0]] if apart else "=" if bits else "≈"
            )
        marks += [""] * (len(NAMES) - 1 - row)
        lines.append(f"| {row + 1} {name} | " + " | ".join(marks) + " |")
    told = {"refused": "refused", "left out": "trained without the one", "none": "means nothing"}
    works = len(PAIRS) - len(OUTCOMES)
    lines += [
        "",
        f"Of {len(PAIRS)} pairs {works} combine: `=` to the bit, `≈` to rounding. In the others one"
        " feature needs a condition that the other takes away:",
        "",
    ]
    for kind, condition in reasons:
        takers = [
            name
            for name, terms in FEATURES.items()
            if condition in (*terms.takes, *terms.inside)
            and any(name in pair for pair in OUTCOMES if condition in OUTCOMES[pair].conditions)
        ]
        letter, last = letters[kind, condition], f" and {takers[-1]}" if takers[1:] else takers[0]
        taken = ", ".join(takers[:-1]) + last
        lines.append(f"* **{letter}** ({told[kind]}): {condition}; not with {taken}.")
    return "\n".join(lines) + "\n"


def page_with_table(page: str) -> str:
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text("utf-8")), "utf-8")
