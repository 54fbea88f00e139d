"""A refused step changes nothing: nets are compared with twins that never had it."""

import numpy as np
import pytest

from singanet import FeedForwardNet, layers, optimizer
from singanet.errors import SingaNetError
from singanet.executor import Executor
from singanet.layers import BatchNormalization, Dense, Dropout, Input, Layer
from singanet.loss import Loss, SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm
from singanet.optimizer.chain import UpdateChain
from singanet.training.steps import MicroBatches

CLASSES, FEATURES = 3, 4


class StumbleError(Exception):
    """An error of a user's own code."""


class Switch:
    """Raises ``error`` when called with the place ``at``."""

    at, error = "", StumbleError

    def __call__(self, place):
        if place == self.at:
            raise self.error(place)


class Own(Layer):
    """A user's layer that draws, counts in its state, and raises at the switch's place."""

    def __init__(self, name, switch):
        super().__init__(name)
        self.switch = switch

    def setup(self, in_shapes):
        self.add_param("count", (1,))
        self.params["count"].mark_as_state()
        return in_shapes

    def forward(self, ctx, x):
        if ctx.train:
            ctx.params["count"][...] += 1
            noise = ctx.rng.random(x.shape, np.float32)
            self.switch("forward")
            return x + 0.1 * noise
        return x

    def backward(self, ctx, dy):
        self.switch("backward")
        return dy, {}


class OwnLoss(Loss):
    """The squared distance from the labels; it raises at the switch's place."""

    def __init__(self, switch):
        super().__init__()
        self.switch = switch

    def compute(self, ops, x, y):
        self.switch("loss")
        d = x - np.eye(CLASSES, dtype=x.dtype)[y]
        return (d * d).sum(axis=1), d

    def gradient(self, ops, saved):
        self.switch("gradient")
        return 2 * saved


class Rate:
    """A rate that is NaN while the switch is at "rate"."""

    def __init__(self, switch):
        self.switch = switch

    def __call__(self, step):
        return np.nan if self.switch.at == "rate" else 0.05

    def __deepcopy__(self, memo):
        return self


OPTIMIZERS = [
    lambda rate: SGD(rate, momentum=0.9), Adam, lambda rate: Accumulator(Adam(rate), 2),
    lambda rate: ClipByGlobalNorm(SGD(rate, momentum=0.9), 0.5),
    lambda rate: optimizer.ClipByLayerNorm(Adam(rate), 0.5),
    lambda rate: optimizer.ClipByRunningNorm(SGD(rate), 0.5),
    lambda rate: ClipByGlobalNorm(Accumulator(SGD(rate), 2), 0.5)
]  # fmt: skip


class Subject:
    """A random net with its optimizer, and actions on them; equal seeds give equal subjects."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.switch, self.own_loss = Switch(), rng.random() < 0.3
        self.two = bool(rng.random() < 0.3)
        inputs = [Input(k, (FEATURES,)) for k in ("a", "b")[: 1 + self.two]]
        h = inputs[0]
        if self.two:
            h = layers.Add("join")(*(Dense(f"in_{k}", FEATURES)(x) for k, x in enumerate(inputs)))
        self.own_layer = False
        for k in range(int(rng.integers(1, 4))):
            h = Dense(f"fc{k}", int(rng.integers(2, 6)))(h)
            kind = int(rng.integers(5))
            self.own_layer |= kind == 3
            made = (
                lambda n: BatchNormalization(n, momentum=0.3), lambda n: Dropout(n, 0.3),
                lambda n: layers.GaussianNoise(n, 0.3), lambda n: Own(n, self.switch),
                lambda n: layers.Activation(n, "tanh")
            )[kind]  # fmt: skip
            h = made(f"l{k}")(h)
        y = Dense("out", CLASSES)(h)
        loss = OwnLoss(self.switch) if self.own_loss else SoftmaxCrossEntropy()
        self.net = FeedForwardNet(
            inputs=inputs, outputs=y, loss=loss, metric=Accuracy(), seed=int(rng.integers(99))
        )
        self.net.programs.enabled = bool(rng.random() < 0.8)
        make = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]
        self.optimizer = make(Rate(self.switch))
        self.weighed = bool(rng.random() < 0.3)

    def batch(self, rng):
        n = int(rng.choice([4, 4, 4, 6]))
        arrays = [rng.standard_normal((n, FEATURES)).astype(np.float32) for _ in range(2)]
        x = {"a": arrays[0], "b": arrays[1]} if self.two else arrays[0]
        weight = rng.random(n).astype(np.float32)
        return x, rng.integers(0, CLASSES, n), weight if self.weighed else None

    def step(self, x, y, weight, **more):
        return self.net.step(x, y, self.optimizer, sample_weight=weight, **more)

    # -- what is refused ---------------------------------------------------------------------

    def stumbles(self, batch, place, error=StumbleError):
        self.switch.at, self.switch.error = place, error
        try:
            with pytest.raises((error, SingaNetError)):
                self.step(*batch)
        finally:
            self.switch.at = ""

    def refused(self, rng, batch):
        """Make a random refused step, forward or ``train``. Returns its name."""
        x, y, weight = batch
        error = (StumbleError, KeyboardInterrupt)[int(rng.integers(2))]

        def raises(*_):
            raise error("it")

        # A user's own loss raises NumPy's errors.
        wrong, out = (SingaNetError, IndexError, ValueError), y.copy()
        out[-1] = CLASSES + 2
        kinds = {
            "labels": lambda: self.expect(wrong, x, out, weight),
            "targets": lambda: self.expect(wrong, x, y[:-1], weight),
            "kind": lambda: self.expect(wrong, x, y + 0.5, weight),
            "weights": lambda: self.expect(SingaNetError, x, y, np.ones(len(y) + 1, np.float32)),
            "measure": lambda: self.expect(error, x, y, weight, measure=raises),
            "on_layer": lambda: self.expect(error, x, y, weight, on_layer=raises),
            "shape": lambda: self.expect(SingaNetError, self.cut(x), y, weight),
            "train": lambda: self.expect_call(lambda: self.net.train(x, out)),
        }
        if not any(stage.traits.gathers for stage in UpdateChain(self.optimizer).stages):
            # An accumulator has gathered by the time that its optimizer asks for a rate.
            kinds["rate"] = lambda: self.stumbles(batch, "rate")
        if self.two:
            kinds["sizes"] = lambda: self.expect(SingaNetError, {**x, "b": x["b"][:1]}, y, weight)
            kinds["names"] = lambda: self.expect(SingaNetError, {"a": x["a"]}, y, weight)
        if self.own_loss:
            kinds["loss"] = lambda: self.stumbles(batch, "loss", error)
            kinds["gradient"] = lambda: self.stumbles(batch, "gradient", error)
        if self.own_layer:
            kinds["layer"] = lambda: self.stumbles(batch, "forward", error)
            kinds["forward"] = lambda: self.stumbling_forward(x, error)
        name = str(rng.choice(sorted(kinds)))
        kinds[name]()
        return name

    @staticmethod
    def cut(x):
        return {k: part[:, 1:] for k, part in x.items()} if isinstance(x, dict) else x[:, 1:]

    def expect(self, errors, x, y, weight, **more):
        with pytest.raises(errors):
            self.step(x, y, weight, **more)

    @staticmethod
    def expect_call(call):
        with pytest.raises((SingaNetError, IndexError)):
            call()

    def stumbling_forward(self, x, error):
        self.switch.at, self.switch.error = "forward", error
        try:
            with pytest.raises(error):
                self.net.forward(True, x)
        finally:
            self.switch.at = ""

    # -- what is done ------------------------------------------------------------------------

    def done(self, rng, batch):
        """Do a random action. Returns its result."""
        x, y, weight = batch
        kind = int(rng.choice(6, p=[0.55, 0.1, 0.1, 0.1, 0.1, 0.05]))
        if kind == 0:
            return self.step(x, y, weight)
        if kind == 1:
            return self.net.evaluate(x, y)
        if kind == 2:
            return self.net.predict(x)
        if kind == 3:
            grads, told = self.net.train(x, y)
            return [g for g in grads if g is not None], told
        if kind == 4:
            try:
                return self.net.record(x, y, self.optimizer).run(x, y)
            except SingaNetError as refusal:
                return type(refusal).__name__
        return self.net.forward(True, x)

    def state(self):
        found = dict(zip(self.net.param_names(), self.net.param_values(), strict=True))
        found.update(self.optimizer.state_dict())
        return found, self.net.rng.bit_generator.state


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other, equal_nan=True)
    # NaN losses are equal, too.
    return one == other or (one != one and other != other)


@np.errstate(all="ignore")
def run(seed, actions=20):
    """Do random actions, and compare with a twin. Returns the names of the refused steps."""
    subject, twin = Subject(seed), Subject(seed)
    choices = np.random.default_rng([seed, 1])
    refused = []
    for k in range(actions):
        batch = subject.batch(choices)
        if choices.random() < 0.4:
            refused.append(subject.refused(choices, batch))
        else:
            drawn = int(choices.integers(1 << 30))
            ours = subject.done(np.random.default_rng(drawn), batch)
            theirs = twin.done(np.random.default_rng(drawn), batch)
            assert same(_plain(ours), _plain(theirs)), (seed, k, refused)
        assert same(subject.state(), twin.state()), (seed, k, refused)
    return refused


def _plain(given):
    return tuple(given) if isinstance(given, tuple) else given


@pytest.mark.few(20)
@pytest.mark.parametrize("seed", range(40))
def test_refused_steps_never_happened(seed):
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_refused_steps_never_happened(part):
    for seed in range(1000 + 50 * part, 1050 + 50 * part):
        run(seed)


def moving(recorded=True):
    parts = [Dense("fc", 6, input_sample_shape=(FEATURES,)), BatchNormalization("bn")]
    parts += [Dropout("drop", 0.3), Dense("out", CLASSES)]
    net = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=1)
    net.programs.enabled = recorded
    return net


def seen(net, rule):
    found = dict(zip(net.param_names(), net.param_values(), strict=True)) | rule.state_dict()
    return {k: np.array(v) for k, v in found.items()}, net.rng.bit_generator.state


def expect_refused(error, net, rule, call):
    """Check that ``call`` raises ``error`` and changes nothing."""
    before = seen(net, rule)
    with pytest.raises(error):
        call()
    assert same(before, seen(net, rule))


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize("recorded", [False, True])
def test_labels_and_interrupts_after_steps(recorded):
    net, rule = moving(recorded), Adam(0.1)
    for measure in [None] * 4 + [lambda outputs, y: 0.0] * 4:
        net.step(GOOD, LABELS, rule, measure=measure)
        expect_refused(SingaNetError, net, rule, lambda: net.step(GOOD, WRONG, rule))
        late = lambda: net.step(GOOD, LABELS, rule, measure=interrupt)  # noqa: E731
        expect_refused(KeyboardInterrupt, net, rule, late)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_rate_that_is_none_at_the_last_micro_batch(recorded):
    net, rule = moving(recorded), Accumulator(Adam(0.1), 2)
    for _ in range(4):
        net.step(GOOD, LABELS, rule)
        before, rule.optimizer.lr = seen(net, rule), np.nan
        with pytest.raises(SingaNetError):
            net.step(GOOD, LABELS, rule)
        rule.optimizer.lr = 0.1
        assert same(before, seen(net, rule))
        net.step(GOOD, LABELS, rule)


def test_a_part_of_a_batch_whose_gradients_are_gathered():
    net, rule = moving(), Adam(0.1)
    net.compile(rule)
    net._execution_plan()
    gathered = Accumulator(rule, 1)
    run = lambda x, y, weight, on_layer, measure: net.step(x, y, gathered)[0]  # noqa: E731
    step = MicroBatches(net, gathered, 4, lambda count: count, run)
    for _ in range(4):
        expect_refused(SingaNetError, net, rule, lambda: step(GOOD, WRONG, None, None, None))
        assert not gathered.pending
        step(GOOD, LABELS, None, None, None)


def test_a_program_of_an_executor():
    x, y, rule = Input("x", (FEATURES,)), Input("y", (), dtype="int64"), Adam(0.1)
    h = Dropout("drop", 0.3)(BatchNormalization("bn")(Dense("fc", 6)(x)))
    loss = SoftmaxCrossEntropy()(Dense("out", CLASSES)(h), y)
    executor = Executor({"train": [loss, rule.minimize(loss)]}, seed=3)
    feed = {"x": GOOD, "y": LABELS}
    for _ in range(4):
        executor.run("train", feed)
        wrong = lambda: executor.run("train", feed | {"y": WRONG})  # noqa: E731
        expect_refused(SingaNetError, executor.net, rule, wrong)


GOOD = np.random.default_rng(5).standard_normal((8, FEATURES)).astype(np.float32)
LABELS = np.arange(8) % CLASSES
WRONG = np.where(np.arange(8) == 6, CLASSES, LABELS)


def test_a_fit_in_mixed_precision():
    net, twin = moving(), moving()
    for each in (net, twin):
        each.compile(Adam(0.1), mixed_precision="float16")
        each.fit(GOOD, LABELS, verbose=False)
    with pytest.raises(SingaNetError):
        net.step(GOOD, WRONG, net.compiled.scaled(net.compiled.optimizer))
    for each in (net, twin):
        each.step(GOOD, LABELS, each.compiled.scaled(each.compiled.optimizer))
    assert same(seen(net, net.compiled.optimizer), seen(twin, twin.compiled.optimizer))


def test_what_a_layers_backward_refuses_below_others_that_were_updated():
    # A documented limit: gradients and old values are let go layer by layer.
    switch, first = Switch(), Dense("fc", 6, input_sample_shape=(FEATURES,))
    parts = [first, Own("own", switch), Dense("out", CLASSES)]
    net = FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=1)
    net.programs.enabled = False
    before, switch.at = seen(net, SGD(0.1))[0], "backward"
    with pytest.raises(StumbleError):
        net.step(GOOD, LABELS, SGD(0.1))
    now = seen(net, SGD(0.1))[0]
    changed = [name for name in before if not np.array_equal(before[name], now[name])]
    assert changed == ["own/count", "out/weight", "out/bias"]
