"""The running state of layers, which each rank moves by its own samples, as that of all."""

from __future__ import annotations

from typing import Any

import numpy as np

from singanet.base.collectives import Collectives, gathered
from singanet.ops import ops_for


def average_state(net: Any, comm: Collectives, samples: float) -> None:
    """Let the state of the layers of ``net`` be what `Layer.merged_state` makes of all ranks'.

    Each weighs by its ``samples``; where no rank has any, all weigh alike. State that is the same
    on all ranks stays so to the bit.
    """
    states = {}
    for layer in net.layers:
        own = {k: p for k, p in layer.params.items() if p.is_state and not p.is_constant}
        if own:
            states[layer.name] = layer, own
    if not states:
        return
    values = {
        name: {key: np.array(ops_for(p.value).host(p.value)) for key, p in own.items()}
        for name, (_, own) in states.items()
    }
    parts = gathered(comm, (float(samples), values), "the running state")
    weights = np.array([weight for weight, _ in parts])
    shares = weights / weights.sum() if weights.sum() else np.full(comm.size, 1.0 / comm.size)
    for name, (layer, own) in states.items():
        of_ranks = {key: np.stack([part[name][key] for _, part in parts]) for key in own}
        if all((array == array[:1]).all() for array in of_ranks.values()):
            continue
        for key, merged in layer.merged_state(of_ranks, shares).items():
            value = own[key].value
            value[...] = ops_for(value).xp.asarray(merged, value.dtype)
