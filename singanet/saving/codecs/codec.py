"""All foreign forms of a layer, declared in one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from singanet.layers.layer import Layer
from singanet.saving.codecs.arrays import Arrays
from singanet.saving.codecs.described import Axes, DescribedLayer
from singanet.saving.codecs.onnx import Converter, Form

Elements: TypeAlias = Literal[
    "", "units", "features", "each", "moved", "joined", "in a row", "cut", "copied"
]
"""The effect of a layer on the order of elements, which differs in Keras behind images.

Of ``units`` each stands where what follows wants it. ``features`` are worked along alone, ``each``
of them by itself. Else a layer knows its axes, and reads them as they are in Keras.
"""

Read: TypeAlias = "Callable[[Any], Any] | None"
Drawn: TypeAlias = "Callable[[DescribedLayer], list[Layer]]"


def _nothing_more(d: DescribedLayer) -> dict[str, Any]:
    return {}


def _alone(d: DescribedLayer, layer: Layer) -> list[Layer]:
    return [layer]


@dataclass(frozen=True)
class KerasClass:
    """A class of Keras, and the layer that it is.

    ``fields`` are the fields of its config, each with its reader, and with our argument if that has
    another name; a type reads numbers, and None takes the value as it is. ``specs`` are our specs
    of parameters, each with Keras' array and the axes of a norm; ``usual`` has the settings of
    which only one value is known. ``more`` gives arguments that depend on several fields, or
    refuses the class. ``around`` gives the layers that it needs before and behind the one. A class
    that stands for several layers has ``draw`` instead.

    A ``masked`` class hands a mask of steps on or goes by it; all others drop it. A class that
    ``merges`` hands it on only if all its inputs have one; a class that ``fills`` yields values of
    its own at steps that are not there.
    """

    fields: Mapping[str, Read | tuple[str, Read]] = field(default_factory=dict)
    specs: Mapping[str, tuple[str, Axes]] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[DescribedLayer], Mapping[str, Any]] = _nothing_more
    around: Callable[[DescribedLayer, Layer], list[Layer]] = _alone
    draw: Drawn | None = None
    masked: bool = False
    merges: bool = False
    fills: bool = False
    kind: Callable[..., Layer] = Layer
    """The layer class of the codec."""

    def drawn(self, d: DescribedLayer) -> list[Layer]:
        """The layers for a described one. Errors: what cannot be taken."""
        if self.draw is not None:
            return self.draw(d)
        d.expect(**self.usual)
        given: dict[str, Any] = dict(self.more(d))
        for theirs, told in self.fields.items():
            ours, read = told if isinstance(told, tuple) else (theirs, told)
            given[ours] = d.config[theirs] if read is None else read(d.config[theirs])
        given |= {ours: d.specs(*theirs) for ours, theirs in self.specs.items()}
        return self.around(d, self.kind(d.name, **given))


@dataclass(frozen=True)
class LayerCodec:
    """The foreign forms of layers of ``kind``.

    ``arrays`` are their parameters in files of weights. ``keras`` is the class of Keras that they
    are drawn for, called as ``keras_name`` says or as the layer, or several such classes by name.
    ``onnx`` puts one into a graph; ``operators`` are those that it is drawn for, or parts of it.
    """

    kind: type[Layer]
    arrays: Arrays = field(default_factory=Arrays)
    keras: KerasClass | Mapping[str, KerasClass] = field(default_factory=dict)
    keras_name: str | Callable[[Any], str] = ""
    onnx: Form | None = None
    operators: Mapping[str, Converter] = field(default_factory=dict)
    elements: Elements = ""

    def name_of(self, layer: Layer) -> str:
        """The name of Keras' class for ``layer``."""
        told = self.keras_name
        return told(layer) if callable(told) else told or type(layer).__name__

    def classes(self) -> Mapping[str, KerasClass]:
        """The classes of Keras by name."""
        if not isinstance(self.keras, KerasClass):
            return {name: replace(each, kind=self.kind) for name, each in self.keras.items()}
        name = self.keras_name if isinstance(self.keras_name, str) else ""
        return {name or self.kind.__name__: replace(self.keras, kind=self.kind)}
