"""NumPy's BLAS computes in one thread beside oneDNN's several."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from singanet.ops import threads

pytest.importorskip("threadpoolctl")

COUNTS = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_info
from singanet.ops.onednn import OneDnnOps, set_threads
def counts():
    return [p["num_threads"] for p in threadpool_info()
            if p["user_api"] == "blas" and p.get("threading_layer") == "pthreads"]
ops, seen = OneDnnOps(sys.argv[1], True), [counts()]
if sys.argv[2] == "single":
    set_threads(1)
if sys.argv[3] == "softmax":
    ops.softmax(np.ones((32, 256), np.float32))
else:
    ops.matmul(np.ones((1, 1024), np.float32), np.ones((1024, 512), np.float32))
seen.append(counts())
print(json.dumps(seen))
"""


def counts(library_path, how="several", kernel="softmax", **variables):
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-c", COUNTS, library_path, how, kernel],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    before, after = json.loads(run.stdout)
    if not before:
        pytest.skip("NumPy's BLAS here has no threads of its own")
    return before, after


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
@pytest.mark.parametrize("kernel", ["softmax", "its own large product"])
def test_one_thread_from_the_first_kernel_of_onednn_on(library_path, kernel):
    before, after = counts(library_path, kernel=kernel)
    assert max(before) > 1
    assert after == [1] * len(before)


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_beside_a_single_thread_it_keeps_its_own(library_path):
    before, after = counts(library_path, "single")
    assert max(before) > 1
    assert after == before


def test_what_the_user_chose_stands(library_path):
    before, after = counts(library_path, OPENBLAS_NUM_THREADS=str(threads.cores()))
    assert before == [threads.cores()] * len(before)
    assert after == before
