"""Run recurrent layers by oneDNN.

Skipped steps, recurrent dropout, float64 and relu use NumPy's kernels: oneDNN's relu turns NaN into
zero, so a diverged state would go unnoticed. NumPy also runs a GRU of many units on a single
sequence.

oneDNN's "linear before reset" variant has the formula of `Ops`, with gates in the order z, r, n.
The LSTM's gates have the order of `Ops`.

oneDNN's workspace has room for states and their gradients, but a plan writes little of it. The
layout differs between versions, so it is observed: short sequences run on marked memory, and the
written ranges are extrapolated to the full number of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from singanet.base.kinds import PAGE, Ranges, union
from singanet.ops.kernel import Route, in_order
from singanet.ops.llvm.plans import SHARED, Build
from singanet.ops.llvm.recurrent import lstm_steps
from singanet.ops.numpy import recurrent as by_numpy
from singanet.ops.numpy.recurrent import state_buffer
from singanet.ops.onednn.base import OneDnnBase
from singanet.ops.onednn.binding import F32, Algorithm, Arg, Prop, Query, RnnDirection
from singanet.ops.onednn.builder import Builder, NotOfferedError
from singanet.ops.onednn.runtime import Runtime
from singanet.ops.window import RecurrentCase, RecurrentGradients, RecurrentSlopes, RecurrentStates
from singanet.types import Array

__all__: list[str] = []


_OVERWRITE = 1
"""Gradients of weights overwrite the output (``dnnl_rnn_flags_...``)."""

SEVERAL = 16
"""Sequences from which a bfloat16 training step is faster, for all sizes.

It reads and writes all gradients of the weights at each step; a float32 step sums them once.
"""

_GATES = {"lstm": 4, "gru": 3, "tanh": 1}
"""Blocks of the weights."""

_BIASES = {"lstm": 4, "gru": 4, "tanh": 1}
"""Blocks of the bias: the last gate of a GRU has one inside and one outside the reset."""

_ADDS_A_PASS = 2
"""Multiply-adds of a step that count as one element processed.

Smaller steps gain nothing from threads, even from awake ones; on busy cores the threads wait long
for each other after every step.
"""

_FIRST, _LAST = (Arg.SRC_ITER, Arg.SRC_ITER_C), (Arg.DST_ITER, Arg.DST_ITER_C)
_DIFF_FIRST = (Arg.DIFF_SRC_ITER, Arg.DIFF_SRC_ITER_C)
_DIFF_LAST = (Arg.DIFF_DST_ITER, Arg.DIFF_DST_ITER_C)


class Sizes(NamedTuple):
    """The sizes of one direction; ``kind`` is "lstm", "gru", or "tanh" for a simple layer."""

    kind: str
    steps: int
    n: int
    size: int
    width: int
    reverse: bool

    @property
    def states(self) -> int:
        """The number of states that pass from step to step."""
        return 2 if self.kind == "lstm" else 1

    @property
    def passes(self) -> int:
        """The work per element, of a step: threads synchronize after each."""
        step = self.n * self.width * _GATES[self.kind] * self.width // _ADDS_A_PASS
        return max(1, -(-step // (self.steps * self.n * self.size)))


class _Layouts:
    """The memory descriptors of one direction: sequences, states, weights, bias.

    ``factors`` is the dtype of all factors of the weights.
    """

    def __init__(self, build: Builder, sizes: Sizes, factors: int = F32) -> None:
        kind, steps, n, size, width, _ = sizes
        self.x = build.rows((steps, n, size), factors)
        self.y = build.rows((steps, n, width), factors)
        # The cells of an LSTM are sums over the steps, not factors.
        kinds = (factors, F32)[: sizes.states]
        self.states = [build.rows((1, 1, n, width), kind) for kind in kinds]
        self.weights = [(1, 1, rows, _GATES[kind], width) for rows in (size, width)]
        self.free = [build.free(shape, factors) for shape in self.weights]
        # oneDNN's LSTM has optional peepholes and a projection; `Ops` has neither.
        self.absent = [None, None] if kind == "lstm" else []
        self.bias = build.rows((1, 1, _BIASES[kind], width))

    def all(self) -> list[Any]:
        """Return all descriptors in oneDNN's order of arguments."""
        inputs = [self.x, *self.states, *self.free, *self.absent, self.bias]
        return [*inputs, self.y, *self.states]


def _kind(sizes: Sizes, prop: Prop) -> tuple[str, tuple[int, ...], tuple[float, ...]]:
    """Return the primitive's name, and its arguments before the memory and after the flags."""
    way = int(RnnDirection.REVERSE if sizes.reverse else RnnDirection.FORWARD)
    suffix = "backward" if prop is Prop.BACKWARD else "forward"
    if sizes.kind == "tanh":
        return f"vanilla_rnn_{suffix}", (int(prop), int(Algorithm.TANH), way), (0.0, 0.0)
    name = "lbr_gru" if sizes.kind == "gru" else "lstm"
    return f"{name}_{suffix}", (int(prop), way), ()


class _Direction:
    """The primitives of a direction, with memory in their layout and in the operands' layout."""

    def __init__(self, build: Builder, sizes: Sizes, prop: Prop) -> None:
        self.build, self.sizes = build, sizes
        self.inner, self.plain = _Layouts(build, sizes, build.factors), _Layouts(build, sizes)
        # oneDNN calls its training kernels a reference, but they use fast products.
        build.products = True
        name, before, after = _kind(sizes, prop)
        self.desc = self._made(name, *before, *self.inner.all(), 0, *after)
        if prop is Prop.FORWARD_TRAINING:
            name, before, after = _kind(sizes, Prop.BACKWARD)
            both = [*self.inner.all(), *self.plain.all()]
            flags = 0 if self.is_narrow else _OVERWRITE
            self.back = self._made(name, *before, *both, flags, *after, self.desc)
            if self.is_narrow and sizes.n < SEVERAL:
                raise NotOfferedError(name)

    @property
    def is_narrow(self) -> bool:
        """Whether factors are rounded; gradients of weights are then added to the output."""
        return self.build.factors != F32

    def _made(self, name: str, *arguments: Any) -> Any:
        desc = self.build.primitive_desc(name, *arguments, slow=True)
        # With rounded factors the reference is slower than without.
        if self.is_narrow and not self.build.implementation(desc).startswith("brgemm"):
            raise NotOfferedError(name)
        return desc

    def inputs(self, desc: Any, laid_out: bool = False) -> dict[Arg, int]:
        """Return the first operands: x, initial states, both weights, the bias."""
        build, plain, inner = self.build, self.plain, self.inner
        order = (Arg.SRC, *_FIRST[: self.sizes.states])
        pairs = zip([plain.x, *plain.states], [inner.x, *inner.states], strict=True)
        given = {
            arg: build.packed_input(k, *pair)
            for k, (arg, pair) in enumerate(zip(order, pairs, strict=True))
        }
        number = len(order)
        for k, arg in enumerate((Arg.WEIGHTS, Arg.WEIGHTS_ITER)):
            wanted = build.layout(desc, Query.WEIGHTS, k)
            weight = wanted if laid_out else build.rows(plain.weights[k])
            given[arg] = build.packed_input(number + k, weight, wanted)
        return {**given, Arg.BIAS: build.operand(number + 2, plain.bias)}


def _forward(build: Builder, sizes: Sizes, prop: Prop, laid_out: bool = False) -> None:
    made = _Direction(build, sizes, prop)
    given = made.inputs(made.desc, laid_out)
    number = len(given)
    given[Arg.DST], bring = build.packed_output(number, made.plain.y, made.inner.y)
    given[Arg.DST_ITER] = build.inner(made.inner.states[0])
    for k, state in enumerate(made.plain.states[1:], 1):
        given[_LAST[k]] = build.operand(number + k, state)
    if prop is Prop.FORWARD_TRAINING:
        notes = build.layout(made.desc, Query.WORKSPACE)
        given[Arg.WORKSPACE] = build.operand(number + sizes.states, notes)
    build.stage(made.desc, given)
    bring()


def infer(build: Builder, *sizes: Any) -> None:
    """Operands: x, initial states, weights of x and of h, the bias; states h, other last states."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE)


def infer_laid_out(build: Builder, *sizes: Any) -> None:
    """Operands: like `infer`, with weights from `lay_out`."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE, laid_out=True)


def lay_out(build: Builder, *key: Any) -> None:
    """Operands: a weight laid out for `infer_laid_out`, and plain; the key ends with its index."""
    sizes, which = Sizes(*key[:-1]), key[-1]
    direction = _Direction(build, sizes, Prop.FORWARD_INFERENCE)
    wanted = build.layout(direction.desc, Query.WEIGHTS, which)
    plain = build.rows(direction.plain.weights[which])
    made, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, made)


def train(build: Builder, *sizes: Any) -> None:
    """Operands: like `infer`, and the workspace for `backward`."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_TRAINING)


def backward(build: Builder, *key: Any) -> None:
    """Operands: the inputs of `train`; states h, all last states, workspace; gradients.

    It reads the gradients of the states h and of the last states, and then writes the gradients of
    the inputs of `train`. Pass zeros for the gradients of the weights and the bias, since oneDNN
    may add to them.
    """
    sizes = Sizes(*key)
    made = _Direction(build, sizes, Prop.FORWARD_TRAINING)
    given, count = made.inputs(made.back), sizes.states
    order = [Arg.DST, *_LAST[:count], Arg.WORKSPACE, Arg.DIFF_DST, *_DIFF_LAST[:count]]
    order += [Arg.DIFF_SRC, *_DIFF_FIRST[:count]]
    notes = build.layout(made.desc, Query.WORKSPACE)
    plain, inner = made.plain, made.inner
    rest = [notes, plain.y, *plain.states, plain.x, *plain.states]
    pairs = zip([plain.y, *plain.states, *rest], [inner.y, *inner.states, *rest], strict=True)
    for number, (arg, pair) in enumerate(zip(order, pairs, strict=True), len(given)):
        given[arg] = build.packed_input(number, *pair)
    number = len(given)
    slopes, bring = (Arg.DIFF_WEIGHTS, Arg.DIFF_WEIGHTS_ITER), []
    for k, arg in enumerate(slopes):
        wanted = build.layout(made.back, Query.DIFF_WEIGHTS, k)
        zero = build.rows(plain.weights[k])
        given[arg], then = build.packed_output(number + k, zero, wanted, made.is_narrow)
        bring.append(then)
    given[Arg.DIFF_BIAS] = build.operand(number + 2, plain.bias)
    # The backward primitive overwrites the workspace.
    adds = (Arg.WORKSPACE, *slopes, Arg.DIFF_BIAS) if made.is_narrow else (Arg.WORKSPACE,)
    build.stage(made.back, given, (Arg.WORKSPACE,), adds)
    for then in bring:
        then()


def sizes_of(kind: str, case: RecurrentCase) -> Sizes:
    """Return the sizes of one direction, for the primitives."""
    steps, n, size = case.x.shape
    return Sizes(kind, steps, n, size, len(case.weights[1]), case.direction.reverse)


def serves(ops: OneDnnBase, case: RecurrentCase) -> bool:
    """Whether oneDNN serves the layer: weights of the input, no skipped steps, float32."""
    of_x, of_h = case.weights
    if of_x is None or not ops.serves(1, case.x, of_x, of_h, *case.biases):
        return False
    return case.direction.is_plain


def is_noted(ops: OneDnnBase, case: RecurrentCase, made: RecurrentStates, *_: Any) -> bool:
    """Whether ``made`` has a workspace of oneDNN."""
    return len(made.notes) > 0 and made.notes[0].dtype == np.uint8


def forward(
    ops: OneDnnBase,
    sizes: Sizes,
    case: RecurrentCase,
    starts: Sequence[Array | None],
    keep: bool,
    plan: tuple[Build, int] | None = None,
) -> RecurrentStates | None:
    """Run all steps, with ``keep`` also for `gradients`; return None if oneDNN has no kernel.

    ``case`` has weights and bias in oneDNN's order. The result has all states h, but only the last
    of other states; its notes are oneDNN's workspace and the initial other states. ``plan`` is
    another builder and its work.
    """
    build, work = plan or (train if keep else infer, sizes.passes)
    x, direction, shape = case.x, case.direction, (sizes.n, sizes.width)
    h = state_buffer(ops, (sizes.steps + 1, *shape), starts[0], x, direction)
    firsts = tuple(_start(ops, start, h) for start in starts[1:])
    lasts: tuple[Array, ...] = tuple(ops.xp.empty((1, *shape), x.dtype) for _ in firsts)
    given = [ops.ordered(x), h[direction.start], *firsts, *_parameters(ops, case)]
    given += [direction.afters(h), *lasts]
    notes = (ops.room(build, sizes, len(given), given[0], work),) if keep else ()
    if not ops.runs(build, sizes, *given, *notes, passes=work):
        return None
    return RecurrentStates((h, *lasts), (*notes, *firsts) if keep else ())


def gradients(
    ops: OneDnnBase,
    sizes: Sizes,
    case: RecurrentCase,
    made: RecurrentStates,
    wanted: RecurrentSlopes,
) -> list[Array]:
    """Return the gradients of x, of the initial states, of both weights and of the bias."""
    xp, x, direction = ops.xp, case.x, case.direction
    (h, *lasts), (note, *firsts) = made
    given, (dy, ends, _) = _parameters(ops, case), wanted
    slopes = xp.zeros((sizes.steps, sizes.n, sizes.width), x.dtype) if dy is None else dy
    found: list[Array] = [xp.empty(like.shape, like.dtype) for like in (x, *ends)]
    # bfloat16 kernels add to these.
    found += [(xp.zeros if ops.narrow else xp.empty)(like.shape, like.dtype) for like in given]
    before = [ops.ordered(x), h[direction.start], *firsts, *given]
    after = [direction.afters(h), h[direction.end], *lasts, note]
    from_above = [ops.ordered(slopes), *map(ops.ordered, ends)]
    ops.runs(backward, sizes, *before, *after, *from_above, *found, passes=sizes.passes)
    return found


def _parameters(ops: OneDnnBase, case: RecurrentCase) -> list[Array]:
    of_x, of_h = case.weights
    assert of_x is not None
    return [ops.ordered(array) for array in (of_x, of_h, *case.biases)]


def _start(ops: OneDnnBase, state: Array | None, h: Array) -> Array:
    made: Array
    if state is None:
        made = ops.xp.zeros(h.shape[1:], h.dtype)
    else:
        made = ops.xp.array(state, order="C")
    return made


_STEPS, _STATE = 20, 256
"""The fewest steps, and the largest state of a batch, for which oneDNN is faster.

One call saves more Python time than its kernels lose, which are up to a quarter slower than BLAS.
Several sequences with bfloat16 products are always faster.
"""


def _layer(
    kind: str,
    ops: OneDnnBase,
    case: RecurrentCase,
    starts: Sequence[Array | None],
    keep: bool,
) -> RecurrentStates | None:
    """Run a layer; an LSTM returns only its last cells."""
    return forward(ops, sizes_of(kind, case), case, starts, keep)


def _layer_back(
    kind: str, ops: OneDnnBase, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    dx, *starts, of_x, of_h, bias = gradients(ops, sizes_of(kind, case), case, made, slopes)
    dx_wanted = dx if slopes.needs_dx else None
    return RecurrentGradients(dx_wanted, of_x, of_h, bias, bias, tuple(starts))


def _elman_is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    n = case.x.shape[1]
    pays = case.direction.count >= _STEPS and n * len(case.weights[1]) <= _STATE
    pays |= ops.narrow and n >= SEVERAL
    return case.mode == "tanh" and pays and serves(ops, case)


elman_layer = in_order(
    Route("onednn", partial(_layer, "tanh"), _elman_is_served), last=by_numpy.elman_layer
)

elman_layer_backward = in_order(
    Route("onednn", partial(_layer_back, "tanh"), is_noted), last=by_numpy.elman_layer_backward
)


_WIDE = 192
"""Units from which a single sequence is NumPy's: oneDNN reorders the weights in each call."""


def _gru_layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    return forward(ops, sizes_of("gru", case), _in_onednn_order(ops, case), starts, keep)


def _gru_layer_back(
    ops: OneDnnBase, case: RecurrentCase, made: RecurrentStates, slopes: RecurrentSlopes
) -> RecurrentGradients:
    sizes, split = sizes_of("gru", case), 2 * len(case.weights[1])
    found = gradients(ops, sizes, _in_onednn_order(ops, case), made, slopes)
    dx, start, weight_x, weight_h, bias = found
    bias_x = _exchanged(ops, bias[: split // 2 * 3])
    bias_h = ops.concat([bias_x[:split], bias[split // 2 * 3 :]], axis=0)
    exchanged = _exchanged(ops, weight_x), _exchanged(ops, weight_h)
    wanted = dx if slopes.needs_dx else None
    return RecurrentGradients(wanted, *exchanged, bias_x, bias_h, (start,))


def _is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    several = case.x.shape[1] > 1 or len(case.weights[1]) < _WIDE
    return several and serves(ops, case)


def _in_onednn_order(ops: OneDnnBase, case: RecurrentCase) -> RecurrentCase:
    """Return the case with weights and bias in oneDNN's order."""
    weights: Any = tuple(_exchanged(ops, weight) for weight in case.weights if weight is not None)
    return case._replace(weights=weights, biases=(_joint_bias(ops, *case.biases),))


def _exchanged(ops: OneDnnBase, blocks: Array) -> Array:
    """Exchange the first two gates: r, z, n to z, r, n, and back."""
    width = blocks.shape[-1] // 3
    return ops.concat([blocks[..., k * width : (k + 1) * width] for k in (1, 0, 2)], axis=-1)


def _joint_bias(ops: OneDnnBase, bias_x: Array, bias_h: Array) -> Array:
    """Return the bias in oneDNN's order: z, r, n of the input, and n of the state."""
    split = 2 * (len(bias_x) // 3)
    both = ops.xp.add(bias_x[:split], bias_h[:split])
    exchanged = [both[split // 2 :], both[: split // 2]]
    return ops.concat([*exchanged, bias_x[split:], bias_h[split:]], axis=0)


gru_layer = in_order(Route("onednn", _gru_layer, _is_served), last=by_numpy.gru_layer)

gru_layer_backward = in_order(
    Route("onednn", _gru_layer_back, is_noted), last=by_numpy.gru_layer_backward
)


def _prepared_layer(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> RecurrentStates | None:
    """Run an LSTM with reordered weights; a program reorders them once."""
    sizes = sizes_of("lstm", case)
    # The thread count of a plain call, and equal for each of the calls.
    work = SHARED if case.x.size * sizes.passes >= SHARED else 0
    laid_out: Any = tuple(
        _laid_out(ops, sizes, k, weight, work)
        for k, weight in enumerate(case.weights)
        if weight is not None
    )
    prepared = case._replace(weights=laid_out)
    return forward(ops, sizes, prepared, starts, False, (infer_laid_out, work))


def _laid_out(ops: OneDnnBase, sizes: Sizes, which: int, weight: Array, work: int) -> Array:
    made = ops.room(lay_out, (*sizes, which), 0, weight, work)
    ops.runs(lay_out, (*sizes, which), made, ops.ordered(weight), passes=work)
    return made


def _lstm_is_served(ops: OneDnnBase, case: RecurrentCase, *_: object) -> bool:
    return serves(ops, case)


def _are_compiled(
    ops: OneDnnBase, case: RecurrentCase, starts: Sequence[Array | None], keep: bool
) -> bool:
    """Whether a predictor's steps are LLVM's: those of one sequence, whose units threads share.

    Without registers of 512 bits oneDNN 3.2 arranges the factors again at each step.
    """
    if ops.prepared is None or keep or not lstm_steps.fits(ops, case, starts, keep):
        return False
    from singanet.ops.compiled.engine import is_wide

    return case.x.shape[1] == 1 or not is_wide()


lstm_layer = in_order(
    Route("compiled", lstm_steps.run, _are_compiled),
    Route(
        "prepared",
        _prepared_layer,
        lambda ops, case, starts, keep: ops.prepared is not None and not keep and serves(ops, case),
    ),
    Route("onednn", partial(_layer, "lstm"), _lstm_is_served),
    last=by_numpy.lstm_layer,
)

lstm_layer_backward = in_order(
    Route("onednn", partial(_layer_back, "lstm"), is_noted), last=by_numpy.lstm_layer_backward
)


_PART = 32
"""Observed sequences have 1/32 and 2/32 of the steps, to save memory while planning."""

_FEWEST = 3
"""The fewest observed steps that show the layout."""

_MARK = np.uint32(0x7FA51234)
"""Bits of a signalling NaN, which no arithmetic produces."""


def written(
    ops: OneDnnBase, build: Build, key: tuple[Any, ...], passes: int = 1
) -> Mapping[int, Ranges]:
    """Return the byte ranges that a plan writes, for each operand that it writes in part.

    The index after the last operand means the scratch memory. Only recurrent training plans have an
    entry. ``passes`` has its meaning in `OneDnnBase.runs`.
    """
    runtime = ops.runtime()
    if runtime is None or build not in (train, backward):
        return {}
    return _written(runtime, Sizes(*key), passes)[build is backward]


@lru_cache(maxsize=64)
def _written(
    runtime: Runtime, sizes: Sizes, passes: int
) -> tuple[dict[int, Ranges], dict[int, Ranges]]:
    """Return the ranges of `train` and `backward`."""
    short = max(_FEWEST, sizes.steps // _PART)
    longer = 2 * short
    work = sizes.steps * sizes.n * sizes.size * passes
    plans = [runtime.plan(build, sizes, work) for build in (train, backward)]
    if longer > sizes.steps // 2 or None in plans:
        return {}, {}
    seen = [_seen(runtime, sizes._replace(steps=steps), work) for steps in (short, longer)]
    made: tuple[dict[int, Ranges], dict[int, Ranges]] = {}, {}
    for which, plan in enumerate(plans):
        assert plan is not None
        room = [*plan.sizes, plan.scratch]
        for number in seen[0][which]:
            first, second = (found[which][number] for found in seen)
            grown = _grown(first, second, (sizes.steps - short) / (longer - short))
            end_of = room[number]
            made[which][number] = tuple((a, min(b, end_of)) for a, b in grown if a < end_of)
    return made


def _seen(runtime: Runtime, sizes: Sizes, work: int) -> tuple[dict[int, Array], dict[int, Array]]:
    """Return a mask of the 4-byte words that a run writes, of workspace and of scratch memory."""
    forward, back = (runtime.built(build, sizes, work) for build in (train, backward))
    assert forward is not None
    assert back is not None
    note, note_back = len(forward.sizes) - 1, _note_of(sizes)
    notes = np.full(-(-forward.sizes[note] // 4), _MARK)
    found: list[dict[int, Array]] = []
    for plan, number in ((forward, note), (back, note_back)):
        given = [np.zeros(size, np.uint8) for size in plan.sizes]
        scratch = np.full((plan.scratch + PAGE) // 4, _MARK)
        before: Any = _MARK if not found else notes.copy()
        addresses = [array.ctypes.data for array in given]
        addresses[number] = notes.ctypes.data
        start = -scratch.ctypes.data % PAGE
        plan.run(addresses, scratch.ctypes.data + start)
        of_scratch = scratch[start // 4 : start // 4 + plan.scratch // 4] != _MARK
        found.append({number: notes != before, len(plan.sizes): of_scratch})
    return found[0], found[1]


def _note_of(sizes: Sizes) -> int:
    """Return the index of the workspace among the operands of `backward`."""
    inputs = 1 + sizes.states + 3
    return inputs + 1 + sizes.states


def _grown(first: Array, second: Array, factor: float) -> Ranges:
    """Extrapolate written ranges linearly from two shorter runs to ``factor`` times the difference.

    Nearby words form one range, such as the rows of a matrix with gaps between rows.
    """
    gap = PAGE
    while True:
        pair = [_rows(_ranges(mask, gap)) for mask in (first, second)]
        if len(pair[0]) == len(pair[1]):
            break
        gap *= 2
    grown = (pair[0] + (pair[1] - pair[0]) * factor).astype(np.int64).tolist()
    return union(
        (start + k * apart, start + k * apart + length)
        for start, length, apart, count in grown
        for k in range(count)
    )


def _rows(ranges: Array) -> Array:
    """Return ranges as rows: start and length of the first, distance to the next, and count.

    A step may write a range of its own: these are ranges of one length at equal distances.
    """
    starts, lengths = ranges[:, 0], ranges[:, 1] - ranges[:, 0]
    rows: list[tuple[float, float, float, int]] = []
    k = 0
    while k < len(ranges):
        count, apart = 1, 0.0
        if k + 1 < len(ranges):
            apart = starts[k + 1] - starts[k]
            even = starts[k:] == starts[k] + apart * np.arange(len(starts) - k)
            alike = even & (lengths[k:] == lengths[k])
            count = len(alike) if alike.all() else int(alike.argmin())
        if count < _FEWEST:
            count, apart = 1, 0.0
        rows.append((starts[k], lengths[k], apart, count))
        k += count
    return np.array(rows).reshape(-1, 4)


def _ranges(mask: Array, gap: int) -> Array:
    """Return the byte ranges of set words of ``mask``, joined across at most ``gap`` bytes."""
    if not len(mask):
        return np.zeros((0, 2))
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    edges = np.r_[[0] * bool(mask[0]), edges, [len(mask)] * bool(mask[-1])].astype(np.int64)
    if not len(edges):
        return np.zeros((0, 2))
    starts, ends = edges[::2], edges[1::2]
    # The distance between the last word before a gap and the first after it.
    last = np.flatnonzero(starts[1:] - ends[:-1] + 1 > gap // 4)
    starts, ends = starts[np.r_[0, last + 1]], ends[np.r_[last, len(ends) - 1]]
    return 4.0 * np.stack([starts, ends], axis=1)
