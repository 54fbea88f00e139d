"""The bytes of a file: arrays inside and beside it, and what a failure leaves."""

import contextlib
import gc
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.errors import FileAccessError
from singanet.layers import Dense
from singanet.onnx import save, write
from singanet.params.storage import Memory
from tests.onnx.runtime import checked, onnx, ran


def wide(seed=0):
    return FeedForwardNet([Dense("fc", 64, input_sample_shape=(32,)), Dense("top", 3)], seed=seed)


X = np.random.default_rng(0).standard_normal((2, 32)).astype(np.float32)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def outputs(path, x=X):
    return ran(path, {"input": x})["top"]


def test_the_bytes_are_those_that_protobuf_would_write(tmp_path):
    path = tmp_path / "net.onnx"
    save(wide(), path)
    model = onnx.ModelProto.FromString(path.read_bytes())
    assert model.ByteSize() == path.stat().st_size
    assert onnx.ModelProto.FromString(model.SerializeToString()) == model


def test_arrays_lie_in_one_file_beside_it_on_request(tmp_path):
    path, net = tmp_path / "net.onnx", wide()
    save(net, path, external_data=True)
    name, data = files(tmp_path)
    assert (name, data.startswith("net.onnx."), data.endswith(".data")) == ("net.onnx", True, True)
    tensors = {t.name: t for t in checked(path).graph.initializer}
    model = onnx.load(path, load_external_data=False)
    apart = [t.name for t in model.graph.initializer if t.data_location]
    # Of a few bytes it would be a page.
    assert apart == ["fc/weight"]
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(tensors["fc/weight"]), net.param_values()[0]
    )
    places = {e.key: e.value for t in model.graph.initializer for e in t.external_data}
    assert int(places["offset"]) % 4096 == 0
    np.testing.assert_allclose(outputs(path), net.forward(False, X), atol=1e-6)


def test_a_second_net_takes_the_place_of_the_first_with_its_arrays(tmp_path):
    path, other = tmp_path / "net.onnx", tmp_path / "net.onnx.notes.data"
    other.write_text("mine")
    save(wide(0), path, external_data=True)
    before = files(tmp_path)
    save(wide(1), path, external_data=True)
    assert len(files(tmp_path)) == len(before) == 3
    assert files(tmp_path) != before
    np.testing.assert_allclose(outputs(path), wide(1).forward(False, X), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("moves", [0, 1])
def test_what_a_killed_writer_left_goes_with_the_next_save(tmp_path, moves, apart, monkeypatch):
    path, made = tmp_path / "net.onnx", wide(1)
    save(wide(0), path, external_data=True)
    before = outputs(path)
    move, left = Path.replace, [moves]

    def killed(self, target):
        if not left[0]:
            os._exit(9)
        left[0] -= 1
        return move(self, target)

    if (child := os.fork()) == 0:
        monkeypatch.setattr(Path, "replace", killed)
        with contextlib.suppress(BaseException):
            save(made, path, external_data=True)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    np.testing.assert_array_equal(outputs(path), before)
    assert len(os.listdir(tmp_path)) > 2
    save(made, path, external_data=apart)
    assert len(os.listdir(tmp_path)) == (2 if apart else 1)
    np.testing.assert_allclose(outputs(path), made.forward(False, X), atol=1e-6)


def test_what_protobuf_cannot_hold_gets_its_arrays_apart(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    save(wide(), path)
    size = path.stat().st_size
    for largest, count in ((size + 64, 1), (size - 1, 2)):
        monkeypatch.setattr(write, "LARGEST", largest)
        save(wide(), path)
        assert len(files(tmp_path)) == count
    np.testing.assert_allclose(outputs(path), wide().forward(False, X), atol=1e-6)


class Gone(Memory):
    """An array that nobody can read, as where a disk fails."""

    def read(self):
        raise OSError("no such disk")


@pytest.mark.parametrize("apart", [False, True])
def test_a_failure_leaves_the_old_file_and_its_arrays(tmp_path, apart):
    path, net = tmp_path / "net.onnx", wide(1)
    save(wide(0), path, external_data=True)
    before = {name: (tmp_path / name).read_bytes() for name in files(tmp_path)}
    net._execution_plan()
    weight = net.layers[1].params["weight"]
    weight.storage = Gone(weight.value)
    for thing, place in ((net, path), (wide(), tmp_path / "none" / "net.onnx")):
        with pytest.raises(FileAccessError):
            save(thing, place, external_data=apart)
    assert {name: (tmp_path / name).read_bytes() for name in files(tmp_path)} == before


@pytest.mark.parametrize("apart", [False, True])
def test_no_copy_of_the_net_is_made(tmp_path, apart):
    net = FeedForwardNet([Input("x", (512,)), *(Dense(f"fc{k}", 512) for k in range(16))])
    net._execution_plan()
    gc.collect()
    tracemalloc.start()
    save(net, tmp_path / "net.onnx", external_data=apart)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One of 16 arrays of 1 MB is at most under way.
    assert peak < 2 << 20
