"""Public names of a room that are imported when they are first asked for."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable, Collection
from functools import cache
from importlib import import_module
from typing import Any

from singanet.base.elsewhere import names_of


def names_when_asked(
    room: str, names: Collection[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of the package ``room``, whose public names are ``names``.

    Where each stands is read from the package's file: its imports under ``if TYPE_CHECKING:``,
    which editors and type checkers read too. So whoever uses three of fifty layers imports three.
    """
    missing = names_of(room, names)

    def find(name: str) -> Any:
        place = _places(room).get(name)
        if place is None:
            return missing(name)
        # A room's own room is a module, and no name in one.
        module = import_module(f"{room}.{name}" if place == room else place)
        found = module if place == room else getattr(module, name)
        # The next time nobody has to look.
        setattr(sys.modules[room], name, found)
        return found

    return find, lambda: sorted(names)


@cache
def _places(room: str) -> dict[str, str]:
    """The module of each name that the package ``room`` imports for type checkers."""
    source = pkgutil.get_data(room, "__init__.py") or b""
    return {
        name.name: node.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }
