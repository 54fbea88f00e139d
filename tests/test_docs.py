"""Every Python block of the README and the guides runs, in order, one namespace a file."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__page__"}
    for block in BLOCK.finditer(page.read_text("utf-8")):
        # Blank lines in front, so that a traceback shows the line of the page.
        lines_before = page.read_text("utf-8")[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block.group(1), str(page), "exec"), namespace)


@pytest.mark.full
def test_the_readme_s_code_is_well_typed(tmp_path):
    """As a user's own file with ``mypy --strict``: the loss might have been None."""
    page = tmp_path / "page.py"
    page.write_text("\n".join(BLOCK.findall(PAGES[0].read_text("utf-8"))), "utf-8")
    options = ["--strict", "--config-file=", "--follow-imports=silent"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(tmp_path / "cache"), str(page)],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readme_shows_two_commands_and_the_streaming_loop():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 120
    commands = re.findall(r"^```sh\n(.*?)\n```$", text, re.M | re.S)
    assert len(commands) >= 2
    assert all("\n" not in command for command in commands[:2])
    assert "singanet train lenet --data digits" in commands[0]
    assert "pytest" in commands[1]
    assert "net.backward(" in text
