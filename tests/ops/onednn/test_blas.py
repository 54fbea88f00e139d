"""NumPy's BLAS computes in one thread beside oneDNN's several."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from singanet.ops.onednn import threads

pytest.importorskip("threadpoolctl")

COUNTS = """
import json, sys
import numpy as np
from threadpoolctl import threadpool_info
from singanet.ops.onednn import OneDnnOps
def counts():
    return [p["num_threads"] for p in threadpool_info()
            if p["user_api"] == "blas" and p.get("threading_layer") == "pthreads"]
ops, seen = OneDnnOps(sys.argv[1], True), [counts()]
for rows in (32, 1024):
    x = np.ones((rows, 256), np.float32)
    ops.softmax(x)
    seen.append(counts())
print(json.dumps(seen))
"""


def counts(library_path, **variables):
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    run = subprocess.run(
        [sys.executable, "-c", COUNTS, library_path],
        env={**kept, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        capture_output=True,
        check=True,
        text=True,
        timeout=120,
    )
    before, small, large = json.loads(run.stdout)
    if not before:
        pytest.skip("NumPy's BLAS here has no threads of its own")
    return before, small, large


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_one_thread_from_the_first_kernel_that_is_shared_out(library_path):
    before, _, large = counts(library_path)
    assert max(before) > 1
    assert large == [1] * len(before)


@pytest.mark.skipif(threads.cores() < 2, reason="one core")
def test_small_kernels_and_one_thread_leave_it_alone(library_path):
    before, small, _ = counts(library_path)
    assert small == before
    before, *rest = counts(library_path, OPENBLAS_NUM_THREADS="", OMP_NUM_THREADS="1")
    assert rest == [before, before]


def test_what_the_user_chose_stands(library_path):
    before, *rest = counts(library_path, OPENBLAS_NUM_THREADS=str(threads.cores()))
    assert before == [threads.cores()] * len(before)
    assert rest == [before, before]
