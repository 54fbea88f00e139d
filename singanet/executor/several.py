"""Several optimizers in one step, each for parameters of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from singanet.errors import ArgumentError
from singanet.optimizer.checks import Grad
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.stages import stages_of
from singanet.params.param import ParamSpec
from singanet.types import Array


class Several:
    """Hands each gradient to the optimizer of its parameter, of those ``by_name``.

    Errors: one with a stage that has to see all gradients of a step, or that waits for its end.
    """

    def __init__(self, by_name: Mapping[str, Any]) -> None:
        self._by_name = dict(by_name)
        for optimizer in {id(one): one for one in self._by_name.values()}.values():
            stages = stages_of(optimizer)[0]
            if stages or not isinstance(optimizer, Optimizer):
                raise ArgumentError(
                    "several updates in one program",
                    expected="plain optimizers",
                    received=f"{type(optimizer).__name__}, which is around one",
                    advice="put its update into a program of its own",
                )

    def register_all(self, specs: Iterable[ParamSpec]) -> None:
        """As `Optimizer.register_all`, each with its own."""
        for spec in specs:
            if spec.name in self._by_name:
                self._by_name[spec.name].register(spec.name, spec)

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        """As `Optimizer.update`."""
        groups: dict[int, tuple[Any, list[int]]] = {}
        for k, name in enumerate(names):
            optimizer = self._by_name[name]
            groups.setdefault(id(optimizer), (optimizer, []))[1].append(k)
        for optimizer, places in groups.values():
            mine = [[part[k] for k in places] for part in (names, values, grads)]
            optimizer.update(*mine, scale)
