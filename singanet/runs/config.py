"""The options of a run from the command line, a TOML file, and the run that goes on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from singanet.errors import (
    ArgumentError,
    BackendError,
    DataError,
    FileAccessError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.runs.folder import saved_options
from singanet.runs.options import KINDS, RunOptions, kinds_in_files, option
from singanet.runs.recipe import no_folder, own_recipe

_LONGEST, _MOST_DOTS = 1 << 16, 64
_NAMES = {option(field.name).replace("-", "_"): field.name for field in fields(RunOptions)}
"""Keys of a file, with underscores, and what `RunOptions` calls them."""


def gathered(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `RunOptions`: ``given`` ones first, then ``config``'s, then the run's own.

    Errors: a file that is no TOML or has other keys; a folder to go on with that holds no run.
    """
    given = dict(given)
    config = given.pop("config", None)
    options = {} if config is None else read_config(config)
    if given.keys() & {*_NETS}:
        options = {key: value for key, value in options.items() if key not in _NETS}
    options |= given
    if options.get("resume"):
        if options.get("out") is None:
            raise no_folder("--resume")
        saved = saved_options(options["out"])
        _expect_the_same(saved, options)
        options = saved | options
    return options


_NETS = ("model", "from_")
"""Either says what is trained."""

_SETTLED = (*_NETS, "optimizer", "batch_size", "mixed_precision", "accumulate", "method", "rank")
"""What a training state was made with; other options may be said anew when it goes on."""


def _expect_the_same(saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Errors: `ArgumentError` for an option that is another one than that of the run."""
    recipe = own_recipe(saved.get("model"), saved.get("from_"), saved.get("method"))
    usual = {"optimizer": recipe.optimizer, "batch_size": recipe.batch_size, "accumulate": 1}
    for name in _SETTLED:
        before = saved.get(name) if saved.get(name) is not None else usual.get(name)
        if given.get(name, before) != before:
            raise ArgumentError(
                "MODEL" if name == "model" else f"--{option(name)}",
                expected=f"{before!r}, with which the run was begun",
                received=repr(given[name]),
                advice="leave it out, or begin a run in another folder",
            )


def read_config(path: Path) -> dict[str, Any]:
    """Options of a TOML file: ``batch_size = 64`` or ``batch-size = 64``.

    Errors: `FileAccessError`; `DataError` for what is no TOML or a value of another type;
    `UnknownNameError` for a key that is no option.
    """
    options: dict[str, Any] = {}
    for key, value in _parsed(path).items():
        said = key.replace("-", "_")
        if said not in _NAMES:
            raise UnknownNameError(
                f"--config {str(path)!r}",
                expected=f"keys among {one_of(_NAMES, 30)}",
                received=repr(key),
                advice=did_you_mean(said, _NAMES, "leave it out"),
            )
        name = _NAMES[said]
        kinds = kinds_in_files(name)
        if name in options or type(value) not in kinds or "\0" in str(value):
            raise DataError(
                f"--config {str(path)!r}, key {key!r}",
                expected=f"a value of type {kinds[0].__name__}, once",
                received=f"{type(value).__name__} {value!r}"[:80],
                advice="write it as on the command line; only texts are quoted",
            )
        options[name] = Path(value) if KINDS[name] is Path else value
    return options


def _parsed(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise BackendError(
                "--config",
                expected="Python 3.11 or the package tomli",
                received=str(error),
                advice="run: pip install tomli",
            ) from error
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
        # A key of many parts takes a reader of TOML memory by the square of them.
        if len(text) > _LONGEST or max(map(_dots, text.splitlines()), default=0) > _MOST_DOTS:
            raise ValueError(f"more than {_LONGEST} bytes, or {_MOST_DOTS} dots in a line")
        return dict(tomllib.loads(text.decode("utf-8")))
    except OSError as error:
        raise FileAccessError(
            f"--config {str(path)!r}",
            expected="a file that can be read",
            received=error.strerror or str(error),
            advice="check the path",
        ) from error
    # TOML's errors, those of its encoding, and lists within lists.
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"--config {str(path)!r}",
            expected="TOML: lines such as epochs = 20",
            received=str(error).splitlines()[0][:120],
            advice="texts stand in quotes",
        ) from error


def _dots(line: bytes) -> int:
    return line.count(b".")
