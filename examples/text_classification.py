"""A BERT tells which of three plays a speech is from.

    python examples/text_classification.py FOLDER [--out classifier] [--epochs 3] [--limit N]
    python examples/text_classification.py --small

FOLDER is a published encoder, such as bert-base-uncased or DistilBERT. What is saved is its
model for classes, whose head is new. With --small it prints about

    speeches: 1404 to learn from, 155 kept back
    right: 36.1% before, 82.6% after
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import numpy as np
import small_models

from singanet import pretrained, set_seed
from singanet.data import Tokenizer, plays
from singanet.optimizer import AdamW
from singanet.types import Array

PLAYS = ["Hamlet", "King Lear", "Romeo and Juliet"]
LONGEST = 64


def speeches(text: str) -> tuple[list[str], Array]:
    """The long ones, and which play each is from; the name of the speaker is left out."""
    each = re.split(r"^ACT I\.$", text, flags=re.M)[1:]
    found = [re.findall(r"\.\n([^\[]{80,}?)\n\n", play) for play in each]
    labels = np.repeat(np.arange(len(found)), [len(some) for some in found])
    return [said for some in found for said in some], labels


def rows(tokenizer: Tokenizer, texts: list[str]) -> dict[str, Array]:
    """Their ids in rows of one length, cut there or filled up, and which are there."""
    ids, seen = np.zeros((2, len(texts), LONGEST), np.int64)
    for k, own in enumerate(map(tokenizer.encode, texts)):
        ids[k, : len(own)], seen[k, : len(own)] = own[:LONGEST], 1
    return {"input_ids": ids, "attention_mask": seen}


def main() -> None:
    """Learn, and tell how often it is right."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--out", type=Path, default=Path("classifier"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    set_seed(0)
    text = plays().decode(np.concatenate([plays().train, plays().validation]))
    beside = tempfile.TemporaryDirectory()
    place = small_models.encoder(Path(beside.name, "m"), text) if given.small else given.folder
    inputs = ["input_ids", "attention_mask"]
    net = pretrained.load(place, head="sequence-classification", classes=PLAYS, inputs=inputs)
    tokenizer = pretrained.tokenizer(place)
    texts, labels = speeches(text)
    order = np.random.default_rng(0).permutation(len(texts))[: given.limit]
    x, y, kept = rows(tokenizer, [texts[k] for k in order]), labels[order], len(order) // 10
    back = {name: array[:kept] for name, array in x.items()}, y[:kept]
    learnt = {name: array[kept:] for name, array in x.items()}, y[kept:]
    print(f"speeches: {len(order) - kept} to learn from, {kept} kept back")
    net.compile(AdamW(learning_rate=1e-3 if given.small else 3e-5), net.loss, [net.metric])
    before = net.evaluate(*back, 32)[1]
    net.fit(*learnt, batch_size=16, epochs=given.epochs, verbose=False)
    print(f"right: {before:.1%} before, {net.evaluate(*back, 32)[1]:.1%} after")
    pretrained.save(net, given.out)


if __name__ == "__main__":
    main()
