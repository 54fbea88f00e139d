"""Fine-tuning of published models by preferences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from singanet import pretrained
from singanet.commands.runs.published import (
    PACKED,
    PublishedTexts,
    drawn_net,
    expect_causal,
    expect_complete,
    length_of,
    model_in,
    tokenizer_for,
    window_of,
    write_samples,
)
from singanet.commands.runs.recipe import own_recipe
from singanet.commands.runs.run_options import RunOptions, refusal
from singanet.commands.runs.tasks import EpochResult, Task
from singanet.data import Pairs, Tokenizer
from singanet.data.tokens import TokenLoader
from singanet.data.tokens.pairs import METHODS
from singanet.errors import ArgumentError
from singanet.loss import DPO, KTO, ORPO, RewardRanking
from singanet.loss.preference import PreferenceLoss
from singanet.metric import Reward
from singanet.net import FeedForwardNet
from singanet.pretrained import PretrainedNet
from singanet.pretrained.adapter import expect_savable
from singanet.report import read_run
from singanet.types import Array

REFERENCE = "reference.npz"
"""The reference's log-probabilities, within the run folder."""
_OF_VALIDATION = "reference-validation.npz"
_BLOCKS_OF_KTO = 10


def is_by_preferences(options: RunOptions | Mapping[str, Any]) -> bool:
    """Return whether a run of these options is trained by preferences."""
    method = options.method if isinstance(options, RunOptions) else options.get("method")
    return method in METHODS


def preference_task(options: RunOptions) -> tuple[FeedForwardNet, Task]:
    """Return the net of the published model in ``options`` for pairs of answers, and its task.

    Errors: the errors of `published_task`; a family that does not separate the texts of a row.
    """
    place = model_in(str(options.from_))
    expect_complete(options)
    if not options.pack:
        raise refusal("--no-pack", "both answers of a pair in a row", "it", "remove it")
    try:
        drawn = drawn_net(place, PACKED)
    except ArgumentError:
        expected = f"for --method {options.method} a model that separates the texts of a row"
        received = drawn_net(place).config.get("architectures", ["another"])[0]
        advice = "tune a model such as a Llama, Mistral, Qwen or Phi-3"
        raise refusal(f"model {str(place)!r}", expected, received, advice) from None
    expect_causal(drawn, place)
    length = length_of(options.length, drawn)
    base = pretrained.load(place, inputs=PACKED, seed=options.seed)
    if options.rank is not None:
        base.adapt(options.rank)
        if options.method != "reward":
            # An early refusal, before the training.
            expect_savable(base)
    net = pretrained.preference_net(base, _loss_of(options), options.seed)
    return net, PublishedPairs(net, tokenizer_for(base, place), options, length)


def _loss_of(options: RunOptions) -> PreferenceLoss:
    if options.method == "reward":
        return RewardRanking()
    kinds = {"dpo": DPO, "orpo": ORPO, "kto": KTO}
    return kinds[str(options.method)](0.1 if options.beta is None else options.beta)


class PublishedPairs(PublishedTexts):
    """Pairs of answers, or judged answers, in the rows of `data.Pairs`."""

    def __init__(
        self, net: PretrainedNet, tokenizer: Tokenizer, options: RunOptions, length: int
    ) -> None:
        self.metrics = Reward.each(net.loss)
        if options.method == "reward":
            self.afterwards = "evaluate {}"
        self._net = net
        self._referred: list[tuple[str, Pairs]] = []
        super().__init__(net, tokenizer, options, PACKED, length)

    def _loader(self, path: str, batch_size: int, shuffle: bool, part: Any = None) -> TokenLoader:
        (length,) = self.input_shape
        options = self._options
        recipe = own_recipe(None, options.from_, options.method)
        size = options.batch_size or recipe.batch_size
        settings: dict[str, Any] = {"window": window_of(path, options, _BLOCKS_OF_KTO)}
        if part is not None:
            size = batch_size
            settings["rank"], settings["world_size"] = part
        loader = Pairs(
            path,
            self._tokenizer,
            size,
            length,
            method=str(options.method),
            too_long=options.too_long or "refuse",
            shuffle=shuffle,
            seed=options.seed,
            **settings,
        )
        if loader.needs_reference:
            self._refer(loader, path)
        return loader

    def _refer(self, loader: Pairs, path: str) -> None:
        """Read or compute the outputs of the reference, the net before the training."""
        name = REFERENCE if path == str(self._options.data) else _OF_VALIDATION
        known = dict(self._referred)
        if name in known:
            loader.refer_as(known[name])
            return
        file = Path(str(self._options.out)) / name
        loader.refer(self._net, file if file.is_file() else None)
        self._net.programs.clear()
        self._referred.append((name, loader))

    def note(self, folder: Path) -> None:
        """Write samples and the reference, which a resumed run does not make again."""
        super().note(folder)
        for name, loader in self._referred:
            loader.save_reference(folder / name)

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """Return the loss and the rewards of the pairs."""
        self._expect_tests()
        found = Task.evaluate(self, net)
        return replace(found, metric=found.logs.get("reward_accuracy"))

    def begin(self, net: FeedForwardNet) -> None:
        """Write a sample before the training."""
        self._samples = self._sample(net, "before")

    def end(self, net: FeedForwardNet, figures: dict[str, Any]) -> None:
        """Write the tuned model, its low-rank pairs and samples to the run folder."""
        out = Path(str(self._options.out))
        samples = self._samples or read_run(out).samples
        if samples := {**samples, **self._sample(net, "after")}:
            write_samples(out, samples)
        figures["tokens_per_second"] = figures["samples_per_second"] * self._test.longest_row
        self._save(net)

    def _sample(self, net: FeedForwardNet, when: str) -> dict[str, str]:
        if self._options.method == "reward":
            return {}
        prompt, ids = self._prompt()
        return {"prompt": prompt, when: self._written(net, ids)}

    def test_batches(self) -> TokenLoader:
        """Return this process's part of the validation data."""
        loader = self.keep_back(self._options.kept_back, self._options.seed)
        loader.set_epoch(0)
        return loader

    def _rows_tested(self) -> int:
        return self._test.batch_size // self.part.world_size

    def report(self, result: EpochResult) -> str:
        """Return the loss, and the margin of the rewards, as text."""
        logs = result.logs
        right = logs.get("reward_accuracy")
        text = f"validation loss {result.loss:.4f}  reward margin {logs['reward_margin']:.4f}"
        return text if right is None else f"{text}  accuracy {right:.4f}"

    def _asked(self, x: Any, y: Array) -> int:
        return int(np.flatnonzero(x["parts"][0, 0])[0]) + 1

    @property
    def _chats(self) -> bool:
        files = self._test.files
        first = next(each for block in range(len(files.blocks)) for each in files.records(block))
        return isinstance(first.entry.get("prompt", first.entry.get("chosen")), list)
