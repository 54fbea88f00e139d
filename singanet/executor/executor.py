"""Run several named programs over one graph."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from singanet.base.described import CheckedType, checked_call, shown
from singanet.base.elsewhere import missing_attribute
from singanet.base.files import path_of
from singanet.base.kinds import MODEL, PREDICTOR, kind_of
from singanet.base.notebooks import Shown
from singanet.base.processes import interrupted_after
from singanet.base.seeding import seeded_apart
from singanet.checkpoint.entry import Source, sources_of
from singanet.checkpoint.formats import FORMATS, by_suffix, checked_path, open_state, write_state
from singanet.device import Device
from singanet.engine.timeline import PeakMemory
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    FileFormatError,
    SingaNetError,
    StateMismatchError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.executor.named_programs import NamedProgram
from singanet.executor.symbols import Draw, DrawnNet, Feed, inputs_of, symbols_of
from singanet.functional import expect_own_samples
from singanet.layers.shapes import Dummy
from singanet.net import FeedForwardNet
from singanet.optimizer.chain import UpdateChain, state_sources, with_reduction
from singanet.optimizer.optimizer import Optimizer, Update
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel import AllReduce, Communicator
from singanet.params.param import Param
from singanet.params.param_files import param_sources, put_params
from singanet.program.memory import expect_alone, rehearsed_memory
from singanet.program.programs import programs_of
from singanet.program.report import ProgramReport
from singanet.program.trace.recorder import Recorder
from singanet.training.files import read_session, session_entry
from singanet.training.ranks import ProcessGroup, ranks_of
from singanet.training.restore import below, check_net, expect_ranks_of_parts, state_here
from singanet.training.session import named_below
from singanet.types import Array

FORMAT = "singanet executor"
_FORMATS = ("npz", "safetensors", "hdf5", "sharded", "pickle")
"""The formats that store arrays of all types under any names."""


@dataclass(frozen=True)
class Trained:
    """The saved parts of an executor: net, optimizers, and loaders (``draws``).

    ``ranks`` are the processes that train it, already synchronized.
    """

    net: FeedForwardNet
    optimizers: Sequence[Any]
    draws: Sequence[Draw]
    ranks: ProcessGroup

    def own_sources(self) -> list[Source]:
        """Return the arrays of this rank: parameters and the state of the optimizers."""
        found = param_sources(self.net.params(), "net/")
        for k, optimizer in enumerate(self.optimizers):
            UpdateChain(optimizer).turn(self.net)
            found += named_below(f"optimizer/{k}", state_sources(optimizer))
        return found


def save(path: str | PathLike[str], trained: Trained) -> None:
    """Write a checkpoint, see `Executor.save`."""
    file, net, ranks = _file_to_write(path), trained.net, trained.ranks
    stands = {
        "generator": net.rng.bit_generator.state,
        "loaders": [draw.state_dict() for draw in trained.draws],
    }
    sources, every = ranks.joined(net, trained.own_sources, stands)
    if ranks.rank:
        return
    about = {
        "format": FORMAT,
        "seed": int(net.seed),
        "optimizers": [type(optimizer).__name__ for optimizer in trained.optimizers],
        **stands,
        "ranks": list(every),
    }
    session = sources_of({"session": session_entry(about)}, "executor.save")
    write_state(file, [*sources, *session])


def load(path: str | PathLike[str], trained: Trained) -> None:
    """Restore a checkpoint, see `Executor.load`."""
    checked_path(path)
    found = trained.ranks.spread(lambda: _read(path_of(path)))
    _adopt(found, trained)


@interrupted_after()
def _adopt(found: Mapping[str, Array], trained: Trained) -> None:
    """Restore the state ``found``; on errors, undo all changes. Parameters change last."""
    net, ranks = trained.net, trained.ranks
    about = read_session(found, FORMAT, "executor.load", _refused)
    every = about.get("ranks", [])
    if not isinstance(every, list) or not all(isinstance(each, dict) for each in every):
        raise _refused("the state of each rank", repr(every))
    as_it_was = ranks.size == max(len(every), 1)
    if not as_it_was:
        expect_ranks_of_parts("executor.load", ranks.size, max(len(every), 1), found)
    stands = every[ranks.rank] if as_it_was and every else about
    state = state_here(found, ranks, len(every), {})
    _expect_same(trained, about, stands, state)
    optimizers, draws = trained.optimizers, trained.draws
    generator = type(net.rng.bit_generator)()
    before = [(each, each.state_dict()) for each in (*optimizers, *draws)]
    try:
        generator.state = stands["generator"]
        if not as_it_was:
            generator.state = seeded_apart(generator.state, generator, ranks.rank)
        for k, optimizer in enumerate(optimizers):
            optimizer.load_state_dict(below(f"optimizer/{k}/", state))
            rule = UpdateChain(optimizer).rule
            rule._check_loaded({param.name: param.outline for param in net.params()})
        for draw, position in zip(draws, stands["loaders"], strict=True):
            draw.load_state_dict(position)
        seed = int(about["seed"])
        put_params(net.params(), below("net/", state), net.device.put, "executor.load")
    except Exception as error:
        for each, old in before:
            each.load_state_dict(old)
        if isinstance(error, SingaNetError):
            raise
        raise _mismatch("a state of this executor", f"{type(error).__name__}: {error}") from error
    net.rng.bit_generator.state, net.seed = generator.state, seed
    # No rank may push to a table before the first rank has loaded its values.
    ranks.of_first(None, "the end of loading")


def _read(path: Path) -> dict[str, Array]:
    """Return the arrays in the file, whose content determines the format if it exists."""
    file = path if path.is_file() else _file(path)
    kind = kind_of(file)
    if kind in (MODEL, PREDICTOR):
        raise FileFormatError(
            "executor.load",
            expected="a file that executor.save wrote",
            received=kind.name,
            advice=kind.advice,
        )
    with open_state(file if file.exists() else path) as reader:
        return dict(reader)


def _file(path: str | PathLike[str]) -> Path:
    """Return the file that ``path`` means, ``.npz`` without a suffix. Errors: a folder."""
    file = checked_path(path)
    if file.is_dir():
        raise ArgumentError(
            "executor, argument path",
            expected="the name of a file",
            received=f"the folder {str(file)!r}",
            advice=f"name a file in it: {str(file / 'run.npz')!r}",
        )
    suffixes = FORMATS[by_suffix(file)].suffixes
    return file if file.name.lower().endswith(suffixes) else file.with_name(f"{file.name}.npz")


def _file_to_write(path: str | PathLike[str]) -> Path:
    """Return the file of ``path``. Errors, on all ranks: `ArgumentError` if not in `_FORMATS`."""
    file = _file(path)
    name = by_suffix(file)
    if name not in _FORMATS:
        raise ArgumentError(
            "executor.save, argument path",
            expected=f"a suffix among {one_of([s for n in _FORMATS for s in FORMATS[n].suffixes])}",
            received=f"{file.name!r}, a file of the format {name!r}",
            advice=f"name it {file.name.split('.')[0] + '.npz'!r}",
        )
    return file


def _expect_same(
    trained: Trained, about: Mapping[str, Any], stands: Mapping[str, Any], state: Mapping[str, Any]
) -> None:
    """Raise `StateMismatchError` if parameters, optimizers or loaders differ."""
    check_net(trained.net, state)
    kinds = [type(optimizer).__name__ for optimizer in trained.optimizers]
    for kind, saved, own in (
        ("optimizers", about.get("optimizers"), kinds),
        ("loaders", [{}] * _count(stands.get("loaders")), [{}] * len(trained.draws)),
    ):
        if saved != own:
            raise _mismatch(f"{len(own)} {kind}, as saved", f"{saved} in the file, {own} here")


def _count(loaders: Any) -> int:
    return len(loaders) if isinstance(loaders, list) else -1


def _refused(expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        "executor.load",
        expected=f"an undamaged file from executor.save: {expected}",
        received=received[:120],
        advice="weights alone are loaded with executor.net.load",
    )


def _mismatch(expected: str, received: str) -> StateMismatchError:
    return StateMismatchError(
        "executor.load",
        expected=expected,
        received=received[:200],
        advice="build the executor like the saved one; nothing was changed",
    )


ASKED = 8
"""Most programs in the cache for outputs requested at run time; the least recently used goes."""


class Executor(metaclass=CheckedType):
    """Programs by name over one graph of symbols, which share layers, parameters and the generator.

    A program with an update trains, with dropout and batch statistics; any other evaluates. The
    attribute ``net`` is the whole graph as a net. Errors: `ArgumentError` if a list contains
    another object, if two optimizers update one parameter, or if a program's loaders differ in
    their number of batches; `GraphError` if two inputs have one name. The guide:
    https://github.com/singanet/singanet/blob/main/docs/executor.md.

    Args:
        programs: Dict of lists of the results of a run, by program: symbols of outputs, losses,
            metrics, gradients, and updates (``optimizer.minimize(loss)``).
        seed: Int from 0 on, the seed of initial parameters and random draws; None as for
            `FeedForwardNet`.
        device: The `singanet.device.Device` of the arrays; None for the default device.
        parallel: A communicator, such as ``singanet.parallel.init()``, over whose ranks gradients
            are reduced; None for one process.

    Examples:
        >>> x, y = singanet.Input("x", (2,)), singanet.Input("y", (1,))
        >>> out = singanet.layers.Dense("out", 1)(x)
        >>> loss = singanet.loss.MeanSquaredError()(out, y)
        >>> step = singanet.optimizer.SGD(0.1).minimize(loss)
        >>> executor = singanet.Executor({"train": [loss, step], "infer": [out]}, seed=0)
        >>> executor.run("infer", {"x": np.eye(2)})[0].shape
        (2, 1)
    """

    if not TYPE_CHECKING:  # type checkers would accept any name otherwise
        __getattr__ = missing_attribute

    def __init__(
        self,
        programs: Mapping[str, Sequence[Any]],
        seed: int | None = None,
        device: Device | None = None,
        parallel: Communicator | None = None,
    ) -> None:
        items = _checked(programs)
        if parallel is not None and not isinstance(parallel, Communicator):
            raise ArgumentError(
                "Executor(parallel=)",
                expected="a communicator, or None",
                received=type(parallel).__name__,
                advice="pass singanet.parallel.init()",
            )
        self._parallel = parallel
        self._batch: Any = None
        self._drawing = DrawnNet(items, seed)
        self.net: FeedForwardNet = self._drawing.net
        if device is not None:
            self.net.to_device(device)
        self._programs = {name: self._program(name, asked) for name, asked in items.items()}
        self._asked: OrderedDict[Any, NamedProgram] = OrderedDict()
        self._owners: dict[Param, tuple[Any, str]] = {}
        for name, program in self._programs.items():
            self._expect_one_optimizer(name, program)

    def __getstate__(self) -> dict[str, Any]:
        """Exclude programs for outputs requested at run time, whose keys are ids of this process.

        Optimizers get the state of this graph.
        """
        for optimizer in self._optimizers():
            UpdateChain(optimizer).turn(self.net)
        return {**vars(self), "_asked": OrderedDict()}

    def __repr__(self) -> str:
        return shown("Executor", {}, *map(repr, self._programs))

    @property
    def programs(self) -> list[str]:
        """The names of the programs."""
        return list(self._programs)

    @checked_call
    def run(
        self,
        name: str,
        feed: Feed | None = None,
        outputs: Sequence[Any] | None = None,
    ) -> list[Any]:
        """Run program ``name`` on the arrays of ``feed``; return its values in order.

        A loss gives its mean as a float, a metric its value for the batch, an update None, and any
        other symbol a new array. All values are from before the update. Errors: `UnknownNameError`
        if the program or an input is unknown, or an input is missing; errors of layers and losses
        if arrays have another shape or dtype.

        Args:
            name: Name of the program.
            feed: Dict of an array for each input, by symbol or name; loaders fill inputs that are
                not in it.
            outputs: List of results that replaces the program's list; None for the program's.
        """
        program = self._programs.get(name)
        if program is None or outputs is not None:
            program = self._requested_program(self._named(name), name, outputs)
        return program.run(feed)

    @checked_call
    def batches(self, name: str) -> int:
        """Return the number of runs of program ``name`` in an epoch of its loaders.

        Errors: `CallOrderError` if it reads no loader of known length.
        """
        return self._named(name).batches()

    @checked_call
    def as_net(self, name: str) -> FeedForwardNet:
        """Return the part of the graph that program ``name`` runs, as a net that shares parameters.

        Its outputs are the program's symbols, such as losses and scores. Errors: `GraphError` if
        their samples depend on each other, since `predict` cuts batches.
        """
        program = self._named(name)
        expect_own_samples([s for item in program.items for s in symbols_of(item, program.where)])
        return self._part(program)

    def _part(self, program: NamedProgram) -> FeedForwardNet:
        symbols = [s for item in program.items for s in symbols_of(item, program.where)]
        each = {(symbol.call.born, symbol.index): symbol for symbol in symbols}
        net = FeedForwardNet(seed=self.net.seed)
        net.start(None, inputs_of(symbols), list(each.values()))
        net.device, net.dtype, net.rng = self.net.device, self.net.dtype, self.net.rng
        return net

    @checked_call
    def report(self, name: str) -> ProgramReport:
        """Return the report of the recorded program ``name``, from its last run.

        Errors: `CallOrderError` if nothing is recorded, with the reason if there is one.
        """
        programs = self._named(name).view.executor
        found = programs.reports()
        if not found:
            raise CallOrderError(
                f"program {name!r}, report",
                expected="a program that was recorded, at its second run with the same shapes",
                received=one_of(programs.refusals) or "none so far",
                advice="run it twice before",
            )
        return found[-1]

    @checked_call
    def plot(self, name: str, path: str | PathLike[str] | None = None) -> Shown:
        """Return a picture of the graph of program ``name`` as SVG text, see `FeedForwardNet.plot`.

        ``path`` is a .svg or .png file to write as well, or None.
        """
        return self._part(self._named(name)).plot(path)

    @checked_call
    def memory(self, name: str, shapes: Feed) -> PeakMemory:
        """Return the bytes of arrays in program ``name`` for ``shapes``, batch axis first.

        ``shapes`` has a shape for each input, by symbol or name. The run is rehearsed on ones, or
        zeros for integers, and changes nothing. On a device they are bytes of its memory. Errors:
        like `run` for its feed.
        """
        program = self._named(name)
        expect_alone(f"program {name!r}, memory", program.optimizer)
        whole = {
            node.name: node.layer.dtype
            for node in self.net.nodes()
            if isinstance(node.layer, Dummy) and node.layer.dtype is not None
        }
        known = self._drawing.names
        ones = {
            key: np.zeros(shape, whole[known[key]])
            if known.get(key) in whole
            else np.ones(shape, self.net.dtype)
            for key, shape in shapes.items()
        }
        feed = program.checked(program.given(ones, draw=False))
        view: Any = program.view

        def record(recorder: Recorder) -> None:
            if program.optimizer is None:
                recorder.evaluation(feed)
            else:
                recorder.step(feed, {}, None, program.optimizer)

        level = programs_of(self.net).recompute
        return rehearsed_memory(view, record, program.optimizer, level)

    @checked_call
    def save(self, path: str | PathLike[str]) -> None:
        """Write a checkpoint to ``path``, atomically.

        It has parameters, each optimizer's state, the positions of loaders, and the generator. The
        suffix selects the format, as for a training checkpoint: ``run.npz``; a name without a
        suffix gets ``.npz``. With several ranks all call it; the first one writes, for every rank.
        Errors: `FileAccessError`, `ArgumentError` if ``path`` is a folder.
        """
        save(path, self._trained())

    @checked_call
    def load(self, path: str | PathLike[str]) -> None:
        """Continue from the checkpoint at ``path``, bit for bit.

        With several ranks all call it, and the first one reads; an equal number of ranks continues
        bit for bit. Errors: `StateMismatchError` if parameters, optimizers or loaders differ,
        `FileFormatError`, `FileAccessError`. After an error nothing has changed.
        """
        load(path, self._trained())

    # -- internal ---------------------------------------------------------------------------

    def _program(self, name: str, items: Sequence[Any]) -> NamedProgram:
        return NamedProgram(name, items, self._drawing, self._wrapped)

    def _wrapped(self, optimizer: Any) -> Any:
        """Return ``optimizer`` with the reduction inside stages that gather, scale or follow."""
        if self._parallel is None or UpdateChain(optimizer).reducers:
            return optimizer
        return with_reduction(optimizer, self._reduced)

    def _reduced(self, optimizer: Optimizer | Wrapper) -> AllReduce:
        assert self._parallel is not None
        made = AllReduce(optimizer, self._parallel)
        # A synchronized layer in two programs uses the batch of the running one.
        self._batch = made.batch = self._batch or made.batch
        return made

    def _named(self, name: str) -> NamedProgram:
        if name not in self._programs:
            raise UnknownNameError(
                "executor",
                expected=f"a program: {one_of(self._programs)}",
                received=brief(name)[:60],
                advice=did_you_mean(str(name), self._programs, "name it when the executor is made"),
            )
        return self._programs[name]

    def _requested_program(
        self, program: NamedProgram, name: str, outputs: Sequence[Any] | None
    ) -> NamedProgram:
        """Return the program of other ``outputs``, from a cache."""
        items = list(program.items if outputs is None else _listed(f"program {name!r}", outputs))
        key = name, *map(id, items)
        found = self._asked.get(key)
        if found is None:
            # The program refers to the items, so that their ids stay unique.
            found = self._program(name, items)
            self._expect_one_optimizer(name, found)
            self._asked[key] = found
            if len(self._asked) > ASKED:
                self._asked.popitem(last=False)
        self._asked.move_to_end(key)
        return found

    def _expect_one_optimizer(self, name: str, program: NamedProgram) -> None:
        for param, optimizer in program.params.items():
            owner, where = self._owners.get(param, (optimizer, name))
            if owner is not optimizer:
                raise ArgumentError(
                    f"parameter {param.name!r}",
                    expected="one optimizer that updates it",
                    received=f"{owner!r} in program {where!r}, {optimizer!r} in {name!r}",
                    advice="use one object for both, or minimize(loss, params=[...])",
                )
        self._owners |= {param: (optimizer, name) for param, optimizer in program.params.items()}

    def _trained(self) -> Trained:
        """Return the saved parts; ranks that have not synchronized do so first."""
        optimizers = []
        for program in [*self._programs.values(), *self._asked.values()]:
            if program.optimizer is not None:
                optimizers.append(program.optimizer)
                chain = UpdateChain(program.optimizer)
                if not all(stage._knows(program.view) for stage in chain.reducers):
                    chain.meet(program.view)
        ranks = ranks_of(self.net, *optimizers)
        return Trained(self.net, self._optimizers(), self._draws(), ranks)

    def _optimizers(self) -> list[Any]:
        """Return the optimizers of all programs, in the order of their names."""
        updates = [
            item for p in self._programs.values() for item in p.items if isinstance(item, Update)
        ]
        return list({id(update.optimizer): update.optimizer for update in updates}.values())

    def _draws(self) -> list[Draw]:
        draws = [draw for program in self._programs.values() for draw in program.draws]
        return list({id(draw): draw for draw in draws}.values())


def _checked(programs: Any) -> dict[str, list[Any]]:
    if not isinstance(programs, Mapping) or not programs:
        raise ArgumentError(
            "Executor",
            expected="a dict of programs by name",
            received="an empty one" if isinstance(programs, Mapping) else type(programs).__name__,
            advice="write Executor({'train': [loss, step], 'infer': [scores]})",
        )
    return {str(name): _listed(f"program {name!r}", items) for name, items in programs.items()}


def _listed(where: str, items: Any) -> list[Any]:
    listed = isinstance(items, (list, tuple))
    if not listed or not items:
        raise ArgumentError(
            where,
            expected="a list of its results",
            received=f"an empty {type(items).__name__}" if listed else type(items).__name__,
            advice="write [loss, step]; one symbol stands in a list, too",
        )
    return list(items)
