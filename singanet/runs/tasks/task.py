"""Tasks of a run and their data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from singanet.data import (
    ArrayLoader,
    Batch,
    Dataset,
    TabularDataset,
    TextDataset,
    TextLoader,
    clicks,
    load,
    load_test,
    movielens,
    plays,
    tabular,
)
from singanet.errors import (
    ArgumentError,
    DataError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.types import Array, Shape


def split(count: int, share: float, seed: int) -> tuple[Array, Array]:
    """The numbers of the samples to train on and of the ``share`` kept back, both in order.

    They are drawn by ``seed``, since the samples of a file may be sorted by class. Errors: a
    share outside of (0, 1); too few samples to have both.
    """
    kept_back = held(count, share)
    # The third number keeps this draw apart from those that shuffle and shift.
    order = np.random.default_rng([seed, 0, 2]).permutation(count)
    return np.sort(order[kept_back:]), np.sort(order[:kept_back])


def held(count: int, share: float) -> int:
    """How many of ``count`` are kept back. Errors: those of `split`."""
    if not 0.0 < share < 1.0:
        raise ArgumentError(
            "--validation-split",
            expected="a share from 0 to below 1",
            received=str(share),
            advice="0.1 keeps a tenth of the training data back, 0 none",
        )
    found = max(1, round(count * share))
    if found >= count:
        raise DataError(
            "--validation-split",
            expected="samples on both sides of the split",
            received=f"{count - found} to train on and {found} to validate with, of {count}",
            advice="choose a smaller share, or 0",
        )
    return found


EVALUATION_BATCH = 256

_TASKS = {
    "classification": "images.Classification",
    "reconstruction": "task.Reconstruction",
    "segmentation": "images.Segmentation",
    "tabular": "task.Tabular",
    "text": "task.Text",
}


class BatchShare(NamedTuple):
    """The ``rank`` of one of ``world_size`` processes that share each batch."""

    rank: int
    world_size: int


class SizedLoader(Protocol):
    """A loader that knows how many batches an epoch has."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of an epoch."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...


@dataclass(frozen=True)
class EpochResult:
    """Means over the samples of a pass; ``metric`` is None for a net without one.

    ``logs`` has all that was measured by name.
    """

    loss: float
    metric: float | None
    samples: int
    logs: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """Data for training and testing, and what a net must be like to learn from them.

    ``name`` is that of the data; ``input_shape`` and ``num_classes`` are those the net is built
    with, ``options`` go to `singanet.models.build` besides. Its batches are the ``part`` of this
    process, of the batches that all processes share.
    """

    part = BatchShare(0, 1)
    not_recorded: tuple[type, ...] = ()
    """Recorders of a run that would have nothing to say, or too much."""
    metrics: Sequence[str] | None = None
    """What is measured in the place of the net's own metric; the first is what `accuracy` takes."""
    name: str
    input_shape: Shape
    num_classes: int

    @classmethod
    @abstractmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Task:
        """The task on the data called ``data``, None for data that come with the package."""

    @classmethod
    def load_for_testing(cls, data: str | None, entry: ModelEntry) -> Task:
        """The task for tests alone: of a file, only what `test_batches` needs has to be there."""
        return cls.load(data, entry)

    @property
    def options(self) -> Mapping[str, Any]:
        """What else the data say about the net."""
        return {}

    @abstractmethod
    def keep_back(self, share: float, seed: int) -> Iterable[Batch]:
        """Take ``share`` of the training data out, to validate with; their batches.

        Errors: a share outside of (0, 1); too few data to have both.
        """

    @abstractmethod
    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> Iterable[Batch]:
        """The training data as ``recipe`` wants them, in an order that ``seed`` decides.

        ``drop_last`` leaves out what does not fill a last batch.
        """

    @abstractmethod
    def test_batches(self) -> Iterable[Batch]:
        """The data for testing, in their own order."""

    def steps(self, batches: Any) -> int:
        """How many ``batches`` an epoch of training has."""
        count: int = len(batches)
        return count

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """The results of ``net`` on the data for testing."""
        evaluation = net.evaluate(self.test_batches())
        loss, metric = evaluation
        return EpochResult(loss or 0.0, metric, 0, evaluation.logs)

    def begin(self, net: FeedForwardNet) -> None:  # noqa: B027 - most tasks look at nothing
        """What is looked at before the training."""

    def note(self, folder: Path) -> None:  # noqa: B027 - nor note it
        """Write what was looked at into the folder of the run, as its first epoch begins."""

    def end(  # noqa: B027 - nor keep anything
        self, net: FeedForwardNet, figures: dict[str, Any]
    ) -> None:
        """What is kept of the trained ``net``, and more ``figures`` of the run."""

    def accuracy(self, result: EpochResult) -> float | None:
        """The share of right answers in ``result``, None if there are no right answers."""
        return result.metric

    @abstractmethod
    def report(self, result: EpochResult) -> str:
        """The result of a test in words."""


class DatasetTask(Task):
    """A task on the samples of a data set."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = data.sample_shape
        self.num_classes = data.num_classes

    def taken_out(self, share: float, seed: int) -> tuple[Array, Array]:
        """``share`` of the training samples and labels, which stay behind no longer."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(x), share, seed)
        self.data = replace(self.data, x_train=x[rest], y_train=y[rest])
        return x[taken], y[taken]


def load_task(entry: ModelEntry, data: str | None, *, for_testing: bool = False) -> Task:
    """The task that ``entry`` learns, on ``data``. Errors: data of another kind, or none."""
    file, _, name = _TASKS[entry.task].partition(".")
    kind: type[Task] = getattr(import_module(f"singanet.runs.tasks.{file}"), name)
    return kind.load_for_testing(data, entry) if for_testing else kind.load(data, entry)


_EMBEDDED = {"plays": plays}
VALIDATION_ROWS = 16


class Text(Task):
    """Stretches of a text, as long as the model's usual input, each with the characters after it.

    What does not fill a stretch at the end of a row is left out, for testing as well.
    """

    def __init__(self, data: TextDataset, length: int) -> None:
        self.data = data
        self.name = data.name
        self.input_shape: tuple[int] = (length,)
        self.num_classes = data.vocabulary_size
        self._ids = data.train

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Text:
        """An embedded text, or the text of a file in UTF-8; the plays by default."""
        (length,) = entry.input_shape
        name = "plays" if data is None else data
        if name in _EMBEDDED:
            return cls(_EMBEDDED[name](), length)
        path = Path(name)
        if path.suffix == "" and path.name == name and not path.exists():
            raise UnknownNameError(
                f"data {name!r}",
                expected=f"{one_of(_EMBEDDED)}, or the path of a text file, for {entry.name}",
                received=f"{name!r}, which is neither",
                advice=did_you_mean(name, _EMBEDDED, "check the name"),
            )
        return cls(TextDataset.from_file(path), length)

    def keep_back(self, share: float, seed: int) -> TextLoader:
        """The end of what comes before the test, whatever ``seed``: neighbours would tell."""
        cut = len(self._ids) - held(len(self._ids), share)
        self._ids, taken = self._ids[:cut], self._ids[cut:]
        return self._in_order(taken)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> TextLoader:
        """The text in ``batch_size`` full rows, always in its own order.

        Errors: rows that processes cannot share evenly.
        """
        (length,) = self.input_shape
        processes = self.part.world_size
        rows, rest = divmod(recipe.batch_size, processes)
        if rest:
            raise ArgumentError(
                "--batch-size",
                expected=f"a multiple of {processes}, the processes that share the rows of a text",
                received=str(recipe.batch_size),
                advice=f"pass --batch-size {recipe.batch_size - rest + processes}",
            )
        return TextLoader(self._ids, rows, length, True, *self.part)

    def test_batches(self) -> TextLoader:
        """The end of the text, which no net is trained on."""
        return self._in_order(self.data.validation)

    def _in_order(self, ids: Array) -> TextLoader:
        (length,) = self.input_shape
        rows = min(VALIDATION_ROWS, (len(ids) - 1) // length)
        return TextLoader(ids, max(1, rows // self.part.world_size), length, True, *self.part)

    def report(self, result: EpochResult) -> str:
        """Nats a character, and the share of characters foretold."""
        return (
            f"validation loss {result.loss:.4f} nats per character  "
            f"test accuracy {result.metric:.4f}"
        )


TABLE_BATCH = 1024


def _clicks(rest: str) -> TabularDataset:
    scale, _, rows = rest.partition(":")
    try:
        return clicks(int(rows or 100_000), float(scale or 1.0))
    except ValueError as error:
        if isinstance(error, SingaNetError):
            raise
        raise ArgumentError(
            f"data {'clicks:' + rest!r}",
            expected="clicks:SCALE or clicks:SCALE:ROWS",
            received=repr(rest),
            advice="write clicks:0.01 for a hundredth of Criteo's field sizes",
        ) from None


_TABLES: dict[str, Callable[[str], TabularDataset]] = {
    "census": lambda rest: tabular(),
    "movielens": lambda rest: movielens(rest or None),
    "clicks": _clicks,
}


class Tabular(Task):
    """A label a row; the categories of all columns are counted on, one column after the other."""

    metrics = ("accuracy", "auc")

    def __init__(self, data: TabularDataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = (len(data.cardinalities), len(data.numeric))
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Tabular:
        """The census, which comes with the package, or another of `_TABLES`.

        "movielens:FOLDER" says where its files are, "clicks:SCALE" and "clicks:SCALE:ROWS" how
        large the made data are.
        """
        name, _, rest = (data or "census").partition(":")
        if name not in _TABLES or (rest and name == "census"):
            raise UnknownNameError(
                f"data {data!r}",
                expected=f"{one_of(_TABLES)}: tables that {entry.name} can be trained on from here",
                received=f"{data!r}",
                advice=did_you_mean(
                    name, _TABLES, "for another table call net.step with its batches"
                ),
            )
        return cls(_TABLES[name](rest))

    @property
    def options(self) -> Mapping[str, Any]:
        """How many categories there are in all columns."""
        return {"vocabulary_size": sum(self.data.cardinalities)}

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Rows drawn by ``seed``."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(y), share, seed)
        chosen = {name: part[taken] for name, part in x.items()}
        left = {name: part[rest] for name, part in x.items()}
        self.data = replace(self.data, x_train=left, y_train=y[rest])
        return ArrayLoader(
            self._rows(chosen), y[taken], TABLE_BATCH, False, 0, False, *self.part, True
        )

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader:
        """Shuffled anew in every epoch."""
        rows = self._rows(self.data.x_train)
        return ArrayLoader(
            rows, self.data.y_train, recipe.batch_size, shuffle, seed, drop_last, *self.part, True
        )

    def test_batches(self) -> ArrayLoader:
        """Every test row once."""
        rows = self._rows(self.data.x_test)
        return ArrayLoader(rows, self.data.y_test, TABLE_BATCH, False, 0, False, *self.part, True)

    def _rows(self, x: dict[str, Array]) -> dict[str, Array]:
        return {**x, "categorical": self.data.shifted(x["categorical"])}

    def report(self, result: EpochResult) -> str:
        """Accuracy, area under the ROC curve and loss."""
        auc = f"  test AUC {result.logs['auc']:.4f}" if "auc" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{auc}  test loss {result.loss:.4f}"


class Reconstruction(DatasetTask):
    """Each sample is its own target; the digits where no data are named."""

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Reconstruction:
        """An embedded data set, or the one of a file."""
        return cls(load("digits" if data is None else data))

    @classmethod
    def load_for_testing(cls, data: str | None, entry: ModelEntry) -> Reconstruction:
        """The same, or of a file the samples for testing alone."""
        return cls(load_test("digits" if data is None else data))

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``."""
        x, _ = self.taken_out(share, seed)
        return ArrayLoader(x, x, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader:
        """Shuffled anew in every epoch."""
        x = self.data.x_train
        return ArrayLoader(x, x, recipe.batch_size, shuffle, seed, drop_last, *self.part, True)

    def test_batches(self) -> ArrayLoader:
        """Every test sample once."""
        x = self.data.x_test
        return ArrayLoader(x, x, EVALUATION_BATCH, False, 0, False, *self.part, True)

    def report(self, result: EpochResult) -> str:
        """The root of the mean squared difference; the loss is half of its square."""
        return f"test reconstruction error {math.sqrt(2.0 * result.loss):.4f} (root mean square)"
