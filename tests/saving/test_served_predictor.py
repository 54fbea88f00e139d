"""Predictors where services have them: in arrays that are there, in threads, in other processes."""

import json
import os
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import ArgumentError, ShapeError, UnknownNameError
from singanet.layers import Activation, Dense, Layer
from singanet.loss import SoftmaxCrossEntropy, SquaredError


def chain(loss=None):
    return FeedForwardNet(
        [Dense("one", 24, input_sample_shape=(6,)), Activation("act"), Dense("two", 5)],
        loss=loss or SoftmaxCrossEntropy(),
        seed=3,
    )


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
    for count in (4, 1, 4):
        x = rows(count, seed=count)
        out = np.full((count, 5), np.nan, np.float32)
        assert predictor(x, out=out) is out
        np.testing.assert_array_equal(out, predictor(x))


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


def test_what_runs_by_layers_is_written_there_too():
    predictor = chain().predictor()
    for count in range(1, 14):  # more than a thread keeps programs of
        out = np.empty((count, 5), np.float32)
        np.testing.assert_array_equal(predictor(rows(count), out=out), predictor(rows(count)))
    net = FeedForwardNet([Doubled("double", input_sample_shape=(6,)), Dense("one", 2)], seed=0)
    own = net.predictor()
    out = np.empty((4, 2), np.float32)
    np.testing.assert_array_equal(own(rows(), out=out), own(rows()))


def test_several_outputs_have_an_array_each():
    predictor = two_outputs().predictor()
    wanted = predictor(rows())
    out = {"b": np.empty((4, 2), np.float32), "a": np.empty((4, 3), np.float32)}
    assert predictor(rows(), out=out) is out
    for name, array in out.items():
        np.testing.assert_array_equal(array, wanted[name])


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


def test_nothing_is_written_unless_all_of_it_fits():
    predictor = two_outputs().predictor()
    out = {"a": np.zeros((4, 3), np.float32), "b": np.zeros((4, 2), np.float32)}
    out["b"].flags.writeable = False
    with pytest.raises(ArgumentError, match="'b'.*read-only"):
        predictor(rows(), out=out)
    assert not out["a"].any()
    with pytest.raises(UnknownNameError, match="'a', 'b'"):
        predictor(rows(), out={"a": out["a"]})
    with pytest.raises(UnknownNameError, match="a ndarray"):
        predictor(rows(), out=out["a"])


def test_not_with_parts():
    with pytest.raises(ArgumentError, match="both"):
        chain().predictor()(rows(), batch_size=2, out=np.empty((4, 5), np.float32))


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


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_futures_of_processes(method):
    """The predictor goes there by pickle, whichever way the process came about."""
    if method != "spawn" and not hasattr(os, "fork"):
        pytest.skip("processes cannot be forked here")
    assert served_by(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        f"pool = ProcessPoolExecutor(2, mp_context=get_context({method!r}))\n"
        "results = list(pool.map(work, [predictor] * 4, range(4)))\n"
        "pool.shutdown()\n"
    )


@pytest.mark.slow
def test_joblib():
    pytest.importorskip("joblib")
    assert served_by(
        "from joblib import Parallel, delayed\n"
        "jobs = Parallel(n_jobs=2)\n"
        "results = jobs(delayed(work)(predictor, seed) for seed in range(6))\n"
    )


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_children_forked_while_a_thread_records():
    """Each predicts batches of sizes that no thread has recorded yet."""
    assert served_by(
        "import threading\n"
        "def record():\n"
        "    for count in range(1, 200):\n"
        "        predictor(rows(count, 0))\n"
        "thread = threading.Thread(target=record)\n"
        "thread.start()\n"
        "results = []\n"
        "for seed in range(6):\n"
        "    read, write = os.pipe()\n"
        "    if not os.fork():\n"
        "        os.write(write, work(predictor, seed))\n"
        "        os._exit(0)\n"
        "    results.append(os.read(read, 10_000))\n"
        "thread.join()\n"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
def test_a_server_that_forks_its_workers_before_requests_come():
    """One predictor, made once; two processes accept on one socket; four clients ask at once."""
    assert served_by(
        "import signal, socket, threading\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "work(predictor, 0)\n"
        "door = socket.create_server(('127.0.0.1', 0))\n"
        "workers = []\n"
        "for _ in range(2):\n"
        "    worker = os.fork()\n"
        "    while not worker:\n"
        "        asked, _ = door.accept()\n"
        "        with asked:\n"
        "            asked.sendall(work(predictor, int(asked.recv(100))))\n"
        "    workers.append(worker)\n"
        "def ask(seed):\n"
        "    with socket.create_connection(door.getsockname()) as line:\n"
        "        line.sendall(str(seed).encode())\n"
        "        return b''.join(iter(lambda: line.recv(1000), b''))\n"
        "with ThreadPoolExecutor(4) as clients:\n"
        "    results = list(clients.map(ask, range(24)))\n"
        "for worker in workers:\n"
        "    os.kill(worker, signal.SIGKILL)\n"
        "    os.waitpid(worker, 0)\n"
    )


SERVED = """
import json, os
import numpy as np
from tests.saving.test_served_predictor import chain, rows, work

if __name__ == "__main__":
    predictor = chain().predictor()
{code}
    print(json.dumps(results == [work(predictor, seed) for seed in range(len(results))]))
"""


def served_by(code):
    """Whether the results that ``code`` collects in a fresh interpreter are those made there."""
    code = SERVED.format(code="\n".join("    " + line for line in code.splitlines()))
    root = str(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path])},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
