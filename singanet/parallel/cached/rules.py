"""Copies of a rule, which go on with its hyper-parameters and state of their own."""

from __future__ import annotations

from copy import deepcopy

from singanet.optimizer.hyper import dump_schedules
from singanet.optimizer.optimizer import Optimizer


def bare_copy(rule: Optimizer) -> Optimizer:
    """A rule as ``rule``, without the state of any parameter; schedules are the same objects."""
    made = deepcopy(rule)
    made.load_state_dict(dump_schedules(rule, rule.hypers))
    follow(made, rule)
    return made


def follow(copy: Optimizer, rule: Optimizer) -> None:
    """Let ``copy`` have the hyper-parameters as ``rule`` has them now."""
    for name in rule.hypers:
        now = getattr(rule, name)
        if getattr(copy, name) is not now:
            setattr(copy, name, now)
