"""The training state of an executor, in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from singanet.base.files import path_of
from singanet.base.interrupts import interrupted_after
from singanet.base.kinds import MODEL, PREDICTOR, kind_of
from singanet.base.seeding import seeded_apart
from singanet.checkpoint.entry import Source, sources_of
from singanet.checkpoint.formats import FORMATS, by_suffix, checked_path, open_state, write_state
from singanet.errors import (
    ArgumentError,
    FileFormatError,
    SingaNetError,
    StateMismatchError,
    one_of,
)
from singanet.executor.symbols import Draw
from singanet.net import FeedForwardNet
from singanet.optimizer.chain import UpdateChain
from singanet.optimizer.sources import state_sources
from singanet.params.files import param_sources, put_params
from singanet.training.files import read_session, session_entry
from singanet.training.ranks import World
from singanet.training.restore import below, check_net, expect_ranks_of_parts, state_here
from singanet.training.sources import named_below
from singanet.types import Array

FORMAT = "singanet executor"
_FORMATS = ("npz", "safetensors", "hdf5", "sharded", "pickle")
"""The formats that store arrays of all types under any names."""


@dataclass(frozen=True)
class Trained:
    """The parts of an executor that are saved: net, optimizers, and loaders (``draws``).

    ``ranks`` are the processes that train it; they have met.
    """

    net: FeedForwardNet
    optimizers: Sequence[Any]
    draws: Sequence[Draw]
    ranks: World

    def own_sources(self) -> list[Source]:
        """The arrays of this rank: parameters and the state of the optimizers."""
        found = param_sources(self.net.params(), "net/")
        for k, optimizer in enumerate(self.optimizers):
            UpdateChain(optimizer).turn(self.net)
            found += named_below(f"optimizer/{k}", state_sources(optimizer))
        return found


def save(path: str | PathLike[str], trained: Trained) -> None:
    """See `Executor.save`."""
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
    """See `Executor.load`."""
    checked_path(path)
    found = trained.ranks.spread(lambda: _read(path_of(path)))
    _adopt(found, trained)


@interrupted_after()
def _adopt(found: Mapping[str, Array], trained: Trained) -> None:
    """Go on from what was ``found``. What takes arrays is asked first; parameters come last."""
    net, ranks = trained.net, trained.ranks
    about = read_session(found, FORMAT, "executor.load", _refused)
    every = about.get("ranks", [])
    if not isinstance(every, list) or not all(isinstance(each, dict) for each in every):
        raise _refused("what each of several ranks says", repr(every))
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
            rule.check_loaded({param.name: param.outline for param in net.params()})
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
    # No rank may push to a table before the first one has put the loaded values there.
    ranks.of_first(None, "the end of loading")


def _read(path: Path) -> dict[str, Array]:
    """The arrays in the file, which is told by its bytes where one is called so."""
    file = path if path.is_file() else _file(path)
    kind = kind_of(file)
    if kind in (MODEL, PREDICTOR):
        raise FileFormatError(
            "executor.load",
            expected="what executor.save wrote",
            received=kind.name,
            advice=kind.advice,
        )
    with open_state(file if file.exists() else path) as reader:
        return dict(reader)


def _file(path: str | PathLike[str]) -> Path:
    """The file that ``path`` means: without a suffix one of ``.npz``. Errors: a folder."""
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
    """As `_file`. Errors, on all ranks: a format that is not among `_FORMATS`."""
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
    """Errors: `StateMismatchError` for other parameters, optimizers or loaders."""
    check_net(trained.net, state)
    kinds = [type(optimizer).__name__ for optimizer in trained.optimizers]
    for what, saved, own in (
        ("optimizers", about.get("optimizers"), kinds),
        ("loaders", [{}] * _count(stands.get("loaders")), [{}] * len(trained.draws)),
    ):
        if saved != own:
            raise _mismatch(f"{len(own)} {what}, as saved", f"{saved} in the file, {own} here")


def _count(loaders: Any) -> int:
    return len(loaders) if isinstance(loaders, list) else -1


def _refused(expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        "executor.load",
        expected=f"what executor.save wrote, undamaged: {expected}",
        received=received[:120],
        advice="weights alone are loaded with executor.net.load",
    )


def _mismatch(expected: str, received: str) -> StateMismatchError:
    return StateMismatchError(
        "executor.load",
        expected=expected,
        received=received[:200],
        advice="build the executor as the one that was saved; nothing was changed",
    )
