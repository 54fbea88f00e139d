"""Parameters that servers hold and update: workers push gradients there, and pull values."""

from singanet.parallel.server.messages import ServerRanks
from singanet.parallel.server.remote import Files, RemoteTable, Servers
from singanet.parallel.server.service import Load
from singanet.parallel.server.serving import serve
from singanet.parallel.server.table import ServedTable, Shard

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
