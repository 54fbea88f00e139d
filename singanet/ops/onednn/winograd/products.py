"""The products between Winograd's transforms, and those that transform the kernels."""

from __future__ import annotations

from collections.abc import Iterable

from singanet.ops.onednn.binding import Arg
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.plan import KernelPlan
from singanet.ops.onednn.winograd.plan import POINTS

_TAPS = 9


def products(
    build: Builder, rows: int, inner: int, cols: int, turned: tuple[bool, bool], adds: bool
) -> None:
    """36 products at once; ``turned`` tells which operands lie turned in memory."""
    sizes = (POINTS, rows, inner), (POINTS, inner, cols)
    memory = []
    for (g, m, k), swap in zip(sizes, turned, strict=True):
        memory.append(build.strided((g, m, k), (m * k, 1, m) if swap else (m * k, k, 1)))
    y = build.rows((POINTS, rows, cols))
    attributes = build.post_ops(add=adds)
    desc = build.primitive_desc("matmul", *memory, None, y, attributes=attributes)
    memories = build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, *memory])
    build.stage(desc, memories, adds_to=(Arg.DST,) if adds else ())


def enter_kernels(build: Builder, count: int, every: int) -> None:
    """(36, 9) times (9, count) of kernels (count, 9), into a band of (36, every)."""
    y, a = build.strided((POINTS, count), (every, 1)), build.rows((POINTS, _TAPS))
    _product(build, y, a, build.strided((_TAPS, count), (1, _TAPS)))


def leave_kernels(build: Builder, count: int, every: int) -> None:
    """(count, 36) of a band of (36, every) times (36, 9), into kernels (count, 9)."""
    y, a = build.rows((count, _TAPS)), build.strided((count, POINTS), (1, every))
    _product(build, y, a, build.rows((POINTS, _TAPS)))


def _product(build: Builder, y: object, a: object, b: object) -> None:
    desc = build.primitive_desc("matmul", a, b, None, y, slow=True)
    build.stage(desc, build.operands((Arg.DST, Arg.SRC, Arg.WEIGHTS), [y, a, b]))


def most_scratch(plans: Iterable[KernelPlan]) -> int:
    """The working memory of the hungriest."""
    return max(plan.scratch for plan in plans)
