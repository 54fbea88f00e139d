"""Memory of an offloaded net, and its traffic with the folder in a step."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.offload.executor import is_large, least_keep
from singanet.optimizer.chain import UpdateChain

if TYPE_CHECKING:
    from singanet.engine.net import Net


@dataclass(frozen=True)
class Offload:
    """Bytes of a net with its optimizer, by where they are while it is offloaded.

    ``params`` and ``state`` stay in memory; of the ``stored`` others ``least`` have to be there
    at a time. A step in ``n`` parts reads and writes ``n * per_part + per_step``; a part leaves
    ``gradients`` for the next.
    """

    params: int
    state: int
    stored: int
    least: int
    per_part: int
    per_step: int
    gradients: int


def offload_of(net: Net, optimizer: Any) -> Offload:
    """`Offload` of ``net`` and ``optimizer``, None for no state."""
    chain, params = UpdateChain(optimizer), net.params()
    small = [param for param in params if not is_large(param)]
    large = [param for param in params if is_large(param)]
    stored, moved = sum(param.nbytes for param in large), sum(map(chain.state_bytes, large))
    trained = [param for param in params if param.trainable]
    return Offload(
        sum(param.nbytes for param in small),
        sum(map(chain.state_bytes, small)),
        stored + moved,
        least_keep(net, chain)[0],
        # Once forward and once backward.
        2 * stored,
        sum(param.nbytes for param in large if param.trainable) + 2 * moved,
        sum(prod(param.shape) * chain.rule_type(param).itemsize for param in trained),
    )
