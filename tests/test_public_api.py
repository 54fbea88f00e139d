"""No public name, parameter or default changes unless somebody has meant it."""

from __future__ import annotations

import difflib
import importlib
import re

import pytest

import singanet
from tests.described_arguments import undescribed
from tests.public_api import FILE, ROOT, api, public_modules

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


def test_docstrings_describe_every_argument():
    pytest.importorskip("sklearn")
    assert dict(undescribed()) == {}


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


@pytest.mark.parametrize("name", public_modules())
def test_dir_of_a_module_lists_its_public_names(name):
    if name == "singanet.sklearn":
        pytest.importorskip("sklearn")
    module = importlib.import_module(name)
    listed = dir(module)
    assert listed == sorted(getattr(module, "__all__", listed))
    assert not [each for each in listed if each[0] == "_"]
    assert not {"annotations", "Any", "TYPE_CHECKING", "names_of"} & {*listed}


def test_dir_of_a_net_and_the_reference_have_the_same_names():
    class Own(singanet.FeedForwardNet):
        def mine(self):
            pass

    net = Own()
    net.note = 1
    shown = {"fit", "summary", "mine", "note", "loss", "layers", "rng", "name"}
    assert shown <= {*dir(net)}
    assert not [name for name in dir(net) if name[0] == "_"]
    page = (ROOT / "docs" / "api" / "net.md").read_text("utf-8")
    members = re.search(r"FeedForwardNet\n.*?members: \[(.*?)\]", page, re.S)[1]
    assert {*re.findall(r"\w+", members)} == {*dir(singanet.FeedForwardNet())}
