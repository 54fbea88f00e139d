"""Tasks of a run and their data."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from singanet.base.files import replacing
from singanet.commands.runs.own_data import RECORD, OwnData, OwnOptions, kind_of_own, read_own
from singanet.commands.runs.run_options import OPTIONS, SHARE, refusal
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
from singanet.data.row_files import Samples
from singanet.errors import (
    DataError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.metric import Metric
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


def split(count: int, share: float, seed: int) -> tuple[Array, Array]:
    """Return the numbers of the training samples and of the ``share`` kept back, both sorted.

    They are drawn by ``seed``, as the samples of a file may be sorted by class. Errors: a share
    outside (0, 1); too few samples for both.
    """
    kept_back = validation_count(count, share)
    # The third number gives other draws than for shuffles and shifts.
    order = np.random.default_rng([seed, 0, 2]).permutation(count)
    return np.sort(order[kept_back:]), np.sort(order[:kept_back])


def validation_count(count: int, share: float) -> int:
    """Return the number of samples kept back of ``count``. Errors: the errors of `split`."""
    where = "--validation-split"
    if not (share and SHARE.holds(share)):
        raise refusal(where, SHARE.expected, share, SHARE.advice)
    found = max(1, round(count * share))
    if found >= count:
        both = f"{count - found} to train on and {found} to validate with, of {count}"
        advice = "choose a smaller share, or 0"
        raise refusal(where, "samples on both sides of the split", both, advice, DataError)
    return found


EVALUATION_BATCH, TABLE_BATCH = 256, 1024


class BatchShare(NamedTuple):
    """The ``rank`` of a process among ``world_size`` that share each batch."""

    rank: int
    world_size: int


@dataclass(frozen=True)
class EpochResult:
    """Means over the samples of a pass; ``metric`` is None for a net without one.

    ``logs`` has all measures by name.
    """

    loss: float
    metric: float | None
    logs: Mapping[str, float] = field(default_factory=dict)


class Task(ABC):
    """Data for training and testing, and the requirements on a net for them.

    ``name`` is the name of the data. ``input_shape``, ``num_classes`` and ``options`` are arguments
    of `singanet.models.build`. The batches are the ``part`` of this process in the batches of all
    processes.
    """

    part = BatchShare(0, 1)
    not_recorded: tuple[type, ...] = ()
    """Recorders of a run that do not fit the task."""
    afterwards = "predict {} --out predictions.csv"
    """The command that uses the trained net, with {} for its run folder."""
    metrics: Sequence[str] | Mapping[str, Metric] | None = None
    """Metrics that replace the net's own; the first is the result's metric."""
    tests = True
    """Whether there are data for the test."""
    class_names: Sequence[str] = ()
    """The names of the classes; () for their numbers."""
    sample_names: Sequence[str] = ()
    """The names of the test samples; () for their numbers."""
    about = ""
    """A line about own data, for the start of a training."""
    record: Mapping[str, Any] | None = None
    """What the task has learnt of own data, which the run folder keeps."""
    name: str
    input_shape: Shape
    num_classes: int

    @classmethod
    @abstractmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Task:
        """Return the task on ``data``, None for data of the package.

        With ``for_testing`` a file needs only the data of `test_batches`.
        """

    @property
    def options(self) -> Mapping[str, Any]:
        """Additional arguments of `singanet.models.build` from the data."""
        return {}

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `singanet.models.build`, except name and seed."""
        own = {"input_shape": self.input_shape, "num_classes": self.num_classes}
        return {**own, **self.options}

    @abstractmethod
    def keep_back(self, share: float, seed: int) -> Iterable[Batch]:
        """Split ``share`` off the training data for validation, and return its batches.

        Errors: a share outside (0, 1); too few data for both.
        """

    @abstractmethod
    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> Iterable[Batch]:
        """Return the training data by ``recipe``, in an order by ``seed``.

        ``drop_last`` drops an incomplete last batch.
        """

    @abstractmethod
    def test_batches(self) -> Iterable[Batch]:
        """Return the test data in their own order."""

    def rows_here(self, recipe: Recipe) -> int:
        """Return the rows of each batch for this process. Errors: they cannot be shared evenly."""
        size, processes = recipe.batch_size, self.part.world_size
        if rest := size % processes:
            expected = f"a multiple of {processes}, the processes that share the rows"
            advice = f"pass --batch-size {size - rest + processes}"
            raise refusal("--batch-size", expected, size, advice)
        return size // processes

    def steps(self, batches: Any) -> int:
        """Return the number of ``batches`` in an epoch of training."""
        count: int = len(batches)
        return count

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """Return the results of ``net`` on the test data."""
        evaluation = net.evaluate(self.test_batches())
        loss, metric = evaluation
        return EpochResult(loss or 0.0, metric, evaluation.logs)

    def begin(self, net: FeedForwardNet) -> None:  # noqa: B027 - most tasks do nothing
        """Prepare before the training."""

    def note(self, folder: Path) -> None:
        """Write notes to the folder of the run, at the start of its first epoch."""
        if self.record is not None:
            with replacing(folder / RECORD) as temporary:
                temporary.write_text(json.dumps(self.record), encoding="utf-8")

    def end(  # noqa: B027 - most tasks do nothing
        self, net: FeedForwardNet, figures: dict[str, Any]
    ) -> None:
        """Save results of the trained ``net``, and add ``figures`` of the run."""

    @abstractmethod
    def report(self, result: EpochResult) -> str:
        """Return the result of a test as text."""


class SampleTask(Task):
    """A task on samples ``x`` with labels ``y``, in any order."""

    evaluation_batch = EVALUATION_BATCH
    data: Any
    _kind_of_loader: type[ArrayLoader] = ArrayLoader

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Return samples drawn by ``seed``, independent of their classes."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(y), share, seed)
        self.data = replace(self.data, x_train=_selected(x, rest), y_train=y[rest])
        return self._loader(_selected(x, taken), y[taken])

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader | AugmentedImages:
        """Return the batches, shuffled in every epoch."""
        x, y = self.data.x_train, self.data.y_train
        return self._loader(x, y, recipe.batch_size, shuffle, seed, drop_last)

    def test_batches(self) -> ArrayLoader:
        return self._loader(self.data.x_test, self.data.y_test)

    def _loader(
        self,
        x: Any,
        y: Array,
        batch_size: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
    ) -> ArrayLoader:
        size = batch_size or self.evaluation_batch
        return self._kind_of_loader(
            *self._inputs_and_targets(x, y), size, shuffle, seed, drop_last, *self.part, True
        )

    def _inputs_and_targets(self, x: Any, y: Array) -> tuple[Any, Array]:
        """Return the inputs and targets of the net."""
        return x, y


def _selected(x: Any, rows: Array) -> Any:
    if isinstance(x, Samples):
        return x.subset(rows)
    return {name: part[rows] for name, part in x.items()} if isinstance(x, dict) else x[rows]


class DatasetTask(SampleTask):
    """A task on the samples of a data set, by default ``usual``."""

    usual: ClassVar[str] = "digits"
    labels: ClassVar[int] = 0
    """The number of axes of the labels; 0 if any is allowed."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = data.sample_shape
        self.num_classes = data.num_classes

    @classmethod
    def of_own(cls, own: OwnData, entry: ModelEntry, labelled: bool = True) -> Self:
        """Return the task on own data. Errors: `DataError` for labels of another kind."""
        if labelled:
            cls._expect_labels(own.dataset, entry)
        return cls(own.dataset)

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Self:
        """Return the task on an embedded data set or a file.

        Errors: `DataError` for samples or labels of another kind.
        """
        name = cls.usual if data is None else data
        found = load_test(name) if for_testing else load(name)
        cls._expect_labels(found, entry)
        return cls(found)

    @classmethod
    def _expect_labels(cls, found: Dataset, entry: ModelEntry) -> None:
        if cls.labels and found.y_test.ndim != cls.labels:
            kinds = {1: "a label per sample", 3: "a label per pixel"}
            expected = f"{kinds[cls.labels]}, for {entry.name}"
            received = f"labels of shape {found.y_test.shape}"
            advice = f"run singanet models for other nets, or use {cls.usual!r}"
            raise refusal(f"data {found.name!r}", expected, received, advice, DataError)


class AugmentedImages:
    """The batches of ``loader``, images (N, C, H, W), augmented at random.

    Half of the images are shifted by up to an eighth of their size, filled with zeros (He et al.,
    2016, pad and crop by as much); with ``flip`` half are mirrored left to right. The draws depend
    only on ``seed`` and the epoch: an image is changed alike for any number of processes that share
    the batches of ``loader``.
    """

    def __init__(self, loader: ArrayLoader, seed: int, flip: bool = False) -> None:
        self.loader = loader
        self._size = loader.x.shape[2:]  # type: ignore[union-attr]
        self.seed = seed
        self.flip = flip
        self.rank, self.world_size = loader.rank, loader.world_size

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        # The third number gives other draws than for shuffles.
        rng = np.random.default_rng([self.seed, self.loader.epoch, 1])
        # Each process draws for the whole batch, of which it has every world_size-th image.
        loader, mine = self.loader, slice(self.rank, None, self.world_size)
        size = loader.batch_size
        for _ in range(loader.position):
            self._draws(size, rng)
        for k, (x, y) in enumerate(loader, loader.position):
            count = min(size, loader.samples - k * size)
            offsets, mirrored = (drawn[mine] for drawn in self._draws(count, rng))
            x = shifted(x, offsets)
            x[mirrored] = x[mirrored, :, :, ::-1]
            yield x, y

    def state_dict(self) -> dict[str, int]:
        """Return the loader's position, which determines the draws."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: as the loader."""
        self.loader.load_state_dict(state)

    def _draws(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return shifts (n, 2) and mirror flags (n,) for the next ``n`` images."""
        height, width = self._size
        reach = np.array([height // 8, width // 8])
        offsets = rng.integers(-reach, reach + 1, (n, 2))
        offsets[rng.random(n) < 0.5] = 0
        return offsets, rng.random(n) < 0.5 if self.flip else np.zeros(n, bool)


def shifted(x: Array, offsets: Array) -> Array:
    """Return images (N, C, H, W) moved down and right by ``offsets`` (N, 2), filled with 0."""
    n, channels, height, width = x.shape
    dy, dx = np.abs(offsets).max(axis=0, initial=0)
    padded = np.zeros((n, channels, height + 2 * dy, width + 2 * dx), x.dtype)
    padded[:, :, dy : dy + height, dx : dx + width] = x
    rows = np.arange(height) + (dy - offsets[:, :1])
    columns = np.arange(width) + (dx - offsets[:, 1:])
    moved = padded[np.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


class Classification(DatasetTask):
    """One label per sample; the digits by default."""

    labels = 1

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader | AugmentedImages:
        """Return the batches, shuffled in every epoch, and augmented if the recipe requests it.

        Images with labels of pixels are not augmented, as the labels would have to move along.
        Colour images are mirrored, too: unlike black and white signs they keep their meaning.
        """
        loader = super().train_batches(recipe, seed, shuffle, drop_last)
        flat = len(self.input_shape) != 3 or self.data.y_train.ndim > 1
        if not recipe.augment or flat or not isinstance(loader, ArrayLoader):
            return loader
        return AugmentedImages(loader, seed, flip=self.input_shape[0] == 3)

    def report(self, result: EpochResult) -> str:
        return f"test accuracy {result.metric:.4f}  test loss {result.loss:.4f}"


class Segmentation(Classification):
    """One label per pixel; the scenes by default."""

    afterwards = "predict {} --out predictions.npz"
    metrics = ("accuracy", "iou")
    usual, labels = "scenes", 3

    def report(self, result: EpochResult) -> str:
        """Return the share of correct pixels, the mean intersection over union, and the loss."""
        iou = f"  test IoU {result.logs['iou']:.4f}" if "iou" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{iou}  test loss {result.loss:.4f}"


_EMBEDDED = {"plays": plays}
VALIDATION_ROWS = 16


class Text(Task):
    """Segments of a text, of the model's input length, each with the next characters.

    Incomplete segments at the end of a row are dropped, for testing, too.
    """

    afterwards = "sample {}"

    def __init__(self, data: TextDataset, length: int) -> None:
        self.data = data
        self.name = data.name
        self.input_shape: tuple[int] = (length,)
        self.num_classes = data.vocabulary_size
        self._ids = data.train

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Text:
        """Return the task on an embedded text, or a UTF-8 file; the plays by default."""
        (length,) = entry.input_shape
        name = "plays" if data is None else data
        if name in _EMBEDDED:
            return cls(_EMBEDDED[name](), length)
        path = Path(name)
        if path.suffix == "" and path.name == name and not path.exists():
            expected = f"{one_of(_EMBEDDED)}, or the path of a text file, for {entry.name}"
            advice = did_you_mean(name, _EMBEDDED, "check the name")
            received = f"{name!r}"
            raise refusal(f"data {name!r}", expected, received, advice, UnknownNameError)
        return cls(TextDataset.from_file(path), length)

    def keep_back(self, share: float, seed: int) -> TextLoader:
        """Return the end of the training text; a random part would leak from its neighbours."""
        cut = len(self._ids) - validation_count(len(self._ids), share)
        self._ids, taken = self._ids[:cut], self._ids[cut:]
        return self._in_order(taken)

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> TextLoader:
        """Return the text in ``batch_size`` full rows, always in its own order.

        Errors: rows that processes cannot share evenly.
        """
        (length,) = self.input_shape
        rows = self.rows_here(recipe)
        return TextLoader(self._ids, rows, length, True, *self.part)

    def test_batches(self) -> TextLoader:
        """Return the end of the text, which is never trained on."""
        return self._in_order(self.data.validation)

    def _in_order(self, ids: Array) -> TextLoader:
        (length,) = self.input_shape
        rows = min(VALIDATION_ROWS, (len(ids) - 1) // length)
        return TextLoader(ids, max(1, rows // self.part.world_size), length, True, *self.part)

    def report(self, result: EpochResult) -> str:
        """Return nats per character, and the share of correctly predicted characters."""
        return (
            f"validation loss {result.loss:.4f} nats per character  "
            f"test accuracy {result.metric:.4f}"
        )


def _clicks(rest: str) -> TabularDataset:
    scale, _, rows = rest.partition(":")
    try:
        return clicks(int(rows or 100_000), float(scale or 1.0))
    except ValueError as error:
        if isinstance(error, SingaNetError):
            raise
        expected = "clicks:SCALE or clicks:SCALE:ROWS"
        advice = "write clicks:0.01 for a hundredth of Criteo's field sizes"
        raise refusal(f"data {'clicks:' + rest!r}", expected, repr(rest), advice) from None


_TABLES: dict[str, Callable[[str], TabularDataset]] = {
    "census": lambda rest: tabular(),
    "movielens": lambda rest: movielens(rest or None),
    "clicks": _clicks,
}
DATA_SETS = ("digits", "scenes", *_EMBEDDED, *_TABLES)
"""The names that ``--data`` takes."""


class Tabular(SampleTask):
    """A label per row; the categories of all columns are numbered consecutively."""

    metrics: Sequence[str] = ("accuracy", "auc")
    evaluation_batch = TABLE_BATCH

    def __init__(self, data: TabularDataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = (len(data.cardinalities), len(data.numeric))
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Tabular:
        """Return the task on the census, which the package includes, or on another of `_TABLES`.

        "movielens:FOLDER" is the folder of its files; "clicks:SCALE" and "clicks:SCALE:ROWS" are
        the size of the generated data.
        """
        name, _, rest = (data or "census").partition(":")
        if name not in _TABLES or (rest and name == "census"):
            expected = f"{one_of(_TABLES)}: tables for {entry.name} on the command line"
            advice = did_you_mean(name, _TABLES, "for another table call net.step with its batches")
            raise refusal(f"data {data!r}", expected, repr(data), advice, UnknownNameError)
        return cls(_TABLES[name](rest))

    @property
    def options(self) -> Mapping[str, Any]:
        """The number of categories in all columns."""
        return {"vocabulary_size": sum(self.data.cardinalities)}

    def _inputs_and_targets(self, x: Any, y: Array) -> tuple[Any, Array]:
        return {**x, "categorical": self.data.shifted(x["categorical"])}, y

    def report(self, result: EpochResult) -> str:
        """Return accuracy, area under the ROC curve and loss as text."""
        auc = f"  test AUC {result.logs['auc']:.4f}" if "auc" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{auc}  test loss {result.loss:.4f}"


class OwnTable(Tabular):
    """A class per row of a table of the user."""

    def __init__(self, own: OwnData) -> None:
        self.data = own.dataset
        self.name = own.dataset.name
        self.input_shape = own.shape
        self.num_classes = own.dataset.num_classes
        self._vocabulary = own.vocabulary
        self.metrics = ("accuracy", "auc") if self.num_classes == 2 else ("accuracy",)

    @property
    def options(self) -> Mapping[str, Any]:
        """The number of categories in all columns."""
        return {"vocabulary_size": self._vocabulary}

    def _inputs_and_targets(self, x: Any, y: Array) -> tuple[Any, Array]:
        return x, y


class Reconstruction(DatasetTask):
    """Each sample is its own target; the digits by default."""

    afterwards = "predict {} --out predictions.npz"

    def _inputs_and_targets(self, x: Any, y: Array) -> tuple[Any, Array]:
        return x, x

    def report(self, result: EpochResult) -> str:
        """Return the root mean squared difference; the loss is half of its square."""
        return f"test reconstruction error {math.sqrt(2.0 * result.loss):.4f} (root mean square)"


_TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "reconstruction": Reconstruction,
    "segmentation": Segmentation,
    "tabular": Tabular,
    "text": Text,
}


_OF_OWN = ("target", "leave_out")
"""Options for own data alone."""


def load_task(
    entry: ModelEntry, data: str | None, *, for_testing: bool = False, own: OwnOptions | None = None
) -> Task:
    """Return the task of ``entry`` on ``data``; own data are read by the options ``own``.

    Errors: data of another kind, or none; a target for data that have labels.
    """
    own = OwnOptions() if own is None else own
    kind = _TASKS[entry.task]
    if entry.task == "text" or kind_of_own(data) is None:
        for name in _OF_OWN:
            if getattr(own, name) is not None:
                expected = "a table, or a pair of .npy files"
                flag, received = f"--{OPTIONS[name].flag}", f"data {data or 'of the net'!r}"
                raise refusal(flag, expected, received, "remove it, or pass --data FILE.csv")
        return kind.load(data, entry, for_testing)
    found = read_own(entry, str(data), own)
    task: Task
    if issubclass(kind, DatasetTask):
        task = kind.of_own(found, entry, own.labelled)
    else:
        task = OwnTable(found)
    task.class_names, task.sample_names = found.classes, found.names
    task.record, task.about = found.record, found.about
    return task
