"""Real jobs of MPI, each under a time limit."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mpi4py", exc_type=ImportError)

from singanet.parallel.communicators.mpi import _made, own_bell

BESIDE = Path(sys.executable).with_name("mpirun")
MPIRUN = str(BESIDE) if BESIDE.exists() else shutil.which("mpirun")
ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def job(ranks, *program):
    """The ended job of ``ranks`` processes that carry out functions of `mpi_job`, or a script."""
    if MPIRUN is None:
        pytest.skip("no mpirun beside mpi4py")
    flags = ["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--timeout", "50"]
    if not program[0].endswith(".py"):
        program = "-m", "tests.parallel.communicators.mpi_job", *program
    command = [MPIRUN, *flags, "-n", str(ranks), sys.executable, *program]
    return subprocess.run(
        command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A job of three ranks that does all of it, as starting one takes longest; and its folder."""
    folder = tmp_path_factory.mktemp("job")
    return job(3, "trains", "fits", "records", "methods", str(folder)), folder


def saved(folder, name, rank):
    return [*np.load(folder / f"{name}.{rank}.npz").values()]


def test_processes_train_as_one(ended):
    folder = ended[1]
    first, *others = (saved(folder, "all", rank) for rank in range(3))
    np.testing.assert_equal(others, [first, first])
    for k, (one, a) in enumerate(zip(saved(folder, "one", 0), first, strict=True)):
        near = 1e-6 if k < len(first) // 2 else 3e-3  # by halves
        np.testing.assert_allclose(a, one, rtol=100 * near, atol=near)


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
    ("how", "told"),
    [
        ("raise", ["rank 1 ended by an error (step 7):", "KeyError: 'lost'"]),
        ("stall", ["rank 0 of 2, step 7", "the gradients of fc/weight", "within 2 s"]),
        ("all", ["rank 0 ended by an error (step 7, in layer 'f'):", "ValueError: of all ranks"]),
    ],
)
@pytest.mark.few(1, full=1)
def test_ranks_that_fail_or_stall_end_the_job_with_a_message_told_once(how, told):
    done = job(2, "fails", how)
    assert done.returncode != 0
    for text in told:
        assert text in done.stderr
    assert done.stderr.count("ValueError: of all ranks") == (how == "all")


@pytest.mark.slow
def test_two_processes_record_keep_slices_and_are_stages(tmp_path):
    done = job(2, "records", "slices", "stages", str(tmp_path))
    assert done.returncode == 0, done.stderr


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
    (tmp_path / "script.py").write_text(INTERRUPTED)
    done = job(2, str(tmp_path / "script.py"))
    assert done.returncode not in (0, 124), done.stderr
    assert "KeyboardInterrupt" in done.stderr
    assert "timeout" not in done.stderr


@pytest.mark.slow
def test_the_command_trains_on_stages_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "singanet", "launch", "-n", "2", "train", "mlp", "--quiet"]
    command += ["--parallel", "pipeline", "--every", "4", "--out", str(tmp_path / "r")]
    for options in (["--epochs", "1"], ["--epochs", "2", "--resume", "--early-stopping", "3"]):
        done = subprocess.run(
            [*command, *options], env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "test accuracy 0." in done.stdout
    with np.load(tmp_path / "r" / "best.npz") as best:
        assert {"fc1/weight", "fc2/weight", "fc3/weight"} <= set(best.files)


# -- bells by which processes of one machine wake each other --------------------------------------


@pytest.fixture
def bells():
    made = _made(), _made()
    if None in made:
        pytest.skip("only Linux has sockets without files")
    yield made
    for each in made:
        each._own.close()


def waited(bell, seconds):
    began = time.monotonic()
    bell.wait(seconds)
    return time.monotonic() - began


def test_who_waits_is_woken_and_who_waits_next_hears_it_once(bells):
    one, other = bells
    later = threading.Timer(0.05, lambda: other.ring(one.name))
    later.start()
    assert waited(one, 30) < 20
    later.join()
    assert other.ring(one.name)
    assert other.ring(one.name)
    assert waited(one, 30) < 20
    assert waited(one, 0.02) >= 0.015
    assert own_bell() is own_bell()


def test_rings_that_nobody_hears_are_no_error(bells):
    one, other = bells
    assert all(other.ring(one.name) for _ in range(5000))
    one._own.close()
    assert not other.ring(one.name)
