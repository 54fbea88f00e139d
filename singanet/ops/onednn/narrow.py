"""Kernels that multiply bfloat16: float32 arrays outside, factors rounded in scratch memory.

Convolutions and large products round what they multiply to bfloat16, which has float32's range and
8 of its 24 bits, and sum in float32; recurrent ones the state h of each step too. All arrays that
they are called with are float32. Where a product of float32 is held for the faster, as on
processors with AVX-512 BF16 for some sizes and for convolutions in tiles, that is taken. What a
program stores in bfloat16: `singanet.program.narrow`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping
from typing import Any

from singanet.errors import BackendError
from singanet.ops.interface import Ops
from singanet.ops.kernel import cheapest
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.cases import Case
from singanet.ops.onednn.library import INSTALL
from singanet.ops.onednn.speeds import Speeds


class Estimated:
    """Takes the cheapest route that multiplies bfloat16, or float32 in tiles if that is cheaper.

    If there are neither the cheapest of all.
    """

    version = 0

    def choose(self, ops: Any, case: Case, estimates: Mapping[str, float]) -> str:
        """See `Chooser`: estimates are multiples of what float32 takes by the direct route."""
        speeds: Speeds = ops.speeds()
        rates = {
            "direct": speeds.narrow_direct / speeds.direct,
            "product": speeds.narrow / speeds.direct,
            "compiled": 1.0,
        }
        return cheapest({k: rates[k] * v for k, v in estimates.items() if k in rates} or estimates)


def narrowed(ops: Ops, where: str, stores: bool = True) -> Ops:
    """``ops`` with factors of bfloat16, and plans of its own; itself where it is so already.

    ``stores`` lets programs keep so what they can.

    Errors: `BackendError` for kernels, or on a processor, without them.
    """
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if not isinstance(ops, OneDnnBase) or library is None:
        received, advice = f"those of {ops.name}", INSTALL
    elif not library.bfloat16:
        received = "oneDNN on a processor without such products"
        advice = "use a processor with AVX-512 BF16 or AMX"
    else:
        return ops if ops.narrow and ops.stores == stores else _narrow(ops, stores)
    raise BackendError(
        where,
        expected="kernels that multiply bfloat16",
        received=received,
        advice=f'{advice}; "auto" takes float32 where there are none',
    )


def pays(ops: Ops) -> bool:
    """Whether ``ops`` can be `narrowed`, and products of bfloat16 are faster by a good part."""
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    if not isinstance(ops, OneDnnBase) or library is None:
        return False
    return library.bfloat16 and ops.speeds().narrow_pays


def _narrow(ops: OneDnnBase, stores: bool) -> OneDnnBase:
    made = copy.copy(ops)
    made.stores = stores
    made.narrow, made.chooser, made._local = True, Estimated(), threading.local()
    return made
