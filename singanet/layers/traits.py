"""What a layer declares of itself, for those that put it into a net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

InputKind: TypeAlias = Literal["floats", "integers", "any"]


@dataclass(frozen=True)
class Traits:
    """What is true of a layer whatever it computes, as its class says or as its arguments make it.

    ``input_kinds`` are those of the inputs, in order, where not all are floats: see
    `Layer.input_kind`. ``gives_integers`` says that outputs are whole numbers or booleans, whatever
    comes in; ``moves_only`` that they are the input's elements, moved: integers for later layers
    pass through. With ``any_extent`` a sample axis may be None, of another extent at each call;
    shapes show it as -1.

    ``masks`` is what a mask of the input's steps becomes: "keeps" for outputs that have it, "ends"
    where it has been read; a layer with neither refuses it. A layer that ``begins_mask`` has the
    mask of its input for its output, which goes on in its place.

    With ``stops_gradient`` no gradient goes to the inputs: for what it alone reads nothing is kept
    or made. ``sparse`` is an input for sparse matrices, of which `forward` gets a `CSRMatrix` where
    it ``takes_sparse``. One that ``looks_up`` asks for rows of a parameter that is served, and
    never reads the array. A training batch has at least ``fewest_samples``.
    """

    input_kinds: tuple[InputKind, ...] = ()
    gives_integers: bool = False
    moves_only: bool = False
    any_extent: bool = False
    masks: Literal["", "keeps", "ends"] = ""
    begins_mask: bool = False
    stops_gradient: bool = False
    sparse: bool = False
    takes_sparse: bool = False
    looks_up: bool = False
    fewest_samples: int = 1
