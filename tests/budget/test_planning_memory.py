"""What planning itself takes, in a process of its own: within the budget, and gone afterwards."""

import subprocess
import sys

import pytest

from singanet.base.heap import private_bytes

CODE = """
import gc
from pathlib import Path
from singanet.errors import ArgumentError
from singanet.models import build
from singanet.optimizer import Adam
from singanet.base.heap import private_bytes
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import function_of

def resident(name):
    # What getrusage tells may be the most of the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


build("mlp", seed=0).plan(8, Adam(), "100MB")  # modules, caches of kernels
if has_compiler():
    function_of("calls")  # pages of LLVM's file, which no plan counts
net, adam = build({name!r}, seed=0), Adam()
gc.collect()
before = private_bytes()
held = resident("VmRSS")
try:
    net.plan({batch}, adam, {budget})
except ArgumentError as error:
    assert "at least" in str(error)
gc.collect()
print(resident("VmHWM") - held, private_bytes() - before)
"""


@pytest.mark.parametrize(
    ("name", "batch", "budget", "kept"),
    [
        # 67 MB, when the kernels' notes were looked at on a quarter of the steps.
        ("char_rnn", 32, 40_000_000, 12_000_000),
        # 158 MB, when every plan that was tried stayed.
        pytest.param("googlenet", 4, 150_000_000, 60_000_000, marks=pytest.mark.slow),
    ],
)
def test_planning_stays_within_the_budget(name, batch, budget, kept):
    if private_bytes() is None:
        pytest.skip("the system does not tell what a process holds")
    code = CODE.format(name=name, batch=batch, budget=budget)
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    peak, stays = map(int, made.stdout.split())
    assert peak <= budget
    assert stays <= kept
