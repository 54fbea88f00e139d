import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.data import TextLoader
from singanet.errors import ArgumentError, DataError

sizes = st.fixed_dictionaries(
    {
        "n": st.integers(2, 300),
        "batch": st.integers(1, 7),
        "length": st.integers(1, 20),
        "world": st.integers(1, 3),
    }
)


def loaders(size, **options):
    return [
        TextLoader(
            np.arange(size["n"]),
            size["batch"],
            size["length"],
            rank=rank,
            world_size=size["world"],
            **options,
        )
        for rank in range(size["world"])
    ]


@given(sizes)
def test_rows_go_on_and_cover_the_text_once(size):
    rows = size["batch"] * size["world"]
    if (size["n"] - 1) // rows == 0:
        return
    whole = []
    for loader in loaders(size):
        batches = list(loader)
        assert len(batches) == len(loader)
        assert all(x.shape == y.shape for x, y in batches)
        assert all(x.shape == (size["batch"], size["length"]) for x, _ in batches[:-1])
        x = np.concatenate([x for x, _ in batches], axis=1)
        y = np.concatenate([y for _, y in batches], axis=1)
        # The ids count up, so the successor of each is itself plus one.
        np.testing.assert_array_equal(y, x + 1)
        assert (np.diff(x, axis=1) == 1).all()
        whole.append(x.reshape(-1))
    seen = np.concatenate(whole)
    used = (size["n"] - 1) // rows * rows
    np.testing.assert_array_equal(seen, np.arange(used))
    assert size["n"] - 1 - used < rows


@given(sizes)
def test_drop_last_gives_whole_batches_only(size):
    columns = (size["n"] - 1) // (size["batch"] * size["world"])
    if columns < size["length"]:
        return
    for loader in loaders(size, drop_last=True):
        assert [x.shape for x, _ in loader] == [(size["batch"], size["length"])] * len(loader)
        assert len(loader) == columns // size["length"]


@given(st.integers(0, 25))
def test_position_is_restored(taken):
    def endless(loader):
        while True:
            yield from loader

    def fresh():
        return TextLoader(np.arange(100), 3, 4)

    straight = [x.tolist() for x, _ in islice(endless(fresh()), 40)]
    stopped = fresh()
    list(islice(endless(stopped), taken))
    resumed = fresh()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [x.tolist() for x, _ in islice(endless(resumed), 40 - taken)] == straight[taken:]


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


def test_batches_are_copies():
    ids = np.zeros(20, np.int32)
    for x, y in TextLoader(ids, 2, 4):
        x += 1
        y += 1
    assert not ids.any()


@pytest.mark.parametrize("ids", [np.zeros((4, 4), int), np.zeros(20), np.array("text")])
def test_bad_ids(ids):
    with pytest.raises(DataError, match=r"ids of shape \(N,\), integers"):
        TextLoader(ids, 2, 3)


@pytest.mark.parametrize(
    ("n", "options"), [(0, {}), (1, {}), (4, {}), (4, {"world_size": 2}), (20, {"drop_last": True})]
)
def test_too_few_ids(n, options):
    with pytest.raises(DataError, match=f"{n} ids"):
        TextLoader(np.arange(n), 4, 5, **options)


@pytest.mark.parametrize(
    "options", [{"batch_size": 0}, {"length": 0}, {"length": 1.5}, {"rank": 1}, {"world_size": 0}]
)
def test_bad_arguments(options):
    with pytest.raises(ArgumentError):
        TextLoader(np.arange(50), **{"batch_size": 2, "length": 3, **options})


def test_state_of_another_loader_is_refused():
    loader = TextLoader(np.arange(50), 2, 3)
    with pytest.raises(ArgumentError, match="length 3"):
        loader.load_state_dict(TextLoader(np.arange(50), 2, 4).state_dict())
    with pytest.raises(ArgumentError, match="position from 0 to 8"):
        loader.load_state_dict({**loader.state_dict(), "position": 9})
