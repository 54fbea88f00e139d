"""How what a parameter's spec says joins what its optimizer says."""

from __future__ import annotations

from typing import Any

from singanet.errors import ArgumentError
from singanet.optimizer.clip_norm import ClipNorm
from singanet.optimizer.constraint import Constraint
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.l2_regularizer import L2Regularizer
from singanet.optimizer.regularizer import Regularizer
from singanet.optimizer.state import ParamState
from singanet.params.param import ParamSpec


def as_regularizer(where: str, given: Any) -> Regularizer | None:
    """``given``, a regularizer or None; a number is an L2 coefficient."""
    if given is None or isinstance(given, Regularizer):
        return given
    if isinstance(given, (int, float)):
        return L2Regularizer(given)
    raise _not_one(f"{where}(regularizer=)", "a Regularizer, an L2 coefficient or None", given)


def as_constraint(where: str, given: Any) -> Constraint | None:
    """``given``, a constraint or None; a number is the threshold of a `ClipNorm`."""
    if given is None or isinstance(given, Constraint):
        return given
    if isinstance(given, (int, float)):
        return ClipNorm(given)
    raise _not_one(f"{where}(constraint=)", "a Constraint, a norm threshold or None", given)


def configured(
    where: str,
    name: str,
    spec: ParamSpec,
    regularizer: Regularizer | None,
    constraint: Constraint | None,
) -> ParamState:
    """The settings of parameter ``name``: by its spec, else by the optimizer."""
    own = as_regularizer(where, spec.regularizer)
    state = ParamState(
        name, own or regularizer, as_constraint(where, spec.constraint) or constraint
    )
    state.lr_mult = at(checked(where, "lr_mult", spec.lr_mult), 0)
    state.decay_mult = at(checked(where, "decay_mult", spec.decay_mult), 0)
    # As in SINGA: a coefficient of the parameter's own is not multiplied.
    state.penalty_mult = state.decay_mult if own is None else 1.0
    return state


def _not_one(where: str, expected: str, given: Any) -> ArgumentError:
    return ArgumentError(
        where,
        expected=expected,
        received=type(given).__name__,
        advice="see singanet.optimizer for what there is",
    )
