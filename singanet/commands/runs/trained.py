"""Trained nets of runs and files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from singanet import keras, onnx, pretrained
from singanet.base.arguments import checked_count, is_int
from singanet.base.files import expect_inside, replacing
from singanet.base.progress import progress
from singanet.commands.runs.classified import classification_task, tuning
from singanet.commands.runs.folder import described_net, saved_options, saved_settings
from singanet.commands.runs.own_data import OwnOptions, learnt_table, read_record
from singanet.commands.runs.preferences import is_by_preferences
from singanet.commands.runs.published import (
    MODEL,
    is_published,
    model_in,
    texts_alone,
    tokenizer_for,
)
from singanet.commands.runs.recipe import FINE_TUNING
from singanet.commands.runs.run_options import RunOptions, refusal
from singanet.commands.runs.tasks import Task, load_task
from singanet.data import Tokenizer
from singanet.data.image_sets import open_data_file
from singanet.data.table import GROUPS
from singanet.data.table_files import LearntTable
from singanet.data.tokens.text_files import Fragment, batch_of, decoded
from singanet.engine.step import probabilities_of
from singanet.errors import DataError, FileAccessError, SingaNetError, StateMismatchError
from singanet.loss import (
    CategoricalCrossEntropy,
    Loss,
    SoftmaxCrossEntropy,
    SoftmaxFocal,
    SquaredError,
)
from singanet.metric import Accuracy
from singanet.models import ModelEntry, build, find
from singanet.net import FeedForwardNet, load_model
from singanet.pretrained.config import NAME
from singanet.pretrained.heads import SEQUENCE
from singanet.pretrained.source import CONFIG as MODEL_CONFIG
from singanet.pretrained.source import folder_of
from singanet.report.reading import CONFIG
from singanet.saving.whole_model import is_model_file, save_model
from singanet.training.files import furthest
from singanet.types import Array, Shape

_OTHERS: Mapping[str, Callable[[Path], FeedForwardNet]] = {
    ".keras": keras.load_model,
    ".onnx": onnx.load,
}
"""Files identified by their suffix, as other files may start with the same bytes."""

_OF_CLASSES = (SoftmaxCrossEntropy, CategoricalCrossEntropy, SoftmaxFocal)


def is_whole(path: str | os.PathLike[str]) -> bool:
    """Return True if there is a file of a whole model at ``path``."""
    path = Path(path)
    return is_model_file(path) or (path.suffix.lower() in _OTHERS and path.is_file())


def is_run(path: str | os.PathLike[str]) -> bool:
    """Return True if ``path`` is the folder of a run, other than one of a published model."""
    return (Path(path) / CONFIG).is_file() and not is_published(path)


def whole_net(path: str | os.PathLike[str]) -> FeedForwardNet:
    """Return the net of a run with its newest weights, or in a file of a whole model.

    It has no training state.
    """
    path = Path(path)
    if is_run(path):
        return _of_run(path)
    load = _OTHERS.get(path.suffix.lower())
    return load(path) if load is not None else load_model(path, training=False)


def _of_run(folder: Path) -> FeedForwardNet:
    """Return the net of the run with its weights, and with the table that it has learnt."""
    net = run_net(folder)
    _fill(net, furthest(folder), saved_options(folder), "pass a run of the same net")
    learnt = learnt_table(read_record(folder))
    table = None if learnt is None else learnt.table
    # Other nets of tables have a column of zeros, which a `Table` does not make.
    if table is not None and (
        len(net.ports().inputs) == 1 or (table.categories and table.measures)
    ):
        net.table = table
    return net


def seeded_net(path: str | os.PathLike[str], seed: int) -> FeedForwardNet:
    """Return `whole_net` for training: seeded by ``seed``, and with float16 widened to float32."""
    net = whole_net(path)
    if net.dtype == np.float16:
        net.as_type("float32")
    net.seed, net.rng = seed, np.random.default_rng(seed)
    return net


def seeded_on(
    path: str | os.PathLike[str], data: str | None, seed: int
) -> tuple[FeedForwardNet, Task]:
    """Return `seeded_net`, and its task on ``data``; None are the data of a run."""
    options = saved_options(Path(path)) if is_run(path) else {}
    own = OwnOptions(
        options.get("target") if data is None else None,
        seed=options.get("seed", 0),
        record=read_record(Path(path)),
    )
    net = seeded_net(path, seed)
    return net, task_for(net, path, options.get("data") if data is None else data, own=own)


def task_for(
    net: FeedForwardNet,
    path: str | os.PathLike[str],
    data: str | None,
    for_testing: bool = False,
    own: OwnOptions | None = None,
) -> Task:
    """Return the task of the net of the file at ``path`` on ``data``, after checking that they fit.

    A net without a loss gets the loss of the ready nets for its task, and each net their metric.
    Errors: a net of another task, no data, samples of another shape or more classes.
    """
    entry = learner(net, path)
    if data is None:
        advice = "add --data, a name such as digits or a file"
        raise refusal("--data", "data, as a model file does not name any", "none", advice)
    if own is not None and own.record is None:
        own = replace(own, record=_record_of(net, entry))
    task = load_task(entry, data, for_testing=for_testing, own=own)
    _expect_fitting(task, entry)
    if names := task.class_names:
        # The net may have more outputs, whose classes have no names.
        task.class_names = [*names, *map(str, range(len(names), entry.num_classes))]
    if net.loss is None:
        net.loss = _usual_loss(net, entry.task)
    net.metric = None if entry.task == "reconstruction" else Accuracy()
    return task


def _record_of(net: FeedForwardNet, entry: ModelEntry) -> Mapping[str, Any] | None:
    """Return a record of the table that a net of a model file takes, with numbers as classes."""
    table = net.table
    if table is None:
        return None
    classes = tuple(str(k) for k in range(entry.num_classes))
    return LearntTable(table, "", classes, True, tuple(table.categories), 1).record()


def learner(net: FeedForwardNet, path: str | os.PathLike[str]) -> ModelEntry:
    """Return ``net`` as an entry in the table of ready nets: shapes, recipe and task.

    The task follows from the shapes and the loss. Errors: `ArgumentError` for a net of several
    inputs or outputs, or with a loss for another task.
    """
    ports, nodes = net.ports(), {node.name: node for node in net.nodes()}
    received = f"{len(ports.inputs)} inputs, {len(ports.outputs)} outputs"
    if {*ports.inputs} == {*GROUPS} and len(ports.outputs) == 1 and type(net.loss) in _OF_CLASSES:
        columns = [nodes[name].output_shapes()[0] for name in GROUPS]
        name, index = ports.outputs[0]
        out = nodes[name].output_shapes()[index]
        if len(out) == 1 and all(len(each) == 1 for each in columns):
            rows, name = (columns[0][0], columns[1][0]), f"the net of {path}"
            return ModelEntry(name, "", "", {}, rows, out[0], "tabular", FINE_TUNING)
    if len(ports.inputs) == len(ports.outputs) == 1:
        name, index = ports.outputs[0]
        shape = nodes[ports.inputs[0]].layer.in_shapes
        out = nodes[name].output_shapes()[index]
        task = _task(net.loss, shape, out)
        if task is not None and isinstance(shape, tuple):
            name = f"the net of {path}"
            return ModelEntry(name, "", "", {}, shape, out[-1], task, FINE_TUNING)
        received = f"shape {shape} to {out}, loss {type(net.loss).__name__}"
    expected = (
        "a net of one input, or of 'categorical' and 'numeric', and one output that classifies by "
        "softmax cross-entropy, or reconstructs samples by SquaredError"
    )
    advice = "train and test other nets by net.fit and net.evaluate"
    raise refusal(f"file {str(path)!r}", expected, received, advice)


def _task(loss: object, shape: object, out: Shape) -> str | None:
    """Return the task of a net from ``shape`` to ``out`` with its ``loss``; None if unknown."""
    if not isinstance(shape, tuple):
        return None  # a layer that reads several inputs
    if shape == out and (type(loss) is SquaredError or (loss is None and len(shape) > 1)):
        return "reconstruction"
    if loss is not None and type(loss) not in _OF_CLASSES:
        return None
    if len(out) == 1:
        return "classification"
    if len(out) == 2 and out[:1] == shape:
        return "text"
    return "segmentation" if len(shape) == len(out) == 3 and shape[1:] == out[:2] else None


def _expect_fitting(task: Task, entry: ModelEntry) -> None:
    """Errors: `DataError` for other shapes, classes without an output, another vocabulary."""
    shape, classes = entry.input_shape, entry.num_classes
    found, many = tuple(task.input_shape), task.num_classes
    wanted, received = f"samples of shape {shape}", f"shape {found}"
    fits = True
    if entry.task != "reconstruction":
        # A character's number depends on its text: fewer characters mean another text.
        fits = many == classes if entry.task == "text" else many <= classes
        wanted += f" and {classes} classes, the outputs of the net"
        received += f" and {many} classes"
    if found != shape or not fits:
        advice = "change them to the net's shape, or pass another net"
        raise refusal(f"data {task.name!r}", wanted, received, advice, DataError)


def _usual_loss(net: FeedForwardNet, task: str) -> Loss:
    """Return the loss of the ready nets for ``task``; it fits a net that ends in a softmax."""
    if task == "reconstruction":
        return SquaredError()
    plan = net.planned()
    _, function = probabilities_of(plan, plan.outputs[0])
    return CategoricalCrossEntropy() if function == "softmax" else SoftmaxCrossEntropy()


def convert_whole(source: Path, target: Path, format: str | None) -> str | None:
    """Write the net of a run, or of another library's file, as a model file, or its weights.

    Returns a text for the user; None if ``source`` is neither.
    """
    if not is_run(source) and source.suffix.lower() not in _OTHERS:
        return None
    net = whole_net(source)
    if target.suffix.lower() == ".singanet":
        save_model(net, target)
        return f"{target}: model; {len(net.layers)} layers"
    net.save(target, format=format)
    return f"{target}: {len(net.param_names())} arrays of {len(net.layers)} layers"


def run_net(folder: Path) -> FeedForwardNet:
    """Return the net of the run in ``folder`` with new parameters. Errors: no run there."""
    options = saved_options(folder)
    if options.get("from_") is not None:
        return described_net(folder)
    return _built(folder, options, saved_settings(folder))


def trained(
    path: Path,
    model: str | None = None,
    data: str | None = None,
    best: bool = False,
    target: str | None = None,
    labelled: bool = True,
) -> tuple[FeedForwardNet, Task]:
    """Return the net with the weights at ``path``, and its task on ``data``.

    ``path`` is a run folder, with its newest checkpoint or the ``best`` weights; or a file of
    weights, of the run in its folder or of ``model``, a name or a run; or a model file, which needs
    neither.
    ``data`` None are the data of the run; a file needs only the test samples. Own data, with
    labels in ``target``, are tests as a whole; without ``labelled`` they need no labels. Errors:
    nothing at ``path``; weights or data that do not fit the net.
    """
    if model is None and is_whole(path):
        net, own = whole_net(path), OwnOptions(target, whole=True, labelled=labelled)
        return net, task_for(net, path, data, for_testing=True, own=own)
    if model is None and path.is_dir() and model_in(path) == path and is_published(path):
        column = target if labelled else target or ""
        chosen = RunOptions(
            from_=str(path), out=path, head=SEQUENCE, data=data, validation=data, target=column
        )
        return classification_task(chosen, True, labelled)
    folder = path if path.is_dir() else path.parent
    if model is not None and is_run(model):
        folder, model = Path(model), None
    known = model is None and (folder / CONFIG).is_file()
    if not path.exists() and not path.with_name(path.name + ".bin").exists():
        raise _missing(path)
    options: Mapping[str, Any]
    if known:
        options = saved_options(folder)
    elif model is None:
        expected = "a run folder, a file in one, or the name of a model"
        advice = "add --model NAME, a name that singanet models lists"
        raise refusal(f"file {str(path)!r}", expected, "none", advice)
    else:
        options = {"model": model}
    if known and options.get("from_") is not None and _of_published(folder, options):
        return _published(path, folder, options, data, best, target, labelled)
    begun = described_net(folder) if options.get("from_") is not None else None
    entry = find(options["model"]) if begun is None else learner(begun, options["from_"])
    usual = options.get("data")
    if entry.task == "text" and known and data not in (None, usual):
        expected = f"{usual or 'plays'!r}, with the characters of the training"
        raise refusal(f"data {data!r}", expected, repr(data), "remove --data", DataError)
    if target is not None and data is None:
        raise refusal("--target", "--data as well", "none", "add --data FILE")
    own = OwnOptions(
        options.get("target") if data is None else target,
        seed=options.get("seed", 0),
        record=read_record(folder) if known else None,
        whole=data is not None,
        labelled=labelled,
    )
    task = load_task(entry, usual if data is None else data, for_testing=True, own=own)
    if not task.class_names and own.record is not None:
        task.class_names = own.record.get("classes", ())
    settings = saved_settings(folder) if known else task.settings
    shape = tuple(settings["input_shape"])
    if shape != tuple(task.input_shape):
        expected = f"samples of shape {shape}, as for the net"
        received = f"shape {tuple(task.input_shape)}"
        advice = "change them to the net's shape"
        raise refusal(f"data {task.name!r}", expected, received, advice, DataError)
    net = _built(folder, options, settings) if begun is None else begun
    advice = "pass that net with --model" if model is not None else "pass a run of the same net"
    _fill(net, _weights(path, best), options, f"the weights belong to another net: {advice}")
    return net, task


def _fill(net: FeedForwardNet, weights: Path, options: Mapping[str, Any], advice: str) -> None:
    """Read the weights of a run with ``options`` into ``net``. Errors: weights of another net."""
    if options.get("mixed_precision") == "float16":
        net.as_type("float16")
    try:
        net.load(weights)
    except StateMismatchError as error:
        raise error.advising(advice) from error


def _of_published(folder: Path, options: Mapping[str, Any]) -> bool:
    """Return True if the run in ``folder`` has tuned a published model."""
    return (folder / MODEL / MODEL_CONFIG).is_file() or is_published(options["from_"])


def _published(
    path: Path,
    folder: Path,
    options: Mapping[str, Any],
    data: str | None,
    best: bool,
    target: str | None,
    labelled: bool,
) -> tuple[FeedForwardNet, Task]:
    """Do `trained` for a tuned published model, on the validation data or the file ``data``."""
    chosen = RunOptions(**options, out=folder)
    checkpoint = path.is_file() or best or any(folder.glob("*.npz"))
    judged = is_by_preferences(options)
    if judged and not checkpoint:
        expected = "a checkpoint of the run, whose net compares answers"
        raise refusal(f"folder {str(folder)!r}", expected, "none", "load its model folder instead")
    # Rewards are relative to the model before the training.
    if not judged and (folder / MODEL / MODEL_CONFIG).is_file():
        # It has the tokenizer and the settings of the base model, which may have moved.
        chosen = replace(chosen, from_=str(folder / MODEL))
        chosen = chosen if checkpoint else replace(chosen, method=None, rank=None)
    if data is not None:
        chosen = replace(chosen, validation=data)
    if chosen.head is not None and target is not None:
        chosen = replace(chosen, target=target)
    known = chosen.from_ == str(folder / MODEL)
    if chosen.head is not None:
        net, task = classification_task(chosen, known, labelled)
    else:
        net, task = tuning(chosen)
    if checkpoint:
        net.load(_weights(path, best))
    return net, task


def _built(folder: Path, options: Mapping[str, Any], settings: Mapping[str, Any]) -> FeedForwardNet:
    try:
        return build(options["model"], seed=options.get("seed", 0), **settings)
    except SingaNetError as error:
        raise error.within(f"folder {str(folder)!r}") from error


def _weights(path: Path, best: bool) -> Path:
    if not best:
        return furthest(path) if path.is_dir() else path
    found = sorted(path.glob("best.*")) if path.is_dir() else []
    if not found:
        raise _missing(path / "best.npz" if path.is_dir() else path)
    expect_inside(path, found[0])
    return found[0]


def _missing(path: Path) -> SingaNetError:
    expected, received = "a run folder or a file of weights", "no such file or folder"
    return refusal(f"file {str(path)!r}", expected, received, "check the path", FileAccessError)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file. Errors: an empty file; other bytes; no file."""
    with open_data_file(path) as stream:
        text = decoded(path, 0, stream.read())
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if lines == [""]:
        where = f"text file {str(path)!r}"
        raise refusal(where, "one sentence per line", "none", "check the file", DataError)
    return lines


def embedded(
    model: str | os.PathLike[str], texts: list[str], batch_size: int = 32, cut: bool = False
) -> Array:
    """Return a row (dimensions,) of float32 for each of ``texts``, by the ``model`` in a folder.

    Texts of similar lengths share batches. Errors: a model without sentence embeddings; a text
    longer than the model's maximum, with its line, unless ``cut``.
    """
    checked_count("singanet embed", "--batch-size", batch_size, 1)
    place = model_in(folder_of(model))
    with texts_alone(place):
        net = pretrained.load(place, inputs=OF_SENTENCES)
    if not has_embeddings(net):
        expected = "a folder of sentence-transformers with modules.json"
        received = (net.config.get("architectures") or ["another model"])[0]
        advice = "pass such a folder; for hidden states call pretrained.load in Python"
        raise refusal(f"model {str(model)!r}", expected, received, advice)
    tokenizer = tokenizer_for(net, place)
    return embeddings(net, tokenizer, _ids(tokenizer, texts, net.most_steps, cut), batch_size)


OF_SENTENCES = ["input_ids", "attention_mask"]
"""The inputs of a model of sentences."""


def has_embeddings(net: FeedForwardNet) -> bool:
    """Return whether the net of a folder gives an embedding for each text."""
    return net.ports().outputs == [(NAME, 0)]


def embeddings(
    net: FeedForwardNet, tokenizer: Tokenizer, rows: Sequence[Array], batch_size: int = 32
) -> Array:
    """Return a row (dimensions,) of float32 for each text in ``rows``, ids (T,)."""
    known = getattr(net, "config", {}).get("pad_token_id")
    padding = known if is_int(known, 0) else tokenizer.pad_id or 0
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    found: Array | None = None
    for at in progress(range(0, len(order), batch_size), "embed"):
        places = order[at : at + batch_size]
        together = [[Fragment(rows[k], rows[k])] for k in places]
        width = max(1, *(len(rows[k]) for k in places))
        x, _ = batch_of(together, width, padding)
        made = net.predict({name: x[name] for name in OF_SENTENCES})
        found = np.empty((len(rows), made.shape[1]), np.float32) if found is None else found
        found[places] = made
    return np.empty((0, 0), np.float32) if found is None else found


def _ids(tokenizer: Tokenizer, texts: list[str], most: int | None, cut: bool) -> list[Array]:
    rows = []
    _, after = tokenizer.around
    for number, text in enumerate(progress(texts, "encoding texts"), 1):
        ids = tokenizer.encode(text)
        if most is not None and len(ids) > most:
            if not cut:
                expected = f"at most {most} tokens, the model's maximum"
                advice = "shorten it, or pass --cut"
                raise refusal(f"line {number} of the texts", expected, len(ids), advice, DataError)
            # The model's end tokens are not cut.
            ids = np.concatenate([ids[: most - len(after)], after])
        rows.append(ids)
    return rows


def write_rows(path: Path, rows: Array) -> None:
    """Write ``rows`` as a .npy file, atomically. Errors: `FileAccessError`."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.save(file, rows, allow_pickle=False)
