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
from singanet.parallel.communicators.communicator import Alone, Communicator
from singanet.parallel.communicators.nccl import NcclCommunicator
from singanet.parallel.communicators.rank_file import JOB, SERVERS, own_file
from singanet.parallel.server.messages import ServerRanks

_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
"""Variables that launchers of MPI set in each process that they start."""

_COUNTS = {
    "OMPI_COMM_WORLD_SIZE": "mpirun of Open MPI",
    "PMI_SIZE": "an mpiexec",
    "SLURM_STEP_NUM_TASKS": "srun",
    "WORLD_SIZE": "torchrun, or one like it",
    "SLURM_NTASKS": "Slurm",
}
"""Variables by which starters of processes tell each of them how many there are."""


def init(device: Device | None = None) -> Communicator:
    """The communicator that fits how this process was started, the same at every call.

    `MpiCommunicator` if a launcher of MPI has started it, else `Alone`, and then no MPI is loaded.
    `NcclCommunicator` if there are other ranks and ``device`` is a GPU; all ranks have to ask for
    it together. Servers of the job are not among its ranks. Unless ``OMP_NUM_THREADS`` is set, the
    ranks of one machine share its cores. Errors: `BackendError` if mpi4py, or CuPy's NCCL, is
    missing, or if several processes were started that cannot meet: each would train by itself.
    """
    world = _world()
    if device is None or device.index is None or world.size == 1:
        return world
    return _on_gpu(device.index)


@cache
def servers() -> ServerRanks | None:
    """The ranks of this job that hold parameters, the last ones; None if it has no servers."""
    count = int(os.environ.get(SERVERS, "0"))
    whole = _whole()
    copyreg.pickle(ServerRanks, _servers_of_job)
    return ServerRanks(whole, range(whole.size)[whole.size - count :]) if count else None


@cache
def _world() -> Communicator:
    """The ranks of this job that train; for a server, the servers."""
    serving, whole = servers(), _whole()
    if serving is None:
        return whole
    return whole.group(serving.ranks if whole.rank in serving.ranks else serving.workers)


@cache
def _whole() -> Communicator:
    if not any(name in os.environ for name in _LAUNCHED):
        _expect_alone("no MPI")
        return Alone()
    _share_cores()
    if not any(name in os.environ for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK")):
        _expect_understood()
    # Loading MPI starts it, which takes a second, and waits until all ranks have come to it.
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
    """How ``ranks`` are pickled: the reader gets the server ranks of its own job."""
    return servers, ()


def _by_init(comm: Any) -> Any:
    """How ``comm`` is pickled: the reader gets the communicator of its own job.

    Errors: `ArgumentError` for a group of some of the ranks.
    """
    if comm.size != _world().size:
        raise ArgumentError(
            "pickle",
            expected=f"a communicator of all {_world().size} ranks that train",
            received=f"a group of {comm.size}",
            advice="save the net with net.save_model, and give comm= anew where it is read",
        )
    return init, ()


@contextmanager
def _ending_all() -> Iterator[None]:
    """If an error or an interrupt ends this process, end the processes that wait for it as well.

    Without a launcher of ours nobody else does so: MPI would wait in its end for the others.
    """
    try:
        # Not where MPI has begun and nobody has it. MPI looks at no signal while it waits.
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
    """Refuse an MPI that does not speak with the mpiexec that has started this process.

    It would begin by itself, and Open MPI leaves 16 MB in ``/dev/shm`` then.
    """
    try:
        import mpi4py

        mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return  # it is told as it always is
    if "Open MPI" in MPI.Get_library_version():
        _expect_alone("Open MPI, which does not hear of the others so")
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)


def _expect_alone(received: str) -> None:
    """Errors: `BackendError` where there are others that this process cannot meet."""
    for name, starter in _COUNTS.items():
        count = os.environ.get(name, "")
        if not count.isdecimal() or int(count) < 2:
            continue
        if name == "SLURM_NTASKS" and os.environ.get("SLURM_PROCID", "0") == "0":
            # A batch script has it too, and is one process; srun says of its own, before this.
            continue
        raise BackendError(
            "parallel.init",
            expected=f"all {count} processes that {starter} has started ({name}={count})",
            received=f"{received}: each of them would train everything, as rank 0 of 1",
            advice=f"start them by: singanet launch -n {count} SCRIPT; where each is to train "
            f"alone, unset {name} or pass parallel.Alone()",
        )


@cache
def _on_gpu(index: int) -> Communicator:
    return NcclCommunicator(index, _world())


def _share_cores() -> None:
    """Let the kernels of this machine's ranks take as many threads as there are cores."""
    local = os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    if "OMP_NUM_THREADS" not in os.environ and local.isdecimal() and int(local) > 1:
        set_threads(max(1, cores() // int(local)))
