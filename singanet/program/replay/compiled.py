"""A program made now, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from singanet.base.heap import trim
from singanet.program.ir import NotRecordableError
from singanet.program.replay.replay import Replay
from singanet.program.trace.recorder import Recorder, no_collections, rehearse

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.engine.plan import Plan
    from singanet.program.recompute.choice import Recompute


def recorded(
    net: Net,
    record: Callable[[Recorder], None],
    optimizer: Any,
    recompute: Recompute,
    plan: Plan | None = None,
) -> Replay | str:
    """The program that ``record`` writes down of ``net``, or the reason why it cannot be.

    ``plan`` is a part of the net's, None for all of it.
    """
    try:
        with no_collections():
            made = Replay(rehearse(net, record, plan), optimizer, recompute)
    except NotRecordableError as error:
        return str(error)
    # The arena has room for what kernels work in; the layers' calls before needed their own.
    net.device.ops.trim()
    # What the rehearsal has freed, too: a later program may run in an arena that is there already.
    trim()
    return made
