"""A step of one stage: micro-batches forward and backward, then the updates of their means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from singanet.engine.model import StepRequest
from singanet.engine.script import Taken, popped
from singanet.optimizer.accumulator import Accumulator
from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.parallel.communicators.communicator import Communicator
from singanet.parallel.pipeline.run import StageRun
from singanet.parallel.pipeline.schedules import Op
from singanet.params.gradients import LayerGradients
from singanet.types import Array


class MicroBatchedStep:
    """Carries out what ``run`` does in the order ``ops``; a `Carrier`.

    Gradients are gathered by ``gather`` behind the loss scaling, if any, so that what comes of the
    walk is what the stages behind both take. ``joined`` is called with it: parameters may be on
    several stages.
    """

    holds = True

    def __init__(
        self,
        row: Communicator,
        run: StageRun,
        ops: Sequence[Op],
        request: StepRequest,
        gather: Accumulator,
        joined: Callable[[list[LayerGradients]], None],
    ) -> None:
        self._row, self._run, self._ops, self._request = row, run, ops, request
        self.net: Any = run.part
        self._joined = joined
        self._behind = UpdateChain(gather.optimizer)
        self._scaled = UpdateChain(request.optimizer).scaled
        around = gather if self._scaled is None else self._scaled.around(gather)
        self._chain = UpdateChain(around)
        self.loss = 0.0
        self.score: float | None = None

    @property
    def updated(self) -> bool:
        """As `Carrier`."""
        return self._behind.updated

    def norm(self) -> TwoPasses | None:
        """As `Carrier`; whether it is due all stages find out together."""
        norm = self._behind.norm
        return None if norm is None or norm.clip.knows else norm

    def rehearsed(self) -> AbstractContextManager[None]:
        """As `Carrier`: nothing comes twice."""
        return nullcontext()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """As `Carrier`: what has been gathered of all micro-batches, as masters take it."""
        items: list[LayerGradients] = []
        for op in self._ops:
            if op.kind == "forward":
                self._run.forward(op.micro_batch, True)
            else:
                items += self._run.backward(op.micro_batch, self._request, self._chain)
        told = self._row.broadcast(self._run.told.as_array(), self._row.size - 1, "the loss")
        self.loss, self.score = float(told[0]), float(told[1]) if told[2] else None
        self._joined(items)
        items.reverse()
        return popped(items)

    def do(self, name: str, function: Callable[[], object]) -> None:
        """As `Carrier`."""
        function()

    def look(self, taken: Taken, layer: str, finite: Array) -> None:
        """As `Carrier`."""
        taken.look(layer, finite)

    def agree(self, taken: Taken) -> None:
        """As `Carrier`."""
        mine = np.array(float(taken.refused))
        if self._row.all_reduce(mine, what="whether all gradients are finite"):
            taken.look("of another stage", np.array(False))
        taken.agree()

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """As `Carrier`: the norm of the gradients of all stages."""
        # A stage that trains nothing has gathered nothing, and knows by the others that it is due.
        due = norm.due()
        own = float(norm_of(norm.previewed(items))) ** 2 if due else 0.0
        told = np.array([own, float(due)])
        squares, those = self._row.all_reduce(told, what="the norm of the gradients").tolist()
        return norm.clip.knowing(float(np.sqrt(squares))) if those else nullcontext()

    def update(self, items: Iterable[LayerGradients]) -> None:
        """As `Carrier`: behind the loss scaling, which only rounds what was updated."""
        changed: list[str] = []

        def seen(item: LayerGradients) -> None:
            changed.extend(item.names)
            if self._request.on_layer is not None:
                self._request.on_layer(item)

        scaled = self._scaled
        if scaled is None:
            self._behind.apply(items, seen)
            return
        values = {param.name: param.value for param in self.net.params()}

        def rounded(scaled: ScaledUpdates) -> Iterator[LayerGradients]:
            """``items``, of which each is rounded once it was updated: averages follow that."""
            for item in items:
                yield item
                scaled.updated(item.names, [values[name] for name in item.names])

        self._behind.apply(rounded(scaled), seen)
        # What a reducer has updated in its end.
        scaled.updated(changed, [values[name] for name in changed])
