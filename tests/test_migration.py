"""The tables of arguments in the guides from Keras and PyTorch, against the installed ones."""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path

import pytest

import singanet
from singanet import initializer, layers, loss, metric, optimizer
from singanet.optimizer import schedules
from singanet.training import callbacks

os.environ.setdefault("KERAS_BACKEND", "torch")

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "migration"
OURS = [layers, loss, metric, optimizer, schedules, initializer, callbacks, singanet]


class Row:
    """Classes of theirs, ours, and what becomes of each argument, by the columns of a table."""

    def __init__(self, line):
        theirs, ours, same, renamed, otherwise = (cell.strip() for cell in line[1:-1].split("|"))
        self.line = line
        self.theirs, self.ours = names(theirs), names(ours)
        self.same = names(same)
        self.renamed = re.findall(r"`(\w+)` → `(\w+)`", renamed)
        # A reason may quote code; the arguments stand before the colon.
        reasons = [part.partition(":") for part in otherwise.split("; ") if part]
        self.otherwise = [name for before, _, _ in reasons for name in names(before)]
        self.unexplained = [before for before, _, why in reasons if not why.strip()]

    def arguments(self):
        return [*self.same, *(theirs for theirs, _ in self.renamed), *self.otherwise]


def names(cell):
    return re.findall(r"`([A-Za-z_]\w*)", cell)


def tables(page):
    """By heading the rows of the tables of arguments, and the classes that are not here."""
    found, missing, heading = {}, {}, ""
    text = (GUIDES / page).read_text(encoding="utf-8").partition("\n## Each argument\n")[2]
    for line in text.splitlines():
        if line.startswith("### "):
            heading = line[4:].strip("`")
            found[heading], missing[heading] = [], []
        elif line.startswith(("| `", "| all")):
            found[heading].append(Row(line))
        elif line.startswith("Not here"):
            # In brackets, and before the colon, stands what to take instead.
            missing[heading] += names(re.sub(r"\([^)]*\)", "", line.partition(": ")[2]))
    return found, missing


def arguments_of(made):
    """Names of the arguments that ``made`` spells out."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    function = made.__init__ if inspect.isclass(made) else made
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.kind not in kinds and p.name != "self"]


def their_room(page, heading):
    """What stands in that room of theirs, by name."""
    package = pytest.importorskip("keras" if page == "keras.md" else "torch")
    room = package
    for part in heading.split(".")[1:]:
        room = getattr(room, part)
    if heading == "torch.nn.init":
        return {n: f for n, f in vars(room).items() if re.fullmatch(r"[a-z]\w*[a-z]_", n)}
    return {
        name: kind
        for name, kind in ((name, getattr(room, name)) for name in dir(room))
        if inspect.isclass(kind) and not name.startswith("_") and _is_theirs(kind, heading)
    }


def _is_theirs(kind, heading):
    """Whether it is of the room itself; Keras' public names stand elsewhere."""
    lazy = kind.__name__.startswith(("Lazy", "Uninitialized"))
    return kind.__module__.startswith(("keras.", heading)) and not lazy


def signature_of(room, kind):
    """The arguments of ``kind``; PyTorch's recurrent modules hand theirs on to their base."""
    if kind.__name__ in ("RNN", "LSTM", "GRU") and "RNNBase" in room:
        return [name for name in arguments_of(room["RNNBase"]) if name != "mode"]
    return arguments_of(kind)


def our_arguments(ours):
    found = [getattr(room, name) for name in ours for room in OURS if hasattr(room, name)]
    assert found, f"none of {ours} is in singanet"
    return {argument for made in found for argument in arguments_of(made)}


PLACES = [(page, heading) for page in ("keras.md", "pytorch.md") for heading in tables(page)[0]]


def test_each_room_has_its_table():
    assert len(PLACES) == 9 + 4


@pytest.mark.parametrize(("page", "heading"), PLACES)
def test_each_argument_of_theirs_has_its_place(page, heading):
    found, missing = tables(page)
    room = their_room(page, heading)
    common = [row for row in found[heading] if not row.theirs]
    shared = [name for row in common for name in row.arguments()]
    told = set()
    wrong = []
    for row in (row for row in found[heading] if row.theirs):
        own = row.arguments()
        kinds = [room[name] for name in row.theirs]
        told |= set(kinds)
        wanted = [name for kind in kinds for name in signature_of(room, kind)]
        wrong += [f"{row.theirs}: {n} without a place" for n in wanted if n not in own + shared]
        wrong += [f"{row.theirs}: no argument {n}" for n in own if n not in wanted]
        wrong += [f"{row.theirs}: {n} twice" for n in own if own.count(n) > 1]
        wrong += [f"{row.theirs}: no reason for {text}" for text in row.unexplained]
        theirs_here = our_arguments(row.ours)
        targets = [*row.same, *(ours for _, ours in row.renamed)]
        for each in common:
            targets += [n for n in each.same if n in wanted and n not in own]
            targets += [ours for n, ours in each.renamed if n in wanted and n not in own]
        wrong += [f"{row.ours} has no {n}" for n in targets if n not in theirs_here]
    elsewhere = {room[name] for name in missing[heading]}
    wrong += [f"{kind.__name__} is told and missing" for kind in told & elsewhere]
    left = {*room.values()} - told - elsewhere
    wrong += sorted(f"{kind.__name__} is not told of: {signature_of(room, kind)}" for kind in left)
    assert wrong == [], f"write the rows of docs/migration/{page}, {heading}, by hand"
