"""Names of layers, inputs and parameters in questions for gradients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from singanet.engine.part import INPUT, carrying
from singanet.engine.plan import Plan
from singanet.errors import ArgumentError, DataError, UnknownNameError, did_you_mean, one_of
from singanet.layers.dummy import Dummy
from singanet.types import Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.params.param import Param

Name: TypeAlias = str | tuple[str, int]
"""A layer, input or parameter, or one output of a layer: ``("split", 1)``."""

Names: TypeAlias = Name | Sequence[Name]

N = TypeVar("N", str, Name)
"""What is asked by: names of layers, inputs and parameters alone, or also of single outputs."""

Y = TypeVar("Y", str, Name)

Directions: TypeAlias = Mapping[str, Any] | Mapping[tuple[str, int], Any] | Mapping[Name, Any]
"""Arrays by names, whichever these are."""

LOSS = "loss"


@dataclass(frozen=True)
class GradientTarget:
    """The target that ``name`` means: a parameter, outputs of a step, or the feed of a step.

    ``step`` is the name of the step whose outputs these are in a `Part`.
    """

    name: Name
    step: str = ""
    index: int | None = None
    fed: str = ""
    param: Param | None = None

    def picked(self, grad: Any) -> Any:
        """Its part of the gradients of a step's outputs."""
        return grad if self.index is None else grad[self.index]


def listed(names: Names) -> list[Name]:
    """``names`` as a list; one may stand alone, and ``("split", 1)`` is one."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, tuple) and len(names) == 2 and isinstance(names[1], int):
        return [(str(names[0]), names[1])]
    return list(names)


class Resolver:
    """Finds what names mean in ``net``; ``where`` is who asks."""

    def __init__(self, net: Net, where: str) -> None:
        self.plan: Plan = net.execution_plan()
        self.where = where
        self.params = {param.name: param for param in net.params()}
        self.inputs = {self._input_name(name): name for name in self.plan.inputs}
        if len(self.plan.inputs) == 1 and "input" not in self.plan.by_name:
            self.inputs.setdefault("input", self.plan.inputs[0])

    def _input_name(self, name: str) -> str:
        """How what the step ``name`` is fed with is called: as the step, if that is all it is."""
        step = self.plan.by_name[name]
        return name if type(step.layer) is Dummy else name + INPUT

    def head(self, name: Name) -> list[tuple[int, int, str]]:
        """The outputs that one of ``ys`` means: index, slot and step. Errors: none, or integers."""
        layer, index = name if isinstance(name, tuple) else (name, None)
        step = self.plan.by_name.get(layer)
        if step is None:
            raise self._unknown(name, "ys", [*self.plan.by_name, LOSS])
        slots = list(enumerate(step.out_slots))
        self._expect_float(name, "ys", step.gives_integers)
        return [
            (k, slot, step.name)
            for k, slot in (slots if index is None else [slots[self._index(name, index, slots)]])
        ]

    def target(self, name: Name) -> GradientTarget:
        """The target that one of ``xs`` names. Errors: none, or integers."""
        layer, index = name if isinstance(name, tuple) else (name, None)
        step = self.plan.by_name.get(layer)
        if step is not None:
            self._expect_float(name, "xs", step.gives_integers)
            if index is not None:
                index = self._index(name, index, step.out_slots)
                index = index if step.many_out else None
            return GradientTarget(name, step.name, index)
        if layer in self.params and index is None:
            self._expect_no_state(self.params[layer])
            return GradientTarget(name, param=self.params[layer])
        fed = self.inputs.get(layer)
        if fed is None:
            raise self._unknown(name, "xs", [*self.inputs, *self.plan.by_name, *self.params])
        step = self.plan.by_name[fed]
        asked = step.integers if index is None else step.integers & {index}
        self._expect_float(name, "xs", bool(asked))
        if self._input_name(fed) == fed:
            return GradientTarget(name, fed, index)
        shapes = step.layer.in_shapes
        if index is not None:
            index = self._index(name, index, shapes if isinstance(shapes, list) else [shapes])
            index = index if isinstance(shapes, list) else None
        return GradientTarget(name, fed + INPUT, index, fed)

    def split(
        self, targets: Sequence[GradientTarget], slots: Iterable[int], zeros: bool
    ) -> tuple[list[GradientTarget], list[GradientTarget]]:
        """The ``targets`` below ``slots``, and the other targets.

        Errors: there are others, unless ``zeros`` are to be given for them.
        """
        carries, steps = carrying(self.plan, slots)
        here: list[GradientTarget] = []
        others: list[GradientTarget] = []
        for target in targets:
            (here if self._is_below(target, carries, steps) else others).append(target)
        if others and not zeros:
            raise self.unreachable(others[0], carries, steps)
        return here, others

    def _is_below(self, target: GradientTarget, carries: set[int], steps: Sequence[bool]) -> bool:
        if target.param is not None:
            return any(
                comes and any(param is target.param for param in step.layer.params.values())
                for step, comes in zip(self.plan.steps, steps, strict=True)
            )
        if target.fed:
            step = self.plan.by_name[target.fed]
            return not step.layer.traits.stops_gradient and not carries.isdisjoint(step.out_slots)
        slots = self.plan.by_name[target.step].out_slots
        return not carries.isdisjoint(slots if target.index is None else [slots[target.index]])

    def unreachable(
        self, target: GradientTarget, carries: Collection[int] = (), steps: Sequence[bool] = ()
    ) -> ArgumentError:
        """The error for a target that no gradient comes to."""
        above = [step for step, comes in zip(self.plan.steps, steps, strict=False) if comes]
        known: list[str] = [step.name for step in above]
        if target.param is not None:
            known = [param.name for step in above for param in step.layer.params.values()]
        elif not steps:
            known = [name for name in self.plan.by_name if name != target.step]
        return ArgumentError(
            f"{self.where}, {target.name!r} of xs",
            expected="what a gradient of ys comes to" + (f": {one_of(known)}" if known else ""),
            received="one that no layer between sends a gradient to",
            advice="leave it out, or pass unreachable='zeros'",
        )

    def feed(self, given: Any, names: Sequence[str]) -> Any:
        """``given`` by the inputs ``names`` of a part, without those that it does not need."""
        if not isinstance(given, Mapping):
            return given
        steps = {**self.inputs, **{name: name for name in self.plan.inputs}}
        found: dict[str, Any] = {}
        for key, array in given.items():
            step = steps.get(key)
            if step is None:
                raise self._unknown(key, "feed", self.inputs)
            name = step if step in names else step + INPUT
            if name in names:
                found[name] = array
        return found

    def _index(self, name: Name, index: int, among: Sequence[Any]) -> int:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(among):
            raise ArgumentError(
                f"{self.where}, {name!r}",
                expected=f"an index from 0 to {len(among) - 1}",
                received=repr(index),
                advice="count the outputs of the layer from 0",
            )
        return index

    def _expect_float(self, name: Name, argument: str, integers: bool) -> None:
        if integers:
            raise DataError(
                f"{self.where}, {name!r} of {argument}",
                expected="an array of floats",
                received="indices, which are integers and have no gradient",
                advice="name the layer that reads them: the gradient of its output",
            )

    def _expect_no_state(self, param: Param) -> None:
        if param.is_state:
            raise ArgumentError(
                f"{self.where}, {param.name!r} of xs",
                expected="a parameter that gradients train",
                received="running state, which the layer moves itself",
                advice="leave it out",
            )

    def _unknown(self, name: Any, argument: str, known: Collection[str]) -> UnknownNameError:
        """The error for a name in ``argument`` that is not among the ``known`` ones."""
        return UnknownNameError(
            f"{self.where}, argument {argument}",
            expected=f"names among {one_of(known)}",
            received=repr(name),
            advice=did_you_mean(
                str(name[0] if isinstance(name, tuple) and name else name),
                known,
                "name an input, a layer, (layer, index), or a parameter",
            ),
        )


def sample_shape(plan: Plan, target: GradientTarget) -> list[Shape]:
    """The shapes, without batch axis, of what ``target`` stands for."""
    step = plan.by_name[target.fed or target.step]
    shapes: Any = step.layer.in_shapes if target.fed else None
    if not target.fed:
        shapes = [plan.slot_shapes[slot] for slot in step.out_slots]
    several = list(shapes) if isinstance(shapes, list) else [shapes]
    return several if target.index is None else [several[target.index]]
