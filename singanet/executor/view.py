"""The part of a net that one program runs, as its steps and evaluations see it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, TypeAlias, cast

from singanet.base.edits import Counted, changes
from singanet.engine.executor import NetExecutor
from singanet.engine.part import Part
from singanet.engine.plan import NodeStep, Plan
from singanet.layers.layer import Layer
from singanet.net import FeedForwardNet
from singanet.ops import ops_for
from singanet.params.param import Param, ParamSpec
from singanet.program.programs import Programs, programs_of
from singanet.types import Array

Port: TypeAlias = tuple[str, int]
"""A node, and which of its outputs."""


class Objective(Counted):
    """The loss of a step: the mean of what the outputs ``heads`` give for each sample, summed.

    ``counted`` are the losses behind these means, with the places of the outputs and targets that
    each reads. The weight of a batch is their common count, or else its number of samples.
    """

    def __init__(
        self, heads: Sequence[str], counted: Sequence[tuple[Any, Port, Port]], alone: bool
    ) -> None:
        self.heads = tuple(heads)
        self.counted = tuple(counted)
        self.alone = alone
        self._shape: Any = None

    def forward(self, flag: bool | int, x: Any, y: Any) -> Array:
        """A number a sample, of the outputs ``x``."""
        parts = [x if self.alone else x[head] for head in self.heads]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self._shape = total.shape, total.dtype, ops_for(total).xp
        return total

    def backward(self) -> Any:
        """One over the number of samples, for each of them."""
        shape, dtype, xp = self._shape
        self._shape = None
        each = xp.full(shape, 1.0 / shape[0] if shape[0] else 0.0, dtype)
        return each if self.alone else dict.fromkeys(self.heads, each)

    def count(self, x: Any, y: Any) -> float:
        """See `Loss.count`."""
        batch = len(x if self.alone else x[self.heads[0]])
        found = {
            float(loss.count(picked(x, scores), picked(x, targets)))
            for loss, scores, targets in self.counted
        }
        return found.pop() if len(found) == 1 else float(batch)


class ProgramPart(Part):
    """A part whose frozen uses of parameters give no gradients, as in the whole."""

    def _trains_any(self, step: NodeStep) -> bool:
        return not step.frozen and super()._trains_any(step)


class View:
    """A `NetCore` for executors: the part of ``net`` with the ``outputs``.

    A step trains those of the parameters ``params`` that are to be trained by then; None are all.
    """

    passes_are_its_own = True

    def __init__(
        self,
        net: FeedForwardNet,
        outputs: Sequence[str],
        loss: Objective | None,
        params: Collection[Param] | None,
    ) -> None:
        self.net, self.outputs, self.loss = net, list(outputs), loss
        self.executor = Programs()
        self._params = None if params is None else frozenset(params)
        self._part: ProgramPart | None = None
        self._planned: Any = None
        self._chosen: list[Param] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the part: it finds parameters by ids of this process."""
        return {**vars(self), "_part": None}

    device = property(attrgetter("net.device"), doc="The net's.")
    dtype = property(attrgetter("net.dtype"), doc="The net's.")
    rng = property(attrgetter("net.rng"), doc="The net's, so that all programs draw from one.")
    version = property(attrgetter("net.version"), doc="The net's.")

    def carried(self) -> NetExecutor[Any]:
        """The executor of its steps: the net's, or programs set as the net's are."""
        of_net = self.net.executor
        if not of_net.can.records:
            # One that does not carry out parts either is refused there.
            return of_net if of_net.can.parts else programs_of(self.net)
        self.executor.follow(cast("Programs", of_net))
        return self.executor

    def execution_plan(self) -> Plan:
        """The steps of the part, worked out anew where other parameters are trained."""
        # A change that comes while this looks is seen the next time.
        now = self.net.version, changes.now
        if self._part is None or self._planned != now:
            whole = self.net.execution_plan()
            heads = () if self.loss is None else whole.slots_of(self.loss.heads)
            chosen = self._trained(whole) if heads else []
            if self._part is None or self._planned[0] != now[0] or chosen != self._chosen:
                self._part = ProgramPart(whole, heads, self.outputs, (), (), chosen)
            self._planned, self._chosen = now, chosen
        return self._part

    def _trained(self, whole: Plan) -> list[Param]:
        found = (
            param
            for step in whole.steps
            if not step.frozen
            for param in step.layer.params.values()
            if param.trainable and (self._params is None or param in self._params)
        )
        return list(dict.fromkeys(found))

    def updated(self) -> list[Param]:
        """The parameters that a step changes now."""
        part = self.execution_plan()
        return part.params_of(part.backward((), ()))

    @property
    def layers(self) -> list[Layer]:
        """The layers of the part."""
        return list({id(step.layer): step.layer for step in self.execution_plan().steps}.values())

    def params(self) -> list[Param]:
        """All parameters of the part, a shared one once."""
        params = [
            param for step in self.execution_plan().steps for param in step.layer.params.values()
        ]
        return list({id(param): param for param in params}.values())

    def param_specs(self) -> list[ParamSpec]:
        """Their training settings."""
        return [param.spec for param in self.params()]

    def rehearsal(self, only_failed: bool = False) -> AbstractContextManager[None]:
        """The net's."""
        return self.net.rehearsal(only_failed)


def picked(outputs: Mapping[str, Any], port: Port) -> Any:
    """The array at ``port``, a node and which of its outputs."""
    found = outputs[port[0]]
    return found[port[1]] if isinstance(found, (list, tuple)) else found
