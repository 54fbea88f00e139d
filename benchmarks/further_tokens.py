"""Further tokens of a language model beside the time in which the memory brings its weights.

The model has SmolLM2's shape and random weights, which all sides read from a folder; texts have 64
tokens before. Each side has a process of its own, asked in turn; by one thread its processor's time
counts. "memory" reads an array of 256 MB in large pages: the bytes of the weights at that speed are
the bytes' time, and a share of 1 is a decoder that waits for nothing else. "by layers" has programs
off. Medians of the rounds a token of each text, with half the distance between the quartiles. The
last table has a net of as many layers with hardly a weight: what is left are Python and calls.

    python benchmarks/further_tokens.py [--size 135m|30m|small] [--threads 1] [--rounds 7]
                                        [--texts 1,8] [--types float32,int4]
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import pretrained as models
from apart import CLOCK, Entrant, apart
from report import introduction, publish, spread, table

OURS = ("float32", "bfloat16", "int8", "int4")
THEIRS = ("torch float32", "torch bfloat16")
TEXTS = "BENCHMARK_TEXTS"
BEFORE, TOKENS, READ = 64, 16, 1 << 28


def rival(name: str, row: int) -> Entrant:
    """What a side does in a row: `TOKENS` further tokens of each text."""
    import numpy as np

    if name == "memory":
        array = np.ones(READ // 4, np.float32)
        return Entrant(lambda: array.max())
    texts = json.loads(os.environ[TEXTS])[row]
    ids = np.random.default_rng(0).integers(0, models.KNOWN, (texts, BEFORE))
    library, _, dtype = name.rpartition(" ")
    if library == "torch":
        return theirs(dtype, ids)
    from singanet import pretrained

    dtype = name.partition(" ")[0]
    net = pretrained.load(os.environ[models.FOLDER], dtype)
    net.programs.enabled = "layers" not in name
    decoder = net.decoder(BEFORE + TOKENS + 1)
    decoder.read([*ids])

    def run() -> None:
        for _ in range(TOKENS):
            decoder.read([*ids[:, :1]])
        decoder.back(TOKENS)

    return Entrant(run, {"bytes": sum(param.storage.nbytes for param in net.params())})


def theirs(dtype: str, ids: Any) -> Entrant:
    """transformers' side."""
    import torch

    torch.set_grad_enabled(False)
    model, x = models.model_of(os.environ[models.FOLDER], dtype), torch.from_numpy(ids)

    def run() -> None:
        past = model(x, use_cache=True).past_key_values
        start = time.process_time() if os.environ[CLOCK] == "cpu" else time.perf_counter()
        for _ in range(TOKENS):
            past = model(x[:, :1], past_key_values=past, use_cache=True).past_key_values
        end = time.process_time() if os.environ[CLOCK] == "cpu" else time.perf_counter()
        facts.setdefault("seconds", []).append(end - start)

    facts: dict[str, Any] = {}
    return Entrant(run, facts)


def speed_table(texts: list[int], rounds: int, types: list[str]) -> str:
    """Tokens of one text and of several."""
    names = (*types, *[f"{types[0]} by layers"], *THEIRS, "memory")
    found = apart(rival, names, range(len(texts)), rounds)
    memory = [READ / statistics.median(of_row.pop("memory").seconds) for of_row in found]
    first: dict[str, float] = {}

    def told(row: int, name: str) -> list[str]:
        taken = found[row][name]
        seconds = taken.facts.get("seconds", taken.seconds)[-rounds:]
        token = statistics.median(seconds) / TOKENS
        first.setdefault(name, token)
        size = taken.facts.get("bytes")
        share = f"{size / memory[row] / token:.2f}" if size else ""
        held = f"{size / 1e6:.0f}" if size else ""
        gain = f"{texts[row] * first[name] / token:.1f}"
        return [held, f"{1e3 * token:.2f}", spread(seconds), share, gain]

    lines = models.lines_of(map(str, texts), found, told, 5)
    header = ["texts", "weights", "MB", "ms a token", "", "share of the bytes' time", "× one text"]
    return f"The memory brings {memory[-1] / 1e9:.1f} GB/s.\n\n" + table(header, lines)


def bare(folder: str, name: str) -> dict[str, Any]:
    """Milliseconds of a token of a net of 30 layers that hardly has a weight."""
    import numpy as np

    from singanet import pretrained

    shape = {**models.config("135m"), "hidden_size": 128, "intermediate_size": 128}
    config = {**shape, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256}
    net = pretrained.build(config, inputs=["input_ids"], seed=0)
    if name != "float32":
        net.quantize(name)
    found = {}
    for how in ("by layers", "recorded"):
        net.programs.enabled = how == "recorded"
        decoder = net.decoder(256)
        decoder.read([np.arange(BEFORE)])
        taken = []
        for k in range(40):
            start = time.process_time()
            decoder.read([[k]])
            taken.append(1e3 * (time.process_time() - start))
        found[how] = statistics.median(taken[10:])
    steps = len(net._execution_plan().steps)
    calls = sum(
        1 for call in net.programs.reports()[-1].kernels if call.name not in ("feed", "outputs")
    )
    return {"layers": steps, "calls": calls, **found}


JOBS = {"bare": bare}


def main() -> None:
    """Both tables."""
    parser = models.options(__doc__, rounds=7)
    parser.add_argument("--texts", default="1,8")
    parser.add_argument("--types", default=",".join(OURS), help="float32 is the first")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    given = models.given_to(parser, JOBS)
    if given is None:
        return
    texts = [int(count) for count in given.texts.split(",")]
    os.environ[TEXTS] = json.dumps(texts)
    with models.made_folder(given) as folder:
        shown = [speed_table(texts, given.rounds, given.types.split(","))]
        lines = []
        for name in ("float32", "int8"):
            took = models.alone(given.threads, "bare", folder, name, script=Path(__file__))
            ms = [f"{took[how]:.2f}" for how in ("by layers", "recorded")]
            lines.append([name, str(took["layers"]), str(took["calls"]), *ms])
        header = ["weights", "layers", "recorded calls", "ms by layers", "ms recorded"]
        shown.append(table(header, lines))
    note = given.note and f"{given.note}\n\n"
    name = f"further_tokens_{given.size}_{given.threads}t"
    title = f"Further tokens of a language model of {given.size}"
    publish(name, title, note + introduction(__doc__) + "\n\n" + "\n\n".join(shown))


if __name__ == "__main__":
    main()
