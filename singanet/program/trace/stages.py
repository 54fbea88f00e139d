"""The recorded step of a pipeline's stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from singanet.engine.backward import arrays_in
from singanet.engine.step import Counts, FiniteCheck, StepMetrics
from singanet.ops.kernel import widened
from singanet.optimizer.accumulating import Accumulator
from singanet.optimizer.chain import TwoPasses, norm_of
from singanet.params.grads import LayerGradients
from singanet.params.param import Param
from singanet.params.storage import ParamStorage
from singanet.program.ir import NotRecordableError, map_arrays
from singanet.program.trace.layers import copy_into, own
from singanet.program.trace.losses import LossStep, Traces, by_slot, placed, targets
from singanet.program.trace.updates import RecordedChain
from singanet.types import Array


class Master(NamedTuple):
    """A parameter as its chain sees it: ``value`` is its float32 master."""

    name: str
    value: Array
    storage: ParamStorage


class StageCalls:
    """Records the requests of the ``run`` of a pipeline's stage on the tape of ``recorder``.

    The run's ``batch`` is the batch of the present replay. Arrays of other stages are places that
    calls fill.
    """

    def __init__(self, recorder: Traces, run: Any) -> None:
        self.net, self._tape, self._run = recorder.net, recorder.tape, run
        self.plan, self.ops, self.rng = recorder.plan, self._tape.ops, recorder.draws()

    def fed(self, function: Callable[[], Any]) -> Any:
        """The places of the net's inputs."""
        self._enter("forward")
        made = own(self._tape, function())

        def fill(made: Any) -> None:
            copy_into(function(), made)

        self._filling("feed", fill, made)
        return made

    def made(
        self,
        name: str,
        function: Callable[[list[Any]], object],
        key: Any,
        forms: dict[Any, list[Any]],
    ) -> list[Any]:
        """The places that ``function`` fills, of the ``forms`` that came before."""
        if key not in forms:
            raise NotRecordableError("what comes from other stages is not known yet")
        self._enter("communication")
        made = [None if form is None else self._tape.new(*form) for form in forms[key]]
        self._filling(name, function, made)
        return [*made]

    def give(self, name: str, function: Callable[[list[Any]], object], arrays: list[Any]) -> None:
        """Pass copies of ``arrays`` to ``function``, as their memory is used again."""

        def give(arrays: list[Any]) -> None:
            function(map_arrays(arrays, partial(np.array, order="C")))

        self._enter("communication")
        self._tape.add(give, (arrays,), {}, (), "hidden", name=name).barrier = True

    def place(self, value: Array) -> Any:
        """The place of the array of a parameter."""
        return self._tape.place(value)

    def only_now(self, why: str) -> None:
        """Refuse to record. Raises `NotRecordableError`."""
        raise NotRecordableError(why)

    def do(self, name: str, function: Callable[[], object]) -> None:
        """Call ``function`` at each replay."""
        self._tape.add(function, (), {}, (), "hidden", name=name).barrier = True

    def _enter(self, phase: Any) -> None:
        self._tape.layer, self._tape.phase = "", phase

    def _filling(self, name: str, function: Callable[[Any], object], made: Any) -> None:
        """Record a call of ``function``, which fills the arrays of ``made``.

        Raises `NotRecordableError` for arrays of no samples.
        """
        filled = arrays_in(made)
        if not all(array.size for array in filled):
            raise NotRecordableError("a batch of no samples")
        call = self._tape.add(function, (made,), {}, filled, "hidden", name=name)
        call.barrier = True


class RecordedStage(StageCalls):
    """Records all micro-batches of a stage, and the updates after them; a `Carrier`.

    The parameters ``trained``, or their masters, are updated. A micro-batch's weight is known at
    replay.
    """

    holds = True
    updated = False

    def __init__(
        self, recorder: Traces, updates: RecordedChain, run: Any, trained: Sequence[Param | Master]
    ) -> None:
        super().__init__(recorder, run)
        self._recorder, self._updates, self._norm = recorder, updates, updates.ahead()
        gather = run.batch.gather
        self.gather = Accumulator(gather.optimizer, gather.every, gather.mean)
        self._weight, self._share = np.ones(()), np.ones(())
        self._left, self._has_whole = gather.every, False
        self._names = [param.name for param in trained]
        recorder.loss = StageLoss(run, self._names, [param.value for param in trained])

    def norm(self) -> TwoPasses | None:
        return self._norm

    def rehearsed(self) -> AbstractContextManager[None]:
        """A block with no effect: nothing runs twice."""
        return nullcontext()

    def walked(self, again: bool) -> Iterator[LayerGradients]:
        items: Iterator[LayerGradients] = self._run.walked(self)
        if self._updates._weighs:
            # The inner stages got the weight of the last micro-batch.
            self._updates.weigh(lambda outputs: None, None)
        return placed(self._tape, items)

    def look(self, taken: FiniteCheck, layer: str, finite: Array) -> None:
        """Record a check whether the gradients of ``layer`` are ``finite``."""
        look = partial(taken.look, layer)
        self._tape.add(look, (finite,), {}, (), "hidden", name="finite").barrier = True

    def agree(self, taken: FiniteCheck) -> None:
        """Record the decision whether the step is applied."""
        self._enter("communication")
        self.do("agree", partial(self._run.agree, taken))

    def update(self, items: Iterable[LayerGradients]) -> None:
        self._run.update(self, self._updates, items)

    def knowing(
        self, norm: TwoPasses, items: Iterable[LayerGradients]
    ) -> AbstractContextManager[None]:
        """A block with the norm of the gradients of all stages."""
        known, run = np.ones(()), self._run

        def agree(own: Array) -> None:
            known[...] = run.norm_of_all(float(own))

        own = norm_of(norm.previewed(items))
        if isinstance(own, float):
            raise NotRecordableError("a stage that trains nothing, and clips")
        self._enter("communication")
        call = self._tape.add(agree, (own,), {}, (known,), "hidden", name="norm")
        call.barrier = True
        place: Any = self._tape.hold(known)
        return norm.clip.knowing(place)

    def from_loss(self, i: int, outputs: dict[str, Any]) -> dict[int, Array]:
        """The gradients of the loss of micro-batch ``i`` by slot."""
        run, tape, recorder = self._run, self._tape, self._recorder
        now = run.targets(i)
        loss = LossStep(self.net, recorder.plan, now.y, now.weight)
        y, weight = given = own(tape, targets(now.y, now.weight))
        seen = loss.seen

        def fill(given: Any) -> None:
            asked = run.targets(i)
            seen.y, seen.weight, seen.measure = asked.y, asked.weight, asked.measure
            copy_into((asked.y, asked.weight), given)

        self._enter("loss")
        self._filling("targets", fill, given)
        single = recorder.single(outputs)
        scaled = run.batch.chain.scaled
        scale = None if scaled is None else scaled.precision.scaled
        dy = loss.record(tape, single, y, weight, looks=True, scaled=scale)
        counts = None if run.of_whole else self._counted(loss, single, y)
        if run.of_whole and not self._has_whole:
            self._has_whole = True
            given = {i: outputs, **{k: left for k, (left, _) in run._left.items()}}
            tape.add(run.count_all, (given,), {}, (), "hidden", name="count").barrier = True
        shares = {name: np.ones((), grad.dtype) for name, grad in dy.items() if run.of_whole}

        def tell(outputs: Any) -> None:
            known, whole = counts or run.counts(i, outputs), run.batch.whole
            run.batch.told.add(loss.loss, seen, known)
            run.batch.weigh(known)
            told = {} if whole is None else known.shares(whole)
            for name, share in shares.items():
                share[...] = told.get(name, told.get("", 1.0))
            seen.y = seen.weight = seen.measure = None

        read, filled = outputs if counts is None else None, [*shares.values()]
        tape.add(tell, (read,), {}, filled, "hidden", name="count").barrier = True
        dy |= {name: dy[name] * tape.hold(share) for name, share in shares.items()}
        return by_slot(recorder.plan, dy)

    def _counted(self, loss: LossStep, outputs: Any, y: Any) -> Counts | None:
        """The counts of a micro-batch, None where they depend on values."""
        mark = len(self._tape.calls)
        try:
            return Counts.of(loss.loss, widened(outputs), y)
        except NotRecordableError:
            self._tape.delete_from(mark)
            return None

    def weigh(self) -> None:
        """Pass the weight of the micro-batch to the stages and kernels."""
        run, names, last = self._run, self._names, self._left == 1
        self._left -= 1
        weight, share = pair = self._weight, self._share

        def weigh() -> None:
            batch = run.batch
            batch.begin(batch.number)
            weight[...] = batch.gather.weight
            share[...] = batch.gather.share(names[0] if names else "")
            batch.gather.skip(names)

        self._enter("loss")
        filled = pair if last else pair[:1]
        places: list[Any] = [*map(self._tape.hold, pair)]
        self.gather.weigh(*places)
        self._tape.add(weigh, (), {}, filled, "hidden", name="weigh").barrier = True


class StageLoss:
    """The batch of a replayed stage, in the place of a `LossStep`."""

    note = ""
    updates_last = True

    def __init__(self, run: Any, names: Sequence[str] = (), values: Sequence[Array] = ()) -> None:
        self.run, self.names, self.values = run, names, values
        self.seen = StepMetrics(None)

    def begin(self, batch: Any) -> None:
        """Replay the step ``batch`` next."""
        self.run.batch = batch
        if batch.gather is not None:
            batch.gather._let_go(self.names, self.values)
