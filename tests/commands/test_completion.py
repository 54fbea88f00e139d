"""Shell completion by shtab; the shells are asked themselves where they are installed."""

import shutil
import subprocess
import sys

import pytest

from singanet.__main__ import main
from singanet.models import entries

COMMANDS = (
    *("train", "evaluate", "predict", "sample", "report", "bench", "models", "summary", "devices"),
    *(
        "launch",
        "plan",
        "tune",
        "inspect",
        "convert",
        "diff",
        "completion",
        "generate",
        "embed",
        "finetune",
    ),
)


def script(shell, capsys):
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def shell(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def completed(capsys, *words):
    """What bash offers for the last of ``words``."""
    quoted = " ".join(f"'{word}'" for word in words)
    text = (
        script("bash", capsys)
        + f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _shtab_singanet\n"
        + 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        [shell("bash"), "--norc", "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands(capsys):
    assert set(completed(capsys, "singanet", "")) == set(COMMANDS)
    assert completed(capsys, "singanet", "eva") == ["evaluate"]


def test_bash_completes_models_options_and_their_values(capsys):
    names = [entry.name for entry in entries() if entry.name.startswith("wide")]
    assert completed(capsys, "singanet", "train", "wide") == names
    assert completed(capsys, "singanet", "train", "lenet", "--batch") == ["--batch-size"]
    assert completed(capsys, "singanet", "train", "lenet", "--optimizer", "adam") == [
        "adam",
        "adamw",
        "adamax",
    ]
    assert set(completed(capsys, "singanet", "train", "--clip-by", "")) == {
        "global",
        "layer",
        "running",
        "value",
    }
    assert completed(capsys, "singanet", "completion", "f") == ["fish"]
    assert completed(capsys, "singanet", "launch", "-n", "4", "trai") == ["train"]
    assert completed(capsys, "singanet", "train", "--parallel", "all") == ["allreduce"]


def test_bash_offers_files_where_a_path_is_wanted(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.npz").touch()
    for words in (["inspect", "wei"], ["evaluate", "wei"], ["train", "mlp", "--data", "wei"]):
        assert completed(capsys, "singanet", *words) == ["weights.npz"]
    assert completed(capsys, "singanet", "summary", "wei") == ["weights.npz"]
    for words in (["inspect", "no-such"], ["launch", "--elastic", "wei"], ["bench", "wei"]):
        assert completed(capsys, "singanet", *words) == []


def test_bash_offers_what_an_option_takes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.npz", "a.txt"):
        (tmp_path / name).touch()
    (tmp_path / "runs").mkdir()
    for words, offered in (
        (["train", "--out", ""], {"runs"}),
        (["train", "--data", "di"], {"digits"}),
        (["train", "--data", "a"], {"a.npz", "a.txt"}),
        (["predict", "runs", "--out", ""], {"a.npz", "runs"}),
        (["train", "--mixed-precision", "b"], {"bfloat16"}),
        (["finetune", "runs", "--method", "l"], {"lora"}),
        (["generate", "r"], {"runs"}),
        (["convert", "a", "b", "--format", "safe"], {"safetensors"}),
    ):
        assert set(completed(capsys, "singanet", *words)) == offered


def test_fish_offers_what_an_option_takes(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.npz").touch()
    (tmp_path / "runs").mkdir()
    text = script("fish", capsys)
    for line, offered in (
        ("singanet train --data di", ["digits"]),
        ("singanet train --data wei", ["weights.npz"]),
        ("singanet train --out ", ["runs/"]),
        ("singanet summary resnet2", ["resnet20"]),
    ):
        asked = f"{text}\ncomplete -C '{line}'"
        done = subprocess.run(
            [shell("fish"), "-c", asked], capture_output=True, text=True, check=True
        )
        assert [each.partition("\t")[0] for each in done.stdout.splitlines()] == offered


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_look_for_paths_beside_names(name, capsys):
    """They offered the word file."""
    text = script(name, capsys)
    paths = {
        "zsh": ("'paths:path:_files'", "RUN_DIR:_files -/", "_alternative 'names:name:(digits "),
        "fish": ("movielens clicks (__fish_complete_path", '"(__fish_complete_directories)"'),
    }[name]
    assert all(each in text for each in paths)
    assert "file?" not in text


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_take_their_script(name, capsys, tmp_path):
    text = script(name, capsys)
    assert all(command in text for command in COMMANDS)
    (tmp_path / "script").write_text(text)
    subprocess.run([shell(name), "-n", str(tmp_path / "script")], check=True)


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_are_told_of_options_and_values(name, capsys):
    text = script(name, capsys)
    assert "adafactor" in text
    assert "resnet20" in text
    assert "save-every" in text


def test_without_shtab_it_is_refused_by_name(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    said = refused("completion", "bash")
    assert "expected the package shtab" in said
    assert "pip install shtab" in said


def test_another_shell_is_refused(refused):
    assert "unknown shell 'tcsh'; choose 'bash'" in refused("completion", "tcsh")
