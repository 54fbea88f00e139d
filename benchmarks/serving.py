"""A predictor and ONNX Runtime in the same FastAPI service, asked by four client threads.

Both services run all the time, each in a process of its own under uvicorn; clients ask them in
turns, so that a round is half a second with one and then with the other. Bodies are numbers of
float32. ONNX Runtime reads what singanet wrote of the predictor, softmax included, and has as many
threads. What the services answer is compared first. The handler predicts in the event loop, or in
FastAPI's threads.

    python benchmarks/serving.py
    python benchmarks/serving.py --rows lenet:1 --rounds 5
"""

import argparse
import http.client
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from report import publish, table

RIVALS = ("singanet", "ONNX Runtime")
ROWS = [(model, batch, way) for way in ("loop", "threads") for model in ("mlp", "lenet")
        for batch in (1, 32)]  # fmt: skip
CLIENTS = 4


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="", help="model:batch, with commas; else all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--threads", type=int, default=1, help="of the kernels")
    parser.add_argument("--serve", nargs=4, metavar="...", help=argparse.SUPPRESS)
    return parser.parse_args()


def main(given: argparse.Namespace) -> None:
    """Print and keep the table."""
    rows = [r for r in ROWS if not given.rows or f"{r[0]}:{r[1]}" in given.rows.split(",")]
    lines = []
    for model, batch, way in rows:
        with tempfile.TemporaryDirectory() as folder:
            shape = _write(model, Path(folder))
            with _service(given, 0, folder, way, shape) as ours, \
                 _service(given, 1, folder, way, shape) as theirs:  # fmt: skip
                lines.append(
                    [model, str(batch), way, *_measured(given, (ours, theirs), batch, shape)]
                )
    short = ("ours", "theirs")
    header = ["net", "batch", "predicts in", *(f"{name}, requests/s" for name in short), "ratio",
              "(spread)", *(f"{name}, CPU ms a request" for name in short), "ratio", "(spread)",
              *(f"{name}, p99 ms" for name in short)]  # fmt: skip
    body = "\n".join([table(header, lines), "", _explained(given)])
    publish("serving", "A predictor and ONNX Runtime behind FastAPI", body)


def _write(model: str, folder: Path) -> tuple[int, ...]:
    """Files for both; the shape of a sample."""
    import singanet

    predictor = singanet.models.build(model, seed=0).predictor()
    predictor.save(folder / "net.singanet")
    singanet.onnx.save(predictor, folder / "net.onnx")
    (shape,) = predictor.inputs.values()
    assert isinstance(shape, tuple)
    return shape


# -- a service ------------------------------------------------------------------------------


def serve(rival: str, folder: str, way: str, port: str) -> None:
    """Serve until killed."""
    import uvicorn
    from fastapi import FastAPI, Request, Response

    predict, shape = (_ours if rival == RIVALS[0] else _onnx_runtime)(Path(folder))
    app = FastAPI()

    def answer(body: bytes) -> Response:
        found = predict(np.frombuffer(body, np.float32).reshape(-1, *shape))
        return Response(found.tobytes(), media_type="application/octet-stream")

    if way == "loop":

        @app.post("/predict")
        async def handler(request: Request) -> Response:
            return answer(await request.body())
    else:
        from starlette.concurrency import run_in_threadpool

        @app.post("/predict")
        async def handler(request: Request) -> Response:
            return await run_in_threadpool(answer, await request.body())

    uvicorn.run(app, port=int(port), log_level="error", access_log=False)


def _ours(folder: Path) -> tuple[Any, Any]:
    import singanet

    predictor = singanet.load_predictor(folder / "net.singanet")
    return predictor, next(iter(predictor.inputs.values()))


def _onnx_runtime(folder: Path) -> tuple[Any, Any]:
    import onnxruntime

    given = onnxruntime.SessionOptions()
    given.intra_op_num_threads, given.inter_op_num_threads = int(os.environ["OMP_NUM_THREADS"]), 1
    session = onnxruntime.InferenceSession(
        str(folder / "net.onnx"), given, providers=["CPUExecutionProvider"]
    )
    told = session.get_inputs()[0]
    return lambda x: session.run(None, {told.name: x})[0], told.shape[1:]


@contextmanager
def _service(
    given: argparse.Namespace, rival: int, folder: str, way: str, shape: tuple[int, ...]
) -> Iterator[tuple[int, int]]:
    """Port and process of a service that answers."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threads = {name: str(given.threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    words = [sys.executable, __file__, "--serve", RIVALS[rival], folder, way, str(port)]
    process = subprocess.Popen(words, env={**os.environ, **threads})
    try:
        for _ in range(600):
            try:
                ask(http.client.HTTPConnection("127.0.0.1", port), bytes(4 * int(np.prod(shape))))
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"{RIVALS[rival]} does not serve") from None
                time.sleep(0.05)
        yield port, process.pid
    finally:
        process.kill()
        process.wait()


# -- clients --------------------------------------------------------------------------------


def ask(line: http.client.HTTPConnection, body: bytes) -> bytes:
    """The answer to a request."""
    line.request("POST", "/predict", body)
    with line.getresponse() as answer:
        found = answer.read()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {found[:200]!r}")
    return found


def _measured(
    given: argparse.Namespace, services: Any, batch: int, shape: tuple[int, ...]
) -> list[str]:
    """The cells of a row."""
    x = np.random.default_rng(0).standard_normal((batch, *shape), np.float32)
    answers = [
        ask(http.client.HTTPConnection("127.0.0.1", port), x.tobytes()) for port, _ in services
    ]
    ours, theirs = (np.frombuffer(answer, np.float32) for answer in answers)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    rates: list[list[float]] = [[], []]
    works: list[list[float]] = [[], []]
    waits: list[list[float]] = [[], []]
    for turn in range(given.rounds + 1):
        for rival, (port, process) in enumerate(services):
            before = _cpu_seconds(process)
            rate, waited = _load(port, x.tobytes(), given.seconds)
            if turn:  # the first turns warm up
                rates[rival].append(rate)
                works[rival].append((_cpu_seconds(process) - before) / len(waited))
                waits[rival] += waited
    cells = [f"{statistics.median(rate):,.0f}" for rate in rates] + _ratio(*rates)
    cells += [f"{1e3 * statistics.median(work):.2f}" for work in works] + _ratio(*works[::-1])
    return cells + [f"{1e3 * np.quantile(waited, 0.99):.1f}" for waited in waits]


def _ratio(over: list[float], under: list[float]) -> list[str]:
    """The median of the rounds, and the quartiles."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return [f"{middle:.2f}", f"{low:.2f} to {high:.2f}"]


def _cpu_seconds(process: int) -> float:
    """What a process has used so far, in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(port: int, body: bytes, seconds: float) -> tuple[float, list[float]]:
    """Requests a second of all clients together, and how long each waited."""
    waits: list[list[float]] = [[] for _ in range(CLIENTS)]
    end = time.perf_counter() + seconds

    def client(mine: list[float]) -> None:
        line = http.client.HTTPConnection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            ask(line, body)
            mine.append(time.perf_counter() - start)
        line.close()

    threads = [threading.Thread(target=client, args=(mine,)) for mine in waits]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = [wait for mine in waits for wait in mine]
    return len(done) / (time.perf_counter() - start), done


def _explained(given: argparse.Namespace) -> str:
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("onnxruntime", "fastapi", "uvicorn")
    )
    return (
        f"{CLIENTS} client threads in a process beside the services, on the same cores. "
        f"Requests/s: median of {given.rounds} turns of {given.seconds:g} s. Ratio: ours by theirs "
        "in the same round, above 1 where singanet serves more; median and quartiles. CPU: what "
        "the service used, HTTP and all, whoever else was on the machine. Kernels in "
        f"{given.threads} "
        f"thread(s). {versions}. Load of the machine at the end: {os.getloadavg()[0]:.1f}."
    )


if __name__ == "__main__":
    GIVEN = options()
    serve(*GIVEN.serve) if GIVEN.serve else main(GIVEN)
