"""The rule of a worker whose values are made by servers."""

from __future__ import annotations

from typing import Any

from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.state import ParamState
from singanet.optimizer.wrapper import Wrapper
from singanet.params.param import Param, ParamSpec
from singanet.types import Array


class Taking(Optimizer):
    """w = what comes in the place of a gradient: values that ``rule`` has made elsewhere.

    ``lr`` is that of the rule.
    """

    hypers = ()

    def __init__(self, rule: Optimizer | Wrapper) -> None:
        self.rule = rule
        # The rule keeps its rate.
        super().__init__(lr=None)

    @property
    def lr(self) -> Any:
        """The learning rate of the rule elsewhere."""
        return UpdateChain(self.rule).rule.lr

    @lr.setter
    def lr(self, lr: Any) -> None:
        if lr is not None:
            UpdateChain(self.rule).rule.lr = lr

    def register(self, name: str, spec: ParamSpec) -> None:
        """As `Optimizer`: it is the rule that is told."""
        self.rule.register(name, spec)

    def spec_of(self, param: Param) -> ParamSpec:
        """As `Optimizer`: what the rule goes by."""
        found: ParamSpec = UpdateChain(self.rule).rule.spec_of(param)
        return found

    def _settle_as(self, name: str, spec: ParamSpec) -> None:
        self.state(name)

    def numbers(
        self, state: ParamState, lr: float | None = None
    ) -> tuple[float, tuple[float, ...]]:
        """As `Optimizer`: none."""
        return 0.0, ()

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        return ()

    def _sweep(self, update: ParamUpdate) -> None:
        update.value[...] = update.grad

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        update.value[indices] = update.grad
