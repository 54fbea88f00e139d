"""Ranks that go their own ways, and meet at the mean."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import DataError
from singanet.layers import BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD
from singanet.parallel import AllReduce, LocalSGD, PartialUpdate, SingleProcess
from singanet.training.callbacks import EMA, Callback, ModelCheckpoint
from tests.kit.nets import dense_net
from tests.kit.ranks import expect_same_bits, together

RNG = np.random.default_rng(3)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def small_net():
    return singanet.FeedForwardNet(
        [Dense("a", 5, input_sample_shape=(6,)), Dense("d", 4)], loss=SoftmaxCrossEntropy(), seed=1
    )


def flat_of(net):
    return np.concatenate([param.value.ravel() for param in reversed_order(net)])


def reversed_order(net):
    """As a walk back comes to them: the last layer first."""
    layers = [layer for layer in net.layers if layer.params]
    return [param for layer in reversed(layers) for param in layer.params.values()]


def put(net, flat):
    start = 0
    for param in reversed_order(net):
        param.value[...] = flat[start : start + param.value.size].reshape(param.shape)
        start += param.value.size


def by_hand(build, rule, batches, size, every, parts, ended):
    """Each rank's values after all steps, and after what ends them; averages in float64."""
    nets, rules = [build() for _ in range(size)], [rule() for _ in range(size)]
    n = flat_of(nets[0]).size
    waiting, turn = np.zeros((size, parts)), 0

    def average(part):
        nonlocal waiting
        span = slice(n * part // parts, n * (part + 1) // parts)
        total = waiting[:, part].sum()
        if total:
            flats = [flat_of(net).astype(float) for net in nets]
            mean = sum(w / total * f[span] for w, f in zip(waiting[:, part], flats, strict=True))
            for net, flat in zip(nets, flats, strict=True):
                flat[span] = mean
                put(net, flat)
        waiting[:, part] = 0

    for done, (cuts, (x, y)) in enumerate(batches, 1):
        for rank in range(size):
            own = slice(cuts[rank], cuts[rank + 1])
            if own.stop > own.start:
                nets[rank].step(x[own], y[own], rules[rank])
            waiting[rank] += own.stop - own.start
        if done % every == 0:
            average(turn)
            turn = (turn + 1) % parts
    if ended:
        for part in range(parts):
            average(part)
    return [flat_of(net) for net in nets]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 3))
def test_values_are_averaged_when_and_as_they_should(data, size):
    every = data.draw(st.integers(1, 3))
    partitions = data.draw(st.sampled_from([1, 2, 3, 7])) if every == 1 else 1
    ended, empty = data.draw(st.booleans()), data.draw(st.booleans())
    batches = []
    for _ in range(data.draw(st.integers(1, 7))):
        n = data.draw(st.integers(1, 24))
        inner = data.draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1))
        batches.append(([0, *sorted(inner), n], (X[:n], Y[:n])))

    def work(comm):
        net, rule = small_net(), SGD(lr=0.2, momentum=0.9)
        optimizer = (
            LocalSGD(rule, comm, every) if every > 1 else PartialUpdate(rule, comm, partitions)
        )
        optimizer.meet(net)
        for cuts, (x, y) in batches:
            own = slice(cuts[comm.rank], cuts[comm.rank + 1])
            if own.stop > own.start or empty:
                # Batches without samples are what `fit` gives to ranks that have no more.
                net.step(x[own], y[own], optimizer)
            else:
                optimizer.begin(0)
                optimizer.end()
        if ended:
            optimizer.join()
        return net

    nets = together(work, size)
    expected = by_hand(
        small_net, lambda: SGD(lr=0.2, momentum=0.9), batches, size, every, partitions, ended
    )
    for net, flat in zip(nets, expected, strict=True):
        np.testing.assert_allclose(flat_of(net), flat, rtol=1e-4, atol=1e-5)
    if ended:
        expect_same_bits(nets)


@pytest.mark.parametrize("size", [2, 3])
def test_averaging_each_step_of_a_rule_without_state_is_the_dense_reduction(size):
    def trained(wrap):
        def work(comm):
            net, optimizer = dense_net(seed=comm.rank), wrap(SGD(lr=0.1), comm)
            for n in (24, 13, 24):
                bounds = [n * r // size for r in range(size + 1)]
                own = slice(bounds[comm.rank], bounds[comm.rank + 1])
                net.step(X[own], Y[own], optimizer)
            return net

        return together(work, size)

    nets = trained(lambda rule, comm: LocalSGD(rule, comm, every=1))
    expect_same_bits(nets)
    np.testing.assert_allclose(flat_of(nets[0]), flat_of(trained(AllReduce)[0]), 1e-4, 1e-6)


METHODS = {
    "local": lambda rule, comm, **k: LocalSGD(rule, comm, every=3, **k),
    "partial": lambda rule, comm, **k: PartialUpdate(rule, comm, partitions=5, **k),
}


@pytest.mark.parametrize("method", METHODS)
def test_what_is_frozen_stays_and_is_not_sent(method):
    def work(comm):
        net = dense_net()
        net.freeze("b")
        before = {p.name: p.value.copy() for p in net.params()}
        optimizer = METHODS[method](SGD(lr=0.1), comm)
        for k in range(4):
            if k == 2:
                net.unfreeze()
                net.freeze("d")
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        optimizer.join()
        return net, before

    (net, before), (other, _) = together(work)
    expect_same_bits([net, other])
    for name in ("a/weight", "a/bias"):
        value = next(p.value for p in net.params() if p.name == name)
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("clip_by", ["layer", "global", "value"])
@pytest.mark.parametrize("method", METHODS)
def test_clipping_of_fit_averages_before_files_and_evaluations_too(method, clip_by, tmp_path):
    """What was asked to average was the stage as compiled, which had never met the net."""

    class Evaluates(Callback):
        def on_batch_end(self, batch, logs):
            if self.session.step % 2:
                told.append((self.session.net.evaluate(X, Y).loss, flat_of(self.session.net)))

    def work(comm):
        net = dense_net()
        net.compile(METHODS[method](SGD(lr=0.1), comm))
        calls = [Evaluates(), ModelCheckpoint(tmp_path, monitor=None, every_steps=2)]
        net.fit(X, Y, 8, 2, callbacks=calls, clip=0.5, clip_by=clip_by, verbose=False)
        return net

    told = []
    expect_same_bits(together(work))
    assert len(told) == 6
    for (loss, values), (other, others) in zip(told[::2], told[1::2], strict=True):
        assert loss == other
        np.testing.assert_array_equal(values, others)


def test_state_of_other_settings_is_refused():
    state = PartialUpdate(SGD(lr=0.1), SingleProcess(), partitions=3).state_dict()
    PartialUpdate(SGD(lr=0.1), SingleProcess(), partitions=3).load_state_dict(state)
    with pytest.raises(DataError, match="same settings"):
        PartialUpdate(SGD(lr=0.1), SingleProcess(), partitions=4).load_state_dict(state)
    with pytest.raises(DataError, match="same settings"):
        LocalSGD(SGD(lr=0.1), SingleProcess()).load_state_dict({})


class Followed:
    """Two ranks by the formula, with what follows their values."""

    def __init__(self, net, decay):
        self.net, self.decay = net, decay
        start = {param.name: param.value.astype(float) for param in net.params()}
        self.values = [start, start]
        self.averages = [start, start]

    def step(self, parts, lr):
        made = []
        for own, (x, y) in zip(self.values, parts, strict=True):
            for param in self.net.params():
                param.value[...] = own[param.name]
            grads = dict(zip(self.net.param_names(), self.net.train(x, y)[0], strict=True))
            made.append({name: value - lr * grads[name] for name, value in own.items()})
        self.values = made

    def follow(self):
        d = self.decay
        self.averages = [
            {name: d * average[name] + (1 - d) * own[name] for name in own}
            for average, own in zip(self.averages, self.values, strict=True)
        ]


def mean_of(two):
    made = {name: (value + two[1][name]) / 2 for name, value in two[0].items()}
    return [made, made]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_moving_averages_follow_each_rank_and_become_their_mean(every, recorded):
    """The end of an epoch of three steps averages what has not been, which is followed once."""

    def work(comm):
        net = small_net()
        net.programs.enabled = recorded
        net.compile(LocalSGD(SGD(lr=0.5), comm, every))
        ema = EMA(0.75, keep_at_end=False)
        net.fit(X, Y, 8, 4, callbacks=[ema], shuffle=False, verbose=False)
        assert bool(net.programs.reports()) == recorded
        return ema.averages, {param.name: param.value for param in net.params()}

    told = Followed(small_net(), 0.75)
    for _ in range(4):
        for done in (1, 2, 3):
            x, y = X[8 * done - 8 : 8 * done], Y[8 * done - 8 : 8 * done]
            told.step([(x[::2], y[::2]), (x[1::2], y[1::2])], 0.5)
            if done % every == 0:
                told.values = mean_of(told.values)
            told.follow()
        if 3 % every:
            told.values = mean_of(told.values)
            told.follow()
        told.averages = mean_of(told.averages)
    for averages, values in together(work):
        for name, value in told.values[0].items():
            np.testing.assert_allclose(values[name], value, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(averages[name], told.averages[0][name], rtol=1e-4, atol=1e-6)


def test_a_net_that_is_met_again_has_the_mean_and_each_rank_its_own_state():
    """Another net in between loses neither a rank's updates nor its running state."""

    def work(comm):
        net, other = (
            singanet.FeedForwardNet(
                [Dense(name, 5, input_sample_shape=(6,)), BatchNormalization("bn"), Dense("d", 4)],
                loss=SoftmaxCrossEntropy(),
                seed=seed,
            )
            for seed, name in ((1, "a"), (2, "b"))
        )
        stage = LocalSGD(SGD(lr=0.5), comm, every=100)
        part = slice(comm.rank * 12, comm.rank * 12 + 12)
        for _ in range(3):
            net.step(X[part], Y[part], stage)
        before = {param.name: param.value.copy() for param in net.params()}
        stage.meet(other)
        stage.meet(net)
        return before, {param.name: param.value.copy() for param in net.params()}

    (one, now), (other, there) = together(work)
    for name in one:
        if name in ("bn/mean", "bn/var"):
            assert np.array_equal(now[name], one[name])
            assert np.array_equal(there[name], other[name])
            assert not np.array_equal(one[name], other[name])
        else:
            mean = (one[name].astype(float) + other[name]) / 2
            np.testing.assert_allclose(now[name], mean, rtol=0, atol=1e-6, err_msg=name)
            assert np.array_equal(now[name], there[name])


def test_a_rank_whose_samples_have_ended_takes_part_in_the_counts_of_losses():
    def rank(comm):
        rule = LocalSGD(SGD(lr=0.1), comm)
        rule.meet(small_net())
        shares = {} if comm.rank else rule.shares(3.0, {"a": 6.0, "b": 3.0})
        rule.join()
        return shares

    assert together(rank) == [{"a": 1.0, "b": 1.0}, {}]
