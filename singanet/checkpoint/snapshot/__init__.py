"""SINGA's snapshots: protobuf records in ``.bin``, a description in ``.desc``."""

from __future__ import annotations

from singanet.checkpoint.snapshot.reader import SnapshotReader
from singanet.checkpoint.snapshot.writer import write_snapshot

__all__ = ["SnapshotReader", "write_snapshot"]
