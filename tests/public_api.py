"""What users can call: every public name with its parameters and their defaults, a line each.

``python -m tests.public_api`` writes it to ``tests/public_api.txt``, with which
`test_public_api` compares the package. So a change that somebody's code would notice is one that
somebody has read. Annotations are left out: types are made wider without breaking anybody.
"""

import dataclasses
import importlib
import inspect
import re
import sys
import types
from functools import cached_property
from pathlib import Path

import numpy as np

import singanet

ROOT = Path(__file__).resolve().parents[1]
FILE = Path(__file__).with_suffix(".txt")

WITHOUT_A_PAGE = ["singanet", "singanet.layers"]
"""Packages whose names stand on several pages."""


def public_modules() -> list[str]:
    """The modules that have a page of the reference, and the package itself."""
    return sorted({*WITHOUT_A_PAGE, *(name for name in references() if _module(name))})


def references() -> list[str]:
    """What the pages of the reference show, by its dotted name."""
    pages = "\n".join(page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("**/*.md"))
    return re.findall(r"^::: (\S+)$", pages, re.M)


def api() -> str:
    """All lines, sorted, that the file has where nothing has changed."""
    named = public_names()
    # Once, by the place that is nearest the package where there are several.
    first: dict[type, str] = {}
    classes = {name: value for name, value in named.items() if isinstance(value, type)}
    second = {name: name.rpartition(".")[2] != value.__name__ for name, value in classes.items()}
    for name in sorted(classes, key=lambda name: (second[name], name.count("."), name)):
        first.setdefault(classes[name], name)
    lines = {line for name, value in named.items() for line in _lines(name, value, first)}
    return "\n".join(sorted(lines)) + "\n"


def _module(name: str) -> types.ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def public_names() -> dict[str, object]:
    """Every public name and what it means, once, by the package where users find it."""
    found = {}
    for name in public_modules():
        module = _module(name)
        own = [n for n, it in vars(module).items() if getattr(it, "__module__", "") == name]
        for public in getattr(module, "__all__", own):
            found[f"{name}.{public}"] = getattr(module, public)
    known = list(found.values())
    for name in references():
        module, _, public = name.rpartition(".")
        if _module(name) is None:
            value = getattr(_module(module), public)
            if not any(value is each for each in known):
                found[name] = value
    return found


def _lines(name, value, classes):
    if isinstance(value, types.ModuleType):
        return
    if isinstance(value, types.GenericAlias):
        yield name
        return
    if not isinstance(value, type):
        yield name + _parameters(value)
        return
    if classes[value] != name:
        yield f"{name} is {classes[value]}"
        return
    above = [base for base in value.__mro__[1:] if base in classes]
    bases = ", ".join(base.__name__ for base in value.__bases__ if base in classes)
    yield f"{name}{_parameters(value)}" + (f"  is a {bases}" if bases else "")
    fields = getattr(value, "__dataclass_fields__", ())  # parameters, told above
    for member in dir(value):
        own = next((kind for kind in value.__mro__ if member in vars(kind)), object)
        hidden = member[0] == "_" and member != "__call__"
        hidden |= member in getattr(value, "_for_rooms", ())
        # What scikit-learn puts into its estimators' classes is its own.
        theirs = not _is_ours(own) or type(vars(own)[member]).__module__.startswith("sklearn.")
        if hidden or member.startswith("test_") or member in fields or theirs:
            continue
        line = _member(value, member)
        # What a public class above has alike is told there; it may only allow other names.
        there = (_member(base, member) for base in above if hasattr(base, member))
        if all(line.replace(", /", "") != each.replace(", /", "") for each in there):
            yield f"{name}.{line}"


def _is_ours(kind):
    return kind.__module__.partition(".")[0] == "singanet"


def _member(kind, name):
    given = inspect.getattr_static(kind, name)
    if inspect.isdatadescriptor(given) or isinstance(given, cached_property):
        return name
    if isinstance(given, staticmethod | classmethod):
        return name + _parameters(getattr(kind, name))
    if isinstance(given, types.FunctionType):
        return name + _parameters(given)
    return f"{name} = {_value(given)}"


def _parameters(value):
    """The parameters of what can be called, else the value; a method's without ``self``."""
    if not callable(value):
        return f" = {_value(value)}"
    try:
        given = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return "(...)"
    if given and given[0].name == "self":
        del given[0]
    shown, kinds = [], [each.kind for each in given]
    for place, each in enumerate(given):
        starred = {each.KEYWORD_ONLY, each.VAR_POSITIONAL} & {*kinds[:place]}
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={_value(each.default)}"
        shown.append(f"{stars}{each.name}{default}")
        if each.kind is each.POSITIONAL_ONLY and each.POSITIONAL_ONLY not in kinds[place + 1 :]:
            shown.append("/")
    return f"({', '.join(shown)})"


def _value(value):
    """Text of a default or constant that is the same in every process and on every Python."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))}{',' * (len(value) == 1)})"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return value.__name__
    if isinstance(value, frozenset | set):
        return f"{{{', '.join(sorted(map(_value, value)))}}}"
    if isinstance(value, np.dtype):
        return value.name
    if value is dataclasses.MISSING or type(value).__module__ == "dataclasses":
        return "<new>"  # made by a factory
    return f"<{type(value).__name__}>"


if __name__ == "__main__":
    FILE.write_text(api(), "utf-8")
    sys.stdout.write(f"{FILE} tells of singanet {singanet.__version__}\n")
