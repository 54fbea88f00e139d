"""Several optimizers in one step, each for parameters of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

from singanet.errors import ArgumentError
from singanet.optimizer.checks import Grad
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.param_update import ParamUpdate
from singanet.optimizer.state import ParamState
from singanet.params.param import Param
from singanet.types import Array, Shape


class Several(Optimizer):
    """Hands each gradient to the optimizer of its parameter, of those ``by_name``.

    Errors: one with a stage that has to see all gradients of a step, or that waits for its end.
    """

    hypers = ()
    by_parameter: ClassVar[bool] = False

    def __init__(self, by_name: Mapping[str, Any]) -> None:
        super().__init__(lr=None)
        self._by_name = dict(by_name)
        self._all = list({id(one): one for one in self._by_name.values()}.values())
        for optimizer in self._all:
            if not isinstance(optimizer, Optimizer):
                raise ArgumentError(
                    "several updates in one program",
                    expected="plain optimizers",
                    received=f"{type(optimizer).__name__}, which is around one",
                    advice="put its update into a program of its own",
                )

    def __repr__(self) -> str:
        parts = (f"{name}: {optimizer!r}" for name, optimizer in self._by_name.items())
        return f"Several({', '.join(parts)})"

    def follow(self, params: Iterable[Param]) -> None:
        """As `Optimizer`, with each parameter's own; of no other parameter anything is known."""
        for param in params:
            if param.name in self._by_name:
                self._by_name[param.name].follow([param])

    def turn(self, params: Sequence[Param]) -> bool:
        """As `Optimizer`, each of its own parameters."""
        own: dict[int, list[Param]] = {}
        for param in params:
            if param.name in self._by_name:
                own.setdefault(id(self._by_name[param.name]), []).append(param)
        turned = [one.turn(own.get(id(one), [])) for one in self._all]
        return any(turned)

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        groups: dict[int, tuple[Any, list[int]]] = {}
        for k, name in enumerate(names):
            optimizer = self._by_name[name]
            groups.setdefault(id(optimizer), (optimizer, []))[1].append(k)
        for optimizer, places in groups.values():
            mine = [[part[k] for k in places] for part in (names, values, grads)]
            optimizer.update(*mine, scale)

    def state(self, name: str) -> ParamState:
        found: ParamState = self._by_name[name].state(name)
        return found

    def settle(self, name: str, value: Array) -> ParamState:
        found: ParamState = self._by_name[name].settle(name, value)
        return found

    def states(self) -> Collection[ParamState]:
        """As `Optimizer`: those of all."""
        return list(chain.from_iterable(one.states() for one in self._all))

    def will_change(self, name: str) -> bool:
        return bool(self._by_name[name].will_change(name))

    def slot_sizes(self, shape: Shape) -> tuple[int, ...]:
        """As `Optimizer`. Errors: NotImplementedError, as it depends on the parameter."""
        raise NotImplementedError

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        raise NotImplementedError

    def _sweep(self, update: ParamUpdate) -> None:
        raise NotImplementedError

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        raise NotImplementedError
