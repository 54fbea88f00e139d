"""``singanet tune``: what it prints, keeps and refuses."""

import math
import re

import pytest

from singanet.__main__ import main
from singanet.device import describe
from singanet.ops import cpu_ops
from singanet.ops.costs import Costs
from singanet.ops.onednn import OneDnnOps
from singanet.program import tuning as timing


@pytest.fixture
def path(tmp_path, monkeypatch):
    ops = cpu_ops()
    if not isinstance(ops, OneDnnOps) or ops.runtime() is None:
        pytest.skip("no oneDNN library here: pip install onednn-cpu-gomp")
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    costs = Costs()
    for name in ("chooser", "costs"):  # one object, which chooses and which devices describes
        monkeypatch.setattr(ops, name, costs)
    return named


def test_measured_once_and_told_by_devices(path, capsys, monkeypatch):
    monkeypatch.setattr(timing, "_WORTH", math.inf)  # else what is measured is the machine's matter
    assert "none measured: singanet tune" in describe()
    assert main(["tune", "lenet", "--input-shape", "1,8,8", "--batch-size", "2"]) == 0
    out = capsys.readouterr().out
    count = int(re.search(r"(\d+) convolution kernels measured", out)[1])
    assert count  # how many have a second route is a matter of the processor and its kernels
    assert "0 known before" in out
    assert path.exists()
    threads = cpu_ops().runtime().threads
    assert f"{count} convolutions as measured with {threads} threads" in describe()
    main(["tune", "lenet", "--input-shape", "1,8,8", "--batch-size", "2"])
    assert "0 convolution kernels measured" in capsys.readouterr().out
    main(["tune", "lenet", "--input-shape", "1,8,8", "--batch-size", "2", "--again"])
    assert f"{count} convolution kernels measured" in capsys.readouterr().out


def test_a_batch_of_none_is_refused(path, refused):
    assert "batch_size: expected an int" in refused("tune", "lenet", "--batch-size", "0")


def test_switched_off_is_told(path, refused, monkeypatch):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert "SINGANET_ROUTES=off" in refused("tune", "lenet", "--batch-size", "2")
