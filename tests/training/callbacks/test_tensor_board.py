"""The event files are read back by hand: records of length, check, data, check."""

import struct
import sys

import pytest

from singanet.errors import BackendError
from singanet.training.callbacks import TensorBoard


def scalars(folder, event_type):
    found = {}
    for path in folder.glob("events.*"):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = event_type()
            event.ParseFromString(content[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
            at += 16 + length
    return found


def test_scalars_stand_in_the_event_file(build, data, tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    history = build().fit(
        *data, batch_size=10, epochs=2, callbacks=[TensorBoard(tmp_path, 4)], verbose=False
    )
    found = scalars(tmp_path, Event)
    assert found["loss"] == [(k, pytest.approx(v)) for k, v in enumerate(history["loss"])]
    assert found["lr"] == [(0, pytest.approx(0.1)), (1, pytest.approx(0.1))]
    assert [step for step, _ in found["step/loss"]] == [4, 8]


def test_without_a_writer_it_says_what_to_install(build, data, tmp_path, monkeypatch):
    for name in ("tensorboardX", "tensorboard", "tensorboard.summary"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match=r"pip install tensorboardX"):
        build().fit(*data, callbacks=[TensorBoard(tmp_path)], verbose=False)
