"""Tables that servers hold: shards, services message by message, workers, and their order."""

import threading
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singanet.errors import ArgumentError, DataError, RankError, ShapeError
from singanet.initializer import Constant, Gaussian, Orthogonal, Uniform
from singanet.optimizer import LAMB, SGD, Adam, ClipByValue, Lion, RMSProp
from singanet.parallel.server import Files, Servers, Shard, service
from singanet.parallel.server.messages import Message, MessageKind, packed, parsed
from singanet.parallel.server.remote import RowSplit
from singanet.parallel.server.service import DENSE, FLAT, NOTHING, Opening, ServedParam, Service
from singanet.params.param import Param, ParamSpec
from tests.kit.ranks import served

ROWS, WIDTH = 23, 3


def param(rows=ROWS, width=WIDTH, initializer=None, **spec):
    made = Param(ParamSpec("table", **spec), (rows, width), initializer or Gaussian(0.0, 1.0))
    made.seed = 7
    return made


def constant(name, shape, value=0.0):
    return Param(ParamSpec(name), shape, Constant(value))


def grads(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)


def falling(step):
    return 0.1 / (1 + step)


def missing(step):
    return float("nan")


# -- a shard --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "owned", [slice(None), slice(0, None, 3), slice(2, None, 3), slice(15_000, 39_000)]
)
@pytest.mark.parametrize("initializer", [Gaussian(0, 1), Uniform(-1, 1), Orthogonal()])
def test_a_shard_begins_with_the_rows_of_one_process(owned, initializer):
    whole = param(40_000 if initializer != Orthogonal() else 400, 5, initializer)
    assert np.array_equal(Shard(whole, SGD(lr=1.0), owned).values, whole.initial()[owned])
    if isinstance(initializer, Gaussian):  # what NumPy draws at once
        rng = np.random.default_rng([7, zlib.crc32(b"table")])
        assert np.array_equal(whole.initial(), rng.normal(size=(40_000, 5)).astype(np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(lr=0.1, momentum=0.9),
        lambda: Adam(lr=falling),
        lambda: RMSProp(lr=0.1, weight_decay=0.01),
        lambda: Lion(lr=0.1),
        lambda: ClipByValue(SGD(lr=0.1), 0.5),
    ],
)
def test_a_push_is_an_update_of_the_library_in_files_too(make, tmp_path):
    own, expected = make(), param(lr_mult=2.0)
    shards = [Shard(param(lr_mult=2.0), make(), folder=folder) for folder in (None, tmp_path)]
    own.register("table", expected.spec)
    for step in range(3):
        rows, by = np.array([1, 4, 8]) - step % 2, grads(3, step)
        own.update(["table"], [expected.value], [(rows, by)])
        for shard in shards:
            shard.push(rows, by)
    for shard in shards:
        assert np.array_equal(shard.values, expected.value)
        assert shard.clocks[:10].tolist() == [1, 2, 0, 1, 2, 0, 0, 1, 2, 0]
    if isinstance(own, Adam):
        names = {path.name for path in tmp_path.iterdir()}
        assert names == {"table.values", "table.first", "table.second"}
        moment = np.fromfile(tmp_path / "table.first", np.float32)
        assert np.array_equal(moment, shards[0].optimizer.state("table").arrays[0])
        assert moment.any()


def test_rows_in_any_order_and_copies_of_them():
    one, other = Shard(param(), SGD(lr=1.0)), Shard(param(), SGD(lr=1.0))
    rows, by = np.array([7, 2, 5]), grads(3)
    one.push(rows, by, np.array([3, 2, 1]))
    order = np.argsort(rows)
    other.push(rows[order], by[order], np.array([2, 1, 3]))
    values, clocks = one.pull(np.array([2, 5, 7, 0]))
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(values, other.values[[2, 5, 7, 0]])
    assert clocks.tolist() == [2, 1, 3, 0]
    values += 1
    clocks += 1
    assert np.array_equal(one.values, other.values)
    assert one.clocks.sum() == 6


def test_push_and_newer_and_dense_gradients():
    shard = Shard(param(), SGD(lr=1.0))
    begun = shard.values.copy()
    shard.push(np.array([3, 4]), grads(2))
    values, clocks = shard.pull(np.array([4, 9]))
    np.testing.assert_allclose(values, [begun[4] - grads(2)[1], begun[9]], rtol=1e-6)
    assert clocks.tolist() == [1, 0]
    shard.push(np.array([4]), grads(1), np.array([5]))
    positions, values, clocks = shard.newer(np.array([9, 4, 3]), np.array([0, 1, 0]), 1)
    assert (positions.tolist(), clocks.tolist()) == ([1], [6])
    assert np.array_equal(values, shard.values[[4]])
    shard, value = Shard(param(), SGD(lr=0.5)), param().value
    shard.update(grads(ROWS), 2.0)
    np.testing.assert_allclose(shard.values, value - grads(ROWS), rtol=1e-6)
    assert shard.clocks.tolist() == [1] * ROWS


@pytest.mark.parametrize(
    ("rows", "error"),
    [([0, ROWS], DataError), ([-1, 2], DataError), ([3, 3], DataError), ([0.5, 1.0], ShapeError)],
)
@pytest.mark.parametrize("kind", [None, np.int32])
def test_what_is_refused_changes_nothing(rows, error, kind):
    shard, rows = Shard(param(), SGD(lr=1.0)), np.array(rows, None if rows[0] == 0.5 else kind)
    with pytest.raises(error):
        shard.push(rows, grads(2))
    with pytest.raises(ShapeError):
        shard.push(np.array([1, 2]), grads(3))
    if rows[0] != 3:
        with pytest.raises(error):
            shard.pull(rows)
    assert np.array_equal(shard.values, param().value)
    assert not shard.clocks.any()


# -- one service, asked message by message --------------------------------------------------------


def test_new_values_come_by_rows_until_more_of_them_changed_than_there_are():
    held = [ServedParam(0, constant("table", (4, 2)), replicated=True)]
    one = Service(Opening(SGD(lr=1.0), None, False, held), 2, None)

    def step(worker, *rows):
        """Ones for the gradients of ``rows``; how new values come, and they."""
        layout = np.array([[0, service.ROWS if rows else NOTHING]])
        given = [np.array(rows), np.ones((len(rows), 2), np.float32)] if rows else []
        ((who, answer),) = one.take(worker, Message(MessageKind.STEP, arrays=[layout, *given]))
        assert who == worker
        return answer.arrays[0][0, 1], *(array.tolist() for array in answer.arrays[1:])

    assert [step(worker)[0] for worker in (0, 1)] == [DENSE, DENSE]
    assert step(0) == (NOTHING,)
    assert step(0, 2) == (service.ROWS, [2], [[-1.0, -1.0]])
    assert step(0, 0, 2)[1] == [0, 2]
    step(0, 3)
    # Worker 1 was told of none of the four, and the table has no more.
    how, rows, values = step(1)
    assert (how, rows) == (service.ROWS, [0, 2, 3])
    assert [value for value, _ in values] == [-1.0, -2.0, -1.0]
    for row in (0, 1, 0, 1, 0):
        step(0, row)
    how, whole = step(1)
    assert how == DENSE
    assert [value for value, _ in whole] == [-4.0, -2.0, -2.0, -1.0]


SHAPES = {1: (2, 3), 2: (4,), 3: ()}
NUMBERS = tuple(SHAPES)


def held_params():
    return [ServedParam(k, constant(f"p{k}", s, 0.5), replicated=True) for k, s in SHAPES.items()]


def dense_service(rule, summed=False):
    opening = Opening(rule, 0 if summed else None, summed, held_params())
    return Service(opening, 2, None)


def grads_of(seed):
    rng = np.random.default_rng(seed)
    return {k: rng.normal(size=shape).astype(np.float32) for k, shape in SHAPES.items()}


def push(one, worker, grads, how, need=0, numbers=NUMBERS):
    if how == FLAT:
        arrays = [np.concatenate([grads[k].reshape(-1) for k in numbers])]
        told = [(k, FLAT) for k in numbers]
    else:
        arrays = [grads[k] for k in numbers if k in grads]
        told = [(k, DENSE if k in grads else NOTHING) for k in numbers]
    message = Message(MessageKind.STEP, need=need, arrays=[np.array(told), *arrays])
    return one.take(worker, message)


def expect_equal(one, other):
    for k in NUMBERS:
        np.testing.assert_array_equal(one.shards[k].values, other.shards[k].values)
        np.testing.assert_array_equal(one.shards[k].clocks, other.shards[k].clocks)
    np.testing.assert_equal(one.optimizer.state_dict(), other.optimizer.state_dict())


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.5, momentum=0.9), lambda: LAMB(lr=0.1)])
def test_replicas_told_as_one_array_are_updated_as_each(make):
    flat, each = dense_service(make()), dense_service(make())
    for step in range(6):
        by = grads_of(step)
        # Others may tell some of them together, or one by itself.
        numbers = NUMBERS if step % 3 else NUMBERS[:2]
        push(flat, step % 2, by, FLAT, numbers=numbers)
        push(each, step % 2, by, DENSE, numbers=numbers)
        if step == 3:
            for one in (flat, each):
                push(one, 0, {2: by[2]}, DENSE)
        expect_equal(flat, each)


def test_new_values_are_one_array_where_all_are_new():
    one = dense_service(SGD(lr=1.0))
    ((_, answer),) = push(one, 0, grads_of(0), FLAT)
    layout, flat = answer.arrays
    assert layout.tolist() == [[k, FLAT] for k in NUMBERS]
    whole = np.concatenate([one.shards[k].values.reshape(-1) for k in NUMBERS])
    np.testing.assert_array_equal(flat, whole)
    ((_, answer),) = push(one, 0, {}, DENSE)
    assert answer.arrays[0].tolist() == [[k, NOTHING] for k in NUMBERS]
    # Another worker has pushed one of them alone.
    push(one, 1, {2: grads_of(1)[2]}, DENSE)
    ((_, answer),) = push(one, 0, {}, DENSE)
    assert answer.arrays[0].tolist() == [[1, NOTHING], [2, DENSE], [3, NOTHING]]


@pytest.mark.parametrize("second", [FLAT, DENSE, "part"])
@pytest.mark.parametrize("weights", [(3.0, 1.0), (2.0, 2.0)])
def test_a_step_of_all_workers_is_one_update(second, weights):
    """One worker may tell all as one array, and another each, or not have all."""

    def run(first):
        one = dense_service(SGD(lr=0.5, momentum=0.9), summed=True)
        for step in range(3):
            mine, others = grads_of(2 * step), grads_of(2 * step + 1)
            if second == "part":
                del others[2]
            push(one, 0, mine, first, step + 1)
            push(one, 1, others, FLAT if second == FLAT == first else DENSE, step + 1)
            for worker, weight in enumerate(weights):
                told = [np.array([weight])]
                one.take(worker, Message(MessageKind.FINISH, arrays=told))
        return one

    flat, each = run(FLAT), run(DENSE)
    expect_equal(flat, each)
    value, momentum = np.full(SHAPES[1], 0.5), np.zeros(SHAPES[1])
    for step in range(3):
        by = [grads_of(2 * step + worker)[1].astype(float) for worker in (0, 1)]
        mean = sum(w * g for w, g in zip(weights, by, strict=True)) / sum(weights)
        momentum = 0.9 * momentum + 0.5 * mean
        value -= momentum
    np.testing.assert_allclose(flat.shards[1].values, value, rtol=1e-5)


def test_snapshots_have_each_by_its_name(tmp_path):
    def opened(restore=None):
        more = {"snapshots": tmp_path, "restore": restore}
        opening = Opening(Adam(lr=0.1), None, False, held_params(), **more)
        return Service(opening, 1, service.Snapshots(tmp_path, 0, 0, 1, 1))

    one = opened()
    for step in range(2):
        push(one, 0, grads_of(step), FLAT)
    one.write_snapshot()
    again = opened(0)
    expect_equal(again, one)
    for each in (one, again):
        push(each, 0, grads_of(5), FLAT)
    expect_equal(again, one)
    assert {key.rpartition("/")[0] for key in again.optimizer.state_dict()} == {"p1", "p2", "p3"}


# -- workers and servers --------------------------------------------------------------------------


def opened(comm, ranks, optimizer, split="hash", **options):
    servers = Servers(comm, ranks, optimizer, **options)
    servers.open([], [param()], split)
    comm.barrier()
    return servers, servers.tables["table"]


def pushed(table, *steps):
    for step in steps:
        table.push(np.arange(step, step + 9), grads(9, step))


def answers(table, seed):
    """Pushes, pulls and others of some rows each; the gradients too."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(12):
        rows, wanted = (
            np.sort(rng.choice(ROWS, rng.integers(0, 9), replace=False)) for _ in range(2)
        )
        by, wanted = grads(len(rows), seed + len(found)), rng.permutation(wanted)
        name = rng.choice(["pull", "push", "newer", "write"])
        if name == "pull":
            found += table.pull(wanted)
        elif name == "push":
            table.push(rows, by, rng.integers(1, 5, len(rows)))
        elif name == "write":
            table.write(rows, by)
        else:
            found += table.newer(wanted, np.zeros(len(wanted), np.int64), 1)
    return [*found, *table.pull(np.arange(ROWS))]


MADE = {
    "sgd": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda: Adam(lr=falling),
    "clip": lambda: ClipByValue(SGD(lr=0.1), 0.5),
    # It looks at norms of all rows of a push, which one server has then.
    "lamb": lambda: LAMB(lr=0.1),
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 10**6),
    st.integers(1, 3),
    st.sampled_from(["hash", "range"]),
    st.sampled_from([*MADE]),
)
def test_served_tables_are_as_one_in_memory(seed, servers, split, rule):
    def work(comm, ranks):
        return answers(opened(comm, ranks, MADE[rule](), split)[1], seed)

    (found,) = served(work, 1, servers)
    np.testing.assert_equal(found, answers(Shard(param(), MADE[rule]()), seed))


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
    by, rows = grads(4).reshape(2, 2, WIDTH), [np.array([1, 4]), np.array([4, 20])]

    def work(comm, ranks):
        servers, table = opened(comm, ranks, SGD(lr=1.0, momentum=0.5), staleness=0, summed=True)
        table.push(rows[comm.rank], by[comm.rank])
        servers.finish([3.0, 1.0][comm.rank])
        return table.pull(np.arange(ROWS))

    expected, dense = param(), np.zeros((ROWS, WIDTH), np.float32)
    for weight, at, grad in zip((0.75, 0.25), rows, by, strict=True):
        dense[at] += np.float32(weight) * grad
    touched = np.array([1, 4, 20])
    SGD(lr=1.0, momentum=0.5).update(["table"], [expected.value], [(touched, dense[touched])])
    for values, clocks in served(work, 2, 2):
        np.testing.assert_allclose(values, expected.value, atol=1e-6)
        assert np.flatnonzero(clocks).tolist() == [1, 4, 20]
        assert clocks.max() == 1


def test_what_a_server_refuses_is_said_to_the_worker():
    class Own(SGD):
        pass

    def work(comm, ranks):
        with pytest.raises(ArgumentError, match="define its classes"):
            opened(comm, ranks, Own(lr=1.0))
        _, table = opened(comm, ranks, SGD(lr=missing))
        with pytest.raises(DataError, match="from 0 to 22"):
            table.pull(np.array([ROWS]))
        with pytest.raises(RankError, match="finite learning rate"):
            table.push(np.array([1]), np.ones((1, WIDTH), np.float32))
        return table.pull(np.arange(ROWS))[0]

    np.testing.assert_array_equal(served(work, 1)[0], param().value)


def test_state_travels_whole_whoever_has_its_rows():
    def first(comm, ranks):
        servers, table = opened(comm, ranks, Adam(lr=0.1), "range")
        pushed(table, 0, 3)
        return table.pull(np.arange(ROWS))[0], servers.state_dict()

    ((values, state),) = served(first, 1, 3)

    def second(comm, ranks):
        servers, table = opened(comm, ranks, Adam(lr=0.1), "hash")
        table.write(np.arange(ROWS), values)
        servers.load_state_dict(state)
        pushed(table, 7, 11)
        return table.pull(np.arange(ROWS))[0]

    whole = Shard(param(), Adam(lr=0.1))
    pushed(whole, 0, 3)
    for key, array in whole.optimizer.state_dict().items():
        np.testing.assert_array_equal(state[key], array)
    pushed(whole, 7, 11)
    np.testing.assert_array_equal(served(second, 1, 2)[0], whole.values)


def test_snapshots_are_whole_and_servers_go_on_from_them(tmp_path):
    def work(steps):
        def one(comm, ranks):
            files = Files(snapshots=tmp_path, every=2)
            servers, table = opened(comm, ranks, Adam(lr=0.1), files=files)
            for step in range(servers.finished, steps):
                pushed(table, step)
                servers.finish(1.0)
            return servers.restored, table.pull(np.arange(ROWS))

        return served(one, 1, 2)[0]

    assert work(5)[0] is None
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        f"service-0-server-{k}-of-2-step-{step}.safetensors" for k in (0, 1) for step in (2, 4)
    ]
    # A server that was killed before it had written its last one.
    (tmp_path / names[-1]).unlink()
    restored, (values, clocks) = work(8)
    assert restored == 2
    expected = Shard(param(), Adam(lr=0.1))
    pushed(expected, *range(8))
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
    given = Message(MessageKind.NEWER, 3, 2, 1, need, given_arrays)
    # Once more by what is known of the first.
    for count in (1, 3):
        found = parsed(packed([given._replace(number=k) for k in range(count)]))
        wanted = [(MessageKind.NEWER, k, 2, 1, need) for k in range(count)]
        assert [each[:5] for each in found] == wanted
        for made in found:
            for one, other in zip(made.arrays, given_arrays, strict=True):
                np.testing.assert_array_equal(one, other)
                assert one.dtype == other.dtype


def test_what_a_step_asks_is_one_message_to_each_server():
    def work(comm, ranks):
        servers = Servers(comm, ranks, SGD(lr=1.0), 0, True)
        large = constant("large", (1 << 17,))
        servers.open([(large, np.zeros(large.shape, np.float32))], [constant("t", (ROWS, WIDTH))])
        sent, table, start_send = [], servers.tables["t"], ranks.world._start_send
        ranks.world._start_send = lambda array, *rest: (
            sent.append(array.nbytes), start_send(array, *rest),
        )[1]  # fmt: skip
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


# -- how far ahead a worker may be ----------------------------------------------------------------


def test_readers_wait_for_the_slowest_but_not_for_those_away():
    progress = service.WorkerProgress(3, 1)
    for worker in (0, 0, 1):
        progress.finish(worker)
    assert progress.allows(0, 1)
    assert not progress.allows(0, 2)
    # What is asked ahead of a step waits for its end.
    assert not progress.allows(2, 1)
    progress.leave(2)
    assert progress.allows(0, 2)
    progress.finish(0)
    assert not progress.allows(0, 3)
    progress.leave(0)
    assert progress.leave(1)
    # All are back, where the furthest was.
    assert (progress.finished, progress.least, progress.ahead) == ([3, 3, 3], 3, 1)


def leads(staleness, seeds, workers=3, steps=5):
    """How far ahead of the slowest workers were, over one random interleaving a seed; by servers.

    Each worker begins a step by a pull and ends it by a push, at paces that differ by far.
    """
    done, lock, found = [0] * workers, threading.Lock(), []

    def work(comm, ranks):
        servers = Servers(comm, ranks, SGD(lr=1.0), staleness)
        servers.open([], [constant("table", (4, 1))])
        comm.barrier()
        table, row = servers.tables["table"], np.array([comm.rank])
        for seed in seeds:
            paces = np.random.default_rng(seed).exponential(size=(workers, steps)) ** 2
            for pace in paces[comm.rank]:
                table.pull(row)
                with lock:
                    found.append(done[comm.rank] - min(done))
                ranks.world.advance(float(pace))
                table.push(row, np.ones((1, 1), np.float32))
                with lock:
                    done[comm.rank] += 1
                servers.finish(1.0)
            comm.barrier()
        return servers.loads()[1], table.pull(np.arange(4))[0].ravel().tolist()

    told = served(work, workers, 1)
    assert told[0][1] == [-float(steps * len(seeds))] * workers + [0.0]
    return max(found), told[0][0]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_bound_holds_in_random_interleavings(staleness):
    # It is reached, and measured.
    assert leads(staleness, range(8)) == (staleness, staleness)


def test_without_a_bound_nobody_waits():
    assert leads(None, range(6))[0] > 3


@pytest.mark.slow
@pytest.mark.parametrize("staleness", range(5))
@pytest.mark.parametrize("part", range(10))
def test_the_bound_holds_in_ten_thousand_interleavings(staleness, part):
    seeds = range(200 * part, 200 * (part + 1))
    assert leads(staleness, seeds, steps=5) == (staleness, staleness)
