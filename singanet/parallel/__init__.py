"""Training of one net by several processes.

`initialize` returns the communicator of this process, a class of `communicators`. `reductions`
combine the gradients of ranks. Other rooms divide parameters over the ranks: `slices` by rows,
`split` within one layer, `pipeline` by layers. `server` is the program of a parameter server;
`parameter_server`, `hybrid`, `pushes` and `cached_rows` are its clients. `launch` starts the
processes of a job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from singanet.base.elsewhere import names_when_asked

if TYPE_CHECKING:
    from singanet.parallel import launch as launch
    from singanet.parallel.communicators.communicator import (
        Communicator,
        Exchanged,
        ReduceOp,
        Request,
        SingleProcess,
    )
    from singanet.parallel.hybrid import Hybrid
    from singanet.parallel.initialize import init
    from singanet.parallel.parameter_server import ParameterServer
    from singanet.parallel.pipeline import Pipeline, schedule, stage
    from singanet.parallel.reductions.all_reduce import AllReduce
    from singanet.parallel.reductions.compressed import PowerSGD, SparseAllReduce
    from singanet.parallel.reductions.local_updates import LocalSGD, PartialUpdate
    from singanet.parallel.reductions.sharded_states import Sharded
    from singanet.parallel.split import SplitDense, SplitEmbedding

__all__ = [
    "AllReduce",
    "Communicator",
    "Exchanged",
    "Hybrid",
    "LocalSGD",
    "ParameterServer",
    "PartialUpdate",
    "Pipeline",
    "PowerSGD",
    "ReduceOp",
    "Request",
    "Sharded",
    "SingleProcess",
    "SparseAllReduce",
    "SplitDense",
    "SplitEmbedding",
    "init",
    "schedule",
    "stage",
]

if not TYPE_CHECKING:  # else type checkers accept any name
    __getattr__, __dir__ = names_when_asked(__name__, __all__)
