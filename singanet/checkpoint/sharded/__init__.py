"""State dicts in several files beside an index that says which array is in which."""

from __future__ import annotations

from singanet.checkpoint.sharded.reader import ShardedReader
from singanet.checkpoint.sharded.writer import write_folder, write_sharded

__all__ = ["ShardedReader", "write_folder", "write_sharded"]
