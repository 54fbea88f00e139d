"""Loading a file into arrays that are already there."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from singanet.checkpoint.matching import Target, match
from singanet.checkpoint.reader import Reader
from singanet.checkpoint.report import LoadReport
from singanet.errors import StateMismatchError
from singanet.types import Array


def load_into(
    reader: Reader,
    targets: Mapping[str, Target],
    assign: Callable[[str, Array], None],
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    cast: bool = False,
) -> LoadReport:
    """Call ``assign(name, array)`` for every target that the file has, and report the rest.

    ``strict`` refuses a file that lacks an array, has one too many, or one that does not fit;
    otherwise those are left as they are. Every array is read and its checksum compared before
    the first is assigned, so that a damaged file changes nothing. Errors:
    `StateMismatchError` with the report's table, and those of `Reader.read`.
    """
    report = match(reader.entries, targets, rename, cast, reader.where)
    if strict and not report.complete:
        raise StateMismatchError(
            reader.where,
            expected="the arrays of the net, each once and of its shape and type",
            received=report.summary(),
            advice="pass rename={file: net}, or strict=False to load what fits\n" + report.table(),
        )
    for found in report.matched:
        reader.read(found.file_name)
    for found in report.matched:
        target = targets[found.name]
        array = reader.read(found.file_name).reshape(target.shape)
        assign(found.name, np.asarray(array, dtype=target.dtype))
    return report
