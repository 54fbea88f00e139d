"""The table that describes a net."""

from __future__ import annotations

from math import prod

from singanet.execution import Plan
from singanet.graph import Graph


def summary_table(plan: Plan, graph: Graph) -> str:
    """One line a layer: name, class, output sample shape, parameters, sources; then totals."""
    rows = [("name", "layer", "output shape", "parameters", "from")]
    total = trained = 0
    counted: set[int] = set()
    for step in plan.steps:
        node = graph.nodes[step.name]
        params = [p for p in step.layer.params.values() if id(p) not in counted]
        counted.update(id(p) for p in params)
        size = sum(prod(p.shape) for p in params)
        total += size
        trained += sum(prod(p.shape) for p in params if p.trainable and not step.frozen)
        sources = ", ".join(
            source.name if len(source.output_shapes()) == 1 else f"{source.name}[{index}]"
            for source, index in node.inputs
        )
        rows.append(
            (step.name, type(step.layer).__name__, str(node.out_shapes), f"{size:,}", sources)
        )
    widths = [max(len(row[k]) for row in rows) for k in range(5)]
    lines = [
        "  ".join(
            cell.rjust(width) if k == 3 else cell.ljust(width)
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    lines.insert(1, "-" * max(map(len, lines)))
    lines.append(f"{total:,} parameters, {trained:,} trained, {total - trained:,} not")
    return "\n".join(lines)
