"""The common part of Keras' convolutions and pools, by the number of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from singanet import layers
from singanet.codecs.described import DescribedLayer
from singanet.codecs.onnx import RefusedError, Use, Value, WrittenGraph
from singanet.layers.layer import Layer
from singanet.ops.window import Pads, Window


def window_of(layer: Any, pads: Pads) -> dict[str, Any]:
    """The attributes of a window in ONNX."""
    window: Window = layer.window
    begins, ends = zip(*pads, strict=True)
    made = {
        "kernel_shape": [*window.kernel],
        "strides": [*window.stride],
        "pads": [*begins, *ends],
    }
    return {**made, "dilations": [*window.dilation]} if max(window.dilation) > 1 else made


def bordered(
    g: WrittenGraph, x: Value, pads: Pads, mode: str = "constant", value: float = 0.0
) -> Value:
    """``x`` (N, C, ...) with the border as an array of its own."""
    return g.pad(x, [(0, 0), (0, 0), *pads], mode, value)


def with_channels(g: WrittenGraph, layer: Any, x: Value) -> Value:
    """Sequences (N, L) as those of one channel."""
    return g.unsqueeze(x, 1) if is_flat(layer) else x


def is_flat(layer: Any) -> bool:
    """Whether it reads sequences (N, L)."""
    return len(layer.in_shapes) == len(layer.window.kernel)


Ends = list[tuple[int, int]]


def read_ints(use: Use, name: str, count: int, usual: int = 1, least: int = 1) -> list[int]:
    """An attribute that has a number for each axis."""
    found = use.attribute(name) or [usual] * count
    if len(found) != count or min(found) < least or max(found) > 1 << 20:
        raise RefusedError(f"{name} for {count} axes, from {least}", f"{found}"[:60])
    return list(found)


def read_pads(
    use: Use, sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    spread: Sequence[int],
) -> Ends:  # fmt: skip
    """The padding before and after each axis: by the attribute, or such that the size is kept."""
    count, mode = len(sizes), use.attribute("auto_pad", "NOTSET")
    if mode == "VALID":
        return [(0, 0)] * count
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, k, s, d in zip(sizes, kernel, stride, spread, strict=True):
            less, more = same_size(size, k, s, d)
            found.append((less, more) if mode == "SAME_UPPER" else (more, less))
        return found
    given = read_ints(use, "pads", 2 * count, 0, 0)
    return list(zip(given[:count], given[count:], strict=True))


def plain(values: Sequence[Any]) -> Any:
    """Of an image a pair, of a sequence a number."""
    return tuple(values) if len(values) > 1 else values[0]


def known_kind(name: str, axes: int, more: str = "") -> Any:
    """The class of layers over so many axes. Errors: that there is none."""
    kind = getattr(layers, f"{name}{axes}D{more}", None)
    if kind is None:
        raise RefusedError("sequences or images", f"{axes} axes behind the channels")
    return kind


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
