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


def navigation():
    return re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text("utf-8"))


def test_every_page_of_the_navigation_exists_once():
    pages = navigation()
    assert len(pages) > 20
    assert [page for page in pages if not (DOCS / page).is_file()] == []
    assert len(set(pages)) == len(pages)


def test_every_page_is_in_the_navigation():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}
    assert pages == set(navigation())


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
    contract = re.search(
        r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text("utf-8"), re.M | re.S
    )
    levels = re.findall(r'"(.+?)"', contract[1])
    drawn = re.search(r"^__main__ > .*?(?=^```)", page, re.M | re.S)[0]
    assert [level.strip() for level in drawn.split(">")] == levels
    tree = re.search(r"^singanet/\n.*?(?=^```)", page, re.M | re.S)[0]
    assert set(re.findall(r"\w+", contract[1])) <= set(re.findall(r"\w+", tree))


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


def test_each_how_to_is_short():
    page = (DOCS / "extending.md").read_text("utf-8") + "\n## "
    how_tos = re.findall(r"^## (Add [^\n]+)\n(.*?)(?=^## )", page, re.M | re.S)
    assert len(how_tos) == 8
    assert {name: text.count("\n") for name, text in how_tos if text.count("\n") > 48} == {}


def test_the_files_that_how_tos_name_are_there():
    page = (DOCS / "extending.md").read_text("utf-8")
    named = {*re.findall(r"`([\w/]+/[\w]+\.(?:py|md))`", page)}
    missing = {file for file in named if not (ROOT / "singanet" / file).is_file()}
    missing = {file for file in missing if not (ROOT / file).is_file()}
    own = {"layers/affine.py", "checkpoint/npy.py"}
    assert len(named) > 20
    assert missing == {*own, "training/callbacks/best_epoch.py"}


def test_the_files_that_a_batch_goes_through_are_there():
    page = (DOCS / "architecture.md").read_text("utf-8")
    walk = page[page.index("## One batch") : page.index("## Concepts by part")]
    files = re.findall(r"`([\w/]+\.py)`", walk)
    assert len(files) > 10
    assert [file for file in files if not (ROOT / "singanet" / file).is_file()] == []


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
    shown, missing = [], []
    for name in references():
        module, _, public = name.rpartition(".")
        if name not in public_modules():
            shown.append(getattr(importlib.import_module(module), public))
    for name, value in public_names().items():
        module, _, public = name.rpartition(".")
        room = ROOT.joinpath(*module.split("."))
        is_hidden = module in WITHOUT_A_PAGE or (room / f"{public}.py").is_file()
        if isinstance(value, types.ModuleType) or not is_hidden:
            shown.append(value)
    for name, value in public_names().items():
        if not any(value is each for each in shown):
            missing.append(name)
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
