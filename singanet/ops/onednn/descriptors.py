"""Descriptors: of memory and its layout, and of primitives on it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from singanet.ops.onednn.binding import (
    F32,
    FORMAT_ANY,
    NOT_OFFERED,
    QUERY_IMPLEMENTATION,
    Algorithm,
    Arg,
    Query,
    check,
    dims,
)
from singanet.ops.onednn.plan import EngineStream
from singanet.types import Shape


class NotOfferedError(Exception):
    """OneDNN has no good kernel for the case; the caller stays with NumPy."""


class Descriptors:
    """Makes descriptors, and destroys them by `forget`.

    ``factors`` is the type of what convolutions and products multiply, `F32` or `BF16`; they sum
    in float32, and every operand of a plan is float32.
    """

    def __init__(self, place: EngineStream, attributes: Any, factors: int = F32) -> None:
        self.c = place.c
        self.factors = factors
        self._place = place
        self._engine = place.engine
        self._attributes = attributes
        self._undo: list[tuple[Callable[[Any], int], Any]] = []

    def forget(self) -> None:
        """Destroy what was made; plans do not need it."""
        for destroy, what in reversed(self._undo):
            destroy(what)
        self._undo.clear()

    def strided(self, shape: Shape, strides: Shape, kind: int = F32) -> Any:
        """A descriptor of memory with ``strides`` in elements."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_strides
        status = create(ctypes.byref(made), len(shape), dims(shape), kind, dims(strides))
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def rows(self, shape: Shape, kind: int = F32) -> Any:
        """A descriptor of C-ordered memory."""
        strides = [1]
        for size in reversed(shape[1:]):
            strides.append(strides[-1] * max(size, 1))
        return self.strided(shape, tuple(reversed(strides)), kind)

    def images(self, last: Shape, kind: int = F32) -> Any:
        """A descriptor of channels-last (N, ..., C), whose axes oneDNN counts as N, C, ...."""
        n, *sizes, c = last
        strides = [c]
        for size in reversed(sizes):
            strides.append(strides[-1] * size)
        return self.strided((n, c, *sizes), (strides[-1], 1, *reversed(strides[:-1])), kind)

    def free(self, shape: Shape, kind: int = F32) -> Any:
        """A descriptor whose layout oneDNN chooses."""
        return self.tagged(shape, kind, FORMAT_ANY)

    def tagged(self, shape: Shape, kind: int, tag: int) -> Any:
        """A descriptor of a layout that oneDNN has a name for."""
        made = ctypes.c_void_p()
        create = self.c.dnnl_memory_desc_create_with_tag
        status = create(ctypes.byref(made), len(shape), dims(shape), kind, tag)
        check(status, f"describing memory of shape {shape}")
        self._undo.append((self.c.dnnl_memory_desc_destroy, made))
        return made

    def post_ops(self, add: bool = False, relu: bool = False) -> Any:
        """Attributes of a primitive: ``add`` to what is there, then ``relu``; None for neither."""
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
        """Attributes of a primitive whose ``arguments`` are multiplied by a number each."""
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

    def size(self, descriptor: Any) -> int:
        """The bytes of memory so described; 0 for none."""
        return int(self.c.dnnl_memory_desc_get_size(descriptor)) if descriptor else 0
