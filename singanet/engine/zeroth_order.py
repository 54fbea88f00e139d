"""A step without a walk back: two forwards, and gradients that are drawn layer by layer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from singanet.base.kinds import native
from singanet.engine.feeds import check_feed
from singanet.engine.fusion import beside, headed
from singanet.engine.model import NetCore, StepRequest
from singanet.engine.step import (
    ByLayers,
    Counts,
    carry_out,
    expected_loss,
    of_output,
    tells,
    weights_for,
)
from singanet.errors import ArgumentError, SingaNetError
from singanet.ops import ops_for
from singanet.ops.kernel import widened
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.zeroth_order import ZerothOrder
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import ParamStorage
from singanet.types import Array


def step_by_forwards(
    net: NetCore, request: StepRequest, chain: UpdateChain
) -> tuple[float, float | None]:
    """The step of ``request`` by a chain that `estimates`; the loss and the metric of before.

    Errors: parameters that are not in memory; those of loss and metric. Nothing is changed then.
    """
    step = ByForwards(net, request, chain)
    carry_out(step, chain)
    return step.seen.loss, step.seen.score


class _Moved(ParamStorage):
    """What ``inner`` has, moved by ``by`` times the noise of the parameter ``name``."""

    __slots__ = ("by", "inner", "name", "stage")

    place = "moved for a forward"
    way_back = "wait for the end of the step"

    def __init__(self, inner: ParamStorage, stage: ZerothOrder, name: str, by: float) -> None:
        self.inner, self.stage, self.name, self.by = inner, stage, name, by

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.inner.dtype

    def read(self) -> Array:
        value = self.inner.read()
        moved = native(self.stage.noise(self.name, value.shape, value.dtype), ops_for(value).xp)
        moved *= value.dtype.type(self.by)
        moved += value
        return moved

    def lend(self) -> Array:
        return self.read()

    def write(self, array: Array) -> None:
        raise NotImplementedError


class ByForwards(ByLayers):
    """Carries a step out by two forwards."""

    def __init__(self, net: NetCore, request: StepRequest, chain: UpdateChain) -> None:
        super().__init__(net, _no_forward, request, chain)
        stage = chain.estimates
        assert isinstance(stage, ZerothOrder)
        self._stage, self._request = stage, request
        self._slope: float | None = None
        self._count: float | None = None
        steps = net.execution_plan().steps
        # Each parameter with the first step that has it, which the walk back comes to last.
        self._of_steps: list[tuple[str, list[Param]]] = []
        known: set[int] = set()
        for step, trained in zip(steps, net.execution_plan().trained(), strict=True):
            new = [p for p in step.layer.params.values() if trained and p.trainable]
            new = [p for p in new if id(p.root) not in known]
            known.update(id(p.root) for p in new)
            self._of_steps.append((step.name, new))

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """As `Carrier`: the slope is found in the first walk."""
        if self._slope is None:
            self._expect_in_memory()
            epsilon = self._stage.epsilon
            (more, above), (less, below) = self._loss(epsilon, True), self._loss(-epsilon, False)
            self._slope, self.seen.loss = (above - below) / (2.0 * epsilon), (more + less) / 2.0
        if self.chain.weighs:
            self.chain.begin(self._count)
        return self._drawn(self._slope)

    def update(self, items: Iterable[LayerGradients]) -> None:
        """As `Carrier`, and the step is counted."""
        super().update(items)
        self._stage.advance()

    def _drawn(self, slope: float) -> Iterator[LayerGradients]:
        put, noise = self.net.device.put, self._stage.noise
        for layer, params in reversed(self._of_steps):
            if params:
                grads = [put(noise(p.name, p.shape, p.array_type)) for p in params]
                for grad in grads:
                    grad *= grad.dtype.type(slope)
                names, values = [p.name for p in params], [p.value for p in params]
                yield LayerGradients(names, values, [*grads], layer)
                del grads, grad

    def _loss(self, by: float, looks: bool) -> tuple[float, float]:
        """The loss with all parameters moved ``by`` times their noise: its mean, and weighed."""
        net, request, loss = self.net, self._request, expected_loss(self.net)
        plan = headed(net, request) if getattr(loss, "goes_by_rows", False) else None
        feed = check_feed(net.execution_plan(), request.x, net.device, net.dtype)
        y, weight, ops = request.y, request.weight, net.device.ops
        if plan is not None:
            feed = {**feed, **beside(plan, y, weight, ops, net.dtype, self.chain)}
        used = plan or net.execution_plan()
        with self._moved(by), net.device.scope():
            found, _ = used.forward(feed, used.outputs, ops, net.rng, train=False)
        try:
            if plan is not None:
                ((losses, *rows),) = found.values()
                out = plan.head.scores(y)
                if looks:
                    self.seen(losses, out, rows)
            else:
                out = widened(found if len(used.outputs) > 1 else found[used.outputs[0]])
                losses = loss.forward(False, out, y, *weights_for(weight))
                if looks:
                    self.seen(losses, out)
        except SingaNetError as error:
            raise of_output(error, net.execution_plan().outputs) from None
        mean = float(losses.mean(dtype=np.float64)) if losses.size else 0.0
        counts = Counts.of(loss, out, y)
        whole = counts.of_all(self.chain, False) if tells(used, loss) else counts
        shares = {} if whole is counts else counts.shares(whole)
        self._count = counts.weight if whole is counts else counts.weight_in(whole)
        return mean, sum(
            shares.get(name, 1.0) * (total if name in counts.sums else total / (count or 1.0))
            for name, (total, count) in counts.losses(loss, mean).items()
        )

    @contextmanager
    def _moved(self, by: float) -> Iterator[None]:
        params = [param for _, params in self._of_steps for param in params]
        before = [param.storage for param in params]
        try:
            for param, storage in zip(params, before, strict=True):
                param.storage = _Moved(storage, self._stage, param.name, by)
            yield
        finally:
            for param, storage in zip(params, before, strict=True):
                param.storage = storage

    def _expect_in_memory(self) -> None:
        for _, params in self._of_steps:
            for param in params:
                if not param.storage.in_memory:
                    raise ArgumentError(
                        f"net.step by ZerothOrder, parameter {param.name!r}",
                        expected="parameters in memory, which are read with their noise",
                        received=f"one {param.storage.place}",
                        advice=param.storage.way_back,
                    )


def _no_forward() -> Any:
    raise AssertionError
