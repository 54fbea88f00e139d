"""A user's own layers, losses, rules and metrics in steps that are recorded on a device."""

from __future__ import annotations

import numpy as np
import pytest

import singanet
from singanet.errors import DataError
from singanet.initializer import Constant, Uniform
from singanet.layers import Activation, Dense, Layer
from singanet.loss import Loss, SquaredError
from singanet.metric import MeanMetric
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm, Wrapper
from singanet.types import RowSparse


class Alike(Layer):
    """Outputs of the shape of the inputs."""

    def setup(self, in_shapes):
        self.add_param("gain", in_shapes, default=Constant(1.5))
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * x * ctx.params["gain"]

    def backward(self, ctx, dy):
        x = ctx.saved["x"]
        return 2 * x * dy * ctx.params["gain"], {"gain": (dy * x * x).sum(axis=0)}


class Pure(Alike):
    """One that says that it does the same at each call."""

    pure = True


class Counts(Alike):
    """Another factor at each call in training."""

    calls = 0

    def forward(self, ctx, x):
        self.calls += int(ctx.train)
        return super().forward(ctx, x) * np.float32(1 + self.calls / 8)

    def backward(self, ctx, dy):
        return super().backward(ctx, dy * np.float32(1 + self.calls / 8))


class Looks(Alike):
    """Python that looks at numbers, and says that it does not."""

    pure = True

    def forward(self, ctx, x):
        y = super().forward(ctx, x)
        return y if float(x.sum()) > 0 else -y

    def backward(self, ctx, dy):
        dx, grads = super().backward(ctx, dy)
        up = float(ctx.saved["x"].sum()) > 0
        return (dx, grads) if up else (-dx, {"gain": -grads["gain"]})


class GoesByHost(Alike):
    """Does its arithmetic on the host."""

    def forward(self, ctx, x):
        ctx.save(x=x)
        return ctx.ops.xp.asarray(ctx.ops.host(x) ** 2 * ctx.ops.host(ctx.params["gain"]))


class Expects(Alike):
    """Refuses what only real numbers are."""

    def forward(self, ctx, x):
        if float(abs(x - 1).max()) == 0:
            raise DataError("Expects", "numbers", "ones", "give it numbers")
        return super().forward(ctx, x)


class Rows(Layer):
    """y = x + table[3], whose gradient is of one row."""

    def setup(self, in_shapes):
        self.add_param("table", (5, *in_shapes), default=Uniform(-1, 1))
        return in_shapes

    def forward(self, ctx, x):
        return x + ctx.params["table"][3]

    def backward(self, ctx, dy):
        where = ctx.ops.xp.asarray(np.array([3]))
        return dy, {"table": RowSparse(where, dy.sum(axis=0, keepdims=True))}


class Smooth(Loss):
    """√(1 + (x − y)²) − 1."""

    def count(self, x, y):
        return x.size

    def compute(self, ops, x, y):
        off = x - y
        root = (1 + off * off) ** 0.5
        return root - 1, (off, root)

    def gradient(self, ops, saved):
        off, root = saved
        return off / root


class Picky(Smooth):
    """Refuses outputs that are all alike."""

    def compute(self, ops, x, y):
        if float(x.max()) == float(x.min()):
            raise DataError("Picky", "outputs that differ", "the same ones", "train longer")
        return super().compute(ops, x, y)


class Halves(Wrapper):
    """Halves what it is handed."""

    def update(self, names, values, grads, scale=1.0):
        self.optimizer.update(names, values, [grad * np.float32(0.5) for grad in grads], scale)


class Within(MeanMetric):
    """The share of outputs that are near."""

    def values(self, ops, x, y):
        return ops.mean(ops.absolute(x - y) <= 0.5, axis=1, dtype="float64")


def make(parts=(), loss=SquaredError, device=None, recorded=True):
    net = singanet.FeedForwardNet(loss(), seed=3)
    net.add(Dense("one", 6, input_sample_shape=(4,)))
    net.add(Activation("tanh", "tanh"))
    for k, part in enumerate(parts):
        net.add(part(f"part{k}"))
    net.add(Dense("out", 3))
    if device is not None:
        net.to_device(device)
    net.programs.enabled = recorded
    return net


def batches(count, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield (rng.standard_normal((5, n)).astype(np.float32) for n in (4, 3))


def losses_of(net, optimizer):
    return [net.step(x, y, optimizer)[0] for x, y in batches(5)]


def values_of(net):
    return [param.value.get() for param in net.params()]


def expect_as_by_the_layers(gpu, parts=(), loss=SquaredError, rule=lambda: SGD(0.05)):
    """The recorded net's losses and parameters to the bit, the CPU's to rounding; its notes."""
    nets = [make(parts, loss, gpu, recorded) for recorded in (True, False)]
    losses = [losses_of(net, rule()) for net in nets]
    assert losses[0] == losses[1]
    for ours, theirs in zip(*map(values_of, nets), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    np.testing.assert_allclose(losses[0], losses_of(make(parts, loss), rule()), rtol=2e-5)
    assert nets[0].programs.reports()
    assert all("a caller's loop" in why for why in nets[0].programs.refusals)
    return nets[0].programs.notes


@pytest.mark.parametrize("part", [Alike, Counts, Looks, GoesByHost, Rows])
def test_layers_in_python_stand_between_kernels(part, gpu):
    notes = expect_as_by_the_layers(gpu, [part], rule=lambda: Adam(0.02))
    assert any("'part0'" in note for note in notes)


def test_a_layer_that_says_that_it_is_pure_is_recorded(gpu):
    assert expect_as_by_the_layers(gpu, [Pure]) == []


def test_a_pure_layer_reads_an_array_of_its_own(gpu):
    xp = gpu.ops.xp

    class Fixed(Pure):
        def setup(self, in_shapes):
            self.factor = xp.asarray(np.linspace(1, 2, *in_shapes, dtype=np.float32))
            return super().setup(in_shapes)

        def forward(self, ctx, x):
            return super().forward(ctx, x) * self.factor

        def backward(self, ctx, dy):
            return super().backward(ctx, dy * self.factor)

    nets = [make([Fixed], device=gpu, recorded=recorded) for recorded in (True, False)]
    assert losses_of(nets[0], SGD(0.05)) == losses_of(nets[1], SGD(0.05))
    assert nets[0].programs.reports()


@pytest.mark.parametrize("part", [Alike, Pure, Counts])
def test_layers_that_come_twice_and_behind_clipping(part, gpu):
    expect_as_by_the_layers(gpu, [part, Alike], rule=lambda: ClipByGlobalNorm(Adam(0.02), 0.1))


def test_a_loss_of_the_users_own(gpu):
    assert any("loss" in note for note in expect_as_by_the_layers(gpu, [Counts], Smooth))


def test_a_stage_of_the_users_own(gpu):
    expect_as_by_the_layers(gpu, [Alike], rule=lambda: Halves(SGD(0.05, momentum=0.9)))


@pytest.mark.parametrize(("parts", "loss"), [([Expects], SquaredError), ([], Picky)])
def test_what_refuses_numbers_that_nobody_computed_runs_by_the_layers(parts, loss, gpu):
    """Nobody sees an error that no number of theirs has made."""
    nets = [make(parts, loss, gpu, recorded) for recorded in (True, False)]
    assert losses_of(nets[0], SGD(0.05)) == losses_of(nets[1], SGD(0.05))
    assert "in the place of values" in nets[0].programs.refusals[0]


def test_an_error_of_the_users_own_comes_as_it_is(gpu):
    class Breaks(Alike):
        def backward(self, ctx, dy):
            if self.fuse:
                raise ValueError("on purpose")
            return super().backward(ctx, dy)

        fuse = False

    net, rule = make([Breaks], device=gpu), SGD(0.05)
    losses_of(net, rule)
    next(layer for layer in net.layers if isinstance(layer, Breaks)).fuse = True
    (x, y), before = next(batches(1)), values_of(net)
    with pytest.raises(ValueError, match="on purpose"):
        net.step(x, y, rule)
    moved = [(a != b).any() for a, b in zip(before, values_of(net), strict=True)]
    names = [param.name for param in net.params()]
    # What lies behind it is updated, as by the layers.
    assert dict(zip(names, moved, strict=True)) == {name: name[:3] == "out" for name in names}


def test_fit_with_a_metric_and_a_callback_of_the_users(gpu):
    rng = np.random.default_rng(2)
    x, y = (rng.standard_normal((20, n)).astype(np.float32) for n in (4, 3))
    told = []

    class Tells(singanet.training.Callback):
        def on_epoch_end(self, epoch, logs):
            told.append((epoch, float(logs["loss"]), float(logs["within"])))

    def fitted(device, recorded=True):
        net = make([Counts], Smooth, device, recorded)
        net.compile(Adam(0.02), metrics=[Within()])
        net.fit(x, y, epochs=3, batch_size=5, callbacks=[Tells()], verbose=False)
        made, told[:] = list(told), []
        return net, made

    net, ours = fitted(gpu)
    assert ours == fitted(gpu, recorded=False)[1]
    np.testing.assert_allclose(ours, fitted(None)[1], rtol=1e-4)
    assert net.programs.reports()


def test_memory_is_told_with_layers_in_python(gpu):
    net = make([Alike, Counts], Smooth, gpu)
    assert net.memory(8, SGD(0.1)).total > net.memory(4, SGD(0.1)).total
