"""A BERT learns the language of three plays: it guesses masked words.

    python examples/masked_language_model.py FOLDER [--data FILE] [--out tuned] [--epochs 3]
    python examples/masked_language_model.py --small

FOLDER is a published encoder, such as bert-base-uncased or ModernBERT-base; FILE is a text. With
--small it prints about

    perplexity of masked words: 1038.4 before, 290.2 after
    saved in tuned, which transformers loads
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import small_models

from singanet import pretrained, set_seed
from singanet.data import MaskingLoader, plays
from singanet.net import FeedForwardNet
from singanet.optimizer import AdamW


def perplexity(net: FeedForwardNet, loader: MaskingLoader) -> float:
    """e to the mean loss of a masked token."""
    total = count = 0.0
    for x, y in loader:
        chosen = np.count_nonzero(y != -100)
        total += chosen and chosen * (net.evaluate(x, y)[0] or 0.0)
        count += chosen
    return float(np.exp(total / count))


def main() -> None:
    """Learn, and tell how well masked words are guessed."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--data", type=Path, help="a text (default: the plays)")
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    set_seed(0)
    text = plays().decode(np.concatenate([plays().train, plays().validation]))
    with tempfile.TemporaryDirectory() as beside:
        place, data = given.folder, given.data or Path(beside, "plays.txt")
        if given.data is None:
            data.write_text(text, "utf-8")
        if given.small:
            place = small_models.encoder(Path(beside, "m"), text, masks=True)
        inputs = ["input_ids", "attention_mask"]
        net = pretrained.load(place, head="language-model", inputs=inputs)
        loader = MaskingLoader(data, pretrained.tokenizer(place), 16, 64, window=1 << 15)
        kept = loader.keep_back(0.1)
        before = perplexity(net, kept)
        net.compile(AdamW(learning_rate=3e-3 if given.small else 5e-5), net.loss)
        net.fit(loader, epochs=given.epochs, verbose=False)
        print(f"perplexity of masked words: {before:.1f} before, {perplexity(net, kept):.1f} after")
        pretrained.save(net, given.out)
    print(f"saved in {given.out}, which transformers loads")


if __name__ == "__main__":
    main()
