"""Constants of a prediction, folded into the preceding layers."""

from __future__ import annotations

import threading
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from math import prod
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided

from singanet.base.heap import address, populated, small_pages
from singanet.base.processes import free_in_children
from singanet.engine.backward import root_of
from singanet.engine.fusion import FUSIONS, Fusion, fusions_of, is_relu, rewritten
from singanet.engine.plan import NodeStep, Plan
from singanet.initializer import Constant
from singanet.layers.context import Context
from singanet.layers.convolution import Conv2D, DepthwiseConv2D
from singanet.layers.dense import Dense, as_rows
from singanet.layers.joins import Add
from singanet.layers.layer import Layer
from singanet.layers.normalization import BatchNormalization
from singanet.layers.rnn import TimeDistributed
from singanet.ops.window import Window
from singanet.params.param import Param, ParamSpec
from singanet.params.storage import ParamStorage
from singanet.program.ir import Call, Ref, refs_of
from singanet.program.layout import ALIGNMENT
from singanet.program.lower_sweeps import ready_call
from singanet.program.trace.tape import Tape
from singanet.types import Array, Shape

_FIRST = -0x41000000
"""The bits of -0.5, followed by those of a billion others that are neither NaN nor denormal.

None is what relu or a square would leave as it is.
"""

_CHUNK = 1 << 16

_SAMPLE = 1 << 12
"""Elements that are compared if kernels moved numbers in the same way."""


@dataclass(frozen=True)
class LoopNest:
    """Nested loops over an array, the outermost first: counts, and strides in elements.

    ``axes`` are the axes of the array that the loops imply, each with its extent and its padded
    extent.
    """

    counts: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[tuple[int, int], ...]

    @property
    def is_padded(self) -> bool:
        """Whether zeros follow the elements along an axis."""
        return any(extent != filled for extent, filled in self.axes)

    def confirmed_by(self, bits: Array) -> bool:
        """Whether ``bits`` are `numbered` elements in this order, and zeros as padding."""
        steps = np.zeros((1 + len(self.axes), len(self.counts)), np.int32)
        size = filled_size = 1
        for place, (extent, filled) in zip(steps[1:], reversed(self.axes), strict=True):
            for k, stride in enumerate(self.strides):
                if filled_size <= stride < filled_size * filled:
                    place[k] = stride // filled_size
            steps[0] += place * size
            size, filled_size = size * extent, filled_size * filled
        padded = [k for k, (extent, filled) in enumerate(reversed(self.axes)) if extent != filled]
        number, *places = (self._sums(steps[k]) for k in (0, *(1 + k for k in padded)))
        rows = bits.reshape(self.counts[0], -1)
        few = max(1, _CHUNK // rows.shape[1])
        for start in range(0, len(rows), few):
            outer = np.arange(start, min(start + few, len(rows)), dtype=np.int32)[:, None]
            made = number + (outer * steps[0][0] + np.int32(_FIRST))
            for k, place in zip(padded, places, strict=True):
                made[place + outer * steps[1 + k][0] >= self.axes[-1 - k][0]] = 0
            if not np.array_equal(made, rows[start : start + few]):
                return False
        return True

    def _sums(self, steps: Array) -> Array:
        """The sums of ``steps`` up to each element within the outermost loop."""
        made = np.zeros(1, np.int32)
        for count, step in zip(self.counts[1:], steps[1:], strict=True):
            made = (made[:, None] + np.arange(count, dtype=np.int32) * step).reshape(-1)
        return made

    def array(self, memory: Array) -> Array:
        """The elements in their original order, from ``memory`` in this order."""
        whole = np.zeros([filled for _, filled in self.axes], memory.dtype)
        self._of(whole)[...] = memory.reshape(self.counts)
        return np.ascontiguousarray(whole[tuple(slice(n) for n, _ in self.axes)]).reshape(-1)

    def orders(self, array: Array, memory: Array) -> bool:
        """Whether ``memory`` has the elements of ``array`` in this order."""
        if self.is_padded:
            return np.array_equal(self.array(memory), array)
        return np.array_equal(self._of(array), memory.reshape(self.counts))

    def orders_sample(self, array: Array, memory: Array) -> bool:
        """Whether some thousand elements of ``memory`` are those of ``array`` in this order."""
        places, at = self._sample
        return np.array_equal(array[places], memory[at])

    @cached_property
    def _sample(self) -> tuple[Array, Array]:
        """The places of some elements in an array, and in this order."""
        at = np.linspace(0, prod(self.counts) - 1, _SAMPLE).astype(np.intp)
        loops = zip(np.unravel_index(at, self.counts), self.strides, strict=True)
        indices = np.unravel_index(
            sum(index * stride for index, stride in loops), [filled for _, filled in self.axes]
        )
        extents = tuple(extent for extent, _ in self.axes)
        inside = np.logical_and.reduce([i < n for i, n in zip(indices, extents, strict=True)])
        return np.ravel_multi_index(tuple(index[inside] for index in indices), extents), at[inside]

    def _of(self, array: Array) -> Array:
        """A view of the padded array in this order."""
        bytes_apart = [stride * array.itemsize for stride in self.strides]
        return as_strided(array, self.counts, bytes_apart)


def numbered(size: int) -> Array:
    """The bytes of ``size`` floats, each with its number in its bits."""
    return np.arange(_FIRST, _FIRST + size, dtype=np.int32).view(np.uint8)


def order_of(numbers: Array, size: int) -> LoopNest | None:
    """The order that ``size`` `numbered` elements are in, with axes padded by zeros, or None.

    It is derived from the first elements of each loop, and confirmed by the others.
    """
    whole = bits = numbers.view(np.int32)
    if not len(bits) or bits[0] != _FIRST:
        return None
    loops: list[tuple[int, int]] = []
    while len(bits) > 1:
        count, stride = _run(bits)
        if count < len(bits) and not bits[count]:
            # Padded up to the start of the next one.
            after = np.flatnonzero(bits[count:])
            count = count + int(after[0]) if after.size else len(bits)
        if len(bits) % count or not 0 < stride < size:
            return None
        loops.append((count, stride))
        bits = bits[::count]
    found = _axes(loops, size)
    if found is None:
        return None
    axes, strides = found
    counts = tuple(count for count, _ in loops[::-1])
    order = LoopNest(counts, tuple(strides[stride] for _, stride in loops[::-1]), axes)
    return order if order.confirmed_by(whole) else None


def _axes(
    loops: list[tuple[int, int]], size: int
) -> tuple[tuple[tuple[int, int], ...], dict[int, int]] | None:
    """Padded axes, outermost first, and the strides of the loops in the padded array."""
    axes: list[tuple[int, int]] = []
    strides: dict[int, int] = {}
    # The axis has one stride in the array, another in the padded array.
    start, filled_start, reached = 1, 1, 1
    for count, stride in sorted(loops, key=lambda loop: loop[1]):
        if stride != reached:
            if not start < stride < reached or stride % start:
                return None
            axes.append((stride // start, reached // start))
            filled_start *= reached // start
            start = reached = stride
        strides[stride] = stride // start * filled_start
        reached *= count
    if size % start or reached < size:
        return None
    axes.append((size // start, reached // start))
    return tuple(axes[::-1]), strides


def _run(bits: Array) -> tuple[int, int]:
    """The number of elements from the first on at equal distances, and the distance."""
    stride = int(bits[1]) - int(bits[0])
    for start in range(0, len(bits) - 1, _CHUNK):
        other = np.diff(bits[start : start + _CHUNK + 1]) != stride
        if other.any():
            return start + int(np.argmax(other)) + 1, stride
    return len(bits), stride


_NONE = Constant(0.0)
"""The initializer, which is never called."""


class ConstantArray(ParamStorage):
    """Memory with a read-only array, as it is or in the order of kernels.

    If a program has the same numbers in another order, the array need not be in memory too:
    `let_go` drops it, and the next access restores it. A ``pinned`` array is read as it is.
    """

    __slots__ = ("_has_nan", "_laid_out", "_like", "_order", "array", "pinned")

    takes = ()
    place = "in memory"
    way_back = ""

    def __init__(self, array: Array | None = None) -> None:
        self.array: Array | None = None
        self._like = np.empty(0, np.float32)
        self._laid_out: Array | None = None
        self._order: LoopNest | None = None
        self._has_nan: bool | None = None
        self.pinned = False
        if array is not None:
            self.replace("", array)

    @property
    def filled(self) -> bool:
        """Whether there is an array, in any order."""
        return self.array is not None or self._laid_out is not None

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._like.dtype

    def replace(self, name: str, array: Array) -> None:
        """Take over ``array``."""
        array = np.ascontiguousarray(array)
        array.flags.writeable = False
        self._like = np.broadcast_to(np.empty((), array.dtype), array.shape)
        self.array, self._has_nan = array, None

    @property
    def has_nan(self) -> bool:
        """Whether an element is NaN."""
        if self._has_nan is None:
            # The least element is NaN if one is.
            array = self.lend()
            self._has_nan = bool(array.size and np.isnan(array.min()))
        return self._has_nan

    def own(self) -> None:
        """Copy the array, which may be another's."""
        if self.array is not None:
            self.array = self.array.copy()
            self.array.flags.writeable = False

    def lend(self) -> Array:
        """The array, restored from a program's order if necessary."""
        array = self.array
        if array is None:
            assert self._laid_out is not None
            assert self._order is not None
            array = self._order.array(self._laid_out).reshape(self._like.shape)
            self.replace("", array)
        return array

    def read(self) -> Array:
        return self.lend()

    def write(self, array: Array) -> None:
        self.replace("", array)

    @property
    def arrays(self) -> list[Array]:
        """The arrays in memory."""
        return [array for array in (self.array, self._laid_out) if array is not None]

    def is_among(self, roots: Collection[int]) -> bool:
        """Whether the array, in its original order, has one of these ids."""
        return self.array is not None and id(root_of(self.array)) in roots

    @property
    def is_laid_out(self) -> bool:
        """Whether a program has the elements in another order."""
        return self._laid_out is not None

    def found(self, memory: Array, order: LoopNest, sample: bool = False) -> bool:
        """Note that ``memory`` has the elements in ``order``; return False if it has not.

        All bits are compared, or a ``sample`` if kernels move any elements in this order.
        """
        bits, laid_out = np.dtype(np.uint32), memory.view(self.dtype)
        holds = order.orders_sample if sample else order.orders
        if not holds(self.lend().view(bits).reshape(-1), laid_out.view(bits)):
            return False
        self._laid_out, self._order = laid_out, order
        return True

    def let_go(self) -> None:
        """Drop the array if it can be restored; for a pinned array drop the other order."""
        if self.pinned:
            if self.is_laid_out:
                self.lend()
            self._laid_out = None
        elif self._laid_out is not None:
            self.array = None

    def __deepcopy__(self, memo: dict[int, Any]) -> ConstantArray:
        return ConstantArray(self.lend().copy())

    def __reduce__(self) -> Any:
        return ConstantArray, (self.lend().copy(),)


def constant(name: str, shape: Shape, array: Array | None = None) -> Param:
    """An untrained parameter with ``array``; None leaves it to be filled."""
    made = Param(ParamSpec(name), shape, _NONE, trainable=False)
    made.storage = ConstantArray(array)
    return made


def array_of(param: Param) -> ConstantArray:
    """The storage of a `constant`."""
    return cast("ConstantArray", param.storage)


class FoldedConvolution(Layer):
    """A convolution, and the following sum with another array and relu, by one kernel.

    ``sum_layer`` is the `Add` that it includes, whose other input comes second.
    """

    def __init__(
        self,
        name: str,
        window: Window,
        params: Mapping[str, Param],
        sum_layer: Add | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__(name)
        self.window = window
        self.params = dict(params)
        self.sum_layer, self.relu = sum_layer, relu

    def forward(self, ctx: Context, x: Any) -> Array:
        """Return the outputs."""
        x, other = (x, None) if self.sum_layer is None else x
        weight, bias = ctx.params["weight"], ctx.params.get("bias")
        channels = x.shape[1]
        # One array serves both kinds, and with a normalisation in it or without.
        size = self.window.kernel[0] * self.window.kernel[1]
        per_group = weight.size // (len(weight) * size)
        kernels = weight.reshape(len(weight), per_group, *self.window.kernel)
        given = x, kernels, bias, replace(self.window, groups=channels // per_group)
        if other is None or len(other) == len(x):
            made: Array = ctx.ops.conv2d_constant(*given, self.relu, other)
            return made
        # The sum raises its own error for unequal batch sizes.
        assert self.sum_layer is not None
        return self.sum_layer.forward(ctx, [ctx.ops.conv2d_constant(*given), other])


class ConstantDense(Layer):
    """A fully connected layer whose weight is laid out for the product, and a relu after it."""

    def __init__(
        self, name: str, transposed: bool, params: Mapping[str, Param], relu: bool
    ) -> None:
        super().__init__(name)
        self.transposed, self.relu = transposed, relu
        self.params = dict(params)

    def forward(self, ctx: Context, x: Array) -> Array:
        """Return the outputs."""
        weight = ctx.params["weight"].T if self.transposed else ctx.params["weight"]
        bias = ctx.params.get("bias")
        y: Array = ctx.ops.affine_constant(as_rows(x), weight, bias, self.relu)
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], y.shape[1])


def foldable(plan: Plan) -> dict[str, str]:
    """The normalisations that can be folded into a convolution, with its name."""
    return {norm.name: conv.name for _, (conv, norm) in fusions_of(plan, [_NORMALISED])}


def fold_norms(plan: Plan, norms: Mapping[str, str]) -> Plan:
    """The plan with ``norms``, some of `foldable`, folded into their convolutions."""
    found = fusions_of(plan, [_NORMALISED])
    return rewritten(plan, [(fusion, row) for fusion, row in found if row[1].name in norms])


def for_constants(plan: Plan) -> Plan:
    """The plan with sums of two and relus after a convolution computed by its kernel.

    Weights of convolutions and of products are laid out for these kernels.
    """
    sparse = {slot for step in plan.steps if step.layer.traits.sparse for slot in step.out_slots}
    found = fusions_of(plan, CONSTANT_FUSIONS)
    return rewritten(plan, [(f, row) for f, row in found if sparse.isdisjoint(row[0].in_slots)])


def _is_sum_of_two(step: NodeStep) -> bool:
    """Whether the step adds two different arrays of one shape."""
    first, *others = step.layer.in_shapes if step.many_in else ((), ())  # type: ignore[misc]
    return _is_one_of(step, Add) and others == [first] and len(set(step.in_slots)) == 2


def _is_one_of(step: NodeStep, *kinds: type) -> bool:
    """Whether the layer's class is exactly one of these."""
    return type(step.layer) in kinds


def _is_convolution(step: NodeStep) -> bool:
    """Whether one kernel computes the layer: padding other than zeros needs two."""
    plain = getattr(step.layer, "padding_mode", "zeros") == "zeros"
    return plain and _is_one_of(step, Conv2D, DepthwiseConv2D) and not step.many_in


def _is_foldable_norm(step: NodeStep) -> bool:
    return _is_one_of(step, BatchNormalization) and step.layer.axis == 1  # type: ignore[attr-defined]


def _is_product(step: NodeStep) -> bool:
    return type(_each_step(step.layer)) is Dense and not step.many_in


def _each_step(layer: Layer) -> Layer:
    """The layer that ``layer`` applies to each step, or itself."""
    return layer.layer if type(layer) is TimeDistributed else layer


def _is_prepared(step: NodeStep) -> bool:
    return _is_convolution(step) or type(step.layer) is FoldedConvolution


def _normalised(conv: NodeStep, norm: NodeStep) -> dict[str, Param]:
    """Weight and bias of a convolution with the folded normalisation, or places for both."""
    given, by = conv.layer.params, norm.layer.params
    name = f"{conv.name}+{norm.name}"
    shapes = {"weight": given["weight"].shape, "bias": by["mean"].shape}
    made = {key: constant(f"{name}/{key}", shape) for key, shape in shapes.items()}
    if not all(param.filled for param in (*given.values(), *by.values())):
        return made
    values = {key: param.value for key, param in by.items()}
    epsilon: float = norm.layer.epsilon  # type: ignore[attr-defined]
    scale = values.get("gamma", 1.0) / np.sqrt(values["var"] + epsilon)
    shift = values.get("beta", 0.0) - values["mean"] * scale
    weight = given["weight"].value
    folded = populated(np.empty_like(weight))
    np.multiply(weight, scale[:, None], out=folded, casting="same_kind")
    bias = given["bias"].value * scale + shift if "bias" in given else shift
    made["weight"].retype(folded)
    made["bias"].retype(bias.astype(weight.dtype, copy=False))
    return made


def _with_norm(conv: NodeStep, norm: NodeStep) -> Layer:
    layer: Any = conv.layer
    return FoldedConvolution(conv.name, layer.window, _normalised(conv, norm))


def _convolution(conv: NodeStep, *after: NodeStep) -> Layer:
    layer: Any = conv.layer
    add = next((step.layer for step in after if isinstance(step.layer, Add)), None)
    relu = len(after) > (add is not None)
    return FoldedConvolution(conv.name, layer.window, layer.params, add, relu)


def _product(dense: NodeStep, *relu: NodeStep) -> Layer:
    layer: Any = _each_step(dense.layer)
    return ConstantDense(dense.name, layer.W_transpose, layer.params, bool(relu))


_NORMALISED = Fusion((_is_convolution, _is_foldable_norm), _with_norm)

CONSTANT_FUSIONS = (
    Fusion((_is_prepared, _is_sum_of_two, is_relu), _convolution),
    Fusion((_is_prepared, _is_sum_of_two), _convolution),
    Fusion((_is_prepared, is_relu), _convolution),
    Fusion((_is_prepared,), _convolution),
    Fusion((_is_product, is_relu), _product),
    Fusion((_is_product,), _product),
    *FUSIONS,
)
"""Fusions of predictors."""


_FLOAT = 4
"""The item size of arrays that are recognised in other orders."""


class Constants:
    """The constants of a predictor, and its programs' results of them, equal arrays once.

    A constant that a program has in another order is stored in that order alone.
    """

    def __init__(self, constants: Iterable[Param]) -> None:
        self.all = list({id(each): each for each in constants}.values())
        self._made: weakref.WeakValueDictionary[tuple[int, int], Array] = (
            weakref.WeakValueDictionary()
        )
        # The orders in which kernels leave elements of a layout; None if there is none.
        self.orders: dict[tuple[Any, int], LoopNest | None] = {}
        self.lock = free_in_children(threading.RLock())

    def named(self) -> dict[str, Param]:
        """The constants by name."""
        return {each.name: each for each in self.all}

    def contain_nan(self) -> bool:
        """Whether any constant contains NaN."""
        return any(array_of(each).has_nan for each in self.all)

    def shared(self, made: Array) -> Array:
        """``made``, or an array with the same bytes that an earlier program made."""
        # A sample: `array_equal` compares the arrays if it is equal.
        key = len(made), zlib.crc32(made[:: max(1, len(made) >> 12)].tobytes())
        found = self._made.get(key)
        if found is not None and np.array_equal(found, made):
            return found
        self._made[key] = made
        return made

    def let_go(self) -> None:
        """Drop restored arrays that are not used any more."""
        for each in self.all:
            array_of(each).let_go()

    def settle(self, read: Iterable[Array], in_python: Collection[int]) -> None:
        """Drop arrays that exist in another order, except the ones that programs ``read``.

        ``in_python`` are ids of constants that the Python of layers reads.
        """
        roots = {id(root_of(array)) for array in read}
        for each in self.all:
            array = array_of(each)
            array.pinned |= id(each) in in_python or array.is_among(roots)
        self.let_go()


def make_constants(tape: Tape, constants: Constants) -> None:
    """Run the calls that read only constants, and replace them by their results.

    Constants are ``constants``, the recording's own constants, and results computed from them.
    """
    given = _tokens(tape, constants)
    calls = _of_constants(tape, given)
    done = {id(call) for call in calls}
    tape.calls = [call for call in tape.calls if id(call) not in done]
    read = {ref for call in tape.calls for ref in refs_of(call)}
    made = _ConstantMemory(tape)
    writers, used = _writers(calls), {ref.token for ref in read}
    trial = _Trial(tape, max((tape.tokens[token].nbytes for token in writers), default=0))
    last = {token: number for number, call in enumerate(calls) for token in call.reads}
    holders = tape.holders()
    complete: dict[int, list[int]] = {}
    for token in used & writers.keys():
        complete.setdefault(writers[token][-1], []).append(token)
    for number, call in enumerate(calls):
        with small_pages():
            made.run(call)
        for token in complete.get(number, ()):
            made.memory[token] = constants.shared(made.memory[token])
            with small_pages():
                source = _find_order(
                    tape, calls, writers, token, given, made, constants.orders, trial
                )
            tape.tokens[token].held, tape.tokens[token].fill = made.memory[token], None
            if source is not None and source not in used and last[source] <= number:
                # Others get its memory.
                tape.release(source, holders.get(source, ()))
                given[source].let_go()
    # Arrays that only those calls have read are dropped.
    tape.outside = {ref: array for ref, array in tape.outside.items() if ref in read}
    tape.outside |= {ref: made.array(ref) for ref in read if made.has(ref.token)}


def _zeros(nbytes: int) -> Array:
    return populated(np.zeros(nbytes, np.uint8))


class _ConstantMemory:
    """The memory that constant calls write, which ``zeros`` makes; ``given`` replaces others'."""

    def __init__(
        self,
        tape: Tape,
        given: Mapping[int, Array] | None = None,
        zeros: Callable[[int], Array] = _zeros,
    ) -> None:
        self._tape, self._zeros = tape, zeros
        self._given = given or {}
        self.memory: dict[int, Array] = {}

    def has(self, token: int) -> bool:
        """Whether it was written here."""
        return token in self.memory

    def run(self, call: Call) -> None:
        """Run the call."""
        ready_call(call, self.array)()

    def array(self, ref: Ref) -> Array:
        """The array at ``ref``."""
        if ref.token in self._given:
            return ref.array(self._given[ref.token])
        found = self._tape.outside.get(ref)
        if found is not None:
            return found
        if ref.token not in self.memory:
            # Zeros, since calls may not write the padding.
            nbytes = self._tape.tokens[ref.token].nbytes
            self.memory[ref.token] = _aligned(self._zeros(nbytes + ALIGNMENT), nbytes)
        return ref.array(self.memory[ref.token])


def _aligned(raw: Array, nbytes: int) -> Array:
    start = -address(raw) % ALIGNMENT
    # An array of the aligned part, which weak references can refer to.
    return np.frombuffer(raw.data[start : start + nbytes], np.uint8)


class _Trial:
    """Constant calls on `numbered` elements, in memory of ``most`` bytes that is used again."""

    def __init__(self, tape: Tape, most: int) -> None:
        self._tape, self._most = tape, most

    @cached_property
    def _memory(self) -> Array:
        return np.empty(self._most + ALIGNMENT, np.uint8)

    @cached_property
    def _numbers(self) -> Array:
        return numbered(self._most // _FLOAT)

    def result(self, calls: Sequence[Call], source: int, size: int, token: int) -> Array:
        """The memory of ``token`` after ``calls``, with ``size`` numbers in place of ``source``."""
        spare = [self._memory]

        def zeros(nbytes: int) -> Array:
            part = spare.pop()[:nbytes] if spare else np.empty(nbytes, np.uint8)
            part.fill(0)
            return part

        given = {source: self._numbers[: size * _FLOAT]}
        other = _ConstantMemory(self._tape, given, zeros)
        for call in calls:
            other.run(call)
        return other.memory[token]


def _tokens(tape: Tape, constants: Constants) -> dict[int, ConstantArray]:
    """The constants by the number of their memory."""
    roots = {id(root_of(each.value)): array_of(each) for each in constants.all}
    return {
        number: roots[id(token.held)]
        for number, token in enumerate(tape.tokens)
        if token.held is not None and id(token.held) in roots
    }


def _writers(calls: Sequence[Call]) -> dict[int, list[int]]:
    """The numbers of the calls that write each token."""
    writers: dict[int, list[int]] = {}
    for number, call in enumerate(calls):
        for token in call.writes:
            writers.setdefault(token, []).append(number)
    return writers


def _find_order(
    tape: Tape,
    calls: Sequence[Call],
    writers: Mapping[int, Sequence[int]],
    token: int,
    given: Mapping[int, ConstantArray],
    made: _ConstantMemory,
    orders: dict[tuple[Any, int], LoopNest | None],
    trial: _Trial,
) -> int | None:
    """Note the order of a constant whose numbers alone are in ``token``, and return its token.

    None if there is none. ``orders`` are the possible ones by kernels and layouts.
    """
    mine, needed = _calls_behind(token, calls, writers)
    sources = [given[number] for number in needed if number in given]
    if len(sources) != 1 or sources[0].is_laid_out:
        return None
    constant = sources[0]
    too_small = tape.tokens[token].nbytes < constant.lend().nbytes
    if constant.dtype.itemsize != _FLOAT or constant.dtype.kind != "f" or too_small:
        return None
    size = constant.lend().size
    source = next(number for number in needed if number in given)
    # Calls of one plan on arrays of one layout move elements in the same way. Other calls may not:
    # their further operands, such as indices, have values.
    alike = all(call.bind is not None and not call.keywords for call in mine)
    alike &= all(number == source or tape.tokens[number].held is None for number in needed)
    key = tuple((call.function, *(ref[1:] for ref in refs_of(call))) for call in mine), size
    known = alike and key in orders
    if known:
        order = orders[key]
    else:
        order = order_of(trial.result(mine, source, size, token), size)
    found = order is not None and constant.found(made.memory[token], order, sample=alike)
    if alike and not known:
        orders[key] = order if found else None
    return source if found else None


def _calls_behind(
    token: int, calls: Sequence[Call], writers: Mapping[int, Sequence[int]]
) -> tuple[list[Call], set[int]]:
    """The calls whose results ``token`` depends on, in order, and all tokens that they read."""
    needed, mine = {token}, list[Call]()
    # The last call first, each perhaps several times.
    later = [-number for number in writers.get(token, ())]
    heapify(later)
    last = len(calls)
    while later:
        number = -heappop(later)
        if number == last:
            continue
        last = number
        mine.append(calls[number])
        for read in calls[number].reads:
            if read not in needed:
                needed.add(read)
                for earlier in writers.get(read, ()):
                    if earlier < number:
                        heappush(later, -earlier)
    return mine[::-1], needed


def _of_constants(tape: Tape, constant: Collection[int]) -> list[Call]:
    """The calls with constant operands that are the only writers of their results."""
    writers = _writers(tape.calls)
    given = {
        number
        for number, token in enumerate(tape.tokens)
        if token.held is not None
        and number not in writers
        and (token.constant or number in constant)
    }
    chosen = {
        number
        for number, call in enumerate(tape.calls)
        if call.function is not None
        and not call.barrier
        and not any(tape.tokens[token].held is not None for token in call.writes)
    }

    def known(token: int) -> bool:
        return token in given or (token in writers and chosen.issuperset(writers[token]))

    users: dict[int, list[int]] = {}
    for number in chosen:
        for token in {*tape.calls[number].reads, *tape.calls[number].writes}:
            users.setdefault(token, []).append(number)
    unknown = [token for token in users if not known(token)]
    while unknown:
        for number in users.pop(unknown.pop(), ()):
            if number in chosen:
                chosen.remove(number)
                unknown += tape.calls[number].writes
    return [tape.calls[number] for number in sorted(chosen)]
