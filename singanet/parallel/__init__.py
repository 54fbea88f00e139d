"""Several processes that train one net."""

from singanet.parallel.all_reduce import AllReduce
from singanet.parallel.cached.hybrid import Hybrid
from singanet.parallel.communicator import Alone, Communicator, Exchanged, ReduceOp, Request
from singanet.parallel.local_updates import LocalSGD, PartialUpdate
from singanet.parallel.parameter_server import ParameterServer
from singanet.parallel.pipeline import Pipeline, schedule, simulate, stage
from singanet.parallel.sparse_all_reduce import SparseAllReduce
from singanet.parallel.split import SplitDense, SplitEmbedding
from singanet.parallel.start import init

__all__ = [
    "AllReduce",
    "Alone",
    "Communicator",
    "Exchanged",
    "Hybrid",
    "LocalSGD",
    "ParameterServer",
    "PartialUpdate",
    "Pipeline",
    "ReduceOp",
    "Request",
    "SparseAllReduce",
    "SplitDense",
    "SplitEmbedding",
    "init",
    "schedule",
    "simulate",
    "stage",
]
