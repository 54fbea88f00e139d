"""Every layer with several inputs refuses unlike batch sizes before anything is computed."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.engine.feeds import check_feed
from singanet.errors import SingaNetError
from singanet.executor import Executor
from singanet.layers import (
    LSTM,
    Add,
    Average,
    Concat,
    Dense,
    Divide,
    Dot,
    Flatten,
    Gather,
    Input,
    Layer,
    MatMul,
    Maximum,
    Merge,
    Minimum,
    MultiHeadAttention,
    Multiply,
    Reduce,
    Subtract,
    Traits,
    Where,
)
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import SGD


class Mean(Layer):
    """A user's own layer of two inputs."""

    def setup(self, in_shapes):
        return in_shapes[0]

    def forward(self, ctx, x):
        return (x[0] + x[1]) / 2

    def backward(self, ctx, dy):
        return [dy / 2, dy / 2], {}


class Halves(Layer):
    """A user's own layer that hands on every second sample."""

    traits = Traits(samples="own")

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x[::2]

    def backward(self, ctx, dy):
        return np.repeat(dy, 2, axis=0), {}


JOINS = {
    "merge": lambda a, b: Merge("join")(a, b),
    "dot": lambda a, b: Dot("join")(a, b),
    "concat": lambda a, b: Concat("join", 1)(a, b),
    "add": lambda a, b: Add("join")(a, b),
    "average": lambda a, b: Average("join")(a, b),
    "maximum": lambda a, b: Maximum("join")(a, b),
    "minimum": lambda a, b: Minimum("join")(a, b),
    "subtract": lambda a, b: Subtract("join")(a, b),
    "divide": lambda a, b: Divide("join")(a, b),
    "multiply": lambda a, b: Multiply("join")(a, b),
    "where": lambda a, b: Where("join", b=0.0)(a > 0, b),
    "own": lambda a, b: Mean("join")(a, b),
}
STEPS = {
    "matmul": lambda a, b: MatMul("join", transpose_b=True)(a, b),
    "attention": lambda a, b: MultiHeadAttention("join", 2, 4)(a, b),
    "states": lambda a, b: LSTM("join", 4)(
        a, *(Dense(f"d{k}", 4)(Reduce(f"p{k}", "mean", 1, True)(b)) for k in "hc")
    ),
}


def net_of(name):
    steps = name in STEPS
    inputs = [Input(k, (4, 4) if steps else (4,)) for k in "ab"]
    a, b = (Dense(f"in_{k}", 4)(x) for k, x in enumerate(inputs))
    y = {**JOINS, **STEPS}[name](a, b)
    if steps:
        y = Flatten("flat")(y)
    # Above the join is something to update.
    return FeedForwardNet(inputs=inputs, outputs=Dense("out", 2)(y), loss=SquaredError(), seed=1)


def feed_of(name, first, second):
    shape = (4, 4) if name in STEPS else (4,)
    return {"a": np.ones((first, *shape), np.float32), "b": np.ones((second, *shape), np.float32)}


CALLS = {
    "forward": lambda net, x, y: net.forward(False, x),
    "training": lambda net, x, y: net.forward(True, x),
    "predict": lambda net, x, y: net.predict(x),
    "evaluate": lambda net, x, y: net.evaluate(x, y),
    "predictor": lambda net, x, y: net.predictor()(x),
    "step": lambda net, x, y: net.step(x, y, SGD(0.1)),
    "by layers": lambda net, x, y: (
        setattr(net.programs, "enabled", False),
        CALLS["step"](net, x, y),
    ),
    "train": lambda net, x, y: net.train(x, y),
    "record": lambda net, x, y: net.record(x, y, SGD(0.1)),
    "gradients": lambda net, x, y: net.gradients("out", ["a"], x),
}


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


@pytest.mark.parametrize("sizes", [(4, 1), (1, 4), (4, 3)])
def test_an_executor_refuses_them(sizes):
    a, b, y = Input("a", (4,)), Input("b", (4,)), Input("y", (2,))
    cost = SquaredError()(Dense("out", 2)(Merge("join")(a, b)), y)
    executor = Executor({"train": [cost, SGD(0.1).minimize(cost)], "see": [cost]}, seed=1)
    for program in ("see", "train"):
        x = {**feed_of("merge", *sizes), "y": np.zeros((sizes[0], 2), np.float32)}
        with pytest.raises(SingaNetError, match="'join': expected inputs of one batch size"):
            executor.run(program, x)


def test_batches_that_are_stacked_may_differ():
    a, b, c = (Input(k, (4,)) for k in "abc")
    stacked = Concat("stack", 0)(a, b)
    net = FeedForwardNet(inputs=[a, b, c], outputs=Add("join")(stacked, c), seed=1)
    x = {**feed_of("add", 3, 2), "c": np.ones((5, 4), np.float32)}
    assert net.predict(x).shape == (5, 4)
    x["c"] = x["c"][:1]
    with pytest.raises(SingaNetError, match=r"'join': expected inputs of one batch size.*\[5, 1\]"):
        net.predict(x)


def test_outputs_that_never_meet_may_be_of_other_sizes():
    a, b = Input("a", (4,)), Input("b", (4,))
    net = FeedForwardNet(inputs=[a, b], outputs=[Dense("x", 1)(a), Dense("y", 1)(b)], seed=1)
    made = net.forward(False, feed_of("add", 3, 2))
    assert [len(made[k]) for k in "xy"] == [3, 2]


@pytest.mark.parametrize(("sizes", "fits"), [((4, 2), True), ((2, 2), False), ((4, 1), False)])
def test_a_layer_whose_number_of_samples_is_its_own(sizes, fits):
    a, b = Input("a", (4,)), Input("b", (4,))
    net = FeedForwardNet(inputs=[a, b], outputs=Merge("join")(Halves("half")(a), b), seed=1)
    if fits:
        assert net.predict(feed_of("add", *sizes)).shape == (2, 4)
        return
    with pytest.raises(SingaNetError, match="'join': expected inputs of one batch size"):
        net.predict(feed_of("add", *sizes))


def test_an_input_layer_of_several_arrays():
    net = FeedForwardNet([Merge("join", [(4,), (4,)]), Dense("out", 2)], seed=1)
    with pytest.raises(SingaNetError, match="'join': expected inputs of one batch size"):
        net.predict([np.ones((4, 4), np.float32), np.ones((1, 4), np.float32)])


def test_an_input_layer_of_several_arrays_takes_more_than_a_usual_batch():
    layers = [Merge("join", [(4,), (4,)]), Dense("out", 2)]
    net = FeedForwardNet(layers, loss=SoftmaxCrossEntropy(), seed=1)
    x, y = [np.eye(70, 4, dtype=np.float32), np.ones((70, 4), np.float32)], np.arange(70) % 2
    np.testing.assert_array_equal(net.predict(x), net.predict(x, None))
    assert net.evaluate(x, y) == net.evaluate(x, y, None)


def test_indices_of_another_batch():
    x, i = Input("a", (5,)), Input("b", (2,), dtype="int64")
    net = FeedForwardNet(inputs=[x, i], outputs=Gather("join")(x, i), seed=1)
    feed = {"a": np.ones((3, 5), np.float32), "b": np.zeros((1, 2), np.int64)}
    with pytest.raises(SingaNetError, match="'join': expected inputs of one batch size"):
        net.predict(feed)
