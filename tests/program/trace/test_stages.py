"""Optimizers put together at random, and users' own, recorded and by the layers."""

import re
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import FeedForwardNet
from singanet import optimizer as kinds
from singanet.layers import Activation, BatchNormalization, Dense, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam, StageTraits, Wrapper
from tests.program.program_case import RULES, STAGES, WORDS, Net, below, of, word_net
from tests.program.twins import Twins, expect_same


def net(*parts):
    layers = [Dense("a", 9, input_sample_shape=(5,)), *parts, Activation("tanh", "tanh")]
    return FeedForwardNet([*layers, Dense("b", 4)], loss=SoftmaxCrossEntropy(), seed=1)


def drawing():
    made = net(BatchNormalization("norm"), Dropout("drop", 0.4))
    made.metric = Accuracy()
    return made


SMALL = Net(net, of(5), below(4))
BATCHES = SMALL.batches(40, 6)


ALONE = [name for name in STAGES if hasattr(kinds, name.partition(",")[0])]
ALONE.remove("ClipByGlobalNorm")


def halved(optimizer):
    """Another limit for every clipping that there is."""
    while isinstance(optimizer, Wrapper):
        for name in ("limit", "max_norm"):
            if hasattr(optimizer, name):
                setattr(optimizer, name, getattr(optimizer, name) / 2)
        optimizer = optimizer.optimizer
    if optimizer.constraint is not None:
        optimizer.constraint.threshold /= 2


def reloaded(optimizer):
    optimizer.load_state_dict(optimizer.state_dict())


@settings(max_examples=20)
@given(
    rule=st.sampled_from(sorted(RULES)),
    # Two of a kind would have their state under the same keys.
    stages=st.lists(
        st.sampled_from(ALONE), max_size=3, unique_by=lambda name: name.partition(",")[0]
    ),
    bound=st.integers(0, 3),
    changes=st.lists(st.sampled_from(["step", "step", "short", "halved", "reloaded"]), max_size=14),
)
def test_any_chain_is_recorded_as_it_runs_by_the_layers(rule, stages, bound, changes):
    def make():
        limits = [None, 0.05, kinds.MaxNorm(0.8, axis=0), kinds.L2Constraint(1e-4)]
        optimizer = RULES[rule](lr=0.01, constraint=limits[bound])
        for stage in stages:
            optimizer = STAGES[stage](optimizer)
        return optimizer

    twins = Twins(net, make)
    twins.train(BATCHES[:4])
    for (x, y), change in zip(BATCHES, changes, strict=False):
        if change in ("halved", "reloaded"):
            for optimizer in twins.optimizers:
                {"halved": halved, "reloaded": reloaded}[change](optimizer)
        size = 3 if change == "short" else 6
        twins.step(x[:size], y[:size])
    twins.train(BATCHES[:4])
    assert [note for report in twins.recorded.programs.reports() for note in report.notes] == []


def test_a_norm_said_by_the_caller_is_that_of_the_step():
    twins = Twins(net, lambda: kinds.ClipByGlobalNorm(SGD(lr=0.1), 0.1))
    twins.train(BATCHES[:4])
    for k in range(4):
        with twins.optimizers[0].knowing(2.0 + k), twins.optimizers[1].knowing(2.0 + k):
            twins.step(*BATCHES[k])
        twins.step(*BATCHES[k])


def norm_of(grads):
    return np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in grads))


def moved(values, grads, factor):
    for value, grad in zip(values, grads, strict=True):
        value -= (grad * factor).astype(np.float32)


def expect_near(one, two):
    for a, b in zip(one.param_values(), two.param_values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# -- stages of users ------------------------------------------------------------------------


class Logged(Wrapper):
    """A user's own, by `update`: it keeps what it is given."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.norms = []

    def update(self, names, values, grads, scale=1.0):
        self.norms += [float(np.linalg.norm(grad)) for grad in grads]
        self.optimizer.update(names, values, grads, scale)


class Halved(Wrapper):
    """A user's own, by `take`, that counts."""

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.calls = 0

    def take(self, names, values, grads, scale):
        self.calls += 1
        yield names, values, [0.5 * grad for grad in grads], scale


class Centred(Wrapper):
    """A user's own, by `take`, that says that it is arithmetic and nothing else."""

    pure = True

    def take(self, names, values, grads, scale):
        yield names, values, [grad - grad.mean() for grad in grads], scale


class Gathered(Wrapper):
    """A user's own accumulator: the plain sum of the gradients of two steps."""

    pure = True
    traits = StageTraits(gathers=True)
    every = 2

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.sums = {}
        self.counts = {}

    @property
    def left(self):
        return self.every - max(self.counts.values(), default=0)

    def settle(self, names, values):
        for name, value in zip(names, values, strict=True):
            if name not in self.sums:
                self.sums[name], self.counts[name] = np.zeros_like(value), 0
        return values

    def previewed(self, items):
        for names, values, grads in items:
            self.settle(names, values)
            sums = [self.sums[n] + g for n, g in zip(names, grads, strict=True)]
            yield names, values, sums

    def take(self, names, values, grads, scale):
        self.settle(names, values)
        for name, grad in zip(names, grads, strict=True):
            self.sums[name] += scale * grad
        if names and self.counts[names[0]] == self.every - 1:
            yield names, values, [1.0 * self.sums[name] for name in names], 1.0
            for name in names:
                self.sums[name].fill(0.0)

    def case(self):
        return tuple(self.counts.values())

    def skip(self, names):
        for name in names:
            self.counts[name] = (self.counts[name] + 1) % self.every


class CountingGathered(Gathered):
    """As by the layers, where nobody else moves the counts on."""

    def take(self, names, values, grads, scale):
        yield from super().take(names, values, grads, scale)
        self.skip(names)


class Rescaled(Wrapper):
    """A user's own clipper by the norm of all gradients: they are brought to the norm 1."""

    pure = True
    traits = StageTraits(needs_norm=True)

    def __init__(self, optimizer):
        super().__init__(optimizer)
        self.norm = None

    @property
    def knows(self):
        return self.norm is not None

    @contextmanager
    def knowing(self, norm):
        vars(self)["norm"] = norm
        try:
            yield
        finally:
            vars(self)["norm"] = None

    def take(self, names, values, grads, scale):
        yield names, values, grads, scale / self.norm


class Duck:
    """Nothing but what a step asks of an optimizer."""

    specs = ()

    def register_all(self, specs):
        self.specs = [spec.name for spec in specs]

    def update(self, names, values, grads, scale=1.0):
        assert set(names) <= set(self.specs)
        for value, grad in zip(values, grads, strict=True):
            value -= 0.1 * scale * grad

    def state_dict(self):
        return {}


class Slow(SGD):
    def update(self, names, values, grads, scale=1.0):
        time.sleep(0.01)
        super().update(names, values, grads, scale)


def assigned():
    optimizer = SGD(lr=0.1)
    whole = optimizer.update
    optimizer.update = lambda names, values, grads, scale=1.0: whole(names, values, grads, 2.0)
    return optimizer


def value_of(optimizer):
    return kinds.ClipByValue(optimizer, 0.01)


def clipped(own):
    return own(kinds.ClipByLayerNorm(Adam(lr=0.1), 0.1))


OF_USERS = {
    # The words of the notes; None: it is recorded.
    "Logged": (lambda: Logged(SGD(lr=0.1)), "Logged"),
    "Logged, inside": (lambda: value_of(clipped(Logged)), "Logged"),
    "Logged, outside": (lambda: clipped(Logged), "Logged"),
    "Halved": (lambda: Halved(SGD(lr=0.1)), "Halved"),
    "Halved, inside": (lambda: value_of(clipped(Halved)), "Halved"),
    "Halved, outside": (lambda: clipped(Halved), "Halved"),
    "arithmetic alone": (lambda: Centred(Accumulator(SGD(lr=0.1), 2)), None),
    "methods alone": (Duck, "Duck"),
    "assigned": (assigned, "a method of this SGD was replaced"),
}


@pytest.mark.parametrize("name", OF_USERS)
def test_users_optimizers_are_recorded_or_python_steps_of_the_whole(name):
    make, words = OF_USERS[name]
    twins = Twins(net, make)
    twins.train(BATCHES[:9])
    notes = twins.expect_recorded()
    assert bool(notes) == (words is not None)
    assert not notes or any(words in note for note in notes)
    first, second = (
        getattr(o, "optimizer", o) if "inside" in name else o for o in twins.optimizers
    )
    for counted in ("norms", "calls"):
        assert getattr(first, counted, None) == getattr(second, counted, None)


def rule_of(sweep):
    """A user's rule that says that it is arithmetic, ``sweep(rule, w, g, seen, rate)``."""

    class Own(kinds.Optimizer):
        pure = True
        slots = ("seen",)
        _calls = 0

        def _scalars(self, state, rate):
            return (rate,)

        def _sweep(self, update):
            seen = update.arrays[0].reshape(update.value.shape)
            sweep(self, update.value, update.grad * update.scale, seen, *update.scalars)

        def _sweep_rows(self, indices, update):
            raise AssertionError

    return Own


class Elements(kinds.ElementWise):
    """As `rule_of`, by elements."""

    pure = True

    def _scalars(self, state, rate):
        return (rate,)

    def _rule(self, xp, w, g, arrays, s, *numbers):
        xp.sign(g, out=s)
        xp.multiply(s, numbers[0], out=s)
        xp.subtract(w, s, out=w)


class CountedElements(Elements):
    _calls = 0

    def _rule(self, xp, w, g, arrays, s, *numbers):
        self._calls += 1
        super()._rule(xp, w, g, arrays, s, numbers[0] / self._calls)


def signed(rule, w, g, seen, rate):
    seen += abs(g)
    w -= rate * np.sign(g) * seen / seen.max()


def clipped_whole(rule, w, g, seen, rate):
    g = np.clip(g, -0.01, 0.01) + np.tanh(w)
    w[...] = w - rate * g / (1 + np.linalg.norm(g))


def counted(rule, w, g, seen, rate):
    rule._calls += 1
    w -= rate / rule._calls * g


def drawn(rule, w, g, seen, rate):
    w -= np.random.rand() * rate * g


def looked_at(rule, w, g, seen, rate):
    if g.max() > 0:
        w -= rate * g


def beside(rule, w, g, seen, rate):
    w -= np.full(w.shape, 0.1, np.float32) * g


RULES_OF_USERS = {
    # The words of the notes; None: it is recorded.
    "elements": (Elements, None),
    "whole arrays": (rule_of(signed), None),
    "functions": (rule_of(clipped_whole), None),
    "counted elements": (CountedElements, "do not make what it makes"),
    "counted": (rule_of(counted), "do not make what it makes"),
    "drawn": (rule_of(drawn), "do not make what it makes"),
    "looked at": (rule_of(looked_at), "__bool__"),
    "beside": (rule_of(beside), "no kernel is known"),
}


@pytest.mark.parametrize("name", RULES_OF_USERS)
@pytest.mark.parametrize("stage", [None, "clipped mean"])
def test_a_rule_in_array_arithmetic_is_recorded_if_it_is_that_alone(name, stage):
    kind, words = RULES_OF_USERS[name]
    twins = Twins(net, lambda: STAGES[stage](kind(0.1)) if stage else kind(0.1))
    for number, batch in enumerate(BATCHES[:6]):
        for one, optimizer in zip(twins.nets, twins.optimizers, strict=True):
            np.random.seed(number)
            one.step(*batch, optimizer)
        twins.expect_equal()
    notes = twins.expect_recorded()
    assert bool(notes) == (words is not None)
    assert all(words in note for note in notes)


def test_dear_python_steps_are_told_once_and_kernels_not():
    made, quick, optimizer = net(), net(), Slow(lr=0.1)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for x, y in BATCHES[:12]:
            made.step(x, y, optimizer)
    (one,) = told
    assert re.match(r"net.step: Python steps take (9\d|100)% .*Slow is not", str(one.message))
    assert made.programs.notes
    assert all("Slow is not singanet's" in note for note in made.programs.notes)
    optimizer = Accumulator(SGD(lr=0.1), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x, y in BATCHES[:20]:
            quick.step(x, y, optimizer)
    assert quick.programs.notes == []


class Promises(Wrapper):
    """A user's own stage that promises more than it keeps."""

    pure, steps = True, 0

    def take(self, names, values, grads, scale):
        yield names, values, [self.of(grad) for grad in grads], scale


class Counts(Promises):
    def of(self, grad):
        self.steps += 1
        return grad * (1.0 / self.steps)


class Asks(Promises):
    def of(self, grad):
        return grad * 0.5 if type(grad) is np.ndarray else grad


class Draws(Promises):
    def of(self, grad):
        return grad * np.random.RandomState(self.steps + np.random.randint(9)).rand()


@pytest.mark.parametrize("kind", [Counts, Asks, Draws])
def test_a_stage_in_array_arithmetic_is_recorded_if_it_is_that_alone(kind):
    values = []
    for enabled in (True, False):
        made = net()
        made.programs.enabled = enabled
        np.random.seed(3)
        optimizer = kind(SGD(lr=0.1))
        for x, y in BATCHES[:6]:
            made.step(x, y, optimizer)
        values.append(made.param_values())
    for one, other in zip(*values, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_users_accumulator_and_clipper_are_stages_like_any():
    """Sums of two batches' gradients, brought to the norm 1: recorded, and by hand."""
    twins, plain = Twins(net, lambda: CountingGathered(Rescaled(SGD(lr=0.1)))), net()
    for k in range(0, 12, 2):
        both = [plain.train(*batch)[0] for batch in BATCHES[k : k + 2]]
        sums = [one + two for one, two in zip(*both, strict=True)]
        moved(plain.param_values(), sums, 0.1 / norm_of(sums))
        twins.train(BATCHES[k : k + 2])
        expect_near(twins.recorded, plain)
    assert twins.expect_recorded() == []


# -- programs of accumulated steps ----------------------------------------------------------


def test_a_program_by_hand_has_every_kind_of_step():
    twins = Twins(net, lambda: Accumulator(kinds.AdamW(lr=0.01), 3))
    program = twins.recorded.record(*BATCHES[0], twins.optimizers[0])
    for x, y in BATCHES[:9]:
        assert program.run(x, y) == twins.nets[1].step(x, y, twins.optimizers[1])
        twins.expect_equal()
    assert program.notes == []


@pytest.mark.parametrize(("every", "programs"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_first_round_of_micro_batches_has_the_programs_of_all_others(every, programs):
    """A weight of 1 is known from the first batch on; it needs no program of its own."""
    twins = Twins(net, lambda: Accumulator(Adam(lr=0.1), every))
    twins.recorded.programs.at_once = True
    for x, y in BATCHES[: 3 * every]:
        twins.step(x, y)
        assert len(twins.recorded.programs.reports()) <= programs
    assert len(twins.recorded.programs.reports()) == programs
    # Another number of samples weighs other than 1, and is another program.
    twins.step(x[:3], y[:3])


@pytest.mark.parametrize("level", ["none", "cheap"])
def test_rows_that_replays_have_gathered_are_saved_and_gone_on_with(level):
    """Recorded at once, no step by the layers ever said that the sum is one of rows."""
    make = lambda: Accumulator(SGD(lr=0.1, momentum=0.9), 3)  # noqa: E731
    twins = Twins(word_net, make)
    twins.recorded.programs.recompute = level
    again = None
    for step, (x, y) in enumerate(WORDS.batches(9)):
        # Compares the saved state, in the middle of a sum as well.
        twins.step(x, y)
        if again is not None:
            again[0].step(x, y, again[1])
        if step == 4:
            other, optimizer = word_net(), make()
            for mine, theirs in zip(other.params(), twins.recorded.params(), strict=True):
                mine.value[...] = theirs.value
            optimizer.register_all(other.param_specs())
            optimizer.load_state_dict(twins.optimizers[0].state_dict())
            again = other, optimizer
    expect_same(again[0].param_values(), twins.recorded.param_values())


@pytest.mark.parametrize(
    "arguments",
    [{}, {"accumulate": 2}, {"clip": 0.1}, {"clip": 0.1, "clip_by": "global"},
     {"clip": 0.1, "clip_by": "global", "accumulate": 2}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("scale", [2.0**4, 2.0**40])
def test_mixed_precision_is_recorded(arguments, scale):
    nets = drawing(), drawing()
    nets[1].programs.enabled = False
    x = np.random.default_rng(0).standard_normal((36, 5)).astype(np.float32)
    y = np.arange(36) % 4
    found = []
    for made in nets:
        precision = kinds.MixedPrecision(scale=scale, backoff=2.0**-6, growth_interval=5)
        made.compile(Adam(lr=0.01), metrics=[Accuracy()], mixed_precision=precision)
        history = made.fit(x, y, 6, epochs=4, verbose=False, **arguments)
        # A parameter written to from elsewhere takes its master along.
        made.params()[0].value[0] = 0.25
        losses = [made.train_on_batch(x[:6], y[:6])["loss"] for _ in range(5)]
        state = precision.state_dict() | made.compiled.optimizer.state_dict()
        state |= {p.name: p.value for p in made.params()}
        found.append((history["loss"], losses, precision.skipped, state))
    (*one, ours), (*other, theirs) = found
    assert one == other
    assert (one[2] > 0) == (scale > 2.0**30)
    assert ours.keys() == theirs.keys()
    for key, array in ours.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    assert nets[0].programs.notes == []
    assert nets[0].programs.refusals == []
    assert nets[0].programs.reports()
