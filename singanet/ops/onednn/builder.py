"""Building of plans: memories, stages, and the reorders that weights need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from singanet.ops.onednn.binding import BF16, F32, MADE_BACKWARD, MADE_FORWARD, Arg, Query, check
from singanet.ops.onednn.descriptors import Descriptors
from singanet.ops.onednn.library import HAS_WIDE
from singanet.ops.onednn.plan import (
    EngineStream,
    KernelPlan,
    KernelRecipe,
    KernelStage,
    Memory,
    Primitive,
    release,
    rounded,
)


class Builder(Descriptors):
    """Collects the stages of one plan, and what has to be destroyed when it is built.

    Operands are numbered in the order in which the plan's caller will give their addresses.
    """

    def __init__(
        self,
        place: EngineStream,
        attributes: Any,
        threads: int,
        factors: int = F32,
        brief: bool = False,
        stored: Collection[int] = (),
    ) -> None:
        """``stored`` are the numbers of operands that lie in bfloat16."""
        super().__init__(place, attributes, factors)
        self.threads, self.brief = threads, brief
        self.side_by_side = place.side_by_side
        self._stored, self.stores = stored, bool(stored)
        self._open: set[int] = set()
        self._rounded: set[int] = set()
        self._stages: list[KernelStage] = []
        self._operands: dict[int, Memory] = {}
        self._sizes: dict[int, int] = {}
        self._inside: list[tuple[Memory, int]] = []
        self._reads: set[int] = set()
        self._writes: set[int] = set()
        self._scratch = 0
        self.products = False
        self.packing = 0
        self._finished = False

    def operand(self, number: int, descriptor: Any) -> Memory:
        """A memory that will be pointed at the operand ``number``."""
        memory = self._operands[number] = self._memory(descriptor)
        self._sizes[number] = self.size(descriptor)
        return memory

    def kind(self, number: int) -> int:
        """The type of the operand ``number``, which may lie in bfloat16 as well as in float32."""
        self._open.add(number)
        return BF16 if number in self._stored else F32

    def factor(self, number: int) -> int:
        """As `kind`; the operand is rounded to the type of factors if it is stored in another."""
        kind = self.kind(number)
        if kind != self.factors:
            self._rounded.add(number)
        return kind

    def packed_output(
        self, number: int, plain: Any, made: Any, adds: bool = False
    ) -> tuple[Memory, Callable[[], None]]:
        """A memory in the layout ``made`` for the operand ``number``, and what brings it there.

        With ``adds`` what the operand holds, and is to be added to, comes into that memory first.
        """
        target = self.operand(number, plain)
        if self.same(plain, made):
            return target, lambda: None
        packed = self.inner(made)
        if adds:
            self.reorder(plain, target, made, packed)
        return packed, lambda: self.reorder(made, packed, plain, target)

    def operands(self, arguments: Sequence[Arg], layouts: Sequence[Any]) -> dict[Arg, Memory]:
        """Memories for the operands 0, 1, ..., by the argument that each is."""
        pairs = enumerate(zip(arguments, layouts, strict=True))
        return {arg: self.operand(number, layout) for number, (arg, layout) in pairs}

    def common_kind(self, *numbers: int) -> int:
        """The type of a kernel that has one for these operands: float32 unless all are bfloat16."""
        return F32 if F32 in [self.kind(number) for number in numbers] else BF16

    def alike(self, describe: Callable[[int], Any], *numbers: int) -> tuple[list[Any], Any]:
        """Layouts of operands, each of its `kind`, and the one of their `common_kind`."""
        kinds = [self.kind(number) for number in numbers]
        return [describe(kind) for kind in kinds], describe(self.common_kind(*numbers))

    def stage_on(
        self,
        primitive_desc: Any,
        order: Sequence[Arg],
        plain: Sequence[Any],
        wanted: Sequence[Any],
        fills: Collection[Arg] = (),
        others: Mapping[Arg, Memory] = MappingProxyType({}),
    ) -> None:
        """As `stage`, on the operands 0, 1, ... for the arguments in ``order``, and ``others``.

        What is not as ``wanted`` is brought there first, or comes from there.
        """
        made = MADE_BACKWARD if Arg.DIFF_DST in order else MADE_FORWARD
        memories: dict[Arg, Memory] = {}
        after = []
        for number, (arg, here, there) in enumerate(zip(order, plain, wanted, strict=True)):
            if arg in made:
                memories[arg], bring = self.packed_output(number, here, there)
                after.append(bring)
            else:
                memories[arg] = self.packed_input(number, here, there)
        self.stage(primitive_desc, {**memories, **others}, fills)
        for bring in after:
            bring()

    def inner(self, descriptor: Any) -> Memory:
        """A memory in scratch."""
        memory = self._memory(descriptor)
        self._inside.append((memory, self._scratch))
        self._scratch += rounded(self.size(descriptor))
        return memory

    def _memory(self, descriptor: Any) -> Memory:
        made = ctypes.c_void_p()
        # A null handle: no memory of its own, and none to point at yet.
        status = self.c.dnnl_memory_create(ctypes.byref(made), descriptor, self._engine, None)
        check(status, "making a memory object")
        return int(made.value or 0)

    def stage(
        self,
        primitive_desc: Any,
        memories: Mapping[Arg, Memory],
        fills: Collection[Arg] = (),
        adds_to: Collection[Arg] = (),
    ) -> None:
        """Run the primitive on ``memories`` as the next stage.

        ``fills`` names what this primitive writes besides its usual results, ``adds_to`` what it
        reads before it writes it.
        """
        made = MADE_BACKWARD if Arg.DIFF_DST in memories else MADE_FORWARD
        self._note(memories, {*made, *fills}, adds_to)
        given = {int(arg): memory for arg, memory in memories.items()}
        pad = self.layout(primitive_desc, Query.SCRATCHPAD)
        if self.size(pad):
            given[int(Arg.SCRATCHPAD)] = self.inner(pad)
        kernel = ctypes.c_void_p()
        check(self.c.dnnl_primitive_create(ctypes.byref(kernel), primitive_desc), "making a kernel")
        self._stages.append(KernelStage(Primitive(self.c, kernel.value or 0), given))

    def _note(
        self, memories: Mapping[Arg, Memory], written: set[Arg], adds_to: Collection[Arg]
    ) -> None:
        numbers = {memory: number for number, memory in self._operands.items()}
        used = {arg: numbers[memory] for arg, memory in memories.items() if memory in numbers}
        # What an earlier stage wrote is not read from before the plan.
        read = {number for arg, number in used.items() if arg not in written or arg in adds_to}
        self._reads |= read - self._writes
        self._writes |= {number for arg, number in used.items() if arg in written}

    def reorder(self, source: Any, from_memory: Memory, target: Any, to_memory: Memory) -> None:
        """Copy from one layout to another as the next stage."""
        engine = self._engine
        described = self.primitive_desc("reorder", source, engine, target, engine, slow=True)
        self.stage(described, {Arg.SRC: from_memory, Arg.DST: to_memory})

    def packed_input(self, number: int, plain: Any, wanted: Any) -> Memory:
        """The operand ``number`` in the ``wanted`` layout, reordered first where that differs."""
        memory = self.operand(number, plain)
        if self.same(plain, wanted):
            return memory
        packed = self.inner(wanted)
        self.reorder(plain, memory, wanted, packed)
        return packed

    def apart(self, build: Callable[..., object], *key: Any) -> KernelPlan:
        """A plan for one thread, whichever that is: a part of a plan that is made of several."""
        other = Builder(self._place, self._attributes, 1, self.factors)
        self._place.use_threads(1)
        try:
            build(other, *key)
            return other.plan()
        finally:
            other.close()
            self._place.use_threads(self.threads)

    def plan(self) -> KernelPlan:
        """The finished plan."""
        recipe = KernelRecipe(
            stages=tuple(self._stages),
            operands=tuple(self._operands[number] for number in sorted(self._operands)),
            sizes=tuple(self._sizes[number] for number in sorted(self._sizes)),
            inside=tuple(self._inside),
            scratch=self._scratch,
            reads=tuple(sorted(self._reads)),
            writes=tuple(sorted(self._writes)),
            products=self.products,
            packing=self.packing,
            open=frozenset(self._open),
            rounded=frozenset(self._rounded),
            wide=bool(self._place.c.dnnl_get_effective_cpu_isa() & HAS_WIDE),
        )
        self._finished = True
        return KernelPlan(self._place, recipe, self.threads, self.brief)

    def close(self) -> None:
        """Destroy the descriptors, which a plan does not need, and the rest if no plan was made."""
        if not self._finished:
            release(self.c, [*self._operands.values(), *(memory for memory, _ in self._inside)])
        self.forget()
