"""What Keras' convolutions and pools have in common, by the number of axes."""

from __future__ import annotations

import math
from typing import Any

from singanet import layers
from singanet.codecs.described import DescribedLayer
from singanet.layers.layer import Layer
from singanet.ops.window import Pads


def kind_of(name: str, axes: int, more: str = "") -> Any:
    """The class of layers along so many axes."""
    return getattr(layers, f"{name}{axes}D{more}")


def sizes(d: DescribedLayer, key: str, axes: int) -> tuple[int, ...]:
    """A number for each axis."""
    value: Any = d.config[key]
    return tuple(map(int, value if isinstance(value, list) else [value] * axes))


def pads(d: DescribedLayer, key: str, axes: int) -> Pads:
    """Keras' 'same': as many outputs as strides fit, the larger half of the border behind."""
    if d.config["padding"] != "same":
        d.expect(padding="valid")
        return ((0, 0),) * axes
    dilation = sizes(d, "dilation_rate", axes) if "dilation_rate" in d.config else (1,) * axes
    last = axes == 1 and d.config["data_format"] == "channels_last"
    shape = d.shapes[0][:1] if last else d.shapes[0][1:]
    given = zip(shape, sizes(d, key, axes), sizes(d, "strides", axes), dilation, strict=True)
    return tuple(same_size(*each) for each in given)


def same_size(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """The border with which as many outputs come as strides fit, the larger half behind."""
    total = max((math.ceil(size / stride) - 1) * stride + dilation * (kernel - 1) + 1 - size, 0)
    return total // 2, total - total // 2


def along(d: DescribedLayer, layer: Layer, keeps: bool = True) -> list[Layer]:
    """``layer`` on Keras' samples: channels are first here, and of sequences (T, F) last there."""
    if d.config.get("data_format", "channels_last") == "channels_first":
        return [layer]
    return d.along_channels(layer, keeps)
