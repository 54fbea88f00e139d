"""Streams, events and graphs of a strict device: what a GPU would do in another order is found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet.testing import DeviceUseError, watch_device
from singanet.testing.device_like import device_like

cuda = device_like.cuda


def there(*values):
    return device_like.asarray(np.array(values, np.float32))


def stream():
    return cuda.Stream(non_blocking=True)


def test_what_another_stream_has_written_is_not_read_before_it_is_done():
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        a += 1
    with pytest.raises(DeviceUseError, match=r"another stream writes, while this one reads it"):
        a + 1


def test_what_another_stream_reads_is_not_written_before_it_is_done():
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        kept = a + 1
    with pytest.raises(DeviceUseError, match=r"another stream reads, while this one writes it"):
        a *= 2
    assert kept.shape == (2,)


def test_a_transfer_of_another_stream_is_a_write():
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        a.set(np.zeros(2, np.float32))
    with pytest.raises(DeviceUseError, match="record an event"):
        float(a[0])


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


def test_other_parts_of_one_memory_are_apart():
    a, other = device_like.zeros(4), stream()
    cuda.get_current_stream().synchronize()
    with other:
        a[:2] += 1
    a[2:] += 1
    with pytest.raises(DeviceUseError):
        a[1:3].sum()


def test_several_may_read():
    a, other = there(1, 2), stream()
    cuda.get_current_stream().synchronize()
    with other:
        a.sum()
    a.sum()


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
