"""Training steps of singanet against PyTorch's, at its best of eager and compiled.

The nets, their batch sizes, the optimizer (SGD with momentum), the threads and the number of
parameters are the same; each rival runs in a process of its own, round by round. singanet's side
is `net.step`. ``--profile`` tells where its time goes instead.

    python benchmarks/train_vs_torch.py --ops onednn --threads 1
    python benchmarks/train_vs_torch.py --rows lenet,resnet20:32 --ops numpy
"""

from __future__ import annotations

from functools import partial

from versus import compare, options

OPTIONS = options(__doc__)

from apart import Entrant  # noqa: E402 - after the number of threads
from rivals import imports, our_step, their_step  # noqa: E402


def make(name: str, row: int) -> Entrant:
    """A step of the rival."""
    return our_step(row) if name == "singanet" else their_step(name, row)


if __name__ == "__main__":
    loads = partial(imports, compile_all=OPTIONS.compile == "all")
    if OPTIONS.profile:
        from profiled import show

        show(OPTIONS)
    else:
        compare(OPTIONS, make, loads, "Training", "train_vs_torch")
