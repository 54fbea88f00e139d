"""What the text of a training state says, checked whole before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.arguments import is_int
from singanet.errors import FileFormatError
from singanet.training.files import read_session
from singanet.types import Array

FORMAT = "singanet training"
_MOST = 1 << 53


@dataclass(frozen=True)
class RankProgress:
    """The position of one of several ranks in data and random numbers, and its samples so far."""

    data: dict[str, int]
    generator: dict[str, Any]
    samples: int


@dataclass(frozen=True)
class Progress:
    """How far a training had come: the entry ``session`` of a training state, field by field."""

    epoch: int
    batch: int
    step: int
    begun: int
    losses: dict[str, tuple[float, ...]]
    samples: int
    metrics: dict[str, dict[str, float]]
    data: dict[str, int]
    seed: int
    generator: dict[str, Any]
    epochs: list[int]
    values: dict[str, list[float]]
    ranks: list[RankProgress]
    stages: dict[str, int]


def parse_progress(state: Mapping[str, Array], like: np.random.BitGenerator) -> Progress:
    """The text of ``state``; its generator is one that ``like`` could be set to.

    Errors: `FileFormatError` naming the entry that is missing or not as it is written;
    `VersionError`.
    """
    about = read_session(state, FORMAT, "net.fit, resume", _refused)
    history = _dict(about, "history")
    epochs, values = history.get("epochs"), history.get("values")
    if not isinstance(epochs, list) or not all(is_int(epoch, 0) for epoch in epochs):
        raise _wrong("history", epochs)
    if not isinstance(values, dict) or not all(
        isinstance(each, list) and len(each) == len(epochs) and all(map(_is_number, each))
        for each in values.values()
    ):
        raise _wrong("history", values)
    metrics, data, losses = (_dict(about, key) for key in ("metrics", "data", "losses"))
    if not all(
        isinstance(sums, list) and len(sums) == 3 and all(map(_is_number, sums))
        for sums in losses.values()
    ):
        raise _wrong("losses", losses)
    if not all(isinstance(m, dict) and all(map(_is_number, m.values())) for m in metrics.values()):
        raise _wrong("metrics", metrics)
    ranks = _ranks(about, like)
    _expect_position(data)
    if not is_int(about.get("seed"), 0):
        raise _wrong("seed", about.get("seed"))
    progress = Progress(
        epoch=_count(about, "epoch"),
        batch=_count(about, "batch"),
        step=_count(about, "step"),
        begun=_count(about, "begun"),
        losses={name: tuple(map(float, sums)) for name, sums in losses.items()},
        samples=_count(about, "samples"),
        metrics=metrics,
        data=data,
        seed=about["seed"],
        generator=_dict(about, "generator"),
        epochs=epochs,
        values={name: [float(value) for value in each] for name, each in values.items()},
        ranks=ranks,
        stages=_stages(about),
    )
    if progress.batch > progress.step:
        raise _wrong("batch", progress.batch)
    _try_generator(progress.generator, like)
    return progress


def _stages(about: dict[str, Any]) -> dict[str, int]:
    """The stage of each layer, where layers lay on several ranks; else none."""
    stages = about.get("stages", {})
    if not isinstance(stages, dict) or not all(is_int(k, 0) and k < _MOST for k in stages.values()):
        raise _wrong("stages", stages)
    return stages


def _ranks(about: dict[str, Any], like: np.random.BitGenerator) -> list[RankProgress]:
    """The progress of each rank; none for a training of one process."""
    every = about.get("ranks", [])
    if not isinstance(every, list) or not all(isinstance(each, dict) for each in every):
        raise _wrong("ranks", every)
    found = [
        RankProgress(_dict(each, "data"), _dict(each, "generator"), _count(each, "samples"))
        for each in every
    ]
    for each in found:
        _expect_position(each.data)
        _try_generator(each.generator, like)
    return found


def _expect_position(data: dict[str, Any]) -> None:
    if not all(is_int(value, -_MOST) and value <= _MOST for value in data.values()):
        raise _wrong("data", data)


def _try_generator(state: dict[str, Any], like: np.random.BitGenerator) -> None:
    trial = type(like)()
    try:
        trial.state = state
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _wrong("generator", f"{type(error).__name__}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and (isinstance(value, float) or abs(value) <= _MOST)


def _count(about: dict[str, Any], key: str) -> int:
    value = about.get(key)
    if not is_int(value, 0) or value > _MOST:
        raise _wrong(key, value)
    return value


def _dict(about: dict[str, Any], key: str) -> dict[str, Any]:
    value = about.get(key)
    if not isinstance(value, dict):
        raise _wrong(key, value)
    return value


def _wrong(key: str, value: Any) -> FileFormatError:
    return _refused(f"{key!r} as a training state has it", repr(value))


def _refused(expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        "net.fit, resume",
        expected=f"the state of a training: {expected}",
        received=received[:120],
        advice="pass what ModelCheckpoint wrote, undamaged; weights alone are loaded with net.load",
    )
