"""FeedForwardNet: a directed acyclic graph of layers, trained layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet import inputs as checks
from singanet.device import Device, get_default_device
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.execution import BackwardWalk, LayerGradients, Plan
from singanet.flags import is_training
from singanet.graph import Graph, Node
from singanet.layers.layer import Layer
from singanet.parameter import Param, ParamSpec
from singanet.saveable import Saveable
from singanet.seeding import next_seed
from singanet.sources import Src, sources_of
from singanet.symbol import Symbol, calls_between
from singanet.trainable import Trainable
from singanet.types import Array, Gradient
from singanet.visible import Visible

if TYPE_CHECKING:
    from singanet.loss import Loss
    from singanet.metric import Metric
    from singanet.optimizer import Optimizer, Wrapper


class FeedForwardNet(Trainable, Visible, Saveable):
    """A net of layers, sorted topologically, with a backward that hands gradients out.

    ``loss`` and ``metric`` serve `train`, `step`, `evaluate` and `predict`. Build the net with
    `add`, or draw it with symbols and pass ``inputs`` and ``outputs``. ``seed`` fixes the initial
    parameters and every random draw; None takes the next one after `singanet.set_seed`, or a
    fresh one.
    """

    def __init__(
        self,
        loss: Loss | None = None,
        metric: Metric | None = None,
        *,
        inputs: Symbol | Sequence[Symbol] = (),
        outputs: Symbol | Sequence[Symbol] = (),
        seed: int | None = None,
    ) -> None:
        self.loss = loss
        self.metric = metric
        self.seed = next_seed() if seed is None else seed
        self.rng = np.random.default_rng(self.seed)
        self.device = get_default_device()
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self._graph = Graph()
        self._last: Node | None = None
        self._plan: Plan | None = None
        self._planned_version = -1
        self._pass: tuple[Plan, list[Any], dict[str, Any]] | None = None
        self._registered: tuple[object, int] = (None, -1)
        outputs = [outputs] if isinstance(outputs, Symbol) else list(outputs)
        inputs = [inputs] if isinstance(inputs, Symbol) else list(inputs)
        if inputs or outputs:
            self._add_symbols(inputs, outputs)

    # -- building ---------------------------------------------------------------------------

    def add(self, layer: Layer, src: Src = None) -> Layer:
        """Add ``layer`` behind ``src`` and return it.

        ``src`` is None for the layer added before (an input, if there is none), a layer, a name,
        ``(layer, index)`` for one of several outputs, a list of these, or ``[]`` for another
        input of the net. A name may be that of a layer added later. Errors: a name used twice,
        a shape the layer refuses; the net is then as it was.
        """
        if not isinstance(layer, Layer):
            raise ArgumentError(
                "net.add",
                expected="a Layer",
                received=type(layer).__name__,
                advice="pass an instance such as Dense('fc', 10)",
            )
        last = None if self._last is None else self._last.name
        self.add_node(layer, sources_of(layer, src, last), layer.name)
        return layer

    def add_node(self, layer: Layer, sources: list[tuple[str, int | None]], name: str) -> None:
        """Add a use of ``layer`` as ``name`` behind ``(name, output index)`` sources.

        `add` and symbols come down to this; a layer may be used under several names.
        """
        self._last = self._graph.add(layer, sources, name)

    def _add_symbols(self, inputs: list[Symbol], outputs: list[Symbol]) -> None:
        names: dict[int, str] = {}
        uses: dict[int, int] = {}
        for call in calls_between(inputs, outputs):
            count = uses[id(call.layer)] = uses.get(id(call.layer), 0) + 1
            name = call.layer.name if count == 1 else f"{call.layer.name}@{count}"
            names[call.born] = name
            sources: list[tuple[str, int | None]] = [
                (names[symbol.call.born], symbol.index) for symbol in call.inputs
            ]
            self.add_node(call.layer, sources, name)

    def __getitem__(self, name: str) -> Layer:
        """The layer called ``name``."""
        self._expect_layers([name], "net")
        return self._graph.nodes[name].layer

    def __contains__(self, name: object) -> bool:
        return name in self._graph.nodes

    def nodes(self) -> list[Node]:
        """The uses of layers, in the order of adding."""
        self._sorted()
        return list(self._graph.nodes.values())

    @property
    def layers(self) -> list[Layer]:
        """The layers in topological order, each once."""
        return list({id(step.layer): step.layer for step in self._sorted().steps}.values())

    def _sorted(self) -> Plan:
        """The plan of the net as it is now, with every parameter filled."""
        if self._plan is None or self._planned_version != self._graph.version:
            order = self._graph.order()
            if not order:
                raise CallOrderError(
                    "net",
                    expected="at least one layer",
                    received="an empty net",
                    advice="call net.add(layer) first",
                )
            self._plan = Plan(order, self._graph.frozen())
            self._planned_version = self._graph.version
            for param in self.params():
                self._adopt(param)
        return self._plan

    def _adopt(self, param: Param) -> None:
        """Fill a new parameter from the net's seed and put it on the net's device."""
        if not param.filled:
            param.seed = self.seed
            param.dtype = self.dtype
        param.value = self.device.put(param.value)

    # -- parameters -------------------------------------------------------------------------

    def params(self) -> list[Param]:
        """All parameters in layer order, a shared one once."""
        params = [param for layer in self.layers for param in layer.params.values()]
        return list({id(param): param for param in params}.values())

    def param_names(self) -> list[str]:
        """Parameter names in topological layer order; running state included."""
        return [param.name for param in self.params()]

    def param_values(self) -> list[Array]:
        """The live parameter arrays, in the order of `param_names`."""
        return [param.value for param in self.params()]

    def param_specs(self) -> list[ParamSpec]:
        """The training settings, in the order of `param_names`."""
        return [param.spec for param in self.params()]

    # -- freezing ---------------------------------------------------------------------------

    def freeze(self, layer: Layer | str) -> None:
        """Freeze all layers before ``layer``, from which it can be reached.

        In a training forward they run as in evaluation and keep nothing for backward, which does
        not enter them. ``layer`` itself is trained, as in SINGA; to fix it as well, set
        its ``trainable`` to False. Further calls freeze further layers. A parameter that unfrozen
        layers share is trained by their gradients alone. Errors: an unknown layer.
        """
        self._graph.freeze(self._known(layer))

    def unfreeze(self, layer: Layer | str | None = None) -> None:
        """Undo `freeze` of ``layer``, or every one of them. Errors: one that was not called."""
        self._graph.unfreeze(None if layer is None else self._known(layer))

    def frozen(self) -> list[str]:
        """The names of the frozen layers, in topological order."""
        return [step.name for step in self._sorted().steps if step.frozen]

    def _known(self, layer: Layer | str) -> str:
        name = layer.name if isinstance(layer, Layer) else layer
        self._expect_layers([name], "net")
        return name

    def to_device(self, device: Device) -> None:
        """Move every parameter to ``device`` and run there from now on."""
        moved = [device.put(param.value) for param in self.params()]
        self.device = device
        for param, value in zip(self.params(), moved, strict=True):
            param.value = value

    def as_type(self, dtype: Any) -> None:
        """Convert every parameter, and compute in this float type from now on."""
        wanted = np.dtype(dtype)
        if wanted.kind != "f":
            raise ArgumentError(
                "net.as_type",
                expected="a float type",
                received=str(wanted),
                advice="use 'float32' or 'float64'",
            )
        self.dtype = wanted
        for param in self.params():
            param.value = param.value.astype(wanted)

    # -- passes -----------------------------------------------------------------------------

    def forward(self, flag: int | bool, x: Any, output: Iterable[str] = ()) -> Any:
        """Run the net on ``x`` and return its output.

        ``flag`` is True or ``kTrain``, or False or ``kEval``. ``x`` is the array (batch axis
        first) of the single input, or a dict from layer name to array. With one output layer and
        no ``output`` that array is returned, otherwise a dict from layer name to array(s), which
        holds the layers named in ``output`` as well. A training forward keeps what `backward`
        needs. Errors: an unknown, missing or extra name; a shape that does not fit.
        """
        train = is_training(flag)
        plan = self._sorted()
        asked = self._names(output)
        feed = checks.check_feed(plan, x, self.device, self.dtype)
        wanted = {*plan.outputs, *asked} if asked else plan.outputs
        self._pass = None
        with self.device.scope():
            results, contexts = plan.forward(feed, wanted, self.device.ops, self.rng, train, asked)
        if train:
            shapes = {name: checks.shapes_of(value) for name, value in results.items()}
            self._pass = (plan, contexts, shapes)
        if len(plan.outputs) == 1 and not asked:
            return results[plan.outputs[0]]
        return results

    def backward(
        self, dy: Any, output: Iterable[str] = ()
    ) -> Generator[LayerGradients, None, None]:
        """Walk back from ``dy`` and yield ``(names, values, grads)`` after each layer.

        ``dy`` is the gradient of the single output, or a dict from the name of an output (or of a
        layer named in forward's ``output``) to its gradient. Before each yield the layer's
        context and incoming gradient are released, and the net keeps no reference to ``grads``;
        ``values`` may be updated in place. ``item.output_grads`` maps each layer named in
        ``output`` and passed so far to the gradient of its output; one that lies below frozen
        layers, or below parameters none of which is trained, has to be named in forward's
        ``output`` too, since else nothing is kept there. Errors: no training forward before, or
        already used; a wrong name or shape.
        """
        if self._pass is None:
            raise CallOrderError(
                "net.backward",
                expected="a training forward before each backward",
                received="none, or one whose backward was already taken",
                advice="call net.forward(True, x) first",
            )
        plan, contexts, shapes = self._pass
        asked = self._names(output)
        slot_grads = checks.check_gradients(plan, dy, shapes, self.device, self.dtype)
        walk = BackwardWalk(plan, contexts, slot_grads, asked)
        self._pass = None
        return walk.run()

    def _expect_layers(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if name not in self._graph.nodes:
                raise UnknownNameError(
                    where,
                    expected=f"a layer of the net: {one_of(self._graph.nodes)}",
                    received=repr(name),
                    advice=did_you_mean(name, self._graph.nodes, "check net.summary()"),
                )

    def _names(self, output: Iterable[str]) -> tuple[str, ...]:
        """``output`` as a tuple of known layer names; one name may stand alone."""
        if not output:
            return ()
        names = (output,) if isinstance(output, str) else tuple(output)
        self._expect_layers(names, "net, argument output")
        return names

    # -- one batch --------------------------------------------------------------------------

    def train(self, x: Any, y: Any) -> tuple[list[Gradient | None], tuple[float, float | None]]:
        """All gradients of a batch at once, and ``(loss, metric)``.

        The gradients stand in the order of `param_names`, None for what is not trained. This
        holds every gradient in memory; `step` and `backward` do not.
        """
        dy, values = self._forward_loss(x, y)
        by_name: dict[str, Gradient] = {}
        for names, _, grads in self.backward(dy):
            by_name.update(zip(names, grads, strict=True))
        return [by_name.get(name) for name in self.param_names()], values

    def step(
        self,
        x: Any,
        y: Any,
        optimizer: Optimizer | Wrapper,
        on_layer: Callable[[LayerGradients], None] | None = None,
        sample_weight: Array | None = None,
        measure: Callable[[Any, Any], float | None] | None = None,
    ) -> tuple[float, float | None]:
        """The streaming loop for one batch: each layer is updated, then its gradients dropped.

        ``on_layer`` sees each layer's gradients before they are applied; ``measure(output, y)``
        takes the place of the metric. Returns ``(loss, metric)`` from before the update.
        """
        dy, values = self._forward_loss(x, y, sample_weight, measure)
        if self._registered != (optimizer, self._graph.version):
            optimizer.register_all(self.param_specs())
            self._registered = (optimizer, self._graph.version)
        for item in self.backward(dy):
            if on_layer is not None:
                on_layer(item)
            optimizer.update(*item)
            # Else the loop variable would hold this layer's gradients through the next one's.
            del item
        return values

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Undo at the end what the forwards inside did to the generator and to running state.

        A pass that is run again after it draws the same numbers and moves the state once.
        """
        draws = self.rng.bit_generator.state
        before = [(param, param.value.copy()) for param in self.params() if param.is_state]
        try:
            yield
        finally:
            self.rng.bit_generator.state = draws
            for param, value in before:
                param.value[...] = value

    def _forward_loss(
        self, x: Any, y: Any, weight: Array | None = None, measure: Any = None
    ) -> tuple[Any, tuple[float, float | None]]:
        """Training forward and loss: the gradient of the output, and ``(loss, metric)``."""
        loss = self._expect_loss()
        if measure is None and self.metric is not None:
            measure = self.metric.evaluate
        out = self.forward(True, x)
        try:
            # A user's own loss need not know of weights.
            losses = loss.forward(True, out, y, *(() if weight is None else (weight,)))
            value, score = float(losses.mean()), None if measure is None else measure(out, y)
        except SingaNetError as error:
            # Losses and metrics know no layers.
            raise error.within(f"output of layer {one_of(self._sorted().outputs)}") from None
        return loss.backward(), (value, score)

    def _expect_loss(self) -> Loss:
        if self.loss is None:
            raise CallOrderError(
                "net.train",
                expected="a net with a loss",
                received="none",
                advice="build it with FeedForwardNet(loss), or use forward and backward",
            )
        return self.loss

    def to_config(self) -> dict[str, Any]:
        """The net's structure, loss and metric as JSON types, without parameter values.

        Errors: `ConfigError` for a class that is neither singanet's nor registered.
        """
        from singanet.net_config import net_to_config

        return net_to_config(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], seed: int | None = None) -> FeedForwardNet:
        """The net that `to_config` described, with fresh parameters.

        Only singanet's classes and those given to `singanet.register` are constructed. Errors:
        `ConfigError` and `UnknownNameError` for anything else.
        """
        from singanet.net_config import add_from_config

        net = cls(seed=seed)
        add_from_config(net, config)
        return net
