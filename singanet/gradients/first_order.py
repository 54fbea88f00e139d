"""Compute gradients of outputs and losses, by names."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from singanet.engine.backward import apart_from, roots_in
from singanet.engine.feeds import check_feed, own_arrays
from singanet.engine.gradients import Asked, Head
from singanet.engine.model import INPUT, Part, carrying
from singanet.engine.plan import Plan, remember
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    DataError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.layers.shapes import Dummy
from singanet.params.grads import LayerGradients, dense_gradient
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.params.param import Param


Name: TypeAlias = str | tuple[str, int]
"""A layer, input or parameter, or one output of a layer: ``("split", 1)``."""

Names: TypeAlias = Name | Sequence[Name]

N = TypeVar("N", str, Name)
"""The type of names: of layers, inputs and parameters alone, or also of single outputs."""

Y = TypeVar("Y", str, Name)

Directions: TypeAlias = Mapping[str, Any] | Mapping[tuple[str, int], Any] | Mapping[Name, Any]
"""Arrays by names of any type."""

LOSS = "loss"


@dataclass(frozen=True)
class GradientTarget:
    """The target that ``name`` means: a parameter, outputs of a step, or the feed of a step.

    ``step`` is the name of the step with these outputs in a `Part`.
    """

    name: Name
    step: str = ""
    index: int | None = None
    fed: str = ""
    param: Param | None = None

    def picked(self, grad: Any) -> Any:
        """Return its part of the gradients of a step's outputs."""
        return grad if self.index is None else grad[self.index]


def listed(names: Names) -> list[Name]:
    """Return ``names`` as a list; it may be one name, such as ``("split", 1)``."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, tuple) and len(names) == 2 and isinstance(names[1], int):
        return [(str(names[0]), names[1])]
    return list(names)


class Resolver:
    """A look-up of names in ``net``; ``where`` is the caller's name in errors."""

    def __init__(self, net: Net, where: str) -> None:
        self.plan: Plan = net._execution_plan()
        self.where = where
        self.params = {param.name: param for param in net.params()}
        self.inputs = {self._input_name(name): name for name in self.plan.inputs}
        if len(self.plan.inputs) == 1 and "input" not in self.plan.by_name:
            self.inputs.setdefault("input", self.plan.inputs[0])

    def _input_name(self, name: str) -> str:
        """Return the name of the step's feed: the step's own, if the step is an input alone."""
        step = self.plan.by_name[name]
        return name if type(step.layer) is Dummy else name + INPUT

    def head(self, name: Name) -> list[tuple[int, int, str]]:
        """Return index, slot and step of each output that one of ``ys`` means.

        Errors: `UnknownNameError` if there is none, `DataError` if they are integers.
        """
        layer, index = name if isinstance(name, tuple) else (name, None)
        step = self.plan.by_name.get(layer)
        if step is None:
            raise self._unknown(name, "ys", [*self.plan.by_name, LOSS])
        slots = list(enumerate(step.out_slots))
        self._expect_float(name, "ys", step.gives_integers)
        return [
            (k, slot, step.name)
            for k, slot in (slots if index is None else [slots[self._index(name, index, slots)]])
        ]

    def target(self, name: Name) -> GradientTarget:
        """Return the target that one of ``xs`` means. Errors: `UnknownNameError`, `DataError`."""
        layer, index = name if isinstance(name, tuple) else (name, None)
        step = self.plan.by_name.get(layer)
        if step is not None:
            self._expect_float(name, "xs", step.gives_integers)
            if index is not None:
                index = self._index(name, index, step.out_slots)
                index = index if step.many_out else None
            return GradientTarget(name, step.name, index)
        if layer in self.params and index is None:
            self._expect_no_state(self.params[layer])
            return GradientTarget(name, param=self.params[layer])
        fed = self.inputs.get(layer)
        if fed is None:
            raise self._unknown(name, "xs", [*self.inputs, *self.plan.by_name, *self.params])
        step = self.plan.by_name[fed]
        asked = step.integers if index is None else step.integers & {index}
        self._expect_float(name, "xs", bool(asked))
        if self._input_name(fed) == fed:
            return GradientTarget(name, fed, index)
        shapes = step.layer.in_shapes
        if index is not None:
            index = self._index(name, index, shapes if isinstance(shapes, list) else [shapes])
            index = index if isinstance(shapes, list) else None
        return GradientTarget(name, fed + INPUT, index, fed)

    def split(
        self, targets: Sequence[GradientTarget], slots: Iterable[int], zeros: bool
    ) -> tuple[list[GradientTarget], list[GradientTarget]]:
        """Return the ``targets`` that gradients of ``slots`` reach, and the others.

        Errors: `ArgumentError` if there are others, unless they get ``zeros``.
        """
        carries, steps = carrying(self.plan, slots)
        reached = {
            id(param)
            for step, comes in zip(self.plan.steps, steps, strict=True)
            if comes
            for param in step.layer.params.values()
        }
        here: list[GradientTarget] = []
        others: list[GradientTarget] = []
        for target in targets:
            (here if self._is_below(target, carries, reached) else others).append(target)
        if others and not zeros:
            raise self.unreachable(others[0], carries, steps)
        return here, others

    def _is_below(self, target: GradientTarget, carries: set[int], reached: set[int]) -> bool:
        if target.param is not None:
            return id(target.param) in reached
        if target.fed:
            step = self.plan.by_name[target.fed]
            return not step.layer.traits.stops_gradient and not carries.isdisjoint(step.out_slots)
        slots = self.plan.by_name[target.step].out_slots
        return not carries.isdisjoint(slots if target.index is None else [slots[target.index]])

    def unreachable(
        self, target: GradientTarget, carries: Collection[int] = (), steps: Sequence[bool] = ()
    ) -> ArgumentError:
        """Return the error for a target without a gradient."""
        above = [step for step, comes in zip(self.plan.steps, steps, strict=False) if comes]
        known: list[str] = [step.name for step in above]
        if target.param is not None:
            known = [param.name for step in above for param in step.layer.params.values()]
        elif not steps:
            known = [name for name in self.plan.by_name if name != target.step]
        return ArgumentError(
            f"{self.where}, {target.name!r} of xs",
            expected="a name that gradients of ys reach" + (f": {one_of(known)}" if known else ""),
            received="a name that no gradient reaches",
            advice="leave it out, or pass unreachable='zeros'",
        )

    def feed(self, given: Any, names: Sequence[str]) -> Any:
        """Return ``given`` by the inputs ``names`` of a part, without unneeded arrays."""
        if not isinstance(given, Mapping):
            return given
        steps = {**self.inputs, **{name: name for name in self.plan.inputs}}
        found: dict[str, Any] = {}
        for key, array in given.items():
            step = steps.get(key)
            if step is None:
                raise self._unknown(key, "feed", self.inputs)
            name = step if step in names else step + INPUT
            if name in names:
                found[name] = array
        return found

    def _index(self, name: Name, index: int, among: Sequence[Any]) -> int:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < len(among):
            raise ArgumentError(
                f"{self.where}, {name!r}",
                expected=f"an index from 0 to {len(among) - 1}",
                received=brief(index),
                advice="count the outputs of the layer from 0",
            )
        return index

    def _expect_float(self, name: Name, argument: str, integers: bool) -> None:
        if integers:
            raise DataError(
                f"{self.where}, {name!r} of {argument}",
                expected="an array of floats",
                received="indices, which are integers and have no gradient",
                advice="name the layer that reads them: the gradient of its output",
            )

    def _expect_no_state(self, param: Param) -> None:
        if param.is_state:
            raise ArgumentError(
                f"{self.where}, {param.name!r} of xs",
                expected="a parameter that gradients train",
                received="running state, which the layer moves itself",
                advice="leave it out",
            )

    def _unknown(self, name: Any, argument: str, known: Collection[str]) -> UnknownNameError:
        """Return the error for a name in ``argument`` that is not among the ``known`` ones."""
        return UnknownNameError(
            f"{self.where}, argument {argument}",
            expected=f"names among {one_of(known)}",
            received=brief(name),
            advice=did_you_mean(
                str(name[0] if isinstance(name, tuple) and name else name),
                known,
                "name an input, a layer, (layer, index), or a parameter",
            ),
        )


def sample_shape(plan: Plan, target: GradientTarget) -> list[Shape]:
    """Return the shapes of ``target``, without batch axis."""
    step = plan.by_name[target.fed or target.step]
    shapes: Any = step.layer.in_shapes if target.fed else None
    if not target.fed:
        shapes = [plan.slot_shapes[slot] for slot in step.out_slots]
    several = list(shapes) if isinstance(shapes, list) else [shapes]
    return several if target.index is None else [several[target.index]]


_LOSS_KEYS = ("targets", "sample_weight")
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
    """Return the gradients of ``ys`` by each of ``xs``, by their names, in new arrays.

    Errors: as for `FeedForwardNet.gradients`.

    Args:
        net: The net.
        ys: Names of layers, ``(layer, index)`` for one of several outputs, or "loss".
        xs: Names of layers (their outputs), inputs and parameters; ``"<layer>/input"`` for the
            input of a layer.
        feed: Dict of the inputs, with "targets" for "loss", and optionally "sample_weight".
        dys: The initial gradients by y; None for ones.
        train: Whether to run a training forward.
        unreachable: "zeros" for zeros, or "error", the default, if an x does not affect ys.
    """
    question = asked_of(net, "net.gradients", ys, xs, feed, dys, train, unreachable)
    return collected(net, question, net.executor.gradients(net, question.asked))


def collected(net: Net, question: Question, items: Iterator[LayerGradients]) -> dict[Any, Array]:
    """Return the gradients in the executor's ``items``, by the names in the question."""
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
    """Yield the gradients of `gradients` layer by layer from the last, as `LayerGradients`.

    See `FeedForwardNet.iter_gradients`.

    Args:
        net: The net.
        ys: As for `gradients`.
        xs: As for `gradients`.
        feed: As for `gradients`.
        dys: As for `gradients`.
        train: Whether to run a training forward.
        unreachable: "zeros" for zeros, or "error", the default, if an x does not affect ys.
    """
    where = "net.iter_gradients"
    question = asked_of(net, where, ys, xs, feed, dys, train, unreachable, True)
    return _answers(net, question, net.executor.gradients(net, question.asked))


def jacobian(
    net: Net, ys: Y | Sequence[Y], xs: N | Sequence[N], feed: Any
) -> dict[Y, dict[N, Array]]:
    """Return the gradient of every element of each y by each x, in evaluation: ``[y][x]``.

    Its shape is y's shape followed by x's, both with the batch axis. It takes a forward and a
    backward pass for every element of y. Errors: as for `gradients`; a y of several arrays.

    Args:
        net: The net.
        ys: One name or a list of names, as for `gradients`.
        xs: As for `gradients`.
        feed: As for `gradients`.
    """
    where = "net.jacobian"
    asked_of(net, where, ys, xs, feed)
    # Names have the types of ys and xs.
    found: dict[Any, dict[Any, Array]] = {}
    for y in listed(ys):
        found[y] = dict(_rows(net, where, y, listed(xs), feed))
    return found


def _rows(net: Net, where: str, y: Name, xs: list[Name], feed: Any) -> Iterator[tuple[Name, Array]]:
    """Yield the Jacobian of ``y`` by each x, with a backward pass for each element of y."""
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
    """Checked arguments: ``asked`` is for the executor, ``zeros`` need no computation."""

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
    """Return the arguments of `gradients`, checked for ``where``."""
    if unreachable not in ("error", "zeros"):
        raise UnknownNameError(
            f"{where}, argument unreachable",
            expected="'error' or 'zeros'",
            received=brief(unreachable),
            advice="'zeros' gives zeros for names without a gradient",
        )
    if not net._passes_are_its_own:
        raise CallOrderError(
            where,
            expected="a net that runs FeedForwardNet's own forward and backward",
            received=f"a {type(net).__name__} that overrides them",
            advice="call its forward and backward",
        )
    resolver, plan = Resolver(net, where), net._execution_plan()
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
    loss_feed: dict[str, Any] = {}
    if loss_scale is not None:
        feed, loss_feed = _split_feed(where, resolver, feed)
    checked = check_feed(part, resolver.feed(feed, part.inputs), net.device, net.dtype, where)
    if streamed:
        # The caller may change its arrays between the yields.
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
        _put(net, loss_feed.get("targets")),
        _put(net, loss_feed.get("sample_weight")),
    )
    zeros = unreachable == "zeros"
    return Question(asked, targets, others, params, resolver, zeros, batch)


def _heads(resolver: Resolver, ys: Names, dys: Any) -> tuple[list[Head], Any]:
    """Return the heads with their ``dys``, and the factor of the loss's gradient."""
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
                advice=f"or name one output, as in ys=[({name!r}, 0)]",
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
    """Return a gradient for each of ``names``, None for ones; if ``alone``, ``dys`` itself."""
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


def _split_feed(where: str, resolver: Resolver, feed: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``feed`` into the inputs and the loss's arguments."""
    clash = [key for key in _LOSS_KEYS if key in resolver.inputs]
    if clash or not isinstance(feed, Mapping) or feed.get("targets") is None:
        raise ArgumentError(
            f"{where}, argument feed",
            expected="for the loss a dict of the inputs and the key 'targets'",
            received=f"an input of the net that is called {clash[0]!r}" if clash else "no targets",
            advice=f"pass {{{next(iter(resolver.inputs))!r}: x, 'targets': y}}",
        )
    rest = {key: value for key, value in feed.items() if key not in _LOSS_KEYS}
    return rest, {key: feed.get(key) for key in _LOSS_KEYS}


def _put(net: Net, value: Any) -> Any:
    """Return ``value``, an array or a dict of them, on the device of ``net``."""
    if isinstance(value, Mapping):
        return {name: _put(net, part) for name, part in value.items()}
    return net.device.put(value) if hasattr(value, "shape") else value


def _answers(
    net: Net, question: Question, items: Iterator[LayerGradients]
) -> Generator[LayerGradients, None, None]:
    """Yield items by the names in the question; zeros last."""
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
    # A layer may return no gradient for an input, which shows only when it runs.
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
                advice="leave it out: it has no gradient",
            )
        made.append(ops.zeros((question.batch, *shape), like))
    return made if len(made) > 1 else made[0]


def _shapes_of(net: Net, question: Question) -> list[Any]:
    """Return the shapes of ys with the batch axis; () for the loss."""
    asked = question.asked
    if not asked.heads:
        return [()]
    with net.device.scope():
        ops = net.device.ops
        outputs, _ = asked.part.forward(asked.feed, asked.seen, ops, net.rng, False)
    return [asked.shape_of(head, outputs) for head in asked.heads]


def _own(net: Net, grad: Array, others: Any) -> Array:
    """Return ``grad``, or a copy if it shares memory with one of the ``others``."""
    arrays = [part for other in others for part in (other if isinstance(other, list) else [other])]
    shared = any(net.device.ops.xp.may_share_memory(grad, other) for other in arrays)
    return grad.copy() if shared else grad


def _copy(grad: Any) -> Any:
    return [part.copy() for part in grad] if isinstance(grad, list) else grad.copy()
