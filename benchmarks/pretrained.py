"""A published language model fine-tuned whole: memory, speed and equality, beside transformers.

The model has the shape of SmolLM2, or of TinyLlama (1.1b), and random weights; both sides read the
same folder, each figure in a process of its own. PyTorch's optimizers update in hooks while
gradients come, and its blocks are checkpointed where a row says so: the leanest that it has. Peaks
are above the interpreter with its libraries, in MB; "planned" is what was predicted of it. Seconds
of the memory table are the processor's, the least of some steps; ``losses`` are those of all steps,
one per row: they are to agree. The table of speeds has both sides alive at once and asked in turn:
medians of the rounds, with half the distance between the quartiles.

    python benchmarks/pretrained.py [--size 135m|360m|1.1b|30m|small] [--steps 512] [--threads 1]
                                    [--rounds 7] [--rows 0 1 2 3] [memory] [around] [speed]

``around`` are steps with clipping by the global norm and with accumulation of four. ``--rows``
are those of the table of speeds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from apart import CLOCK, Entrant, Taken, apart
from report import introduction, publish, spread, table

SIZES = {
    "135m": {"hidden_size": 576, "layers": 30, "heads": 9, "kv": 3, "units": 1536},
    "360m": {"hidden_size": 960, "layers": 32, "heads": 15, "kv": 5, "units": 2560},
    "1.1b": {
        "hidden_size": 2048,
        "layers": 22,
        "heads": 32,
        "kv": 4,
        "units": 5632,
        "words": 32000,
    },
    "30m": {"hidden_size": 384, "layers": 6, "heads": 6, "kv": 2, "units": 1024},
    "small": {"hidden_size": 64, "layers": 2, "heads": 4, "kv": 2, "units": 96},
}
WORDS, KNOWN = 49152, 32000
"""Words of most models, and those that all of them know."""
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
LARGE = (("singanet", "AdamW", "blocks, folder"),)
"""The rows of a model whose optimizer's state would not fit."""
KEPT = "800MB"
"""What of a model in a folder stays in memory."""
AROUND = tuple(
    ("singanet", f"{rule}{around}", "")
    for rule in ("SGD", "Adafactor", "AdamW")
    for around in ("", ", clipping", ", accumulation of 4")
)
SPEED = (
    ("training, SGD", "SGD", "", ""),
    ("training, Adafactor", "Adafactor", "blocks", "hooks, checkpointing"),
    ("prefill", "", "", ""),
    ("decode", "", "", ""),
)
"""What is timed, the rule, and what saves memory here and there."""


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
        "tie_word_embeddings": size != "1.1b",
        "vocab_size": s.get("words", WORDS),
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

    ids = np.random.default_rng(0).integers(0, KNOWN, (1, steps + 1))
    return ids[:, :-1], ids[:, 1:]


# -- singanet -------------------------------------------------------------------------------------


def make(folder: str, size: str) -> dict[str, Any]:
    """Write the folder that both sides read."""
    from singanet import pretrained

    pretrained.save(pretrained.build(config(size), seed=0), folder)
    return {}


def load_ours(folder: str, saving: str) -> Any:
    """The net, and a step of it that makes no first pass by the layers."""
    from singanet import pretrained
    from singanet.optimizer import SGD

    x, y = batch(256)
    warm = pretrained.build(config("small") | {"vocab_size": WORDS // 64})
    warm.step(x % (WORDS // 64), y % (WORDS // 64), SGD(lr=0.0))  # libraries are loaded
    del warm
    before = resident("VmRSS")
    recompute: Any = "blocks" if "blocks" in saving else "none"
    if "folder" in saving:
        # Within the model's, and removed with it.
        at = Path(tempfile.mkdtemp(dir=folder)) / "offloaded"
        net = pretrained.load(folder, offload_folder=at, keep=KEPT, recompute=recompute)
    else:
        net = pretrained.load(folder, recompute=recompute)
        net.programs.at_once = True
    return net, before


def rule_ours(rule: str) -> Any:
    """The optimizer of a row's name."""
    from singanet.optimizer import SGD, Accumulator, Adafactor, AdamW, ClipByGlobalNorm

    name, _, around = rule.partition(", ")
    # As PyTorch adds its epsilon.
    adam = AdamW(lr=1e-4, epsilon_after_correction=True)
    made: Any = {"SGD": SGD(lr=0.02), "Adafactor": Adafactor(lr=1e-3), "AdamW": adam}[name]
    if around == "clipping":
        return ClipByGlobalNorm(made, 1.0)
    return Accumulator(made, 4) if around else made


def train_ours(folder: str, steps: int, rule: str, saving: str) -> dict[str, Any]:
    """Training steps: the peak, the seconds, and the losses."""
    x, y = batch(steps)
    net, before = load_ours(folder, saving)
    optimizer, losses = rule_ours(rule), []
    start = time.process_time()
    losses.append(net.step(x, y, optimizer)[0])
    first = time.process_time() - start
    count = 2 * STEPS if "accumulation" in rule else STEPS - 1
    seconds = timed(lambda: losses.append(net.step(x, y, optimizer)[0]), count)
    peak = resident("VmHWM") - before
    found = {"peak": peak, "s": seconds, "first": first, "losses": losses}
    if net.executor.can.records:
        found["planned"] = net.memory(1, optimizer, extent=steps).total / 1e6
    return found


def speed_ours(folder: str, steps: int, task: str, rule: str, saving: str) -> Entrant:
    """What is timed, with the logits of a few ids."""
    x, y = batch(steps)
    net, _ = load_ours(folder, saving)
    if rule:
        optimizer = rule_ours(rule)
        return Entrant(lambda: net.step(x, y, optimizer))
    few = net.forward(False, x[:, :16])[0, -1, :8].tolist()
    if task == "prefill":
        return Entrant(lambda: net.forward(False, x), {"logits": few})
    decoder = net.decoder(steps + 4096)
    decoder(x[:, :64])
    return Entrant(lambda: decoder(x[:, :1]), {"logits": few})


# -- transformers and torch -----------------------------------------------------------------------


def model_of(folder: str, dtype: str = "float32") -> Any:
    """Return transformers' model of the folder."""
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))


def load_theirs(folder: str) -> Any:
    """The model, once libraries are loaded."""
    import torch
    import transformers

    x, _ = (torch.from_numpy(each) for each in batch(64))
    warm = transformers.AutoModelForCausalLM.from_config(
        transformers.LlamaConfig(**config("small") | {"vocab_size": WORDS // 64})
    )
    warm(x % (WORDS // 64)).logits.sum().backward()
    del warm
    before = resident("VmRSS")
    return model_of(folder), before


def stepper_theirs(
    model: Any, steps: int, rule: str, saving: str, losses: list[float]
) -> Callable[[], None]:
    """A training step, which notes its loss."""
    import torch

    x, y = (torch.from_numpy(each) for each in batch(steps))
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

    def step() -> None:
        out = model(x, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        losses.append(loss.item())
        loss.backward()
        if not hooked:
            whole.step()
            whole.zero_grad()

    return step


def train_theirs(folder: str, steps: int, rule: str, saving: str) -> dict[str, Any]:
    """Training steps: the peak, the seconds, and the losses."""
    model, before = load_theirs(folder)
    losses: list[float] = []
    step = stepper_theirs(model, steps, rule, saving, losses)
    start = time.process_time()
    step()
    first = time.process_time() - start
    seconds = timed(step, STEPS - 1)
    peak = resident("VmHWM") - before
    return {"peak": peak, "s": seconds, "first": first, "losses": losses}


def speed_theirs(folder: str, steps: int, task: str, rule: str, saving: str) -> Entrant:
    """What is timed, with the logits of a few ids."""
    import torch

    model, _ = load_theirs(folder)
    if rule:
        return Entrant(stepper_theirs(model, steps, rule, saving, []))
    x = torch.from_numpy(batch(steps)[0])
    torch.set_grad_enabled(False)
    few = model(x[:, :16]).logits[0, -1, :8].tolist()
    if task == "prefill":
        return Entrant(lambda: model(x), {"logits": few})
    held = [model(x[:, :64], use_cache=True).past_key_values]

    def one() -> None:
        held[0] = model(x[:, :1], past_key_values=held[0], use_cache=True).past_key_values

    return Entrant(one, {"logits": few})


# -- both -----------------------------------------------------------------------------------------

JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "make": make,
    "train singanet": train_ours,
    "train torch": train_theirs,
}
FOLDER, TOKENS = "BENCHMARK_FOLDER", "BENCHMARK_TOKENS"
"""Environment variables, which the rivals of a row read."""


def rival(library: str, row: int) -> Entrant:
    """What a library does in a row of `SPEED`."""
    task, rule, ours, theirs = SPEED[row]
    folder, steps = os.environ[FOLDER], int(os.environ[TOKENS])
    if library == "singanet":
        return speed_ours(folder, steps, task, rule, ours)
    return speed_theirs(folder, steps, task, rule, theirs)


def alone(threads: int, job: str, *args: object, script: str = __file__) -> dict[str, Any]:
    """What a process of its own tells of the job of ``script``."""
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, script, "--job", json.dumps([job, *args])]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def options(doc: str, rounds: int = 0) -> argparse.ArgumentParser:
    """Return a parser of the options that all benchmarks of language models have."""
    parser = argparse.ArgumentParser(description=introduction(doc))
    parser.add_argument("--size", default="135m", choices=SIZES)
    parser.add_argument("--threads", type=int, default=1)
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds)
    return parser


@contextmanager
def made_folder(given: argparse.Namespace) -> Iterator[str]:
    """A block with a folder of the model; rivals find it, threads and clock in the environment."""
    os.environ |= {f"{name}_NUM_THREADS": str(given.threads) for name in ("OMP", "OPENBLAS")}
    os.environ[CLOCK] = "cpu" if given.threads == 1 else "wall"
    with tempfile.TemporaryDirectory() as folder:
        alone(given.threads, "make", folder, given.size)
        os.environ[FOLDER] = folder
        yield folder


def given_to(
    parser: argparse.ArgumentParser, jobs: Mapping[str, Callable[..., dict[str, Any]]]
) -> argparse.Namespace | None:
    """The arguments; None in a process that `alone` began, whose job of ``jobs`` is done then."""
    parser.add_argument("--job", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.job:
        return given
    job, *args = json.loads(given.job)
    print(json.dumps(jobs[job](*args)))
    return None


def lines_of(
    rows: Iterable[str],
    found: Iterable[Mapping[str, Taken]],
    told: Callable[[int, str], list[str]],
    count: int,
) -> list[list[str]]:
    """The lines of a table: of each row and side the ``count`` cells ``told``, or its failure."""
    lines = []
    for number, (row, of_row) in enumerate(zip(rows, found, strict=True)):
        for name, taken in of_row.items():
            why = [taken.failure, *[""] * (count - 1)]
            lines.append([row, name, *(why if taken.failure else told(number, name))])
    return lines


def memory_table(
    given: argparse.Namespace, folder: str, wanted: tuple[tuple[str, str, str], ...]
) -> str:
    """Peaks and seconds of training steps."""
    rows = []
    for library, rule, saving in wanted:
        took = alone(given.threads, f"train {library}", folder, given.steps, rule, saving)
        if "failed" in took:
            rows.append([library, rule, saving, took["failed"], "", "", "", ""])
            print(*rows[-1], sep=" | ", flush=True)
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


def speed_table(given: argparse.Namespace) -> str:
    """Seconds, and tokens a second."""
    os.environ[TOKENS] = str(given.steps)
    rows, far = [], 0.0
    found = apart(rival, ("singanet", "torch"), given.rows, given.rounds)
    for row, of_row in zip(given.rows, found, strict=True):
        task = SPEED[row][0]
        ours, theirs = of_row["singanet"], of_row["torch"]
        if ours.failure or theirs.failure:
            rows.append([task, ours.failure, theirs.failure, ""])
            continue
        tokens = 1 if task == "decode" else given.steps
        told = [
            f"{tokens / statistics.median(each.seconds):,.1f} {spread(each.seconds)}"
            for each in (ours, theirs)
        ]
        pairs = zip(theirs.seconds, ours.seconds, strict=True)
        rows.append([task, *told, f"{statistics.median(a / b for a, b in pairs):.2f}"])
        if "logits" in ours.facts:
            logits = zip(ours.facts["logits"], theirs.facts["logits"], strict=True)
            far = max(far, *(abs(a - b) for a, b in logits))
    head = ["tokens a second", "singanet", "torch", "torch / singanet, time"]
    told = f"\n\nThe logits looked at differ by at most {far:.1e}." if far else ""
    return table(head, rows) + told


def main() -> None:
    """Run the parts, each side in its own processes."""
    parser = options(__doc__, rounds=7)
    parser.add_argument("--steps", type=int, default=512)
    parser.add_argument("--rows", type=int, nargs="*", default=[*range(len(SPEED))])
    parser.add_argument("parts", nargs="*", default=["memory", "speed"])
    given = given_to(parser, JOBS)
    if given is None:
        return
    tables: dict[str, Callable[[str], str]] = {
        "memory": lambda at: memory_table(given, at, LARGE if given.size == "1.1b" else MEMORY),
        "around": lambda at: memory_table(given, at, AROUND),
        "speed": lambda _: speed_table(given),
    }
    with made_folder(given) as folder:
        found = [tables[part](folder) for part in given.parts]
    ops = os.environ.get("SINGANET_OPS", "numpy")
    part = "" if given.parts == ["memory", "speed"] else f"_{'_'.join(given.parts)}"
    name = f"pretrained_{given.size}_{given.steps}{part}_{ops}_{given.threads}t"
    title = (
        f"A language model of {given.size}, {given.steps} tokens, {ops}, threads: {given.threads}"
    )
    publish(name, title, introduction(__doc__) + "\n\n" + "\n\n".join(found))


if __name__ == "__main__":
    main()
