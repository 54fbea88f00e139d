"""The base class of tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from singanet.data import Batch, Dataset
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.runs.tasks.split import split
from singanet.types import Array, Shape

EVALUATION_BATCH = 256

_TASKS = {
    "classification": "Classification",
    "reconstruction": "Reconstruction",
    "segmentation": "Segmentation",
    "tabular": "Tabular",
    "text": "Text",
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
    module = import_module(f"singanet.runs.tasks.{entry.task}")
    kind: type[Task] = getattr(module, _TASKS[entry.task])
    return kind.load_for_testing(data, entry) if for_testing else kind.load(data, entry)
