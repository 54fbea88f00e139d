"""The device of a net's arrays: the CPU, or a CUDA device through CuPy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.elsewhere import missing_attribute, names_of
from singanet.base.kinds import native
from singanet.errors import ArgumentError, BackendError
from singanet.ops import Ops, backends, cpu_ops, ops_for
from singanet.ops.transfers import Transfers
from singanet.types import Array

__all__ = ["Device", "cpu", "cuda", "describe", "get_default_device"]

if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
    __getattr__, __dir__ = names_of(__name__, __all__)


@dataclass(frozen=True)
class Device:
    """A device for arrays.

    ``name`` is "cpu" or such as "cuda:0", ``ops`` are the kernels, and ``index`` is the number of
    the GPU, None for the CPU. ``changes`` are the functions that changed the plain device's
    kernels, in order, for pickles.
    """

    name: str
    ops: Ops = field(repr=False)
    index: int | None = None
    changes: tuple[Callable[[Device], Device], ...] = field(default=(), repr=False, compare=False)
    """The functions that changed the plain device's kernels, in order, for pickles."""

    if not TYPE_CHECKING:  # a `__getattr__` would let type checkers accept any name
        __getattr__ = missing_attribute

    def __deepcopy__(self, memo: dict[int, Any]) -> Device:
        """Return this device: a copy of a net is on the same device."""
        return self

    def __reduce__(self) -> Any:
        """Pickle index and `changes`: the process that loads it chooses its kernels."""
        return _made_anew, (self.index, self.changes)

    def _with_ops(self, ops: Ops, change: Callable[[Device], Device]) -> Device:
        """Return the device with kernels ``ops``, which ``change`` makes from this device."""
        return Device(self.name, ops, self.index, (*self.changes, change))

    def put(self, array: Any) -> Array:
        """Copy ``array`` to this device, in native byte order; return it if it is there already."""
        if self.ops.xp is np:
            # The common case first: small steps call this several times.
            if type(array) is np.ndarray and array.dtype.isnative:
                return array
            found: Array = native(array.get() if hasattr(array, "get") else np.asarray(array))
            return found
        with self.scope():
            return self.ops.xp.asarray(array)

    def carrier(self) -> Callable[[Any], Any]:
        """Return a function that copies batches to this device, for the thread of a `Prefetch`.

        It replaces the NumPy arrays of a batch by arrays on the device, copied through pinned
        memory on a separate stream while kernels run. Call it in the training thread. On the CPU it
        returns batches unchanged.
        """
        return _as_it_is if self.ops.xp is np else BatchCarrier(self)

    def _narrowed(self, where: str, stores: bool = True) -> Device:
        """Return the device with kernels that round the operands of products to bfloat16.

        With ``stores`` programs store arrays in bfloat16 that only oneDNN's kernels access. Errors:
        `BackendError` if kernels or processor lack such products.
        """
        # Imported at first use, as oneDNN is.
        from singanet.ops.onednn.products import narrowed

        ops = narrowed(self.ops, where, stores)
        if ops is self.ops:
            return self
        return self._with_ops(ops, partial(Device._narrowed, where="a copy", stores=stores))

    def _narrow_pays(self) -> bool:
        """Return whether the device can be `_narrowed`, and bfloat16 products are much faster."""
        from singanet.ops.onednn.products import narrow_pays as pays

        return pays(self.ops)

    def _widened(self) -> Device:
        """Return the device with kernels that do not round float32."""
        return cpu() if getattr(self.ops, "narrow", False) else self

    def scope(self) -> AbstractContextManager[Any]:
        """Return a context in which new arrays are made on this device."""
        if self.index is None:
            return nullcontext()
        return self.ops.xp.cuda.Device(self.index)


def _made_anew(index: int | None, changes: tuple[Callable[[Device], Device], ...]) -> Device:
    """Return the device number ``index``, after ``changes``. Errors: as they raise."""
    device = cpu() if index is None else cuda(index)
    for change in changes:
        device = change(device)
    return device


def _as_it_is(batch: Any) -> Any:
    return batch


class BatchCarrier:
    """Copies batches of NumPy arrays, in tuples, lists and dicts, to ``device``."""

    def __init__(self, device: Device) -> None:
        self._device, self._transfers = device, Transfers(device.ops.xp, device.scope)

    def __reduce__(self) -> Any:
        """Pickle the device: each carrier has its own streams and pinned memory."""
        return BatchCarrier, (self._device,)

    def __call__(self, batch: Any) -> Any:
        """Return the batch on the device; leave anything but arrays of numbers unchanged."""
        if isinstance(batch, np.ndarray):
            return self._brought(batch) if batch.dtype.kind in "fiub" else batch
        if isinstance(batch, dict):
            return {name: self(part) for name, part in batch.items()}
        if type(batch) in (tuple, list):
            return type(batch)(map(self, batch))
        return batch

    def _brought(self, array: Array) -> Array:
        made = self._transfers.new(array.shape, array.dtype.newbyteorder("="))
        np.copyto(self._transfers.staged(made), array)
        self._transfers.send(made)
        return made


@cache
def cpu() -> Device:
    """Return the CPU device. Errors: kernels requested by ``SINGANET_OPS`` are missing."""
    return Device("cpu", cpu_ops())


def get_default_device() -> Device:
    """Return the device of a new net: the CPU."""
    return cpu()


def cuda(index: int = 0) -> Device:
    """Return a CUDA device.

    Errors: `BackendError` without CuPy or a driver; `ArgumentError` if there is no such device.

    Args:
        index: Number of the GPU, from 0.
    """
    try:
        import cupy
    except ImportError as error:
        raise BackendError(
            f"device 'cuda:{index}'",
            expected="the package cupy",
            received=str(error),
            advice="run: pip install cupy-cuda13x",
        ) from error
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise BackendError(
            f"device 'cuda:{index}'",
            expected="a CUDA device with its driver",
            received=str(error),
            advice="install the NVIDIA driver, or use singanet.device.cpu()",
        ) from error
    if not 0 <= index < count:
        raise ArgumentError(
            f"device 'cuda:{index}'",
            expected=f"an index from 0 to {count - 1}",
            received=str(index),
            advice="choose an existing device",
        )
    return Device(f"cuda:{index}", ops_for(cupy.empty(0)), index)


def describe() -> str:
    """Return a table of devices and kernels: available ones, used ones, and missing ones with why.

    It loads the libraries for their versions. Errors: as for `cpu`.
    """
    serving = cpu().ops.remarks()
    rows = []
    for backend in backends():
        in_use = backend.name in serving and backend.available
        state = "in use" if in_use else "there" if backend.available else "missing"
        detail = "; ".join([backend.detail, *serving.get(backend.name, [])])
        rows.append(("cpu", backend.name, state, backend.version, detail))
    try:
        cupy: Any = cuda().ops.xp
        rows.append(("cuda", "cupy", "there", cupy.__version__, "singanet.device.cuda()"))
    except BackendError as error:
        rows.append(("cuda", "cupy", "missing", "", f"{error.received}; {error.advice}"))
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )
