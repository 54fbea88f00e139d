"""Training steps as lists of kernels and buffers, made up after real nets or at random."""

import random

from singanet.program.ir import Buffer, Kernel


class Steps:
    """Builds a training step: each layer forward, then each backward with its update."""

    def __init__(self):
        self.kernels, self.buffers = [], []
        self.undo = []

    def buffer(self, nbytes, kind="temporary", label=""):
        self.buffers.append(Buffer(nbytes, kind, label))
        return len(self.buffers) - 1

    def call(self, name, reads, writes, layer="", phase="forward", in_place=()):
        self.kernels.append(Kernel(name, tuple(reads), tuple(writes), layer, phase, in_place))

    def conv(self, name, x, nbytes, weight_bytes):
        """Keeps its input; its gradient is updated at once."""
        weight, y = self.buffer(weight_bytes, "parameter", f"{name}/weight"), self.buffer(nbytes)
        self.call("conv", [x, weight], [y], name)

        def back(dy):
            dw, dx = self.buffer(weight_bytes), self.buffer(self.buffers[x].nbytes)
            self.call("conv weights", [x, dy], [dw], name, "backward")
            self.call("conv data", [dy, weight], [dx], name, "backward")
            self.call("sgd", [weight, dw], [weight], name, "update")
            return dx

        self.undo.append(back)
        return y

    def norm(self, name, x, channels):
        """Keeps input, mean and variance."""
        nbytes = self.buffers[x].nbytes
        scale = self.buffer(8 * channels, "parameter", f"{name}/scale")
        moments, y = self.buffer(8 * channels), self.buffer(nbytes)
        self.call("moments", [x], [moments], name)
        self.call("norm", [x, moments, scale], [y], name)

        def back(dy):
            dx, sums = self.buffer(nbytes), self.buffer(8 * channels)
            pair = ((dy, dx),)
            self.call("norm back", [x, moments, scale, dy], [dx, sums], name, "backward", pair)
            self.call("sgd", [scale, sums], [scale], name, "update")
            return dx

        self.undo.append(back)
        return y

    def relu(self, name, x):
        """Keeps its output, and may work in place."""
        y = self.buffer(self.buffers[x].nbytes)
        self.call("relu", [x], [y], name, "forward", ((x, y),))

        def back(dy):
            dx = self.buffer(self.buffers[x].nbytes)
            self.call("relu back", [y, dy], [dx], name, "backward", ((dy, dx),))
            return dx

        self.undo.append(back)
        return y

    def add(self, name, a, b):
        y = self.buffer(self.buffers[a].nbytes)
        self.call("add", [a, b], [y], name, "forward", ((a, y), (b, y)))
        return y

    def back(self, grad, until=0):
        while len(self.undo) > until:
            grad = self.undo.pop()(grad)
        return grad

    def finish(self, x):
        loss = self.buffer(4, "output", "loss")
        grad = self.buffer(self.buffers[x].nbytes)
        self.call("loss", [x], [loss, grad], "loss", "loss")
        self.back(grad)
        return self.kernels, self.buffers


def chain(layers=20, seed=0):
    """Convolution, normalisation and ReLU, over and over; sizes of a net that narrows."""
    draw, steps = random.Random(seed), Steps()
    x = steps.buffer(4 * draw.randint(1000, 3000), "input", "x")
    for k in range(layers):
        size = 4 * draw.randint(200, 40000) // (1 + k // 4)
        x = steps.conv(f"conv{k}", x, size, 4 * draw.randint(100, 20000))
        x = steps.norm(f"norm{k}", x, 16)
        x = steps.relu(f"relu{k}", x)
    return steps.finish(x)


def residual(stages=(3, 4, 6, 3), width=64, pixels=56 * 56, batch=8):
    """A ResNet's bottlenecks: ResNet-50 as it stands."""
    steps, convs = Steps(), iter(range(1 << 20))
    branches = []

    def unit(x, channels, area, inputs, last=True):
        k = next(convs)
        y = steps.conv(f"conv{k}", x, 4 * batch * area * channels, 4 * channels * inputs)
        y = steps.norm(f"norm{k}", y, channels)
        return steps.relu(f"relu{k}", y) if last else y

    x = steps.buffer(4 * batch * 3 * 16 * pixels, "input", "images")
    x = unit(x, width, 4 * pixels, 3 * 49)
    x = steps.conv("pool", x, 4 * batch * pixels * width, 4)
    inputs = width
    for stage, blocks in enumerate(stages):
        narrow, area = width << stage, pixels >> (2 * stage)
        for block in range(blocks):
            start = len(steps.undo)
            y = unit(x, narrow, area, inputs)
            y = unit(y, narrow, area, 9 * narrow)
            y = unit(y, 4 * narrow, area, narrow, last=False)
            middle = len(steps.undo)
            short = x if block else unit(x, 4 * narrow, area, inputs, last=False)
            branches.append((start, middle, len(steps.undo), block > 0))
            x = steps.relu(f"relu {stage} {block}", steps.add(f"add {stage} {block}", y, short))
            inputs = 4 * narrow
    loss, grad = steps.buffer(4, "output", "loss"), steps.buffer(steps.buffers[x].nbytes)
    steps.call("loss", [x], [loss, grad], "loss", "loss")
    for start, middle, end, plain in reversed(branches):
        grad = steps.back(grad, end)
        skip = grad if plain else steps.back(grad, middle)
        grad = steps.add("sum", steps.back(grad, start), skip)
    steps.back(grad)
    return steps.kernels, steps.buffers


def at_random(kernels, seed=0, inputs=2):
    """Kernels that read some of the last buffers and write new ones."""
    draw, steps = random.Random(seed), Steps()
    known = [steps.buffer(draw.randint(1, 1 << 16), "input") for _ in range(inputs)]
    for k in range(kernels):
        far = draw.choice((3, 10, len(known)))
        reads = draw.sample(known[-far:], min(draw.randint(1, 3), len(known)))
        size = steps.buffers[reads[0]].nbytes if draw.random() < 0.4 else draw.randint(1, 1 << 16)
        y = steps.buffer(size, "output" if draw.random() < 0.01 else "temporary")
        pair = ((reads[0], y),) if draw.random() < 0.5 else ()
        steps.call(f"k{k}", reads, [y], f"l{k % 7}", "forward", pair)
        known.append(y)
    return steps.kernels, steps.buffers
