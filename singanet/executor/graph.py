"""The one graph that all programs of an executor are parts of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from singanet.engine.step import expect_scores
from singanet.errors import ArgumentError, GraphError, UnknownNameError, did_you_mean, one_of
from singanet.executor.symbols import DrawnInput, GradientSymbol
from singanet.executor.view import Port
from singanet.graph.building import GraphBuilder, port_of
from singanet.graph.nodes import Node
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.loss.layer import LossLayer
from singanet.loss.multi_loss import MultiLoss
from singanet.metric.symbol import MetricSymbol
from singanet.net import FeedForwardNet
from singanet.optimizer.minimize import Update
from singanet.params.param import Param

Item: TypeAlias = Symbol | MetricSymbol | Update | GradientSymbol


def symbols_of(item: Any, where: str) -> list[Symbol]:
    """The symbols that have to be computed for ``item``. Errors: nothing that can be asked for."""
    if isinstance(item, Symbol):
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
    """The inputs on which ``symbols`` depend, in the order in which they were drawn."""
    found: dict[int, Symbol] = {}
    seen: set[int] = set()
    stack = list(symbols)
    while stack:
        symbol = stack.pop()
        if not symbol.call.inputs:
            # Of an input that a loader fills, whichever symbol is met first says so.
            if not isinstance(found.get(symbol.call.born), DrawnInput):
                found[symbol.call.born] = symbol
        elif symbol.call.born not in seen:
            seen.add(symbol.call.born)
            stack += symbol.call.inputs
    return [found[born] for born in sorted(found)]


class DrawnNet:
    """The net of all that ``items`` need, and where their symbols stand in it."""

    def __init__(self, items: Mapping[str, Sequence[Any]], seed: int | None) -> None:
        symbols = [
            symbol
            for name, asked in items.items()
            for item in asked
            for symbol in symbols_of(item, f"program {name!r}")
        ]
        self.inputs = inputs_of(symbols)
        _expect_names(self.inputs)
        self.net = FeedForwardNet(inputs=self.inputs, outputs=_once(symbols), seed=seed)
        _expect_no_stages(self.net)
        self.net.choose_params()
        self.names: dict[Any, str] = {}
        for symbol in self.inputs:
            name = str(symbol.call.layer.name)
            self.names |= {symbol: name, name: name}
        self.losses = {
            node.name: (node.layer.loss, _port(node.inputs[0]), _port(node.inputs[1]))
            for node in self.net.nodes()
            if isinstance(node.layer, LossLayer)
        }
        plan = self.net.execution_plan()
        for loss, (scores, _), _ in self.losses.values():
            expect_scores(plan, MultiLoss({scores: loss}))

    def port(self, symbol: Symbol, where: str) -> Port:
        """Where ``symbol`` comes out. Errors: one of another graph."""
        found = port_of(self.net, symbol)
        if found is None:
            raise UnknownNameError(
                where,
                expected="a symbol that some program of the executor depends on",
                received=repr(symbol),
                advice="ask for it in a program when the executor is made",
            )
        return found

    def link_of(self, port: Port) -> Any:
        """The link of the loss on the scores at ``port``, if there is such a loss."""
        links = {type(loss): loss for loss, at, _ in self.losses.values() if at == port}
        return next(iter(links.values())).link if len(links) == 1 else None

    def is_loss(self, symbol: Symbol) -> bool:
        """Whether it is one number a sample, and no input."""
        return symbol.shape == () and bool(symbol.call.inputs)

    def params(self, given: Any, where: str) -> list[Param]:
        """The parameters that one of the ``params`` of `minimize` names. Errors: unknown ones."""
        known = {param.name: param for param in self.net.params()}
        roots = {id(param.root): param for param in known.values()}
        if isinstance(given, str):
            if given not in known:
                raise UnknownNameError(
                    where,
                    expected=f"a parameter of the graph: {one_of(known)}",
                    received=repr(given),
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
                received=f"{given!r}"[:60],
                advice="pass layers and nets that the loss depends on",
            )
        return found


def _expect_no_stages(net: FeedForwardNet) -> None:
    for node in net.nodes():
        if node.stage is not None:
            raise ArgumentError(
                f"Executor, layer {node.name!r}",
                expected="layers without a stage, since every process computes all of them",
                received=f"one drawn for stage {node.stage} of a pipeline",
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
            received=f"two that are called {twice[0]!r}" if twice else "no input",
            advice="rename one: Input('x2', ...), from_loader(loader, names=('x2', 'y2'))",
        )
