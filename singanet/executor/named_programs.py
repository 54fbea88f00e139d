"""Run the named programs of an executor, which share their state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from singanet.base.columns import is_sparse
from singanet.base.described import shown
from singanet.engine.executor import NetExecutor
from singanet.engine.feeds import check_feed, is_own_or_dict, own_arrays
from singanet.engine.model import StepRequest
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError, did_you_mean, one_of
from singanet.executor.symbols import (
    DrawnInput,
    DrawnNet,
    GradientSymbol,
    Objective,
    Port,
    View,
    inputs_of,
    picked,
    symbols_of,
)
from singanet.gradients import gradients
from singanet.gradients.first_order import Name
from singanet.layers.symbol import Symbol
from singanet.loss.loss import counted_positions
from singanet.metric.metric import MetricSymbol
from singanet.ops.kernel import widened
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.optimizer import Optimizer, Update
from singanet.optimizer.state import Grad, ParamState, ParamUpdate
from singanet.params.param import Param
from singanet.types import Array, Shape


class Several(Optimizer):
    """An optimizer that passes each gradient to its parameter's optimizer in ``by_name``.

    Errors: `ArgumentError` if one has a stage that needs all gradients of a step, or waits for its
    end.
    """

    hypers = ()
    _by_parameter: ClassVar[bool] = False

    def __init__(self, by_name: Mapping[str, Any]) -> None:
        super().__init__(None)
        self._by_name = dict(by_name)
        self._all = list({id(one): one for one in self._by_name.values()}.values())
        for optimizer in self._all:
            if not isinstance(optimizer, Optimizer):
                raise ArgumentError(
                    "several updates in one program",
                    expected="plain optimizers",
                    received=f"{type(optimizer).__name__}, a wrapper",
                    advice="put its update into a program of its own",
                )

    def __repr__(self) -> str:
        return shown("Several", self._by_name)

    def follow(self, params: Iterable[Param], net: Any = None) -> None:
        """Follow each parameter with its own optimizer; ignore other parameters."""
        for param in params:
            if param.name in self._by_name:
                self._by_name[param.name].follow([param], net)

    @property
    def rests(self) -> bool:  # type: ignore[override]
        """Whether one of the rules has other values for evaluation."""
        return any(one.rests for one in self._all)

    def _move(self, params: Sequence[Param], values: Sequence[Array], rest: bool) -> None:
        for param, value in zip(params, values, strict=True):
            if param.name in self._by_name:
                self._by_name[param.name]._move([param], [value], rest)

    def turn(self, params: Sequence[Param]) -> bool:
        """Turn each optimizer to its own parameters; return whether any changed."""
        own: dict[int, list[Param]] = {}
        for param in params:
            if param.name in self._by_name:
                own.setdefault(id(self._by_name[param.name]), []).append(param)
        switched = [one.turn(own.get(id(one), [])) for one in self._all]
        return any(switched)

    def update(
        self,
        names: Sequence[str],
        values: Sequence[Array],
        grads: Sequence[Grad],
        scale: float = 1.0,
    ) -> None:
        groups: dict[int, tuple[Any, list[int]]] = {}
        for k, name in enumerate(names):
            optimizer = self._by_name[name]
            groups.setdefault(id(optimizer), (optimizer, []))[1].append(k)
        for optimizer, places in groups.values():
            mine = [[part[k] for k in places] for part in (names, values, grads)]
            optimizer.update(*mine, scale)

    def state(self, name: str) -> ParamState:
        found: ParamState = self._by_name[name].state(name)
        return found

    def settle(self, name: str, value: Array) -> ParamState:
        found: ParamState = self._by_name[name].settle(name, value)
        return found

    def states(self) -> Collection[ParamState]:
        """Return the states of all optimizers."""
        return list(chain.from_iterable(one.states() for one in self._all))

    def _will_change(self, name: str) -> bool:
        return bool(self._by_name[name]._will_change(name))

    def _slot_sizes(self, shape: Shape, state: ParamState) -> tuple[int, ...]:
        """Raise NotImplementedError, since the slots depend on the parameter."""
        raise NotImplementedError

    def _scalars(self, state: ParamState, rate: float) -> tuple[float, ...]:
        raise NotImplementedError

    def _sweep(self, update: ParamUpdate) -> None:
        raise NotImplementedError

    def _sweep_rows(self, indices: Array, update: ParamUpdate) -> None:
        raise NotImplementedError


_NO_TARGETS: dict[str, Any] = {}
"""The loss of a program reads outputs alone."""


class NamedProgram:
    """The program of ``items``, a part of the graph ``drawing``.

    ``params`` maps the parameters that it updates to their optimizers; ``wrapped`` adds stages for
    gradients around an optimizer.
    """

    def __init__(
        self,
        name: str,
        items: Sequence[Any],
        drawing: DrawnNet,
        wrapped: Callable[[Any], Any],
    ) -> None:
        self.where = f"program {name!r}"
        self.items = list(items)
        self._drawing = drawing
        symbols = [s for item in self.items for s in symbols_of(item, self.where)]
        inputs = inputs_of(symbols)
        self.updates = [item for item in self.items if isinstance(item, Update)]
        self._asks = [item for item in self.items if isinstance(item, GradientSymbol)]
        self._names = {
            key: name for key, name in drawing.names.items() if name in _names_of(inputs)
        }
        self.inputs = _names_of(inputs)
        found = [s.draw_of(name) for s in inputs if isinstance(s, DrawnInput)]
        self.draws = list({id(draw): draw for draw in found if draw is not None}.values())
        self._drawn = [
            [name for name, _, _ in draw.names if name in self.inputs] for draw in self.draws
        ]
        self._expect_batches()
        self.optimizer: Any = None
        self.params: dict[Param, Any] = {}
        self.view = self._training(wrapped) if self.updates else self._evaluation()
        self._seen: Any = None
        alone = [item for item in self.items if not isinstance(item, Update)]
        lone = len(self.updates) == 1 and all(_is(item, self.updates[0].loss) for item in alone)
        self._places = [k for k, item in enumerate(self.items) if not isinstance(item, Update)]
        self._blank: list[Any] = [None] * len(self.items)
        self._measure = None if lone else self._look
        self._single = self.inputs[0] if len(self.inputs) == 1 else None

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the readers, which refer to losses and metrics: a copy makes its own."""
        state = {name: value for name, value in vars(self).items() if name != "_readers"}
        # The view comes first: the copy of a reducer looks for the copy of the net that it knows.
        return {"view": self.view, **state}

    @cached_property
    def _readers(self) -> list[Callable[[Mapping[str, Any]], Any]]:
        """Functions that read the items' values from the outputs of a run."""
        return [self._reader(item) for item in self.items]

    # -- the view ---------------------------------------------------------------------------

    def _evaluation(self) -> View:
        return View(self._drawing.net, self._nodes([]), None, ())

    def _training(self, wrapped: Callable[[Any], Any]) -> View:
        drawing = self._drawing
        if self._asks:
            raise ArgumentError(
                self.where,
                expected="gradients, or updates",
                received="both, though gradients belong to an evaluation",
                advice="ask for the gradients in a program of their own, run before",
            )
        heads = [drawing.port(update.loss, self.where)[0] for update in self.updates]
        for head, update in zip(heads, self.updates, strict=True):
            if isinstance(drawing.net[head].out_shapes, list):
                raise ArgumentError(
                    f"{self.where}, loss {head!r}",
                    expected="a loss that is the only output of its layer",
                    received=f"output {update.loss.index} of several",
                    advice="put a Dummy layer after it, and minimize that",
                )
        by_name = {}
        for head, update in zip(heads, self.updates, strict=True):
            for param in self._updated_by(head, update):
                if param in self.params:
                    raise ArgumentError(
                        f"{self.where}, parameter {param.name!r}",
                        expected="one update that changes it",
                        received="two",
                        advice="divide the parameters: minimize(loss, params=[...])",
                    )
                self.params[param] = update.optimizer
                by_name[param.name] = update.optimizer
        self._expect_apart(heads)
        alone = len(self.updates) == 1
        self.optimizer = wrapped(self.updates[0].optimizer if alone else Several(by_name))
        weighs = UpdateChain(self.optimizer)._weighs
        counts = self._counted(heads) if weighs else []
        read = [port[0] for _, *pair in counts for port in pair]
        # A loss of the whole batch does not tell its samples; an input does.
        whole = weighs and not all(update.loss.full for update in self.updates)
        sized = self.inputs[0] if whole else heads[0]
        nodes = self._nodes([*dict.fromkeys(heads), *read, sized])
        loss = Objective(list(dict.fromkeys(heads)), counts, len(nodes) == 1, sized)
        # `minimize` has to name parameters to be trained later: another program may update them.
        return View(drawing.net, nodes, loss, self.params)

    def _updated_by(self, head: str, update: Update) -> list[Param]:
        """Return the parameters that ``update`` changes.

        Errors: `ArgumentError` if there are none, or if a parameter of ``params`` has no gradient.
        """
        where = f"{self.where}, argument params of minimize"
        asked = None
        if update.params is not None:
            asked = [p for given in update.params for p in self._drawing.params(given, where)]
        found = View(self._drawing.net, [head], Objective([head], (), True), asked).updated()
        if not found:
            raise ArgumentError(
                f"{self.where}, loss {head!r}",
                expected="a loss that depends on parameters that are trained",
                received="none",
                advice="look at params, trainable, freeze and StopGradient",
            )
        missing = [p for p in asked or () if all(p is not one for one in found) and not p.is_state]
        if missing:
            raise ArgumentError(
                f"{self.where}, parameter {missing[0].name!r}",
                expected=f"a trained parameter that the loss {head!r} depends on",
                received="one without a gradient",
                advice="leave it out, or look at trainable, freeze and StopGradient",
            )
        return found

    def _expect_apart(self, heads: Sequence[str]) -> None:
        """Refuse updates whose losses share parameters: their gradients would mix."""
        if len(set(heads)) < 2:
            return
        head_of = {one: heads[k] for k, u in enumerate(self.updates) for one in self._own(u)}
        for head in dict.fromkeys(heads):
            objective = Objective([head], (), True)
            reached = View(self._drawing.net, [head], objective, self.params).updated()
            for param in reached:
                if head_of[param] != head:
                    raise ArgumentError(
                        f"{self.where}, loss {head!r}",
                        expected="losses that depend on no parameter that another loss updates",
                        received=f"a loss that depends on {param.name!r}, updated by another",
                        advice="put each update into a program of its own, and run one by one",
                    )

    def _own(self, update: Update) -> list[Param]:
        return self._updated_by(self._drawing.port(update.loss, self.where)[0], update)

    def _counted(self, heads: Sequence[str]) -> list[tuple[Any, Port, Port]]:
        """Return the losses in ``heads``, with the places of their scores and targets."""
        plan = View(self._drawing.net, list(heads), None, ())._execution_plan()
        losses = self._drawing.losses
        return [losses[name] for name in plan.by_name if name in losses]

    def _nodes(self, first: Sequence[str]) -> list[str]:
        """Return the nodes to compute, ``first`` among them."""
        symbols = [
            symbol
            for item in self.items
            if not isinstance(item, (Update, GradientSymbol))
            for symbol in symbols_of(item, self.where)
        ]
        # The heads of gradients have to be computed before the gradients.
        symbols += [dy for ask in self._asks for dy in ask.dys if dy is not None and dy.call.inputs]
        nodes = [self._drawing.port(symbol, self.where)[0] for symbol in symbols]
        return list(dict.fromkeys([*first, *nodes]))

    # -- running ----------------------------------------------------------------------------

    def run(self, feed: Mapping[Any, Any] | None) -> list[Any]:
        """Return the values for a batch, in order."""
        executor = self.view.carried()
        given = self.given(feed)
        if self.view.loss is None:
            return self._evaluated(executor, given)
        x = given if self._single is None else given[self._single]
        request = StepRequest(x, _NO_TARGETS, self.optimizer, None, self._measure)
        loss, _ = executor.step(self.view, request)
        if self._measure is None:
            values = self._blank.copy()
            for k in self._places:
                values[k] = loss
            return values
        seen, self._seen = self._seen, None
        return seen

    def _evaluated(self, executor: NetExecutor[Any], given: dict[str, Any]) -> list[Any]:
        view: Any = self.view
        outputs: dict[str, Any] = {}
        if view.outputs:
            outputs = executor.evaluate(view, self.checked(given), ())
        found = self._gradients(given, outputs) if self._asks else {}
        return [
            found[item] if isinstance(item, GradientSymbol) else read(outputs)
            for item, read in zip(self.items, self._readers, strict=True)
        ]

    def checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays that the view reads, checked by its layers."""
        view, plan = self.view, self.view._execution_plan()
        mine = {name: given[name] for name in plan.inputs}
        return check_feed(plan, mine, view.device, view.dtype, self.where)

    def _gradients(
        self, given: dict[str, Any], outputs: Mapping[str, Any]
    ) -> dict[GradientSymbol, Any]:
        """Return the gradients, by one backward pass for each pair of ys and dys."""
        found: dict[GradientSymbol, Any] = {}
        alike: dict[Any, list[GradientSymbol]] = {}
        for ask in self._asks:
            alike.setdefault((*map(id, ask.ys), *map(id, ask.dys)), []).append(ask)
        for asks in alike.values():
            ys, xs = asks[0].ys, [self._name_of(ask.x) for ask in asks]
            needed = {name: given[name] for name in _names_of(inputs_of(ys))}
            first = next(iter(needed.values()))
            batch = first.shape[0] if is_sparse(first) else len(first)
            dys = [
                self._head(y, dy, batch, given, outputs)
                for y, dy in zip(ys, asks[0].dys, strict=True)
            ]
            made = gradients(self._drawing.net, [*map(self._name_of, ys)], xs, needed, dys)
            found.update({ask: made[x] for ask, x in zip(asks, xs, strict=True)})
        return found

    def _head(
        self, y: Symbol, dy: Symbol | None, batch: int, given: Any, outputs: Mapping[str, Any]
    ) -> Any:
        """Return the gradient at ``y``, where the backward pass starts; None means ones."""
        net = self._drawing.net
        if dy is None:
            count = batch if y.full else 1
            is_loss = self._drawing.is_loss(y)
            return np.full(count, 1.0 / max(count, 1), net.dtype) if is_loss else None
        port = self._drawing.port(dy, self.where)
        return picked(outputs, port) if dy.call.inputs else given[port[0]]

    def _name_of(self, x: Symbol | Param | str) -> Name:
        if not isinstance(x, Symbol):
            where = f"{self.where}, argument xs of gradients"
            return self._drawing.params(x, where)[0].name
        node, k = self._drawing.port(x, self.where)
        return (node, k) if isinstance(self._drawing.net[node].out_shapes, list) else node

    def _look(self, outputs: Any, y: Any) -> None:
        """Read the items' values from the ``outputs`` of a step, before its update."""
        named = outputs if len(self.view.outputs) > 1 else {self.view.outputs[0]: outputs}
        self._seen = [read(named) for read in self._readers]

    def _reader(self, item: Any) -> Callable[[Mapping[str, Any]], Any]:
        if isinstance(item, (Update, GradientSymbol)):
            return lambda outputs: None
        if isinstance(item, MetricSymbol):
            return self._measured(item)
        port = self._drawing.port(item, self.where)
        if self._drawing.is_loss(item):
            return lambda outputs: _mean(picked(outputs, port))
        # A layer may return an array of its own, or the caller's.
        return lambda outputs: picked(outputs, port).copy()

    def _measured(self, item: MetricSymbol) -> Callable[[Mapping[str, Any]], Any]:
        metric = item.metric
        at, of = (self._drawing.port(s, self.where) for s in (item.scores, item.targets))
        link = self._drawing.link_of(at) if getattr(metric, "linked", False) else None

        by = None if item.mask is None else self._drawing.port(item.mask, self.where)
        losses = self._drawing.losses.values()
        own = next((loss for loss, scores, _ in losses if scores == at), None)

        def read(outputs: Mapping[str, Any]) -> Any:
            scores, targets = widened(picked(outputs, at)), picked(outputs, of)
            scores = scores if link is None else link(scores)
            mask = None if by is None else picked(outputs, by) != 0
            if own is None:
                return metric.evaluate(*counted_positions(scores, targets, mask))
            return metric.evaluate(*own._unmasked(scores, targets, mask))

        return read

    # -- feeds ------------------------------------------------------------------------------

    def given(self, feed: Mapping[Any, Any] | None, draw: bool = True) -> dict[str, Any]:
        """Return the arrays by input; loaders ``draw`` missing ones.

        Errors: `UnknownNameError` if an array is missing, or has no input.
        """
        names = self._names
        feed = {} if feed is None else feed
        try:
            given = dict(zip(map(names.__getitem__, feed), feed.values(), strict=True))
        except (KeyError, TypeError, AttributeError):
            raise self._refused(feed) from None
        if len(given) == len(self.inputs) == len(feed):
            return given if is_own_or_dict(given) else own_arrays(f"{self.where}, feed", given)
        drawn = []
        for one, mine in zip(self.draws, self._drawn, strict=True):
            if draw and all(name not in given for name in mine):
                drawn.append((one, mine))
        have = {*given, *(name for _, mine in drawn for name in mine)}
        missing = [name for name in self.inputs if name not in have]
        if missing or len(given) < len(feed):
            raise UnknownNameError(
                f"{self.where}, argument feed",
                expected=f"the inputs {one_of(self.inputs)}",
                received=f"none for {missing[0]!r}"
                if missing
                else "an array by symbol and by name",
                advice=f"add an array for {missing[0]!r}" if missing else "omit one",
            )
        for one, mine in drawn:
            batch = one.next()
            given |= {name: batch[name] for name in mine}
        return own_arrays(f"{self.where}, feed", given)

    def _refused(self, feed: Any) -> Exception:
        where = f"{self.where}, argument feed"
        if not isinstance(feed, Mapping):
            return ArgumentError(
                where,
                expected=f"a dict with the inputs {one_of(self.inputs)}",
                received=type(feed).__name__,
                advice="pass {symbol or name: array}",
            )
        wrong = next(key for key in feed if not _is_known(key, self._names))
        expected = f"the inputs {one_of(self.inputs)}, by symbol or name"
        name = wrong.name if isinstance(wrong, Param) else wrong
        if name in self._drawing.net.param_names():
            received, advice = f"the parameter {name!r}", "parameters are not fed: assign its value"
        elif isinstance(wrong, Symbol) and wrong.call.inputs:
            received, advice = repr(wrong), "feed inputs alone; draw another Input in its place"
        elif _is_known(wrong, self._drawing.names):
            received = f"{self._drawing.names[wrong]!r}, which it does not read"
            advice = "remove it"
        else:
            received = repr(wrong)[:80]
            advice = did_you_mean(str(wrong), self.inputs, "remove it")
        return UnknownNameError(where, expected=expected, received=received, advice=advice)

    def batches(self) -> int:
        """Return the batches in an epoch of its loaders. Errors: `CallOrderError` if unknown."""
        for draw in self.draws:
            if isinstance(draw.loader, Sized):
                return len(draw.loader)
        raise CallOrderError(
            f"{self.where}, batches",
            expected="a program that reads a loader of known length",
            received="none" if not self.draws else type(self.draws[0].loader).__name__,
            advice="draw its inputs by singanet.executor.from_loader(loader)",
        )

    def _expect_batches(self) -> None:
        lengths = [len(d.loader) for d in self.draws if isinstance(d.loader, Sized)]
        if len(set(lengths)) > 1:
            raise ArgumentError(
                self.where,
                expected="loaders with equal numbers of batches an epoch",
                received=f"loaders of {one_of(map(str, lengths))} batches",
                advice="give them as many samples for their batch sizes, or put them in one loader",
            )


def _names_of(inputs: Sequence[Symbol]) -> list[str]:
    return [str(symbol.call.layer.name) for symbol in inputs]


def _is(item: Any, symbol: Symbol) -> bool:
    same = isinstance(item, Symbol) and item.call is symbol.call
    return same and item.index == symbol.index


def _is_known(key: Any, names: Mapping[Any, str]) -> bool:
    try:
        return key in names
    except TypeError:
        return False


def _mean(losses: Any) -> float:
    return float(losses.mean()) if losses.size else 0.0
