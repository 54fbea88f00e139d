"""Gradients that were asked for, by a recorded program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import pairwise
from typing import TYPE_CHECKING

from singanet.engine.gradients import Asked
from singanet.params.gradients import LayerGradients
from singanet.program.array_tree import map_arrays
from singanet.program.replay.replay import Replay, run_all
from singanet.program.replay.replayed_pass import owned
from singanet.program.trace.python_pass import copied, copy_into
from singanet.program.trace.recorder import targets
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net


def replayed_gradients(
    net: Net,
    program: Replay,
    asked: Asked,
    take: Callable[[Replay], Array],
    give_back: Callable[[Array], None],
) -> Generator[LayerGradients, None, None]:
    """The answers to what was ``asked``, as copies out of the arena."""
    arena = take(program)
    try:
        bound = program.bound(arena)
        given, beside = bound.feed.arrays
        assert bound.dy is not None
        scale, dys = bound.dy.arrays
        copy_into(asked.feed, given)
        there = net.device.ops.xp.ndarray
        copy_into(targets(asked.targets, asked.weight, there), beside)
        with program.showing(asked.targets, asked.weight):
            run_all(bound.feed.calls)
        scale[...] = asked.loss_scale or 0
        for head, dy in zip(asked.heads, dys, strict=True):
            head.fill(dy, net.device)
        for before, segment in pairwise([bound.dy, *bound.layers]):
            run_all(before.calls)
            grads, layer, names, outputs = segment.arrays
            values = [program.values[name].value for name in names]
            mine = {name: map_arrays(grad, copied) for name, grad in outputs.items()}
            yield LayerGradients(list(names), values, [owned(g) for g in grads], layer, mine)
            del mine
    finally:
        give_back(arena)
