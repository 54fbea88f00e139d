"""`FeedForwardNet.gradients`, `iter_gradients` and `jacobian`."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.feeds import check_feed
from singanet.engine.gradients import Asked, Head
from singanet.engine.intake import own_arrays
from singanet.engine.memory import apart_from, roots_in
from singanet.engine.part import Part
from singanet.engine.plan import remember
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError, one_of
from singanet.gradients.names import (
    LOSS,
    GradientTarget,
    N,
    Name,
    Names,
    Resolver,
    Y,
    listed,
    sample_shape,
)
from singanet.params.gradients import LayerGradients, dense_gradient
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net

_BESIDE = ("targets", "sample_weight")
"""Keys of a feed that the loss reads."""


def gradients(
    net: Net,
    ys: Names,
    xs: N | Sequence[N],
    feed: Any,
    dys: Any = None,
    train: bool = False,
    unreachable: str = "error",
) -> dict[N, Array]:
    """See `FeedForwardNet.gradients`."""
    question = asked_of(net, "net.gradients", ys, xs, feed, dys, train, unreachable)
    return collected(net, question, net.executor.gradients(net, question.asked))


def collected(net: Net, question: Question, items: Iterator[LayerGradients]) -> dict[Any, Array]:
    """The answers in the executor's ``items``, by the names in the question."""
    found: dict[Any, Array] = {}
    for item in _answers(net, question, items):
        for name, grad in zip(item.names, item.grads, strict=True):
            shape = question.params[name].shape
            array = dense_gradient(net.device.ops, grad, shape)
            found[name] = _own(net, array, found.values())
        found.update(item.output_grads)
    return {target.name: found[target.name] for target in question.targets}


def iter_gradients(
    net: Net,
    ys: Names,
    xs: Names,
    feed: Any,
    dys: Any = None,
    train: bool = False,
    unreachable: str = "error",
) -> Iterator[LayerGradients]:
    """See `FeedForwardNet.iter_gradients`."""
    where = "net.iter_gradients"
    question = asked_of(net, where, ys, xs, feed, dys, train, unreachable, True)
    return _answers(net, question, net.executor.gradients(net, question.asked))


def jacobian(
    net: Net, ys: Y | Sequence[Y], xs: N | Sequence[N], feed: Any
) -> dict[Y, dict[N, Array]]:
    """See `FeedForwardNet.jacobian`."""
    where = "net.jacobian"
    asked_of(net, where, ys, xs, feed)
    # By any names: what is asked for is told by ys and xs.
    found: dict[Any, dict[Any, Array]] = {}
    for y in listed(ys):
        found[y] = dict(_rows(net, where, y, listed(xs), feed))
    return found


def _rows(net: Net, where: str, y: Name, xs: list[Name], feed: Any) -> Iterator[tuple[Name, Array]]:
    """The Jacobian of ``y`` by each x: a walk back for each element of y."""
    shapes = _shapes_of(net, asked_of(net, where, y, xs, feed, unreachable="zeros"))
    if len(shapes) > 1:
        raise ArgumentError(
            f"{where}, {y!r} of ys",
            expected="one array",
            received=f"a layer of {len(shapes)} outputs",
            advice=f"name them one by one: ({y!r}, 0)",
        )
    rows: list[dict[Name, Array]] = []
    for k in range(prod(shapes[0])):
        dy = np.zeros(shapes[0], net.dtype)
        dy.flat[k] = 1
        rows.append(gradients(net, y, xs, feed, dy, unreachable="zeros"))
    like = rows[0] if rows else gradients(net, y, xs, feed, unreachable="zeros")
    for x, grad in like.items():
        whole = net.device.ops.zeros((*shapes[0], *grad.shape), grad)
        for k, row in enumerate(rows):
            whole.reshape(len(rows), *row[x].shape)[k] = row[x]
        yield x, whole


@dataclass(frozen=True)
class Question:
    """Checked arguments: ``asked`` is for the executor, ``zeros`` are answered without it."""

    asked: Asked
    targets: Sequence[GradientTarget]
    zeros: Sequence[GradientTarget]
    params: Mapping[str, Any]
    resolver: Resolver
    zeros_allowed: bool
    batch: int


def asked_of(
    net: Net,
    where: str,
    ys: Names,
    xs: Names,
    feed: Any,
    dys: Any = None,
    train: bool = False,
    unreachable: str = "error",
    streamed: bool = False,
) -> Question:
    """The arguments of `gradients`, checked for ``where``."""
    if unreachable not in ("error", "zeros"):
        raise UnknownNameError(
            f"{where}, argument unreachable",
            expected="'error' or 'zeros'",
            received=repr(unreachable),
            advice="'zeros' gives zeros for what no gradient comes to",
        )
    if not net.passes_are_its_own:
        raise CallOrderError(
            where,
            expected="a net that runs FeedForwardNet's own forward and backward",
            received=f"a {type(net).__name__} that overrides them",
            advice="call its forward and backward",
        )
    resolver, plan = Resolver(net, where), net.execution_plan()
    heads, of_loss = _heads(resolver, ys, dys)
    loss_scale = of_loss if of_loss is not None else None
    outputs = plan.outputs if loss_scale is not None else []
    slots = {*(head.slot for head in heads), *plan.slots_of(outputs)}
    targets = list({name: resolver.target(name) for name in listed(xs)}.values())
    if not targets or not slots:
        raise ArgumentError(
            where,
            expected="at least one name in xs, and one in ys",
            received="none",
            advice="name inputs, layers or parameters, as in xs=['input']",
        )
    here, others = resolver.split(targets, slots, unreachable == "zeros")
    params = {t.param.name: t.param for t in here if t.param is not None}
    wanted = frozenset(target.step for target in here if target.param is None)
    fed = frozenset(target.fed for target in here if target.fed)
    key = (tuple(sorted(slots)), tuple(outputs), wanted, fed, tuple(map(id, params.values())))
    part = plan.parts.get(key)
    if part is None:
        part = Part(plan, slots, outputs, fed, wanted, params.values())
        remember(plan.parts, key, part)
    feed = own_arrays(f"{where}, feed", feed)
    beside: dict[str, Any] = {}
    if loss_scale is not None:
        feed, beside = _beside(where, resolver, feed)
    checked = check_feed(part, resolver.feed(feed, part.inputs), net.device, net.dtype, where)
    if streamed:
        # The caller may fill its arrays anew between the answers.
        checked = apart_from(checked, roots_in(feed))
    first = next(iter(checked.values()))
    batch = len(first[0] if isinstance(first, (list, tuple)) else first)
    asked = Asked(
        part,
        (*key, tuple(head.slot for head in heads), train, streamed, loss_scale is not None),
        checked,
        heads,
        wanted,
        bool(train),
        streamed,
        loss_scale,
        _put(net, beside.get("targets")),
        _put(net, beside.get("sample_weight")),
    )
    zeros = unreachable == "zeros"
    return Question(asked, targets, others, params, resolver, zeros, batch)


def _heads(resolver: Resolver, ys: Names, dys: Any) -> tuple[list[Head], Any]:
    """Where gradients start, with the ``dys``; and what that of the loss is multiplied by."""
    names = listed(ys)
    heads: list[Head] = []
    of_loss: Any = None
    alone = names == [ys]
    for name, dy in zip(names, _by_name(resolver.where, names, dys, alone), strict=True):
        if name == LOSS and LOSS not in resolver.plan.by_name:
            of_loss = (of_loss or 0.0) + _scale(resolver.where, dy)
            continue
        outputs = resolver.head(name)
        parts = list(dy) if isinstance(dy, (list, tuple)) else [dy] * len(outputs)
        if len(parts) != len(outputs) or (len(outputs) > 1 and dy is not None and parts[0] is dy):
            raise ArgumentError(
                f"{resolver.where}, dys of {name!r}",
                expected=f"a list of {len(outputs)} arrays, one for each output",
                received=f"a list of {len(parts)}" if parts[0] is not dy else "one array",
                advice=f"or name one of them, as in ys=[({name!r}, 0)]",
            )
        for (k, slot, step), part in zip(outputs, parts, strict=True):
            part = own_arrays(f"{resolver.where}, dys of {name!r}", part)
            heads.append(Head(repr(name), step, k, slot, _expect_array(resolver, name, part)))
    return heads, of_loss


def _expect_array(resolver: Resolver, name: Name, dy: Any) -> Any:
    if dy is not None and not hasattr(dy, "shape"):
        raise ArgumentError(
            f"{resolver.where}, dys of {name!r}",
            expected="an array, or None for ones",
            received=type(dy).__name__,
            advice="convert it with numpy.asarray",
        )
    return dy


def _by_name(where: str, names: Sequence[Name], dys: Any, alone: bool) -> list[Any]:
    """A gradient of ``dys`` for each of ``names``, None for ones; a name ``alone`` has all."""
    if dys is None:
        return [None] * len(names)
    if isinstance(dys, Mapping):
        unknown = [name for name in dys if name not in names]
        missing = [name for name in names if name not in dys]
        if unknown or missing:
            raise UnknownNameError(
                f"{where}, argument dys",
                expected=f"a gradient for each of ys, {one_of(map(str, names))}",
                received=f"one for {unknown[0]!r}" if unknown else f"none for {missing[0]!r}",
                advice="pass {name: array}, with None for ones",
            )
        return [dys[name] for name in names]
    if alone or (len(names) == 1 and not isinstance(dys, (list, tuple))):
        return [dys]
    if isinstance(dys, (list, tuple)) and len(dys) == len(names):
        return list(dys)
    raise ArgumentError(
        f"{where}, argument dys",
        expected=f"a dict, or a list of {len(names)}, one for each of ys",
        received=f"a list of {len(dys)}" if isinstance(dys, (list, tuple)) else type(dys).__name__,
        advice="pass {name: array}, with None for ones",
    )


def _scale(where: str, dy: Any) -> float:
    if dy is None:
        return 1.0
    if np.ndim(dy) != 0 or np.asarray(dy).dtype.kind not in "fiu":
        raise ArgumentError(
            f"{where}, dys of 'loss'",
            expected="a number",
            received=f"an array of shape {np.shape(dy)}" if np.ndim(dy) else type(dy).__name__,
            advice="the loss is the mean over the batch: weigh samples by feed['sample_weight']",
        )
    return float(dy)


def _beside(where: str, resolver: Resolver, feed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """``feed`` without what the loss reads, and that."""
    clash = [key for key in _BESIDE if key in resolver.inputs]
    if clash or not isinstance(feed, Mapping) or feed.get("targets") is None:
        raise ArgumentError(
            f"{where}, argument feed",
            expected="for the loss a dict of the inputs with the key 'targets' beside them",
            received=f"an input of the net that is called {clash[0]!r}" if clash else "no targets",
            advice=f"pass {{{next(iter(resolver.inputs))!r}: x, 'targets': y}}",
        )
    rest = {key: value for key, value in feed.items() if key not in _BESIDE}
    return rest, {key: feed.get(key) for key in _BESIDE}


def _put(net: Net, value: Any) -> Any:
    """``value``, an array or a dict of them, on the device of ``net``; anything else as it is."""
    if isinstance(value, Mapping):
        return {name: _put(net, part) for name, part in value.items()}
    return net.device.put(value) if hasattr(value, "shape") else value


def _answers(
    net: Net, question: Question, items: Iterator[LayerGradients]
) -> Generator[LayerGradients, None, None]:
    """Items with parameters by their names and outputs by those in the question; zeros last."""
    here = [target for target in question.targets if target not in question.zeros]
    left = {target.name: target for target in here}
    by_step: dict[str, list[GradientTarget]] = {}
    for target in here:
        by_step.setdefault(target.step, []).append(target)
    if here:
        for item in items:
            outputs: dict[Any, Any] = {}
            for step, grad in item.output_grads.items():
                for target in by_step[step]:
                    mine = target.picked(grad)
                    outputs[target.name] = mine if len(by_step[step]) == 1 else _copy(mine)
            for name in (*item.names, *outputs):
                left.pop(name, None)
            yield LayerGradients(*item, item.layer, outputs)
            del item, outputs
    # Layers may send no gradient for an input, which only running them tells.
    if left and not question.zeros_allowed:
        raise question.resolver.unreachable(next(iter(left.values())))
    zeros: dict[Any, Any] = {
        t.name: _zeros(net, question, t) for t in (*question.zeros, *left.values())
    }
    if zeros:
        yield LayerGradients([], [], [], "", zeros)


def _zeros(net: Net, question: Question, target: GradientTarget) -> Any:
    ops, plan = net.device.ops, question.resolver.plan
    like = ops.xp.empty(0, net.dtype)
    if target.param is not None:
        return ops.zeros(target.param.shape, like)
    made = []
    for shape in sample_shape(plan, target):
        if -1 in shape:
            raise ArgumentError(
                f"{question.resolver.where}, {target.name!r} of xs",
                expected="known extents, for zeros of its shape",
                received=f"the sample shape {shape}, with an axis of any extent",
                advice="leave it out: no gradient comes to it",
            )
        made.append(ops.zeros((question.batch, *shape), like))
    return made if len(made) > 1 else made[0]


def _shapes_of(net: Net, question: Question) -> list[Any]:
    """The shapes of ys with the batch axis; () for the loss."""
    asked = question.asked
    if not asked.heads:
        return [()]
    with net.device.scope():
        ops = net.device.ops
        outputs, _ = asked.part.forward(asked.feed, asked.seen, ops, net.rng, False)
    return [asked.shape_of(head, outputs) for head in asked.heads]


def _own(net: Net, grad: Array, others: Any) -> Array:
    """``grad``, or a copy where its memory is that of one of the ``others``."""
    arrays = [part for other in others for part in (other if isinstance(other, list) else [other])]
    shared = any(net.device.ops.xp.may_share_memory(grad, other) for other in arrays)
    return grad.copy() if shared else grad


def _copy(grad: Any) -> Any:
    return [part.copy() for part in grad] if isinstance(grad, list) else grad.copy()
