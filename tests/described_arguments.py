"""Arguments of public classes, functions and methods that no docstring describes.

``python -m tests.described_arguments [MODULE]`` prints them, a line for each class or function.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterator

from tests.public_api import public_names

ENTRY = re.compile(r"^ {4,}(\*{0,2}[\w, *]+?)(?: \([^)]*\))?: \S", re.M)
SECTION = re.compile(r"^(?:Keyword )?Args:\n((?:\n| .*\n?)*)", re.M)
SETTING = re.compile("_(initializer|regularizer|constraint)$")


def undescribed(names: dict[str, object] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Public callables with the arguments that their docstrings do not describe.

    A class or function describes an argument in its section ``Args:``. A method that no base has
    may name it in its text instead, in double backquotes. An entry ``words:`` or ``shared:``
    describes Keras' settings of parameters, such as ``kernel_initializer``.
    """
    seen: set[int] = set()
    for name, value in sorted((public_names() if names is None else names).items()):
        if id(value) in seen or not callable(value) or not _ours(value):
            continue
        seen.add(id(value))
        if missing := _missing(value, _section(value)):
            yield name, missing
        if isinstance(value, type) and not issubclass(value, (tuple, BaseException)):
            for member, method in vars(value).items():
                method = getattr(method, "__func__", method)
                first = not any(member in vars(base) for base in value.__mro__[1:] if _ours(base))
                if member[0] != "_" and first and inspect.isfunction(method):
                    text = inspect.getdoc(method) or ""
                    named = {*_entries(text), *re.findall(r"``\*{0,2}(\w+)", text)}
                    if missing := _missing(method, named):
                        yield f"{name}.{member}", missing


def _ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "singanet"


def _missing(value: object, described: set[str]) -> list[str]:
    """The parameters of ``value`` that are not in ``described``."""
    if isinstance(value, type) and issubclass(value, (BaseException, tuple)):
        return []
    if dataclasses.is_dataclass(value) and not _entries(inspect.getdoc(value) or ""):
        text = inspect.getdoc(value) or ""
        described = {*described, *re.findall(r"``(\w+)", text)}
    try:
        given = inspect.signature(value).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter
    return [
        name
        for name, each in given.items()
        if name not in {"self", "cls", *described}
        and name[0] != "_"
        and not (described & {"words", "shared"} and SETTING.search(name))
        and each.kind not in {kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL}
    ]


def _section(value: object) -> set[str]:
    """The arguments described by a class, its bases, or a function."""
    if not isinstance(value, type):
        return _entries(inspect.getdoc(value) or "")
    texts = [kind.__doc__ or "" for kind in value.__mro__ if _ours(kind)]
    texts += [vars(kind)["__init__"].__doc__ or "" for kind in value.__mro__ if _own_init(kind)]
    return {name for text in texts for name in _entries(inspect.cleandoc(text))}


def _own_init(kind: type) -> bool:
    return _ours(kind) and "__init__" in vars(kind)


def _entries(text: str) -> set[str]:
    sections = SECTION.findall(text)
    matches = (match for section in sections for match in ENTRY.finditer(section))
    return {name.strip(" *") for match in matches for name in match[1].split(",")}


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    found = [(name, args) for name, args in undescribed() if name.startswith(chosen)]
    for name, args in found:
        sys.stdout.write(f"{name}: {', '.join(args)}\n")
    sys.stdout.write(f"{sum(len(args) for _, args in found)} arguments of {len(found)}\n")
