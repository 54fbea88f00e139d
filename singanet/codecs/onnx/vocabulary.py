"""Equal terms of ONNX and our layers, which the reader and the writer use in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

BFLOAT16 = 16

DTYPES: Mapping[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in {
        1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8",
        9: "?", 10: "f2", 11: "f8", 12: "u4", 13: "u8", BFLOAT16: "f4",
    }.items()
}  # fmt: skip
"""The types that are read, by their numbers in `TensorProto.DataType`; bfloat16 becomes float32."""


def element_type(dtype: np.dtype[Any]) -> int:
    """The number of a type."""
    return next(number for number, each in DTYPES.items() if each == dtype.newbyteorder("="))


PAD_MODES: Mapping[str, str] = {
    "constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"
}  # fmt: skip
"""Modes of `Pad`."""


def turned(table: Mapping[str, str]) -> Mapping[str, str]:
    """Theirs by ours."""
    return {ours: theirs for theirs, ours in table.items()}
