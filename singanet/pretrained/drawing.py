"""Layers of published models, and the places of their parameters in the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, is_int
from singanet.errors import ArgumentError, ConfigError, brief, one_of
from singanet.layers import (
    Activation,
    Add,
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    MultiHeadAttention,
    Multiply,
    Scale,
    SpatialDropout,
    Weight,
)
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, BinaryAccuracy
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.types import Array, Shape


@dataclass(frozen=True)
class ArrayPlace:
    """The place of a parameter in the files: the array ``name`` or a part of it.

    ``transposed``: the matrix is stored as (out, in), as in PyTorch's Linear. If an array contains
    several parameters, each is the part number ``order`` along ``axis``. With ``groups`` the axis
    has that number of equal groups, and each group has a part of every parameter: the queries, keys
    and values of one head. ``shape`` is the shape in the file if its axes differ from the
    parameter's, for example by a first axis of size 1. ``whole`` is the shape of an array whose
    parts are along several axes: they are consecutive along ``axis`` after the axes are joined.
    """

    name: str
    transposed: bool = False
    order: int = 0
    axis: int = 0
    shape: Shape | None = None
    groups: int = 1
    whole: Shape | None = None

    def extents(self, ours: Shape) -> Shape:
        """Return the shape in the file of a parameter of shape ``ours``."""
        return self.shape or (ours[::-1] if self.transposed else ours)

    def theirs(self, value: Array) -> Array:
        """Return a view of the parameter's ``value`` in the layout of the file."""
        return value.T if self.transposed else value.reshape(self.extents(value.shape))

    def grouped(self, array: Array) -> Array:
        """Return ``array`` with ``axis`` as two axes: the groups, and the elements of each."""
        shape = array.shape
        sizes = (self.groups, shape[self.axis] // self.groups)
        return array.reshape(*shape[: self.axis], *sizes, *shape[self.axis + 1 :])


@dataclass
class FileArray:
    """An array in the files, and the parameters that are its parts, in order."""

    name: str
    members: list[tuple[Param, ArrayPlace]]

    @property
    def shape(self) -> Shape:
        """The shape in the file."""
        place = self.members[0][1]
        return place.whole or self._joined(place.axis)

    def _joined(self, axis: int) -> Shape:
        """Return the shape of the parts, joined along ``axis``."""
        parts = [place.extents(param.shape) for param, place in self.members]
        whole = list(parts[0])
        whole[axis : axis + 1] = [sum(part[axis] for part in parts)] if whole else []
        return tuple(whole)

    def part(self, array: Array, param: Param) -> Array:
        """Return the part of the file's ``array`` for ``param``, in the file's layout."""
        start, first = 0, self.members[0][1]
        array = array if first.whole is None else array.reshape(self._joined(first.axis))
        for other, place in self.members:
            extents = place.extents(other.shape)
            end = start + extents[place.axis] // place.groups
            if other is param:
                part = (slice(None),) * place.axis + (slice(start, end),)
                if place.groups == 1:
                    return array[part]
                return place.grouped(array)[(slice(None), *part)].reshape(extents)
            start = end
        raise KeyError(param.name)

    def place_of(self, param: Param) -> ArrayPlace:
        """Return the place of ``param``."""
        return next(place for other, place in self.members if other is param)

    def whole(self, value_of: Callable[[Param], Array]) -> Array:
        """Return the array for the file, assembled from the parameters' values."""
        parts = [place.theirs(value_of(param)) for param, place in self.members]
        if len(parts) == 1:
            return parts[0].reshape(self.shape)
        first = self.members[0][1]
        found = np.concatenate([first.grouped(part) for part in parts], first.axis + 1)
        return found.reshape(self.shape)


def stored_arrays(places: Iterable[tuple[Param, ArrayPlace]]) -> dict[str, FileArray]:
    """Return the arrays in the files by name, for parameters with their places."""
    found: dict[str, FileArray] = {}
    for param, place in sorted(places, key=lambda each: each[1].order):
        found.setdefault(place.name, FileArray(place.name, [])).members.append((param, place))
    return found


ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""The activations by their names in configs."""


INPUTS = "argument inputs"
"""The place in errors about the argument."""


class ModelDrawing:
    """The state while a family builds a net: the config, the names in the files, the inputs.

    ``names`` is None if there are no files yet. ``is_bare``: the net has no head and outputs the
    last hidden states. ``pixels`` are height and width of images, if the folder's preprocessing
    has them. ``given`` maps the names of sequence inputs to their symbols; with
    ``choices`` they are the first of several texts of a sample. A head that ``pools`` steps reads a
    mask, and one for ``one_text`` no segments. ``places`` maps parameters to their places,
    ``most_steps`` is the maximum sequence length, ``loss`` and ``metric`` are for training,
    ``tied`` maps arrays to the parameter that they must equal if they exist. While it ``repeats``,
    a name that is drawn again is the same layer.
    """

    def __init__(
        self,
        config: Config,
        names: Collection[str] | None,
        architecture: str,
        is_bare: bool,
        inputs: Sequence[str] | None = None,
    ) -> None:
        self.config, self.names = config, names
        self.architecture, self.is_bare = architecture, is_bare
        self.wanted = inputs
        self.pixels: tuple[int, int] | None = None
        self.inputs: list[Symbol] = []
        self.given: dict[str, Symbol] = {}
        self.pools = self.one_text = False
        self.choices = 0
        self.places: dict[str, tuple[Param, ArrayPlace]] = {}
        self.most_steps: int | None = None
        self.loss: Any = None
        self.metric: Any = None
        self.repeats = False
        self._drawn: dict[str, Layer] = {}
        self._without_param: set[str] = set()
        self.tied: dict[str, Param] = {}

    def keep(self, *names: str) -> None:
        """Accept the arrays ``names`` without parameters; they are saved unchanged."""
        self._without_param.update(names)

    def copies(self, param: Param, *names: str) -> None:
        """Accept the arrays ``names`` as copies of ``param``, to which the model ties them."""
        self.tied.update(dict.fromkeys(names, param))

    def keeps(self, name: str) -> bool:
        """Return whether the array is accepted without a parameter."""
        return name in self._without_param

    def under(self, prefix: str) -> None:
        """Put ``prefix`` before the names of all arrays so far."""
        self.places = {
            name: (param, replace(place, name=prefix + place.name))
            for name, (param, place) in self.places.items()
        }
        self.tied = {prefix + name: param for name, param in self.tied.items()}
        self._without_param = {prefix + name for name in self._without_param}

    def prefix(self, prefix: str) -> str:
        """Return ``prefix`` if names in the files start with it; bare models usually omit it."""
        if self.names is None:
            return "" if self.is_bare else prefix
        return prefix if any(name.startswith(prefix) for name in self.names) else ""

    # -- inputs -----------------------------------------------------------------------------

    def ids(
        self, needed: Sequence[str], usual: Sequence[str] = (), others: Sequence[str] = ()
    ) -> dict[str, Symbol]:
        """Return the sequence inputs by name: the ``needed`` and the ``usual`` ones.

        If the user chose inputs, the chosen ones among ``usual`` and ``others`` are used instead.
        Errors: `ArgumentError` for unknown inputs.
        """
        if self.pools or self.one_text:
            others = [name for name in others if name != "segments"]
        if self.pools and "attention_mask" in others:
            usual = (*usual, "attention_mask")
            others = [name for name in others if name not in usual]
        known = (*needed, *usual, *others)
        wanted = (*needed, *usual) if self.wanted is None else tuple(self.wanted)
        if not all(name in wanted for name in needed) or not all(name in known for name in wanted):
            raise ArgumentError(
                INPUTS,
                expected=f"{one_of(needed)}, and optionally some of {one_of((*usual, *others))}",
                received=one_of(map(str, wanted))[:200],
                advice=MESSAGES
                if are_messages(self.wanted)
                else "omit inputs for the family's defaults",
            )
        shape = (self.choices, None) if self.choices else (None,)
        found = {name: Input(name, shape, dtype="int64") for name in known if name in wanted}
        self.inputs = list(found.values())
        self.given = {name: x[:, 0] for name, x in found.items()} if self.choices else found
        return self.given

    def padding(self, vocabulary: int, default: int | None = None) -> int | None:
        """Return the embedding's padding row; negative ids count from the end, as in PyTorch."""
        index = self.config.values.get("pad_token_id", default)
        if index is None:
            return None
        if not is_int(index, -vocabulary) or index >= vocabulary:
            raise self.config.refused("pad_token_id", f"an id below {vocabulary}, or null", index)
        return int(index) % vocabulary

    # -- layers -----------------------------------------------------------------------------

    def _once(self, layer: Layer) -> Layer:
        """Return ``layer``, or the one that was drawn under its name if layers repeat."""
        return self._drawn.setdefault(str(layer.name), layer) if self.repeats else layer

    def put(self, layer: Layer, x: Any, **places: ArrayPlace | None) -> Symbol:
        """Apply ``layer`` to ``x`` and record the places of its parameters."""
        layer = self._once(layer)
        y = layer(x)
        for suffix, param in layer.params.items():
            place = places[suffix]
            if param.name not in self.places and place is not None:
                self.places[param.name] = param, place
        return y

    def embedding(self, x: Symbol, layer: Embedding, theirs: str) -> Symbol:
        """Add an embedding."""
        return self.put(layer, x, weight=ArrayPlace(f"{theirs}.weight"))

    def dense(
        self,
        x: Symbol,
        name: str,
        units: int,
        theirs: str,
        bias: bool = True,
        transposed: bool = True,
    ) -> Symbol:
        """Add a dense layer; ``transposed`` if the matrix is (out, in) in the files."""
        layer = Dense(name, units, use_bias=bias)
        weight = ArrayPlace(f"{theirs}.weight", transposed)
        return self.put(layer, x, weight=weight, bias=ArrayPlace(f"{theirs}.bias"))

    def head(
        self,
        x: Symbol,
        units: int,
        theirs: str,
        tied: Param | None = None,
        bias: str | ArrayPlace = "",
        softcap: float | None = None,
    ) -> Symbol:
        """Add the output layer over the vocabulary, with the embedding's matrix if ``tied``.

        A ``bias`` with its own place is not trained.
        """
        name = "logits" if softcap is None else "scores"
        layer = Dense(name, units, use_bias=bool(bias), W_specs=tied, W_transpose=True)
        place = ArrayPlace(bias) if isinstance(bias, str) else bias
        y = self.put(layer, x, weight=ArrayPlace(theirs), bias=place)
        if tied is not None:
            self.copies(tied, theirs)
        if isinstance(bias, ArrayPlace):
            layer.params["bias"].trainable = False
        elif bias:
            self.copies(layer.params["bias"], theirs.removesuffix("weight") + "bias")
        if softcap is None:
            return y
        capped: Symbol = Activation("logits", "softcap", alpha=softcap)(y)
        return capped

    def activation(self, x: Symbol, name: str, mode: str) -> Symbol:
        """Add an activation."""
        if mode == "quick_gelu":
            # x sigmoid(1.702 x)
            x = Activation(f"{name}_silu", "silu")(Scale(f"{name}_in", 1.702)(x))
            return Scale(name, 1 / 1.702)(x)
        y: Symbol = self._once(Activation(name, mode))(x)
        return y

    def layer_norm(
        self, x: Symbol, name: str, epsilon: float, theirs: str, bias: bool = True
    ) -> Symbol:
        """Add layer normalisation."""
        gamma, beta = ArrayPlace(f"{theirs}.weight"), ArrayPlace(f"{theirs}.bias")
        return self.put(LayerNorm(name, epsilon=epsilon, center=bias), x, gamma=gamma, beta=beta)

    def dropout(self, x: Symbol, name: str, share: float) -> Symbol:
        """Add dropout if ``share`` > 0."""
        return self._once(Dropout(name, share))(x) if share else x

    def scaled(self, x: Symbol, name: str, theirs: str) -> Symbol:
        """Multiply the features, the last axis, by the array ``theirs``."""
        size = x.shape[-1]
        factor = Weight(name, (1,) * (len(x.shape) - 1) + (size,))
        y = self.put(factor, x, weight=ArrayPlace(theirs, shape=(size,)))
        z: Symbol = Multiply(f"{name}d")(x, y)
        return z

    def skipped(self, x: Symbol, name: str, share: float) -> Symbol:
        """Add stochastic depth, which drops a branch for a sample, if ``share`` > 0."""
        return SpatialDropout(name, share, axis=0)(x) if share else x

    def add(self, name: str, *parts: Symbol) -> Symbol:
        """Add a sum."""
        y: Symbol = self._once(Add(name))(*parts)
        return y

    def attention(
        self,
        layer: MultiHeadAttention,
        inputs: Sequence[Symbol],
        theirs: dict[str, str],
        **more: ArrayPlace,
    ) -> Symbol:
        """Add attention with one module a projection.

        ``theirs`` maps our parts to modules, ``more`` other parameters to places.
        """
        places = {
            f"{part}_weight": ArrayPlace(f"{name}.weight", True) for part, name in theirs.items()
        }
        places |= {f"{part}_bias": ArrayPlace(f"{name}.bias") for part, name in theirs.items()}
        return self.put(layer, list(inputs), **places, **more)

    # -- loss and metric ----------------------------------------------------------------------

    def expect_words(self) -> None:
        """Set the loss over the vocabulary: targets are shifted ids, or -100 to ignore a step."""
        self.loss = SoftmaxCrossEntropy(ignore_index=-100)

    def expect_classes(self) -> int:
        """Set loss and metric of a classifier, or of regression for one class; return the count."""
        c = self.config
        labels = c.take("id2label")
        if labels is not None and not isinstance(labels, dict):
            raise c.refused("id2label", "an object with a name for each class", labels)
        count = c.count("num_labels", 2) if labels is None else len(labels)
        among = {"single_label_classification": True, "multi_label_classification": False}
        if count == 1:
            c.only(problem_type="regression")
            self.loss, self.metric = SquaredError(), None
        elif c.choice("problem_type", among, "single_label_classification"):
            self.loss, self.metric = SoftmaxCrossEntropy(), Accuracy()
        else:
            self.loss, self.metric = SigmoidCrossEntropy(), BinaryAccuracy()
        return count


@dataclass(frozen=True)
class Family:
    """A family of models. ``architectures`` are the supported transformers classes, default first.

    ``bare`` are the classes without a head, which output the last hidden states. ``others`` are
    patterns of older array names, with their replacements. ``idle`` are patterns of arrays that
    compute nothing, such as buffers. ``generation`` has the defaults of keys that `net.generate`
    reads.
    """

    draw: Callable[[ModelDrawing], Symbol | Sequence[Symbol]]
    architectures: tuple[str, ...]
    bare: tuple[str, ...]
    others: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    idle: tuple[str, ...] = ()
    generation: Mapping[str, Any] = field(default_factory=dict)

    def architecture(self, values: Mapping[str, Any], where: str, known: Sequence[str]) -> str:
        """Return the class that the config names. Errors: `ConfigError` if it is not ``known``."""
        named = values.get("architectures")
        if named is None or named == []:
            return self.architectures[0]
        if not isinstance(named, list) or named[0] not in known:
            raise ConfigError(
                f"{where}, architectures",
                expected=one_of(known, 12),
                received=brief(named)[:80],
                advice="save the model as such a class with transformers",
            )
        return str(named[0])

    def canonical(self, names: Iterable[str]) -> dict[str, str]:
        """Return the names in the files by the names that the family uses."""
        found = {}
        for name in names:
            known = name
            for pattern, here in self.others:
                known = re.sub(pattern, here, known)
            found[known] = name
        return found

    def is_idle(self, name: str) -> bool:
        """Return whether the array is accepted without a parameter."""
        return any(re.fullmatch(pattern, name) for pattern in self.idle)
