"""Several processes that train one net."""

from singanet.parallel.communicator import Alone, Communicator, Reduction, Request
from singanet.parallel.start import init

__all__ = ["Alone", "Communicator", "Reduction", "Request", "init"]
