"""The folder of a run, and its options in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

from singanet.base.arguments import is_int
from singanet.base.files import expect_inside, explained, let_go, replacing
from singanet.commands.runs.recipe import no_folder, own_recipe
from singanet.commands.runs.run_options import LASTING, OPTIONS, RunOptions, refusal
from singanet.commands.runs.tasks import Task
from singanet.errors import (
    DataError,
    FileAccessError,
    SingaNetError,
    UnknownNameError,
    UnsafeFileError,
    did_you_mean,
    one_of,
)
from singanet.net import FeedForwardNet
from singanet.pretrained.source import folder_of
from singanet.report import RunNotes, read_run, recorders
from singanet.report.reading import CONFIG, HISTORY, MEMORY
from singanet.saving.nets import distinct_params
from singanet.saving.whole_model import LONGEST, MODEL, decoded, described, naming
from singanet.training.callbacks import Callback
from singanet.training.files import furthest

_OPTIONS_SECTION, _NET_SECTION = "options", "net"
"""The sections of the configuration: the user's options, and the arguments that build the net."""

_LEAST = 2
"""The least bytes of a number in an uncompressed checkpoint: float16."""

DESCRIPTION = "net.json"
"""The description of a net from a file; its parameters are in the checkpoints."""


def expect_no_run(folder: Path) -> None:
    """Refuse a folder with a run, as old and new checkpoints would mix."""
    found = [folder / name for name in (CONFIG, HISTORY) if (folder / name).exists()]
    found += sorted(folder.glob("epoch-*.npz")) if folder.is_dir() else []
    if found:
        where, expected = f"folder {str(folder)!r}", "a new folder, or a folder without a run"
        advice = "add --resume to resume it, or choose another folder"
        raise refusal(where, expected, f"a folder with {found[0].name}", advice, FileAccessError)


def has_state(folder: Path) -> bool:
    """Return True if there is a state to resume; False if the run ended before saving one.

    Errors: no run in the folder.
    """
    if any(not path.name.startswith(".") for path in folder.glob("*.npz")):
        return True
    if (folder / CONFIG).exists():
        return False
    furthest(folder)
    return True


class LateNotes(RunNotes):
    """Notes that are written in the first epoch; a refused resumption does not change them."""

    resume, _written = False, False
    description: bytes | None = None
    """The description of a net from a file, from which it is built again."""
    note: Callable[[Path], None]
    """Writes additional notes of the task."""

    def on_train_begin(self) -> None:
        """Lock the folder, in which another run may have started meanwhile.

        Errors: `FileAccessError`.
        """
        self.claim()
        expect_inside(self.folder, self.folder / DESCRIPTION)
        if not (self.resume or self.session.resumed):
            expect_no_run(self.folder)

    def on_epoch_begin(self, epoch: int) -> None:
        """Write the notes, and repair the memory log of a resumed training."""
        if not self._written:
            self.write()
            if self.description is not None:
                with replacing(self.folder / DESCRIPTION) as temporary:
                    temporary.write_bytes(self.description)
            self.note(self.folder)
            log = self.folder / MEMORY
            whole = log.read_bytes() if self.session.resumed and log.is_file() else b"\n"
            # A killed process may have written a part of a line.
            if not whole.endswith(b"\n"):
                with replacing(log) as temporary:
                    temporary.write_bytes(whole[: whole.rfind(b"\n") + 1])
        self._written = True

    def on_train_end(self) -> None:
        """Write the outcome, unless the training was refused, and unlock the folder."""
        if self._written:
            super().on_train_end()
        else:
            let_go(self.folder, self)


def folder_callbacks(
    folder: Path, options: RunOptions, task: Task, description: bytes | None = None
) -> list[Callback]:
    """Return the callbacks that record the run, with the ``description`` of a new net."""
    settings = {_OPTIONS_SECTION: options.lasting(), _NET_SECTION: task.settings}
    notes = LateNotes(folder, settings)
    notes.resume, notes.description, notes.note = options.resume, description, task.note
    others = (RunNotes, *task.not_recorded)
    found = recorders(folder, labels=task.class_names)
    return [notes, *(each for each in found if not isinstance(each, others))]


def saved_options(folder: Path) -> dict[str, Any]:
    """Return the options of the run in ``folder``, for `RunOptions`. Errors: no run there."""
    found = _section(folder, _OPTIONS_SECTION)
    options = {name: value for name, value in found.items() if name in LASTING}
    wrong = [
        name
        for name, value in options.items()
        if value is not None and type(value) not in LASTING[name].kinds_in_files
    ]
    if wrong or (options.get("model") is None) == (options.get("from_") is None):
        raise _not_ours(folder, f"{_OPTIONS_SECTION} with {wrong[0] if wrong else 'no model'!r}")
    return options


def described_net(folder: Path) -> FeedForwardNet:
    """Return the net of a run that started from a file, with unfilled parameters.

    Errors: `FileAccessError` if the run has no description; as for a model file; `UnsafeFileError`
    for parameters larger than any of the run's checkpoints.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise _not_ours(folder, f"no {DESCRIPTION}")
    expect_inside(folder, path)
    with explained(path, "read"), path.open("rb") as file:
        text = file.read(LONGEST + 1)
    where = f"file {str(path)!r}"
    about = decoded(MODEL, text, where)
    with naming(where), described(FeedForwardNet, about) as net:
        params = distinct_params(net.nodes())
    claimed = _LEAST * sum(prod(param.shape) for param in params)
    sizes = [each.stat().st_size for each in folder.glob("*.npz") if each.is_file()]
    if sizes and claimed > max(sizes):
        expected = f"a net with parameters of at most {max(sizes)} bytes, as in a checkpoint"
        advice = "pass the run folder as singanet train wrote it"
        raise refusal(where, expected, f"a net of {claimed} bytes or more", advice, UnsafeFileError)
    return net


def saved_settings(folder: Path) -> dict[str, Any]:
    """Return the saved arguments of `singanet.models.build`, except name and seed.

    Errors: the errors of `saved_options`.
    """
    settings = dict(_section(folder, _NET_SECTION))
    shape, classes = settings.get("input_shape"), settings.get("num_classes")
    if not isinstance(shape, list) or not all(is_int(n) for n in [*shape, classes]):
        raise _not_ours(folder, f"{_NET_SECTION} of another form")
    settings["input_shape"] = tuple(shape)
    return settings


def _section(folder: Path, name: str) -> dict[str, Any]:
    found = read_run(folder).config.get(name)
    if not isinstance(found, dict):
        raise _not_ours(folder, f"a file without a section {name!r}")
    return found


def _not_ours(folder: Path, received: str) -> SingaNetError:
    expected = f"a {CONFIG} that singanet train wrote"
    advice = "train with singanet train MODEL --out RUN_DIR first"
    return refusal(f"folder {str(folder)!r}", expected, received, advice, FileAccessError)


def gathered(given: Mapping[str, Any], published: bool = False) -> dict[str, Any]:
    """Return the arguments of `RunOptions`: ``given``, then ``config``'s, then the run's own.

    A ``published`` model may have a name on the hub, which becomes its folder in the cache. Errors:
    a file that is not TOML or has other keys; a folder to resume that has no run; as `folder_of`.
    """
    given = dict(given)
    config = given.pop("config", None)
    options = {} if config is None else read_config(config)
    if given.keys() & {*_NETS}:
        options = {key: value for key, value in options.items() if key not in _NETS}
    options |= given
    if published and options.get("from_") is not None:
        options["from_"] = str(folder_of(options["from_"]))
    if options.get("resume"):
        if options.get("out") is None:
            raise no_folder("resume")
        saved = saved_options(options["out"])
        _expect_the_same(saved, options)
        options = saved | options
    return options


_NETS = ("model", "from_")
"""Either names the net to train."""

_SETTLED = (
    *(*_NETS, "target", "leave_out", "min_count", "optimizer", "batch_size", "mixed_precision"),
    *("accumulate", "method", "rank", "beta", "head", "text"),
)
"""Options of a training state; a resumption may change the other ones."""


def _expect_the_same(saved: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Errors: `ArgumentError` for an option that differs from the run's."""
    recipe = own_recipe(*(saved.get(key) for key in ("model", "from_", "method", "rank")))
    usual = {"optimizer": recipe.optimizer, "batch_size": recipe.batch_size, "accumulate": 1}
    usual["min_count"] = 1
    for name in _SETTLED:
        before = saved.get(name) if saved.get(name) is not None else usual.get(name)
        if given.get(name, before) != before:
            where = "MODEL" if name == "model" else f"--{OPTIONS[name].flag}"
            expected = f"{before!r}, as the run was started with"
            advice = "remove it, or start a run in another folder"
            raise refusal(where, expected, repr(given[name]), advice)


_LONGEST, _MOST_DOTS = 1 << 16, 64
_NAMES = {each.flag.replace("-", "_"): each for each in OPTIONS.values()}
"""The options by their keys in a file, with underscores."""


def read_config(path: Path) -> dict[str, Any]:
    """Return the options of a TOML file: ``batch_size = 64`` or ``batch-size = 64``.

    Errors: `FileAccessError`; `DataError` if it is not TOML or a value has another type;
    `UnknownNameError` for a key that is not an option.
    """
    options: dict[str, Any] = {}
    where = f"--config {str(path)!r}"
    for key, value in _parsed(path, where).items():
        said = key.replace("-", "_")
        if said not in _NAMES:
            advice = did_you_mean(said, _NAMES, "remove it")
            expected = f"keys among {one_of(_NAMES, 30)}"
            raise refusal(where, expected, repr(key), advice, UnknownNameError)
        option = _NAMES[said]
        kinds = option.kinds_in_files
        if option.name in options or type(value) not in kinds or "\0" in str(value):
            expected = f"a value of type {kinds[0].__name__}, once"
            received = f"{type(value).__name__} {value!r}"[:80]
            advice = "write it as on the command line; only texts are quoted"
            raise refusal(f"{where}, key {key!r}", expected, received, advice, DataError)
        options[option.name] = Path(value) if option.kind is Path else value
    return options


def _parsed(path: Path, where: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
        # A key of many parts takes the TOML reader quadratic memory.
        dots = max((line.count(b".") for line in text.splitlines()), default=0)
        if len(text) > _LONGEST or dots > _MOST_DOTS:
            raise ValueError(f"more than {_LONGEST} bytes, or {_MOST_DOTS} dots in a line")
        return dict(tomllib.loads(text.decode("utf-8")))
    except OSError as error:
        expected, received = "a readable file", error.strerror or error
        raise refusal(where, expected, received, "check the path", FileAccessError) from error
    # Errors of TOML, of the encoding, and of nested lists.
    except (ValueError, RecursionError) as error:
        expected, received = "TOML: lines such as epochs = 20", str(error).splitlines()[0][:120]
        raise refusal(where, expected, received, "put texts in quotes", DataError) from error
