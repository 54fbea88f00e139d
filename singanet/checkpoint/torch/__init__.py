"""PyTorch's files, stepped through without PyTorch, and its names and layouts."""

from __future__ import annotations

from singanet.checkpoint.torch.reader import TorchReader

__all__ = ["TorchReader"]
