"""A training step that is written down, event by event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from singanet.engine.script import Taken
from singanet.optimizer.chain import TwoPasses
from singanet.params.gradients import LayerGradients
from singanet.params.param import Param
from singanet.program.trace.losses import LossStep
from singanet.program.trace.reduced_updates import ReducedUpdates
from singanet.program.trace.tape import Tape
from singanet.program.trace.traced import traced
from singanet.program.trace.updates import Updates
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class Traces(Protocol):
    """A recording with a net's passes, traced: a `Recorder`."""

    net: Net
    tape: Tape
    loss: LossStep | None
    params: list[tuple[Param, Array]]

    def forward(self, given: dict[str, Any], train: bool) -> tuple[dict[str, Any], list[Any]]:
        """Outputs by name, and the contexts that layers leave."""

    def single(self, outputs: dict[str, Any]) -> Any:
        """``outputs`` by name, or the array of the only one."""

    def backward(self, contexts: list[Any], dy: Mapping[str, Any]) -> Iterator[LayerGradients]:
        """The walk back from the gradients ``dy`` of outputs by name."""

    def walked_by_zeros(self, fed: dict[str, Any]) -> Iterator[LayerGradients]:
        """Forward, and the walk back with gradients of zeros."""


class RecordedStep:
    """Writes a step down for the tape of ``recorder``; a `Carrier`.

    It is of the batch ``given``, traced, with targets and weights ``beside``.
    """

    def __init__(
        self,
        recorder: Traces,
        updates: Updates | ReducedUpdates,
        given: dict[str, Any],
        beside: tuple[Any, Any] = (None, None),
    ) -> None:
        self._recorder, self._updates, self._given, self._beside = recorder, updates, given, beside
        self.net, self._tape = recorder.net, recorder.tape
        self._norm = updates.ahead()
        self.holds = updates.chain.scaled is not None
        self.updated = False

    def norm(self) -> TwoPasses | None:
        """As `Carrier`."""
        return self._norm

    @contextmanager
    def rehearsed(self) -> Iterator[None]:
        """As `Carrier`, at each replay."""
        draws: list[Any] = []
        net, tape = self.net, self._tape
        params = self._recorder.params
        state = [traced(tape, value) for param, value in params if param.is_state]
        before = []
        for value in state:
            before.append(value.copy())
            # A layer in Python moves it unseen, so that nobody may copy it again, or later.
            tape.calls[-1].barrier = True

        def remember() -> None:
            draws[:] = [net.rng.bit_generator.state]

        def restore() -> None:
            net.rng.bit_generator.state = draws.pop()

        self.do("draws", remember)
        yield
        tape.layer, tape.phase = "", "backward"
        self.do("draws", restore)
        for value, old in zip(state, before, strict=True):
            value[...] = old

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """As `Carrier`."""
        items = self._walked(again)
        scaled = self._updates.chain.scaled is not None
        return _traced(self._tape, items) if again or scaled else items

    def _walked(self, again: bool) -> Iterator[LayerGradients]:
        recorder, updates, tape = self._recorder, self._updates, self._tape
        loss, scaled = recorder.loss, updates.chain.scaled
        assert loss is not None
        y, weight = self._beside
        given = {**self._given, **loss.fed(tape, y, weight, updates.chain)}
        outputs, contexts = recorder.forward(given, train=True)
        del given
        single = recorder.single(outputs)
        scale = None if scaled is None else scaled.precision.scaled
        dy = loss.record(tape, single, y, weight, not again, scale)
        if updates.weighs:
            updates.begin(loss.weight(tape, single, y, updates), single)
            dy = loss.shared(tape, dy, updates)
        del single
        del outputs
        return recorder.backward(contexts, dy)

    def do(self, name: str, function: Callable[[], object]) -> None:
        """As `Carrier`, at each replay."""
        self._tape.add(function, (), {}, (), "hidden", name=name).barrier = True

    def look(self, taken: Taken, layer: str, finite: Array) -> None:
        """As `Carrier`, at each replay."""
        look = partial(taken.look, layer)
        self._tape.add(look, (finite,), {}, (), "hidden", name="finite").barrier = True

    def agree(self, taken: Taken) -> None:
        """As `Carrier`, at each replay."""
        if self._updates.reduction is not None:
            self._tape.phase = "communication"
        self.do("agree", taken.agree)

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """As `Carrier`."""
        return norm.knowing(items)

    def update(self, items: Iterable[LayerGradients]) -> None:
        """As `Carrier`."""
        for item in items:
            if item[0]:
                self._updates.record(item)
            del item
        self._updates.finish()


class RehearsedStep(RecordedStep):
    """As `RecordedStep`, without targets: the gradients of outputs are zeros."""

    def _walked(self, again: bool) -> Iterator[LayerGradients]:
        return self._recorder.walked_by_zeros(self._given)


def _traced(tape: Tape, items: Iterator[LayerGradients]) -> Iterator[LayerGradients]:
    """``items``, traced."""
    for item in items:
        values: list[Array] = [traced(tape, value) for value in item.values]
        yield LayerGradients(item.names, values, item.grads, item.layer)
        del item
