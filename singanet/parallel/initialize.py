"""The communicator of this process."""

from __future__ import annotations

import copyreg
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from singanet.base.processes import interrupted_after
from singanet.device import Device
from singanet.errors import ArgumentError, BackendError
from singanet.ops.threads import cores, set_threads
from singanet.parallel.communicators.communicator import Communicator, SingleProcess
from singanet.parallel.communicators.nccl import NcclCommunicator
from singanet.parallel.communicators.rank_file import JOB, SERVERS, own_file
from singanet.parallel.server.messages import ServerRanks

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""Variables that MPI launchers set in each process."""

_COUNTS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "PMI_SIZE": "an mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",
    "WORLD_SIZE": "torchrun, or one like it",
    "SLURM_NTASKS": "Slurm",
}
"""Variables with the number of processes, and the programs that set them."""


def init(device: Device | None = None) -> Communicator:
    """Return the communicator of this process, the same object at every call.

    It is an `MpiCommunicator` if an MPI launcher has started the process, else `SingleProcess`,
    without loading MPI. The servers of the job are not among the ranks. Unless ``OMP_NUM_THREADS``
    is set, the ranks of one machine share its cores. Errors: `BackendError` if mpi4py or CuPy's
    NCCL is missing, or if several processes were started that cannot communicate: each would train
    by itself.

    Args:
        device: Device of the net. If it is a GPU and there are other ranks, the communicator is an
            `NcclCommunicator`; then all ranks must make this call.
    """
    world = _world()
    if device is None or device.index is None or world.size == 1:
        return world
    return _on_gpu(device.index)


@cache
def servers() -> ServerRanks | None:
    """Return the server ranks of this job, its last ranks; None if it has no servers."""
    count = int(os.environ.get(SERVERS, "0"))
    whole = _whole()
    copyreg.pickle(ServerRanks, _servers_of_job)
    return ServerRanks(whole, range(whole.size)[whole.size - count :]) if count else None


@cache
def _world() -> Communicator:
    """Return the ranks of this job that train; on a server, the servers."""
    serving, whole = servers(), _whole()
    if serving is None:
        return whole
    return whole.group(serving.ranks if whole.rank in serving.ranks else serving.workers)


@cache
def _whole() -> Communicator:
    if not any(name in os.environ for name in _LAUNCHED):
        _expect_alone("no MPI")
        return SingleProcess()
    _share_cores()
    if not any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK")):
        _expect_understood()
    # The import initializes MPI, which takes a second and waits for all ranks.
    own_file().tell("comes")
    with _ending_all():
        from singanet.parallel.communicators.mpi import MpiCommunicator

        copyreg.pickle(MpiCommunicator, _by_init)
        copyreg.pickle(NcclCommunicator, _by_init)
        whole = MpiCommunicator()
    if whole.size == 1:
        _expect_alone("an MPI that knows of this process alone")
    return whole


def _servers_of_job(ranks: ServerRanks) -> Any:
    """Reduce ``ranks`` for pickle: unpickling returns the server ranks of the reader's job."""
    return servers, ()


def _by_init(comm: Any) -> Any:
    """Reduce ``comm`` for pickle: unpickling returns the communicator of the reader's job.

    Errors: `ArgumentError` if ``comm`` is a group of some of the ranks.
    """
    if comm.size != _world().size:
        raise ArgumentError(
            "pickle",
            expected=f"a communicator of all {_world().size} ranks that train",
            received=f"a group of {comm.size}",
            advice="save the net with net.save_model, and pass comm= again after loading it",
        )
    return init, ()


@contextmanager
def _ending_all() -> Iterator[None]:
    """On an error or an interrupt in this process, abort the processes that wait for it, too.

    Without ``singanet launch`` nothing else ends them: MPI_Finalize would wait for the others.
    """
    try:
        # No interrupt between the start of MPI and its first use. MPI ignores signals in a wait.
        with interrupted_after():
            yield
    except BaseException:
        begun = sys.modules.get("mpi4py.MPI")
        if begun is not None and JOB not in os.environ:
            traceback.print_exc()
            sys.stderr.flush()
            begun.COMM_WORLD.Abort(1)
        raise


def _expect_understood() -> None:
    """Refuse an MPI that cannot communicate with the mpiexec that has started this process.

    Such an MPI starts as a single process, and Open MPI then leaves 16 MB in ``/dev/shm``.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return  # the import of the communicator raises this error
    if "Open MPI" in MPI.Get_library_version():
        _expect_alone("Open MPI, which does not find the others this way")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)


def _expect_alone(received: str) -> None:
    """Errors: `BackendError` if other processes were started that this one cannot reach."""
    for name, starter in _COUNTS.items():
        count = os.environ.get(name, "")
        if not count.isdecimal() or int(count) < 2:
            continue
        if name == "SLURM_NTASKS" and os.environ.get("SLURM_PROCID", "0") == "0":
            # A batch script has this variable, too, and is one process; srun sets its own count.
            continue
        raise BackendError(
            "parallel.init",
            expected=f"all {count} processes that {starter} has started ({name}={count})",
            received=f"{received}: each of them would train everything, as rank 0 of 1",
            advice=f"start them by: singanet launch -n {count} SCRIPT; if each is to train "
            f"alone, unset {name} or pass parallel.SingleProcess()",
        )


@cache
def _on_gpu(index: int) -> Communicator:
    return NcclCommunicator(index, _world())


def _share_cores() -> None:
    """Divide the cores of this machine among the kernel threads of its ranks."""
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    if "OMP_NUM_THREADS" not in os.environ and local.isdecimal() and int(local) > 1:
        set_threads(max(1, cores() // int(local)))
