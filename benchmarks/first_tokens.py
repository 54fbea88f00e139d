"""The first token of a language model, by the type of its weights, beside transformers.

The model has SmolLM2's shape and random weights, which all sides read from one folder. A row is a
number of texts of so many tokens each, from which the next one is told: all keys and values are
made anew. Each side has a process of its own, asked in turn; by one thread its processor's time
counts. Medians of the rounds in ms, with half the distance between the quartiles, and how often
float32's time, the median of the rounds' ratios.

The second table has what a process takes before its first token, in ms: what the decoder tries, the
first text of eight tokens, another, and a token behind it, with an empty cache folder and a full
one.

    python benchmarks/first_tokens.py [--size 135m|30m|small] [--threads 1] [--rounds 5]
                                      [--rows 1x1,1x8,4x8,1x128,1x1024] [--isa AVX2]
                                      [--types float32,bfloat16]
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import pretrained as models
from apart import Entrant, apart
from report import introduction, publish, spread, table

OURS = ("float32", "bfloat16", "float16", "int8", "int4")
THEIRS = ("torch float32", "torch bfloat16")
ROWS = "BENCHMARK_ROWS"
"""The environment variable with the rows, which the rivals read."""


def ids_of(texts: int, tokens: int) -> Any:
    """Random ids."""
    import numpy as np

    return np.random.default_rng(0).integers(0, models.WORDS, (texts, tokens))


def rival(name: str, row: int) -> Entrant:
    """What a side does in a row."""
    texts, tokens = json.loads(os.environ[ROWS])[row]
    library, _, dtype = name.rpartition(" ")
    if library:
        return theirs(dtype, ids_of(texts, tokens))
    from singanet import pretrained

    net = pretrained.load(os.environ[models.FOLDER], dtype)
    decoder, x = net.decoder(tokens + 64), [list(ids) for ids in ids_of(texts, tokens)]

    def run() -> None:
        decoder.reset()
        decoder.read(x)

    return Entrant(run)


def theirs(dtype: str, ids: Any) -> Entrant:
    """transformers' side."""
    import torch

    torch.set_grad_enabled(False)
    model, x = models.model_of(os.environ[models.FOLDER], dtype), torch.from_numpy(ids)
    return Entrant(lambda: model(x, use_cache=True, logits_to_keep=1))


def begun(folder: str, dtype: str) -> dict[str, Any]:
    """What the first token takes in this process."""
    from singanet import pretrained

    net, x = pretrained.load(folder, dtype), [list(ids_of(1, 8)[0])]
    found = {}
    for name in ("trial", "first", "again", "next"):
        start = time.process_time()
        if name == "trial":
            decoder = net.decoder(128)
        elif name == "next":
            decoder.read([[1]])
        else:
            decoder.reset()
            decoder.read(x)
        found[name] = 1e3 * (time.process_time() - start)
    return found


def speed_table(rows: list[tuple[int, int]], rounds: int, types: list[str]) -> str:
    """Texts of several lengths."""
    found = apart(rival, (*types, *THEIRS), range(len(rows)), rounds)

    def told(row: int, name: str) -> list[str]:
        taken = found[row][name].seconds
        pairs = zip(taken, found[row]["float32"].seconds, strict=True)
        ms = f"{1e3 * statistics.median(taken):,.1f}"
        return [ms, spread(taken), f"{statistics.median(a / b for a, b in pairs):.2f}"]

    lines = models.lines_of([f"{texts} × {tokens}" for texts, tokens in rows], found, told, 3)
    return table(["texts × tokens", "weights", "ms", "", "of float32's"], lines)


def begin_table(folder: str, threads: int, types: list[str]) -> str:
    """First calls, with an empty cache folder and with what they have left there."""
    lines = []
    alone = partial(models.alone, threads, "begin", folder, script=__file__)
    for dtype in types:
        with tempfile.TemporaryDirectory() as cache:
            before = os.environ.get("XDG_CACHE_HOME")
            os.environ["XDG_CACHE_HOME"] = cache
            for kept in ("empty", "full"):
                took = alone(dtype)
                told = (
                    [took["failed"]] if "failed" in took else [f"{v:,.0f}" for v in took.values()]
                )
                lines.append([dtype, kept, *told])
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before
    return table(["weights", "cache", "trial", "first text", "again", "a token"], lines)


JOBS = {"begin": begun}


def main() -> None:
    """Both tables."""
    parser = models.options(__doc__, rounds=5)
    parser.add_argument("--rows", default="1x1,1x8,4x8,1x128,1x1024")
    parser.add_argument("--types", default=",".join(OURS), help="float32 is the first")
    parser.add_argument("--isa", default="", help="the most that kernels may use, such as AVX2")
    given = models.given_to(parser, JOBS)
    if given is None:
        return
    if given.isa:
        os.environ |= {"ONEDNN_MAX_CPU_ISA": given.isa, "OPENBLAS_CORETYPE": "Haswell"}
        os.environ["ATEN_CPU_CAPABILITY"] = "avx2"
    rows = [tuple(map(int, row.split("x"))) for row in given.rows.split(",")]
    os.environ[ROWS] = json.dumps(rows)
    with models.made_folder(given) as folder:
        types = given.types.split(",")
        shown = [speed_table(rows, given.rounds, types), begin_table(folder, given.threads, types)]
    ops = os.environ.get("SINGANET_OPS", "onednn")
    played = f"_{given.isa.lower()}" if given.isa else ""
    name = f"first_tokens_{given.size}_{ops}_{given.threads}t{played}"
    most = f", at most {given.isa}" if given.isa else ""
    title = f"First tokens of a language model of {given.size}, {ops}{most}"
    publish(name, title, introduction(__doc__) + "\n\n" + "\n\n".join(shown))


if __name__ == "__main__":
    main()
