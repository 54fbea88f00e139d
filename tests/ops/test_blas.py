"""NumPy's BLAS computes in one thread beside several of ours: oneDNN's, or those of lanes.

NumPy's own kernels say so when they are chosen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from singanet.ops import threads
from singanet.ops.onednn.library import find_library

COUNTS = """
import ctypes, json, sys
from pathlib import Path
import numpy as np
from singanet.ops import cpu_ops
from singanet.ops.onednn import OneDnnOps, set_threads
def counts():
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    found = [ctypes.CDLL(str(path)) for path in folder.glob("libscipy_openblas64_*")]
    return [library.scipy_openblas_get_num_threads64_() for library in found]
kind, threads, path, seen = *sys.argv[1:], [counts()]
if threads != "all":
    set_threads(int(threads))
if kind == "softmax":
    OneDnnOps(path, True).softmax(np.ones((32, 256), np.float32))
elif kind == "its own large product":
    OneDnnOps(path, True).matmul(np.ones((1, 1024), np.float32), np.ones((1024, 512), np.float32))
else:
    cpu_ops()
seen.append(counts())
print(json.dumps(seen))
"""

KINDS = ["softmax", "its own large product", "numpy"]

pytestmark = pytest.mark.skipif(threads.cores() < 2, reason="one core")


def counts(kind, count="all", **variables):
    path = find_library()
    if path is None and kind in KINDS[:2]:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-c", COUNTS, kind, count, path or ""],
        env={**kept, "SINGANET_OPS": "numpy", "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    before, after = json.loads(run.stdout)
    if not before:
        pytest.skip("NumPy's BLAS here is not that of its wheels")
    return before, after


@pytest.mark.parametrize("kind", KINDS)
def test_one_thread_from_the_first_kernel_on(kind):
    before, after = counts(kind)
    assert max(before) > 1
    assert after == [1] * len(before)


@pytest.mark.parametrize("kind", ["softmax", "numpy"])
def test_beside_a_single_thread_it_keeps_its_own(kind):
    before, after = counts(kind, "1")
    assert max(before) > 1
    assert after == before


@pytest.mark.parametrize("kind", ["softmax", "numpy"])
def test_what_the_user_chose_stands(kind):
    before, after = counts(kind, OPENBLAS_NUM_THREADS=str(threads.cores()))
    assert before == [threads.cores()] * len(before)
    assert after == before
