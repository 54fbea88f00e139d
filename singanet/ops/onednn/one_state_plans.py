"""Recurrent kernels of oneDNN with a single state: all steps of a direction in one call."""

from __future__ import annotations

from typing import Any, NamedTuple

from singanet.ops.onednn.binding import Algorithm, Arg, Direction, Prop, Query
from singanet.ops.onednn.builder import Builder

_OVERWRITE = 1
"""Gradients of weights are not added to what is there (``dnnl_rnn_flags_...``)."""


class Sizes(NamedTuple):
    """A direction: ``kind`` is "gru", or "tanh" for a simple layer with this function."""

    kind: str
    steps: int
    n: int
    size: int
    width: int
    reverse: bool

    @property
    def gates(self) -> int:
        """Blocks of the weights."""
        return 3 if self.kind == "gru" else 1

    @property
    def biases(self) -> int:
        """Blocks of the bias: the last gate of a GRU has one inside of the reset, one outside."""
        return 4 if self.kind == "gru" else 1


class _Layouts:
    """The memory of one direction: sequences, states, weights, bias."""

    def __init__(self, build: Builder, sizes: Sizes) -> None:
        _, steps, n, size, width, _ = sizes
        self.x, self.y = build.rows((steps, n, size)), build.rows((steps, n, width))
        self.state = build.rows((1, 1, n, width))
        self.weights = [(1, 1, rows, sizes.gates, width) for rows in (size, width)]
        self.bias = build.rows((1, 1, sizes.biases, width))

    def all(self, build: Builder) -> list[Any]:
        """In the order in which descriptors are made."""
        weights = [build.free(shape) for shape in self.weights]
        return [self.x, self.state, *weights, self.bias, self.y, self.state]


def _kind(sizes: Sizes, prop: Prop) -> tuple[str, tuple[int, ...], tuple[float, ...]]:
    """The primitive's name, what comes before its memory, and what after its flags."""
    way = int(Direction.REVERSE if sizes.reverse else Direction.FORWARD)
    suffix = "backward" if prop is Prop.BACKWARD else "forward"
    if sizes.kind == "gru":
        return f"lbr_gru_{suffix}", (int(prop), way), ()
    return f"vanilla_rnn_{suffix}", (int(prop), int(Algorithm.TANH), way), (0.0, 0.0)


def _desc(build: Builder, layouts: _Layouts, sizes: Sizes, prop: Prop) -> Any:
    name, before, after = _kind(sizes, prop)
    # Training runs by kernels that call themselves a reference; they are made of good products.
    return build.primitive_desc(name, *before, *layouts.all(build), 0, *after, slow=True)


def _inputs(build: Builder, desc: Any, layouts: _Layouts) -> dict[Arg, int]:
    """The operands 0 to 4: the sequences, the first state, both weights, the bias."""
    given = build.operands((Arg.SRC, Arg.SRC_ITER), [layouts.x, layouts.state])
    for k, arg in enumerate((Arg.WEIGHTS, Arg.WEIGHTS_ITER)):
        wanted = build.layout(desc, Query.WEIGHTS, k)
        given[arg] = build.packed_input(2 + k, build.rows(layouts.weights[k]), wanted)
    return {**given, Arg.BIAS: build.operand(4, layouts.bias)}


def _forward(build: Builder, sizes: Sizes, prop: Prop) -> None:
    layouts = _Layouts(build, sizes)
    desc = _desc(build, layouts, sizes, prop)
    given = _inputs(build, desc, layouts)
    given[Arg.DST] = build.operand(5, layouts.y)
    given[Arg.DST_ITER] = build.inner(layouts.state)
    if prop is Prop.FORWARD_TRAINING:
        given[Arg.WORKSPACE] = build.operand(6, build.layout(desc, Query.WORKSPACE))
    build.stage(desc, given)


def infer(build: Builder, *sizes: Any) -> None:
    """Operands: x, the first state, weights of x and of h, the bias; the states of the steps."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_INFERENCE)


def train(build: Builder, *sizes: Any) -> None:
    """Operands: as for `infer`, and notes for `backward`."""
    _forward(build, Sizes(*sizes), Prop.FORWARD_TRAINING)


def backward(build: Builder, *key: Any) -> None:
    """Operands: those of `train` with the last state before the notes, gradients given and made.

    Given are those of the states and of the last one; made are those of the operands 0 to 4.
    """
    sizes = Sizes(*key)
    layouts = _Layouts(build, sizes)
    hint = _desc(build, layouts, sizes, Prop.FORWARD_TRAINING)
    name, before, after = _kind(sizes, Prop.BACKWARD)
    both = [*layouts.all(build), *layouts.all(build)]
    desc = build.primitive_desc(name, *before, *both, _OVERWRITE, *after, hint, slow=True)
    given = _inputs(build, desc, layouts)
    order = [Arg.DST, Arg.DST_ITER, Arg.WORKSPACE, Arg.DIFF_DST, Arg.DIFF_DST_ITER]
    order += [Arg.DIFF_SRC, Arg.DIFF_SRC_ITER]
    notes = build.layout(hint, Query.WORKSPACE)
    kinds = [layouts.y, layouts.state, notes, layouts.y, layouts.state, layouts.x, layouts.state]
    for k, (arg, layout) in enumerate(zip(order, kinds, strict=True)):
        given[arg] = build.operand(5 + k, layout)
    bring = []
    for k, arg in enumerate((Arg.DIFF_WEIGHTS, Arg.DIFF_WEIGHTS_ITER)):
        made = build.layout(desc, Query.DIFF_WEIGHTS, k)
        given[arg], then = build.packed_output(12 + k, build.rows(layouts.weights[k]), made)
        bring.append(then)
    given[Arg.DIFF_BIAS] = build.operand(14, layouts.bias)
    # The notes of the forward steps are overwritten on the way back.
    build.stage(desc, given, (Arg.WORKSPACE,), (Arg.WORKSPACE,))
    for then in bring:
        then()
