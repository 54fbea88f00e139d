"""Published models: their folders and tokenizers, text generation, and fine-tuning."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from singanet import pretrained
from singanet.base.files import explained, replacing
from singanet.base.progress import progress
from singanet.commands.runs.run_options import OPTIONS, RunOptions, refusal
from singanet.commands.runs.tasks import EpochResult, Task
from singanet.data import Chat, TextDataset, TextFolder, Tokenizer
from singanet.data.tokens import TokenLoader
from singanet.data.tokens.answers import is_conversation
from singanet.data.tokens.pairs import METHODS
from singanet.data.tokens.text_files import TextFiles
from singanet.decoding import BeamSearch, Decoder, DraftModel, Processors, Sampling, Writer
from singanet.decoding import generate as written
from singanet.engine.adapting import pairs_from_config, pairs_to_config
from singanet.errors import ArgumentError, DataError, one_of
from singanet.models import ModelEntry, Recipe
from singanet.net import FeedForwardNet
from singanet.pretrained import PretrainedNet
from singanet.pretrained.adapter import expect_savable
from singanet.pretrained.drawing import INPUTS
from singanet.pretrained.heads import WORDS
from singanet.pretrained.loading import Origin, make
from singanet.pretrained.source import CONFIG, folder_of, open_source, read_settings
from singanet.report import ConfusionLog, read_run
from singanet.report.reading import SAMPLES
from singanet.training.callbacks import LayerStatistics
from singanet.types import Array

MODEL = "model"
"""The folder of the fine-tuned model, within the run folder."""

_GENERATION = "generation_config.json"


def is_published(path: str | os.PathLike[str]) -> bool:
    """Return True if ``path`` is a published model: a folder, a GGUF file, or a run of finetune."""
    place = model_in(path)
    if not place.is_dir():
        return place.suffix.lower() == ".gguf" and place.is_file()
    if not (place / CONFIG).is_file():
        return any(place.glob("*.gguf"))
    settings = read_settings(place, CONFIG)
    return isinstance(settings, dict) and "model_type" in settings


def model_in(path: str | os.PathLike[str]) -> Path:
    """Return the path of the model: ``path``, or the model in the run folder ``path``."""
    made = Path(path) / MODEL
    return made if (made / CONFIG).is_file() else Path(path)


@contextmanager
def texts_alone(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the model at ``path`` in the error for inputs that it does not have, or needs besides.

    Errors: `ArgumentError`, such as for an encoder-decoder, whose decoder reads further ids.
    """
    try:
        yield
    except ArgumentError as error:
        if error.where != INPUTS:
            raise
        received = f"one of the inputs {error.expected}"
        advice = "train it in Python: net = pretrained.load(folder), and net.generate writes"
        raise refusal(f"model {str(path)!r}", "a model of texts alone", received, advice) from None


def drawn_net(
    path: str | os.PathLike[str],
    inputs: Sequence[str] | None = None,
    like: PretrainedNet | None = None,
) -> PretrainedNet:
    """Return the net of the model at ``path`` without reading its arrays.

    Its parameters are zeros, or the parameters of ``like``, another net of the model, with its
    low-rank pairs. Errors: the errors of `load`.
    """
    with open_source(model_in(path)) as source:
        names = source.reader.entries
        with texts_alone(path):
            net = make(source.config, source.where, names, inputs, source.sentence).net
        net.origin = Origin(source.config, {}, {}, source.files, source.tokenizer)
    if like is not None:
        layers = list({id(node.layer): node.layer for node in net.nodes()}.values())
        pairs_from_config(layers, pairs_to_config(like.layers))
        theirs = {param.name: param for param in like.params()}
        for layer in layers:
            for param in layer.params.values():
                param.storage = theirs[param.name].storage
    # Like after a load, which draws no values; untouched zeros take no memory.
    with net._filled_by(lambda param: np.zeros(param.shape, net.dtype)):
        net._execution_plan()
    return net


def expect_causal(net: PretrainedNet, path: str | os.PathLike[str]) -> None:
    """Errors: `ArgumentError` for a model that does not predict the next token."""
    names = net.config.get("architectures") or [net.config.get("model_type")]
    if net.head != WORDS or str(names[0]).endswith("ForMaskedLM"):
        expected = "a causal model, such as a LlamaForCausalLM"
        advice = "pass a causal model; `singanet embed` is for models of sentences"
        raise refusal(f"model {str(path)!r}", expected, names[0], advice)


def tokenizer_for(net: PretrainedNet, path: str | os.PathLike[str]) -> Tokenizer:
    """Return the tokenizer of the model at ``path``. Errors: `DataError` if it has more tokens."""
    tokenizer = pretrained.tokenizer(model_in(path))
    words = net.config.get("vocab_size")
    if isinstance(words, int) and tokenizer.vocabulary_size > words:
        expected = f"a tokenizer of at most {words} tokens, the rows of the net"
        received = f"{tokenizer.vocabulary_size}"
        advice = "pass the tokenizer that was published with the model"
        raise refusal(f"model {str(path)!r}", expected, received, advice, DataError)
    return tokenizer


def draft_for(tokenizer: Tokenizer, path: str | os.PathLike[str], ahead: int) -> DraftModel:
    """Return the model at ``path`` as a draft for ``tokenizer``. Errors: another tokenizer."""
    place = model_in(folder_of(path))
    net = pretrained.load(place, inputs=["input_ids"])
    expect_causal(net, place)
    if tokenizer_for(net, place).backend.get_vocab() != tokenizer.backend.get_vocab():
        expected = "a model with the tokenizer of the main model"
        advice = "pass a smaller model of the same family"
        raise refusal(f"--draft {str(path)!r}", expected, "a model with other tokens", advice)
    return DraftModel(net, ahead)


def ends_of(net: PretrainedNet, tokenizer: Tokenizer) -> frozenset[int]:
    """Return the ids that end a text or an answer, from all files of the model."""
    end_ids: list[Any] = [tokenizer.eos_id, net.config.get("eos_token_id")]
    defaults = net.origin.files.get(_GENERATION)
    if defaults is not None:
        settings = read_settings(defaults.parent, _GENERATION)
        end_ids.append(settings.get("eos_token_id") if isinstance(settings, dict) else None)
    each = (ids if isinstance(ids, list) else [ids] for ids in end_ids)
    return frozenset(end for ids in each for end in ids if isinstance(end, int))


def sampled(
    net: FeedForwardNet,
    data: TextDataset,
    prompt: str,
    length: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Iterator[str]:
    """Yield ``length`` characters after ``prompt``, sampled from the probabilities of ``net``.

    ``net`` maps ids (N, T) to probabilities (N, T, characters) of the next character, as the
    language models of `singanet.models` do; it reads each character once. Errors, at once: a number
    out of range; unknown characters; another kind of net.
    """
    if not prompt:
        raise refusal("--prompt", "at least one character", "none", "remove it")
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
    draft: DraftModel | None = None,
    processors: Processors | None = None,
    beams: BeamSearch | None = None,
) -> Iterator[str]:
    """Yield the text after ``ids``, in pieces of whole characters: at most ``length`` tokens.

    The text ends before the first of the tokens ``ends`` or the texts ``stops``; a possible start
    of a stop is yielded when it turns out not to be one. Past the maximum steps of ``net`` the net
    reads the last half again. A ``draft`` proposes tokens, as in `DraftModel`, ``processors``
    change the scores, and ``beams`` of more than one yield a text as a whole. Errors, at once: a
    number out of range; more ``ids`` than the net's maximum, or none.
    """
    most = getattr(net, "most_steps", None)
    if not len(ids) or (most is not None and len(ids) > most):
        expected = f"1 to {most} tokens" if most is not None else "at least one token"
        raise refusal("the prompt", expected, str(len(ids)), "shorten it, or pass some words")
    if "" in stops:
        raise refusal("--stop", "a text", "none", "remove it")
    if beams is not None and beams.num_beams > 1:
        given: dict[str, Any] = {"draft": draft, "processors": processors, "beams": beams}
        given["tokenizer"] = tokenizer
        (best,) = written(net, [ids], length, sampling, seed, [*ends, *stops], **given)
        return iter([tokenizer.decode([id for id in best.ids.tolist() if id not in ends])])
    drawn = _drawn(net, ids, length, sampling, seed, draft, processors)
    texts = _texts(drawn, tokenizer, ends)
    return before_stops(texts, stops) if stops else texts


def guide_in(given: str | None) -> str | dict[str, Any] | None:
    """Return the expression ``given``, or the schema in the .json file of this name."""
    if given is None or not given.endswith(".json"):
        return given
    path = Path(given)
    with explained(path, "the JSON schema of --guide"):
        content = path.read_text("utf-8", errors="replace")
    try:
        schema = json.loads(content)
    except ValueError as error:
        schema = error
    if not isinstance(schema, dict):
        received = str(schema) if isinstance(schema, ValueError) else type(schema).__name__
        raise refusal(f"--guide {given!r}", "a JSON schema, an object", received, "mend the file")
    return schema


class StopFilter:
    """Passes on a text that comes in pieces, up to the start of the first complete stop.

    The end of a piece that may be the start of a stop waits for the next.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.is_over = False
        self._stops, self._waiting = stops, ""

    def push(self, text: str) -> str:
        """Return the text that is certainly before a stop."""
        self._waiting += text
        stops = self._stops
        found = [(p + len(stop), p) for stop in stops if (p := self._waiting.find(stop)) >= 0]
        if found:
            self.is_over = True
            ready, self._waiting = self._waiting[: min(found)[1]], ""
            return ready
        most = min(len(self._waiting), max(map(len, stops), default=1) - 1)
        begins = (k for k in range(most, 0, -1) if _begins(self._waiting[-k:], stops))
        end = len(self._waiting) - next(begins, 0)
        ready, self._waiting = self._waiting[:end], self._waiting[end:]
        return ready

    def close(self) -> str:
        """Return the text that waits; no more follows."""
        rest, self._waiting = self._waiting, ""
        return rest


def before_stops(texts: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield ``texts`` up to the start of the first complete stop."""
    passed = StopFilter(stops)
    for text in texts:
        if ready := passed.push(text):
            yield ready
        if passed.is_over:
            return
    if rest := passed.close():
        yield rest


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
    draft: DraftModel | None = None,
    processors: Processors | None = None,
) -> Iterator[int]:
    """Yield ``length`` ids after ``ids``; errors at once."""
    if length < 1:
        raise refusal("--length", "a positive number", str(length), "500 is usual")
    if seed < 0:
        raise refusal("--seed", "0 or more", str(seed), "pass another seed")
    spare = 0 if draft is None else draft.spare
    rng = np.random.default_rng(seed)
    decoder = Decoder(net, spare=spare)
    writer = Writer(decoder, [ids], sampling, rng, draft, None, processors)
    return islice((int(new) for further in writer for new in further[0].ids), length)


def start_of(data: TextDataset) -> str:
    """Return the start for a text: a new line, or the data's first character if they have none."""
    return "\n" if "\n" in data.characters else data.decode(data.train[:1])


USUAL_LENGTH, SAMPLE, USUAL_RANK = 512, 48, 8
"""The usual tokens of a row, tokens of a sample, and rank of low-rank pairs."""
ADAPTER = "adapter"
"""The folder of the trained low-rank pairs, within the run folder."""
_BLOCKS, _WINDOW = 32, 1 << 20
_OWN = ("validation", "length", "too_long", "prompt", "method", "rank", "beta", "head", "text")
PACKED = ("input_ids", "segments")


def expect_no_texts(options: RunOptions) -> None:
    """Errors: `ArgumentError` for an option of published models if none is trained."""
    given = [name for name in _OWN if getattr(options, name) is not None]
    if given or not options.pack:
        raise refusal(
            f"--{OPTIONS[given[0]].flag if given else 'no-pack'}",
            "a published model to fine-tune",
            options.subject,
            "remove it",
        )


def published_task(options: RunOptions) -> tuple[FeedForwardNet, Task]:
    """Return the net of the published model in ``options``, and its task.

    Errors: not a causal model; an unknown method; rows longer than the model's maximum; no data, or
    data without texts; no run folder.
    """
    place = model_in(str(options.from_))
    expect_complete(options)
    if options.target is not None:
        raise refusal("--target", "--head as well", repr(options.target), "add --head")
    inputs = _inputs(place, options.pack)
    drawn = drawn_net(place, inputs)
    expect_causal(drawn, place)
    length = length_of(options.length, drawn)
    net = pretrained.load(place, inputs=inputs, seed=options.seed)
    if options.method == "lora":
        net.adapt(USUAL_RANK if options.rank is None else options.rank)
        # An early refusal, before the training.
        expect_savable(net)
    task = PublishedTexts(net, tokenizer_for(net, place), options, inputs, length)
    return net, task


def expect_complete(options: RunOptions) -> None:
    """Errors: `ArgumentError` without data or a run folder, and for options of other methods."""
    needs = {
        "data": "a .txt or .jsonl file, or a folder of them",
        "out": "a run folder, for the tuned model",
    }
    for name, expected in needs.items():
        if getattr(options, name) is None:
            advice = f"add --{name}"
            raise refusal(f"--{name}", expected, "none", advice)
    for name, known in (("rank", ("lora", *METHODS)), ("beta", METHODS[:3])):
        if getattr(options, name) is not None and options.method not in known:
            expected = f"--method {one_of(known)} as well".replace("'", "")
            received = f"--method {options.method or 'full'}"
            raise refusal(f"--{name}", expected, received, "remove it")


def _inputs(place: Path, pack: bool) -> Sequence[str]:
    """Return the inputs for rows of several texts if the net separates them, otherwise of one."""
    if pack:
        try:
            drawn_net(place, PACKED)
        except ArgumentError:
            return PACKED[:1]
        return PACKED
    return PACKED[:1]


def length_of(given: int | None, net: PretrainedNet) -> int:
    """Return the tokens of a row. Errors: `ArgumentError` for more than ``net`` reads."""
    most = net.most_steps
    length = min(USUAL_LENGTH, most or USUAL_LENGTH) if given is None else given
    if length < 1 or (most is not None and length > most):
        expected = "1 or more" if most is None else f"1 to {most}, the steps of the model"
        raise refusal("--length", expected, length, "longer texts continue in another row")
    return length


class PublishedTexts(Task):
    """Tokens, each with the next one. The loss on the validation data gives the perplexity."""

    afterwards = "generate {} 'Once'"
    # A matrix of all tokens would be larger than the model.
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
        self.tests = bool(options.kept_back)
        # Without a share to validate with these are the training data, for a sample alone.
        if options.validation is None and self.tests:
            self._test = self._test.keep_back(options.kept_back)

    @classmethod
    def load(cls, data: str | None, entry: ModelEntry, for_testing: bool = False) -> Task:
        """Not implemented: `published_task` makes this task."""
        raise NotImplementedError(entry.name)

    def _loader(self, path: str, batch_size: int, shuffle: bool, part: Any = None) -> TokenLoader:
        (length,) = self.input_shape
        settings: dict[str, Any] = {"inputs": self._inputs, "shuffle": shuffle}
        if "segments" not in self._inputs:
            settings["pad_to"] = sorted({max(1, length // 4), max(1, length // 2), length})
        settings |= {"window": window_of(path, self._options), "seed": self._options.seed}
        if part is not None:
            settings["rank"], settings["world_size"] = part
        if not is_chat(path):
            return TextFolder(path, self._tokenizer, batch_size, length, **settings)
        how = self._options.too_long or "refuse"
        return Chat(path, self._tokenizer, batch_size, length, too_long=how, **settings)

    def keep_back(self, share: float, seed: int) -> TokenLoader:
        """Return the last blocks of the data, or the validation file, for this process."""
        if self.part.world_size == 1:
            return self._test
        path = str(self._options.validation or self._options.data)
        loader = self._loader(path, self._rows_tested(), False, self.part)
        return loader if self._options.validation is not None else loader.keep_back(share)

    def _rows_tested(self) -> int:
        """Return the rows of a batch of this process in validation."""
        return 1

    def train_batches(
        self, recipe: Recipe, seed: int, shuffle: bool = True, drop_last: bool = False
    ) -> TokenLoader:
        """Return full batches of rows in an order by ``seed``."""
        rows = self.rows_here(recipe)
        loader = self._loader(self.name, rows, shuffle, self.part)
        if self._options.validation is None and self.tests:
            loader.keep_back(self._options.kept_back)
        return loader

    def steps(self, batches: Any) -> int:
        """Read the texts once to count the batches."""
        return int(batches.count_batches())

    def test_batches(self) -> TokenLoader:
        """Return the validation data, the only data for the evaluation."""
        self._test.set_epoch(0)
        return self._test

    def evaluate(self, net: FeedForwardNet) -> EpochResult:
        """Return the mean loss per token over all batches."""
        total, tokens = 0.0, 0
        self._expect_tests()
        batches = self.test_batches()
        for x, y in progress(batches, "evaluate", batches._batch_count):
            count = int(np.count_nonzero(y != -100))
            loss, _ = net.evaluate(x, y) if count else (0.0, None)
            total, tokens = total + (loss or 0.0) * count, tokens + count
        if not tokens:
            expected = "texts to validate with"
            received = "none in the validation data"
            advice = "pass a file with --validation, or a larger --validation-split"
            raise refusal(f"data {self.name!r}", expected, received, advice, DataError)
        return EpochResult(total / tokens, None)

    def _expect_tests(self) -> None:
        """Errors: `ArgumentError` without data to validate with."""
        if not self.tests:
            expected = "texts to validate with"
            received = "none: the run was trained on all of its data"
            raise refusal(f"data {self.name!r}", expected, received, "pass other data by --data")

    def begin(self, net: FeedForwardNet) -> None:
        """Compute the perplexity and a sample before the training."""
        prompt, ids = self._prompt()
        self._samples = {"prompt": prompt, "before": self._written(net, ids)}
        if self.tests:
            self._before = self.evaluate(net)
            self._samples["loss_before"] = repr(self._before.loss)

    def note(self, folder: Path) -> None:
        """Write the sample, which a resumed run does not repeat."""
        if self._samples:
            write_samples(folder, self._samples)

    def end(self, net: FeedForwardNet, figures: dict[str, Any]) -> None:
        """Write the tuned model and the samples to the run folder, and add the perplexity."""
        out = Path(str(self._options.out))
        samples = self._samples or read_run(out).samples
        prompt, ids = self._prompt()
        samples = {"prompt": prompt, **samples, "after": self._written(net, ids)}
        if self.tests:
            figures["validation_perplexity"] = perplexity(figures["test_loss"])
        if "loss_before" in samples:
            figures["perplexity_before"] = perplexity(float(samples["loss_before"]))
        rate = figures["samples_per_second"] * self.input_shape[0]
        figures["tokens_per_second"] = rate
        write_samples(out, samples)
        self._save(net)

    def _save(self, net: FeedForwardNet) -> None:
        """Write the tuned model and its low-rank pairs, if any, to the run folder."""
        out = Path(str(self._options.out))
        model = out / MODEL
        # The files of low-rank pairs cannot store a head that was trained beside them.
        if any(layer.adapters for layer in net.layers) and self._options.method != "reward":
            pretrained.save_adapter(cast("PretrainedNet", net), out / ADAPTER)
        pretrained.save(net, model, merged=True)
        if not (model / "tokenizer.json").is_file():
            self._tokenizer.save(model)

    def report(self, result: EpochResult) -> str:
        """Return the validation perplexity as text."""
        return f"validation perplexity {perplexity(result.loss):.3f}"

    def _prompt(self) -> tuple[str, Array]:
        """Return the start of samples: the user's, or the first text of the validation data."""
        given, tokenizer = self._options.prompt, self._tokenizer
        if given is not None and tokenizer.chat_template is not None and self._chats:
            return given, tokenizer.prompt([{"role": "user", "content": given}])
        if given is not None:
            return given, tokenizer.encode(given)
        x, y = next(iter(self.test_batches()))
        row = (x["input_ids"] if isinstance(x, dict) else x)[0]
        ids = row[: max(1, min(self._asked(x, y), len(row)))]
        return tokenizer.decode(ids), ids

    def _asked(self, x: Any, y: Array) -> int:
        """Return how many tokens of the first row are the start of a sample."""
        # Of a conversation the part that is not trained on, the question; of texts some tokens.
        learnt = np.flatnonzero(y[0] != -100)
        return int(learnt[0]) + 1 if self._chats and len(learnt) else 16

    @property
    def _chats(self) -> bool:
        return isinstance(self._test, Chat)

    def _written(self, net: FeedForwardNet, ids: Array) -> str:
        # A single text has no segments.
        alone = drawn_net(str(self._options.from_), PACKED[:1], cast("PretrainedNet", net))
        texts = streamed(alone, self._tokenizer, ids, SAMPLE, Sampling(0), ends=self._ends)
        # A piece is a token, or a few.
        return "".join(progress(texts, "sample", SAMPLE))


def window_of(path: str, options: RunOptions, blocks: int = _BLOCKS) -> int:
    """Return the bytes of a block: even of a small file there are ``blocks``, to keep some back."""
    if options.validation is not None or not options.kept_back:
        return _WINDOW
    size = sum(TextFiles(path, _WINDOW).sizes.values())
    return min(_WINDOW, max(1, size // blocks))


def is_chat(path: str) -> bool:
    """Return True if the data are conversations, by the first line of a .jsonl file."""
    files = TextFiles(path, _WINDOW)
    for block in range(len(files.blocks)):
        for record in files.records(block):
            return is_conversation(record.entry)
    advice = f"check the files: {one_of(map(str, files.sizes), 3)}"
    raise refusal(f"data {path!r}", "texts or conversations", "none", advice, DataError)


def perplexity(loss: float) -> float:
    """Return e to the ``loss``, inf if it overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def write_samples(out: Path, samples: dict[str, str]) -> None:
    """Write texts from before and after the training to the run folder ``out``."""
    with replacing(out / SAMPLES) as temporary:
        temporary.write_text(json.dumps(samples, indent=2, ensure_ascii=False) + "\n", "utf-8")
