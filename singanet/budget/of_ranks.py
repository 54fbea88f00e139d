"""What a process has beside a plain step, and need not have, where several keep the state."""

from __future__ import annotations

from heapq import nlargest
from typing import TYPE_CHECKING, Any

from singanet.base.arguments import checked_count
from singanet.optimizer.chain import UpdateChain
from singanet.parallel.reductions.cut import Cut
from singanet.params.storage import SMALL
from singanet.program.memory import as_trained

if TYPE_CHECKING:
    from singanet.engine.net import Net

_UNDER_WAY = 5
"""Sums that `parallel.Sharded` has under way at most by default, the one it waits for too."""


def of_one_rank(net: Net, optimizer: Any, ranks: int) -> dict[str, int]:
    """Bytes by purpose, for the one of ``ranks`` with most: what others keep is below 0.

    They train by `parallel.Sharded`. Errors: ``ranks`` that are no positive int.
    """
    count = checked_count("net.plan", "ranks", ranks, 1)
    if count == 1:
        return {}
    params = [*net.execution_plan().trained_params()]
    chain = UpdateChain(as_trained(net, optimizer))
    largest = nlargest(_UNDER_WAY, (param.nbytes for param in params))
    spared = Cut(SMALL).spared(params, chain, count)
    # What is sent, and what comes.
    return {"sums": 2 * sum(largest), "state of other ranks": -spared}
