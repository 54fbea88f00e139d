"""Losses of preferences between two answers to one prompt."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np

from singanet.base.arguments import checked_number
from singanet.errors import DataError, ShapeError
from singanet.loss.loss import Loss, checked_positive, checked_smoothing, real_targets
from singanet.ops import Ops
from singanet.types import Array

_CHOSEN = "log-probabilities of the chosen and the rejected answer"


class PreferenceLoss(Loss):
    """The base class of losses whose outputs have a reward for each answer."""

    columns: ClassVar[int] = 2
    """The number of outputs."""

    def rewards(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        """Return the rewards (B, 2) of chosen and rejected answers.

        The second result is True if the sample has such an answer, (B, 2), or None if all have
        both. ``x`` are outputs, ``y`` targets; ``ops`` are the kernels.
        """
        raise NotImplementedError


class DPO(PreferenceLoss):
    """−(1 − ε) log σ(β d) − ε log σ(−β d), direct preference optimization (Rafailov et al., 2023).

    Outputs ``x`` (B, 2) are the log-probabilities of the chosen and the rejected answer to a
    prompt, each a sum over the tokens of the answer. Targets ``y`` (B, 2) are those of the
    reference, the model before the training. d = (x₁ − y₁) − (x₂ − y₂); β (x − y) are the rewards.

    Args:
        beta: β, above 0: a large value keeps the model close to the reference.
        label_smoothing: ε in [0, 1), the share of pairs that may be in the wrong order.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[-10.0, -14.0]]), np.array([[-12.0, -12.0]])
        >>> round(singanet.loss.DPO(beta=0.5).evaluate(False, x, y), 4)
        0.1269
    """

    def __init__(
        self, beta: float = 0.1, label_smoothing: float = 0.0, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.beta = checked_positive("DPO(beta=)", beta)
        self.label_smoothing = checked_smoothing("DPO", label_smoothing)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_columns(self, x, _CHOSEN)
        off = x - real_targets("DPO", x, y)
        return _logistic(ops, self.beta * (off[:, 0] - off[:, 1]), 1.0 - self.label_smoothing)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return _opposed(ops, saved * self.beta)

    def rewards(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        return self.beta * (x - real_targets("DPO", x, y)), None


class ORPO(PreferenceLoss):
    """−log p(prompt, chosen) / tokens − β log σ(r), odds ratio preference optimization.

    It needs no reference (Hong et al., 2024). Outputs ``x`` (B, 3) are log-probabilities, each a
    sum over tokens: of the chosen answer, of the rejected answer, and of the prompt before the
    chosen answer. Targets ``y`` (B, 3) are the numbers of these tokens. r is the difference of the
    logarithms of the odds p / (1 − p), with p the geometric mean of the probabilities of an
    answer's tokens. As in trl the first term divides by the tokens of the whole batch, so that a
    ``memory_budget`` splits no batch. β log p are the rewards.

    Args:
        beta: β, above 0, the weight of the second term.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x, y = np.array([[-2.0, -4.0, -3.0]]), np.array([[4, 4, 6]])
        >>> round(singanet.loss.ORPO(beta=0.1).evaluate(False, x, y), 4)
        0.532
    """

    columns = 3
    _compares_samples = True

    def __init__(self, beta: float = 0.1, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.beta = checked_positive("ORPO(beta=)", beta)

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_columns(self, x, f"{_CHOSEN}, and of the prompt")
        y = real_targets("ORPO", x, y)
        ops.check(partial(_expect_counts, "ORPO"), y)
        means = ops.minimum(x[:, :2] / y[:, :2], 0)
        # 1 − p, exact for p near 1 too.
        others = -ops.tanh(means / 2) * (1 + ops.exp(means))
        others = ops.maximum(others, float(np.finfo(x.dtype).eps))
        odds = means - ops.log(others)
        losses, dz = _logistic(ops, odds[:, 0] - odds[:, 1], 1.0)
        losses *= self.beta
        share = len(x) / ops.maximum((y[:, 0] + y[:, 2]).sum(), 1)
        losses -= (x[:, 0] + x[:, 2]) * share
        return losses, (dz, others, y, share)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        dz, others, y, share = saved
        dx = _opposed(ops, dz * self.beta) / (others * y[:, :2])
        own = ops.zeros(dz.shape, dz)[:, None] - share
        return ops.concat([dx[:, :1] + own, dx[:, 1:], own], 1)

    def rewards(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        return self.beta * x[:, :2] / real_targets("ORPO", x, y)[:, :2], None


class KTO(PreferenceLoss):
    """1 − σ(β (r − z)) for a desirable answer and 1 − σ(β (z − r)) for another one, weighted.

    Kahneman-Tversky optimization (Ethayarajh et al., 2024). Outputs ``x`` (B, 2) are the
    log-probabilities of an answer to its own prompt, and of an answer to a prompt that it does not
    belong to. Targets ``y`` (B, 3) are those of the reference, and 1 for a desirable answer or 0.
    r = x₁ − y₁; z, the mean of x₂ − y₂ over the batch but at least 0, estimates the divergence from
    the reference and has no gradient. A ``memory_budget`` splits no batch. β r are the rewards.

    Args:
        beta: β, above 0: a large value keeps the model close to the reference.
        desirable_weight: The weight of desirable answers, at least 0.
        undesirable_weight: The weight of the others, at least 0.
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x = np.array([[-10.0, -20.0], [-10.0, -20.0]])
        >>> y = np.array([[-12.0, -20.0, 1.0], [-12.0, -20.0, 0.0]])
        >>> [round(float(v), 4) for v in singanet.loss.KTO(beta=0.5).forward(False, x, y)]
        [0.2689, 0.7311]
    """

    _compares_samples = True

    def __init__(
        self,
        beta: float = 0.1,
        desirable_weight: float = 1.0,
        undesirable_weight: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction)
        self.beta = checked_positive("KTO(beta=)", beta)
        self.desirable_weight, self.undesirable_weight = (
            checked_number(
                f"KTO({name}=)",
                value,
                "a finite number of at least 0",
                lambda w: w >= 0,
                "1 is usual",
            )
            for name, value in (
                ("desirable_weight", desirable_weight),
                ("undesirable_weight", undesirable_weight),
            )
        )

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_columns(self, x, "log-probabilities of own and of other answers")
        if y.shape != (len(x), 3):
            raise ShapeError(
                "KTO",
                expected=f"targets of shape ({len(x)}, 3): the reference's outputs, and labels",
                received=f"targets of shape {y.shape}",
                advice="join the reference's outputs (batch, 2) and labels of 0 and 1",
            )
        y = real_targets("KTO", ops.concat([x, x[:, :1]], 1), y)
        ops.check(partial(_expect_labels, "KTO"), y[:, 2])
        off, label = x - y[:, :2], y[:, 2]
        far = ops.maximum(off[:, 1].sum() / max(len(x), 1), 0)
        sign = 2 * label - 1
        p = ops.sigmoid(self.beta * sign * (far - off[:, 0]))
        no = self.undesirable_weight
        weight = no + label * (self.desirable_weight - no)
        return weight * p, weight * sign * p * (p - 1)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        dx = self.beta * saved[:, None]
        return ops.concat([dx, 0 * dx], 1)

    def rewards(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        found, label = self.beta * (x[:, :1] - y[:, :1]), y[:, 2:] != 0
        return ops.concat([found, found], 1), ops.concat([label, ~label], 1)


class RewardRanking(PreferenceLoss):
    """−log σ(x₁ − x₂ − y) for the scores ``x`` (B, 2) of a chosen and a rejected answer.

    It trains a model of rewards (Bradley and Terry, 1952; Ouyang et al., 2022). Targets ``y`` (B,)
    are margins by which the first score should be the higher, usually zeros. The scores are the
    rewards.

    Args:
        reduction: "mean" or "sum", see `Loss`.

    Examples:
        >>> x = np.array([[1.0, -1.0]])
        >>> round(singanet.loss.RewardRanking().evaluate(False, x, np.zeros(1)), 4)
        0.1269
    """

    def compute(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Any]:
        _expect_columns(self, x, "scores of the chosen and the rejected answer")
        margin = real_targets("RewardRanking", x[:, 0], y)
        return _logistic(ops, x[:, 0] - x[:, 1] - margin, 1.0)

    def gradient(self, ops: Ops, saved: Any) -> Array:
        return _opposed(ops, saved)

    def rewards(self, ops: Ops, x: Array, y: Array) -> tuple[Array, Array | None]:
        return x, None


def _logistic(ops: Ops, z: Array, target: float) -> tuple[Array, Array]:
    """Return −t log σ(z) − (1 − t) log σ(−z) for the ``target`` t, and its derivative by ``z``."""
    wanted = ops.zeros(z.shape, z) + target
    return ops.sigmoid_cross_entropy(z, wanted), ops.sigmoid(z) - target


def _opposed(ops: Ops, dz: Array) -> Array:
    """Return the gradients (B, 2) of two numbers of whose difference the gradient is ``dz``."""
    return ops.concat([dz[:, None], -dz[:, None]], 1)


def _expect_columns(loss: PreferenceLoss, x: Array, what: str) -> None:
    if x.ndim != 2 or x.shape[1] != loss.columns:
        raise ShapeError(
            type(loss).__name__,
            expected=f"outputs of shape (batch, {loss.columns}): {what}",
            received=f"outputs of shape {x.shape}",
            advice="make the net by pretrained.preference_net",
        )


def _expect_counts(kind: str, y: Array) -> None:
    # Negated, so that NaN is refused, too.
    if y.size and not (float(y[:, :2].min()) >= 1 and float(y[:, 2].min()) >= 0):
        raise DataError(
            kind,
            expected="targets that are numbers of tokens, of answers at least 1",
            received=f"{float(y.min()):g}",
            advice="remove pairs with an empty answer",
        )


def _expect_labels(kind: str, label: Array) -> None:
    wrong = (label != 0) & (label != 1)
    if bool(wrong.any()):
        raise DataError(
            kind,
            expected="labels that are 1, desirable, or 0",
            received=f"{float(label[wrong][0]):g}",
            advice="pass the labels as the last column of the targets",
        )
