"""Layers of a user's own that do not keep to what they said."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ShapeError, SignatureError, SingaNetError
from singanet.layers import Dense, Flatten, Layer, Traits
from singanet.loss import SquaredError
from singanet.optimizer import SGD

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.zeros((3, 2), np.float32)


class Free(Layer):
    """A layer that does as it is told; with ``weighs`` it has a parameter."""

    def __init__(
        self, name, forward=lambda x: x, backward=lambda dy: (dy, {}), setup=lambda s: s, **more
    ):
        self.weighs = more.pop("weighs", False)
        super().__init__(name, **more)
        self.does = forward, backward, setup

    def setup(self, in_shapes):
        if self.weighs:
            self.add_param("w", (4,))
        return self.does[2](in_shapes)

    def forward(self, ctx, x):
        return self.does[0](x)

    def backward(self, ctx, dy):
        return self.does[1](dy)


def net(layer):
    parts = [Dense("in", 4, input_sample_shape=(4,)), layer, Dense("out", 2)]
    return FeedForwardNet(parts, loss=SquaredError(), seed=0)


@pytest.mark.parametrize(("does", "words"), [
    ([lambda x: x[:, :3]], r"an array \(batch, 4\).*an array of shape \(3, 3\)"),
    ([lambda x: None], "an array.*received a NoneType"),
    ([lambda x: [x, x]], r"received a list of an array of shape \(3, 4\), an"),
    ([lambda x: x.sum(axis=1)], r"received an array of shape \(3,\)"),
    ({"backward": lambda dy: dy}, "backward to return the input gradient and a dict"),
    ({"backward": lambda dy: (dy, None)}, r"write return dx, \{'weight': dw\}"),
    ({"backward": lambda dy: (dy[:, :1], {})}, r"received an array of shape \(3, 1\)"),
    (
        {"backward": lambda dy: (dy, {"w": dy}), "weighs": True}, r"gradient of 'w'.*shape \(4,\)",
    ),
    ({"weighs": True}, "a gradient for the parameter 'w'"),
])  # fmt: skip
def test_the_layer_is_named(does, words):
    layer = Free("odd", *does) if isinstance(does, list) else Free("odd", **does)
    with pytest.raises(ShapeError, match=f"layer 'odd'.*{words}"):
        net(layer).step(X, Y, SGD(lr=0.1))


class Scale(Layer):
    """As its guide says; ``wrong`` takes the place of a method from the fourth step on."""

    def __init__(self, name, wrong=None, where=""):
        super().__init__(name)
        self.wrong, self.where = wrong, where
        self.left = [3]  # a list, which is no setting that calls for another program

    def setup(self, in_shapes):
        self.add_param("w", (4,))
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        if self.where == "forward" and self.left[0] <= 0:
            return self.wrong(ctx, x)
        return x * (1 + ctx.params["w"])

    def backward(self, ctx, dy):
        self.left[0] -= 1
        if self.where == "backward" and self.left[0] < 0:
            return self.wrong(ctx, dy)
        return dy * (1 + ctx.params["w"]), {"w": (dy * ctx.saved["x"]).sum(axis=0)}


def expect_at_the_fourth_step(made, error, words):
    rule = SGD(lr=0.001)
    for _ in range(3):
        made.step(X, Y, rule)
    assert bool(made.programs.reports()) is made.programs.enabled
    with pytest.raises(error, match=words) as caught:
        made.step(X, Y, rule)
    return str(caught.value)


@pytest.mark.few(4)
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("where", "wrong", "words"), [
    ("forward", lambda ctx, x: x * ctx.params["b"], r"of ctx.params: 'w'; received .*\['b'\]"),
    ("forward", lambda ctx, x: ctx.save(x), r"ctx.save: expected a name for each value"),
    ("forward", lambda ctx, x: x * (1 + 0j), r"received an array of type complex64"),
    ("forward", lambda ctx, x: np.array([[None] * 4] * 3), r"received an array of type object"),
    ("backward", lambda ctx, dy: (ctx.saved["y"], {}), r"of ctx.saved: 'x'; received .*'y'"),
    ("backward", lambda ctx, dy: (dy, {"w": list(dy[0])}), r"of 'w'.*received a list of"),
    ("backward", lambda ctx, dy: (dy, {"w": 1.0}), r"shape \(4,\); received a float"),
    ("backward", lambda ctx, dy: (dy, {"w": dy[0] * 1j}), r"of 'w'.*of type complex64"),
    ("backward", lambda ctx, dy: (dy[1:], {"w": dy[0]}), r"of shape \(3, 4\), as its input"),
    ("backward", lambda ctx, dy: (dy[:1], {"w": dy[0]}), r"an array of shape \(1, 4\)"),
])  # fmt: skip
def test_what_goes_wrong_inside_is_told_of_the_layer(where, wrong, words, recorded):
    made = net(Scale("odd", wrong, where))
    made.programs.enabled = recorded
    text = expect_at_the_fourth_step(made, SingaNetError, words)
    assert "layer 'odd'" in text or where == "forward"


def test_a_shape_that_depends_on_numbers_is_not_spread_over_the_recorded_one():
    odd = Scale("odd", lambda ctx, x: x[:1], "forward")
    odd.traits = Traits(samples="own")
    words = r"'odd'.*\(3, 4\), as when .* received \(1, 4\)"
    expect_at_the_fourth_step(net(odd), ShapeError, words)


def test_as_many_samples_come_out_as_went_in():
    layer = Free("odd", lambda x: x[:1])
    with pytest.raises(ShapeError, match="'odd': expected forward to return 3 samples.*received 1"):
        net(layer).predict(X)
    layer.traits = Traits(samples="own")
    assert net(layer).predict(X).shape == (1, 2)


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("setup", "self, in_shapes"), ("forward", "self, ctx, x"), ("backward", "self, ctx, dy")],
)
def test_a_method_without_the_arguments_that_it_is_called_with(method, arguments):
    def alone(self): ...

    alone.__name__ = method
    words = rf"expected def {method}\({arguments}\); received def {method}\(self\)"
    with pytest.raises(SignatureError, match=f"layer 'odd': {words}"):
        net(type("Odd", (Scale,), {method: alone})("odd")).step(X, Y, SGD(lr=0.1))


def test_errors_of_a_users_own_code_stay_what_they_are():
    made = net(Scale("odd", lambda ctx, x: {}["mine"], "forward"))
    made["odd"].left[0] = 0
    with pytest.raises(KeyError, match="^'mine'$"):
        made.predict(X)
    made["odd"].wrong = lambda ctx, x: len(3)
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        made.predict(X)
    made["odd"].wrong = lambda ctx, x: x * ctx.params.get("b", 2)
    made.predict(X)
    made["odd"].wrong = lambda ctx, x: ctx.params["W"]
    with pytest.raises(KeyError, match="one of the entries of ctx.params: .w."):
        made.predict(X)


@pytest.mark.parametrize("result", [None, 4, "four"])
def test_a_setup_without_shapes(result):
    with pytest.raises(ShapeError, match="'odd'.*setup to return.*return in_shapes"):
        net(Free("odd", setup=lambda shape: result))


def _negate(x):
    x *= -1
    return x


@pytest.mark.parametrize("before", [False, True])
def test_a_forward_in_place_leaves_the_callers_array(before):
    odd = Free("odd", _negate, lambda dy: (-dy, {}), input_sample_shape=None if before else (4,))
    parts = [Flatten("f", input_sample_shape=(4,)), odd] if before else [odd]
    made = FeedForwardNet([*parts, Dense("out", 2)], loss=SquaredError(), seed=0)
    x, want = X.copy(), -X @ made["out"].params["weight"].value
    for _ in range(3):
        np.testing.assert_allclose(made.predict(x), want, rtol=1e-6)
        made.step(x, Y, SGD(lr=0.0))
        made.forward(True, x)
    assert np.array_equal(x, X)


def test_several_inputs_and_no_gradient_for_one():
    odd = Free("both", lambda x: x[0] + x[1], lambda dy: ([dy, None], {}), lambda shapes: shapes[0])
    made = FeedForwardNet(loss=SquaredError(), seed=0)
    made.add(Dense("a", 4, input_sample_shape=(4,)))
    made.add(Dense("b", 4, input_sample_shape=(4,)), [])
    made.add(odd, ["a", "b"])
    x = {"a": X, "b": X}
    made.step(x, X, SGD(lr=0.1))
    odd.does = (lambda x: x[0], lambda dy: ([dy], {}), None)
    with pytest.raises(ShapeError, match=r"'both'.*arrays \(batch, 4\), \(batch, 4\)"):
        made.train(x, X)
