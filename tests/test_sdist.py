"""The source distribution: what is in it, so that its tests run where it is unpacked."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("singanet", "tests", "docs", "benchmarks", "examples", ".github")
FILES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CITATION.cff", "LICENSE"),
    *("mkdocs.yml", "pyproject.toml", "setup.py"),
)
BUILD = "from setuptools import build_meta; build_meta.build_sdist('dist')"


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """The source distribution of a copy of this tree, made without the network."""
    pytest.importorskip("setuptools", minversion="77")
    source = tmp_path_factory.mktemp("source")
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=skipped)
    for name in (*FILES, "MANIFEST.in", ".ci/run"):
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, check=True)
    (found,) = (source / "dist").glob("*.tar.gz")
    return found


@pytest.mark.slow
def test_it_holds_the_package_and_all_that_its_tests_need(archive):
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames() if "/" in name}
    there = {
        str(path.relative_to(ROOT))
        for name in FOLDERS
        for path in (ROOT / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    assert {*there, *FILES} - packed == set()
    # Beside these: its own metadata.
    folders = {name.split("/")[0] for name in packed}
    metadata = {"PKG-INFO", "setup.cfg", "singanet.egg-info", "MANIFEST.in", ".ci"}
    assert folders <= {*FOLDERS, *FILES, *metadata}


@pytest.mark.slow
def test_its_tests_run_where_it_is_unpacked_and_installed(archive, tmp_path):
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(unpacked)], check=True)
    # A file of its own: `-m pytest` would put the unpacked folder before the installed package.
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, pytest, singanet; assert 'installed' in singanet.__file__; "
        "sys.exit(pytest.main(sys.argv[1:]))"
    )
    tests = ["test_site.py", "test_package.py", "test_net.py", "test_docs.py", "layers/test_lrn.py"]
    done = subprocess.run(
        [
            sys.executable, str(script), "-q", "-p", "no:cacheprovider",
            *(f"tests/{t}" for t in tests)
        ],
        cwd=unpacked,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(unpacked)])},
        capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
