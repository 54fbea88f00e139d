"""The settings of a training beside its arrays: which parameters it trains, and how."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from singanet.optimizer.chain import UpdateChain


def settings_of(net: Any, optimizer: Any) -> Callable[[], None]:
    """A function that restores the trained parameters, their rates and the rule's numbers.

    Callbacks change these in the course of a training: they freeze and thaw, and assign rates.
    """
    rule = UpdateChain(optimizer).rule
    numbers = {name: getattr(rule, name) for name in getattr(rule, "hypers", ())}
    params = [(param, param.spec, param.trainable, param.held) for param in net.params()]
    frozen = getattr(net, "frozen_before", [])

    def put_back() -> None:
        for name, value in numbers.items():
            if getattr(rule, name) is not value:
                setattr(rule, name, value)
        for param, spec, trainable, held in params:
            if param.spec != spec:
                param.spec = spec
            if param.trainable != trainable:
                param.trainable = trainable
            if param.held != held:
                param.held = held
        if frozen != getattr(net, "frozen_before", []):
            net.unfreeze()
            for name in frozen:
                net.freeze(name)

    return put_back
