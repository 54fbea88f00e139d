"""Label sequences from the scores of frames: by the best path, and by prefix beam search."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from singanet.ops import ops_for
from singanet.types import Array

_NEVER = -np.inf
_Ends = tuple[float, float]
"""Log-probabilities of a prefix's paths that end in a blank, and in its last label."""


def best_path(x: Array, blank: int, mask: Array | None) -> list[list[int]]:
    """The labels of the likeliest class of each frame of scores (B, T, C) that is there."""
    best = ops_for(x).host(x.argmax(axis=2))
    there = _there(x, mask)
    return [_joined(row[seen], blank) for row, seen in zip(best, there, strict=True)]


def _joined(path: Array, blank: int) -> list[int]:
    """``path`` without repetitions and blanks."""
    new = np.ones(len(path), bool)
    new[1:] = path[1:] != path[:-1]
    return [int(label) for label in path[new & (path != blank)]]


def beam_search(
    x: Array, blank: int, width: int, mask: Array | None
) -> list[list[tuple[list[int], float]]]:
    """For each sample the likeliest ``width`` sequences found, with their log-probabilities."""
    ops = ops_for(x)
    log_p = ops.host(ops.log_softmax(x)).astype(np.float64)
    there = _there(x, mask)
    return [
        _searched(frames[seen], blank, width) for frames, seen in zip(log_p, there, strict=True)
    ]


def _searched(log_p: Array, blank: int, width: int) -> list[tuple[list[int], float]]:
    beam: dict[tuple[int, ...], _Ends] = {(): (0.0, _NEVER)}
    for frame in log_p.tolist():
        grown: dict[tuple[int, ...], _Ends] = defaultdict(lambda: (_NEVER, _NEVER))
        for prefix, (in_blank, in_label) in beam.items():
            either = _either(in_blank, in_label)
            stays_blank, stays_label = grown[prefix]
            if prefix:
                stays_label = _either(stays_label, in_label + frame[prefix[-1]])
            grown[prefix] = _either(stays_blank, either + frame[blank]), stays_label
            for label, log in enumerate(frame):
                if label != blank:
                    # The same label again needs a blank between.
                    before = in_blank if prefix and label == prefix[-1] else either
                    longer = (*prefix, label)
                    with_blank, with_label = grown[longer]
                    grown[longer] = with_blank, _either(with_label, before + log)
        ranked = sorted(grown.items(), key=lambda item: -_either(*item[1]))
        beam = dict(ranked[:width])
    return [(list(prefix), _either(*ends)) for prefix, ends in beam.items()]


def _either(a: float, b: float) -> float:
    return float(np.logaddexp(a, b))


def _there(x: Array, mask: Array | None) -> Array:
    if mask is None:
        return np.ones(x.shape[:2], bool)
    return ops_for(x).host(mask) != 0
