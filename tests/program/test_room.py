"""What the room gives to users, and that it costs nothing until asked for."""

import subprocess
import sys

import pytest

import singanet.program


def test_every_public_name_is_there():
    for name in singanet.program.__all__:
        assert getattr(singanet.program, name).__name__ == name
    with pytest.raises(AttributeError, match="singanet.program: .*'Recorder'"):
        _ = singanet.program.Recorder


def test_nets_import_no_recorder_until_they_record():
    late = ("recording", "recomputing", "reporting", "replaying.replay")
    names = [f"singanet.program.{name}" for name in late]
    code = f"import sys, singanet; print([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
