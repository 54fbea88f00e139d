"""Lowering: how recorded calls run on the arrays of a backend, and where these lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from singanet.base.addresses import address
from singanet.program.bind_call import Ready, ready_call
from singanet.program.ir import Call, Ref
from singanet.program.launches import Launches
from singanet.program.layout.arena import ALIGNMENT
from singanet.program.share_sweeps import ready_in_parts
from singanet.types import Array

Lowered = tuple[Callable[..., Any], dict[str, Any]]
"""A function of a backend, and what it is given by name."""


class ReadyCalls(Protocol):
    """ReadyCalls that are ready to be made, whose iterators tell as a hint how many are left."""

    def __iter__(self) -> Iterator[Ready]:
        """From the first one on."""


class Lowering(Protocol):
    """A backend of programs: it has their memory, and makes their calls ready."""

    @property
    def beside(self) -> int:
        """Bytes that its kernels work in, beside the memory of programs."""

    def memory(self, size: int) -> Array:
        """An array of so many bytes."""

    def start(self, memory: Array) -> int:
        """The byte of ``memory`` at which a program may begin."""

    def array(self, ref: Ref, memory: Array, start: int) -> Array:
        """The array at ``ref`` in ``memory``, in which its token begins at ``start``."""

    def outside(self, outside: Mapping[Ref, Array]) -> Mapping[Ref, Array]:
        """The arrays of the backend for those that lie ``outside`` of a recording's arena."""

    def ordered(self, calls: Sequence[Call]) -> list[Call]:
        """``calls`` in the order in which the backend had rather make them."""

    def expect_known(self, calls: Sequence[Call]) -> None:
        """Refuse calls of which the backend has no form. Raises `NotRecordableError`."""

    def ready(self, calls: Sequence[Call], array_of: Callable[[Ref], Array]) -> ReadyCalls:
        """``calls`` on the arrays at their refs."""

    def once(self, call: Call, array_of: Callable[[Ref], Array]) -> None:
        """Make ``call`` now, on the arrays at its refs, and no other time."""

    def returning(self, function: Any, named: Mapping[str, Any]) -> Lowered:
        """The form of NumPy's ``function``, given ``named``, that returns what it makes.

        Raises `NotRecordableError` where the backend has none.
        """

    def singly(self, calls: Any) -> Iterator[Ready]:
        """Of what `ready` made, each recorded call by itself, which is over when it returns."""

    def launches(self, calls: Any) -> Launches | None:
        """What the host asks a device for to make what `ready` made; None where it computes."""

    def fill(self, target: Array, value: Any) -> None:
        """Copy the caller's ``value`` to ``target``."""


class OnHost:
    """ReadyCalls of NumPy and of the CPU's kernels."""

    beside = 0

    def memory(self, size: int) -> Array:
        """As `Lowering`."""
        return np.empty(size, np.uint8)

    def start(self, memory: Array) -> int:
        """As `Lowering`: an aligned address."""
        return -address(memory) % ALIGNMENT

    def array(self, ref: Ref, memory: Array, start: int) -> Array:
        """As `Lowering`."""
        return ref.array(memory, start)

    def outside(self, outside: Mapping[Ref, Array]) -> Mapping[Ref, Array]:
        """As `Lowering`: themselves."""
        return outside

    def ordered(self, calls: Sequence[Call]) -> list[Call]:
        """As `Lowering`: as they are."""
        return list(calls)

    def expect_known(self, calls: Sequence[Call]) -> None:
        """As `Lowering`: there is none."""

    def ready(self, calls: Sequence[Call], array_of: Callable[[Ref], Array]) -> ReadyCalls:
        """As `Lowering`: large element-wise calls in parts for threads."""
        return tuple([ready_in_parts(call, array_of) for call in calls])

    def once(self, call: Call, array_of: Callable[[Ref], Array]) -> None:
        """As `Lowering`."""
        ready_call(call, array_of)()

    def returning(self, function: Any, named: Mapping[str, Any]) -> Lowered:
        """As `Lowering`: itself."""
        return function, dict(named)

    def singly(self, calls: Any) -> Iterator[Ready]:
        """As `Lowering`: so they are."""
        return iter(calls)

    def launches(self, calls: Any) -> None:
        """As `Lowering`: none."""

    def fill(self, target: Array, value: Any) -> None:
        """As `Lowering`."""
        np.copyto(target, value)


ON_HOST = OnHost()
