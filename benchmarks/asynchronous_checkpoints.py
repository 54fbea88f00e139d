"""Time that training loses to a checkpoint, written at once or while steps go on, beside PyTorch's.

The same net, an MLP of ``--layers`` square layers with Adam, takes ``--steps`` steps with one
checkpoint after the third. "Stopped" is the time in which no step can begin, "lost" that by which
all steps take longer than without a checkpoint, the end of what is in flight apart, "until whole"
the time from the call until the file is there. singanet's files are flushed to the disk, have
checksums and are moved into place; PyTorch's are not. Ways take turns, in a new order each round.

    python benchmarks/asynchronous_checkpoints.py [--width 2048] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SAVED = 2
"""The step, counted from 0, after which the checkpoint is written."""


@dataclass
class Times:
    """Seconds of one run: of its steps with the checkpoint's call, of that, until it was whole."""

    steps: float
    stopped: float
    whole: float


Way = Callable[[Path], Times]


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", default=None, help="where files go; else the system's own")
    return parser.parse_args()


def ours(given: argparse.Namespace) -> dict[str, Way]:
    """singanet's ways: no checkpoint, one at once, one meanwhile."""
    import numpy as np

    import singanet
    from singanet.layers import Dense
    from singanet.loss import SquaredError
    from singanet.optimizer import Adam
    from singanet.training.callbacks import Callback, ModelCheckpoint

    class Clock(Callback):
        """The times of the steps but the first."""

        _runs_last = True

        def on_batch_end(self, batch: int, logs: Any) -> None:
            now = time.perf_counter()
            if batch == SAVED - 1:
                self.begin = now
            self.end = now

    class Saves(ModelCheckpoint):
        """One checkpoint, by the callback's own ways."""

        def on_batch_end(self, batch: int, logs: Any) -> None:
            began = time.perf_counter()
            if batch == SAVED:
                self.began = began
                self._write("step")
                self.stopped = time.perf_counter() - began
                self.whole = self.stopped
                if (thread := self._background._thread) is not None:
                    threading.Thread(target=self._wait, args=(thread,)).start()
            else:
                self._background.look()

        def _wait(self, thread: threading.Thread) -> None:
            thread.join()
            self.whole = time.perf_counter() - self.began

        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            """No file of the epoch."""

    first = given.width
    net = singanet.FeedForwardNet(
        [Dense(f"d{k}", given.width, input_shape=(first,)) for k in range(given.layers)],
        loss=SquaredError(),
        seed=0,
    )
    net.compile(Adam(lr=1e-4))
    rng = np.random.default_rng(0)
    x = rng.standard_normal((given.batch * given.steps, given.width)).astype(np.float32)

    def run(asynchronous: bool | None, folder: Path) -> Times:
        clock, callbacks = Clock(), []
        if asynchronous is not None:
            saves = Saves(folder, None, format="safetensors", asynchronous=asynchronous)
            callbacks = [saves]
        net.fit(x, x, given.batch, 1, callbacks=[*callbacks, clock], verbose=False, shuffle=False)
        seconds = clock.end - clock.begin
        if asynchronous is None:
            return Times(seconds, 0.0, 0.0)
        return Times(seconds, saves.stopped, saves.whole)

    return {
        "singanet, none": lambda folder: run(None, folder),
        "singanet, at once": lambda folder: run(False, folder),
        "singanet, meanwhile": lambda folder: run(True, folder),
    }


def torchs(given: argparse.Namespace) -> dict[str, Way]:
    """PyTorch's: none, ``torch.save``, ``torch.distributed.checkpoint.async_save``."""
    import torch
    from torch import distributed
    from torch.distributed import checkpoint

    torch.set_num_threads(given.threads)
    if not distributed.is_initialized():
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    net = torch.nn.Sequential(
        *[torch.nn.Linear(given.width, given.width) for _ in range(given.layers)]
    )
    rule = torch.optim.Adam(net.parameters(), lr=1e-4, foreach=True)
    x = torch.randn(given.batch, given.width)

    def step() -> None:
        rule.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(net(x), x).backward()
        rule.step()

    def at_once(folder: Path) -> None:
        torch.save(state(), folder / "state.pt")

    def meanwhile(folder: Path) -> Any:
        return checkpoint.async_save(state(), checkpoint_id=str(folder / "state"))

    def state() -> dict[str, Any]:
        return {"net": net.state_dict(), "optimizer": rule.state_dict()}

    def run(save: Callable[[Path], Any] | None, folder: Path) -> Times:
        waiting, stopped, began, ends = None, 0.0, 0.0, list[float]()
        begin = time.perf_counter()
        for k in range(given.steps):
            if k == SAVED:
                begin = time.perf_counter()
            step()
            if k == SAVED and save is not None:
                began = time.perf_counter()
                waiting = save(folder)
                stopped = time.perf_counter() - began
                if waiting is not None:
                    waiting.add_done_callback(lambda _: ends.append(time.perf_counter()))
        seconds = time.perf_counter() - begin
        if waiting is None:
            return Times(seconds, stopped, stopped)
        waiting.result()
        return Times(seconds, stopped, (ends[0] if ends else time.perf_counter()) - began)

    return {
        "PyTorch, none": lambda folder: run(None, folder),
        "PyTorch, torch.save": lambda folder: run(at_once, folder),
        "PyTorch, async_save": lambda folder: run(meanwhile, folder),
    }


@contextmanager
def scratch(folder: str | None) -> Iterator[Path]:
    """A folder that is gone afterwards."""
    path = Path(tempfile.mkdtemp(dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def cell(values: list[float]) -> str:
    """The median in milliseconds, with the least and the most."""
    low, middle, high = (1e3 * f(values) for f in (min, statistics.median, max))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def main() -> None:
    """Measure, and print the table."""
    given = options()
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(given.threads)
    from report import introduction, publish, table

    ways = ours(given)
    if importlib.util.find_spec("torch") is not None:
        ways |= torchs(given)
    found: dict[str, list[Times]] = {name: [] for name in ways}
    for turn in range(given.rounds + 1):
        for name in random.Random(turn).sample(sorted(ways), len(ways)):
            with scratch(given.folder) as folder:
                times = ways[name](folder)
            if turn:  # the first one warms up
                found[name].append(times)
    rows = []
    for name, every in found.items():
        if name.endswith(", none"):
            continue
        none = found[f"{name.split(',')[0]}, none"]
        lost = [each.steps - base.steps for each, base in zip(every, none, strict=True)]
        stopped, whole = [t.stopped for t in every], [t.whole for t in every]
        rows.append([name, cell(stopped), cell(lost), cell(whole)])
    mib = 3 * 4 * given.layers * given.width * (given.width + 1) / 2**20
    text = introduction(__doc__)
    text += (
        f"\n\nA state of {mib:.0f} MiB, {given.rounds} rounds; milliseconds: median (range).\n\n"
    )
    text += table(["way", "stopped", "lost", "until whole"], rows)
    title = "Time that training loses to a checkpoint"
    publish("asynchronous_checkpoints", title, text)


if __name__ == "__main__":
    main()
