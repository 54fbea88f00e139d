"""What a net takes in memory, and moves in a step, while its arrays are in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from singanet.offload.executor import is_large, least_keep
from singanet.optimizer.chain import UpdateChain

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.params.param import Param


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
    chain = UpdateChain(optimizer)
    rule = chain.own_rule

    def itemsize(param: Param) -> int:
        # In mixed precision the rule sees masters.
        return param.array_type.itemsize if chain.scaled is None else 4

    def state_of(param: Param) -> int:
        if rule is None or not param.trainable:
            return 0
        return sum(rule.slot_sizes(param.shape)) * itemsize(param)

    params = net.params()
    values = [(param, param.value.nbytes) for param in params]
    small = [(param, size) for param, size in values if not is_large(param)]
    large = [(param, size) for param, size in values if is_large(param)]
    moved = sum(state_of(param) for param, _ in large)
    written = sum(size for param, size in large if param.trainable)
    return Offload(
        sum(size for _, size in small),
        sum(state_of(param) for param, _ in small),
        sum(size for _, size in large) + moved,
        least_keep(net, lambda param: param.value.nbytes + state_of(param))[0],
        # Once forward and once backward.
        2 * sum(size for _, size in large),
        written + 2 * moved,
        sum(prod(param.shape) * itemsize(param) for param in params if param.trainable),
    )
