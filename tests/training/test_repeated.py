"""Building and training again and again does not grow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import singanet

ROOT = Path(singanet.__file__).resolve().parents[1]
PROGRAM = """
import ctypes
import json
import numpy as np
import singanet
from singanet.layers import Dense, Activation
from singanet.training.callbacks import EarlyStopping, EMA, LayerStatistics
from singanet.training.resident import resident_bytes

rng = np.random.default_rng(0)
x, y = rng.standard_normal((512, 256)).astype(np.float32), rng.integers(0, 10, 512)

def once():
    net = singanet.FeedForwardNet(singanet.loss.SoftmaxCrossEntropy(), singanet.metric.Accuracy())
    net.add(Dense("fc1", 1024, input_sample_shape=(256,)))
    net.add(Activation("relu"))
    net.add(Dense("fc2", 10))
    net.compile(singanet.optimizer.Adam(lr=0.001))
    # The first looks at every layer, so that steps run by the layers; else they are replayed.
    callbacks = [LayerStatistics(), EarlyStopping(), EMA()][WATCHED:]
    net.fit(x, y, epochs=2, validation_split=0.25, callbacks=callbacks, verbose=False)

# The C library keeps some of what is freed, to hand it out again; that comes once and is no growth.
trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda keep: None)
seen = []
for k in range(23):
    once()
    trim(0)
    seen.append(resident_bytes())
print(json.dumps(seen))
"""


@pytest.mark.parametrize("first",
    [pytest.param(0, marks=pytest.mark.slow), 1], ids=["by the layers", "replayed"])  # fmt: skip
@pytest.mark.full
def test_twenty_builds_and_fits_keep_resident_memory_flat(first):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("WATCHED", str(first))],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=True, text=True
    )  # fmt: skip
    seen = json.loads(run.stdout)
    # Three to warm up; a net with Adam's state and its copies is 6 MB, so that one kept shows.
    assert max(seen[3:]) - seen[2] < 5 * 2**20
