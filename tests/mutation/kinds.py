"""The kinds of files that singanet reads: whole ones, how to spoil them, and how they are read.

A `Kind` yields seeds, each a suffix and a function that makes a spoilt file of a generator. Its
reader returns "read" or raises an error of ours.
"""

import contextlib
import gzip
import io
import json
import os
import pickle
import shutil
import tarfile
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

import singanet
import singanet.program.recompute  # imported when first asked for, which is watched
from singanet import FeedForwardNet, Input, layers, loss, metric, models, pretrained
from singanet.checkpoint import FORMATS, open_state, write_folder, write_state
from singanet.checkpoint.entry import INDEX
from singanet.commands.runs.folder import read_config, saved_options, saved_settings
from singanet.data import cifar10
from singanet.data.folder_loader import MAX_PIXELS, read_image
from singanet.data.image_sets import read_idx
from singanet.data.npz_files import read_npz
from singanet.data.pickles import load_plain_pickle
from singanet.errors import ArgumentError, FileFormatError
from singanet.keras import load_model as load_keras
from singanet.onnx import load as load_onnx
from singanet.onnx import save as save_onnx
from singanet.onnx.onnx_pb2 import ModelProto
from singanet.ops import costs
from singanet.optimizer import SGD, Adam, ClipByLayerNorm
from singanet.optimizer.schedules import Step
from singanet.report import read_run, recorders, write_report
from singanet.report.reading import WRITTEN
from singanet.saving.codecs import keras_layers
from singanet.saving.nets import net_from_proto, net_to_proto
from singanet.training import Callback
from singanet.training.callbacks import EMA, EarlyStopping
from tests.charts import HERE, draw_once
from tests.kit.files import gguf_of_all_types
from tests.layer_catalogue import CATALOGUE, net_of
from tests.mutation.mutations import VALUES, changed, mutated
from tests.mutation.watching import watch
from tests.ops.test_costs import CASE
from tests.pretrained.configs import CONFIGS
from tests.program.test_predictor import image_net

TORCH = Path(__file__).parents[1] / "checkpoint/files"

Spoil = Callable[[Any], bytes]


@dataclass(frozen=True)
class Kind:
    """``share`` is how many of a thousand files are of this kind: cheap ones are many."""

    name: str
    share: int
    seeds: Callable[[Path], Iterator[tuple[str, Spoil]]]
    read: Callable[[Path], None]
    watched: bool = True
    """Whether reading may open no other file and start no code, not even an import."""
    floor: int = 64 << 20
    """Bytes that a file, and the libraries that read it, may take beside ten times its size."""


def of_bytes(suffix, raw):
    """A seed whose bytes are changed."""
    return suffix, partial(changed, raw)


def state_bytes(state, suffix, folder):
    """``state`` as a file of the suffix."""
    path = folder / f"seed{suffix}"
    write_state(path, state)
    return path.read_bytes()


def of_text(state, name, folder):
    """A seed of safetensors whose text, the array ``name``, is changed as a tree."""

    def spoil(rng):
        about = mutated(json.loads(bytes(state[name])), rng)
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        return state_bytes({**state, name: text}, ".safetensors", folder)

    return ".safetensors", spoil


# -- checkpoints ----------------------------------------------------------------------------------


def dense(units=2):
    """The layer whose weights the Keras files hold."""
    (layer,) = keras_layers(FeedForwardNet([layers.Dense("fc", units, input_sample_shape=(3,))]))
    return layer


def some_state():
    """Arrays of a few types and sizes."""
    rng = np.random.default_rng(0)
    return {
        "conv/weight": rng.standard_normal((3, 8)).astype("f4"), "conv/bias": np.zeros(3, "f4"),
        "n": np.array(5, "i4"), "b/mean": rng.standard_normal(40)
    }  # fmt: skip


def checkpoints(folder):
    """Whole files of every format, ours and others', as (suffix, bytes)."""
    import h5py

    state = some_state()
    for format in FORMATS.values():
        if not format.name.startswith(("keras", "sharded")):  # of one file without others
            suffix = format.suffixes[0]
            yield suffix, state_bytes(state, suffix, folder)
    weights = {"fc/weight": np.ones((3, 2), "f4"), "fc/bias": np.zeros(2, "f4")}
    for format in ("keras", "keras-legacy"):
        write_state(folder / "k", weights, format, layers=[dense()])
        yield ".weights.h5", (folder / "k").read_bytes()
    with h5py.File(folder / "k", "w") as file:  # as Keras 3 writes legacy files
        file.attrs["layer_names"] = ["fc"]
        file.create_group("fc").attrs["weight_names"] = ["fc/kernel", "fc/bias"]
        for name, array in zip(("kernel", "bias"), weights.values(), strict=True):
            file[f"fc/fc/{name}"] = array
    yield ".weights.h5", (folder / "k").read_bytes()
    packed = io.BytesIO()
    np.savez_compressed(packed, **state)
    yield ".npz", packed.getvalue()
    with h5py.File(folder / "k.h5", "w", libver="latest") as file:
        file.create_dataset("a/x", data=np.zeros((64, 64)), compression="gzip", shuffle=True)
        file.create_dataset("a/y", data=np.ones(9), chunks=(4,), fletcher32=True)
    yield ".h5", (folder / "k.h5").read_bytes()
    for protocol in range(6):
        yield ".pickle", pickle.dumps({**state, "SINGA_VERSION": 1101}, protocol)
    for path in sorted(TORCH.glob("*.pt")):
        yield ".pt", path.read_bytes()
    for _ in range(4):
        yield ".gguf", gguf_of_all_types()


def repacked(raw, rng):
    """A zip with one member, its table of contents most often, that is changed; sums fit again."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(stream, "w") as new:
        names = old.namelist()
        spoilt = rng.choice([names[0], names[0], rng.choice(names)])
        for name in names:
            content = old.read(name)
            new.writestr(name, changed(content, rng) if name == spoilt else content)
    return stream.getvalue()


def checkpoint_seeds(folder):
    for suffix, raw in checkpoints(folder):
        yield of_bytes(suffix, raw)
    for _ in range(2):
        yield ".pt", partial(repacked, (TORCH / "training.pt").read_bytes())


def read_checkpoint(path):
    keras = path.name.endswith(".weights.h5")
    options = {"format": "keras", "layers": [dense()]} if keras else {}
    with open_state(path, **options) as reader:
        for _ in reader:
            pass


# -- folders of published models ------------------------------------------------------------------


def folder_seeds(folder):
    """Each file of a folder, the index most often, among the others as they were."""
    whole = folder / "whole"
    write_folder(whole, some_state(), 100, "bfloat16")
    index = (whole / INDEX).read_bytes()
    for _ in range(4):
        yield f"+{INDEX}", lambda rng: json.dumps(mutated(json.loads(index), rng)).encode()
    for path in sorted(whole.iterdir()):
        yield of_bytes(f"+{path.name}", path.read_bytes())


def read_folder(path):
    """Nothing is opened but what is in the folder."""
    with tempfile.TemporaryDirectory() as beside:
        model = Path(beside) / "model"
        shutil.copytree(path.parent / "whole", model)
        shutil.copyfile(path, model / path.name.partition("+")[2])
        with watch().over(model), open_state(model) as reader:
            for name in reader.entries:
                reader._verify_array(name)


# -- published models -----------------------------------------------------------------------------


def pretrained_seeds(folder):
    """The config of every family, among arrays that fit it; of one also what makes sentences."""
    for kind, config in CONFIGS.items():
        whole = folder / f"whole-{kind}"
        pretrained.save(pretrained.build(config, seed=0), whole)
        names = ["config.json"]
        if kind == "bert":
            (whole / "1_Pooling").mkdir()
            for name, told in SENTENCES.items():
                (whole / name).write_text(json.dumps(told))
            names += SENTENCES
        for name in names:
            told = json.loads((whole / name).read_text())

            def spoil(rng, told=told):
                return json.dumps(mutated(told, rng)).encode()

            yield f"+{kind}+{name.replace('/', '@')}", spoil
            yield of_bytes(f"+{kind}+{name.replace('/', '@')}", (whole / name).read_bytes())


SENTENCES = {
    "modules.json": [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for kind, path in (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2"))
    ],
    "1_Pooling/config.json": {"pooling_mode_mean_tokens": True},
}


def read_pretrained(path):
    """Nothing is opened but what is in the folder."""
    _, kind, name = path.name.split("+")
    with tempfile.TemporaryDirectory() as beside:
        model = Path(beside) / "model"
        shutil.copytree(path.parent / f"whole-{kind}", model)
        shutil.copyfile(path, model / name.replace("@", "/"))
        with watch().over(model):
            pretrained.load(model)


# -- nets -----------------------------------------------------------------------------------------


def twins():
    """A net with nesting, a shared net, a tied weight, and what compile leaves."""
    tower = FeedForwardNet([layers.Dense("fc", 4, input_sample_shape=(3,))], name="tower")
    a, b = Input("a", (3,)), Input("b", (3,))
    both = layers.Concat("c", 1)(tower(a), tower(b))
    tied = layers.Dense("tied", 3, W_specs=tower["fc"].params["weight"], W_transpose=True)
    outputs = [layers.Dense("top", 2)(both), tied(tower(a))]
    net = FeedForwardNet(inputs=[b, a], outputs=outputs, seed=0)
    both_losses = loss.MultiLoss({"top": loss.SquaredError(), "tied": loss.Huber()})
    net.compile(
        ClipByLayerNorm(SGD(lr=Step(0.1, 3), momentum=0.9), 1.0),
        both_losses,
        {"top": metric.RootMeanSquaredError()},
    )
    x = {"a": np.ones((2, 3), np.float32), "b": np.ones((2, 3), np.float32)}
    y = {"top": np.ones((2, 2), np.float32), "tied": np.ones((2, 3), np.float32)}
    net.train_on_batch(x, y)
    return net


def some_nets():
    """A few nets that between them hold every layer."""
    return [twins(), models.build("lenet", (1, 8, 8), 3, seed=0), *map(net_of, CATALOGUE)]


def whole(path):
    """The arrays of a file."""
    with open_state(path) as reader:
        return dict(reader)


def model_seeds(folder):
    path = folder / "seed.singanet"
    for number, net in enumerate(some_nets()):
        net.save_model(path)
        yield of_text(whole(path), "model", folder)
        if number < 2:
            yield of_bytes(".singanet", path.read_bytes())


def predictor_seeds(folder):
    path = folder / "seed.singanet"
    for number, net in enumerate([image_net(), *map(net_of, CATALOGUE)]):
        net.predictor().save(path)
        yield of_text(whole(path), "predictor", folder)
        if number < 2:
            yield of_bytes(".singanet", path.read_bytes())


def net_seeds(folder):
    for net in some_nets():
        config = net.to_config()

        def spoil(rng, config=config):
            return json.dumps(mutated(config, rng)).encode()

        yield ".json", spoil
        yield of_bytes(".pb", net_to_proto(config).SerializeToString())


def read_net(path):
    raw = path.read_bytes()
    FeedForwardNet.from_config(net_from_proto(raw) if path.suffix == ".pb" else json.loads(raw))


KERAS = {
    "class_name": "Sequential",
    "config": {
        "name": "s",
        "layers": [
            {
                "class_name": "InputLayer",
                "config": {"name": "in", "batch_shape": [None, 3], "dtype": "float32"},
            },
            {
                "class_name": "Dense",
                "config": {
                    "name": "fc", "units": 2, "activation": "relu", "use_bias": True,
                    "trainable": True, "dtype": "float32",
                },
            },
        ],
    },
    "build_config": {"input_shape": [None, 3]},
}  # fmt: skip


def tensor(name, index=0):
    """An output of a layer, as an argument."""
    history = {"keras_history": [name, index, 0], "shape": [None, 3], "dtype": "float32"}
    return {"class_name": "__keras_tensor__", "config": history}


def graph(name, *nodes):
    """A functional model: layers behind an input, with what each call reads."""
    start = {"class_name": "InputLayer", "name": "in", "inbound_nodes": []}
    start["config"] = {"name": "in", "batch_shape": [None, 3]}
    last = nodes[-1]
    ends = {"input_layers": ["in", 0, 0], "output_layers": [last["name"], 0, 0]}
    inside = {"name": name, "trainable": True, "layers": [start, *nodes], **ends}
    return {"class_name": "Functional", "config": inside}


def node(kind, name, *calls, **config):
    """A layer of such a model."""
    called = [{"args": list(args), "kwargs": {}} for args in calls]
    about = {"name": name, "trainable": True, **config}
    return {"class_name": kind, "config": about, "name": name, "inbound_nodes": called}


TOWER = graph(
    "t",
    KERAS["config"]["layers"][1]
    | node("Dense", "fc", [tensor("in")])
    | {"config": KERAS["config"]["layers"][1]["config"] | {"units": 3}},
)
WHOLE = graph(
    "m",
    {**node("", "t", [tensor("in")], [tensor("t")]), **TOWER},
    node("Add", "sum", [[tensor("in"), tensor("t", 1)]]),
    node("Multiply", "times", [tensor("sum"), 0.5]) | {"module": "keras.src.ops.numpy"},
    node("Reshape", "rows", [tensor("times")], target_shape=[3, 1]),
    node("MaxPooling1D", "pool", [tensor("rows")], pool_size=2, strides=1, padding="same",
         data_format="channels_last"),
)  # fmt: skip


def keras_seeds(folder):
    weights = {"fc/weight": np.ones((3, 2), "f4"), "fc/bias": np.zeros(2, "f4")}
    write_state(folder / "k", weights, "keras", layers=[dense()])
    raw = (folder / "k").read_bytes()

    def packed(config, weights=raw):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("config.json", json.dumps(config))
            archive.writestr("model.weights.h5", weights)
        return stream.getvalue()

    yield of_bytes(".keras", packed(KERAS))
    yield ".keras", lambda rng: packed(mutated(KERAS, rng))
    weights = {"fc/weight": np.ones((3, 3), "f4"), "fc/bias": np.zeros(3, "f4")}
    inner = replace(dense(3), place="functional/layers/dense")
    write_state(folder / "k", weights, "keras", layers=[inner])
    nested = (folder / "k").read_bytes()
    yield of_bytes(".keras", packed(WHOLE, nested))
    for _ in range(3):
        yield ".keras", lambda rng: packed(mutated(WHOLE, rng), nested)


NO_MESSAGE = (ParseError, ValueError, TypeError, ArithmeticError, SystemError, AttributeError)


def onnx_seeds(folder):
    """Graphs of nets of every layer that has a form, by their bytes and by their messages."""
    path = folder / "seed.onnx"
    # What depends on no input, and sums up to each step, are not read, however whole the file is.
    for name in sorted(CATALOGUE.keys() - {"Weight", "Positions"}):
        with contextlib.suppress(ArgumentError):
            save_onnx(net_of(name), path)
            raw = path.read_bytes()
            yield of_bytes(".onnx", raw)
            about = MessageToDict(ModelProto.FromString(raw))

            def spoil(rng, about=about):
                for _ in range(9):
                    with contextlib.suppress(*NO_MESSAGE):
                        return ParseDict(mutated(about, rng), ModelProto()).SerializeToString()
                return b""

            yield ".onnx", spoil


# -- trainings ------------------------------------------------------------------------------------

ROWS = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
TARGETS = ROWS.argmax(1) % 3


class Keep(Callback):
    """Keeps the state after the sixth step, and whether a resumption was accepted."""

    _runs_last = True
    state: Any = None
    begun = False

    def on_epoch_begin(self, epoch):
        self.begun = True

    def on_batch_end(self, batch, logs):
        if self.session.step == 6:
            self.state = self.session.state()


def trainer():
    """A net and its optimizer, compiled, and the callbacks of the fit."""
    parts = [layers.Dense("fc", 3, input_sample_shape=(4,)), layers.BatchNormalization("bn")]
    net = FeedForwardNet(parts, loss=loss.SoftmaxCrossEntropy(), metric=metric.Accuracy(), seed=0)
    optimizer = Adam(lr=0.01)
    net.compile(optimizer, metrics=[metric.Accuracy(), metric.F1()])
    return net, optimizer, [EMA(0.9), EarlyStopping(), Keep()]


def train(net, callbacks, **more):
    return net.fit(
        *(ROWS, TARGETS), batch_size=5, epochs=2, validation_data=(ROWS, TARGETS), verbose=False,
        callbacks=callbacks, accumulate=2, **more,
    )  # fmt: skip


def training_seeds(folder):
    net, _, callbacks = trainer()
    train(net, callbacks)
    state = callbacks[-1].state
    for suffix in (".npz", ".safetensors", ".h5"):
        yield of_bytes(suffix, state_bytes(state, suffix, folder))
    yield of_text(state, "session", folder)
    yield of_text(state, "session", folder)

    def spoil(rng):
        """Other arrays, names and shapes."""
        found = dict(state)
        for _ in range(rng.choice([1, 1, 2])):
            name, other = rng.choice(list(found)), rng.choice(list(found))
            array = found.pop(name)
            kind = rng.randrange(5)
            if kind == 0:
                found[name] = array.reshape(-1)[: rng.randrange(4)]
            elif kind == 1:
                found[name] = array.astype(rng.choice(["f8", "i8", "?", "u1"]))
            elif kind == 2:
                found[name] = np.full(array.shape, rng.choice([-1, 0, 3])).astype(array.dtype)
            elif kind == 3 and other in found:
                found[name] = found[other]
            elif kind == 4:
                found[other + rng.choice(["x", "/x", ""])] = array
        return state_bytes(found, ".safetensors", folder)

    yield ".safetensors", spoil
    yield ".safetensors", spoil


def read_training(path):
    """A refused state leaves the net and the optimizer as they were."""
    net, optimizer, callbacks = trainer()
    before = [value.copy() for value in net.param_values()]
    generator = net.rng.bit_generator.state
    try:
        with np.errstate(all="ignore"):
            train(net, callbacks, resume=path)
    except singanet.errors.SingaNetError:
        if not callbacks[-1].begun:  # else it is a step that failed
            for old, value in zip(before, net.param_values(), strict=True):
                np.testing.assert_array_equal(old, value)
            assert net.rng.bit_generator.state == generator
            assert optimizer.state_dict() == {}
        raise


# -- run folders ----------------------------------------------------------------------------------


def other_line(raw, rng):
    """A log with a line, or a file of one object, that is changed as a tree."""
    lines = raw.splitlines() if raw.count(b"\n{") else [raw]
    k = rng.randrange(len(lines))
    lines[k] = json.dumps(mutated(json.loads(lines[k]), rng)).encode()
    return b"\n".join(lines) + b"\n"


def other_cell(raw, rng):
    """A table with a cell that is changed."""
    rows = [row.split(",") for row in raw.decode().split("\n")]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = str(rng.choice(VALUES))
    return "\n".join(map(",".join, rows)).encode("utf-8", "replace")


def run_seeds(folder):
    """Each of the files that a run leaves, among the others as they were."""
    net, _, _ = trainer()
    train(net, recorders(folder / "whole"))
    for file in sorted((folder / "whole").iterdir()):
        if file.name not in WRITTEN:
            continue
        raw, suffix = file.read_bytes(), f"+{file.name}"
        yield of_bytes(suffix, raw)
        if file.suffix in (".json", ".jsonl"):
            yield suffix, partial(other_line, raw)
        if file.suffix == ".csv":
            yield suffix, partial(other_cell, raw)


def read_run_folder(path):
    """The report of the run, and what a command goes on with."""
    with tempfile.TemporaryDirectory() as beside:
        run = Path(beside) / "run"
        shutil.copytree(path.parent / "whole", run)
        shutil.copyfile(path, run / path.name.partition("+")[2])
        read_run(run)
        if HERE:
            with pytest.MonkeyPatch.context() as patch:
                draw_once(patch)
                write_report(run)
        if path.name.endswith("config.json"):
            with contextlib.suppress(singanet.errors.FileAccessError):
                saved_options(run)
            with contextlib.suppress(singanet.errors.FileAccessError):
                saved_settings(run)


# -- data sets ------------------------------------------------------------------------------------


def idx(array):
    """An IDX file of bytes."""
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.tobytes()


def data_seeds(folder):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (4, 5, 5)).astype("u1")
    yield of_bytes("-idx", idx(pixels))
    yield of_bytes("-idx", gzip.compress(idx(pixels)))
    arrays = {"x": rng.standard_normal((5, 3)), "y": np.arange(5)}
    for save in (np.savez, np.savez_compressed):
        stream = io.BytesIO()
        save(stream, **arrays)
        yield of_bytes(".npz", stream.getvalue())
    images = rng.integers(0, 255, (2, 3072)).astype("u1")
    batch = {"batch_label": "b", "labels": [1, 2], "data": images, "filenames": ["a.png", "b.png"]}
    small = {**batch, "data": images[:, :24]}
    for protocol in (0, 2, 4):
        yield of_bytes(".plain", pickle.dumps(small, protocol))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
            raw = pickle.dumps(batch, 2)
            info = tarfile.TarInfo(f"cifar/{name}")
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    yield of_bytes(".tar.gz", stream.getvalue())


def image_seeds(folder):
    import PIL.Image

    pixels = np.random.default_rng(0).integers(0, 255, (9, 8, 3)).astype("u1")
    for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
        stream = io.BytesIO()
        PIL.Image.fromarray(pixels).save(stream, form)
        yield of_bytes(".image", stream.getvalue())


def read_data(path):
    if path.name.endswith("-idx"):
        read_idx(path)
    elif path.suffix == ".npz":
        read_npz(path, ("x", "y"))
    elif path.suffix == ".plain":
        load_plain_pickle(path.read_bytes(), "a file")
    else:
        cifar10(path, checksums=False)


# -- configurations -------------------------------------------------------------------------------

CONFIG = b"""\
# A run.
model = "lenet"
data = "digits"
epochs = 20
batch-size = 64
lr = 0.05
optimizer = 'adam'
quiet = true
weight_decay = 1e-4
out = '''runs/one'''
"""


def config_seeds(folder):
    yield of_bytes(".toml", CONFIG)

    def spoil(rng):
        lines = CONFIG.splitlines()
        for _ in range(rng.choice([1, 2])):
            key = rng.choice([b"model", b"epochs", b"a.b.c", b"[x]", b"out", b'"\\u0000"', b"lr"])
            value = repr(rng.choice(VALUES)).encode("utf-8", "replace")
            value = rng.choice([value, b"[" * rng.choice([3, 2000]), b"1979-05-27", b'"""'])
            lines[rng.randrange(len(lines))] = key + b" = " + value
        return b"\n".join(lines)

    yield ".toml", spoil


# -- measured routes ------------------------------------------------------------------------------


def route_seeds(folder):
    path = folder / "seed.json"
    with mock.patch.dict(os.environ, {costs.VARIABLE: str(path)}):
        costs.keep("3.9.1", 1, {CASE: "product"})
    raw = path.read_bytes()
    yield of_bytes(".json", raw)
    yield ".json", lambda rng: json.dumps(mutated(json.loads(raw), rng)).encode()


def read_routes(path):
    """Routes that cannot be read are told by a warning, and done without."""
    named = mock.patch.dict(os.environ, {costs.VARIABLE: str(path)})
    with named, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = costs.read("3.9.1").choices
    assert len(told) <= 1
    if told:
        assert not found
        raise FileFormatError(str(path), expected="routes", received="others", advice="none")


def read_model(path):
    singanet.load_model(path)


def read_predictor(path):
    singanet.load_predictor(path)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("checkpoint", 560, checkpoint_seeds, read_checkpoint),
        Kind("folder", 40, folder_seeds, read_folder, watched=False),
        Kind("pretrained", 15, pretrained_seeds, read_pretrained, watched=False),
        Kind("data", 155, data_seeds, read_data, watched=False),
        # Pictures are small files; how large they may be is said by max_pixels.
        Kind("image", 80, image_seeds, read_image, watched=False, floor=10 * MAX_PIXELS),
        Kind("config", 100, config_seeds, read_config),
        Kind("net", 25, net_seeds, read_net),
        Kind("model", 20, model_seeds, read_model),
        Kind("predictor", 10, predictor_seeds, read_predictor, watched=False),
        Kind("keras", 10, keras_seeds, load_keras, watched=False),
        Kind("onnx", 25, onnx_seeds, load_onnx),
        Kind("training", 25, training_seeds, read_training, watched=False),
        Kind("routes", 10, route_seeds, read_routes, watched=False),
        Kind("run", 20, run_seeds, read_run_folder, watched=False),
    )
}
