"""Steps of README's first net beside other processes, by the number of threads.

A LeNet on digits in batches of 32. Each row is a process of its own for some seconds, with nothing
beside it and with two processes that keep a core busy each. ms a step: median, and the mean, in
which the turns of the others are. "default" says nothing of threads.

    python benchmarks/busy_machine.py [--seconds 5] [--busy 2]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from report import introduction, publish, table

_BUSY = "while True: pass"
_NAMES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def steps(seconds: float) -> list[float]:
    """The seconds of each step."""
    import singanet
    from singanet.data import digits

    data = digits()
    net = singanet.models.build("lenet", data.sample_shape, data.num_classes, seed=0)
    rule = singanet.optimizer.SGD(lr=0.05, momentum=0.9)
    x, y = data.x_train[:32], data.y_train[:32]
    for _ in range(5):
        net.step(x, y, rule)
    found, end = [], time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        net.step(x, y, rule)
        found.append(time.perf_counter() - start)
    return found


def alone(threads: str, seconds: float, busy: int) -> list[float]:
    """The same in a process of its own, with so many others."""
    env = {name: value for name, value in os.environ.items() if name not in _NAMES}
    env |= {} if threads == "default" else {"OMP_NUM_THREADS": threads}
    others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(busy)]
    try:
        command = [sys.executable, __file__, "--child", str(seconds)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    finally:
        for other in others:
            other.kill()
            other.wait()
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser(description=introduction(__doc__))
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(steps(given.child)))
        return
    rows = []
    for busy in (0, given.busy):
        for threads in ("1", "2", "default"):
            load = os.getloadavg()[0]
            found = alone(threads, given.seconds, busy)
            median, mean = (1e3 * tell(found) for tell in (statistics.median, statistics.mean))
            rows.append([str(busy), threads, f"{median:.2f}", f"{mean:.2f}", f"{load:.1f}"])
            print(*rows[-1], sep=" | ", flush=True)
    head = ["busy processes", "threads", "median, ms", "mean, ms", "load before"]
    ops = os.environ.get("SINGANET_OPS", "onednn")
    publish(
        f"busy_machine_{ops}",
        f"A small step beside busy processes, {ops}",
        introduction(__doc__) + "\n\n" + table(head, rows),
    )


if __name__ == "__main__":
    main()
