"""Every layer with several inputs refuses unlike batch sizes before anything is computed."""

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.engine.feeds import check_feed
from singanet.errors import SingaNetError
from singanet.executor import Executor
from singanet.layers import Dense, Input, Layer, Merge
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD


class Own(Layer):
    """A user's own layer of two inputs, or of one of which it hands on every second sample."""

    def setup(self, in_shapes):
        return in_shapes[0] if isinstance(in_shapes, list) else in_shapes

    def forward(self, ctx, x):
        return (x[0] + x[1]) / 2 if isinstance(x, list) else x[::2]

    def backward(self, ctx, dy):
        return [dy / 2, dy / 2], {}


JOINS = {
    kind.__name__: lambda a, b, kind=kind: kind("join")(a, b)
    for kind in (layers.Merge, layers.Dot, layers.Add, layers.Average, layers.Maximum,
                 layers.Minimum, layers.Subtract, layers.Divide, layers.Multiply, Own)
}  # fmt: skip
JOINS["Concat"] = lambda a, b: layers.Concat("join", 1)(a, b)
JOINS["Where"] = lambda a, b: layers.Where("join", b=0.0)(a > 0, b)
STEPS = {
    "matmul": lambda a, b: layers.MatMul("join", transpose_b=True)(a, b),
    "attention": lambda a, b: layers.MultiHeadAttention("join", 2, 4)(a, b),
    "states": lambda a, b: layers.LSTM("join", 4)(
        a, *(Dense(f"d{k}", 4)(layers.Reduce(f"p{k}", "mean", 1, True)(b)) for k in "hc")
    ),
}


def net_of(name):
    steps = name in STEPS
    inputs = [Input(k, (4, 4) if steps else (4,)) for k in "ab"]
    y = (JOINS | STEPS)[name](*(Dense(f"in_{k}", 4)(x) for k, x in enumerate(inputs)))
    # Above the join is something to update.
    y = Dense("out", 2)(layers.Flatten("flat")(y) if steps else y)
    return FeedForwardNet(inputs=inputs, outputs=y, loss=SquaredError(), seed=1)


def feed_of(name, first, second):
    shape = (4, 4) if name in STEPS else (4,)
    return {"a": np.ones((first, *shape), np.float32), "b": np.ones((second, *shape), np.float32)}


CALLS = {
    "forward": lambda net, x, y: net.forward(False, x),
    "training": lambda net, x, y: net.forward(True, x), "predict": lambda net, x, y: net.predict(x),
    "evaluate": lambda net, x, y: net.evaluate(x, y),
    "predictor": lambda net, x, y: net.predictor()(x),
    "step": lambda net, x, y: net.step(x, y, SGD(0.1)),
    "by layers": lambda net, x, y: (
        setattr(net.programs, "enabled", False), CALLS["step"](net, x, y)
    ),
    "train": lambda net, x, y: net.train(x, y),
    "record": lambda net, x, y: net.record(x, y, SGD(0.1)),
    "gradients": lambda net, x, y: net.gradients("out", ["a"], x)
}  # fmt: skip


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (4, 3)])
@pytest.mark.parametrize("name", [*JOINS, *STEPS])
def test_unlike_sizes_are_refused_by_every_call(name, sizes):
    for call in CALLS.values():
        net = net_of(name)
        before = [value.copy() for value in net.param_values()]
        with pytest.raises(SingaNetError, match=r"\[?\d"):
            call(net, feed_of(name, *sizes), np.zeros((max(sizes), 2), np.float32))
        assert all(map(np.array_equal, before, net.param_values()))
    # And the layer is named, before anything is computed.
    net = net_of(name)
    with pytest.raises(SingaNetError, match=r"layer '.*': expected inputs of one batch size"):
        check_feed(net._execution_plan(), feed_of(name, *sizes), net.device, net.dtype)
    net.forward(False, feed_of(name, 3, 3))


REFUSED = "'join': expected inputs of one batch size"


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (4, 3)])
def test_an_executor_refuses_them(sizes):
    a, b, y = Input("a", (4,)), Input("b", (4,)), Input("y", (2,))
    cost = SquaredError()(Dense("out", 2)(Merge("join")(a, b)), y)
    executor = Executor({"train": [cost, SGD(0.1).minimize(cost)], "see": [cost]}, seed=1)
    for program in ("see", "train"):
        with pytest.raises(SingaNetError, match=REFUSED):
            executor.run(program, feed_of("", *sizes) | {"y": np.zeros((sizes[0], 2), np.float32)})


def test_batches_that_do_not_meet_at_one_size_may_differ():
    a, b, c = (Input(k, (4,)) for k in "abc")
    halves = Own("half")
    halves.traits = layers.Traits(samples="own")
    stacked, whole = layers.Add("join")(layers.Concat("stack", 0)(a, b), c), np.ones((5, 4), "f")
    for inputs, outputs, fits, others in (
        ([a, b, c], stacked, {**feed_of("add", 3, 2), "c": whole}, [{"c": whole[:1]}]),
        ([a, b], Merge("join")(halves(a), b), feed_of("add", 4, 2), [feed_of("add", 2, 2)]),
        ([a, b], Merge("join")(halves(a), b), feed_of("add", 4, 2), [feed_of("add", 4, 1)]),
    ):
        net = FeedForwardNet(inputs=inputs, outputs=outputs, seed=1)
        assert net.predict(fits).shape == (5 if "c" in fits else 2, 4)
        for other in others:
            with pytest.raises(SingaNetError, match=REFUSED):
                net.predict(fits | other)
    net = FeedForwardNet(inputs=[a, b], outputs=[Dense("x", 1)(a), Dense("y", 1)(b)], seed=1)
    made = net.forward(False, feed_of("add", 3, 2))
    assert [len(made[k]) for k in "xy"] == [3, 2]


def test_an_input_layer_of_several_arrays():
    parts = [Merge("join", [(4,), (4,)]), Dense("out", 2)]
    net = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=1)
    with pytest.raises(SingaNetError, match=REFUSED):
        net.predict([np.ones((4, 4), np.float32), np.ones((1, 4), np.float32)])
    # They may be more than a usual batch.
    x, y = [np.eye(70, 4, dtype=np.float32), np.ones((70, 4), np.float32)], np.arange(70) % 2
    np.testing.assert_array_equal(net.predict(x), net.predict(x, None))
    assert net.evaluate(x, y) == net.evaluate(x, y, None)


def test_indices_of_another_batch():
    x, i = Input("a", (5,)), Input("b", (2,), dtype="int64")
    net = FeedForwardNet(inputs=[x, i], outputs=layers.Gather("join")(x, i), seed=1)
    with pytest.raises(SingaNetError, match=REFUSED):
        net.predict({"a": np.ones((3, 5), np.float32), "b": np.zeros((1, 2), np.int64)})
