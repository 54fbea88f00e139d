"""A chat model learns to answer as the people of three plays do.

    python examples/chat_finetuning.py FOLDER [--out tuned] [--lora] [--limit N]
    python examples/chat_finetuning.py --small

FOLDER is a published model with a chat template, such as SmolLM2-135M-Instruct. --small prints

    76 conversations are kept
    1434 conversations are learnt
    perplexity of answers kept back: 1073.0 before, 259.2 after
    "Who's there?" is answered by 'I,'; saved in tuned
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import small_models

from singanet import pretrained
from singanet.data import Chat, plays
from singanet.optimizer import Adafactor

SPEECH = re.compile(r"^[A-Z][\w. ]*\.\n(.+)", re.S)


def conversations(text: str) -> list[dict[str, str]]:
    """What somebody says, and what the next one answers, of short speeches."""
    found = [SPEECH.match(part) for part in text.split("\n\n")]
    said = [(a[1].strip(), b[1].strip()) for a, b in pairwise(found) if a and b]
    return [{"prompt": a, "answer": b} for a, b in said if max(len(a), len(b)) < 160]


def main() -> None:
    """Tune, and tell what it was good for."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    parser.add_argument("--lora", action="store_true", help="train pairs of rank 8 alone")
    parser.add_argument("--limit", type=int)
    given = parser.parse_args()
    text = plays().decode(np.concatenate([plays().train, plays().validation]))
    with tempfile.TemporaryDirectory() as beside:
        place = small_models.chat_model(Path(beside), text) if given.small else given.folder
        net = pretrained.load(place, inputs=["input_ids", "segments"], seed=0)
        tokenizer = pretrained.tokenizer(place)
        if given.lora:
            net.adapt(lora=8, where="all")
        pairs = conversations(text)[: given.limit]
        learnt = [pair for k, pair in enumerate(pairs) if k % 20]
        for name, some in (("kept", pairs[::20]), ("learnt", learnt)):
            Path(beside, f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
            print(f"{len(some)} conversations are {name}")
        kept = Chat(Path(beside, "kept.jsonl"), tokenizer, 4, 256, shuffle=False)
        net.compile(Adafactor(learning_rate=1e-2 if given.small else 1e-3))
        before = np.exp(net.evaluate(kept)[0])
        net.fit(Chat(Path(beside, "learnt.jsonl"), tokenizer, 4, 256), epochs=1, verbose=False)
        after = np.exp(net.evaluate(kept)[0])
        print(f"perplexity of answers kept back: {before:.1f} before, {after:.1f} after")
        if given.lora:
            net.merge()
        pretrained.save(net, given.out)
        tokenizer.save(given.out)
    writes = pretrained.load(given.out, inputs=["input_ids"])
    prompt = tokenizer.prompt([{"role": "user", "content": "Who's there?"}])
    (ids,) = writes.generate(prompt[None], 40, temperature=0.0, stop=tokenizer.eos_id)
    answer = tokenizer.decode([id for id in ids if id != tokenizer.eos_id])
    print(f'"Who\'s there?" is answered by {answer!r}; saved in {given.out}')


if __name__ == "__main__":
    main()
