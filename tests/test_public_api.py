"""No public name, parameter or default changes unless somebody has meant it."""

from __future__ import annotations

import difflib

import pytest

from tests.public_api import FILE, api, public_modules

ACCEPT = """
the public names, parameters or defaults are others than {file} says:

{changes}

A line that is gone or changed breaks somebody's code: docs/stability.md says what may.
If it is meant, or only lines have come, write the file anew, and tell it in CHANGELOG.md:

    python -m tests.public_api
"""


def test_what_users_call_is_as_it_was():
    pytest.importorskip("sklearn")  # some of the classes derive from its own
    before, now = FILE.read_text("utf-8").splitlines(), api().splitlines()
    changes = [
        line
        for line in difflib.unified_diff(before, now, lineterm="", n=0)
        if not line.startswith(("---", "+++", "@@"))
    ]
    told = ACCEPT.format(file=f"tests/{FILE.name}", changes="\n".join(changes))
    assert not changes, told


def test_a_line_tells_all_that_a_caller_depends_on():
    lines = api().splitlines()
    assert "singanet.FeedForwardNet.step(x, y, optimizer, on_layer=None" in "\n".join(lines)
    assert (
        "singanet.layers.Dense(name=None, units=<Required>, *, activation=None, use_bias=True"
        in "\n".join(lines)
    )
    assert "singanet.errors.ShapeError(" in "\n".join(lines)
    assert len({*lines}) == len(lines)
    assert not [line for line in lines if " at 0x" in line]


def test_all_rooms_that_a_plain_import_reaches_are_described():
    assert {"singanet", "singanet.layers", "singanet.training.callbacks"} <= {*public_modules()}
