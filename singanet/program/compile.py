"""From a trace to a program: passes over its calls, recompute, layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from singanet.base.garbage import no_collections
from singanet.ops.llvm.plans import CompiledPlan
from singanet.program.cost import work_of
from singanet.program.ir import Buffer, Call, Kernel, Ref, refs_of, without_unread
from singanet.program.join_lanes import kernels_of, moved, with_lanes_joined
from singanet.program.layout import Layout, plan_arena
from singanet.program.loads import LoadedArray, Loads, saved_for_backward, with_loads
from singanet.program.lower_few import with_few_lowered
from singanet.program.lower_sweeps import with_sweeps_lowered
from singanet.program.lowering import ON_HOST, Lowering
from singanet.program.narrow import narrowed
from singanet.program.trace.recorder import Recorder
from singanet.program.trace.tape import Tape
from singanet.types import Array

if TYPE_CHECKING:
    from singanet.engine.recompute.by_layers import Decision
    from singanet.program.recompute import Choice, Recompute

_SMALL = 1 << 16
"""The maximum bytes of an array of one value that becomes a constant if no call changes it."""

_UNDER_WAY = {"open": 1, "start": 1, "finish": -1, "close": -1}
"""The change in the number of pending sums by a call of a reduction."""

_BETWEEN = 1 << 19
"""The bytes that calls process between two checks of pending sums: about 0.1 ms."""


class Recording(NamedTuple):
    """The calls of a tape with their memory planned: ``place`` has the offset of each token.

    ``kept_bytes`` is the size of the arena without recomputation, ``decisions`` are the recomputed
    layers; ``lowering`` prepares the calls.
    """

    calls: list[Call]
    outside: dict[Ref, Array]
    kernels: list[Kernel]
    buffers: list[Buffer]
    layout: Layout
    place: dict[int, int]
    kept_bytes: int
    decisions: tuple[Decision, ...] = ()
    lowering: Lowering = ON_HOST
    loads: Loads | None = None

    @property
    def plans(self) -> list[Any]:
        """The primitives of oneDNN that calls are bound to or run, each once."""
        run = [*self.bound, *(plan for call in self.calls for plan in call.plans)]
        return list({id(plan): plan for plan in run}.values())

    @property
    def bound(self) -> list[Any]:
        """The primitives that calls are bound to; only a bound method has one."""
        plans = [getattr(call.function, "__self__", None) for call in self.calls if call.bind]
        return [plan for plan in plans if plan is not None]

    @property
    def recipes(self) -> list[Any]:
        """The recipes of oneDNN's own kernels."""
        found = [getattr(plan, "recipe", None) for plan in self.plans]
        return [recipe for recipe in found if recipe is not None]

    @property
    def packing(self) -> int:
        """The bytes that oneDNN's products allocate, one product at a time."""
        return max((recipe.packing for recipe in self.recipes), default=0)

    @property
    def is_compiled(self) -> bool:
        """Whether functions compiled by LLVM are among them, which are not oneDNN kernels."""
        return len(self.recipes) < len(self.plans)

    @property
    def is_wide(self) -> bool:
        """Whether oneDNN's code is for registers of 512 bits."""
        return any(recipe.wide for recipe in self.recipes)

    @property
    def is_recurrent(self) -> bool:
        """Whether kernels of recurrent layers are among them.

        They do not write all memory that they allocate, and need the code of products.
        """
        return any(recipe.products for recipe in self.recipes)


@dataclass(eq=False, repr=False)
class Draft:
    """The trace that IR passes work on: calls, and the arrays ``outside`` the arena.

    ``parameters`` are ids of arrays of the net; ``runs_again`` is whether calls may run again for
    the backward pass.
    """

    tape: Tape
    calls: list[Call]
    outside: dict[Ref, Array]
    parameters: frozenset[int]
    runs_again: bool


def compiled(recorder: Recorder, recompute: Recompute = "none") -> Recording:
    """The recording of ``recorder``, with its memory planned; see `FeedForwardNet.record`."""
    with no_collections():
        parameters = recorder.finish()
        if recorder.tape.make_constants is not None:
            recorder.forget_params()
        return compile_tape(recorder.tape, parameters, recompute)


def compile_tape(
    tape: Tape, parameters: frozenset[int] = frozenset(), recompute: Recompute = "none"
) -> Recording:
    """The recording on ``tape``, with its memory planned; ``parameters`` are ids of parameters.

    Errors: a number of bytes for ``recompute`` that is too small for the arena. Raises
    `NotRecordableError` for a call that the backend does not support.
    """
    return Compiler(tape, parameters, recompute != "none").at(recompute)


class Compiler:
    """The calls of a tape after all passes, and recordings of them at any level.

    If the tape is interrupted between its passes, a level other than "none" needs ``recomputes``.
    """

    def __init__(self, tape: Tape, parameters: frozenset[int], recomputes: bool) -> None:
        again = recomputes or True in tape.wishes.values()
        self._draft = draft = Draft(tape, tape.calls, dict(tape.outside), parameters, again)
        for run in PASSES:
            draft.calls = run(draft)
        tape.lowering.expect_known(draft.calls)
        draft.calls = tape.lowering.ordered(draft.calls)
        self.kept = laid_out(draft, draft.calls)

    @cached_property
    def plain(self) -> Recording:
        """The recording that recomputes nothing."""
        return loaded(self._draft, with_checks(self._draft, self.kept))

    @cached_property
    def choice(self) -> Choice:
        """The choice of calls that can run again."""
        from singanet.program import recompute as choice

        return choice.Choice(self.kept, self._draft.tape.tokens, self._draft.tape.wishes)

    def at(self, level: Recompute) -> Recording:
        """The recording that recomputes at ``level``, if it has a backward.

        Errors: as `compile_tape`.
        """
        draft, kept = self._draft, self.kept
        asked = level != "none" or True in draft.tape.wishes.values()
        if not (asked and any(call.phase == "backward" for call in kept.calls)):
            return self.plain
        from singanet.program.recompute import recomputed

        made, why = recomputed(kept, self.choice, level, lambda calls: laid_out(draft, calls))
        if made is kept and not why:
            return self.plain
        made = made._replace(kept_bytes=kept.layout.nbytes, decisions=why)
        return loaded(draft, with_checks(draft, made))


def drop_unread(draft: Draft) -> list[Call]:
    """Remove the calls whose results are not read, unless an update may need them."""
    if not draft.tape.drops_unread:
        return draft.calls
    return without_unread(draft.calls, draft.tape.tokens, draft.tape.moves)


def compute_constants(draft: Draft) -> list[Call]:
    """Compute the calls of a predictor that read only constants, and remove them."""
    tape = draft.tape
    if tape.make_constants is None:
        return draft.calls
    parameters = [token for token in tape.tokens if id(token.held) in draft.parameters]
    tape.calls, draft.outside = draft.calls, {}
    tape.make_constants(tape)
    draft.outside, draft.calls = dict(tape.outside), tape.calls
    # Another array may have got the id of one that was released.
    draft.parameters = frozenset(id(each.held) for each in parameters if each.held is not None)
    # Without what the calls of constants alone have read.
    return drop_unread(draft)


def narrow(draft: Draft) -> list[Call]:
    """Store memory in bfloat16 if only kernels of that type use it."""
    return narrowed(draft.calls, draft.tape.tokens, draft.tape.stores)


def join_gradients(draft: Draft) -> list[Call]:
    """Place gradients that are updated together side by side."""
    moves = draft.tape.moves
    for call in draft.calls if moves else ():
        if not moves.keys().isdisjoint(call.writes):
            # An interrupted step needs them there.
            call.once = True
    return [moved(call, moves) for call in draft.calls] if moves else draft.calls


def fold_fills(draft: Draft) -> list[Call]:
    """Make constants of small arrays of one value that no call changes.

    Element-wise functions get the number instead, which is faster to read.
    """
    tape, outside = draft.tape, draft.outside
    for number, token in enumerate(tape.tokens):
        if token.fill is not None and not token.writes and token.nbytes <= _SMALL:
            tape.folded.add(number)
    calls = []
    for call in draft.calls:
        if call.name == "fill" and call.writes and call.writes[0] in tape.folded:
            continue
        calls.append(call)
        if tape.folded.isdisjoint(call.reads):
            continue
        _take_numbers(call, tape)
        for ref in refs_of(call):
            if ref.token in tape.folded and ref not in outside:
                token = tape.tokens[ref.token]
                # In the order of its strides: kernels are slow if the layouts of operands differ.
                memory = np.full(token.nbytes // ref.dtype.itemsize, token.fill, ref.dtype)
                outside[ref] = ref.array(memory)
    return calls


def _take_numbers(call: Call, tape: Tape) -> None:
    """Give ``call`` numbers instead of filled operands, if its result does not need their shape.

    It does not if the array to fill is given. Calls of lanes stay, as they are compared.
    """
    function = call.function
    plain = isinstance(function, np.ufunc) and function.signature is None
    if not plain or call.bind is not None or call.lane is not None or "out" not in call.keywords:
        return
    call.arguments = tuple(
        np.full((), tape.tokens[given.token].fill, given.dtype)
        if type(given) is Ref and given.token in tape.folded
        else given
        for given in call.arguments
    )
    left = {ref.token for ref in refs_of(call)}
    call.reads = tuple([token for token in call.reads if token in left])


def keep_parameters(draft: Draft) -> list[Call]:
    """Copy the parameters that a caller may change before the forward runs again."""
    if not (draft.runs_again and draft.tape.interrupted):
        return draft.calls
    from singanet.program.recompute import with_kept_parameters

    return with_kept_parameters(draft.calls, draft.tape.tokens, draft.outside)


def lower_sweeps(draft: Draft) -> list[Call]:
    """Replace arithmetic on large arrays by the backend's kernels."""
    ops = draft.tape.backend
    if not ops or draft.tape.lowering is not ON_HOST:
        return draft.calls
    return with_sweeps_lowered(draft.calls, draft.tape.tokens, ops)


def lower_few(draft: Draft) -> list[Call]:
    """Replace arithmetic of few rows by the backend's kernels.

    In a decoder, and in a predictor with compiled products, which loaded LLVM.
    """
    tape = draft.tape
    is_few = tape.few or (tape.make_constants is not None and any(map(_is_compiled, draft.calls)))
    if not is_few or tape.lowering is not ON_HOST:
        return draft.calls
    return with_few_lowered(draft.calls, tape.backend)


def _is_compiled(call: Call) -> bool:
    return isinstance(getattr(call.function, "__self__", None), CompiledPlan)


def join_lanes(draft: Draft) -> list[Call]:
    """Join each group of lanes to one call."""
    return with_lanes_joined(draft.calls, draft.tape.tokens, draft.tape.folded)


PASSES: tuple[Callable[[Draft], list[Call]], ...] = (
    drop_unread,
    compute_constants,
    narrow,
    join_gradients,
    fold_fills,
    keep_parameters,
    lower_sweeps,
    lower_few,
    join_lanes,
)
"""The IR passes in order; recomputation and layout follow."""


def with_checks(draft: Draft, recording: Recording) -> Recording:
    """``recording`` with checks of pending sums between calls, at intervals of some work."""
    carry_on, tokens = draft.tape.carry_on, draft.tape.tokens
    if carry_on is None:
        return recording
    calls: list[Call] = []
    kernels: list[Kernel] = []
    flying, since = 0, 0
    for call, kernel in zip(recording.calls, recording.kernels, strict=True):
        calls.append(call)
        kernels.append(kernel)
        if call.phase == "communication":
            flying += _UNDER_WAY.get(call.name, 0)
            since = 0
        since += work_of(call, tokens)
        if flying and since > _BETWEEN:
            look = Call(carry_on, (), {}, (), (), phase="communication", name="test", barrier=True)
            calls.append(look)
            kernels.append(Kernel("test", (), (), "", "communication", barrier=True))
            since = 0
    return recording._replace(calls=calls, kernels=kernels)


def loaded(draft: Draft, recording: Recording) -> Recording:
    """``recording`` with the calls that load stored arrays. Raises `NotRecordableError`."""
    tape, tokens = draft.tape, draft.tape.tokens
    if tape.spills is not None:
        end = 0
        for token in map(tokens.__getitem__, saved_for_backward(recording.calls, tokens)):
            shape, strides = (token.nbytes,), (1,)
            token.held = LoadedArray(tape.spills, "", shape, strides, np.dtype(np.uint8), end)
            end += token.nbytes
        recording = laid_out(draft, recording.calls)
    calls, kernels, loads = with_loads(
        recording.calls, recording.kernels, tokens, tape.loads, tape.interrupted
    )
    return recording._replace(calls=calls, kernels=kernels, loads=loads)


def _numbers(calls: Sequence[Call]) -> dict[int, int]:
    """Buffers by their tokens, in order of first use."""
    numbers: dict[int, int] = {}
    for call in calls:
        for token in (*call.reads, *call.writes):
            numbers.setdefault(token, len(numbers))
    return numbers


def laid_out(draft: Draft, calls: list[Call]) -> Recording:
    """``calls`` with a place in the arena for all their arrays."""
    tape, outside, parameters = draft.tape, draft.outside, draft.parameters
    numbers = _numbers(calls)
    buffers = []
    for token in numbers:
        met = tape.tokens[token]
        if met.held is not None or token in tape.folded:
            kind: Any = "parameter" if id(met.held) in parameters else "constant"
            buffers.append(Buffer(met.nbytes, kind))
        else:
            buffers.append(Buffer(met.nbytes))
    kernels = kernels_of(calls, numbers)
    layout = plan_arena(kernels, buffers)
    offsets = {token: layout.offsets[number] for token, number in numbers.items()}
    place = {token: offset for token, offset in offsets.items() if offset is not None}
    # Deleted calls may have left unused arrays.
    outside = {ref: array for ref, array in outside.items() if ref.token in numbers}
    return Recording(
        calls, outside, kernels, buffers, layout, place, layout.nbytes, lowering=tape.lowering
    )
