"""The stages of an optimizer while its arithmetic is recorded."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter, is_not
from typing import Any

import numpy as np

from singanet.base.elsewhere import is_library
from singanet.optimizer.chain import UpdateChain, is_own_schedule
from singanet.optimizer.hyper import Scale
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.regularization import Regularizer
from singanet.optimizer.wrapper import Wrapper
from singanet.params.param import Param
from singanet.program.guard import Guard, is_patched
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.trace.tape import Tape
from singanet.types import Array

Hand = Callable[[Any, Any, Any, Any], None]
"""A function of the names, values, gradients and scale that the last stage hands on."""


class TracedStages:
    """Copies of ``stages`` with traced arrays, which gradients go through on their way.

    ``settled`` are by name the arrays that are to be updated behind them. Of stages that are not
    ``recordable`` there are no copies, and nothing is settled.
    """

    def __init__(
        self,
        tape: Tape,
        guard: Guard,
        stages: Sequence[Wrapper],
        trained: Iterable[Param],
        recordable: bool = True,
    ) -> None:
        self.tape, self.stages = tape, list(stages)
        self.settled: dict[str, Array] = {}
        self.traced: list[Any] = []
        self._watching: list[StageGuard] = []
        if not recordable:
            return
        params = list(trained)
        names, values = [p.name for p in params], [p.value for p in params]
        for stage in stages:
            values = list(stage.settle(names, values))
        self.settled = dict(zip(names, values, strict=True))
        self.traced = [_traced(tape, stage) for stage in stages]
        for stage in stages:
            guard.part(stage)
            self._watching.append(watch_case(guard, stage))

    @property
    def scaled(self) -> Any:
        """The first of them, where it holds all gradients of a step."""
        return self.traced[0] if self.traced and self.stages[0].traits.holds_all else None

    def traced_of(self, stage: Any) -> Any:
        """The twin of ``stage`` in the recording."""
        return self.traced[self.stages.index(stage)]

    @property
    def read_gradients(self) -> bool:
        """Whether one of them looks at gradients."""
        return any(stage.traits.reads != "nothing" for stage in self.stages)

    def own(self, name: str, value: Array) -> Array:
        """The array behind ``value``, as the last stage hands it on: where state is made for it.

        Raises `NotRecordableError` for an array of a device that no stage has told of.
        """
        settled = self.settled.get(name)
        place, own = self.tape.ref(value), None if settled is None else self.tape.ref(settled)
        if settled is not None and own is not None and own[:3] == place[:3]:
            return settled
        if place not in self.tape.outside:
            raise NotRecordableError(f"an array of its own for {name!r}")
        return self.tape.outside[place]

    def hand(self, names: Any, values: Any, grads: Any, scale: Scale, to: Hand) -> None:
        """Let the gradients of a layer go through all stages, ``to`` whoever comes behind."""
        self._handed(0, to, names, values, grads, scale)

    def _handed(
        self, depth: int, to: Hand, names: Any, values: Any, grads: Any, scale: Any
    ) -> None:
        if depth == len(self.traced):
            to(names, values, grads, scale)
            return
        for given in self.traced[depth].take(names, values, grads, scale):
            self._handed(depth + 1, to, *given)
        stage = self.stages[depth]
        if type(stage).skip is not Wrapper.skip:
            skip = partial(stage.skip, list(names))
            self.tape.add(skip, (), {}, (), "hidden", name="count").barrier = True

    def state(self) -> list[Any]:
        """The state of the copies, for `restore`."""
        return [map_arrays(vars(stage), lambda array: array) for stage in self.traced]

    def restore(self, state: Sequence[Any]) -> None:
        """Let the copies know what they did at `state`."""
        for stage, known in zip(self.traced, state, strict=True):
            vars(stage).update(known)

    def weigh(
        self,
        chain: UpdateChain,
        told: float | Callable[[Any], None] | None,
        outputs: Any,
    ) -> str | None:
        """Tell ``chain`` the weight of a batch; ``told`` is it, or the function that tells it.

        Returns why accumulators among the stages cannot be recorded, if so.
        """
        why = None
        # Numbers that differ from replay to replay, by the stages that have them.
        numbers: list[tuple[Any, Array, Array]] = []
        for stage, one, watching in zip(self.stages, self.traced, self._watching, strict=False):
            if not stage._weighs:
                continue
            if not callable(told):
                one.begin(told)
                # The count that weighs 1 is known from now on; it was this one all along.
                watching.allow(one.case())
                if one._is_even():
                    continue
            if not one._is_together():
                why = "its parameters are at different micro-batches"
            weight, share = np.ones(()), np.ones(())
            one.weigh(self.tape.hold(weight), self.tape.hold(share))
            numbers.append((stage, weight, share))

        def tell(outputs: Any) -> None:
            if callable(told):
                told(outputs)
            else:
                chain.begin(told)
            for stage, weight, share in numbers:
                weight[...], share[...] = stage.weight, stage.share()

        filled = [array for _, *pair in numbers for array in pair]
        self.tape.layer, self.tape.phase = "loss", "loss"
        read = (outputs if callable(told) else None,)
        self.tape.add(tell, read, {}, filled, "hidden", name="weigh").barrier = True
        return why

    def end(self, in_python: bool = False) -> None:
        """Write down the ends of the stages, as Python steps if ``in_python``."""
        ending = [k for k, stage in enumerate(self.stages) if type(stage).end is not Wrapper.end]
        self.tape.layer, self.tape.phase = "", "update"
        for k in ending:
            if in_python:
                end = self.stages[k].end
                self.tape.add(end, (), {}, (), "hidden", name="python step").barrier = True
            else:
                self.traced[k].end()

    @property
    def ends(self) -> bool:
        """Whether one of them does something at the end of a step."""
        return any(type(stage).end is not Wrapper.end for stage in self.stages)


class StageGuard:
    """Whether a stage, or a rule with cases, is as it was when its arithmetic was recorded."""

    def __init__(self, stage: Any) -> None:
        self._stage = stage
        self._cases = [stage.case()]
        names = [
            name
            for name, value in vars(stage).items()
            if not name.startswith("_") or isinstance(value, (dict, np.ndarray))
        ]
        self._get = attrgetter(*names, "__class__", "__class__")
        self._before = self._get(stage)

    def holds(self) -> bool:
        """Whether attributes are the same objects, and the next step is of the same case."""
        same = not any(map(is_not, self._get(self._stage), self._before))
        return same and self._stage.case() in self._cases

    def allow(self, case: Hashable) -> None:
        """Let another case hold, whose arithmetic is the same."""
        if case not in self._cases:
            self._cases.append(case)


def watch_case(guard: Guard, part: Any) -> StageGuard:
    """Let ``guard`` see where a stage, or a rule with cases, goes another way."""
    what = "a stage of the optimizer was changed, or its next step is of another kind"
    watching = StageGuard(part)
    guard.watch(what, watching.holds)
    return watching


def refusal(parts: Iterable[Any]) -> str | None:
    """Why no update by these stages and this rule is recorded, if so."""
    for part in parts:
        kind = type(part).__name__
        if not is_library(type(part)) and not getattr(part, "pure", False):
            return f"{kind} is not singanet's"
        told_by_parts = type(part).update is Wrapper.update
        if isinstance(part, Optimizer):
            told_by_parts = part._by_parameter and is_library(_teller(type(part), "update"))
        if not told_by_parts:
            return f"{kind} has an update of its own"
        if is_patched(part):
            return f"a method of this {kind} was replaced"
    return None


def _teller(kind: type, name: str) -> type:
    """The class above, or ``kind`` itself, whose method ``name`` it is."""
    return next(above for above in kind.__mro__ if name in vars(above))


def expect_recordable(parts: Iterable[Any]) -> None:
    """Raises `NotRecordableError` where there is a `refusal`."""
    why = refusal(parts)
    if why is not None:
        raise NotRecordableError(why)


def _traced(tape: Tape, stage: Wrapper) -> Wrapper:
    """A copy of ``stage`` whose arrays are traced, and whose counts are its own."""
    made: Wrapper = object.__new__(type(stage))
    for name, value in vars(stage).items():
        state = name != "optimizer"
        vars(made)[name] = map_arrays(value, tape.place) if state else value
    return made


@contextmanager
def schedules_held(optimizer: Optimizer, regularizer: Regularizer | None) -> Iterator[None]:
    """Numbers in the place of the user's schedules, which recording does not ask."""
    owners: list[tuple[Any, str]] = [(optimizer, name) for name in optimizer.hypers]
    owners.append((regularizer, "coefficient"))
    every = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
    own = [(owner, name, value) for owner, name, value in every if is_own_schedule(value)]
    try:
        for owner, name, _ in own:
            setattr(owner, name, 0.5)
        yield
    finally:
        for owner, name, value in own:
            setattr(owner, name, value)
