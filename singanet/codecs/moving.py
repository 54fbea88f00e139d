"""Elements moved about, joined, cut and spread."""

from __future__ import annotations

from typing import Any

from singanet import layers
from singanet.codecs.codec import KerasClass, LayerCodec
from singanet.codecs.described import DescribedLayer, unknown
from singanet.layers.layer import Layer


def _reshape(d: DescribedLayer) -> list[Layer]:
    """By rows of (H, W, C), as Keras has them."""
    target = tuple(int(axis) for axis in d.config["target_shape"])
    if len(target) > 3:
        raise unknown(d.where, "samples of at most three axes", str(target)[:60])
    made: list[Layer] = [layers.Reshape(d.name, target)]
    if d.is_image:
        made.insert(0, layers.Permute(f"{d.name}_channels_last", (2, 3, 1)))
    if len(target) == 3 and d.data_format == "channels_last":
        made.append(layers.Permute(f"{d.name}_channels_first", (3, 1, 2)))
    return made


def _permute(d: DescribedLayer) -> dict[str, Any]:
    axes = tuple(int(axis) for axis in d.config["dims"])
    if d.is_image:
        # Ours of Keras' axes H, W, C are 2, 3, 1; what is last there is first here.
        ours = [{1: 2, 2: 3, 3: 1}[axis] for axis in axes]
        axes = (ours[2], ours[0], ours[1])
    return {"axes": axes}


def _flatten(d: DescribedLayer) -> list[Layer]:
    """Keras flattens with the channels last: rows as there mean the same to whatever reads them."""
    axes = len(d.shapes[0])
    if axes < 2 or (axes == 2 and d.data_format != "channels_first"):
        return [layers.Flatten(d.name)]
    last = layers.Permute(f"{d.name}_channels_last", (*range(2, axes + 1), 1))
    return [last, layers.Flatten(d.name)]


def _ends(key: str, ours: str, axes: int) -> KerasClass:
    def more(d: DescribedLayer) -> dict[str, Any]:
        given = d.config[key] if axes > 1 else [d.config[key]]
        ends = [(int(before), int(after)) for before, after in given]
        first = d.config.get("data_format") == "channels_first"
        return {ours: ends if axes > 1 or first else [*ends, (0, 0)]}

    return KerasClass(more=more)


MOVING = (
    LayerCodec(layers.Reshape, keras={"Reshape": KerasClass(draw=_reshape)}, elements="moved"),
    LayerCodec(layers.Permute, keras={"Permute": KerasClass(more=_permute)}, elements="moved"),
    LayerCodec(layers.Flatten, keras={"Flatten": KerasClass(draw=_flatten)}, elements="moved"),
    LayerCodec(
        layers.Concat,
        keras={"Concatenate": KerasClass(more=lambda d: {"axis": d.axis()}, masked=True)},
        elements="in a row",
    ),
    LayerCodec(layers.Slice, elements="cut"),
    LayerCodec(layers.RepeatVector, keras={"RepeatVector": KerasClass({"n": ("count", int)})}),
    LayerCodec(layers.Pad, keras={f"ZeroPadding{n}D": _ends("padding", "pad", n) for n in (1, 2)}),
    LayerCodec(
        layers.Cropping, keras={f"Cropping{n}D": _ends("cropping", "crop", n) for n in (1, 2)}
    ),
)
