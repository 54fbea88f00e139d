"""Nets that a run left, or a file of weights, ready to be tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from singanet.base.files import expect_inside
from singanet.errors import (
    ArgumentError,
    DataError,
    FileAccessError,
    SingaNetError,
    StateMismatchError,
)
from singanet.models import build, find
from singanet.net import FeedForwardNet
from singanet.pretrained.folder import CONFIG as MODEL_CONFIG
from singanet.report.run_files import CONFIG
from singanet.runs.folder import described_net, saved_options, saved_settings
from singanet.runs.options import RunOptions
from singanet.runs.published import MODEL, is_published
from singanet.runs.tasks import Task, load_task
from singanet.runs.tasks.published import published_task
from singanet.runs.whole import is_whole, learner, task_for, whole_net
from singanet.training.files import furthest


def run_net(folder: Path) -> FeedForwardNet:
    """The net of the run in ``folder`` with new parameters. Errors: no run of ours there."""
    options = saved_options(folder)
    if options.get("from_") is not None:
        return described_net(folder)
    return _built(folder, options, saved_settings(folder))


def trained(
    path: Path, model: str | None = None, data: str | None = None, best: bool = False
) -> tuple[FeedForwardNet, Task]:
    """The net with the weights at ``path``, and its task on ``data``.

    ``path`` is a run folder, of which the newest checkpoint is taken or with ``best`` the best
    weights, or a file of weights: of a run where it lies in its folder, else of ``model``. A
    model file needs neither. ``data`` None is what the run was trained on; of a file, only the
    samples for testing have to be there. Errors: nothing there; weights that do not fit; data
    that do not fit the net.
    """
    if model is None and is_whole(path):
        net = whole_net(path)
        return net, task_for(net, path, data, for_testing=True)
    folder = path if path.is_dir() else path.parent
    known = model is None and (folder / CONFIG).is_file()
    if not path.exists() and not path.with_name(path.name + ".bin").exists():
        raise _missing(path)
    options: Mapping[str, Any]
    if known:
        options = saved_options(folder)
    elif model is None:
        raise ArgumentError(
            f"file {str(path)!r}",
            expected="a run folder, a file in one, or the name of a model",
            received="none",
            advice="add --model NAME, one that singanet models lists",
        )
    else:
        options = {"model": model}
    if known and options.get("from_") is not None and _of_published(folder, options):
        return _published(path, folder, options, data, best)
    begun = described_net(folder) if options.get("from_") is not None else None
    entry = find(options["model"]) if begun is None else learner(begun, options["from_"])
    usual = options.get("data")
    if entry.task == "text" and known and data not in (None, usual):
        raise DataError(
            f"data {data!r}",
            expected=f"{usual or 'plays'!r}, whose characters the net was trained on",
            received=repr(data),
            advice="leave --data out",
        )
    task = load_task(entry, usual if data is None else data, for_testing=True)
    settings = saved_settings(folder) if known else _settings(task)
    shape = tuple(settings["input_shape"])
    if shape != tuple(task.input_shape):
        raise DataError(
            f"data {task.name!r}",
            expected=f"samples of shape {shape}, those of the net",
            received=f"shape {tuple(task.input_shape)}",
            advice="bring them to the net's shape",
        )
    net = _built(folder, options, settings) if begun is None else begun
    if options.get("mixed_precision") == "float16":
        net.as_type("float16")
    try:
        net.load(_weights(path, best))
    except StateMismatchError as error:
        whose = "the weights are those of another net: "
        advice = "name theirs with --model" if model is not None else "take a run of its own"
        raise error.advising(whose + advice) from error
    return net, task


def _of_published(folder: Path, options: Mapping[str, Any]) -> bool:
    """Whether the run in ``folder`` has tuned a published model."""
    return (folder / MODEL / MODEL_CONFIG).is_file() or is_published(options["from_"])


def _published(
    path: Path, folder: Path, options: Mapping[str, Any], data: str | None, best: bool
) -> tuple[FeedForwardNet, Task]:
    """`trained` of such a run: on what was kept back, or on all texts in the file ``data``."""
    told = RunOptions(**options, out=folder)
    checkpoint = path.is_file() or best or any(folder.glob("*.npz"))
    if (folder / MODEL / MODEL_CONFIG).is_file():
        # It has the tokenizer and all that the base model had, wherever that is now.
        told = replace(told, from_=str(folder / MODEL))
        told = told if checkpoint else replace(told, method=None, rank=None)
    if data is not None:
        told = replace(told, validation=data)
    net, task = published_task(told)
    if checkpoint:
        net.load(_weights(path, best))
    return net, task


def _built(folder: Path, options: Mapping[str, Any], settings: Mapping[str, Any]) -> FeedForwardNet:
    arguments = dict(settings)
    shape, classes = arguments.pop("input_shape"), arguments.pop("num_classes")
    try:
        return build(options["model"], shape, classes, options.get("seed", 0), **arguments)
    except SingaNetError as error:
        raise error.within(f"folder {str(folder)!r}") from error


def _settings(task: Task) -> dict[str, Any]:
    return {"input_shape": task.input_shape, "num_classes": task.num_classes, **task.options}


def _weights(path: Path, best: bool) -> Path:
    if not best:
        return furthest(path) if path.is_dir() else path
    found = sorted(path.glob("best.*")) if path.is_dir() else []
    if not found:
        raise _missing(path / "best.npz" if path.is_dir() else path)
    expect_inside(path, found[0])
    return found[0]


def _missing(path: Path) -> FileAccessError:
    return FileAccessError(
        f"file {str(path)!r}",
        expected="a run folder or a file of weights",
        received="no such file or folder",
        advice="check the path",
    )
