"""Recorded steps of several ranks: the bits of the layers, whoever records, on a device too."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import CallOrderError, RankError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, L2Constraint
from singanet.optimizer.averaged import Averaged
from singanet.parallel import AllReduce, Sharded
from singanet.program.on_device.device_lowering import Launch
from singanet.testing import strict_device, watch_device
from singanet.testing.device_like import DeviceArray
from singanet.training import Callback
from singanet.training.callbacks import EMA
from tests.kit.nets import uneven_net, values_of, words_net
from tests.kit.optimizers import Plain
from tests.kit.ranks import expect_same_bits, expect_same_values, together
from tests.parallel.reductions.reducer_settings import SETTINGS, WORDS

RNG = np.random.default_rng(7)
X = RNG.standard_normal((24, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 24)
OF_A_DEVICE = pytest.mark.parametrize("takes", [False, True], ids=["over the host", "there"])
"""Whether the communicator takes arrays of the device, or those of the host alone."""


def host(value):
    return value.get() if isinstance(value, DeviceArray) else np.array(value)


def of_ranks(wrap, records, size=2, build=uneven_net, counts=(24,) * 6, takes=None):
    """The net, the state and the losses of each rank; those in ``records`` record.

    ``counts`` are the samples of all ranks in each step. With ``takes`` nets are on a device.
    """

    def work(comm):
        net, optimizer, losses = build(), wrap(comm), []
        if takes is not None:
            comm._on_device = takes
            net.to_device(strict_device())
        net.programs.enabled = comm.rank in records
        for count in counts:
            own = slice(comm.rank, count, comm.size)
            losses.append(net.step(X[own], Y[own], optimizer)[0])
        state = {**values_of(net), **optimizer.state_dict(), "losses": losses}
        return net, {name: host(value) for name, value in state.items()}, losses

    return together(work, size)


def expect_same(made, others):
    np.testing.assert_equal([state for _, state, _ in others], [state for _, state, _ in made])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_fifty_recorded_steps_have_the_losses_of_one_process(size):
    made, again = (
        of_ranks(lambda comm: AllReduce(SGD(lr=0.1, momentum=0.9), comm), range(size), size,
                 counts=(24,) * 50) for _ in range(2)
    )  # fmt: skip
    expect_same(made, again)
    expect_same_bits([net for net, *_ in made])
    net, rule = uneven_net(), SGD(lr=0.1, momentum=0.9)
    alone = [net.step(X, Y, rule)[0] for _ in range(50)]
    means = np.mean([losses for *_, losses in made], axis=0)
    np.testing.assert_allclose(means, alone, rtol=0, atol=1e-6)


RULES = {
    "sgd": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": lambda: Adam(lr=0.01),
    "clipped": lambda: ClipByGlobalNorm(SGD(lr=0.1), 0.05),
}
LAYER = st.tuples(st.sampled_from([3, 17, 200]), st.booleans(), st.sampled_from(["relu", "tanh"]))


@pytest.mark.parametrize("on_device", [False, True])
@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(sorted(RULES)), st.integers(2, 3), st.integers(1, 5))
def test_random_nets_batches_and_ranks_agree(on_device, data, rule, size, window):
    layers = data.draw(st.lists(LAYER, min_size=1, max_size=4))
    counts = data.draw(st.lists(st.integers(3, 24), min_size=2, max_size=4))
    level, takes, records = 0, None, range(size)
    if on_device:
        level, takes = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    else:
        records = data.draw(st.sets(st.integers(0, size - 1), min_size=1))

    def build():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        net.add(Dense("first", 5, input_sample_shape=(6,)))
        for k, (width, bias, mode) in enumerate(layers):
            net.add(Dense(f"dense{k}", width, use_bias=bias))
            net.add(Activation(f"{mode}{k}", mode=mode))
        net.add(Dense("last", 4))
        if len(layers) > 2 and not on_device:
            net.freeze("dense0")
        return net

    def wrap(comm):
        if level:
            return Sharded(RULES[rule](), comm, level, window, smallest=100)
        return AllReduce(RULES[rule](), comm, window)

    # Twice, so that each shape is recorded.
    more = {"size": size, "build": build, "counts": (*counts, *counts), "takes": takes}
    by_layers, recorded = (of_ranks(wrap, by, **more) for by in ((), records))
    expect_same(by_layers, recorded)
    assert not any(net.programs.refusals for net, *_ in recorded)


def test_a_rule_of_ones_own_gets_the_sums_in_a_python_step_that_is_told():
    wrap = lambda comm: AllReduce(Plain(), comm)  # noqa: E731
    by_layers, recorded = (of_ranks(wrap, by) for by in ((), (0, 1)))
    expect_same(by_layers, recorded)
    assert any("Plain is not singanet's" in note for note in recorded[0][0].programs.notes)


def test_averages_around_a_sum_follow_the_updates_of_a_rule_of_ones_own():
    def work(comm, enabled):
        net, optimizer = uneven_net(), Averaged(AllReduce(Plain(), comm), 0.5)
        net.programs.enabled = enabled
        optimizer.begin_with(net.params())
        for _ in range(5):
            net.step(X[comm.rank :: 2], Y[comm.rank :: 2], optimizer)
        return net.programs, optimizer.averages

    layers, recorded = (together(lambda comm, on=on: work(comm, on)) for on in (False, True))
    for (_, one), (programs, other) in zip(layers, recorded, strict=True):
        assert any("Plain is not singanet's" in note for note in programs.notes)
        np.testing.assert_equal(one, other)


def test_a_bound_of_the_norm_sees_the_factor_of_the_sums():
    wrap = lambda comm: AllReduce(SGD(0.1, constraint=L2Constraint(1e-3)), comm)  # noqa: E731
    by_layers, recorded = (of_ranks(wrap, by) for by in ((), (0, 1)))
    expect_same(by_layers, recorded)
    assert recorded[0][0].programs.reports()
    assert not recorded[0][0].programs.refusals


@pytest.mark.parametrize("mean", [True, False])
def test_rows_that_are_gathered_before_a_sum_are_recorded(mean, monkeypatch):
    monkeypatch.setitem(globals(), "X", WORDS)
    counts = (24,) * 7 + (15,) * 6
    wrap = lambda comm: Accumulator(AllReduce(SGD(0.1, 0.9), comm), 2 + (not mean), mean)  # noqa: E731
    by_layers, recorded = (
        of_ranks(wrap, by, build=words_net, counts=counts) for by in ((), (0, 1))
    )
    expect_same(by_layers, recorded)
    for net, *_ in recorded:
        assert net.programs.reports()
        assert not net.programs.refusals
        assert not net.programs.notes


def test_a_program_by_hand_tells_what_was_exchanged(tmp_path):
    def work(comm):
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm, window=2)
        with pytest.raises(CallOrderError, match="other processes"):
            net.record(X, Y, optimizer)
        net.step(X, Y, optimizer)
        program = net.record(X, Y, optimizer)
        for _ in range(3):
            program.run(X, Y, timed=True)
        return program.report(), sum(value.nbytes for value in net.param_values())

    for rank, (report, nbytes) in enumerate(together(work)):
        figures = report.as_dict()["communication"]
        # An element beside each of the eight parameters tells who has it.
        assert figures["bytes"] == nbytes + 8 * 4
        assert figures["seconds under way"] >= figures["seconds waited"] >= 0
        assert 0 <= figures["hidden"] <= 1
        assert f"communication: {figures['sums']} sums of 164.0 kB" in report.table(0)
        events = json.loads(report.trace(tmp_path / f"{rank}.json"))["traceEvents"]
        assert {event["pid"] for event in events} == {rank}
        begun, ended = ([e for e in events if e["ph"] == letter] for letter in "be")
        assert [e["id"] for e in begun] == [e["id"] for e in ended]
        assert len(begun) == figures["sums"]
        assert all(a["ts"] <= b["ts"] for a, b in zip(begun, ended, strict=True))


# -- on a device ----------------------------------------------------------------------------------


def there(comm, takes, wrap=AllReduce, steps=0, build=uneven_net, **more):
    comm._on_device = takes
    net, optimizer = build(), wrap(SGD(lr=0.1, **more), comm)
    net.to_device(strict_device())
    for _ in range(steps):
        net.step(X, Y, optimizer)
    return net, optimizer


class Looks(Callback):
    def __init__(self):
        self.seen = []

    def on_batch_end(self, batch, logs):
        self.seen.append(float(self.session.net.param_values()[0].sum()))


@pytest.mark.few(2)
@OF_A_DEVICE
@pytest.mark.parametrize("said", [{}, {"clip": 0.5, "clip_by": "global"}, {"accumulate": 2}])
def test_mixed_precision_averages_and_callbacks_see_the_same(said, takes):
    x = X.copy()
    # The gradients of one batch are not finite on the rank that has this sample alone.
    x[11, 0] = np.nan

    def fitted(comm, records):
        net, optimizer = there(comm, takes, momentum=0.9)
        net.programs.enabled, ema, looks = records, EMA(0.5), Looks()
        net.compile(optimizer, mixed_precision="float16")
        named = {"shuffle": False, "callbacks": [ema, looks], "verbose": False}
        net.fit(x, Y, batch_size=4, epochs=3, **named, **said)
        precision = net.compiled.precision
        arrays = {**precision.masters, **{f"mean {n}": a for n, a in ema.averages.items()}}
        numbers = [precision.skipped, precision.scale, *looks.seen]
        return net.programs, numbers, {name: host(array) for name, array in arrays.items()}

    made = [together(lambda comm, r=r: fitted(comm, r)) for r in (False, True)]
    for (_, layers, expected), (programs, numbers, found) in zip(*made, strict=True):
        assert not programs.refusals
        assert not programs.notes
        assert any("communication" in report.phases() for report in programs.reports())
        assert numbers == layers
        assert numbers[0] == 3
        expect_same_values([expected, found])


@OF_A_DEVICE
@pytest.mark.parametrize("every", [1, 2])
def test_a_sum_crosses_once_each_way_and_not_at_all_where_it_is_made_there(every, takes):
    told = []

    def work(comm):
        net, rule = there(comm, takes, build=SETTINGS["ignored"].build, momentum=0.9)
        optimizer = Accumulator(rule, every) if every > 1 else rule
        x, y = net.device.put(X[comm.rank :: 2]), net.device.put(Y[comm.rank :: 2])
        for _ in range(6 * every - 1):
            net.step(x, y, optimizer)
        # All are done with the steps before, and all watch.
        comm.barrier()
        with watch_device() as seen:
            comm.barrier()
            net.step(x, y, optimizer)
            comm.barrier()
        told.append(seen)
        like = rule.reduction.like
        return [sum(like(n).nbytes + 4 for n in e) for e in rule.reduction.entries]

    entries, _ = together(work)
    for seen in told:
        # Of both ranks. Threads that take arrays of the device talk by copies themselves; numbers
        # that change from step to step go over beside.
        elsewhere = "communicators.py", "on_device/lowering.py"
        crossed = [
            (place.partition(" at ")[0], count)
            for place, count in seen.places.items()
            if place.startswith(("array.get", "array.set"))
            and not any(file in place for file in elsewhere)
        ]
        # What comes to the host is read there, and counts as that as well.
        each = [] if takes else [("array.get", 4 * len(entries)), ("array.set", 2 * len(entries))]
        assert sorted(crossed) == each
        # A sum has an element beside each gradient that tells who has it.
        assert seen.to_host_bytes == 2 * sum(entries)


@OF_A_DEVICE
def test_after_an_error_among_the_sums_no_step_is_taken(takes):
    heard = []

    def work(comm):
        net, optimizer = there(comm, takes, steps=4)
        start, begun, before = comm.start_all_reduce, [], values_of(net)

        def fails(array, *given, **named):
            begun.append(array)
            # The step is announced before, and the first of its sums is under way.
            if comm.rank == 1 and len(begun) == 3:
                raise KeyError("lost")
            return start(array, *given, **named)

        comm.start_all_reduce = fails
        try:
            net.step(X, Y, optimizer)
        except KeyError:
            assert type(begun[1]) is (DeviceArray if takes else np.ndarray)
            with pytest.raises(CallOrderError, match="an error ended the last step"):
                net.step(X, Y, optimizer)
            for name, now in values_of(net).items():
                np.testing.assert_array_equal(host(before[name]), host(now))
            heard.append(True)
            raise

    with pytest.raises((KeyError, RankError)):
        together(work)
    assert heard


@OF_A_DEVICE
def test_the_host_has_its_turn_where_ranks_talk_and_buffers_lie_in_the_arena(takes):
    def work(comm):
        net, optimizer = there(comm, takes, steps=4)
        program = next(p for _, p in net.programs._every() if p.traffic() is not None)
        calls = program.bound(program._bound.arena).feed.calls
        like = optimizer.reduction.like
        entries = [sum(like(n).nbytes + 4 for n in e) for e in optimizer.reduction.entries]
        return program.report(), [group.calls for group in calls._groups if group.calls], entries

    for report, groups, entries in together(work):
        planned = [buffer.nbytes for buffer in report.buffers if buffer.planned]
        assert all(planned.count(size) == entries.count(size) for size in entries)
        assert sum(entries) < report.layout.nbytes
        # What other ranks wait for, and looks at labels, loss, metric and count of the batch.
        turns = [group for group in groups if not isinstance(group[0], Launch)]
        talks = [kernel for kernel in report.kernels if kernel.phase == "communication"]
        assert len(turns) == len(talks) + 4
        # Gradients are made where they are summed, and not copied there.
        assert not any(k.name == "copyto" and k.phase == "update" for k in report.kernels)
