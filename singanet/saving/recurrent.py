"""The recurrent layers of a net, whose weights SINGA keeps as one array each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from singanet.checkpoint.matching import Target
from singanet.checkpoint.packed import Packed
from singanet.checkpoint.rules import PACKED_RULE

if TYPE_CHECKING:
    from singanet.engine.model import Model
    from singanet.layers import RNN


def packed_layers(net: Model) -> list[Packed]:
    """The arrays in SINGA's files for each recurrent layer of ``net``."""
    from singanet.layers import RNN

    layers = [layer for layer in net.layers if isinstance(layer, RNN) and layer.params]
    return [_packed(layer) for layer in layers]


def _packed(layer: RNN) -> Packed:
    members = tuple(param.name for param in layer.params.values() if not param.is_state)
    dtype = np.dtype(next(iter(layer.params.values())).value.dtype)
    rule = f"unpacked into {len(members)}: {PACKED_RULE}"
    target = Target((layer.packed_size(),), dtype, rule)
    return Packed(_name(layer), target, members, layer.pack, layer.unpack)


def _name(layer: RNN) -> str:
    """``layer/weight``, or the name that its spec gives to all arrays."""
    starts = {param.name.removesuffix(f"/{suffix}") for suffix, param in layer.params.items()}
    given = starts.pop() if len(starts) == 1 else layer.name
    return f"{layer.name}/weight" if given == layer.name else given
