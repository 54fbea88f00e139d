"""Random nets on random stages: skip connections, shared weights, frozen layers."""

import numpy as np
import pytest

import singanet
from singanet import parallel
from singanet.layers import Activation, Add, Concat, Dense, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm
from tests.kit.ranks import together

RULES = [
    lambda: SGD(lr=0.1, momentum=0.9),
    lambda: Adam(lr=0.01),
    lambda: ClipByGlobalNorm(SGD(lr=0.3), 0.2),
]


def drawn(seed, stages):
    """A net of which each layer reads some earlier ones, and the last one three of them."""
    rng = np.random.default_rng(seed)
    x = Input("x", (5,))
    made, shared, chain = [x], None, x
    for k in range(stages):
        with parallel.stage(k):
            # A chain through all stages, so that none is empty.
            chain = Add(f"in{k}")([Dense(f"first{k}", 5)(chain), made[-1]])
            made.append(chain)
            for d in range(int(rng.integers(0, 3))):
                source, other = (made[rng.integers(0, len(made))] for _ in range(2))
                specs = shared.params["weight"] if shared and rng.integers(0, 2) else None
                layer = Dense(f"d{k}.{d}", 5, W_specs=specs)
                shared = shared or layer
                made.append(Add(f"sum{k}.{d}")([Activation(f"r{k}.{d}")(layer(source)), other]))
    with parallel.stage(stages - 1):
        scores = Dense("out", 3)(Concat("cat", 1)([chain, made[-2], made[-1]]))
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[x], outputs=[scores], seed=seed)
    if rng.integers(0, 3) == 0:
        net[rng.choice([layer.name for layer in net.layers if layer.params])].trainable = False
    return net


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 200))]
)
def test_a_random_net_trains_as_in_one_process(seed):
    rng = np.random.default_rng(10**6 + seed)
    stages, micro, name = (
        int(rng.integers(2, 5)),
        int(rng.integers(1, 6)),
        rng.choice(["gpipe", "1f1b"]),
    )
    samples = int(rng.integers(micro, 14))
    x, y = rng.standard_normal((samples, 5)).astype(np.float32), rng.integers(0, 3, samples)
    rule = RULES[seed % 3]
    alone, gathers = drawn(seed, stages), Accumulator(rule(), micro)
    alone.programs.enabled = False
    for _ in range(2):
        for part in np.array_split(np.arange(samples), micro):
            alone.step(x[part], y[part], gathers)

    def work(comm):
        net, optimizer = drawn(seed, stages), rule()
        pipeline = parallel.Pipeline(net, micro_batches=micro, schedule=str(name), comm=comm)
        for _ in range(2):
            net.step(x, y, optimizer)
        outputs = net.forward(False, x)
        pipeline.gather()
        return net, outputs

    for net, outputs in together(work, stages):
        np.testing.assert_allclose(outputs, alone.forward(False, x), rtol=1e-3, atol=1e-4)
        for param, other in zip(net.params(), alone.params(), strict=True):
            np.testing.assert_allclose(
                param.value, other.value, rtol=1e-3, atol=2e-5, err_msg=param.name
            )
