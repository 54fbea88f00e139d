"""What ranks add up and average: weights, parts of the state (`Sharded`), now and then."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError, DataError, RankError, SingaNetError
from singanet.layers import Activation, BatchNormalization, Dense, Embedding, Flatten, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByValue,
    Wrapper,
)  # fmt: skip
from singanet.optimizer.chain import UpdateChain
from singanet.parallel import (
    AllReduce,
    Hybrid,
    LocalSGD,
    PartialUpdate,
    Sharded,
    SingleProcess,
)  # fmt: skip
from singanet.testing import communicators
from singanet.training.callbacks import EMA, ModelCheckpoint
from tests.kit.callbacks import at
from tests.kit.nets import dense_net, two_heads, uneven_net, values_of, words_net
from tests.kit.ranks import (
    expect_near_values,
    expect_same_bits,
    expect_same_values,
    served,
    together,
)  # fmt: skip
from tests.parallel.reductions.reducer_settings import RULES, WORDS, X, Y


def net_of(*layers, loss=SoftmaxCrossEntropy, seed=1):
    return singanet.FeedForwardNet([*layers], loss=loss(), seed=seed)


def small_net():
    return net_of(Dense("a", 5, input_sample_shape=(6,)), Dense("d", 4))


# -- dense sums -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [None, 0.1])
def test_what_is_accumulated_is_reduced_once_and_weighs_as_it_should(bound):
    def train(wrap, rank=0, size=1):
        rule = SGD(lr=0.5) if bound is None else ClipByGlobalNorm(SGD(lr=0.5), bound)
        net, optimizer = uneven_net(), Accumulator(wrap(rule), 3)
        for part in [slice(0, 12), slice(12, 17), slice(17, 24)] * 2:
            net.step(X[part][rank::size], Y[part][rank::size], optimizer)
        return net

    alone = train(lambda rule: rule)

    def work(comm):
        return train(lambda rule: AllReduce(rule, comm), comm.rank, 2), comm.bytes_sent

    (net, sent), (other, _) = together(work)
    expect_same_bits([net, other])
    expect_near_values(values_of(net), values_of(alone))
    # The values once, and each round of gradients, with a norm another one.
    rounds = 2 if bound is None else 4
    assert sent < (1 + rounds) * sum(value.nbytes for value in alone.param_values()) * 1.05


def test_a_rank_whose_samples_have_ended_joins_through_the_stages_around():
    def work(comm):
        net, optimizer = uneven_net(), Accumulator(AllReduce(SGD(lr=0.5), comm), 2)
        for k in range(4 if comm.rank == 0 else 2):
            net.step(X[k::8], Y[k::8], optimizer)
        optimizer.join()
        return net

    net, optimizer = uneven_net(), SGD(lr=0.5)
    for k, weight in ((0, 2), (2, 1)):
        rows = np.concatenate([np.arange(len(X))[j::8] for j in (k, k + 1)] * weight)
        net.step(X[rows], Y[rows], optimizer)
    Accumulator(SGD(lr=0.1), 2).join()  # no other processes
    nets = together(work)
    expect_same_bits(nets)
    expect_near_values(values_of(nets[0]), values_of(net))


def test_layers_that_one_rank_does_not_reach_count_as_zeros_and_none_stand_still():
    dy = {"left": X[:4, :3], "right": X[:4, 3:5]}

    def walked(net, k, rank):
        # Nobody reaches "right" at first, then rank 1 alone does.
        name = "right" if k >= 2 and rank == 1 else "left"
        net.forward(True, X[2 * rank :][:2])
        return net.backward({name: dy[name][2 * rank * (name == "left") :][:2]})

    def work(comm):
        net, optimizer = two_heads(), AllReduce(SGD(lr=0.1, weight_decay=0.1), comm)
        optimizer.meet(net)
        for k in range(4):
            optimizer.begin(2)
            for item in walked(net, k, comm.rank):
                optimizer.update(*item)
            optimizer.end()
        return net

    # By hand: means of both ranks' gradients, the ones that are missing as zeros.
    net, rule = two_heads(), SGD(lr=0.1, weight_decay=0.1)
    for k in range(4):
        total, order = {}, {}
        for rank in range(2):
            for names, values, grads in walked(net, k, rank):
                order |= dict(zip(names, values, strict=True))
                for name, grad in zip(names, grads, strict=True):
                    total[name] = total.get(name, 0) + 0.5 * grad
        rule.update(list(total), [order[n] for n in total], [np.asarray(g) for g in total.values()])
    nets = together(work)
    expect_same_bits(nets)
    expect_near_values(values_of(nets[0]), values_of(net))


def test_what_is_too_large_for_float16_is_cut_and_counted():
    def work(comm):
        net = net_of(
            Dense("a", 1, input_sample_shape=(2,), use_bias=False), loss=SquaredError, seed=0
        )
        (value,), optimizer = net.param_values(), AllReduce(SGD(lr=1.0), comm, dtype="float16")
        before = value.copy()
        optimizer.meet(net)
        optimizer.begin(1)
        grad = np.array([[1e6], [-2.0]], np.float32).reshape(before.shape)
        optimizer.update(net.param_names(), net.param_values(), [grad])
        optimizer.end()
        return (before - net.param_values()[0]).ravel(), optimizer.overflowed

    made = together(work)
    for moved, _ in made:
        np.testing.assert_allclose(moved, [65504 / 2, -2.0], rtol=1e-3)
    # Both ranks' parts, and their sum, which one of them makes.
    assert sum(count for _, count in made) == 3


def test_micro_batches_that_differ_by_rank_are_refused_before_gradients_are_exchanged():
    """In mixed precision ranks agree on each micro-batch: they once met at other points of it."""

    def work(comm):
        net, gathered = uneven_net(), Accumulator(AllReduce(SGD(lr=0.05), comm), 2)
        net.compile(gathered, mixed_precision="float16")
        optimizer = net.compiled.scaled(gathered)
        for k in range(4):
            net.step(X[k : k + 3], Y[k : k + 3], optimizer)
        before, sums = values_of(net), gathered.optimizer.traffic.sums
        gathered.every = 2 + comm.rank
        with pytest.raises(RankError, match=r"equal numbers of micro-batches .*\[2, 3\]"):
            net.step(X[:3], Y[:3], optimizer)
        assert gathered.optimizer.traffic.sums == sums
        expect_same_values([before, values_of(net)])

    together(work)


def test_a_copy_of_the_optimizer_alone_meets_its_net_anew():
    net, optimizer = uneven_net(), AllReduce(Adam())
    net.step(X, Y, optimizer)
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert (optimizer._has_met, made._has_met) == (True, False)
        net.step(X, Y, made)
        assert made._has_met


# -- losses that count otherwise than samples -----------------------------------------------------


class Halved(SoftmaxCrossEntropy):
    """A user's own, that counts every other sample alone."""

    def count(self, x, y):
        return len(x) / 2 if len(x) > 4 else len(x)


def test_a_rank_without_samples_clips_by_the_norm_of_all_and_holds_nothing_back(monkeypatch):
    norms, knowing = [], ClipByGlobalNorm.knowing
    monkeypatch.setattr(
        ClipByGlobalNorm, "knowing", lambda self, n: (norms.append(float(n)), knowing(self, n))[1]
    )
    labels = {"a": Y % 3, "b": np.where(X[:, 0] > 0, Y, -1)}

    def work(comm):
        x = Input("x", (6,))
        h = Dense("h", 5)(x)
        losses = {"a": SoftmaxCrossEntropy(), "b": SoftmaxCrossEntropy(ignore_index=-1)}
        net = singanet.FeedForwardNet(
            inputs=x, outputs=[Dense("a", 3)(h), Dense("b", 4)(h)], loss=MultiLoss(losses), seed=1
        )
        net.programs.enabled = False
        optimizer = AllReduce(ClipByGlobalNorm(SGD(0.1), 0.1), comm)
        optimizer.meet(net)
        if comm.rank == 0:
            net.step(X, labels, optimizer)
        optimizer.join()
        return values_of(net)

    expect_same_values(together(work))
    own, other = norms
    assert own == other > 0.1


def test_norms_of_rows_that_servers_sum_are_refused():
    def work(comm, ranks):
        net = words_net()
        with pytest.raises(ArgumentError, match="clip by value"):
            Hybrid(ClipByLayerNorm(SGD(0.1), 1.0), comm, servers=ranks).meet(net)
        return net["e"].params["weight"].served

    assert served(work) == [None, None], "nothing was changed"


def test_a_users_own_count_is_asked_for():
    assert MultiLoss({"a": Halved(), "b": SquaredError()})._counts_apart
    assert not MultiLoss({"a": SquaredError(), "b": SoftmaxCrossEntropy()})._counts_apart


def test_what_is_thawed_between_micro_batches_counts_as_zeros_before():
    """By hand: the mean over both micro-batches, of which one gave the layer nothing."""
    net, other = (
        net_of(Dense("a", 2, input_sample_shape=(2,)), loss=SquaredError, seed=0) for _ in range(2)
    )
    x, y, bias = np.eye(2, dtype=np.float32), np.zeros((2, 2), np.float32), net["a"].params["bias"]
    optimizer, before = Accumulator(SGD(0.5), 2), bias.value.copy()
    for thawed in (False, True):
        bias.trainable = thawed
        net.step(x, y, optimizer)
    other.step(x, y, SGD(0.5))
    whole = values_of(other)
    np.testing.assert_allclose(bias.value - before, (whole["a/bias"] - before) / 2, rtol=1e-6)
    np.testing.assert_allclose(net["a"].params["weight"].value, whole["a/weight"], rtol=1e-6)


# -- parts of the state ---------------------------------------------------------------------------


def sharded(rule, comm, level=1, **more):
    """Small nets are cut too."""
    return Sharded(rule, comm, level, **{"smallest": 100, **more})


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_each_rank_keeps_its_part_of_the_state(size, level):
    def work(comm):
        net, optimizer = dense_net(wide=600), sharded(Adam(lr=0.01), comm, level)
        for _ in range(2):
            net.step(X, Y, optimizer)
        return UpdateChain(optimizer).held_bytes(), sum(param.nbytes for param in net.params())

    made = together(work, size)
    whole = 2 * made[0][1]
    assert sum(kept for kept, _ in made) == whole
    # Rows do not always go round.
    assert max(kept for kept, _ in made) < 1.1 * whole / size


@pytest.mark.parametrize("early", [True, False])
def test_a_state_that_is_loaded_is_cut_whenever_that_is(early):
    def work(comm):
        net, optimizer = uneven_net(), sharded(Adam(lr=0.01), comm)
        other, rule = uneven_net(), Adam(lr=0.01)
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
        with pytest.raises(SingaNetError):
            optimizer.load_state_dict({"a/weight/other": np.zeros(3)})

    together(work)


class Odd(Wrapper):
    def take(self, names, values, grads, scale):
        yield names, values, [grads[0] * 0.5, *grads[1:]], scale


def test_a_stage_of_ones_own_that_reads_whole_layers_is_refused():
    with communicators(2) as comms, pytest.raises(ArgumentError, match=r'reads="sums"'):
        Sharded(Odd(SGD(lr=0.1)), comms[0])


def test_stages_that_do_not_combine_are_refused_if_they_are_assigned():
    def work(comm):
        net, clip = dense_net(), ClipByValue(SGD(lr=0.1), 0.5)
        before = values_of(net)
        clip.optimizer = AllReduce(SGD(lr=0.1), comm)
        with pytest.raises(ArgumentError, match=r"write AllReduce\(ClipByValue"):
            net.step(X[:4], Y[:4], clip)
        np.testing.assert_equal(values_of(net), before)

    together(work)


class Plain(SGD):
    """A rule that keeps no state, and counts no steps."""

    def update(self, names, values, grads, scale=1.0):
        for value, grad in zip(values, grads, strict=True):
            if grad is not None:
                value -= np.float32(0.1 * scale) * grad


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_rule_of_ones_own_that_counts_no_steps_has_no_state(level):
    def work(comm):
        net, optimizer = dense_net(), Sharded(Plain(lr=0.1), comm, level)
        net.step(X[:4], Y[:4], optimizer)
        return optimizer.state_dict()

    assert together(work) == [{}, {}]


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(
    size=st.integers(2, 3),
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
    rows_too = rule not in ("galore", "own rule")
    x = WORDS if rows_too else X

    def build():
        if not rows_too:
            return dense_net(wide=widths[0])
        layers = [Embedding("e", 50, 3, input_sample_shape=(3,)), Flatten("f")]
        for k, width in enumerate(widths):
            layers += [Dense(f"d{k}", width), Activation(f"t{k}", "tanh")]
        return net_of(*layers, Dense("o", 4))

    def trained(wrap):
        def work(comm):
            net, optimizer = build(), wrap(RULES[rule](), comm)
            for n in shards:
                own = slice(comm.rank * n, comm.rank * n + n) if comm.rank else slice(0, 24)
                net.step(x[own], Y[own], optimizer)
            return {**values_of(net), **optimizer.state_dict()}

        return together(work, size)

    expected = trained(lambda inner, comm: AllReduce(inner, comm, window))
    found = trained(lambda inner, comm: Sharded(inner, comm, level, window, smallest))
    np.testing.assert_equal(found, expected)


def test_a_stage_that_was_inside_works_by_itself_again():
    def work(comm):
        clip = ClipByLayerNorm(Adam(lr=0.01), 0.1)
        uneven_net().step(X, Y, sharded(clip, comm))
        clip.load_state_dict({})
        nets = [uneven_net(), uneven_net()]
        if comm.rank == 0:
            # Nobody is asked.
            nets[0].step(X, Y, clip)
            nets[1].step(X, Y, ClipByLayerNorm(Adam(lr=0.01), 0.1))
            expect_same_bits(nets)

    together(work)


# -- averages -------------------------------------------------------------------------------------


def from_the_end(net):
    return [p for layer in reversed(list(net.layers)) for p in layer.params.values()]


def flat_of(net):
    return np.concatenate([param.value.ravel() for param in from_the_end(net)])


def put(net, flat):
    start = 0
    for param in from_the_end(net):
        param.value[...] = flat[start : start + param.value.size].reshape(param.shape)
        start += param.value.size


def by_hand(batches, size, every, parts, ended):
    """Each rank's values after all steps, and after what ends them; averages in float64."""
    nets = [small_net() for _ in range(size)]
    rules = [SGD(lr=0.2, momentum=0.9) for _ in range(size)]
    n, waiting = flat_of(nets[0]).size, np.zeros((size, parts))

    def average(part):
        span = slice(n * part // parts, n * (part + 1) // parts)
        if total := waiting[:, part].sum():
            flats = [flat_of(net).astype(float) for net in nets]
            mean = sum(w / total * f[span] for w, f in zip(waiting[:, part], flats, strict=True))
            for net, flat in zip(nets, flats, strict=True):
                flat[span] = mean
                put(net, flat)
        waiting[:, part] = 0

    for done, (cuts, samples) in enumerate(batches, 1):
        for rank in range(size):
            own = slice(cuts[rank], cuts[rank + 1])
            if own.stop > own.start:
                nets[rank].step(X[:samples][own], Y[:samples][own], rules[rank])
            waiting[rank] += own.stop - own.start
        if done % every == 0:
            average((done // every - 1) % parts)
    for part in range(parts) if ended else ():
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
        batches.append(([0, *sorted(inner), n], n))

    def work(comm):
        net, rule = small_net(), SGD(lr=0.2, momentum=0.9)
        optimizer = (
            LocalSGD(rule, comm, every) if every > 1 else PartialUpdate(rule, comm, partitions)
        )
        optimizer.meet(net)
        for cuts, samples in batches:
            own = slice(cuts[comm.rank], cuts[comm.rank + 1])
            if own.stop > own.start or empty:
                # Batches without samples are what `fit` gives to ranks that have no more.
                net.step(X[:samples][own], Y[:samples][own], optimizer)
            else:
                optimizer.begin(0)
                optimizer.end()
        if ended:
            optimizer.join()
        return net

    nets = together(work, size)
    for net, flat in zip(nets, by_hand(batches, size, every, partitions, ended), strict=True):
        np.testing.assert_allclose(flat_of(net), flat, rtol=1e-4, atol=1e-5)
    if ended:
        expect_same_bits(nets)


METHODS = pytest.mark.parametrize(
    ("method", "options"), [(LocalSGD, {"every": 3}), (PartialUpdate, {"partitions": 5})]
)


@METHODS
def test_what_is_frozen_stays_and_is_not_sent(method, options):
    def work(comm):
        net = dense_net()
        net.freeze("b")
        before, optimizer = values_of(net), method(SGD(lr=0.1), comm, **options)
        for k in range(4):
            if k == 2:
                net.unfreeze()
                net.freeze("d")
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        optimizer.join()
        for name in ("a/weight", "a/bias"):
            np.testing.assert_array_equal(values_of(net)[name], before[name])
        return net

    expect_same_bits(together(work))


@METHODS
def test_recorded_averages_of_ranks_are_those_by_the_layers(method, options):
    """A part of the values that was averaged last is not followed twice at the end."""

    def work(comm, recorded):
        net = dense_net()
        net.programs.enabled = recorded
        net.compile(method(SGD(lr=0.1), comm, **options))
        net.fit(X, Y, 8, 2, callbacks=[EMA(0.5)], shuffle=False, verbose=False)
        assert bool(net.programs.reports()) is recorded
        return net

    recorded, by_layers = (together(lambda comm, way=way: work(comm, way)) for way in (True, False))
    expect_same_bits([*recorded, *by_layers])


@pytest.mark.parametrize("clip_by", ["layer", "global", "value"])
@METHODS
def test_clipping_of_fit_averages_before_files_and_evaluations_too(
    method, options, clip_by, tmp_path
):
    """What was asked to average was the stage as compiled, which had never met the net."""
    told = []

    def evaluates(session, *_):
        if session.step % 2:
            told.append((session.net.evaluate(X, Y).loss, flat_of(session.net)))

    def work(comm):
        net = dense_net(wide=40)
        net.compile(method(SGD(lr=0.1), comm, **options))
        saves = ModelCheckpoint(tmp_path, monitor=None, every_steps=2)
        calls = [at("on_batch_end", evaluates), saves]
        net.fit(X, Y, 8, 2, callbacks=calls, clip=0.5, clip_by=clip_by, verbose=False)
        return net

    expect_same_bits(together(work))
    assert len(told) == 6
    for (loss, values), (other, others) in zip(told[::2], told[1::2], strict=True):
        assert loss == other
        np.testing.assert_array_equal(values, others)


def test_state_of_other_settings_is_refused():
    def partial(partitions):
        return PartialUpdate(SGD(lr=0.1), SingleProcess(), partitions=partitions)

    state = partial(3).state_dict()
    partial(3).load_state_dict(state)
    for other, given_ in ((partial(4), state), (LocalSGD(SGD(lr=0.1), SingleProcess()), {})):
        with pytest.raises(DataError, match="same settings"):
            other.load_state_dict(given_)


def mean_of(two):
    made = {name: (value + two[1][name]) / 2 for name, value in two[0].items()}
    return [made, made]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_moving_averages_follow_each_rank_and_become_their_mean(every, recorded):
    """The end of an epoch of three steps averages what has not been, which is followed once."""

    def work(comm):
        net, ema = small_net(), EMA(0.75, keep_at_end=False)
        net.programs.enabled = recorded
        net.compile(LocalSGD(SGD(lr=0.5), comm, every))
        net.fit(X, Y, 8, 4, callbacks=[ema], shuffle=False, verbose=False)
        assert bool(net.programs.reports()) == recorded
        return ema.averages, values_of(net)

    net = small_net()
    start = {name: value.astype(float) for name, value in values_of(net).items()}
    values, averages = [start, start], [start, start]

    def stepped(own, x, y):
        for param in net.params():
            param.value[...] = own[param.name]
        grads = dict(zip(net.param_names(), net.train(x, y)[0], strict=True))
        return {name: value - 0.5 * grads[name] for name, value in own.items()}

    def followed():
        return [
            {name: 0.75 * mean[name] + 0.25 * own[name] for name in own}
            for mean, own in zip(averages, values, strict=True)
        ]

    for _ in range(4):
        for done in (1, 2, 3):
            x, y = X[8 * done - 8 : 8 * done], Y[8 * done - 8 : 8 * done]
            values = [stepped(values[rank], x[rank::2], y[rank::2]) for rank in range(2)]
            values = mean_of(values) if done % every == 0 else values
            averages = followed()
        if 3 % every:
            values = mean_of(values)
            averages = followed()
        averages = mean_of(averages)
    for found, ended in together(work):
        expect_near_values(ended, values[0], 1e-4, 1e-6)
        expect_near_values(dict(found), averages[0], 1e-4, 1e-6)


def test_a_net_that_is_met_again_has_the_mean_and_each_rank_its_own_state():
    """Another net in between loses neither a rank's updates nor its running state."""

    def work(comm):
        net, other = (
            net_of(Dense(name, 5, input_sample_shape=(6,)), BatchNormalization("bn"), Dense("d", 4))
            for name in "ab"
        )
        stage, part = LocalSGD(SGD(lr=0.5), comm, every=100), slice(comm.rank * 12, None)
        for _ in range(3):
            net.step(X[part][:12], Y[part][:12], stage)
        before = values_of(net)
        stage.meet(other)
        stage.meet(net)
        return before, values_of(net)

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
