"""Reductions between backward and the rule: sums, a few elements, means."""

from singanet.parallel.reductions.all_reduce import AllReduce
from singanet.parallel.reductions.local_updates import LocalSGD, PartialUpdate
from singanet.parallel.reductions.power_sgd import PowerSGD
from singanet.parallel.reductions.sharded_states import Sharded
from singanet.parallel.reductions.sparse_all_reduce import SparseAllReduce

__all__ = ["AllReduce", "LocalSGD", "PartialUpdate", "PowerSGD", "Sharded", "SparseAllReduce"]
