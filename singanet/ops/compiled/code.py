"""Write LLVM code of loops from Python."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from typing import Any, TypeAlias

from llvmlite import ir

from singanet.ops.compiled.sizes import LANES
from singanet.ops.threads import within

Value: TypeAlias = Any
"""A number, or a vector of `LANES` numbers, at the function's run time."""

_AHEAD = 4096
"""Bytes from a read to its prefetch: hardware prefetching stops at the end of a page."""
_LINE = 64
"""Bytes of a prefetch."""

_INT, _LONG, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()
_INTS, _FLOATS = ir.VectorType(_INT, LANES), ir.VectorType(_FLOAT, LANES)
_LONGS, _BITS = ir.VectorType(_LONG, LANES), ir.VectorType(ir.IntType(1), LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_BYTES = ir.PointerType(ir.IntType(8))
_BYTES_HALF = ir.VectorType(ir.IntType(8), 2 * LANES)
_PAIRS_HALF = ir.VectorType(ir.IntType(16), LANES)

_WORDS = ir.VectorType(ir.IntType(16), 2 * LANES)
_POINTERS = ir.VectorType(ir.PointerType(_FLOAT), LANES)
_EXPONENTIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Coefficients of exp(x) - 1 - x, divided by x², near 0."""
_LOGARITHM = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
"""Coefficients of log(1 + x) - x + x²/2, divided by x³, near 0."""
_FUSED = ("contract",)
"""A product and a sum may be fused, without rounding in between."""


class Code:
    """A function ``name`` of byte pointers and long integers, without a result."""

    def __init__(self, name: str, pointers: int, numbers: int) -> None:
        self.name, self.bound = name, f"{name}_bound"
        self.pointers, self.numbers = pointers, numbers
        self._module = ir.Module()
        kinds = [*[_BYTES] * pointers, *[_LONG] * numbers]
        self._function = ir.Function(self._module, ir.FunctionType(ir.VoidType(), kinds), name)
        self._function.attributes.add("nounwind")
        self._at = ir.IRBuilder(self._function.append_basic_block())
        fetch = ir.FunctionType(ir.VoidType(), [_BYTES, *[_INT] * 3])
        self._fetch = ir.Function(self._module, fetch, "llvm.prefetch.p0")
        some = ir.FunctionType(ir.VoidType(), [_FLOATS, ir.PointerType(_FLOATS), _INT, _BITS])
        self._store_some = ir.Function(self._module, some, f"llvm.masked.store.v{LANES}f32.p0")
        some = ir.FunctionType(_FLOATS, [ir.PointerType(_FLOATS), _INT, _BITS, _FLOATS])
        self._load_some = ir.Function(self._module, some, f"llvm.masked.load.v{LANES}f32.p0")
        some = ir.FunctionType(_FLOATS, [_POINTERS, _INT, _BITS, _FLOATS])
        self._gather = ir.Function(self._module, some, f"llvm.masked.gather.v{LANES}f32.v{LANES}p0")
        some = ir.FunctionType(ir.VoidType(), [_FLOATS, _POINTERS, _INT, _BITS])
        self._scatter = ir.Function(
            self._module, some, f"llvm.masked.scatter.v{LANES}f32.v{LANES}p0"
        )
        root = ir.FunctionType(_FLOATS, [_FLOATS])
        self._root = ir.Function(self._module, root, f"llvm.sqrt.v{LANES}f32")
        self._dot: Any = None
        self._largest: Any = None
        self._unknown: Any = None
        total = ir.FunctionType(_FLOAT, [_FLOAT, _FLOATS])
        self._total = ir.Function(self._module, total, f"llvm.vector.reduce.fadd.v{LANES}f32")

    @property
    def arguments(self) -> list[Value]:
        """The pointers, then the integers."""
        return list(self._function.args)

    def text(self) -> str:
        """Return the module's text, with a function `bound` to an argument array; call it last."""
        self._at.ret_void()
        kind = ir.FunctionType(ir.VoidType(), [_BYTES])
        at = ir.IRBuilder(ir.Function(self._module, kind, self.bound).append_basic_block())
        given, (array,) = [], at.function.args
        for number, argument in enumerate(self._function.args):
            place = at.bitcast(at.gep(array, [_LONG(8 * number)]), ir.PointerType(argument.type))
            given.append(at.load(place, align=8))
        at.call(self._function, given)
        at.ret_void()
        return str(self._module)

    def sum(self, *terms: Value) -> Value:
        """Return the sum of long integers."""
        total = self._long(terms[0])
        for term in terms[1:]:
            total = self._at.add(total, self._long(term))
        return total

    def times(self, *factors: Value) -> Value:
        """Return the product of long integers."""
        product = self._long(factors[0])
        for factor in factors[1:]:
            product = self._at.mul(product, self._long(factor))
        return product

    def less(self, number: Value, other: Value) -> Value:
        """Return the difference of two long integers."""
        return self._at.sub(self._long(number), self._long(other))

    def whole(self, number: Value, size: Value) -> Value:
        """Return the quotient of a long integer by ``size``, rounded down."""
        return self._at.udiv(self._long(number), self._long(size))

    def lesser(self, number: Value, other: Value) -> Value:
        """Return the lesser of two long integers."""
        number, other = self._long(number), self._long(other)
        return self._at.select(self._at.icmp_signed("<", number, other), number, other)

    def beyond(self, pointer: Value, offset: Value) -> Value:
        """Return the pointer ``offset`` bytes after ``pointer``."""
        return self._at.gep(pointer, [self._long(offset)])

    def greater(self, number: Value, other: Value) -> Value:
        """Return the greater of two long integers."""
        number, other = self._long(number), self._long(other)
        return self._at.select(self._at.icmp_signed(">", number, other), number, other)

    def rest(self, number: Value, size: Value) -> Value:
        """Return the remainder of a long integer by ``size``."""
        return self._at.urem(self._long(number), self._long(size))

    @contextmanager
    def each(
        self, start: Value, stop: Value, step: Value = 1, kept: dict[Any, Value] | None = None
    ) -> Iterator[Value]:
        """Write a loop around the body: its number goes from ``start`` to ``stop``.

        Values in ``kept`` carry over from one iteration to the next: the body replaces them, and
        after the loop they have the last iteration's values.
        """
        at, kept = self._at, {} if kept is None else kept
        before = at.block
        head, body, end = (self._function.append_basic_block() for _ in range(3))
        at.branch(head)
        at.position_at_end(head)
        number = at.phi(_LONG)
        number.add_incoming(self._long(start), before)
        running = {key: at.phi(value.type) for key, value in kept.items()}
        for key, phi in running.items():
            phi.add_incoming(kept[key], before)
        at.cbranch(at.icmp_signed("<", number, self._long(stop)), body, end)
        at.position_at_end(body)
        kept.update(running)
        yield number
        number.add_incoming(at.add(number, self._long(step)), at.block)
        for key, phi in running.items():
            phi.add_incoming(kept[key], at.block)
        at.branch(head)
        at.position_at_end(end)
        kept.update(running)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Write the body to run only if the condition is true."""
        with self._at.if_then(condition):
            yield

    def same(self, number: Value, other: Value) -> Value:
        """Return whether two long integers are equal."""
        return self._at.icmp_signed("==", self._long(number), self._long(other))

    def is_given(self, pointer: Value) -> Value:
        """Return whether a pointer is not null."""
        return self._at.icmp_unsigned("!=", self._at.ptrtoint(pointer, _LONG), _LONG(0))

    def pointer(self, condition: Value, one: Value, other: Value) -> Value:
        """Return the pointer ``one`` if the condition is true, otherwise ``other``."""
        return self._at.select(condition, one, other)

    def either(self, number: Value, one: Value, other: Value) -> Value:
        """Return the long integer ``one`` if ``number`` is not 0, otherwise ``other``."""
        return self._at.select(self._at.icmp_signed("!=", number, _LONG(0)), one, other)

    def fetch(self, pointer: Value, offset: Value, size: int, ahead: Value = _AHEAD) -> None:
        """Prefetch ``size`` bytes, ``ahead`` bytes after ``offset``, if the processor gains."""
        if _foresees():
            return
        for line in range(0, size, _LINE):
            place = self._at.gep(pointer, [self.sum(offset, ahead, line)])
            # A read prefetch, into all caches, of data.
            self._at.call(self._fetch, [place, _INT(0), _INT(3), _INT(1)])

    def bring(self, pointer: Value, offset: Value, size: int) -> None:
        """Prefetch ``size`` bytes into the second cache, beside arithmetic on earlier ones."""
        for line in range(0, size, _LINE):
            place = self._at.gep(pointer, [self.sum(offset, line)])
            self._at.call(self._fetch, [place, _INT(0), _INT(2), _INT(1)])

    def settle(self) -> None:
        """Let the compiler move no load or store past this place; it writes no instruction."""
        self._at.fence("seq_cst", "singlethread")

    def long(self, pointer: Value, offset: Value) -> Value:
        """Load a long integer."""
        return self._at.load(self._place(pointer, offset, _LONG), align=8)

    def store_long(self, number: Value, pointer: Value, offset: Value) -> None:
        """Store a long integer."""
        self._at.store(self._long(number), self._place(pointer, offset, _LONG), align=8)

    def pointer_at(self, number: Value) -> Value:
        """Return the pointer to an address."""
        return self._at.inttoptr(number, _BYTES)

    def address(self, pointer: Value) -> Value:
        """Return the address of a pointer."""
        return self._at.ptrtoint(pointer, _LONG)

    def shared_long(self, pointer: Value, offset: Value) -> Value:
        """Load a long integer that other threads change, before everything after it."""
        return self._at.load_atomic(self._place(pointer, offset, _LONG), "seq_cst", 8)

    def store_shared(self, number: Value, pointer: Value, offset: Value) -> None:
        """Store a long integer that other threads read, after everything before it."""
        place = self._place(pointer, offset, _LONG)
        self._at.store_atomic(self._long(number), place, "seq_cst", 8)

    def exchange(self, number: Value, pointer: Value, offset: Value) -> Value:
        """Store a long integer and return the one before, in one step for all threads."""
        place = self._place(pointer, offset, _LONG)
        return self._at.atomic_rmw("xchg", place, self._long(number), "seq_cst")

    def count(self, number: Value, pointer: Value, offset: Value) -> None:
        """Add to a long integer, in one step for all threads."""
        place = self._place(pointer, offset, _LONG)
        self._at.atomic_rmw("add", place, self._long(number), "seq_cst")

    def pause(self) -> None:
        """Let the core wait for a moment, if the processor has an instruction for it."""
        if platform.machine() in ("x86_64", "AMD64"):
            kind = ir.FunctionType(ir.VoidType(), [])
            self._at.call(self._module.declare_intrinsic("llvm.x86.sse2.pause", fnty=kind), [])

    def run(self, function: Value, *arguments: Value) -> Value:
        """Call the function of C at an address with long integers; return its 32-bit result."""
        kind = ir.FunctionType(_INT, [_LONG] * len(arguments))
        there = self._at.inttoptr(function, ir.PointerType(kind))
        made = self._at.call(there, [self._long(each) for each in arguments])
        return self._at.zext(made, _LONG)

    def both(self, number: Value, other: Value) -> Value:
        """Return the bits that are set in two long integers."""
        return self._at.and_(self._long(number), self._long(other))

    @contextmanager
    def again_while(self, condition: Callable[[Value], Value]) -> Iterator[Value]:
        """Write a loop while the condition of the turn's number is true; yield the number."""
        at = self._at
        before = at.block
        head, body, end = (self._function.append_basic_block() for _ in range(3))
        at.branch(head)
        at.position_at_end(head)
        number = at.phi(_LONG)
        number.add_incoming(_LONG(0), before)
        at.cbranch(condition(number), body, end)
        at.position_at_end(body)
        yield number
        number.add_incoming(at.add(number, _LONG(1)), at.block)
        at.branch(head)
        at.position_at_end(end)

    def differs(self, number: Value, other: Value) -> Value:
        """Return whether two long integers differ."""
        return self._at.icmp_signed("!=", self._long(number), self._long(other))

    def all_hold(self, *conditions: Value) -> Value:
        """Return whether all conditions are true."""
        found = conditions[0]
        for condition in conditions[1:]:
            found = self._at.and_(found, condition)
        return found

    def below(self, number: Value, other: Value) -> Value:
        """Return whether a long integer is less than another."""
        return self._at.icmp_signed("<", self._long(number), self._long(other))

    def ints(self, pointer: Value, offset: Value) -> Value:
        """Load a vector of 32-bit integers at ``offset`` bytes after ``pointer``."""
        return self._at.load(self._place(pointer, offset, _INTS), align=4)

    def floats(self, pointer: Value, offset: Value) -> Value:
        """Load a vector of floats."""
        return self._at.load(self._place(pointer, offset, _FLOATS), align=4)

    def store(self, value: Value, pointer: Value, offset: Value) -> None:
        """Store a vector of floats."""
        self._at.store(value, self._place(pointer, offset, _FLOATS), align=4)

    def first(self, count: Value) -> Value:
        """Return a mask of the first ``count`` lanes, at least none and at most all."""
        lanes = ir.Constant(_INTS, [*range(LANES)])
        return self._at.icmp_signed("<", lanes, self.whole_number(count))

    def within(self, number: Value, stop: Value) -> Value:
        """Return whether a long integer is in [0, stop)."""
        return self._at.icmp_unsigned("<", self._long(number), self._long(stop))

    def where(self, condition: Value, lanes: Value) -> Value:
        """Return ``lanes`` if the condition is true, otherwise an empty mask."""
        return self._at.select(condition, lanes, ir.Constant(_BITS, [0] * LANES))

    def some_floats(
        self, pointer: Value, offset: Value, lanes: Value, others: Value | None = None
    ) -> Value:
        """Load floats in the lanes of a mask; other lanes are 0 or from ``others``."""
        place = self._place(pointer, offset, _FLOATS)
        rest = self.number(0.0) if others is None else others
        return self._at.call(self._load_some, [place, _INT(4), lanes, rest])

    def store_some(self, value: Value, pointer: Value, offset: Value, lanes: Value) -> None:
        """Store the lanes of a mask."""
        at, place = self._at, self._place(pointer, offset, _FLOATS)
        some = [value, place, _INT(4), lanes]
        if _has_masks():
            at.call(self._store_some, some)
            return
        # Without registers of masks a store of some lanes takes tens of cycles, also of all lanes.
        words = ir.IntType(LANES)
        with at.if_else(at.icmp_unsigned("==", at.bitcast(lanes, words), words(-1))) as (
            all_,
            part,
        ):
            with all_:
                at.store(value, place, align=4)
            with part:
                at.call(self._store_some, some)

    def spread_floats(self, pointer: Value, offset: Value, apart: Value, lanes: Value) -> Value:
        """Gather floats at a byte stride of ``apart`` in the lanes of a mask; other lanes are 0."""
        places = self._places(pointer, offset, apart)
        return self._at.call(self._gather, [places, _INT(4), lanes, self.number(0.0)])

    def spread(
        self, value: Value, pointer: Value, offset: Value, apart: Value, lanes: Value
    ) -> None:
        """Scatter the lanes of a mask at a byte stride of ``apart``."""
        self._at.call(self._scatter, [value, self._places(pointer, offset, apart), _INT(4), lanes])

    def room(self, vectors: int) -> Value:
        """Allocate uninitialized memory for ``vectors`` vectors, until the function returns."""
        kind = ir.ArrayType(_FLOATS, vectors)
        with self._at.goto_entry_block():
            place = self._at.alloca(kind)
            place.align = 4 * LANES
            return self._at.bitcast(place, _BYTES)

    def store_bytes(self, whole: Value, pointer: Value, offset: Value) -> None:
        """Store the lowest byte of each integer of a vector."""
        kind = ir.VectorType(ir.IntType(8), LANES)
        self._at.store(self._at.trunc(whole, kind), self._place(pointer, offset, kind), align=1)

    def all_of(self, pointer: Value, offset: Value) -> Value:
        """Load one float, repeated in all lanes."""
        return self._everywhere(self._at.load(self._place(pointer, offset, _FLOAT), align=4))

    def repeated(self, vector: Value, group: int, number: int) -> Value:
        """Return the lane of a ``number`` in each ``group`` of lanes, in all lanes of the group."""
        lanes = ir.Constant(_INTS, [lane // group * group + number for lane in range(LANES)])
        return self._at.shuffle_vector(vector, vector, lanes)

    def total(self, vector: Value) -> Value:
        """Return the sum of a vector's floats, repeated in all lanes."""
        any_order = ("reassoc",)
        return self._everywhere(
            self._at.call(self._total, [_FLOAT(0.0), vector], fastmath=any_order)
        )

    def if_first(self, number: Value, one: Value, other: Value) -> Value:
        """Return the vector ``one`` if the long integer is 0, otherwise ``other``."""
        return self._at.select(self._at.icmp_signed("==", number, _LONG(0)), one, other)

    def _everywhere(self, one: Value, kind: Any = _FLOATS) -> Value:
        first = self._at.insert_element(ir.Constant(kind, ir.Undefined), one, _INT(0))
        return self._at.shuffle_vector(first, first, ir.Constant(_INTS, [0] * LANES))

    def number(self, value: float) -> Value:
        """Return a constant float in all lanes."""
        return ir.Constant(_FLOATS, [value] * LANES)

    def whole_number(self, number: Value) -> Value:
        """Return a long integer as a 32-bit integer in all lanes."""
        return self._everywhere(self._at.trunc(self._long(number), _INT), _INTS)

    def counted(self, number: Value) -> Value:
        """Return a long integer as a float in all lanes."""
        return self._everywhere(self._at.sitofp(self._long(number), _FLOAT))

    def held(self, number: Value) -> Value:
        """Return the float with the bits of a long integer's lower half, in all lanes."""
        return self._everywhere(self._at.bitcast(self._at.trunc(number, _INT), _FLOAT))

    def halves(self, pointer: Value, offset: Value, converts: bool = False) -> Value:
        """Load float16 as floats; by integer arithmetic unless the processor ``converts``."""
        at = self._at
        if converts:
            kind = ir.VectorType(ir.HalfType(), LANES)
            return at.fpext(at.load(self._place(pointer, offset, kind), align=2), _FLOATS)
        bits = at.zext(at.load(self._place(pointer, offset, _HALVES), align=2), _INTS)
        size = at.shl(at.and_(bits, _same(0x7FFF)), _same(13))
        # The exponent's bias is 15 in float16 and 127 in float32.
        scaled = at.fmul(at.bitcast(size, _FLOATS), self.number(2.0**112))
        endless = at.icmp_unsigned(">=", size, _same(0x7C00 << 13))
        whole = at.or_(size, _same(0x7F800000))
        made = at.select(endless, whole, at.bitcast(scaled, _INTS))
        sign = at.shl(at.and_(bits, _same(0x8000)), _same(16))
        return at.bitcast(at.or_(made, sign), _FLOATS)

    def store_halves(self, value: Value, pointer: Value, offset: Value) -> None:
        """Store floats as float16, on processors that convert."""
        made = self._at.fptrunc(value, ir.VectorType(ir.HalfType(), LANES))
        self._at.store(made, self._place(pointer, offset, made.type), align=2)

    def through_half(self, value: Value) -> Value:
        """Return floats rounded to float16, on processors that convert."""
        made = self._at.fptrunc(value, ir.VectorType(ir.HalfType(), LANES))
        return self._at.fpext(made, _FLOATS)

    def upper(self, words: Value) -> Value:
        """Return floats whose upper halves are the upper halves of integers."""
        return self._at.bitcast(self._at.and_(words, _same(0xFFFF0000)), _FLOATS)

    def lower(self, words: Value) -> Value:
        """Return floats whose upper halves are the lower halves of integers."""
        return self._at.bitcast(self._at.shl(words, _same(16)), _FLOATS)

    def all_ints(self, pointer: Value, offset: Value) -> Value:
        """Load a 32-bit integer, repeated in all lanes."""
        place = self._place(pointer, offset, _INT)
        return self._everywhere(self._at.load(place, align=4), _INTS)

    def store_ints(self, value: Value, pointer: Value, offset: Value) -> None:
        """Store a vector of 32-bit integers."""
        self._at.store(value, self._place(pointer, offset, _INTS), align=4)

    def unknown(self, words: Value) -> Value:
        """Return words of which the compiler assumes nothing, so that it masks bytes once."""
        name = f"llvm.arithmetic.fence.v{LANES}f32"
        kind = ir.FunctionType(_FLOATS, [_FLOATS])
        if self._unknown is None:
            self._unknown = ir.Function(self._module, kind, name)
        made = self._at.call(self._unknown, [self._at.bitcast(words, _FLOATS)])
        return self._at.bitcast(made, _INTS)

    def each_byte(self, value: int) -> Value:
        """Return integers with ``value`` in each byte."""
        return _same(value * 0x01010101)

    def bytes_of(self, words: Value, bits: int, upper: Value) -> Value:
        """Return the lower 4 ``bits`` of each byte, the upper if 1, or of 8 bits 128 more."""
        at = self._at
        if bits == 8:
            return at.xor(words, self.each_byte(0x80))
        shifted = at.lshr(words, self.whole_number(self.times(upper, 4)))
        return at.and_(shifted, self.each_byte(0x0F))

    def one_byte(self, words: Value, number: int, place: int) -> Value:
        """Return integers with a byte of each word at a ``place``, and zeros in the others."""
        kind = ir.VectorType(ir.IntType(8), 4 * LANES)
        some, none = self._at.bitcast(words, kind), ir.Constant(kind, [0] * 4 * LANES)
        order = [4 * (k // 4) + number if k % 4 == place else 4 * LANES for k in range(4 * LANES)]
        whole = ir.VectorType(_INT, 4 * LANES)
        return self._at.bitcast(
            self._at.shuffle_vector(some, none, ir.Constant(whole, order)), _INTS
        )

    def four_bytes(self, whole: Sequence[Value]) -> Value:
        """Return words of the lowest bytes of four vectors of integers, the first the lowest."""
        low = [self._at.and_(each, _same(0xFF)) for each in whole]
        return reduce(
            self._at.or_, (self._at.shl(each, _same(8 * k)) for k, each in enumerate(low))
        )

    def with_upper(self, words: Value, upper: Value) -> Value:
        """Return words of bytes up to 15 with others in the upper 4 bits of each byte."""
        return self._at.or_(words, self._at.shl(upper, _same(4)))

    def to_upper(self, vector: Value) -> Value:
        """Return the bits of floats plus half a unit of their upper halves, halves to even."""
        bits = self._at.bitcast(vector, _INTS)
        odd = self._at.and_(self._at.lshr(bits, _same(16)), _same(1))
        return self._at.add(bits, self._at.add(odd, _same(0x7FFF)))

    def halves_of(self, one: Value, other: Value) -> Value:
        """Return words of the upper halves of two vectors of integers, the first the lower."""
        lower = self._at.lshr(one, _same(16))
        return self._at.or_(lower, self._at.and_(other, _same(0xFFFF0000)))

    def dot(self, sums: Value, some: Value, others: Value) -> Value:
        """Add the products of four unsigned bytes with four signed ones to each sum."""
        kind = ir.FunctionType(_INTS, [_INTS] * 3)
        if self._dot is None:
            self._dot = ir.Function(self._module, kind, "llvm.x86.avx512.vpdpbusd.512")
        return self._at.call(self._dot, [sums, some, others])

    def rounded_words(self, one: Value, other: Value) -> Value:
        """Return pairs of neighbouring floats of two vectors as bfloat16, in integers."""
        made = self._of_words("cvtne2ps2bf16", _WORDS, other, one)
        return self._at.bitcast(made, _INTS)

    def dot_words(self, sums: Value, some: Value, others: Value) -> Value:
        """Add the products of two bfloat16 with two others to each sum."""
        return self._of_words("dpbf16ps", _FLOATS, sums, some, others)

    def _of_words(self, name: str, made: Any, *given: Value) -> Value:
        """Call a function of AVX-512 for bfloat16, in its form of integers."""
        name = f"llvm.x86.avx512bf16.{name}.512"
        kind = ir.FunctionType(made, [each.type for each in given])
        found = self._module.globals.get(name) or ir.Function(self._module, kind, name)
        return self._at.call(found, given)

    def add_pairs(self, sums: Value, some: Value, others: Value) -> Value:
        """Add the products of two unsigned bytes with two signed ones to each sum of 16 bits.

        Only for processors with AVX2.
        """
        made = self._by_halves("llvm.x86.avx2.pmadd.ub.sw", _BYTES_HALF, _PAIRS_HALF, some, others)
        kind = ir.VectorType(ir.IntType(16), 2 * LANES)
        added = self._at.add(self._at.bitcast(sums, kind), self._at.bitcast(made, kind))
        return self._at.bitcast(added, _INTS)

    def pairs(self, sums: Value) -> Value:
        """Return the sums of neighbouring sums of 16 bits as integers."""
        name, kind = "llvm.x86.avx2.pmadd.wd", ir.VectorType(_INT, LANES // 2)
        return self._by_halves(name, _PAIRS_HALF, kind, sums, _same(0x00010001))

    def _by_halves(self, name: str, given: Any, made: Any, *words: Value) -> Value:
        """Call a function of two vectors of half the size, with both halves of ``words``."""
        at, kind = self._at, ir.FunctionType(made, [given, given])
        found = self._module.globals.get(name) or ir.Function(self._module, kind, name)
        halves = []
        for first in (0, LANES // 2):
            order = ir.Constant(
                ir.VectorType(_INT, LANES // 2), [*range(first, first + LANES // 2)]
            )
            parts = [at.shuffle_vector(each, each, order) for each in words]
            whole = at.call(found, [at.bitcast(part, given) for part in parts])
            halves.append(at.bitcast(whole, order.type))
        return at.shuffle_vector(*halves, ir.Constant(_INTS, [*range(LANES)]))

    def negative(self, whole: Value) -> Value:
        """Return integers with the other sign."""
        return self._at.sub(_same(0), whole)

    def next_byte(self, whole: Value) -> Value:
        """Return (whole + 128) / 256, rounded down: the integers above a signed lowest byte."""
        return self._at.ashr(self._at.add(whole, _same(128)), _same(8))

    def rounded(self, vector: Value) -> Value:
        """Return floats of up to 2^22 as the nearest integers."""
        powers = self.number(1.5 * 2.0**23)
        shifted = self._at.bitcast(self.add(vector, powers), _INTS)
        return self._at.sub(shifted, self._at.bitcast(powers, _INTS))

    def floats_of(self, whole: Value) -> Value:
        """Return integers as floats."""
        return self._at.sitofp(whole, _FLOATS)

    def size_of(self, vector: Value) -> Value:
        """Return absolute values."""
        bits = self._at.and_(self._at.bitcast(vector, _INTS), _same(0x7FFFFFFF))
        return self._at.bitcast(bits, _FLOATS)

    def largest(self, vector: Value) -> Value:
        """Return the largest float of a vector in all lanes."""
        kind = ir.FunctionType(_FLOAT, [_FLOATS])
        if self._largest is None:
            name = f"llvm.vector.reduce.fmax.v{LANES}f32"
            self._largest = ir.Function(self._module, kind, name)
        return self._everywhere(self._at.call(self._largest, [vector]))

    def turn(self, source: Value, target: Value, width: int) -> None:
        """Store the transpose of a square matrix, ``width`` floats a row, to another place."""
        with self.each(0, width, LANES) as row, self.each(0, width, LANES) as column:
            start, line = (self.times(k, 4 * width) for k in (row, column))
            here, there = self.sum(start, self.times(column, 4)), self.sum(line, self.times(row, 4))
            lines = [self.floats(source, self.sum(here, 4 * width * k)) for k in range(LANES)]
            for k, each in enumerate(self.turned(lines)):
                self.store(each, target, self.sum(there, 4 * width * k))

    def turned(self, lines: list[Value]) -> list[Value]:
        """Return the columns of as many vectors as one has floats."""
        # In lines at a distance, halves, then quarters and so on are exchanged.
        apart = LANES // 2
        while apart:
            lines = self._exchanged(lines, apart)
            apart //= 2
        return lines

    def _exchanged(self, lines: list[Value], apart: int) -> list[Value]:
        """Exchange the lanes with bit ``apart`` of one line for the lanes without it of another."""
        made = [*lines]
        upper = [k & apart != 0 for k in range(LANES)]
        first = [LANES + k - apart if up else k for k, up in enumerate(upper)]
        second = [LANES + k if up else k + apart for k, up in enumerate(upper)]
        for k in range(LANES):
            if not k & apart:
                pair = lines[k], lines[k + apart]
                for at, order in ((k, first), (k + apart, second)):
                    made[at] = self._at.shuffle_vector(*pair, ir.Constant(_INTS, order))
        return made

    def add(self, one: Value, other: Value) -> Value:
        """Return the sum of vectors of floats."""
        return self._at.fadd(one, other)

    def add_product(self, sum_: Value, one: Value, other: Value) -> Value:
        """Return ``sum_`` plus the product of the two others."""
        return self._at.fadd(sum_, self._at.fmul(one, other, flags=_FUSED), flags=_FUSED)

    def subtract(self, one: Value, other: Value) -> Value:
        """Return the difference of vectors of floats."""
        return self._at.fsub(one, other)

    def multiply(self, *factors: Value) -> Value:
        """Return the product of vectors of floats, in order."""
        product = factors[0]
        for factor in factors[1:]:
            product = self._at.fmul(product, factor)
        return product

    def divide(self, one: Value, other: Value) -> Value:
        """Return the quotient of vectors of floats."""
        return self._at.fdiv(one, other)

    def root(self, vector: Value) -> Value:
        """Return the square roots of a vector."""
        return self._at.call(self._root, [vector])

    def exponential(self, vector: Value) -> Value:
        """Return exp of floats up to 88, to 2 units in the last place; those below -87 give 1e-38.

        Source: expf of the Cephes library (Moshier 1989).
        """
        at, powers = self._at, self.number(1.5 * 2.0**23)
        x = self.at_least(vector, self.number(-87.0))
        # The sum has the whole number of powers of 2 in its last bits.
        shifted = self.add_product(powers, x, self.number(1.44269504088896341))
        whole = self.subtract(shifted, powers)
        x = self.add_product(x, whole, self.number(-0.693359375))
        x = self.add_product(x, whole, self.number(2.12194440e-4))
        made = self.number(_EXPONENTIAL[0])
        for factor in _EXPONENTIAL[1:]:
            made = self.add_product(self.number(factor), made, x)
        made = self.add(self.add_product(x, self.multiply(x, x), made), self.number(1.0))
        bits = at.shl(at.bitcast(shifted, _INTS), _same(23))
        return at.fmul(made, at.bitcast(at.add(bits, _same(127 << 23)), _FLOATS))

    def logarithm(self, vector: Value) -> Value:
        """Return the natural logarithm of floats from 1 on, to 2 units in the last place, or NaN.

        Source: logf of the Cephes library (Moshier 1989).
        """
        at, one = self._at, self.number(1.0)
        bits = at.bitcast(vector, _INTS)
        # The mantissa in [1, 2), and then in [sqrt(1/2), sqrt(2)).
        part = at.bitcast(at.or_(at.and_(bits, _same(0x7FFFFF)), _same(127 << 23)), _FLOATS)
        large = self.above(part, self.number(2.0**0.5))
        part = self.choose(large, self.multiply(part, self.number(0.5)), part)
        power = at.sitofp(at.sub(at.lshr(bits, _same(23)), _same(127)), _FLOATS)
        power = self.choose(large, self.add(power, one), power)
        x = self.subtract(part, one)
        square, made = self.multiply(x, x), self.number(_LOGARITHM[0])
        for factor in _LOGARITHM[1:]:
            made = self.add_product(self.number(factor), made, x)
        made = self.multiply(made, x, square)
        made = self.add_product(made, power, self.number(-2.12194440e-4))
        made = self.add_product(made, square, self.number(-0.5))
        made = self.add_product(self.add(x, made), power, self.number(0.693359375))
        # NaN and infinity less themselves are NaN.
        return self.add(made, self.subtract(vector, vector))

    def positive(self, vector: Value) -> Value:
        """Return the vector with negative floats replaced by 0; NaN is preserved."""
        return self.at_least(vector, self.number(0.0))

    def at_least(self, vector: Value, least: Value) -> Value:
        """Return the vector with floats below ``least`` replaced by it; NaN changes nothing."""
        return self._at.select(self._at.fcmp_ordered("<", vector, least), least, vector)

    def at_most(self, vector: Value, most: Value) -> Value:
        """Return the vector with floats above ``most`` replaced by it; NaN changes nothing."""
        return self._at.select(self._at.fcmp_ordered(">", vector, most), most, vector)

    def if_above(self, vector: Value, limit: Value, value: Value) -> Value:
        """Return ``value``, with 0 in lanes of ``vector`` up to ``limit``."""
        under = self._at.fcmp_ordered("<=", vector, limit)
        return self._at.select(under, self.number(0.0), value)

    def above(self, vector: Value, other: Value) -> Value:
        """Return a mask of the lanes above ``other``."""
        return self._at.fcmp_ordered(">", vector, other)

    def or_no_number(self, bits: Value, vector: Value) -> Value:
        """Return the mask ``bits``, also set in lanes of NaN."""
        return self._at.or_(bits, self._at.fcmp_unordered("uno", vector, vector))

    def choose(self, bits: Value, one: Value, other: Value) -> Value:
        """Return ``one`` in the lanes of the mask, and ``other`` elsewhere."""
        return self._at.select(bits, one, other)

    def some(self, vector: Value, count: Value) -> Value:
        """Return the first ``count`` floats of the vector, then zeros."""
        return self._at.select(self.first(count), vector, self.number(0.0))

    def _place(self, pointer: Value, offset: Value, kind: Any) -> Value:
        place = self._at.gep(pointer, [self._long(offset)])
        return self._at.bitcast(place, ir.PointerType(kind))

    def _places(self, pointer: Value, offset: Value, apart: Value) -> Value:
        at = self._at
        first = self._everywhere(at.ptrtoint(self.beyond(pointer, offset), _LONG), _LONGS)
        apart = self._everywhere(self._long(apart), _LONGS)
        step = at.mul(ir.Constant(_LONGS, [*range(LANES)]), apart)
        return at.inttoptr(at.add(first, step), _POINTERS)

    def _long(self, number: Value) -> Value:
        return _LONG(number) if isinstance(number, int) else number


@cache
def _foresees() -> bool:
    """Whether the processor's own prefetching is disturbed by instructions.

    AMD's Zen reads one stream at the memory's speed, and at half of it with prefetches; Intel's
    stop at the end of each page.
    """
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_name().startswith("znver"))


@cache
def _has_masks() -> bool:
    """Whether the processor has registers of masks."""
    import llvmlite.binding as llvm

    return within(llvm.get_host_cpu_features()).get("avx512vl", False)


def _same(number: int) -> Value:
    return ir.Constant(_INTS, [number] * LANES)
