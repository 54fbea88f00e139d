"""Parameters that servers hold and update: ranks that train by them pull values, push gradients."""

from singanet.parallel.server.table import Shard, Table

__all__ = ["Shard", "Table"]
