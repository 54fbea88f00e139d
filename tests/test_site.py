"""The documentation's site points at what is there; ``mkdocs build --strict`` makes it."""

import ast
import importlib
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tests.public_api import WITHOUT_A_PAGE, public_modules, public_names, references

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def test_every_page_is_once_in_the_navigation():
    pages = re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text("utf-8"))
    assert len(pages) == len({*pages}) > 20
    assert {*pages} == {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}


def prose(page):
    """The text of a page without its code."""
    return re.sub(r"^```.*?^```$|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.M | re.S)


def anchors(page):
    """The headings of a page as links name them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", h).strip().lower()) for h in headings}


@pytest.mark.parametrize("page", [ROOT / "README.md", *DOCS.glob("**/*.md")], ids=lambda p: p.stem)
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_the_architecture_has_the_rooms_in_their_order():
    page = (DOCS / "architecture.md").read_text("utf-8")
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    contract = re.search(r"^layers = \[\n(.*?)^\]", project, re.M | re.S)[1]
    drawn = re.search(r"^__main__ > .*?(?=^```)", page, re.M | re.S)[0]
    assert [each.strip() for each in drawn.split(">")] == re.findall(r'"(.+?)"', contract)
    tree = re.search(r"^singanet/\n.*?(?=^```)", page, re.M | re.S)[0]
    assert set(re.findall(r"\w+", contract)) <= set(re.findall(r"\w+", tree))


def test_the_face_of_a_large_room_is_its_map():
    seen = 0
    for face in (ROOT / "singanet").glob("*/__init__.py"):
        told = ast.get_docstring(ast.parse(face.read_text("utf-8"))).partition("\n\n")[2]
        files = {path.stem for path in face.parent.iterdir()}
        if len(files) > 14 and face.parent.name != "commands":
            named = set(re.findall(r"`(\w+)`", told))
            assert 1 < told.count("\n") + 1 <= 5, face
            assert len(named) > 4, face
            assert named <= files, (face, named - files)
            seen += 1
    assert seen > 8


def missing_of(text, fewest, *roots):
    """The files that ``text`` names, at least ``fewest``, and that are in none of ``roots``."""
    named = {*re.findall(r"`([\w/]+\.(?:py|md))`", text)}
    assert len(named) > fewest
    return {file for file in named if not any((root / file).is_file() for root in roots)}


def test_each_how_to_is_short_and_the_files_that_pages_name_are_there():
    page = (DOCS / "extending.md").read_text("utf-8") + "\n## "
    how_tos = re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## )", page, re.M | re.S)
    assert len(how_tos) == 8
    assert {name: text.count("\n") for name, text in how_tos if text.count("\n") > 48} == {}
    # The reader's own, and one that is named within its room.
    own = {"layers/affine.py", "checkpoint/npy.py", "training/callbacks/best_epoch.py"}
    assert missing_of(page, 20, ROOT / "singanet", ROOT) == {*own, "binding.py"}
    page = (DOCS / "architecture.md").read_text("utf-8")
    walk = page[page.index("## One batch") : page.index("## Concepts by part")]
    assert missing_of(walk, 10, ROOT / "singanet") == set()


def test_every_reference_names_something():
    for name in references():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


def test_the_public_rooms_have_a_reference():
    """Rooms that a plain import reaches.

    But `saving`, which has no names of its own, `program`, each of whose names has a place, and
    `ops`: kernels come and go.
    """
    tree = ast.parse((ROOT / "singanet" / "__init__.py").read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    rooms = {each.name for node in imports if node.module == "singanet" for each in node.names}
    assert len(rooms) > 20
    paged = {".".join(name.split(".")[:2]) for name in references()}
    assert {f"singanet.{room}" for room in rooms - {"saving", "program", "ops"}} <= paged


def test_every_public_name_stands_on_a_page_of_the_reference():
    shown = []
    for name in {*references()} - {*public_modules()}:
        module, _, public = name.rpartition(".")
        shown.append(getattr(importlib.import_module(module), public))
    for name, value in public_names().items():
        module, _, public = name.rpartition(".")
        room = ROOT.joinpath(*module.split("."))
        is_hidden = module in WITHOUT_A_PAGE or (room / f"{public}.py").is_file()
        if isinstance(value, types.ModuleType) or not is_hidden:
            shown.append(value)
    there = {id(each) for each in shown}
    missing = [name for name, value in public_names().items() if id(value) not in there]
    assert missing == [], "add them to a page of docs/api"


@pytest.mark.slow
def test_the_site_is_built_and_has_every_public_name(tmp_path):
    pytest.importorskip("mkdocstrings_handlers.python")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True
    )  # fmt: skip
    assert built.returncode == 0, built.stderr[-3000:]
    pages = [page.read_text("utf-8") for page in (tmp_path / "api").rglob("*.html")]
    shown = {name for page in pages for name in re.findall(r'id="([\w.]+)"', page)}
    # A name of the same thing on another page will do; messages are written down in their schema.
    places = {id(value): {f"{value.__module__}.{value.__qualname__}"}
              for value in public_names().values() if hasattr(value, "__qualname__")}  # fmt: skip
    for name, value in public_names().items():
        places.setdefault(id(value), set()).add(name)
    named = {
        name: value
        for name, value in public_names().items()
        if not isinstance(value, types.ModuleType)
        and not getattr(value, "__module__", "").endswith("_pb2")
        and not name.startswith("singanet.k")
    }
    assert [name for name, value in named.items() if not places[id(value)] & shown] == []
