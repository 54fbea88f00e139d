"""A text whose next character is to be foretold."""

from __future__ import annotations

from pathlib import Path

from singanet.data import TextDataset, TextLoader, plays
from singanet.errors import ArgumentError, UnknownNameError, did_you_mean, one_of
from singanet.models import ModelEntry, Recipe
from singanet.runs.tasks.split import held
from singanet.runs.tasks.task import EpochResult, Task
from singanet.types import Array

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
