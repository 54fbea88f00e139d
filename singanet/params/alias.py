"""A parameter of a nested net, as the net around it names it."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np

from singanet.params.param import Home, Param, ParamSpec
from singanet.types import Array


class RenamedParam(Param):
    """Another name for ``origin``: the array, its type and what is trained are one and the same.

    Where the array does not exist yet, it is filled by this name, so that two nets built alike
    and nested under two names start apart.
    """

    __slots__ = ("_name", "_origin")

    def __init__(self, origin: Param, name: str) -> None:
        self._origin = origin.root
        self._name = name
        self.shape = origin.shape
        self.initializer = origin.initializer
        self.fans = origin.fans

    @property
    def root(self) -> Param:
        """The parameter that was named first."""
        return self._origin

    @property
    def name(self) -> str:
        """As the net around calls it."""
        return self._name

    @property
    def spec(self) -> ParamSpec:
        """The origin's, under this name."""
        return replace(self._origin.spec, name=self._name)

    @spec.setter
    def spec(self, spec: ParamSpec) -> None:
        self._origin.spec = replace(spec, name=self._origin.name)

    @property
    def said(self) -> int:
        """As the origin's."""
        return self._origin.said

    @property
    def is_state(self) -> bool:  # type: ignore[override]
        """As the origin's."""
        return self._origin.is_state

    @property
    def dtype(self) -> np.dtype[Any]:
        """As the origin's."""
        return self._origin.dtype

    @dtype.setter
    def dtype(self, dtype: np.dtype[Any]) -> None:
        self._origin.dtype = dtype

    @property
    def seed(self) -> int:
        """As the origin's."""
        return self._origin.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._origin.seed = seed

    @property
    def trainable(self) -> bool:
        """As the origin's."""
        return self._origin.trainable

    @trainable.setter
    def trainable(self, flag: bool) -> None:
        self._origin.trainable = flag

    @property
    def held(self) -> bool:
        """As the origin's."""
        return self._origin.held

    @held.setter
    def held(self, flag: bool) -> None:
        self._origin.held = flag

    def mark_as_state(self) -> None:
        """As the origin's."""
        self._origin.mark_as_state()

    @property
    def home(self) -> Home | None:
        """As the origin's."""
        return self._origin.home

    @home.setter
    def home(self, home: Home | None) -> None:
        self._origin.home = home

    @property
    def array_type(self) -> np.dtype[Any]:
        """As the origin's."""
        return self._origin.array_type

    @property
    def filled(self) -> bool:
        """As the origin's."""
        return self._origin.filled

    @property
    def value(self) -> Array:
        """The origin's array; see `Param.value`."""
        return self._origin.filled_by(self.name)

    @value.setter
    def value(self, array: Array) -> None:
        self._origin.value = array

    def retype(self, array: Array) -> None:
        """As the origin's."""
        self._origin.retype(array)

    def __deepcopy__(self, memo: dict[int, Any]) -> RenamedParam:
        return type(self)(copy.deepcopy(self._origin, memo), self.name)

    def __reduce__(self) -> tuple[type[RenamedParam], tuple[Param, str]]:
        return type(self), (self._origin, self.name)
