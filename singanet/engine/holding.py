"""Nets with narrow weights, of fewer bits than they are computed with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.described import changes
from singanet.base.terms import FLOATS, Terms
from singanet.device import cpu
from singanet.engine.backward import Pass
from singanet.engine.executor import Capabilities, LayerByLayer
from singanet.engine.model import StepRequest
from singanet.engine.net import Net, expect_whole
from singanet.engine.plan import Plan
from singanet.engine.recompute.recomputer import Recomputer
from singanet.errors import ArgumentError, CallOrderError, brief, one_of
from singanet.ops.narrow import BLOCK, Bfloat16Matrix, NarrowMatrix
from singanet.params.grads import LayerGradients
from singanet.params.narrow import (
    ROUNDINGS,
    Bfloat16Weights,
    BlockWeights,
    NarrowWeights,
    WatchedWeights,
    block_weights,
    weights_of_blocks,
)
from singanet.params.param import Param, expect_stored
from singanet.params.storage import Memory, ParamStorage
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.optimizer.chain import UpdateChain

Holder = Callable[[Param, bool], ParamStorage | None]
"""Returns the storage of a parameter, stored (out, in) if transposed; None if it stays as it is."""


class Holding(LayerByLayer):
    """Runs the layers one after the other; weights are widened for the update of a layer."""

    can = Capabilities(
        Terms(
            takes=(FLOATS,),
            received="a net that holds weights in fewer bits",
            remedy="call net.as_type('float32') first",
        ),
        coarse=2.0**-8,
    )
    streams = True

    def __init__(self, recompute: Recomputer | None = None) -> None:
        super().__init__(recompute)
        self._checked = -1

    def register(self, net: Any, optimizer: Any) -> UpdateChain:
        """Register as `LayerByLayer` does. Errors: weights that cannot be trained."""
        before = self._met
        chain = super().register(net, optimizer)
        if self._met is not before:
            try:
                self._expect_steps(net, chain)
            except CallOrderError:
                self._met = before
                raise
        return chain

    def _expect_steps(self, net: Any, chain: UpdateChain) -> None:
        """Errors: weights in blocks that are trained; several ranks with stochastic rounding."""
        self._expect_trainable(net._execution_plan())
        expect_rounded_alike(net.params(), chain)

    def forward(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """Run a training forward. Errors: weights in blocks that are trained."""
        self._expect_trainable(net._execution_plan())
        made = super().forward(net, feed, asked, starts, other)
        return _NarrowPass(made)

    def train(
        self,
        net: Any,
        forward: Callable[[], Pass],
        request: StepRequest,
        chain: UpdateChain,
    ) -> tuple[float, float | None]:
        try:
            return super().train(net, forward, request, chain)
        finally:
            # Weights that were updated after the walk.
            settle(net.params(), net.rng)

    def gradients(self, net: Any, asked: Asked) -> Iterator[LayerGradients]:
        return settled(net, super().gradients(net, asked))

    def _expect_trainable(self, plan: Plan) -> None:
        if self._checked != changes.now:
            expect_trainable(plan)
            self._checked = changes.now


def expect_trainable(plan: Plan) -> None:
    """Errors: weights in blocks that ``plan`` trains."""
    stuck = [p.name for p in plan.trained_params() if not p.storage.trains]
    if stuck:
        raise CallOrderError(
            "training",
            expected="trained weights of floats, not of blocks",
            received=f"blocks that cannot be updated: {one_of(stuck, 3)}",
            advice="net.adapt(lora=8) trains low-rank pairs; net.as_type('bfloat16') makes"
            " floats of them again",
        )


def expect_rounded_alike(params: Iterable[Param], chain: UpdateChain) -> None:
    """Errors: ``params`` rounded at random by each of several ranks."""
    if any(not stage._alone for stage in chain.reducers) and any(map(_is_random, params)):
        raise CallOrderError(
            "training on several ranks",
            expected="weights that all ranks round alike",
            received="stochastic rounding, which draws on each rank by itself",
            advice="call net.as_type('bfloat16', rounding='remainder')",
        )


def _is_random(param: Param) -> bool:
    storage = param.storage
    return isinstance(storage, Bfloat16Weights) and storage.rounding == ROUNDINGS[0]


class _NarrowPass(Pass):
    """The pass ``made``, whose items are rounded when the caller asks for the next one."""

    def __init__(self, made: Pass) -> None:
        self.plan: Plan = made.plan
        self.shapes: Mapping[str, Any] = made.shapes
        self._made = made

    def hand_out(self) -> dict[str, Any]:
        return self._made.hand_out()

    def backward(
        self, net: Any, slot_grads: dict[int, Array], asked: tuple[str, ...]
    ) -> Generator[LayerGradients, None, None]:
        return settled(net, self._made.backward(net, slot_grads, asked))

    def release(self) -> None:
        self._made.release()


def settled(net: Net, items: Iterable[LayerGradients]) -> Generator[LayerGradients, None, None]:
    """Yield ``items``; their values are rounded to storage when the caller asks for the next one.

    The walk still refers to the last item then, and releases it for the next one: so each is
    settled twice.
    """
    by_name = {param.name: param for param in net.params()}
    before: list[Param] = []
    for item in items:
        now, handed = [by_name[name] for name in item.names], [item]
        del item
        try:
            # Nothing of the layer stays in this frame while the caller has it.
            yield handed.pop()
        finally:
            settle([*before, *now], net.rng)
        before = now


def settle(params: Iterable[Param], rng: Any) -> None:
    """Store the widened arrays of ``params`` again; stochastic rounding draws from ``rng``."""
    for param in params:
        if isinstance(param.storage, NarrowWeights):
            param.storage.settle(rng)


def matrices_of(net: Net) -> list[tuple[Param, bool]]:
    """The parameters that kernels read as narrow matrices, and whether each is stored (out, in)."""
    found: dict[int, tuple[Param, bool]] = {}
    layers = {id(step.layer): step.layer for step in net.planned().steps}.values()
    for layer in layers:
        for suffix, transposed in layer.matrices().items():
            param = layer.params[suffix]
            if len(param.shape) == 2 and not param.served:
                found.setdefault(id(param.root), (param, transposed))
    return list(found.values())


def hold(net: Net, where: str, holder: Holder) -> list[str]:
    """Store matrices of ``net`` as ``holder`` decides; return their names.

    Errors: a net that is not in memory, on several ranks or nested. If ``holder`` fails, the net is
    unchanged.
    """
    params = list({id(p): p for s in net.planned().steps for p in s.layer.params.values()}.values())
    expect_whole(net, where)
    if not net.executor.can.holds:
        expect_stored(params, where)
    net._expect_outermost(where)
    before: list[tuple[Param, ParamStorage]] = []
    try:
        for param, transposed in matrices_of(net):
            old = param.storage
            made = holder(param, transposed)
            if made is not None:
                before.append((param, old))
                param.storage = made
                del old
    except BaseException:
        for param, old in before:
            param.storage = old
        raise
    if before:
        # The executor of a whole net records its steps.
        executor: Any = net.executor
        executor.hold(True)
    return [param.name for param, _ in before]


def hold_as(net: Net, dtype: Any, rounding: str | None, as_type: Callable[[Any], None]) -> None:
    """Carry out `FeedForwardNet.as_type`, by ``as_type`` unless the type is stored as words."""
    if isinstance(dtype, str) and dtype == "bfloat16":
        if net.dtype != np.float32:
            net.as_type("float32")
        hold_words(net, rounding)
        return
    if rounding is not None:
        raise ArgumentError(
            "net.as_type, rounding",
            expected="None, but with 'bfloat16'",
            received=f"{rounding!r} with {dtype!r}",
            advice="leave it out",
        )
    let_go(net)
    as_type(dtype)


def hold_words(net: Net, rounding: str | None) -> None:
    """`Net.as_type` to "bfloat16"."""
    rounding = ROUNDINGS[0] if rounding is None else rounding
    if rounding not in ROUNDINGS:
        raise ArgumentError(
            "net.as_type, rounding",
            expected=one_of(ROUNDINGS),
            received=brief(rounding),
            advice="leave it out for 'stochastic'",
        )

    def holder(param: Param, transposed: bool) -> ParamStorage:
        rows, columns = param.shape
        size = (columns, rows) if transposed else (rows, columns)
        made = Bfloat16Weights(Bfloat16Matrix(*size, net.device.ops.xp), transposed, rounding)
        made.write(_values(net, param))
        return made

    with net.device.scope():
        hold(net, "net.as_type", holder)


def rounding_of(net: Net) -> str | None:
    """How the updates of ``net`` are rounded, if it has words of bfloat16."""
    storages = (param.storage for param in net.params())
    return next((each.rounding for each in storages if isinstance(each, Bfloat16Weights)), None)


KINDS: Mapping[str, tuple[str, ...]] = {"int8": ("Q8_0",), "int4": ("Q4_1", "Q4_0")}
"""The kinds of blocks by type, the default kind first."""

Blocks = Callable[[Param], tuple[Array, str] | None]
"""Returns ggml's blocks of a parameter (outputs, blocks, bytes) and their kind, or None."""


def hold_blocks(
    net: Net,
    dtype: Any,
    where: str,
    blocks_of: Blocks | None = None,
    of: Callable[[Param], bool] = lambda _: True,
    tells: bool = True,
) -> dict[str, float]:
    """Store matrices in blocks of "int8" or "int4"; return the relative error by name.

    Unless it ``tells``, errors are not computed, which takes as long as the rest.

    Embedding tables are stored in 8 bits: 4 would cost more accuracy than all other weights. The
    error is the root mean square of the difference, divided by that of the values; 0 for a matrix
    that is in such blocks already, also by ``blocks_of``. Only matrices selected by ``of`` whose
    number of inputs is a multiple of 32 are changed. Errors: another type, and the errors of
    `hold`.
    """
    if dtype not in KINDS:
        raise ArgumentError(
            where, expected=one_of(KINDS), received=brief(dtype), advice="int8 is more accurate"
        )
    errors: dict[str, float] = {}
    tables = _tables_of(net)

    def holder(param: Param, transposed: bool) -> ParamStorage | None:
        if param.shape[1 if transposed else 0] % BLOCK or not of(param):
            return None
        given = None if blocks_of is None else blocks_of(param)
        kinds = KINDS["int8"] if id(param.root) in tables else KINDS[dtype]
        good = (*kinds, *KINDS[dtype])
        if given is not None and given[1] in good:
            errors[param.name] = 0.0
            return weights_of_blocks(given[0], transposed, given[1]).moved(net.device.put)
        storage = param.storage
        if isinstance(storage, BlockWeights) and storage.matrix.kind in good:
            errors[param.name] = 0.0
            return storage
        # The best blocks are looked for on the CPU.
        values = cpu().put(_values(net, param))
        moments = cpu().put(storage.moments) if isinstance(storage, WatchedWeights) else None
        made = block_weights(values, transposed, kinds[0], moments)
        if tells:
            errors[param.name] = _distance(values.T if transposed else values, made.matrix)
        return made.moved(net.device.put)

    hold(net, where, holder)
    return errors


def watch(net: Net, where: str, most: int) -> int:
    """Collect statistics of the inputs of matrices in ``most`` bytes; return their number.

    The matrices are of floats in memory that 4 bits will store. Errors: as `hold`.
    """
    tables, left = _tables_of(net), [most]

    def holder(param: Param, transposed: bool) -> ParamStorage | None:
        inputs = param.shape[1 if transposed else 0]
        floats = param.storage.in_memory or isinstance(param.storage, Bfloat16Weights)
        fits = floats and not inputs % BLOCK and id(param.root) not in tables
        needs = 4 * inputs * inputs
        if not fits or (left[0] < needs and left[0] < most):
            return None
        left[0] -= needs
        _values(net, param)
        return WatchedWeights(param.storage, transposed)

    return len(hold(net, where, holder))


def unwatch(net: Net) -> None:
    """Restore the storage of the watched matrices."""
    for param in net.params():
        if isinstance(param.storage, WatchedWeights):
            param.storage = param.storage.before
    if not any(isinstance(param.storage, NarrowWeights) for param in net.params()):
        executor: Any = net.executor
        executor.hold(False)


def is_watched(param: Param) -> bool:
    """Whether statistics of its inputs are collected."""
    return isinstance(param.storage, WatchedWeights)


def _tables_of(net: Net) -> set[int]:
    """The ids of the root parameters of embedding tables."""
    layers = {id(step.layer): step.layer for step in net.planned().steps}.values()
    tables = (layer.params.values() for layer in layers if layer.traits.looks_up)
    return {id(param.root) for params in tables for param in params}


def _distance(values: Array, matrix: NarrowMatrix) -> float:
    size = off = 0.0
    for part in matrix.parts():
        wanted = values[:, part]
        size += float(np.square(wanted).sum())
        off += float(np.square(wanted - matrix.columns(part.start, part.stop)).sum())
    return (off / size) ** 0.5 if size else 0.0


def _values(net: Net, param: Param) -> Array:
    if param.filled:
        return param.peek()
    param.seed, param.dtype = net.seed, net.dtype
    return net._first_value(param)


def let_go(net: Net) -> None:
    """Store narrow weights as float32 arrays again."""
    held = [param for param in net.params() if isinstance(param.storage, NarrowWeights)]
    if held:
        expect_whole(net, "net.as_type")
    executor: Any = net.executor
    if not executor.can.holds:
        return
    for param in held:
        param.storage = Memory(param.storage.read())
    executor.hold(False)
