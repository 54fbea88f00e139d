import json

import pytest

from singanet.errors import FileAccessError
from singanet.report import MemoryLog
from singanet.training.callbacks import ModelCheckpoint


def lines(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_every_step_and_every_epoch_when_asked_for(fit, tmp_path):
    fit([MemoryLog(tmp_path / "memory.jsonl", every_seconds=0.0)], epochs=2)
    found = lines(tmp_path / "memory.jsonl")
    assert [(line["epoch"], line["step"]) for line in found] == [
        (0, 1), (0, 2), (0, 3), (0, 4), (0, 4), (1, 5), (1, 6), (1, 7), (1, 8), (1, 8),
    ]  # fmt: skip
    assert [line["seconds"] for line in found] == sorted(line["seconds"] for line in found)
    # fc1 has 4·8 + 8 parameters, fc2 8·3 + 3: the larger layer's, never both.
    assert {line["gradients"] for line in found} == {4 * 40, 0}
    for line in found:
        assert line["resident"] is None or 0 < line["resident"] <= line["peak"]


def test_between_them_only_when_due(fit, tmp_path):
    fit([MemoryLog(tmp_path / "memory.jsonl", every_seconds=1e6)], epochs=2)
    found = lines(tmp_path / "memory.jsonl")
    assert [(line["epoch"], line["step"]) for line in found] == [(0, 1), (0, 4), (1, 8)]
    assert found[-1]["gradients"] == 160


def test_a_resumed_training_goes_on_with_the_clock(fit, tmp_path):
    path = tmp_path / "memory.jsonl"
    log, checkpoint = MemoryLog(path, 1e6), ModelCheckpoint(tmp_path / "states")
    fit([log, checkpoint], epochs=1)
    text = path.read_text("utf-8")
    path.write_text(text.replace(text.splitlines()[-1], '{"seconds": 100.0, "epoch": 0}'))
    fit([log, checkpoint], epochs=2, resume=tmp_path / "states")
    found = lines(path)
    assert found[1]["seconds"] == 100.0
    assert found[-1]["epoch"] == 1
    assert 100.0 <= found[-1]["seconds"] < 200.0
    fit([log], epochs=1)
    assert len(lines(path)) == 2  # begun anew


def test_an_unwritable_folder_is_said_before_the_first_step(fit, net, tmp_path):
    (tmp_path / "file").write_text("")
    before = net.param_values()[0].copy()
    with pytest.raises(FileAccessError, match="no step was taken"):
        fit([MemoryLog(tmp_path / "file" / "memory.jsonl")])
    assert (net.param_values()[0] == before).all()
