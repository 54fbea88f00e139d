"""The order in which ranks reduce, the same on all of them whatever each one reached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from singanet.engine.model import NetCore
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import SMALL, groups_of
from singanet.types import Array

Kind: TypeAlias = Literal["dense", "rows", "idle"]
"""How the gradients of a parameter come; "idle" where no rank has found one so far."""


class Order:
    """The trained parameters of a net as a walk back yields them, and which are reduced together.

    Whether a gradient comes whole or as rows is not known before a rank has it: the first round
    asks layer by layer, later rounds ask at their end for the parameters that no rank has reached
    so far. With ``by_layer`` the parameters of a layer stay together, as stages need that look at a
    layer's gradients. Rows in tables are not among the parameters.
    """

    def __init__(self, by_layer: bool) -> None:
        self.by_layer = by_layer
        self.params: list[Param] = []
        self.by_name: dict[str, Param] = {}
        # Another number after each change of what is reduced together.
        self.version = 0
        self.layers: list[list[str]] = []
        self.kinds: dict[str, Kind] = {}
        self.entries: list[list[str]] = []
        self.settled: Callable[[str, Array], Array] = _as_it_is
        self.masters = False

    def start(
        self, net: NetCore, settled: Callable[[str, Array], Array], masters: bool = False
    ) -> None:
        """Begin anew with ``net``; ``settled`` gives the array of a parameter that is updated.

        ``masters`` says that it is another one than the parameter's, of another type.
        """
        self.masters = masters
        layers, self.kinds, self.settled = _trained(net), {}, settled
        self.layers = [[param.name for param in layer] for layer in layers]
        self.params = [param for layer in layers for param in layer]
        self.by_name = {param.name: param for param in self.params}
        self.entries = self.layers
        self.version += 1

    def lacks(self, net: NetCore) -> bool:
        """Whether ``net`` trains parameters that it did not when this began."""
        return any(param.name not in self.by_name for layer in _trained(net) for param in layer)

    def facts(self, specs: Iterable[ParamSpec]) -> list[str]:
        """What has to be the same on all ranks, a line a parameter with its of ``specs``."""
        pairs = zip(self.params, specs, strict=True)
        return [f"{p.name} {p.shape} {self.like(p).dtype} {spec}" for p, spec in pairs]

    def like(self, param: Param) -> Array:
        """An array of the type and shape that gradients of ``param`` have."""
        # What is kept elsewhere need not be read for that.
        return self.settled(param.name, param.value if self.masters else param.outline)

    def unknown(self, names: Sequence[str]) -> bool:
        """Whether nobody has asked yet how gradients of any of these come."""
        return any(name not in self.kinds for name in names)

    def is_settled(self) -> bool:
        """Whether all gradients come as they did before, and rows of tables by themselves."""
        kinds = [self.kinds.get(param.name, "idle") for param in self.params]
        return "idle" not in kinds and not (self.by_layer and "rows" in kinds)

    def idle(self) -> list[list[str]]:
        """By layer, the parameters that no rank has reached so far."""
        found = [[n for n in layer if self.kinds.get(n) == "idle"] for layer in self.layers]
        return [layer for layer in found if layer]

    def learn(self, names: Sequence[str], counts: Any) -> None:
        """Of ``counts``, a row a parameter: how many ranks have dense gradients, and rows."""
        for name, (dense, rows) in zip(names, counts, strict=True):
            self.kinds[name] = "dense" if dense else "rows" if rows else "idle"

    def group(self) -> None:
        """Put small parameters together, by what is known now of all."""
        self.version += 1
        known = [p for p in self.params if self.kinds.get(p.name, "idle") != "idle"]
        place = {param.name: k for k, param in enumerate(known)}
        if self.by_layer:
            parts = [[name for name in layer if name in place] for layer in self.layers]
            self.entries = [part for part in parts if part]
            return
        small = [p for p in known if self.kinds[p.name] == "dense" and self.like(p).nbytes <= SMALL]
        groups = groups_of([self.like(param) for param in small])
        entries = [[small[k].name for k in group] for group in groups]
        together = {name for entry in entries for name in entry}
        entries += [[name] for name in place if name not in together]
        # Each where its last gradient comes.
        self.entries = sorted(entries, key=lambda entry: place[entry[-1]])


def _as_it_is(name: str, value: Array) -> Array:
    return value


def _trained(net: NetCore) -> list[list[Param]]:
    """The parameters that ``net`` trains now, a list a layer, from the last layer to the first."""
    plan = net.execution_plan()
    # What layers share is yielded by the first of them, which a walk back reaches last.
    owned: set[int] = set()
    layers: list[list[Param]] = []
    for step, trained in zip(plan.steps, plan.trained(), strict=True):
        own = []
        for param in step.layer.params.values() if trained else ():
            if plan.trains(param) and id(param) not in owned and not param.storage.by_rows:
                owned.add(id(param))
                own.append(param)
        if own:
            layers.insert(0, own)
    return layers
