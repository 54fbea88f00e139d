"""A Keras layer's config, and checks of its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from singanet import layers
from singanet.base.arguments import is_int
from singanet.errors import FileFormatError
from singanet.layers.layer import Layer
from singanet.layers.symbol import Symbol
from singanet.ops.interface import ACTIVATIONS
from singanet.optimizer import L1Regularizer, L2Regularizer, MaxNorm
from singanet.saving.codecs.arrays import Lay
from singanet.types import Shape

# Keras' activation leaky_relu has another default slope than ours.
_ACTIVATIONS = {name: name for name in ACTIVATIONS if name != "leaky_relu"}
_ACTIVATIONS |= {"swish": "silu", "hard_silu": "hard_swish"}

_ALONG_CHANNELS = {
    "softmax": layers.Softmax,
    "log_softmax": layers.LogSoftmax,
}

Axes = Mapping[tuple[int, ...], int | None]

WHOLE: Axes = {(0,): None}
"""The axes of a vector's norm."""


@dataclass(frozen=True)
class WeightGroup:
    """The group of a layer's arrays in the file, with the layout ``lay`` or its codec's.

    ``fixed`` are arrays stored in the config instead.
    """

    group: str
    lay: Lay | None = None
    fixed: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class LayerGraph:
    """Layers of a Keras layer that are no chain, and the function that applies them."""

    layers: Sequence[Layer]
    apply: Callable[[Sequence[Symbol]], Sequence[Symbol]]


_SILENT = frozenset({
    "batch_shape", "data_format", "dtype", "name", "renorm_clipping", "renorm_momentum", "seed",
    "trainable", "unit_forget_bias", "unroll", "zero_output_for_mask",
})  # fmt: skip
"""Settings that change no output by themselves: initial values, the model's, or dependent ones.

The reader of the model checks the masked steps of recurrent layers (``zero_output_for_mask``).
"""


class _Noted(dict[str, Any]):
    """A dict of settings that records the keys read."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self.keys_read: set[str] = set()

    def left(self) -> list[str]:
        """Return the keys that were not read."""
        return [key for key in self if key not in self.keys_read]

    def __getitem__(self, key: str) -> Any:
        self.keys_read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.keys_read.add(key)
        return super().get(key, default)


@dataclass(frozen=True)
class DescribedLayer:
    """A layer's config, with the sample shapes of its inputs.

    ``call`` are its call's other arguments. ``masked``: some inputs have masks. ``integers``: some
    inputs are integers. ``marks`` are the
    weight groups of some of the layers built from it.
    """

    config: dict[str, Any]
    shapes: list[Shape]
    data_format: str
    where: str
    prefix: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False
    marks: dict[str, WeightGroup] = field(default_factory=dict)
    integers: bool = False

    def __post_init__(self) -> None:
        for name in ("config", "call"):
            object.__setattr__(self, name, _Noted(getattr(self, name)))

    @property
    def name(self) -> str:
        """The layer's name."""
        return f"{self.prefix}{self.config['name']}"

    @property
    def is_image(self) -> bool:
        """Return whether the input has its channels first here and last in Keras."""
        return len(self.shapes[0]) >= 3 and self.data_format == "channels_last"

    def lying(self, axes: int) -> dict[str, Any]:
        """Return data_format for images, channels first here, or for sequences, as in Keras."""
        form = self.config.get("data_format", "channels_last")
        return {"data_format": form} if axes == 1 else {}

    def inner(self, config: dict[str, Any], shape: Shape) -> DescribedLayer:
        """Return the wrapped layer, applied at each step of a sequence."""
        return DescribedLayer(config, [shape], self.data_format, self.where, f"{self.name}/")

    def place_of(self, layer: Layer, group: str) -> WeightGroup:
        """Return the group of the arrays of ``layer`` within the Keras layer's group."""
        mark = self.marks.get(layer.name, WeightGroup(""))
        return replace(mark, group=f"{group}/{mark.group}" if mark.group else group)

    def expect(self, **usual: Any) -> None:
        """Errors: `FileFormatError` if a setting differs from the supported value."""
        for key, value in usual.items():
            found = self.config.get(key, value)
            if found != value:
                raise unknown(self.where, f"{key}={value!r}", f"{key}={str(found)[:60]!r}")

    def pass_over(self) -> None:
        """Count all settings as read, since predictions do not depend on them."""
        config: Any = self.config
        config.keys_read.update(config)

    def specs(self, array: str, axes: Axes) -> dict[str, Any] | None:
        """Return the spec of Keras' parameter ``array``: its regularizer and constraint.

        ``axes`` maps Keras' axes of a norm to ours. Errors: `FileFormatError` for an unsupported
        class or other axes.
        """
        found = {}
        for what, read in (("regularizer", _regularizer), ("constraint", _constraint)):
            key = f"{array}_{what}"
            given = self.config.get(key)
            if given is not None:
                found[what] = read(f"{self.where}, {key}", given, axes)
        return found or None

    def expect_all_taken(self) -> None:
        """Refuse settings that were not read, since they may change the layer.

        Errors: `FileFormatError`.
        """
        call: Any = self.call
        config: Any = self.config
        if call.left():
            raise unknown(self.where, "a call with its inputs alone", str(call.left())[:60])
        for key in config.left():
            value = self.config[key]
            if value is not None and key not in _SILENT and not key.endswith("_initializer"):
                raise unknown(self.where, f"{key}=None", f"{key}={str(value)[:60]!r}")

    def activated(self, layer: Layer) -> list[Layer]:
        """Return ``layer`` and the layer of the config's ``activation``, unless it is linear."""
        mode = self.config.get("activation") or "linear"
        return [layer, *activation(self, mode, f"{self.name}_activation")]

    def permuted(self, order: Sequence[int], *inner: Layer) -> list[Layer]:
        """Return the layers on samples whose axes are permuted by ``order``, and the way back."""
        if list(order) == sorted(order):
            return [*inner]
        back = [1 + order.index(axis) for axis in sorted(order)]
        ends = (("first", order), ("last", back))
        there, again = (layers.Permute(f"{self.name}_{end}", axes) for end, axes in ends)
        return [there, *inner, again]

    def theirs(self, x: Symbol) -> Symbol:
        """Return ``x`` with Keras' order of axes."""
        return self._moved(x, (*range(2, len(x.shape) + 1), 1))

    def back(self, x: Symbol) -> Symbol:
        """Return ``x``, in Keras' order of axes, in ours."""
        return self._moved(x, (len(x.shape), *range(1, len(x.shape))))

    def _moved(self, x: Symbol, order: Sequence[int]) -> Symbol:
        moves = len(order) >= 3 and self.data_format == "channels_last"
        moved: Symbol = layers.Permute(None, order)(x) if moves else x
        return moved

    def along_channels(self, layer: Layer) -> list[Layer]:
        """Return ``layer``, transposed for sequences (T, F), whose features are its channels."""
        return self.permuted((2, 1), layer) if len(self.shapes[0]) == 2 else [layer]

    def along_axis(self, layer: Layer) -> list[Layer]:
        """Return ``layer``, whose channels are the axis of the config, at the first axis."""
        axis = self.axis()
        rest = [k for k in range(1, len(self.shapes[0]) + 1) if k != axis]
        return self.permuted((axis, *rest), layer)

    def axis(self, key: str = "axis") -> int:
        """Return the axis, batch included, in our order of axes."""
        axes = self.axes(key)
        if len(axes) != 1:
            received = f"{key}={str(self.config[key])[:60]}"
            raise unknown(self.where, f"one axis from 1 to {len(self.shapes[0])}", received)
        return axes[0]

    def axes(self, key: str = "axis") -> list[int]:
        """Return the axes, batch included, in our order of axes; Keras' order sorts them."""
        given, rank = self.config[key], len(self.shapes[0]) + 1
        several = given if isinstance(given, list) else [given]
        axes = sorted(k + rank if is_int(k, -rank) and k < 0 else k for k in several)
        if not axes or len(set(axes)) < len(axes) or not all(is_int(k) and k < rank for k in axes):
            received = f"{key}={str(given)[:60]}"
            raise unknown(self.where, f"axes from 1 to {rank - 1}", received)
        return [self.ours(axis) for axis in axes]

    def ours(self, axis: int) -> int:
        """Return a positive axis of Keras, batch included, in our order of axes."""
        return axis % len(self.shapes[0]) + 1 if self.is_image else axis


def activation(described: DescribedLayer, mode: Any, name: str) -> list[Layer]:
    """Return the layers of Keras' activation ``mode``; none for linear."""
    if mode == "linear":
        return []
    if isinstance(mode, str) and mode in _ALONG_CHANNELS:
        images = len(described.shapes[0]) >= 3 and described.data_format == "channels_last"
        return [_ALONG_CHANNELS[mode](name, 1 if images else len(described.shapes[0]))]
    if mode == "leaky_relu":
        return [layers.Activation(name, "leaky_relu", alpha=0.2)]
    if not isinstance(mode, str) or mode not in _ACTIVATIONS:
        known = ", ".join((*_ACTIVATIONS, *_ALONG_CHANNELS))
        expected = f"an activation among {known}, leaky_relu, linear"
        raise unknown(described.where, expected, str(mode)[:60])
    return [layers.Activation(name, _ACTIVATIONS[mode])]


def unknown(where: str, expected: str, received: str) -> FileFormatError:
    """Return the error for an unsupported layer or setting."""
    return FileFormatError(
        where,
        expected=expected,
        # A file's names may have any length and content.
        received=received[:200],
        advice="build the net by hand and load the model's .weights.h5 into it",
    )


def _regularizer(where: str, given: Any, axes: Axes) -> Any:
    """Convert Keras' c w², our L2Regularizer of 2 c, or c |w|."""
    config = given["config"]
    l1, l2 = float(config.get("l1", 0.0)), float(config.get("l2", 0.0))
    if given["class_name"] not in ("L1", "L2", "L1L2") or (l1 and l2):
        raise unknown(where, "L1 or L2", str(given)[:60])
    if not l1 and not l2:
        return None
    return L1Regularizer(l1) if l1 else L2Regularizer(2 * l2)


def _constraint(where: str, given: Any, axes: Axes) -> Any:
    config = given["config"]
    axis = config.get("axis", 0)
    wanted = tuple(axis) if isinstance(axis, list) else (axis,)
    if given["class_name"] != "MaxNorm" or wanted not in axes:
        raise unknown(where, f"MaxNorm along axes {' or '.join(map(str, axes))}", str(given)[:90])
    return MaxNorm(float(config["max_value"]), axes[wanted])
