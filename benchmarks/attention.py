"""Streamed attention against the formula over whole weights, and PyTorch's, forward and back.

Heads are views of (N, T, heads x size), as a layer has them. The formula is here: scores, softmax
and four products back, by the kernels of the same backend. Every rival has a process of its own,
its turn in each round, and for a peak what it takes beyond its imports and operands. With one
thread the clock is that of the processor.

    python benchmarks/attention.py --ops onednn --threads 1
"""

from __future__ import annotations

import argparse
import os
import statistics
from typing import Any, NamedTuple

OPTIONS = argparse.ArgumentParser(description=__doc__)
OPTIONS.add_argument("--ops", choices=["numpy", "onednn"], default="onednn")
OPTIONS.add_argument("--threads", type=int, default=1)
OPTIONS.add_argument("--rounds", type=int, default=7)
OPTIONS.add_argument("--rows", type=int, nargs="*")
GIVEN = OPTIONS.parse_args()
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[name] = str(GIVEN.threads)
os.environ["SINGANET_OPS"] = GIVEN.ops
if GIVEN.threads == 1:
    os.environ["BENCHMARK_CLOCK"] = "cpu"

import numpy as np  # noqa: E402 - after the number of threads
from apart import Entrant, NoEntryError, Taken, apart  # noqa: E402
from report import publish, table  # noqa: E402

RIVALS = ("streamed", "whole", "torch")
MOST = 1 << 30
"""Bytes of weights and their gradients from which the formula is not tried."""


class Row(NamedTuple):
    """Samples, steps, heads of queries and of keys, features of a head."""

    samples: int
    steps: int
    heads: int
    groups: int
    size: int
    causal: bool


ROWS = [
    *(Row(1, steps, 9, 3, 64, True) for steps in (128, 256, 512, 1024, 2048, 8192)),
    *(Row(1, steps, 12, 12, 64, False) for steps in (128, 512, 2048)),
]


def drawn(row: Row) -> list[Any]:
    """Queries, keys, values and the gradient of the means, (N, h, T, d)."""
    rng = np.random.default_rng(0)
    shapes = [(row.samples, row.steps, h, row.size) for h in (row.heads, row.groups) * 2]
    shapes[2], shapes[3] = shapes[1], shapes[0]
    return [rng.standard_normal(s, np.float32).transpose(0, 2, 1, 3) for s in shapes]


def make(rival: str, number: int) -> Entrant:
    """A forward and a backward of the rival."""
    row = ROWS[number]
    q, k, v, dmeans = drawn(row)
    scale = row.size**-0.5
    if rival == "torch":
        run = by_torch(row, q, k, v, dmeans)
    else:
        from singanet.ops import cpu_ops
        from singanet.ops.window import Attended, Attention

        ops, case = cpu_ops(), Attention(scale, causal=row.causal)
        if rival == "whole":
            if 8 * row.samples * row.heads * row.steps**2 > MOST:
                raise NoEntryError("not tried")

            def run() -> list[Any]:
                return whole(ops, q, k, v, dmeans, case)

        else:

            def run() -> list[Any]:
                means, lse = ops.attend(q, k, v, case)
                return [
                    means,
                    *ops.attend_backward(dmeans, Attended(q, k, v, means, lse), case)[:3],
                ]

    made = [np.asarray(each, np.float64) for each in run()]
    return Entrant(run, {"sums": [float(np.abs(each).sum()) for each in made]})


def whole(ops: Any, q: Any, k: Any, v: Any, dmeans: Any, case: Any) -> list[Any]:
    """Means and gradients by weights that are all there."""
    n, groups = k.shape[:2]

    def together(rows: Any) -> Any:
        return rows.reshape(n, groups, rows.shape[1] // groups * rows.shape[2], rows.shape[3])

    weights = ops.attention_weights(q, k, case)
    means = ops.matmul(together(weights), v).reshape(*q.shape[:3], v.shape[3])
    drows = together(dmeans)
    dv = ops.matmul(together(weights).swapaxes(2, 3), drows)
    dweights = ops.matmul(drows, v.swapaxes(2, 3)).reshape(weights.shape)
    dq, dk = ops.attention_backward(dweights, weights, q, k, case.scale)
    # As a layer puts the heads side by side.
    return [np.ascontiguousarray(each.transpose(0, 2, 1, 3)) for each in (means, dq, dk, dv)]


def by_torch(row: Row, q: Any, k: Any, v: Any, dmeans: Any) -> Any:
    """PyTorch's, whose flash kernel takes as many heads of keys as of queries."""
    import torch

    torch.set_num_threads(GIVEN.threads)
    tensors = [torch.from_numpy(each).requires_grad_() for each in (q, k, v)]
    above, shared = torch.from_numpy(dmeans), row.heads // row.groups

    def run() -> list[Any]:
        for each in tensors:
            each.grad = None
        spread = [each.repeat_interleave(shared, 1) for each in tensors[1:]]
        means = torch.nn.functional.scaled_dot_product_attention(
            tensors[0], *spread, is_causal=row.causal
        )
        means.backward(above)
        return [means.detach().numpy(), *(each.grad.numpy() for each in tensors)]

    return run


def imports(rival: str, number: int) -> None:
    """What is no memory of the row: libraries, and operands."""
    if rival == "torch":
        import torch

        torch.set_num_threads(GIVEN.threads)
    else:
        from singanet.ops import cpu_ops

        cpu_ops().matmul(np.ones((512, 512), np.float32), np.ones((512, 512), np.float32))


def line(row: Row, taken: dict[str, Taken]) -> list[str]:
    """The cells of a row."""
    there = {name: each for name, each in taken.items() if not each.failure}
    for name, each in there.items():
        far = np.divide(each.facts["sums"], there["streamed"].facts["sums"]) - 1
        if not np.abs(far).max() < 1e-4:
            raise SystemExit(f"{row}: {name} is {np.abs(far).max():.1g} from the streamed one")
    times = {name: statistics.median(each.seconds) for name, each in there.items()}
    cells = [
        f"{1e3 * times[name]:.1f} | {there[name].peak / 1e6:.0f}" if name in there else "— | —"
        for name in RIVALS
    ]
    ratios = [
        f"{times[name] / times['streamed']:.2f}" if name in there else "—" for name in RIVALS[1:]
    ]
    heads = f"{row.heads} / {row.groups} x {row.size}" + ", causal" * row.causal
    return [str(row.steps), heads, *cells, *ratios]


def main() -> None:
    """Print and keep the table."""
    rows = list(range(len(ROWS))) if GIVEN.rows is None else GIVEN.rows
    taken = apart(make, RIVALS, rows, GIVEN.rounds, imports=imports)
    lines = [line(ROWS[row], each) for row, each in zip(rows, taken, strict=True)]
    header = ["steps", "heads"]
    header += [part for name in RIVALS for part in (f"{name}, ms", "MB")]
    header += [f"{name} / streamed" for name in RIVALS[1:]]
    body = table(header, lines) + (
        "\n\nForward and backward; the peaks hold the operands. `MultiHeadAttention` takes whole"
        " weights where they are few: here up to 170 steps of 9 / 3 heads, 512 of 12 / 12."
    )
    file = f"attention_{GIVEN.ops}_{GIVEN.threads}t" + "_part" * (GIVEN.rows is not None)
    publish(file, f"Attention: {GIVEN.ops} kernels, {GIVEN.threads} thread(s)", body)


if __name__ == "__main__":
    main()
