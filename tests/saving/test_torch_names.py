"""Modules of one shape: which is which layer tell names and the numbers in them, not the order."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet.errors import ArgumentError
from singanet.layers import Dense, Input

COUNT = 12


def written(path, arrays):
    """A ``.safetensors`` file as the package of that name writes it: names sorted as texts."""
    header, start = {}, 0
    for name in sorted(arrays):
        end = start + arrays[name].nbytes
        header[name] = {
            "dtype": "F32",
            "shape": arrays[name].shape,
            "data_offsets": [start, end],
        }
        start = end
    text = json.dumps(header).encode()
    body = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def squares(names):
    """Weights as PyTorch's Linear has them, each full of the number of its place."""
    return {f"{name}.weight": np.full((3, 3), k, np.float32) for k, name in enumerate(names)}


def chain(names):
    symbol = x = Input("x", (3,))
    for name in names:
        symbol = Dense(name, 3, use_bias=False)(symbol)
    return FeedForwardNet(inputs=x, outputs=symbol)


def loaded(tmp_path, theirs, ours, **more):
    """The number that each layer got."""
    net = chain(ours)
    path = written(tmp_path / "m.safetensors", squares(theirs))
    report = net.load(path, layout="torch", **more)
    assert report.complete
    return [float(value[0, 0]) for value in net.param_values()], report


PLACES = list(map(float, range(COUNT)))
THEIRS = [f"blocks.{k}.fc" for k in range(COUNT)]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ([str(k) for k in range(COUNT)], [f"fc{k}" for k in range(COUNT)]),
        (THEIRS, [f"h{k}/fc" for k in range(COUNT)]),
        ([f"layers.{k}" for k in range(COUNT)], [f"enc{k}" for k in range(COUNT)]),
        ([f"layers.{k}" for k in range(COUNT)], [f"layers/{k}" for k in range(COUNT)]),
    ],
)
def test_numbers_in_names_are_numbers(tmp_path, theirs, ours):
    found, report = loaded(tmp_path, theirs, ours)
    assert found == PLACES
    assert not any("order" in match.rule for match in report.matched)


@pytest.mark.parametrize(
    "ours",
    [
        [f"fc{'abcdefghijkl'[k]}" for k in range(COUNT)],
        [f"h{k + 1}/fc" for k in range(COUNT)],  # counted from 1: perhaps, and perhaps not
    ],
)
def test_the_order_alone_tells_where_it_is_asked(tmp_path, ours):
    with pytest.raises(ArgumentError, match=r"'blocks\.0\.fc'.*by_order=True"):
        loaded(tmp_path, THEIRS, ours)
    found, report = loaded(tmp_path, THEIRS, ours, by_order=True)
    assert found == PLACES
    assert all(match.rule.endswith("by order") for match in report.matched)


def test_a_refusal_leaves_the_net_as_it_was(tmp_path):
    net = chain(["a", "b"])
    before = [value.copy() for value in net.param_values()]
    path = written(tmp_path / "m.safetensors", squares(["first", "second"]))
    with pytest.raises(ArgumentError, match="by_order"):
        net.load(path, layout="torch")
    for was, value in zip(before, net.param_values(), strict=True):
        np.testing.assert_array_equal(was, value)
    net.load(path, layout="torch", rename={"first": "b", "second": "a"})
    assert [float(value[0, 0]) for value in net.param_values()] == [1.0, 0.0]


def test_shapes_that_occur_once_tell(tmp_path):
    x = Input("x", (3,))
    net = FeedForwardNet(inputs=x, outputs=Dense("b", 2, use_bias=False)(Dense("a", 4)(x)))
    arrays = {
        "one.weight": np.ones((4, 3), np.float32),
        "one.bias": np.ones(4, np.float32),
        "another.weight": np.full((2, 4), 2, np.float32),
    }
    assert net.load(written(tmp_path / "m.safetensors", arrays), layout="torch").complete
    assert [float(value.flat[0]) for value in net.param_values()] == [1.0, 1.0, 2.0]
