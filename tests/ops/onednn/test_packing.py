"""What oneDNN's products ask malloc for meanwhile, as the system counts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from singanet.base import heap
from singanet.ops.onednn.builder import Calls, KernelStage
from singanet.ops.onednn.products import product
from singanet.ops.workers import do

RUN = """
import json, resource, sys
import numpy as np
from singanet.base.heap import small_pages, trim
from singanet.ops.onednn import OneDnnOps
from singanet.ops.onednn.products import product
from singanet.ops.workers import do
runtime = OneDnnOps(sys.argv[1], required=True).runtime()
rng, found = np.random.default_rng(0), []
for _ in range(10):
    m, k, n = (int(2 ** rng.uniform(*ends)) for ends in ((8, 10.5), (5, 9), (9, 11.5)))
    turned = rng.integers(0, 2, 2).astype(bool).tolist()
    with small_pages():
        arrays = [np.ones(shape, np.float32) for shape in ((m, n), (m, k), (k, n))]
    plan = runtime.built(product, (m, k, n, *turned, False), 1 << 30)
    runtime.run(plan, arrays)
    # What was freed is given back: it has to be fetched again, page by page.
    trim()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    runtime.run(plan, arrays)
    pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    found.append((plan.recipe.packing, pages * resource.getpagesize(), plan.recipe.wide))
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the pages")
@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_products_take_what_was_told(library_path, limit, threads):
    told = {"ONEDNN_MAX_CPU_ISA": limit, "OMP_NUM_THREADS": threads}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(library_path)],
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout)
    assert all(0.9 * took - 50_000 <= packing <= 1.1 * took + 50_000 for packing, took, _ in found)
    assert any(packing for packing, *_ in found) == (limit == "AVX2")
    assert not (limit == "AVX2" and any(wide for *_, wide in found))


@pytest.mark.parametrize("flat", [False, True])
def test_after_an_interrupt_arrays_are_apart_no_more(ops, flat):
    """Else every large array of the process would be fetched anew from the system."""

    def struck(*_):
        raise KeyboardInterrupt

    plan = ops.runtime().built(product, (8, 8, 8, False, False, False), 0)
    place = plan.place._replace(execute=struck)
    stages = [KernelStage(stage.primitive, {}) for stage in plan.recipe.stages]
    calls = Calls(place, stages, 1, False, {}, packing=heap.LARGE)
    before = len(heap._inside)
    with pytest.raises(KeyboardInterrupt):
        do(calls.after(1) if flat else [calls])
    assert len(heap._inside) == before
