"""Folders of published models: shards with their index, one file, and PyTorch's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from singanet.checkpoint import FORMATS, Source, convert, open_state, write_folder, write_state
from singanet.errors import ArgumentError, CheckpointError, FileAccessError, FileFormatError
from tests.checkpoint.format_case import FormatCase
from tests.kit.files import expect_same_state, names_in, read_state, safetensors_file
from tests.kit.files import safetensors_entry as entry
from tests.mutation.watching import Peak

INDEX = "model.safetensors.index.json"
SHARDS = [f"model-{k:05}-of-00003.safetensors" for k in (1, 2, 3)]
ELSEWHERE = [
    "../secret.safetensors", "/etc/passwd", "..", ".", "", "a/../../secret.safetensors",
    "sub/x.safetensors", "..\\secret.safetensors", "C:secret.safetensors", "x\0.safetensors",
    ".hidden.safetensors", 5, None, [["a"]], {"a": 1}, "x" * 300, "a\nb.safetensors",
]  # fmt: skip
BROKEN = [
    "", "{", "{}", "[]", '{"weight_map": []}', '{"weight_map": 5}', '{"metadata": {}}',
    '{"weight_map": {}, "metadata": 5}', '{"weight_map": {}, "weight_map": {}}',
    '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', '{"a":' * 5000,
    '{"weight_map": {"\\ud800": "x.safetensors"}}',
    '{"weight_map": {"w": "model.safetensors.index.json"}}',  # itself
]  # fmt: skip


def map_of(weight_map):
    """The text of an index."""
    return json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})


class TestSharded(FormatCase):
    name = "sharded"
    suffix = ".safetensors.index.json"
    forged = [
        *((text.encode(), "") for text in BROKEN),
        *((map_of({"w": name}).encode(), "file names in the index's folder") for name in ELSEWHERE),
        (map_of({f"w{k}": f"{k}.safetensors" for k in range(600)}).encode(), "at most 512"),
    ]

    def named(self, path, name):
        path.write_text(map_of({name: "part.safetensors"}))
        (path.parent / "part.safetensors").write_bytes(safetensors_file({name: entry()}))

    def holder(self, path):
        return next(path.parent.glob("*-00001-of-00001.safetensors"))


@pytest.fixture
def arrays():
    rng = np.random.default_rng(3)
    return {f"layers.{k}.weight": rng.standard_normal((8, 16)).astype("f4") for k in range(5)}


# -- what is written ------------------------------------------------------------------------------


def test_a_folder_in_shards_and_of_one_file(tmp_path, arrays):
    written = write_folder(tmp_path / "m", arrays, shard_bytes=1024)
    assert written == tmp_path / "m" / INDEX
    assert names_in(tmp_path / "m") == [*SHARDS, INDEX]
    found = json.loads(written.read_text())
    assert found["metadata"]["total_size"] == 5 * 512
    assert list(found["weight_map"].values()) == [SHARDS[k // 2] for k in range(5)]
    for place in (tmp_path / "m", written):
        expect_same_state(read_state(place), arrays)
    assert write_folder(tmp_path / "n", arrays) == tmp_path / "n" / "model.safetensors"
    assert names_in(tmp_path / "n") == ["model.safetensors"]
    expect_same_state(read_state(tmp_path / "n"), arrays)
    state = {name: np.ones(count, "f4") for name, count in (("a", 2), ("b", 99), ("c", 1))}
    write_folder(tmp_path / "o", state, shard_bytes=12)  # a large array has one of its own
    assert names_in(tmp_path / "o") == [*SHARDS, INDEX]
    expect_same_state(read_state(tmp_path / "o"), state)


@pytest.mark.parametrize(
    ("before", "after"), [(1024, 512), (1024, 1024), (1024, 10**6), (10**6, 512)]
)
def test_a_new_state_takes_the_place_of_the_old_one(tmp_path, arrays, before, after):
    write_folder(tmp_path, arrays, before)
    other = {name: array + 1 for name, array in arrays.items()}
    write_folder(tmp_path, other, after)
    expect_same_state(read_state(tmp_path), other)
    count = -(-5 * 512 // after) if after > 512 else 5
    assert len(names_in(tmp_path)) == (1 if after == 10**6 else count + 1)


def test_other_files_of_the_folder_stay(tmp_path, arrays):
    for name in ("tokenizer.json", "model-of-mine.safetensors", "consolidated.safetensors"):
        (tmp_path / name).write_text("x")
    write_folder(tmp_path, arrays, 512, files={"config.json": "{}"})
    write_folder(tmp_path, arrays, files={"config.json": '{"a": 1}'})
    assert names_in(tmp_path) == [
        "config.json", "consolidated.safetensors", "model-of-mine.safetensors",
        "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert (tmp_path / "config.json").read_text() == '{"a": 1}'


@pytest.mark.parametrize("shard_bytes", [512, 10**6])
def test_an_error_leaves_the_folder_as_it_was(tmp_path, arrays, shard_bytes):
    def fail():
        raise ZeroDivisionError

    write_folder(tmp_path / "m", arrays, 1024, files={"config.json": "old"})
    before = names_in(tmp_path / "m")
    sources = [
        Source("a", (100,), np.dtype("f4"), lambda: np.ones(100, "f4")),
        Source("b", (300,), np.dtype("f4"), fail),
    ]
    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path / "m", sources, shard_bytes, files={"config.json": "new"})
    assert names_in(tmp_path / "m") == before
    assert (tmp_path / "m/config.json").read_text() == "old"
    expect_same_state(read_state(tmp_path / "m"), arrays)
    with pytest.raises(ZeroDivisionError):
        write_folder(tmp_path / "new", sources, shard_bytes)
    assert not (tmp_path / "new").exists()


# -- transformers and PyTorch ---------------------------------------------------------------------


def llama():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        vocab_size=64, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), torch, transformers


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.full
def test_what_transformers_saved_goes_back_with_the_same_bits(tmp_path, dtype):
    model, torch, transformers = llama()
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "a", max_shard_size="4kB")
    assert (tmp_path / "a" / INDEX).exists()
    with open_state(tmp_path / "a") as reader:
        assert reader.format == "sharded"
        expected = model.state_dict()
        assert reader.entries.keys() == expected.keys()
        for name, array in reader:
            np.testing.assert_array_equal(array, expected[name].float().numpy())
        state = dict(reader)
    for shard_bytes in (3000, 10**9):
        shutil.copytree(tmp_path / "a", tmp_path / "b", dirs_exist_ok=True)
        write_folder(tmp_path / "b", state, shard_bytes, dtype)
        again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "b", dtype="auto")
        for name, tensor in again.state_dict().items():
            assert tensor.dtype == expected[name].dtype
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.full
def test_pytorchs_own_files(tmp_path):
    model, torch, _ = llama()
    state = model.state_dict()
    names, whole = list(state), tmp_path / "pytorch_model.bin"
    torch.save(state, whole)
    found = [read_state(tmp_path)]
    whole.unlink()
    weight_map = {name: f"pytorch_model-{1 + (k > 6)}.bin" for k, name in enumerate(names)}
    for file in set(weight_map.values()):
        torch.save(
            {name: state[name] for name in names if weight_map[name] == file}, tmp_path / file
        )
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (tmp_path / "pytorch_model.bin.index.json").write_text(text)
    for arrays in (*found, read_state(tmp_path)):
        assert list(arrays) == names
        for name, tensor in state.items():
            np.testing.assert_array_equal(arrays[name], tensor.numpy())


# -- halves ---------------------------------------------------------------------------------------


def test_bfloat16_words(tmp_path, arrays):
    write_folder(tmp_path, arrays, 512, dtype="bfloat16")
    with open_state(tmp_path) as reader:
        assert reader.entries["layers.0.weight"].kind == "BF16"
        assert reader.read("layers.0.weight").dtype == np.float32
        kept = dict(reader)
    with FORMATS["sharded"].open(tmp_path / INDEX, words=True) as reader:
        for name, words in reader:
            assert words.dtype == np.uint16
            np.testing.assert_array_equal(words.astype("u4") << 16, kept[name].view("u4"))


def test_types_by_name(tmp_path, arrays):
    arrays["n"] = np.arange(3)
    wanted = {"layers.0.weight": "bfloat16", "layers.1.weight": "float16", "n": "float16"}
    write_folder(tmp_path, arrays, dtype=wanted)
    with open_state(tmp_path) as reader:
        types = [(entry.kind, str(entry.dtype)) for entry in reader.entries.values()]
    float32 = ("", "float32")
    assert types == [("BF16", "float32"), ("", "float16"), *[float32] * 3, ("", "int64")]


FEW, MANY = {"w": np.ones(1, "f4")}, {f"w{k}": np.ones(1, "f4") for k in range(600)}
INFINITE = {"w": np.array([np.inf, np.finfo("f4").max], "f4")}


@pytest.mark.parametrize(
    ("state", "more", "message"),
    [
        *((INFINITE, {"dtype": dtype}, rf"'w'.*numbers in the range of {dtype}; received 3.4")
          for dtype in ("float16", "bfloat16")),
        *((FEW, {"dtype": dtype}, "argument dtype: expected 'float32', 'float16'")
          for dtype in ("float8", {"w": "int8"})),
        *((MANY, {"shard_bytes": count}, "argument shard_bytes") for count in (0, 1)),
    ],
)  # fmt: skip
def test_what_no_folder_is_written_of(tmp_path, state, more, message):
    with pytest.raises(ArgumentError, match=message):
        write_folder(tmp_path / "m", state, **more)
    assert not (tmp_path / "m").exists()


# -- what is refused ------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, arrays):
    """A model in three shards, and a file beside its folder."""
    write_folder(tmp_path / "m", arrays, 1024)
    write_state(tmp_path / "secret.safetensors", {"w": np.ones(2, "f4")})
    return tmp_path / "m"


def test_links_that_lead_elsewhere(folder):
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[1]).symlink_to("../secret.safetensors")
    with pytest.raises(FileAccessError, match="a file of the folder itself; received a link"):
        open_state(folder)
    (folder / "model.safetensors").symlink_to("../secret.safetensors")
    with pytest.raises(FileAccessError, match="a file of the folder itself; received a link"):
        open_state(folder)


def test_links_within_a_cache_of_the_hub(tmp_path, folder, arrays):
    """Snapshots are links into the blobs of their repository, and nowhere else."""
    repository = tmp_path / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for path in folder.iterdir():
        path.rename(repository / "blobs" / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    expect_same_state(read_state(snapshot), arrays)
    (tmp_path / "short").symlink_to(snapshot)
    expect_same_state(read_state(tmp_path / "short"), arrays)
    (snapshot / SHARDS[0]).unlink()
    (snapshot / SHARDS[0]).symlink_to("../../../secret.safetensors")
    with pytest.raises(FileAccessError, match="a file of the folder itself; received a link"):
        open_state(snapshot)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda map: map.pop("layers.0.weight"), "in 'model-00001.*arrays of the map"),
        (lambda map: map.update({"layers.0.weight": SHARDS[2]}), "in 'model-00001"),
        (lambda map: map.update(more=SHARDS[0]), "every array of the map in its file.*no more"),
        (lambda map: map.update({"../x": SHARDS[0]}), "names of 1 to"),
        (lambda map: map.update(more="gone.safetensors"), "No such file"),
    ],
)
def test_a_map_that_does_not_fit(folder, change, message):
    weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
    change(weight_map)
    (folder / INDEX).write_text(map_of(weight_map))
    with pytest.raises(CheckpointError, match=message):
        open_state(folder)


def test_an_index_that_is_too_long_and_a_folder_without_weights(folder, tmp_path):
    (folder / INDEX).write_text("{" + " " * (33 << 20))
    with pytest.raises(FileFormatError):
        open_state(folder, "sharded")
    (tmp_path / "config.json").write_text("{}")
    words = r"received the folder of a published model with none"
    with pytest.raises(FileAccessError, match=words):
        open_state(tmp_path)


# -- one array at a time --------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the system does not tell")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_goes_in_and_out_beside_its_arrays(tmp_path, dtype):
    """Of 64 MB: into turned arrays that are there, and from them, with 12 MB beside."""
    state = {f"w{k}": np.full((2048, 2048), k, "f4").T for k in range(4)}
    # Large enough for the casts that are compiled at their first use.
    warm = {"w": np.ones((512, 600), "f4").T}
    write_folder(tmp_path / "warm", warm, 1 << 20, dtype)
    with open_state(tmp_path / "warm") as reader:
        reader.read_into("w", warm["w"])
    peak = Peak()
    peak.start()
    write_folder(tmp_path / "m", state, 40 << 20, dtype)
    assert peak.bytes() < 12 << 20
    peak.start()
    with open_state(tmp_path / "m") as reader:
        for name, array in state.items():
            array[...] = -1
            reader.read_into(name, array)
            assert (array == int(name[1:])).all()
    assert peak.bytes() < 12 << 20


def test_convert_of_a_folder(folder, tmp_path, arrays):
    assert "5 arrays from sharded" in convert(folder, tmp_path / "one.safetensors")
    expect_same_state(read_state(tmp_path / "one.safetensors"), arrays)
    convert(tmp_path / "one.safetensors", tmp_path / INDEX)
    expect_same_state(read_state(tmp_path / INDEX), arrays)


@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
def test_many_rows_of_nothing(tmp_path, suffix):
    empty = np.zeros((1 << 40, 0), "f4")
    write_state(tmp_path / f"m{suffix}", {"w": empty})
    with open_state(tmp_path / f"m{suffix}") as reader:
        assert list(reader.pieces("w")) == []
        assert reader.read("w").shape == empty.shape
        reader.read_into("w", empty)
