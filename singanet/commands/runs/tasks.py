"""Tasks of a run and their data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from singanet.commands.runs.run_options import SHARE, refusal
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
    DataError,
    SingaNetError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from typing_extensions import Self


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
    """The ``rank`` of one of ``world_size`` processes that share each batch."""

    rank: int
    world_size: int


@dataclass(frozen=True)
class EpochResult:
    """Means over the samples of a pass; ``metric`` is None for a net without one.

    ``logs`` has all that was measured by name.
    """

    loss: float
    metric: float | None
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
    """What is measured in the place of the net's own metric; the first is the result's."""
    name: str
    input_shape: Shape
    num_classes: int

    @classmethod
    @abstractmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Task:
        """The task on the data called ``data``, None for data that come with the package.

        With ``for_testing`` a file need only have what `test_batches` needs.
        """

    @property
    def options(self) -> Mapping[str, Any]:
        """What else the data say about the net."""
        return {}

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments of `singanet.models.build` beside name and seed."""
        own = {"input_shape": self.input_shape, "num_classes": self.num_classes}
        return {**own, **self.options}

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

    def rows_here(self, recipe: Recipe) -> int:
        """The rows of each batch for this process. Errors: they cannot be shared evenly."""
        size, processes = recipe.batch_size, self.part.world_size
        if rest := size % processes:
            expected = f"a multiple of {processes}, the processes that share the rows"
            advice = f"pass --batch-size {size - rest + processes}"
            raise refusal("--batch-size", expected, size, advice)
        return size // processes

    def steps(self, batches: Any) -> int:
        """How many ``batches`` an epoch of training has."""
        count: int = len(batches)
        return count

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """The results of ``net`` on the data for testing."""
        evaluation = net.evaluate(self.test_batches())
        loss, metric = evaluation
        return EpochResult(loss or 0.0, metric, evaluation.logs)

    def begin(self, net: FeedForwardNet) -> None:  # noqa: B027 - most tasks look at nothing
        """What is looked at before the training."""

    def note(self, folder: Path) -> None:  # noqa: B027 - nor note it
        """Write what was looked at into the folder of the run, as its first epoch begins."""

    def end(  # noqa: B027 - nor keep anything
        self, net: FeedForwardNet, figures: dict[str, Any]
    ) -> None:
        """What is kept of the trained ``net``, and more ``figures`` of the run."""

    @abstractmethod
    def report(self, result: EpochResult) -> str:
        """The result of a test in words."""


class SampleTask(Task):
    """A task on samples ``x`` with labels ``y``, in any order."""

    evaluation_batch = EVALUATION_BATCH
    data: Any

    def keep_back(self, share: float, seed: int) -> ArrayLoader:
        """Samples drawn by ``seed``, whatever their classes."""
        x, y = self.data.x_train, self.data.y_train
        rest, taken = split(len(y), share, seed)
        self.data = replace(self.data, x_train=_taken(x, rest), y_train=y[rest])
        return self._loader(_taken(x, taken), y[taken])

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader | AugmentedImages:
        """Shuffled anew in every epoch."""
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
        return ArrayLoader(*self._given(x, y), size, shuffle, seed, drop_last, *self.part, True)

    def _given(self, x: Any, y: Array) -> tuple[Any, Array]:
        """What the net is given of samples and labels."""
        return x, y


def _taken(x: Any, rows: Array) -> Any:
    return {name: part[rows] for name, part in x.items()} if isinstance(x, dict) else x[rows]


class DatasetTask(SampleTask):
    """A task on the samples of a data set, ``usual`` where none is named."""

    usual: ClassVar[str] = "digits"
    labels: ClassVar[int] = 0
    """How many axes the labels have; 0 where they are not looked at."""

    def __init__(self, data: Dataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = data.sample_shape
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Self:
        """An embedded data set, or the one of a file. Errors: samples or labels of another kind."""
        name = cls.usual if data is None else data
        found = load_test(name) if for_testing else load(name)
        if cls.labels and found.y_test.ndim != cls.labels:
            kinds = {1: "a label a sample", 3: "a label a pixel"}
            expected = f"{kinds[cls.labels]}, which {entry.name} learns"
            received = f"labels of shape {found.y_test.shape}"
            advice = f"see singanet models for other nets, or take {cls.usual!r}"
            raise refusal(f"data {found.name!r}", expected, received, advice, DataError)
        return cls(found)


class AugmentedImages:
    """The batches of ``loader``, images (N, C, H, W), each time drawn anew.

    Half of the images are shifted by up to an eighth of their size, zeros coming in (He et al.,
    2016, pad and crop by as much); with ``flip`` half are mirrored left to right. The draws
    depend on ``seed`` and the epoch alone: an image is moved as it is by any number of processes
    that split the batches of ``loader``.
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
        # The third number keeps these draws apart from those that shuffle.
        rng = np.random.default_rng([self.seed, self.loader.epoch, 1])
        # Each process draws for the whole batch, of which it has every so many an image.
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
        """The loader's position, from which the draws follow."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position. Errors: those of the loader."""
        self.loader.load_state_dict(state)

    def _draws(self, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Shifts (n, 2) and which images are mirrored (n,), for the next ``n`` images."""
        height, width = self._size
        reach = np.array([height // 8, width // 8])
        offsets = rng.integers(-reach, reach + 1, (n, 2))
        offsets[rng.random(n) < 0.5] = 0
        return offsets, rng.random(n) < 0.5 if self.flip else np.zeros(n, bool)


def shifted(x: Array, offsets: Array) -> Array:
    """Images (N, C, H, W) moved down and right by ``offsets`` (N, 2); zeros come in."""
    n, channels, height, width = x.shape
    dy, dx = np.abs(offsets).max(axis=0, initial=0)
    padded = np.zeros((n, channels, height + 2 * dy, width + 2 * dx), x.dtype)
    padded[:, :, dy : dy + height, dx : dx + width] = x
    rows = np.arange(height) + (dy - offsets[:, :1])
    columns = np.arange(width) + (dx - offsets[:, 1:])
    moved = padded[np.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return np.ascontiguousarray(moved.transpose(0, 3, 1, 2))


class Classification(DatasetTask):
    """One label a sample; the digits where no data are named."""

    labels = 1

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> ArrayLoader | AugmentedImages:
        """Shuffled anew in every epoch; images shifted a little where the recipe says so.

        Not where pixels have labels, which would have to move along. Colour images are mirrored as
        well: unlike signs in black and white they mean the same.
        """
        loader = super().train_batches(recipe, seed, shuffle, drop_last)
        flat = len(self.input_shape) != 3 or self.data.y_train.ndim > 1
        if not recipe.augment or flat or not isinstance(loader, ArrayLoader):
            return loader
        return AugmentedImages(loader, seed, flip=self.input_shape[0] == 3)

    def report(self, result: EpochResult) -> str:
        return f"test accuracy {result.metric:.4f}  test loss {result.loss:.4f}"


class Segmentation(Classification):
    """One label a pixel; the scenes where no data are named."""

    metrics = ("accuracy", "iou")
    usual, labels = "scenes", 3

    def report(self, result: EpochResult) -> str:
        """The share of pixels that are right, the mean intersection over union, and the loss."""
        iou = f"  test IoU {result.logs['iou']:.4f}" if "iou" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{iou}  test loss {result.loss:.4f}"


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
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Text:
        """An embedded text, or the text of a file in UTF-8; the plays by default."""
        (length,) = entry.input_shape
        name = "plays" if data is None else data
        if name in _EMBEDDED:
            return cls(_EMBEDDED[name](), length)
        path = Path(name)
        if path.suffix == "" and path.name == name and not path.exists():
            expected = f"{one_of(_EMBEDDED)}, or the path of a text file, for {entry.name}"
            advice = did_you_mean(name, _EMBEDDED, "check the name")
            received = f"{name!r}, which is neither"
            raise refusal(f"data {name!r}", expected, received, advice, UnknownNameError)
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
        rows = self.rows_here(recipe)
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


class Tabular(SampleTask):
    """A label a row; the categories of all columns are counted on, one column after the other."""

    metrics, evaluation_batch = ("accuracy", "auc"), TABLE_BATCH

    def __init__(self, data: TabularDataset) -> None:
        self.data = data
        self.name = data.name
        self.input_shape = (len(data.cardinalities), len(data.numeric))
        self.num_classes = data.num_classes

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Tabular:
        """The census, which comes with the package, or another of `_TABLES`.

        "movielens:FOLDER" says where its files are, "clicks:SCALE" and "clicks:SCALE:ROWS" how
        large the made data are.
        """
        name, _, rest = (data or "census").partition(":")
        if name not in _TABLES or (rest and name == "census"):
            expected = f"{one_of(_TABLES)}: tables that {entry.name} can be trained on from here"
            advice = did_you_mean(name, _TABLES, "for another table call net.step with its batches")
            raise refusal(f"data {data!r}", expected, repr(data), advice, UnknownNameError)
        return cls(_TABLES[name](rest))

    @property
    def options(self) -> Mapping[str, Any]:
        """How many categories there are in all columns."""
        return {"vocabulary_size": sum(self.data.cardinalities)}

    def _given(self, x: Any, y: Array) -> tuple[Any, Array]:
        return {**x, "categorical": self.data.shifted(x["categorical"])}, y

    def report(self, result: EpochResult) -> str:
        """Accuracy, area under the ROC curve and loss."""
        auc = f"  test AUC {result.logs['auc']:.4f}" if "auc" in result.logs else ""
        return f"test accuracy {result.metric:.4f}{auc}  test loss {result.loss:.4f}"


class Reconstruction(DatasetTask):
    """Each sample is its own target; the digits where no data are named."""

    def _given(self, x: Any, y: Array) -> tuple[Any, Array]:
        return x, x

    def report(self, result: EpochResult) -> str:
        """The root of the mean squared difference; the loss is half of its square."""
        return f"test reconstruction error {math.sqrt(2.0 * result.loss):.4f} (root mean square)"


_TASKS: dict[str, type[Task]] = {
    "classification": Classification,
    "reconstruction": Reconstruction,
    "segmentation": Segmentation,
    "tabular": Tabular,
    "text": Text,
}


def load_task(entry: ModelEntry, data: str | None, *, for_testing: bool = False) -> Task:
    """The task that ``entry`` learns, on ``data``. Errors: data of another kind, or none."""
    return _TASKS[entry.task].load(data, entry, for_testing)
