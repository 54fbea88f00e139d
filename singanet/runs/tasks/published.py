"""Fine-tuning of published models."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from singanet import pretrained
from singanet.base.files import replacing
from singanet.data import Chat, TextDataset, TextFolder, Tokenizer
from singanet.data.tokens import TokenLoader
from singanet.data.tokens.text_files import TextFiles
from singanet.decoding import Decoder, Drafter, Sampling, Writer
from singanet.errors import ArgumentError, DataError, one_of
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.pretrained import PretrainedNet
from singanet.pretrained.adapter import expect_savable
from singanet.report import ConfusionLog, read_run
from singanet.report.reading import SAMPLES
from singanet.runs.run_options import (
    MODEL,
    RunOptions,
    drawn_net,
    ends_of,
    expect_causal,
    model_in,
    option,
    tokenizer_for,
)
from singanet.runs.tasks.task import EpochResult, Task
from singanet.training.callbacks import LayerStatistics
from singanet.types import Array


def sampled(
    net: FeedForwardNet,
    data: TextDataset,
    prompt: str,
    length: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """``length`` characters after ``prompt``, each drawn from what ``net`` expects next.

    ``net`` maps ids (N, T) to probabilities (N, T, characters) of what follows each, as the
    language models of `singanet.models` do; it reads each character once, as `written` says.
    Errors, at once: a number out of range; characters that the text does not have; another net.
    """
    if not prompt:
        raise _wrong("--prompt", "at least one character", "none", "leave it out")
    drawn = _drawn(net, data.encode(prompt), length, sampling or Sampling(), seed)
    return (data.decode(np.array([new])) for new in drawn)


def streamed(
    net: FeedForwardNet,
    tokenizer: Tokenizer,
    ids: Array,
    length: int,
    sampling: Sampling,
    seed: int = 0,
    ends: Collection[int] = (),
    stops: Sequence[str] = (),
    draft: Drafter | None = None,
) -> Iterator[str]:
    """What comes after ``ids``, as text that is whole: at most ``length`` tokens, up to an end.

    ``ends`` are the tokens with which a text ends; it ends before the first of the texts ``stops``,
    too, and what may begin one is told once it is seen not to. Past the most steps of ``net`` it
    reads the last half anew. A ``draft`` writes ahead, see `Drafter`. Errors, at once: a number out
    of range; more ``ids`` than the net has steps, or none.
    """
    most = getattr(net, "most_steps", None)
    if not len(ids) or (most is not None and len(ids) > most):
        expected = f"1 to {most} tokens" if most is not None else "at least one token"
        raise _wrong("the prompt", expected, str(len(ids)), "shorten it, or give it some words")
    if "" in stops:
        raise _wrong("--stop", "a text", "none", "leave it out")
    told = _texts(_drawn(net, ids, length, sampling, seed, draft), tokenizer, ends)
    return before_stops(told, stops) if stops else told


def before_stops(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """``texts`` up to the beginning of the one of ``stops`` that is complete first."""
    waiting, longest = "", max(map(len, stops))
    for text in texts:
        waiting += text
        found = [(p + len(stop), p) for stop in stops if (p := waiting.find(stop)) >= 0]
        if found:
            _, place = min(found)
            if place:
                yield waiting[:place]
            return
        # The end may be the beginning of one.
        most = min(len(waiting), longest - 1)
        begins = (k for k in range(most, 0, -1) if _begins(waiting[-k:], stops))
        kept = next(begins, 0)
        if ready := waiting[: len(waiting) - kept]:
            yield ready
        waiting = waiting[len(waiting) - kept :]
    if waiting:
        yield waiting


def _begins(text: str, stops: Sequence[str]) -> bool:
    return any(stop.startswith(text) for stop in stops)


def _texts(drawn: Iterator[int], tokenizer: Tokenizer, ends: Collection[int]) -> Iterator[str]:
    stream = tokenizer.stream()
    for new in drawn:
        if new in ends:
            break
        if text := stream.push(new):
            yield text
    if rest := stream.close():
        yield rest


def _drawn(
    net: FeedForwardNet,
    ids: Array,
    length: int,
    sampling: Sampling,
    seed: int,
    draft: Drafter | None = None,
) -> Iterator[int]:
    """So many ids after ``ids``; errors at once."""
    if length < 1:
        raise _wrong("--length", "a positive number", str(length), "500 is usual")
    if seed < 0:
        raise _wrong("--seed", "0 or more", str(seed), "pass another seed")
    spare = 0 if draft is None else draft.spare
    rng = np.random.default_rng(seed)
    writer = Writer(Decoder(net, spare=spare), [ids], sampling, rng, draft)
    return islice((int(new) for further in writer for new in further[0].ids), length)


def start_of(data: TextDataset) -> str:
    """What a text may begin after: a new line, or of a text without any its first character."""
    return "\n" if "\n" in data.characters else data.decode(data.train[:1])


def _wrong(what: str, expected: str, received: str, advice: str) -> ArgumentError:
    return ArgumentError(what, expected=expected, received=received, advice=advice)


USUAL_LENGTH, SAMPLE, USUAL_RANK = 512, 48, 8
"""Tokens of a row, and of a sample; of pairs."""
ADAPTER = "adapter"
"""The folder, within that of a run, of the pairs that were trained."""
_BLOCKS, _WINDOW = 32, 1 << 20
_OWN = ("validation", "length", "too_long", "prompt", "method", "rank")
_PACKED = ("input_ids", "segments")


def expect_no_texts(options: RunOptions) -> None:
    """Errors: `ArgumentError` for an option of published models where none is trained."""
    given = [name for name in _OWN if getattr(options, name) is not None]
    if given or not options.pack:
        raise ArgumentError(
            f"--{option(given[0]) if given else 'no-pack'}",
            expected="a published model to fine-tune",
            received=options.subject,
            advice="leave it out",
        )


def published_task(options: RunOptions) -> tuple[FeedForwardNet, Task]:
    """The net of the published model that ``options`` name, and its task.

    Errors: no causal model; a method that is unknown; rows longer than the model's; no data, or
    such as have no texts; no run folder.
    """
    place = model_in(str(options.from_))
    _expect_complete(options)
    inputs = _inputs(place, options.pack)
    drawn = drawn_net(place, inputs)
    expect_causal(drawn, place)
    length = _length(options.length, drawn)
    net = pretrained.load(place, inputs=inputs, seed=options.seed)
    if options.method == "lora":
        net.adapt(USUAL_RANK if options.rank is None else options.rank)
        # Better now than once it is trained.
        expect_savable(net)
    task = PublishedTexts(net, tokenizer_for(net, place), options, inputs, length)
    return net, task


def _expect_complete(options: RunOptions) -> None:
    needs = {
        "data": "a .txt or .jsonl file, or a folder of such",
        "out": "a run folder, for the tuned model",
    }
    for name, expected in needs.items():
        if getattr(options, name) is None:
            advice = f"add --{name}"
            raise ArgumentError(f"--{name}", expected=expected, received="none", advice=advice)
    if options.rank is not None and options.method != "lora":
        raise ArgumentError(
            "--rank",
            expected="--method lora, whose pairs have one",
            received=f"--method {options.method or 'full'}",
            advice="leave it out",
        )
    if not options.kept_back:
        raise ArgumentError(
            "--validation-split",
            expected="a share above 0, by which the tuned model is judged",
            received="0",
            advice="name a file with --validation instead",
        )


def _inputs(place: Path, pack: bool) -> Sequence[str]:
    """What rows of several texts are for nets that tell them apart, else of one text each."""
    if pack:
        try:
            drawn_net(place, _PACKED)
        except ArgumentError:
            return _PACKED[:1]
        return _PACKED
    return _PACKED[:1]


def _length(given: int | None, net: PretrainedNet) -> int:
    most = net.most_steps
    length = min(USUAL_LENGTH, most or USUAL_LENGTH) if given is None else given
    if length < 1 or (most is not None and length > most):
        raise ArgumentError(
            "--length",
            expected="1 or more" if most is None else f"1 to {most}, the steps of the model",
            received=str(length),
            advice="longer texts go on in another row",
        )
    return length


class PublishedTexts(Task):
    """Tokens and those that come next. The loss on what is kept back tells the perplexity."""

    # A matrix of all words would be larger than the model.
    not_recorded = (ConfusionLog, LayerStatistics)

    def __init__(
        self,
        net: PretrainedNet,
        tokenizer: Tokenizer,
        options: RunOptions,
        inputs: Sequence[str],
        length: int,
    ) -> None:
        self.name = str(options.data)
        self.input_shape, self.num_classes = (length,), int(net.config["vocab_size"])
        self._tokenizer, self._options, self._inputs = tokenizer, options, inputs
        self._ends = ends_of(net, tokenizer)
        self._before: EpochResult | None = None
        self._samples: dict[str, str] = {}
        self._test = self._loader(str(options.validation or options.data), 1, False)
        if options.validation is None:
            self._test = self._test.keep_back(options.kept_back)

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry) -> Task:
        """Not by a ready net's entry: see `published_task`."""
        raise NotImplementedError(entry.name)

    def _loader(self, path: str, batch_size: int, shuffle: bool, part: Any = None) -> TokenLoader:
        (length,) = self.input_shape
        told: dict[str, Any] = {"inputs": self._inputs, "shuffle": shuffle}
        if "segments" not in self._inputs:
            told["pad_to"] = sorted({max(1, length // 4), max(1, length // 2), length})
        if self._options.validation is None:
            # So many blocks that a share can be kept back, however small the file is.
            size = sum(TextFiles(path, _WINDOW).sizes.values())
            told["window"] = min(_WINDOW, max(1, size // _BLOCKS))
        told["seed"] = self._options.seed
        if part is not None:
            told["rank"], told["world_size"] = part
        if not is_chat(path):
            return TextFolder(path, self._tokenizer, batch_size, length, **told)
        how = self._options.too_long or "refuse"
        return Chat(path, self._tokenizer, batch_size, length, too_long=how, **told)

    def keep_back(self, share: float, seed: int) -> TokenLoader:
        """The last blocks of the data, or the file that is named."""
        return self._test

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> TokenLoader:
        """Rows in an order that ``seed`` decides; all batches are full."""
        rows, rest = divmod(recipe.batch_size, self.part.world_size)
        if rest:
            raise ArgumentError(
                "--batch-size",
                expected=f"a multiple of {self.part.world_size}, the processes that share it",
                received=str(recipe.batch_size),
                advice=f"pass {recipe.batch_size - rest + self.part.world_size}",
            )
        loader = self._loader(self.name, rows, shuffle, self.part)
        if self._options.validation is None:
            loader.keep_back(self._options.kept_back)
        return loader

    def steps(self, batches: Any) -> int:
        """The texts are read once to count them."""
        return int(batches.count_batches())

    def test_batches(self) -> TokenLoader:
        """What was kept back: it is all that the tuned model is judged by."""
        self._test.set_epoch(0)
        return self._test

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """The loss a token, whatever batch it is in."""
        total, tokens = 0.0, 0
        for x, y in self.test_batches():
            count = int(np.count_nonzero(y != -100))
            loss, _ = net.evaluate(x, y) if count else (0.0, None)
            total, tokens = total + (loss or 0.0) * count, tokens + count
        if not tokens:
            raise DataError(
                f"data {self.name!r}",
                expected="texts to validate with",
                received="none among those that are kept back",
                advice="name a file with --validation, or keep more back",
            )
        return EpochResult(total / tokens, None, tokens)

    def begin(self, net: FeedForwardNet) -> None:
        """The perplexity and a sample before."""
        self._before = self.evaluate(net)
        prompt, ids = self._prompt()
        self._samples = {"prompt": prompt, "before": self._written(net, ids)}
        self._samples["loss_before"] = repr(self._before.loss)

    def note(self, folder: Path) -> None:
        """Write the sample, which a run that goes on does not make again."""
        if self._samples:
            _write_samples(folder, self._samples)

    def end(self, net: FeedForwardNet, figures: dict[str, Any]) -> None:
        """Write the tuned model and the samples into the run folder; the perplexity is a figure."""
        out = Path(str(self._options.out))
        samples = self._samples or read_run(out).samples
        prompt, ids = self._prompt()
        samples = {"prompt": prompt, **samples, "after": self._written(net, ids)}
        figures["validation_perplexity"] = perplexity(figures["test_loss"])
        if "loss_before" in samples:
            figures["perplexity_before"] = perplexity(float(samples["loss_before"]))
        rate = figures["samples_per_second"] * self.input_shape[0]
        figures["tokens_per_second"] = rate
        _write_samples(out, samples)
        model = out / MODEL
        if self._options.method == "lora":
            pretrained.save_adapter(cast("PretrainedNet", net), out / ADAPTER)
        pretrained.save(net, model, merged=True)
        if not (model / "tokenizer.json").is_file():
            self._tokenizer.save(model)

    def report(self, result: EpochResult) -> str:
        """The perplexity on what was kept back."""
        return f"validation perplexity {perplexity(result.loss):.3f}"

    def _prompt(self) -> tuple[str, Array]:
        """What samples begin with: as the user says, else the first text that is kept back."""
        given, tokenizer = self._options.prompt, self._tokenizer
        if given is not None and tokenizer.chat_template is not None and self._chats:
            return given, tokenizer.prompt([{"role": "user", "content": given}])
        if given is not None:
            return given, tokenizer.encode(given)
        x, y = next(iter(self.test_batches()))
        row = (x["input_ids"] if isinstance(x, dict) else x)[0]
        # As far as nothing is learnt: the question. Of plain texts some tokens.
        learnt = np.flatnonzero(y[0] != -100)
        first = int(learnt[0]) + 1 if self._chats and len(learnt) else 16
        ids = row[: max(1, min(first, len(row)))]
        return tokenizer.decode(ids), ids

    @property
    def _chats(self) -> bool:
        return isinstance(self._test, Chat)

    def _written(self, net: FeedForwardNet, ids: Array) -> str:
        # One text alone has no segments.
        alone = drawn_net(str(self._options.from_), _PACKED[:1], cast("PretrainedNet", net))
        told = streamed(alone, self._tokenizer, ids, SAMPLE, Sampling(0), ends=self._ends)
        return "".join(told)


def is_chat(path: str) -> bool:
    """Whether the data are conversations: the first line of a .jsonl file tells."""
    files = TextFiles(path, _WINDOW)
    for block in range(len(files.blocks)):
        for record in files.records(block):
            return "text" not in record.entry
    raise DataError(
        f"data {path!r}",
        expected="texts or conversations",
        received="none",
        advice=f"check the files: {one_of(map(str, files.sizes), 3)}",
    )


def perplexity(loss: float) -> float:
    """e to the ``loss``, inf where that is too large."""
    return math.exp(loss) if loss < 700 else math.inf


def _write_samples(out: Path, samples: dict[str, str]) -> None:
    with replacing(out / SAMPLES) as beside:
        beside.write_text(json.dumps(samples, indent=2, ensure_ascii=False) + "\n", "utf-8")
