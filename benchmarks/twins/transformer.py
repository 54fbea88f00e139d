"""The twin of the causal transformer of characters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

_WIDTH, _HEADS, _DROPOUT = 128, 4, 0.1


class _Attention(nn.Module):
    """Normalisation, causal attention by PyTorch's fused kernel, and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.query, self.value, self.key, self.out = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, E) → (N, T, E)."""
        y = self.norm(x)
        q, k, v = (
            part(y).unflatten(2, (_HEADS, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        dropout = _DROPOUT if self.training else 0.0
        heads = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        return x + self.drop(self.out(heads.transpose(1, 2).flatten(2)))


class _DensePair(nn.Module):
    """Normalisation, two dense layers of each step, and the input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.rest = nn.Sequential(
            *(nn.Linear(_WIDTH, 4 * _WIDTH), nn.ReLU()),
            *(nn.Linear(4 * _WIDTH, _WIDTH), nn.Dropout(_DROPOUT)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, T, E) → (N, T, E)."""
        return x + self.rest(self.norm(x))


class Transformer(nn.Module):
    """Scores of the 96 characters at each of 64 steps by three blocks of width 128."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, _WIDTH)
        self.position = nn.Embedding(64, _WIDTH)
        parts = (part for _ in range(3) for part in (_Attention(), _DensePair()))
        self.blocks = nn.Sequential(nn.Dropout(_DROPOUT), *parts)
        self.norm = nn.LayerNorm(_WIDTH)
        self.fc = nn.Linear(_WIDTH, 96)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(N, T) → (N, T, 96)."""
        x = self.embedding(ids) + self.position.weight
        return self.fc(self.norm(self.blocks(x)))
