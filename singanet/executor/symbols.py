"""Define the symbols of an executor, and the nets that they draw."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from singanet.base.columns import is_sparse
from singanet.base.described import Counted, changes, checked_call
from singanet.base.terms import AT_ONCE, BEGUN, FIT, LAYERS, NET, OPEN, SCORES, Terms, expect_met
from singanet.data.loaders import Batch, Loader
from singanet.engine.executor import NetExecutor
from singanet.engine.model import Part, PlanView
from singanet.engine.plan import Plan
from singanet.engine.step import expect_scores
from singanet.errors import (
    ArgumentError,
    DataError,
    GraphError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.graph.building import GraphBuilder, port_of
from singanet.graph.nodes import Node
from singanet.layers.layer import Layer
from singanet.layers.shapes import Input
from singanet.layers.symbol import BATCH, Symbol, expect_samples
from singanet.loss.head_loss import MultiLoss
from singanet.loss.loss import LossLayer
from singanet.metric.metric import MetricSymbol
from singanet.net import FeedForwardNet
from singanet.ops import ops_for
from singanet.optimizer.optimizer import Update
from singanet.params.param import Param
from singanet.program.programs import Programs
from singanet.types import Array

Head: TypeAlias = Symbol | None


class GradientSymbol:
    """A symbol of the gradient of Σ y · dy by ``x``; `gradients` makes it.

    Args:
        ys: The symbols y.
        x: A symbol, a parameter, or a parameter's name.
        dys: A symbol or None for each y, as for `gradients`; () for None each.
    """

    __slots__ = ("dys", "x", "ys")

    def __init__(
        self, ys: Sequence[Symbol], x: Symbol | Param | str, dys: Sequence[Head] = ()
    ) -> None:
        self.ys, self.x = tuple(ys), x
        self.dys = tuple(dys) or (None,) * len(self.ys)

    @property
    def heads(self) -> list[Symbol]:
        """The symbols, apart from ``x``, that have to be computed first."""
        return [*self.ys, *(dy for dy in self.dys if dy is not None)]

    def __repr__(self) -> str:
        return f"GradientSymbol({list(self.ys)!r}, {self.x!r})"


@checked_call
def gradients(
    ys: Symbol | Sequence[Symbol],
    xs: Sequence[Symbol | Param | str] | Symbol | Param | str,
    dys: Head | Sequence[Head] = None,
) -> list[GradientSymbol]:
    """Return the gradients of the sum of ``ys`` by each of ``xs``, a `GradientSymbol` each.

    A y that is a loss, one number a sample, counts as its mean; any other y counts as the sum of
    its elements. Layers compute in evaluation mode, as in `FeedForwardNet.gradients`. Errors:
    `ArgumentError` if an argument has another type, or if ``dys`` have another number or shape.

    Args:
        ys: A symbol, or a list of symbols.
        xs: A symbol, a parameter, a parameter's name, or a list of these.
        dys: A symbol of the shape of y for each y, which then counts as Σ y · dy with dy constant;
            or None for each or all.
    """
    heads = _listed(ys, "the symbol of a loss, or several")
    among = [xs] if isinstance(xs, (Symbol, Param, str)) else list(xs)
    weights: Sequence[Any] = [None] * len(heads)
    if dys is not None:
        weights = [dys] if isinstance(dys, Symbol) else list(dys)
    if len(weights) != len(heads):
        raise ArgumentError(
            f"{_GRADIENTS}, argument dys",
            expected=f"a symbol or None for each of {len(heads)} ys",
            received=str(len(weights)),
            advice="None is the mean of a loss, the sum of another symbol",
        )
    for given in among:
        if not isinstance(given, (Symbol, Param, str)):
            raise _no_symbol(given, "symbols or names of parameters as xs")
    for y, dy in zip(heads, weights, strict=True):
        if dy is not None and (not isinstance(dy, Symbol) or dy.shape != y.shape):
            raise ArgumentError(
                f"{_GRADIENTS}, argument dys",
                expected=f"a symbol of shape {y.shape}, like its y, or None",
                received=f"shape {dy.shape}" if isinstance(dy, Symbol) else type(dy).__name__,
                advice="draw Input('head', shape) for an array that is fed",
            )
    return [GradientSymbol(heads, x, weights) for x in among]


_GRADIENTS = "singanet.executor.gradients"


def _listed(ys: Any, expected: str) -> list[Symbol]:
    listed = list(ys) if isinstance(ys, (list, tuple)) else [ys]
    for given in listed or [None]:
        if not isinstance(given, Symbol):
            raise _no_symbol(given, expected)
    return listed


def _no_symbol(given: Any, expected: str) -> ArgumentError:
    return ArgumentError(
        _GRADIENTS,
        expected=expected,
        received=type(given).__name__,
        advice="gradients are not symbols: combine their values"
        if isinstance(given, GradientSymbol)
        else "write gradients(loss, [x, 'fc/weight']); for arrays call net.gradients",
    )


class Draw:
    """The next batch of ``loader``, epoch after epoch, as arrays for the inputs ``names``."""

    def __init__(self, loader: Loader, names: Sequence[tuple[str, int, str | None]]) -> None:
        self.loader = loader
        self.names = list(names)
        self._batches: Iterator[Batch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the iterator: the loader has its position."""
        return {**vars(self), "_batches": None}

    def next(self) -> dict[str, Any]:
        """Return arrays by input. Errors: `DataError` if the loader has no batch."""
        for fresh in (False, True):
            if self._batches is None or fresh:
                self._batches = iter(self.loader)
            for batch in self._batches:
                return {
                    name: batch[k] if key is None else batch[k][key] for name, k, key in self.names
                }
        raise DataError(
            f"inputs of a {type(self.loader).__name__}",
            expected="at least one batch an epoch",
            received="none",
            advice="look at the loader's data and batch_size",
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch drawn."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved position."""
        self._batches = None
        self.loader.load_state_dict(state)


Feed: TypeAlias = Mapping[Symbol, Any] | Mapping[str, Any] | Mapping[Symbol | str, Any]
"""Arrays by symbols or names of inputs."""


class DrawnInput(Symbol):
    """An input that loaders fill: one for each program by name, or one (None) for all."""

    __slots__ = ("draws",)

    draws: Mapping[str | None, Draw]

    def draw_of(self, program: str) -> Draw | None:
        """Return the draw that fills it in ``program``; None if it has to be fed."""
        return self.draws.get(program, self.draws.get(None))


@checked_call
def from_loader(
    loader: Loader | Mapping[str, Loader], names: tuple[str, str] = ("x", "y")
) -> tuple[Symbol, Symbol]:
    """Return symbols ``x, y`` for the batches of ``loader``; for dicts of arrays, dicts of symbols.

    A program that reads these symbols draws a batch at each run, unless they are fed, and starts
    the next epoch after the last batch. Programs that read the same symbols share one position. The
    next batch determines shapes and dtypes, and remains the next one. Errors: `ArgumentError` if an
    object is not a loader; `DataError` if it has no batch, or if the loaders' batches differ in
    shape or dtype.

    Args:
        loader: A loader of batches ``(x, y)``; or a dict with a loader for each program, by name,
            and other programs have to be fed.
        names: The names of the two inputs; dicts in batches are named by their keys.
    """
    loaders: Mapping[Any, Any] = loader if isinstance(loader, Mapping) else {None: loader}
    draws = {program: Draw(each, []) for program, each in loaders.items()}
    firsts = [_first(each) for each in loaders.values()] or [_first(None)]
    kinds = [[_kinds(part) for part in first] for first in firsts]
    for program, kind in zip(loaders, kinds, strict=True):
        if kind != kinds[0]:
            raise DataError(
                "from_loader",
                expected=f"batches of {kinds[0]}, like the first loader's",
                received=f"{kind} of the loader for {program!r}",
                advice="give all loaders samples of one shape and type",
            )
    x, y = (_symbols(draws, k, part, names[k]) for k, part in enumerate(firsts[0]))
    return x, y


def _first(loader: Any) -> tuple[Any, Any]:
    """Return the next batch, and rewind. Errors: `ArgumentError`, `DataError`."""
    if not all(hasattr(loader, do) for do in ("__iter__", "state_dict", "load_state_dict")):
        raise ArgumentError(
            "from_loader",
            expected="a loader, with positions that can be saved, or a dict of them by programs",
            received=type(loader).__name__,
            advice="wrap arrays: singanet.data.ArrayLoader(x, y, batch_size=32)",
        )
    position = loader.state_dict()
    first = next(iter(loader), None)
    loader.load_state_dict(position)
    if not isinstance(first, tuple) or len(first) != 2:
        raise DataError(
            "from_loader",
            expected="batches (x, y)",
            received="none" if first is None else f"a {type(first).__name__}",
            advice="look at the loader's data and batch_size",
        )
    return first


def _kinds(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {key: _kinds(array) for key, array in part.items()}
    array = np.asarray(part) if not hasattr(part, "dtype") else part
    return tuple(array.shape[1:]), "sparse" if is_sparse(array) else str(array.dtype)


def _symbols(draws: Mapping[str | None, Draw], k: int, part: Any, name: str) -> Any:
    if isinstance(part, Mapping):
        return {key: _symbol(draws, k, key, array, key) for key, array in part.items()}
    return _symbol(draws, k, None, part, name)


def _symbol(
    draws: Mapping[str | None, Draw], k: int, key: str | None, array: Any, name: str
) -> DrawnInput:
    array = np.asarray(array) if not hasattr(array, "dtype") else array
    sparse = is_sparse(array)
    plain = Input(name, tuple(array.shape[1:]), None if sparse else array.dtype, sparse)
    made = DrawnInput(plain.call, plain.index, plain.shape)
    made.draws = draws
    for draw in draws.values():
        draw.names.append((name, k, key))
    return made


Port: TypeAlias = tuple[str, int]
"""A node, and the index of its output."""


class Objective(Counted):
    """The loss of a step: the mean over samples of the sum of the outputs ``heads``.

    ``counted`` are the losses behind these means, with the places of the outputs and targets that
    each reads. The weight of a batch is their common count, or otherwise its number of samples,
    which the output ``sized`` has, the first head by default.
    """

    def __init__(
        self,
        heads: Sequence[str],
        counted: Sequence[tuple[Any, Port, Port]],
        alone: bool,
        sized: str = "",
    ) -> None:
        self.heads = tuple(heads)
        self.sized = sized or self.heads[0]
        self.counted = tuple(counted)
        self.alone = alone
        self._shape: Any = None

    def forward(self, flag: bool | int, x: Any, y: Any) -> Array:
        """Return the loss of each sample, from the outputs ``x``."""
        parts = [x if self.alone else x[head] for head in self.heads]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        # A loss of the whole batch has one number.
        self._shape = [len(part) for part in parts], total.dtype, ops_for(total).xp
        return total

    def backward(self) -> Any:
        """Return the gradient of the mean: one over the number of samples, for each sample."""
        counts, dtype, xp = self._shape
        self._shape = None
        grads = [xp.full(count, 1.0 / count if count else 0.0, dtype) for count in counts]
        return grads[0] if self.alone else dict(zip(self.heads, grads, strict=True))

    def count(self, x: Any, y: Any) -> float:
        """Return the weight of a batch, see `Loss.count`."""
        batch = len(x if self.alone else x[self.sized])
        found = {
            float(loss.count(picked(x, scores), picked(x, targets)))
            for loss, scores, targets in self.counted
        }
        return found.pop() if len(found) == 1 else float(batch)


TERMS = Terms(
    needs=(LAYERS,),
    exact=(BEGUN, AT_ONCE),
    takes=(NET, OPEN, SCORES, FIT),
    keeps="bits",
)
"""The terms of named programs of a net."""


class View(PlanView):
    """A view for executors: the part of ``net`` with the ``outputs``.

    A step trains the trainable parameters among ``params``; None means all.
    """

    def __init__(
        self,
        net: FeedForwardNet,
        outputs: Sequence[str],
        loss: Objective | None,
        params: Collection[Param] | None,
    ) -> None:
        super().__init__(net)
        self.outputs, self.loss = list(outputs), loss
        self.executor = Programs()
        self._params = None if params is None else frozenset(params)
        self._part: Part | None = None
        self._planned: Any = None
        self._chosen: list[Param] = []

    def __getstate__(self) -> dict[str, Any]:
        """Exclude the part: it finds parameters by ids of this process."""
        return {**vars(self), "_part": None}

    def carried(self) -> NetExecutor[Any]:
        """Return the executor of its steps: the net's, or programs with the net's settings."""
        of_net = self.net.executor
        if not of_net.can.records:
            # An executor that cannot run parts raises the error itself.
            expect_met("Executor", TERMS.needs, of_net.can.terms)
            return of_net
        self.executor.follow(cast("Programs", of_net))
        return self.executor

    def _execution_plan(self) -> Plan:
        """Return the steps of the part, planned anew if the trained parameters change."""
        # A change during the planning is noticed the next time.
        now = self.net.version, changes.now
        if self._part is None or self._planned != now:
            whole = self.net._execution_plan()
            heads = () if self.loss is None else whole.slots_of(self.loss.heads)
            chosen = self._trained(whole) if heads else []
            if self._part is None or self._planned[0] != now[0] or chosen != self._chosen:
                self._part = Part(whole, heads, self.outputs, (), (), chosen, False)
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
        """Return the parameters that a step changes now."""
        part = self._execution_plan()
        return part._params_of(part.backward((), ()))


def picked(outputs: Mapping[str, Any], port: Port) -> Any:
    """Return the array at ``port``, a node and the index of its output."""
    found = outputs[port[0]]
    return found[port[1]] if isinstance(found, (list, tuple)) else found


Item: TypeAlias = Symbol | MetricSymbol | Update | GradientSymbol


def symbols_of(item: Any, where: str) -> list[Symbol]:
    """Return the symbols to compute for ``item``. Errors: `ArgumentError` if it has none."""
    if isinstance(item, Symbol):
        if item.full and item.full[0] > BATCH:
            expect_samples(where, item)
        return [item]
    if isinstance(item, MetricSymbol):
        return [item.scores, item.targets, *([] if item.mask is None else [item.mask])]
    if isinstance(item, Update):
        return [item.loss]
    if isinstance(item, GradientSymbol):
        return [*item.heads, *([item.x] if isinstance(item.x, Symbol) else [])]
    raise ArgumentError(
        where,
        expected="symbols: outputs, losses, metrics, updates, gradients",
        received=type(item).__name__,
        advice="apply it to symbols: loss(scores, y), metric(scores, y), optimizer.minimize(loss)",
    )


def inputs_of(symbols: Iterable[Symbol]) -> list[Symbol]:
    """Return the inputs on which ``symbols`` depend, in the order of drawing."""
    found: dict[int, Symbol] = {}
    seen: set[int] = set()
    stack = list(symbols)
    while stack:
        symbol = stack.pop()
        if not symbol.call.inputs:
            # If a loader fills an input, any of its symbols may carry the draw.
            if not isinstance(found.get(symbol.call.born), DrawnInput):
                found[symbol.call.born] = symbol
        elif symbol.call.born not in seen:
            seen.add(symbol.call.born)
            stack += symbol.call.inputs
    return [found[born] for born in sorted(found)]


class DrawnNet:
    """The net that computes all ``items``, and the places of their symbols in it."""

    def __init__(self, items: Mapping[str, Sequence[Any]], seed: int | None) -> None:
        symbols = [
            symbol
            for name, asked in items.items()
            for item in asked
            for symbol in symbols_of(item, f"program {name!r}")
        ]
        self.inputs = inputs_of(symbols)
        _expect_names(self.inputs)
        self.net = FeedForwardNet(seed=seed)
        # Unlike the constructor, `start` allows samples that depend on each other.
        self.net.start(None, self.inputs, _once(symbols))
        _expect_no_stages(self.net)
        self.net._choose_params()
        self.names: dict[Any, str] = {}
        for symbol in self.inputs:
            name = str(symbol.call.layer.name)
            self.names |= {symbol: name, name: name}
        self.losses = {
            node.name: (node.layer.loss, _port(node.inputs[0]), _port(node.inputs[1]))
            for node in self.net.nodes()
            if isinstance(node.layer, LossLayer)
        }
        plan = self.net._execution_plan()
        for loss, (scores, _), _ in self.losses.values():
            expect_scores(plan, MultiLoss({scores: loss}))

    def port(self, symbol: Symbol, where: str) -> Port:
        """Return the port of ``symbol``. Errors: `UnknownNameError` if it is not of this graph."""
        found = port_of(self.net, symbol)
        if found is None:
            raise UnknownNameError(
                where,
                expected="a symbol that some program of the executor depends on",
                received=brief(symbol),
                advice="ask for it in a program when the executor is made",
            )
        return found

    def link_of(self, port: Port) -> Any:
        """Return the link of the loss on the scores at ``port``; None without such a loss."""
        links = {type(loss): loss for loss, at, _ in self.losses.values() if at == port}
        return next(iter(links.values())).link if len(links) == 1 else None

    def is_loss(self, symbol: Symbol) -> bool:
        """Whether the symbol is one number a sample, and not an input."""
        return symbol.shape == () and bool(symbol.call.inputs)

    def params(self, given: Any, where: str) -> list[Param]:
        """Return the parameters that ``given``, of `minimize`'s ``params``, means.

        Errors: `UnknownNameError` or `ArgumentError` if it means none of this graph.
        """
        known = {param.name: param for param in self.net.params()}
        roots = {id(param.root): param for param in known.values()}
        if isinstance(given, str):
            if given not in known:
                raise UnknownNameError(
                    where,
                    expected=f"a parameter of the graph: {one_of(known)}",
                    received=brief(given),
                    advice=did_you_mean(given, known, "name it as executor.net.param_names() does"),
                )
            return [known[given]]
        if isinstance(given, Layer):
            params = list(given.params.values())
        elif isinstance(given, GraphBuilder):
            params = [param for node in given.nodes() for param in node.layer.params.values()]
        elif isinstance(given, Param):
            params = [given]
        else:
            raise ArgumentError(
                where,
                expected="parameters: names, Params, layers or nets",
                received=type(given).__name__,
                advice="pass for example params=[layer, 'fc/weight']",
            )
        found = [roots[id(param.root)] for param in params if id(param.root) in roots]
        if len(found) < len(params) or getattr(given, "out_shapes", ()) is None:
            raise ArgumentError(
                where,
                expected="parameters of the graph",
                received=brief(given)[:60],
                advice="pass layers and nets that the loss depends on",
            )
        return found


def _expect_no_stages(net: FeedForwardNet) -> None:
    for node in net.nodes():
        if node.stage is not None:
            raise ArgumentError(
                f"Executor, layer {node.name!r}",
                expected="layers without a stage, since every process computes all of them",
                received=f"a layer of stage {node.stage} of a pipeline",
                advice="leave parallel.stage out, or train FeedForwardNet(inputs=..., outputs=...)"
                " of these symbols by parallel.Pipeline",
            )


def _port(source: tuple[Node, int]) -> Port:
    return source[0].name, source[1]


def _once(symbols: Iterable[Symbol]) -> list[Symbol]:
    return list({(symbol.call.born, symbol.index): symbol for symbol in symbols}.values())


def _expect_names(inputs: Sequence[Symbol]) -> None:
    names = [str(symbol.call.layer.name) for symbol in inputs]
    twice = [name for k, name in enumerate(names) if name in names[:k]]
    if twice or not names:
        raise GraphError(
            "Executor",
            expected="inputs, each with a name of its own",
            received=f"two inputs called {twice[0]!r}" if twice else "no input",
            advice="rename one: Input('x2', ...), from_loader(loader, names=('x2', 'y2'))",
        )
