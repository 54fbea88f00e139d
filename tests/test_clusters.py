"""The job files of docs/clusters.md: shell that can be parsed, commands with options that exist."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from singanet.commands import make_parser

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "clusters.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
SHELL = [text for kind, text in BLOCKS if kind == "sh"]


def expect_command(words):
    """The options of singanet are there, and those of what `launch` starts."""
    arguments = make_parser().parse_args(words)
    if words[0] == "launch":
        program = arguments.program
        assert program[0] == "train"
        make_parser().parse_args(program)


def commands(text):
    for line in text.replace("\\\n", " ").splitlines():
        words = [] if line.startswith("#") else shlex.split(line)
        if "singanet" in words:
            yield words[words.index("singanet") + 1 :]


@pytest.mark.parametrize("text", SHELL)
def test_the_commands_of_job_files_are_there(text):
    found = list(commands(text))
    assert found
    for words in found:
        expect_command(words)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("text", SHELL)
def test_job_files_are_shell(text):
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_commands_within_sentences_are_there():
    found = re.findall(r"`([^`\n]*\bsinganet (?:train|launch) [^`\n]*)`", PAGE)
    assert found
    for each in found:
        if "..." not in each:
            for words in commands(each):
                expect_command(words)


def test_the_operators_job_is_one():
    yaml = pytest.importorskip("yaml")
    (text,) = (text for kind, text in BLOCKS if kind == "yaml")
    job = yaml.safe_load(text)
    assert (job["kind"], job["spec"]["mpiImplementation"]) == ("MPIJob", "OpenMPI")
    roles = job["spec"]["mpiReplicaSpecs"]
    launcher, worker = (
        roles[role]["template"]["spec"]["containers"][0] for role in ("Launcher", "Worker")
    )
    assert launcher["image"] == worker["image"]
    words = launcher["command"] + launcher["args"]
    assert words[0] == "singanet"
    expect_command(words[1:])
