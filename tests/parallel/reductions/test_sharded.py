"""Ranks that each keep a part of the state: as `AllReduce`, with less memory; ranks are threads."""

import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.device import Device
from singanet.errors import ArgumentError, RankError
from singanet.layers import Activation, Add, Dense, Embedding, Flatten, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import ops_for
from singanet.optimizer import (
    LAMB,
    SGD,
    Accumulator,
    Adafactor,
    Adam,
    AdamW,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
    GaLore,
    MaxNorm,
    Optimizer,
    Wrapper,
    schedules,
)
from singanet.optimizer.chain import UpdateChain
from singanet.parallel import AllReduce, Sharded, SingleProcess
from singanet.params.param import ParamSpec
from singanet.testing import communicators
from singanet.testing.device_like import device_like
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from tests.kit.nets import dense_net, uneven_net, values_of, words_net
from tests.kit.ranks import expect_same_values

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
WORDS = RNG.integers(0, 50, (24, 3))


class Signs(Optimizer):
    """A rule of a user's own, which takes whole parameters: it moves them by their largest sign."""

    slots = ("seen",)

    def __init__(self):
        super().__init__(lr=0.01)

    def _scalars(self, state, rate):
        return (rate,)

    def _sweep(self, update):
        value, seen = update.value, update.arrays[0]
        seen += abs(update.grad.reshape(-1))
        value -= 0.01 * np.sign(update.grad * update.scale) * abs(value).max()

    def _sweep_rows(self, indices, update):
        raise AssertionError


RULES = {
    "plain": lambda: SGD(lr=0.1),
    "momentum": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda: Adam(lr=schedules.Exponential(0.003, 2, 0.9)),
    "adamw": lambda: AdamW(lr=0.003, weight_decay=0.1),
    "decoupled": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01, decoupled=True),
    "bounded": lambda: SGD(lr=0.1, momentum=0.9, constraint=0.1),
    "max norm": lambda: Adam(lr=0.01, constraint=MaxNorm(1.5)),
    "lamb": lambda: LAMB(lr=0.01),
    "adafactor": lambda: Adafactor(lr=0.02),
    "galore": lambda: GaLore(lr=0.01, rank=2),
    "signs": Signs,
}


def sharded(rule, comm, level=1, **more):
    """Small nets are cut too."""
    return Sharded(rule, comm, level, **{"smallest": 100, **more})


def stepped(net, optimizer, comm, x=X, steps=6, records=True):
    net.programs.enabled = records
    losses = [
        net.step(x[comm.rank : 24 - k % 2 : comm.size], Y[comm.rank : 24 - k % 2 : comm.size],
                 optimizer)[0]
        for k in range(steps)
    ]  # fmt: skip
    return {**values_of(net), **optimizer.state_dict(), "losses": np.array(losses)}


def of_ranks(size, make, build=uneven_net, **more):
    with communicators(size) as comms:
        return comms.run(lambda comm: stepped(build(), make(comm), comm, **more))


def expect_same(made, other):
    """Each rank has the same bits in both."""
    for one, two in zip(made, other, strict=True):
        assert one.keys() == two.keys()
        expect_same_values([one, two])


def expect_near(made, other, rtol=1e-5, atol=1e-6):
    for one, two in zip(made, other, strict=True):
        assert one.keys() == two.keys()
        for name, value in one.items():
            np.testing.assert_allclose(two[name], value, rtol, atol, err_msg=name)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.few(6)
def test_steps_and_state_have_the_bits_of_all_reduce(rule, size, level):
    make = RULES[rule]
    expected = of_ranks(size, lambda comm: AllReduce(make(), comm))
    for records in (True, False):
        found = of_ranks(size, lambda comm: sharded(make(), comm, level), records=records)
        expect_same(expected, found)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("rule", ["momentum", "adam", "lamb", "adafactor"])
@pytest.mark.few(3)
def test_only_the_rows_that_a_batch_names_move(rule, level):
    make = RULES[rule]
    expected = of_ranks(2, lambda comm: AllReduce(make(), comm), words_net, x=WORDS)
    for records in (True, False):
        wrap = lambda comm: sharded(make(), comm, level)  # noqa: E731
        found = of_ranks(2, wrap, words_net, x=WORDS, records=records)
        expect_same(expected, found)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize(
    "clip",
    [
        lambda rule: ClipByGlobalNorm(rule, 0.1),
        lambda rule: ClipByLayerNorm(rule, 0.05),
        lambda rule: ClipByRunningNorm(rule, 0.1),
        lambda rule: ClipByValue(rule, 0.01),
        lambda rule: ClipByGlobalNorm(ClipByValue(rule, 0.01), 0.1),
    ],
)
@pytest.mark.few(3, rest="slow")
def test_norms_are_those_of_whole_gradients(clip, level):
    for build, x in ((uneven_net, X), (words_net, WORDS)):
        expected = of_ranks(3, lambda c: AllReduce(clip(Adam(lr=0.01)), c), build, x=x)
        for records in (True, False):
            wrap = lambda c: sharded(clip(Adam(lr=0.01)), c, level)  # noqa: E731
            found = of_ranks(3, wrap, build, x=x, records=records)
            expect_same_values([{**each, "losses": 0} for each in found])
            expect_near(expected, found)


def test_steps_are_recorded_whatever_others_do():
    def work(comm, records):
        net, optimizer = uneven_net(), sharded(ClipByLayerNorm(Adam(lr=0.01), 0.1), comm, 2)
        made = stepped(net, optimizer, comm, records=comm.rank in records)
        return made, net.programs

    with communicators(3) as comms:
        by_layers = comms.run(lambda comm: work(comm, ()))
    with communicators(3) as comms:
        recorded = comms.run(lambda comm: work(comm, (0, 2)))
    for (one, _), (other, programs) in zip(by_layers, recorded, strict=True):
        expect_same_values([one, other])
        assert not programs.refusals
        assert not programs.notes
    assert all(programs.reports() for _, programs in recorded[::2])
    assert any("communication" in r.phases() for r in recorded[0][1].reports())


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_keeps_its_part_of_the_state_and_scatters_large_gradients(size, level):
    def work(comm):
        net, optimizer = dense_net(wide=600), sharded(Adam(lr=0.01), comm, level)
        for _ in range(2):
            net.step(X, Y, optimizer)
        kept = UpdateChain(optimizer).held_bytes()
        before = comm.exchanged
        net.step(X, Y, optimizer)
        trained = sum(param.nbytes for param in net.params())
        return kept, trained, comm.exchanged.since(before).sent

    with communicators(size) as comms:
        made = comms.run(work)
    whole = made[0][1]
    assert sum(kept for kept, _, _ in made) == 2 * whole
    for kept, _, _ in made:
        # Rows do not always go round.
        assert kept < 1.1 * 2 * whole / size
    # A sum is twice a reduce-scatter, which is as much as telling the values, or gathering them
    # once, which a forward and a walk back do.
    sent = sum(sent for *_, sent in made) / ((size - 1) * whole)
    assert sent == pytest.approx((3, 2, 3)[level - 1], rel=0.05)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_loop_of_ones_own(level):
    def work(comm, wrap):
        net = uneven_net()
        optimizer = wrap(comm)
        optimizer.meet(net)
        for _ in range(3):
            x, y = X[comm.rank :: 2], Y[comm.rank :: 2]
            net.loss.forward(True, net.forward(True, x), y)
            optimizer.begin(len(x))
            for item in net.backward(net.loss.backward()):
                optimizer.update(*item)
            optimizer.end()
        return {**values_of(net), **optimizer.state_dict()}

    with communicators(2) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(Adam(lr=0.01), c)))
    with communicators(2) as comms:
        found = comms.run(lambda c: work(c, lambda c: sharded(Adam(lr=0.01), c, level)))
    expect_same(expected, found)


def shared_net():
    x = Input("x", (6,))
    twice = Dense("twice", 30)
    h = twice(Activation("t", "tanh")(Dense("a", 30)(x)))
    h = Add("sum")(h, twice(Activation("r", "relu")(h)))
    return singanet.FeedForwardNet(
        inputs=x, outputs=Dense("o", 4)(h), loss=SoftmaxCrossEntropy(), seed=1
    )


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("way", ["accumulated", "shared", "frozen", "float16"])
@pytest.mark.few(6)
def test_with_other_features_as_all_reduce(way, level):
    def work(comm, wrap):
        net = shared_net() if way == "shared" else uneven_net()
        rule = wrap(comm)
        if way == "frozen":
            net.freeze("b")
        if way == "accumulated":
            rule = Accumulator(rule, 2)
        precision = way if way == "float16" else None
        net.compile(rule, mixed_precision=precision)
        ema = EMA(0.5)
        losses = net.fit(X, Y, 8, 3, callbacks=[ema], verbose=False)["loss"]
        made = {**values_of(net), **rule.state_dict(), "losses": np.array(losses)}
        with ema.applied(net):
            return made | {f"mean {name}": array for name, array in values_of(net).items()}

    if (way, level) == ("float16", 3):
        with communicators(2) as comms, pytest.raises(ArgumentError, match="masters are whole"):
            comms.run(lambda c: work(c, lambda c: sharded(Adam(lr=0.01), c, level)))
        return
    with communicators(2) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(Adam(lr=0.01), c)))
    with communicators(2) as comms:
        found = comms.run(lambda c: work(c, lambda c: sharded(Adam(lr=0.01), c, level)))
    expect_same(expected, found)


class Thaws(Callback):
    """Freezes a layer, and thaws it; and bounds another one."""

    def on_batch_begin(self, batch, logs=None):
        net, step = self.session.net, self.session.step
        if step in (2, 5):
            net["b"].trainable = step == 5
        if step == 4:
            param = net["c"].params["weight"]
            param.spec = ParamSpec(param.name, constraint=0.01)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_what_is_frozen_thawed_or_bounded_meanwhile_keeps_its_state(level):
    def work(comm, wrap):
        net, rule = uneven_net(), wrap(comm)
        net.compile(rule)
        net.fit(X, Y, 8, 3, callbacks=[Thaws()], verbose=False)
        return {**values_of(net), **rule.state_dict()}

    with communicators(2) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(Adam(lr=0.01), c)))
    with communicators(2) as comms:
        found = comms.run(lambda c: work(c, lambda c: sharded(Adam(lr=0.01), c, level)))
    expect_same(expected, found)


@pytest.mark.parametrize(("first", "then"), [(1, 3), (3, 1), (2, 3), (3, 2), (2, 2)])
@pytest.mark.parametrize("rule", ["adam", "adafactor"])
@pytest.mark.few(2, rest="slow")
def test_a_state_is_whole_and_taken_by_any_number_of_ranks(first, then, rule, tmp_path):
    make = RULES[rule]

    def fit(comm, epochs, resume=None, precision=None):
        net = uneven_net()
        optimizer = make() if comm is None else sharded(make(), comm)
        net.compile(optimizer, mixed_precision=precision)
        net.fit(
            X, Y, 8, epochs, shuffle=False, verbose=False, resume=resume,
            callbacks=[ModelCheckpoint(tmp_path / str(precision), monitor=None)],
        )  # fmt: skip
        return {**values_of(net), **optimizer.state_dict()}

    def on(size, *arguments):
        if size == 1:
            return [fit(None, *arguments)]
        with communicators(size) as comms:
            return comms.run(lambda comm: fit(comm, *arguments))

    for precision in (None, "float16"):
        alone = fit(None, 4, None, precision)
        on(first, 2, None, precision)
        again = on(then, 4, tmp_path / str(precision), precision)
        expect_near([alone], again[:1], *((1e-4, 1e-5) if precision is None else (1e-2, 2e-3)))
        expect_same_values(again)


def test_a_state_that_is_loaded_is_cut_whenever_that_is():
    def work(comm, early):
        net, optimizer = uneven_net(), sharded(Adam(lr=0.01), comm)
        other = uneven_net()
        rule = Adam(lr=0.01)
        for _ in range(2):
            other.step(X, Y, rule)
        if not early:
            net.step(X, Y, optimizer)
        optimizer.load_state_dict(rule.state_dict())
        expect_same_values([rule.state_dict(), optimizer.state_dict()])
        for param, value in zip(net.params(), other.param_values(), strict=True):
            param.put(value)
        net.step(X, Y, optimizer)
        other.step(X, Y, rule)
        expect_same_values([rule.state_dict(), optimizer.state_dict()])
        expect_same_values([values_of(net), values_of(other)])
        held = UpdateChain(optimizer).held_bytes()
        assert held < 1.4 * sum(param.nbytes for param in net.params())
        with pytest.raises(singanet.errors.SingaNetError):
            optimizer.load_state_dict({"a/weight/other": np.zeros(3)})
        return None

    for early in (True, False):
        with communicators(2) as comms:
            comms.run(lambda comm, early=early: work(comm, early))


def test_a_lone_process_has_the_plain_rule():
    net, other = uneven_net(), uneven_net()
    rule, plain = Sharded(Adam(lr=0.01), SingleProcess()), Adam(lr=0.01)
    for _ in range(3):
        net.step(X, Y, rule)
        other.step(X, Y, plain)
    expect_same_values([values_of(net), values_of(other)])
    expect_same_values([rule.state_dict(), plain.state_dict()])
    assert pickle.loads(pickle.dumps(plain)).state_dict().keys() == rule.state_dict().keys()


class Odd(Wrapper):
    """A stage that halves the first of a layer's gradients."""

    def take(self, names, values, grads, scale):
        yield names, values, [grads[0] * 0.5, *grads[1:]], scale


class Halves(Wrapper):
    """A stage that says that it works by elements."""

    _by_element = True

    def take(self, names, values, grads, scale):
        yield names, values, grads, scale * 0.5


def test_stages_of_ones_own():
    with communicators(2) as comms, pytest.raises(ArgumentError, match=r"by_parts = True"):
        Sharded(Odd(SGD(lr=0.1)), comms[0])
    expected = of_ranks(2, lambda c: AllReduce(Halves(Adam(lr=0.01)), c))
    expect_same(expected, of_ranks(2, lambda c: sharded(Halves(Adam(lr=0.01)), c)))
    with communicators(2) as comms, pytest.raises(ArgumentError, match=r"level=\): expected 1"):
        Sharded(SGD(lr=0.1), comms[0], level=4)


def test_ranks_that_differ_in_how_they_cut_are_told_so():
    def work(comm):
        optimizer = Sharded(SGD(lr=0.1), comm, smallest=100 * (comm.rank + 1))
        with pytest.raises(RankError, match="smallest"):
            uneven_net().step(X, Y, optimizer)

    with communicators(2) as comms:
        comms.run(work)


@pytest.mark.parametrize("size", [2, 3])
def test_a_rank_without_samples_keeps_its_part(size):
    def work(comm, wrap):
        net, optimizer = uneven_net(), wrap(comm)
        counts = [(10, 3, 11), (0, 5, 2), (4, 0, 0), (0, 0, 7)]
        for row in counts:
            n = row[comm.rank]
            if n:
                net.step(X[:n], Y[:n], optimizer)
            else:
                optimizer.meet(net)
                optimizer.begin(0)
                optimizer.end()
        return {**values_of(net), **optimizer.state_dict()}

    with communicators(size) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(Adam(lr=0.01), c)))
    with communicators(size) as comms:
        found = comms.run(lambda c: work(c, lambda c: sharded(Adam(lr=0.01), c, 2)))
    expect_same(expected, found)


@pytest.mark.parametrize("size", [2, 3])
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(
    rule=st.sampled_from(sorted(RULES)),
    level=st.integers(1, 3),
    window=st.integers(1, 5),
    smallest=st.sampled_from([0, 100, 3000, 1 << 20]),
    widths=st.lists(st.sampled_from([1, 3, 17, 60]), min_size=1, max_size=3),
    shards=st.lists(st.integers(0, 8), min_size=2, max_size=3),
)
def test_random_nets_and_shards_have_the_bits_of_all_reduce(
    size, rule, level, window, smallest, widths, shards
):
    def build():
        layers = [Embedding("e", 50, 3, input_sample_shape=(3,)), Flatten("f")]
        for k, width in enumerate(widths):
            layers += [Dense(f"d{k}", width), Activation(f"t{k}", "tanh")]
        return singanet.FeedForwardNet([*layers, Dense("o", 4)], loss=SoftmaxCrossEntropy(), seed=1)

    rows_too = rule not in ("galore", "signs")
    x = WORDS if rows_too else X

    def work(comm, wrap):
        net, optimizer = build() if rows_too else dense_net(wide=widths[0]), wrap(comm)
        for n in shards:
            own = slice(comm.rank * n, comm.rank * n + n) if comm.rank else slice(0, 24)
            net.step(x[own][: 24 if not comm.rank else n], Y[own][: 24 if not comm.rank else n],
                     optimizer)  # fmt: skip
        return {**values_of(net), **optimizer.state_dict()}

    make = RULES[rule]
    with communicators(size) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(make(), c, window)))
    with communicators(size) as comms:
        found = comms.run(lambda c: work(c, lambda c: Sharded(make(), c, level, window, smallest)))
    expect_same(expected, found)


def test_what_is_on_a_device_is_told_through_the_host():
    def work(comm, wrap):
        net, optimizer = words_net(), wrap(comm)
        net.to_device(Device("device_like", ops_for(device_like.zeros(1))))
        for _ in range(3):
            net.step(device_like.asarray(WORDS), device_like.asarray(Y), optimizer)
        made = {**values_of(net), **optimizer.state_dict()}
        return {name: net.device.ops.host(array) for name, array in made.items()}

    with communicators(2) as comms:
        expected = comms.run(lambda c: work(c, lambda c: AllReduce(Adam(0.01), c)))
    with communicators(2) as comms:
        found = comms.run(lambda c: work(c, lambda c: sharded(Adam(0.01), c, 2)))
    expect_same(expected, found)


def test_a_stage_that_was_inside_works_by_itself_again():
    def work(comm):
        clip = ClipByLayerNorm(Adam(lr=0.01), 0.1)
        uneven_net().step(X, Y, sharded(clip, comm))
        clip.load_state_dict({})
        net, other = uneven_net(), uneven_net()
        if comm.rank == 0:
            # Nobody is asked.
            net.step(X, Y, clip)
            other.step(X, Y, ClipByLayerNorm(Adam(lr=0.01), 0.1))
            expect_same_values([values_of(net), values_of(other)])

    with communicators(2) as comms:
        comms.run(work)
