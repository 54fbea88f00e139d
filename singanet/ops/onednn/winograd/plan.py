"""A convolution by Winograd's transforms as a plan: NumPy's transforms around oneDNN's products."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from singanet.ops import winograd as wg
from singanet.ops.onednn.plan import KernelPlan, rounded
from singanet.types import Array, Parts, Shape, Work

Stage = list[list[Work]]
"""What each worker does, one after the other; all of them are done before the next stage."""

POINTS = wg.SPAN * wg.SPAN

_NONE: Mapping[str, int] = {}


class Area:
    """Operands at their addresses, and working memory for buffers that are known by name."""

    def __init__(
        self,
        addresses: Sequence[int],
        scratch: int,
        buffers: Mapping[str, int],
        shared: Area | None,
    ) -> None:
        self._addresses = addresses
        self._places: dict[str, int] = {} if shared is None else dict(shared._places)
        for name, size in buffers.items():
            self._places[name] = scratch
            scratch += rounded(size)

    @property
    def addresses(self) -> Sequence[int]:
        """Of the operands."""
        return self._addresses

    def place(self, name: str) -> int:
        """The address of a buffer."""
        return self._places[name]

    def operand(self, number: int, *shape: int) -> Array:
        """The operand as an array."""
        return _at(self._addresses[number], shape)

    def buffer(self, name: str, *shape: int) -> Array:
        """The buffer, or the start of it, as an array."""
        return _at(self._places[name], shape)

    def product(self, plan: KernelPlan, y: Array, a: Array, b: Array) -> Work:
        """A product on these arrays."""
        addresses = [array.__array_interface__["data"][0] for array in (y, a, b)]
        return plan.bound(addresses, self._places["product"])


class WinogradPlan:
    """A plan like `KernelPlan`, made of NumPy's steps and of products that are plans themselves.

    ``lay`` turns an area for each worker into stages, which ``side_by_side`` has them do. Each has
    ``buffers`` of its own, and all have the ``shared`` ones.
    """

    def __init__(
        self,
        side_by_side: Callable[[Parts], None],
        lay: Callable[[list[Area]], list[Stage]],
        buffers: Mapping[str, int],
        operands: int,
        writes: int,
        workers: int,
        shared: Mapping[str, int] = _NONE,
    ) -> None:
        self._side_by_side, self._lay = side_by_side, lay
        self._buffers, self._shared = buffers, shared
        self._each, self._common = (
            sum(map(rounded, given.values())) for given in (buffers, shared)
        )
        self.sizes = (0,) * operands
        self.writes = (writes,)
        self.reads = tuple(k for k in range(operands) if k != writes)
        self.scratch = self._common + workers * self._each
        self.threads = workers

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """See `KernelPlan`."""
        self.bound(addresses, scratch)()

    def bound(self, addresses: Sequence[int], scratch: int) -> Callable[[], None]:
        """See `KernelPlan`."""
        common, first = Area(addresses, scratch, self._shared, None), scratch + self._common
        places = [first + k * self._each for k in range(self.threads)]
        stages = self._lay([Area(addresses, place, self._buffers, common) for place in places])
        shared = self._side_by_side

        def run() -> None:
            for stage in stages:
                shared(stage)

        return run


def in_steps(steps: Sequence[wg.Step]) -> Work:
    """The steps as one piece of work."""

    def run() -> None:
        for function, a, b, out in steps:
            function(a, b, out)

    return run


def filled(target: Array, source: Array, top: int, left: int) -> list[Work]:
    """Copy images into larger ones from (top, left) on, with zeros around them."""
    h, w = source.shape[1:3]
    inside = target[:, top : top + h]
    borders = [target[:, :top], target[:, top + h :], inside[:, :, :left], inside[:, :, left + w :]]
    work = [_copy(border, np.float32(0)) for border in borders if border.size]
    return [*work, _copy(inside[:, :, left : left + w], source)]


def _copy(target: Array, source: Any) -> Work:
    return lambda: np.copyto(target, source)


def _at(address: int, shape: Shape) -> Array:
    raw: Any = (ctypes.c_char * (4 * prod(shape))).from_address(address)
    return np.frombuffer(raw, np.float32).reshape(shape)
