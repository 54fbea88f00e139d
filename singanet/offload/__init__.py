"""Nets larger than memory: parameters and optimizer state in a folder, read and written by layer."""

from __future__ import annotations

from singanet.offload.offloading import offload, onload

__all__ = ["offload", "onload"]
