"""Parameters: named arrays with the settings that optimizers and checkpoints need."""

from __future__ import annotations

import copy
import math
import weakref
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from singanet.base import terms
from singanet.base.arguments import NAMES, name_trouble
from singanet.base.described import Moment, changes
from singanet.errors import (
    ArgumentError,
    CallOrderError,
    OutOfMemoryError,
    ShapeError,
    UnknownNameError,
    brief,
    did_you_mean,
    one_of,
)
from singanet.initializer import INIT_KEYS, Initializer, from_spec
from singanet.params.storage import ByArray, Memory, ParamStorage
from singanet.types import Array, Shape

if TYPE_CHECKING:
    from singanet.ops.narrow import NarrowMatrix
    from singanet.params.storage import ParameterServerStorage

_SPEC_KEYS = ("name", "lr_mult", "decay_mult", "regularizer", "constraint", "trainable")
MOST_ELEMENTS = 1 << 45
"""The number of float32 elements that fill the address space of a process."""

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


class _Referable:
    """A base for classes with slots whose objects weak references may refer to."""

    __slots__ = ("__weakref__",)


@dataclass(eq=False, slots=True)
class ParamRoot(_Referable):
    """The state that all names of a parameter share: initializer, settings and storage.

    ``spec`` has the first name; ``given`` is the first spec, after another was assigned. Only
    `Param` changes them. A parameter has the same root throughout, whatever array it has.
    """

    spec: ParamSpec
    initializer: Initializer
    fans: tuple[int, int]
    trainable: bool
    storage: ParamStorage
    held: bool = False
    is_state: bool = False
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    seed: int = 0
    said: Moment | None = None
    given: ParamSpec | None = None

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        for name, value in state[1].items():
            setattr(self, name, value)
        self.own(self.storage.array)

    def __deepcopy__(self, memo: dict[int, Any]) -> ParamRoot:
        made = object.__new__(ParamRoot)
        for each in fields(ParamRoot):
            setattr(made, each.name, copy.deepcopy(getattr(self, each.name), memo))
        made.own(made.storage.array)
        return made

    def own(self, array: Array | None) -> None:
        """Note for `owner_of` that ``array``, if there is one, belongs to this parameter."""
        if array is not None:
            _owners.note(array, weakref.ref(self))


_owners: ByArray[weakref.ref[ParamRoot]] = ByArray()


def owner_of(array: Any) -> ParamRoot | None:
    """The parameter whose value is this very object ``array``; None for other arrays."""
    found = _owners.of(array)
    return None if found is None else found()


class Param:
    """An array named ``layer/suffix``, filled by its initializer at the first access.

    The values depend on the seed and the name alone, so adding or removing a layer does not change
    how the others start. In the outer net, a nested net's parameter has another name, and a common
    `root` with all else but the shape.
    """

    __slots__ = ("name", "root", "shape")

    def __init__(
        self,
        spec: ParamSpec,
        shape: Shape,
        initializer: Initializer,
        fans: tuple[int, int] = (0, 0),
        trainable: bool = True,
    ) -> None:
        self.name = spec.name
        """The key of this parameter in every checkpoint."""
        self.shape = shape
        """The array's shape."""
        self.root = ParamRoot(spec, initializer, fans, trainable, Memory())
        """The state that it shares with its other names; two of one root are one parameter."""

    def named(self, name: str) -> Param:
        """The same parameter under another name, which also determines its first values."""
        made = object.__new__(type(self))
        made.name, made.root, made.shape = name, self.root, self.shape
        return made

    def __copy__(self) -> Param:
        """A parameter of the same name and settings with a storage of its own."""
        made = self.named(self.name)
        made.root = replace(self.root, storage=copy.copy(self.root.storage))
        return made

    @property
    def spec(self) -> ParamSpec:
        """The training settings; assigned settings override the optimizer's."""
        spec = self.root.spec
        return spec if spec.name == self.name else replace(spec, name=self.name)

    @spec.setter
    def spec(self, spec: ParamSpec) -> None:
        self.root.given = self.root.given or self.root.spec
        self.root.spec = replace(spec, name=self.root.spec.name)
        self.root.said = changes.moment()

    @property
    def said(self) -> Moment | None:
        """When `spec` was assigned; None if it never was."""
        return self.root.said

    @property
    def respecified(self) -> bool:
        """Whether `spec` differs from its first value."""
        return self.root.given not in (None, self.root.spec)

    @property
    def initializer(self) -> Initializer:
        """The initializer of the first values."""
        return self.root.initializer

    @initializer.setter
    def initializer(self, initializer: Initializer) -> None:
        self.root.initializer = initializer

    @property
    def fans(self) -> tuple[int, int]:
        """The numbers of inputs and outputs that initializers scale by."""
        return self.root.fans

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the first values."""
        return self.type_in(self.root.dtype)

    @dtype.setter
    def dtype(self, dtype: np.dtype[Any]) -> None:
        self.root.dtype = dtype

    def type_in(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The type of the array in a net of ``dtype``: running state is of float32 at least.

        In float16 the mean of many batches loses most digits, and a variance above 65504 overflows.
        """
        return np.promote_types(dtype, np.float32) if self.is_state else dtype

    @property
    def seed(self) -> int:
        """The seed of the first values, which depend on it and on the name."""
        return self.root.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self.root.seed = seed

    @property
    def is_state(self) -> bool:
        """Whether forward updates the array, as a running mean, and no optimizer trains it."""
        return self.root.is_state

    @property
    def trainable(self) -> bool:
        """Whether backward yields this parameter; running state never is."""
        return self.root.trainable

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        if flag and self.is_state:
            raise ArgumentError(
                f"parameter {self.name!r}",
                expected="trainable=False, since forward updates it as running state",
                received="trainable=True",
                advice="set layer.trainable instead, which leaves running state alone",
            )
        self.root.trainable = flag
        changes.add()

    @property
    def held(self) -> bool:
        """Whether no forward changes this running state: its layer runs as in evaluation."""
        return self.root.held

    @held.setter
    def held(self, flag: bool) -> None:
        self.root.held = flag
        changes.add()

    def mark_as_state(self) -> None:
        """Declare that forward updates this array and no optimizer trains it."""
        self.root.is_state, self.root.trainable = True, False
        changes.add()

    @property
    def storage(self) -> ParamStorage:
        """The storage of the array; assigning another frees the old one's array."""
        return self.root.storage

    @storage.setter
    def storage(self, storage: ParamStorage) -> None:
        self.root.storage = storage
        self.root.own(storage.array)
        changes.add()

    @property
    def filled(self) -> bool:
        """Whether the array exists yet."""
        return self.root.storage.filled

    @property
    def served(self) -> ParameterServerStorage | None:
        """The table that stores the rows, None if they are not in a table."""
        storage = self.root.storage
        return cast("ParameterServerStorage", storage) if storage.by_rows else None

    @property
    def value(self) -> Array:
        """The live array: change it in place, or assign an array of its shape, which is converted.

        If it does not exist yet, seed and name determine its values.
        """
        storage = self.root.storage
        # Another thread may drop it at any time, as a predictor does.
        array = storage.array
        if array is not None:
            return array
        if not storage.filled:
            storage.replace(self.name, self.initial())
        lent = storage.lend()
        if owner_of(lent) is not self.root:
            self.root.own(lent)
        return lent

    @value.setter
    def value(self, array: Array) -> None:
        wanted = self.array_type
        if not self.root.storage.in_memory:
            self.value[...] = array
            return
        self.retype(array if array.dtype == wanted else self._converted(array, wanted))

    def retype(self, array: Array) -> None:
        """Assign ``array`` with its type; assigning `value` converts to the old type.

        Another byte order becomes the machine's, which files and kernels read. Running state
        becomes float32 at least, see `type_in`.
        """
        if tuple(array.shape) != self.shape:
            raise ShapeError(
                f"parameter {self.name!r}",
                expected=f"shape {self.shape}",
                received=f"shape {tuple(array.shape)}",
                advice="assign an array of the parameter's own shape",
            )
        array = array.astype(self.type_in(array.dtype).newbyteorder("="), copy=False)
        self.root.storage.replace(self.name, array)
        self.root.own(self.root.storage.array)
        changes.add()

    def _converted(self, array: Array, wanted: np.dtype[Any]) -> Array:
        if array.dtype.kind not in "fiub":
            raise ArgumentError(
                f"parameter {self.name!r}",
                expected=f"an array of numbers, which become {wanted}",
                received=f"an array of type {array.dtype}",
                advice=f"convert it with array.astype('{wanted}')",
            )
        return array.astype(wanted)

    @property
    def is_constant(self) -> bool:
        """Whether the array is read-only."""
        if not self.root.storage.in_memory:
            return not self.root.storage.trains
        return isinstance(self.value, np.ndarray) and not self.value.flags.writeable

    @property
    def array_type(self) -> np.dtype[Any]:
        """The type that the array has, or will have when it is filled."""
        return self.root.storage.dtype if self.filled else self.dtype

    @property
    def nbytes(self) -> int:
        """The bytes of the array, also if it is stored elsewhere or not filled yet."""
        return math.prod(self.shape) * self.array_type.itemsize

    @property
    def here(self) -> Array:
        """`value`, or this process's slice if several processes have one slice each."""
        return self.root.storage.here() if self.filled else self.value

    @property
    def outline(self) -> Array:
        """An array of its shape and type; values are arbitrary if it is not in memory."""
        if self.root.storage.in_memory or self.root.storage.by_rows:
            return self.value
        return np.broadcast_to(np.zeros((), self.array_type), self.shape)

    def peek(self) -> Array:
        """The array, read-only; if it is not in memory, it is read for this call."""
        return self.root.storage.read() if self.filled else self.value

    def factor(self) -> Array | NarrowMatrix:
        """The operand of products and look-ups: `peek` or a narrow matrix, read-only."""
        return self.root.storage.factor() if self.filled else self.value

    @property
    def parts(self) -> Callable[[], Iterator[Array]] | None:
        """A function that yields the array in runs of rows if it is in a table, else None."""
        return None if self.served is None else self.served.parts

    def put(self, array: Array) -> None:
        """Write ``array``, of the same shape, over the values, wherever they are."""
        if self.filled:
            self.root.storage.write(array)
        else:
            self.value[...] = array

    def initial(self, name: str = "") -> Array:
        """A new array, as seed and ``name`` (its own, if empty) fill it."""
        # One array of draws in float64 would take twice the memory of the result.
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
        """The temporary bytes of `initial` in addition to its result."""
        count = math.prod(self.shape)
        if self.initializer._draws_one_by_one(self.fans):
            count = min(count, _PIECE)
        return 8 * count * self.initializer.copies

    def initial_pieces(self, size: int, name: str = "") -> Iterator[tuple[int, Array]]:
        """`initial` in flat pieces of ``size`` elements, each with the position of its first.

        It is one piece if the initializer cannot draw parts.
        """
        rng = np.random.default_rng([self.seed, zlib.crc32((name or self.name).encode())])
        count = math.prod(self.shape)
        if count <= size or not self.initializer._draws_one_by_one(self.fans):
            yield 0, self.initializer(rng, self.shape, self.fans).reshape(-1)
            return
        for start in range(0, count, size):
            yield start, self.initializer(rng, (min(size, count - start),), self.fans)

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
            expected=f"fewer than {MOST_ELEMENTS} elements, as a process can address",
            received=f"shape {shape}",
            advice="give the layer fewer units",
        )
    given = dict(specs or {})
    for key in given:
        if key not in _SPEC_KEYS + INIT_KEYS:
            raise UnknownNameError(
                where,
                expected=f"spec keys among {one_of(_SPEC_KEYS + INIT_KEYS, 20)}",
                received=brief(key),
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


def expect_stored(
    params: Iterable[Param],
    where: str,
    needs: Collection[str] = (*terms.PARAMETERS, terms.LAYERS),
    otherwise: str = "",
) -> None:
    """Refuse ``params`` whose storage takes one of ``needs`` away, by default all not in memory.

    ``otherwise`` is further advice. Errors: `CallOrderError`.
    """
    for param in params:
        storage = param.storage
        for condition in storage.takes:
            if condition in needs:
                raise CallOrderError(
                    f"{where}, parameter {param.name!r}",
                    expected=condition,
                    received=f"one that is {storage.place}",
                    advice=", or ".join(filter(None, (storage.way_back, otherwise))),
                )
