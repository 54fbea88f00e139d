"""Optimizers put together at random, and users' own, recorded and by the layers."""

from __future__ import annotations

import re
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import optimizer as kinds
from singanet.layers import Activation, BatchNormalization, Dense, Dropout, Embedding, Flatten
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.models import build
from singanet.optimizer import SGD, Accumulator, Adam, Wrapper
from tests.program.twins import Twins

RULES = [
    lambda bound: kinds.SGD(0.1, 0.9, constraint=bound),
    lambda bound: kinds.Adam(lr=0.01, constraint=bound),
    lambda bound: kinds.LAMB(lr=0.01, constraint=bound),
    lambda bound: kinds.Adafactor(lr=0.01, constraint=bound),
    lambda bound: kinds.AccumulatingSGD(2, lr=0.1, constraint=bound),
    lambda bound: kinds.AccumulatingAdam(3, lr=0.01, constraint=bound),
]
STAGES = [
    lambda inner: kinds.ClipByValue(inner, 0.02),
    lambda inner: kinds.ClipByLayerNorm(inner, 0.05),
    lambda inner: kinds.ClipByRunningNorm(inner, 0.1),
    lambda inner: kinds.Accumulator(inner, 2),
    lambda inner: kinds.Accumulator(inner, 3, mean=False),
]
BOUNDS = [None, 0.05, kinds.MaxNorm(0.8, axis=0), kinds.L2Constraint(1e-4)]


def net():
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    made.add(Dense("a", 9, input_sample_shape=(5,)))
    made.add(Activation("tanh", "tanh"))
    made.add(Dense("b", 4))
    return made


def batch(k, size=6):
    rng = np.random.default_rng(k)
    return rng.standard_normal((size, 5)).astype(np.float32), rng.integers(0, 4, size)


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
    rule=st.sampled_from(RULES),
    # Two of a kind would have their state under the same keys.
    stages=st.lists(
        st.sampled_from(STAGES), max_size=3, unique_by=lambda make: make(SGD()).__class__
    ),
    bound=st.integers(0, 3),
    changes=st.lists(st.sampled_from(["step", "step", "short", "halved", "reloaded"]), max_size=14),
)
def test_any_chain_is_recorded_as_it_runs_by_the_layers(rule, stages, bound, changes):
    def make():
        limits = [None, 0.05, kinds.MaxNorm(0.8, axis=0), kinds.L2Constraint(1e-4)]
        optimizer = rule(limits[bound])
        for stage in stages:
            optimizer = stage(optimizer)
        return optimizer

    twins = Twins(net, make)
    for k in range(4):
        twins.step(*batch(k))
    for k, change in enumerate(changes):
        if change in ("halved", "reloaded"):
            for optimizer in twins.optimizers:
                {"halved": halved, "reloaded": reloaded}[change](optimizer)
        twins.step(*batch(k, 3 if change == "short" else 6))
    for k in range(4):
        twins.step(*batch(k))
    reports = twins.recorded.programs.reports()
    assert [note for report in reports for note in report.notes] == []


def drawing():
    made = singanet.FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=1)
    made.add(Dense("a", 9, input_sample_shape=(5,)))
    made.add(BatchNormalization("norm"))
    made.add(Activation("tanh", "tanh"))
    made.add(Dropout("drop", 0.4))
    made.add(Dense("b", 4))
    return made


@pytest.mark.parametrize(("every", "limit"), [(1, 0.05), (1, 1e3), (2, 0.5), (3, 0.05)])
@pytest.mark.parametrize("rule", RULES[:4])
def test_clipping_by_the_norm_of_all_gradients_is_recorded(every, limit, rule):
    def make():
        clip = kinds.ClipByGlobalNorm(kinds.ClipByValue(rule(None), 1.0), limit)
        return clip if every == 1 else kinds.Accumulator(clip, every)

    twins = Twins(drawing, make)
    for k in range(4 * every):
        twins.step(*batch(k))
        twins.step(*batch(k), sample_weight=np.arange(6.0))
    assert twins.expect_recorded() == []
    told = twins.optimizers[0] if every == 1 else twins.optimizers[0].optimizer
    assert not told.knows


@pytest.mark.parametrize("level", ["none", "cheap"])
def test_two_passes_with_parts_of_the_users(level):
    class Own(SoftmaxCrossEntropy):
        calls = 0

        def forward(self, flag, x, y):
            type(self).calls += 1
            return super().forward(flag, x, y)

    class Doubled(Activation):
        def forward(self, ctx, x):
            return super().forward(ctx, 2 * x)

    def make():
        made = drawing()
        made.loss = Own()
        made.add(Doubled("own", "relu"))
        made.programs.recompute = level
        return made

    twins = Twins(make, lambda: kinds.ClipByGlobalNorm(Adam(lr=0.01), 0.2))
    seen = []
    for k in range(5):
        twins.step(*batch(k), measure=lambda out, y: seen.append(out.copy()))
    assert len(seen) == 10
    for one, two in zip(seen[::2], seen[1::2], strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_norm_said_by_the_caller_is_that_of_the_step():
    twins = Twins(net, lambda: kinds.ClipByGlobalNorm(SGD(lr=0.1), 0.1))
    for k in range(4):
        twins.step(*batch(k))
    for k in range(4):
        with twins.optimizers[0].knowing(2.0 + k), twins.optimizers[1].knowing(2.0 + k):
            twins.step(*batch(k))
        twins.step(*batch(k))


def test_recorded_global_clipping_follows_its_formula():
    clipped, plain = net(), net()
    optimizer = kinds.ClipByGlobalNorm(SGD(lr=1.0), 0.1)
    for k in range(6):
        grads = plain.train(*batch(k))[0]
        norm = np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in grads))
        assert norm > 0.1
        for value, grad in zip(plain.param_values(), grads, strict=True):
            value -= (grad * (0.1 / norm)).astype(np.float32)
        clipped.step(*batch(k), optimizer)
        for a, b in zip(clipped.param_values(), plain.param_values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert clipped.programs.reports()


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
    gathers = True
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
    _needs_norm = True

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

    def __init__(self):
        self.specs = []

    def register_all(self, specs):
        self.specs = [spec.name for spec in specs]

    def update(self, names, values, grads, scale=1.0):
        assert set(names) <= set(self.specs)
        for value, grad in zip(values, grads, strict=True):
            value -= 0.1 * scale * grad

    def state_dict(self):
        return {}


@pytest.mark.parametrize(
    "around", [lambda inner: inner, lambda inner: kinds.ClipByValue(inner, 0.01)]
)
@pytest.mark.parametrize("inside", [SGD, lambda **k: kinds.ClipByLayerNorm(Adam(**k), 0.1)])
@pytest.mark.parametrize("own", [Logged, Halved])
def test_a_users_stage_is_a_python_step_of_the_whole_optimizer(own, around, inside):
    twins = Twins(net, lambda: around(own(inside(lr=0.1))))
    for k in range(6):
        twins.step(*batch(k))
    assert any(own.__name__ in note for note in twins.expect_recorded())
    first, second = twins.optimizers
    while not isinstance(first, own):
        first, second = first.optimizer, second.optimizer
    assert vars(first).get("norms") == vars(second).get("norms")
    assert vars(first).get("calls") == vars(second).get("calls")


def test_a_users_stage_of_arithmetic_alone_is_recorded():
    twins = Twins(net, lambda: Centred(kinds.Accumulator(SGD(lr=0.1), 2)))
    for k in range(9):
        twins.step(*batch(k))
    assert twins.expect_recorded() == []


def test_a_users_accumulator_and_clipper_are_stages_like_any():
    """Sums of two batches' gradients, brought to the norm 1: recorded, and by hand."""
    twins, plain = Twins(net, lambda: CountingGathered(Rescaled(SGD(lr=0.1)))), net()
    for k in range(12):
        if k % 2 == 0:
            both = [plain.train(*batch(k + i))[0] for i in (0, 1)]
            sums = [one + two for one, two in zip(*both, strict=True)]
            norm = np.sqrt(sum(np.sum(each.astype(float) ** 2) for each in sums))
            for value, each in zip(plain.param_values(), sums, strict=True):
                value -= (each * (0.1 / norm)).astype(np.float32)
        twins.step(*batch(k))
        if k % 2:
            for a, b in zip(twins.recorded.param_values(), plain.param_values(), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert twins.expect_recorded() == []


def test_an_optimizer_by_its_methods_alone():
    twins = Twins(net, Duck)
    for k in range(5):
        twins.step(*batch(k))
    assert any("Duck" in note for note in twins.expect_recorded())


def test_an_update_assigned_to_an_optimizer_is_called():
    def make():
        optimizer = SGD(lr=0.1)
        whole = optimizer.update
        optimizer.update = lambda names, values, grads, scale=1.0: whole(names, values, grads, 2.0)
        return optimizer

    twins = Twins(net, make)
    for k in range(5):
        twins.step(*batch(k))
    assert any("a method of this SGD was replaced" in note for note in twins.expect_recorded())


def test_a_stage_shared_with_a_loop_of_the_users():
    twins = Twins(net, lambda: kinds.ClipByRunningNorm(kinds.Accumulator(SGD(lr=0.1), 2), 0.1))
    for k in range(12):
        if k % 4 == 3:
            # Out of turn, as in a training loop of one's own.
            for made, optimizer in zip(twins.nets, twins.optimizers, strict=True):
                for item in list(made.backward(made.forward(True, batch(k)[0])))[:1]:
                    optimizer.update(*item)
        twins.step(*batch(k))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_accumulated_steps_are_a_step_of_the_mean(every):
    gathered, plain = net(), net()
    accumulator, rule = kinds.Accumulator(SGD(lr=0.1), every), SGD(lr=0.1)
    for k in range(6):
        parts = [batch(every * k + i) for i in range(every)]
        for part in parts:
            gathered.step(*part, accumulator)
        x, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        plain.step(x, y, rule)
    for a, b in zip(gathered.param_values(), plain.param_values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("limit", [0.01, 0.1, 10.0])
def test_recorded_clipping_follows_its_formula(limit):
    clipped, plain = net(), net()
    optimizer = kinds.ClipByLayerNorm(SGD(lr=1.0), limit)
    for k in range(6):
        x, y = batch(k)
        grads = plain.train(x, y)[0]
        for i in range(0, len(grads), 2):
            norm = np.sqrt(sum(np.sum(g.astype(float) ** 2) for g in grads[i : i + 2]))
            for value, grad in zip(plain.param_values()[i : i + 2], grads[i : i + 2], strict=True):
                value -= (grad * min(1.0, limit / norm)).astype(np.float32)
        clipped.step(x, y, optimizer)
        for a, b in zip(clipped.param_values(), plain.param_values(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_program_by_hand_has_every_kind_of_step():
    by_hand, by_layers = net(), net()
    by_layers.programs.enabled = False
    ours, theirs = (kinds.Accumulator(kinds.AdamW(lr=0.01), 3) for _ in range(2))
    program = by_hand.record(*batch(0), ours)
    for k in range(9):
        assert program.run(*batch(k)) == by_layers.step(*batch(k), theirs)
        for a, b in zip(by_hand.param_values(), by_layers.param_values(), strict=True):
            np.testing.assert_array_equal(a, b)
    assert program.notes == []


def slow(seconds):
    class Slow(SGD):
        def update(self, names, values, grads, scale=1.0):
            time.sleep(seconds)
            super().update(names, values, grads, scale)

    return Slow(lr=0.1)


def test_dear_python_steps_are_told_once():
    made, optimizer = net(), slow(0.01)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for k in range(12):
            made.step(*batch(k), optimizer)
    (one,) = told
    assert re.match(r"net.step: Python steps take (9\d|100)% .*Slow is not", str(one.message))
    assert made.programs.notes
    assert all("Slow is not singanet's" in note for note in made.programs.notes)


def test_kernels_are_not_told():
    made, optimizer = net(), kinds.Accumulator(SGD(lr=0.1), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(20):
            made.step(*batch(k), optimizer)
    assert made.programs.notes == []


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


@pytest.mark.parametrize(("every", "programs"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_first_round_of_micro_batches_has_the_programs_of_all_others(every, programs):
    """What weighs 1 is known from the first batch on; it needs no program of its own."""
    recorded, by_layers = (build("mlp", seed=0) for _ in range(2))
    recorded.programs.at_once, by_layers.programs.enabled = True, False
    shape = recorded.nodes()[0].layer.in_shapes
    rng = np.random.default_rng(every)
    optimizers = [Accumulator(Adam(lr=0.1), every) for _ in range(2)]
    for _ in range(3 * every):
        x, y = rng.standard_normal((4, *shape), np.float32), rng.integers(0, 10, 4)
        for net, optimizer in zip((recorded, by_layers), optimizers, strict=True):
            net.step(x, y, optimizer)
        assert len(recorded.programs.reports()) <= programs
    assert len(recorded.programs.reports()) == programs
    for one, two in zip(recorded.param_values(), by_layers.param_values(), strict=True):
        np.testing.assert_array_equal(one, two)
    # Another number of samples weighs other than 1, and is another program.
    for net, optimizer in zip((recorded, by_layers), optimizers, strict=True):
        net.step(x[:3], y[:3], optimizer)
    for one, two in zip(recorded.param_values(), by_layers.param_values(), strict=True):
        np.testing.assert_array_equal(one, two)


def words_net():
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=1)
    net.add(Embedding("words", 11, 4, input_sample_shape=(5,)))
    net.add(Flatten("flat"))
    net.add(Dense("out", 3))
    return net


@pytest.mark.parametrize("level", ["none", "cheap"])
def test_rows_that_replays_have_gathered_are_saved_and_gone_on_with(level, rng):
    """Recorded at once, no step by the layers ever said that the sum is one of rows."""
    twins = Twins(words_net, lambda: Accumulator(SGD(lr=0.1, momentum=0.9), 3))
    twins.recorded.programs.recompute = level
    again = None
    for step in range(9):
        x, y = rng.integers(0, 11, (4, 5)), rng.integers(0, 3, 4)
        # Compares what would be saved, in the middle of a sum as well.
        twins.step(x, y)
        if again is not None:
            again[0].step(x, y, again[1])
        if step == 4:
            net, optimizer = words_net(), Accumulator(SGD(lr=0.1, momentum=0.9), 3)
            for mine, theirs in zip(net.params(), twins.recorded.params(), strict=True):
                mine.value[...] = theirs.value
            optimizer.register_all(net.param_specs())
            optimizer.load_state_dict(twins.optimizers[0].state_dict())
            again = net, optimizer
    for mine, theirs in zip(again[0].param_values(), twins.recorded.param_values(), strict=True):
        assert mine.tobytes() == theirs.tobytes()
