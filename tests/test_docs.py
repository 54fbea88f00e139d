"""Every Python block of the README and the guides runs, in order, one namespace a file."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]
DRAWN = ("looking.md", "programs.md", "recipes.md", "training.md")
NEEDED = {
    "scikit-learn.md": ["sklearn"],
    "tables.md": ["pandas"],
    **{page: ["matplotlib", "jinja2"] for page in DRAWN},
}
"""What pages are about that is no dependency."""
LONG = ("keras-examples.md", "memory.md")
"""Pages that take as long as all others together: CI runs them."""
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


OUTPUT = re.compile(r"\n*```text title=\"Output\"\n(.*?)^```$", re.M | re.S)
"""What a block prints, directly after it."""


@pytest.mark.few(45)
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.full) if page.name in LONG else page for page in PAGES],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page_run_and_print_what_it_shows(page, tmp_path, monkeypatch, capsys):
    for package in NEEDED.get(page.name, ()):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    for printed, shown in outputs_of(page, capsys):
        if shown is not None:
            (words, numbers), (known, expected) = _parts(printed), _parts(shown)
            assert words == known
            assert numbers == pytest.approx(expected, rel=0.1, abs=0.02)


def test_the_nets_of_the_readme_learn():
    shown = OUTPUT.findall(README.read_text("utf-8"))
    assert len(shown) == 2
    for accuracy in re.findall(r"accuracy=([\d.]+)", "".join(shown)):
        assert float(accuracy) > 0.9


def outputs_of(page, capsys):
    """Run ``page``'s blocks; yield what each prints, and the output that follows it or None."""
    namespace = {"__name__": "__page__"}
    text = page.read_text("utf-8")
    for block in BLOCK.finditer(text):
        # Blank lines in front, so that a traceback shows the line of the page.
        lines_before = text[: block.start(1)].count("\n")
        exec(compile("\n" * lines_before + block.group(1), str(page), "exec"), namespace)
        shown = OUTPUT.match(text, block.end())
        yield capsys.readouterr().out, shown and shown[1]


def _parts(printed):
    """Words and numbers apart: other kernels may print other last digits."""
    number = r"\d[\d,]*(?:\.\d*)?(?:e[-+]?\d+)?"
    words = re.sub(number, "0", printed).split()
    return words, [float(part.replace(",", "")) for part in re.findall(number, printed)]


@pytest.mark.slow
def test_the_code_of_all_pages_is_well_typed(tmp_path):
    files = []
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [""] * text.count("\n")
        for block in BLOCK.finditer(text):
            first, code = text[: block.start(1)].count("\n"), block.group(1).splitlines()
            lines[first : first + len(code)] = code
        stem = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_")
        files.append(tmp_path / f"{stem}.py")
        files[-1].write_text("\n".join(lines), "utf-8")
    wrong = tmp_path / "wrong.py"
    call = "singanet.FeedForwardNet().fit([], [], epoch=3)"
    wrong.write_text(f"import singanet\n\n{call}  # type: ignore[call-arg]\n", "utf-8")
    # SciPy brings no types of its own.
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary"]
    options += ["--disable-error-code=import-untyped", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, [*files, wrong])],
        env={**os.environ, "MYPYPATH": str(ROOT)}, cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.stdout + done.stderr == ""
    assert not re.search(
        r"type: ignore|\bcast\(", "".join(file.read_text("utf-8") for file in files)
    )


def test_the_readme_shows_two_commands_and_the_streaming_loop():
    text = (ROOT / "README.md").read_text("utf-8")
    assert text.count("\n") <= 117
    commands = re.findall(r"^```sh\n(.*?)\n```$", text, re.M | re.S)
    assert len(commands) >= 2
    assert all("\n" not in command for command in commands[:2])
    assert "singanet train lenet --data digits" in commands[0]
    assert "pytest" in commands[1]
    assert "net.backward(" in text
