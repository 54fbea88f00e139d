"""Several processes that train one net."""

from singanet.parallel.all_reduce import AllReduce
from singanet.parallel.communicator import Alone, Communicator, Exchanged, ReduceOp, Request
from singanet.parallel.sparse_all_reduce import SparseAllReduce
from singanet.parallel.start import init

__all__ = [
    "AllReduce",
    "Alone",
    "Communicator",
    "Exchanged",
    "ReduceOp",
    "Request",
    "SparseAllReduce",
    "init",
]
