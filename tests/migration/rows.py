"""The rows of a migration guide as cases: each builds our thing and the peer's, and compares them.

`Guide` reads the tables of arguments of a page. A case is a function registered for a class of the
peer, with settings for the peer's arguments. `Guide.pair` draws some of them and tells them to our
class by the words of the row, so a row that says less than is so fails.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

import singanet
from singanet import initializer, layers, loss, metric, optimizer
from singanet.base.elsewhere import is_library
from singanet.base.words import PAIRS, Required, aliases
from singanet.layers import Layer
from singanet.optimizer import SGD, schedules
from singanet.training import callbacks
from singanet.types import RowSparse

PAGES = Path(__file__).resolve().parents[2] / "docs" / "migration"
OURS = [layers, loss, metric, optimizer, schedules, initializer, callbacks, singanet]
_ROOMS = {
    "losses": loss, "metrics": metric, "initializers": initializer, "init": initializer,
    "schedules": schedules, "scheduler": schedules, "callbacks": callbacks,
}  # fmt: skip
ABSENT = inspect.Parameter.empty
DEFAULTS = "Defaults that differ"
"""The heading of the one list of them in a page."""


class Row:
    """Classes of theirs, ours, and what becomes of each argument, by the columns of a table."""

    def __init__(self, line: str) -> None:
        theirs, ours, same, renamed, otherwise = (cell.strip() for cell in line[1:-1].split("|"))
        self.line = line
        self.theirs, self.ours = names(theirs), names(ours)
        self.same = names(without_brackets(same))
        self.renamed = re.findall(r"`(\w+)` → `(\w+)`", renamed)
        # What stands in brackets says where the value differs.
        told = re.findall(r"`(\w+)`(?: → `\w+`)? \(", f"{same} {renamed}")
        self.converted = set(told)
        # A reason may quote code; the arguments stand before the colon.
        reasons = [part.partition(":") for part in otherwise.split("; ") if part]
        self.otherwise = [name for before, _, _ in reasons for name in names(before)]
        self.unexplained = [before for before, _, why in reasons if not why.strip()]

    def arguments(self) -> list[str]:
        """The arguments of theirs that it tells of."""
        return [*self.same, *(theirs for theirs, _ in self.renamed), *self.otherwise]

    def here(self) -> dict[str, str]:
        """Our name of each argument that is here."""
        return {**{name: name for name in self.same}, **dict(self.renamed)}


def without_brackets(cell: str) -> str:
    """The text without what stands in brackets, and in brackets there."""
    while (less := re.sub(r"\([^()]*\)", "", cell)) != cell:
        cell = less
    return cell


def names(cell: str) -> list[str]:
    """The words in backquotes."""
    return re.findall(r"`([A-Za-z_]\w*)", cell)


def parameters(made: Any) -> dict[str, Any]:
    """The arguments that ``made`` spells out, each with its default; ours by all their words."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    # Our own signatures have what constructors hand on.
    ours = is_library(made)
    function = made.__init__ if inspect.isclass(made) and not ours else made
    given = inspect.signature(function).parameters.values()
    found = {p.name: p.default for p in given if p.kind not in variable and p.name != "self"}
    if ours:
        found = {n: ABSENT if isinstance(d, Required) else d for n, d in found.items()}
        found |= {word: found[here] for word, here in aliases(tuple(found)).items()}
        pairs = {word: two for word, two in PAIRS.items() if {*two} <= {*found}}
        found |= {word: (found[one], found[other]) for word, (one, other) in pairs.items()}
    return found


def ours_of(name: str, heading: str = "") -> Any:
    """Our class or function of that name, from the room of the ``heading`` if it is there."""
    rooms = [room for end, room in _ROOMS.items() if heading.endswith(end)]
    found = [getattr(room, name) for room in (*rooms, *OURS) if hasattr(room, name)]
    assert found, f"{name} is not in singanet"
    return found[0]


Draw = np.random.Generator


@dataclass
class Pair:
    """Our class and theirs, with the arguments that were drawn."""

    ours_kind: Any
    theirs_kind: Any
    given: dict[str, Any]
    """The arguments of theirs; one that is left out is left at its default."""
    told: dict[str, Any]
    """The same as ours takes them."""
    draw: Draw

    def ours(self, **more: Any) -> Any:
        """Ours, with ``more`` arguments; a layer is called "layer"."""
        named = {"name": "layer"} if "name" in parameters(self.ours_kind) else {}
        return self.ours_kind(**{**named, **self.told, **more})

    def theirs(self, **more: Any) -> Any:
        """Theirs, with ``more`` arguments."""
        return self.theirs_kind(**{**self.given, **more})

    def of(self, name: str) -> Any:
        """The value of an argument of theirs, drawn or default."""
        return self.given.get(name, parameters(self.theirs_kind).get(name))

    def normal(self, *shape: int) -> Any:
        """Numbers of both signs."""
        return self.draw.normal(size=shape).astype(np.float32)

    def pick(self, *values: Any) -> Any:
        """One of the values."""
        return values[self.draw.integers(len(values))]


Check = Callable[..., None]
"""Compares a `Pair`; what else it gets, the file of tests says."""


@dataclass
class Case:
    """What is compared for a class of theirs.

    ``settings`` are values of their arguments. ``values`` turns one into ours; the row must say so
    in brackets. What is in neither and has a place in the row must stand in ``apart``: the check
    deals with it by itself. ``usual`` is what None stands for here, by their argument.
    """

    check: Check
    ours: str
    settings: Mapping[str, Sequence[Any]]
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    apart: Sequence[str] = ()
    usual: Mapping[str, Any] = field(default_factory=dict)


class Guide:
    """A page: by heading its rows and the classes that are not here; and the cases of the rows."""

    def __init__(
        self,
        page: str,
        package: Any,
        signature: Callable[[Any], dict[str, Any]] = parameters,
        room: Callable[[str, ModuleType], dict[str, Any]] | None = None,
        elsewhere: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """``signature`` gives the arguments of a class of theirs, ``room`` what a heading holds.

        Arguments that are tried ``elsewhere``, for many classes at once, need be in no case.
        """
        self.page, self.package, self.signature = page, package, signature
        self.elsewhere = elsewhere
        self._room = room
        self.rows: dict[str, list[Row]] = {}
        self.missing: dict[str, list[str]] = {}
        self.told_defaults: set[str] = set()
        self.cases: dict[tuple[str, str], list[Case]] = {}
        heading = ""
        text = (
            (PAGES / page)
            .read_text(encoding="utf-8")
            .partition("\n## Arguments of every class\n")[2]
        )
        for line in text.splitlines():
            if line.startswith("### "):
                heading = line[4:].strip("`")
                if heading != DEFAULTS:
                    self.rows[heading], self.missing[heading] = [], []
            elif heading == DEFAULTS and line.startswith("| `"):
                self.told_defaults.add(line)
            elif line.startswith(("| `", "| all")):
                self.rows[heading].append(Row(line))
            elif line.startswith("Not here"):
                # In brackets, and before the colon, stands what to take instead.
                missing = names(re.sub(r"\([^)]*\)", "", line.partition(": ")[2]))
                self.missing[heading] += missing

    def case(
        self,
        heading: str,
        *theirs: str,
        ours: str | None = None,
        values: Mapping[str, Callable[[Any], Any]] | None = None,
        apart: Sequence[str] = (),
        usual: Mapping[str, Any] | None = None,
        **settings: Sequence[Any],
    ) -> Callable[[Check], Check]:
        """Register a check for ``theirs``; ours is the class beside it in the row, unless said."""

        def register(check: Check) -> Check:
            for name in theirs:
                own = ours or self._beside(heading, name)
                made = Case(check, own, settings, values or {}, apart, usual or {})
                self.cases.setdefault((heading, name), []).append(made)
            return check

        return register

    def all_cases(self) -> list[tuple[str, str, int]]:
        """Heading, class and number of each case."""
        return [(*key, k) for key, cases in self.cases.items() for k in range(len(cases))]

    def room(self, heading: str) -> dict[str, Any]:
        """What stands in that room of theirs, by name."""
        found = self.package
        for part in heading.split(".")[1:]:
            found = getattr(found, part)
        if self._room is not None and (own := self._room(heading, found)):
            return own
        return {
            name: kind
            for name, kind in ((name, getattr(found, name)) for name in dir(found))
            if inspect.isclass(kind) and not name.startswith("_") and _is_theirs(kind, heading)
        }

    def row(self, heading: str, theirs: str) -> Row:
        """The row that names the class."""
        found = [row for row in self.rows[heading] if theirs in row.theirs]
        assert len(found) == 1, f"{self.page}, {heading}: {len(found)} rows of {theirs}"
        return found[0]

    def _beside(self, heading: str, theirs: str) -> str:
        row = self.row(heading, theirs)
        alike = len(row.ours) == len(row.theirs)
        return row.ours[row.theirs.index(theirs)] if alike else row.ours[0]

    def _here(self, heading: str, theirs: str) -> tuple[dict[str, str], set[str]]:
        """By their argument our name, the rows of all included; and those whose value differs."""
        row, wanted = self.row(heading, theirs), self.signature(self.room(heading)[theirs])
        here, converted = {}, set()
        for each in (*(r for r in self.rows[heading] if not r.theirs), row):
            here.update(each.here())
            converted |= each.converted
        own = row.otherwise
        return {a: b for a, b in here.items() if a in wanted and a not in own}, converted

    def differing(self, heading: str, theirs: str) -> dict[str, tuple[Any, Any]]:
        """By their argument its default there and ours, where both have one and they differ."""
        here, _ = self._here(heading, theirs)
        found = {}
        for case in self.cases.get((heading, theirs), ()):
            ours = parameters(ours_of(case.ours, heading))
            for name, default in self.signature(self.room(heading)[theirs]).items():
                own = ours.get(here.get(name, ""), ABSENT)
                if self.elsewhere(name) or ABSENT in (default, own) or name == "name":
                    continue
                own = case.usual.get(name) if own is None else own
                read = case.values.get(name)
                there = read(default) if read else default
                if plain(there) != plain(own) and there != own:
                    found[name] = (default, own)
        return found

    def differing_lines(self) -> set[str]:
        """The lines of the page's list of defaults that differ, as they have to be."""
        found: dict[tuple[str, str, str], set[str]] = {}
        for heading, theirs in self.cases:
            for name, defaults in self.differing(heading, theirs).items():
                found.setdefault((name, *map(shown, defaults)), set()).add(theirs)
        return {
            "| " + ", ".join(f"`{each}`" for each in sorted(kinds)) + f" | {line} |"
            for told, kinds in found.items()
            for line in [" | ".join(f"`{part}`" for part in told)]
        }

    def pair(self, heading: str, theirs: str, number: int, seed: int) -> Pair:
        """A case with drawn arguments: each is left at its default now and then."""
        case = self.cases[heading, theirs][number]
        here, _ = self._here(heading, theirs)
        kind, own = self.room(heading)[theirs], ours_of(case.ours, heading)
        draw = np.random.default_rng([seed, sum(map(ord, heading + theirs)), number])
        defaults, differs = self.signature(kind), self.differing(heading, theirs)
        asked = {name for name, default in parameters(own).items() if default is ABSENT}
        given, told = {}, {}
        for name, default in defaults.items():
            if name in case.settings and (default is ABSENT or draw.random() < 0.7):
                values = case.settings[name]
                given[name] = values[draw.integers(len(values))]
            # A user has to say what ours asks for, and what the guide lists among the defaults.
            said = name in differs or here.get(name) in asked
            if name in here and (name in given or (said and name in case.settings)):
                value = given.get(name, default)
                read = case.values.get(name)
                told[here[name]] = read(value) if read else value
        return Pair(own, kind, given, told, draw)

    def run(
        self, heading: str, theirs: str, number: int, seeds: Iterable[int], *tools: Any
    ) -> None:
        """Run a case with arguments drawn by each of the seeds; a check gets ``tools`` too."""
        for seed in seeds:
            pair = self.pair(heading, theirs, number, seed)
            # Shown of a case that fails.
            told = f"seed {seed}: {theirs}({pair.given}), {pair.ours_kind.__name__}({pair.told})"
            sys.stdout.write(f"{told}\n")
            self.cases[heading, theirs][number].check(pair, *tools)

    def wrong_cases(self, heading: str) -> list[str]:
        """Rows without a case, arguments that no case sets, values converted without a word."""
        wrong = []
        for theirs in (name for row in self.rows[heading] for name in row.theirs):
            cases = self.cases.get((heading, theirs), [])
            if not cases:
                wrong.append(f"{theirs} has no case")
                continue
            here, converted = self._here(heading, theirs)
            done = {name for case in cases for name in (*case.settings, *case.apart)}
            left = [n for n in here if n not in done | {"name"} and not self.elsewhere(n)]
            wrong += [f"{theirs}: no case sets {n}" for n in left]
            transposed = {name for case in cases for name in case.values if name in here}
            wrong += [f"{theirs}: {n} has another value" for n in sorted(transposed - converted)]
        known = {name for row in self.rows[heading] for name in row.theirs}
        wrong += [
            f"{n} has a case and no row" for h, n in self.cases if h == heading and n not in known
        ]
        return wrong

    def wrong_rows(self, heading: str) -> list[str]:
        """Classes and arguments without a place, and places that there are not."""
        room, rows = self.room(heading), self.rows[heading]
        common = [row for row in rows if not row.theirs]
        shared = [name for row in common for name in row.arguments()]
        told, wrong = set(), []
        for row in (row for row in rows if row.theirs):
            own = row.arguments()
            kinds = [room[name] for name in row.theirs]
            told |= set(kinds)
            wanted = [name for kind in kinds for name in self.signature(kind)]
            wrong += [f"{row.theirs}: {n} without a place" for n in wanted if n not in own + shared]
            wrong += [f"{row.theirs}: no argument {n}" for n in own if n not in wanted]
            wrong += [f"{row.theirs}: {n} twice" for n in own if own.count(n) > 1]
            wrong += [f"{row.theirs}: no reason for {text}" for text in row.unexplained]
            takes = {
                argument for name in row.ours for argument in parameters(ours_of(name, heading))
            }
            targets = list(row.here().values())
            for each in common:
                here = each.here()
                targets += [here[n] for n in here if n in wanted and n not in own]
            wrong += [f"{row.ours} has no {n}" for n in targets if n not in takes]
        elsewhere = {room[name] for name in self.missing[heading]}
        wrong += [f"{kind.__name__} is told and missing" for kind in told & elsewhere]
        left = {*room.values()} - told - elsewhere
        wrong += sorted(f"{k.__name__} is not told of: {[*self.signature(k)]}" for k in left)
        return wrong


def _is_theirs(kind: Any, heading: str) -> bool:
    """Whether it is of the room itself; Keras' public names stand elsewhere."""
    lazy = kind.__name__.startswith(("Lazy", "Uninitialized"))
    return kind.__module__.startswith(("keras.", heading)) and not lazy


def plain(value: Any) -> Any:
    """A default as it is compared: (1, 1) is 1, 1 is 1.0, and None is False and 0.0."""
    if value is None or value is False or (isinstance(value, float) and not value):
        return None
    if isinstance(value, (tuple, list)):
        parts = {plain(part) for part in value}
        return parts.pop() if len(parts) == 1 else tuple(map(plain, value))
    if isinstance(value, (bool, int, float)):
        return float(value)
    return value if isinstance(value, (str, type(None))) else shown(value)


def shown(value: Any) -> str:
    """A default as a page shows it."""
    simple = value is None or isinstance(value, (bool, int, float, str, tuple, list))
    return repr(value) if simple else type(value).__name__


class Peer(Protocol):
    """A model of theirs with PyTorch's gradients.

    ``files`` is how the name of its files of weights ends.
    """

    files: str

    def __call__(self, *xs: Any) -> Any:
        """The output(s) of a training forward for arrays of theirs, which are tensors."""

    def save(self, path: Path) -> None:
        """Write all weights."""

    def load(self, path: Path) -> None:
        """Read all weights."""

    def weights(self) -> dict[str, Any]:
        """All weights, live."""

    def trained(self) -> dict[str, Any]:
        """Those that gradients come to, live."""


Turn = Callable[[Any], Any]


def _as_it_is(x: Any) -> Any:
    return x


@dataclass
class Compared:
    """How two layers are compared.

    ``turn_in`` and ``turn_out`` make an array as ours is of one as theirs is, ``turn_more`` of
    outputs behind the first. ``twice`` are weights
    of theirs that ours holds as the sum of two: their gradients are told doubled. ``unlike``
    are ends of names of theirs that the case compares by itself.
    """

    folder: Path
    turn_in: Turn = _as_it_is
    turn_out: Turn = _as_it_is
    turn_more: Turn = _as_it_is
    twice: Callable[[str], bool] = lambda name: False
    unlike: tuple[str, ...] = ()
    steps: int = 3
    rtol: float = 2e-4
    atol: float = 2e-5

    def layers(self, ours: Layer | Sequence[Any] | Any, theirs: Peer, *xs: Any) -> None:
        """Carry weights over; compare outputs, gradients, and the weights after steps."""
        net, feed = self._net(ours, xs)
        path = self.folder / f"weights{theirs.files}"
        if theirs.weights():
            theirs.save(path)
            report = net.load(str(path))
            assert not report.missing, report.summary()
        pairs = theirs(*map(_tensor, xs)), net.forward(True, feed)
        outs, mine = (list(y) if isinstance(y, (list, tuple)) else [y] for y in pairs)
        for k, (a, b) in enumerate(zip(mine, outs, strict=True)):
            turn = self.turn_more if k else self.turn_out
            self.close(a, turn(b.detach().numpy()), "outputs")
        if not isinstance(net.layers[-1].out_shapes, list):
            self._gradients(net, feed, theirs, xs, path)

    def _net(self, ours: Any, xs: Sequence[Any]) -> tuple[Any, Any]:
        made = [self.turn_in(x) for x in xs]
        net = ours
        if not isinstance(ours, singanet.FeedForwardNet):
            names = [f"input{k}" for k in range(len(xs))] if len(xs) > 1 else ["input"]
            symbols = [
                singanet.Input(name, x.shape[1:], dtype="int64" if x.dtype.kind == "i" else None)
                for name, x in zip(names, made, strict=True)
            ]
            first, *others = ours if isinstance(ours, (list, tuple)) else [ours]
            y = first(*symbols)
            for layer in others:
                y = layer(y)
            net = singanet.FeedForwardNet(inputs=symbols, outputs=y, seed=0)
        inputs = [layer.name for layer in net.layers if layer.name.startswith("input")]
        return net, dict(zip(inputs, made, strict=True))

    def _gradients(self, net: Any, feed: Any, theirs: Peer, xs: Sequence[Any], path: Path) -> None:
        last = net.layers[-1].name
        rng = np.random.default_rng(0)
        sgd = SGD(lr=0.1)
        for step in range(self.steps):
            tensors = [_tensor(x) for x in xs]
            for weight in theirs.trained().values():
                weight.grad = None
            out = theirs(*tensors)
            dy = rng.normal(size=tuple(out.shape)).astype(np.float32)
            out.backward(_tensor(dy).detach())
            own_dy = self.turn_out(dy)
            if step == 0:
                self._first(net, feed, theirs, tensors, last, own_dy, path)
            net.forward(True, feed)
            for ids, values, grads in net.backward(own_dy):
                sgd.update(ids, values, grads)
            for name, weight in theirs.trained().items():
                if weight.grad is not None:
                    rate = 0.2 if self.twice(name) else 0.1
                    weight.data -= rate * weight.grad
        wanted = {name: weight.detach().numpy().copy() for name, weight in theirs.weights().items()}
        if wanted:
            net.save(str(path))
            theirs.load(path)
        for name, weight in theirs.weights().items():
            if not name.endswith(self.unlike or "\0"):
                here = weight.detach().numpy()
                self.close(here, wanted[name], f"{name} after {self.steps} steps")

    def _first(
        self, net: Any, feed: Any, theirs: Peer, tensors: Any, last: str, dy: Any, path: Path
    ) -> None:
        """The gradients of a batch; those of weights are carried to theirs as weights are."""
        floats = [name for name, x in feed.items() if x.dtype.kind == "f"]
        params = [p for p in net.params() if p.trainable and not p.is_state]
        wanted = [*floats, *(p.name for p in params)]
        if not wanted:
            return
        kept = [(p, p.value.copy()) for p in net.params()]
        found = net.gradients(last, wanted, feed, {last: dy}, train=True)
        for p, value in kept:
            p.value[...] = value
        for name, tensor in zip(feed, tensors, strict=True):
            if name in floats:
                self.close(found[name], self.turn_in(tensor.grad.numpy()), "input gradients")
        trained = theirs.trained()
        if not params or not trained:
            return
        before = {name: w.detach().clone() for name, w in theirs.weights().items()}
        for p in params:
            grad = found[p.name]
            p.value[...] = 0.0
            rows = (grad.indices, grad.rows) if isinstance(grad, RowSparse) else (..., grad)
            np.add.at(p.value, *rows)
        net.save(str(path))
        theirs.load(path)
        for name, weight in theirs.trained().items():
            own = weight.detach().numpy() / (2 if self.twice(name) else 1)
            grad = weight.grad
            self.close(
                own, np.zeros_like(own) if grad is None else grad.numpy(), f"gradient of {name}"
            )
        for name, weight in theirs.weights().items():
            weight.data.copy_(before[name])
        for p, value in kept:
            p.value[...] = value

    def close(self, ours: Any, theirs: Any, what: str) -> None:
        """Compare two arrays."""
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert ours.shape == theirs.shape, f"{what}: {ours.shape} here, {theirs.shape} there"
        np.testing.assert_allclose(ours, theirs, self.rtol, self.atol, err_msg=what)


def _tensor(x: Any) -> Any:
    import torch

    tensor = torch.tensor(np.ascontiguousarray(x))
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def compare_rules(
    ours: Any, theirs: Rule, seed: int = 0, steps: int = 12, atol: float = 2e-5
) -> None:
    """Update a matrix and a vector by the same gradients, ``steps`` times."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=shape).astype(np.float32) for shape in ((4, 3), (5,))]
    tensors = [_tensor(value) for value in values]
    step = theirs(tensors)
    for k in range(steps):
        grads = [rng.normal(size=value.shape).astype(np.float32) for value in values]
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = _tensor(grad).detach()
        step()
        ours.update(["a/weight", "b/bias"], values, grads)
        for value, tensor in zip(values, tensors, strict=True):
            there = tensor.detach().numpy()
            np.testing.assert_allclose(value, there, 2e-4, atol, err_msg=f"step {k}")


Rule = Callable[[list[Any]], Callable[[], None]]
"""Takes live tensors, and gives what makes a step by their gradients."""


def compare_losses(
    ours: Any, theirs: Callable[[Any, Any], Any], x: Any, y: Any, own_y: Any = None,
    total: float = 0.0,
) -> None:  # fmt: skip
    """The mean loss and its gradient; ``theirs`` gives one number for all, or one a sample.

    With ``total`` the gradient of theirs' sum, of which ours is so many times as much.
    """
    tensor = _tensor(x)
    values = theirs(tensor, _tensor(y).detach())
    there = values.sum() if total else values.mean()
    there.backward()
    own = ours.forward(True, x, y if own_y is None else own_y)
    if not total:
        np.testing.assert_allclose(own.mean(), there.detach().numpy(), 2e-4, 1e-6)
    np.testing.assert_allclose(ours.backward(), (total or 1.0) * tensor.grad.numpy(), 2e-3, 1e-6)
