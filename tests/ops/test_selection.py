"""The choice of kernels for NumPy arrays: by name, by default, and without a sound library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from singanet.errors import BackendError, UnknownNameError
from singanet.ops import backends, casts, numpy_ops, selection
from singanet.ops.llvm import LlvmOps
from singanet.ops.onednn import OneDnnOps, library
from singanet.ops.window import Window

FOUND = library.find_library
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def nothing_found(monkeypatch):
    monkeypatch.delenv("SINGANET_OPS", raising=False)
    monkeypatch.delenv("SINGANET_ONEDNN", raising=False)
    monkeypatch.setattr(library, "find_library", lambda: None)


@pytest.fixture
def bad_file(tmp_path):
    path = tmp_path / "libdnnl.so.3"
    path.write_bytes(b"not a library")
    return str(path)


def test_numpy_by_name(monkeypatch, bad_file):
    monkeypatch.setenv("SINGANET_OPS", "numpy")
    monkeypatch.setenv("SINGANET_ONEDNN", bad_file)
    assert selection.choose() is numpy_ops


@pytest.mark.parametrize(
    ("compiles", "processor"), [(False, "x86_64"), (True, "arm64"), (True, "x86_64")]
)
def test_where_there_is_no_onednn(nothing_found, monkeypatch, compiles, processor):
    monkeypatch.setattr(selection, "has_compiler", lambda: compiles)
    monkeypatch.setattr(selection.platform, "machine", lambda: processor)
    expected = "llvm" if compiles and processor == "x86_64" else "numpy"
    assert selection.choose().name == expected


@pytest.mark.parametrize(
    ("brings", "other"),
    [
        (True, {}),
        (True, {"python_version": "3.10"}),
        (False, {"python_version": "3.15"}),
        (False, {"platform_machine": "aarch64"}),
        (False, {"sys_platform": "win32", "platform_machine": "AMD64"}),
        (False, {"sys_platform": "darwin"}),
    ],
)
def test_every_installation_compiles_where_there_is_a_wheel(brings, other):
    markers = pytest.importorskip("packaging.requirements")
    usual = {"sys_platform": "linux", "platform_machine": "x86_64", "python_version": "3.14",
             "implementation_name": "cpython"}  # fmt: skip
    lines = re.findall(r'^    "(llvmlite.*)",$', PROJECT.read_text(), re.MULTILINE)
    requirement = markers.Requirement(next(line for line in lines if ";" in line))
    assert requirement.marker.evaluate({**usual, **other}) is brings


@pytest.mark.parametrize("release", ["0.50.0", "0.44.1", ""])
def test_llvm_by_name(nothing_found, monkeypatch, release):
    monkeypatch.setenv("SINGANET_OPS", "llvm")
    monkeypatch.setattr(casts, "compiler_version", lambda: release)
    monkeypatch.setattr(selection, "compiler_version", lambda: release)
    monkeypatch.setattr(selection, "has_compiler", casts.has_compiler.__wrapped__)
    if release >= "0.45":
        assert isinstance(selection.choose(), LlvmOps)
        return
    with pytest.raises(BackendError, match=rf"received {release or 'none'}.*llvmlite>=0.45"):
        selection.choose()
    _, missing, _ = backends()
    assert (missing.name, missing.available) == ("llvm", False)


@pytest.mark.parametrize(
    ("variable", "value", "error", "words"),
    [("SINGANET_OPS", "onednn", BackendError, r"pip install onednn-cpu-gomp"),
     ("SINGANET_OPS", "onednm", UnknownNameError, "did you mean 'onednn'"),
     ("SINGANET_ONEDNN", "bad file", BackendError, "SINGANET_ONEDNN name another"),
     ("found", "bad file", BackendError, "libdnnl.so.3.*a library that can be loaded")],
)  # fmt: skip
def test_a_wrong_name_or_file_is_refused(
    nothing_found, monkeypatch, bad_file, variable, value, error, words
):
    if variable == "found":
        monkeypatch.setattr(library, "find_library", lambda: bad_file)
        variable, value = "SINGANET_OPS", "onednn"
    monkeypatch.setenv(variable, bad_file if value == "bad file" else value)
    if variable == "SINGANET_ONEDNN":
        monkeypatch.setattr(library, "find_library", FOUND)
    with pytest.raises(error, match=words):
        selection.choose()


def test_a_bad_library_that_nobody_named_leaves_numpys_kernels(
    nothing_found, monkeypatch, bad_file
):
    monkeypatch.setattr(library, "find_library", lambda: bad_file)
    kernels = selection.choose()
    assert isinstance(kernels, OneDnnOps)
    rng, window = np.random.default_rng(0), Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    x = rng.random((2, 16, 9, 9), np.float32)
    w = rng.random((16, 16, 3, 3), np.float32)
    for _ in range(2):
        y = kernels.conv2d(x, w, None, window)
        np.testing.assert_array_equal(y, numpy_ops.conv2d(x, w, None, window))
    assert "libdnnl.so.3" in str(kernels.failure)


@pytest.mark.parametrize(
    ("major", "runtime", "message"),
    [
        (2, 2, r"expected oneDNN 3.x; received oneDNN 2\.6\.3"),
        (4, 2, r"received oneDNN 4\.6\.3"),
        (3, 512, r"oneDNN 3\.6\.3 built for the runtime 512"),
        (3, 2, r"oneDNN 3\.6\.3 without one of them"),
    ],
)
def test_libraries_of_another_kind(monkeypatch, major, runtime, message):
    class Version:
        """A function of a library: its result type may be set."""

        def __call__(self):
            found = SimpleNamespace(major=major, minor=6, patch=3, cpu_runtime=runtime)
            return SimpleNamespace(contents=found)

    made = SimpleNamespace(dnnl_version=Version())
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: made)
    library.load_library.cache_clear()
    with pytest.raises(BackendError, match=message):
        library.load_library("/somewhere/libdnnl.so.3")


def test_places_to_look(monkeypatch, tmp_path):
    monkeypatch.delenv("SINGANET_ONEDNN", raising=False)
    monkeypatch.setattr(library, "_SYSTEM_FOLDERS", ())
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr(library.site, "getuserbase", lambda: str(tmp_path / "user"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "shared"))
    assert library.find_library() is None
    for folder in (tmp_path / "shared", tmp_path / "user" / "lib", tmp_path / "prefix" / "lib"):
        folder.mkdir(parents=True)
        (folder / "libdnnl.so.3").touch()
        assert library.find_library() == str(folder / "libdnnl.so.3")
    monkeypatch.setenv("SINGANET_ONEDNN", "/anything")
    assert library.find_library() == "/anything"


def test_backends_report_a_missing_or_bad_library(nothing_found, monkeypatch, bad_file):
    there, _, missing = backends()
    assert (there.name, there.available, there.version) == ("numpy", True, np.__version__)
    assert (missing.name, missing.available) == ("onednn", False)
    assert "pip install" in missing.detail
    monkeypatch.setattr(library, "find_library", lambda: bad_file)
    *_, broken = backends()
    assert not broken.available
    assert bad_file in broken.detail


def test_import_and_building_a_net_load_nothing(monkeypatch):
    code = (
        "import json, singanet; from singanet.layers import Dense; "
        "net = singanet.FeedForwardNet(); net.add(Dense('d', 2, input_sample_shape=(3,))); "
        "net.param_values(); print(json.dumps('libdnnl' in open('/proc/self/maps').read()))"
    )
    hidden = ("SINGANET_OPS", "SINGANET_ONEDNN")
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("no /proc here to see what is loaded")
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(run.stdout) is False
