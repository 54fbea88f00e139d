"""Loading a file into arrays that are already there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from singanet.base.interrupts import interrupted_after
from singanet.checkpoint.entry import RUN
from singanet.checkpoint.matching import Target, checked_rename, match
from singanet.checkpoint.packed import Packed, fold, in_file
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.report import LoadReport, Match, Mismatch, mismatch
from singanet.types import Array


def load_into(
    reader: Reader,
    targets: Mapping[str, Target],
    assign: Callable[[str, Array], None],
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    cast: bool = False,
    packed: Sequence[Packed] = (),
) -> LoadReport:
    """Call ``assign(name, array)`` for every target that the file has, and report the rest.

    ``strict`` refuses a file that lacks an array, has one too many, or one that does not fit;
    otherwise those are left as they are. Every array is read and its checksum compared before
    the first is assigned, so that a damaged file changes nothing. Ctrl-C acts before the first is
    assigned or after the last. A read-only target is not assigned: an array fits if it has the same
    values. Targets that are members of one of ``packed`` may come in that one array. Errors:
    `StateMismatchError`, whose ``report`` has the table, and the errors of `Reader.read`.
    """
    rename = checked_rename(rename, reader.where)
    packs = {each.name: each for each in in_file(packed, reader.entries, targets, rename)}
    targets = fold(targets, list(packs.values()))
    singa = reader.format in ("pickle", "snapshot")
    report = match(reader.entries, targets, rename, cast, reader.where, singa)
    if strict and not report.complete:
        raise mismatch(report)
    fixed = {found: None for found in report.matched if targets[found.name].has is not None}
    others = [found for found in fixed if not _has(targets[found.name], reader, found)]
    for found in others:
        report.matched.remove(found)
        why = "other values than the read-only ones of the net"
        names = found.name, found.file_name
        report.add(Mismatch(*names, found.shape, found.file_shape, why))
    if strict and others:
        raise mismatch(report)
    assigned = [found for found in report.matched if found not in fixed]
    # A small net is read once; of a large one no more is held than of a run of rows.
    held: dict[str, Array] = {}
    left = RUN
    for found in assigned:
        nbytes = reader.entries[found.file_name].nbytes
        if nbytes <= left:
            held[found.file_name] = reader.read(found.file_name)
            left -= nbytes
        else:
            reader.verify_array(found.file_name)
    with interrupted_after():
        for found in assigned:
            array = held.pop(found.file_name, None)
            if array is None:
                array = reader.read(found.file_name)
            array = _fitted(array, targets[found.name])
            if found.name in packs:
                packs[found.name].assign(array)
            else:
                assign(found.name, array)
            del array  # before the next one is read, not after
    return report


def _has(target: Target, reader: Reader, found: Match) -> bool:
    return target.has is None or target.has(_fitted(reader.read(found.file_name), target))


def _fitted(array: Array, target: Target) -> Array:
    """``array`` in the shape and type of its target."""
    turned = array.shape != target.shape and array.shape == target.shape[::-1]
    array = array.T if turned else array.reshape(target.shape)
    return np.asarray(array, dtype=target.dtype)
