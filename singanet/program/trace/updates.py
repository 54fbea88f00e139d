"""Recorded updates: the stages and the rule of an optimizer on abstract arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, is_not
from typing import Any

import numpy as np

from singanet.base.elsewhere import is_library
from singanet.engine.backward import arrays_in
from singanet.optimizer.chain import TwoPasses, UpdateChain
from singanet.optimizer.hyper import is_one
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.reducer import GradientRound, Reducer, Reduction, RoundKind
from singanet.optimizer.state import Grads, Names, Values
from singanet.optimizer.wrapper import StageTraits, Wrapper
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import is_served
from singanet.program.guard import Guard, is_patched
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.lowering import ON_HOST
from singanet.program.trace.abstract import not_recording
from singanet.program.trace.foreign_code import no_draws
from singanet.program.trace.layers import TrialMemory, is_sparse
from singanet.program.trace.numbers import number_now
from singanet.program.trace.reductions import RecordedReduction
from singanet.program.trace.rules import RecordedRule
from singanet.program.trace.sparse_rows import NarrowParameters, RowsSource, sources
from singanet.program.trace.tape import Tape
from singanet.types import Array

COMMUNICATES = "the optimizer waits for other processes, so that only its passes are recorded"


class RecordedChain(UpdateChain):
    """The chain ``told`` on abstract arrays, whose updates are calls on ``tape``.

    Its stages are copies with abstract arrays: their own code writes the calls, and so does the
    rule's. A `Reducer` has a `RecordedReduction`. An update behind it that is not arithmetic of
    arrays is a Python step of the optimizer there; ``reasons`` lists why. ``trained`` are the
    parameters that will be updated. Errors: `NotRecordableError`.
    """

    def __init__(
        self,
        tape: Tape,
        told: UpdateChain,
        guard: Guard,
        trained: Sequence[Any],
        held: NarrowParameters,
    ) -> None:
        self.tape, self.told, self.held = tape, told, held
        self.reasons: list[str] = []
        self.reduction: Reduction | None = None
        self._reduced: RecordedReduction | None = None
        # Whether a Python step would need results of the stages around it.
        self._whole = False
        self._local = [r for r in told.reducers if r._local and not r._alone]
        waiting = [r for r in told.reducers if not (r._alone or r._local)]
        stages: list[Any] = [s for s in told.stages if not s.traits.waits or s in waiting]
        at = stages.index(waiting[0]) + 1 if waiting else 0
        # The stages around a reducer see sums alone, of updates in Python too.
        self._outer = outer = stages[: max(at - 1, 0)]
        inner = stages[at:]
        if waiting:
            self._expect_settled(waiting, trained)
        refused = _refusal(outer)
        if refused is not None:
            raise NotRecordableError(refused)
        self.why = _refusal([*inner, told.rule])
        for reducer in told.reducers:
            guard.part(reducer)
        for reducer in waiting:
            watch_case(guard, reducer)
        names = [p.name for p in trained]
        # Each stage, its copy, and the cases of the next step with the recorded arithmetic.
        self._copies: list[tuple[Any, Any, list[Hashable]]] = []
        with not_recording():
            # Arrays that a stage keeps beside a stored one are made by its shape.
            values = [_outline(p, tape) if p.storage.loads else p.value for p in trained]
            for stage in [*outer, *inner] if self.why is None else outer:
                values = [*stage.settle(names, values)]
                guard.part(stage)
        if self.why is None and told.rule.case() != ():
            watch_case(guard, told.rule)
        self.rule = rule = RecordedRule(tape, told.rule, guard, held, inner, bool(waiting))
        self.layers = rule.layers
        made: Any = rule
        for stage in reversed(inner):
            made = self._copy_of(stage, made, guard if self.why is None else None)
        self.within = [copy for _, copy, _ in self._copies]
        optimizer = waiting[0].optimizer if waiting else told.optimizer
        made = _WithPython.around(made, self, optimizer)
        for reducer in waiting:
            made = self._reducing(reducer, made)
        for stage in reversed(outer):
            made = self._copy_of(stage, made, guard)
        super().__init__(made)
        self._weighs = self._weighs or bool(self._local)

    def _expect_settled(self, waiting: Sequence[Reducer], trained: Sequence[Any]) -> None:
        """Take the reduction of the only one of ``waiting``. Raises `NotRecordableError`."""
        self.reduction = getattr(waiting[0], "reduction", None)
        if len(waiting) > 1 or self.reduction is None or not self.reduction.settled:
            raise NotRecordableError(COMMUNICATES)
        if any(param.name in self.held for param in trained):
            raise NotRecordableError("gradients that are reduced of weights held in fewer bits")
        summed = {param.name for param in trained if not param.storage.by_rows}
        reached = waiting[0] in self.told.reached()
        if reached and {n for entry in self.reduction.entries for n in entry} != summed:
            raise NotRecordableError(
                "the optimizer waits for gradients that this step does not give"
            )

    def _copy_of(self, stage: Any, inner: Any, guard: Guard | None) -> Any:
        """Return a copy of ``stage`` around ``inner``, with abstract arrays and its own counts."""
        made: Any = object.__new__(type(stage))
        if guard is not None:
            self._copies.insert(0, (stage, made, watch_case(guard, stage)))
        own = {key: value for key, value in vars(stage).items() if key != "optimizer"}
        vars(made).update(map_arrays(own, self.tape.place), optimizer=inner)
        ours, skips = is_library(type(stage)), type(stage).skip is not Wrapper.skip
        if skips or not ours:

            def update(names: Names, values: Values, grads: Grads, scale: Any = 1.0) -> None:
                if not ours:
                    self._try_out(stage, made, names, values, grads, scale)
                Wrapper.update(made, names, values, grads, scale)
                if skips:
                    self._call("count", partial(stage.skip, [*names]))

            vars(made)["update"] = update
        if type(stage).end is not Wrapper.end:
            vars(made)["end"] = partial(self._end, stage, made)
        return made

    def _try_out(
        self, stage: Any, copy: Any, names: Names, values: Values, grads: Grads, scale: Any
    ) -> None:
        """Compare a user's ``stage`` for a layer with the recorded calls of its ``copy``.

        Raises `NotRecordableError` if the results differ.
        """
        if any(map(is_sparse, grads)):
            return
        tape, mark = self.tape, len(self.tape.calls)
        own = {key: vars(copy)[key] for key in vars(stage) if key != "optimizer"}
        kept = map_arrays(_copied(own), tape.like)
        given = [*map(tape.like, values)], [None if g is None else tape.like(g) for g in grads]
        tried: Any = object.__new__(type(stage))
        vars(tried).update(_copied(kept), optimizer=stage.optimizer)
        with tape.in_blocks(), no_draws(stage):
            try:
                made = [each[2:] for each in tried.take(names, *given, scale)]
            except Exception as error:
                # Of a user's code, which runs by itself then.
                raise NotRecordableError(str(error)) from error
            left = {key: vars(tried)[key] for key in kept}
            trial = TrialMemory(tape, tape.calls[mark:])
            plain, near = trial.given((given, scale))
            # Counts continue, unless the stage has a `case` of its own.
            goes_on = type(stage).case is Wrapper.case
            counts = {k: v for k, v in left.items() if goes_on and not arrays_in(v)}
            vars(tried).update(trial.given(kept) | counts)
            wanted = [
                (each[2], np.asarray(each[3]) if isinstance(each[3], np.generic) else each[3])
                for each in tried.take(names, *plain, near)
            ]
            trial.expect_same((wanted, {key: vars(tried)[key] for key in kept}), (made, left))
        tape.delete_from(mark)

    def _end(self, stage: Any, made: Any) -> None:
        """Record the end of a step for ``stage`` by its copy ``made``, or as a Python step.

        Raises `NotRecordableError` if only some updates behind it were Python steps.
        """
        self.tape.layer, self.tape.phase = "", "update"
        if not self.reasons or stage in self._outer:
            type(stage).end(made)
            if self._local:
                self._call("end", stage._ended)
        elif self.rule.members:
            raise NotRecordableError("the end of a step of which some updates are Python steps")
        else:
            self._call("python step", stage.end)

    def _reducing(self, reducer: Any, inner: Any) -> Any:
        """Return a copy of ``reducer`` around ``inner`` whose rounds are recorded."""
        tape, reduction = self.tape, self.reduction
        assert reduction is not None
        reduced = self._reduced = RecordedReduction(tape, reduction, reducer.joined)
        if tape.lowering is ON_HOST:
            # On a device, checks would separate launches.
            tape.carry_on = reduction.test
        if reducer.traits.in_parts:
            for stage in self.within:
                stage._over_parts = reduced.joined
        made: Any = object.__new__(type(reducer))

        def update(names: Names, values: Values, grads: Grads, scale: Any = 1.0) -> None:
            own = [*map(tape.array, values)]
            if not is_one(scale) and any(map(is_served, own)):
                raise NotRecordableError("rows of a table that are weighed before")
            Wrapper.update(made, names, own, grads, scale)

        def round_of(kind: RoundKind, opened: bool = False) -> GradientRound:
            around = self.stages[: self.stages.index(made)]
            return GradientRound(reducer, reduced, around, kind, opened)

        vars(made).update(vars(reducer), optimizer=inner, update=update, _round_of=round_of)
        made._sums = None
        return made

    def ahead(self) -> TwoPasses | None:
        """Return the clipping that needs all gradients of this step first, if any.

        Raises `NotRecordableError` if a Python step would need its result.
        """
        due = self.told._needs_norm()
        # A Python step is for steps of every case, and of some the norm is computed first.
        if self.told._holds_all and self.why is not None:
            raise NotRecordableError(self.why)
        self._whole = due or self.told.scaled is not None
        return self.norm if due else None

    def weigh(self, weight: float | Callable[[Any], None] | None, outputs: Any) -> None:
        """Record `begin` with the ``weight`` of a batch, or a function that computes it.

        Raises `NotRecordableError` for a rank without samples, or if micro-batches differ.
        """
        if self._local and (callable(weight) or weight == 0):
            raise NotRecordableError("a rank that has no samples for a step updates nothing")
        numbers: list[tuple[Any, Array, Array]] = []
        for stage, copy, cases in self._copies:
            if not stage._weighs:
                continue
            if not callable(weight):
                copy.begin(weight)
                # The count that weighs 1 is known from now on; it was this one all along.
                cases.append(copy.case())
                if copy._is_even():
                    continue
            if not copy._is_together():
                self.why = "its parameters are at different micro-batches"
                if self.reduction is not None:
                    raise NotRecordableError(self.why)
            pair = np.ones(()), np.ones(())
            copy.weigh(*map(self.tape.hold, pair))
            numbers.append((stage, *pair))
        told = self.told

        def tell(outputs: Any) -> None:
            if callable(weight):
                weight(outputs)
            else:
                told.begin(weight)
            for stage, of_batch, share in numbers:
                of_batch[...], share[...] = stage.weight, stage.share()

        filled = [array for _, *pair in numbers for array in pair]
        self.tape.layer, self.tape.phase = "loss", "loss"
        read = (outputs if callable(weight) else None,)
        self.tape.add(tell, read, {}, filled, "hidden", name="weigh").barrier = True

    def saved(self, names: Names) -> Callable[[], None]:
        """Return a function that deletes what an update of ``names`` does from now on."""
        back = [self.rule.saved(), *(_saved(copy, names) for copy in self.within)]

        def restore() -> None:
            for each in back:
                each()

        return restore

    def apply(
        self, items: Iterable[LayerGradients], on_layer: Any = None, scale: float = 1.0
    ) -> None:
        """Record the updates of a step, and its end."""
        super().apply(self._entered(items), on_layer, scale)
        if self._reduced is not None:
            self._reduced.end()
        self.rule.finish()
        if self.rule.members:
            # A rule whose updates are Python steps may change as it likes.
            self.rule.guard.part(self.told.rule)
        # Break the reference cycle of copies, chain and tape, so that no collector has to.
        for stage in self.stages:
            vars(stage).clear()

    def _entered(self, items: Iterable[LayerGradients]) -> Iterator[LayerGradients]:
        """Yield ``items``, then record the updates that wait for the last of them."""
        for item in items:
            self.layers.update(dict.fromkeys(item[0], item.layer))
            self.held.count(item[0], self.tape)
            if item[0]:
                self.tape.layer, self.tape.phase = item.layer, "update"
            yield item
            del item
        self.rule.update_waiting()
        for reducer in self._local:
            if reducer in self.told.reached():
                self.tape.layer, self.tape.phase = "", "communication"
                self._call("end", reducer.end)

    def _call(self, name: str, function: Callable[[], object]) -> None:
        self.tape.add(function, (), {}, (), "hidden", name=name).barrier = True


def _outline(param: Param, tape: Tape) -> Array:
    """Return an array like that of a stored parameter, on the device of ``tape``, of its owner."""
    xp = tape.backend.xp
    made: Array = xp.broadcast_to(xp.zeros((), param.array_type), param.shape)
    param.root.own(made)
    return made


class _WithPython(Wrapper):
    """Records updates by the stages inside, or as a Python step of their optimizer."""

    traits = StageTraits(reads="nothing")
    _chain: RecordedChain
    _within: Any

    @classmethod
    def around(cls, inner: Any, chain: RecordedChain, within: Any) -> _WithPython:
        """Return a stage around ``inner``; its Python steps call the optimizer ``within``."""
        made: _WithPython = object.__new__(cls)
        vars(made).update(optimizer=inner, _chain=chain, _within=within)
        return made

    def update(self, names: Names, values: Values, grads: Grads, scale: Any = 1.0) -> None:
        chain, tape = self._chain, self._chain.tape
        own = [*map(tape.array, values)]
        jobs: list[tuple[Names, Values, Grads]] = [(names, own, grads)]
        if chain.why is None and not chain.within:
            pairs = zip(names, own, grads, strict=True)
            jobs = [([name], [value], [g]) for name, value, g in pairs if g is not None]
        for job in jobs:
            tape.layer, tape.phase = chain.layers[job[0][-1]], "update"
            self._attempt(*job, scale)
        if chain.reduction is not None:
            # Later sums have other buffers.
            chain.rule.update_waiting()

    def _attempt(self, names: Names, values: Values, grads: Grads, scale: Any) -> None:
        chain, why = self._chain, self._chain.why
        if why is None:
            restore = chain.saved(names)
            try:
                # A stage may ask who has the rows of a table.
                keep: Callable[[Any], Any] = chain.tape.place
                places = [each if is_served(each) else keep(each) for each in values]
                self.optimizer.update(names, places, grads, scale)
                return
            except NotRecordableError as error:
                restore()
                why = str(error)
        self._in_python(names, values, grads, scale, why)
        for stage in chain.within:
            stage.skip(names)

    def _in_python(self, names: Names, values: Values, grads: Grads, scale: Any, why: str) -> None:
        if self._chain._whole:
            raise NotRecordableError(why)
        rule = self._chain.rule
        if any(rule.rule.state(name).rows for name in names if hasattr(rule.rule, "state")):
            raise NotRecordableError(f"{why}, with state in parts")
        self._chain.reasons.append(f"{', '.join(names)}: {why}")
        optimizer, given = self._within, sources([*grads])
        # None is a gradient for another process.
        apart = [grad is None or isinstance(grad, RowsSource) for grad in given]
        dense = [grad for grad, other in zip(given, apart, strict=True) if not other]
        # No array of the recording stays in the program.
        rows = [grad if other else None for grad, other in zip(given, apart, strict=True)]

        def update(lent: list[Array], arrays: list[Array], scale: Any) -> None:
            rest = iter(arrays)
            # New lists and copies, since the optimizer may store or change them.
            now = [
                (None if source is None else source.now()) if other else next(rest).copy()
                for source, other in zip(rows, apart, strict=True)
            ]
            optimizer.update([*names], lent, now, *(() if is_one(scale) else (number_now(scale),)))

        filled = rule.loaded_state(names)
        rule.in_python("python step", names, values, (dense, scale), update, filled)


def _saved(stage: Any, names: Names) -> Callable[[], None]:
    """Return a function that brings ``stage`` back from an update of ``names`` to what it is now.

    The entries of singanet's stages are by parameter, and no others change then.
    """
    ours, now = is_library(type(stage)), vars(stage)
    entries = {key: value for key, value in now.items() if ours and type(value) is dict}
    kept = {key: _copied(value) for key, value in now.items() if key not in entries}
    before = [
        (of, {name: _copied(of[name]) for name in names if name in of}) for of in entries.values()
    ]

    def restore() -> None:
        now.update(kept | entries)
        for of, old in before:
            of.update(old)
            for name in names:
                if name not in old:
                    of.pop(name, None)

    return restore


def _copied(value: Any) -> Any:
    """Return ``value`` with copies of its dicts and lists."""
    if type(value) is dict:
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if type(value) is list else value


def watch_case(guard: Guard, part: Any) -> list[Hashable]:
    """Let ``guard`` watch whether a stage, or a rule with cases, is changed or in another case.

    Returns the list of the cases with the recorded arithmetic, which the caller may extend.
    """
    cases = [part.case()]
    names = [
        name
        for name, value in vars(part).items()
        if not name.startswith("_") or isinstance(value, dict) or hasattr(value, "strides")
    ]
    get = attrgetter(*names, "__class__", "__class__")
    before = get(part)

    def holds() -> bool:
        return not any(map(is_not, get(part), before)) and part.case() in cases

    guard.watch("a stage of the optimizer was changed, or its next step is of another kind", holds)
    return cases


def _refusal(parts: Iterable[Any]) -> str | None:
    """Return why no update by these stages and this rule is recorded, if so."""
    for part in parts:
        kind = type(part)
        if not is_library(kind) and not getattr(part, "pure", False):
            return f"{kind.__name__} is not singanet's"
        ours = kind.update is Wrapper.update
        if isinstance(part, Optimizer):
            teller = next(above for above in kind.__mro__ if "update" in vars(above))
            ours = part._by_parameter and is_library(teller)
        if not ours:
            return f"{kind.__name__} has an update of its own"
        if is_patched(part):
            return f"a method of this {kind.__name__} was replaced"
    return None
