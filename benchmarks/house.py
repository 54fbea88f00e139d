"""Counts of the package's own code, a column a folder that is read: the size, and what repeats.

Lines do not count what protobuf has made. A signature is the lines of a function before its body;
an error is a call with ``expected=``, or of `singanet.errors.wrong`. Ranks, stages and placement
are counted if `is None` or `isinstance` asks for them outside of the rooms that know of them: no
other function should have to know how many processes there are, which stages an optimizer has, or
where an array lives. A name has several meanings if several classes, or files, are called so.

    python benchmarks/house.py [FOLDER ...]

A folder has a ``singanet`` in it, as a worktree of another version has.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from report import introduction, publish, table

RANKS = {"ranks", "_ranks"}
PLACES = {"home", "served"}
PLACED_BY = {"served_by"}
STAGES, STORAGES = (
    {"Wrapper", "Reducer"},
    {"ParamStorage", "ParameterServerStorage", "StandIn", "RemoteStorage"},
)
"""Classes of which, and of what derives from them, `isinstance` is counted."""

KNOWS_RANKS = ("parallel/", "training/ranks/")
KNOWS_STAGES = ("optimizer/", "parallel/")
KNOWS_PLACES = ("params/", "offload/", "parallel/", "engine/holding")


@dataclass
class Module:
    """A file of the package."""

    path: str
    tree: ast.Module
    lines: list[str]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """All functions, those within others too."""
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield node

    def classes(self) -> Iterator[ast.ClassDef]:
        """All classes."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef):
                yield node


@dataclass
class House:
    """The modules of a package, and the names of the classes that matter."""

    modules: list[Module]
    stages: set[str] = field(default_factory=set)
    storages: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        bases: dict[str, set[str]] = {}
        for module in self.modules:
            for made in module.classes():
                bases.setdefault(made.name, set()).update(map(_name, made.bases))
        self.stages, self.storages = _derived(STAGES, bases), _derived(STORAGES, bases)


def read(folder: Path) -> House:
    """The house in ``folder``."""
    root, modules = folder / "singanet", []
    for path in sorted(root.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            text = path.read_text()
            name = path.relative_to(root).as_posix()
            modules.append(Module(name, ast.parse(text), text.splitlines()))
    return House(modules)


def _derived(roots: set[str], bases: dict[str, set[str]]) -> set[str]:
    found = set(roots)
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def _name(node: ast.expr | None) -> str:
    """The last part of a name: ``c`` of ``a.b.c``, and of a call of it."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Subscript):
        return _name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def docstring_lines(module: Module) -> int:
    """Lines of docstrings, those below attributes too."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def signature_lines(module: Module) -> int:
    """Lines of signatures, without decorators."""
    return sum(max(1, f.body[0].lineno - f.lineno) for f in module.functions())


def errors(module: Module) -> list[int]:
    """The lines of each error that is made."""
    return [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        and (_name(node) == "wrong" or any(word.arg == "expected" for word in node.keywords))
    ]


def import_lines(module: Module) -> int:
    """Lines of imports."""
    return sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(module.tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
    )


def statements(module: Module) -> int:
    """How many statements there are, without docstrings."""
    return sum(
        isinstance(node, ast.stmt)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        for node in ast.walk(module.tree)
    )


def asked_none(module: Module, names: set[str], calls: set[str] = frozenset()) -> int:  # type: ignore[assignment]
    """Comparisons of one of ``names``, or of what ``calls`` give, with None."""
    found = 0
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            none = isinstance(node.comparators[0], ast.Constant)
            called = isinstance(node.left, ast.Call)
            found += none and _name(node.left) in (calls if called else names)
    return found


def asked_kind(module: Module, kinds: set[str]) -> int:
    """Calls of `isinstance` with one of the classes ``kinds``."""
    return sum(
        isinstance(node, ast.Call)
        and _name(node) == "isinstance"
        and any(_name(part) in kinds for part in ast.walk(node.args[1]) if _is_name(part))
        for node in ast.walk(module.tree)
    )


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    return len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _repeated(names: Iterable[str]) -> str:
    several = {name: count for name, count in Counter(names).items() if count > 1}
    return f"{len(several)} for {sum(several.values())}"


def counts(house: House) -> dict[str, str]:
    """What is told of a house, by what it is."""
    modules = house.modules
    functions = [f for module in modules for f in module.functions()]
    made = [lines for module in modules for lines in errors(module)]
    classes = [(module.path, c.name) for module in modules for c in module.tree.body
               if isinstance(c, ast.ClassDef)]  # fmt: skip

    def outside(rooms: tuple[str, ...]) -> list[Module]:
        return [module for module in modules if not module.path.startswith(rooms)]

    def total(numbers: Iterable[int]) -> str:
        return f"{sum(numbers):,}"

    return {
        "files": f"{len(modules):,}",
        "lines": total(len(module.lines) for module in modules),
        "of these blank": total(
            sum(not line.strip() for line in module.lines) for module in modules
        ),
        "docstrings": total(map(docstring_lines, modules)),
        "signatures": total(map(signature_lines, modules)),
        "imports": total(map(import_lines, modules)),
        "errors": f"{sum(made):,} for {len(made):,}",
        "statements (number)": total(map(statements, modules)),
        "functions, median lines": f"{len(functions):,}, {median(map(_length, functions)):.0f}",
        "functions of more than 60 lines": total(_length(f) > 60 for f in functions),
        "functions of more than 8 arguments": total(_arguments(f) > 8 for f in functions),
        "ranks asked for outside their rooms": total(
            asked_none(module, RANKS) for module in outside(KNOWS_RANKS)
        ),
        "stages": total(asked_kind(module, house.stages) for module in outside(KNOWS_STAGES)),
        "placement": total(
            asked_none(module, PLACES, PLACED_BY) + asked_kind(module, house.storages)
            for module in outside(KNOWS_PLACES)
        ),
        "class names with several meanings": _repeated(name for _, name in classes),
        "of these public": _repeated(name for _, name in classes if not name.startswith("_")),
        "file names": _repeated(
            Path(module.path).name for module in modules if not module.path.endswith("__init__.py")
        ),
    }


def main() -> None:
    """Print the table; keep it where a folder was named."""
    folders = [Path(name) for name in sys.argv[1:]] or [Path(__file__).parents[1]]
    found = [counts(read(folder)) for folder in folders]
    rows = [[what, *(each[what] for each in found)] for what in found[0]]
    body = table(["", *((folder.name or folder.resolve().name) for folder in folders)], rows)
    if len(folders) == 1:
        print(body)
    else:
        publish("house", "The house in numbers", f"{introduction(__doc__)}\n\n{body}")


if __name__ == "__main__":
    main()
