"""Users' parts beside what plans have: methods replaced, layers in Python and notes of them."""

import copy
import threading

import numpy as np
import pytest

from singanet import FeedForwardNet, Input, layers
from singanet.layers import Conv2D, Dense, Flatten, Layer, Softmax, Split, TimeDistributed, Traits
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import Accumulator, Adam, ClipByGlobalNorm
from singanet.types import RowSparse
from tests.kit.optimizers import Plain

from .program_case import CHAIN, IMAGES, Net, adam, chain, image_net, of, sgd, vectors
from .twins import Twins, expect_same
from .user_parts import (
    Alike,
    ClippedNet,
    Draws,
    InPlace,
    KeepsGradients,
    PureTwice,
    ScaledNet,
    times,
)

REAL = Net(lambda: chain(loss=SquaredError), of(5), of(3))


def test_an_optimizer_that_keeps_gradients_updates_at_the_next_step(placed, rng):
    """The step's end is the beginning of the next one, as an optimizer alone can tell."""

    class AtTheNextStep(KeepsGradients):
        def update(self, names, values, grads, scale=1.0):
            if any(name == kept[0] for name in names for kept in self.kept):
                self.finish()
            super().update(names, values, grads, scale)

    Twins(lambda: placed(chain()), lambda: AtTheNextStep(sgd())).fit(
        *CHAIN.batch(rng, 24), epochs=2
    )
    twins = Twins(lambda: placed(image_net()), lambda: KeepsGradients(sgd()))
    for number, (x, y) in enumerate(IMAGES.batches(8)):
        twins.step(x, y)
        if number % 2:
            twins.both(lambda _, optimizer: optimizer.finish())
        twins.expect_equal()


def test_an_update_of_a_pure_optimizer_s_own_is_called():
    twins = Twins(chain, lambda: PureTwice(lr=0.1, momentum=0.9))
    twins.train(CHAIN.batches(3))
    assert any("an update of its own" in note for note in twins.recorded.programs.notes)


@pytest.mark.parametrize("kind", [ClippedNet, ScaledNet])
def test_an_overridden_pass_is_obeyed(kind, placed):
    twins, plain = Twins(lambda: placed(chain(kind=kind)), sgd), placed(chain())
    steps = [(twins.step(x, y)[0], plain.step(x, y, sgd())[0]) for x, y in CHAIN.batches(6)]
    assert any(one != two for one, two in steps)


@pytest.mark.parametrize(("method", "at"), [("forward", 1), ("backward", 0)])
def test_a_pass_overridden_later_on_the_class(method, at, placed, monkeypatch):
    class Mine(FeedForwardNet):
        """Nothing of its own yet."""

    twins, data = Twins(lambda: placed(chain(kind=Mine)), sgd), CHAIN.batches(8)
    twins.train(data[:4])
    whole = getattr(FeedForwardNet, method)

    def later(net, *given):
        return whole(net, *given[:at], times(3, given[at]), *given[at + 1 :])

    monkeypatch.setattr(Mine, method, later, raising=False)
    twins.train(data[4:])


REPLACED = {
    "layer two, forward": (lambda net, _: net["two"], "forward", 1),
    "layer two, backward": (lambda net, _: net["two"], "backward", 1),
    "layer relu, forward": (lambda net, _: net["relu"], "forward", 1),
    "layer relu, backward": (lambda net, _: net["relu"], "backward", 1),
    "loss": (lambda net, _: net.loss, "forward", 1),
    "metric": (lambda net, _: net.metric, "evaluate", 1),
    # Once a layer of the walk that has parameters.
    "update": (lambda _, optimizer: optimizer, "update", 3),
}


@pytest.mark.parametrize("after", [0, 4])
@pytest.mark.parametrize("name", REPLACED)
def test_a_replaced_method_is_called(name, after, placed):
    """A number that the replacement counts is another one at each step."""
    part_of, method, often = REPLACED[name]
    calls = []

    def patch(net, optimizer):
        part = part_of(net, optimizer)
        inner, count = getattr(part, method), [0]

        def counted(*given):
            calls.append(net)
            count[0] += 1
            factor = np.float32(1 + count[0] / 10)
            if method == "update":
                names, values, grads, *scale = given
                return inner(names, values, [factor * grad for grad in grads], *scale)
            made = inner(*given)
            return (made[0] * factor, *made[1:]) if isinstance(made, tuple) else made * factor

        setattr(part, method, counted)

    twins = Twins(lambda: placed(chain(metric=Accuracy)), sgd)
    for number, (x, y) in enumerate(CHAIN.batches(10)):
        if number == after:
            twins.both(patch)
        twins.step(x, y)
    assert [calls.count(net) for net in twins.nets] == [often * (10 - after)] * 2


def test_a_layer_may_write_into_its_input_and_gradient(placed):
    """After a dense layer whose output nobody else reads."""

    def make():
        parts = [Dense("one", 5, input_sample_shape=(5,)), InPlace("square"), Dense("out", 3)]
        return placed(FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=2))

    Twins(make, sgd).train(CHAIN.batches(6))


# -- layers: what is recorded, and what runs in Python --------------------------------------


class Doubles(Alike):
    """y = 2 x, in a class that does not say that it is pure."""

    def forward(self, ctx, x):
        ctx.save(x=x)
        return 2.0 * x

    def backward(self, ctx, dy):
        return 2.0 * dy, {}


def doubles(forward, backward=Doubles.backward, *, pure=True, **more):
    """A class as `Doubles` with other passes."""
    return type(
        "Mine", (Doubles,), {"forward": forward, "backward": backward, "pure": pure, **more}
    )


def of_x(function):
    """A class that says it is pure, of a function of the input."""
    return doubles(lambda self, ctx, x: function(x))


class Counts(Doubles):
    """Another factor at each call."""

    calls = 0

    def forward(self, ctx, x):
        self.calls += 1
        self.factor = np.float32(self.calls)
        return x * self.factor

    def backward(self, ctx, dy):
        return dy * self.factor, {}


class Branches(Doubles):
    """Python that looks at values."""

    def forward(self, ctx, x):
        ctx.save(up=bool(x.sum() > 0))
        return x * 3.0 if x.sum() > 0 else -x

    def backward(self, ctx, dy):
        return dy * 3.0 if ctx.saved["up"] else -dy, {}


class Table(Layer):
    """w x element by element, with a constant and a state beside."""

    pure = True

    def setup(self, in_shapes):
        self.add_param("weight", in_shapes)
        self.table = np.linspace(0.5, 1.5, in_shapes[0], dtype=np.float32)
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x * ctx.params["weight"] + self.table

    def backward(self, ctx, dy):
        grads = {"weight": (dy * ctx.saved["x"]).sum(axis=0)}
        return dy * ctx.params["weight"] if ctx.needs_input_grad else None, grads


def filled(x):
    y = np.empty(x.shape, x.dtype)
    np.multiply(x, 2.0, out=y)
    return y


def assigned(x):
    y = np.empty(x.shape, x.dtype)
    y[...] = x
    return 2.0 * y


def by_nditer(x):
    y = np.zeros_like(x)
    with np.nditer([x, y], op_flags=[["readonly"], ["readwrite"]]) as places:
        for a, b in places:
            b[...] = 3 * a
    return y


def stumbling(x):
    """It takes arrays of NumPy's own class only."""
    if type(x) is not np.ndarray:
        raise TypeError("another class")
    return 2.0 * x


IMPURE = "does not say that it is pure"
OWN = {
    "doubles": (Doubles, IMPURE),
    "pure doubles": (of_x(lambda x: 2.0 * x), None),
    "table": (Table, None),
    "impure table": (type("ImpureTable", (Table,), {"pure": False}), IMPURE),
    "counts": (Counts, IMPURE),
    "draws by itself": (Draws, IMPURE),
    "branches": (Branches, IMPURE),
    "lies and branches": (
        type("Lies", (Branches,), {"pure": True}), "__bool__, which looks at values"),
    "lies in backward": (
        doubles(
            Doubles.forward,
            lambda self, ctx, dy: (2.0 * dy if float(dy.max()) > 0.5 else 0.5 * dy, {}),
        ),
        "__float__, which looks at values",
    ),
    "draws from the net": (
        doubles(lambda self, ctx, x: x + ctx.rng.standard_normal(x.shape).astype(x.dtype)),
        "a draw by the layer itself, rng.standard_normal",
    ),
    # Arrays made beside the kernels are no constants.
    "leaves the kernels": (of_x(lambda x: x + np.asarray(x).mean(axis=0)), ""),
    "fills its own": (of_x(filled), ""),
    "assigns its own": (of_x(assigned), ""),
    "gives its own": (
        doubles(
            lambda self, ctx, x: np.asarray(x) * np.float32(2.0),
            lambda self, ctx, dy: (np.asarray(dy) * np.float32(2.0), {}),
        ),
        "",
    ),
    "stumbles": (of_x(stumbling), "another class"),
    # Expressions with numbers of values, or by functions that kernels do not have.
    "mean": (of_x(lambda x: x - np.float32(x.mean())), ...),
    "largest": (of_x(lambda x: x - x.dtype.type(float(x.max()))), ...),
    "at largest": (of_x(lambda x: x * np.float32(int(x.argmax()))), ...),
    "drawn": (of_x(lambda x: x * np.float32(0.5 + np.random.rand())), ...),
    "nditer": (of_x(by_nditer), ...),
    "ldexp": (of_x(lambda x: np.ldexp(x, 2)), ...),
    "ldexp of array": (of_x(lambda x: np.ldexp(x, np.arange(x.shape[-1]))), ...),
}  # fmt: skip


def own_net(layer):
    return chain(lambda: layer("mine"), loss=SquaredError)


@pytest.mark.parametrize("name", OWN)
def test_layers_are_recorded_or_run_in_python_and_said_to_be(name, placed, rng):
    """The words are those of the notes; None: it is recorded, ...: either."""
    layer, words = OWN[name]
    twins = Twins(lambda: placed(own_net(layer)), adam)
    for number, (x, y) in enumerate(REAL.batches(6)):

        def both(act, number=number):
            made = []
            for net, rule in zip(twins.nets, twins.optimizers, strict=True):
                np.random.seed(number)
                made.append(act(net, rule))
            return made

        one, two = both(lambda net, rule, x=x, y=y: net.step(x, y, rule))
        assert one == two
        expect_same(*both(lambda net, _, x=x: net.forward(True, x)))
        twins.walk(vectors(rng, 4, 3))
        expect_same(*both(lambda net, _, x=x: net.forward(False, x)))
        twins.expect_equal()
    notes = twins.expect_recorded(loops=False)
    if words is not ...:
        assert bool(notes) == (words is not None)
        assert all("layer 'mine'" in note and words in note for note in notes)


OF_MODULE = np.random.default_rng(0)


@pytest.mark.parametrize("around", [False, True])
def test_recording_draws_nothing_from_a_generator_outside_of_a_layer(around):
    of_function = np.random.default_rng(0)
    drawn = of_function if around else OF_MODULE
    noisy = {
        True: lambda self, ctx, x: x + np.float32(of_function.random()),
        False: lambda self, ctx, x: x + np.float32(OF_MODULE.random()),
    }
    net, optimizer = own_net(doubles(noisy[around], pure=False)), sgd()
    alone = np.random.default_rng(0)
    for x, y in REAL.batches(4):
        net.step(x, y, optimizer)
        alone.random()
        assert drawn.bit_generator.state == alone.bit_generator.state
    assert "mine" in net.programs.notes[0]


class Rows(Layer):
    """A table whose gradient is row-sparse, not pure."""

    traits = Traits(input_kinds=("integers",))

    def setup(self, in_shapes):
        self.add_param("table", (9, 3))
        return (*in_shapes, 3)

    def forward(self, ctx, x):
        ctx.save(x=x)
        return ctx.params["table"][x]

    def backward(self, ctx, dy):
        indices = np.unique(ctx.saved["x"])
        rows = np.stack([dy[ctx.saved["x"] == k].sum(axis=0) for k in indices])
        return None, {"table": RowSparse(indices, rows.astype(dy.dtype))}


def test_a_layer_whose_rows_are_others_each_time(rng):
    def make():
        parts = [Rows("rows", input_sample_shape=(4,)), Flatten("flat"), Dense("out", 2)]
        return FeedForwardNet(parts, loss=SquaredError(), seed=4)

    twins = Twins(make, lambda: Adam(lr=0.01))
    for _ in range(6):
        x = rng.integers(0, 9, (3, 4))
        twins.step(x, vectors(rng, 3, 2))
        twins.forward(True, x)
        items = twins.walk(vectors(rng, 3, 2))
        assert isinstance(items[-1].grads[0], RowSparse)
    twins.expect_recorded(loops=False)


class Halves(Layer):
    """Two outputs, not pure."""

    def setup(self, in_shapes):
        return [(in_shapes[0] // 2,)] * 2

    def forward(self, ctx, x):
        half = x.shape[1] // 2
        return [x[:, :half].copy(), x[:, half:].copy()]

    def backward(self, ctx, dy):
        return np.concatenate(list(dy), axis=1), {}


class Mixes(Layer):
    """Two inputs, pure."""

    pure = True

    def setup(self, in_shapes):
        return in_shapes[0]

    def forward(self, ctx, xs):
        ctx.save(a=xs[0], b=xs[1])
        return xs[0] * xs[1]

    def backward(self, ctx, dy):
        return (dy * ctx.saved["b"], dy * ctx.saved["a"]), {}


@pytest.mark.parametrize("several", [Halves, lambda name: Split(name, 2)])
def test_layers_of_several_inputs_and_outputs(several, rng):
    def make():
        x = Input("x", (5,))
        a, b = several("halves")(Dense("in", 6)(x))
        out = Dense("out", 3)(Mixes("mixes")([layers.Activation("tanh", "tanh")(a), b]))
        return FeedForwardNet(SquaredError(), inputs=x, outputs=out, seed=4)

    twins = Twins(make, adam)
    for x, y in REAL.batches(6):
        twins.step(x, y)
        twins.forward(True, x)
        twins.walk(vectors(rng, 4, 3))
        twins.forward(False, x)


DRAWS_FROM_ALL = doubles(
    lambda self, ctx, x: x + np.random.standard_normal(x.shape).astype(x.dtype), pure=False
)


@pytest.mark.parametrize("layer", [Counts, DRAWS_FROM_ALL])
def test_a_layer_inside_one_of_singanets_is_seen(layer, rng):
    def make():
        each = TimeDistributed("each", layer("mine"), input_sample_shape=(3, 5))
        return FeedForwardNet([each, Flatten("flat"), Dense("out", 2)], seed=4)

    np.random.seed(3)
    twins = Twins(make)
    for _ in range(5):
        x, state = vectors(rng, 4, 3, 5), np.random.get_state()
        twins.nets[0].forward(False, x)
        seen = np.random.get_state()
        np.random.set_state(state)
        twins.nets[1].forward(False, x)
        np.testing.assert_array_equal(np.random.get_state()[1], seen[1])
    assert any(IMPURE in note for note in twins.expect_recorded())


def test_python_runs_once_a_call():
    net = own_net(Counts)
    for number, (x, _) in enumerate(CHAIN.batches(6)):
        net.forward(False, x)
        assert net["mine"].calls == number + 1


def test_a_layer_that_cannot_be_copied_keeps_the_net_from_recording():
    def make():
        net = own_net(Doubles)
        net["mine"].lock = threading.Lock()
        return net

    twins = Twins(make)
    for x, _ in CHAIN.batches(4):
        twins.forward(False, x)
    assert twins.recorded.programs.reports() == []
    assert "cannot be copied" in twins.recorded.programs.refusals[0]


@pytest.mark.parametrize(
    "layer",
    [
        layers.LayerNorm, layers.BatchNormalization, lambda name: layers.GroupNorm(name, 2),
        Softmax, layers.GlobalAvgPooling2D,
        lambda name: layers.AvgPooling2D(name, 2), lambda name: Conv2D(name, 4, 3),
    ],
)  # fmt: skip
def test_layers_of_float16_are_recorded_as_they_run(layer, rng):
    """NumPy's mean of float16 ends in the type's constructor, which recordings did not see: NaN."""

    def made():
        first = Conv2D("c", 4, 3, input_sample_shape=(2, 8, 8))
        net = FeedForwardNet([first, layer("n"), Flatten("f")], seed=0)
        net.as_type("float16")
        return net

    twins = Twins(made)
    for _ in range(4):
        twins.forward(False, vectors(rng, 3, 2, 8, 8).astype(np.float16))
    twins.expect_recorded()


def test_a_norm_before_the_last_micro_batch_of_a_users_rule():
    """Steps that only gather need no norm: a program of one is not for the step that does."""
    clipped = lambda: Accumulator(ClipByGlobalNorm(Plain(), 0.1), 2)  # noqa: E731
    twins = Twins(chain, clipped)
    twins.train(CHAIN.batches(8))


def test_a_refused_step_of_a_net_with_its_own_forward_leaves_no_pass(rng):
    twins = Twins(lambda: chain(kind=ScaledNet), sgd)
    x, y = CHAIN.batch(rng)
    for _ in range(3):
        twins.step(x, y)
        twins.refuse(lambda net, rule: net.step(x, y + 100, rule))
        twins.both(lambda net, _: copy.deepcopy(net))
