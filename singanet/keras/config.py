"""A Keras model's description, drawn as a net of ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from singanet.errors import FileFormatError, SingaNetError
from singanet.keras.described import Described, unknown
from singanet.keras.table import TABLE
from singanet.layers import Input
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.types import Shape

_MOST_LAYERS = 10_000
_MODELS = ("Sequential", "Functional")


@dataclass
class Drawing:
    """The symbols of a net, whose parameters have shapes and no arrays yet."""

    inputs: list[Symbol]
    outputs: list[Symbol]
    layers: list[Layer]
    data_format: str

    def shapes(self) -> Iterator[Shape]:
        """The shape of every parameter."""
        for layer in self.layers:
            for param in layer.params.values():
                yield param.shape


def draw(config: dict[str, Any], where: str) -> Drawing:
    """The model that ``config`` describes. Errors: `FileFormatError` naming the layer."""
    try:
        return _Model(config, where).drawing
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, SingaNetError):
            raise
        raise FileFormatError(
            where,
            expected="a description as Keras 3 writes it",
            received=f"{type(error).__name__}: {str(error)[:100]}",
            advice="write it again with model.save('x.keras')",
        ) from None


class _Model:
    """Walks through the layers in the order of the file."""

    def __init__(self, config: dict[str, Any], where: str) -> None:
        self.where = where
        self.made: dict[tuple[str, int], Symbol] = {}
        self.layers: list[Layer] = []
        self.trainable = config["config"].get("trainable", True) is not False
        kind, inside = str(config["class_name"]), config["config"]
        entries = inside["layers"]
        if kind not in _MODELS or len(entries) > _MOST_LAYERS:
            raise unknown(
                where, f"a model of one of {_MODELS} with at most {_MOST_LAYERS} layers", kind
            )
        formats = {e["config"]["data_format"] for e in entries if "data_format" in e["config"]}
        self.data_format = "channels_first" if formats == {"channels_first"} else "channels_last"
        if len(formats) > 1:
            raise unknown(where, "one data_format in all layers", str(sorted(map(str, formats))))
        if kind == "Sequential":
            inputs, outputs = self._sequential(entries, config)
        else:
            self._functional(entries)
            inputs = [self._symbol(key) for key in _histories(inside["input_layers"])]
            outputs = [self._symbol(key) for key in _histories(inside["output_layers"])]
        self.drawing = Drawing(inputs, outputs, self.layers, self.data_format)

    def _sequential(
        self, entries: list[Any], config: dict[str, Any]
    ) -> tuple[list[Symbol], list[Symbol]]:
        if entries[0]["class_name"] == "InputLayer":
            first, *entries = entries
            symbol = self._input(first["config"]["name"], first["config"]["batch_shape"])
        else:
            symbol = self._input("input_layer", config["build_config"]["input_shape"])
        start = symbol
        for entry in entries:
            symbol = self._call(entry, [symbol], 0)
        return [start], [symbol]

    def _functional(self, entries: list[Any]) -> None:
        for entry in entries:
            name = entry["name"]
            if entry["class_name"] == "InputLayer":
                self.made[name, 0] = self._input(name, entry["config"]["batch_shape"])
                continue
            for index, node in enumerate(entry["inbound_nodes"]):
                # Whether it trains is for the caller of the net to say.
                given = {k: v for k, v in node["kwargs"].items() if k != "training"}
                extra = [key for key, value in given.items() if value is not None]
                if extra or len(node["args"]) != 1:
                    raise unknown(f"{self.where}, layer {name!r}", "one argument", str(extra))
                only = node["args"][0]
                tensors = only if isinstance(only, list) else [only]
                sources = [self._symbol(_history(tensor)) for tensor in tensors]
                self.made[name, index] = self._call(entry, sources, index)

    def _symbol(self, key: tuple[str, int]) -> Symbol:
        if key not in self.made:
            raise unknown(
                f"{self.where}, layer {key[0]!r}", "layers after those they use", "before"
            )
        return self.made[key]

    def _input(self, name: str, batch_shape: list[Any]) -> Symbol:
        shape = tuple(int(axis) for axis in batch_shape[1:])
        if len(shape) == 3 and self.data_format == "channels_last":
            shape = (shape[2], *shape[:2])
        return Input(name, shape)

    def _call(self, entry: dict[str, Any], sources: list[Symbol], index: int) -> Symbol:
        """The output of one use of a layer, which is made at its first."""
        config, kind = entry["config"], entry["class_name"]
        where = f"{self.where}, layer {str(config['name'])[:60]!r}"
        if kind not in TABLE or entry.get("registered_name"):
            raise unknown(where, f"classes among {', '.join(TABLE)}", str(kind)[:60])
        if index:
            raise unknown(where, "layers used once", "a layer shared by several places")
        described = Described(config, [s.shape for s in sources], self.data_format, where)
        made = TABLE[kind](described)
        described.expect_all_taken()
        self.layers += made
        for layer in made:
            result = layer(*sources)
            if not isinstance(result, Symbol):
                raise unknown(where, "layers of one output", "several")
            sources = [result]
        if not (self.trainable and config.get("trainable", True)):
            for layer in made:
                layer.trainable = False
        return sources[0]


def _history(tensor: dict[str, Any]) -> tuple[str, int]:
    name, node, index = tensor["config"]["keras_history"]
    if index:
        raise ValueError("a layer with several outputs")
    return str(name), int(node)


def _histories(given: Any) -> list[tuple[str, int]]:
    """One ``[name, node, index]``, or a list of them."""
    several = given if given and isinstance(given[0], list) else [given]
    return [(str(name), int(node)) for name, node, _ in several]
