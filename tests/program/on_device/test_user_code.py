"""A user's own layers, losses, rules and metrics in steps that are recorded on a device."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import DataError
from singanet.initializer import Constant, Uniform
from singanet.layers import Activation, Dense, Layer
from singanet.loss import Loss, SquaredError
from singanet.metric import MeanMetric
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm, Wrapper
from singanet.training import Callback
from singanet.types import RowSparse


class Alike(Layer):
    """y = g x²."""

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


class Looks(Pure):
    """Python that looks at numbers, and says that it does not."""

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
    """Refuses anything but real numbers."""

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
    def update(self, names, values, grads, scale=1.0):
        self.optimizer.update(names, values, [grad * np.float32(0.5) for grad in grads], scale)


class Within(MeanMetric):
    """The share of outputs that are near."""

    def values(self, ops, x, y):
        return ops.mean(ops.absolute(x - y) <= 0.5, axis=1, dtype="float64")


def make(parts=(), loss=SquaredError, device=None, recorded=True):
    inner = [part(f"part{k}") for k, part in enumerate(parts)]
    first = [Dense("one", 6, input_sample_shape=(4,)), Activation("tanh", "tanh")]
    net = FeedForwardNet([*first, *inner, Dense("out", 3)], loss=loss(), seed=3)
    if device is not None:
        net.to_device(device)
    net.programs.enabled = recorded
    return net


def batch(rng, size=5):
    return (rng.standard_normal((size, n)).astype(np.float32) for n in (4, 3))


def losses_of(net, optimizer):
    rng = np.random.default_rng(0)
    return [net.step(*batch(rng), optimizer)[0] for _ in range(5)]


def values_of(net):
    return [param.value.get() for param in net.params()]


def sgd():
    return SGD(0.05)


# Parts, loss, rule, and words of the notes: "" for none at all, ... for any.
CASES = {
    **{
        part.__name__: ([part], SquaredError, lambda: Adam(0.02), "'part0'")
        for part in (Alike, Counts, Looks, GoesByHost, Rows)
    },
    "Pure": ([Pure], SquaredError, sgd, ""),
    **{
        f"{part.__name__}, clipped": (
            [part, Alike], SquaredError, lambda: ClipByGlobalNorm(Adam(0.02), 0.1), ...)
        for part in (Alike, Pure, Counts)
    },
    "loss": ([Counts], Smooth, sgd, "loss"),
    "stage": ([Alike], SquaredError, lambda: Halves(SGD(0.05, momentum=0.9)), ...),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_recorded_as_by_the_layers(name, gpu):
    """Losses and parameters to the bit, and those of the CPU to rounding."""
    parts, loss, rule, words = CASES[name]
    nets = [make(parts, loss, gpu, recorded) for recorded in (True, False)]
    losses = [losses_of(net, rule()) for net in nets]
    assert losses[0] == losses[1]
    for ours, theirs in zip(*map(values_of, nets), strict=True):
        assert ours.tobytes() == theirs.tobytes()
    np.testing.assert_allclose(losses[0], losses_of(make(parts, loss), rule()), rtol=2e-5)
    programs = nets[0].programs
    assert programs.reports()
    assert all("a caller's loop" in why for why in programs.refusals)
    if words is not ...:
        assert any(words in note for note in programs.notes) == bool(words)
        assert bool(programs.notes) == bool(words)


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
    assert losses_of(nets[0], sgd()) == losses_of(nets[1], sgd())
    assert nets[0].programs.reports()


@pytest.mark.parametrize(("parts", "loss"), [([Expects], SquaredError), ([], Picky)])
def test_parts_that_refuse_other_numbers_than_come_are_recorded(parts, loss, gpu):
    nets = [make(parts, loss, gpu, recorded) for recorded in (True, False)]
    assert losses_of(nets[0], sgd()) == losses_of(nets[1], sgd())
    assert nets[0].programs.reports()


def test_an_error_of_the_users_own_comes_as_it_is(gpu, rng):
    class Breaks(Alike):
        fuse = False

        def backward(self, ctx, dy):
            if self.fuse:
                raise ValueError("on purpose")
            return super().backward(ctx, dy)

    net, rule = make([Breaks], device=gpu), sgd()
    losses_of(net, rule)
    net["part0"].fuse, before = True, values_of(net)
    with pytest.raises(ValueError, match="on purpose"):
        net.step(*batch(rng), rule)
    moved = [(a != b).any() for a, b in zip(before, values_of(net), strict=True)]
    names = [param.name for param in net.params()]
    # The layer behind it is updated, as by the layers.
    assert dict(zip(names, moved, strict=True)) == {name: name[:3] == "out" for name in names}


def test_fit_with_a_metric_and_a_callback_of_the_users(gpu, rng):
    x, y = batch(rng, 20)

    def fitted(device, recorded=True):
        told = []

        class Tells(Callback):
            def on_epoch_end(self, epoch, logs):
                told.append((epoch, float(logs["loss"]), float(logs["within"])))

        net = make([Counts], Smooth, device, recorded)
        net.compile(Adam(0.02), metrics=[Within()])
        net.fit(x, y, epochs=3, batch_size=5, callbacks=[Tells()], verbose=False)
        return net, told

    net, ours = fitted(gpu)
    assert ours == fitted(gpu, recorded=False)[1]
    np.testing.assert_allclose(ours, fitted(None)[1], rtol=1e-4)
    assert net.programs.reports()
    assert net.memory(8, sgd()).total > net.memory(4, sgd()).total
