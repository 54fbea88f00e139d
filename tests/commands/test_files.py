"""``singanet inspect``, ``convert`` and ``diff`` as commands; tests/checkpoint has the rest."""

import numpy as np

from singanet.__main__ import main
from singanet.commands.runs.trained import run_net


def test_a_runs_weights_go_to_another_format_and_compare_equal(run_dir, tmp_path, capsys):
    best, other = str(run_dir / "best.npz"), str(tmp_path / "best.safetensors")
    assert main(["convert", best, other]) == 0
    assert main(["diff", best, other]) == 0
    assert capsys.readouterr().out.endswith("6 arrays equal, 0 not\n")
    # The weights in a training's state are compared with weights alone, whichever comes first.
    last = str(run_dir / "epoch-0003.npz")
    assert main(["diff", best, last]) == main(["diff", last, other])
    assert "net/" not in capsys.readouterr().out
    with np.load(last) as state:
        net = {name[4:]: state[name] for name in state if name.startswith("net/")}
    np.savez(tmp_path / "net.npz", **net)
    assert main(["diff", last, str(tmp_path / "net.npz")]) == 0
    assert capsys.readouterr().out.endswith("6 arrays equal, 0 not\n")
    assert main(["inspect", other]) == 0
    assert "fc1/weight" in capsys.readouterr().out


def test_a_run_folder_gives_the_layouts_for_keras(run_dir, tmp_path, refused):
    best, target = run_dir / "best.npz", tmp_path / "net.weights.h5"
    assert main(["convert", str(best), str(target), "--model", str(run_dir)]) == 0
    again = tmp_path / "again.npz"
    assert main(["convert", str(target), str(again), "--model", str(run_dir)]) == 0
    assert main(["diff", str(best), str(again)]) == 0
    assert "name the model" in refused("convert", best, target)


def test_nets_become_onnx_graphs(run_dir, tmp_path, refused, capsys):
    best, target = run_dir / "best.npz", tmp_path / "net.onnx"
    assert main(["convert", str(best), str(target), "--model", str(run_dir)]) == 0
    assert capsys.readouterr().out == f"{target}: an ONNX graph\n"
    whole, net = target.read_bytes(), run_net(run_dir)
    net.load(best)
    net.save_model(tmp_path / "net.singanet")
    net.predictor().save(tmp_path / "only.singanet")
    again = tmp_path / "again.onnx"
    assert main(["convert", str(tmp_path / "net.singanet"), str(again)]) == 0
    assert again.read_bytes() == whole
    predicts = [str(tmp_path / "only.singanet"), str(again), "--opset", "21"]
    assert main(["convert", *predicts]) == 0
    assert again.read_bytes() != whole
    assert "--model" in refused("convert", best, target)
    assert "17 to 23" in refused("convert", tmp_path / "net.singanet", target, "--opset", 30)
    refused("convert", tmp_path / "none.singanet", target)
    assert target.read_bytes() == whole


def test_a_folder_is_no_format(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(run_dir / "best.npz"), "x", "--format", "snapshot"]) == 0
    assert sorted(tmp_path.glob("x.*")) == [tmp_path / "x.bin", tmp_path / "x.desc"]
