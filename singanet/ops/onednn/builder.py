"""Building of plans: descriptors, primitives, and the reorders that weights need."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from singanet.ops.onednn.binding import (
    F32,
    FORMAT_ANY,
    MADE_BACKWARD,
    MADE_FORWARD,
    NOT_OFFERED,
    QUERY_IMPLEMENTATION,
    SCRATCHPAD_USER,
    Algorithm,
    Arg,
    Query,
    check,
    dims,
)
from singanet.ops.onednn.plan import Memory, Place, Plan, Primitive, Recipe, Stage, release, rounded
from singanet.types import Shape


class NotOfferedError(Exception):
    """OneDNN has no good kernel for the case; the caller stays with NumPy."""


class Builder:
    """Collects the stages of one plan, and what has to be destroyed when it is built.

    Operands are numbered in the order in which the plan's caller will give their addresses.
    """

    def __init__(self, place: Place, attributes: Any, threads: int) -> None:
        self.c = place.c
        self.threads = threads
        self._place = place
        self._engine = place.engine
        self._attributes = attributes
        self._undo: list[tuple[Callable[[Any], int], Any]] = []
        self._stages: list[Stage] = []
        self._operands: dict[int, Memory] = {}
        self._sizes: dict[int, int] = {}
        self._inside: list[tuple[Memory, int]] = []
        self._reads: set[int] = set()
        self._writes: set[int] = set()
        self._scratch = 0
        self._finished = False

    # -- descriptors ------------------------------------------------------------------------

    def strided(self, shape: Shape, strides: Shape, kind: int = F32) -> Any:
        """A descriptor of memory with ``strides`` in elements."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_strides
        status = create(ctypes.byref(made), len(shape), dims(shape), kind, dims(strides))
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def rows(self, shape: Shape) -> Any:
        """A descriptor of C-ordered memory."""
        strides = [1]
        for size in reversed(shape[1:]):
            strides.append(strides[-1] * max(size, 1))
        return self.strided(shape, tuple(reversed(strides)))

    def images(self, nhwc: Shape, kind: int = F32) -> Any:
        """A descriptor of channels-last images, whose axes oneDNN counts as N, C, H, W."""
        n, h, w, c = nhwc
        return self.strided((n, c, h, w), (h * w * c, 1, w * c, c), kind)

    def free(self, shape: Shape) -> Any:
        """A descriptor whose layout oneDNN chooses."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_tag
        status = create(ctypes.byref(made), len(shape), dims(shape), F32, FORMAT_ANY)
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def post_ops(self, add: bool = False, relu: bool = False) -> Any:
        """Attributes of a primitive: ``add`` to what is there, then ``relu``."""
        chain, attributes, c = ctypes.c_void_p(), ctypes.c_void_p(), self.c
        check(c.dnnl_primitive_attr_create(ctypes.byref(attributes)), "making attributes")
        self._undo.append((c.dnnl_primitive_attr_destroy, attributes))
        check(c.dnnl_post_ops_create(ctypes.byref(chain)), "making post-ops")
        self._undo.append((c.dnnl_post_ops_destroy, chain))
        if add:
            check(c.dnnl_post_ops_append_sum(chain, 1.0, 0, F32), "appending a sum")
        if relu:
            check(c.dnnl_post_ops_append_eltwise(chain, int(Algorithm.RELU), 0.0, 0.0), "a relu")
        check(c.dnnl_primitive_attr_set_post_ops(attributes, chain), "setting post-ops")
        check(c.dnnl_primitive_attr_set_scratchpad_mode(attributes, SCRATCHPAD_USER), "scratch")
        return attributes

    def primitive_desc(
        self, kind: str, *arguments: Any, slow: bool = False, attributes: Any = None
    ) -> Any:
        """A primitive descriptor. Raises `NotOfferedError` where there is no kernel.

        Reference kernels, which are slow, count as none unless ``slow`` says otherwise.
        """
        create = getattr(self.c, f"dnnl_{kind}_primitive_desc_create")
        engines = () if kind == "reorder" else (self._engine,)
        made = ctypes.c_void_p()
        chosen = attributes or self._attributes
        status = create(ctypes.byref(made), *engines, *arguments, chosen)
        if status in NOT_OFFERED:
            raise NotOfferedError(kind)
        check(status, f"describing {kind}")
        self._undo.append((self.c.dnnl_primitive_desc_destroy, made))
        if not slow and self.implementation(made).startswith("ref"):
            raise NotOfferedError(kind)
        return made

    def implementation(self, primitive_desc: Any) -> str:
        """The name of the kernel that oneDNN chose."""
        name = ctypes.c_char_p()
        query = self.c.dnnl_primitive_desc_query
        status = query(primitive_desc, QUERY_IMPLEMENTATION, 0, ctypes.byref(name))
        check(status, "naming a kernel")
        return (name.value or b"").decode()

    def layout(self, primitive_desc: Any, which: Query, index: int = 0) -> Any:
        """The layout that the primitive wants; it lives as long as the builder."""
        return self.c.dnnl_primitive_desc_query_md(primitive_desc, int(which), index)

    def same(self, a: Any, b: Any) -> bool:
        """Whether two descriptors describe the same memory."""
        return bool(self.c.dnnl_memory_desc_equal(a, b))

    # -- memories and stages ----------------------------------------------------------------

    def operand(self, number: int, descriptor: Any) -> Memory:
        """A memory that will be pointed at the operand ``number``."""
        memory = self._operands[number] = self._memory(descriptor)
        self._sizes[number] = self.size(descriptor)
        return memory

    def packed_output(
        self, number: int, plain: Any, made: Any
    ) -> tuple[Memory, Callable[[], None]]:
        """A memory in the layout ``made`` for the operand ``number``, and what brings it there."""
        target = self.operand(number, plain)
        if self.same(plain, made):
            return target, lambda: None
        packed = self.inner(made)
        return packed, lambda: self.reorder(made, packed, plain, target)

    def operands(self, arguments: Sequence[Arg], layouts: Sequence[Any]) -> dict[Arg, Memory]:
        """Memories for the operands 0, 1, ..., by the argument that each is."""
        pairs = enumerate(zip(arguments, layouts, strict=True))
        return {arg: self.operand(number, layout) for number, (arg, layout) in pairs}

    def size(self, descriptor: Any) -> int:
        """The bytes of memory so described; 0 for none."""
        return int(self.c.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0

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
        self._stages.append(Stage(Primitive(self.c, kernel.value or 0), given))

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

    # -- the end ----------------------------------------------------------------------------

    def apart(self, build: Callable[..., object], *key: Any) -> Plan:
        """A plan of its own, for one that is made of several."""
        other = Builder(self._place, self._attributes, self.threads)
        try:
            build(other, *key)
            return other.plan()
        finally:
            other.close()

    def plan(self) -> Plan:
        """The finished plan."""
        recipe = Recipe(
            stages=tuple(self._stages),
            operands=tuple(self._operands[number] for number in sorted(self._operands)),
            sizes=tuple(self._sizes[number] for number in sorted(self._sizes)),
            inside=tuple(self._inside),
            scratch=self._scratch,
            reads=tuple(sorted(self._reads)),
            writes=tuple(sorted(self._writes)),
        )
        self._finished = True
        return Plan(self._place, recipe, self.threads)

    def close(self) -> None:
        """Destroy the descriptors, which a plan does not need, and the rest where none was made."""
        if not self._finished:
            release(self.c, [*self._operands.values(), *(memory for memory, _ in self._inside)])
        for destroy, what in reversed(self._undo):
            destroy(what)
        self._undo.clear()
