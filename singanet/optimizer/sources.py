"""An optimizer's state for files, one array at a time."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from singanet.checkpoint.entry import Source, sources_of
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.state import ParamState
from singanet.optimizer.wrapper import Wrapper
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.optimizer.reducer import Reducer


def state_sources(optimizer: Any, first_rows: dict[str, int] | None = None) -> list[Source]:
    """What ``optimizer.state_dict()`` gives, without copies and wherever the arrays are.

    A user's own `state_dict` is asked. The arrays are the optimizer's: to be written before its
    next step. With ``first_rows`` an optimizer that several processes have parts of gives those of
    this one, and says there with which rows they begin.
    """
    kind = type(optimizer)
    if first_rows is not None and isinstance(optimizer, Wrapper) and optimizer.waits:
        own = cast("Reducer", optimizer).own_parts(first_rows)
        if own is not None:
            return own
    if isinstance(optimizer, Wrapper) and kind.state_dict is Wrapper.state_dict:
        inner = {source.name: source for source in state_sources(optimizer.optimizer, first_rows)}
        mine = sources_of(optimizer.own_state(), kind.__name__)
        return list((inner | {source.name: source for source in mine}).values())
    if isinstance(optimizer, Optimizer) and kind.state_dict is Optimizer.state_dict:
        found = [
            source
            for state in optimizer.states()
            if state.step
            for source in _of_parameter(state, optimizer.slots)
        ]
        return [*found, *sources_of(optimizer.hyper_state(), kind.__name__)]
    return sources_of(optimizer.state_dict(), kind.__name__)


def _of_parameter(state: ParamState, slots: tuple[str, ...]) -> list[Source]:
    """As `singanet.optimizer.state.dump` has them."""
    step = np.array(state.step, np.int64)
    found = [Source(f"{state.name}/step", (), np.dtype("<i8"), lambda: step)]
    sizes, types = state.kinds()
    # Of what others update there are none.
    for k, (slot, size, dtype) in enumerate(zip(slots[: len(sizes)], sizes, types, strict=True)):
        whole = state.shape is not None and size == prod(state.shape)
        shape = state.shape if whole and state.shape is not None else (size,)

        def fetch(k: int = k) -> Array:
            return state.arrays[k]

        found.append(Source(f"{state.name}/{slot}", shape, dtype.newbyteorder("<"), fetch))
    return found
