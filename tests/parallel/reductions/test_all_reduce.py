"""Ranks train as one process with all their samples; on ranks that are threads."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.data import ArrayLoader
from singanet.device import Device
from singanet.errors import ArgumentError, CallOrderError, RankError
from singanet.layers import Activation, BatchNormalization, Dense
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from singanet.ops import ops_for
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    ClipByRunningNorm,
    ClipByValue,
)
from singanet.parallel import AllReduce, SingleProcess
from singanet.testing import communicators
from singanet.testing.communicators import FakeCommunicator
from singanet.testing.device_like import device_like
from singanet.training.callbacks import EMA, Callback
from tests.kit.nets import uneven_net, values_of, words_net
from tests.kit.ranks import expect_same_bits

RNG = np.random.default_rng(5)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)


def steps_alone(build, optimizer, batches):
    net, losses = build(), []
    for x, y in batches:
        losses.append(net.step(x, y, optimizer)[0])
    return net, losses


def steps_together(build, wrap, batches, size, cuts=None):
    """The nets of all ranks, and the losses over all samples; a rank's shard may be empty."""

    def work(comm):
        net, optimizer = build(), wrap(comm)
        stage = singanet.optimizer.chain.UpdateChain(optimizer).reducers[0]
        told = []
        for k, (x, y) in enumerate(batches):
            bounds = cuts[k] if cuts else [len(x) * r // size for r in range(size + 1)]
            own = slice(bounds[comm.rank], bounds[comm.rank + 1])
            n = own.stop - own.start
            if n:
                told.append((n, net.step(x[own], y[own], optimizer)[0]))
            else:
                stage.meet(net)
                stage.begin(0)
                stage.end()
                told.append((0, 0.0))
        return net, told

    with communicators(size) as comms:
        made = comms.run(work)
    losses = [
        sum(n * loss for n, loss in each) / sum(n for n, _ in each)
        for each in zip(*(told for _, told in made), strict=True)
    ]
    return [net for net, _ in made], losses


def expect_near(net, nets, rtol=2e-5, atol=2e-6):
    expect_same_bits(nets)
    for name, value in values_of(net).items():
        np.testing.assert_allclose(values_of(nets[0])[name], value, rtol, atol, err_msg=name)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("rule", [lambda: SGD(lr=0.1, momentum=0.9), lambda: Adam(lr=0.003)])
def test_fifty_steps_have_the_losses_of_one_process(size, rule):
    batches = [(X, Y)] * 50
    net, losses = steps_alone(uneven_net, rule(), batches)
    nets, together = steps_together(uneven_net, lambda c: AllReduce(rule(), c), batches, size)
    np.testing.assert_allclose(together, losses, rtol=1e-5, atol=1e-6)
    expect_near(net, nets, rtol=1e-3, atol=1e-4)


def test_what_is_on_a_device_is_summed_on_the_host_where_ranks_talk_through_it(monkeypatch):
    given, start = set(), FakeCommunicator.start_all_reduce

    def noted(self, array, *more, **options):
        given.add(type(array))
        return start(self, array, *more, **options)

    monkeypatch.setattr(FakeCommunicator, "start_all_reduce", noted)

    def build():
        net = uneven_net()
        net.to_device(Device("device_like", ops_for(device_like.zeros(1))))
        return net

    def values(net):
        return [net.device.ops.host(value) for value in net.param_values()]

    there = [tuple(device_like.asarray(part) for part in (X, Y))] * 2
    net, _ = steps_alone(uneven_net, SGD(lr=0.1), [(X, Y)] * 2)
    nets, _ = steps_together(build, lambda comm: AllReduce(SGD(lr=0.1), comm), there, 2)
    for each in nets:
        for one, other in zip(values(each), net.param_values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)
    assert given == {np.ndarray}


def test_bytes_are_counted_from_none():
    def work(comm):
        before = comm.exchanged
        comm.all_reduce(np.ones(3))
        return before, comm.exchanged

    with communicators(2) as comms:
        found = comms.run(work)
    for before, after in found:
        assert tuple(before) == (0, 0)
        assert min(after) >= 3 * 8


CHAINS = {
    "value": lambda inner: ClipByValue(inner, 0.02),
    "layer": lambda inner: ClipByLayerNorm(inner, 0.1),
    "global": lambda inner: ClipByGlobalNorm(inner, 0.1),
    "running": lambda inner: ClipByRunningNorm(inner, 0.1),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_clipping_inside_sees_the_gradients_of_all_ranks(chain):
    clip = CHAINS[chain]
    batches = [(X, Y), (X[:11], Y[:11])] * 3
    net, losses = steps_alone(uneven_net, clip(SGD(lr=0.5)), batches)
    nets, together = steps_together(
        uneven_net, lambda c: AllReduce(clip(SGD(lr=0.5)), c), batches, 3
    )
    np.testing.assert_allclose(together, losses, rtol=1e-5)
    expect_near(net, nets)


@pytest.mark.parametrize("clip", [lambda inner: inner, CHAINS["global"]])
def test_what_is_accumulated_is_reduced_once_and_weighs_as_it_should(clip):
    batches = [(X[:12], Y[:12]), (X[12:17], Y[12:17]), (X[17:], Y[17:])] * 2
    sent = []

    def wrap(comm):
        sent.append(comm)
        return Accumulator(AllReduce(clip(SGD(lr=0.5)), comm), 3)

    net, losses = steps_alone(uneven_net, Accumulator(clip(SGD(lr=0.5)), 3), batches)
    nets, together = steps_together(uneven_net, wrap, batches, 2)
    np.testing.assert_allclose(together, losses, rtol=1e-5)
    expect_near(net, nets)
    bytes_of_net = sum(value.nbytes for value in net.param_values())
    rounds = 2 if clip(SGD(lr=1.0)).__class__ is SGD else 4
    # The values once, and each round of gradients.
    assert sent[0].bytes_sent < (1 + rounds) * bytes_of_net * 1.05


def test_a_rank_whose_samples_have_ended_joins_through_the_stages_around():
    def work(comm):
        net = uneven_net()
        optimizer = Accumulator(AllReduce(SGD(lr=0.5), comm), 2)
        for k in range(4 if comm.rank == 0 else 2):
            net.step(X[k::8], Y[k::8], optimizer)
        optimizer.join()
        return net

    def alone():
        net, optimizer = uneven_net(), SGD(lr=0.5)
        for k, weight in ((0, 2), (2, 1)):
            rows = np.concatenate([np.arange(len(X))[j::8] for j in (k, k + 1)] * weight)
            net.step(X[rows], Y[rows], optimizer)
        return net

    Accumulator(SGD(lr=0.1), 2).join()  # no other processes
    with communicators(2) as comms:
        nets = comms.run(work)
    expect_near(alone(), nets)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.integers(2, 4))
def test_uneven_shards_and_empty_ones_train_as_one_process(data, size):
    build = lambda: singanet.FeedForwardNet(  # noqa: E731
        [
            Dense("a", 7, input_sample_shape=(6,)),
            Activation("tanh", mode="tanh"),
            Dense("b", 4),
        ],
        loss=SoftmaxCrossEntropy(),
        seed=3,
    )
    batches, cuts = [], []
    for _ in range(4):
        n = data.draw(st.integers(1, 24))
        inner = data.draw(st.lists(st.integers(0, n), min_size=size - 1, max_size=size - 1))
        cuts.append([0, *sorted(inner), n])
        batches.append((X[:n], Y[:n]))
    net, losses = steps_alone(build, SGD(lr=0.2, momentum=0.9), batches)
    wrap = lambda c: AllReduce(SGD(lr=0.2, momentum=0.9), c)  # noqa: E731
    nets, together = steps_together(build, wrap, batches, size, cuts)
    np.testing.assert_allclose(together, losses, rtol=1e-5, atol=1e-6)
    expect_near(net, nets)


def test_a_loop_of_ones_own():
    def work(comm):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm, window=1)
        optimizer.meet(net)
        x, y = X[comm.rank :: comm.size], Y[comm.rank :: comm.size]
        for _ in range(4):
            net.loss.forward(True, net.forward(True, x), y)
            optimizer.begin(len(x))
            for item in net.backward(net.loss.backward()):
                optimizer.update(*item)
                del item
            optimizer.end()
        return net

    net, _ = steps_alone(uneven_net, SGD(lr=0.1), [(X, Y)] * 4)
    with communicators(3) as comms:
        expect_near(net, comms.run(work))


def test_values_are_those_of_rank_0_from_the_first_step_on():
    def work(comm):
        net = uneven_net(seed=comm.rank)
        net.step(X, Y, AllReduce(SGD(lr=0.1), comm))
        return net

    net, _ = steps_alone(lambda: uneven_net(seed=0), SGD(lr=0.1), [(X, Y)])
    with communicators(2) as comms:
        expect_near(net, comms.run(work))


class Numbers(Callback):
    def __init__(self):
        self.samples = 0

    def on_batch_begin(self, batch):
        self.samples += len(self.session.inputs)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("more", [{}, {"clip": 0.05, "clip_by": "global"}, {"clip": 0.05}], ids=str)
@pytest.mark.full
def test_fit_with_uneven_shards_counts_every_sample_once(size, more):
    def trained(loader, optimizer):
        net, numbers = uneven_net(), Numbers()
        net.compile(optimizer)
        net.fit(loader, epochs=3, callbacks=[numbers], verbose=False, **more)
        return net, numbers.samples

    def work(comm):
        loader = ArrayLoader(X[:19], Y[:19], 6 // size, seed=2, rank=comm.rank, world_size=size)
        return trained(loader, AllReduce(SGD(lr=0.3), comm))

    net, samples = trained(ArrayLoader(X[:19], Y[:19], 6, seed=2), SGD(lr=0.3))
    with communicators(size) as comms:
        made = comms.run(work)
    assert sum(n for _, n in made) == samples == 57
    expect_near(net, [each for each, _ in made])


def test_mixed_precision_scales_and_skips_on_all_ranks_alike():
    def trained(loader, optimizer, spoil=False):
        net, ema = uneven_net(), EMA(0.5)
        x, y = loader
        if spoil:
            # The gradients of one batch are not finite here, and on no other rank.
            x = x.copy()
            x[0, 0] = np.nan
        net.compile(optimizer, mixed_precision="float16")

        def own(epoch):
            return ArrayLoader(x, y, 4, shuffle=False)

        net.fit(own, epochs=3, callbacks=[ema], verbose=False)
        return net, net.compiled.precision, ema

    def work(comm):
        # Rank 1 has two batches less.
        own = (X[:16], Y[:16]) if comm.rank == 0 else (X[16:], Y[16:])
        return trained(own, AllReduce(SGD(lr=0.05), comm), comm.rank == 1)

    with communicators(2) as comms:
        (net, first, ema), (other, second, other_ema) = comms.run(work)
    assert first.skipped == second.skipped == 3
    assert first.good == 3  # counted anew after each skip
    assert (first.scale, first.good) == (second.scale, second.good)
    expect_same_bits([net, other])
    for name, master in first.masters.items():
        np.testing.assert_array_equal(second.masters[name], master)
    for name, average in ema.averages.items():
        np.testing.assert_array_equal(other_ema.averages[name], average)


def test_rows_of_embeddings_are_gathered_and_only_those_move():
    words = RNG.integers(0, 20, (24, 3))
    batches = [(words[:13], Y[:13]), (words[13:], Y[13:])] * 3
    rule = lambda: SGD(lr=0.5, momentum=0.9, weight_decay=0.01)  # noqa: E731
    kinds = []

    class Told(SGD):
        def update(self, names, values, grads, scale=1.0):
            kinds.extend(
                type(g).__name__ for n, g in zip(names, grads, strict=True) if n == "e/weight"
            )
            super().update(names, values, grads, scale)

    net, losses = steps_alone(words_net, rule(), batches)
    told = lambda c: AllReduce(Told(lr=0.5, momentum=0.9, weight_decay=0.01), c)  # noqa: E731
    nets, together = steps_together(words_net, told, batches, 3)
    np.testing.assert_allclose(together, losses, rtol=1e-5)
    expect_near(net, nets)
    name = next(n for n in net.param_names() if n.startswith("e/"))
    before = values_of(words_net())[name]
    np.testing.assert_array_equal(values_of(nets[0])[name][20:], before[20:])


def two_heads():
    net = singanet.FeedForwardNet(seed=2)
    trunk = net.add(Dense("trunk", 5, input_sample_shape=(6,)))
    net.add(Dense("left", 3), trunk)
    net.add(Dense("right", 2), trunk)
    return net


def test_layers_that_one_rank_does_not_reach_count_as_zeros_and_none_stand_still():
    left, right = RNG.random((4, 3), np.float32), RNG.random((4, 2), np.float32)

    def walked(net, optimizer, x, dy, count=None):
        net.forward(True, x)
        if count is not None:
            optimizer.begin(count)
        for item in net.backward(dy):
            optimizer.update(*item)
        if count is not None:
            optimizer.end()

    def work(comm):
        net = two_heads()
        optimizer = AllReduce(SGD(lr=0.1, weight_decay=0.1), comm)
        optimizer.meet(net)
        for k in range(4):
            # Nobody reaches "right" at first, then rank 1 alone does.
            reached = k >= 2 and comm.rank == 1
            dy = {"right": right[:2]} if reached else {"left": left[2 * comm.rank :][:2]}
            walked(net, optimizer, X[2 * comm.rank :][:2], dy, count=2)
        return net

    # By hand: means of both ranks' gradients, the ones that are missing as zeros.
    net, rule = two_heads(), SGD(lr=0.1, weight_decay=0.1)
    for k in range(4):
        total, order = {}, {}
        for rank in range(2):
            reached = k >= 2 and rank == 1
            dy = {"right": right[:2]} if reached else {"left": left[2 * rank :][:2]}
            net.forward(True, X[2 * rank :][:2])
            for names, values, grads in net.backward(dy):
                for name, value, grad in zip(names, values, grads, strict=True):
                    total[name] = total.get(name, 0) + 0.5 * grad
                    order[name] = value
        rule.update(list(total), [order[n] for n in total], [np.asarray(g) for g in total.values()])
    with communicators(2) as comms:
        expect_near(net, comms.run(work))


def test_frozen_and_shared_parameters():
    def build():
        net = singanet.FeedForwardNet(SquaredError(), seed=0)
        net.add(Dense("first", 6, input_sample_shape=(6,)))
        encoder = net.add(Dense("encoder", 3))
        net.add(Dense("decoder", 6, W_specs=encoder.params["weight"], W_transpose=True))
        net.freeze("encoder")
        return net

    batches = [(X, X)] * 3
    net, losses = steps_alone(build, SGD(lr=0.1), batches)
    nets, together = steps_together(build, lambda c: AllReduce(SGD(lr=0.1), c), batches, 2)
    np.testing.assert_allclose(together, losses, rtol=1e-5)
    expect_near(net, nets)
    before = values_of(build())
    np.testing.assert_array_equal(values_of(nets[0])["first/weight"], before["first/weight"])


def test_thawing_a_layer_in_between_is_a_new_meeting():
    def trained(optimizer, rows):
        net = uneven_net()
        net.freeze("c")
        for k in range(4):
            if k == 2:
                net.unfreeze()
            net.step(X[rows], Y[rows], optimizer)
        return net

    net = trained(SGD(lr=0.1), slice(None))
    with communicators(2) as comms:
        nets = comms.run(
            lambda comm: trained(AllReduce(SGD(lr=0.1), comm), slice(comm.rank, None, 2))
        )
    expect_near(net, nets)


@pytest.mark.parametrize(
    ("rank_1", "told"),
    [
        (lambda: (uneven_net(), SGD(lr=0.2)), "learning_rate=0.2"),
        (lambda: (uneven_net(), Adam(lr=0.1)), "Adam"),
        (lambda: (words_net(), SGD(lr=0.1)), "d/weight (15, 4)"),
    ],
)
def test_what_differs_between_ranks_is_found_before_the_first_step(rank_1, told):
    heard = []

    def work(comm):
        net, rule = rank_1() if comm.rank else (uneven_net(), SGD(lr=0.1))
        try:
            AllReduce(rule, comm).meet(net)
        except RankError as error:
            heard.append(error)
            raise

    with communicators(2) as comms, pytest.raises(RankError):
        comms.run(work)
    assert any(told in error.received for error in heard)
    assert any("ranks 0 and 1" in error.where for error in heard)


def test_clipping_around_the_reduction_and_accumulation_inside_are_refused():
    with communicators(2) as comms:
        stage = ClipByValue(AllReduce(SGD(lr=0.1), comms[0]), 1.0)
        with pytest.raises(ArgumentError, match=r"AllReduce\(ClipByValue"):
            uneven_net().step(X, Y, stage)
        with pytest.raises(ArgumentError, match="reduced once"):
            AllReduce(Accumulator(SGD(lr=0.1), 2), comms[0])


def test_a_loop_that_forgets_something_is_told_what():
    with communicators(2) as comms:
        optimizer = AllReduce(SGD(lr=0.1), comms[0])
        with pytest.raises(CallOrderError, match="meet"):
            optimizer.update([], [], [])

    def work(comm):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm)
        optimizer.meet(net)
        for _ in range(2):
            net.loss.forward(True, net.forward(True, X), Y)
            optimizer.begin(len(X))
            for item in net.backward(net.loss.backward()):
                optimizer.update(*item)

    with communicators(2) as comms, pytest.raises((CallOrderError, RankError), match="end|fail"):
        comms.run(work)


def test_a_rank_at_another_point_of_its_step_is_told_so():
    def work(comm):
        net = uneven_net()
        clip = ClipByGlobalNorm(SGD(lr=0.1), 1.0)
        optimizer = AllReduce(clip, comm)
        optimizer.meet(net)
        if comm.rank:
            with clip.knowing(1.0):
                net.step(X, Y, optimizer)
        else:
            net.step(X, Y, optimizer)

    with communicators(2) as comms, pytest.raises(RankError, match=r"same point|nothing"):
        comms.run(work)


def test_the_window_bounds_what_is_in_flight_and_the_bits_do_not_depend_on_it():
    nets = []
    for window in (1, 3, 100):
        made, _ = steps_together(
            uneven_net, lambda c, w=window: AllReduce(SGD(lr=0.1), c, w), [(X, Y)] * 3, 2
        )
        nets += made
    expect_same_bits(nets)


def test_running_state_is_each_ranks_own():
    def work(comm):
        net = singanet.FeedForwardNet(
            [Dense("a", 5, input_sample_shape=(6,)), BatchNormalization("bn"), Dense("b", 4)],
            loss=SoftmaxCrossEntropy(),
            seed=1,
        )
        for _ in range(3):
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], AllReduce(SGD(lr=0.1), comm))
        return {p.name: (p.value, p.is_state) for p in net.params()}

    with communicators(2) as comms:
        one, other = comms.run(work)
    for name, (value, is_state) in one.items():
        assert is_state or np.array_equal(value, other[name][0])


def test_a_lone_process_trains_as_without():
    net, losses = steps_alone(uneven_net, SGD(lr=0.1), [(X, Y)] * 4)
    same, same_losses = steps_alone(
        uneven_net, AllReduce(SGD(lr=0.1), SingleProcess()), [(X, Y)] * 4
    )
    assert same_losses == losses
    expect_same_bits([net, same])
    assert len(same.programs.reports()) == 1


def test_gradients_of_summed_losses_are_summed():
    def build():
        net = uneven_net()
        net.loss = SoftmaxCrossEntropy(reduction="sum")
        return net

    net, _ = steps_alone(build, SGD(lr=0.01), [(X, Y)] * 3)
    nets, _ = steps_together(build, lambda c: AllReduce(SGD(lr=0.01), c), [(X, Y)] * 3, 3)
    expect_near(net, nets)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("build", [uneven_net, words_net])
def test_halves_travel_in_half_the_bytes_and_are_added_in_float32(size, build):
    x = X if build is uneven_net else RNG.integers(0, 50, (24, 3))
    batches, sent = [(x, Y)] * 6, {}

    def wrap(comm, dtype):
        sent.setdefault(dtype, []).append(comm)
        return AllReduce(SGD(lr=0.2), comm, dtype=dtype)

    net, losses = steps_alone(build, SGD(lr=0.2), batches)
    nets, together = steps_together(build, lambda c: wrap(c, "float16"), batches, size)
    expect_near(net, nets, rtol=5e-3, atol=1e-3)
    np.testing.assert_allclose(together, losses, rtol=2e-3)
    if build is uneven_net and size == 2:
        steps_together(build, lambda c: wrap(c, None), batches, size)
        values = sum(value.nbytes for value in net.param_values())
        half, full = (sent[dtype][0].bytes_sent - values for dtype in ("float16", None))
        # Of one rank, here a part to the other one and its sum: as much as the gradients in half.
        assert half < 0.51 * full


def test_what_is_too_large_for_float16_is_cut_and_counted():
    def work(comm):
        net = singanet.FeedForwardNet(
            [Dense("a", 1, input_sample_shape=(2,), use_bias=False)], loss=SquaredError(), seed=0
        )
        before = net.param_values()[0].copy()
        optimizer = AllReduce(SGD(lr=1.0), comm, dtype="float16")
        optimizer.meet(net)
        optimizer.begin(1)
        grad = np.array([[1e6], [-2.0]], np.float32).reshape(before.shape)
        optimizer.update(net.param_names(), net.param_values(), [grad])
        optimizer.end()
        return (before - net.param_values()[0]).ravel(), optimizer.overflowed

    with communicators(2) as comms:
        made = comms.run(work)
    for moved, _ in made:
        np.testing.assert_allclose(moved, [65504 / 2, -2.0], rtol=1e-3)
    # Both ranks' parts, and their sum, which one of them makes.
    assert sum(count for _, count in made) == 3


def test_models_are_saved_without_the_communicator(tmp_path):
    with communicators(2) as comms:
        net = uneven_net()
        net.compile(AllReduce(SGD(lr=0.1), comms[0], window=2))
        net.save_model(tmp_path / "net.singanet")
    optimizer = singanet.load_model(tmp_path / "net.singanet").compiled.optimizer
    assert isinstance(optimizer.comm, SingleProcess)
    assert repr(optimizer) == "AllReduce(SGD(learning_rate=0.1), window=2)"


def test_the_memory_of_a_step_is_planned_for_what_is_inside():
    with pytest.raises(ArgumentError, match="inside of it"):
        uneven_net().memory(8, optimizer=AllReduce(SGD(lr=0.1), SingleProcess()))


def test_micro_batches_that_differ_by_rank_are_refused_before_gradients_are_exchanged():
    """In mixed precision ranks agree on each micro-batch: they once met at other points of it."""

    def work(comm):
        net = uneven_net()
        gathered = Accumulator(AllReduce(SGD(lr=0.05), comm), 2)
        net.compile(gathered, mixed_precision="float16")
        optimizer = net.compiled.scaled(gathered)
        for k in range(4):
            net.step(X[k : k + 3], Y[k : k + 3], optimizer)
        before = net.param_values()
        sums = gathered.optimizer.traffic.sums
        gathered.every = 2 + comm.rank
        with pytest.raises(RankError, match=r"equal numbers of micro-batches .*\[2, 3\]"):
            net.step(X[:3], Y[:3], optimizer)
        assert gathered.optimizer.traffic.sums == sums
        for now, was in zip(net.param_values(), before, strict=True):
            np.testing.assert_array_equal(now, was)

    with communicators(2) as comms:
        comms.run(work)
