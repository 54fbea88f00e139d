"""Predictors where services have them: in arrays that are there, in threads, in other processes."""

import json
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy, SquaredError


def chain(loss=None):
    parts = [Dense("one", 24, input_sample_shape=(6,)), Activation("act"), Dense("two", 5)]
    return FeedForwardNet(parts, loss=loss or SoftmaxCrossEntropy(), seed=3)


def rows(count=4, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 6), np.float32)


def two_outputs():
    x = Input("x", (6,))
    hidden = Dense("hidden", 8)(x)
    return FeedForwardNet(inputs=x, outputs=[Dense("a", 3)(hidden), Dense("b", 2)(hidden)], seed=1)


class Doubled(Layer):
    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x * 2

    def backward(self, ctx, dy):
        return dy * 2, {}


class ShiftedError(SquaredError):
    def link(self, x):
        return x + 1


# -- arrays that are there ------------------------------------------------------------------


@pytest.mark.parametrize("loss", [SoftmaxCrossEntropy, SquaredError, ShiftedError])
def test_what_it_gives_is_written_where_it_is_told(loss):
    predictor = chain(loss()).predictor()
    for count in (4, 1, *range(2, 14), 4):  # more than a thread keeps programs of
        x, out = rows(count, seed=count), np.full((count, 5), np.nan, np.float32)
        assert predictor(x, out=out) is out
        np.testing.assert_array_equal(out, predictor(x))
    own = FeedForwardNet([Doubled("double", input_sample_shape=(6,)), Dense("one", 2)], seed=0)
    several = two_outputs().predictor()
    for predictor, shapes in (own.predictor(), {"one": 2}), (several, {"b": 2, "a": 3}):
        out = {name: np.empty((4, wide), np.float32) for name, wide in shapes.items()}
        wanted = predictor(rows())
        predictor(rows(), out=out if len(out) > 1 else out["one"])
        for name, array in out.items():
            np.testing.assert_array_equal(array, wanted[name] if len(out) > 1 else wanted)


def test_it_may_be_part_of_a_larger_array_or_the_input():
    predictor = FeedForwardNet([Dense("one", 6, input_sample_shape=(6,))], seed=0).predictor()
    x = rows(4)
    wanted = predictor(x)
    many = np.zeros((8, 12), np.float32)
    predictor(x, out=many[::2, 3:9])
    np.testing.assert_array_equal(many[::2, 3:9], wanted)
    assert not many[1::2].any()
    assert not many[:, :3].any()
    predictor(x, out=x)
    np.testing.assert_array_equal(x, wanted)


@pytest.mark.parametrize(
    ("out", "error", "told"),
    [
        (np.zeros((3, 5), np.float32), ShapeError, r"\(4, 5\).*\(3, 5\)"),
        (np.zeros((4, 5)), ArgumentError, "float32.*float64"),
        (np.zeros((1, 4, 5), np.float32), ShapeError, "shape"),
        ([[0.0] * 5] * 4, ArgumentError, "a list"),
        ({"two": np.zeros((4, 5), np.float32)}, ArgumentError, "a dict"),
    ],
)
def test_what_does_not_fit_is_refused(out, error, told):
    predictor = chain().predictor()
    for _ in range(2):
        with pytest.raises(error, match=told):
            predictor(rows(), out=out)
    assert not np.any(out if isinstance(out, np.ndarray) else 0)
    with pytest.raises(ArgumentError, match="both"):
        predictor(rows(), batch_size=2, out=np.empty((4, 5), np.float32))


def test_nothing_is_written_unless_all_of_it_fits():
    predictor = two_outputs().predictor()
    a, b = np.zeros((4, 3), np.float32), np.zeros((4, 2), np.float32)
    b.flags.writeable = False
    for out, error, told in (
        ({"a": a, "b": b}, ArgumentError, "'b'.*read-only"),
        ({"a": a}, UnknownNameError, "'a', 'b'"), (a, UnknownNameError, "a ndarray"),
    ):  # fmt: skip
        with pytest.raises(error, match=told):
            predictor(rows(), out=out)
        assert not a.any()


@pytest.mark.parametrize("name", ["mlp", "lenet"])
def test_a_prediction_allocates_nothing(name):
    net = singanet.models.build(name, seed=0)
    predictor = net.predictor()
    (shape,) = predictor.inputs.values()
    x = np.zeros((256, *shape), np.float32)
    out = predictor(x)
    for _ in range(3):
        predictor(x, out=out)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(5):
            predictor(x, out=out)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # Beside tuples of shapes only NumPy's buffer of 8,192 numbers, however many the batch has.
    assert x.nbytes > 800_000
    assert after - before < 4_000
    assert peak - before < 64_000


# -- threads and processes ------------------------------------------------------------------


def work(predictor, seed):
    return predictor(rows(1 + seed % 3, seed)).tobytes()


def test_futures_of_threads():
    predictor = chain().predictor()
    wanted = [work(predictor, seed) for seed in range(40)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda seed: work(predictor, seed), range(40))) == wanted


BY_PROCESSES = """
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context
    pool = ProcessPoolExecutor(2, mp_context=get_context({method!r}))
    results = list(pool.map(work, [predictor] * 4, range(4)))
    pool.shutdown()
"""
BY_JOBLIB = """
    from joblib import Parallel, delayed
    results = Parallel(n_jobs=2)(delayed(work)(predictor, seed) for seed in range(6))
"""
BY_CHILDREN = """
    import threading
    def record():
        for count in range(1, 200):
            predictor(rows(count, 0))
    thread = threading.Thread(target=record)
    thread.start()
    results = []
    for seed in range(6):
        read, write = os.pipe()
        if not os.fork():
            os.write(write, work(predictor, seed))
            os._exit(0)
        results.append(os.read(read, 10_000))
    thread.join()
"""
BY_A_SERVER = """
    import signal, socket, threading
    from concurrent.futures import ThreadPoolExecutor
    work(predictor, 0)
    door = socket.create_server(('127.0.0.1', 0))
    workers = []
    for _ in range(2):
        worker = os.fork()
        while not worker:
            asked, _ = door.accept()
            with asked:
                asked.sendall(work(predictor, int(asked.recv(100))))
        workers.append(worker)
    def ask(seed):
        with socket.create_connection(door.getsockname()) as line:
            line.sendall(str(seed).encode())
            return b''.join(iter(lambda: line.recv(1000), b''))
    with ThreadPoolExecutor(4) as clients:
        results = list(clients.map(ask, range(24)))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
"""
SERVED = """
import json, os
import numpy as np
from tests.saving.test_served_predictor import chain, rows, work

if __name__ == "__main__":
    predictor = chain().predictor()
{code}
    print(json.dumps(results == [work(predictor, seed) for seed in range(len(results))]))
"""


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(
    ("code", "module"),
    [
        pytest.param(BY_PROCESSES.replace("{method!r}", "'fork'"), "", marks=pytest.mark.full),
        pytest.param(BY_PROCESSES.replace("{method!r}", "'spawn'"), "", marks=pytest.mark.slow),
        pytest.param(BY_JOBLIB, "joblib", marks=pytest.mark.slow),
        pytest.param(BY_CHILDREN, "", marks=pytest.mark.full), (BY_A_SERVER, ""),
    ],
    ids=["forked pool", "spawned pool", "joblib", "children beside a thread", "server"],
)  # fmt: skip
def test_other_processes_predict_the_same(code, module):
    """By pickle, whichever way they came about; children record sizes that no thread has yet.

    A server makes one predictor once; two processes accept on its socket, four clients ask at once.
    """
    if "fork" in code and not hasattr(os, "fork"):
        pytest.skip("processes cannot be forked here")
    if module:
        pytest.importorskip(module)
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, *sys.path])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SERVED.format(code=code)],
        env={**os.environ, "PYTHONPATH": paths}, cwd=root, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)
