"""A published language model fine-tuned whole: memory, speed and equality, beside transformers.

The model has SmolLM2's shape and random weights; both sides read the same folder, each figure in a
process of its own. PyTorch's optimizers update in hooks while gradients come, and its blocks are
checkpointed where a row says so: the leanest that it has. Peaks are above the interpreter with its
libraries, in MB; "planned" is what was predicted of it. Seconds are the processor's, the least of
some steps. ``losses`` are those of all steps, one per row: they are to agree.

    python benchmarks/pretrained.py [--size 135m|360m|small] [--steps 512] [--threads 1] [PART ...]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import introduction, publish, table

SIZES = {
    "135m": {"hidden_size": 576, "layers": 30, "heads": 9, "kv": 3, "units": 1536},
    "360m": {"hidden_size": 960, "layers": 32, "heads": 15, "kv": 5, "units": 2560},
    "small": {"hidden_size": 64, "layers": 2, "heads": 4, "kv": 2, "units": 96},
}
WORDS = 49152
STEPS = 3
MEMORY = (
    ("singanet", "SGD", ""),
    ("singanet", "Adafactor", ""),
    ("singanet", "Adafactor", "blocks"),
    ("singanet", "AdamW", ""),
    ("torch", "SGD", ""),
    ("torch", "Adafactor", "hooks, checkpointing"),
    ("torch", "AdamW", "hooks, checkpointing"),
)
"""Library, rule, and what saves memory in the row."""
SPEED = ("singanet", "torch")


def config(size: str) -> dict[str, Any]:
    """The config.json of a Llama of SmolLM2's shape."""
    s = SIZES[size]
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": s["hidden_size"],
        "intermediate_size": s["units"],
        "max_position_embeddings": 8192,
        "num_attention_heads": s["heads"],
        "num_hidden_layers": s["layers"],
        "num_key_value_heads": s["kv"],
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "vocab_size": WORDS,
    }


def resident(field: str) -> float:
    """``VmHWM`` or ``VmRSS`` in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def timed(run: Callable[[], object], times: int) -> float:
    """The least of the processor's seconds."""
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def batch(steps: int) -> Any:
    """Ids, and those that come next."""
    import numpy as np

    ids = np.random.default_rng(0).integers(0, WORDS, (1, steps + 1))
    return ids[:, :-1], ids[:, 1:]


# -- singanet -------------------------------------------------------------------------------------


def make(folder: str, size: str) -> dict[str, Any]:
    """Write the folder that both sides read."""
    from singanet import pretrained

    pretrained.save(pretrained.build(config(size), seed=0), folder)
    return {}


def train_ours(folder: str, steps: int, rule: str, saving: str) -> dict[str, Any]:
    """Training steps: the peak, the seconds, and the losses."""
    from singanet import pretrained
    from singanet.optimizer import SGD, Adafactor, AdamW

    rules = {"SGD": SGD(lr=0.02), "Adafactor": Adafactor(lr=1e-3), "AdamW": AdamW(lr=1e-4)}
    x, y = batch(steps)
    warm = pretrained.build(config("small") | {"vocab_size": WORDS // 64})
    warm.step(x % (WORDS // 64), y % (WORDS // 64), SGD(lr=0.0))  # libraries are loaded
    del warm
    before = resident("VmRSS")
    net = pretrained.load(folder)
    optimizer, losses = rules[rule], []
    net.programs.at_once = True
    if saving:
        net.programs.recompute = saving  # type: ignore[assignment]
    start = time.process_time()
    losses.append(net.step(x, y, optimizer)[0])
    first = time.process_time() - start
    seconds = timed(lambda: losses.append(net.step(x, y, optimizer)[0]), STEPS - 1)
    peak = resident("VmHWM") - before
    planned = net.memory(1, optimizer, extent=steps, recompute=saving or None).total / 1e6
    return {"peak": peak, "planned": planned, "s": seconds, "first": first, "losses": losses}


def run_ours(folder: str, steps: int) -> dict[str, Any]:
    """Prefill, and ids one by one."""
    from singanet import pretrained

    net = pretrained.load(folder)
    x, _ = batch(steps)
    net.forward(False, x)
    found = {"prefill": timed(lambda: net.forward(False, x), 3), "logits": _sample(net, x)}
    decoder = net.decoder(steps + 64)
    decoder(x[:, :64])
    found["decode"] = timed(lambda: decoder(x[:, :1]), 32)
    return found


def _sample(net: Any, x: Any) -> list[float]:
    return [float(each) for each in net.forward(False, x[:, :16])[0, -1, :8]]


# -- transformers and torch -----------------------------------------------------------------------


def model_of(folder: str) -> Any:
    """transformers' model of the folder."""
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def train_theirs(folder: str, steps: int, rule: str, saving: str) -> dict[str, Any]:
    """Training steps: the peak, the seconds, and the losses."""
    import torch
    import transformers

    x, y = (torch.from_numpy(each) for each in batch(steps))
    warm = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(**config("small") | {"vocab_size": WORDS // 64})
    )
    warm(x % (WORDS // 64)).logits.sum().backward()  # libraries are loaded
    del warm
    before = resident("VmRSS")
    model = model_of(folder)
    model.train()
    rules = {
        "SGD": lambda ps: torch.optim.SGD(ps, lr=0.02),
        "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-3),
        "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-4),
    }
    if "checkpointing" in saving:
        model.gradient_checkpointing_enable()
    hooked = "hooks" in saving
    if hooked:
        one = {p: rules[rule]([p]) for p in model.parameters()}

        def update(parameter: Any) -> None:
            one[parameter].step()
            one[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
    else:
        whole = rules[rule](model.parameters())
    losses = []

    def step() -> None:
        out = model(x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, WORDS), y.reshape(-1))
        losses.append(float(loss))
        loss.backward()
        if not hooked:
            whole.step()
            whole.zero_grad()

    start = time.process_time()
    step()
    first = time.process_time() - start
    seconds = timed(step, STEPS - 1)
    peak = resident("VmHWM") - before
    return {"peak": peak, "s": seconds, "first": first, "losses": losses}


def run_theirs(folder: str, steps: int) -> dict[str, Any]:
    """Prefill, and ids one by one."""
    import torch

    model = model_of(folder)
    x = torch.from_numpy(batch(steps)[0])
    with torch.no_grad():
        model(x)
        found: dict[str, Any] = {"prefill": timed(lambda: model(x), 3)}
        found["logits"] = model(x[:, :16]).logits[0, -1, :8].tolist()
        held = [model(x[:, :64], use_cache=True).past_key_values]

        def one() -> None:
            held[0] = model(x[:, :1], past_key_values=held[0], use_cache=True).past_key_values

        found["decode"] = timed(one, 32)
    return found


# -- both -----------------------------------------------------------------------------------------

JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "make": make,
    "train singanet": train_ours,
    "train torch": train_theirs,
    "run singanet": run_ours,
    "run torch": run_theirs,
}


def apart(threads: int, job: str, *args: object) -> dict[str, Any]:
    """What a process of its own tells of the job."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--job", json.dumps([job, *args])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_table(folder: str, steps: int, threads: int) -> str:
    """Peaks and seconds of training steps."""
    rows = []
    for library, rule, saving in MEMORY:
        took = apart(threads, f"train {library}", folder, steps, rule, saving)
        if "failed" in took:
            rows.append([library, rule, saving, took["failed"], "", "", "", ""])
            continue
        planned = f"{took['planned']:,.0f}" if "planned" in took else ""
        losses = " ".join(f"{loss:.4f}" for loss in took["losses"])
        figures = [
            f"{took['peak']:,.0f}",
            planned,
            f"{took['s']:.2f}",
            f"{took['first']:.2f}",
            losses,
        ]
        rows.append([library, rule, saving or "—", *figures])
        print(*rows[-1], sep=" | ", flush=True)
    return table(["library", "rule", "saving", "peak", "planned", "s", "first s", "losses"], rows)


def speed_table(folder: str, steps: int, threads: int) -> str:
    """Tokens a second."""
    rows, logits = [], []
    for library in SPEED:
        took = apart(threads, f"run {library}", folder, steps)
        if "failed" in took:
            rows.append([library, took["failed"], ""])
            continue
        rows.append([library, f"{steps / took['prefill']:,.0f}", f"{1 / took['decode']:.1f}"])
        logits.append(took["logits"])
    far = (
        max(abs(a - b) for a, b in zip(*logits, strict=True)) if len(logits) == 2 else float("nan")
    )
    head = ["library", f"prefill of {steps}, tokens/s", "decode, tokens/s"]
    return table(head, rows) + f"\n\nThe logits looked at differ by at most {far:.1e}."


def main() -> None:
    """Run the parts, each side in its own processes."""
    parser = argparse.ArgumentParser(description=introduction(__doc__))
    parser.add_argument("--size", default="135m", choices=SIZES)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", default=["memory", "speed"])
    given = parser.parse_args()
    if given.job:
        job, *args = json.loads(given.job)
        print(json.dumps(JOBS[job](*args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        apart(given.threads, "make", folder, given.size)
        tables = {"memory": memory_table, "speed": speed_table}
        found = [tables[part](folder, given.steps, given.threads) for part in given.parts]
    ops = os.environ.get("SINGANET_OPS", "numpy")
    name = f"pretrained_{given.size}_{given.steps}_{ops}_{given.threads}t"
    title = (
        f"A language model of {given.size}, {given.steps} tokens, {ops}, threads: {given.threads}"
    )
    publish(name, title, introduction(__doc__) + "\n\n" + "\n\n".join(found))


if __name__ == "__main__":
    main()
