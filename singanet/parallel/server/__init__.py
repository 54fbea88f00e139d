"""Parameter servers: workers push gradients and pull the updated values."""

from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.parameter_table import ServedTable, Shard
from singanet.parallel.server.remote import Files, RemoteTable, Servers
from singanet.parallel.server.service import Load, serve

__all__ = [
    "Files",
    "Load",
    "RemoteTable",
    "ServedTable",
    "ServerRanks",
    "Servers",
    "Shard",
    "serve",
]
