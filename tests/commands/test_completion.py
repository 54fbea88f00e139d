"""Shell completion; bash, zsh and fish are asked themselves where they are installed."""

from __future__ import annotations

import shutil
import subprocess

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
        + f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _singanet\n"
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


def test_bash_leaves_files_to_itself(capsys):
    assert completed(capsys, "singanet", "inspect", "no-such") == []
    assert "complete -o default -F _singanet singanet" in script("bash", capsys)


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


def test_help_texts_cannot_break_out_of_their_quotes(capsys):
    for line in script("fish", capsys).splitlines():
        bare = line.replace("\\\\", "").replace("\\'", "")
        assert bare.count("'") % 2 == 0


def test_another_shell_is_refused(refused):
    assert "invalid choice: 'tcsh'" in refused("completion", "tcsh")
