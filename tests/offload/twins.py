"""Two equal nets, one of them in a folder: what they do is compared to the bit."""

from typing import Any

import numpy as np

from singanet.optimizer import Adam


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

    def step(self, *batch: Any) -> None:
        """Compare the losses of a step."""
        assert self.net.step(*batch, self.there) == self.plain.step(*batch, self.here)

    def expect_same(self) -> None:
        """Compare all parameters and the optimizers' state."""
        expect_same(arrays_of(self.net), arrays_of(self.plain))
        if hasattr(self.there, "state_dict"):
            expect_same(self.there.state_dict(), self.here.state_dict())
