"""Fine-tuning of published models as classifiers of the texts in a table."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from singanet import pretrained
from singanet.base.arguments import is_int
from singanet.base.progress import progress
from singanet.commands.runs.preferences import is_by_preferences, preference_task
from singanet.commands.runs.published import (
    MODEL,
    USUAL_RANK,
    expect_complete,
    length_of,
    model_in,
    published_task,
    texts_alone,
    tokenizer_for,
)
from singanet.commands.runs.run_options import RunOptions, refusal
from singanet.commands.runs.tasks import EpochResult, SampleTask, Task, split
from singanet.data import ArrayLoader, Tokenizer
from singanet.data.row_files import Samples
from singanet.data.table_files import (
    SUFFIXES,
    Chunk,
    TableFile,
    class_name,
    classes_of,
    is_text_column,
    open_table,
)
from singanet.data.tokens.text_files import Fragment, batch_of
from singanet.errors import DataError, SingaNetError, brief, did_you_mean, one_of
from singanet.models import ModelEntry
from singanet.net import FeedForwardNet
from singanet.pretrained import PretrainedNet
from singanet.pretrained.headed import labels_of
from singanet.pretrained.heads import KINDS, SEQUENCE
from singanet.pretrained.source import CONFIG, read_settings
from singanet.types import Array

INPUTS = ("input_ids", "attention_mask")
_OF_HEAD = ("pooler", "pooler_norm", "logits")
"""The layers of a classifier, which are trained beside low-rank pairs."""


def tuning(options: RunOptions, evaluates: bool = False) -> tuple[FeedForwardNet, Task]:
    """Return the net of the published model in ``options``, and its task.

    ``evaluates``: the model's classes are known. Errors: the errors of each kind of training.
    """
    if options.head is not None:
        return classification_task(options, evaluates)
    if options.text is not None:
        raise refusal("--text", f"--head {SEQUENCE} as well", options.text, "remove it")
    made = preference_task if is_by_preferences(options) else published_task
    return made(options)


def classification_task(
    options: RunOptions, evaluates: bool = False, labelled: bool = True
) -> tuple[FeedForwardNet, Task]:
    """Return a classifier of the published model in ``options``, and its task.

    With ``evaluates`` the classes are the model's, and only the data to validate with are read.
    Errors: another head or method; no table with such columns; a model that needs other inputs.
    """
    _expect_options(options)
    place = model_in(str(options.from_))
    path = str(options.validation if evaluates and options.validation else options.data)
    table = read_texts(path, options.text, options.target, labelled)
    known = _labels(place)
    classes = known if evaluates else _classes(table, known, str(options.target))
    with warnings.catch_warnings(), texts_alone(place):
        if not evaluates:
            # That the head is new is expected here.
            warnings.simplefilter("ignore", RuntimeWarning)
        net = pretrained.load(
            place, head=SEQUENCE, classes=classes, inputs=INPUTS, seed=options.seed
        )
    tokenizer = tokenizer_for(net, place)
    _set_padding(net, tokenizer)
    if options.method == "lora":
        net.adapt(USUAL_RANK if options.rank is None else options.rank)
        for layer in net.layers:
            layer.trainable = layer.trainable or layer.name in _OF_HEAD
    length = length_of(options.length, net)
    task = PublishedClasses(net, tokenizer, options, table, classes, length, evaluates)
    return net, task


def _expect_options(options: RunOptions) -> None:
    if options.head != SEQUENCE:
        expected = repr(SEQUENCE)
        advice = "train other heads in Python: pretrained.load(folder, head=...)"
        if options.head not in KINDS:
            usual = "remove it to train a language model"
            advice = did_you_mean(str(options.head), (SEQUENCE,), usual)
        raise refusal("--head", expected, repr(options.head), advice)
    if is_by_preferences(options):
        raise refusal("--head", "--method full, lora or blocks", options.method, "remove one")
    if options.prompt is not None:
        raise refusal("--prompt", "a language model to fine-tune", "a classifier", "remove it")
    if options.data is None:
        raise refusal("--data", "a table with a column of texts", "none", "add --data FILE.csv")
    expect_complete(options)
    if options.target is None:
        raise refusal("--target", "the column of the classes", "none", "add --target COLUMN")
    for name in ("data", "validation"):
        given = getattr(options, name)
        if given is not None and not given.lower().endswith(SUFFIXES):
            expected = f"a table for --head {SEQUENCE}: a file that ends in {one_of(SUFFIXES)}"
            raise refusal(f"--{name}", expected, repr(given), "convert it to a table", DataError)


def _labels(place: Path) -> list[str]:
    """Return the names of the classes in the model's config."""
    settings = read_settings(place, CONFIG) if (place / CONFIG).is_file() else {}
    return labels_of(settings if isinstance(settings, dict) else {})


def _set_padding(net: PretrainedNet, tokenizer: Tokenizer) -> None:
    """Name the padding in the config, which a classifier of transformers needs for a batch."""
    if is_int(net.config.get("pad_token_id"), 0):
        return
    ends = tokenizer.around[1].tolist()
    known = (tokenizer.pad_id, tokenizer.eos_id, 0)
    net.config["pad_token_id"] = next(id for id in known if id is not None and id not in ends)


# -- rows -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextTable:
    """The texts of a ``column``, and their labels, None if they are not wanted."""

    file: TableFile
    column: str
    texts: list[str]
    labels: list[str] | None

    def refused(self, row: int, column: str, expected: str, received: Any) -> SingaNetError:
        """Return the error for a value of a row."""
        where = f"{self.file.where}, {self.file.place_of(row)}, column {column!r}"
        return refusal(where, expected, brief(received)[:80], "mend or remove the row", DataError)


def read_texts(path: str, text: str | None, target: str | None, labelled: bool) -> TextTable:
    """Return the columns ``text`` and ``target`` of the table at ``path``.

    ``text`` None is the only other column of texts. Errors: no such column, or several; a row
    without a text, or without a label if ``labelled``.
    """
    file = open_table(path)
    wanted = [name for name in (text, target if labelled else None) if name is not None]
    file.expect(wanted[: 1 if text is not None else 0], "--text")
    if labelled:
        file.expect([str(target)], "--target")
    others = [name for name in file.names if name != target]
    if text is None:
        first = next(iter(file.chunks(others))) if others else None
        found = [name for name in others if first is not None and is_text_column(file, name, first)]
        if len(found) != 1:
            expected = "one column of texts beside --target"
            advice = "add --text COLUMN" if found else "pass a table with a column of texts"
            raise refusal(f"data {path!r}", expected, one_of(found, 8) or "none", advice, DataError)
        text = found[0]
    made = TextTable(file, text, [], [] if labelled else None)
    for chunk in file.chunks([text, *([str(target)] if labelled else [])]):
        _take(made, chunk, text, str(target))
    return made


def _take(made: TextTable, chunk: Chunk, text: str, target: str) -> None:
    for row, value in enumerate(chunk.columns[text], chunk.first):
        if not isinstance(value, str) or not value.strip():
            raise made.refused(row, text, "a text", value)
        made.texts.append(value)
    if made.labels is None:
        return
    for row, value in enumerate(chunk.columns[target], chunk.first):
        if value is None or value == "" or value != value:
            raise made.refused(row, target, "a class", value)
        made.labels.append(str(value))


def _classes(table: TextTable, known: Sequence[str], target: str) -> list[str]:
    """Return the classes of the rows, in the order of the model if it has the same ones."""
    assert table.labels is not None
    found = sorted(set(table.labels))
    if set(found) == set(known):
        return [*known]
    if len(found) < 2:
        expected = "two or more classes"
        raise refusal(table.file.where, expected, one_of(found), "add rows of others", DataError)
    names, _, numbers = classes_of(table.file, target, found, len(table.texts))
    named = {value: names[number] for value, number in zip(found, numbers, strict=True)}
    table.labels[:] = [named[label] for label in table.labels]
    return [*names]


class TokenRows:
    """Rows of tokens of several lengths: indexed by an array they are a list."""

    def __init__(self, rows: list[Array]) -> None:
        self._ids = np.concatenate([np.empty(0, np.int32), *rows])
        self._ends = np.cumsum([len(row) for row in rows])

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, rows: Array) -> list[Array]:
        parts = (slice(self._ends[k - 1] if k else 0, self._ends[k]) for k in rows.tolist())
        return [self._ids[part] for part in parts]


def padded(rows: Sequence[Array], length: int, padding: int) -> dict[str, Array]:
    """Return the inputs of a classifier, as wide as the longest row, up to a quarter of ``length``.

    A recorded step is made once a width.
    """
    step = max(1, -(-length // 4))
    width = min(length, -(-max((len(row) for row in rows), default=1) // step) * step)
    x, _ = batch_of([[Fragment(row, row)] for row in rows], max(1, width), padding)
    return {name: x[name] for name in INPUTS}


class TextRowLoader(ArrayLoader):
    """An `ArrayLoader` of texts, of at most ``length`` tokens, which a memory budget asks for."""

    length = 0


@dataclass
class _Parts:
    """The rows to train on and to test on."""

    x_train: Samples
    y_train: Array
    x_test: Samples
    y_test: Array


class PublishedClasses(SampleTask):
    """Texts of a table, each with its class; the texts kept back are validated and tested on."""

    metrics = ("accuracy",)
    evaluation_batch = 32
    _kind_of_loader = TextRowLoader

    def __init__(
        self,
        net: PretrainedNet,
        tokenizer: Tokenizer,
        options: RunOptions,
        table: TextTable,
        classes: Sequence[str],
        length: int,
        evaluates: bool,
    ) -> None:
        self.name, self._options = str(options.data), options
        self.input_shape, self.num_classes = (length,), len(classes)
        self.class_names = tuple(classes)
        self.afterwards = f"predict {{}} --data {self.name}"
        self._tokenizer, self._padding = tokenizer, int(net.config["pad_token_id"])
        x, y = self._samples(table)
        if options.validation is not None:
            other = table
            if not evaluates:
                other = read_texts(options.validation, options.text, options.target, True)
            tests = self._samples(other)
            self.data = _Parts(x, y, *tests)
        else:
            rest = taken = np.arange(len(y))
            if options.kept_back:
                rest, taken = split(len(y), options.kept_back, options.seed)
            self.data = _Parts(x.subset(rest), y[rest], x.subset(taken), y[taken])
        self.tests = bool(options.kept_back)
        counts = zip(self.class_names, np.bincount(y, minlength=len(classes)), strict=True)
        told = one_of([f"{name} ({count:,})" for name, count in counts], 12).replace("'", "")
        columns = f"texts of {table.column!r}, classes of {options.target!r}"
        self.about = f"{Path(self.name).name}: {columns}: {told}"

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Task:
        """Not implemented: `classification_task` makes this task."""
        raise NotImplementedError(entry.name)

    def _samples(self, table: TextTable) -> tuple[Samples, Array]:
        (length,) = self.input_shape
        rows, kept = [], []
        after = self._tokenizer.around[1]
        how = self._options.too_long or "refuse"
        for k, text in enumerate(progress(table.texts, "encoding texts")):
            ids = self._tokenizer.encode(text)
            if len(ids) > length and how == "refuse":
                where = f"{table.file.where}, {table.file.place_of(k)}"
                advice = "pass --too-long cut, or a larger --length"
                expected = f"a text of at most {length} tokens"
                raise refusal(where, expected, len(ids), advice, DataError)
            if len(ids) <= length or how == "cut":
                # The model's end tokens are not cut.
                cut = np.concatenate([ids[: length - len(after)], after])
                rows.append(cut if len(ids) > length else ids)
                kept.append(k)
        if not rows:
            expected = f"a text of at most {length} tokens"
            advice = "pass --too-long cut, or a larger --length"
            raise refusal(table.file.where, expected, "longer ones alone", advice, DataError)
        tokens: Any = TokenRows(rows)

        def made(some: Any) -> dict[str, Array]:
            return padded(some, length, self._padding)

        x = Samples(tokens, made, ())
        return x, self._labels(table)[kept]

    def _labels(self, table: TextTable) -> Array:
        if table.labels is None:
            return np.zeros(len(table.texts), np.int32)
        ids = {name: k for k, name in enumerate(self.class_names)}
        labels = [each if each in ids else class_name(each, True) for each in table.labels]
        for row, label in enumerate(labels):
            if label not in ids:
                expected = f"a class of the model: {one_of(self.class_names, 12)}"
                raise table.refused(row, str(self._options.target), expected, label)
        return np.array([ids[label] for label in labels], np.int32)

    def _loader(self, *given: Any, **more: Any) -> ArrayLoader:
        loader = super()._loader(*given, **more)
        assert isinstance(loader, TextRowLoader)
        (loader.length,) = self.input_shape
        return loader

    def keep_back(self, share: float, seed: int) -> Any:
        """Return the rows to validate with."""
        return self.test_batches()

    def end(self, net: FeedForwardNet, figures: dict[str, Any]) -> None:
        """Write the tuned model to the run folder, with low-rank pairs added."""
        model = Path(str(self._options.out)) / MODEL
        pretrained.save(net, model, merged=True)
        if not (model / "tokenizer.json").is_file():
            self._tokenizer.save(model)

    def report(self, result: EpochResult) -> str:
        """Return the accuracy and the loss of the rows kept back, as text."""
        return f"validation accuracy {result.metric:.4f}  validation loss {result.loss:.4f}"
