import json

import pytest

from singanet.errors import ArgumentError, FileAccessError
from singanet.training.callbacks import JSONLinesLogger


def test_lines_of_steps_and_epochs(build, data, feign, tmp_path):
    path = tmp_path / "log.jsonl"
    log = JSONLinesLogger(path, every_steps=3)
    watched = feign(mine=[1.0, float("nan")])
    history = build().fit(*data, batch_size=10, epochs=2, callbacks=[watched, log], verbose=False)
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [(line["event"], line["step"]) for line in lines] == [
        ("step", 3), ("epoch", 4), ("step", 6), ("epoch", 8),
    ]  # fmt: skip
    epochs = [line for line in lines if line["event"] == "epoch"]
    assert [line["loss"] for line in epochs] == history["loss"]
    assert [line["mine"] for line in epochs] == [1.0, None]
    assert lines[0]["seconds"] <= lines[-1]["seconds"]


def test_what_is_refused(build, data, tmp_path):
    with pytest.raises(ArgumentError, match="every_steps"):
        JSONLinesLogger(tmp_path / "log", every_steps=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileAccessError):
        build().fit(*data, callbacks=[JSONLinesLogger(tmp_path / "file" / "x")], verbose=False)
