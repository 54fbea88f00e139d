import numpy as np
import pytest

from singanet import FeedForwardNet, layers, load_model, onnx
from singanet.__main__ import main
from singanet.commands.runs.trained import is_whole, whole_net


@pytest.fixture
def graph(tmp_path):
    net = FeedForwardNet([layers.Dense("fc", 3, input_sample_shape=(4,))], seed=0)
    path = tmp_path / "net.onnx"
    onnx.save(net, path)
    return path, net


def test_commands_take_graphs(graph, tmp_path, capsys):
    path, net = graph
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    assert main(["summary", str(path)]) == 0
    assert "15 parameters" in capsys.readouterr().out
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "fc/weight" in told
    assert "Gemm 1" in told
    out = tmp_path / "p.npz"
    assert main(["predict", str(path), "--data", str(tmp_path / "x.npz"), "--out", str(out)]) == 0
    np.testing.assert_allclose(np.load(out)["prediction"], net.predict(x), rtol=1e-6)
    assert main(["convert", str(path), str(tmp_path / "net.singanet")]) == 0
    again = load_model(tmp_path / "net.singanet")
    np.testing.assert_array_equal(again.predict(x), net.predict(x))
    assert main(["convert", str(path), str(tmp_path / "w.safetensors")]) == 0
    net.load(tmp_path / "w.safetensors")
    assert main(["convert", str(path), str(tmp_path / "back.onnx")]) == 0
    np.testing.assert_array_equal(whole_net(tmp_path / "back.onnx").predict(x), net.predict(x))


def test_what_is_a_whole_model_goes_by_the_file(graph, tmp_path):
    path, net = graph
    net.save_model(tmp_path / "net.singanet")
    net.save(tmp_path / "w.safetensors")
    assert is_whole(path)
    assert is_whole(tmp_path / "net.singanet")
    assert not is_whole(tmp_path / "w.safetensors")
    assert not is_whole(tmp_path / "none.onnx")
