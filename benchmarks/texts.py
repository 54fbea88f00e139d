"""Texts from disk as rows of tokens: tokens a second beside the bare tokenizer's, rows filled.

The vocabulary has 8,192 byte-level pairs, trained on the plays; the file has their speeches over
and over. The bare tokenizer encodes the same speeches from memory, without reading, packing or
targets. Conversations are rendered by a template that marks its answers; the peer is transformers'
`apply_chat_template` with its mask of answers. Times are processor seconds of one thread. Memory is
what the process takes more, at its peak, than before the first batch.

    python benchmarks/texts.py
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from apart import forget_peak, peak, resident
from report import introduction, publish, table
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from singanet.data import Chat, TextFolder, Tokenizer, TokenLoader, plays

TEMPLATE = (
    "{% for message in messages %}{{ '<|begin|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>"
    "{% endgeneration %}{% else %}{{ message['content'] }}<|end|>{% endif %}{{ '\\n' }}{% endfor %}"
)
COPIES = 400


def trained(speeches: list[str]) -> Backend:
    """The vocabulary."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|begin|>", "<|end|>"]
    backend.train_from_iterator(
        speeches, trainers.BpeTrainer(vocab_size=8192, special_tokens=special, show_progress=False)
    )
    return backend


def best(run: Callable[[], int], rounds: int = 3) -> float:
    """Tokens a second, of the quickest of some rounds."""
    rates = []
    for _ in range(rounds):
        start = time.process_time()
        count = run()
        rates.append(count / (time.process_time() - start))
    return max(rates)


class Drawn:
    """Batches of one loader in turn, and how full they are."""

    def __init__(self, loader: TokenLoader, count: int) -> None:
        self.loader, self.count = loader, count
        self.tokens = self.cells = 0

    def __call__(self) -> int:
        tokens = 0
        for x, y in islice(self.loader, self.count):
            tokens += int((x["segments"] > 0).sum())
            self.cells += y.size
        self.tokens += tokens
        return tokens


def rows(folder: Path, speeches: list[str]) -> Iterator[list[str]]:
    """The lines of the table."""
    backend = trained(speeches)
    tokenizer = Tokenizer(backend, "<|begin|>", "<|end|>", "<|pad|>", TEMPLATE)
    texts, chats = folder / "texts.jsonl", folder / "chats.jsonl"
    pairs = [
        [{"role": "user", "content": a}, {"role": "assistant", "content": b}]
        for a, b in zip(speeches[::2], speeches[1::2], strict=False)
    ]
    for path, entries in (
        (texts, [{"text": speech} for speech in speeches]),
        (chats, [{"messages": messages} for messages in pairs]),
    ):
        written = "".join(json.dumps(entry) + "\n" for entry in entries)
        with path.open("w") as stream:
            for _ in range(COPIES):
                stream.write(written)
    bare = best(lambda: sum(len(each.ids) for each in backend.encode_batch_fast(speeches)))
    yield ["bare tokenizer", f"{bare:,.0f}", "", "", ""]
    inputs = ("input_ids", "segments")
    kinds: dict[str, tuple[TokenLoader, int]] = {
        "texts, packed": (TextFolder(texts, tokenizer, 8, 512, inputs=inputs), 200),
        "texts, padded to 32, 64, 128, 512": (
            TextFolder(texts, tokenizer, 8, 512, pad_to=(32, 64, 128), inputs=inputs),
            1000,
        ),
        "conversations, packed": (
            Chat(chats, tokenizer, 8, 512, too_long="skip", inputs=inputs),
            100,
        ),
    }
    for name, (loader, count) in kinds.items():
        forget_peak()
        before = resident("RssAnon")
        drawn = Drawn(loader, count)
        rate = best(drawn)
        taken, size = (peak() - before) / 1e6, sum(loader.files.sizes.values()) / 1e6
        filled = f"{100 * drawn.tokens / drawn.cells:.1f} %"
        yield [name, f"{rate:,.0f}", filled, f"{taken:.0f} MB", f"{size:.0f} MB"]
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE)

    def by_transformers() -> int:
        made = [
            fast.apply_chat_template(each, return_dict=True, return_assistant_tokens_mask=True)
            for each in pairs
        ]
        return sum(len(each["input_ids"]) for each in made)

    yield ["conversations, transformers", f"{best(by_transformers):,.0f}", "", "", ""]
    mine = best(lambda: sum(len(tokenizer.chat(each)[0]) for each in pairs))
    yield ["conversations, `Tokenizer.chat`", f"{mine:,.0f}", "", "", ""]


def main() -> None:
    """Print the table, and keep it."""
    dataset = plays()
    speeches = [speech for speech in dataset.decode(dataset.train).split("\n\n") if speech]
    with tempfile.TemporaryDirectory() as folder:
        found = list(rows(Path(folder), speeches))
    header = ["what", "tokens/s", "rows filled", "memory", "file"]
    publish("texts", "Texts from disk", f"{introduction(__doc__)}\n\n{table(header, found)}")


if __name__ == "__main__":
    main()
