"""A net larger than the memory it gets: Dense layers with Adam, offloaded to a folder.

By default 24 layers of 4096×4096, 1.6 GB of parameters and 4.8 GB with Adam's state, in a fresh
process. Prints the resident peak above the interpreter, the time of a step, and what reading and
writing the same bytes one after the other takes in the same run: the two files of the folder, in
pieces of 16 MB, flushed at the end as a step flushes them. With ``--check`` a net of the same
sizes is trained in memory beside it, in another process, and the parameters are compared; its
peak and the time of its steps are told. With ``--activations`` those go to the folder too, as for
a deep net of large batches: ``--activations --layers 40 --width 256 --batch 16384``.

    python benchmarks/offload.py --folder /tmp/offload [--layers 24] [--width 4096] [--check]

``--llama 30 --width 576 --batch 64 --keep 800MB`` is SmolLM2-135M's shape instead: so many blocks,
a tied table of 49,152 words, and one text of ``--batch`` words. Of several steps the processor's
seconds are told too, to which other work on the machine adds less.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from cases import llama

import singanet
from singanet.layers import Dense
from singanet.loss import SquaredError
from singanet.optimizer import Adam

PIECE = 16 << 20
WORDS = 49_152


def resident(key: str) -> int:
    """Bytes of the line ``key`` of this process's status, as VmRSS (now) or VmHWM (peak)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def net_of(layers: int, width: int) -> singanet.FeedForwardNet:
    """A chain of Dense layers."""
    made = [
        Dense(f"fc{k}", width, **({} if k else {"input_shape": (width,)})) for k in range(layers)
    ]
    return singanet.FeedForwardNet(made, loss=SquaredError(), seed=1)


def sequential(folder: Path) -> float:
    """Seconds for reading the one file of ``folder``, and writing as much over a copy of it."""
    source, target = folder / "a.safetensors", folder.with_suffix(".copy")
    nbytes = source.stat().st_size
    with target.open("w+b", buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
        piece = bytearray(PIECE)
        for _ in range(2):  # the first time the pages of the copy are new, as in no later step
            start = time.perf_counter()
            with source.open("rb", buffering=0) as read:
                while read.readinto(piece):
                    pass
            file.seek(0)
            for at in range(0, nbytes, PIECE):
                file.write(memoryview(piece)[: min(PIECE, nbytes - at)])
            os.fdatasync(file.fileno())
            seconds = time.perf_counter() - start
    target.unlink()
    return seconds


def train(
    net: singanet.FeedForwardNet, width: int, batch: int, steps: int, optimizer: Adam
) -> list[float]:
    """Seconds of each step; the batch has words if there is no width."""
    rng = np.random.default_rng(0)
    if not width:
        ids = rng.integers(0, WORDS, (1, batch + 1))
        x, y = ids[:, :-1], ids[:, 1:]
    else:
        x = rng.standard_normal((batch, width), np.float32)
        y = rng.standard_normal((batch, width), np.float32)
    seconds, busy = [], []
    for _ in range(steps):
        start, begin = time.perf_counter(), time.process_time()
        net.step(x, y, optimizer)
        seconds.append(time.perf_counter() - start)
        busy.append(time.process_time() - begin)
    if steps > 2:
        print(f"processor: {min(busy[2:]):.2f} s at least, {median(busy[2:]):.2f} s mostly")
    return seconds


def digest(net: singanet.FeedForwardNet) -> str:
    """Of all parameters."""
    found = hashlib.blake2b()
    for param in net.params():
        found.update(np.ascontiguousarray(param.peek()).data)
    return found.hexdigest()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("/tmp/singanet-offload"))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--llama", type=int, default=0)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", default="384MB")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--activations", action="store_true")
    parser.add_argument("--in-memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--by-layers", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    Adam(lr=1e-4), singanet.program  # what is imported late
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    width = 0 if args.llama else args.width
    if args.llama:
        shape = {"kv_heads": max(1, args.width // 192), "tied": True}
        net = llama(args.llama, args.width, args.batch, WORDS, **shape)
    else:
        net = net_of(args.layers, args.width)
    if args.in_memory:
        net.programs.enabled = not args.by_layers
        steps = args.steps + args.rounds
        seconds = train(net, width, args.batch, steps, Adam(lr=1e-4))
        peak = resident("VmHWM") - before
        print(digest(net), f"{peak / 1e6:.0f} MB, a step {median(seconds[2:]):.2f} s")
        return
    net.offload(args.folder, args.keep, activations=args.activations)
    optimizer = Adam(lr=1e-4)
    seconds = train(net, width, args.batch, args.steps, optimizer)
    peak = resident("VmHWM") - before
    stored = (args.folder / "a.safetensors").stat().st_size
    # In turn, so that what else the machine does comes to both.
    pairs = []
    for _ in range(args.rounds):
        pairs.append((sequential(args.folder), *train(net, width, args.batch, 1, optimizer)))
    size = f"{args.width}x{args.width}, batch {args.batch}"
    kind = f"{args.llama} blocks" if args.llama else f"{args.layers} layers"
    print(f"{kind} of {size}: {stored:,} bytes")
    print(f"resident above the interpreter, at most: {peak / 1e6:.0f} MB (keep={args.keep})")
    print("steps:", ", ".join(f"{each:.2f} s" for each in seconds))
    for alone, step in pairs:
        print(f"reading and writing alone {alone:.2f} s, a step {step:.2f} s")
    share = median(step / alone for alone, step in pairs)
    print(f"a step takes {share:.2f} times as long; load {os.getloadavg()[0]:.1f}")
    if args.check:
        own = digest(net)
        call = [sys.executable, __file__, "--in-memory"]
        for name in ("layers", "llama", "width", "batch", "steps", "rounds"):
            call += [f"--{name}", str(getattr(args, name))]
        for kind in (["--by-layers"], []):
            done = subprocess.run([*call, *kind], capture_output=True, text=True, check=True)
            there, told = done.stdout.strip().splitlines()[-1].split(" ", 1)
            print(f"in memory, {'by layers' if kind else 'recorded'}: {told}")
            print("bits as in memory:", own == there)


if __name__ == "__main__":
    main()
