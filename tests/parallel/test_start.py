import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from singanet import parallel
from singanet.base.processes import interrupted_after
from singanet.errors import ArgumentError, BackendError
from singanet.parallel import initialize


def test_a_lone_process_has_size_one_and_loads_no_mpi():
    code = (
        "import sys, singanet\n"
        "assert 'singanet.parallel' not in sys.modules\n"
        "from singanet import parallel\n"
        "comm = parallel.init()\n"
        "assert (comm.rank, comm.size) == (0, 1) and comm is parallel.init()\n"
        "assert not any(name.startswith('mpi4py') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_lone_process_has_what_it_gives():
    comm, array = parallel.SingleProcess(), np.arange(3.0)
    assert comm.all_reduce(array) is comm.broadcast(array) is array
    with pytest.raises(ArgumentError, match="size 1"):
        comm.send(array, 0)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        # Each trained everything as rank 0 of 1, and wrote the same folder.
        ({"WORLD_SIZE": "2", "RANK": "0"}, "2 processes that torchrun"),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "4.*srun"),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "3"}, "4 processes that Slurm"),
        ({"WORLD_SIZE": "1", "RANK": "0"}, ""),
        ({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, ""),  # a batch script
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, ""),
        ({"WORLD_SIZE": "", "PMI_RANK": "0"}, ""),
    ],
)
def test_processes_that_do_not_meet_are_refused_and_who_is_alone_may_be(
    environment, told, monkeypatch
):
    for name in [*initialize._LAUNCHED, *initialize._COUNTS, "SLURM_PROCID"]:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if told:
        with pytest.raises(BackendError, match=f"(?s){told}.*singanet launch -n"):
            initialize._whole.__wrapped__()
    else:
        assert isinstance(initialize._whole.__wrapped__(), parallel.SingleProcess)


def test_an_interrupt_while_ranks_begin_is_heard_when_they_have():
    """It came out of the import of MPI, which had begun, and waited in its end for the others."""
    done = []

    @interrupted_after()
    def begins():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(sum(range(1000)))

    with pytest.raises(KeyboardInterrupt):
        begins()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


MEETS = """
from singanet import parallel
from singanet.errors import BackendError
try:
    parallel.init()
except BackendError as error:
    print(error)
from mpi4py import MPI
print("began:", MPI.Is_initialized())
"""


@pytest.mark.full
def test_an_mpi_that_does_not_hear_of_the_others_is_refused_before_it_begins():
    """Each process of another MPI's mpiexec was a world of its own, and left 16 MB in /dev/shm."""
    mpi4py = pytest.importorskip("mpi4py", exc_type=ImportError)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI", "PMI"))}
    own["PMI_SIZE"] = "2"
    library = Path(mpi4py.__file__).parents[3] / "libmpi.so.40"  # as a wheel
    if library.exists():
        own["MPI4PY_LIBMPI"] = str(library)
    done = subprocess.run(
        [sys.executable, "-c", MEETS], env=own, capture_output=True, text=True, check=False
    )
    if "Open MPI" not in done.stdout:
        pytest.skip("no Open MPI beside this Python")
    assert "PMI_SIZE=2" in done.stdout
    assert "rank 0 of 1" in done.stdout
    assert "began: False" in done.stdout
