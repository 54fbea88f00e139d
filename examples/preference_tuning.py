"""A chat model learns which of two answers is the better one, by DPO.

    python examples/preference_tuning.py FOLDER [--out tuned] [--rank 8] [--limit N]
    python examples/preference_tuning.py --small

FOLDER is a published model with a chat template, such as SmolLM2-135M-Instruct. The better answer
is the one of the play, the other one has its words in disorder. --small prints

    margin of rewards 0.00 to 0.24, right for 94% of the pairs kept back; saved in tuned
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import small_models
from chat_finetuning import conversations

from singanet import pretrained
from singanet.data import Pairs, plays
from singanet.loss import DPO
from singanet.metric import Reward
from singanet.optimizer import AdamW


def preferences(text: str, rng: np.random.Generator) -> list[dict[str, Any]]:
    """What is asked, what the play answers, and the words of that answer in disorder."""
    found = []
    for each in conversations(text):
        worse = " ".join(rng.permutation(each["answer"].split()).tolist())
        asked, answer = ("prompt", "user", each["prompt"]), ("chosen", "assistant", each["answer"])
        said = asked, answer, ("rejected", "assistant", worse)
        if worse != each["answer"]:
            found.append({key: [{"role": role, "content": text}] for key, role, text in said})
    return found


def main() -> None:
    """Tune, and compare the rewards."""
    parser = argparse.ArgumentParser()
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("folder", nargs="?", type=Path)
    source.add_argument("--small", action="store_true", help="a random model made in place")
    parser.add_argument("--out", type=Path, default=Path("tuned"))
    parser.add_argument("--rank", type=int, help="train low-rank pairs alone")
    parser.add_argument("--limit", type=int, default=400)
    given = parser.parse_args()
    text = plays().decode(np.concatenate([plays().train, plays().validation]))
    rows = preferences(text, np.random.default_rng(0))[: given.limit]
    with tempfile.TemporaryDirectory() as beside:
        place = small_models.chat_model(Path(beside), text) if given.small else given.folder
        tokenizer = pretrained.tokenizer(place)
        base = pretrained.load(place, inputs=["input_ids", "segments"], seed=0)
        if given.rank:
            base.adapt(given.rank)
        net = pretrained.preference_net(base, DPO(beta=0.1))
        loaders = []
        for name, some in (("kept", rows[::8]), ("learnt", [*rows[1::2], *rows[2::8]])):
            file = Path(beside, f"{name}.jsonl")
            file.write_text("\n".join(map(json.dumps, some)))
            loaders.append(Pairs(file, tokenizer, 4, 128, shuffle=name == "learnt"))
            loaders[-1].refer(net)  # before the training
        rule = AdamW(learning_rate=3e-4 if given.small else 1e-6)
        net.compile(rule, net.loss, metrics=Reward.each(net.loss))
        before = net.evaluate(loaders[0]).logs["reward_margin"]
        net.fit(loaders[1], epochs=1, verbose=False)
        after = net.evaluate(loaders[0]).logs
        pretrained.save(net, given.out, merged=True)
        tokenizer.save(given.out)
    print(f"margin of rewards {before:.2f} to {after['reward_margin']:.2f}, ", end="")
    print(f"right for {after['reward_accuracy']:.0%} of the pairs kept back; saved in {given.out}")


if __name__ == "__main__":
    main()
