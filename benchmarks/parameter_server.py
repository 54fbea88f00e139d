"""What training by parameter servers costs: steps, bytes, and tables of any size.

    python benchmarks/parameter_server.py

The first part trains wide and deep nets, one of a table of 102 rows, one of a hundredth of Criteo's
ids: one process with the table in its memory against two workers and a server, who take turns in
one job, some steps at a time. Samples a second of two workers are those of both. The second part
looks up and updates rows of tables that two servers hold, of growing sizes.
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

ROWS, WIDTH, LOOKED_UP = (100_000, 1_000_000, 10_000_000), 64, 2000
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
        made = job(data, 3, 1)
        lines = [
            [name, f"{row['ms']:.2f}", f"{row['ratio']:.2f}", row["samples"], row["bytes"]]
            for name, row in made.items()
        ]
        header = [f"{data}, batch {batch} a worker", "ms a step", "steps/s of one process"]
        parts.append(table([*header, "samples/s of one process", "bytes of table rows"], lines))
    parts.append(
        "A worker steps while others do, and the server beside them; where there are fewer "
        "cores than processes they take turns. Bytes: what a step pulled and pushed of "
        "tables, by the distinct rows of its batch, 4 bytes a number and 8 a row number."
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


def job(part: str, ranks: int, servers: int) -> dict[str, Any]:
    """What worker 0 of a job has measured."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "singanet", "launch", "-n", str(ranks)]
        command += ["--servers", str(servers), __file__, part, str(out)]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def steps(comm: Any, data: str) -> dict[str, Any]:
    """Milliseconds a step of each way, and of one process, the others asleep meanwhile."""
    import numpy as np

    from singanet import models
    from singanet.data import CRITEO_FIELDS
    from singanet.loss import SoftmaxCrossEntropy
    from singanet.optimizer import SGD
    from singanet.parallel import ParameterServer

    entry = models.find("wide_deep")
    columns, measures = entry.input_shape
    rng = np.random.default_rng(comm.rank)
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

    rivals: dict[str, tuple[Any, Any]] = {"one process": (net(), SGD(lr=0.01))}
    for name, options in WAYS.items():
        rivals[name] = net(), ParameterServer(SGD(lr=0.01), **options)
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    batches = [batch() for _ in range(STEPS)]
    for turn in range(ROUNDS + 1):
        for name, (model, optimizer) in rivals.items():
            alone = name == "one process"
            comm.barrier()
            start = time.perf_counter()
            if not alone or comm.rank == 0:
                for k, (x, y) in enumerate(batches):
                    if not alone and k + 1 < STEPS:
                        ids = batches[k + 1][0]["categorical"]
                        optimizer.prefetch({"wide/weight": ids, "embedding/weight": ids})
                    model.step(x, y, optimizer)
            took = time.perf_counter() - start
            if turn:
                seconds[name].append(took / STEPS)
    base = median(seconds["one process"])
    table_bytes = {}
    for name, (_, optimizer) in rivals.items():
        told = optimizer.lookups.values() if name != "one process" else []
        steps_taken = (ROUNDS + 1) * STEPS
        sent = sum(each.nbytes for each in told)
        plain = sum(each.nbytes_uncached for each in told)
        table_bytes[name] = f"{sent / steps_taken:,.0f} ({sent / plain:.2f} ×)" if told else "none"
    return {
        name: {
            "ms": 1e3 * median(times),
            "ratio": base / median(times),
            "samples": f"{base / median(times) * (1 if name == 'one process' else comm.size):.2f}",
            "bytes": table_bytes[name],
        }
        for name, times in seconds.items()
    }


def tables(comm: Any) -> dict[str, Any]:
    """Milliseconds of a pull and a push, by the rows of the table."""
    import numpy as np

    from singanet.initializer import Constant
    from singanet.optimizer import SGD
    from singanet.parallel.server import Servers
    from singanet.parallel.start import servers as servers_of_job
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
