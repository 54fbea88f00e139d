"""Public names of a room that are imported when they are first asked for."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from singanet.base.elsewhere import names_of


def names_of_stub(room: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of the package ``room``, read from its stub.

    ``__init__.pyi`` beside the package's file says where each name stands, to type checkers and
    to this function alike, so that whoever uses three of fifty layers imports three.
    """
    stub = pkgutil.get_data(room, "__init__.pyi") or b""
    places = {
        name.name: node.module
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom) and node.module
        for name in node.names
    }

    missing = names_of(room, places)

    def find(name: str) -> Any:
        if name not in places:
            return missing(name)
        found = getattr(import_module(places[name]), name)
        # The next time nobody has to look.
        setattr(sys.modules[room], name, found)
        return found

    return find, lambda: sorted(places), sorted(places)
