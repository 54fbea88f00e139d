"""Several processes that train one net."""

from singanet.parallel.all_reduce import AllReduce
from singanet.parallel.communicator import Alone, Communicator, ReduceOp, Request, Traffic
from singanet.parallel.start import init

__all__ = ["AllReduce", "Alone", "Communicator", "ReduceOp", "Request", "Traffic", "init"]
