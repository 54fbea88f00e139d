"""What stands between a gradient and its parameter: the stages of an optimizer, and its rule."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from singanet.errors import ArgumentError
from singanet.optimizer.element_wise import ElementWise
from singanet.optimizer.global_norm import norm_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.scale import Scale
from singanet.optimizer.state import Owners
from singanet.optimizer.wrapper import Wrapper
from singanet.params.gradients import split
from singanet.params.param import Param

if TYPE_CHECKING:
    from singanet.optimizer.mixed_precision import ScaledUpdates
    from singanet.optimizer.reducer import Reducer
    from singanet.params.gradients import LayerGradients
    from singanet.types import Shape


class ToldNorm(Protocol):
    """A stage that `Wrapper.needs_norm`, such as `ClipByGlobalNorm`."""

    @property
    def knows(self) -> bool:
        """Whether the norm of the step in work was said."""

    def knowing(self, norm: Scale) -> AbstractContextManager[None]:
        """Within the block, ``norm`` is that of all gradients that `take` is given."""

    def joined(self, total: Any) -> Any:
        """As `Wrapper.joined`."""


class UpdateChain:
    """The ``stages`` of an optimizer in the order in which gradients meet them, and its ``rule``.

    It is of the optimizer as it is now: executors make it anew after each change of a stage. What
    stages do is told by `Wrapper`, so that a user's own takes part as singanet's do.
    """

    def __init__(self, optimizer: Any) -> None:
        stages: list[Wrapper] = []
        inner = optimizer
        while isinstance(inner, Wrapper):
            stages.append(inner)
            inner = inner.optimizer
        self.optimizer = optimizer
        self.stages: tuple[Wrapper, ...] = tuple(stages)
        self.rule: Any = inner
        self.owners = inner.owners if isinstance(inner, Optimizer) else Owners()
        self.reducers = cast("tuple[Reducer, ...]", tuple(s for s in stages if s.waits))
        # Scaled gradients are all there before the first goes on to the stages behind.
        holds = bool(stages) and stages[0].holds_all
        self.scaled = cast("ScaledUpdates", stages[0]) if holds else None
        self.weighs = any(stage.weighs for stage in stages)
        self.estimates = next((stage for stage in stages if stage.estimates), None)
        self.selects = any(stage.selects for stage in stages)
        self.updated = False
        """Whether any update of the step in work was made."""

    @property
    def own_rule(self) -> Optimizer | None:
        """The rule, where it is an `Optimizer` and not a user's class like one."""
        return self.rule if isinstance(self.rule, Optimizer) else None

    def treats_alike(self, param: Param) -> bool:
        """Whether the rule updates each element of ``param`` by itself: parts of it may be, apart.

        A rule that looks at norms of a whole parameter, or a constraint on them, does not do so.
        """
        alike = isinstance(self.rule, ElementWise) and type(self.rule)._sweep is ElementWise._sweep
        return alike and (self.rule.constraint, self.rule.spec_of(param).constraint) == (None, None)

    def updates_by_each_use(self, param: Param) -> bool:
        """Whether gradients of the uses of ``param`` are applied one by one; see `Optimizer`."""
        rule = self.own_rule
        if rule is None or self.stages or not rule.each_use:
            return False
        state = rule.state(param.name)
        return state.regularizer is None and state.constraint is None

    def case(self) -> Hashable:
        """The case of the next step's arithmetic; a user's own rule has one case."""
        of_rule = self.rule.case() if isinstance(self.rule, Optimizer) else ()
        return (*(stage.case() for stage in self.stages), of_rule)

    def slots_of(self, param: Param) -> dict[str, tuple[Shape, np.dtype[Any]]]:
        """Shape and type of the arrays that the rule keeps of ``param``, by slot.

        In mixed precision they are those of its master, which is float32.
        """
        rule = self.own_rule
        if rule is None or not param.trainable:
            return {}
        whole, dtype = prod(param.shape), self.rule_type(param)
        sizes = zip(rule.slots, rule.slot_sizes(param.shape), strict=True)
        return {slot: (param.shape if size == whole else (size,), dtype) for slot, size in sizes}

    def state_bytes(self, param: Param) -> int:
        """The bytes of these arrays."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.slots_of(param).values())

    def held_bytes(self) -> int:
        """The bytes of all state that is in memory now, masters and gathered gradients included."""
        states = () if self.own_rule is None else self.own_rule.states()
        held = [array for state in states for array in state.held]
        if self.scaled is not None:
            held += self.scaled.precision.masters.values()
        for stage in self.stages:
            held += stage.own_state().values()
        return sum(int(array.nbytes) for array in held)

    def rule_type(self, param: Param) -> np.dtype[Any]:
        """The type of what the rule updates for ``param``."""
        return param.array_type if self.scaled is None else np.dtype(np.float32)

    # -- before a step ---------------------------------------------------------------------------

    def turn(self, net: Any) -> None:
        """Go on with the state of ``net``, as another net may have been trained since."""
        if self.owners.net() is not net:
            params, rule = net.params(), self.own_rule
            other = rule is not None and rule.turn(params)
            self.owners.net = weakref.ref(net)
            for stage in self.stages:
                stage.turn(params, other)

    def follow(self, net: Any) -> None:
        """Tell the rule how the parameters of ``net`` are trained, and the stages which."""
        self.turn(net)
        if self.stages:
            trained = [param.name for param in net.execution_plan().trained_params()]
            for stage in self.stages:
                stage.train(trained)
        if isinstance(self.rule, Optimizer):
            self.rule.follow(net.params())
        else:
            self.optimizer.register_all(net.param_specs())

    def meet(self, net: Any) -> None:
        """Follow what ``net`` says of its parameters, and let every stage meet it."""
        self.follow(net)
        in_parts = False
        for place, stage in enumerate(self.stages):
            if stage.over_parts is not None and not in_parts:
                # It was inside of a reducer before.
                stage.over_parts = None
            stage.meet(net, self.stages[:place])
            in_parts = in_parts or (stage.waits and cast("Reducer", stage).in_parts)

    # -- within a step ---------------------------------------------------------------------------

    def begin(self, count: float | None) -> None:
        """Tell stages what the loss of a batch is a mean over: a reducer, of all micro-batches."""
        own = count
        for stage in self.stages:
            count = stage.begin(count)
        for reducer in self.reducers:
            reducer.batch.weight = own

    def agree(self, refused: str | None) -> str | None:
        """The layer for which the step is ``refused``, here or on another process."""
        for reducer in self.reducers:
            refused = reducer.agree(refused)
        return refused

    def conclude(self, refused: str | None) -> None:
        """Tell stages that the step was taken, or the layer for which it was ``refused``."""
        for stage in self.stages:
            stage.conclude(refused)

    def refused(self) -> None:
        """Tell the stages that the step in work failed before its first update."""
        for stage in self.stages:
            stage.refused()

    def apply(
        self,
        items: Iterable[LayerGradients],
        on_layer: Callable[[Any], object] | None = None,
        scale: float = 1.0,
    ) -> None:
        """The updates of a step by the gradients ``items``, each let go before the next exists.

        ``on_layer`` sees them before. Layers without any update nothing.
        """
        last = self.reached()
        update = self.optimizer.update
        for item in items:
            if on_layer is not None:
                on_layer(item)
            unfinished: Any = getattr(item, "unfinished", ())
            if unfinished:
                part, item = split(item, unfinished)
                self.rule.update_part(*part)
                self.updated = True
                del part
            if item[0]:
                update(*item, *(() if scale == 1.0 else (scale,)))
                self.updated = True
            # Else the loop variable would hold this layer's gradients through the next one's.
            del item
        for stage in last:
            stage.end()

    def reached(self) -> Sequence[Wrapper]:
        """The stages that the next step reaches; reducers first, which update at its end."""
        reached = self.stages
        for number, stage in enumerate(reached, 1):
            if stage.left > 1:
                reached = reached[:number]
                break
        return sorted(reached, key=lambda stage: not stage.waits) if self.reducers else reached

    # -- what has to know all gradients ----------------------------------------------------------

    @cached_property
    def norm(self) -> TwoPasses | None:
        """The stage that has to know a norm before the first update, if any.

        Errors: such a stage inside of one that changes gradients, and cannot preview them.
        """
        around: list[Wrapper] = []
        for stage in self.stages:
            if stage.needs_norm:
                for each in around:
                    _expect_preview(each)
                return TwoPasses(tuple(around), cast("ToldNorm", stage))
            if stage.reads_gradients:
                around.append(stage)
        return None

    def needs_norm(self) -> bool:
        """Whether the next step is clipped by a norm that is not known yet."""
        return self.norm is not None and self.norm.due()

    def knows_norm(self) -> bool:
        """Whether somebody has said the norm of the next step: it is made of passes alone."""
        return self.norm is not None and self.norm.clip.knows

    @property
    def holds_all(self) -> bool:
        """Whether something has to see all gradients of a step before any is applied."""
        return self.scaled is not None or self.norm is not None


class TwoPasses(NamedTuple):
    """A clipping that has to know the norm of a whole step before its first update.

    ``gathering`` are the stages before ``clip`` that look at gradients. Accumulators see that norm
    only where theirs is the last of their micro-batches.
    """

    gathering: tuple[Wrapper, ...]
    clip: ToldNorm

    def due(self) -> bool:
        """Whether the next step is clipped, and its norm not known yet."""
        return not self.clip.knows and all(stage.left <= 1 for stage in self.gathering)

    def previewed(self, items: Iterable[Any]) -> Iterable[Any]:
        """What ``clip`` would get of the gradients ``items``, large ones in parts."""
        if not self.gathering:
            return items
        *around, last = self.gathering
        for stage in around:
            items = stage.previewed(items)
        return last.previewed_in_parts(items)

    def knowing(self, items: Iterable[Any]) -> AbstractContextManager[None]:
        """Within the block, the norm is that of the gradients ``items``, none of which is kept."""
        return self.clip.knowing(norm_of(self.previewed(items), self.clip.joined))


def within_reduction(
    optimizer: Optimizer | Wrapper, wrap: Callable[[Optimizer | Wrapper], Wrapper]
) -> Wrapper:
    """``wrap`` of ``optimizer``, but inside of a reducer, which has to see gradients before."""
    if isinstance(optimizer, Wrapper) and optimizer.waits:
        return cast("Reducer", optimizer).around(within_reduction(optimizer.optimizer, wrap))
    return wrap(optimizer)


def with_reduction(
    optimizer: Optimizer | Wrapper, reduce: Callable[[Optimizer | Wrapper], Wrapper]
) -> Optimizer | Wrapper:
    """``optimizer`` with what ``reduce`` makes of its inside, within stages that see no sums.

    Those gather gradients, hold all of them, or look at none: they stay around the reducer.
    """
    if not isinstance(optimizer, Wrapper) or optimizer.waits:
        return reduce(optimizer)
    if not optimizer.gathers and not optimizer.holds_all and optimizer.reads_gradients:
        return reduce(optimizer)
    optimizer.optimizer = with_reduction(optimizer.optimizer, reduce)
    return optimizer


def without_reductions(optimizer: Optimizer | Wrapper) -> Optimizer | Wrapper:
    """``optimizer`` as a process has it that trains alone; its other stages are copies."""
    if not isinstance(optimizer, Wrapper):
        return optimizer
    if optimizer.waits:
        return without_reductions(cast("Reducer", optimizer).inside)
    alone = copy(optimizer)
    alone.optimizer = without_reductions(optimizer.optimizer)
    return alone


def _expect_preview(stage: Wrapper) -> None:
    """Errors: a stage that changes gradients, and does not tell beforehand what they become."""
    if type(stage).previewed is Wrapper.previewed:
        kind = type(stage).__name__
        raise ArgumentError(
            "ClipByGlobalNorm",
            expected="ClipByGlobalNorm around other clipping",
            received=f"{kind} around it",
            advice=f"write ClipByGlobalNorm({kind}(...), max_norm)",
        )
