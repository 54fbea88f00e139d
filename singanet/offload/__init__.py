"""Nets larger than memory: parameters and optimizer state in a folder, moved layer by layer."""

from __future__ import annotations

from singanet.offload.offloading import offload, onload

__all__ = ["offload", "onload"]
