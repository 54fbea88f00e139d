"""Strict devices: arrays, what is counted or refused, streams, graphs and planted mistakes."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import Counter
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet.errors import ArgumentError
from singanet.layers import Dense, Layer
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import ops_for
from singanet.optimizer import SGD
from singanet.testing import DeviceUseError, strict_device, watch_device
from singanet.testing.device_like import DeviceArray, device_like


def there(*values):
    return device_like.asarray(np.array(values, np.float32))


def test_functions_give_arrays_of_the_device():
    made = [device_like.zeros(3), device_like.add(there(1, 2), there(3, 4)),
            device_like.concatenate([there(1), there(2)]),
            device_like.lib.stride_tricks.as_strided(there(1, 2), (1,), (4,)),
            there(1, 2) * 2 + there(1, 2), there(1, 2).reshape(2, 1).T]  # fmt: skip
    assert all(type(a) is DeviceArray for a in made)
    np.testing.assert_array_equal(made[1].get(), [4, 6])
    assert type(made[1].get()) is np.ndarray


def test_numbers_stay_on_the_device():
    for number in (there(1, 2).sum(), there(1, 2)[0], there(1, 2).max(), device_like.sum(there(1))):
        assert type(number) is DeviceArray
        assert number.shape == ()
    assert float(there(1, 2).sum()) == 3.0


@pytest.mark.parametrize(
    "mix",
    [
        lambda d, h: d + h,
        lambda d, h: h * d,
        lambda d, h: np.add(d, h),
        lambda d, h: np.add(h, h, out=d),
        lambda d, h: device_like.concatenate([d, h]),
        lambda d, h: np.concatenate([d, h]),
        lambda d, h: device_like.matmul(d, h),
        lambda d, h: d.__setitem__(0, h),
        lambda d, h: device_like.where(d > 0, h, 0),
    ],
)
def test_arrays_of_the_host_are_refused(mix):
    with pytest.raises(TypeError, match=r"received a NumPy array of shape"):
        mix(there(1, 2), np.ones(2, np.float32))


@pytest.mark.parametrize("bring", [device_like.asarray, device_like.array])
def test_what_is_brought_over_is_a_copy(bring):
    near = np.zeros(2, np.float32)
    far = bring(near)
    near[0], far[1] = 1, 2
    np.testing.assert_array_equal(far.get(), [0, 2])
    np.testing.assert_array_equal(near, [1, 0])
    assert np.shares_memory(device_like.asarray(far).view(np.ndarray), far.view(np.ndarray))


def test_out_is_filled_and_returned():
    out = device_like.empty(2, np.float32)
    assert device_like.multiply(there(1, 2), 3.0, out=out) is out
    np.testing.assert_array_equal(out.get(), [3, 6])


def test_kernels_follow_the_array():
    assert ops_for(there(1)).xp is device_like
    assert ops_for(np.ones(1)).xp is np
    assert ops_for(np.memmap.__new__(np.memmap, "/dev/zero", shape=(1,), mode="r")).xp is np


READS = {
    "float": lambda a: float(a.sum()),
    "int": lambda a: int(a.max()),
    "bool": lambda a: bool(a.any()),
    "index": lambda a: [0, 1, 2][a.astype(np.int64).min()],
    "item": lambda a: a[0].item(),
    "tolist": lambda a: a.tolist(),
    "tobytes": lambda a: a.tobytes(),
    "format": lambda a: f"{a.sum():.3f}",
    "str": str,
    "repr": repr,
    "in": lambda a: 1.0 in a,
    "truths": lambda a: a[a > 1],
    "nonzero": lambda a: device_like.nonzero(a),
    "unique": lambda a: device_like.unique(a),
    "equal": lambda a: bool(device_like.array_equal(a, a)),
    "min": lambda a: min(a),
}


@pytest.mark.parametrize("name", READS)
def test_reads_of_the_host_are_counted_or_refused_at_their_line(name):
    a = there(1, 2)
    with watch_device() as watch:
        READS[name](a)
    assert watch.reads == 1
    assert (watch.to_device, watch.waits, watch.graphs) == (0, 0, 0)
    (place,) = watch.places
    assert place.split(" at ")[1].startswith(__file__)
    words = rf"expected no reads.*received one at .*{__name__}"
    with watch_device(refuse=("reads",)), pytest.raises(DeviceUseError, match=words):
        READS[name](a)


def test_what_stays_on_the_device_is_no_read():
    a = there(1, 2, 3)
    with watch_device(refuse=("reads", "waits", "transfers")) as watch:
        kept = [value * 2 for value in a]
        a[0] = 5
        a[1:] += kept[0]
        a *= a.mean()
        assert len(a) == 3
        assert a.shape == a.T.shape
    assert watch.places == Counter()


def test_arrays_that_are_moved_are_counted_with_their_bytes():
    near = np.ones((4, 3), np.float32)
    with watch_device() as watch:
        far = device_like.asarray(near)
        far.set(near)
        far[np.array([0, 2])] = 0
        far.get()
        copied = pickle.loads(pickle.dumps(far))
    assert (watch.to_device, watch.to_device_bytes) == (4, 3 * near.nbytes + 16)
    assert (watch.to_host, watch.to_host_bytes) == (2, 2 * near.nbytes)
    np.testing.assert_array_equal(copied.get()[:, 0], [0, 1, 0, 1])


@pytest.mark.parametrize(
    "move",
    [lambda a: a.get(), lambda a: a.set(np.zeros(2)), lambda a: device_like.asarray(np.ones(1))],
)
def test_a_refused_transfer_is_found(move):
    a, words = there(1, 2), r"expected no transfers.*net\.device\.put"
    with watch_device(refuse=("transfers",)), pytest.raises(DeviceUseError, match=words):
        move(a)


def test_launches_are_of_what_computes():
    a = there(1, 2, 3, 4)
    with watch_device() as watch:
        a.reshape(2, 2).T[0]
        device_like.asarray(a)
        device_like.empty(3)
        device_like.broadcast_to(a, (2, 4))
        assert device_like.result_type(a, np.float64) == np.float64
    assert watch.launches == 0
    with watch_device() as watch:
        out = device_like.zeros(4, np.float32)
        device_like.add(a, a, out=out)
        device_like.take(a, a.astype(np.int64) - 1, 0, out)
        a[0] = a[1]
        copy.deepcopy(a)
        np.add(a, 1, out=a)
        out.fill(2)
    assert watch.launches == 9


def test_memory_is_counted_until_the_last_view_is_let_go():
    with watch_device() as watch:
        a = device_like.zeros((8, 4), np.float32)
        row = a[2]
        assert watch.live_bytes == 128
        b = a + a
        assert watch.live_bytes == 256
        del a, b
        assert (watch.live_bytes, watch.most_bytes) == (128, 256)
        del row
        gc.collect()
        assert watch.live_bytes == 0


def test_what_was_there_before_is_not_counted():
    a = there(1, 2, 3)
    with watch_device() as watch:
        del a
        assert (watch.live_bytes, watch.most_bytes) == (0, 0)


def test_watches_may_be_inside_of_others():
    with watch_device() as outer:
        float(there(1)[0])
        with watch_device() as inner:
            float(there(1)[0])
    assert (outer.reads, inner.reads) == (2, 1)


@pytest.mark.parametrize("refuse", ["reads", ("launches",)])
def test_what_cannot_be_refused_is_told(refuse):
    words = r"expected a tuple of 'reads', 'waits', 'transfers'"
    with pytest.raises(ArgumentError, match=words), watch_device(refuse=refuse):
        pass


cuda = device_like.cuda


def stream():
    return cuda.Stream(non_blocking=True)


@pytest.mark.parametrize(
    ("there_", "here", "words"),
    [
        (lambda a: a.__iadd__(1), lambda a: a + 1, "stream writes, while this one reads it"),
        (lambda a: a + 1, lambda a: a.__imul__(2), "stream reads, while this one writes it"),
        (lambda a: a.set(np.zeros(2, "f4")), lambda a: float(a[0]), "record an event"),
        (lambda a: a[:1].__iadd__(1), lambda a: a.sum(), "stream writes"),
    ],
)
def test_memory_that_another_stream_uses_is_refused_until_it_is_done(there_, here, words):
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        kept = there_(a)
    with pytest.raises(DeviceUseError, match=words):
        here(a)
    assert kept is None or kept.size


@pytest.mark.parametrize("how", ["event", "stream", "wait", "device", "look"])
def test_whoever_waits_may_read(how):
    a, other = there(1, 2), stream()
    other.wait_event(cuda.get_current_stream().record())
    with other:
        a += 1
        event = other.record()
        if how == "device":
            cuda.Device(0).synchronize()
    if how == "event":
        event.synchronize()
    elif how == "stream":
        other.synchronize()
    elif how == "wait":
        cuda.get_current_stream().wait_event(event)
    elif how == "look":
        assert event.done
    np.testing.assert_array_equal(a.get(), [2, 3])


def test_an_event_before_the_write_does_not_help():
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        event = other.record()
        a += 1
    cuda.get_current_stream().wait_event(event)
    with pytest.raises(DeviceUseError):
        a.get()


def test_other_parts_of_one_memory_are_apart_and_several_may_read():
    a, b, other = device_like.zeros(4), there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        a[:2] += 1
        b.sum()
    a[2:] += 1
    b.sum()
    with pytest.raises(DeviceUseError):
        a[1:3].sum()


def test_a_stream_that_blocks_takes_turns_with_the_default_one():
    a = there(1, 2)
    with cuda.Stream():
        a += 1
    np.testing.assert_array_equal(a.get(), [2, 3])


def test_memory_is_not_handed_out_while_another_stream_may_use_it():
    other = stream()

    def use(waits):
        a = there(1, 2)
        other.wait_event(cuda.get_current_stream().record())
        with other:
            a += 1
        if waits:
            cuda.get_current_stream().wait_event(other.record())

    with watch_device():
        use(waits=True)
        device_like.empty(2)
        use(waits=False)
        with pytest.raises(DeviceUseError, match="memory is reused"):
            device_like.empty(2)


STEPS = st.lists(
    st.tuples(st.sampled_from(["read", "write", "event"]), st.integers(0, 2), st.integers(0, 2)),
    max_size=14,
)


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_races_are_those_of_a_graph_of_all_that_was_done(steps):
    """Beside the paths of a graph: each piece of work follows its stream's last, and events."""
    streams, array = [stream() for _ in range(3)], device_like.empty(2)
    before, last, used = {}, [None] * 3, []
    for number, (kind, one, other) in enumerate(steps):
        if kind == "event":
            streams[one].wait_event(streams[other].record())
            before[number] = {last[one], last[other]}
            last[one] = number
            continue
        follows, left = set(), [last[one]]
        while left:
            node = left.pop()
            if node is not None and node not in follows:
                follows.add(node)
                left += before[node]
        races = any(w not in follows and "write" in (kind, did) for w, did in used)
        try:
            with streams[one]:
                array.fill(1) if kind == "write" else array.sum()
        except DeviceUseError:
            assert races
            return
        assert not races
        before[number] = {last[one]}
        last[one] = number
        used.append((number, kind))


def captured(calls, held=True):
    """A graph of the calls, and the pool that has what they make."""
    pool, made = cuda.MemoryPool(), stream()
    with made, cuda.using_allocator(pool.malloc if held else None):
        made.begin_capture()
        try:
            calls()
        finally:
            graph = made.end_capture()
    return graph, pool


def test_captured_calls_are_made_at_each_launch_alone():
    a, b = there(1, 2), there(0, 0)

    def calls():
        device_like.multiply(a, 2, out=b)
        b[0] = b[1] + a[0]
        b[1:] += device_like.matmul(a, a, out=device_like.empty(1, np.float32)[0])

    with watch_device() as watch:
        graph, pool = captured(calls)
        np.testing.assert_array_equal(b.get(), [0, 0])
        assert (watch.launches, watch.graphs) == (0, 0)
        for x in ([1, 2], [3, 1]):
            a.set(np.array(x, np.float32))
            graph.launch()
            np.testing.assert_array_equal(
                b.get(), [2 * x[1] + x[0], 2 * x[1] + x[0] ** 2 + x[1] ** 2]
            )
    assert (watch.launches, watch.graphs, watch.in_graphs) == (0, 2, 12)
    assert watch.graph_bytes == sum(memory.near.nbytes for memory in pool.held) == 8


REFUSED = {
    "a read": lambda a: float(a[0]),
    "a transfer": lambda a: a.set(np.ones(2)),
    "an array of the host": lambda a: device_like.asarray([1.0]),
    "an index of the host": lambda a: a[np.array([0])],
    "waiting": lambda a: cuda.get_current_stream().synchronize(),
    "values' sizes": lambda a: device_like.flatnonzero(a),
    "a graph": lambda a: captured(lambda: a.fill(1))[0].launch(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_captured_breaks_the_capture(name):
    a, reached = there(0, 1), []

    def calls():
        a.fill(3)
        with pytest.raises(
            cuda.runtime.CUDARuntimeError, match="expected calls that only write arrays"
        ):
            REFUSED[name](a)
        reached.append(name)

    with pytest.raises(cuda.runtime.CUDARuntimeError, match="invalidated by"):
        captured(calls)
    assert reached
    np.testing.assert_array_equal(a.get(), [0, 1])


def test_new_memory_needs_a_pool():
    a = there(1, 2)
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="invalidated by new memory"):
        captured(lambda: a + 1, held=False)


def test_products_without_out_are_refused_and_break_nothing():
    a = there(1, 2)

    def calls():
        with pytest.raises(NotImplementedError):
            a @ a
        a.fill(4)

    graph, _ = captured(calls)
    graph.launch()
    np.testing.assert_array_equal(a.get(), [4, 4])


def test_a_graph_of_memory_that_was_let_go_is_refused():
    arrays = [there(1, 2)]
    graph, _ = captured(lambda: arrays[0].fill(1))
    graph.launch()
    arrays.clear()
    with pytest.raises(DeviceUseError, match="keep the arrays alive as long as the graph"):
        graph.launch()


def test_a_graph_is_work_of_the_stream_that_it_is_launched_in():
    a = there(1, 2)
    graph, _ = captured(lambda: a.fill(1))
    other = stream()
    cuda.get_current_stream().synchronize()
    with other:
        graph.launch()
    with pytest.raises(DeviceUseError, match="another stream writes"):
        a.get()


def test_a_capture_leaves_alone_what_another_thread_writes_beside_its_arrays():
    whole = there(0, 0, 0, 0)
    first, last = whole[:2], whole[2:]

    def calls():
        first.fill(1)
        writer = Thread(target=lambda: last.set(np.array([3.0, 4.0], whole.dtype)))
        writer.start()
        writer.join()

    captured(calls)
    cuda.get_current_stream().synchronize()
    assert whole.get().tolist() == [0, 0, 3, 4]


def test_captures_begin_in_streams_of_their_own_and_end_once():
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="a new stream"):
        cuda.get_current_stream().begin_capture()
    with pytest.raises(cuda.runtime.CUDARuntimeError, match="capture after begin_capture"):
        stream().end_capture()


def test_waiting_is_counted_and_may_be_refused():
    with watch_device() as watch:
        cuda.get_current_stream().synchronize()
        cuda.get_current_stream().record().synchronize()
    assert (watch.waits, watch.reads) == (2, 0)
    with watch_device(refuse=("waits",)), pytest.raises(DeviceUseError, match="no waits"):
        cuda.Device(0).synchronize()


class Scaled(Layer):
    """Twice its input."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        return x * 2.0

    def backward(self, ctx, dy):
        return dy * 2.0, {}


class Looks(Scaled):
    """Asks for a value, to clip by the largest one."""

    def forward(self, ctx, x):
        return x * (2.0 if float(abs(x).max()) < 1e30 else 0.0)


class Hurries(Scaled):
    """Computes on a stream of its own, which another reads without an event."""

    waits = False

    def forward(self, ctx, x):
        cuda = device_like.cuda
        own, current = cuda.Stream(non_blocking=True), cuda.get_current_stream()
        own.wait_event(current.record())
        with own:
            y = x * 2.0
        if self.waits:
            current.wait_event(own.record())
        return y


class Waits(Hurries):
    """As it should be."""

    waits = True


def stepping(layer, recorded):
    """A step of a net with the layer, and its net."""
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=0)
    net.add(Dense("first", 5, input_sample_shape=(4,)))
    net.add(layer("own"))
    net.add(Dense("scores", 3))
    net.to_device(strict_device())
    net.programs.enabled = recorded
    x, y = np.random.default_rng(1).standard_normal((6, 4), np.float32), np.arange(6) % 3
    x, y, rule = net.device.put(x), net.device.put(y), SGD(lr=0.1)
    return lambda: net.step(x, y, rule)


RECORDED = pytest.mark.parametrize("recorded", [True, False])


@RECORDED
def test_a_hidden_read_is_counted_and_refused_at_its_line(recorded):
    watches = []
    for layer in (Scaled, Looks):
        step = stepping(layer, recorded)
        for _ in range(3):
            step()
        with watch_device() as watch:
            step()
        watches.append(watch)
    plain, planted = watches
    assert planted.reads == plain.reads + 1
    own = {place for place in planted.places if __file__ in place}
    assert [place.split(" at ")[0] for place in own] == ["float"]
    with watch_device(refuse=("reads",)), pytest.raises(DeviceUseError) as caught:
        step()
    assert caught.traceback[-1].path.name.startswith("device_")
    assert "float(abs(x)" in "".join(str(entry.statement) for entry in caught.traceback)


@RECORDED
def test_a_stream_that_is_read_too_early_is_found(recorded, monkeypatch):
    step = stepping(Waits, recorded)
    for _ in range(3):
        step()
    monkeypatch.setattr(Waits, "waits", False)
    with pytest.raises(DeviceUseError, match="another stream writes, while this one reads it"):
        step()


@RECORDED
def test_a_stream_that_is_waited_for_is_as_none(recorded):
    steps = [stepping(layer, recorded) for layer in (Waits, Scaled)]
    for _ in range(4):
        one, other = (step()[0] for step in steps)
        assert one == other


def test_a_recorded_step_makes_its_reads_alone():
    step = stepping(Scaled, recorded=True)
    for _ in range(3):
        step()
    with watch_device(refuse=("transfers", "waits")) as watch:
        step()
    # The labels are looked at, and the loss is returned.
    assert watch.reads == 2
