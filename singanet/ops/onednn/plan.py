"""A prepared kernel call: primitives with their memory objects, run again on other arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from singanet.ops.onednn.binding import ExecArg, check

Stage = tuple[int, Any, int]
"""A primitive, its arguments and their number."""

_PAGE = 4096


class Plan:
    """Stages that run one after the other on the operands' addresses.

    A memory belongs to an operand by its number, or lies in scratch at an offset. A plan belongs
    to the thread that made it, since its memories are pointed at the operands of one call.
    """

    def __init__(
        self,
        c: Any,
        stream: Any,
        stages: Sequence[Stage],
        operands: Sequence[int],
        inside: Sequence[tuple[int, int]],
        scratch: int,
    ) -> None:
        self._execute: Callable[..., int] = c.dnnl_primitive_execute
        self._point: Callable[..., int] = c.dnnl_memory_set_data_handle
        self._stream = stream
        self._stages = tuple(stages)
        self._operands = tuple(operands)
        self._inside = tuple(inside)
        self._base = 0
        self.scratch = scratch
        memories = [*operands, *(memory for memory, _ in inside)]
        primitives = [primitive for primitive, _, _ in stages]
        weakref.finalize(self, release, c, primitives, memories).atexit = False

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run on the operands at ``addresses``, with `scratch` bytes to use at ``scratch``."""
        for memory, address in zip(self._operands, addresses, strict=True):
            self._point(memory, address)
        if scratch != self._base:
            for memory, offset in self._inside:
                self._point(memory, scratch + offset)
            self._base = scratch
        for primitive, arguments, count in self._stages:
            status = self._execute(primitive, self._stream, count, arguments)
            if status:
                check(status, "a kernel")


def release(c: Any, primitives: Sequence[int], memories: Sequence[int]) -> None:
    """Give primitives and memory objects back to oneDNN."""
    for primitive in primitives:
        c.dnnl_primitive_destroy(primitive)
    for memory in memories:
        c.dnnl_memory_destroy(memory)


def arguments_of(memories: dict[int, int]) -> tuple[Any, int]:
    """The arguments of an execution, and their number."""
    pairs = [ExecArg(int(arg), memory) for arg, memory in memories.items()]
    return (ExecArg * len(pairs))(*pairs), len(pairs)


def rounded(size: int) -> int:
    """``size`` up to whole pages, so that parts of the scratch do not share one."""
    return -(-size // _PAGE) * _PAGE
