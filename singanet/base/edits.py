"""A count of assignments to all settings that recorded programs take for granted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from singanet.base.described import CheckedType

_count = itertools.count(1)
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Changes:
    """``now`` is another number after each `add`, whichever thread made it."""

    def __init__(self) -> None:
        self.now = 0

    def add(self) -> None:
        """Count a change."""
        self.now = next(_count)

    def moment(self) -> Moment:
        """Count a change, and return its time."""
        self.add()
        return Moment(self.now)


class Moment(int):
    """The count at a change. In a process that unpickles it, all later changes count higher."""

    def __reduce__(self) -> tuple[Callable[[int], Moment], tuple[int]]:
        return _past, (int(self),)


def _past(count: int) -> Moment:
    global _count
    if count >= changes.now:
        _count = itertools.count(count + 1)
        changes.add()
    return Moment(count)


changes = Changes()
"""Of all parameters, layers, losses and optimizers: programs look closer only where it moved."""


class CountedType(CheckedType):
    """Classes of which every assignment to an attribute, such as a method, is a change."""

    def __setattr__(cls, name: str, value: Any) -> None:  # noqa: N805 - of a metaclass
        super().__setattr__(name, value)
        changes.add()

    def __delattr__(cls, name: str) -> None:  # noqa: N805 - of a metaclass
        super().__delattr__(name)
        changes.add()


class Counted(metaclass=CountedType):
    """Objects of which every assignment to a public attribute, a method or the class is a change.

    But to those in ``asked_anew``, which are read again whenever they are needed.
    """

    asked_anew: Collection[str] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name[0] != "_":
            if name not in self.asked_anew:
                changes.add()
        elif callable(getattr(type(self), name, None)) or name == "__class__":
            changes.add()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        changes.add()


def _counting(name: str) -> Callable[..., Any]:
    inner = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = inner(self, *args, **kwargs)
        changes.add()
        return made

    method.__doc__ = "As that of a dict."
    return method


class CountedDict(dict[_Key, _Value]):
    """A dict that counts every change of its contents."""


for _name in (
    "__setitem__", "__delitem__", "__ior__", "clear", "pop", "popitem", "setdefault", "update",
):  # fmt: skip
    setattr(CountedDict, _name, _counting(_name))
