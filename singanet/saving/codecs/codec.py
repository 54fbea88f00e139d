"""The declaration of a codec: all foreign forms of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from singanet.layers.layer import Layer
from singanet.saving.codecs.arrays import Arrays
from singanet.saving.codecs.described import Axes, DescribedLayer, LayerGraph
from singanet.saving.codecs.onnx import Converter, Form

Elements: TypeAlias = Literal[
    "", "units", "features", "each", "moved", "joined", "in a row", "cut", "copied"
]
"""The effect of a layer on the order of elements, which differs in Keras after images.

``units`` may be permuted to the order that the next layer needs. ``features``: the layer operates
along the features alone. ``each``: it operates on each feature. Layers of "" depend on their axes
and must read them in Keras' order.
"""

Read: TypeAlias = "Callable[[Any], Any] | None"
Drawn: TypeAlias = "Callable[[DescribedLayer], Sequence[Layer | LayerGraph]]"


def _nothing_more(d: DescribedLayer) -> dict[str, Any]:
    return {}


def _alone(d: DescribedLayer, layer: Layer) -> list[Layer]:
    return [layer]


@dataclass(frozen=True)
class KerasClass:
    """A class of Keras and its conversion to layers.

    ``fields`` maps config fields to readers, or to our argument's name and a reader; a type
    converts numbers, None takes the value unchanged. ``specs`` maps our specs of parameters to
    Keras' array and the axes of a norm. ``usual`` are settings with a single supported value.
    ``more`` returns arguments that depend on several fields, or refuses the class. ``around`` adds
    layers before and after the layer. A class that becomes several layers has ``draw`` instead.

    A class that ``prepares`` samples is called with training=True by default, which prediction
    overrides.

    A ``masked`` class passes a mask of steps on or uses it; all others drop it. A class that
    ``merges`` passes it on only if all its inputs have one; a class that ``fills`` outputs its own
    values at masked steps.
    """

    fields: Mapping[str, Read | tuple[str, Read]] = field(default_factory=dict)
    specs: Mapping[str, tuple[str, Axes]] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[DescribedLayer], Mapping[str, Any]] = _nothing_more
    around: Callable[[DescribedLayer, Layer], Sequence[Layer | LayerGraph]] = _alone
    draw: Drawn | None = None
    masked: bool = False
    merges: bool = False
    fills: bool = False
    prepares: bool = False
    kind: Callable[..., Layer] = Layer
    """The layer class of the codec."""

    def drawn(self, d: DescribedLayer) -> Sequence[Layer | LayerGraph]:
        """Return the layers of a described one.

        Errors: `FileFormatError` for unsupported settings.
        """
        if self.draw is not None:
            return self.draw(d)
        d.expect(**self.usual)
        given: dict[str, Any] = dict(self.more(d))
        for theirs, target in self.fields.items():
            ours, read = target if isinstance(target, tuple) else (theirs, target)
            given[ours] = d.config[theirs] if read is None else read(d.config[theirs])
        given |= {ours: d.specs(*theirs) for ours, theirs in self.specs.items()}
        return self.around(d, self.kind(d.name, **given))


@dataclass(frozen=True)
class LayerCodec:
    """The foreign forms of layers of ``kind``.

    ``arrays`` are their parameters in weight files. ``keras`` is their Keras class, with the name
    ``keras_name`` or the layer's, or several classes by name. ``onnx`` writes a layer to a graph;
    ``operators`` convert operators to the layer, or to parts of it.
    """

    kind: type[Layer]
    arrays: Arrays = field(default_factory=Arrays)
    keras: KerasClass | Mapping[str, KerasClass] = field(default_factory=dict)
    keras_name: str | Callable[[Any], str] = ""
    onnx: Form | None = None
    operators: Mapping[str, Converter] = field(default_factory=dict)
    elements: Elements = ""

    def name_of(self, layer: Layer) -> str:
        """Return the name of Keras' class for ``layer``."""
        name = self.keras_name
        return name(layer) if callable(name) else name or type(layer).__name__

    def classes(self) -> Mapping[str, KerasClass]:
        """Return the classes of Keras by name."""
        if not isinstance(self.keras, KerasClass):
            return {name: replace(each, kind=self.kind) for name, each in self.keras.items()}
        name = self.keras_name if isinstance(self.keras_name, str) else ""
        return {name or self.kind.__name__: replace(self.keras, kind=self.kind)}
