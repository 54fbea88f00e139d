"""Copies of a rule, which go on with its hyper-parameters and state of their own."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper, rule_of

_Chain = TypeVar("_Chain", bound=Optimizer | Wrapper)


def bare_copy(optimizer: _Chain) -> _Chain:
    """One as ``optimizer``, without the state of any parameter; schedules are the same objects."""
    made, rule = deepcopy(optimizer), rule_of(optimizer)
    rule_of(made).load_state_dict(rule.hyper_state())
    follow(made, optimizer)
    return made


def follow(made: Optimizer | Wrapper, optimizer: Optimizer | Wrapper) -> None:
    """Let ``made`` have the hyper-parameters as the rule of ``optimizer`` has them now."""
    copy, rule = rule_of(made), rule_of(optimizer)
    for name in rule.hypers:
        now = getattr(rule, name)
        if getattr(copy, name) is not now:
            setattr(copy, name, now)
