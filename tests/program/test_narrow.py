"""bfloat16 in the memory of programs: where no other than oneDNN's kernels touches it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet, layers
from singanet.device import cpu
from singanet.layers import Activation, BatchNormalization, Conv2D, Layer, MaxPooling2D, Merge
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops.onednn.base import OneDnnBase
from singanet.optimizer import SGD


def multiplies_bfloat16():
    ops = cpu().ops
    library = ops.library() if isinstance(ops, OneDnnBase) else None
    return library is not None and library.bfloat16


pytestmark = pytest.mark.skipif(not multiplies_bfloat16(), reason="no products of bfloat16 here")

BATCH, SIZE = 8, 16


class Doubled(Layer):
    """A user's own layer, which looks at what type it gets."""

    seen = ()

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        self.seen = (*self.seen, x.dtype)
        return x + x

    def backward(self, ctx, dy):
        self.seen = (*self.seen, dy.dtype)
        return dy + dy, {}


def chain(kinds, precision, own=None):
    """Convolutions with what ``kinds`` name between them, and classes of the last images."""
    net = FeedForwardNet(SoftmaxCrossEntropy(), seed=4)
    net.add(Conv2D("first", 32, 3, input_sample_shape=(16, SIZE, SIZE)))
    for number, kind in enumerate(kinds):
        before = net.layers[-1]
        if kind == "norm":
            net.add(BatchNormalization(f"norm{number}"))
            net.add(Activation(f"relu{number}"))
        elif kind == "relu":
            net.add(Activation(f"relu{number}"))
        elif kind == "own":
            net.add(own)
        elif kind in ("max", "mean"):
            pooling = MaxPooling2D if kind == "max" else layers.AvgPooling2D
            net.add(pooling(f"pool{number}", 3, 1, border_mode="same"))
        else:
            side = net.add(BatchNormalization(f"side{number}"), before)
            net.add(Merge(f"sum{number}"), [before, side])
            net.add(Activation(f"relu{number}"))
        net.add(Conv2D(f"conv{number}", 32, 3, use_bias=False))
    net.add(BatchNormalization("last"))
    net.add(layers.Flatten("flat"))
    net.add(layers.Dense("fc", 10))
    if precision != "float32":
        device = net.device._narrowed("tests", stores=precision == "bfloat16")
        net._run_on(device, net.dtype)
    return net


def batch(seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((BATCH, 16, SIZE, SIZE), np.float32)
    return x, rng.integers(0, 10, BATCH)


def losses(net, steps=3):
    (x, y), sgd = batch(), SGD(lr=1e-4)
    return [net.step(x, y, sgd)[0] for _ in range(steps)]


@settings(max_examples=4)
@given(st.lists(st.sampled_from(["norm", "relu", "max", "mean", "sum"]), min_size=1, max_size=3))
def test_chains_learn_what_they_learn_in_float32(kinds):
    exact, fast, stored = (chain(kinds, of) for of in ("float32", "float32_fast", "bfloat16"))
    wanted = losses(exact)
    # Three steps of sums whose factors have eight bits.
    np.testing.assert_allclose(losses(fast), wanted, rtol=0.02)
    np.testing.assert_allclose(losses(stored), wanted, rtol=0.05)
    for mine, other in zip(stored.params(), exact.params(), strict=True):
        assert mine.value.dtype == np.float32
        scale = np.abs(other.value).max() + 1e-2
        assert np.abs(mine.value - other.value).max() < 0.1 * scale


def test_rounding_once_changes_no_bit():
    fast, layered = (chain(["norm", "max", "sum"], "float32_fast") for _ in range(2))
    layered.programs.enabled = False
    assert losses(fast) == losses(layered)
    (report,) = fast.programs.reports()
    assert "round" in {kernel.name for kernel in report.kernels}


def test_stored_so_it_takes_less_memory_and_gives_the_same_bits_each_time():
    kinds = ["norm", "norm", "max", "norm"]
    bytes_of = {}
    for precision in ("float32", "float32_fast", "bfloat16"):
        net = chain(kinds, precision)
        losses(net)
        bytes_of[precision] = net.programs.reports()[-1].layout.nbytes
        planned = net.memory(BATCH, optimizer=SGD(lr=1e-4)).parts
        assert planned["arena"] == pytest.approx(bytes_of[precision], rel=0.1)
        if precision == "bfloat16":
            # It is recorded at once: no step by the layers takes more.
            assert not planned.get("first step")
    assert bytes_of["bfloat16"] < 0.75 * bytes_of["float32"]
    assert losses(chain(kinds, "bfloat16"), 4) == losses(chain(kinds, "bfloat16"), 4)


def test_a_resumed_step_has_the_bits_of_the_next_one():
    whole, parts = chain(["norm", "norm"], "bfloat16"), chain(["norm", "norm"], "bfloat16")
    (x, y), sgd = batch(), SGD(lr=0.01)
    for _ in range(4):
        expected = whole.step(x, y, sgd)[0]
    for _ in range(4):
        # As in a process of its own, which has recorded nothing yet.
        parts.programs.clear()
        found = parts.step(x, y, SGD(lr=0.01))[0]
    assert found == expected


def test_a_layer_of_a_users_own_sees_float32():
    own = Doubled("own")
    net = chain(["norm", "own", "norm"], "bfloat16", own)
    assert losses(net) == pytest.approx(
        losses(chain(["norm", "own", "norm"], "float32", Doubled("own"))), rel=0.05
    )
    assert set(own.seen) == {np.dtype(np.float32)}


def test_what_a_caller_gets_is_float32():
    net, exact = (chain(["norm", "sum"], of) for of in ("bfloat16", "float32"))
    x, _ = batch()
    for flag in (True, False):
        for _ in range(2):
            given = net.forward(flag, x, output=["conv0"])
            wanted = exact.forward(flag, x, output=["conv0"])
            for name, array in given.items():
                assert array.dtype == np.float32
                np.testing.assert_allclose(
                    array, wanted[name], atol=0.1 * np.abs(wanted[name]).max()
                )
            plain = net.forward(flag, x)
            assert plain.dtype == np.float32
            if flag:
                dy = np.ones_like(plain)
                assert all(g.dtype == np.float32 for item in net.backward(dy) for g in item.grads)


def test_nan_is_not_lost_between_kernels():
    net = chain(["sum", "max", "norm"], "bfloat16")
    (x, y), sgd = batch(), SGD(lr=0.01)
    net.step(x, y, sgd)
    x[3, 2, 5, 5] = np.nan
    assert np.isnan(net.step(x, y, sgd)[0])
