"""Matching of a file's arrays to a net's by name, with renaming rules and packed arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from singanet.base.processes import interrupted_after
from singanet.base.progress import progress
from singanet.checkpoint.entry import RUN, Entry, Source, State, sources_of
from singanet.checkpoint.reader import Reader
from singanet.errors import (
    ArgumentError,
    StateMismatchError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.types import Array, Shape


@dataclass(frozen=True)
class NameRule:
    """A rename before ``version``: ``spell`` returns the older name of ``name``, or None."""

    version: str
    title: str
    spell: Callable[[str], str | None]


@dataclass(frozen=True)
class ShapeRule:
    """An older shape before ``version``, with the same elements in the same order.

    With ``of_caffe`` it applies only to files with kernels of four axes, and reverses the axes.
    """

    version: str
    title: str
    fits: Callable[[Shape, Shape], bool]
    of_caffe: bool = False


def _last_slash(sign: str) -> Callable[[str], str | None]:
    def spell(name: str) -> str | None:
        return sign.join(name.rsplit("/", 1)) if "/" in name else None

    return spell


def _kernel(there: Shape, wanted: Shape) -> bool:
    """Return whether a kernel (F, C, kh, kw) fits (F, C·kh·kw)."""
    return (
        len(there) == 4
        and len(wanted) == 2
        and there[0] == wanted[0]
        and math.prod(there[1:]) == wanted[1]
    )


def _is_transposed(there: Shape, wanted: Shape) -> bool:
    """Return whether a dense matrix (out, in) fits (in, out)."""
    return len(there) == 2 and there == wanted[::-1]


# Tried in this order for every version, since SINGA's releases disagreed about their version.
NAME_RULES = (
    NameRule("SINGA 1101", "'_' for the last '/'", _last_slash("_")),
    NameRule("SINGA 1101", "'-' for the last '/', in recurrent layers", _last_slash("-")),
)

SHAPE_RULES = (
    ShapeRule("SINGA 1101", "kernels of four axes, as in Caffe", _kernel),
    ShapeRule("SINGA 1101", "a matrix (out, in), as in Caffe", _is_transposed, of_caffe=True),
)

PACKED_RULE = "all weights of a recurrent layer as one array, as in every SINGA"
"""cuDNN's form, in snapshots and pickles; the net converts it for its recurrent layers."""


LONGEST = 400
"""The maximum characters of the message of a `mismatch`."""
_MOST_ROWS = 3


@dataclass(frozen=True, slots=True)
class Match:
    """A matched array; ``rule`` explains the match, or is empty if names and shapes are equal."""

    name: str
    file_name: str
    shape: Shape
    file_shape: Shape
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An array matched by name that does not fit, and ``why``."""

    name: str
    file_name: str
    shape: Shape
    file_shape: Shape
    why: str


@dataclass
class LoadReport:
    """The result of `match`: ``matched`` and ``mismatched`` arrays of the file ``where``.

    ``missing`` and ``extra`` map the names of arrays that only the net or only the file has to
    shapes.
    """

    where: str
    matched: list[Match] = field(default_factory=list)
    mismatched: list[Mismatch] = field(default_factory=list)
    missing: dict[str, Shape] = field(default_factory=dict)
    extra: dict[str, Shape] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"LoadReport({self.summary()})"

    def add(self, found: Match | Mismatch) -> None:
        """Add ``found``, a match or mismatch."""
        if isinstance(found, Match):
            self.matched.append(found)
        else:
            self.mismatched.append(found)

    @property
    def renamed(self) -> list[Match]:
        """The matches by a rule."""
        return [match for match in self.matched if match.rule]

    @property
    def complete(self) -> bool:
        """Whether file and net have the same arrays."""
        return not (self.mismatched or self.missing or self.extra)

    def summary(self) -> str:
        """Return the counts in one line."""
        return (
            f"{len(self.matched)} matched ({len(self.renamed)} by a rule), "
            f"{len(self.mismatched)} that do not fit, {len(self.missing)} missing in the file, "
            f"{len(self.extra)} not in the net"
        )

    def table(self, limit: int = 200) -> str:
        """Return one line for each array, mismatches first, at most ``limit``."""
        rows = [
            ("net", "shape", "file", "shape", ""),
            *((m.name, m.shape, m.file_name, m.file_shape, m.why) for m in self.mismatched),
            *(
                (name, shape, "-", "", "missing in the file")
                for name, shape in self.missing.items()
            ),
            *(("-", "", name, shape, "not in the net") for name, shape in self.extra.items()),
            *((m.name, m.shape, m.file_name, m.file_shape, m.rule or "ok") for m in self.matched),
        ]
        more = len(rows) - 1 - limit
        return aligned(rows[: limit + 1]) + (f"\n... and {more} more" if more > 0 else "")

    def __str__(self) -> str:
        return f"{self.where}: {self.summary()}\n{self.table()}"


def aligned(rows: Iterable[Iterable[object]]) -> str:
    """Return ``rows`` of cells as text in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def mismatch(report: LoadReport) -> StateMismatchError:
    """Return the error for ``report``: it names the first mismatches and counts the others."""
    rows = list(_rows(report))
    error = _error(report, rows, 1)
    for shown in range(2, min(_MOST_ROWS, len(rows)) + 1):
        longer = _error(report, rows, shown)
        if len(str(longer)) < LONGEST:
            error = longer
    error.report = report
    return error


def _error(report: LoadReport, rows: list[str], shown: int) -> StateMismatchError:
    more = f" and {len(rows) - shown} more" if len(rows) > shown else ""
    return StateMismatchError(
        _cut(report.where, 120),
        expected="every array of the net with its shape and type, and no other",
        received=", ".join(rows[:shown]) + more,
        advice=_advice(report),
    )


def _rows(report: LoadReport) -> Iterator[str]:
    for found in report.mismatched:
        alike = found.shape == found.file_shape
        what = found.why if alike else f"of {_shape(found.file_shape)}"
        wanted = "" if alike else f", not {_shape(found.shape)}"
        yield f"{_cut(found.name, 60)} {what}{wanted}"
    for name, shape in report.missing.items():
        yield f"no {_cut(name, 60)} {_shape(shape)}"
    for name, shape in report.extra.items():
        yield f"{_cut(name, 60)} {_shape(shape)} as well"


def _advice(report: LoadReport) -> str:
    types = report.mismatched and all(map(_cast_is_enough, report.mismatched))
    if types and not report.missing and not report.extra:
        return "pass cast=True to convert"
    renamed = "rename={file: net} or " if report.missing and report.extra else ""
    return f"pass {renamed}strict=False to load the matching arrays, or use the saved net"


def _cast_is_enough(found: Mismatch) -> bool:
    return found.shape == found.file_shape and not found.why.startswith("square")


def _shape(shape: Shape) -> str:
    return _cut(str(shape), 40)


def _cut(text: str, longest: int) -> str:
    """Return ``text``, or its two ends if it exceeds ``longest``."""
    half = (longest - 3) // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


@dataclass(frozen=True)
class Target:
    """An array of the net, with ``shape`` and ``dtype``; ``rule`` explains its lookup in a report.

    For a read-only array, ``has`` tests whether an array has the same values. ``older_dtype`` is a
    narrower dtype of earlier versions, which is widened.
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

    Errors: `UnknownNameError` and `ArgumentError` for an invalid ``rename``.

    Args:
        entries: Dict from name to `Entry`, the arrays of the file.
        targets: Dict from name to `Target`, the arrays of the net.
        rename: Dict from names in the file to names in the net.
        cast: Whether other dtypes match, too.
        where: Name of the file in errors and in the report.
        singa: Whether SINGA wrote the file; with kernels of four axes its matrices are Caffe's,
            transposed.
    """
    free = weights(entries)
    asked = _asked(checked_rename(rename, where), free, targets, where)
    pairs: dict[str, tuple[str, str]] = {}
    for name, there in asked.items():
        pairs[name] = (there, "rename=")
    for name in targets:
        if name not in pairs and name in free and name not in asked.values():
            pairs[name] = (name, "")
    # An exact name is never used as the older spelling of another.
    used = {there for there, _ in pairs.values()}
    for rule in NAME_RULES:
        for name in targets:
            older = rule.spell(name)
            if name not in pairs and older is not None and older in free and older not in used:
                pairs[name] = (older, f"{rule.title}, before {rule.version}")
                used.add(older)
    caffe = singa and any(len(entry.shape) == 4 for entry in free.values())
    report = LoadReport(where)
    for name, target in targets.items():
        if name in pairs:
            there, rule_title = pairs[name]
            report.add(_compare(name, target, free[there], rule_title, cast, caffe))
        else:
            report.missing[name] = target.shape
    report.extra = {name: entry.shape for name, entry in free.items() if name not in used}
    return report


def spellings(name: str) -> list[str]:
    """Return ``name`` and its older spellings, in the order of the lookup."""
    older = (rule.spell(name) for rule in NAME_RULES)
    return [name, *(each for each in older if each is not None)]


def weights(entries: Mapping[str, Entry]) -> Mapping[str, Entry]:
    """Return the entries of the net alone if ``entries`` are a training's or a whole model's."""
    whole = "session" in entries or "model" in entries
    if not whole or not any(name.startswith("net/") for name in entries):
        return entries
    return {
        name.removeprefix("net/"): entry
        for name, entry in entries.items()
        if name.startswith("net/")
    }


def checked_rename(rename: Any, where: str) -> Mapping[str, str]:
    """Return ``rename``, or {} for None. Errors: `ArgumentError` if it is not a dict of strings."""
    found = {} if rename is None else rename
    if not isinstance(found, Mapping) or not all(
        isinstance(name, str) for pair in found.items() for name in pair
    ):
        raise ArgumentError(
            f"{where}, argument rename",
            expected="a dict from names in the file to names in the net",
            received=brief(rename)[:100],
            advice="pass for example rename={'old/weight': 'fc/weight'}",
        )
    return found


def _asked(
    rename: Mapping[str, str],
    entries: Mapping[str, Entry],
    targets: Mapping[str, Target],
    where: str,
) -> dict[str, str]:
    """Return ``rename`` inverted. Errors: `UnknownNameError` for unknown names."""
    for kind, names, known in (("file", rename, entries), ("net", rename.values(), targets)):
        for name in names:
            if name not in known:
                raise UnknownNameError(
                    f"{where}, argument rename",
                    expected=f"names of the {kind}: {one_of(known)}",
                    received=brief(name),
                    advice=did_you_mean(name, known, "rename goes from the file to the net"),
                )
    inverse = {name: there for there, name in rename.items()}
    if len(inverse) < len(rename):
        raise ArgumentError(
            f"{where}, argument rename",
            expected="a distinct name of the net for each name of the file",
            received=f"{len(rename)} for {len(inverse)}",
            advice="remove the pairs that share a target",
        )
    return inverse


def _compare(
    name: str, target: Target, entry: Entry, rule: str, cast: bool, caffe: bool
) -> Match | Mismatch:
    rules = [each for each in (rule, target.rule) if each]
    square = len(entry.shape) == 2 and len(set(entry.shape)) == 1
    if caffe and square and entry.shape == target.shape:
        why = "square, in a file with kernels of four axes: layout='torch' transposes it"
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
        # None must be excluded: a float64 dtype equals None.
        if not cast and (target.older_dtype is None or entry.dtype != target.older_dtype):
            why = f"{entry.dtype}, not {target.dtype}"
            return Mismatch(name, entry.name, target.shape, entry.shape, why)
        rules.append(f"{entry.dtype} cast to {target.dtype}")
    return Match(name, entry.name, target.shape, entry.shape, "; ".join(rules))


T = TypeVar("T")


@dataclass(frozen=True)
class Packed:
    """One array ``name`` of the file that contains the arrays ``members`` of the net.

    ``target`` is its shape and dtype. ``fetch`` packs the members into it, ``assign`` unpacks it.
    """

    name: str
    target: Target
    members: tuple[str, ...]
    fetch: Callable[[], Array]
    assign: Callable[[Array], None]


def in_file(
    packed: Sequence[Packed],
    entries: Mapping[str, Entry],
    targets: Mapping[str, Target],
    rename: Mapping[str, str],
) -> list[Packed]:
    """Return the packed arrays that a file has, under any spelling, without their members."""
    there = weights(entries).keys() | set(rename.values())

    def has(name: str) -> bool:
        return any(spelled in there and spelled not in targets for spelled in spellings(name))

    return [each for each in packed if has(each.name) and not there & set(each.members)]


def fold(targets: Mapping[str, Target], packed: Sequence[Packed]) -> dict[str, Target]:
    """Return ``targets`` with each of ``packed`` instead of its members."""
    return _in_place(targets, {each.name: each.target for each in packed}, packed)


def pack(state: State, packed: Sequence[Packed]) -> list[Source]:
    """Return the sources of a state with packed arrays instead of their members.

    Arrays are packed when they are written.

    Args:
        state: Dict from name to array, or a sequence of `Source`.
        packed: The packed arrays.
    """
    return list(
        _in_place(
            {source.name: source for source in sources_of(state, "state")},
            {
                each.name: Source(each.name, each.target.shape, each.target.dtype, each.fetch)
                for each in packed
            },
            packed,
        ).values()
    )


def _in_place(
    items: Mapping[str, T], whole: Mapping[str, T], packed: Sequence[Packed]
) -> dict[str, T]:
    first = {each.members[0]: each.name for each in packed}
    members = {member for each in packed for member in each.members}
    placed: dict[str, T] = {}
    for name, item in items.items():
        if name in first:
            placed[first[name]] = whole[first[name]]
        elif name not in members:
            placed[name] = item
    return placed


def load_into(
    reader: Reader,
    targets: Mapping[str, Target],
    assign: Callable[[str, Array], None],
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    cast: bool = False,
    packed: Sequence[Packed] = (),
) -> LoadReport:
    """Call ``assign(name, array)`` for every target in the file, and report the rest.

    All arrays are read and their checksums verified before the first assignment, so a damaged file
    changes nothing. Ctrl-C takes effect before the first or after the last assignment. A read-only
    target is not assigned: an array fits if it has the same values. Errors: `StateMismatchError`,
    whose ``report`` has the table; the errors of `Reader.read`.

    Args:
        reader: The opened file.
        targets: Dict from name to `Target`, the arrays of the net.
        assign: Function of name and array that stores the array in the net.
        rename: Dict from names in the file to names in the net.
        strict: Whether to refuse a file with missing, extra or mismatched arrays. If False, these
            targets stay unchanged.
        cast: Whether to convert arrays of other dtypes. If False, they are mismatched.
        packed: Arrays whose members may be stored as a single array.
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
        why = "other values than the net's read-only array"
        names = found.name, found.file_name
        report.add(Mismatch(*names, found.shape, found.file_shape, why))
    if strict and others:
        raise mismatch(report)
    assigned = [found for found in report.matched if found not in fixed]
    # Small nets are read once; arrays of larger ones are read twice to save memory.
    loaded: dict[str, Array] = {}
    left = RUN

    def size(found: Match) -> int:
        return reader.entries[found.file_name].nbytes

    total = sum(map(size, assigned))
    for found in progress(assigned, f"checking {reader.path.name}", total, size):
        nbytes = size(found)
        if nbytes <= left:
            loaded[found.file_name] = reader.read(found.file_name)
            left -= nbytes
        else:
            reader._verify_array(found.file_name)
    with interrupted_after():
        for found in progress(assigned, f"reading {reader.path.name}", total, size):
            array = loaded.pop(found.file_name, None)
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
    """Return ``array`` in the shape and dtype of its target."""
    transposed = array.shape != target.shape and array.shape == target.shape[::-1]
    array = array.T if transposed else array.reshape(target.shape)
    return np.asarray(array, dtype=target.dtype)
