"""Plans of oneDNN's recurrent kernels: all steps of a direction, the products with them, in one."""

from __future__ import annotations

from typing import Any, NamedTuple

from singanet.ops.onednn.binding import Algorithm, Arg, Direction, Prop, Query
from singanet.ops.onednn.builder import Builder

_OVERWRITE = 1
"""Gradients of weights are not added to what is there (``dnnl_rnn_flags_...``)."""

_GATES = {"lstm": 4, "gru": 3, "tanh": 1}
"""Blocks of the weights."""

_BIASES = {"lstm": 4, "gru": 4, "tanh": 1}
"""Blocks of the bias: the last gate of a GRU has one inside of the reset, one outside."""

_ADDS_A_PASS = {"lstm": 1, "gru": 4, "tanh": 4}

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
        step = self.n * self.width * _GATES[self.kind] * self.width // _ADDS_A_PASS[self.kind]
        return max(1, -(-step // (self.steps * self.n * self.size)))


class _Layouts:
    """The memory of one direction: sequences, states, weights, bias."""

    def __init__(self, build: Builder, sizes: Sizes) -> None:
        kind, steps, n, size, width, _ = sizes
        self.x, self.y = build.rows((steps, n, size)), build.rows((steps, n, width))
        self.states = [build.rows((1, 1, n, width))] * sizes.states
        self.weights = [(1, 1, rows, _GATES[kind], width) for rows in (size, width)]
        # An LSTM may have peepholes and a projection, which ours has not.
        self.absent = [None, None] if kind == "lstm" else []
        self.bias = build.rows((1, 1, _BIASES[kind], width))

    def all(self, build: Builder) -> list[Any]:
        """In the order in which descriptors are made."""
        weights = [build.free(shape) for shape in self.weights]
        inputs = [self.x, *self.states, *weights, *self.absent, self.bias]
        return [*inputs, self.y, *self.states]


def _kind(sizes: Sizes, prop: Prop) -> tuple[str, tuple[int, ...], tuple[float, ...]]:
    """The primitive's name, what comes before its memory, and what after its flags."""
    way = int(Direction.REVERSE if sizes.reverse else Direction.FORWARD)
    suffix = "backward" if prop is Prop.BACKWARD else "forward"
    if sizes.kind == "tanh":
        return f"vanilla_rnn_{suffix}", (int(prop), int(Algorithm.TANH), way), (0.0, 0.0)
    name = "lbr_gru" if sizes.kind == "gru" else "lstm"
    return f"{name}_{suffix}", (int(prop), way), ()


def _desc(build: Builder, layouts: _Layouts, sizes: Sizes, prop: Prop) -> Any:
    name, before, after = _kind(sizes, prop)
    # Training runs by kernels that call themselves a reference; they are made of good products.
    build.products = True
    return build.primitive_desc(name, *before, *layouts.all(build), 0, *after, slow=True)


def _inputs(build: Builder, desc: Any, layouts: _Layouts, laid_out: bool = False) -> dict[Arg, int]:
    """The first operands: sequences, first states, both weights, maybe ``laid_out``, the bias."""
    order = (Arg.SRC, *_FIRST[: len(layouts.states)])
    given = build.operands(order, [layouts.x, *layouts.states])
    number = len(order)
    for k, arg in enumerate((Arg.WEIGHTS, Arg.WEIGHTS_ITER)):
        wanted = build.layout(desc, Query.WEIGHTS, k)
        plain = wanted if laid_out else build.rows(layouts.weights[k])
        given[arg] = build.packed_input(number + k, plain, wanted)
    return {**given, Arg.BIAS: build.operand(number + 2, layouts.bias)}


def _forward(build: Builder, sizes: Sizes, prop: Prop, laid_out: bool = False) -> None:
    layouts = _Layouts(build, sizes)
    desc = _desc(build, layouts, sizes, prop)
    given = _inputs(build, desc, layouts, laid_out)
    number = len(given)
    given[Arg.DST] = build.operand(number, layouts.y)
    given[Arg.DST_ITER] = build.inner(layouts.states[0])
    for k, state in enumerate(layouts.states[1:], 1):
        given[_LAST[k]] = build.operand(number + k, state)
    if prop is Prop.FORWARD_TRAINING:
        notes = build.layout(desc, Query.WORKSPACE)
        given[Arg.WORKSPACE] = build.operand(number + sizes.states, notes)
    build.stage(desc, given)


def infer(build: Builder, *sizes: Any) -> None:
    """Operands: x, the first states, weights of x and of h, the bias; states h, the last others."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE)


def infer_laid_out(build: Builder, *sizes: Any) -> None:
    """Operands: as for `infer`, with weights as `lay_out` makes them."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE, laid_out=True)


def lay_out(build: Builder, *key: Any) -> None:
    """Operands: a weight as `infer_laid_out` wants it, and as it is; the key ends with which."""
    sizes, which = Sizes(*key[:-1]), key[-1]
    layouts = _Layouts(build, sizes)
    desc = _desc(build, layouts, sizes, Prop.FORWARD_INFERENCE)
    wanted = build.layout(desc, Query.WEIGHTS, which)
    plain = build.rows(layouts.weights[which])
    made, weight = build.operand(0, wanted), build.operand(1, plain)
    build.reorder(plain, weight, wanted, made)


def train(build: Builder, *sizes: Any) -> None:
    """Operands: as for `infer`, and notes for `backward`."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_TRAINING)


def backward(build: Builder, *key: Any) -> None:
    """Operands: those that `train` reads; states h, all last states, notes; gradients.

    Gradients given are those of the states h and of the last ones, then those made, of what
    `train` reads.
    """
    sizes = Sizes(*key)
    layouts = _Layouts(build, sizes)
    hint = _desc(build, layouts, sizes, Prop.FORWARD_TRAINING)
    name, before, after = _kind(sizes, Prop.BACKWARD)
    both = [*layouts.all(build), *layouts.all(build)]
    desc = build.primitive_desc(name, *before, *both, _OVERWRITE, *after, hint, slow=True)
    given = _inputs(build, desc, layouts)
    number, states, count = len(given), layouts.states, sizes.states
    order = [Arg.DST, *_LAST[:count], Arg.WORKSPACE, Arg.DIFF_DST, *_DIFF_LAST[:count]]
    order += [Arg.DIFF_SRC, *_DIFF_FIRST[:count]]
    notes = build.layout(hint, Query.WORKSPACE)
    kinds = [layouts.y, *states, notes, layouts.y, *states, layouts.x, *states]
    for k, (arg, layout) in enumerate(zip(order, kinds, strict=True)):
        given[arg] = build.operand(number + k, layout)
    number += len(order)
    bring = []
    for k, arg in enumerate((Arg.DIFF_WEIGHTS, Arg.DIFF_WEIGHTS_ITER)):
        made = build.layout(desc, Query.DIFF_WEIGHTS, k)
        given[arg], then = build.packed_output(number + k, build.rows(layouts.weights[k]), made)
        bring.append(then)
    given[Arg.DIFF_BIAS] = build.operand(number + 2, layouts.bias)
    # The notes of the forward steps are overwritten on the way back.
    build.stage(desc, given, (Arg.WORKSPACE,), (Arg.WORKSPACE,))
    for then in bring:
        then()
