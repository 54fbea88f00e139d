"""The files of a run folder; who writes one and who reads it take the name from here."""

from __future__ import annotations

CONFIG = "config.json"
"""How the run was set up: one JSON object; objects in it are sections."""

SUMMARY = "summary.txt"
"""`FeedForwardNet.summary` of the net."""

PICTURE = "net.svg"
"""`FeedForwardNet.plot` of the net."""

HISTORY = "history.csv"
"""A line an epoch under a header, ``epoch`` first, as `CSVLogger` writes."""

LAYERS = "layers.jsonl"
"""A JSON object an epoch, as `LayerStatistics` writes."""

MEMORY = "memory.jsonl"
"""JSON objects with seconds, epoch, step and bytes, as `MemoryLog` writes."""

CONFUSION = "confusion.json"
"""``{"labels": [C names], "counts": [C rows of C]}``, rows the true classes; `ConfusionLog`."""

OUTCOME = "outcome.json"
"""How the training ended: one JSON object, as `RunNotes` writes."""

FIGURES = "figures.json"
"""The results: one JSON object, such as the test accuracy."""

SAMPLES = "samples.json"
"""Texts of a language model ``before`` and ``after`` its tuning, behind a ``prompt``."""

REPORT = "report.html"
"""The page that `write_report` makes of these."""

COMPARISON = "comparison.html"
"""The page that `write_comparison` makes of several such folders, beside them."""

WRITTEN = (CONFIG, SUMMARY, PICTURE, HISTORY, LAYERS, MEMORY, CONFUSION, OUTCOME, FIGURES)
"""All but the report."""
