"""Provide kernels, the only access to hardware.

`interface` declares every kernel, `kernel` its routes, `window` the cases. `selection` chooses the
backend: `numpy`, `llvm` (compiled by `compiled`) or `onednn`, by `costs`. `narrow`, `narrowing` and
`narrow_products` are weights in narrow types, `casts` float16. `threads`, `workers` and `blas`
divide work among threads, `draws` random numbers; `transfers` copies to a device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:  # else when they are asked for: what is written with kernels needs none
    from singanet.ops.interface import Ops
    from singanet.ops.numpy import NumpyOps, numpy_ops
    from singanet.ops.selection import (
        Backend,
        add_array_module,
        array_module,
        backends,
        cpu_ops,
        ops_for,
    )

__all__ = [
    "Backend",
    "NumpyOps",
    "Ops",
    "add_array_module",
    "array_module",
    "backends",
    "cpu_ops",
    "numpy_ops",
    "ops_for",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
