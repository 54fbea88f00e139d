"""Published models in and out of their files: memory beside the arrays, and seconds, beside peers.

A Llama of SmolLM2-135M's shape with random values goes out of a folder and into one, in one file
and in shards of 200 MB, float32 and bfloat16, by `singanet.pretrained` and by transformers. Peak is
the most that the process held above what it held with all imports, in parts of the arrays' own
bytes in float32. Goal: at most 1.1. transformers maps a file of the type that it wants and reads it
when the values are used, so it holds nothing yet; and it writes a net of the type that is written.
Blocks of GGUF become float32 beside the package `gguf`: a file of Q8_0 that is written first, and
one of your own if you name it.

    python benchmarks/model_files.py [--gguf FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
from report import introduction, publish, table

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152,
    "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
SHARD = 200_000_000
WAYS = {"one file": 10**12, "shards": SHARD}
TYPES = ("float32", "bfloat16")


def memory(key: str) -> int:
    """Bytes this process holds (VmRSS) or held at most (VmHWM) since the mark was reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    return 0


def ours(task: str, folder: Path, out: Path, shard: int, dtype: str) -> tuple[Callable, Callable]:
    """What is imported and warmed up before, and what is measured."""
    from singanet import pretrained

    small = {**CONFIG, "vocab_size": 64, "num_hidden_layers": 1}
    with tempfile.TemporaryDirectory() as warm:
        pretrained.save(pretrained.build(small, seed=0), warm, dtype, shard_bytes=10**5)
        pretrained.load(warm)
    if task == "in":
        return lambda: None, lambda _: pretrained.load(folder)
    return (
        lambda: pretrained.load(folder),
        lambda net: pretrained.save(net, out, dtype, shard_bytes=shard),
    )


def of_transformers(
    task: str, folder: Path, out: Path, shard: int, dtype: str
) -> tuple[Callable, Callable]:
    """The same by transformers, whose nets on the way out have the type that is written."""
    import torch
    import transformers

    torch.set_num_threads(1)
    small = transformers.LlamaConfig(**{**CONFIG, "vocab_size": 64, "num_hidden_layers": 1})
    model = transformers.LlamaForCausalLM(small)
    with tempfile.TemporaryDirectory() as warm:
        model.to(getattr(torch, dtype)).save_pretrained(warm, max_shard_size="100KB")
        transformers.LlamaForCausalLM.from_pretrained(warm, dtype=torch.float32)

    def load(type_: str) -> object:
        kind = getattr(torch, type_)
        return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=kind)

    if task == "in":
        return lambda: None, lambda _: load("float32")
    return lambda: load(dtype), lambda net: net.save_pretrained(out, max_shard_size=shard)


def blocks_here(path: Path) -> object:
    """Every array of a GGUF file, one after the other."""
    from singanet.checkpoint import open_state

    with open_state(path) as reader:
        for _, array in reader:
            del array
    return None


def blocks_there(path: Path) -> object:
    """The same by the package."""
    import gguf
    from gguf import quants

    for each in gguf.GGUFReader(path).tensors:
        quants.dequantize(each.data, each.tensor_type)
    return None


def child(who: str, task: str, folder: Path, out: Path, shard: int, dtype: str) -> dict[str, float]:
    """Seconds and peak bytes of one way, in this process."""
    if task == "blocks":
        job = {"singanet": blocks_here, "gguf": blocks_there}[who]
        job(folder)
        start = time.process_time()
        job(folder)
        return {"cpu": time.process_time() - start}
    make = {"singanet": ours, "transformers": of_transformers}[who]
    before, job_of = make(task, folder, out, shard, dtype)
    Path("/proc/self/clear_refs").write_text("5")
    start_bytes = memory("VmRSS")
    net = before()
    cpu, start = time.process_time(), time.perf_counter()
    kept = job_of(net)
    seconds, busy = time.perf_counter() - start, time.process_time() - cpu
    del kept
    return {"s": seconds, "cpu": busy, "peak": memory("VmHWM") - start_bytes}


def measure(*words: object) -> dict[str, float]:
    """`child` in a process of its own, on one thread."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    done = subprocess.run(
        [sys.executable, __file__, "--child", *map(str, words)],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads},
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def folders(place: Path, rounds: int) -> str:
    """Rows of both libraries, in and out, in every form."""
    from singanet import pretrained

    net = pretrained.build(CONFIG, seed=0)
    size = sum(param.value.nbytes for param in net.params())
    for way, shard in WAYS.items():
        for dtype in TYPES:
            pretrained.save(net, place / f"{way} {dtype}", dtype, shard_bytes=shard)
    del net
    rows = []
    for task, dtype, way, who in product(("in", "out"), TYPES, WAYS, ("singanet", "transformers")):
        found = []
        for _ in range(rounds):
            out = place / "out"
            found.append(measure(who, task, place / f"{way} {dtype}", out, WAYS[way], dtype))
            shutil.rmtree(out, ignore_errors=True)
        s, cpu = (statistics.median(each[key] for each in found) for key in ("s", "cpu"))
        peak = max(each["peak"] for each in found)
        told = [f"{peak / size:.3f}", f"{(peak - size) / 1e6:+.0f}", f"{s:.2f}", f"{cpu:.2f}"]
        rows.append([task, dtype, way, who, *told])
    header = ["", "stored as", "in", "by", "peak / arrays", "beside them, MB", "s", "s of CPU"]
    return f"Arrays: {size / 1e6:.0f} MB in float32.\n\n{table(header, rows)}"


def blocks(place: Path, named: str | None, rounds: int) -> str:
    """Seconds of dequantising all arrays of a file."""
    from singanet.checkpoint import FORMATS

    rng = np.random.default_rng(0)
    state = {f"w{k}": rng.standard_normal((2048, 2048), np.float32) for k in range(20)}
    FORMATS["gguf"].write(place / "q8_0.gguf", state, dtype="q8_0")
    rows = []
    for path in (place / "q8_0.gguf", *([Path(named)] if named else [])):
        of = {
            who: statistics.median(
                measure(who, "blocks", path, path, 0, "-")["cpu"] for _ in range(rounds)
            )
            for who in ("singanet", "gguf")
        }
        ratio = of["gguf"] / of["singanet"]
        rows.append([path.name, f"{of['singanet']:.2f}", f"{of['gguf']:.2f}", f"{ratio:.1f} ×"])
    return table(["file", "singanet, s of CPU", "gguf package", "faster"], rows)


def main() -> None:
    """Measure, or be measured."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gguf")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=6)
    options = parser.parse_args()
    if options.child:
        who, task, folder, out, shard, dtype = options.child
        print(json.dumps(child(who, task, Path(folder), Path(out), int(shard), dtype)))
        return
    with tempfile.TemporaryDirectory() as folder:
        body = [introduction(__doc__), folders(Path(folder), options.rounds)]
        try:
            body.append(
                "## Blocks of GGUF\n\n" + blocks(Path(folder), options.gguf, options.rounds)
            )
        except subprocess.CalledProcessError:
            body.append("The package gguf is not here.")
    publish("model_files", "Files of published models", "\n\n".join(body))


if __name__ == "__main__":
    main()
