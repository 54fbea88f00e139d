"""What one server answers, asked message by message."""

import numpy as np
import pytest

from singanet.initializer import Constant
from singanet.optimizer import LAMB, SGD, Adam
from singanet.parallel.server.messages import Message, MessageKind
from singanet.parallel.server.service import (
    DENSE,
    FLAT,
    NOTHING,
    ROWS,
    Opening,
    ServedParam,
    Service,
    Snapshots,
)
from singanet.params.param import Param, ParamSpec


def test_new_values_come_by_rows_until_more_of_them_changed_than_there_are():
    param = Param(ParamSpec("table"), (4, 2), Constant(0.0))
    opening = Opening(SGD(lr=1.0), None, False, [ServedParam(0, param, replicated=True)])
    service = Service(opening, 2, None)

    def step(worker, *rows):
        """Ones for the gradients of ``rows``; how new values come, and they."""
        layout = np.array([[0, ROWS if rows else NOTHING]])
        given = [np.array(rows), np.ones((len(rows), 2), np.float32)] if rows else []
        ((who, answer),) = service.take(worker, Message(MessageKind.STEP, arrays=[layout, *given]))
        assert who == worker
        return answer.arrays[0][0, 1], *answer.arrays[1:]

    assert [step(worker)[0] for worker in (0, 1)] == [DENSE, DENSE]
    assert step(0) == (NOTHING,)
    how, rows, values = step(0, 2)
    assert how == ROWS
    assert rows.tolist() == [2]
    assert values.tolist() == [[-1.0, -1.0]]
    assert step(0, 0, 2)[1].tolist() == [0, 2]
    step(0, 3)
    # Worker 1 was told of none of the four, and the table has no more.
    how, rows, values = step(1)
    assert how == ROWS
    assert rows.tolist() == [0, 2, 3]
    assert values[:, 0].tolist() == [-1.0, -2.0, -1.0]
    for row in (0, 1, 0, 1, 0):
        step(0, row)
    how, whole = step(1)
    assert how == DENSE
    assert whole[:, 0].tolist() == [-4.0, -2.0, -2.0, -1.0]


SHAPES = {1: (2, 3), 2: (4,), 3: ()}
NUMBERS = tuple(SHAPES)


def dense_service(rule, workers=2, summed=False):
    held = [
        ServedParam(k, Param(ParamSpec(f"p{k}"), shape, Constant(0.5)), replicated=True)
        for k, shape in SHAPES.items()
    ]
    return Service(Opening(rule, 0 if summed else None, summed, held), workers, None)


def grads_of(seed):
    rng = np.random.default_rng(seed)
    return {k: rng.normal(size=shape).astype(np.float32) for k, shape in SHAPES.items()}


def push(service, worker, grads, how, need=0, numbers=NUMBERS):
    """A step of ``worker`` by ``grads``, told as ``how``; its answers."""
    if how == FLAT:
        arrays = [np.concatenate([grads[k].reshape(-1) for k in numbers])]
        told = [(k, FLAT) for k in numbers]
    else:
        arrays = [grads[k] for k in numbers if k in grads]
        told = [(k, DENSE if k in grads else NOTHING) for k in numbers]
    layout = np.array(told)
    return service.take(worker, Message(MessageKind.STEP, need=need, arrays=[layout, *arrays]))


def values_of(service):
    return {k: service.shards[k].values.copy() for k in NUMBERS}


def expect_equal(one, other):
    for k, value in values_of(one).items():
        np.testing.assert_array_equal(value, other.shards[k].values)
        np.testing.assert_array_equal(one.shards[k].clocks, other.shards[k].clocks)
    state, expected = one.optimizer.state_dict(), other.optimizer.state_dict()
    assert state.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(state[key], array)


@pytest.mark.parametrize("make", [lambda: SGD(lr=0.5, momentum=0.9), lambda: LAMB(lr=0.1)])
def test_replicas_told_as_one_array_are_updated_as_each(make):
    flat, each = dense_service(make()), dense_service(make())
    for step in range(6):
        grads = grads_of(step)
        # Others may tell some of them together, or one by itself.
        numbers = NUMBERS if step % 3 else NUMBERS[:2]
        push(flat, step % 2, grads, FLAT, numbers=numbers)
        push(each, step % 2, grads, DENSE, numbers=numbers)
        if step == 3:
            for service in (flat, each):
                push(service, 0, {2: grads[2]}, DENSE)
        expect_equal(flat, each)


def test_new_values_are_one_array_where_all_are_new():
    service = dense_service(SGD(lr=1.0))
    ((_, answer),) = push(service, 0, grads_of(0), FLAT)
    layout, flat = answer.arrays
    assert layout.tolist() == [[k, FLAT] for k in NUMBERS]
    whole = np.concatenate([service.shards[k].values.reshape(-1) for k in NUMBERS])
    np.testing.assert_array_equal(flat, whole)
    ((_, answer),) = push(service, 0, {}, DENSE)
    assert answer.arrays[0].tolist() == [[k, NOTHING] for k in NUMBERS]
    # Another worker has pushed one of them alone.
    push(service, 1, {2: grads_of(1)[2]}, DENSE)
    ((_, answer),) = push(service, 0, {}, DENSE)
    assert answer.arrays[0].tolist() == [[1, NOTHING], [2, DENSE], [3, NOTHING]]


@pytest.mark.parametrize("second", [FLAT, DENSE, "part"])
@pytest.mark.parametrize("weights", [(3.0, 1.0), (2.0, 2.0)])
def test_a_step_of_all_workers_is_one_update(second, weights):
    """One worker may tell all as one array, and another each, or not have all."""

    def run(first):
        service = dense_service(SGD(lr=0.5, momentum=0.9), summed=True)
        for step in range(3):
            mine, others = grads_of(2 * step), grads_of(2 * step + 1)
            if second == "part":
                del others[2]
            push(service, 0, mine, first, step + 1)
            how = FLAT if second == FLAT and first == FLAT else DENSE
            push(service, 1, others, how, step + 1)
            for worker, weight in enumerate(weights):
                told = [np.array([weight])]
                service.take(worker, Message(MessageKind.FINISH, arrays=told))
        return service

    flat, each = run(FLAT), run(DENSE)
    expect_equal(flat, each)
    value, momentum = np.full(SHAPES[1], 0.5), np.zeros(SHAPES[1])
    for step in range(3):
        grads = [grads_of(2 * step + worker)[1].astype(float) for worker in (0, 1)]
        mean = sum(w * g for w, g in zip(weights, grads, strict=True)) / sum(weights)
        momentum = 0.9 * momentum + 0.5 * mean
        value -= momentum
    np.testing.assert_allclose(flat.shards[1].values, value, rtol=1e-5)


def test_snapshots_have_each_by_its_name(tmp_path):
    def opened(restore=None):
        held = dense_service(SGD(lr=1.0)).shards.values()
        held = [
            ServedParam(k, shard.param, replicated=True)
            for k, shard in zip(NUMBERS, held, strict=True)
        ]
        rule = Adam(lr=0.1)
        opening = Opening(rule, None, False, held, snapshots=tmp_path, restore=restore)
        return Service(opening, 1, Snapshots(tmp_path, 0, 0, 1, 1))

    service = opened()
    for step in range(2):
        push(service, 0, grads_of(step), FLAT)
    service.write_snapshot()
    again = opened(0)
    expect_equal(again, service)
    for each in (service, again):
        push(each, 0, grads_of(5), FLAT)
    expect_equal(again, service)
    assert {key.rpartition("/")[0] for key in again.optimizer.state_dict()} == {"p1", "p2", "p3"}
