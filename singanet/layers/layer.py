"""The base class of layers, their low-rank pairs, and checks of their arguments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from singanet.base.arguments import NAMES, checked_count, is_flag, is_number, name_trouble
from singanet.base.described import (
    Configurable,
    Counted,
    CountedDict,
    CountedType,
    argument_names,
    assigned_to,
    keep,
    misdefined,
    never_began,
    passed_up,
    shown,
)
from singanet.base.elsewhere import expect_no_words, is_library
from singanet.base.kinds import snake_case
from singanet.base.tracebacks import entry_point
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.initializer import Constant, GlorotUniform, Initializer, from_spec
from singanet.layers.context import Context
from singanet.layers.symbol import Symbol, Unnamed, apply
from singanet.ops.interface import ACTIVATIONS
from singanet.params.param import MOST_ELEMENTS, Param, ParamSpec, make_param
from singanet.types import Array, Arrays, GivenShapes, Gradient, InputKind, Shape, Shapes, Traits

_ZERO, _GLOROT = Constant(0.0), GlorotUniform()


@dataclass(frozen=True)
class LowRank:
    """A pair A (in, ``rank``), B (``rank``, out) in addition to W (in, out) (Hu et al. 2021).

    The product with the weight is x W + (``alpha`` / ``rank``) (x A) B. In training, dropout with
    probability ``dropout`` applies to the x that the pair reads.
    """

    rank: int
    alpha: float
    dropout: float = 0.0

    @property
    def scale(self) -> float:
        """The factor of the pair's product."""
        return self.alpha / self.rank


def pair_of(weight: str) -> tuple[str, str]:
    """Return the suffixes, or names, of the low-rank pair of ``weight``."""
    return f"{weight}.lora_a", f"{weight}.lora_b"


ParamSpecs = Mapping[str, Any] | Param | None
"""A spec dict, a `Param` of another layer to share, or None for the defaults."""


Name: TypeAlias = Any
"""A string, the name of a layer; if it is omitted, the first other argument takes its place."""


_L = TypeVar("_L")


class LayerType(CountedType):
    """The type of layers: the name is optional, and an ``input_shape`` builds the layer at once.

    If the first argument is not a string, it is the argument after the name.
    """

    @entry_point
    def __call__(cls: type[_L], *args: Any, **kwargs: Any) -> _L:  # noqa: N805 - of a metaclass
        """Return a new layer, set up for its ``input_shape`` if it has one that fits."""
        kind: Any = cls
        if argument_names(kind)[:1] == ("name",):
            if "name" in kwargs:
                name = kwargs.pop("name")
            else:
                named = bool(args) and (args[0] is None or isinstance(args[0], str))
                name, args = (args[0], args[1:]) if named else (None, args)
            args = (Unnamed(snake_case(cls.__name__)) if name is None else name, *args)
        made: Any = super().__call__(*args, **kwargs)  # type: ignore[misc]
        if made.input_shape is not None:
            # If `setup` fails, or needs an attribute that is assigned later, it runs again when
            # the layer is added to a net, which raises the error.
            with suppress(Exception):
                made.build(made.input_shape)
        layer: _L = made
        return layer


class Layer(Counted, Configurable, metaclass=LayerType):
    """A named node with parameters; subclasses define `setup`, `forward` and `backward`.

    Between calls a layer stores only its parameters: the context stores the arrays for backward, so
    several forward passes may be active.

    Args:
        name: A string; by default the class name and a number.
        input_shape: Sample shape (without the batch axis), or a list of them for several inputs, to
            create the parameters at once; None to do so when the layer joins a net.
    """

    traits = Traits()
    """The declared traits; a derived class replaces the traits of its base."""
    _moving = ("in_shapes", "out_shapes", "params", "adapters", "shared")

    _mask_layer: Any = None
    """A layer on the same inputs that computes the mask of the output, or None."""
    activation: str | Layer | None = None
    """The function that nets add after the layer, as the layer that `activation_of` returns."""
    _activates_itself = False
    """Whether the layer itself applies ``activation``."""
    _units_axis = -1
    """The axis of the units or channels of the output, counting the batch axis."""

    shared: Any = None
    """The object that connects a layer with other processes, or None.

    Passes that use it are not recorded; a `SharedBatch` is used only in training.
    """

    _foreign = False
    """Whether the class is defined outside singanet."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._foreign = not is_library(cls)

    def __init__(
        self, name: Name = None, input_shape: GivenShapes | None = None, **words: Any
    ) -> None:
        name = Unnamed(snake_case(type(self).__name__)) if name is None else name
        if words:  # A user's layer calls this by itself, perhaps with input_sample_shape=.
            input_shape = passed_up(self, Layer, "input_shape", input_shape, words)
        if not isinstance(name, str):
            raise ArgumentError(
                type(self).__name__,
                expected="a name that is a string, as the first argument",
                received=brief(name),
                advice="name the layer, for example 'conv1', or omit the name",
            )
        if trouble := name_trouble(name):
            raise ArgumentError(
                type(self).__name__,
                expected=NAMES,
                received=trouble,
                advice="name the layer, for example 'conv1': files use names",
            )
        self.name = name
        self.input_shape = input_shape
        self.params: dict[str, Param] = CountedDict()
        self.adapters: dict[str, LowRank] = CountedDict()
        """The low-rank pairs of weights, by suffix (`net.adapt`)."""
        self._trainable: bool | None = None
        self._recompute: bool | None = None
        self.in_shapes: Shapes | None = None
        self.out_shapes: Shapes | None = None

    def _input_kind(self, k: int) -> InputKind:
        """Return the kind of input ``k``: "floats", "integers" (without a gradient), or "any".

        "integers" includes booleans; examples are indices and masks. The net does not convert them;
        it casts all other arrays to its float type.
        """
        traits = self.traits
        if k < len(traits.input_kinds):
            return traits.input_kinds[k]
        return "any" if traits.moves_only or traits.stops_gradient else "floats"

    def _reads_mask(self, shapes: Sequence[Shape]) -> int | None:
        """Return the number of the input whose mask is a further input, or None."""
        return None

    def _asks_axes(self, in_shape: Any) -> bool:
        """Whether the layer slides along one axis of ``in_shape``, and no argument sets which."""
        return False

    def _take_name(self, name: str) -> None:
        """Rename the layer, and the parameters that it has created."""
        before = self.name
        self.name = name
        self.arguments["name"] = name
        for suffix, param in self.params.items():
            if param.name == f"{before}/{suffix}":
                param.name = f"{name}/{suffix}"
        keep(self, ["name"])
        if isinstance(self.activation, Layer) and isinstance(self.activation.name, Unnamed):
            self.activation._take_name(f"{name}/{self.activation.name}")

    @property
    def synchronized(self) -> bool:
        """Whether the statistics in training are over the batch of all processes."""
        return False

    def share(self, batch: Any) -> None:
        """Set the ``batch`` that several processes share; most layers ignore it.

        A layer that needs it assigns it to ``shared``; its training passes are not recorded.
        """

    def merged_state(self, states: Mapping[str, Array], shares: Array) -> dict[str, Array]:
        """Merge the running states of several processes into one.

        ``states`` has them by suffix, stacked along axis 0, and ``shares`` (processes,) the
        fraction of samples of each. The result is the weighted mean; for other types than floats
        the first value.
        """
        return {
            key: np.tensordot(shares, value, 1) if value.dtype.kind == "f" else value[0]
            for key, value in states.items()
        }

    # Positional, so that type checkers let a subclass call it ``in_shape``.
    def setup(self, in_shapes: Any, /) -> Shapes:
        """Create the parameters for sample shape(s) ``in_shapes``; return the output's shape(s).

        One input has a tuple, several have a list of tuples; the same is true for the result.
        """
        raise self.missing("setup")

    def forward(self, ctx: Context, x: Any) -> Arrays:
        """Return the output array(s) for ``x``; ``ctx.save`` the arrays for backward."""
        raise self.missing("forward")

    def backward(self, ctx: Context, dy: Any) -> tuple[Any, Mapping[str, Gradient]]:
        """Return the input gradient(s) and the gradient of each parameter by suffix.

        ``dy`` has the form of the result of `forward`; it must not be changed in place. ``ctx`` is
        the context of the same call. The gradient of an input without one, such as indices, is
        None.
        """
        raise self.missing("backward")

    def products(self) -> Mapping[str, bool]:
        """Return the weights, by suffix, whose products `singanet.layers.dense` computes.

        They may have a low-rank pair. The value is whether the weight is stored as (out, in).
        """
        return {}

    def matrices(self) -> Mapping[str, bool]:
        """Return the parameters of two axes that only products and look-ups read, as `products`.

        A net may quantize them. The rows of a table are its outputs, so it is (out, in).
        """
        return self.products()

    def missing(self, method: str) -> CallOrderError:
        """Return the error for a subclass that lacks ``method``."""
        return CallOrderError(
            f"layer {self.name!r}",
            expected=f"{type(self).__name__} to define {method}",
            received="the base class's, which does nothing",
            advice=f"write {method} in {type(self).__name__}",
        )

    def build(self, in_shapes: GivenShapes) -> Shapes:
        """Run `setup` for the sample shape(s) ``in_shapes`` once; return the output's shape(s).

        A later call only checks that the shapes are the same.
        """
        shapes = normal_shapes(in_shapes)
        if self.out_shapes is not None:
            if shapes != self.in_shapes:
                raise self.shape_error(
                    f"input sample shape {self.in_shapes}, for which it was set up",
                    f"{shapes}",
                    "use another layer for another shape",
                )
            return self.out_shapes
        self._expect_extents(shapes)
        before = assigned_to(self)
        try:
            made = self._set_up(shapes)
            if not isinstance(made, (tuple, list)):
                raise self.shape_error(
                    "setup to return the sample shape(s) that come out",
                    repr(made),
                    f"end setup of {type(self).__name__} with a return, such as return in_shapes",
                )
            self.out_shapes = self._addressable(normal_shapes(made))
        except BaseException:
            self.out_shapes = None
            self.params.clear()
            raise
        self.in_shapes = shapes
        if self._trainable is not None:
            self.trainable = self._trainable
        # The user did not assign the attributes that `setup` assigns.
        keep(self, vars(self), but=before)
        return self.out_shapes

    def _twin(self, arguments: Mapping[str, Any]) -> Layer:
        """Copy as `Configurable._twin` does. Errors: parameters with other names or shapes."""
        made = super()._twin(arguments)
        if self.in_shapes is not None:
            made.build(self.in_shapes)
        wanted, own = ([(p.name, p.shape) for p in each.params.values()] for each in (made, self))
        if wanted != own:
            raise ArgumentError(
                f"layer {self.name!r}",
                expected=f"the parameters {wanted}",
                received=str(own),
                advice="assign it before the layer is set up",
            )
        return made

    def _set_up(self, in_shapes: Shapes) -> Shapes:
        try:
            return self.setup(in_shapes)
        except TypeError as error:
            if never_began(error):
                wanted = "def setup(self, in_shapes)"
                raise misdefined(f"layer {self.name!r}", self.setup, wanted) from None
            raise

    def _addressable(self, shapes: Shapes) -> Shapes:
        for shape in shapes if isinstance(shapes, list) else [shapes]:
            if math.prod(max(axis, 1) for axis in shape) >= MOST_ELEMENTS:
                expected = f"samples of fewer than {MOST_ELEMENTS} elements to come out"
                raise self.shape_error(expected, f"shape {shape}", "give the layer smaller sizes")
        return shapes

    def _expect_extents(self, in_shapes: Shapes) -> None:
        shapes = in_shapes if isinstance(in_shapes, list) else [in_shapes]
        lowest = -1 if self.traits.any_extent else 0
        if any(axis < lowest for shape in shapes for axis in shape):
            raise self.shape_error(
                "a known extent along every axis" if lowest == 0 else "extents, or None for any",
                str(in_shapes),
                "give the axis a number; only layers over sequences take any extent",
            )

    def _unbuild(self) -> None:
        """Remove the shapes and parameters, as before `build`."""
        self.in_shapes = self.out_shapes = None
        self.params.clear()
        self.adapters.clear()

    def get_output_sample_shape(self) -> Shapes:
        """Return the sample shape(s) of the output; needs `build` or ``input_shape``."""
        if self.out_shapes is None and self.input_shape is not None:
            return self.build(self.input_shape)
        if self.out_shapes is None:
            raise CallOrderError(
                f"layer {self.name!r}",
                expected="known input shapes",
                received="a layer without shapes",
                advice="add it to a net, or pass input_shape",
            )
        return self.out_shapes

    def add_param(
        self,
        suffix: str,
        shape: Shape,
        specs: ParamSpecs = None,
        default: Initializer | str | None = None,
        fans: tuple[int, int] = (0, 0),
    ) -> Param:
        """Create the parameter ``name/suffix`` and return it.

        Args:
            suffix: The part of the name behind the layer's, a string such as "weight".
            shape: Tuple of ints.
            specs: Dict with the settings of the parameter, a `Param` to share, or None.
            default: The `Initializer`, or its name, if ``specs`` has none; None for Glorot-uniform
                with ``fans``, otherwise zero.
            fans: The incoming and outgoing connections of a unit, two ints.
        """
        if default is None:
            default = _ZERO if fans == (0, 0) else _GLOROT
        elif not isinstance(default, Initializer):
            default = from_spec({"init": default}, f"layer {self.name!r}, parameter {suffix!r}")
        param = make_param(self.name, suffix, shape, specs, default, fans)
        self.params[suffix] = param
        return param

    def add_state(
        self, suffix: str, shape: Shape, value: float = 0.0, specs: ParamSpecs = None
    ) -> Param:
        """Create the array ``name/suffix`` that forward updates and no optimizer trains; return it.

        Args:
            suffix: The part of the name behind the layer's, a string such as "mean".
            shape: Tuple of ints.
            value: Number, the first value of all elements.
            specs: As for `add_param`.
        """
        param = self.add_param(suffix, shape, specs, default=Constant(value))
        param.mark_as_state()
        return param

    @property
    def trainable(self) -> bool:
        """Whether any parameter is trained; assigning sets all of them.

        If False, a layer with running state, such as a normalisation, runs as in evaluation and
        does not change the state. A value assigned before `setup` applies to the parameters that it
        creates.
        """
        # A plain loop, since every training step runs it.
        for param in self.params.values():  # noqa: SIM110
            if param.trainable:
                return True
        return False

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        self._trainable = flag
        for param in self.params.values():
            if param.is_state:
                param.held = not flag
            else:
                param.trainable = flag

    @property
    def recompute(self) -> bool | None:
        """Whether backward computes the arrays of `forward` again instead of storing them.

        True always, False never, None by the net's level. Errors: anything else.
        """
        return self._recompute

    @recompute.setter
    def recompute(self, flag: bool | None) -> None:
        if flag is not None and not is_flag(flag):
            raise ArgumentError(
                f"layer {self.name!r}, recompute",
                expected="True, False or None",
                received=brief(flag),
                advice="None follows net.programs.recompute",
            )
        self._recompute = None if flag is None else bool(flag)

    def param_names(self) -> list[str]:
        """The full parameter names, in the layer's order."""
        return [param.name for param in self.params.values()]

    def param_values(self) -> list[Array]:
        """The parameter arrays themselves, in the layer's order."""
        return [param.value for param in self.params.values()]

    @property
    def param_specs(self) -> list[ParamSpec]:
        """The training settings of the parameters, in the layer's order."""
        return [param.spec for param in self.params.values()]

    def shape_error(self, expected: str, received: str, advice: str) -> ShapeError:
        """Return an error about shapes that names this layer.

        ``expected`` and ``received`` are noun phrases, ``advice`` is what the user can do.
        """
        return ShapeError(
            f"layer {self.name!r}", expected=expected, received=received, advice=advice
        )

    def expect_rank(self, in_shape: Any, rank: int, meaning: str, advice: str) -> Shape:
        """Return ``in_shape``. Errors: `ShapeError` if it is not one shape of ``rank`` axes.

        The error has ``meaning``, such as "(channels, length)", as expected shape, and ``advice``.
        """
        if isinstance(in_shape, list) or len(in_shape) != rank:
            raise self.shape_error(f"one input of sample shape {meaning}", str(in_shape), advice)
        return in_shape

    @entry_point
    def __call__(self, *inputs: Any, **words: Any) -> Symbol:
        """Return the output for symbols; a tuple of them for a layer with several outputs.

        Several inputs may be arguments or one list. A layer that is called twice shares its
        parameters. Errors: anything but symbols, arguments by name, or shapes that the layer
        refuses.
        """
        expect_no_words(f"layer {self.name!r}", words)
        return apply(self, inputs)

    def _called(self, depth: float, room: float) -> str:
        settings = self._shown_settings()
        for name in ("name", "input_shape"):
            settings.pop(name, None)
        shapes = f": {self.in_shapes} -> {self.out_shapes}" if self.out_shapes is not None else ""
        if len(shapes) > room / 2:
            shapes = ""
        room -= len(shapes)
        return (
            shown(type(self).__name__, settings, repr(self.name), depth=depth, room=room) + shapes
        )


def normal_shapes(shapes: Any) -> Shapes:
    """Return ``shapes`` as a tuple of ints, or a list of such tuples for several inputs.

    None, for an axis of any extent, becomes -1. Errors: `ArgumentError` if it is not a shape.
    """
    if isinstance(shapes, str) or not hasattr(shapes, "__iter__"):
        raise ArgumentError(
            "a sample shape",
            expected="a tuple of extents, without the batch axis",
            received=brief(shapes)[:60],
            advice=f"write ({shapes},)" if isinstance(shapes, int) else "write (3, 32, 32)",
        )
    several = any(isinstance(part, (tuple, list)) for part in shapes)
    if several:
        return [tuple(-1 if axis is None else int(axis) for axis in shape) for shape in shapes]
    if isinstance(shapes, list) and not shapes:
        return []
    return tuple(-1 if axis is None else int(axis) for axis in shapes)


def expect_int(
    layer: str,
    what: str,
    value: Any,
    least: int = 1,
    advice: str = "",
    most: int | None = None,
) -> int:
    """Return `checked_count` of the argument ``what`` of ``layer``."""
    advice = advice or f"pass for example {what}={max(least, 8)}"
    return checked_count(f"layer {layer!r}", f"argument {what}", value, least, most, advice)


def expect_activation(layer: str, given: Any) -> str | Layer | None:
    """Return ``given`` if it is the name of an activation or a layer; None for "linear"."""
    if given is None or isinstance(given, Layer) or given == "linear":
        return None if given == "linear" else given
    return expect_one_of(layer, "activation", given, (*ACTIVATIONS, "softmax", "log_softmax"))


def expect_positive(layer: str, what: str, value: Any) -> float:
    """Return ``value`` as a float. Errors: `ArgumentError` if it is not positive and finite."""
    if not is_number(value) or not value > 0:
        raise ArgumentError(
            f"layer {layer!r}, argument {what}",
            expected="a positive number",
            received=brief(value),
            advice=f"pass for example {what}=1e-5",
        )
    return float(value)


def expect_one_input(layer: Layer, in_shapes: Any) -> Shape:
    """Return ``in_shapes``. Errors: `ShapeError` if it is not the sample shape of one input."""
    if isinstance(in_shapes, list):
        raise layer.shape_error(
            "one input",
            f"{len(in_shapes)} inputs of sample shapes {in_shapes}",
            "join them with Merge or Concat first",
        )
    return in_shapes


def expect_one_of(layer: str, what: str, value: Any, known: Iterable[str]) -> str:
    """Return ``value``. Errors: `UnknownNameError` if it is not in ``known``."""
    names = list(known)
    if value not in names:
        raise UnknownNameError(
            f"layer {layer!r}, argument {what}",
            expected=one_of(names),
            received=brief(value),
            advice=did_you_mean(str(value), names, "choose a listed name"),
        )
    return str(value)
