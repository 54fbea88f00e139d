"""Nets whose weights are held in fewer bits than they are computed with."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.described import changes
from singanet.device import cpu
from singanet.engine.backward import Pass
from singanet.engine.executor import Capabilities, LayerByLayer
from singanet.engine.model import StepRequest
from singanet.engine.net import Net, expect_in_memory, expect_whole
from singanet.engine.plan import ContextStore, Plan
from singanet.engine.recompute.by_layers import Recomputer
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
from singanet.params.param import Param
from singanet.params.storage import Memory, ParamStorage
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked
    from singanet.optimizer.chain import UpdateChain

Holder = Callable[[Param, bool], ParamStorage | None]
"""What is to hold a parameter, which lies (out, in) if it is turned; None if it stays."""


class Holding(LayerByLayer):
    """Runs the layers one after the other; weights are widened where a layer is updated."""

    can = Capabilities(
        records=True,
        holds=True,
        coarse=2.0**-8,
        is_so="holds weights in fewer bits",
        way_back="call net.as_type('float32') first",
    )
    streams = True

    def __init__(self, recompute: Recomputer | None = None) -> None:
        super().__init__(recompute)
        self._checked = -1

    def register(self, net: Any, optimizer: Any) -> UpdateChain:
        """As `LayerByLayer`. Errors: those of what is held, as steps are."""
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
        """Errors: blocks that are to be trained; several ranks that would round each at random."""
        self._expect_trainable(net._execution_plan())
        expect_rounded_alike(net.params(), chain)

    def forward(
        self,
        net: Any,
        feed: Mapping[str, Any],
        asked: tuple[str, ...],
        starts: Callable[[Mapping[int, Array]], None] | None = None,
        store: ContextStore | None = None,
        other: Plan | None = None,
    ) -> Pass:
        """As `LayerByLayer`. Errors: weights in blocks that are to be trained."""
        self._expect_trainable(net._execution_plan())
        made = super().forward(net, feed, asked, starts, store, other)
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
            # What was updated when the walk was over.
            settle(net.params(), net.rng)

    def gradients(
        self, net: Any, asked: Asked, store: ContextStore | None = None
    ) -> Iterator[LayerGradients]:
        return settled(net, super().gradients(net, asked, store))

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
            expected="weights of floats, or none of those in blocks among what is trained",
            received=f"blocks that cannot be updated: {one_of(stuck, 3)}",
            advice="net.adapt(lora=8) trains pairs beside them; net.as_type('bfloat16') makes"
            " floats of them again",
        )


def expect_rounded_alike(params: Iterable[Param], chain: UpdateChain) -> None:
    """Errors: several ranks with the same ``params``, which each would round at random."""
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
    """The pass ``made``, whose items are rounded when the next one is asked for."""

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
    """``items``, whose values are held again as soon as the next one is asked for.

    Who walks still has an item then, and lets go of it for the next one: it is looked at twice.
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
    """Have what was lent of ``params`` held again; what is rounded at random draws of ``rng``."""
    for param in params:
        if isinstance(param.storage, NarrowWeights):
            param.storage.settle(rng)


def matrices_of(net: Net) -> list[tuple[Param, bool]]:
    """The parameters that kernels read as held matrices, and whether each lies (out, in)."""
    found: dict[int, tuple[Param, bool]] = {}
    layers = {id(step.layer): step.layer for step in net.planned().steps}.values()
    for layer in layers:
        for suffix, transposed in layer.matrices().items():
            param = layer.params[suffix]
            if len(param.shape) == 2 and not param.served:
                found.setdefault(id(param.root), (param, transposed))
    return list(found.values())


def hold(net: Net, where: str, holder: Holder) -> list[str]:
    """Have matrices of ``net`` in what ``holder`` gives for them; their names.

    Errors: a net that is not in memory, on several ranks or nested. An error of ``holder``
    leaves it as it was.
    """
    params = list({id(p): p for s in net.planned().steps for p in s.layer.params.values()}.values())
    expect_whole(net, where)
    if not net.executor.can.holds:
        expect_in_memory(params, where)
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
        # One that is whole records its steps.
        executor: Any = net.executor
        executor.hold(True)
    return [param.name for param, _ in before]


def hold_as(net: Net, dtype: Any, rounding: str | None, as_type: Callable[[Any], None]) -> None:
    """`FeedForwardNet.as_type`, which goes by ``as_type`` where no words are to be held."""
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
"""The kinds of blocks that are so many bits, the one that is made first."""

Blocks = Callable[[Param], tuple[Array, str] | None]
"""ggml's blocks of a parameter (outputs, blocks, bytes) and their kind, where there are some."""


def hold_blocks(
    net: Net,
    dtype: Any,
    where: str,
    blocks_of: Blocks | None = None,
    of: Callable[[Param], bool] = lambda _: True,
) -> dict[str, float]:
    """Hold matrices in blocks of "int8" or "int4"; by name how far that is from what they were.

    Tables of words are held in 8 bits: in 4 they would cost more accuracy than all others. The
    distance is the root of the mean square of the difference, over that of the values; 0 for what
    is in such blocks already, or has them by ``blocks_of``. Matrices whose inputs are no multiple
    of 32 stay as they are, and so do those that are not ``of`` the ones asked for.
    Errors: another type, and those of `hold`.
    """
    if dtype not in KINDS:
        raise ArgumentError(
            where, expected=one_of(KINDS), received=brief(dtype), advice="int8 is the nearer one"
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
        errors[param.name] = _distance(values.T if transposed else values, made.matrix)
        return made.moved(net.device.put)

    hold(net, where, holder)
    return errors


def watch(net: Net, where: str, most: int) -> int:
    """Watch what the next matrices are multiplied by, in ``most`` bytes; how many there are.

    Of those that 4 bits will hold, and that are floats in memory. Errors: those of `hold`.
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
    """Have what is watched still as it was."""
    for param in net.params():
        if isinstance(param.storage, WatchedWeights):
            param.storage = param.storage.before
    if not any(isinstance(param.storage, NarrowWeights) for param in net.params()):
        executor: Any = net.executor
        executor.hold(False)


def is_watched(param: Param) -> bool:
    """Whether what it multiplies is summed."""
    return isinstance(param.storage, WatchedWeights)


def _tables_of(net: Net) -> set[int]:
    """The parameters that are looked up, by what they are at root."""
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
    """Have weights that are held in fewer bits as float32 arrays again."""
    held = [param for param in net.params() if isinstance(param.storage, NarrowWeights)]
    if held:
        expect_whole(net, "net.as_type")
    executor: Any = net.executor
    if not executor.can.holds:
        return
    for param in held:
        param.storage = Memory(param.storage.read())
    executor.hold(False)
