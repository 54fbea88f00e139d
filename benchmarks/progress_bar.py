"""What the progress bar of `fit` costs: epochs of small steps without output, with a line, a bar.

A program that drops what it reads is at the other end of the pipe and of the terminal of 80
columns. Times are the process's own, so that other work on the machine is not in them. Bound: 1 %
of an epoch. The second row without output says how much of a difference is chance.
"""

from __future__ import annotations

import fcntl
import os
import pty
import statistics
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

import numpy as np
from fit_overhead import BATCH, small
from report import interleaved, publish, spread, table

import singanet

EPOCHS = ((400, 5, 40), (20_000, 1, 6))
"""Steps of an epoch, epochs of a fit, rounds."""


@contextmanager
def drained(read: int, write: int) -> Iterator[TextIO]:
    """A stream to ``write``, whose other end ``read`` a program empties."""
    with subprocess.Popen(["cat"], stdin=read, stdout=subprocess.DEVNULL) as reader:
        os.close(read)
        with os.fdopen(write, "w") as stream:
            yield stream
        # A terminal has no end that its reader would see.
        reader.terminate()


def terminal() -> tuple[int, int]:
    """Both ends of a terminal of 80 columns."""
    read, write = pty.openpty()
    tty.setraw(write)
    fcntl.ioctl(write, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    return read, write


def fits(net: singanet.FeedForwardNet, steps: int, epochs: int) -> Callable[[TextIO | None], None]:
    """A function that fits ``net`` with its progress on a stream, or without."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((BATCH * steps, 64)).astype(np.float32)
    y = rng.integers(0, 10, len(x))
    net.compile(singanet.optimizer.SGD(lr=1e-3))

    def fit(stream: TextIO | None) -> None:
        kept, sys.stderr = sys.stderr, stream or sys.stderr
        try:
            net.fit(x, y, BATCH, epochs=epochs, verbose=stream is not None)
        finally:
            sys.stderr = kept

    return fit


def main() -> None:
    """Print and keep the table."""
    rows = []
    with drained(*os.pipe()) as pipe, drained(*terminal()) as screen:
        for steps, epochs, rounds in EPOCHS:
            fit = fits(small(), steps, epochs)
            seconds = interleaved(
                {
                    "nothing": lambda fit=fit: fit(None),
                    "a line an epoch, in a pipe": lambda fit=fit: fit(pipe),
                    "a bar, on a terminal": lambda fit=fit: fit(screen),
                    "nothing, again": lambda fit=fit: fit(None),
                },
                rounds,
                time.process_time,
            )
            base = seconds["nothing"]
            for name, values in seconds.items():
                more = [100 * (own / bare - 1) for own, bare in zip(values, base, strict=True)]
                rows.append(
                    [
                        f"{steps:,}",
                        name,
                        f"{1e3 * statistics.median(values) / epochs:.2f}",
                        spread(values),
                        f"{statistics.median(more):+.2f} %",
                        f"{100 * (min(values) / min(base) - 1):+.2f} %",
                    ]
                )
    header = ["steps an epoch", "shown", "ms an epoch", "spread", "median of rounds", "least"]
    title = f"the progress bar of fit, 64-64-10, batch {BATCH}, one thread"
    publish("progress_bar", title, table(header, rows))


if __name__ == "__main__":
    main()
