"""The speeches of three plays that are nearest to a question, by embeddings of sentences.

    python examples/sentence_embeddings.py FOLDER [--ask TEXT] [--nearest 3]
    python examples/sentence_embeddings.py --small

FOLDER is one of sentence-transformers, such as all-MiniLM-L6-v2. With --small, whose random
vectors have the words in common alone, it prints

    2102 speeches as vectors of 64 numbers
    What is love?
      0.86  What said he?
      0.84  What is, my lord?
      0.83  What is the matter, my lord?
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import numpy as np
import small_models

from singanet import pretrained
from singanet.data import Tokenizer, plays
from singanet.net import FeedForwardNet
from singanet.types import Array


def embedded(net: FeedForwardNet, tokenizer: Tokenizer, texts: list[str]) -> Array:
    """A vector of length 1 for each of ``texts``; those of like lengths go together."""
    rows = [tokenizer.encode(text)[: net.most_steps or 512] for text in texts]
    order = sorted(range(len(rows)), key=lambda k: len(rows[k]))
    found: list[Array] = [np.zeros(0)] * len(rows)
    for start in range(0, len(order), 32):
        places = order[start : start + 32]
        ids = np.zeros((len(places), len(rows[places[-1]])), np.int64)
        seen = np.zeros_like(ids)
        for line, mask, k in zip(ids, seen, places, strict=True):
            line[: len(rows[k])], mask[: len(rows[k])] = rows[k], 1
        made = net.predict({"input_ids": ids, "attention_mask": seen})
        for k, vector in zip(places, made, strict=True):
            found[k] = vector / np.linalg.norm(vector)
    return np.stack(found)


def main() -> None:
    """Embed all speeches and the questions, and tell who is near."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--ask", action="append", default=[], metavar="TEXT")
    parser.add_argument("--nearest", type=int, default=3)
    given = parser.parse_args()
    text = plays().decode(np.concatenate([plays().train, plays().validation]))
    speeches = sorted(set(re.findall(r"\.\n([^\[\]]{12,120}?)\n\n", text)))
    with tempfile.TemporaryDirectory() as beside:
        place = given.folder
        if given.small:
            place = small_models.encoder(Path(beside, "m"), text, sentences=True)
        net = pretrained.load(place, inputs=["input_ids", "attention_mask"])
        tokenizer = pretrained.tokenizer(place)
    vectors = embedded(net, tokenizer, speeches)
    print(f"{len(vectors)} speeches as vectors of {vectors.shape[1]} numbers")
    for question in given.ask or ["What is love?", "Is the king dead?"]:
        near = vectors @ embedded(net, tokenizer, [question])[0]
        print(question)
        for k in np.argsort(-near)[: given.nearest]:
            print(f"  {near[k]:.2f}  {' '.join(speeches[k].split())}")


if __name__ == "__main__":
    main()
