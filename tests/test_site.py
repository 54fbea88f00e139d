"""The documentation's site points at what is there; ``mkdocs build --strict`` makes it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import singanet

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def navigation():
    return re.findall(r"([\w/-]+\.md)", (ROOT / "mkdocs.yml").read_text())


def references():
    pages = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    return re.findall(r"^::: (\S+)$", pages, re.M)


def test_every_page_of_the_navigation_exists_once():
    pages = navigation()
    assert len(pages) > 20
    assert [page for page in pages if not (DOCS / page).is_file()] == []
    assert len(set(pages)) == len(pages)


def test_every_reference_names_something():
    for name in references():
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, attribute = name.rpartition(".")
            assert hasattr(importlib.import_module(module), attribute), name


def test_the_public_rooms_have_a_reference():
    rooms = {f"singanet.{name}" for name in singanet.__all__ if name.islower()}
    rooms -= {f"singanet.{name}" for name in ("load_model", "ops", "register", "set_seed")}
    assert rooms <= set(references())
