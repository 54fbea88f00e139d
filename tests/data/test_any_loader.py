"""All that holds for any loader: a member is a line of `MAKERS`."""

import copy
import inspect
import itertools
import json
import pickle

import numpy as np
import pytest

from singanet import data
from singanet.data.transforms import random_color
from singanet.errors import ArgumentError

PUBLIC = {name: getattr(data, name) for name in data.__all__}
PUBLIC = {
    name: kind
    for name, kind in PUBLIC.items()
    if isinstance(kind, type) and hasattr(kind, "load_state_dict") and name != "Loader"
}
IDS = np.arange(60, dtype=np.int32)


class Parts(data.TokenLoader):
    """A user's: the first of each text."""

    def tokens_of(self, record):
        ids = self.tokenizer.encode(record.entry["text"])
        return data.tokens.text_files.fragments(ids, None, self.length)[:1]


def five(epoch):
    """Five batches, each telling its epoch and place."""
    return ((np.array([epoch, k]), np.array([k])) for k in range(5))


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """What the loaders of files read: images in two classes, and texts."""
    folder = tmp_path_factory.mktemp("given")
    texts = [{"text": f"line {k} " * (k % 4 + 1), "prompt": f"say {k}"} for k in range(18)]
    lines = [json.dumps({**text, "answer": f"{k}"}) for k, text in enumerate(texts)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    pairs = [{"prompt": f"say {k}", "chosen": f"{k}", "rejected": "line"} for k in range(18)]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    tokenizers = pytest.importorskip("tokenizers")
    known = ["[UNK]", "line", "say", *map(str, range(18)), "[MASK]"]
    words = {word: k for k, word in enumerate(known)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = data.Tokenizer(backend, eos_token="[UNK]", pad_token="[UNK]")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    for number in range(9):
        place = folder / "images" / ("dog" if number % 3 == 0 else "cat")
        place.mkdir(exist_ok=True, parents=True)
        image.new("RGB", (4, 3), (number * 10,) * 3).save(place / f"{number}.png")
    return folder, tokenizer


def _tokens(kind, given, **more):
    folder, tokenizer = given
    return kind(folder / "texts.jsonl", tokenizer, **{"batch_size": 2, "length": 8, **more})


def _pairs(kind, given, **more):
    return kind(given[0] / "pairs.jsonl", given[1],
                **{"batch_size": 2, "length": 8, "method": "orpo", **more})  # fmt: skip


MAKERS = {
    "ArrayLoader": lambda kind, given, **more: kind(IDS, IDS, **{"batch_size": 7, **more}),
    "Chat": _tokens,
    "FolderLoader": lambda kind, given, **more: kind(
        given[0] / "images", **{"batch_size": 2, "transforms": [random_color], **more}
    ),
    "GeneratorLoader": lambda kind, given, **more: kind(five, **more),
    "MaskingLoader": _tokens,
    "Pairs": _pairs,
    "Prefetch": lambda kind, given, **more: kind(
        data.ArrayLoader(IDS, IDS, **{"batch_size": 7, **more}), 2
    ),
    "TextFolder": _tokens,
    "TextLoader": lambda kind, given, **more: kind(IDS, **{"batch_size": 3, "length": 4, **more}),
    "TokenLoader": lambda kind, given, **more: _tokens(Parts, given, **more),
}
OPTIONS = {
    "ArrayLoader": [{"drop_last": True}, {"shuffle": False}, {"split_batches": True}],
    "FolderLoader": [{"size": (2, 2), "grayscale": True}],
    "TextFolder": [{"pad_to": (2, 4)}, {"shuffle": False}, {"window": 90}],
    "TextLoader": [{"drop_last": True}],
}
EACH = [(name, more) for name in PUBLIC for more in ({}, *OPTIONS.get(name, ()))]
AHEAD = [(f"{name}, ahead", {}) for name in PUBLIC]


@pytest.fixture(params=[*EACH, *AHEAD], ids=str)
def make(request, given):
    """Makes the loader, alone or behind a `Prefetch`; more arguments go to it."""
    name, more = request.param
    name, _, ahead = name.partition(", ")

    def made(**others):
        loader = MAKERS[name](PUBLIC[name], given, **{**more, **others})
        return data.Prefetch(loader, 2) if ahead else loader

    return made


def plain(value):
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def epochs(loader, count=1):
    return [[(plain(x), plain(y)) for x, y in loader] for _ in range(count)]


def taken(loader, count):
    """The next ``count`` batches, over the ends of epochs; the loop of an epoch is left."""
    found = []
    while len(found) < count:
        found += [(plain(x), plain(y)) for x, y in itertools.islice(loader, count - len(found))]
    return found


def test_every_public_loader_is_a_member():
    assert MAKERS.keys() == PUBLIC.keys()


def test_epochs_are_alike_each_time_and_counted(make):
    loader, other = make(), make()
    found = epochs(loader, 3)
    assert epochs(other, 3) == found
    assert loader.state_dict()["epoch"] == 3
    assert loader.state_dict()["position" if "position" in loader.state_dict() else "row"] == 0
    if hasattr(getattr(loader, "loader", loader), "__len__"):
        assert {len(loader)} == {len(each) for each in found}
    if hasattr(loader, "count_batches"):
        assert loader.count_batches() == len(found[0])
    if hasattr(loader, "set_epoch"):
        loader.set_epoch(1)
        assert epochs(loader) == found[1:2]
        for epoch in (-1, "1", 1.5):
            with pytest.raises(ArgumentError, match="epoch"):
                loader.set_epoch(epoch)


def test_a_position_is_restored_to_the_bit(make):
    whole = epochs(make(), 2)
    straight = [batch for epoch in whole for batch in epoch]
    for count in {0, 1, len(whole[0]) - 1, len(whole[0]), len(whole[0]) + 2, len(straight) - 1}:
        stopped, resumed = make(), make()
        assert taken(stopped, count) == straight[:count]
        state = json.loads(json.dumps(stopped.state_dict()))
        taken(resumed, 2)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == stopped.state_dict()
        rest = straight[count:]
        for loader in (resumed, stopped, *_copies(stopped, state)):
            assert taken(loader, len(rest)) == rest


def _copies(loader, state):
    for copied in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        copied.load_state_dict(state)
        yield copied


def test_who_writes_into_a_batch_writes_into_no_other(make):
    loader, expected = make(), epochs(make(), 2)
    for found in expected:
        batches = []
        for x, y in loader:
            batches.append((plain(x), plain(y)))
            for part in [*(x.values() if isinstance(x, dict) else [x]), y]:
                part[...] = 0
        assert batches == found


def test_a_state_that_is_none_is_refused_and_changes_nothing(make):
    loader = make()
    taken(loader, 1)
    before = loader.state_dict()
    at = "position" if "position" in before else "row"
    bad = [{**before, name: value} for name in ("epoch", at) for value in (-1, "1", 1.5, True)]
    bad += [{k: v for k, v in before.items() if k != name} for name in ("epoch", "position")]
    bad += [{**before, name: -1} for name in ("before", "world_size", "block") if name in before]
    if hasattr(getattr(loader, "loader", loader), "__len__"):
        bad += [{**before, at: len(loader) + 2}]
    for broken in ({}, *bad):
        with pytest.raises(ArgumentError):
            loader.load_state_dict(broken)
        assert loader.state_dict() == before
    assert taken(loader, 2) == taken(make(), 3)[1:]


WITH = {name: inspect.signature(kind).parameters for name, kind in PUBLIC.items()}
OTHERS = {
    "seed": 1, "batch_size": 4, "length": 5, "shuffle": False, "drop_last": True, "pad_to": [2],
    "window": 9, "answers_only": False,
}  # fmt: skip


@pytest.mark.parametrize(("name", "other"),
    [(n, other) for n, given in WITH.items() for other in OTHERS if other in given])  # fmt: skip
def test_a_state_of_another_loader_is_refused_and_changes_nothing(given, name, other):
    loader, another = (
        MAKERS[name](PUBLIC[name], given, **more) for more in ({}, {other: OTHERS[other]})
    )
    taken(loader, 1)
    before = loader.state_dict()
    with pytest.raises(ArgumentError):
        loader.load_state_dict(another.state_dict())
    assert loader.state_dict() == before


BAD = {
    "batch_size": (0, -1, 2.0, True, "4", None), "length": (0, 1.5, True), "seed": (-1, 1.5),
    "world_size": (0, 1.5), "rank": (-1, 1, True), "window": (0,), "too_long": ("tell",),
    "pad_to": ([33], [0]), "inputs": (["pixels"], []), "size": (5, (5,), (5, 0), (1.5, 2), "ab"),
    "classes": ("cat", [], ["cat", "cat", "dog"], ["cat", 1], 3),
}  # fmt: skip


@pytest.mark.parametrize(("name", "option"),
    [(n, option) for n, given in WITH.items() for option in BAD if option in given])  # fmt: skip
def test_arguments_that_are_refused(given, name, option):
    for value in BAD[option]:
        with pytest.raises(ArgumentError, match=option):
            MAKERS[name](PUBLIC[name], given, **{option: value})


@pytest.mark.parametrize("name", [name for name, given in WITH.items() if "seed" in given])
def test_the_order_is_drawn_from_seed_and_epoch(given, name):
    def made(**more):
        return epochs(MAKERS[name](PUBLIC[name], given, **more), 2)

    first, second = made()
    assert first != second
    assert made(seed=1)[0] != first
    # Without an order of its own an epoch still draws images' changes, and masks.
    if name == "ArrayLoader" or not {"transforms", "probability"} & {*WITH[name]}:
        still = made(shuffle=False)
        assert still[0] == still[1] == made(shuffle=False, seed=1)[0] != first


@pytest.mark.parametrize("name", [name for name, given in WITH.items() if "rank" in given])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_together_have_the_samples_of_one_process(given, name, world):

    def rows(**more):
        found = []
        for _, y in epochs(MAKERS[name](PUBLIC[name], given, **more))[0]:
            # By what it has to learn: the padding of ranks differs.
            found += [str(each) for each in y if each != [-100] * 8]
        return sorted(found)

    one, each = {"batch_size": 2 * world}, {"batch_size": 2}
    if name == "GeneratorLoader":
        one = each = {}
    apart = [row for rank in range(world) for row in rows(rank=rank, world_size=world, **each)]
    assert sorted(apart) == rows(**one)
