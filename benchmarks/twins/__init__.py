"""The nets of `cases` in PyTorch, layer for layer, so that the parameters stand in one order."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from twins.plain import CharRNN, alexnet, convnet, lenet, mlp, small, vgg11
from twins.residual import resnet20, resnet50, resnet152
from twins.transformer import Transformer
from twins.wide_deep import WideDeep

if TYPE_CHECKING:
    import singanet

__all__ = ["build", "copy_weights"]

_BUILDERS = {
    "64-64-10": small,
    "mlp": mlp,
    "lenet": lenet,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "convnet3": partial(convnet, 3, 32, [(32, 3), (48, 3), None, (64, 3), (96, 3), None]),
    "convnet5": partial(convnet, 3, 40, [(24, 5), None, (56, 5), None, (96, 3), None]),
    "convnet24": partial(convnet, 1, 24, [(24, 3), (40, 3), None, (80, 3), None]),
    "resnet20": resnet20,
    "resnet50": resnet50,
    "resnet152": resnet152,
    "char_rnn": CharRNN,
    "transformer": Transformer,
    "wide_deep": WideDeep,
}


def build(model: str, **options: Any) -> nn.Module:
    """The twin of `cases.build`."""
    return _BUILDERS[model](**options)


def copy_weights(net: singanet.FeedForwardNet, twin: nn.Module) -> None:
    """Give the twin the parameters and running statistics of the net."""
    values = iter(net.param_values())
    with torch.no_grad():
        for tensor, transposed in _tensors(twin):
            value = torch.from_numpy(next(values))
            tensor.copy_((value.T if transposed else value).reshape(tensor.shape))
    if (left := next(values, None)) is not None:
        raise SystemExit(f"the twin has nothing for an array of shape {left.shape}")


def _tensors(twin: nn.Module) -> Iterator[tuple[torch.Tensor, bool]]:
    """Each tensor that singanet keeps, and whether it is the transposed one there."""
    for module in twin.modules():
        turns = isinstance(module, nn.Linear | nn.LSTM)
        for tensor in module.parameters(recurse=False):
            yield tensor, turns and tensor.ndim == 2
        for tensor in module.buffers(recurse=False):
            if tensor.ndim:
                yield tensor, False
