"""Tokens as rows of batches: several texts in a row, or a text a row, padded."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from singanet.types import Array

IGNORED = -100
"""The target where nothing is to be learnt, as PyTorch and transformers have it."""


class Fragment(NamedTuple):
    """Tokens of one text that stand side by side in a row, and the token after each."""

    ids: Array
    targets: Array


TokenRow: TypeAlias = list[Fragment]
"""The fragments in one row of a batch; none in a row that fills up a batch."""


def fragments(ids: Array, answers: Array | None, length: int) -> list[Fragment]:
    """The text ``ids`` (T,) in fragments of at most ``length``: each pair of neighbours is in one.

    Where ``answers`` (T,) are given, only they are targets; the others are `IGNORED`.
    """
    targets = ids[1:] if answers is None else np.where(answers[1:], ids[1:], IGNORED)
    targets = targets.astype(np.int32, copy=False)
    starts = range(0, len(ids) - 1, length)
    return [Fragment(ids[:-1][at : at + length], targets[at : at + length]) for at in starts]


def packed(parts: Sequence[Fragment], length: int) -> list[TokenRow]:
    """Rows of at most ``length`` tokens, in the order of their longest fragments.

    The longest fragment first, each into the fullest row that has room for it (best fit
    decreasing: Johnson 1973).
    """
    rows: list[TokenRow] = []
    room: list[tuple[int, int]] = []
    for part in sorted(parts, key=lambda part: -len(part.ids)):
        size = len(part.ids)
        place = bisect_left(room, (size, -1))
        if place == len(room):
            rows.append([part])
            insort(room, (length - size, len(rows) - 1))
            continue
        left, row = room.pop(place)
        rows[row].append(part)
        insort(room, (left - size, row))
    return rows


def padded(
    parts: Sequence[Fragment], widths: Sequence[int], together: int, rng: np.random.Generator
) -> list[TokenRow]:
    """A fragment a row; ``together`` rows in turn, a batch, are of about one length.

    The last batch is filled up with empty rows. The order of the batches is ``rng``'s.
    """
    order = sorted(range(len(parts)), key=lambda k: bisect_left(widths, len(parts[k].ids)))
    rows: list[TokenRow] = [[parts[k]] for k in order]
    rows += [[] for _ in range(-len(rows) % together)]
    starts = rng.permutation(len(rows) // together) * together
    return [row for start in starts.tolist() for row in rows[start : start + together]]


def width_of(rows: Sequence[TokenRow], widths: Sequence[int]) -> int:
    """The least of ``widths`` into which each of ``rows`` fits."""
    longest = max(sum(len(part.ids) for part in row) for row in rows)
    return widths[bisect_left(widths, longest)]


def batch_of(rows: Sequence[TokenRow], width: int, padding: int) -> tuple[dict[str, Array], Array]:
    """``input_ids``, ``attention_mask``, ``segments``, and the targets, all (rows, width), int32.

    Segments count the texts of a row from 1 on; padding is 0.
    """
    shape = len(rows), width
    ids, segments = np.full(shape, padding, np.int32), np.zeros(shape, np.int32)
    targets = np.full(shape, IGNORED, np.int32)
    for r, row in enumerate(rows):
        at = 0
        for segment, part in enumerate(row, 1):
            here = slice(at, at + len(part.ids))
            ids[r, here], targets[r, here], segments[r, here] = part.ids, part.targets, segment
            at += len(part.ids)
    mask = (segments > 0).astype(np.int32)
    return {"input_ids": ids, "attention_mask": mask, "segments": segments}, targets
