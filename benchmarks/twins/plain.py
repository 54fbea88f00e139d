"""Twins that are sequences of layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn


def small() -> nn.Module:
    """64-64-10."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def mlp(hidden: Sequence[int] = (512, 256)) -> nn.Module:
    """784-512-256-10; it must not load singanet, so `cases.HIDDEN` stands here again."""
    sizes = (784, *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


def lenet() -> nn.Module:
    """Two convolutions, two dense layers."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(3136, 256), nn.ReLU()),
        *(nn.Dropout(0.5), nn.Linear(256, 10)),
    )


def alexnet() -> nn.Module:
    """cuda-convnet's net for CIFAR-10; PyTorch divides alpha of its LRN by the size."""
    pool = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2, 1), nn.ReLU()),
        nn.LocalResponseNorm(3, 3 * 5e-5, 0.75, 1.0),
        *(nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), pool),
        nn.LocalResponseNorm(3, 3 * 5e-5, 0.75, 1.0),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), pool),
        *(nn.Flatten(), nn.Linear(1024, 10)),
    )


def vgg11() -> nn.Module:
    """Eight convolutions with batch normalisation, for 32×32 pixels."""
    layers: list[nn.Module] = []
    before = 3
    for channels, count in zip((64, 128, 256, 512, 512), (1, 1, 2, 2, 2), strict=True):
        for _ in range(count):
            layers.append(nn.Conv2d(before, channels, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(channels), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Dropout(0.5), nn.Linear(512, 512, bias=False)]
    layers += [nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, 10)]
    return nn.Sequential(*layers)


def convnet(before: int, side: int, blocks: Sequence[tuple[int, int] | None]) -> nn.Module:
    """Kernels by number and size, None for pooling; `cases.CONVNETS` are the same."""
    layers: list[nn.Module] = []
    for block in blocks:
        if block is None:
            layers.append(nn.MaxPool2d(2))
            side //= 2
            continue
        channels, kernel = block
        layers.append(nn.Conv2d(before, channels, kernel, padding=kernel // 2, bias=False))
        layers += [nn.BatchNorm2d(channels), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(before * side * side, 10))


class CharRNN(nn.Module):
    """An embedding, an LSTM of 256 units, scores of each of the 64 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 64)
        self.lstm = nn.LSTM(64, 256, batch_first=True)
        self.fc = nn.Linear(256, 96)
        self.drop = nn.Dropout(0.2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(N, T) → (N, T, 96)."""
        states, _ = self.lstm(self.drop(self.embedding(ids)))
        return self.fc(self.drop(states))
