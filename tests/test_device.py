"""Devices."""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from singanet import FeedForwardNet, device
from singanet.errors import BackendError
from singanet.layers import Dense
from singanet.ops import ops_for


def test_the_cpu_is_the_default_and_copies_are_the_same_place():
    assert device.get_default_device() is device.cpu()
    place, array = device.cpu(), np.ones(3)
    assert place.put(array) is array
    with place.scope():
        assert place.ops.xp is np
    assert copy.deepcopy(place) is place
    assert pickle.loads(pickle.dumps(place)) is place


def test_a_net_moves_to_a_device_and_computes_there(xp):
    places = {"numpy": device.cpu, "cupy": device.cuda}
    like = device.Device("device_like", ops_for(xp.zeros(1)))
    where = places.get(xp.__name__, lambda: like)()
    net = FeedForwardNet(seed=0)
    net.add(Dense("fc", 3, input_sample_shape=(4,)))
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    expected = net.forward(False, x)
    net.to_device(where)
    y = net.forward(True, x)
    assert isinstance(y, xp.ndarray)
    (item,) = net.backward(np.ones((2, 3), np.float32))
    assert all(isinstance(array, xp.ndarray) for array in item.values + item.grads)
    net.to_device(device.cpu())
    np.testing.assert_allclose(net.forward(False, x), expected, rtol=1e-5)
    assert isinstance(net.param_values()[0], np.ndarray)


def test_the_table_and_an_error_tell_what_is_missing(monkeypatch):
    lines = {line.split()[1]: line for line in device.describe().splitlines()}
    assert list(lines) == ["numpy", "llvm", "onednn", "cupy"]
    for name in device.cpu().ops.remarks():
        assert "in use" in lines[name]
    assert np.__version__ in lines["numpy"]
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "missing" in device.describe().splitlines()[-1]
    with pytest.raises(BackendError, match=r"the package cupy.*pip install cupy-cuda13x"):
        device.cuda(0)


def test_kernels_asked_for_by_a_wrong_name_are_refused_when_a_net_is_made():
    code = "import singanet\ntry: singanet.FeedForwardNet()\nexcept LookupError as e: print(e)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SINGANET_OPS": "mkl"},
        capture_output=True, check=True, text=True
    )  # fmt: skip
    assert "SINGANET_OPS: expected 'numpy', 'llvm', 'onednn'; received 'mkl'" in run.stdout
