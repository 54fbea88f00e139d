"""What stands between a gradient and its parameter: the stages of an optimizer, and its rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

from singanet.errors import ArgumentError
from singanet.optimizer.accumulator import Accumulator
from singanet.optimizer.clip_by_global_norm import ClipByGlobalNorm
from singanet.optimizer.global_norm import global_norm, norm_of
from singanet.optimizer.hyper import at, checked
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import Reducer
from singanet.optimizer.wrapper import Wrapper


def stages_of(optimizer: Any) -> tuple[list[Wrapper], Any]:
    """The stages of ``optimizer``, which gradients come to first before, and the rule inside."""
    stages: list[Wrapper] = []
    while isinstance(optimizer, Wrapper):
        stages.append(optimizer)
        optimizer = optimizer.optimizer
    return stages, optimizer


def case_of(optimizer: Any) -> Hashable:
    """What decides over the arithmetic of the next step; a user's own optimizer has one case."""
    stages, rule = stages_of(optimizer)
    of_rule = rule.case() if isinstance(rule, Optimizer) else ()
    return (*(stage.case() for stage in stages), of_rule)


def gathering(optimizer: Any) -> list[Accumulator]:
    """The stages of ``optimizer`` that weigh micro-batches by what their losses counted."""
    stages = stages_of(optimizer)[0]
    return [stage for stage in stages if isinstance(stage, Accumulator) and stage.mean]


def reducers(optimizer: Any) -> list[Reducer]:
    """The stages of ``optimizer`` that wait for other processes."""
    return [stage for stage in stages_of(optimizer)[0] if isinstance(stage, Reducer)]


def follow(optimizer: Any, net: Any) -> None:
    """Tell the rule of ``optimizer`` how the parameters of ``net`` are trained, others which."""
    stages, rule = stages_of(optimizer)
    for stage in stages:
        if isinstance(stage, Accumulator):
            stage.train(param.name for param in net.execution_plan().trained_params())
    if isinstance(rule, Optimizer):
        rule.follow(net.params())
    else:
        optimizer.register_all(net.param_specs())


def meet(optimizer: Any, net: Any) -> None:
    """Let ``optimizer`` follow what ``net`` says of its parameters, and its reducers meet it."""
    follow(optimizer, net)
    stages = stages_of(optimizer)[0]
    for place, stage in enumerate(stages):
        if isinstance(stage, Reducer):
            stage.meet(net, stages[:place])


def begin(optimizer: Any, count: float | None) -> None:
    """Tell stages what the loss of a batch is a mean over: a reducer, of all micro-batches."""
    own = count
    for stage in stages_of(optimizer)[0]:
        if isinstance(stage, Accumulator) and stage.mean:
            stage.begin(count)
            count = stage.counted(count)
        elif isinstance(stage, Reducer):
            stage.begin(count)
            stage.batch.weight = own


def shares(
    optimizer: Any, samples: float, counts: Mapping[str, float | None]
) -> Mapping[str, float]:
    """What the gradients of outputs are multiplied by; see `Reducer.shares`."""
    for stage in reducers(optimizer):
        return stage.shares(samples, counts)
    return {}


def agreed(optimizer: Any, refused: str | None) -> str | None:
    """The layer for which the step is ``refused``, here or on another process."""
    for stage in reducers(optimizer):
        refused = stage.agree(refused)
    return refused


def within_reduction(
    optimizer: Optimizer | Wrapper, wrap: Callable[[Optimizer | Wrapper], Wrapper]
) -> Wrapper:
    """``wrap`` of ``optimizer``, but inside of a reducer, which has to see gradients before."""
    if isinstance(optimizer, Reducer):
        return optimizer.around(within_reduction(optimizer.optimizer, wrap))
    return wrap(optimizer)


def apply_updates(
    optimizer: Any,
    items: Iterable[Any],
    on_layer: Callable[[Any], object] | None = None,
    scale: float = 1.0,
) -> None:
    """The updates of a step whose gradients are ``items``, each let go before the next one exists.

    ``on_layer`` sees them before.
    """
    last = ending(optimizer)
    for item in items:
        if on_layer is not None:
            on_layer(item)
        optimizer.update(*item, *(() if scale == 1.0 else (scale,)))
        # Else the loop variable would hold this layer's gradients through the next one's.
        del item
    for stage in last:
        stage.end()


def ending(optimizer: Any) -> list[Wrapper]:
    """The stages that the next step reaches; reducers first, which update at its end."""
    reached: list[Wrapper] = []
    for stage in stages_of(optimizer)[0]:
        reached.append(stage)
        if isinstance(stage, Accumulator) and not stage.fills_next():
            break
    return sorted(reached, key=lambda stage: not isinstance(stage, Reducer))


class TwoPasses(NamedTuple):
    """A clipping that has to know the norm of a whole step before its first update.

    ``gathering`` are the accumulators and reducers before ``clip``. Accumulators see that norm
    only where theirs is the last of their micro-batches.
    """

    gathering: tuple[Accumulator | Reducer, ...]
    clip: ClipByGlobalNorm

    def due(self) -> bool:
        """Whether the next step is clipped, and its norm not known yet."""
        return not self.clip.knows and all(
            each.fills_next() for each in self.gathering if isinstance(each, Accumulator)
        )

    def knowing(self, items: Iterable[Any]) -> AbstractContextManager[None]:
        """What lets the step be updated whose gradients are ``items``, of which none is kept."""
        for stage in self.gathering:
            items = stage.previewed(items)
        return self.clip.knowing(norm_of(items))


def two_passes(optimizer: Any) -> TwoPasses | None:
    """The clipping of ``optimizer`` that has to know a norm before the first update, if any.

    Errors: `ClipByGlobalNorm` inside of other clipping, where its norm would not be that.
    """
    around: list[Wrapper] = []
    for stage in stages_of(optimizer)[0]:
        if isinstance(stage, ClipByGlobalNorm):
            return TwoPasses(tuple(_gathering(around)), stage)
        if stage.reads_gradients and not isinstance(stage, ScaledUpdates):
            around.append(stage)
    return None


def clip_by_global_norm(
    optimizer: Any,
    max_norm: float,
    passes: Callable[[], Iterable[Any]],
    scale: float = 1.0,
    rehearsal: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> float:
    """Update so that the norm of all gradients together is ≤ ``max_norm``; returns the norm.

    ``passes()`` runs forward and loss and returns ``net.backward(dy)``; it is called twice, once
    for the norm and once for the update, so that never more than one layer's gradients exist.
    It must give the same gradients both times: pass ``rehearsal=net.rehearsal``, and random layers
    draw the same numbers and running statistics move once. Costs a second forward and backward;
    clipping the list of all gradients costs their memory instead.
    """
    limit = at(checked("clip_by_global_norm", "max_norm", max_norm), 0)
    with rehearsal():
        items = passes()
        for stage in reducers(optimizer):
            items = stage.previewed(items)
        norm = abs(scale) * global_norm(items)
    if not math.isfinite(norm):
        raise ArgumentError(
            "clip_by_global_norm",
            expected="gradients with a finite norm",
            received=f"a norm of {norm}",
            advice="skip this batch, or lower the learning rate",
        )
    if norm > limit:
        scale *= limit / norm
    apply_updates(optimizer, passes(), scale=scale)
    return norm


def needs_all_gradients(optimizer: Any) -> bool:
    """Whether something has to see all gradients of a step before any is applied."""
    return isinstance(optimizer, ScaledUpdates) or two_passes(optimizer) is not None


def by_passes(optimizer: Any) -> bool:
    """Whether a step is made of passes alone, since somebody has said a norm for it."""
    ahead = two_passes(optimizer)
    return ahead is not None and ahead.clip.knows


def _gathering(around: Iterable[Wrapper]) -> Iterator[Accumulator | Reducer]:
    for stage in around:
        if not isinstance(stage, (Accumulator, Reducer)):
            kind = type(stage).__name__
            raise ArgumentError(
                "ClipByGlobalNorm",
                expected="ClipByGlobalNorm around other clipping",
                received=f"{kind} around it",
                advice=f"write ClipByGlobalNorm({kind}(...), max_norm)",
            )
        yield stage
