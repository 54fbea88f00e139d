"""Where faster kernels could be installed, that is said once."""

import numpy as np
import pytest

from singanet import FeedForwardNet, device, models
from singanet.layers import Conv2D, Dense, Flatten, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import backends, selection
from singanet.ops.llvm import LlvmOps
from singanet.ops.numpy import numpy_ops
from singanet.ops.onednn import library
from singanet.optimizer import SGD
from singanet.training import display as faster

SAID = "pip install onednn-cpu-gomp"


@pytest.fixture(autouse=True)
def without(monkeypatch):
    """A Linux machine without the library, on which nobody has said what kernels to take."""
    monkeypatch.delenv("SINGANET_OPS", raising=False)
    monkeypatch.setattr(selection, "_chosen", numpy_ops)
    # The device that there is has the kernels that were chosen before.
    made = device.Device("cpu", numpy_ops)
    monkeypatch.setattr(device, "cpu", lambda: made)
    for module in (library, faster):
        monkeypatch.setattr(module, "find_library", lambda: None)
        monkeypatch.setattr(module, "has_wheel", lambda: True)
    monkeypatch.setattr(faster, "_advised", False)


def net_of(channels=64, size=16):
    """4 · 9 · channels² · size² multiply-adds, half of them or more in the second convolution."""
    x = image = Input("image", (channels, size, size))
    for k in range(2):
        x = Conv2D(f"conv{k}", channels, 3)(x)
    net = FeedForwardNet(inputs=image, outputs=Dense("fc", 2)(Flatten("flat")(x)), seed=0)
    net.compile(SGD(lr=0.01), SoftmaxCrossEntropy(), metrics=[])
    return net


def fit(net, **options):
    net.fit(np.zeros((2, 16, 16, 16), np.float32), np.array([0, 1]), batch_size=2, **options)


def test_a_net_of_convolutions_says_it_once(capsys):
    for _ in range(2):
        fit(net_of(16))
    told = capsys.readouterr().err
    assert told.count(SAID) == 1
    assert "1.2 to 1.8 times as fast" in told


@pytest.mark.parametrize("size", [3, 4])
def test_it_is_said_from_a_million_multiply_adds_on(size):
    # Two of 59² channels · 9 · 16 places are 1,002,528; of 9 places 563,922.
    assert bool(faster.advice(net_of(59, size))) is (size == 4)


def test_who_hides_the_progress_is_told_nothing(capsys):
    fit(net_of(16), verbose=False)
    assert SAID not in capsys.readouterr().err


@pytest.mark.parametrize("why", ["there", "no wheel", "by name", "LLVM", "dense"])
def test_nothing_is_said_where_nothing_is_to_be_gained(why, monkeypatch):
    net = net_of()
    assert SAID in faster.advice(net)
    if why == "there":
        monkeypatch.setattr(faster, "find_library", lambda: "/usr/lib/libdnnl.so.3")
    elif why == "no wheel":
        monkeypatch.setattr(faster, "has_wheel", lambda: False)
    elif why == "by name":
        monkeypatch.setenv("SINGANET_OPS", "numpy")
    elif why == "LLVM":
        net.to_device(device.Device("cpu", LlvmOps()))
    else:
        net = models.build("mlp")
    assert faster.advice(net) == ""


def test_devices_tell_what_it_would_bring(monkeypatch):
    (missing,) = [each for each in backends() if each.name == "onednn"]
    assert not missing.available
    assert SAID in missing.detail
    assert library.GAIN in missing.detail
    assert library.GAIN in device.describe()
    monkeypatch.setattr(library, "has_wheel", lambda: False)
    assert library.GAIN not in device.describe()
