"""Plans of oneDNN's recurrent kernels: all steps of a direction, the products with them, in one."""

from __future__ import annotations

from typing import Any, NamedTuple

from singanet.ops.onednn.binding import F32, Algorithm, Arg, Prop, Query, RnnDirection
from singanet.ops.onednn.builder import Builder
from singanet.ops.onednn.descriptors import NotOfferedError

_OVERWRITE = 1
"""Gradients of weights are not added to what is there (``dnnl_rnn_flags_...``)."""

SEVERAL = 16
"""Sequences from which a training step by products of bfloat16 is faster, whatever the sizes.

It reads and writes all gradients of the weights at each step; one of float32 sums them once.
"""

_GATES = {"lstm": 4, "gru": 3, "tanh": 1}
"""Blocks of the weights."""

_BIASES = {"lstm": 4, "gru": 4, "tanh": 1}
"""Blocks of the bias: the last gate of a GRU has one inside of the reset, one outside."""

_ADDS_A_PASS = 2
"""Multiply-adds of a step that count as one number gone over.

With fewer threads gain nothing, even awake, and where cores have other work they wait long for each
other after every step.
"""

_FIRST, _LAST = (Arg.SRC_ITER, Arg.SRC_ITER_C), (Arg.DST_ITER, Arg.DST_ITER_C)
_DIFF_FIRST = (Arg.DIFF_SRC_ITER, Arg.DIFF_SRC_ITER_C)
_DIFF_LAST = (Arg.DIFF_DST_ITER, Arg.DIFF_DST_ITER_C)


class Sizes(NamedTuple):
    """A direction: ``kind`` is "lstm", "gru", or "tanh" for a simple layer with this function."""

    kind: str
    steps: int
    n: int
    size: int
    width: int
    reverse: bool

    @property
    def states(self) -> int:
        """How many are handed from step to step."""
        return 2 if self.kind == "lstm" else 1

    @property
    def passes(self) -> int:
        """Threads pay by the work of a step, after which they wait for each other."""
        step = self.n * self.width * _GATES[self.kind] * self.width // _ADDS_A_PASS
        return max(1, -(-step // (self.steps * self.n * self.size)))


class _Layouts:
    """The memory of one direction: sequences, states, weights, bias.

    ``factors`` is the type of all that is multiplied by weights.
    """

    def __init__(self, build: Builder, sizes: Sizes, factors: int = F32) -> None:
        kind, steps, n, size, width, _ = sizes
        self.x = build.rows((steps, n, size), factors)
        self.y = build.rows((steps, n, width), factors)
        # The cells of an LSTM are sums over the steps, and no factors.
        kinds = (factors, F32)[: sizes.states]
        self.states = [build.rows((1, 1, n, width), kind) for kind in kinds]
        self.weights = [(1, 1, rows, _GATES[kind], width) for rows in (size, width)]
        self.free = [build.free(shape, factors) for shape in self.weights]
        # An LSTM may have peepholes and a projection, which ours has not.
        self.absent = [None, None] if kind == "lstm" else []
        self.bias = build.rows((1, 1, _BIASES[kind], width))

    def all(self) -> list[Any]:
        """In the order in which descriptors are made."""
        inputs = [self.x, *self.states, *self.free, *self.absent, self.bias]
        return [*inputs, self.y, *self.states]


def _kind(sizes: Sizes, prop: Prop) -> tuple[str, tuple[int, ...], tuple[float, ...]]:
    """The primitive's name, what comes before its memory, and what after its flags."""
    way = int(RnnDirection.REVERSE if sizes.reverse else RnnDirection.FORWARD)
    suffix = "backward" if prop is Prop.BACKWARD else "forward"
    if sizes.kind == "tanh":
        return f"vanilla_rnn_{suffix}", (int(prop), int(Algorithm.TANH), way), (0.0, 0.0)
    name = "lbr_gru" if sizes.kind == "gru" else "lstm"
    return f"{name}_{suffix}", (int(prop), way), ()


class _Direction:
    """The memory of a direction as the primitives have it, and as the operands lie."""

    def __init__(self, build: Builder, sizes: Sizes, prop: Prop) -> None:
        self.build, self.sizes = build, sizes
        self.inner, self.plain = _Layouts(build, sizes, build.factors), _Layouts(build, sizes)
        # Training runs by kernels that call themselves a reference; they are made of good products.
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
        """Whether factors are rounded; then gradients of weights are added to what is there."""
        return self.build.factors != F32

    def _made(self, name: str, *arguments: Any) -> Any:
        desc = self.build.primitive_desc(name, *arguments, slow=True)
        # The reference is slower with rounded factors than without.
        if self.is_narrow and not self.build.implementation(desc).startswith("brgemm"):
            raise NotOfferedError(name)
        return desc

    def inputs(self, desc: Any, laid_out: bool = False) -> dict[Arg, int]:
        """The first operands: x, first states, both weights, maybe ``laid_out``, the bias."""
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
    """Operands: x, the first states, weights of x and of h, the bias; states h, the last others."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE)


def infer_laid_out(build: Builder, *sizes: Any) -> None:
    """Operands: as for `infer`, with weights as `lay_out` makes them."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE, laid_out=True)


def lay_out(build: Builder, *key: Any) -> None:
    """Operands: a weight as `infer_laid_out` wants it, and as it is; the key ends with which."""
    sizes, which = Sizes(*key[:-1]), key[-1]
    direction = _Direction(build, sizes, Prop.FORWARD_INFERENCE)
    wanted = build.layout(direction.desc, Query.WEIGHTS, which)
    plain = build.rows(direction.plain.weights[which])
    made, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, made)


def train(build: Builder, *sizes: Any) -> None:
    """Operands: as for `infer`, and notes for `backward`."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_TRAINING)


def backward(build: Builder, *key: Any) -> None:
    """Operands: the inputs of `train`; states h, all last states, notes; gradients.

    The gradients of the states h and of the last states are read. Then come the gradients of the
    inputs of `train`, which are written; pass zeros for the weights and the bias, since their
    gradients may be added to what is there.
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
    # The notes of the forward steps are overwritten on the way back.
    adds = (Arg.WORKSPACE, *slopes, Arg.DIFF_BIAS) if made.is_narrow else (Arg.WORKSPACE,)
    build.stage(made.back, given, (Arg.WORKSPACE,), adds)
    for then in bring:
        then()
