"""Layers of published models and where their weights stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.base.arguments import MESSAGES, are_messages, is_int
from singanet.errors import ArgumentError, ConfigError, one_of
from singanet.layers import (
    Activation,
    Add,
    Dense,
    Dropout,
    Embedding,
    Input,
    LayerNorm,
    MultiHeadAttention,
)
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, BinaryAccuracy
from singanet.params.param import Param
from singanet.pretrained.config import Config, SentencePooling
from singanet.types import Array, Shape


@dataclass(frozen=True)
class ArrayPlace:
    """The array called ``name``, or a part of it, that is a parameter of ours.

    ``turned`` are matrices (out, in), as PyTorch's Linear has them. Of several parameters in one
    array each is the part ``order`` along ``axis``. ``shape`` is said where the array has other
    axes than the parameter, such as one of extent 1 in front.
    """

    name: str
    turned: bool = False
    order: int = 0
    axis: int = 0
    shape: Shape | None = None

    def extents(self, ours: Shape) -> Shape:
        """The shape in the file for a parameter of the shape ``ours``."""
        return self.shape or (ours[::-1] if self.turned else ours)

    def theirs(self, value: Array) -> Array:
        """A view of the parameter's ``value`` as the array in the file, or the part of it, is."""
        return value.T if self.turned else value.reshape(self.extents(value.shape))


@dataclass
class FileArray:
    """An array in the files, and the parameters that are its parts, in their order."""

    name: str
    members: list[tuple[Param, ArrayPlace]]

    @property
    def shape(self) -> Shape:
        """The shape in the file."""
        parts = [place.extents(param.shape) for param, place in self.members]
        axis = self.members[0][1].axis
        whole = list(parts[0])
        whole[axis : axis + 1] = [sum(part[axis] for part in parts)] if whole else []
        return tuple(whole)

    def part(self, array: Array, param: Param) -> Array:
        """What of the ``array`` in the file is ``param``, as it lies there."""
        start = 0
        for other, place in self.members:
            end = start + place.extents(other.shape)[place.axis]
            if other is param:
                return array[(slice(None),) * place.axis + (slice(start, end),)]
            start = end
        raise KeyError(param.name)

    def place_of(self, param: Param) -> ArrayPlace:
        """Where ``param`` is."""
        return next(place for other, place in self.members if other is param)

    def whole(self, value_of: Callable[[Param], Array]) -> Array:
        """The array in the file, of the parameters' values."""
        parts = [place.theirs(value_of(param)) for param, place in self.members]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, self.members[0][1].axis)


def stored_arrays(places: Iterable[tuple[Param, ArrayPlace]]) -> dict[str, FileArray]:
    """The arrays in the files by name, for parameters with their places."""
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
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Our functions by their names in configs."""


INPUTS = "argument inputs"
"""Where errors about it are."""


class ModelDrawing:
    """What a family draws on: the config, the names in the files, the inputs that are wanted.

    ``names`` None stands for files that are yet to be written.
    ``is_bare`` tells that there is no head: the last hidden states are what comes out.
    ``places`` says of every parameter where it stands, ``most_steps`` how many steps a sequence may
    have, ``loss`` and ``metric`` what the net is to be trained with, ``tied`` which arrays have to
    be the same as a parameter, if they are there.
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
        self.sentence: SentencePooling | None = None
        self.inputs: list[Symbol] = []
        self.places: dict[str, tuple[Param, ArrayPlace]] = {}
        self.most_steps: int | None = None
        self.loss: Any = None
        self.metric: Any = None
        self._kept: set[str] = set()
        self.tied: dict[str, Param] = {}

    def keep(self, *names: str) -> None:
        """Let arrays be there that are not drawn: they are given back as they came."""
        self._kept.update(names)

    def copies(self, param: Param, *names: str) -> None:
        """Let arrays be there that are copies of ``param``, to which the model ties them."""
        self.tied.update(dict.fromkeys(names, param))

    def keeps(self, name: str) -> bool:
        """Whether the array may be there without a parameter."""
        return name in self._kept

    def prefix(self, prefix: str) -> str:
        """``prefix`` where names in the files begin with it: a bare model's have none as a rule."""
        if self.names is None:
            return "" if self.is_bare else prefix
        return prefix if any(name.startswith(prefix) for name in self.names) else ""

    # -- inputs -----------------------------------------------------------------------------

    def ids(
        self, needed: Sequence[str], usual: Sequence[str] = (), others: Sequence[str] = ()
    ) -> dict[str, Symbol]:
        """The inputs of sequences by name: those ``needed``, and the ``usual`` ones.

        Where inputs are chosen these are there, with as many of the ``usual`` and the ``others`` as
        are among them. Errors: `ArgumentError` for inputs that there are not.
        """
        known = (*needed, *usual, *others)
        wanted = (*needed, *usual) if self.wanted is None else tuple(self.wanted)
        if not all(name in wanted for name in needed) or not all(name in known for name in wanted):
            raise ArgumentError(
                INPUTS,
                expected=f"{one_of(needed)}, and perhaps some of {one_of((*usual, *others))}",
                received=one_of(map(str, wanted))[:200],
                advice=MESSAGES
                if are_messages(self.wanted)
                else "leave inputs out for those that the family has",
            )
        found = {name: Input(name, (None,), dtype="int64") for name in known if name in wanted}
        self.inputs = list(found.values())
        return found

    def padding(self, vocabulary: int, default: int | None = None) -> int | None:
        """The row of the table that padding has; below 0 it counts from the end, as in PyTorch."""
        index = self.config.values.get("pad_token_id", default)
        if index is None:
            return None
        if not is_int(index, -vocabulary) or index >= vocabulary:
            raise self.config.refused("pad_token_id", f"a word of {vocabulary}, or null", index)
        return int(index) % vocabulary

    # -- layers -----------------------------------------------------------------------------

    def put(self, layer: Layer, x: Any, **places: ArrayPlace | None) -> Symbol:
        """``layer`` on ``x``, each of its parameters at its place."""
        y = layer(x)
        for suffix, param in layer.params.items():
            place = places[suffix]
            if param.name not in self.places and place is not None:
                self.places[param.name] = param, place
        return y

    def embedding(self, x: Symbol, layer: Embedding, theirs: str) -> Symbol:
        """The rows of a table."""
        return self.put(layer, x, weight=ArrayPlace(f"{theirs}.weight"))

    def dense(
        self,
        x: Symbol,
        name: str,
        units: int,
        theirs: str,
        bias: bool = True,
        turned: bool = True,
    ) -> Symbol:
        """A product with a matrix, (out, in) in the files where ``turned``."""
        layer = Dense(name, units, use_bias=bias)
        weight = ArrayPlace(f"{theirs}.weight", turned)
        return self.put(layer, x, weight=weight, bias=ArrayPlace(f"{theirs}.bias"))

    def head(
        self,
        x: Symbol,
        units: int,
        theirs: str,
        tied: Param | None = None,
        bias: str = "",
        softcap: float | None = None,
    ) -> Symbol:
        """The scores of the words, by the rows of the table that they are ``tied`` to if any."""
        name = "logits" if softcap is None else "scores"
        layer = Dense(name, units, use_bias=bool(bias), W_specs=tied, W_transpose=True)
        y = self.put(layer, x, weight=ArrayPlace(theirs), bias=ArrayPlace(bias))
        if tied is not None:
            self.copies(tied, theirs)
        if bias:
            self.copies(layer.params["bias"], theirs.removesuffix("weight") + "bias")
        if softcap is None:
            return y
        capped: Symbol = Activation("logits", "softcap", alpha=softcap)(y)
        return capped

    def activation(self, x: Symbol, name: str, mode: str) -> Symbol:
        """A function of each element."""
        y: Symbol = Activation(name, mode)(x)
        return y

    def layer_norm(self, x: Symbol, name: str, epsilon: float, theirs: str) -> Symbol:
        """Layer normalisation."""
        gamma, beta = ArrayPlace(f"{theirs}.weight"), ArrayPlace(f"{theirs}.bias")
        return self.put(LayerNorm(name, epsilon=epsilon), x, gamma=gamma, beta=beta)

    def dropout(self, x: Symbol, name: str, share: float) -> Symbol:
        """Dropout, where there is any."""
        return Dropout(name, share)(x) if share else x

    def add(self, name: str, *parts: Symbol) -> Symbol:
        """The sum."""
        y: Symbol = Add(name)(*parts)
        return y

    def attention(
        self, layer: MultiHeadAttention, inputs: Sequence[Symbol], theirs: dict[str, str]
    ) -> Symbol:
        """Attention whose projections have modules of their own, by our names of the parts."""
        places = {
            f"{part}_weight": ArrayPlace(f"{name}.weight", True) for part, name in theirs.items()
        }
        places |= {f"{part}_bias": ArrayPlace(f"{name}.bias") for part, name in theirs.items()}
        return self.put(layer, list(inputs), **places)

    # -- what it is trained with ------------------------------------------------------------

    def expect_words(self) -> None:
        """Scores of words at each step: targets are words, shifted already, or -100 for none."""
        self.loss = SoftmaxCrossEntropy(ignore_index=-100)

    def expect_classes(self) -> int:
        """Scores of classes: how many there are. With one it is a number that is learned."""
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

    def class_dropout(self, default: float) -> float:
        """The dropout before the scores of classes."""
        return self.config.share("classifier_dropout", default)


@dataclass(frozen=True)
class Family:
    """``architectures`` are transformers' classes that are built, the usual one first.

    ``bare`` are those of them that have no head, whose output are the last hidden states.
    ``others`` are patterns of names that arrays have had at other times, with what they are called
    here. ``idle`` are patterns of arrays that may be there and compute nothing, such as buffers.
    """

    draw: Callable[[ModelDrawing], Symbol | Sequence[Symbol]]
    architectures: tuple[str, ...]
    bare: tuple[str, ...]
    others: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = ()
    idle: tuple[str, ...] = ()

    def architecture(self, values: Mapping[str, Any], where: str) -> str:
        """The class that the config names. Errors: `ConfigError` for one that is not built."""
        named = values.get("architectures")
        if named is None or named == []:
            return self.architectures[0]
        if not isinstance(named, list) or named[0] not in self.architectures:
            raise ConfigError(
                f"{where}, architectures",
                expected=f"one of {one_of(self.architectures)}",
                received=repr(named)[:80],
                advice="save the model as one of these classes with transformers",
            )
        return str(named[0])

    def canonical(self, names: Iterable[str]) -> dict[str, str]:
        """The names in the files by those that are drawn with."""
        found = {}
        for name in names:
            known = name
            for pattern, here in self.others:
                known = re.sub(pattern, here, known)
            found[known] = name
        return found

    def is_idle(self, name: str) -> bool:
        """Whether the array may be there without a parameter."""
        return any(re.fullmatch(pattern, name) for pattern in self.idle)
