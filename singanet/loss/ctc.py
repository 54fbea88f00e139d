"""Connectionist temporal classification, and its decoding."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np

from singanet.base.arguments import checked_count
from singanet.errors import ArgumentError, DataError, ShapeError, brief
from singanet.loss.loss import Loss
from singanet.ops import Ops, ops_for
from singanet.types import Array

_NEVER = -np.inf
_Ends = tuple[float, float]
"""Log-probabilities of the paths of a prefix: ending in a blank, and in its last label."""


def best_path(x: Array, blank: int, mask: Array | None) -> list[list[int]]:
    """Return the labels of the likeliest class of each frame under the mask; x is (B, T, C)."""
    best = ops_for(x).host(x.argmax(axis=2))
    there = _there(x, mask)
    return [_joined(row[seen], blank) for row, seen in zip(best, there, strict=True)]


def _joined(path: Array, blank: int) -> list[int]:
    """Return ``path`` without repetitions and blanks."""
    new = np.ones(len(path), bool)
    new[1:] = path[1:] != path[:-1]
    return [int(label) for label in path[new & (path != blank)]]


def beam_search(
    x: Array, blank: int, width: int, mask: Array | None
) -> list[list[tuple[list[int], float]]]:
    """Return the likeliest ``width`` sequences of each sample with their log-probabilities."""
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


class CTC(Loss):
    """−log of the probability of the labels ``y`` (B, S) under scores ``x`` (B, T, C), T frames.

    The probability, with p = softmax(x), is the sum over all paths of frames that yield the labels
    after the removal of repetitions and then of blanks (Graves et al. 2006). Labels are integers
    other than the blank, padded to S at the end. A mask (B, T) excludes frames. If the labels need
    more frames than exist, the loss is inf and the gradient NaN. Both passes compute in logarithms.
    The gradient of a frame is p minus the expected number of each class in it.

    Args:
        blank: The class of the blank.
        padding: The label that fills ``y`` up to S: a negative integer, or the blank.
        zero_infinity: If True, an infinite loss and its gradient are 0.
        reduction: "mean" or "sum", see `Loss`.
        per_label: If True, the loss of a sample is divided by the number of its labels for
            reduction "mean", as in PyTorch; if False never, as in Keras.

    Examples:
        >>> x, y = np.zeros((1, 3, 2)), np.array([[1]])
        >>> round(singanet.loss.CTC(per_label=False).evaluate(False, x, y), 4)
        0.2877
    """

    link_name = "softmax"

    def __init__(
        self,
        blank: int = 0,
        padding: int = -1,
        zero_infinity: bool = False,
        reduction: str = "mean",
        per_label: bool = True,
    ) -> None:
        super().__init__(reduction)
        self.blank = checked_count("CTC", "blank", blank, 0)
        if not isinstance(padding, int) or (padding >= 0 and padding != blank):
            raise ArgumentError(
                "CTC(padding=)",
                expected="a negative int, or the blank",
                received=brief(padding),
                advice="pad with a number that is not a label",
            )
        self.padding = padding
        self.zero_infinity = zero_infinity
        self.per_label = per_label

    def _unmasked(
        self, x: Array, y: Array, mask: Array | None = None, *weight: Array
    ) -> tuple[Array, ...]:
        """Move the frames under the mask to the front, and fill the rest with sure blanks."""
        if mask is None:
            return x, y, *weight
        xp = ops_for(x).xp
        order = xp.argsort(~mask, axis=1, kind="stable")
        missing = xp.arange(mask.shape[1]) >= mask.sum(axis=1)[:, None]
        sure = xp.where(xp.arange(x.shape[2]) == self.blank, 0.0, -np.inf)
        moved = xp.take_along_axis(x, order[:, :, None], axis=1)
        return xp.where(missing[:, :, None], sure, moved), y, *weight

    def greedy(self, x: Array, mask: Array | None = None) -> list[list[int]]:
        """Return the labels of the likeliest path of each sample of scores ``x`` (B, T, C).

        ``mask`` (B, T) is 0 at frames that do not count; None for none.
        """
        return best_path(x, self.blank, mask)

    def beam(
        self, x: Array, width: int = 10, mask: Array | None = None
    ) -> list[list[tuple[list[int], float]]]:
        """Return up to ``width`` label sequences and log-probabilities a sample, the best first.

        ``x`` (B, T, C) are scores; ``mask`` (B, T) is 0 at frames that do not count. Uses prefix
        beam search (Hannun et al. 2014) with ``width`` prefixes a frame.
        """
        return beam_search(x, self.blank, checked_count("CTC.beam", "width", width, 1), mask)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        return self._compute_masked(ops, x, y, None)

    def _count_there(self, x: Array, y: Array, mask: Array | None) -> float:
        """Samples."""
        return len(x)

    def _compute_masked(
        self, ops: Ops, x: Array, y: Array, mask: Array | None
    ) -> tuple[Array, Any]:
        """Compute the losses without the masked frames."""
        self._expect(ops, x, y, mask)
        xp, lattice = ops.xp, _Lattice(ops, ops.log_softmax(x), y, self.blank, self.padding, mask)
        alphas = lattice.forward()
        last = xp.where(lattice.ends, alphas[-1, :, 2:], -np.inf)
        # The two ends are a blank and a label, at even and odd indices.
        total = xp.logaddexp(last[:, ::2].max(axis=1), last[:, 1::2].max(axis=1, initial=-np.inf))
        losses = xp.negative(total)
        if self.zero_infinity:
            losses = ops.where(xp.isinf(total), 0, losses)
        share = None
        if self.per_label and self.reduction == "mean":
            share = ops.divide(1.0, ops.maximum(lattice.lengths.astype(x.dtype), 1))
            losses *= share
        return losses, (lattice, alphas, total, share)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        lattice, alphas, total, share = saved
        dx = lattice.posterior(alphas, total)
        xp = ops.xp
        xp.subtract(xp.exp(lattice.log_p), dx, out=dx)
        fill = 0 if self.zero_infinity else np.nan
        dx = ops.where(xp.isinf(total)[:, None, None], fill, dx)
        if lattice.mask is not None:
            dx = ops.where(lattice.mask[:, :, None], dx, 0)
        if share is not None:
            dx *= share[:, None, None]
        return dx

    def _expect(self, ops: Ops, x: Array, y: Array, mask: Array | None) -> None:
        if x.ndim != 3 or self.blank >= x.shape[2]:
            raise ShapeError(
                "CTC",
                expected=f"scores of shape (batch, frames, classes), of more than {self.blank}"
                " classes, the blank among them",
                received=f"outputs of shape {x.shape}",
                advice="end the net in a layer with a row of scores for every frame",
            )
        if y.dtype.kind not in "iu" or y.ndim != 2 or len(y) != len(x):
            raise DataError(
                "CTC",
                expected=f"integer labels of shape ({len(x)}, labels), padded with {self.padding}",
                received=f"targets of type {y.dtype} and shape {y.shape}",
                advice="pad shorter sequences of labels to the longest",
            )
        if mask is not None and mask.shape != x.shape[:2]:
            raise ShapeError(
                "CTC, mask",
                expected=f"one number a frame, shape {x.shape[:2]}",
                received=f"shape {mask.shape}",
                advice="mask frames of the outputs, which may be fewer than the inputs'",
            )
        ops.check(partial(_expect_labels, x.shape[2], self.blank, self.padding), y)


class _Lattice:
    """The L = 2 S + 1 states of paths over T frames: blanks and labels in turns.

    ``log_p`` (B, T, C) are log-probabilities; ``ends`` (B, L) is True for the states that a path
    may end in. Arrays of states have two more states without paths: before the first state in the
    forward pass, and after the last state in the backward pass.
    """

    def __init__(
        self, ops: Ops, log_p: Array, y: Array, blank: int, padding: int, mask: Array | None
    ) -> None:
        xp = self.xp = ops.xp
        batch, labels = y.shape
        self.blank, self.log_p, self.mask = blank, log_p, mask
        there = y != padding
        self.labels = xp.where(there, y, blank)
        self.lengths = there.sum(axis=1)
        state = xp.arange(2 * labels + 1)
        past = 2 * self.lengths[:, None]
        self.ends = (state == past) | ((state == past - 1) & (past > 0))
        states = xp.full((batch, 2 * labels + 1), blank, self.labels.dtype)
        states[:, 1::2] = self.labels
        self.emitted = xp.take_along_axis(log_p, states[:, None, :], axis=2)
        # A label may follow another label without a blank if the two differ.
        self.skip = xp.full((batch, 2 * labels + 3), -np.inf, log_p.dtype)
        if labels > 1:
            other = self.labels[:, 1:] != self.labels[:, :-1]
            self.skip[:, 3:-2:2] = xp.where(other, 0.0, -np.inf)

    def forward(self) -> Array:
        """Return log of the sum over the paths into each state, (T + 1, B, 2 + L).

        The first entry is the start: all paths are in a blank.
        """
        xp, (batch, frames, states) = self.xp, self.emitted.shape
        alphas = xp.full((frames + 1, batch, states + 2), -np.inf, self.log_p.dtype)
        alphas[0, :, 2] = 0
        skip = self.skip[:, :-2]
        for t in range(frames):
            old, new = alphas[t], alphas[t + 1, :, 2:]
            xp.logaddexp(old[:, 2:], old[:, 1:-1], out=new)
            xp.logaddexp(new, old[:, :-2] + skip, out=new)
            xp.add(new, self.emitted[:, t], out=new)
            if self.mask is not None:
                xp.copyto(new, old[:, 2:], where=~self.mask[:, t, None])
        return alphas

    def posterior(self, alphas: Array, total: Array) -> Array:
        """Return the expected number of each class in each frame, (B, T, C), for these labels."""
        xp, (batch, frames, states) = self.xp, self.emitted.shape
        total = xp.where(xp.isinf(total), 0, total)[:, None]
        beta = xp.where(self.ends, 0.0, -np.inf).astype(self.log_p.dtype)
        ahead = xp.full((batch, states + 2), -np.inf, self.log_p.dtype)
        skip, inner = self.skip[:, 2:], ahead[:, :-2]
        in_state = xp.empty(self.emitted.shape, self.log_p.dtype)
        for t in range(frames - 1, -1, -1):
            xp.add(alphas[t + 1, :, 2:], beta, out=in_state[:, t])
            xp.add(beta, self.emitted[:, t], out=inner)
            before = xp.logaddexp(ahead[:, :-2], ahead[:, 1:-1])
            xp.logaddexp(before, ahead[:, 2:] + skip, out=before)
            if self.mask is not None:
                xp.copyto(before, beta, where=~self.mask[:, t, None])
            beta = before
        in_state -= total[:, :, None]
        xp.exp(in_state, out=in_state)
        made = xp.zeros(self.log_p.shape, self.log_p.dtype)
        made[:, :, self.blank] = in_state[:, :, ::2].sum(axis=2)
        rows = xp.arange(batch)
        for k in range(self.labels.shape[1]):
            # One label a sample at a time, since a class may occur several times. States of
            # padding have no paths.
            made[rows, :, self.labels[:, k]] += in_state[:, :, 2 * k + 1]
        return made


def _expect_labels(classes: int, blank: int, padding: int, y: Array) -> None:
    there = y != padding
    wrong = there & ((y < 0) | (y >= classes) | (y == blank))
    # A label after padding belongs to no sequence.
    wrong[:, 1:] |= there[:, 1:] & ~there[:, :-1]
    if bool(wrong.any()):
        at = int(wrong.reshape(-1).argmax())
        raise DataError(
            "CTC",
            expected=f"labels from 0 to {classes - 1} except the blank, {blank}, and then"
            f" only {padding}",
            received=f"{int(y.reshape(-1)[at])} at index {tuple(divmod(at, y.shape[1]))}",
            advice="pad only at the end",
        )
