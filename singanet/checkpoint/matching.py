"""Which array of a file belongs to which of a net's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.checkpoint.entry import Entry
from singanet.checkpoint.report import LoadReport, Match, Mismatch
from singanet.checkpoint.rules import NAME_RULES, SHAPE_RULES
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.types import Array, Shape


@dataclass(frozen=True)
class Target:
    """An array of the net: what shape and type must come, and the rule by which it is asked for.

    If the net's array is read-only, ``has`` tells whether an array has the same values.
    ``older_dtype`` is a narrower type that earlier versions wrote; such an array is widened.
    """

    shape: Shape
    dtype: np.dtype[Any]
    rule: str = ""
    has: Callable[[Array], bool] | None = None
    older_dtype: np.dtype[Any] | None = None


def match(
    entries: Mapping[str, Entry],
    targets: Mapping[str, Target],
    rename: Mapping[str, str] | None = None,
    cast: bool = False,
    where: str = "load",
    singa: bool = False,
) -> LoadReport:
    """Find the entry of every target: by ``rename``, by its own name, by the rules in order.

    ``rename`` goes from names in the file to names in the net; ``cast`` lets types differ. A file
    of ``singa``'s with kernels of four axes has matrices as Caffe has them.
    Errors: `UnknownNameError` and `ArgumentError` for a ``rename`` that does not apply.
    """
    free = weights(entries)
    asked = _asked(checked_rename(rename, where), free, targets, where)
    pairs: dict[str, tuple[str, str]] = {}
    for name, there in asked.items():
        pairs[name] = (there, "rename=")
    for name in targets:
        if name not in pairs and name in free and name not in asked.values():
            pairs[name] = (name, "")
    # A name that some array carries exactly is never taken for an older spelling of another.
    taken = {there for there, _ in pairs.values()}
    for rule in NAME_RULES:
        for name in targets:
            older = rule.spell(name)
            if name not in pairs and older is not None and older in free and older not in taken:
                pairs[name] = (older, f"{rule.title}, before {rule.version}")
                taken.add(older)
    caffe = singa and any(len(entry.shape) == 4 for entry in free.values())
    report = LoadReport(where)
    for name, target in targets.items():
        if name in pairs:
            there, rule_title = pairs[name]
            report.add(_compare(name, target, free[there], rule_title, cast, caffe))
        else:
            report.missing[name] = target.shape
    report.extra = {name: entry.shape for name, entry in free.items() if name not in taken}
    return report


def spellings(name: str) -> list[str]:
    """``name`` and what older files called it, in the order in which they are looked for."""
    older = (rule.spell(name) for rule in NAME_RULES)
    return [name, *(each for each in older if each is not None)]


def weights(entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """The entries of the net alone, where ``entries`` are those of a training or a whole model."""
    whole = "session" in entries or "model" in entries
    if not whole or not any(name.startswith("net/") for name in entries):
        return entries
    return {
        name.removeprefix("net/"): entry
        for name, entry in entries.items()
        if name.startswith("net/")
    }


def checked_rename(rename: Any, where: str) -> Mapping[str, str]:
    """``rename``, or an empty dict for None. Errors: `ArgumentError` for what goes nowhere."""
    found = {} if rename is None else rename
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) for pair in found.items() for name in pair
    ):
        raise ArgumentError(
            f"{where}, argument rename",
            expected="a dict from names in the file to names in the net",
            received=repr(rename)[:100],
            advice="pass for example rename={'old/weight': 'fc/weight'}",
        )
    return found


def _asked(
    rename: Mapping[str, str],
    entries: Mapping[str, Entry],
    targets: Mapping[str, Target],
    where: str,
) -> dict[str, str]:
    """``rename`` turned round, once every name in it is known."""
    for kind, names, known in (("file", rename, entries), ("net", rename.values(), targets)):
        for name in names:
            if name not in known:
                raise UnknownNameError(
                    f"{where}, argument rename",
                    expected=f"names of the {kind}: {one_of(known)}",
                    received=repr(name),
                    advice=did_you_mean(name, known, "rename goes from the file to the net"),
                )
    turned = {name: there for there, name in rename.items()}
    if len(turned) < len(rename):
        raise ArgumentError(
            f"{where}, argument rename",
            expected="one name of the file for one of the net",
            received=f"{len(rename)} for {len(turned)}",
            advice="remove the pairs that share a target",
        )
    return turned


def _compare(
    name: str, target: Target, entry: Entry, rule: str, cast: bool, caffe: bool
) -> Match | Mismatch:
    rules = [each for each in (rule, target.rule) if each]
    square = len(entry.shape) == 2 and len(set(entry.shape)) == 1
    if caffe and square and entry.shape == target.shape:
        why = "square, beside kernels of four axes: it may lie either way, layout='torch' turns it"
        return Mismatch(name, entry.name, target.shape, entry.shape, why)
    if entry.shape != target.shape:
        fitting = [
            each
            for each in SHAPE_RULES
            if each.fits(entry.shape, target.shape) and (caffe or not each.of_caffe)
        ]
        if not fitting:
            why = ", ".join(["another shape", *rules])
            return Mismatch(name, entry.name, target.shape, entry.shape, why)
        rules.append(f"{fitting[0].title}, before {fitting[0].version}")
    if entry.dtype != target.dtype:
        # A dtype equals None where it is float64.
        if not cast and (target.older_dtype is None or entry.dtype != target.older_dtype):
            why = f"{entry.dtype}, not {target.dtype}"
            return Mismatch(name, entry.name, target.shape, entry.shape, why)
        rules.append(f"{entry.dtype} cast to {target.dtype}")
    return Match(name, entry.name, target.shape, entry.shape, "; ".join(rules))
