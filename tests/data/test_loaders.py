"""Batches of arrays, generators and texts: their shards, orders, and what is refused."""

from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import ArrayLoader, GeneratorLoader, TextLoader
from singanet.errors import ArgumentError, DataError


def indices(n):
    return np.arange(n), np.arange(n) * 10


def rows(batches):
    return [x.tolist() for x, _ in batches]


def flat(batches):
    return list(chain.from_iterable(batches))


sizes = st.fixed_dictionaries(
    {"n": st.integers(1, 40), "batch": st.integers(1, 12), "world": st.integers(1, 5)}
)


def ranks(n, batch, world, **options):
    some = range(world)
    return [ArrayLoader(*indices(n), batch, rank=r, world_size=world, **options) for r in some]


@given(sizes, st.booleans())
def test_each_sample_is_in_exactly_one_shard(size, shuffle):
    if size["n"] < size["world"]:
        return
    loaders = ranks(**size, shuffle=shuffle, seed=3)
    batches = [rows(loader) for loader in loaders]
    assert [len(found) for found in batches] == [len(loader) for loader in loaders]
    assert sorted(flat(flat(batches))) == list(range(size["n"]))
    lengths = [sum(map(len, found)) for found in batches]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)
    whole = size["batch"] * size["world"]
    together = rows(ArrayLoader(*indices(size["n"]), whole, seed=3, shuffle=shuffle))
    for k, batch in enumerate(together):
        assert sorted(flat(found[k] for found in batches if k < len(found))) == sorted(batch)
    if size["n"] >= whole:
        for loader in ranks(**size, drop_last=True):
            found = [len(batch) for batch in rows(loader)]
            assert found == [size["batch"]] * len(loader) == [size["batch"]] * (size["n"] // whole)


def test_labels_stay_with_their_samples_and_unshuffled_is_in_order():
    for x, y in ArrayLoader(*indices(23), 5):
        np.testing.assert_array_equal(y, x * 10)
    assert rows(ArrayLoader(*indices(5), np.int64(2), shuffle=False)) == [[0, 1], [2, 3], [4]]


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


def test_array_modules(xp):
    loader = ArrayLoader(xp.arange(5), xp.arange(5), 2)
    batches = [x for x, _ in loader]
    assert all(isinstance(x, xp.ndarray) for x in batches)
    assert sorted(int(v) for x in batches for v in x) == list(range(5))


def test_position_is_shared_by_ranks():
    # Three samples over two ranks: rank 0 has two batches, rank 1 has one.
    zero, one = ranks(3, 1, 2)
    list(islice(zero, 1))
    one.load_state_dict(zero.state_dict())
    assert list(one) == []
    assert one.state_dict()["epoch"] == 1


def test_state_of_another_loader_is_refused_and_changes_nothing():
    loader = ArrayLoader(*indices(10), 3, seed=1)
    list(islice(loader, 2))
    before = loader.state_dict()
    for other in (
        ArrayLoader(*indices(11), 3, seed=1),
        ArrayLoader(*indices(10), 3, seed=1, world_size=2),
        ArrayLoader(*indices(10), 4, seed=1, world_size=2, split_batches=True),
    ):
        with pytest.raises(ArgumentError, match="as it was when the position was saved"):
            loader.load_state_dict(other.state_dict())
    assert loader.state_dict() == before


@pytest.mark.parametrize(("x", "y", "message"), [
    (np.zeros(3), np.zeros(4), "x: 3, y: 4"),
    ({"a": np.zeros(3), "b": np.zeros(2)}, np.zeros(3), r"x\['a'\]: 3, x\['b'\]: 2, y: 3"),
    ([1, 2], np.zeros(2), "ArrayLoader, x: .*list"),
    (np.zeros(2), np.zeros(()), "ArrayLoader, y: .*ndarray"), ({}, {}, "no array"),
    (np.zeros((0, 3)), np.zeros(0), "0 samples"),
])  # fmt: skip
def test_bad_data(x, y, message):
    with pytest.raises(DataError, match=message):
        ArrayLoader(x, y, 2)


def test_too_few_samples_for_a_batch():
    with pytest.raises(DataError, match="5 samples, batch_size 3, drop_last"):
        ArrayLoader(*indices(5), 3, drop_last=True, world_size=2)
    with pytest.raises(DataError, match="rank 2 of 3"):
        ArrayLoader(*indices(2), 1, rank=2, world_size=3)


@given(sizes, st.integers(1, 5), st.booleans(), st.data())
def test_split_batches_are_those_of_one_process_with_any_number_of_ranks(
    size, other, drop_last, data
):
    """Also where some ranks have no sample of a batch, and the number of ranks changes."""
    options = {"seed": 3, "drop_last": drop_last and size["n"] >= size["batch"]}
    alone = rows(ArrayLoader(*indices(size["n"]), size["batch"], **options))
    options["split_batches"] = True

    def joined(per_rank):
        return [sorted(flat(parts)) for parts in zip(*per_rank, strict=True)]

    loaders = ranks(**size, **options)
    assert {len(loader) for loader in loaders} == {len(alone)}
    stop = data.draw(st.integers(0, len(alone) - 1))
    taken = joined([rows(islice(loader, stop)) for loader in loaders])
    later = ranks(**(size | {"world": other}), **options)
    for loader in later:
        loader.load_state_dict(loaders[0].state_dict())
    made = [rows(loader) for loader in later]
    assert taken + joined(made) == [sorted(batch) for batch in alone]
    assert later[0]._smallest_batch == min(len(part) for each in made for part in each if part)


def test_a_position_goes_on_with_another_number_of_ranks_of_as_large_batches():
    two, three = ranks(20, 3, 2, seed=4), ranks(20, 2, 3, seed=4)
    seen = flat(flat(rows(islice(loader, 2)) for loader in two))
    for loader in three:
        loader.load_state_dict(two[0].state_dict())
        seen += flat(rows(loader))
    assert sorted(seen) == list(range(20))


def five(epoch):
    """Five batches, each telling its epoch and place."""
    for k in range(5):
        yield (epoch, k), k


def rows_of(batches):
    return [x for x, _ in batches]


def test_each_epoch_is_asked_for_by_number():
    loader = GeneratorLoader(five)
    for epoch in (0, 1):
        assert rows_of(loader) == [(epoch, k) for k in range(5)]
    loader.set_epoch(7)
    assert rows_of(islice(loader, 1)) == [(7, 0)]
    with pytest.raises(ArgumentError, match="a function of the epoch"):
        GeneratorLoader(five(0))


def test_an_epoch_without_batches_is_an_error():
    with pytest.raises(DataError, match="none in epoch 0"):
        list(GeneratorLoader(lambda epoch: []))
    later, once = GeneratorLoader(lambda epoch: [(1, 1)], 1, 2), five(0)
    assert list(later) == []
    assert later.epoch == 1
    loader = GeneratorLoader(lambda epoch: once)
    list(loader)
    with pytest.raises(DataError, match="none in epoch 1"):
        list(loader)


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_each_batch_is_one_rank_s(world):
    shards = [rows_of(GeneratorLoader(five, rank, world)) for rank in range(world)]
    assert sorted(chain.from_iterable(shards)) == [(0, k) for k in range(5)]
    for rank, shard in enumerate(shards):
        assert shard == [(0, k) for k in range(rank, 5, world)]


def test_an_error_of_the_source_comes_through_and_keeps_the_position():
    def failing(epoch):
        yield 1, 1
        raise OSError("disk gone")

    loader = GeneratorLoader(failing)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(OSError, match="disk gone"):
        next(iterator)
    assert loader.position == 1
    assert loader.epoch == 0


@pytest.mark.parametrize("batch", [np.zeros(2), (1,), (1, 2, 3), [1, 2], None])
def test_what_is_no_batch_is_refused(batch):
    with pytest.raises(DataError, match=r"tuples \(x, y\)"):
        list(GeneratorLoader(lambda epoch: [(1, 1), batch]))


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("taken", [0, 1, 2])
def test_other_ranks_go_on_where_those_before_stood(before, after, taken):

    def nine(epoch):
        return [(epoch, k) for k in range(9)]

    old = [GeneratorLoader(nine, rank, before) for rank in range(before)]
    seen = [batch for loader in old for batch in islice(loader, taken)]
    new = [GeneratorLoader(nine, rank, after) for rank in range(after)]
    for loader in new:
        loader.load_state_dict(old[0].state_dict())
    middle = [list(islice(loader, 1)) for loader in new]
    newest = [GeneratorLoader(nine, rank, before) for rank in range(before)]
    for loader in newest:
        loader.load_state_dict(new[0].state_dict())
    seen += [batch for some in middle for batch in some]
    seen += [batch for loader in newest for batch in loader]
    assert sorted(seen) == nine(0)
    assert sorted(batch for loader in newest for batch in loader) == nine(1)


text_sizes = st.fixed_dictionaries(
    {"n": st.integers(2, 300), "batch": st.integers(1, 7), "length": st.integers(1, 20),
     "world": st.integers(1, 3)}
)  # fmt: skip


def loaders(size, **options):
    def make(rank):
        world = {"rank": rank, "world_size": size["world"]}
        return TextLoader(np.arange(size["n"]), size["batch"], size["length"], **world, **options)

    return [make(rank) for rank in range(size["world"])]


@given(text_sizes)
def test_rows_go_on_and_cover_the_text_once(size):
    rows, (batch, length) = size["batch"] * size["world"], (size["batch"], size["length"])
    columns = (size["n"] - 1) // rows
    if columns == 0:
        return
    whole = []
    for loader in loaders(size):
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(x.shape == y.shape for x, y in batches)
        assert all(x.shape == (batch, length) for x, _ in batches[:-1])
        x, y = (np.concatenate(parts, axis=1) for parts in zip(*batches, strict=True))
        # The ids count up, so the successor of each is itself plus one.
        np.testing.assert_array_equal(y, x + 1)
        assert (np.diff(x, axis=1) == 1).all()
        whole.append(x.reshape(-1))
    used = columns * rows
    np.testing.assert_array_equal(np.concatenate(whole), np.arange(used))
    assert size["n"] - 1 - used < rows
    for loader in loaders(size, drop_last=True) if columns >= length else ():
        assert [x.shape for x, _ in loader] == [(batch, length)] * len(loader)
        assert len(loader) == columns // length


def test_start_of_an_epoch_shows():
    loader = TextLoader(np.arange(10), 1, 3)
    starts = []
    iterator = iter(loader)
    for _ in range(len(loader)):
        starts.append(loader.position == 0)
        next(iterator)
    assert starts == [True, False, False]
    assert loader.position == 0
    assert loader.epoch == 1


@pytest.mark.parametrize("ids", [np.zeros((4, 4), int), np.zeros(20), np.array("text")])
def test_bad_ids(ids):
    with pytest.raises(DataError, match=r"ids of shape \(N,\), integers"):
        TextLoader(ids, 2, 3)


@pytest.mark.parametrize(("n", "options"),
    [(0, {}), (1, {}), (4, {}), (4, {"world_size": 2}), (20, {"drop_last": True})])  # fmt: skip
def test_too_few_ids(n, options):
    with pytest.raises(DataError, match=f"{n} ids"):
        TextLoader(np.arange(n), 4, 5, **options)
