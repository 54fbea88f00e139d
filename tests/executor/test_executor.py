"""Programs by name: what they give, beside loops by hand over nets, to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import Executor, FeedForwardNet, Input, errors, layers, loss
from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError, UnknownNameError
from singanet.executor import executor as executor_module
from singanet.executor import from_loader, gradients
from singanet.layers import Activation, Add, Dense, Dropout
from singanet.loss import SigmoidCrossEntropy, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy, BinaryAccuracy, MeanAbsoluteError, Metric
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByValue
from singanet.parallel import Pipeline
from tests.kit.nets import values_of
from tests.kit.optimizers import Plain
from tests.kit.ranks import expect_near_values, expect_same_bits, together
from tests.program.user_parts import Gain


def batch(count=8, features=6, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, features)).astype(np.float32), rng.integers(0, 3, count)


def fed(*given, **options):
    return dict(zip("xy", batch(*given, **options), strict=True))


def chain():
    return [Dense("a", 5), Activation("r", "tanh"), Dense("b", 3)]


def through(symbol, layers):
    for layer in layers:
        symbol = layer(symbol)
    return symbol


class Graph:
    """Inputs, the layers of `chain`, scores and a loss of them."""

    def __init__(self, layers=None, features=6):
        self.x, self.y = Input("x", (features,)), Input("y", (), dtype="int64")
        self.layers = chain() if layers is None else layers
        self.scores = through(self.x, self.layers)
        self.loss = SoftmaxCrossEntropy()(self.scores, self.y)

    def trained_by(self, *updates, **given):
        return Executor({"train": [self.loss, *updates]}, seed=0, **given)


def classifier(optimizer, seed=0, extra=(), **given):
    graph = Graph([*extra, *chain()])
    value, accuracy = graph.loss, Accuracy()(graph.scores, graph.y)
    programs = {
        "train": [value, optimizer.minimize(value)],
        "watched": [accuracy, optimizer.minimize(value), value],
        "validate": [value, accuracy],
        "infer": [graph.scores],
    }
    return Executor(programs, seed=seed, **given), graph


def by_hand(layers=None, loss=SoftmaxCrossEntropy, shape=(6,), metric=None):
    first, *rest = chain() if layers is None else layers
    first.input_sample_shape = shape
    return FeedForwardNet([first, *rest], loss=loss(), metric=metric, seed=0)


def expect_near(one, other, rtol=1e-5, atol=1e-6):
    expect_near_values(values_of(one), values_of(other), rtol, atol)


def train_both(executor, net, rule, feeds, program="train"):
    for feed in feeds:
        assert net.step(*feed.values(), rule)[0] in executor.run(program, feed)
        expect_same_bits([executor.net, net])


# -- what is trained ------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["train", "watched", "validate"]), st.integers(1, 9)),
        min_size=1, max_size=8,
    ),
    st.sampled_from([0.05, 0.5]),
)  # fmt: skip
def test_any_sequence_of_runs_is_that_of_steps_of_a_net(runs, rate):
    executor, _ = classifier(SGD(rate, momentum=0.9))
    net, sgd = by_hand(metric=Accuracy()), SGD(rate, momentum=0.9)
    for k, (name, count) in enumerate(runs):
        feed = fed(count, seed=k)
        values = executor.run(name, feed)
        wanted = net.evaluate(*feed.values())
        if name != "validate":
            wanted = net.step(*feed.values(), sgd)
        found = {"train": values[:1], "watched": values[2::-2], "validate": values}[name]
        assert list(found) == list(wanted)[: len(found)]
        expect_same_bits([executor.net, net])


def one_loss():
    graph = Graph()
    return {"s": graph.scores, "l": graph.loss}, [SGD(0.5).minimize(graph.loss)]


def losses_apart():
    graph = Graph([])
    made = {
        name: SoftmaxCrossEntropy()(Dense(f"fc_{name}", 3)(graph.x), graph.y, name=f"loss_{name}")
        for name in "ab"
    }
    return made, [SGD(0.5).minimize(each) for each in made.values()]


@pytest.mark.parametrize(
    ("make", "asked"),
    [*((one_loss, asked) for asked in ("", "s", "ls", "sl", "ll")),
     *((losses_apart, asked) for asked in ("", "a", "b", "aa", "ab"))],
)  # fmt: skip
def test_what_is_asked_for_beside_an_update_is_from_before_it(make, asked):
    symbols, updates = make()
    programs = {"train": [*(symbols[name] for name in asked), *updates]}
    executor, feed = Executor({**programs, "watch": [*symbols.values()]}, seed=0), fed()
    for _ in range(3):
        before = dict(zip(symbols, executor.run("watch", feed), strict=True))
        found = executor.run("train", feed)
        assert found[len(asked) :] == [None] * len(updates)
        for name, value in zip(asked, found, strict=False):
            np.testing.assert_allclose(value, before[name], rtol=1e-5, atol=1e-6)


def test_a_gan_trains_as_a_loop_by_hand():
    def parts():
        made = [Dense("g1", 4), Activation("gr", "relu"), Dense("g2", 2)]
        return made, [Dense("d1", 4), Activation("dr", "relu"), Dense("d2", 1)]

    maker, critic = parts()
    real, z = Input("real", (2,)), Input("z", (3,))
    ones, zeros = Input("ones", (1,)), Input("zeros", (1,))
    made = through(z, maker)
    on_real, on_made = through(real, critic), through(made, critic)
    halves = SigmoidCrossEntropy()(on_real, ones), SigmoidCrossEntropy()(on_made, zeros)
    d_loss, g_loss = Add("both")(*halves), SigmoidCrossEntropy()(on_made, ones)
    programs = {
        "critic": [d_loss, Adam(lr=0.01).minimize(d_loss, critic)],
        "maker": [g_loss, SGD(0.1).minimize(g_loss, maker)],
        "made": [made],
    }
    executor = Executor(programs, seed=4)
    own_maker, own_critic = parts()
    own_maker[0].input_sample_shape, own_critic[0].input_sample_shape = (3,), (2,)
    g, d = FeedForwardNet(own_maker, seed=4), FeedForwardNet(own_critic, seed=4)
    adam, sgd, rng = Adam(lr=0.01), SGD(0.1), np.random.default_rng(1)
    yes, no = np.ones((8, 1), np.float32), np.zeros((8, 1), np.float32)
    for _ in range(5):
        points, noise = (rng.standard_normal((8, n)).astype(np.float32) for n in (2, 3))
        told, _ = executor.run("critic", {real: points, z: noise, ones: yes, zeros: no})
        losses, walks = [], []
        for given_, target in ((points, yes), (g.forward(False, noise), no)):
            one = SigmoidCrossEntropy()
            losses.append(one.forward(True, d.forward(True, given_), target))
            walks.append(list(d.backward(one.backward())))
        for (names, values, one), (_, _, other) in zip(*walks, strict=True):
            adam.update(names, values, [a + b for a, b in zip(one, other, strict=True)])
        assert told == float((losses[0] + losses[1]).mean())

        told, _ = executor.run("maker", {z: noise, ones: yes})
        fake, one = g.forward(True, noise), SigmoidCrossEntropy()
        assert told == float(one.forward(True, d.forward(False, fake), yes).mean())
        down = d.gradients("d2", "input", fake, dys=one.backward())["input"]
        for item in g.backward(down):
            sgd.update(*item)
        expect_same_bits([executor.net, g, d])
    assert np.array_equal(executor.run("made", {z: noise})[0], g.forward(False, noise))


def test_two_losses_train_as_a_net_with_a_loss_of_two():
    def drawn():
        x = Input("x", (6,))
        trunk = Activation("t", "tanh")(Dense("trunk", 5)(x))
        return x, Dense("kind", 3)(trunk), Dense("size", 2)(trunk)

    _, kind, size = drawn()
    y, s = Input("y", (), dtype="int64"), Input("s", (2,))
    parts = [SoftmaxCrossEntropy()(kind, y), SquaredError()(size, s)]
    total = Add("total")(*parts)
    executor = Executor({"train": [total, *parts, SGD(0.1).minimize(total)]}, seed=0)
    own, *outputs = drawn()
    both = loss.MultiLoss({"kind": SoftmaxCrossEntropy(), "size": SquaredError()})
    net, sgd = FeedForwardNet(loss=both, inputs=own, outputs=outputs, seed=0), SGD(0.1)
    for k in range(4):
        images, labels = batch(seed=k)
        sizes = images[:, :2].copy()
        values = executor.run("train", {"x": images, "y": labels, "s": sizes})
        assert values[0] == net.step(images, {"kind": labels, "size": sizes}, sgd)[0]
        assert values[1:] == [*(float(part.mean()) for part in both.parts.values()), None]
        expect_same_bits([executor.net, net])


def test_each_of_several_optimizers_follows_the_settings_of_its_parameters():
    def made():
        low, middle, top = chain()
        return [low, middle, Dense("still", 5), top]  # one of no optimizer

    graph = Graph(made())
    low, _, _, top = graph.layers
    executor = graph.trained_by(
        SGD(0.1).minimize(graph.loss, low), SGD(0.2).minimize(graph.loss, top)
    )
    net, own = by_hand(made()), SGD(0.1)
    net["still"].trainable = False
    for param in net["b"].params.values():
        param.spec = replace(param.spec, lr_mult=2.0)
    view = executor._programs["train"].view
    planned = view._execution_plan()
    for rate in (1.0, 0.5, 0.25):
        for one in (executor.net, net):
            weight = one["a"].params["weight"]
            weight.spec = replace(weight.spec, lr_mult=rate)
        train_both(executor, net, own, [fed()] * 2)
    assert view._execution_plan() is planned  # rates are no part of steps


def test_losses_apart_are_updated_in_one_run():
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    one, two = (SoftmaxCrossEntropy()(Dense(name, 3)(x), y) for name in ("one", "two"))
    program = [two, SGD(0.1).minimize(one), one, Adam(lr=0.01).minimize(two)]
    executor, feed = Executor({"train": program}, seed=0), fed()
    for _ in range(3):
        losses = executor.run("train", feed)
    for k, (name, optimizer) in enumerate((("two", Adam(lr=0.01)), ("one", SGD(0.1)))):
        net = by_hand([Dense(name, 3)])
        for _ in range(3):
            wanted = net.step(*feed.values(), optimizer)[0]
        assert losses[2 * k] == wanted
        assert np.array_equal(net.params()[0].value, executor.net[name].params["weight"].value)


def test_an_update_reaches_its_parameters_alone():
    graph = Graph()
    executor = Executor({"top": [SGD(0.1).minimize(graph.loss, graph.layers[2])]}, seed=0)
    before = values_of(executor.net)
    for _ in range(3):
        assert executor.run("top", fed()) == [None]
    after = values_of(executor.net)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert changed == {"b/weight", "b/bias"}


@pytest.mark.parametrize("how", ["trainable", "freeze"])
def test_what_is_trained_may_change_between_runs(how):
    executor, _ = classifier(SGD(0.1))
    net, own = by_hand(), SGD(0.1)
    for flag in (True, False, True):
        for one in (executor.net, net):
            if how == "trainable":
                one["a"].trainable = flag
            else:
                one.unfreeze() if flag else one.freeze("b")
        train_both(executor, net, own, [fed()] * 3)


def test_a_layer_that_was_not_trained_at_first_is_no_programs_to_train_later():
    low, *rest = chain()
    low.trainable = False
    graph = Graph([low, *rest])
    executor = graph.trained_by(SGD(0.1).minimize(graph.loss))
    low.trainable = True
    before = low.params["weight"].value.copy()
    executor.run("train", fed())
    assert np.array_equal(before, low.params["weight"].value)


def test_a_frozen_use_of_a_shared_weight_gives_no_gradient():
    def shared():
        x, a = Input("x", (6,)), Dense("a", 6)
        h = Activation("r", "tanh")(a(x))
        return x, Dense("b", 6, W_specs=a.params["weight"])(h)

    value = SoftmaxCrossEntropy()(shared()[1], Input("y", (), dtype="int64"))
    executor = Executor({"train": [value, SGD(0.1).minimize(value)]}, seed=0)
    x, scores = shared()
    net = FeedForwardNet(inputs=x, outputs=scores, loss=SoftmaxCrossEntropy(), seed=0)
    (images, labels), own, before = batch(), SGD(0.1), net.params()[0].value.copy()
    for one in (executor.net, net):
        one.freeze("b")
    h = np.tanh(images @ before)
    p = np.exp(h @ before)
    p /= p.sum(axis=1, keepdims=True)
    dy = (p - np.eye(6, dtype=np.float32)[labels]) / len(labels)
    train_both(executor, net, own, [fed()])
    moved = before - executor.net.params()[0].value
    # Of "b" alone: the gradient through "a", which is frozen, would be added to it.
    np.testing.assert_allclose(moved, 0.1 * h.T @ dy, rtol=1e-4, atol=1e-6)
    train_both(executor, net, own, [fed()] * 2)


def test_running_state_and_draws_are_those_of_training_or_evaluation():
    extra = [layers.BatchNormalization("bn", momentum=0.1), Dropout("drop", 0.5)]
    executor, _ = classifier(SGD(0.1), extra=extra)
    images, labels = batch(64)
    images = images * 3 + 2
    losses = {executor.run("train", {"x": images, "y": labels})[0] for _ in range(4)}
    assert len(losses) == 4, "each run draws masks of its own"
    state = executor.net["bn"].params
    mean, var = (state[name].value.copy() for name in ("mean", "var"))
    # The momentum is that of the new values: of starts 0 and 1, after four batches alike.
    kept = 0.9**4
    assert np.allclose(mean, (1 - kept) * images.mean(axis=0), rtol=1e-4)
    assert np.allclose(var, kept + (1 - kept) * images.var(axis=0), rtol=0.03)
    first, second = (executor.run("infer", {"x": images})[0] for _ in range(2))
    assert np.array_equal(first, second)
    assert np.array_equal(mean, state["mean"].value)


@pytest.mark.parametrize("wrap", [lambda o: Accumulator(o, 2), lambda o: ClipByGlobalNorm(o, 0.1)])
def test_stages_of_an_optimizer_do_as_in_a_net(wrap):
    feeds = [fed(4 + k % 2, seed=k) for k in range(6)]
    train_both(classifier(wrap(SGD(0.5)))[0], by_hand(), wrap(SGD(0.5)), feeds)


def positions(rule):
    """An executor whose labels of -1 do not count and whose samples are weighed, and a net."""
    x, y, w = Input("x", (4, 6)), Input("y", (4,), dtype="int64"), Input("w", ())
    scores = layers.TimeDistributed("td", Dense("fc", 3))(x)
    value = SoftmaxCrossEntropy(ignore_index=-1)(scores, y, sample_weight=w)
    executor = Executor({"train": [value, rule.minimize(value)]}, seed=0)
    layer = layers.TimeDistributed("td", Dense("fc", 3))
    return executor, by_hand([layer], lambda: SoftmaxCrossEntropy(ignore_index=-1), (4, 6))


def test_positions_that_do_not_count_and_weights_go_as_in_a_net(rng):
    executor, net = positions(SGD(0.1))
    sgd = SGD(0.1)
    for _ in range(4):
        steps = rng.standard_normal((5, 4, 6)).astype(np.float32)
        labels, weights = rng.integers(-1, 3, (5, 4)), rng.random(5).astype(np.float32)
        value, _ = executor.run("train", {"x": steps, "y": labels, "w": weights})
        assert value == net.step(steps, labels, sgd, sample_weight=weights)[0]
        # Not to the bit: batch / positions is a factor of its own here.
        expect_near(executor.net, net, atol=1e-7)


def test_accumulated_batches_weigh_by_the_positions_that_count(rng):
    executor, net = positions(Accumulator(SGD(0.5), 2))
    sgd, ones = SGD(0.5), np.ones(4, np.float32)
    for _ in range(3):
        steps = rng.standard_normal((8, 4, 6)).astype(np.float32)
        labels = np.where(rng.random((8, 4)) < 0.2, rng.integers(0, 3, (8, 4)), -1)
        labels[0], labels[4, 0] = 1, 1
        for cut in (slice(0, 4), slice(4, 8)):
            executor.run("train", {"x": steps[cut], "y": labels[cut], "w": ones})
        net.step(steps, labels, sgd)
        expect_near(executor.net, net, rtol=1e-4)


def test_autoencoder_of_one_input():
    x = Input("x", (6,))
    value = loss.MeanSquaredError()(Dense("up", 6)(Dense("down", 2)(x)), x)
    executor = Executor({"train": [value, SGD(0.1).minimize(value)]}, seed=0)
    net, sgd = by_hand([Dense("down", 2), Dense("up", 6)], loss.MeanSquaredError), SGD(0.1)
    images, _ = batch()
    for _ in range(4):
        found = executor.run("train", {x: images})[0]
        assert found == pytest.approx(net.step(images, images, sgd)[0], rel=1e-6)


def test_a_critic_without_labels_and_a_loss_of_scores_alone():
    x, critic = Input("x", (6,)), Dense("critic", 1, use_bias=False)
    score = layers.Reshape("score", ())(critic(x))
    executor = Executor({"up": [score, SGD(0.1).minimize(score)]}, seed=0)
    images, _ = batch()
    for _ in range(3):
        before = critic.params["weight"].value.copy()
        (value, _) = executor.run("up", {x: images})
        assert value == pytest.approx(float((images @ before).mean()), rel=1e-4, abs=1e-6)
        wanted = before - 0.1 * images.mean(axis=0)[:, None]
        assert np.allclose(critic.params["weight"].value, wanted, atol=1e-6)


def test_a_net_is_a_symbol():
    body = FeedForwardNet([Dense("a", 5, input_sample_shape=(6,)), Dense("b", 3)], name="body")
    graph, feed = Graph([body]), fed()
    executor = Executor({"train": [SGD(0.1).minimize(graph.loss, body)]}, seed=0)
    before = body.forward(False, feed["x"])
    for _ in range(2):
        executor.run("train", feed)
    after = body.forward(False, feed["x"])
    assert not np.array_equal(before, after)
    assert np.array_equal(after, executor.run("train", {"x": feed["x"]}, [graph.scores])[0])


def test_two_optimizers_of_one_loss_train_as_in_pytorch():
    """The wide part by SGD with momentum, the deep one by Adam, as a train_step of one's own."""
    torch = pytest.importorskip("torch")
    x, y = Input("x", (6,)), Input("y", (), dtype="int64")
    linear, deep = Dense("linear", 3), [Dense("low", 5), Activation("r", "tanh"), Dense("top", 3)]
    value = SoftmaxCrossEntropy()(Add("scores")(linear(x), through(x, deep)), y)
    step = [SGD(0.1, momentum=0.9).minimize(value, linear), Adam(lr=0.01).minimize(value, deep)]
    executor = Executor({"train": [value, *step]}, seed=0)
    shapes = {"linear": (6, 3), "low": (6, 5), "top": (5, 3)}
    theirs = {name: torch.nn.Linear(*shape) for name, shape in shapes.items()}
    with torch.no_grad():
        for name, layer in theirs.items():
            params = executor.net[name].params
            layer.weight.copy_(torch.from_numpy(params["weight"].value.T.copy()))
            layer.bias.copy_(torch.from_numpy(params["bias"].value))
    optimizers = [
        torch.optim.SGD(theirs["linear"].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam([*theirs["low"].parameters(), *theirs["top"].parameters()], lr=0.01),
    ]
    for k in range(12):
        feed = fed(seed=k)
        given = torch.from_numpy(feed["x"])
        scores = theirs["linear"](given) + theirs["top"](torch.tanh(theirs["low"](given)))
        wanted = torch.nn.functional.cross_entropy(scores, torch.from_numpy(feed["y"]))
        for optimizer in optimizers:
            optimizer.zero_grad()
        wanted.backward()
        for optimizer in optimizers:
            optimizer.step()
        assert executor.run("train", feed)[0] == pytest.approx(wanted.item(), rel=1e-4)
    for name, layer in theirs.items():
        weight = executor.net[name].params["weight"].value.T
        np.testing.assert_allclose(weight, layer.weight.detach().numpy(), atol=1e-4)


# -- parts of the users' own ----------------------------------------------------------------------


class Cubic(loss.Loss):
    """|x − y|³."""

    def compute(self, ops, x, y):
        off = np.asarray(x) - np.asarray(y)
        return abs(off) ** 3, off

    def gradient(self, ops, off):
        return 3 * off * abs(off)


class Largest(Metric):
    def reset(self):
        self.samples, self.most = 0, 0.0

    def update(self, x, y):
        self.samples += len(x)
        self.most = max(self.most, float(abs(x - y).max()))

    def compute(self):
        return self.most


def test_parts_of_the_users_own():
    x, y, layer = Input("x", (6,)), Input("y", (2,)), Dense("fc", 2)
    out = layer(Gain("half", 0.5)(x))
    value = Cubic()(out, y)
    program = [value, Largest()(out, y), Plain().minimize(value)]
    executor = Executor({"train": program, "both": [value]}, seed=0)
    images, _ = batch()
    targets = images[:, :2].copy()
    for _ in range(4):
        weight, bias = (param.value.copy() for param in layer.params.values())
        off = images @ weight / 2 + bias - targets
        found, most, _ = executor.run("train", {x: images, y: targets})
        # Two positions a sample: its number is their sum, the mean goes over samples.
        assert found == pytest.approx((abs(off) ** 3).sum() / 8, rel=1e-5)
        assert most == pytest.approx(abs(off).max(), rel=1e-6)
        wanted = weight - 0.01 / 8 * images.T @ (3 * off * abs(off)) / 2
        assert np.allclose(layer.params["weight"].value, wanted, atol=1e-6)


# -- values and gradients -------------------------------------------------------------------------


def test_values_come_in_the_order_asked_and_are_the_callers():
    executor, graph = classifier(SGD(0.1))
    feed = fed()
    for _ in range(3):
        asked = [graph.scores, graph.loss, graph.y, graph.scores]
        one, two, three, again = executor.run("validate", feed, asked)
        assert one.shape == (8, 3)
        assert two == executor.run("validate", feed)[0]
        three[:] = one[:] = 0
        assert feed["y"].any()
        assert again.any()


def test_other_outputs_at_run_time_are_kept_up_to_a_bound():
    executor, graph = classifier(SGD(0.1))
    feed = fed()
    wanted = by_hand().forward(False, feed["x"])
    for outputs in [[graph.scores] * k for k in range(1, 12)] * 2:
        found = executor.run("validate", {graph.x: feed["x"]}, outputs)
        assert len(found) == len(outputs)
        assert np.array_equal(found[-1], wanted)
    assert len(executor._asked) == executor_module.ASKED
    executor.run("train", feed, [graph.loss])
    found = executor.run("infer", {"x": feed["x"]})[0]
    assert np.array_equal(found, wanted), "no update was asked for"
    assert executor.run("validate", fed(0)) == [0.0, 0.0]


def test_gradients_are_those_of_the_mean():
    low, middle, top = chain()
    graph = Graph([low, middle, top])
    inner = graph.scores.call.inputs[0].call.inputs[0]
    asked = gradients(graph.loss, [graph.x, "a/weight", inner, top.params["bias"]])
    program = [asked[1], graph.loss, *asked, *gradients(inner, [graph.x])]
    executor, feed, net = Executor({"look": program}, seed=0), fed(), by_hand()
    wanted = net.gradients(
        "loss", ["input", "a/weight", "a", "b/bias"], {"input": feed["x"], "targets": feed["y"]}
    )
    first, value, *found, of_sum = executor.run("look", feed)
    for one, other in zip(found, wanted.values(), strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-7)
    assert np.array_equal(first, found[1])
    assert value == net.evaluate(*feed.values()).loss
    assert np.allclose(of_sum, net["a"].params["weight"].value.sum(axis=1))


def test_metrics_with_a_threshold_see_probabilities():
    x, y = Input("x", (6,)), Input("y", (1,))
    scores = Dense("fc", 1)(x)
    looks = [metric(scores, y) for metric in (BinaryAccuracy(), MeanAbsoluteError())]
    executor = Executor({"look": [*looks, SigmoidCrossEntropy()(scores, y)]}, seed=0)
    images, _ = batch(50)
    out = images @ executor.net["fc"].params["weight"].value
    labels = out[:, 0] > 0  # of some of them the score is below the threshold, 0.5
    assert (out[labels, 0] < 0.5).any()
    found = executor.run("look", {x: images, y: labels[:, None]})
    assert found[0] == 1.0
    assert found[1] == pytest.approx(abs(out[:, 0] - labels).mean(), rel=1e-5)


# -- ranks ----------------------------------------------------------------------------------------


def whole(graph):
    return [SGD(0.5).minimize(graph.loss)], graph.loss


def by_layers(graph):
    adam, momentum = Adam(lr=0.01), SGD(0.1, momentum=0.9)
    updates = [adam.minimize(graph.loss, graph.layers[0]),
               momentum.minimize(graph.loss, ["b/weight", "b/bias"])]  # fmt: skip
    return updates, graph.loss


def by_losses(graph):
    other = SoftmaxCrossEntropy()(Dense("apart", 3)(graph.x), graph.y)
    return [Adam(lr=0.01).minimize(graph.loss), SGD(0.1, momentum=0.9).minimize(other)], other


@pytest.mark.parametrize("by", [whole, by_layers, by_losses])
def test_parallel_reduces_over_the_ranks(by):
    def drawn(parallel=None):
        graph = Graph()
        updates, other = by(graph)
        return graph.trained_by(other, *updates, parallel=parallel)

    feeds, alone = [fed(k + 5, seed=k) for k in range(5)], drawn()
    wanted = [alone.run("train", feed)[:2] for feed in feeds]

    def trained(comm):
        executor, mine = drawn(comm), slice(comm.rank, None, comm.size)
        own = [{name: array[mine] for name, array in feed.items()} for feed in feeds]
        shares = [len(a["x"]) / len(b["x"]) for a, b in zip(own, feeds, strict=True)]
        found = [executor.run("train", feed)[:2] for feed in own]
        return executor.net, np.array(found) * np.array(shares)[:, None]

    (first, one), (second, two) = together(trained)
    np.testing.assert_allclose(one + two, wanted, rtol=1e-5)
    expect_same_bits([first, second])
    expect_near(first, alone.net, rtol=1e-4, atol=1e-5)


def test_what_is_refused_on_ranks():
    graph = Graph()
    clipped = ClipByValue(SGD(0.1), 1.0).minimize(graph.loss, graph.layers[0])
    adam = Adam(lr=0.1).minimize(graph.loss, graph.layers[2])

    def clipping(comm):
        with pytest.raises(ArgumentError, match="received ClipByValue, a wrapper"):
            graph.trained_by(clipped, adam, parallel=comm)

    def piped(comm):
        executor, _ = classifier(SGD(0.1))
        pipeline = Pipeline(executor.net, stages=["b"], comm=comm)
        with pytest.raises(CallOrderError, match="a net on several ranks"):
            executor.run("train", fed())
        pipeline.gather()
        return executor.run("train", fed())[0]

    together(clipping)
    assert len({*together(piped)}) == 1


# -- what other systems got wrong -----------------------------------------------------------------


def test_seed_zero_is_a_seed():
    one, two, other = (classifier(SGD(0.1), seed=seed)[0].net for seed in (0, 0, 1))
    expect_same_bits([one, two])
    assert not np.array_equal(one.params()[0].value, other.params()[0].value)


def test_a_deep_graph_needs_no_deep_recursion():
    x = Input("x", (2,))
    out = through(x, [Activation(f"r{k}", "relu") for k in range(1200)])
    assert Executor({"infer": [out]}).run("infer", {x: np.ones((1, 2), np.float32)})[0].all()


def test_indices_above_those_that_floats_tell_apart():
    ids = Input("ids", (), dtype="int64")
    rows = np.array([2**24, 2**24 + 1, -(2**53) - 1])
    assert np.array_equal(Executor({"look": [ids]}).run("look", {ids: rows})[0], rows)
    words = layers.Embedding("words", 4, 2)(Input("few", (3,), dtype="int32"))
    few = np.array([[1, 3, 0]], np.int32)
    assert Executor({"look": [words]}).run("look", {"few": few})[0].shape == (1, 3, 2)


def test_pads_are_of_the_constant():
    x = Input("x", (2,))
    executor = Executor({"infer": [layers.Pad("pad", ((1, 1),), 7.0)(x)]})
    (padded,) = executor.run("infer", {x: np.zeros((1, 2), np.float32)})
    assert padded.tolist() == [[7, 0, 0, 7]]


def test_arrays_of_any_layout_and_float_type_are_fed():
    executor, _ = classifier(SGD(0.1))
    images, labels = batch()
    wanted = executor.run("validate", {"x": images, "y": labels})
    for other in (np.asfortranarray(images), images.astype(np.float64), images[::-1][::-1]):
        assert executor.run("validate", {"x": other, "y": labels.astype(np.int8)}) == wanted


def test_new_shapes_are_planned_anew_and_a_failed_run_changes_nothing():
    executor, _ = classifier(SGD(0.1))
    for count in (4, 4, 4, 7, 7, 7, 4):
        executor.run("train", fed(count))
    assert len(executor._programs["train"].view.executor.reports()) == 2
    before, (images, labels) = values_of(executor.net), batch()
    with pytest.raises(DataError, match="labels from 0 to 2"):
        executor.run("train", {"x": images, "y": labels + 3})
    with pytest.raises(ShapeError, match="'x'"):
        executor.run("train", {"x": images[:, :5], "y": labels})
    np.testing.assert_equal(values_of(executor.net), before)


@pytest.mark.parametrize("activations", [False, True])
def test_programs_of_an_offloaded_graph_run_from_its_folder(tmp_path, activations):
    """Two programs take turns, each with an optimizer for layers of its own."""

    def run(offloaded):
        low, top = Dense("low", 130), Dense("top", 130)
        graph = Graph([low, Dropout("drop", 0.3), top], 130)
        clipped = ClipByValue(SGD(0.1, momentum=0.9), 0.01)
        programs = {
            "low": [graph.loss, Adam(lr=0.01).minimize(graph.loss, low)],
            "top": [graph.loss, clipped.minimize(graph.loss, top)],
            "infer": [graph.scores, *gradients(graph.loss, ["low/weight"])],
        }
        executor, told = Executor(programs, seed=0), []
        if offloaded:
            executor.net.offload(tmp_path / "net", "800kB", activations=activations)
        for k in range(6):
            feed = fed(features=130, seed=k)
            told.append(executor.run(("low", "top")[k % 2], feed)[0])
            inferred = executor.run("infer", feed)
        if offloaded:
            assert any(not param.storage.in_memory for param in executor.net.params())
            with pytest.raises(CallOrderError, match="onload"):
                executor.memory("infer", {"x": (8, 130), "y": (8,)})
            executor.net.onload()
        # Recorded, once it is back.
        return executor.net, told + [executor.run("low", feed)[0] for _ in range(3)], inferred

    (plain, wanted, outputs), (net, told, inferred) = run(False), run(True)
    assert told == wanted
    np.testing.assert_equal(inferred, outputs)
    expect_same_bits([net, plain])


@pytest.mark.parametrize(
    ("enabled", "recompute"), [(False, "none"), (True, "cheap"), (True, "sqrt")]
)
def test_how_the_net_is_carried_out_is_how_programs_are(enabled, recompute):
    executor, _ = classifier(SGD(0.1))
    executor.net.programs.enabled, executor.net.programs.recompute = enabled, recompute
    train_both(executor, by_hand(), SGD(0.1), [fed(seed=k) for k in range(4)], "watched")
    assert bool(executor._programs["watched"].view.executor.reports()) is enabled


# -- looking --------------------------------------------------------------------------------------


def test_report_memory_plot_and_net_of_a_program():
    executor, graph = classifier(SGD(0.1, momentum=0.9))
    with pytest.raises(CallOrderError, match="run it twice"):
        executor.report("train")
    feed = fed()
    planned = executor.memory("train", {graph.x: (8, 6), "y": (8,)})
    assert executor.memory("infer", {graph.x: (8, 6)}).total < planned.total
    for _ in range(3):
        executor.run("train", feed)
    report = executor.report("train")
    assert report.as_dict()["bytes"]["arena"] == planned.parts["arena"]
    # The mean weighs samples by a number and not by an array of it.
    of_loss = [k for k in report.kernels if k.layer == "softmax_cross_entropy"]
    (scaled,) = [k for k in of_loss if (k.phase, k.name) == ("backward", "multiply")]
    assert len(scaled.reads) == 1
    assert "softmax_cross_entropy" in executor.plot("train")
    assert "softmax_cross_entropy" not in executor.plot("infer")
    net = executor.as_net("infer")
    inferred = executor.run("infer", {"x": feed["x"]})[0]
    assert np.array_equal(net.forward(False, feed["x"]), inferred)
    net.params()[0].value[...] = 0
    assert not executor.net["a"].params["weight"].value.any()
    assert executor.programs == ["train", "watched", "validate", "infer"]
    assert "train" in repr(executor)
    with pytest.raises(UnknownNameError, match="'z'"):
        executor.memory("train", {"z": (8, 6)})


def test_loaders_fill_inputs():
    images, labels = batch(20)
    x, y = from_loader(ArrayLoader(images, labels, 8, seed=1))
    value = SoftmaxCrossEntropy()(through(x, chain()), y)
    executor = Executor({"train": [value, SGD(0.1).minimize(value)], "look": [x]}, seed=0)
    own, net, sgd = ArrayLoader(images, labels, 8, seed=1), by_hand(), SGD(0.1)
    assert executor.batches("train") == 3
    for _ in range(2):
        for a, b in own:
            assert executor.run("train")[0] == net.step(a, b, sgd)[0]
    assert np.array_equal(executor.run("look", {x: images[:2]})[0], images[:2])
    assert np.array_equal(executor.run("look")[0], next(iter(own))[0])
    with pytest.raises(UnknownNameError, match="add an array for 'y'"):
        executor.run("train", {x: images})


# -- what is refused ------------------------------------------------------------------------------


def test_feeds_are_refused_by_name():
    executor, graph = classifier(SGD(0.1))
    x, y, (images, labels) = graph.x, graph.y, batch()
    for name, feed, kind, words in (
        ("tran", {x: images, y: labels}, UnknownNameError, "'train'"),
        ("train", {x: images}, UnknownNameError, "add an array for 'y'"),
        ("train", None, UnknownNameError, "add an array for 'x'"),
        ("infer", {x: images, y: labels}, UnknownNameError, "which it does not read"),
        ("train", {x: images, "z": labels}, UnknownNameError, "'z'"),
        ("train", {x: images, y: labels, "x": images}, UnknownNameError, "by symbol and by name"),
        ("train", {x: images, y: labels, graph.scores: images}, UnknownNameError, "inputs alone"),
        ("train", {x: images, y: labels, "a/weight": images}, UnknownNameError, "the parameter"),
        ("train", {x: images, y: labels.astype(float)}, DataError, "float64"),
        ("train", {x: images, y: ["a"] * len(labels)}, DataError, r"\['y'\]: expected .* numbers"),
        ("train", [images], ArgumentError, "list"),
        ("train", {x: images, y: labels[None]}, ShapeError, "'y'"),
    ):
        with pytest.raises(kind, match=words):
            executor.run(name, feed)
    with pytest.raises(UnknownNameError, match="another graph|some program"):
        executor.run("infer", {x: images}, [Dense("other", 2)(x)])
    with pytest.raises(ArgumentError, match="list of its results"):
        executor.run("infer", {x: images}, [])
    with pytest.raises(CallOrderError, match="from_loader"):
        executor.batches("train")


def test_programs_are_refused_before_anything_runs():
    graph = Graph()
    value, (low, middle, top) = graph.loss, graph.layers
    step = SGD(0.1).minimize(value)
    inner = graph.scores.call.inputs[0]
    other = SoftmaxCrossEntropy()(Dense("other", 3)(inner), graph.y)
    fixed = SoftmaxCrossEntropy()(layers.StopGradient("stop")(graph.scores), graph.y)
    apart = Dense("c", 2, input_sample_shape=(3,))
    both = [SGD(1).minimize(other, "other/bias"),
            SGD(1).minimize(Add("sum")(value, other), [low, top])]  # fmt: skip
    clipped = ClipByGlobalNorm(SGD(1), 1.0).minimize(value, top)
    without = SGD(1).minimize(value, [low, "other/bias"])
    for words, programs in (
        ("dict of programs by name; received an empty one", {}),
        ("dict of programs by name; received list", [value]),
        ("a list of its results; received Symbol;", {"a": value}),
        ("a list of its results; received an empty list;", {"a": []}),
        ("a list of its results; received an empty tuple;", {"a": ()}),
        ("apply it to symbols", {"a": [SGD(0.1)]}),
        ("one optimizer that updates it", {"a": [step], "b": [SGD(0.1).minimize(value)]}),
        ("one update that changes it", {"a": [step, Adam(lr=0.1).minimize(value, top)]}),
        ("program of its own", {"a": both}),
        ("plain optimizers", {"a": [SGD(1).minimize(value, low), clipped]}),
        ("both", {"a": [step, *gradients(value, graph.x)]}),
        ("a/weight", {"a": [SGD(1).minimize(value, "a/weigth")]}),
        ("parameters of the graph", {"a": [SGD(1).minimize(value, apart)]}),
        ("depends on parameters", {"a": [SGD(1).minimize(value, middle)]}),
        ("depends on parameters", {"a": [SGD(1).minimize(fixed)]}),
        ("one without a gradient", {"a": [other], "b": [without]}),
        ("a name of its own", {"a": [value, Dense("c", 1)(Input("x", (2,)))]}),
    ):
        with pytest.raises((ArgumentError, UnknownNameError, errors.GraphError), match=words):
            Executor(programs)
    for words, act in (
        ("communicator", lambda: Executor({"a": [value]}, parallel=2)),
        ("an input", lambda: SGD(1).minimize(graph.y)),
        ("number a sample", lambda: SGD(1).minimize(graph.scores)),
        ("at least one", lambda: SGD(1).minimize(value, [])),
    ):
        with pytest.raises(ArgumentError, match=words):
            act()
