"""The training state of an executor, in a file."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from singanet.errors import FileFormatError, SingaNetError, StateMismatchError
from singanet.executor.symbols import Draw
from singanet.net import FeedForwardNet
from singanet.optimizer.chain import UpdateChain
from singanet.training.arrays import copied
from singanet.training.files import read_session, read_training, session_entry, write_training
from singanet.training.restore import check_net

FORMAT = "singanet executor"


def save(
    path: str | PathLike[str], net: FeedForwardNet, optimizers: Sequence[Any], draws: Sequence[Draw]
) -> None:
    """See `Executor.save`."""
    state = {f"net/{param.name}": copied(param.value) for param in net.params()}
    for k, optimizer in enumerate(optimizers):
        arrays = optimizer.state_dict()
        state |= {f"optimizer/{k}/{key}": copied(array) for key, array in arrays.items()}
    about = {
        "format": FORMAT,
        "seed": int(net.seed),
        "generator": net.rng.bit_generator.state,
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "loaders": [draw.state_dict() for draw in draws],
    }
    state["session"] = session_entry(about)
    write_training(Path(path), state)


def load(
    path: str | PathLike[str], net: FeedForwardNet, optimizers: Sequence[Any], draws: Sequence[Draw]
) -> None:
    """See `Executor.load`. What takes arrays is asked first; parameters come last."""
    state = read_training(path)
    about = read_session(state, FORMAT, "executor.load", _refused)
    check_net(net, state)
    kinds = [type(optimizer).__name__ for optimizer in optimizers]
    for what, saved, own in (
        ("optimizers", about.get("optimizers"), kinds),
        ("loaders", [{}] * _count(about.get("loaders")), [{}] * len(draws)),
    ):
        if saved != own:
            raise _mismatch(f"{len(own)} {what}, as saved", f"{saved} in the file, {own} here")
    generator = type(net.rng.bit_generator)()
    before = [(each, each.state_dict()) for each in (*optimizers, *draws)]
    try:
        generator.state = about["generator"]
        for k, optimizer in enumerate(optimizers):
            start = f"optimizer/{k}/"
            mine = {key: array for key, array in state.items() if key.startswith(start)}
            optimizer.load_state_dict({key[len(start) :]: array for key, array in mine.items()})
            rule = UpdateChain(optimizer).rule
            rule.check_loaded({param.name: param.value for param in net.params()})
        for draw, position in zip(draws, about["loaders"], strict=True):
            draw.load_state_dict(position)
        seed = int(about["seed"])
    except Exception as error:
        for each, old in before:
            each.load_state_dict(old)
        if isinstance(error, SingaNetError):
            raise
        raise _mismatch("a state of this executor", f"{type(error).__name__}: {error}") from error
    net.rng.bit_generator.state, net.seed = generator.state, seed
    for param in net.params():
        param.put(net.device.put(state[f"net/{param.name}"]))


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
