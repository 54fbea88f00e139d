"""Real jobs of MPI, each under a time limit."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", exc_type=ImportError)

BESIDE = Path(sys.executable).with_name("mpirun")
MPIRUN = str(BESIDE) if BESIDE.exists() else shutil.which("mpirun")
ROOT = Path(__file__).resolve().parents[3]

TRAINS = """
import sys
import numpy as np
import singanet
from singanet import parallel
from singanet.data import ArrayLoader
from singanet.layers import Activation, Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD


def trains(comm, folder):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 30, (19, 4)), rng.integers(0, 3, 19)
    net = singanet.FeedForwardNet(
        [Embedding("e", 40, 8, input_sample_shape=(4,)), Flatten("f"), Dense("a", 600),
         Activation("relu"), Dense("b", 3)],
        loss=SoftmaxCrossEntropy(), seed=comm.rank)
    net.compile(parallel.AllReduce(SGD(lr=0.2, momentum=0.9), comm))
    loader = ArrayLoader(x, y, 6 // comm.size, seed=1, rank=comm.rank, world_size=comm.size)
    net.fit(loader, epochs=3, clip=0.5, clip_by="global", verbose=False)
    values = [value.copy() for value in net.param_values()]
    half = parallel.AllReduce(SGD(lr=0.2), comm, window=1, dtype="float16")
    for k in range(6):
        net.step(x[comm.rank :: comm.size], y[comm.rank :: comm.size], half)
    np.savez(f"{folder}.{comm.rank}.npz", *values, *net.param_values())

comm = parallel.init()
if comm.rank == 0:
    trains(parallel.SingleProcess(), f"{sys.argv[1]}/one")
trains(comm, f"{sys.argv[1]}/all")
"""

RECORDS = """
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from tests.parallel.communicators.communicator_case import CHECKS

comm = parallel.init()
for check in CHECKS:
    check(comm, np.asarray, np.asarray)

rng = np.random.default_rng(0)
x, y = rng.standard_normal((24, 50), np.float32), rng.integers(0, 9, 24)
made = []
for records in (True, False, comm.rank == 0):
    net = singanet.FeedForwardNet(
        [Dense("a", 900, input_sample_shape=(50,)), Activation("relu"), Dense("b", 9)],
        loss=SoftmaxCrossEntropy(), seed=1)
    net.programs.enabled = records
    optimizer = parallel.AllReduce(SGD(lr=0.1, momentum=0.9))
    for k in range(6):
        own = slice(comm.rank, 24 - k % 2, comm.size)
        net.step(x[own], y[own], optimizer)
    made.append(net.param_values())
    if records:
        assert net.programs.reports(), net.programs.refusals
        assert optimizer.traffic.sums == 12
for values in made[1:]:
    for one, other in zip(made[0], values, strict=True):
        np.testing.assert_array_equal(one, other)
first = [comm.broadcast(value.copy()) for value in made[0]]
for one, other in zip(first, made[0], strict=True):
    np.testing.assert_array_equal(one, other)
"""

FITS = """
import os
import signal
import sys
import numpy as np
from singanet import FeedForwardNet, parallel
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import AUC, Accuracy
from singanet.optimizer import SGD
from singanet.training.callbacks import Callback, ModelCheckpoint

class Yes(AUC):
    def update(self, x, y):
        super().update(x[:, 1], y == 1)

class Interrupts(Callback):
    def on_batch_begin(self, batch):
        if self.session.rank == 1 and self.session.step == 9:
            os.kill(os.getpid(), signal.SIGINT)

comm = parallel.init()
rng = np.random.default_rng(0)
x, y = rng.standard_normal((41, 6), np.float32), rng.integers(0, 3, 41)

def fit(name, comm, dropout, folder, callbacks=(), resume=None):
    net = FeedForwardNet(
        [Dense("a", 16, input_sample_shape=(6,)), BatchNormalization("n", synchronized=True),
         Activation("relu"), Dropout("d", dropout), Dense("b", 3)],
        loss=SoftmaxCrossEntropy(), seed=0)
    net.compile(parallel.AllReduce(SGD(lr=0.1, momentum=0.9), comm), metrics=[Accuracy(), Yes()])
    callbacks = [ModelCheckpoint(os.path.join(sys.argv[1], folder)), *callbacks]
    history = net.fit(x, y, 6, 4, validation_data=(x[:7], y[:7]), callbacks=callbacks,
                      resume=resume, verbose=False)
    numbers = [v for k, v in history.items() if not k.startswith("bytes")]
    np.savez(os.path.join(sys.argv[1], f"{name}.{comm.rank}.npz"), *net.param_values(), *numbers)

if comm.rank == 0:
    fit("alone", parallel.SingleProcess(), 0.0, "a")
fit("together", comm, 0.0, "b")
fit("whole", comm, 0.3, "c")
try:
    fit("never", comm, 0.3, "d", [Interrupts()])
except KeyboardInterrupt:
    fit("resumed", comm, 0.3, "d", resume=os.path.join(sys.argv[1], "d"))
"""

METHODS = """
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Dense, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

comm = parallel.init()
rng = np.random.default_rng(0)
x, y = rng.integers(0, 30, (19, 4)), rng.integers(0, 3, 19)
for wrap in (
    lambda rule: parallel.SparseAllReduce(rule, ratio=0.05),
    lambda rule: parallel.SparseAllReduce(rule, threshold=0.01),
    lambda rule: parallel.PartialUpdate(rule, partitions=5),
    lambda rule: parallel.LocalSGD(rule, every=3),
    lambda rule: parallel.Sharded(rule, smallest=100),
    lambda rule: parallel.Sharded(rule, level=2, smallest=100),
):
    net = singanet.FeedForwardNet(
        [Embedding("e", 40, 8, input_sample_shape=(4,)), Flatten("f"), Dense("a", 600),
         Dense("b", 3)], loss=SoftmaxCrossEntropy(), seed=comm.rank)
    optimizer, before = wrap(SGD(lr=0.05, momentum=0.9)), comm.exchanged
    losses = [net.step(x[comm.rank :: comm.size], y[comm.rank :: comm.size], optimizer)[0]
              for _ in range(7)]
    optimizer.join()
    exchanged = np.array([comm.exchanged.since(before)], np.float64)
    assert losses[-1] < losses[0], losses
    for value in net.param_values():
        first, *others = comm.all_gather(value)
        assert all(np.array_equal(first, other) for other in others), optimizer
    sent, received = comm.all_reduce(exchanged)[0]
    assert sent == received > 0, optimizer

# Parts have the bits of the whole, and so has the state; large sums go apart from small ones.
from singanet.optimizer import Adam, ClipByGlobalNorm
from singanet.optimizer.chain import UpdateChain

def trained(wrap, records):
    net = singanet.FeedForwardNet(
        [Dense("a", 2000, input_sample_shape=(50,)), Dense("b", 9)],
        loss=SoftmaxCrossEntropy(), seed=1)
    net.programs.enabled = records
    optimizer = wrap(Adam(lr=0.01))
    x, y = rng.standard_normal((24, 50), np.float32), np.arange(24) % 9
    x = comm.broadcast(x)
    for k in range(5):
        own = slice(comm.rank, 24 - k % 2, comm.size)
        net.step(x[own], y[own], optimizer)
    kept = UpdateChain(optimizer).held_bytes()
    return [*net.param_values(), *optimizer.state_dict().values()], kept

rng = np.random.default_rng(4)
expected, all_kept = trained(parallel.AllReduce, True)
for level in (1, 2):
    for records in (True, False):
        rng = np.random.default_rng(4)
        found, kept = trained(lambda rule: parallel.Sharded(rule, level=level), records)
        assert kept < 1.1 * all_kept / comm.size
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
        rng = np.random.default_rng(4)
        clipped = lambda rule: parallel.Sharded(ClipByGlobalNorm(rule, 0.01), level=level)
        trained(clipped, records)
print("all alike")
"""

FAILS = """
import time
import numpy as np
from singanet import parallel

comm = parallel.init()
comm.step = 7
if comm.rank and not {all_raise}:
    if {raises}:
        raise KeyError("lost")
    time.sleep(30)
comm.deadline = 2.0
if {all_raise}:
    import singanet
    from singanet.layers import Layer

    class Fails(Layer):
        def forward(self, ctx, x):
            raise ValueError("of all ranks")

        def setup(self, in_shape):
            return in_shape

    singanet.FeedForwardNet([Fails("f", input_sample_shape=(2,))]).forward(True, np.ones((1, 2)))
comm.all_reduce(np.ones(3), what="the gradients of fc/weight")
"""


def job(ranks, code, tmp_path, *arguments):
    """The ended job of ``ranks`` processes that run ``code``."""
    script = tmp_path / "script.py"
    script.write_text(code)
    if MPIRUN is None:
        pytest.skip("no mpirun beside mpi4py")
    flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "50"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [MPIRUN, *flags, "-n", str(ranks), sys.executable, str(script), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A job of three ranks that does all of it, as starting one takes longest; and its folder."""
    folder = tmp_path_factory.mktemp("job")
    return job(3, TRAINS + FITS + RECORDS + METHODS, folder, str(folder)), folder


def saved(folder, name, rank):
    return [*np.load(folder / f"{name}.{rank}.npz").values()]


def test_processes_train_as_one(ended):
    folder = ended[1]
    first = saved(folder, "all", 0)
    for other in (saved(folder, "all", 1), saved(folder, "all", 2)):
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)
    for k, (one, a) in enumerate(zip(saved(folder, "one", 0), first, strict=True)):
        near = 1e-6 if k < len(first) // 2 else 3e-3  # by halves
        np.testing.assert_allclose(a, one, rtol=100 * near, atol=near)


SLICED = """
import sys
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import Adam
from singanet.training.callbacks import ModelCheckpoint

comm, rng = parallel.init(), np.random.default_rng(0)
x, y = rng.standard_normal((21, 50)).astype(np.float32), rng.integers(0, 4, 21)
layers = lambda: [Dense("a", 700, input_sample_shape=(50,)), Activation("t", "tanh"),
                  Dense("b", 300), Dense("c", 4)]
found = []
for wrap in (parallel.AllReduce, lambda rule, comm: parallel.Sharded(rule, comm, 3)):
    net = singanet.FeedForwardNet(layers(), loss=SoftmaxCrossEntropy(), seed=1)
    net.compile(wrap(Adam(lr=0.001), comm))
    net.fit(x, y, 8, 2, verbose=False, validation_data=(x[:9], y[:9]),
            callbacks=[ModelCheckpoint(sys.argv[1] + "/slices")])
    found.append({param.name: param.peek().copy() for param in net.params()})
held = sum(param.storage.nbytes for param in net.params())
assert held < 0.6 * sum(param.nbytes for param in net.params())
for name, value in found[0].items():
    np.testing.assert_array_equal(found[1][name], value)
"""


INTERRUPTED = """
import os, signal, time
rank, me = os.environ["OMPI_COMM_WORLD_RANK"], os.getpid()
if rank == "0": time.sleep(2.0)
elif not os.fork():
    time.sleep(1.0)  # rank 1 waits in MPI_Init
    os.kill(me, signal.SIGINT)
    os._exit(0)
from singanet import parallel
parallel.init()
time.sleep(30)
"""


@pytest.mark.slow
def test_one_rank_that_is_interrupted_while_they_begin_ends_all(tmp_path):
    """It waited in MPI_Finalize, and the others in making groups, without a deadline."""
    ended = job(2, INTERRUPTED, tmp_path)
    assert ended.returncode not in (0, 124), ended.stderr
    assert "KeyboardInterrupt" in ended.stderr
    assert "timeout" not in ended.stderr


def test_a_fit_is_that_of_one_process_and_goes_on_to_the_bit(ended):
    """Synchronized statistics, empty parts of batches, metrics, validation.

    SIGINT to one rank ends all after the same step, with a checkpoint of all.
    """
    folder = ended[1]
    for rank in range(3):
        alone, whole = saved(folder, "alone", 0), saved(folder, "whole", rank)
        for value, one in zip(saved(folder, "together", rank), alone, strict=True):
            np.testing.assert_allclose(value, one, rtol=2e-3, atol=2e-4)
        for value, one in zip(saved(folder, "resumed", rank), whole, strict=True):
            np.testing.assert_allclose(value, one, rtol=1e-12)
    assert not list(folder.glob("never*"))


def test_processes_have_the_same_bits_whatever_they_send(ended):
    """As recorded and by the layers, too."""
    assert ended[0].returncode == 0, ended[0].stderr
    assert ended[0].stdout.count("all alike") == 3


@pytest.mark.parametrize(
    ("raises", "told"),
    [
        (True, ["rank 1 ended by an error (step 7):", "KeyError: 'lost'"]),
        (False, ["rank 0 of 2, step 7", "the gradients of fc/weight", "within 2 s"]),
    ],
)
@pytest.mark.few(1, full=0)
def test_a_rank_that_fails_or_stalls_ends_the_job_with_a_message(raises, told, tmp_path):
    ended = job(2, FAILS.format(raises=raises, all_raise=False), tmp_path)
    assert ended.returncode != 0
    for text in told:
        assert text in ended.stderr


def test_an_error_of_all_ranks_is_told_once_with_its_layer(tmp_path):
    ended = job(2, FAILS.format(raises=False, all_raise=True), tmp_path)
    assert ended.returncode != 0
    assert "rank 0 ended by an error (step 7, in layer 'f'):" in ended.stderr
    assert ended.stderr.count("ValueError: of all ranks") == 1


STAGES = """
import sys
import numpy as np
import singanet
from singanet import parallel
from singanet.layers import Activation, Add, Dense, Embedding, Flatten, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD

rng = np.random.default_rng(0)
x, y = rng.integers(0, 30, (64, 4)), rng.integers(0, 3, 64)

def trained(stages=None):
    ids = Input("x", (4,), dtype="int64")
    rows = Flatten("f")(Embedding("e", 40, 75)(ids))
    wide = Activation("r")(Dense("a", 300)(rows))
    scores = Dense("b", 3)(Add("plus")([wide, rows]))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[ids], outputs=[scores], seed=4)
    # Messages of 77 KB, which are not sent before somebody takes them.
    pipeline = parallel.Pipeline(net, stages, 2) if stages else None
    net.compile(SGD(lr=0.2, momentum=0.9))
    net.fit(x, y, 32, epochs=3, verbose=False)
    return net, pipeline

alone = trained()[0].param_values()
net, pipeline = trained(["a"])
pipeline.on_first(lambda: net.save(sys.argv[1] + "/net.npz"))
pipeline.gather()
for one, two in zip(alone, net.param_values(), strict=True):
    np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-5)
with np.load(sys.argv[1] + "/net.npz") as saved:
    assert set(saved.files) == set(net.param_names())
"""


@pytest.mark.slow
def test_two_processes_record_keep_slices_and_are_stages(tmp_path):
    ended = job(2, RECORDS + SLICED + STAGES, tmp_path, str(tmp_path))
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_the_command_trains_on_stages_and_goes_on(tmp_path):
    def train(*options):
        options = [*options, "--parallel", "pipeline", "--every", "4", "--out", str(tmp_path / "r")]
        options = ["-m", "singanet", "launch", "-n", "2", "train", "mlp", "--quiet", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [sys.executable, *options], env=environment, capture_output=True, text=True, check=False
        )

    for options in (["--epochs", "1"], ["--epochs", "2", "--resume", "--early-stopping", "3"]):
        done = train(*options)
        assert done.returncode == 0, done.stderr
        assert "test accuracy 0." in done.stdout
    with np.load(tmp_path / "r" / "best.npz") as best:
        assert {"fc1/weight", "fc2/weight", "fc3/weight"} <= set(best.files)
