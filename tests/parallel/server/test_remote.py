"""Tables that servers hold are as one that a process has; messages; how steps are kept in order."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError, DataError, RankError
from singanet.initializer import Constant, Gaussian
from singanet.optimizer import LAMB, SGD, Adam, ClipByValue
from singanet.parallel.server import Files, Servers, Shard
from singanet.parallel.server.messages import Message, MessageKind, packed, parsed
from singanet.parallel.server.remote import RowSplit
from singanet.params.param import Param, ParamSpec
from tests.kit.ranks import served

ROWS, WIDTH = 23, 3


def falling(step):
    return 0.1 / (1 + step)


def missing(step):
    return float("nan")


def param(**spec):
    made = Param(ParamSpec("table", **spec), (ROWS, WIDTH), Gaussian(0.0, 1.0))
    made.seed = 7
    return made


def opened(comm, ranks, optimizer, split="hash", **options):
    servers = Servers(comm, ranks, optimizer, **options)
    servers.open([], [param()], split)
    comm.barrier()
    return servers, servers.tables["table"]


def random_calls(seed, count=12):
    """Pushes, pulls and others of some rows each; the gradients too."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rows = np.sort(rng.choice(ROWS, rng.integers(0, 9), replace=False))
        wanted = rng.choice(ROWS, rng.integers(0, 9), replace=False)
        grads = rng.normal(size=(len(rows), WIDTH)).astype(np.float32)
        counts = rng.integers(1, 5, len(rows))
        yield (
            str(rng.choice(["pull", "push", "newer", "write"])),
            (
                rows,
                wanted,
                grads,
                counts,
            ),
        )


def answers(table, seed):
    found = []
    for name, (rows, wanted, grads, counts) in random_calls(seed):
        if name == "pull":
            found += table.pull(wanted)
        elif name == "push":
            table.push(rows, grads, counts)
        elif name == "write":
            table.write(rows, grads)
        else:
            found += table.newer(wanted, np.zeros(len(wanted), np.int64), 1)
    return [*found, *table.pull(np.arange(ROWS))]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.sampled_from(["hash", "range"]),
    st.sampled_from(["sgd", "adam", "clip", "lamb"]),
)
def test_served_tables_are_as_one_in_memory(seed, servers, split, rule):
    make = {
        "sgd": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        "adam": lambda: Adam(lr=falling),
        "clip": lambda: ClipByValue(SGD(lr=0.1), 0.5),
        # It looks at norms of all rows of a push, which one server has then.
        "lamb": lambda: LAMB(lr=0.1),
    }[rule]

    def work(comm, ranks):
        return answers(opened(comm, ranks, make(), split)[1], seed)

    (found,) = served(work, 1, servers)
    for one, other in zip(found, answers(Shard(param(), make()), seed), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_pull_is_under_way_while_others_are():
    def work(comm, ranks):
        _, table = opened(comm, ranks, SGD(lr=1.0))
        first, second = table.start_pull(np.array([1])), table.start_pull(np.array([2, 5]))
        # The later one is waited for first.
        values = second.wait()[0]
        assert first.test()
        return np.concatenate([first.wait()[0], values, first.wait()[0]])

    (found,) = served(work, 1, 2)
    np.testing.assert_array_equal(found, param().value[[1, 2, 5, 1]])


def test_gradients_of_a_step_are_one_update_by_their_mean():
    grads = np.random.default_rng(0).normal(size=(2, 2, WIDTH)).astype(np.float32)
    rows = [np.array([1, 4]), np.array([4, 20])]

    def work(comm, ranks):
        servers, table = opened(comm, ranks, SGD(lr=1.0, momentum=0.5), staleness=0, summed=True)
        table.push(rows[comm.rank], grads[comm.rank])
        servers.finish([3.0, 1.0][comm.rank])
        return table.pull(np.arange(ROWS))

    expected, own = param(), SGD(lr=1.0, momentum=0.5)
    dense = np.zeros((ROWS, WIDTH), np.float32)
    for weight, at, grad in zip((0.75, 0.25), rows, grads, strict=True):
        dense[at] += np.float32(weight) * grad
    touched = np.array([1, 4, 20])
    own.update(["table"], [expected.value], [(touched, dense[touched])])
    for values, clocks in served(work, 2, 2):
        np.testing.assert_allclose(values, expected.value, atol=1e-6)
        assert np.flatnonzero(clocks).tolist() == [1, 4, 20]
        assert clocks.max() == 1


def test_what_a_server_refuses_is_said_to_the_worker():
    def work(comm, ranks):
        _, table = opened(comm, ranks, SGD(lr=missing))
        with pytest.raises(DataError, match="from 0 to 22"):
            table.pull(np.array([ROWS]))
        with pytest.raises(RankError, match="finite learning rate"):
            table.push(np.array([1]), np.ones((1, WIDTH), np.float32))
        return table.pull(np.arange(ROWS))[0]

    np.testing.assert_array_equal(served(work, 1)[0], param().value)


def test_an_optimizer_that_cannot_travel_is_refused():
    def work(comm, ranks):
        class Own(SGD):
            pass

        with pytest.raises(ArgumentError, match="define its classes"):
            opened(comm, ranks, Own(lr=1.0))

    served(work, 1)


def test_state_travels_whole_whoever_has_its_rows():
    def pushed(table, steps):
        for step in steps:
            grads = np.random.default_rng(step).normal(size=(9, WIDTH)).astype(np.float32)
            table.push(np.arange(step, step + 9), grads)

    def first(comm, ranks):
        servers, table = opened(comm, ranks, Adam(lr=0.1), "range")
        pushed(table, [0, 3])
        return table.pull(np.arange(ROWS))[0], servers.state_dict()

    ((values, state),) = served(first, 1, 3)

    def second(comm, ranks):
        servers, table = opened(comm, ranks, Adam(lr=0.1), "hash")
        table.write(np.arange(ROWS), values)
        servers.load_state_dict(state)
        pushed(table, [7, 11])
        return table.pull(np.arange(ROWS))[0]

    whole = Shard(param(), Adam(lr=0.1))
    pushed(whole, [0, 3])
    for key, array in whole.optimizer.state_dict().items():
        np.testing.assert_array_equal(state[key], array)
    pushed(whole, [7, 11])
    np.testing.assert_array_equal(served(second, 1, 2)[0], whole.values)


def test_snapshots_are_whole_and_servers_go_on_from_them(tmp_path):
    def work(steps):
        def one(comm, ranks):
            servers, table = opened(
                comm, ranks, Adam(lr=0.1), files=Files(snapshots=tmp_path, every=2)
            )
            for step in range(servers.finished, steps):
                grads = np.random.default_rng(step).normal(size=(9, WIDTH)).astype(np.float32)
                table.push(np.arange(step, step + 9), grads)
                servers.finish(1.0)
            return servers.restored, table.pull(np.arange(ROWS))

        return served(one, 1, 2)[0]

    restored, _ = work(5)
    assert restored is None
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"service-0-server-{k}-of-2-step-{step}.safetensors" for k in (0, 1) for step in (2, 4)
    ]
    # A server that was killed before it had written its last one.
    (tmp_path / names[-1]).unlink()
    restored, (values, clocks) = work(8)
    assert restored == 2
    expected = Shard(param(), Adam(lr=0.1))
    for step in range(8):
        grads = np.random.default_rng(step).normal(size=(9, WIDTH)).astype(np.float32)
        expected.push(np.arange(step, step + 9), grads)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(clocks, expected.clocks)


def test_loads_tell_what_was_asked():
    def work(comm, ranks):
        servers, table = opened(comm, ranks, SGD(lr=1.0))
        before = ranks.world.exchanged
        table.push(np.arange(10), np.ones((10, WIDTH), np.float32))
        table.pull(np.arange(4))
        return servers.loads()[0], ranks.world.exchanged.since(before)

    (((loads,), exchanged),) = served(work, 1)
    assert (loads["push"].calls, loads["push"].rows, loads["pull"].rows) == (1, 10, 4)
    assert loads["push"].bytes_in >= 10 * (8 + 4 * WIDTH)
    assert loads["pull"].bytes_out == 4 * (4 * WIDTH + 8)
    assert loads["push"].seconds > 0
    assert exchanged.sent < 10 * (8 + 4 * WIDTH) + 4 * 8 + 600


@pytest.mark.parametrize("way", ["hash", "range"])
@settings(max_examples=30, deadline=None)
@given(st.integers(1, 50), st.integers(1, 5))
def test_each_row_is_on_one_server(way, rows, servers):
    split = RowSplit(rows, list(range(servers)), way)
    numbers = np.arange(rows)
    owned = {server: numbers[part] for server, part in split.owned()}
    assert sorted(np.concatenate([*owned.values()])) == numbers.tolist()
    for server, at, local in split.places(numbers):
        np.testing.assert_array_equal(owned[server][local], numbers[at])


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("fdeliB?"), st.lists(st.integers(0, 4), max_size=3))),
    st.integers(0, 2**62),
)
def test_messages_arrive_as_they_were(arrays, need):
    rng = np.random.default_rng(0)
    given_arrays = [rng.integers(0, 2, shape).astype(code) for code, shape in arrays]
    # Once more by what is known of the first.
    for count in (1, 3):
        given = Message(MessageKind.NEWER, 3, 2, 1, need, given_arrays)
        found = parsed(packed([given._replace(number=k) for k in range(count)]))
        assert [each[:5] for each in found] == [
            (MessageKind.NEWER, k, 2, 1, need) for k in range(count)
        ]
        for made in found:
            for one, other in zip(made.arrays, given_arrays, strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_what_a_step_asks_is_one_message_to_each_server():
    def work(comm, ranks):
        servers = Servers(comm, ranks, SGD(lr=1.0), 0, True)
        large = Param(ParamSpec("large"), (1 << 17,), Constant(0.0))
        rows = Param(ParamSpec("t"), (ROWS, WIDTH), Constant(0.0))
        servers.open([(large, np.zeros(large.shape, np.float32))], [rows])
        sent, table = [], servers.tables["t"]
        start_send = ranks.world._start_send
        ranks.world._start_send = lambda array, *rest: (
            sent.append(array.nbytes),
            start_send(array, *rest),
        )[1]
        rows, layout = np.arange(10), np.array([[servers.replicas["large"].number, 1]])
        table.prefetch(rows)
        table.start_push(rows, np.ones((10, WIDTH), np.float32))
        assert not sent
        # What is large goes at once, with what was asked before it.
        home = servers.replicas["large"].server
        answer = servers.start_step(home, layout, [np.ones(large.shape, np.float32)])
        assert len(sent) == len(ranks.ranks)
        servers.finish(1.0)
        assert len(sent) == 2 * len(ranks.ranks)
        values = table.pull(rows)[0]
        _, large_values = answer.wait()
        assert len(sent) == 2 * len(ranks.ranks)
        return values, large_values

    for values, large_values in served(work, servers=2):
        np.testing.assert_array_equal(values, -1.0)
        np.testing.assert_array_equal(large_values, -1.0)
