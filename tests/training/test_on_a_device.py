"""fit with clipping and mixed precision where arrays may not meet those of the host."""

import numpy as np
import pytest

from singanet.device import Device, cuda
from singanet.ops import ops_for
from singanet.optimizer import SGD


@pytest.mark.parametrize("precision", [None, "float16"])
@pytest.mark.parametrize(
    "arguments",
    [{}, {"clip": 0.3, "clip_by": "global"}, {"clip": 0.3, "clip_by": "global", "accumulate": 2}],
)
def test_a_device_trains_as_the_cpu_does(build, data, xp, precision, arguments):
    if xp is np:
        pytest.skip("the other tests are about the CPU")
    losses, weights = [], []
    for there in (False, True):
        net = build()
        x, y = data
        if there and xp.__name__ == "cupy":
            net.to_device(cuda())
        elif there:
            net.to_device(Device("device_like", ops_for(xp.zeros(1))))
            x, y = xp.asarray(x), xp.asarray(y)
        net.compile(SGD(lr=0.1, momentum=0.9), mixed_precision=precision)
        losses += [net.fit(x, y, batch_size=10, epochs=2, verbose=False, **arguments)["loss"]]
        weights += [[ops_for(v).host(v).astype(np.float32) for v in net.param_values()]]
    # A GPU sums in another order, and rounds float16 there: 5e-4 each time.
    near = {"rtol": 1e-4, "atol": 1e-5} if precision is None else {"rtol": 2e-2, "atol": 2e-3}
    np.testing.assert_allclose(losses[1], losses[0], **near)
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(b, a, **near)
