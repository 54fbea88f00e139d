"""What the recording of a sealed net does beside that of the layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.engine.plan import Plan
from singanet.ops.interface import Ops, Prepared
from singanet.program.call import NotRecordableError
from singanet.program.places import arrays_in, map_arrays
from singanet.program.recording.folding import fold_layers
from singanet.program.recording.users import is_own
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.net import Net
    from singanet.loss.loss import Loss


def prepare(net: Net, plan: Plan, ops: Ops) -> None:
    """Take parameters for constants, and let kernels do several layers of ``plan`` at once."""
    # What was made writable by hand, or came since, is constant from now on, too.
    net.hold_constant()
    # Kernels for several layers would hide a parameter that is NaN already.
    if not any(np.isnan(value).any() for value in net.param_values()):
        ops.prepared = Prepared()
        fold_layers(plan)


def show_nan(ops: Ops, given: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
    """Let a NaN in a sample show in what comes out, whatever the kernels between make of it."""
    for y in arrays_in(outputs):
        for x in arrays_in(given):
            if len(x) == len(y):
                ops.pass_on_nan(y, x)


def linked(loss: Loss | None, out: Any) -> Any:
    """What `predict` makes of a net's output. Raises `NotRecordableError`."""
    out = map_arrays(out, _widened)
    if loss is None:
        return out
    if not is_own(loss):
        raise NotRecordableError("a link of a user's own")
    return loss.link(out)


def _widened(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype == np.float16 else array
