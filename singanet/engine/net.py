"""The net: a graph of layers with parameters, passes and steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.arguments import checked_count, is_training
from singanet.base.described import checked_call, shown
from singanet.base.seeding import next_seed
from singanet.base.terms import IN_MEMORY, LAYERS, RECORDED, WHOLE, expect_met
from singanet.base.tracebacks import entry_point
from singanet.device import Device, get_default_device
from singanet.engine import feeds as checks
from singanet.engine.backward import MethodPass, Pass, apart_from, roots_in
from singanet.engine.executor import LayerByLayer, NetExecutor
from singanet.engine.feeds import ColumnAdapter, as_array, own_arrays
from singanet.engine.model import Measure, OnLayer, StepRequest
from singanet.engine.plan import Plan
from singanet.engine.step import Before
from singanet.errors import (
    ArgumentError,
    BackendError,
    CallOrderError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.functional import expect_own_samples
from singanet.graph.building import GraphBuilder, checked_metric, told_apart
from singanet.layers.layer import Layer
from singanet.layers.shapes import Dummy
from singanet.layers.symbol import Symbol
from singanet.params.grads import LayerGradients
from singanet.params.param import Param, ParamSpec, expect_stored
from singanet.params.storage import SMALL, Bucket, Memory, buckets_of, lay
from singanet.types import Array, Gradient

if TYPE_CHECKING:
    from typing_extensions import Self

    from singanet.data.table import Table
    from singanet.loss.head_loss import MultiLoss
    from singanet.loss.loss import Loss
    from singanet.metric.metric import Metric
    from singanet.optimizer.optimizer import Optimizer
    from singanet.optimizer.wrapper import Wrapper

_TYPES = ("float32", "float64", "float16", "bfloat16", "float32_fast")


class Net(GraphBuilder):
    """A net of layers in topological order, whose backward yields gradients layer by layer.

    `singanet.FeedForwardNet` describes the arguments and attributes.
    """

    _for_rooms = frozenset({
        "compiled", "executor", "fix", "frozen_before", "intake", "make_executor", "pending",
        "planned", "ports", "start", "taken", "traits", "version",
    })  # fmt: skip
    """Attributes for other rooms of the library, which `dir` and the reference leave out."""

    def __dir__(self) -> list[str]:
        return [n for n in super().__dir__() if n[0] != "_" and n not in self._for_rooms]

    def __init__(
        self,
        layers: Sequence[Layer | GraphBuilder | Symbol] | Loss | None = None,
        metric: Metric | None = None,
        *,
        loss: Loss | MultiLoss | None = None,
        inputs: Symbol | Sequence[Symbol] = (),
        outputs: Symbol | Sequence[Symbol] = (),
        name: str | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(name)
        # Any object with a loss's methods, or None, so that users' loops need no check.
        self.loss: Any
        parts, self.loss = told_apart(layers, loss)
        self.metric: Metric | Any = checked_metric(metric)  # or None, alike
        self.most_steps: int | None = None
        """The maximum number of steps of a sequence if inputs have any number; None if unknown."""
        self.seed = next_seed() if seed is None else checked_count("net", "seed", seed, 0)
        self.rng = np.random.default_rng(self.seed)
        self.device = get_default_device()
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self._plan: Plan | None = None
        self._planned_for: Any = None
        self._fill: Callable[[Param], Array] = Param.initial
        self._pass: Pass | None = None
        self.executor = self.make_executor()
        self.compiled: object | None = None
        self.intake = ColumnAdapter()
        listed = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        expect_own_samples([each for each in listed if isinstance(each, Symbol)])
        self.start(parts, inputs, outputs)

    def make_executor(self) -> NetExecutor[Net]:
        """Return the executor of a new net: it runs the layers one by one."""
        return LayerByLayer()

    def __repr__(self) -> str:
        layers = list({id(node.layer): node.layer for node in self._graph.nodes.values()}.values())
        params = {id(p): prod(p.shape) for layer in layers for p in layer.params.values()}
        told = [repr(self.name)] if self.name else []
        told.append("1 layer" if (count := _written(self)) == 1 else f"{count:,} layers")
        told.append("not built" if self.pending else f"{sum(params.values()):,} parameters")
        named = {"loss": self.loss, "metric": self.metric, "seed": self.seed}
        named = {key: value for key, value in named.items() if value is not None}
        return shown(type(self).__name__, named, *told)

    @property
    def layers(self) -> list[Layer]:
        """The layers in topological order, each once.

        Layers that are ready at once are in the order of addition. The layers of a nested net are
        at its position, with its name before theirs.
        """
        return list({id(step.layer): step.layer for step in self._execution_plan().steps}.values())

    def _execution_plan(self) -> Plan:
        """Return the plan of the current net, with every parameter filled."""
        made_for = self._graph.version, self.dtype
        if self._plan is None or self._planned_for != made_for:
            self._plan = self.planned()
            self._planned_for = made_for
            self._adopt()
        return self._plan

    @contextmanager
    def _unfilled(self) -> Iterator[int]:
        """Return a context in which unfilled parameters are zeros without memory of their own.

        It yields the peak bytes of filling them. Afterwards they are unfilled again, so that a net
        larger than memory can be planned.
        """
        before, self._fill = self._fill, lambda param: np.zeros(param.shape, param.dtype)
        layers = {id(step.layer): step.layer for step in self.planned().steps}.values()
        new = [p for layer in layers for p in layer.params.values() if not p.filled]
        sizes = accumulate(param.nbytes for param in new)
        drawn = [size + param.drawing_bytes for size, param in zip(sizes, new, strict=True)]
        try:
            yield max(drawn, default=0)
        finally:
            self._fill = before
            if new:
                self._plan = None
            for param in new:
                param.storage = Memory()

    @contextmanager
    def _filled_by(self, value_of: Callable[[Param], Array]) -> Iterator[None]:
        """Return a context in which unfilled parameters get values from ``value_of``.

        It is called for one parameter after the other, as the net or a folder needs them; an error
        leaves the net partly filled.
        """
        before, self._fill = self._fill, value_of
        try:
            yield
        finally:
            self._fill = before

    def _first_value(self, param: Param) -> Array:
        """Return the first value of ``param``, which is unfilled."""
        return self._fill(param)

    def planned(self) -> Plan:
        """Return a plan of the current net, whether its parameters are filled or not."""
        plan = Plan(self.ordered(), self.dtype, self._graph.frozen())
        plan.listed = self.ports().inputs
        if self._ports is not None:
            plan.outputs = list(dict.fromkeys(name for name, _ in self._ports.outputs))
        return plan

    @property
    def version(self) -> int:
        """A number that is different after each change of the graph, freezing included."""
        return self._graph.version

    @property
    def _passes_are_its_own(self) -> bool:
        """Whether `forward` and `backward` are `Net`'s.

        Neither a class nor the instance overrides them. Otherwise the methods themselves have to be
        called.
        """
        kind, own = type(self), self.__dict__
        return (
            kind.forward is Net.forward
            and kind.backward is Net.backward
            and "forward" not in own
            and "backward" not in own
        )

    def _adopt(self) -> None:
        """Fill new parameters from the net's seed, and put all on the net's device."""
        new = []
        for param in self.params():
            if not param.storage.in_memory:
                continue
            if param.filled:
                param.value = self.device.put(param.value)
            else:
                param.seed, param.dtype = self.seed, self.dtype
                new.append(param)
        self._lay(new, self._fill)

    def _walk_back_params(self) -> list[Param]:
        """Return all parameters in the order of backward, each once."""
        found: dict[int, Param] = {}
        for layer in reversed(self.layers):
            for param in layer.params.values():
                # Backward yields a shared parameter at its first layer, which it visits last.
                found.pop(id(param), None)
                found[id(param)] = param
        return list(found.values())

    def _lay(self, params: Iterable[Param], value_of: Callable[[Param], Array]) -> None:
        """Give ``params`` arrays on the net's device with the values of ``value_of``.

        Small trained parameters are in buckets, in the order of backward.
        """
        small = {}
        for param in params:
            value = value_of(param)
            if param.trainable and 0 < value.nbytes <= SMALL:
                small[id(param)] = value
            else:
                param.retype(self.device.put(value))
        together = [param for param in self._walk_back_params() if id(param) in small]
        with self.device.scope():
            laid = lay([small[id(param)] for param in together], self.device.put)
        for param, value in zip(together, laid, strict=True):
            param.retype(value)

    # -- parameters -------------------------------------------------------------------------

    @entry_point
    def params(self) -> list[Param]:
        """Return all parameters in layer order, a shared one once."""
        params = [param for layer in self.layers for param in layer.params.values()]
        return list({id(param): param for param in params}.values())

    @entry_point
    def param_names(self) -> list[str]:
        """Return the parameters' names in layer order, running state included."""
        return [param.name for param in self.params()]

    @entry_point
    def param_values(self) -> list[Array]:
        """Return the arrays of the parameters, not copies, in the order of `param_names`."""
        return [param.value for param in self.params()]

    @entry_point
    def param_specs(self) -> list[ParamSpec]:
        """Return the training settings, in the order of `param_names`."""
        return [param.spec for param in self.params()]

    def buckets(self) -> list[Bucket]:
        """Return the flat arrays that contain several small parameters, and the places of these.

        They are in the order of backward, from the last layer to the first. A parameter is in no
        bucket if it is large, was assigned, or was not trained when the net filled it.
        """
        return buckets_of((param.name, param.value) for param in self._walk_back_params())

    def _regroup(self) -> None:
        """Put all small trained parameters into new buckets, since many were assigned.

        Arrays that users have from before are then no longer the net's.
        """
        here = [param for param in self.params() if param.storage.in_memory]
        self._lay(here, lambda param: param.value)

    # -- freezing ---------------------------------------------------------------------------

    @checked_call
    def freeze(self, layer: Layer | GraphBuilder | str) -> None:
        """Freeze all layers on which ``layer``, a layer, a nested net or its name, depends.

        In a training forward they run as in evaluation and store nothing for backward, which skips
        them. ``layer`` itself is trained, as in SINGA; set its ``trainable`` to False to freeze it
        as well. Further calls freeze further layers. A parameter that unfrozen layers share is
        trained by their gradients alone. Errors: an unknown layer.
        """
        for name in self._use_of(layer):
            self._graph.freeze(name)

    @checked_call
    def unfreeze(self, layer: Layer | GraphBuilder | str | None = None) -> None:
        """Undo `freeze` of ``layer``, or every `freeze`. Errors: a layer that was not frozen."""
        for name in [None] if layer is None else self._use_of(layer):
            self._graph.unfreeze(name)

    def frozen(self) -> list[str]:
        """Return the names of the frozen layers, in topological order."""
        return [step.name for step in self._execution_plan().steps if step.frozen]

    @property
    def trainable(self) -> bool:
        """Whether any parameter is trained; assigning sets all of them, running state apart.

        A nested net shares this, as its parameters, with the nets around it.
        """
        return any(layer.trainable for layer in self.layers)

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        """Whether any parameter is trained; assigning sets all of them except running state.

        A nested net shares its parameters, and so this setting, with the nets that contain it.
        """
        for layer in self.layers:
            layer.trainable = flag

    @checked_call
    def to_device(self, device: Device) -> Self:
        """Move every parameter to ``device``, a `Device`, compute there, and return the net.

        Quantized and bfloat16 weights are moved in their format. Errors: a net that is not in
        memory or on several ranks; another object.
        """
        if not isinstance(device, Device):
            raise ArgumentError(
                "net.to_device, device",
                expected="a device",
                received=brief(device)[:80],
                advice="write singanet.device.cpu() or singanet.device.cuda(0)",
            )
        params = self.params()
        apart = [(p, p.storage.moved(device.put)) for p in params if not p.storage.in_memory]
        expect_stored([param for param, storage in apart if storage is None], "net.to_device")
        moved = [(p, device.put(p.value)) for p in params if p.storage.in_memory]
        self._run_on(device, self.dtype)
        for param, storage in apart:
            if storage is not None and storage is not param.storage:
                param.storage = storage
        away = {id(param): value for param, value in moved if value is not param.value}
        self._lay([p for p, _ in moved if id(p) in away], lambda param: away[id(param)])
        return self

    @checked_call
    def as_type(self, dtype: Any) -> Any:
        """Convert every parameter to the float type ``dtype``, and compute in it from now on.

        "float32_fast" stores float32, but convolutions and products round their operands to
        bfloat16. Errors: `ArgumentError` for another type; `BackendError` for "float32_fast" if the
        kernels or the processor lack such products.
        """
        narrow = isinstance(dtype, str) and dtype == "float32_fast"
        try:
            wanted = np.dtype(np.float32 if narrow else dtype).newbyteorder("=")
        except TypeError:
            wanted = None
        if wanted is None or wanted.kind != "f":
            raise ArgumentError(
                "net.as_type",
                expected="a float type of NumPy",
                received=brief(dtype) if wanted is None else str(wanted),
                advice=did_you_mean(
                    str(dtype).replace("fp", "float"), _TYPES, f"use one of {one_of(_TYPES)}"
                ),
            )
        if narrow:
            device = self.device._narrowed("net.as_type", stores=False)
        else:
            device = self.device._widened()
        params = self.params()
        stays = all(param.array_type == param.type_in(wanted) for param in params)
        if not stays:
            expect_stored(params, "net.as_type")
        self._run_on(device, wanted)
        if not stays:
            self._lay(params, lambda param: param.value.astype(param.type_in(wanted)))

    def _run_on(self, device: Device, dtype: np.dtype[Any]) -> None:
        """Use this device and type from now on, in nested nets too."""
        self.device, self.dtype = device, dtype
        for net in self.nested.values():
            net._run_on(device, dtype)

    # -- frames -----------------------------------------------------------------------------

    @property
    def columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of the frame that each input was trained on, in their order.

        Later frames must have these columns, in any order; after ``net.columns.clear()`` the next
        frame may have others.
        """
        return self.intake.columns

    @property
    def table(self) -> Table | None:
        """The `singanet.data.Table` that converts raw frames to the net's inputs; None for none."""
        return self.intake.table

    @table.setter
    def table(self, table: Table | None) -> None:
        """The `singanet.data.Table` that converts raw frames to the net's inputs; None for none.

        It is saved with the net. Errors: `ArgumentError` for another object.
        """
        from singanet.data.table import Table

        if not isinstance(table, (Table, type(None))):
            raise ArgumentError(
                "net.table",
                expected="a singanet.data.Table, or None",
                received=type(table).__name__,
                advice="make one with Table.of(frame)",
            )
        self.intake.table = table

    def taken(self, where: str, x: Any) -> Any:
        """Return ``x`` as arrays of NumPy or CuPy, see `ColumnAdapter.arrays`."""
        if self.intake.leaves(x):
            return x
        by_name, names = self._execution_plan().by_name, self.ports().inputs
        return self.intake.arrays(where, x, {name: by_name[name].layer.in_shapes for name in names})

    def _remember(self, x: Any, taken: Any) -> None:
        """Store the columns of frames in ``x``, which `taken` converted."""
        if taken is not x:
            self.intake.remember(x, self.ports().inputs)

    # -- passes -----------------------------------------------------------------------------

    @checked_call
    def forward(self, flag: int | bool, x: Any, output: Iterable[str] = ()) -> Any:
        """Run the net on ``x`` and return its output.

        The result is an array; for several outputs, or with ``output``, a dict of arrays by layer
        name. A training forward stores the arrays that `backward` needs. Errors: an unknown,
        missing or extra name; a wrong shape.

        Args:
            flag: True or ``singanet.kTrain`` for training, False or ``singanet.kEval`` for
                evaluation.
            x: The inputs of a batch, batch axis first: an array, or for several inputs a dict by
                layer name.
            output: Names of further layers whose outputs the result includes.
        """
        train = is_training(flag)
        plan = self._execution_plan()
        asked = self._names(output)
        given, x = x, self.taken("net.forward, x", x)
        feed = checks.check_feed(plan, x, self.device, self.dtype)
        self._forget_pass()
        if train:
            self._remember(given, x)
            # The caller may overwrite its arrays before backward, which reads the feed.
            feed = apart_from(feed, roots_in(x))
            with self.rehearsal(only_failed=True):
                made = self.executor.forward(self, feed, asked)
                results = made.hand_out()
            self._pass = made
        else:
            results = self.executor.evaluate(self, feed, asked)
        if len(plan.outputs) == 1 and not asked:
            return results[plan.outputs[0]]
        return results

    @checked_call
    def backward(
        self, dy: Any, output: Iterable[str] = ()
    ) -> Generator[LayerGradients, None, None]:
        """Yield ``(names, values, grads)`` of each layer, from the last to the first.

        Before each yield the layer's context and incoming gradient are released, and the net has no
        reference to ``grads``; ``values`` may be updated in place. Errors: no training forward
        before, or one whose backward has run; a wrong name or shape.

        Args:
            dy: The gradient of the output, an array; or a dict of the gradients by the names of
                outputs, or of layers in forward's ``output``.
            output: Names of layers whose outputs' gradients are in ``item.output_grads``, a dict,
                after these layers: zeros if none arrives, None for integers. A layer below frozen
                layers or below untrained parameters must be in forward's ``output`` too.
        """
        if self._pass is None:
            raise CallOrderError(
                "net.backward",
                expected="a training forward before each backward",
                received="no forward, or a forward whose backward has run",
                advice="call net.forward(True, x) first",
            )
        made, asked = self._pass, self._names(output)
        dy = own_arrays("net.backward, dy", dy)
        slot_grads = checks.check_gradients(made.plan, dy, made.shapes, self.device, self.dtype)
        walk = made.backward(self, slot_grads, asked)
        self._pass = None
        return walk

    def _build_for(self, where: str, x: Any) -> None:
        """Build a list of layers for the samples ``x``; a bare `Net` refuses to."""
        self.ordered()

    def _forget_pass(self) -> None:
        """Release the arrays of a training forward whose backward was never called."""
        if self._pass is not None:
            self._pass.release()
            self._pass = None

    def _names(self, output: Iterable[str]) -> tuple[str, ...]:
        """Return ``output``, a name or several, as a tuple of known layer names."""
        if not output:
            return ()
        names = (output,) if isinstance(output, str) else tuple(output)
        self._expect_layers(names, "net, argument output")
        return names

    # -- one batch --------------------------------------------------------------------------

    @checked_call
    def train(self, x: Any, y: Any) -> tuple[list[Gradient | None], tuple[float, float | None]]:
        """Return all gradients of a batch at once, and ``(loss, metric)``.

        ``x`` and ``y`` are the arrays of the batch. The gradients are in the order of
        `param_names`, None for parameters that are not trained. All of them are in memory together;
        use `step` or `backward` to avoid that.
        """
        from singanet.engine.step import StepMetrics, gradients_of_loss, measure_of

        given, x = x, self.taken("net.train, x", x)
        y = own_arrays("net.train, y", y)
        feed = checks.check_feed(self._execution_plan(), x, self.device, self.dtype)
        self._forget_pass()
        by_name: dict[str, Gradient] = {}

        with self.rehearsal(only_failed=True):
            made: Pass = (
                self.executor.forward(self, feed, ())
                if self._passes_are_its_own
                else MethodPass(self, x)
            )
            seen = StepMetrics(y, measure_of(self))
            for names, _, grads in made.backward(self, gradients_of_loss(self, made, seen), ()):
                by_name.update(zip(names, grads, strict=True))
        self._remember(given, x)
        return [by_name.get(name) for name in self.param_names()], (seen.loss, seen.score)

    @checked_call
    def step(
        self,
        x: Any,
        y: Any,
        optimizer: Optimizer | Wrapper,
        on_layer: OnLayer = None,
        sample_weight: Array | None = None,
        measure: Measure = None,
    ) -> tuple[float, float | None]:
        """Train on one batch: update each layer, and then drop its gradients.

        Returns ``(loss, metric)`` from before the update. With `ClipByGlobalNorm` forward and
        backward run twice, and draw the same numbers.

        Args:
            x: The inputs of the batch, as for `forward`.
            y: The targets of the batch: an array, or for several outputs a dict by layer name.
            optimizer: The optimizer of `singanet.optimizer` that updates the parameters.
            on_layer: Function that is called with each layer's gradients, as `backward` yields
                them, before its update.
            sample_weight: Array (N,) of factors of the samples' losses.
            measure: Function ``measure(output, y)`` whose result replaces the metric's.
        """
        if measure is None and self.metric is not None:
            from singanet.engine.step import measure_of

            measure = measure_of(self)
        if self._pass is not None:
            self._forget_pass()
        if self.pending:
            self._build_for("net.step, x", x)
        # A small step takes about the time of ten calls, so common types skip the check.
        taken = x if type(x) is np.ndarray else self.taken("net.step, x", x)
        if type(y) is not np.ndarray:
            y = own_arrays("net.step, y", y)
        if sample_weight is not None and type(sample_weight) is not np.ndarray:
            # A dict is refused.
            taking = as_array if isinstance(sample_weight, Mapping) else own_arrays
            sample_weight = taking("net.step, sample_weight", sample_weight)
        request = StepRequest(taken, y, optimizer, sample_weight, measure, on_layer)
        try:
            made = self.executor.step(self, request)
        except BaseException:
            # Of methods of the user's own, see `MethodPass`.
            self._forget_pass()
            raise
        if taken is not x:
            self._remember(x, taken)
        return made

    @contextmanager
    def rehearsal(self, only_failed: bool = False) -> Iterator[None]:
        """Return a context that undoes at its end any change of the generator and running state.

        A pass that is repeated afterwards draws the same numbers and updates the state once. With
        ``only_failed`` it undoes them only after an error.
        """
        before = Before(self, self._execution_plan().settings().state)
        done = False
        try:
            yield
            done = only_failed
        finally:
            if not done:
                before.restore()


def _written(net: GraphBuilder) -> int:
    """Return the number of layers as a user writes them, activations with their layers."""
    nodes = net._graph.nodes.values()
    activations = {node.whole for node in nodes}
    found = set()
    for node in nodes:
        # The net's inputs, and the ends of nested nets.
        end = isinstance(node.layer, Dummy) and (node.within is not None or not node.inputs)
        if not (end or node.name in activations):
            found.add(id(node.layer))
    later = (1 if isinstance(part, Layer) else _written(part) for part in net.pending)
    return len(found) + sum(later)


def expect_whole(net: Net, where: str) -> None:
    """Refuse a net that is not in memory or on several ranks. Errors: `CallOrderError`."""
    expect_met(where, (IN_MEMORY, WHOLE, LAYERS, RECORDED), net.executor.can.terms)


def expect_host(net: Net, where: str) -> None:
    """Refuse a net that is not on the CPU. Errors: `BackendError`."""
    if net.device.ops.xp is not np:
        raise BackendError(
            where,
            expected="a net on the CPU",
            received=f"one on {net.device.name}",
            advice="call net.to_device(singanet.device.cpu()) first",
        )
