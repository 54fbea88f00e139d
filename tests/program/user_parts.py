"""Parts of nets as users write them: they keep, count, change and override things."""

import numpy as np

from singanet import FeedForwardNet
from singanet.layers import Layer
from singanet.loss import SquaredError
from singanet.metric import Accuracy, Metric
from singanet.optimizer import SGD, Regularizer, Wrapper


def dense_of(grad):
    """The numbers of a gradient, all of them or those of its rows."""
    return grad[1] if isinstance(grad, tuple) else grad


class KeepsGradients(Wrapper):
    """Updates at the end of the step only, all gradients scaled to a joint norm of ``bound``."""

    def __init__(self, optimizer, bound=0.5):
        super().__init__(optimizer)
        self.bound = bound
        self.kept, self.copies = [], []

    def update(self, names, values, grads, scale=1.0):
        for job in zip(names, values, grads, strict=True):
            self.kept.append(job)
            self.copies.append(np.array(dense_of(job[2])))

    def finish(self):
        """Update with what was kept. Whatever it was when it came, it has to be still."""
        kept, copies = self.kept, self.copies
        self.kept, self.copies = [], []
        for (name, _, grad), copy in zip(kept, copies, strict=True):
            np.testing.assert_array_equal(dense_of(grad), copy, err_msg=name)
        norm = np.sqrt(sum(float((dense_of(grad) ** 2).sum()) for _, _, grad in kept))
        for name, value, grad in kept:
            self.optimizer.update([name], [value], [grad], min(1.0, self.bound / float(norm)))


class WritesGradients(Wrapper):
    """Clips the gradients that it is handed in place."""

    def update(self, names, values, grads, scale=1.0):
        for grad in grads:
            np.clip(dense_of(grad), -0.05, 0.05, out=dense_of(grad))
        self.optimizer.update(names, values, grads, scale)


class EmptiesLists(Wrapper):
    """Takes names, values and gradients out of the lists that it is handed, last first."""

    def update(self, names, values, grads, scale=1.0):
        while names:
            self.optimizer.update([names.pop()], [values.pop()], [grads.pop()], scale)


class PureTwice(SGD):
    """A rule that says it is pure, with an update of its own."""

    pure = True

    def update(self, names, values, grads, scale=1.0):
        super().update(names, values, [twice(grad) for grad in grads], scale)


def twice(grad):
    if grad is None:
        # Another rank has it.
        return None
    return type(grad)(grad[0], 2 * grad[1]) if isinstance(grad, tuple) else 2 * grad


class Hoards(Accuracy):
    """Accuracy that keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def evaluate(self, x, y):
        self.seen += [(x, x.copy()), (y, y.copy())]
        return super().evaluate(x, y)


class Gathered(Metric):
    """Accuracy over all outputs and labels, which it keeps until the result is asked for."""

    def reset(self):
        self.samples = 0
        self.outputs, self.targets = [], []

    def update(self, x, y):
        self.outputs.append(x)
        self.targets.append(y)
        self.samples += len(x)

    def compute(self):
        labels = np.concatenate(self.targets)
        labels = labels.argmax(1) if labels.ndim > 1 else labels
        return float((np.concatenate(self.outputs).argmax(1) == labels).mean())


class Weighed(SquaredError):  # noqa: N818
    """Half the squared difference times an attribute; the outputs and targets are kept."""

    def __init__(self):
        super().__init__()
        self.factor = 1.0
        self.seen = []

    def forward(self, flag, x, y, sample_weight=None):
        self.seen += [(x, x.copy()), (y, y.copy())]
        return super().forward(flag, x, y, sample_weight) * np.float32(self.factor)

    def backward(self):
        return super().backward() * np.float32(self.factor)


class Pulled(Regularizer):
    def __init__(self, coefficient, centre=0.0):
        super().__init__(coefficient)
        self.centre = centre

    def add(self, xp, value, grad, coefficient, out):
        xp.subtract(value, self.centre, out=out)
        xp.multiply(out, coefficient, out=out)
        xp.add(out, grad, out=out)


class Alike(Layer):
    """A layer of the user's whose outputs have the shape of its inputs."""

    def setup(self, in_shapes):
        return in_shapes


class Gain(Alike):
    """y = gain x by an attribute of the layer."""

    def __init__(self, name, gain=1.0, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.gain = gain

    def forward(self, ctx, x):
        return x * np.float32(self.gain)

    def backward(self, ctx, dy):
        return dy * np.float32(self.gain), {}


class PureGain(Gain):
    """The same, by a class that says that it does the same at each call."""

    pure = True


class Probe(Alike):
    """y = x + x / 2, with every input and gradient kept as it came, and as a copy."""

    def __init__(self, name, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.seen = []

    def forward(self, ctx, x):
        y = x + np.float32(0.5) * x
        self.seen += [(x, x.copy()), (y, y.copy())]
        return y

    def backward(self, ctx, dy):
        self.seen.append((dy, dy.copy()))
        return np.float32(1.5) * dy, {}


class InPlace(Alike):
    """y = x² / 8, in the array of x."""

    def forward(self, ctx, x):
        ctx.save(x=x.copy())
        x *= x / 8
        return x

    def backward(self, ctx, dy):
        dy *= ctx.saved["x"] / 4
        return dy, {}


class Follows(Alike):
    """y = x − mean, by a running mean that is declared as state and moved by training."""

    def setup(self, in_shapes):
        self.add_state("mean", in_shapes)
        return in_shapes

    def forward(self, ctx, x):
        mean = ctx.params["mean"]
        ctx.save(scale=1 + np.abs(mean))
        y = (x - mean) * (1 + np.abs(mean))
        if ctx.train:
            ctx.update_state("mean", np.float32(0.8) * mean + np.float32(0.2) * x.mean(0))
        return y

    def backward(self, ctx, dy):
        return dy * ctx.saved["scale"], {}


class Counts(Alike):
    """y = x (1 + count / 10), count being a parameter that forward moves, not declared as state."""

    def setup(self, in_shapes):
        self.add_param("count", (1,), {"trainable": False})
        return in_shapes

    def forward(self, ctx, x):
        factor = 1 + ctx.params["count"] / np.float32(10)
        ctx.save(factor=factor)
        if ctx.train:
            ctx.params["count"][...] += 1
        return x * factor

    def backward(self, ctx, dy):
        return dy * ctx.saved["factor"], {}


class Draws(Alike):
    """y = x + noise of a generator of the layer's own, which also counts its calls."""

    def __init__(self, name, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.noise = np.random.default_rng(3)
        self.calls = [0]

    def forward(self, ctx, x):
        if ctx.train:
            self.calls[0] += 1
            x = x + self.noise.standard_normal(x.shape).astype(x.dtype) * np.float32(self.calls[0])
        return x

    def backward(self, ctx, dy):
        return dy, {}


class Breaks(Alike):
    """Raises in backward when ``fuse["error"]`` is there, which no assignment tells of."""

    def __init__(self, name, input_sample_shape=None):
        super().__init__(name, input_sample_shape)
        self.fuse = {}

    def forward(self, ctx, x):
        return x * np.float32(1.25)

    def backward(self, ctx, dy):
        if "error" in self.fuse:
            raise self.fuse.pop("error")
        return dy * np.float32(1.25), {}


class ClippedNet(FeedForwardNet):
    """Clips every gradient on its way out of the walk."""

    bound = 0.02

    def backward(self, dy, output=()):
        for item in super().backward(dy, output):
            for grad in item.grads:
                np.clip(dense_of(grad), -self.bound, self.bound, out=dense_of(grad))
            yield item


def times(factor, x):
    """``x``, an array or a dict of them, times a number; indices as they are."""
    if isinstance(x, dict):
        return {name: times(factor, part) for name, part in x.items()}
    return np.float32(factor) * x if x.dtype.kind == "f" else x


class ScaledNet(FeedForwardNet):
    """Takes half of its input."""

    def forward(self, flag, x, output=()):
        return super().forward(flag, times(0.5, x), output)
