"""A language model with weights in fewer bits: bytes, speed and memory, beside PyTorch.

The model has SmolLM2's shape and random weights, which all sides read from one folder, each figure
in a process of its own. Held are the bytes of all parameters, in MB; peaks are above what was
resident before the model was read, in MB: after reading, and after three steps of training on the
512 tokens, with Adafactor and blocks recomputed, or for blocks of 4 bits with pairs of rank 8 and
AdamW; "planned" is what was predicted of these. Tokens a second are by the processor's time, the
least of some runs; the decoder has 64 tokens before. "products alone" is what the matrix products
of a token take, with weights that no cache has, and "at" what that reads a second. The worst error
is that of a weight, as the root mean square of the difference over that of the weight.

    python benchmarks/narrow_weights.py [--size 135m|30m|small] [--steps 512] [--threads 1]
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pretrained as models
from report import introduction, publish, table

TYPES = ("float32", "bfloat16", "int8", "int4")
TRAINED = (("float32", "full"), ("bfloat16", "full"), ("bfloat16 remainder", "full"))
ADAPTED = (("float32", "pairs"), ("int4", "pairs"))


def run_ours(folder: str, steps: int, dtype: str) -> dict[str, Any]:
    """Bytes held, prefill, decode, and the products of a token alone."""
    from singanet import pretrained

    before = models.resident("VmRSS")
    net = pretrained.load(folder, dtype)
    found: dict[str, Any] = {
        "held": sum(param.storage.nbytes for param in net.params()) / 1e6,
        "read": models.resident("VmHWM") - before,
    }
    x, _ = models.batch(steps)
    net.forward(False, x)
    found["prefill"] = models.timed(lambda: net.forward(False, x), 3)
    decoder = net.decoder(steps + 64)
    decoder(x[:, :64])
    found["decode"] = models.timed(lambda: decoder(x[:, :1]), 64)
    found["products"] = models.timed(_products(net), 12)
    return found


def _products(net: Any) -> Callable[[], None]:
    """All products of one token, without what is between them."""
    import numpy as np

    ops, made = net.device.ops, []
    rng = np.random.default_rng(0)
    for layer in net.layers:
        for suffix, transposed in layer.products().items():
            factor = layer.params[suffix].factor()
            matrix = factor.T if transposed else factor
            made.append((rng.standard_normal((1, matrix.shape[0]), np.float32), matrix))

    def run() -> None:
        for row, matrix in made:
            ops.matmul(row, matrix)

    return run


def train_ours(folder: str, steps: int, kind: str, how: str) -> dict[str, Any]:
    """Steps: the peak and what was planned of it, the seconds of the last ones, the losses."""
    from singanet import pretrained
    from singanet.optimizer import Adafactor, AdamW

    dtype, _, rounding = kind.partition(" ")
    x, y = models.batch(steps)
    warm = pretrained.build(models.config("small") | {"vocab_size": 64})
    warm.step(x % 64, y % 64, Adafactor(lr=0.0))  # libraries are loaded
    del warm
    before = models.resident("VmRSS")
    net = pretrained.load(folder, dtype, rounding=rounding or None, recompute="blocks")
    if how == "pairs":
        net.adapt(8, "all")
    rule = AdamW(lr=1e-3) if how == "pairs" else Adafactor(lr=1e-3)
    losses = [net.step(x, y, rule)[0]]
    seconds = models.timed(lambda: losses.append(net.step(x, y, rule)[0]), 2)
    peak = models.resident("VmHWM") - before
    planned = net.memory(1, rule, extent=steps).total / 1e6
    return {"peak": peak, "planned": planned, "s": seconds, "losses": losses}


def errors(folder: str) -> dict[str, Any]:
    """The worst error of a weight, by type."""
    from singanet import pretrained

    return {
        dtype: max(pretrained.load(folder).quantize(dtype).errors.values())
        for dtype in ("int8", "int4")
    }


def run_theirs(folder: str, steps: int, dtype: str) -> dict[str, Any]:
    """Prefill and decode of transformers."""
    import torch
    import transformers  # noqa: F401 - before the memory is read

    before = models.resident("VmRSS")
    model = models.model_of(folder, dtype)
    found: dict[str, Any] = {
        "held": sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6,
        "read": models.resident("VmHWM") - before,
    }
    x = torch.from_numpy(models.batch(steps)[0])
    with torch.no_grad():
        model(x)
        found["prefill"] = models.timed(lambda: model(x), 3)
        held = [model(x[:, :64], use_cache=True).past_key_values]

        def one() -> None:
            held[0] = model(x[:, :1], past_key_values=held[0], use_cache=True).past_key_values

        found["decode"] = models.timed(one, 64)
    return found


JOBS: dict[str, Callable[..., dict[str, Any]]] = {
    "errors": errors,
    "run singanet": run_ours,
    "run torch": run_theirs,
    "train": train_ours,
}


apart = partial(models.alone, script=__file__)


def speed_table(folder: str, steps: int, threads: int) -> str:
    """Bytes and tokens a second."""
    worst = apart(threads, "errors", folder)
    rows = []
    cases = [("singanet", dtype) for dtype in TYPES]
    for library, dtype in [*cases, ("torch", "float32"), ("torch", "bfloat16")]:
        took = apart(threads, f"run {library}", folder, steps, dtype)
        if "failed" in took:
            rows.append([library, dtype, took["failed"], *[""] * 6])
            continue
        figures = [
            f"{took['held']:,.0f}",
            f"{took['read']:,.0f}",
            f"{steps / took['prefill']:,.0f}",
            f"{1 / took['decode']:.1f}",
        ]
        alone = ["", ""]
        if "products" in took:
            ms = 1e3 * took["products"]
            alone = [f"{ms:.1f} ms", f"{took['held'] / ms:.1f} GB/s"]
        error = f"{worst[dtype]:.2%}" if dtype in worst else ""
        rows.append([library, dtype, *figures, *alone, error])
        print(*rows[-1], sep=" | ", flush=True)
    head = ["library", "weights", "held", "peak of reading", f"prefill of {steps}, tokens/s"]
    return table([*head, "decode, tokens/s", "products alone", "at", "worst error"], rows)


def memory_table(folder: str, steps: int, threads: int) -> str:
    """Peaks of training."""
    rows = []
    for kind, how in (*TRAINED, *ADAPTED):
        took = apart(threads, "train", folder, steps, kind, how)
        if "failed" in took:
            rows.append([kind, how, took["failed"], "", "", ""])
            continue
        losses = " ".join(f"{loss:.4f}" for loss in took["losses"])
        peaks = f"{took['peak']:,.0f}", f"{took['planned']:,.0f}"
        rows.append([kind, how, *peaks, f"{took['s']:.2f}", losses])
        print(*rows[-1], sep=" | ", flush=True)
    return table(["weights", "trained", "peak", "planned", "s of a step", "losses"], rows)


def main() -> None:
    """Run both tables, each row in a process of its own."""
    parser = models.options(__doc__)
    parser.add_argument("--steps", type=int, default=512)
    given = models.given_to(parser, JOBS)
    if given is None:
        return
    with models.made_folder(given) as folder:
        shown = [part(folder, given.steps, given.threads) for part in (speed_table, memory_table)]
    ops = os.environ.get("SINGANET_OPS", "numpy")
    name = f"narrow_weights_{given.size}_{ops}_{given.threads}t"
    title = f"Weights in fewer bits: a language model of {given.size}, {ops}"
    publish(name, title, introduction(__doc__) + "\n\n" + "\n\n".join(shown))


if __name__ == "__main__":
    main()
