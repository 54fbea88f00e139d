"""Run the tests of what a change touches: ``python -m tests.changed [COMMIT] [-- OPTIONS]``.

The rooms of the files that differ from COMMIT (the last one, by default), the tests of the
modules that import a changed module directly, and changed tests. OPTIONS go to pytest.
"""

import subprocess
import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]


def changed_files(commit: str) -> list[Path]:
    """The files that differ from ``commit``, new ones included, by their path in the checkout."""
    told = [["git", "diff", "--name-only", commit], ["git", "ls-files", "-o", "--exclude-standard"]]
    names = [subprocess.run(args, cwd=ROOT, check=True, capture_output=True, text=True).stdout
             for args in told]  # fmt: skip
    return [Path(name) for name in "".join(names).splitlines()]


def chosen_for(files: list[Path]) -> list[str]:
    """The files and folders of tests for changed ``files``, without those inside of others."""
    graph = grimp.build_graph("singanet", cache_dir=None)
    found: set[Path] = set()
    for file in files:
        if file.parts[0] == "tests" and file.name.startswith("test_"):
            found.add(file)
        if file.parts[0] != "singanet" or file.suffix != ".py":
            continue
        found.add(_mirrored(Path(*file.parts[1:])))
        module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        if module in graph.modules:
            for other in graph.find_modules_that_directly_import(module):
                path = Path("tests", *other.split(".")[1:])
                found.add(path.with_name(f"test_{path.name}.py"))
    found = {path for path in found if (ROOT / path).exists()}
    return sorted(str(path) for path in found if not found & set(path.parents))


def _mirrored(file: Path) -> Path:
    """The tests of a module: its room's folder, or the file of tests with its name."""
    room = Path("tests", file.parts[0] if len(file.parts) > 1 else file.stem)
    return room if (ROOT / room).is_dir() else Path("tests", f"test_{file.stem}.py")


def main(args: list[str]) -> int:
    """Run pytest on the tests of the change, and return its status."""
    at = args.index("--") if "--" in args else len(args)
    chosen = chosen_for(changed_files(*(args[:at] or ["HEAD"])))
    if not chosen:
        sys.stdout.write("no tests belong to what has changed\n")
        return 0
    command = ["pytest", "-n", "2", *args[at + 1 :], *chosen]
    sys.stderr.write(" ".join(command) + "\n")
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
