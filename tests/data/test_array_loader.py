import copy
import json
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import ArrayLoader
from singanet.errors import ArgumentError, DataError


def indices(n):
    return np.arange(n), np.arange(n) * 10


def rows(batches):
    return [x.tolist() for x, _ in batches]


sizes = st.fixed_dictionaries(
    {"n": st.integers(1, 40), "batch": st.integers(1, 12), "world": st.integers(1, 5)}
)


def ranks(n, batch, world, **options):
    return [
        ArrayLoader(*indices(n), batch, rank=r, world_size=world, **options) for r in range(world)
    ]


@given(sizes, st.booleans())
def test_each_sample_is_in_exactly_one_shard(size, shuffle):
    if size["n"] < size["world"]:
        return
    loaders = ranks(size["n"], size["batch"], size["world"], shuffle=shuffle)
    batches = [rows(loader) for loader in loaders]
    assert [len(found) for found in batches] == [len(loader) for loader in loaders]
    seen = list(chain.from_iterable(chain.from_iterable(batches)))
    assert sorted(seen) == list(range(size["n"]))
    lengths = [sum(map(len, found)) for found in batches]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


@given(sizes)
def test_ranks_together_take_the_batches_of_one_process(size):
    if size["n"] < size["world"]:
        return
    together = rows(ArrayLoader(*indices(size["n"]), size["batch"] * size["world"], seed=3))
    apart = [rows(loader) for loader in ranks(size["n"], size["batch"], size["world"], seed=3)]
    for k, batch in enumerate(together):
        parts = [found[k] for found in apart if k < len(found)]
        assert sorted(chain.from_iterable(parts)) == sorted(batch)


@given(sizes)
def test_drop_last_gives_every_rank_equally_many_full_batches(size):
    if size["n"] < size["batch"] * size["world"]:
        return
    loaders = ranks(size["n"], size["batch"], size["world"], drop_last=True)
    expected = size["n"] // (size["batch"] * size["world"])
    for loader in loaders:
        batches = rows(loader)
        assert len(batches) == len(loader) == expected
        assert {len(batch) for batch in batches} == {size["batch"]}


def test_labels_stay_with_their_samples():
    for x, y in ArrayLoader(*indices(23), 5):
        np.testing.assert_array_equal(y, x * 10)


def test_unshuffled_is_in_order():
    assert rows(ArrayLoader(*indices(5), 2, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_order_depends_on_seed_and_epoch_alone():
    loader = ArrayLoader(*indices(50), 50, seed=4)
    first, second, third = (rows(loader)[0] for _ in range(3))
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    other = ArrayLoader(*indices(50), 7, seed=4)
    list(other)
    other.set_epoch(2)
    assert list(chain.from_iterable(rows(other))) == third
    assert rows(ArrayLoader(*indices(50), 50, seed=5))[0] != first
    assert sorted(first) == list(range(50))


def test_dicts_of_arrays():
    x = {"wide": np.arange(6), "deep": np.arange(12).reshape(6, 2)}
    for batch, y in ArrayLoader(x, {"label": np.arange(6) * 10}, 4):
        assert list(batch) == ["wide", "deep"]
        np.testing.assert_array_equal(batch["deep"][:, 0], batch["wide"] * 2)
        np.testing.assert_array_equal(y["label"], batch["wide"] * 10)


def test_a_batch_is_a_copy():
    x = np.zeros((4, 2))
    for batch, _ in ArrayLoader(x, np.zeros(4), 2, shuffle=False):
        batch += 1
    assert not x.any()


def test_array_modules(xp):
    loader = ArrayLoader(xp.arange(5), xp.arange(5), 2)
    batches = [x for x, _ in loader]
    assert all(isinstance(x, xp.ndarray) for x in batches)
    assert sorted(int(v) for x in batches for v in x) == list(range(5))


@given(st.integers(0, 30), st.integers(1, 6), st.booleans())
def test_position_is_restored_to_the_bit(taken, batch, drop_last):
    def fresh():
        return ArrayLoader(*indices(13), batch, seed=9, drop_last=drop_last)

    def endless(loader):
        while True:
            yield from loader

    whole = endless(fresh())
    straight = rows(islice(whole, 40))
    stopped = fresh()
    assert rows(islice(endless(stopped), taken)) == straight[:taken]
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = fresh()
    list(islice(resumed, 1))
    resumed.load_state_dict(state)
    assert rows(islice(endless(resumed), 40 - taken)) == straight[taken:]


def test_position_is_shared_by_ranks():
    # Three samples over two ranks: rank 0 has two batches, rank 1 has one.
    zero, one = ranks(3, 1, 2)
    list(islice(zero, 1))
    one.load_state_dict(zero.state_dict())
    assert list(one) == []
    assert one.state_dict()["epoch"] == 1


def test_leaving_a_loop_leaves_the_position():
    loader = ArrayLoader(*indices(10), 3, shuffle=False)
    for x, _ in loader:
        assert x.tolist() == [0, 1, 2]
        break
    assert rows(loader) == [[3, 4, 5], [6, 7, 8], [9]]


def test_state_of_another_loader_is_refused_and_changes_nothing():
    loader = ArrayLoader(*indices(10), 3, seed=1)
    list(islice(loader, 2))
    before = copy.deepcopy(loader.state_dict())
    for other in (
        ArrayLoader(*indices(11), 3, seed=1),
        ArrayLoader(*indices(10), 4, seed=1),
        ArrayLoader(*indices(10), 3, seed=2),
        ArrayLoader(*indices(10), 3, seed=1, shuffle=False),
        ArrayLoader(*indices(10), 3, seed=1, drop_last=True),
        ArrayLoader(*indices(10), 3, seed=1, world_size=2),
        ArrayLoader(*indices(10), 4, seed=1, world_size=2, split_batches=True),
    ):
        with pytest.raises(ArgumentError, match="as it was when the position was saved"):
            loader.load_state_dict(other.state_dict())
    for broken in ({}, {**before, "position": -1}, {k: before[k] for k in ("epoch", "position")}):
        with pytest.raises(ArgumentError):
            loader.load_state_dict(broken)
    assert loader.state_dict() == before


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": "4"}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"world_size": 0}, "world_size"),
        ({"rank": -1}, "rank"),
        ({"rank": 2, "world_size": 2}, "rank from 0 to 1"),
    ],
)
def test_bad_arguments(options, named):
    with pytest.raises(ArgumentError, match=named):
        ArrayLoader(*indices(10), **{"batch_size": 3, **options})


def test_bad_epoch():
    with pytest.raises(ArgumentError, match="epoch"):
        ArrayLoader(*indices(10), 3).set_epoch(-1)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros(3), np.zeros(4), "x: 3, y: 4"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, np.zeros(3), r"x\['a'\]: 3, x\['b'\]: 2, y: 3"),
        ([1, 2], np.zeros(2), "ArrayLoader, x: .*list"),
        (np.zeros(2), np.zeros(()), "ArrayLoader, y: .*ndarray"),
        ({}, {}, "no array"),
        (np.zeros((0, 3)), np.zeros(0), "0 samples"),
    ],
)
def test_bad_data(x, y, message):
    with pytest.raises(DataError, match=message):
        ArrayLoader(x, y, 2)


def test_too_few_samples_for_a_batch():
    with pytest.raises(DataError, match="5 samples, batch_size 3, drop_last"):
        ArrayLoader(*indices(5), 3, drop_last=True, world_size=2)
    with pytest.raises(DataError, match="rank 2 of 3"):
        ArrayLoader(*indices(2), 1, rank=2, world_size=3)


def test_numpy_integers_are_whole_numbers():
    assert len(ArrayLoader(*indices(10), np.int64(4))) == 3


@given(sizes, st.integers(1, 5), st.booleans(), st.data())
def test_split_batches_are_those_of_one_process_with_any_number_of_ranks(
    size, other, drop_last, data
):
    """Also where some ranks have no sample of a batch, and the number of ranks changes."""
    options = {"seed": 3, "drop_last": drop_last and size["n"] >= size["batch"]}
    given_x = indices(size["n"])
    alone = rows(ArrayLoader(*given_x, size["batch"], **options))

    def some(world):
        return [
            ArrayLoader(
                *given_x, size["batch"], rank=r, world_size=world, split_batches=True, **options
            )
            for r in range(world)
        ]

    def joined(per_rank):
        return [
            sorted(row for part in parts for row in part) for parts in zip(*per_rank, strict=True)
        ]

    loaders = some(size["world"])
    assert {len(loader) for loader in loaders} == {len(alone)}
    stop = data.draw(st.integers(0, len(alone) - 1))
    taken = joined([rows(islice(loader, stop)) for loader in loaders])
    later = some(other)
    for loader in later:
        loader.load_state_dict(loaders[0].state_dict())
    made = [rows(loader) for loader in later]
    assert taken + joined(made) == [sorted(batch) for batch in alone]
    assert later[0]._smallest_batch == min(len(part) for each in made for part in each if part)


def test_a_position_goes_on_with_another_number_of_ranks_of_as_large_batches():
    two = [ArrayLoader(*indices(20), 3, seed=4, rank=r, world_size=2) for r in range(2)]
    seen = [row for loader in two for batch in rows(islice(loader, 2)) for row in batch]
    three = [ArrayLoader(*indices(20), 2, seed=4, rank=r, world_size=3) for r in range(3)]
    for loader in three:
        loader.load_state_dict(two[0].state_dict())
        seen += [row for batch in rows(loader) for row in batch]
    assert sorted(seen) == list(range(20))
