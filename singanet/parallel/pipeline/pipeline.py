"""A net whose stages are on several ranks: an executor of its steps and evaluations."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from singanet.base import terms
from singanet.base.arguments import checked_count
from singanet.base.collectives import gathered, of_first
from singanet.base.terms import Terms
from singanet.checkpoint.entry import check_unique
from singanet.engine.backward import Pass
from singanet.engine.executor import Capabilities, LayerByLayer
from singanet.engine.feeds import check_feed
from singanet.engine.holding import expect_rounded_alike, expect_trainable, settle
from singanet.engine.model import Placed, StepRequest
from singanet.engine.net import Net
from singanet.engine.plan import Plan
from singanet.engine.step import Counts, carry_out, expect_scores, expected_loss, tells
from singanet.errors import ArgumentError, CallOrderError
from singanet.optimizer.accumulating import Accumulator
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.communicators.communicator import Communicator, Exchanged
from singanet.parallel.initialize import init
from singanet.parallel.pipeline.partition import (
    Cost,
    RemoteStorage,
    StagePart,
    StagePlan,
    assigned,
    counted,
    is_drawn,
    measured,
)
from singanet.parallel.pipeline.stage_run import (
    ASKED,
    SHARED,
    MicroBatchedStep,
    StageBatch,
    StageRun,
    Wire,
)
from singanet.parallel.pipeline.timetable import alive
from singanet.parallel.pipeline.timetable import schedule as scheduled
from singanet.parallel.reductions.rank_reducer import apart, expect_alike
from singanet.params.grads import LayerGradients, add_gradients
from singanet.params.narrow import NarrowWeights
from singanet.params.param import Param, expect_stored
from singanet.params.storage import Memory, ParamStorage
from singanet.types import Array, Gradient, RowSparse

if TYPE_CHECKING:
    from singanet.engine.gradients import Asked

T = TypeVar("T")


class Pipeline:
    """Lets each rank compute one stage of a net, which batches go through in micro-batches.

    From then on ``net.step``, ``fit``, ``evaluate`` and ``predict``, called on all ranks with the
    same batch, go through all stages, and all ranks get loss and metric. A rank has the parameters
    of its stage alone, and their optimizer state. A step is one update by the mean over the whole
    batch, as with `Accumulator`; `BatchNormalization` sees micro-batches. ``places`` maps layers to
    stages; a training state of `fit` includes it.

    Errors: a number of ranks that ``replicas`` does not divide; another number of stages than ranks
    in a row; a net with another executor; nets that differ between ranks.

    Args:
        net: The net.
        stages: Names of the first layers of stages 1, 2, ..., or "balance", so that the slowest
            stage is as quick as possible by the layers' shapes, or "measure", by their times on
            rank 0. None takes the stages drawn with `parallel.stage`, or otherwise balances.
        micro_batches: Number of parts of a batch, as equal as possible; a positive int.
        schedule: "1f1b" or "gpipe", see `parallel.schedule`.
        comm: Communicator of the ranks, by default `parallel.init()`.
        replicas: Number of rows of stages, each for a part of the batch: rank = replica * stages +
            stage. ``AllReduce(optimizer, pipeline.replicas)`` sums their gradients.
        memory: Maximum bytes of a stage if stages are balanced, or None.
        samples: Samples of a micro-batch, for ``memory``; a positive int.
    """

    can = Capabilities(
        Terms(
            takes=(terms.LAYERS, terms.NET, terms.RECORDED, terms.WORKERS, terms.SCORES),
            keeps="rounding",
            received="a net on several ranks",
            remedy="call pipeline.gather() first",
        )
    )

    def __init__(
        self,
        net: Net,
        stages: Sequence[str] | str | None = None,
        micro_batches: int = 8,
        schedule: str = "1f1b",
        comm: Communicator | None = None,
        replicas: int = 1,
        memory: float | None = None,
        samples: int = 1,
    ) -> None:
        self.comm = init() if comm is None else comm
        self.micro_batches = checked_count("parallel.Pipeline", "micro_batches", micro_batches, 1)
        rows = checked_count("parallel.Pipeline", "replicas", replicas, 1)
        if self.comm.size % rows:
            raise ArgumentError(
                "parallel.Pipeline, replicas",
                expected=f"a divisor of the {self.comm.size} ranks",
                received=str(rows),
                advice="start replicas * stages processes",
            )
        self.count, self.schedule = self.comm.size // rows, schedule
        self.replica, self.stage = divmod(self.comm.rank, self.count)
        self.net, self.before = net, net.executor
        can = self.before.can
        # The programs of the stage; the net itself may have others.
        self.programs: Any = copy.deepcopy(self.before) if can.records else None
        self.share = self.replica, rows
        self.measuring = range(self.count - 1, self.comm.size, self.count)
        plan = self._checked(net, stages, memory, samples)
        ops = scheduled(self.schedule, self.count, self.micro_batches)
        each = checked_count("parallel.Pipeline", "samples", samples, 1)
        held = [each * alive(own) for own in ops]
        costs = {"balance": lambda: counted(net), "measure": self._costs}
        found = assigned(net, stages, held, memory, costs)
        self.places = dict(zip((step.name for step in plan.steps), found, strict=True))
        # Stages given by the user take precedence over a file's.
        self._said = is_drawn(net) if stages is None else not isinstance(stages, str)
        self._params = {p.name: p for step in plan.steps for p in step.layer.params.values()}
        self._users = self._users_of(plan)
        # Narrow weights stay narrow when they move.
        self._blank = {
            name: param.storage.blank()
            for name, param in self._params.items()
            if isinstance(param.storage, NarrowWeights)
        }
        first = self.replica * self.count
        self.row = self.comm.group(range(first, first + self.count))
        self.replicas = self.comm.group(range(self.stage, self.comm.size, self.count))
        self.alive = 0
        self._layers, self._wire = LayerByLayer(), Wire(self.row, net.device)
        self._gather: Accumulator | None = None
        net.seed = of_first(self.comm, net.seed, "the seed")
        apart(self.comm, net.rng)
        for name, param in self._params.items():
            if self.stage not in self._users[name]:
                param.storage = RemoteStorage(param, self._users[name][0])
        net.executor = self
        self.part = self._part_of(net)
        self._hand_back()

    @property
    def placed(self) -> Placed:
        return cast("Placed", self)

    def __repr__(self) -> str:
        return (
            f"Pipeline(stage {self.stage} of {self.count}, replica {self.replica}, "
            f"{self.schedule}, micro_batches={self.micro_batches})"
        )

    # -- the interface of executors --------------------------------------------------------------

    def evaluate(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> dict[str, Any]:
        """Compute the outputs of ``net`` for ``feed`` and of layers ``asked``, on all ranks."""
        part, cuts = self._current(net), self._cuts(feed)
        run = StageRun(part, self._wire, cuts)
        here = tuple(name for name in asked if self.places[name] == self.stage)
        step = MicroBatchedStep(run, StageBatch(feed), here)

        def by_layers() -> list[dict[str, Any]]:
            return [run.forward(step, i, False, here) for i in range(len(cuts))]

        made = self._carried_out(run, by_layers, here)
        self._wire.settle()
        outputs = net._execution_plan().outputs
        roots = {name: self.places[name] for name in asked}
        roots |= dict.fromkeys(outputs, self.count - 1)
        own: dict[str, list[Array]] = {}
        for name in [name for name, root in roots.items() if root == self.stage]:
            parts = [each.pop(name) for each in made]
            many = parts if isinstance(parts[0], (list, tuple)) else [[part] for part in parts]
            own[name] = [
                np.concatenate([net.device.ops.host(each) for each in group])
                for group in zip(*many, strict=True)
            ]
        forms = {name: [(a.shape, a.dtype) for a in arrays] for name, arrays in own.items()}
        every = gathered(self.row, forms, "the shapes of the outputs")
        found: dict[str, Any] = {}
        for name, root in roots.items():
            arrays = own.get(name) or [np.empty(*form) for form in every[root][name]]
            told = [self.row.broadcast(a, root, f"the output of {name!r}") for a in arrays]
            several = net._execution_plan().by_name[name].many_out
            found[name] = [*map(net.device.put, told)] if several else net.device.put(told[0])
        return found

    def step(self, net: Net, request: StepRequest) -> tuple[float, float | None]:
        """Take the training step ``request`` of ``net``, as `NetExecutor`.

        A metric is the mean over micro-batches, weighed by samples. A step that ends with an error
        has changed no parameter.
        """
        part, optimizer = self._current(net), request.optimizer
        chain = UpdateChain(optimizer)
        chain.expect_fit(self.can.terms)
        self._expect_same_stage(chain)
        loss = expected_loss(net)
        expect_scores(net._execution_plan(), loss)
        feed = check_feed(net._execution_plan(), request.x, net.device, net.dtype)
        cuts = self._cuts(feed)
        self._layers.register(part, optimizer)
        if self._blank:
            expect_trainable(part._execution_plan())
            expect_rounded_alike(part.params(), chain)
        behind = optimizer if chain.scaled is None else chain.scaled.optimizer
        if self._gather is None or self._gather.optimizer is not behind:
            mean = getattr(loss, "reduction", "mean") != "sum"
            self._gather = Accumulator(behind, len(cuts), mean)
        self._gather.every = len(cuts)
        whole = self._whole(net, chain, loss)
        schedule = self.schedule if whole is None else "gpipe"
        ops = scheduled(schedule, self.count, len(cuts))[self.stage]
        run = StageRun(part, self._wire, cuts, ops, self._join_shared, whole)
        around = self._gather if chain.scaled is None else chain.scaled.around(self._gather)
        batch = StageBatch(feed, request, self._gather, UpdateChain(around))
        step = MicroBatchedStep(run, batch)
        try:
            self._carried_out(run, partial(carry_out, step, chain))
        except BaseException:
            # The summed gradients are of no use to the next step.
            self._gather = None
            raise
        finally:
            settle(part.params(), net.rng)
        self._hand_back(chain.stages)
        self._wire.settle()
        self.alive = alive(ops)
        self.row.step += 1
        return batch.loss, batch.score

    def _carried_out(
        self, run: StageRun, by_layers: Callable[[], Any], asked: tuple[str, ...] = ()
    ) -> Any:
        """Return the result of ``by_layers``, by a program if there is one; see `Programs`."""
        with self.net.device.scope():
            if self.programs is None:
                return by_layers()
            return self.programs._stage(run.part, run, by_layers, asked)

    def _whole(self, net: Net, chain: UpdateChain, loss: Any) -> Callable[[Counts], Counts] | None:
        """A function from this replica's counts to the whole batch's; None if not needed."""
        plan = net._execution_plan()
        synchronized = plan.settings().synchronized and self.replicas.size > 1
        if not (synchronized or tells(plan, loss)):
            return None
        return lambda own: own.of_all(chain, synchronized)

    def forward(self, net: Net, feed: Mapping[str, Any], asked: tuple[str, ...]) -> Pass:
        """Refuse a training forward of ``net``: it has no micro-batches.

        ``feed`` and ``asked`` are as for `evaluate`.
        """
        raise self._refused("a training forward, or net.train")

    def gradients(self, net: Net, asked: Asked) -> Iterator[LayerGradients]:
        """Refuse the gradients ``asked`` of ``net``."""
        raise self._refused("net.gradients")

    def _expect_same_stage(self, chain: UpdateChain) -> None:
        """Errors: gradients summed over ranks that have other stages."""
        for stage in chain.reducers:
            if stage.comm.size != self.replicas.size:
                kind = type(stage).__name__
                raise ArgumentError(
                    f"net.step, {kind}",
                    expected=f"the {self.replicas.size} ranks with this stage of the pipeline",
                    received=f"{stage.comm.size} ranks",
                    advice=f"write {kind}(optimizer, comm=pipeline.replicas)",
                )

    # -- the interface of trainings --------------------------------------------------------------

    @property
    def exchanged(self) -> Exchanged:
        """The bytes that this process has sent and received, with whomever."""
        every = (self.comm, self.row, self.replicas)
        distinct = {id(comm): comm for comm in every}.values()
        return Exchanged(
            sum(comm.bytes_sent for comm in distinct), sum(comm.bytes_received for comm in distinct)
        )

    def owner(self, name: str) -> int:
        """Return the first rank that updates the parameter ``name``. Errors: KeyError."""
        return self._users[name][0]

    # -- the whole net --------------------------------------------------------------------------

    def on_first(self, work: Callable[[], T]) -> T | None:
        """Run ``work()`` on rank 0, which can read all parameters meanwhile; None on the others.

        All ranks call it. Parameters are sent one at a time, and not stored:
        ``pipeline.on_first(lambda: net.save("net.npz"))`` writes the whole net.
        """
        names, made = list(self._params), None
        if self.comm.rank == 0:
            away = [param.storage for param in self._params.values()]
            for number, home in enumerate(away):
                if isinstance(home, RemoteStorage):
                    home.ask = partial(self._ask, names[number], number)
            try:
                made = work()
            finally:
                for home in away:
                    if isinstance(home, RemoteStorage):
                        home.ask = None
                for k in range(1, self.count):
                    self.row.send(np.array([-1]), k, ASKED, "the end of a gathering")
        elif self.replica == 0:
            asked = np.zeros(1, np.int64)
            while self.row.receive(asked, 0, ASKED, "what rank 0 asks for")[0] >= 0:
                value = self._params[names[int(asked[0])]].peek()
                own = np.ascontiguousarray(self.net.device.ops.host(value))
                self.row.send(own, 0, ASKED, "a parameter for rank 0")
        self.comm.barrier("the end of a gathering")
        return made

    def gather(self) -> None:
        """Give every rank the whole net again, with its earlier executor. All ranks call it."""
        for name, param in self._params.items():
            made = self._told(param, self._users[name][0])
            if isinstance(param.storage, RemoteStorage):
                param.storage = made
        self.net.executor = self.before
        if self.programs is not None:
            self.programs.clear()

    def _told(self, param: Param, root: int) -> ParamStorage:
        """A storage with the value of ``param`` from the stage ``root``, sent to the whole row."""
        what, here = f"the value of {param.name}", not isinstance(param.storage, RemoteStorage)
        blank = self._blank.get(param.name)
        if blank is None:
            value = np.empty(param.shape, param.array_type)
            if here:
                value = np.array(self.net.device.ops.host(param.peek()), order="C")
            return Memory(self.net.device.put(self.row.broadcast(value, root, what)))
        ops, own = self.net.device.ops, list[Array]()
        if here:
            own = [ops.host(array) for array in cast("NarrowWeights", param.storage).arrays]
        count = self.row.broadcast(np.array(len(own)), root, what)
        made = blank(int(count))
        for k, array in enumerate(made.arrays):
            array[...] = self.row.broadcast(own[k] if here else array, root, what)
        return made.moved(self.net.device.put)

    def _ask(self, name: str, number: int) -> Array:
        param, owner = self._params[name], self._users[name][0]
        self.row.send(np.array([number]), owner, ASKED, f"the wish for {name}")
        return self.row.receive(
            np.empty(param.shape, param.array_type), owner, ASKED, f"the value of {name}"
        )

    # -- stages ---------------------------------------------------------------------------------

    def _users_of(self, plan: Plan) -> dict[str, list[int]]:
        """The stages that have each parameter; the first of them makes its updates."""
        users: dict[str, set[int]] = {name: set() for name in self._params}
        for step in plan.steps:
            for param in step.layer.params.values():
                users[param.name].add(self.places[step.name])
        return {name: sorted(stages) for name, stages in users.items()}

    def _checked(self, net: Net, *said: object) -> Any:
        """The plan of ``net``, which is on all ranks alike. Errors: it is not, or is elsewhere."""
        plan = net.planned()
        params = {id(p): p for step in plan.steps for p in step.layer.params.values()}
        check_unique((param.name for param in params.values()), "parallel.Pipeline")
        whole = [p for p in params.values() if not isinstance(p.storage, NarrowWeights)]
        expect_stored(whole, "parallel.Pipeline")
        facts = [
            f"{p.name} {p.shape} {p.array_type} {p.spec} {p.storage.place}" for p in params.values()
        ]
        facts += [f"layer {step.name} {step.out_shapes}" for step in plan.steps]
        facts += [f"micro_batches={self.micro_batches}, schedule={self.schedule}, {self.count}"]
        facts += [f"stages, memory and samples {said}"]
        expect_alike(self.comm, facts, False)
        return plan

    def _costs(self) -> list[Cost]:
        """Measured on rank 0, while the others compute nothing."""
        own = measured(self.net) if self.comm.rank == 0 else None
        found: list[Cost] = of_first(self.comm, own, "the times of the layers")
        return found

    def _part_of(self, net: Net) -> StagePart:
        plan = net._execution_plan()
        if [step.name for step in plan.steps] != list(self.places):
            raise CallOrderError(
                "parallel.Pipeline",
                expected="the layers that the net had when it was put on stages",
                received="others",
                advice="build the whole net first",
            )
        if self.programs is not None:
            # They are of the steps that were here before.
            self.programs.clear()
        return StagePart(net, StagePlan(plan, list(self.places.values()), self.stage))

    def _can_move(self, places: Mapping[str, int]) -> bool:
        """Whether the layers may move to ``places``: the user has not placed them.

        The number of stages and the layers must be the same.
        """
        if self._said or places.keys() != self.places.keys():
            return False
        made: dict[int, int] = {}
        for step in self.net._execution_plan().steps:
            own = places[step.name]
            if any(made[slot] > own for slot in step.in_slots):
                return False
            made |= dict.fromkeys(step.out_slots, own)
        return {*places.values()} == {*range(self.count)}

    def move(self, places: Mapping[str, int]) -> None:
        """Move the layers to ``places``, as `_can_move` allows; all ranks call it."""
        before, self.places = self._users, {name: places[name] for name in self.places}
        self._users = self._users_of(self.net._execution_plan())
        for name, param in self._params.items():
            users = self._users[name]
            if users == before[name]:
                continue
            made = self._told(param, before[name][0])
            if self.stage not in users:
                param.storage = RemoteStorage(param, users[0])
            elif isinstance(param.storage, RemoteStorage):
                param.storage = made
        self._gather = None
        self.part = self._part_of(self.net)

    def _current(self, net: Net) -> StagePart:
        """The part of ``net`` as it is now: layers may have been frozen."""
        if self.part.version != net.version:
            self.part = self._part_of(net)
        return self.part

    def _cuts(self, feed: Mapping[str, Any]) -> list[slice]:
        """Micro-batches of the samples of ``feed``, the first ones larger by one at most.

        They are fewer if samples are few, or if layers need several at once.
        """
        first = next(iter(feed.values()))
        samples = len(first[0] if isinstance(first, (list, tuple)) else first)
        least = max(layer.traits.fewest_samples for layer in self.net.layers)
        count = max(1, min(self.micro_batches, samples // least))
        ends = [0, *np.cumsum([samples // count + (i < samples % count) for i in range(count)])]
        return [slice(int(a), int(b)) for a, b in pairwise(ends)]

    # -- parameters of several stages -----------------------------------------------------------

    def _shared(self) -> Iterator[tuple[str, int, list[int]]]:
        """Parameters that this stage shares with others: name, updating stage, other stages."""
        for name, users in self._users.items():
            if len(users) > 1 and self.stage in users:
                yield name, users[0], users[1:]

    def _join_shared(self, run: StageRun, on: Any, items: list[LayerGradients]) -> None:
        """Send the gradients of shared parameters to their first stage."""
        for name, owner, others in self._shared():
            item = next((each for each in items if name in each.names), None)
            own = None
            if item is not None:
                at = item.names.index(name)
                own = item.grads[at]
            what = f"the gradient of {name}"
            if self.stage != owner:
                if item is not None and own is not None:
                    del item.names[at], item.values[at], item.grads[at]
                run.send(on, _as_pair(own), owner, SHARED, what)
                continue
            for k in others:
                theirs = _of_pair(*run.receive(on, 2, k, SHARED, f"{what} from stage {k}"))
                if isinstance(theirs, RowSparse):
                    on.only_now("rows of a table that is on several stages")
                if theirs is not None:
                    own = theirs if own is None else add_gradients(on.ops, own, theirs)
            if item is not None and own is not None:
                item.grads[at] = own
            elif own is not None:
                items.append(LayerGradients([name], [self._params[name].value], [own]))

    def _hand_back(self, stages: Sequence[Wrapper] = ()) -> None:
        """Send shared parameters from the stage that updates them to the other stages with them.

        Their moving averages are sent too, if ``stages`` of the optimizer have any.
        """
        averages = [stage.averages for stage in stages if isinstance(stage, Averaged)]
        for name, owner, others in self._shared():
            what = f"the value of {name}"
            arrays = [self._params[name].value, *(own[name] for own in averages)]
            if self.stage == owner:
                for k in others:
                    self._wire.send(arrays, k, SHARED, what)
            else:
                told, _ = self._wire.receive(len(arrays), owner, SHARED, what)
                for array, theirs in zip(arrays, told, strict=True):
                    array[...] = theirs
        self._wire.settle()
        # The owner has rounded it, and so nothing is lost.
        settle([self._params[name] for name, *_ in self._shared()], None)

    def _refused(self, what: str) -> CallOrderError:
        return CallOrderError(
            what,
            expected="a net whose layers are all on this rank",
            received=f"stage {self.stage} of a pipeline of {self.count}",
            advice="train with net.step or net.fit, or call pipeline.gather() first",
        )


def _as_pair(grad: Gradient | None) -> list[Array | None]:
    """A gradient as two arrays; only row-sparse ones need both."""
    return [*grad] if isinstance(grad, RowSparse) else [grad, None]


def _of_pair(first: Array | None, second: Array | None) -> Gradient | None:
    """The inverse of `_as_pair`."""
    return first if first is None or second is None else RowSparse(first, second)
