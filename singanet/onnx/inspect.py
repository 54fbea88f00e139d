"""The contents of an ``.onnx`` file as text."""

from __future__ import annotations

import os
from collections import Counter

from singanet.base.tracebacks import entry_point
from singanet.onnx.fold import FOLDS
from singanet.onnx.read import read
from singanet.saving.codecs.describe import operators


@entry_point
def inspect(path: str | os.PathLike[str]) -> str:
    """Describe the inputs, outputs, operators and arrays of a graph as text.

    Operators that `load` does not support are marked. No net is built. Errors: `FileAccessError`,
    `FileFormatError`, `UnsafeFileError`.

    Args:
        path: Path of an ``.onnx`` file.
    """
    from singanet.checkpoint.matching import aligned

    graph, _ = read(path)
    counts = Counter(node.op for node in graph.nodes)
    known = operators()
    counted = [
        f"{op} {count}" + ("" if op in known or op in FOLDS else " (no layer)")
        for op, count in counts.most_common()
    ]
    ends = [f"{port.name!r} {port.dtype} {port.shape}" for port in graph.inputs]
    rows: list[tuple[object, ...]] = [("name", "shape", "type", "bytes")]
    rows += [(name[:60], a.shape, a.dtype, a.nbytes) for name, a in graph.arrays.items()]
    return "\n".join(
        [
            f"{path}: onnx, {len(graph.nodes)} nodes",
            f"inputs: {', '.join(ends)}",
            f"outputs: {', '.join(map(repr, graph.outputs))}",
            f"operators: {', '.join(counted)}",
            aligned(rows),
            f"{len(graph.arrays)} arrays, {sum(a.nbytes for a in graph.arrays.values()):,} bytes",
        ]
    )
