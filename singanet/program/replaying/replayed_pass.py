"""A training forward that was replayed, and the walk back that may follow it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from singanet.engine.backward import BackwardWalk
from singanet.engine.feeds import shapes_of
from singanet.params.gradients import LayerGradients
from singanet.program.recording.live_rows import RowsSource
from singanet.program.recording.python_pass import keep
from singanet.program.replaying.replay import Replay, run_all
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


class ReplayedPass:
    """What a replayed forward leaves: the arena, which is given back after the walk.

    A walk that the program does not have, for gradients of inner outputs or from some outputs
    only, runs the forward again, by itself, with the same draws.
    """

    def __init__(
        self,
        net: Net,
        program: Replay,
        arena: Array,
        feed: Mapping[str, Any],
        give_back: Callable[[Array], None],
    ) -> None:
        self.plan = net.plan()
        self.shapes: Mapping[str, Any] = {}
        self.program = program
        self.arena = arena
        self.feed = feed
        self.give_back = give_back
        self.draws = net.rng.bit_generator.state
        program.walk(self)

    def hand_out(self) -> dict[str, Any]:
        """As `Pass`: the forward is replayed, and its outputs are new arrays."""
        try:
            outputs: dict[str, Any] = self.program.outputs(self.arena, self.feed)
        except BaseException:
            self.release()
            raise
        self.shapes = {name: shapes_of(value) for name, value in outputs.items()}
        return outputs

    def release(self) -> None:
        """Give the arena back, after a walk or without one."""
        self.program.walk(None)
        self.give_back(self.arena)

    def backward(
        self,
        net: Net,
        slot_grads: dict[int, Array],
        asked: tuple[str, ...],
    ) -> Generator[LayerGradients, None, None]:
        """As `Pass`."""
        plan = self.plan
        full = {slot for name in plan.outputs for slot in plan.by_name[name].out_slots}
        if asked or slot_grads.keys() != full or self.program.stale(net):
            self.release()
            return BackwardWalk(plan, self._again(net, asked), slot_grads, asked).run()
        return self._replayed(slot_grads)

    def _again(self, net: Net, asked: tuple[str, ...]) -> list[Any]:
        plan = self.plan
        with net.rehearsal(), net.device.scope():
            net.rng.bit_generator.state = self.draws
            return plan.forward(self.feed, plan.outputs, net.device.ops, net.rng, True, asked)[1]

    def _replayed(self, slot_grads: dict[int, Array]) -> Generator[LayerGradients, None, None]:
        dy, plan = {}, self.plan
        for name in plan.outputs:
            parts = [slot_grads[slot] for slot in plan.by_name[name].out_slots]
            dy[name] = parts if plan.by_name[name].many_out else parts[0]
        slot_grads.clear()
        bound = self.program.bound(self.arena)
        keep(dy, bound.payloads[2][0])
        del dy
        try:
            for segment, payload in zip(bound.segments[3:], bound.payloads[3:], strict=False):
                run_all(segment)
                grads, layer, names = payload
                values = [self.program.values[name].value for name in names]
                # Copies, since the arena serves the next layer; the caller may keep them.
                yield LayerGradients(names, values, [_owned(g) for g in grads], layer, {})
        finally:
            self.release()


def _owned(grad: Any) -> Any:
    return grad.now() if isinstance(grad, RowsSource) else grad.copy()
