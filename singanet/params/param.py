"""Parameters: named arrays with the settings that optimizers and checkpoints need."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from singanet.base.arguments import NAMES, name_trouble
from singanet.base.edits import changes
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    OutOfMemoryError,
    ShapeError,
    UnknownNameError,
    did_you_mean,
    one_of,
)
from singanet.initializer import INIT_KEYS, Initializer, from_spec
from singanet.params.store import place_of, slice_of
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.params.served import ServedRows

_SPEC_KEYS = ("name", "lr_mult", "decay_mult", "regularizer", "constraint", "trainable")
MOST_ELEMENTS = 1 << 45
"""So many float32 fill the addresses that a process has."""

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """How a parameter is trained: multipliers on learning rate and decay, and its own rules.

    ``regularizer`` is an L2 coefficient and ``constraint`` a norm threshold; None leaves the
    optimizer's own.
    """

    name: str
    lr_mult: float = 1.0
    decay_mult: float = 1.0
    regularizer: float | None = None
    constraint: float | None = None


class Home(Protocol):
    """Where an array is while it is not in memory, as in a file.

    ``place`` says so, and ``way_back`` what brings it back, as errors have it.
    """

    place: str
    way_back: str

    is_table: bool
    """Whether it is a `ServedRows`, of which only rows come here."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""

    def read(self) -> Array:
        """The array, read-only; it may be dropped, and be another object, at the next call."""

    def lend(self) -> Array:
        """The live array, which may be changed until the net's next pass; then it is put back."""

    def write(self, array: Array) -> None:
        """Put ``array``, of the same shape and type, in its place."""


class Param:
    """An array named ``layer/suffix``, filled by its initializer when first looked at.

    The values depend on the seed and the name alone, so a layer more or less in a net does not
    change how the others start.
    """

    __slots__ = (
        "_held",
        "_home",
        "_said",
        "_spec",
        "_trainable",
        "_value",
        "dtype",
        "fans",
        "initializer",
        "is_state",
        "seed",
        "shape",
    )

    def __init__(
        self,
        spec: ParamSpec,
        shape: Shape,
        initializer: Initializer,
        fans: tuple[int, int] = (0, 0),
        trainable: bool = True,
    ) -> None:
        self._spec = spec
        self._said = 0
        self.shape = shape
        self.initializer = initializer
        self.fans = fans
        self.is_state = False
        self._held = False
        self._trainable = trainable
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        self.seed = 0
        self._value: Array | None = None
        self._home: Home | None = None

    @property
    def name(self) -> str:
        """The key of this parameter in every checkpoint."""
        return self._spec.name

    @property
    def spec(self) -> ParamSpec:
        """How the parameter is trained; assigned, it goes before what an optimizer was told."""
        return self._spec

    @spec.setter
    def spec(self, spec: ParamSpec) -> None:
        self._spec = spec
        changes.add()
        self._said = changes.now

    @property
    def said(self) -> int:
        """When `spec` was assigned, as `changes` counts; 0 for the one that it was made with."""
        return self._said

    @property
    def trainable(self) -> bool:
        """Whether backward yields this parameter; running state never is."""
        return self._trainable

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        if flag and self.is_state:
            raise ArgumentError(
                f"parameter {self.name!r}",
                expected="trainable=False, since forward keeps it as running state",
                received="trainable=True",
                advice="set layer.trainable instead, which leaves running state alone",
            )
        self._trainable = flag
        changes.add()

    @property
    def held(self) -> bool:
        """Whether this is running state that stays as it is: its layer runs as in evaluation."""
        return self._held

    @held.setter
    def held(self, flag: bool) -> None:
        self._held = flag
        changes.add()

    def mark_as_state(self) -> None:
        """Declare that forward updates this array and no optimizer trains it."""
        self.is_state = True
        self._trainable = False
        changes.add()

    @property
    def filled(self) -> bool:
        """Whether the array exists yet."""
        return self._value is not None or self._home is not None

    @property
    def home(self) -> Home | None:
        """Where the array is while it is not in memory; assigning drops the one in memory."""
        return self._home

    @home.setter
    def home(self, home: Home | None) -> None:
        self._home = home
        self._value = None
        changes.add()

    @property
    def served(self) -> ServedRows | None:
        """The table that keeps the rows, where that is elsewhere."""
        home = self.home
        return None if home is None or not home.is_table else cast("ServedRows", home)

    @property
    def value(self) -> Array:
        """The live array: change it in place, or assign one of its shape, as its own type."""
        return self.filled_by(self.name) if self._value is None else self._value

    @value.setter
    def value(self, array: Array) -> None:
        wanted = self.array_type
        if self._home is not None:
            self.value[...] = array
            return
        self.retype(array if array.dtype == wanted else self._converted(array, wanted))

    def retype(self, array: Array) -> None:
        """Assign ``array``, whose type becomes the parameter's; assigning `value` converts it."""
        if tuple(array.shape) != self.shape:
            raise ShapeError(
                f"parameter {self.name!r}",
                expected=f"shape {self.shape}",
                received=f"shape {tuple(array.shape)}",
                advice="assign an array of the parameter's own shape",
            )
        if self._home is not None:
            raise CallOrderError(
                f"parameter {self.name!r}",
                expected="a net in memory, where arrays of other types or devices can be put",
                received="one that is offloaded",
                advice="call net.onload() first",
            )
        self._value = array
        changes.add()

    def _converted(self, array: Array, wanted: np.dtype[Any]) -> Array:
        if array.dtype.kind not in "fiub":
            raise ArgumentError(
                f"parameter {self.name!r}",
                expected=f"an array of numbers, which become {wanted}",
                received=f"one of type {array.dtype}",
                advice=f"convert it with array.astype('{wanted}')",
            )
        return array.astype(wanted)

    @property
    def is_constant(self) -> bool:
        """Whether the array is read-only."""
        if self.home is not None:
            return False
        return isinstance(self.value, np.ndarray) and not self.value.flags.writeable

    def filled_by(self, name: str) -> Array:
        """The live array, which seed and ``name`` fill where it does not exist yet."""
        if self._value is None:
            if self._home is not None:
                return self._home.lend()
            self._value = self.initial(name)
        return self._value

    @property
    def array_type(self) -> np.dtype[Any]:
        """The type of the array, or that which it will have."""
        if self._home is not None:
            return self._home.dtype
        return self.dtype if self._value is None else self._value.dtype

    def peek(self) -> Array:
        """The array, to be read only: where it is not in memory, nobody keeps it there."""
        home = self.home
        return self.value if home is None else home.read()

    @property
    def parts(self) -> Callable[[], Iterator[Array]] | None:
        """What gives the array in runs of rows, for one whose rows a table has."""
        return None if self.served is None else self.served.parts

    def put(self, array: Array) -> None:
        """Write ``array``, of the same shape, over the values, wherever they are."""
        home = self.home
        if home is None:
            self.value[...] = array
        else:
            home.write(array)

    def initial(self, name: str = "") -> Array:
        """A new array, as seed and ``name`` (its own, if empty) fill it."""
        # As one array in float64 the numbers would take twice what they leave.
        count = math.prod(self.shape)
        try:
            value = np.empty(count, self.dtype)
        except MemoryError:
            raise OutOfMemoryError(
                f"parameter {name or self.name!r}",
                expected=f"{count * self.dtype.itemsize} bytes of memory for shape {self.shape}",
                received="less",
                advice="give the layer fewer units, or net.offload a folder",
            ) from None
        for start, piece in self.initial_pieces(_PIECE, name):
            value[start : start + piece.size] = piece
        return value.reshape(self.shape)

    @property
    def drawing_bytes(self) -> int:
        """What `initial` takes for a moment beside the array that it makes."""
        count = math.prod(self.shape)
        if self.initializer.draws_one_by_one(self.fans):
            count = min(count, _PIECE)
        return 8 * count * self.initializer.copies

    def initial_pieces(self, size: int, name: str = "") -> Iterator[tuple[int, Array]]:
        """`initial` in flat pieces of ``size`` elements, each with the place of its first.

        It is one piece where the initializer cannot draw a part.
        """
        rng = np.random.default_rng([self.seed, zlib.crc32((name or self.name).encode())])
        count = math.prod(self.shape)
        if count <= size or not self.initializer.draws_one_by_one(self.fans):
            yield 0, self.initializer(rng, self.shape, self.fans).reshape(-1)
            return
        for start in range(0, count, size):
            yield start, self.initializer(rng, (min(size, count - start),), self.fans)

    @property
    def root(self) -> Param:
        """The parameter whose array this is: itself, but for those of nested nets."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """An array in a bucket by its place, so that those of a net stay together."""
        state = {name: getattr(self, name) for name in Param.__slots__}
        if self._home is not None:
            state |= {"_value": self._home.read().copy(), "_home": None}
        state.update(getattr(self, "__dict__", {}))
        place = place_of(self._value)
        return state if place is None else {**state, "_value": (place.bucket, place.start)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        # Another process has counted otherwise.
        self._said = 0
        if isinstance(self._value, tuple):
            self._value = slice_of(*self._value, self.shape)

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        """A copy; whoever has the array as well gets the copy's."""
        made = type(self).__new__(type(self))
        state = self.__getstate__()
        for name, part in state.items():
            if name != "_value":
                setattr(made, name, copy.deepcopy(part, memo))
        if self._home is not None:
            made._value = state["_value"]
            return made
        place = place_of(self._value)
        if place is None or id(self._value) in memo:
            made._value = copy.deepcopy(self._value, memo)
        else:
            bucket = copy.deepcopy(place.bucket, memo)
            made._value = memo[id(self._value)] = slice_of(bucket, place.start, self.shape)
        return made

    def __repr__(self) -> str:
        fixed = "" if self.trainable else ", trainable=False"
        return f"Param({self.name!r}, shape={self.shape}{fixed})"


def make_param(
    layer: str,
    suffix: str,
    shape: Shape,
    specs: Mapping[str, Any] | Param | None,
    default: Initializer,
    fans: tuple[int, int],
) -> Param:
    """The parameter ``layer/suffix`` as ``specs`` describes it; ``specs`` is only read.

    A `Param` in place of a dict shares that parameter. Errors: an unknown key, or a shared
    parameter of another shape.
    """
    where = f"layer {layer!r}, parameter {suffix!r}"
    if isinstance(specs, Param):
        if specs.shape != shape:
            raise ShapeError(
                where,
                expected=f"shape {shape}",
                received=f"the shared parameter {specs.name!r} of shape {specs.shape}",
                advice="share parameters between layers of equal shapes, or set W_transpose",
            )
        return specs
    if math.prod(shape) >= MOST_ELEMENTS:
        raise ShapeError(
            where,
            expected=f"fewer than {MOST_ELEMENTS} elements, which is what can be addressed",
            received=f"shape {shape}",
            advice="give the layer fewer units",
        )
    given = dict(specs or {})
    for key in given:
        if key not in _SPEC_KEYS + INIT_KEYS:
            raise UnknownNameError(
                where,
                expected=f"spec keys among {one_of(_SPEC_KEYS + INIT_KEYS, 20)}",
                received=f"{key!r}",
                advice=did_you_mean(key, _SPEC_KEYS + INIT_KEYS, "remove it"),
            )
    settings = {key: given[key] for key in _SPEC_KEYS if key in given and key != "trainable"}
    settings.setdefault("name", f"{layer}/{suffix}")
    named = isinstance(settings["name"], str)
    if not named or (trouble := name_trouble(settings["name"])):
        raise ArgumentError(
            where,
            expected=f"a parameter name among {NAMES}" if named else "a parameter name, a string",
            received=trouble if named else repr(settings["name"]),
            advice="leave 'name' out to get 'layer/suffix'",
        )
    initializer = from_spec(given, where) if "init" in given else default
    trainable = bool(given.get("trainable", True))
    return Param(ParamSpec(**settings), shape, initializer, fans, trainable)
