"""Language models trained on the plays for the same seconds, taking turns on one machine.

Each net has its own recipe: batch size, stretch and highest rate of the table, Adam, a rise over
the first twentieth of its time and half a cosine over the rest. "char_rnn of 8" has the batches of
transformer_lm instead, which are better for so short a time. Turns are of two seconds; only a
net's own steps count. The validation loss is measured in between, on all of the validation text
in stretches of the net's own length, each read from its start. Where other work takes most of the
machine, CPU time is fairer than the clock: a step that waits is no slower net.

    python benchmarks/language_models.py [SECONDS] [NAME ...]
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

from report import introduction, publish, table

from singanet.data import TextLoader, plays
from singanet.models import build, find
from singanet.optimizer import Adam

NAMES = ("char_rnn", "char_rnn of 8", "transformer_lm")
OTHER_RECIPES = {"char_rnn of 8": replace(find("char_rnn").recipe, batch_size=8, lr=0.003)}
SECONDS = 100.0
TURN = 2.0
LOOKS = (0.25, 0.5, 0.75, 1.0)
TEXT = plays()


class Training:
    """One net on its way through its seconds."""

    def __init__(self, name: str, seconds: float) -> None:
        entry = find(name.partition(" ")[0])
        self.name, self.seconds = name, seconds
        self.recipe = OTHER_RECIPES.get(name, entry.recipe)
        self.length = entry.input_shape[0]
        self.net = build(entry.name, entry.input_shape, TEXT.vocabulary_size, seed=0)
        self.adam = Adam(lr=0.0)
        self.batches = self._endless()
        self.spent, self.steps = 0.0, 0
        self.losses: list[float] = []
        for _ in range(3):  # recorded before the clock runs
            self.net.step(*next(self.batches), self.adam)

    def _endless(self) -> Iterator[tuple[object, object]]:
        while True:
            yield from TextLoader(TEXT.train, self.recipe.batch_size, self.length, True)

    def turn(self) -> None:
        """So many seconds of CPU, and a look at the validation text when one is due."""
        end = min(self.spent + TURN, self.seconds)
        while self.spent < end:
            part = self.spent / self.seconds
            rise = min(1.0, (part + 1e-3) / 0.05)
            fall = 0.5 * (1 + math.cos(math.pi * max(0.0, part - 0.05) / 0.95))
            self.adam.lr = self.recipe.lr * rise * fall
            start = time.process_time()
            self.net.step(*next(self.batches), self.adam)
            self.spent += time.process_time() - start
            self.steps += 1
        if len(self.losses) < len(LOOKS) and self.spent >= LOOKS[len(self.losses)] * self.seconds:
            self.losses.append(self.validation_loss())

    def validation_loss(self) -> float:
        """Nats per character of the validation text."""
        rows = TextLoader(TEXT.validation, 8, self.length, True)
        loss = self.net.evaluate(rows)[0]
        assert loss is not None
        return loss

    def row(self) -> list[str]:
        """The line of the table."""
        characters = self.steps * self.recipe.batch_size * self.length
        return [
            self.name,
            f"{sum(value.size for value in self.net.param_values()):,}",
            f"{self.recipe.batch_size} x {self.length}",
            f"{self.recipe.lr:g}",
            f"{self.steps:,}",
            f"{characters / len(TEXT.train):.1f}",
            *(f"{loss:.4f}" for loss in self.losses),
        ]


def main() -> None:
    """Train all of them in turns; publish the table where all were trained."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    names = sys.argv[2:] or list(NAMES)
    trainings = [Training(name, seconds) for name in names]
    while any(training.spent < training.seconds for training in trainings):
        for training in trainings:
            training.turn()
    header = ["net", "parameters", "batch", "lr", "steps", "epochs"]
    body = table(
        [*header, *(f"loss at {part:.0%}" for part in LOOKS)],
        [training.row() for training in trainings],
    )
    notes = (
        f"{introduction(__doc__)}\n\n{seconds:g} s of CPU time each. Threads of BLAS: "
        f"{os.environ.get('OPENBLAS_NUM_THREADS', 'all')}; load of the machine at the end: "
        f"{os.getloadavg()[2]:.1f}, of which this is one."
    )
    if sys.argv[2:]:
        print(body)
    else:
        publish("language_models", "Language models after the same time", f"{notes}\n\n{body}")


if __name__ == "__main__":
    main()
