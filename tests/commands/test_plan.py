"""``singanet plan``, and ``singanet train --memory-budget``."""

import re

from singanet.__main__ import main
from tests.charts import HERE


def test_it_prints_the_table_and_the_memory_over_a_step(capsys, tmp_path):
    picture = tmp_path / "arena.svg"
    argv = ["plan", "mlp", "--batch-size", "4", "--optimizer", "adam", "--memory-budget", "1GB"]
    assert main([*argv, *(["--out", str(picture)] if HERE else [])]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("batches of 4 within 1.00 GB: as it is\n")
    assert "optimizer state" in shown
    assert "forward fc1" in shown
    assert not HERE or picture.read_text("utf-8").startswith("<svg")


def test_every_way_is_shown_that_is_allowed(capsys):
    argv = ["plan", "mlp", "--batch-size", "4", "--optimizer", "adam"]
    assert main([*argv, "--allow", "light-state,offload"]) == 0
    rows = [line.strip("-> ").split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert rows[3:6] == ["as it is", "light state", "offload"]


def test_a_training_goes_to_a_folder(capsys, tmp_path, monkeypatch):
    # The net is small enough for a test, and so for what planning leaves to be most of it.
    for left in ("_PLANNED", "_BY_LAYERS", "_CHOOSING"):
        monkeypatch.setattr(f"singanet.budget.search.{left}", 0)
    argv = ["train", "mlp", "--data", "digits", "--epochs", "1", "--steps-per-epoch", "2"]
    argv += ["--optimizer", "adam", "--batch-size", "32"]
    folder = tmp_path / "net"
    argv += ["--offload-folder", str(folder)]
    assert main([*argv, "--memory-budget", "1kB"]) == 2
    least = int(re.search(r"give it (\d+)", capsys.readouterr().err)[1])
    argv += ["--memory-budget", f"{least}B"]
    assert main(argv) == 0
    assert "offload" in capsys.readouterr().err.splitlines()[0]
    assert (folder / "latest").exists()


def test_a_training_keeps_to_it(capsys):
    argv = ["train", "mlp", "--data", "digits", "--epochs", "1", "--steps-per-epoch", "2"]
    assert main([*argv, "--memory-budget", "1GB"]) == 0
    told = capsys.readouterr().err
    assert "within 1.00 GB: as it is" in told
    assert "memory: " in told
