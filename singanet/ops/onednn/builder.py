"""Build oneDNN's primitives, their descriptors and plans."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from singanet.base.heap import LARGE, large_arrays_apart
from singanet.ops.compiled.calls import Jobs, NativeCall
from singanet.ops.llvm.plans import rounded
from singanet.ops.onednn.binding import (
    BF16,
    F32,
    FORMAT_ANY,
    MADE_BACKWARD,
    MADE_FORWARD,
    NOT_OFFERED,
    QUERY_IMPLEMENTATION,
    Algorithm,
    Arg,
    ExecArg,
    Query,
    check,
    dims,
    failed,
)
from singanet.ops.onednn.library import is_wide
from singanet.types import Parts, Shape

_ANY = 0xFFFFFFFF
"""The bits of a status: none is set after success."""

Memory = int
"""The address of a oneDNN memory object."""


class Primitive:
    """A oneDNN primitive, destroyed with its last reference."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, c: Any, handle: int) -> None:
        self.handle = handle
        weakref.finalize(self, c.dnnl_primitive_destroy, handle).atexit = False


class KernelStage(NamedTuple):
    """A primitive, and the memory of each of its arguments."""

    primitive: Primitive
    memories: Mapping[int, Memory]


class KernelRecipe(NamedTuple):
    """The work and the arrays of a primitive.

    A memory belongs to an operand by index, or to an offset in scratch memory. ``sizes`` are the
    bytes of the operands, ``reads`` and ``writes`` indices of operands; a partly changed operand is
    in both. ``products`` means that the library's own matrix products run inside; they allocate
    ``packing`` bytes by malloc. ``open`` operands may be stored in bfloat16, ``rounded`` operands
    are rounded to it. ``wide`` code uses registers of 512 bits.
    """

    stages: Sequence[KernelStage]
    operands: Sequence[Memory]
    sizes: tuple[int, ...]
    inside: Sequence[tuple[Memory, int]]
    scratch: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    products: bool = False
    packing: int = 0
    open: frozenset[int] = frozenset()
    rounded: frozenset[int] = frozenset()
    wide: bool = False


class EngineStream(NamedTuple):
    """The environment of plans: the library's functions, an engine, a stream and threads.

    ``execute`` runs a primitive; ``execute_briefly`` runs a short one without releasing the
    interpreter's lock; ``execution`` is the address of both. ``use_threads`` makes a call that sets
    the thread count. ``side_by_side`` runs Python parts on its threads, ``jobs`` runs calls of C.
    """

    c: Any
    engine: Any
    stream: Any
    use_threads: Callable[[int], Callable[[], object]]
    execute: Callable[..., None]
    execute_briefly: Callable[..., None]
    side_by_side: Callable[[Parts], None]
    execution: int
    jobs: Jobs | None


class Calls:
    """The executions of stages on memory objects bound to addresses.

    It owns the memory objects, not the memory. It belongs to the thread that created it, and costs
    one execution for each stage.
    """

    __slots__ = ("__weakref__", "_primitives", "_use", "parts", "threads")

    def __init__(self, plan: KernelPlan, of: Mapping[Memory, Memory]) -> None:
        """``of`` maps each memory object of the plan's stages to its replacement."""
        place, stages = plan.place, plan.recipe.stages
        weakref.finalize(self, release, place.c, tuple(of.values())).atexit = False
        self.threads, self._use = plan.threads, plan.use
        self._primitives = [stage.primitive for stage in stages]
        execute = place.execute_briefly if plan.brief else place.execute
        self.parts: list[Callable[[], object]] = []
        for stage in stages:
            pairs = [ExecArg(arg, of[memory]) for arg, memory in stage.memories.items()]
            given = (ExecArg * len(pairs))(*pairs)
            handle, count = ctypes.c_void_p(stage.primitive.handle), ctypes.c_int(len(pairs))
            call = NativeCall(execute, handle, place.stream, count, given)
            numbers = stage.primitive.handle, place.stream.value, len(pairs)
            call.record = (place.execution, _ANY, *numbers, ctypes.addressof(given))
            call.brief, call.failed = plan.brief, failed
            self.parts.append(call)
        if plan.recipe.packing >= LARGE:
            # A block in the heap would leave a hole that glibc does not reuse next time.
            self.parts = [partial(_apart, self.parts)]

    def __call__(self) -> None:
        """Run the stages."""
        self._use()
        for call in self.parts:
            call()

    def after(self, threads: int) -> list[Callable[[], object]]:
        """Return the calls to run after a kernel with ``threads`` threads; 0 means any number."""
        return self.parts if threads == self.threads else [self._use, *self.parts]


def _apart(parts: Sequence[Callable[[], object]]) -> None:
    with large_arrays_apart():
        for call in parts:
            call()


class KernelPlan:
    """Stages that run one after the other on the operands' addresses.

    A plan belongs to the thread that created it, since its memories point to the operands of one
    call. It needs ``scratch`` bytes of workspace, and uses ``threads``. A ``brief`` plan does not
    release the interpreter's lock.
    """

    def __init__(
        self, place: EngineStream, recipe: KernelRecipe, threads: int, brief: bool = False
    ) -> None:
        self.place = place
        self.recipe = recipe
        self.threads, self.brief = threads, brief
        self.scratch, self.sizes = recipe.scratch, recipe.sizes
        self.reads, self.writes = recipe.reads, recipe.writes
        self.open, self.rounded = recipe.open, recipe.rounded
        self._point: Callable[..., int] = place.c.dnnl_memory_set_data_handle
        self._base = 0
        self.use = place.use_threads(threads)
        own = [*recipe.operands, *(memory for memory, _ in recipe.inside)]
        self._layouts = {each: self._layout(each) for each in own}
        self._calls = Calls(self, {each: each for each in own})

    def run(self, addresses: Sequence[int], scratch: int) -> None:
        """Run on the operands at ``addresses``, with `scratch` bytes of workspace there."""
        for memory, address in zip(self.recipe.operands, addresses, strict=True):
            self._point(memory, address)
        if scratch != self._base:
            # After an interrupt here some memories still have the old address.
            self._base = 0
            for memory, offset in self.recipe.inside:
                self._point(memory, scratch + offset)
            self._base = scratch
        self._calls()

    def bound(self, addresses: Sequence[int], scratch: int) -> Calls:
        """Return a callable that does `run` on these addresses, bound once."""
        recipe = self.recipe
        places = list(zip(recipe.operands, addresses, strict=True))
        places += [(memory, scratch + offset) for memory, offset in recipe.inside]
        return Calls(self, {memory: self._copied(memory, at) for memory, at in places})

    def _layout(self, memory: Memory) -> Any:
        """Return the layout of a memory object, which belongs to it."""
        layout, query = ctypes.c_void_p(), self.place.c.dnnl_memory_get_memory_desc
        check(query(memory, ctypes.byref(layout)), "querying a layout")
        return layout

    def _copied(self, memory: Memory, address: int) -> Memory:
        """Create a memory object of the same layout at ``address``."""
        made, create = ctypes.c_void_p(), self.place.c.dnnl_memory_create
        layout = self._layouts[memory]
        status = create(ctypes.byref(made), layout, self.place.engine, address)
        check(status, "making a memory object")
        return int(made.value or 0)


def release(c: Any, memories: Sequence[Memory]) -> None:
    """Destroy memory objects of oneDNN."""
    for memory in memories:
        c.dnnl_memory_destroy(memory)


class NotOfferedError(Exception):
    """OneDNN has no fast kernel for the case; the caller uses NumPy's."""


class Descriptors:
    """A factory of descriptors, which `forget` destroys.

    ``factors`` is the dtype of the factors of convolutions and products, `F32` or `BF16`; sums and
    operands of a plan are float32.
    """

    def __init__(self, place: EngineStream, attributes: Any, factors: int = F32) -> None:
        self.c = place.c
        self.factors = factors
        self._place = place
        self._engine = place.engine
        self._attributes = attributes
        self._undo: list[tuple[Callable[[Any], int], Any]] = []

    def forget(self) -> None:
        """Destroy all descriptors; plans do not need them."""
        for destroy, what in reversed(self._undo):
            destroy(what)
        self._undo.clear()

    def strided(self, shape: Shape, strides: Shape, kind: int = F32) -> Any:
        """Create a descriptor of memory with ``strides`` in elements."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_strides
        status = create(ctypes.byref(made), len(shape), dims(shape), kind, dims(strides))
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def rows(self, shape: Shape, kind: int = F32) -> Any:
        """Create a descriptor of C-ordered memory."""
        strides = [1]
        for size in reversed(shape[1:]):
            strides.append(strides[-1] * max(size, 1))
        return self.strided(shape, tuple(reversed(strides)), kind)

    def images(self, last: Shape, kind: int = F32) -> Any:
        """Create a descriptor of channels-last (N, ..., C), with oneDNN's axes N, C, ...."""
        n, *sizes, c = last
        strides = [c]
        for size in reversed(sizes):
            strides.append(strides[-1] * size)
        return self.strided((n, c, *sizes), (strides[-1], 1, *reversed(strides[:-1])), kind)

    def free(self, shape: Shape, kind: int = F32) -> Any:
        """Create a descriptor whose layout oneDNN chooses."""
        return self.tagged(shape, kind, FORMAT_ANY)

    def tagged(self, shape: Shape, kind: int, tag: int) -> Any:
        """Create a descriptor of a layout with a name in oneDNN."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_tag
        status = create(ctypes.byref(made), len(shape), dims(shape), kind, tag)
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def post_ops(self, add: bool = False, relu: bool = False) -> Any:
        """Return attributes that ``add`` to the output, then apply ``relu``; None for neither."""
        if not (add or relu):
            return None
        chain, attributes, c = ctypes.c_void_p(), ctypes.c_void_p(), self.c
        status = c.dnnl_primitive_attr_clone(ctypes.byref(attributes), self._attributes)
        check(status, "making attributes")
        self._undo.append((c.dnnl_primitive_attr_destroy, attributes))
        check(c.dnnl_post_ops_create(ctypes.byref(chain)), "making post-ops")
        self._undo.append((c.dnnl_post_ops_destroy, chain))
        if add:
            check(c.dnnl_post_ops_append_sum(chain, 1.0, 0, F32), "appending a sum")
        if relu:
            check(c.dnnl_post_ops_append_eltwise(chain, int(Algorithm.RELU), 0.0, 0.0), "a relu")
        check(c.dnnl_primitive_attr_set_post_ops(attributes, chain), "setting post-ops")
        return attributes

    def scaled(self, arguments: Iterable[Arg]) -> Any:
        """Return attributes of a primitive that scales each of ``arguments`` by a number."""
        attributes, c = ctypes.c_void_p(), self.c
        status = c.dnnl_primitive_attr_clone(ctypes.byref(attributes), self._attributes)
        check(status, "making attributes")
        self._undo.append((c.dnnl_primitive_attr_destroy, attributes))
        for argument in arguments:
            status = c.dnnl_primitive_attr_set_scales_mask(attributes, int(argument), 0)
            check(status, "setting scales")
        return attributes

    def primitive_desc(
        self, kind: str, *arguments: Any, slow: bool = False, attributes: Any = None
    ) -> Any:
        """Create a primitive descriptor. Errors: `NotOfferedError` without a kernel.

        Reference kernels are slow; they count as missing unless ``slow``.
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
        """Return the name of the kernel that oneDNN chose."""
        name = ctypes.c_char_p()
        query = self.c.dnnl_primitive_desc_query
        status = query(primitive_desc, QUERY_IMPLEMENTATION, 0, ctypes.byref(name))
        check(status, "naming a kernel")
        return (name.value or b"").decode()

    def layout(self, primitive_desc: Any, which: Query, index: int = 0) -> Any:
        """Return the layout that the primitive requires, valid with the builder."""
        return self.c.dnnl_primitive_desc_query_md(primitive_desc, int(which), index)

    def same(self, a: Any, b: Any) -> bool:
        """Whether two descriptors describe the same memory."""
        return bool(self.c.dnnl_memory_desc_equal(a, b))

    def size(self, descriptor: Any) -> int:
        """Return the bytes of memory of a descriptor; 0 for none."""
        return int(self.c.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0


class Builder(Descriptors):
    """A collector of the stages of one plan, and of objects to destroy after it is built.

    Operands have the order of the addresses that the plan's caller will pass.
    """

    def __init__(
        self,
        place: EngineStream,
        attributes: Any,
        threads: int,
        factors: int = F32,
        brief: bool = False,
        stored: Collection[int] = (),
        workers: int | None = None,
    ) -> None:
        """Make a builder for a plan on ``threads``.

        ``workers`` are the threads of a predictor's compiled functions, if not ``threads``;
        ``stored`` are the indices of operands stored in bfloat16.
        """
        super().__init__(place, attributes, factors)
        self.threads, self.joined, self.brief = threads, workers or threads, brief
        self.side_by_side, self.jobs = place.side_by_side, place.jobs
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
        """Create a memory that will point to the operand ``number``."""
        memory = self._operands[number] = self._memory(descriptor)
        self._sizes[number] = self.size(descriptor)
        return memory

    def kind(self, number: int) -> int:
        """Return the dtype of the operand ``number``, stored in bfloat16 or float32."""
        self._open.add(number)
        return BF16 if number in self._stored else F32

    def factor(self, number: int) -> int:
        """Return `kind`; an operand of another dtype than ``factors`` is rounded to that."""
        kind = self.kind(number)
        if kind != self.factors:
            self._rounded.add(number)
        return kind

    def packed_output(
        self, number: int, plain: Any, made: Any, adds: bool = False
    ) -> tuple[Memory, Callable[[], None]]:
        """Return a memory of layout ``made`` for operand ``number``, and a copy to the operand.

        The copy is a function that adds a stage. ``adds`` first copies the operand to that memory,
        for a primitive that adds to it.
        """
        target = self.operand(number, plain)
        if self.same(plain, made):
            return target, lambda: None
        packed = self.inner(made)
        if adds:
            self.reorder(plain, target, made, packed)
        return packed, lambda: self.reorder(made, packed, plain, target)

    def operands(self, arguments: Sequence[Arg], layouts: Sequence[Any]) -> dict[Arg, Memory]:
        """Create memories for the operands 0, 1, ..., by argument."""
        pairs = enumerate(zip(arguments, layouts, strict=True))
        return {arg: self.operand(number, layout) for number, (arg, layout) in pairs}

    def common_kind(self, *numbers: int) -> int:
        """Return the shared dtype of these operands: float32 unless all are bfloat16."""
        return F32 if F32 in [self.kind(number) for number in numbers] else BF16

    def alike(self, describe: Callable[[int], Any], *numbers: int) -> tuple[list[Any], Any]:
        """Return layouts of operands, each of its `kind`, and the layout of their `common_kind`."""
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
        """Add a `stage` on the operands 0, 1, ... for the arguments in ``order``, and ``others``.

        Operands whose layout is not ``wanted`` are reordered before or after.
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
        """Create a memory in scratch."""
        memory = self._memory(descriptor)
        self._inside.append((memory, self._scratch))
        self._scratch += rounded(self.size(descriptor))
        return memory

    def _memory(self, descriptor: Any) -> Memory:
        made = ctypes.c_void_p()
        # A null handle: no memory of its own, and no address yet.
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

        ``fills`` are further arguments that it writes, ``adds_to`` are outputs that it reads first.
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
        # An operand that an earlier stage wrote is not an input of the plan.
        read = {number for arg, number in used.items() if arg not in written or arg in adds_to}
        self._reads |= read - self._writes
        self._writes |= {number for arg, number in used.items() if arg in written}

    def reorder(self, source: Any, from_memory: Memory, target: Any, to_memory: Memory) -> None:
        """Copy from one layout to another as the next stage."""
        engine = self._engine
        described = self.primitive_desc("reorder", source, engine, target, engine, slow=True)
        self.stage(described, {Arg.SRC: from_memory, Arg.DST: to_memory})

    def packed_input(self, number: int, plain: Any, wanted: Any) -> Memory:
        """Return the operand ``number`` in the ``wanted`` layout, reordered if they differ."""
        memory = self.operand(number, plain)
        if self.same(plain, wanted):
            return memory
        packed = self.inner(wanted)
        self.reorder(plain, memory, wanted, packed)
        return packed

    def plan(self) -> KernelPlan:
        """Return the finished plan."""
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
            wide=is_wide(self._place.c),
        )
        self._finished = True
        return KernelPlan(self._place, recipe, self.threads, self.brief)

    def close(self) -> None:
        """Destroy the descriptors, which a plan does not need, and unused memories."""
        if not self._finished:
            release(self.c, [*self._operands.values(), *(memory for memory, _ in self._inside)])
        self.forget()
