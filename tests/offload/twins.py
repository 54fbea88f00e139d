"""Two equal nets, one of them in a folder: what they do is compared to the bit."""

from typing import Any

import numpy as np

import singanet
from singanet.errors import FileAccessError
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SquaredError
from singanet.offload.generation import PlacedFile
from singanet.optimizer import Adam

WIDTH, DEPTH, KEEP = 160, 4, 700_000
"""A layer has 102 kB, 307 kB with the state of Adam: two are in memory at a time."""


def net_of(seed: int = 3, device: Any = None) -> singanet.FeedForwardNet:
    """Layers of `WIDTH`, with statistics and draws."""
    first = Dense("fc0", WIDTH, input_sample_shape=(WIDTH,))
    rest = [Dense(f"fc{k}", WIDTH) for k in range(1, DEPTH)]
    extra = [BatchNormalization("norm"), Dropout("drop", 0.2), Activation("relu")]
    net = singanet.FeedForwardNet([first, *extra, *rest], loss=SquaredError(), seed=seed)
    if device is not None:
        net.to_device(device)
    return net


def batch(seed: int = 0, samples: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of `net_of`."""
    x, y = np.random.default_rng(seed).standard_normal((2, samples, WIDTH), np.float32)
    return x, y


def arrays_of(net: Any) -> dict[str, np.ndarray]:
    """Copies of all parameters, by name."""
    return {param.name: net.device.ops.host(param.peek()).copy() for param in net.params()}


def expect_same(found: dict, wanted: dict) -> None:
    """Check arrays, from a device or not, for equal names and numbers."""
    assert found.keys() == wanted.keys()
    for name in wanted:
        pair = [
            each.get() if hasattr(each, "get") else each for each in (found[name], wanted[name])
        ]
        np.testing.assert_array_equal(*pair, name)


class Twins:
    """``plain`` and ``net`` made by ``make``, with optimizers ``here`` and ``there``.

    ``net`` is offloaded to ``folder``.
    """

    def __init__(self, make: Any, folder: Any, keep: Any, rule: Any = None, **options: Any) -> None:
        rule = rule or (lambda: Adam(lr=0.01))
        self.plain, self.net, self.here, self.there = make(), make(), rule(), rule()
        self.net.offload(folder, keep, **options)

    def each(self) -> list[tuple[Any, Any]]:
        """Both nets with their optimizers."""
        return [(self.plain, self.here), (self.net, self.there)]

    def step(self, *batch: Any, times: int = 1) -> None:
        """Compare the losses of so many steps."""
        for _ in range(times):
            assert self.net.step(*batch, self.there) == self.plain.step(*batch, self.here)

    def expect_same(self) -> None:
        """Compare all parameters and the optimizers' state."""
        expect_same(arrays_of(self.net), arrays_of(self.plain))
        if hasattr(self.there, "state_dict"):
            expect_same(self.there.state_dict(), self.here.state_dict())

    def expect_a_full_disk_undoes_a_step(self, batch: Any, at: int, monkeypatch: Any) -> None:
        """Refuse the folder's write number ``at`` and those after; then a step goes on."""
        self.step(*batch)
        draws, writes, real = self.net.rng.bit_generator.state, iter(range(1000)), PlacedFile.write

        def full(file, offset, data):
            if next(writes) >= at:
                raise FileAccessError("file", expected="room", received="none", advice="free")
            real(file, offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(PlacedFile, "write", full)
            try:
                self.net.step(*batch, self.there)
            except FileAccessError:
                pass
            else:
                raise AssertionError("a step was taken on a full disk")
        self.expect_same()
        assert self.net.rng.bit_generator.state == draws
        self.step(*batch)
        self.expect_same()
