"""Elementwise calls joined into sweeps.

The calls of an optimizer's rule on arrays of one size become one call, which runs all of them block
by block: the result of one kernel is in the cache for the next. A sum of arrays multiplied by
numbers is one kernel. Functions without a kernel of the backend are called in NumPy, between
kernels.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import groupby, pairwise
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import numpy as np

from singanet.base.heap import address
from singanet.ops import Ops
from singanet.ops.numpy.linear import SWEEP
from singanet.ops.workers import side_by_side
from singanet.program.ir import Bind, Call, Ref, Token, map_leaves, refs_of
from singanet.program.joint_sweeps import Operand, joined
from singanet.types import Array, Shape

Ready = Callable[[], object]

_OUT_BY_NAME = frozenset((np.maximum, np.minimum))
"""Functions for which NumPy warns about a positional output."""

_OF_NUMPY = (np.ufunc, BuiltinFunctionType)

_REDUCING = ("axis", "dtype", "out", "keepdims")
_BY_DEFAULT = (0, None, None, False)


def ready_call(call: Call, array_of: Callable[[Ref], Array]) -> Ready:
    """``call`` on the arrays at its refs."""
    if call.bind is not None:
        return call.bind(array_of)
    assert call.function is not None
    given = tuple([_filled(value, array_of) for value in call.arguments])
    named = {key: _filled(value, array_of) for key, value in call.keywords.items()}
    return ready(call.function, given, named)


def chained(calls: Iterable[Ready]) -> list[Ready]:
    """The functions that ``calls`` consist of, in order and without calls that do nothing.

    The calls have to live as long as these functions, which use memory objects of theirs.
    """
    made: list[Ready] = []
    threads = 0
    for call in calls:
        after = getattr(call, "after", None)
        if after is not None:
            made += after(threads)
            # A call without threads does not change their number.
            threads = call.threads or threads  # type: ignore[attr-defined]
        elif call is not _nothing:
            made.append(call)
            # A function other than NumPy's may run kernels of its own.
            of_numpy = isinstance(call, partial) and isinstance(call.func, _OF_NUMPY)
            threads = threads if of_numpy else 0
    return made


def _filled(value: Any, array_of: Callable[[Ref], Array]) -> Any:
    return array_of(value) if type(value) is Ref else map_leaves(value, Ref, array_of)


def ready(
    function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]
) -> Ready:
    """``function(*arguments, **keywords)`` as a function that is called repeatedly."""
    rest = dict(keywords)
    if isinstance(function, np.ufunc):
        return _element_wise(function, arguments, rest)
    owner = getattr(function, "__self__", None)
    if isinstance(owner, np.ufunc) and function == owner.reduce and rest.keys() <= {*_REDUCING}:
        given = arguments[1:]
        named = zip(_REDUCING[len(given) :], _BY_DEFAULT[len(given) :], strict=True)
        return partial(function, *arguments, *(rest.get(key, usual) for key, usual in named))
    if function is np.argmax and rest.keys() == {"axis", "out"} and len(arguments) == 1:
        return partial(arguments[0].argmax, rest["axis"], rest["out"])
    if function is np.copyto and _fits(arguments[0], arguments[1], rest):
        return partial(arguments[0].__setitem__, ..., arguments[1])
    return partial(function, *arguments, **rest)


def _element_wise(function: np.ufunc, arguments: tuple[Any, ...], rest: dict[str, Any]) -> Ready:
    if rest.keys() != {"out"}:
        return partial(function, *arguments, **rest)
    outs = rest["out"] if isinstance(rest["out"], tuple) else (rest["out"],)
    if function is np.matmul:
        product = np.dot if _is_plain(*arguments, *outs) else function
        return partial(product, *arguments, *outs)
    if function is np.positive and _is_same(arguments[0], outs[0]):
        return _nothing
    operands = _with_arrays(function, arguments)
    if function in _OUT_BY_NAME:
        return partial(function, *operands, out=outs)
    return partial(function, *operands, *outs)


def _nothing() -> None:
    """Do nothing: the copy of an array to itself."""


def _is_same(a: Array, b: Array) -> bool:
    """Whether two arrays are the same elements in memory."""
    return a.__array_interface__ == b.__array_interface__


def _with_arrays(function: np.ufunc, operands: tuple[Any, ...]) -> list[Any]:
    """``operands`` with arrays in the place of numbers, which NumPy would convert in each call."""
    types = [value.dtype for value in operands if isinstance(value, np.ndarray)]
    if len(types) in (0, len(operands)) or any(each != types[0] for each in types):
        return list(operands)
    kind = types[0]
    if kind.kind != "f" or not _takes_alike(function, kind.char):
        return list(operands)
    return [
        np.asarray(value, kind) if type(value) in (int, float) and abs(value) < 1e4 else value
        for value in operands
    ]


@cache
def _takes_alike(function: np.ufunc, char: str) -> bool:
    """Whether all operands may be of the type; some functions take an integer operand."""
    return any(loop.startswith(char * function.nin + "->") for loop in function.types)


def _is_plain(a: Array, b: Array, out: Array) -> bool:
    """Whether ``np.dot`` calls the same function of BLAS, with less overhead.

    The two differ for arrays with gaps, or with an axis of one element.
    """
    return (
        a.ndim + b.ndim == out.ndim + 2
        and out.ndim in (1, 2)
        and {0, 1}.isdisjoint((*a.shape, *b.shape, *out.shape))
        and out.dtype.char in "fd"
        and a.dtype == b.dtype == out.dtype
        and a.flags.forc
        and b.flags.forc
        and out.flags.c_contiguous
    )


def _fits(target: Any, value: Any, rest: dict[str, Any]) -> bool:
    """Whether a copy is an assignment: no mask, and no type that NumPy would not copy into."""
    if rest.keys() - {"casting"}:
        return False
    if rest or type(value) in (int, float):
        return rest.get("casting", "unsafe") == "unsafe"
    return isinstance(value, np.ndarray) and np.can_cast(value.dtype, target.dtype, "same_kind")


Span = Callable[[int, int], None]
"""A function that computes the elements from a first one up to before another."""

_F32 = np.dtype(np.float32)

_BLOCK = 1 << 17
"""The number of elements per thread for which three arrays fit the cache of a core."""


class Sweep(NamedTuple):
    """``out`` = ``function`` of ``operands`` of equal layout; the second may be a number.

    ``scales`` has for each operand the number that it is multiplied by first, or None. All arrays
    have ``size`` elements.
    """

    size: int
    call: Call
    function: np.ufunc
    out: Ref
    operands: tuple[Operand, ...]
    scales: tuple[Operand | None, ...]
    by_numpy: bool = False

    @property
    def arrays(self) -> list[Operand]:
        """The operands, in the order of the kernels' arguments."""
        return [self.out, *self.operands, *(scale for scale in self.scales if scale is not None)]

    def kernel(self, ops: Ops, size: int, work: int) -> Any:
        """The kernel for ``size`` elements, see `Ops.sweep`."""
        scaled = tuple(scale is not None for scale in self.scales)
        return ops.sweep(self.function, size, not self.operands[-1].shape, scaled, work)

    def bound(self, ops: Ops, array_of: Callable[[Ref], Array], work: int) -> Ready:
        """A function that computes all elements."""
        if self.by_numpy:
            return partial(self._by_numpy(ops, array_of), 0, self.size)
        addresses = [at for at, _ in self._places(array_of)]
        ready: Ready = self.kernel(ops, self.size, work).bound(addresses, 0)
        return ready

    def moved(self, numbers: Mapping[int, int], size: int) -> Sweep:
        """The sweep with tokens renumbered by ``numbers``, which have ``size`` elements."""

        def there(value: Any) -> Any:
            number = numbers.get(value.token) if type(value) is Ref else None
            return value if number is None else Ref(number, 0, (size,), (_F32.itemsize,), _F32)

        def renamed(group: Iterable[int]) -> tuple[int, ...]:
            return tuple(numbers.get(token, token) for token in group)

        call = replace(
            self.call,
            arguments=tuple(map(there, self.call.arguments)),
            keywords={"out": there(self.out)},
            reads=renamed(self.call.reads),
            writes=renamed(self.call.writes),
            partly=renamed(self.call.partly),
            in_place=tuple(p for p in self.call.in_place if numbers.keys().isdisjoint(p)),
        )
        operands = tuple(map(there, self.operands))
        return self._replace(call=call, out=there(self.out), operands=operands)

    def in_blocks(
        self, ops: Ops, array_of: Callable[[Ref], Array], sizes: Collection[int], work: int
    ) -> Span:
        """A function that computes a run of elements, as many as one of ``sizes``.

        A kernel gets new addresses for each block: a large array would need thousands of bound
        kernels.
        """
        if self.by_numpy:
            return self._by_numpy(ops, array_of)
        places = self._places(array_of)
        runs = {size: self.kernel(ops, size, work).run for size in sizes}

        def make(start: int, end: int) -> None:
            runs[end - start]([at + start * step for at, step in places], 0)

        return make

    def _places(self, array_of: Callable[[Ref], Array]) -> list[tuple[int, int]]:
        """The addresses of its arrays, and the bytes to the next element, 0 for one block's."""
        return [
            (
                address(array_of(each) if type(each) is Ref else each),
                _F32.itemsize if self._is_whole(each) else 0,
            )
            for each in self.arrays
        ]

    def _is_whole(self, operand: Any) -> bool:
        """Whether it has all elements, so is neither a number nor scratch for a block."""
        return (
            type(operand) is Ref and math.prod(operand.shape) == self.size and operand.shape != ()
        )

    def _by_numpy(self, ops: Ops, array_of: Callable[[Ref], Array]) -> Span:
        """The function of `in_blocks` by NumPy, in lanes."""

        def part(value: Any) -> tuple[Any, bool]:
            if type(value) is not Ref:
                return value, False
            array = array_of(value)
            # In the order of memory, which has no gaps.
            return (array.ravel("K") if value.shape else array), self._is_whole(value)

        operands = [part(value) for value in (*self.call.arguments, self.out)]

        def of_lane(first: int, start: int, end: int) -> Ready:
            *given, out = [
                _cut(value, start if whole else start - first, end - start)
                for value, whole in operands
            ]
            return partial(self.function, *given, out=out)

        def make(start: int, end: int) -> None:
            lanes = ops.lanes(end - start, (end - start) * SWEEP)
            parts = [of_lane(start, start + one.start, start + one.stop) for one in lanes]
            if len(parts) == 1:
                parts[0]()
            else:
                side_by_side([[part] for part in parts])

        return make


def _cut(value: Any, start: int, count: int) -> Any:
    """``count`` elements of an array from ``start`` on; a number unchanged."""
    return value[start : start + count] if getattr(value, "shape", ()) else value


def with_sweeps_lowered(calls: Sequence[Call], tokens: list[Token], ops: Ops) -> list[Call]:
    """``calls`` with the sweeps among them in the form of the backend's kernels.

    Tokens are added for their scratch memory.
    """
    sweeps = [_sweep_of(call, ops) for call in calls]
    if not any(sweeps):
        return list(calls)
    users: dict[int, list[int]] = {}
    for k, call in enumerate(calls):
        for token in (*call.reads, *call.writes):
            users.setdefault(token, []).append(k)
    made: list[Call] = []

    def private(group: Sequence[int]) -> set[int]:
        """The tokens that no call but those of ``group``, which are consecutive, touches."""
        touched = {token for k in group for token in (*calls[k].reads, *calls[k].writes)}
        return {t for t in touched if group[0] <= users[t][0] and users[t][-1] <= group[-1]}

    def spent(k: int, token: int) -> bool:
        """Whether the call ``k`` reads planned memory as the last one before new writes."""
        if tokens[token].held is not None:
            return False
        at = bisect_right(users[token], k)
        later = calls[users[token][at]] if at < len(users[token]) else None
        return later is None or token not in (*later.reads, *later.partly)

    def kind(k: int) -> tuple[int, str]:
        sweep = sweeps[k]
        if sweep is None or sweep.call.phase != "update":
            return -1 - k, ""
        return sweep.size, sweep.call.layer

    for _, places in groupby(range(len(calls)), key=kind):
        group = [*places]
        members = [sweep for k in group if (sweep := sweeps[k]) is not None]
        lowered = None
        if members:
            own = partial(private, group)
            joint = joined(members, own, tokens, ops)
            if joint is not None:
                lowered = _one_call(members, joint.arrays, joint.bind, (joint.plan,))
            else:
                fused = _with_products_fused(members, [partial(spent, k) for k in group])
                lowered = _lowered(fused, own, tokens, ops)
        made += [calls[k] for k in group] if lowered is None else [lowered]
    return made


def _sweep_of(call: Call, ops: Ops) -> Sweep | None:
    """``call`` as a sweep, if ``ops`` may have a kernel for it."""
    function, operands = call.function, call.arguments
    plain = call.bind is None and call.lane is None and not call.barrier
    if not plain or not isinstance(function, np.ufunc) or call.keywords.keys() != {"out"}:
        return None
    out = call.keywords["out"]
    if type(out) is not Ref or len(operands) != function.nin:
        return None
    size = math.prod(out.shape)
    by_numpy = not ops.has_sweep(function, size)
    # A single call gains nothing; rules have several calls in a row.
    if not size or (by_numpy and call.phase != "update") or not _is_dense(*out[2:]):
        return None
    if function in (np.add, np.multiply) and _is_number(operands[0]):
        operands = operands[::-1]
    first, *rest = operands
    if not _is_like(first, out) or not all(_is_like(b, out) or _is_number(b) for b in rest):
        return None
    given = [first, *(b if type(b) is Ref else np.asarray(b, _F32) for b in rest)]
    return Sweep(size, call, function, out, tuple(given), (None,) * len(given), by_numpy)


def _is_like(value: Any, out: Ref) -> bool:
    return type(value) is Ref and value[2:] == out[2:]


def _is_number(value: Any) -> bool:
    """Whether it has no axes and is a float32, or becomes one."""
    if isinstance(value, (Ref, np.ndarray)):
        return value.shape == () and value.dtype == _F32
    return type(value) in (int, float)


@lru_cache(maxsize=4096)
def _is_dense(shape: Shape, strides: Shape, dtype: np.dtype[Any]) -> bool:
    """Whether it is float32 without gaps, in whatever order of the axes."""
    if dtype != _F32:
        return False
    expected = _F32.itemsize
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


Spent = Callable[[int], bool]
"""Whether a call is the last one that reads a token, planned memory, before new writes."""


def _with_products_fused(sweeps: Sequence[Sweep], spent: Sequence[Spent]) -> list[Sweep]:
    """``sweeps``; products by numbers that only a sum reads become its scales."""
    made: list[Sweep] = []
    for sweep, over in zip(sweeps, spent, strict=True):
        sums = sweep.function in (np.add, np.subtract) and not sweep.by_numpy
        if sums and sweep.operands[1].shape:
            for side in (0, 1):
                sweep = _with_product(sweep, side, made, over)
        made.append(sweep)
    return made


def _with_product(total: Sweep, side: int, made: list[Sweep], spent: Spent) -> Sweep:
    """``total`` with the product that it reads on that ``side``, removed from ``made``."""
    operand = total.operands[side]
    if type(operand) is not Ref or operand == total.operands[1 - side]:
        return total
    token, at = operand.token, len(made) - 1
    while at >= 0 and token not in made[at].call.writes:
        if token in made[at].call.reads:
            return total
        at -= 1
    if at < 0:
        return total
    product, between = made[at], {token for other in made[at + 1 :] for token in other.call.writes}
    if (
        product.function is not np.multiply
        or product.operands[1].shape
        or product.out != operand
        or not between.isdisjoint(product.call.reads)
        or not (operand == total.out or (spent(token) and token not in total.call.writes))
    ):
        return total
    del made[at]
    operands, scales = [*total.operands], [*total.scales]
    operands[side], scales[side] = product.operands
    read = dict.fromkeys((*total.call.reads, *product.call.reads))
    if token not in product.call.reads:
        del read[token]
    call = replace(total.call, reads=tuple(read))
    return total._replace(call=call, operands=tuple(operands), scales=tuple(scales))


def _with_scratch_of_blocks(
    sweeps: Sequence[Sweep], size: int, private: Collection[int], tokens: list[Token]
) -> list[Sweep]:
    """``sweeps`` with scratch of ``size`` elements instead of arrays that only they use.

    ``private`` are the tokens that no other call uses.
    """
    places: dict[int, set[Ref]] = {}
    for ref in (each for sweep in sweeps for each in sweep.arrays if type(each) is Ref):
        places.setdefault(ref.token, set()).add(ref)
    seen: set[int] = set()
    numbers: dict[int, int] = {}
    for sweep in sweeps:
        token = sweep.out.token
        made = token not in seen and token not in sweep.call.reads
        seen.update(sweep.call.reads, sweep.call.writes)
        whole = tokens[token].nbytes == sweep.size * _F32.itemsize
        if made and whole and token in private and len(places[token]) == 1:
            numbers[token] = len(tokens)
            tokens.append(Token(size * _F32.itemsize))
    return [sweep.moved(numbers, size) for sweep in sweeps] if numbers else list(sweeps)


def _lowered(
    sweeps: Sequence[Sweep], private: Callable[[], set[int]], tokens: list[Token], ops: Ops
) -> Call | None:
    """One call that makes ``sweeps``, which have ``private`` tokens, one after the other in blocks.

    None if that is no better than the single functions.
    """
    size = sweeps[0].size
    work, blocks = size * len(sweeps), [(0, size)]
    known = [sweep for sweep in sweeps if not sweep.by_numpy]
    if len(sweeps) > 1:
        blocks = _blocks(size, 1)
        first = known[0].kernel(ops, blocks[0][1], work) if known else None
        lanes = ops.lanes(size, size * SWEEP)
        threads = sum(1 for _ in lanes) if first is None else first.threads
        blocks = _blocks(size, threads)
    if not known and len(blocks) == 1:
        return None
    sizes = list(dict.fromkeys(end - start for start, end in blocks))
    plans = [sweep.kernel(ops, count, work) for count in sizes for sweep in known]
    if not all(plans):
        return None
    if len(blocks) > 1:
        sweeps = _with_scratch_of_blocks(sweeps, max(sizes), private(), tokens)

    def bind(array_of: Callable[[Ref], Array]) -> Ready:
        if len(blocks) == 1:
            kernels = [sweep.bound(ops, array_of, work) for sweep in sweeps]
            return kernels[0] if len(kernels) == 1 else partial(_one_by_one, kernels)
        spans = [sweep.in_blocks(ops, array_of, sizes, work) for sweep in sweeps]
        return partial(_block_by_block, spans, blocks)

    if len(sweeps) == 1:
        return replace(sweeps[0].call, bind=bind, plans=tuple(plans))
    refs = dict.fromkeys(each for s in sweeps for each in s.arrays if type(each) is Ref)
    return _one_call(sweeps, tuple(refs), bind, tuple(plans))


def _one_call(
    sweeps: Sequence[Sweep], refs: tuple[Ref, ...], bind: Bind, plans: tuple[Any, ...]
) -> Call:
    """The call of ``plans`` that makes ``sweeps``; memory that is not in ``refs`` is not used."""
    calls, used = [sweep.call for sweep in sweeps], {ref.token for ref in refs}
    # The parts of a bucket have no refs, but are read and written.
    unused = {ref.token for call in calls for ref in refs_of(call)} - used
    reads: dict[int, None] = {}
    writes: dict[int, None] = {}
    for call in calls:
        reads.update(dict.fromkeys(token for token in call.reads if token not in writes))
        writes.update(dict.fromkeys(call.writes))
    return Call(
        _one_by_one,
        (refs,),
        {},
        tuple(token for token in reads if token not in unused),
        tuple(token for token in writes if token not in unused),
        tuple(token for token in writes if token in reads and token not in unused),
        tuple(pair for pair in _in_place(calls) if used.issuperset(pair)),
        calls[0].layer,
        "update",
        "sweeps",
        bind=bind,
        passes=len(calls),
        once=any(call.once for call in calls),
        parts=len(calls),
        plans=plans,
    )


def _blocks(size: int, threads: int) -> list[tuple[int, int]]:
    """The blocks of ``size`` elements that ``threads`` threads share one after the other.

    All but the last, which is up to half as large again, are equal for every size, so they share
    their kernels.
    """
    block = _BLOCK * threads
    return [*pairwise([*range(0, max(size - block // 2, 1), block), size])]


def _in_place(calls: Sequence[Call]) -> tuple[tuple[int, int], ...]:
    """The pairs of ``calls`` that are valid for all of them together, run block by block."""
    pairs: dict[int, int] = {}
    for k, call in enumerate(calls):
        before, after = calls[:k], calls[k + 1 :]
        for read, written in call.in_place:
            touched = any(read in (*other.reads, *other.writes) for other in after)
            made = any(written in other.writes or read in other.writes for other in before)
            if not touched and not made:
                pairs.setdefault(read, written)
    return tuple(pairs.items())


def _block_by_block(spans: Sequence[Span], blocks: Sequence[tuple[int, int]]) -> None:
    for start, end in blocks:
        for make in spans:
            make(start, end)


def _one_by_one(kernels: Sequence[Ready]) -> None:
    for kernel in kernels:
        kernel()
