"""Every reader is given every other kind of file: it says what that is, and who reads it."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import zipfile

import numpy as np
import pytest

import singanet
from singanet import Executor, FeedForwardNet, checkpoint, data, keras, layers, onnx, pretrained
from singanet.base.kinds import kind_of_start
from singanet.errors import SingaNetError
from singanet.loss import SoftmaxCrossEntropy


def made():
    # So many arrays that the table of a file is longer than what tells most kinds.
    between = [layers.Dense(f"between{k}", 4) for k in range(6)]
    return FeedForwardNet(
        [layers.Dense("a", 4, input_sample_shape=(3,)), *between, layers.Dense("b", 2)],
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )


def net_load(path):
    made().load(path)


def executor_load(path):
    Executor({"e": [layers.Dense("a", 4)(layers.Input("x", (3,)))]}).load(path)


def load_adapter(path):
    pretrained.load_adapter(pretrained.build(CONFIG), path)


CONFIG = {
    "model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 6, "max_position_embeddings": 8,
}  # fmt: skip
READERS = {
    "net.load": net_load,
    "singanet.load_model": singanet.load_model,
    "singanet.load_predictor": singanet.load_predictor,
    "singanet.onnx.load": onnx.load,
    "singanet.keras.load_model": keras.load_model,
    "singanet.pretrained.load": pretrained.load,
    "singanet.pretrained.tokenizer": pretrained.tokenizer,
    "singanet.pretrained.load_adapter": load_adapter,
    "singanet.data.load": data.load,
    "executor.load": executor_load,
    "checkpoint.inspect": checkpoint.inspect,
}
OTHERS = {
    "numpy.load": np.load,
    "json.load": lambda path: json.loads(path.read_text()),
    "singanet.data.TextDataset.from_file": data.TextDataset.from_file,
    "singanet.data.read_image": data.read_image,
    "singanet.data.FolderLoader": lambda path: data.FolderLoader(path, 2),
}
KINDS = {
    "m.singanet": ("a whole model", ("singanet.load_model",)),
    "p.singanet": ("a predictor", ("singanet.load_predictor",)),
    "net.onnx": ("an ONNX graph", ("singanet.onnx.load",)),
    "net.keras": ("an archive of Keras", ("singanet.keras.load_model",)),
    "w.npz": ("an archive of NumPy arrays", ("net.load",)),
    "data.npz": ("an archive of NumPy arrays", ("singanet.data.load",)),
    "w.safetensors": ("a safetensors file", ("net.load",)),
    "w.pickle": ("a Python pickle", ("net.load",)),
    "w.h5": ("an HDF5 file", ("net.load",)),
    "w.weights.h5": ("an HDF5 file", ("net.load",)),
    "w.gguf": ("a GGUF file", ("net.load",)),
    "w.bin": ("a snapshot of SINGA", ("net.load",)),
    "x.npy": ("a single .npy array", ("numpy.load",)),
    "one.json": ("JSON text", ("json.load",)),
    "text.txt": ("text that begins", ("singanet.data.TextDataset.from_file",)),
    "one.png": ("a PNG image", ("singanet.data.read_image",)),
    "images": ("a folder of images", ("singanet.data.FolderLoader",)),
    "published": ("the folder of a published model", ("singanet.pretrained.load",)),
    "run": ("the folder of a run", ()),
    "adapter": ("the folder of an adapter", ("singanet.pretrained.load_adapter",)),
    "tokens": ("the folder of a tokenizer", ("singanet.pretrained.tokenizer",)),
    "empty": ("an empty file", ()),
    "packed.gz": ("gzip data", ()),
    "other.zip": ("a zip archive", ()),
    "bytes": ("a file that begins with the bytes", ()),
}
# What another reader takes as well: weights of whole models, and arrays of whatever meaning.
TAKEN = {
    "net.load": {"m.singanet"},
    "checkpoint.inspect": {
        name for name, (_, calls) in KINDS.items() if "net.load" in calls
    } | {"m.singanet", "p.singanet", "data.npz", "published"},
}  # fmt: skip


def keras_archive(net, folder):
    """What Keras writes of a model of two Dense layers."""
    net.save(folder / "model.weights.h5")
    start = {"batch_shape": [None, 3], "dtype": "float32", "name": "x"}
    entries = [{"class_name": "InputLayer", "config": start}]
    for layer in net.layers:
        name, units = layer.name, layer.num_output
        config = {"name": name, "units": units, "activation": "linear", "use_bias": True}
        entries.append({"class_name": "Dense", "config": config})
    described = {"class_name": "Sequential", "config": {"name": "net", "layers": entries}}
    with zipfile.ZipFile(folder / "net.keras", "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("config.json", json.dumps(described))
        archive.write(folder / "model.weights.h5", "model.weights.h5")


# A reader of such archives, or of arrays, tells what is in this one.
TELLS_INSIDE = (
    "arrays alone", "its entry 'session'", "no a/weight", "the arrays 'x_train'", ".npy arrays",
    "\\x93NUMPY", "the files of MNIST", "tokenizer.ggml.model", "a tokenizer.json by",
    "general.architecture", "received the folder",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kinds")
    net = made()
    net.save_model(folder / "m.singanet")
    net.predictor().save(folder / "p.singanet")
    onnx.save(net, folder / "net.onnx")
    keras_archive(net, folder)
    for name in KINDS:
        if name.startswith("w."):
            net.save(folder / name.removesuffix(".bin"))
    x, y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    np.save(folder / "x.npy", x)
    (folder / "one.json").write_text('{"a": 1}')
    (folder / "text.txt").write_text("hello there, " * 20)
    (folder / "empty").write_bytes(b"")
    (folder / "packed.gz").write_bytes(gzip.compress(b"hello"))
    (folder / "bytes").write_bytes(bytes(range(200, 256)))
    with zipfile.ZipFile(folder / "other.zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    (folder / "run").mkdir()
    for called in ("config.json", "machine.json"):
        (folder / "run" / called).write_text("{}")
    net.save(folder / "run" / "best.npz")
    image = pytest.importorskip("PIL.Image").fromarray(np.zeros((8, 8, 3), np.uint8))
    for kind in ("cat", "dog"):
        (folder / "images" / kind).mkdir(parents=True)
        image.save(folder / "images" / kind / "0.png")
    image.save(folder / "one.png")
    model = pretrained.build(CONFIG)
    pretrained.save(model, folder / "published")
    model.adapt(2)
    pretrained.save_adapter(model, folder / "adapter")
    pytest.importorskip("tokenizers")
    (folder / "tokens").mkdir()
    words = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "a"]
    (folder / "tokens" / "vocab.txt").write_text("\n".join(words))
    return folder


@pytest.mark.parametrize("name", KINDS)
def test_every_reader_names_what_a_file_is_and_the_call_that_reads_it(folder, name):
    words, calls = KINDS[name]
    own = READERS | OTHERS
    for call in calls:
        own[call](folder / name)
    for reader, read in READERS.items():
        if reader in calls or name in TAKEN.get(reader, ()):
            continue
        with pytest.raises(SingaNetError) as caught:
            read(folder / name)
        told = str(caught.value)
        inside = any(text in told for text in TELLS_INSIDE)
        assert inside or words in told, (reader, told)
        assert "damaged" not in told.replace("undamaged", ""), (reader, told)
        named = any(re.search(rf"(?<![a-z]){re.escape(call)}", told) for call in calls)
        assert inside or named or not calls, (reader, told)


@pytest.mark.parametrize("protocol", range(5))
def test_pickles_of_every_protocol_are_told_from_text(protocol):
    for state in ({"a": [1.0]}, [1], np.float64(2.0)):
        assert kind_of_start(pickle.dumps(state, protocol)).format in ("pickle", "")
    assert kind_of_start(pickle.dumps({"a": 1.0}, protocol)).format == "pickle"
    assert kind_of_start(b"c1, c2\n1, 2\n").name.startswith("text")


def test_types_that_no_net_has_are_not_called_damage(tmp_path):
    torch = pytest.importorskip("torch")
    narrow = {"a/weight": torch.zeros(3, 4).to(torch.float8_e4m3fn)}
    torch.save(narrow, tmp_path / "t.pt")
    table = {"a/weight": {"dtype": "F8_E4M3", "shape": [3, 4], "data_offsets": [0, 12]}}
    text = json.dumps(table).encode()
    (tmp_path / "t.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))
    for name in ("t.pt", "t.safetensors"):
        with pytest.raises(SingaNetError, match=r"tensor\.float\(\)") as caught:
            made().load(tmp_path / name)
        assert "damaged" not in str(caught.value)


def test_a_file_for_an_executor_is_told_by_its_bytes_whatever_its_name(tmp_path):
    x = layers.Input("x", (3,))
    executor = Executor({"e": [layers.Dense("a", 4)(x)]})
    executor.save(tmp_path / "run.npz")
    (tmp_path / "run.npz").rename(tmp_path / "run.old")
    executor.load(tmp_path / "run.old")
