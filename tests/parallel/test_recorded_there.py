"""Recorded steps of several ranks on a device: the bits of its layers, wherever ranks talk."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import CallOrderError, RankError
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Accumulator
from singanet.parallel import AllReduce, Sharded
from singanet.program.on_device.device_lowering import Launch
from singanet.testing import strict_device, watch_device
from singanet.testing.device_like import DeviceArray
from singanet.training import Callback
from singanet.training.callbacks import EMA
from tests.kit.nets import uneven_net
from tests.kit.ranks import together
from tests.parallel.reductions.reducer_settings import SETTINGS
from tests.parallel.test_recorded import LAYERS, RULES, X, Y, state_of, trained

OF_A_DEVICE = pytest.mark.parametrize("takes", [False, True], ids=["over the host", "there"])
"""Whether the communicator takes arrays of the device, or those of the host alone."""


def on_ranks(wrap, takes, records=True, device=None, build=uneven_net, size=2, **more):
    """The net of each rank, the numbers of its training on the host, and its state there."""

    def placed():
        net = build()
        if device is not None:
            net.to_device(device)
        return net

    def work(comm):
        comm._on_device = takes
        made = trained(comm, wrap, records, placed, **more)
        state = {name: np.array(host(value)) for name, value in state_of(made).items()}
        return made[0], state

    return together(work, size)


def host(value):
    return value.get() if isinstance(value, DeviceArray) else value


def expect_recorded(net, note=""):
    assert not net.programs.refusals
    assert all(note and note in told for told in net.programs.notes)
    assert any("communication" in report.phases() for report in net.programs.reports())


class Looks(Callback):
    """A user's own, which looks at the net after each batch."""

    def __init__(self):
        self.seen = []

    def on_batch_end(self, batch, logs):
        self.seen.append(float(self.session.net.param_values()[0].sum()))


@pytest.mark.few(3)
@OF_A_DEVICE
@pytest.mark.parametrize("said", [{}, {"clip": 0.5, "clip_by": "global"}, {"accumulate": 2}])
def test_mixed_precision_averages_and_callbacks_see_the_same(said, takes):
    def fitted(comm, records):
        comm._on_device = takes
        net, ema, looks = uneven_net(), EMA(0.5), Looks()
        net.to_device(strict_device())
        net.programs.enabled = records
        x = X.copy()
        # The gradients of one batch are not finite on the rank that has this sample alone.
        x[11, 0] = np.nan
        net.compile(AllReduce(SGD(lr=0.05, momentum=0.9), comm), mixed_precision="float16")
        named = {"shuffle": False, "callbacks": [ema, looks], "verbose": False}
        net.fit(x, Y, batch_size=4, epochs=4, **named, **said)
        precision = net.compiled.precision
        arrays = {**precision.masters, **{f"mean {n}": a for n, a in ema.averages.items()}}
        numbers = [precision.skipped, precision.scale, *looks.seen]
        return net, numbers, {name: host(array) for name, array in arrays.items()}

    made = []
    for records in (False, True):
        made.append(together(lambda comm, r=records: fitted(comm, r)))
    for (_, layers, expected), (net, numbers, found) in zip(*made, strict=True):
        expect_recorded(net)
        assert numbers == layers
        assert numbers[0] == 4
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, err_msg=name)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(
    LAYERS,
    st.sampled_from(sorted(RULES)),
    st.integers(2, 3),
    st.integers(1, 5),
    st.lists(st.integers(3, 24), min_size=2, max_size=4),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
)
def test_random_nets_batches_and_ranks_agree(layers, rule, size, window, counts, takes, level):
    def build():
        net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=2)
        net.add(Dense("first", 5, input_sample_shape=(6,)))
        for k, (width, bias, mode) in enumerate(layers):
            net.add(Dense(f"dense{k}", width, use_bias=bias))
            net.add(Activation(f"{mode}{k}", mode=mode))
        net.add(Dense("last", 4))
        return net

    def wrap(comm):
        if level:
            return Sharded(RULES[rule](), comm, level, window, smallest=100)
        return AllReduce(RULES[rule](), comm, window)

    # Twice, so that each shape is recorded.
    more = {"build": build, "counts": (*counts, *counts), "size": size}
    by_layers = on_ranks(wrap, takes, False, strict_device(), **more)
    recorded = on_ranks(wrap, takes, True, strict_device(), **more)
    for (_, expected), (net, found) in zip(by_layers, recorded, strict=True):
        assert not net.programs.refusals
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@OF_A_DEVICE
@pytest.mark.parametrize("every", [1, 2])
def test_a_sum_crosses_once_each_way_and_not_at_all_where_it_is_made_there(every, takes):
    def work(comm):
        comm._on_device = takes
        net, rule = SETTINGS["ignored"].build(), AllReduce(SGD(lr=0.1, momentum=0.9), comm)
        optimizer = Accumulator(rule, every) if every > 1 else rule
        net.to_device(strict_device())
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

    told = []
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
        comm._on_device = takes
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm)
        net.to_device(strict_device())
        for _ in range(4):
            net.step(X, Y, optimizer)
        start, begun = comm.start_all_reduce, []

        def fails(array, *given, **named):
            begun.append(array)
            # The step is announced before, and the first of its sums is under way.
            if comm.rank == 1 and len(begun) == 3:
                raise KeyError("lost")
            return start(array, *given, **named)

        comm.start_all_reduce = fails
        before = [value.copy() for value in net.param_values()]
        try:
            net.step(X, Y, optimizer)
        except KeyError:
            assert type(begun[1]) is (DeviceArray if takes else np.ndarray)
            with pytest.raises(CallOrderError, match="an error ended the last step"):
                net.step(X, Y, optimizer)
            for old, new in zip(before, net.param_values(), strict=True):
                np.testing.assert_array_equal(old.get(), new.get())
            heard.append(True)
            raise

    with pytest.raises((KeyError, RankError)):
        together(work)
    assert heard


@OF_A_DEVICE
def test_the_host_has_its_turn_where_ranks_talk_and_buffers_lie_in_the_arena(takes):
    def work(comm):
        comm._on_device = takes
        net, optimizer = uneven_net(), AllReduce(SGD(lr=0.1), comm)
        net.to_device(strict_device())
        for _ in range(4):
            net.step(X, Y, optimizer)
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
