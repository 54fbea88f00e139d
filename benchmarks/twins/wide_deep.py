"""The twin of the net for tables."""

from __future__ import annotations

import torch
from torch import nn


class WideDeep(nn.Module):
    """Eight categories of 102 in all and five measures; a linear part and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Embedding(102, 2)
        self.wide_numeric = nn.Linear(5, 2, bias=False)
        self.embedding = nn.Embedding(102, 8)
        self.deep = nn.Sequential(
            *(nn.Linear(69, 128), nn.ReLU(), nn.Dropout(0.2)),
            *(nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2)),
            nn.Linear(64, 2),
        )

    def forward(self, categorical: torch.Tensor, numeric: torch.Tensor) -> torch.Tensor:
        """(N, 8) and (N, 5) → (N, 2)."""
        vectors = self.embedding(categorical).flatten(1)
        linear = self.wide(categorical).sum(dim=1) + self.wide_numeric(numeric)
        return linear + self.deep(torch.cat((vectors, numeric), dim=1))
