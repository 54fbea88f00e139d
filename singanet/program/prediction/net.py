"""The predicting part of a net: copies of its layers, with constants for parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.adapting import merge_constants
from singanet.engine.fusion import fused
from singanet.engine.memory import arrays_in
from singanet.engine.plan import Plan
from singanet.errors import ArgumentError
from singanet.loss.loss import Loss
from singanet.ops.interface import Ops, Prepared
from singanet.ops.kernel import widened
from singanet.params.param import Param
from singanet.program.array_tree import map_arrays
from singanet.program.guard import with_inner
from singanet.program.on_device.lowering import OnDevice
from singanet.program.prediction.constant import constant
from singanet.program.prediction.constants import Constants, make_constants
from singanet.program.prediction.folding import fold_norms, foldable, for_constants
from singanet.program.trace.foreign import is_own
from singanet.program.trace.recorder import Recorder
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.device import Device
    from singanet.engine.net import Net

_WHERE = "net.predictor"


class ConstantNet:
    """Layers and loss of a net as they are now, for evaluations on ``device``, without the net.

    ``norms`` names batch normalisations that are in the weights of convolutions, with these: of a
    net whose parameters are yet to be filled, `Constants` then has room for both as one. None
    folds what can be. ``loose`` is the plan with these, and else a step for each layer.
    Errors: a layer or a loss that cannot be copied.
    """

    def __init__(self, net: Net, device: Device, norms: Mapping[str, str] | None = None) -> None:
        self.device, self.dtype = device, net.dtype
        # What lies on a device for all programs, by the ids of the host's constants.
        self.there: dict[int, tuple[Array, Any]] = {}
        self.rng = copy.deepcopy(net.rng)
        self.intake = net.intake.copy()
        plan, self.loss = _copied(
            net.execution_plan() if norms is None else net.planned(), net.loss, device.ops.host
        )
        self.link = None if self.loss is None or is_own(self.loss) else self.loss.link
        if norms is None:
            # A kernel for several layers would hide a parameter that is NaN.
            norms = {} if _constants(plan).hold_nan() else foldable(plan)
        self.norms = dict(norms)
        self.loose = fold_norms(plan, self.norms)
        self._plan: Plan | None = None
        self.constants = _constants(self.loose)
        self.version = 0

    def execution_plan(self) -> Plan:
        """The plan, with one step for all that one kernel does."""
        if self._plan is None:
            self.has_nan = self.constants.hold_nan()
            self._plan = fused(self.loose) if self.has_nan else for_constants(self.loose)
        return self._plan

    # -- what a recorder asks ---------------------------------------------------------------

    def params(self) -> list[Param]:
        """The constants."""
        return list(self.constants.all)

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Undo at the end what the forwards inside did to the generator."""
        draws = self.rng.bit_generator.state
        try:
            yield
        finally:
            self.rng.bit_generator.state = draws

    def record(self, recorder: Recorder, feed: Mapping[str, Any]) -> None:
        """Write a prediction down; what follows from the constants alone is made now."""
        ops = recorder.tape.ops
        if isinstance(recorder.tape.lowering, OnDevice):
            recorder.tape.lowering.constants = self.there
        ops.prepared = self._prepared()
        recorder.evaluation(feed, lambda given, outputs: self._finished(ops, given, outputs))
        recorder.tape.make_constants = partial(make_constants, constants=self.constants)

    # -- what predicts ----------------------------------------------------------------------

    def by_layers(self, feed: Mapping[str, Any]) -> Any:
        """The outputs that `record` writes down, computed at once."""
        # A copy, in which kernels note what they passed over.
        ops = copy.copy(self.device.ops)
        ops.prepared = self._prepared()
        outputs, _ = self.execution_plan().forward(
            feed, self.execution_plan().outputs, ops, self.rng, train=False
        )
        # The link goes by its arrays: as in a program they name these kernels, for the same bits.
        kind: Any = type("Output", (np.ndarray,), {"kernels": staticmethod(lambda: ops)})
        made = self._finished(ops, feed, map_arrays(outputs, lambda y: y.view(kind)))[""]
        return map_arrays(made, np.asarray)

    def _prepared(self) -> Prepared | None:
        """Kernels for several layers would hide a parameter that is NaN already."""
        return None if self.has_nan else Prepared()

    def _finished(
        self, ops: Ops, given: Mapping[str, Any], outputs: dict[str, Any]
    ) -> dict[str, Any]:
        """The output of a net with one, under no name, or all outputs by their names."""
        if ops.prepared is not None and ops.prepared.drops_nan:
            _show_nan(ops, given, outputs)
        made: Any = map_arrays(outputs, widened)
        if len(self.execution_plan().outputs) == 1:
            made = made[self.execution_plan().outputs[0]]
        if self.loss is not None and self.link is None:
            made = self.loss.link(made)
        return {"": made}


def _constants(plan: Plan) -> Constants:
    return Constants(p for step in plan.steps for p in step.layer.params.values())


def _copied(
    plan: Plan, loss: Loss | None, host: Callable[[Array], Array]
) -> tuple[Plan, Loss | None]:
    """Plan and loss with layers of their own and constants, on the host, for parameters."""
    memo: dict[int, Any] = {}
    made: dict[int, Param] = {}
    for step in plan.steps:
        for param in step.layer.params.values():
            key = id(param.root)
            if key not in made:
                array = np.array(host(param.peek())) if param.filled else None
                made[key] = constant(param.name, param.shape, array)
            memo[id(param)], memo[key] = made[key], made[key].root
    layers = []
    for step in plan.steps:
        with _copying(f"layer {step.name!r}"):
            layers.append(copy.deepcopy(step.layer, memo))
    with _copying("the loss"):
        loss = copy.deepcopy(loss, memo)
    for inner in [] if loss is None else with_inner(loss):
        if isinstance(inner, Loss):
            inner.forget()
    steps = [copy.copy(step) for step in plan.steps]
    for step, layer in zip(steps, layers, strict=True):
        step.layer = layer
    merge_constants(layers)
    return plan.of_steps(steps), loss


@contextmanager
def _copying(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ArgumentError(
            _WHERE,
            expected="layers and a loss that can be copied, since a predictor has its own",
            received=f"{what}: {error}"[:300],
            advice="keep open files, locks and the like out of their attributes",
        ) from error


def _show_nan(ops: Ops, given: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Let a NaN in a sample show in what comes out, whatever the kernels between make of it."""
    for y in arrays_in(outputs):
        for x in arrays_in(given):
            if len(x) == len(y):
                ops.pass_on_nan(y, x)
