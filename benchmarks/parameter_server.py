"""What training by parameter servers costs: steps, bytes, and tables of any size.

    python benchmarks/parameter_server.py

The first part trains wide and deep nets, one of a table of 102 rows, one of a hundredth of Criteo's
ids: one process with the table in its memory against two workers and a server, and against two
workers of a bare loop of mpi4py, which sends all gradients to a server of its own and takes all
values, updated at once by plain SGD. They take turns in one job, some steps at a time. Samples a
second of two workers are those of both. The second part looks up and updates rows of tables that
two servers hold, of growing sizes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROUNDS, STEPS = 6, 30
NETS = {"census": 128, "clicks": 512}
"""The data whose columns nets have, and the samples of a batch."""

ALONE, BARE = "one process", "bare loop of mpi4py"
ROWS, WIDTH, LOOKED_UP = (100_000, 1_000_000, 10_000_000), 64, 2000
KEYS = "ms", "ratio", "bare", "samples", "bytes", "messages", "worker", "server"
WAYS = {
    "bsp": {"consistency": "bsp"},
    "ssp, 3 steps": {"consistency": "ssp", "staleness": 3},
    "asp": {"consistency": "asp"},
}


def main() -> None:
    """Run the jobs and keep the tables, or be one of their processes."""
    from report import publish, table

    load = f"load {os.getloadavg()[0]:.1f}"
    parts = []
    for data, batch in NETS.items():
        made = job(data, 4)  # two workers, a server of ours, one of the bare loop
        lines = [[name, *(row[key] for key in KEYS)] for name, row in made.items()]
        header = [f"{data}, batch {batch} a worker", "ms a step", "steps/s of one process"]
        header += ["steps/s of the bare loop", "samples/s of one process", "bytes of table rows"]
        header += ["messages a step, there and back", "ms of processor, worker", "server, of both"]
        parts.append(table(header, lines))
    parts.append(
        "A worker steps while others do, and the server beside them; where there are fewer "
        "cores than processes they take turns. Bytes: what a step pulled and pushed of "
        "tables, by the distinct rows of its batch, 4 bytes a number and 8 a row number. Processor "
        "time is what Linux has counted, of the server for a step of both workers."
    )
    made = job("tables", 3, 2)
    lines = [
        [f"{int(n):,} × {WIDTH}", *(f"{row[key]:.2f}" for key in ("GB", "ms", "low"))]
        for n, row in made.items()
    ]
    header = ["rows", "GB of values on two servers", "ms, median", "least"]
    parts.append(table(header, lines))
    parts.append(f"Pull, then push of {LOOKED_UP} distinct rows by a worker, SGD.")
    publish("parameter_server", f"Parameter servers ({load} when begun)", "\n\n".join(parts))


def job(part: str, ranks: int, servers: int = 0) -> dict[str, Any]:
    """What worker 0 of a job has measured; of one without servers two ranks serve by themselves."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "singanet", "launch", "-n", str(ranks)]
        command += ["--servers", str(servers)] if servers else []
        command += [__file__, part, str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def processor_ms(process: int) -> float:
    """The milliseconds for which a process has run so far, its first thread's."""
    return float(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e6


class Bare:
    """An optimizer's place in a worker of the bare loop: all gradients there, all values back."""

    def __init__(self, world: Any, net: Any, server: int) -> None:
        import numpy as np

        from singanet.optimizer import SGD

        self._world, self._server, self._params = world, server, net.params()
        self._rule, self._step = SGD(lr=1.0), net.step
        self._old = np.concatenate([param.value.reshape(-1) for param in self._params])

    def begin(self, first: bool) -> None:
        """Let the server have the values, which are those of all workers."""
        if first:
            self._world.Send(self._old, self._server, 1)

    def end(self) -> None:
        """Let the server go."""
        import numpy as np

        self._world.Send(np.empty(0, np.float32), self._server)

    def step(self, x: Any, y: Any) -> None:
        """A recorded step of the library by w − g, whose g then goes to the server."""
        import numpy as np

        self._step(x, y, self._rule)
        grads = self._old - np.concatenate([param.value.reshape(-1) for param in self._params])
        sent = self._world.Isend(grads, self._server)
        news = np.empty_like(grads)
        message = awaited(lambda: self._world.Improbe(self._server))
        message.Recv(news)
        sent.Wait()
        at = 0
        for param in self._params:
            param.value[...] = news[at : at + param.value.size].reshape(param.value.shape)
            at += param.value.size
        self._old = news


def awaited(look: Any) -> Any:
    """What ``look`` gives at last; looked at without a pause for a moment, then with naps."""
    began = time.monotonic()
    while (found := look()) is None:
        waited = time.monotonic() - began
        if waited > 5e-5:
            time.sleep(min(max(2e-5, waited / 16), 1e-3))
    return found


def serve_bare(world: Any, workers: int) -> None:
    """The bare server: w − 0.01 g at once, for all until they send nothing."""
    import numpy as np
    from mpi4py import MPI

    status, values, answers = MPI.Status(), None, {}
    while workers:
        message = awaited(lambda: world.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status))
        who, grads = status.Get_source(), np.empty(status.Get_count(MPI.FLOAT), np.float32)
        message.Recv(grads)
        if not len(grads):
            workers -= 1
        elif status.Get_tag():
            values = grads
        else:
            assert values is not None
            values -= np.float32(0.01) * grads
            if who in answers:
                answers[who].Wait()
            answers[who] = world.Isend(values.copy(), who)


def made_of(data: str, rank: int) -> tuple[Any, list[Any]]:
    """What makes a net for ``data``, and batches of a worker."""
    import numpy as np

    from singanet import models
    from singanet.data.sets import CRITEO_FIELDS
    from singanet.loss import SoftmaxCrossEntropy

    entry = models.find("wide_deep")
    columns, measures = entry.input_shape
    rng = np.random.default_rng(rank)
    kinds, size = entry.options["vocabulary_size"], NETS[data]
    if data == "clicks":
        columns, measures, kinds = 26, 13, sum(max(2, n // 100) for n in CRITEO_FIELDS)

    def batch() -> tuple[Any, Any]:
        ids = rng.integers(0, kinds, (size, columns))
        numbers = rng.standard_normal((size, measures), np.float32)
        return {"categorical": ids, "numeric": numbers}, rng.integers(0, entry.num_classes, size)

    def net() -> Any:
        options = {**entry.options, "vocabulary_size": kinds}
        shape = columns, measures
        made = models.build("wide_deep", shape, entry.num_classes, 0, **options)
        made.loss = SoftmaxCrossEntropy()
        return made

    return net, [batch() for _ in range(STEPS)]


def steps(world: Any, data: str) -> dict[str, Any]:
    """Milliseconds a step of each way, and of one process, the others asleep meanwhile."""
    import numpy as np
    from mpi4py import MPI

    from singanet.optimizer import SGD
    from singanet.parallel import ParameterServer
    from singanet.parallel.server import ServerRanks, serve

    served, bare = 2, 3
    pids = np.concatenate(world.all_gather(np.array([os.getpid()], np.int64))).tolist()
    plain = MPI.COMM_WORLD.Dup()
    part = world.group([bare] if world.rank == bare else [0, 1, served])
    if world.rank == bare:
        serve_bare(plain, 2)
        return {}
    ranks = ServerRanks(part, [served])
    comm = part.group([served] if world.rank == served else [0, 1])
    if world.rank == served:
        serve(ranks)
        return {}

    net, batches = made_of(data, comm.rank)
    alone, trained = net(), net()
    trained.step(*batches[0], SGD(lr=0.0))
    loop = Bare(plain, trained, bare)
    loop.begin(comm.rank == 0)
    rivals: dict[str, tuple[Any, Any]] = {
        ALONE: (stepped(alone, SGD(lr=0.01)), None),
        BARE: (loop.step, loop),
    }
    for name, options in WAYS.items():
        model, server = net(), ParameterServer(SGD(lr=0.01), **options, comm=comm, servers=ranks)
        rivals[name] = stepped(model, server), server
    spent = taken_in_turns(rivals, comm, counted(part), batches, [pids[served], pids[bare]])
    loop.end()
    return {name: told(name, rivals[name][1], spent, comm.size) for name in spent}


def taken_in_turns(
    rivals: Any, comm: Any, messages: list[int], batches: list[Any], servers: list[int]
) -> dict[str, list[tuple[float, ...]]]:
    """Of each turn of each rival, a step: ms, those of processors, messages."""
    spent: dict[str, list[tuple[float, ...]]] = {name: [] for name in rivals}
    for turn in range(ROUNDS + 1):
        for name, (step, optimizer) in rivals.items():
            comm.barrier()
            said, server = len(messages), servers[name == BARE]
            began = time.perf_counter(), processor_ms(os.getpid()), processor_ms(server)
            if name != ALONE or comm.rank == 0:
                for k, (x, y) in enumerate(batches):
                    if name in WAYS and k + 1 < STEPS:
                        ids = batches[k + 1][0]["categorical"]
                        optimizer.prefetch({"wide/weight": ids, "embedding/weight": ids})
                    step(x, y)
            took = 1e3 * (time.perf_counter() - began[0]), processor_ms(os.getpid()) - began[1]
            count = 2 * STEPS if name == BARE else len(messages) - said
            # The other worker may have some steps to go.
            comm.barrier()
            row = *took, processor_ms(server) - began[2], count
            if turn:
                spent[name].append(tuple(each / STEPS for each in row))
    return spent


def told(name: str, optimizer: Any, spent: Any, workers: int) -> dict[str, str]:
    """The figures of a rival, as the table has them."""
    ms, worker, server, messages = (median(each) for each in zip(*spent[name], strict=True))
    base, bare = (median(row[0] for row in spent[rival]) for rival in (ALONE, BARE))
    tables = optimizer.lookups.values() if name in WAYS else []
    sent = sum(each.nbytes for each in tables) / ((ROUNDS + 1) * STEPS)
    whole = sum(each.nbytes_uncached for each in tables) / ((ROUNDS + 1) * STEPS)
    alone = name == ALONE
    return {
        "ms": f"{ms:.2f}",
        "ratio": f"{base / ms:.2f}",
        "bare": f"{bare / ms:.2f}",
        "samples": f"{base / ms * (1 if alone else workers):.2f}",
        "bytes": f"{sent:,.0f} ({sent / whole:.2f} ×)" if tables else "none",
        "messages": "none" if alone else f"{messages:.1f}",
        "worker": f"{worker:.2f}",
        "server": "none" if alone else f"{server:.2f}",
    }


def stepped(model: Any, optimizer: Any) -> Any:
    """A step of ``model`` by ``optimizer``."""
    return lambda x, y: model.step(x, y, optimizer)


def counted(comm: Any) -> list[int]:
    """What has an entry for each message that ``comm`` sends or takes from now on."""
    seen: list[int] = []
    send, take = comm._start_send, comm._next_message

    def sent(array: Any, *rest: Any) -> Any:
        seen.append(array.nbytes)
        return send(array, *rest)

    def taken(*rest: Any) -> Any:
        came = take(*rest)
        if came is not None:
            seen.append(came[1].nbytes)
        return came

    comm._start_send, comm._next_message = sent, taken
    return seen


def tables(comm: Any) -> dict[str, Any]:
    """Milliseconds of a pull and a push, by the rows of the table."""
    import numpy as np

    from singanet.initializer import Constant
    from singanet.optimizer import SGD
    from singanet.parallel.initialize import servers as servers_of_job
    from singanet.parallel.server import Servers
    from singanet.params.param import Param, ParamSpec

    found = {}
    rng = np.random.default_rng(0)
    for rows in ROWS:
        servers = Servers(comm, servers_of_job(), SGD(lr=0.1))
        servers.open([], [Param(ParamSpec(f"rows{rows}"), (rows, WIDTH), Constant(0.0))])
        table = servers.tables[f"rows{rows}"]
        grads = rng.standard_normal((LOOKED_UP, WIDTH), np.float32)
        times = []
        for turn in range(80):
            ids = np.unique(rng.integers(0, rows, 2 * LOOKED_UP))[:LOOKED_UP]
            start = time.perf_counter()
            table.pull(ids)
            table.push(ids, grads)
            if turn >= 30:
                times.append(time.perf_counter() - start)
        found[str(rows)] = {
            "ms": 1e3 * median(times),
            "low": 1e3 * min(times),
            "GB": rows * WIDTH * 4 / 1e9,
        }
    return found


def work() -> None:
    """Be a worker of a job."""
    from singanet import parallel

    part, out = sys.argv[1:]
    comm = parallel.init()
    found = tables(comm) if part == "tables" else steps(comm, part)
    if comm.rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    work() if len(sys.argv) == 3 else main()
