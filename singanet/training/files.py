"""Files of a fit, written atomically and in the background."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.arguments import Budget, is_int, read_json
from singanet.base.files import expect_inside, path_of
from singanet.base.tracebacks import users_level
from singanet.checkpoint.formats import FORMATS, Writing, open_state
from singanet.errors import (
    CheckpointError,
    FileAccessError,
    FileFormatError,
    SingaNetError,
    VersionError,
)
from singanet.types import Array

VERSION = 1
"""The version of the entry ``session`` of a state."""


def session_entry(about: dict[str, Any]) -> Array:
    """Encode ``about``, a state's data other than arrays, as its entry ``session``."""
    text = json.dumps({"version": VERSION} | about, default=lambda x: np.asarray(x).tolist())
    return np.frombuffer(text.encode(), np.uint8).copy()


def read_session(
    state: Mapping[str, Array],
    kind: str,
    where: str,
    refused: Callable[[str, str], FileFormatError],
) -> dict[str, Any]:
    """Decode the entry ``session`` of ``state``, whose "format" has to be ``kind``.

    Errors: ``refused(expected, received)``; `VersionError`.
    """
    if "session" not in state:
        raise refused("its entry 'session'", "none")
    entry = np.asarray(state["session"])
    if entry.dtype != np.uint8:
        raise refused("an entry 'session' of text", f"an entry of type {entry.dtype}")
    about = read_json(entry.tobytes(), Budget(entry.size, refused))
    if not isinstance(about, dict) or about.get("format") != kind:
        found = about.get("format") if isinstance(about, dict) else about
        raise refused(f"the format {kind!r}", repr(found))
    version = about.get("version")
    if not is_int(version, 1) or version > VERSION:
        raise VersionError(
            where,
            expected=f"version 1 to {VERSION}",
            received=f"version {version!r}"[:60],
            advice="upgrade singanet to resume from it",
        )
    return about


def read_training(path: str | os.PathLike[str]) -> dict[str, Array] | None:
    """Read the state in a file, or in a folder the one with the most steps; None if it has none.

    Damaged states are skipped, with a warning. Errors: `FileAccessError` if all are damaged; the
    errors of the format.
    """
    path = path_of(path)
    if not path.is_dir():
        return _read(path)
    candidates = _by_steps(path)
    for candidate in candidates:
        try:
            return _read(candidate)
        except FileFormatError as error:
            _tell(error)
    if candidates:
        raise _none(path)
    return None


def _read(path: Path) -> dict[str, Array]:
    with open_state(path) as reader:
        return {name: reader.read(name) for name in reader._names_in_turn()}


def furthest(folder: Path) -> Path:
    """Return the training checkpoint in ``folder`` with the most steps.

    Other files are ignored. Errors: `FileAccessError` if there is none.
    """
    found = _by_steps(folder)
    if not found:
        raise _none(folder)
    return found[0]


def _by_steps(folder: Path) -> list[Path]:
    """Return the training checkpoints in ``folder``, most steps first."""
    from singanet.checkpoint.sharded import is_shard

    suffixes = {suffix for format in FORMATS.values() for suffix in format.suffixes}
    found: dict[Path, int] = {}
    for path in sorted(folder.iterdir(), reverse=True):
        known = any(path.name.endswith(suffix) for suffix in suffixes)
        if known and not path.name.startswith(".") and not is_shard(path):
            expect_inside(folder, path)
            step = _steps(path)
            if step is not None:
                found[path] = step
    return sorted(found, key=lambda path: found[path], reverse=True)


def _steps(path: Path) -> int | None:
    """Return the number of steps in a checkpoint; None, with a warning, if it is damaged."""
    try:
        with open_state(path) as reader:
            if "session" in reader.entries:
                return int(json.loads(bytes(reader.read("session")))["step"])
    except FileFormatError as error:
        _tell(error)
    except (CheckpointError, LookupError, TypeError, ValueError, RecursionError):
        pass
    return None


def _tell(error: FileFormatError) -> None:
    warnings.warn(
        f"skipped: {str(error).splitlines()[0]}"[:400], RuntimeWarning, stacklevel=users_level()
    )


def _none(folder: Path) -> FileAccessError:
    return FileAccessError(
        f"folder {str(folder)!r}",
        expected="a training checkpoint",
        received="none",
        advice="train with callbacks=[ModelCheckpoint(folder)] first",
    )


def check_folder(folder: Path) -> None:
    """Make ``folder`` and try to write in it, so that a run does not fail after its last step.

    Errors: `FileAccessError`.
    """
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise FileAccessError(
            f"folder {str(folder)!r}",
            expected="a folder that can be made and written to",
            received=error.strerror or str(error),
            advice="choose another place; no step was taken",
        ) from error


class FilesInFlight:
    """Writes files in a background thread, one checkpoint at a time.

    The thread only writes this process's data and never communicates. The training thread agrees
    with the other ranks that files are complete, in `look`, `finish` or `give_up`.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._writings: Sequence[Writing] = ()
        self._then: Callable[[], None] = _nothing

    def start(self, writings: Sequence[Writing], then: Callable[[], None]) -> None:
        """Write ``writings`` after the previous ones; call ``then`` when all are complete.

        Errors: as for `finish`, about the previous files.
        """
        self.finish()
        self._writings, self._then = writings, then
        # The thread is not a daemon, so the interpreter waits for it at exit.
        self._thread = threading.Thread(target=_write, args=(writings,), name="checkpoint")
        self._thread.start()

    def look(self) -> None:
        """Complete files that all processes have written; all call it. Errors: as for `finish`."""
        if self._thread is None:
            return
        written = not self._thread.is_alive()
        # Ask every one: other processes wait for some of them.
        ended = [each.ended(written) for each in self._writings]
        if written and all(ended):
            self.finish()

    def finish(self) -> None:
        """Wait for the files in flight, and complete them; all processes call it.

        Errors: an error of writing, with the file's name.
        """
        then = self._then
        if self._end([each.finish for each in self._writings_done()]):
            then()

    def give_up(self) -> None:
        """Wait for the files in flight without asking other processes.

        A file of this process alone is completed, a file of several is not. Errors: as for
        `finish`.
        """
        self._end([each.give_up for each in self._writings_done()])

    def _writings_done(self) -> Sequence[Writing]:
        """Wait for this process's writings in flight, and return them."""
        if self._thread is None:
            return ()
        self._thread.join()
        return self._writings

    def _end(self, ends: Sequence[Callable[[], None]]) -> bool:
        """Call all of ``ends``; return whether any file was in flight. Errors: the first one's."""
        was, writings = self._thread is not None, self._writings
        self._thread, self._writings, self._then = None, (), _nothing
        failed: SingaNetError | None = None
        for end, writing in zip(ends, writings, strict=True):
            try:
                end()
            except SingaNetError as error:
                failed = failed or error
            except Exception as error:  # noqa: BLE001 - raised below, with the name of the file
                explained_error = FileAccessError(
                    f"file {str(writing.path)!r}",
                    expected="a state that can be written",
                    received=f"{type(error).__name__}: {error}"[:300],
                    advice="the previous file is unchanged; see the error above",
                )
                explained_error.__cause__ = error
                failed = failed or explained_error
        if failed is not None:
            raise failed
        return was


def _write(writings: Sequence[Writing]) -> None:
    for each in writings:
        each.write()


def _nothing() -> None:
    """Do nothing after a file is written."""


FORMAT = "singanet training"
_MOST = 1 << 53


@dataclass(frozen=True)
class RankProgress:
    """The position of a rank in data and random numbers, and its sample count."""

    data: dict[str, int]
    generator: dict[str, Any]
    samples: int


@dataclass(frozen=True)
class Progress:
    """The position of a training: the entry ``session`` of a training state, field by field."""

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
    """Parse the entry ``session`` of ``state``; its generator has to be of the type of ``like``.

    Errors: `FileFormatError` naming the entry that is missing or invalid; `VersionError`.
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
    """Return the pipeline stage of each layer, empty without stages."""
    stages = about.get("stages", {})
    if not isinstance(stages, dict) or not all(is_int(k, 0) and k < _MOST for k in stages.values()):
        raise _wrong("stages", stages)
    return stages


def _ranks(about: dict[str, Any], like: np.random.BitGenerator) -> list[RankProgress]:
    """Return the progress of each rank; empty for a training of one process."""
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
    return _refused(f"a valid entry {key!r}", repr(value))


def _refused(expected: str, received: str) -> FileFormatError:
    return FileFormatError(
        "net.fit, resume",
        expected=f"the state of a training: {expected}",
        received=received[:120],
        advice="pass an undamaged file of ModelCheckpoint; net.load loads weights alone",
    )
