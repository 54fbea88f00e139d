"""A training step, told once: its events in order, whoever carries them out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from singanet.ops import ops_for
from singanet.optimizer.mixed_precision import NotFiniteError
from singanet.params.gradients import LayerGradients
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.model import NetCore
    from singanet.optimizer.chain import TwoPasses, UpdateChain
    from singanet.params.param import Param


class Carrier(Protocol):
    """Carries the events of a step out, or writes them down.

    One that holds no gradients walks twice where something has to know all of them.
    """

    @property
    def net(self) -> NetCore:
        """The net, or its part, that the step is of."""

    @property
    def holds(self) -> bool:
        """Whether all gradients of the step are there before the first update."""

    @property
    def updated(self) -> bool:
        """Whether any update of the step was made."""

    def norm(self) -> TwoPasses | None:
        """The clipping that has to know the norm of this step before its first update."""

    def rehearsed(self) -> AbstractContextManager[None]:
        """A block after which draws and running state of its forward are undone."""

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        """Forward, loss and the walk back; loss and metric are noted unless it is ``again``."""

    def do(self, name: str, function: Callable[[], object]) -> None:
        """Call ``function``, which computes nothing."""

    def look(self, taken: Taken, layer: str, finite: Array) -> None:
        """Let ``taken`` know whether gradients of ``layer`` are ``finite``."""

    def agree(self, taken: Taken) -> None:
        """Let ``taken`` decide with other processes, once all gradients are there."""

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """A block in which the clipping knows the norm of ``items``."""

    def update(self, items: Iterable[LayerGradients]) -> None:
        """The updates by ``items``, each let go before the next one comes; then the end."""


def tell(step: Carrier, chain: UpdateChain) -> None:
    """A step whose gradients go through ``chain``.

    Where a norm has to be known first, forward and backward run twice, with the same draws; in
    mixed precision nothing is updated unless all gradients are finite. Raises `NotFiniteError`,
    at once or when it is replayed, if the step is not taken; `carry_out` undoes it then.
    """
    norm = step.norm()
    taken = None if chain.scaled is None else Taken(chain)
    if taken is not None:
        step.do("begin", taken.begin)
    if step.holds:
        held = [*_looked(step, taken, step.walked(again=False))]
        held.reverse()
        if taken is not None:
            step.agree(taken)
        with nullcontext() if norm is None else step.knowing(norm, reversed(held)):
            step.update(popped(held))
    else:
        known: AbstractContextManager[None] = nullcontext()
        if norm is not None or taken is not None:
            with step.rehearsed():
                # What the loss counts is said within, before a reducer asks for the first item. A
                # step that is refused has told its loss.
                items = _looked(step, taken, step.walked(again=taken is None))
                if norm is not None:
                    known = step.knowing(norm, items)
                for item in items:
                    del item
            if taken is not None:
                step.agree(taken)
        with known:
            step.update(step.walked(again=taken is not None))
    if taken is not None:
        step.do("count", taken.succeeded)


def _looked(
    step: Carrier, taken: Taken | None, items: Iterable[LayerGradients]
) -> Iterator[LayerGradients]:
    """``items``, each looked at where the step may not be ``taken``."""
    for item in items:
        if taken is not None:
            for grad in item.grads:
                array: Any = grad[1] if isinstance(grad, tuple) else grad
                step.look(taken, item.layer, ops_for(array).xp.isfinite(array).all())
                del grad, array
        yield item
        # As the walk itself: one layer's gradients are let go before the next one's exist.
        del item


def popped(held: list[LayerGradients]) -> Iterator[LayerGradients]:
    """The last of ``held`` first, none of them held any longer."""
    while held:
        yield held.pop()


class Taken:
    """Looks at all gradients before ``chain`` takes them.

    Raises `NotFiniteError` if a gradient is not finite, here or on another process. All processes
    walk to the end before, as layers may need the others on the way.
    """

    def __init__(self, chain: UpdateChain) -> None:
        self._chain = chain
        # The first layer whose gradients are not finite.
        self._refused: str | None = None

    @property
    def refused(self) -> bool:
        """Whether gradients of this process are not finite."""
        return self._refused is not None

    def begin(self) -> None:
        """Look at another step."""
        self._refused = None

    def look(self, layer: str, finite: Array) -> None:
        """At the gradients of ``layer``."""
        if not finite:
            self._refused = self._refused or layer

    def agree(self) -> None:
        """Give the step up if gradients are not finite, here or on another process."""
        refused = self._chain.agree(self._refused)
        if refused is not None:
            self._chain.conclude(refused)
            raise NotFiniteError(refused)

    def succeeded(self) -> None:
        """The step is taken."""
        self._chain.conclude(None)


class Before:
    """A copy of what a forward of ``net`` changes: its ``state``, and with ``draws`` its generator.

    The copy is made now and at each `remember`. It goes back to the arrays that ``state`` has now.
    """

    __slots__ = ("_copies", "_draws", "_draws_too", "_groups", "_net", "_xp")

    def __init__(self, net: NetCore, state: Iterable[Param], draws: bool = True) -> None:
        self._net, self._draws_too = net, draws
        groups: dict[Any, list[Array]] = {}
        for param in state:
            value = param.value
            # Read-only arrays stay as they are; a device's arrays can always be written.
            if not isinstance(value, np.ndarray) or value.flags.writeable:
                groups.setdefault(value.dtype, []).append(value)
        self._groups = list(groups.values())
        self._xp: Any = net.device.ops.xp
        self._copies = [
            self._xp.empty(sum(value.size for value in group), dtype)
            for dtype, group in groups.items()
        ]
        self.remember()

    def remember(self) -> None:
        """Copy the present state, in place of the copy before."""
        # Reading the generator's state takes two microseconds.
        self._draws = self._net.rng.bit_generator.state if self._draws_too else None
        # One copy of all arrays takes much less time than one copy each.
        for group, kept in zip(self._groups, self._copies, strict=True):
            self._xp.concatenate(group, axis=None, out=kept)

    def restore(self) -> None:
        """Write the copy back."""
        if self._draws is not None:
            self._net.rng.bit_generator.state = self._draws
        for group, kept in zip(self._groups, self._copies, strict=True):
            start = 0
            for value in group:
                value[...] = kept[start : start + value.size].reshape(value.shape)
                start += value.size


def carry_out(step: Carrier, chain: UpdateChain) -> None:
    """`tell` a step, and undo it if it fails before its first update.

    A step that is not taken is undone too, and raises nothing.
    """
    before = Before(step.net, step.net.execution_plan().settings().state)
    chain.updated = False
    try:
        tell(step, chain)
    except NotFiniteError:
        before.restore()
    except BaseException:
        if not step.updated:
            before.restore()
            chain.refused()
        raise
