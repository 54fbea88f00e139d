"""Twins of the residual nets."""

from __future__ import annotations

import torch
from torch import nn


class _Basic(nn.Module):
    """Two 3×3 convolutions; a shortcut that changes shape skips pixels and adds zero channels."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride, self.more = stride, after - before
        self.one = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.one_bn = nn.BatchNorm2d(after)
        self.two = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.two_bn = nn.BatchNorm2d(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one_bn(self.one(x)))
        y = self.two_bn(self.two(y))
        if self.more:
            low = self.more // 2
            x = x[:, :, :: self.stride, :: self.stride]
            x = nn.functional.pad(x, (0, 0, 0, 0, low, self.more - low))
        return torch.relu(y + x)


class _Bottleneck(nn.Module):
    """1×1, 3×3, 1×1; a shortcut that changes shape is a 1×1 convolution."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.one = nn.Conv2d(before, width, 1, bias=False)
        self.one_bn = nn.BatchNorm2d(width)
        self.two = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.two_bn = nn.BatchNorm2d(width)
        self.three = nn.Conv2d(width, after, 1, bias=False)
        self.three_bn = nn.BatchNorm2d(after)
        self.shortcut = nn.Sequential()
        if before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.one_bn(self.one(x)))
        y = torch.relu(self.two_bn(self.two(y)))
        return torch.relu(self.three_bn(self.three(y)) + self.shortcut(x))


def resnet20() -> nn.Module:
    """Three stages of three blocks for 32×32 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)]
    layers.append(nn.ReLU())
    before = 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(_Basic(before, width, 2 if stage and not block else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def resnet50(depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Sequential:
    """Four stages of 3, 4, 6, 3 bottleneck blocks for 224×224 pixels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for stage, blocks in enumerate(depths):
        for block in range(blocks):
            width = 64 << stage
            layers.append(_Bottleneck(before, width, 2 if stage and not block else 1))
            before = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def resnet152() -> nn.Sequential:
    """Four stages of 3, 8, 36, 3 bottleneck blocks."""
    return resnet50((3, 8, 36, 3))
