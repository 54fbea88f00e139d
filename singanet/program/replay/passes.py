"""Replayed passes and gradients."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from typing import TYPE_CHECKING, Any

from singanet.engine.backward import BackwardWalk, Pass
from singanet.engine.feeds import shapes_of
from singanet.engine.fusion import fused
from singanet.engine.gradients import Asked
from singanet.params.grads import LayerGradients
from singanet.program.ir import Order, map_arrays, order_of
from singanet.program.loads import LoadRun
from singanet.program.replay.replay import Replay
from singanet.program.trace.layers import copied, copy_into
from singanet.program.trace.losses import targets
from singanet.program.trace.sparse_rows import RowsSource
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.engine.plan import Plan


class ReplayedPass(Pass):
    """The pass of a replayed forward: it has the arena, and gives it back after the walk.

    Some walks are not in the program: for gradients of inner outputs, from some of the outputs,
    from gradients in another memory order, or of a net that has changed. They run the forward
    again, by the layers, with the same draws and running state.
    """

    def __init__(
        self,
        net: Net,
        program: Replay,
        arena: Array,
        feed: Mapping[str, Any],
        orders: Mapping[int, Order],
        give_back: Callable[[Array], None],
        walked: Callable[[Mapping[int, Array]], None],
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.plan = net._execution_plan()
        self.shapes: Mapping[str, Any] = {}
        self.program = program
        self.arena = arena
        self.feed = feed
        self.orders = orders
        self.give_back = give_back
        self.walked = walked
        self.turn = turn
        self._run: LoadRun | None = None
        self.draws = net.rng.bit_generator.state
        self.state = [(param, param.value.copy()) for param in program.state]

    def __deepcopy__(self, memo: dict[int, Any]) -> ReplayedPass:
        """Refused, as for a pass by the layers."""
        raise TypeError("a pass under way cannot be copied")

    def hand_out(self) -> dict[str, Any]:
        """Replay the forward and return its outputs as new arrays."""
        try:
            with self.turn():
                bound = self.program.bound(self.arena)
                copy_into(self.feed, bound.feed.arrays[0])
                self._run, outputs = self.program.forward(bound)
        except BaseException:
            self.release()
            raise
        self.shapes = {name: shapes_of(value) for name, value in outputs.items()}
        return outputs

    def release(self) -> None:
        """Give the arena back, after a walk or without one."""
        self.give_back(self.arena)
        if self._run is not None:
            self._run.close()

    def backward(
        self,
        net: Net,
        slot_grads: dict[int, Array],
        asked: tuple[str, ...],
    ) -> Generator[LayerGradients, None, None]:
        orders = {slot: order_of(grad) for slot, grad in slot_grads.items()}
        if asked or orders != self.orders or self.program.stale(net, begun=True):
            self.release()
            self.walked(slot_grads)
            plan = fused(self.plan, asked)
            contexts = self._by_layers(net, plan)
            return BackwardWalk(plan, contexts, slot_grads, asked, zeros=True).run()
        return self._replayed(net, slot_grads)

    def _by_layers(self, net: Net, plan: Plan) -> list[Any]:
        """The contexts of the forward pass, run again by ``plan``."""
        with net.rehearsal(), net.device.scope():
            net.rng.bit_generator.state = self.draws
            for param, value in self.state:
                param.value[...] = value
            return plan.forward(self.feed, plan.outputs, net.device.ops, net.rng, True)[1]

    def _replayed(
        self, net: Net, slot_grads: dict[int, Array]
    ) -> Generator[LayerGradients, None, None]:
        # The generator refers to ``net``, which thus stays alive.
        dy, plan = {}, self.plan
        with self.turn():
            bound = self.program.bound(self.arena)
            assert bound.dy is not None
            for name in bound.dy.arrays[0]:
                parts = [slot_grads[slot] for slot in plan.by_name[name].out_slots]
                dy[name] = parts if plan.by_name[name].many_out else parts[0]
            slot_grads.clear()
            copy_into(dy, bound.dy.arrays[0])
        del dy, bound
        try:
            with closing(self.program.walked(self.arena, self.turn, self._run)) as walk:
                for grads, layer, names in walk:
                    values = [self.program.values[name].value for name in names]
                    # Copies, since the next layer reuses the arena.
                    yield LayerGradients(list(names), values, [owned(g) for g in grads], layer, {})
                    del values
        finally:
            self.release()


def owned(grad: Any) -> Any:
    """A copy for the caller of a gradient in the arena, or of a source's rows."""
    return grad.now() if isinstance(grad, RowsSource) else grad.copy()


def replayed_gradients(
    net: Net,
    program: Replay,
    asked: Asked,
    take: Callable[[Replay], Array],
    give_back: Callable[[Array], None],
    turn: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Generator[LayerGradients, None, None]:
    """Yield the ``asked`` gradients, as copies from the arena."""
    arena = take(program)
    try:
        with turn():
            bound = program.bound(arena)
            given, beside = bound.feed.arrays
            assert bound.dy is not None
            scale, dys = bound.dy.arrays
            copy_into(asked.feed, given)
            there = net.device.ops.xp.ndarray
            copy_into(targets(asked.targets, asked.weight, there), beside)
            with program.showing(asked.targets, asked.weight):
                run, _ = program.forward(bound)
            scale[...] = asked.loss_scale or 0
            for head, dy in zip(asked.heads, dys, strict=True):
                head.fill(dy, net.device)
        del bound, given, beside, scale, dys
        with closing(program.walked(arena, turn, run)) as walk:
            for grads, layer, names, outputs in walk:
                own = [program.values[name] for name in names]
                # Only streamed gradients allow changes of parameters.
                values = [param.value if asked.streamed else param.outline for param in own]
                mine = {name: map_arrays(grad, copied) for name, grad in outputs.items()}
                yield LayerGradients(list(names), values, [owned(g) for g in grads], layer, mine)
                del mine, values
    finally:
        give_back(arena)
