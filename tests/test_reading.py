"""What an editor that only reads finds: every public name, and the arguments that it takes."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from functools import cache
from pathlib import Path

import pytest

import singanet

PACKAGES = [
    "singanet",
    *(m.name for m in pkgutil.walk_packages(singanet.__path__, "singanet.") if m.ispkg),
]
FOLDER = Path(singanet.__file__).parent.parent


@cache
def file_of(module):
    """The file that says what ``module`` is, None for what is not singanet's."""
    place = FOLDER.joinpath(*module.split("."))
    found = [place / "__init__.py", place.with_suffix(".py")]
    return next((file for file in found if file.exists()), None)


@cache
def names_in(module):
    """The names that ``module`` has as it is written: definitions, and where imports come from."""
    found = {}
    body = list(ast.parse(file_of(module).read_text("utf-8")).body)
    for node in body:
        if isinstance(node, ast.If):
            # What is not for type checkers comes from calls, which no reader makes.
            body += node.body if ast.unparse(node.test) == "TYPE_CHECKING" else []
        elif isinstance(node, ast.ImportFrom):
            found.update({n.asname or n.name: (node.module, n.name) for n in node.names})
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update({t.id: node for t in targets if isinstance(t, ast.Name)})
    return found


def read(module, name):
    """The module and the node that define ``name``, a module's name alone, or None."""
    if file_of(module) is None:
        return None
    found = names_in(module).get(name)
    if isinstance(found, tuple):
        inner = f"{found[0]}.{found[1]}"
        return (inner, None) if file_of(inner) else read(*found)
    return None if found is None else (module, found)


def arguments_of(module, node):
    """The names of the arguments that the function or class ``node`` takes; None if made up."""
    if isinstance(node, ast.FunctionDef):
        taken = node.args
        plain = [*taken.posonlyargs, *taken.args, *filter(None, [taken.vararg])]
        return [arg.arg for arg in (*plain, *taken.kwonlyargs, *filter(None, [taken.kwarg]))]
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
            return arguments_of(module, inner)[1:]
    for base in node.bases:
        above = read(module, base.id) if isinstance(base, ast.Name) else None
        if above and isinstance(above[1], ast.ClassDef):
            found = arguments_of(*above)
            if found is not None:
                return found
    return None


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_are_read(package):
    written = next(
        node.value
        for node in ast.parse(file_of(package).read_text("utf-8")).body
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and ast.unparse(node).startswith("__all__")
    )
    names = importlib.import_module(package).__all__
    assert ast.literal_eval(written) == names
    assert [name for name in names if read(package, name) is None] == []


def test_arguments_are_read():
    seen = 0
    for package in PACKAGES:
        room = importlib.import_module(package)
        for name in room.__all__:
            module, node = read(package, name)
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                continue
            arguments = arguments_of(module, node)
            if arguments is not None:
                seen += 1
                whole = [*inspect.signature(getattr(room, name)).parameters]
                if arguments[-1:] in (["shared"], ["words"]):
                    # A typed dict has the rest.
                    arguments, whole = arguments[:-1], whole[: len(arguments) - 1]
                assert arguments == whole, name
    assert seen > 300
