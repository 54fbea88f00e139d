"""Sentences as vectors, by a folder of sentence-transformers'."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from singanet import pretrained
from singanet.base.arguments import checked_count
from singanet.base.files import replacing
from singanet.data import Tokenizer
from singanet.data.magic import open_data_file
from singanet.errors import ArgumentError, DataError
from singanet.pretrained.sentences import NAME
from singanet.runs.published import model_in, tokenizer_for
from singanet.types import Array


def lines_of(path: Path) -> list[str]:
    """The lines of a file in UTF-8, without their ends. Errors: none; other bytes; no file."""
    with open_data_file(path) as stream:
        raw = stream.read()
    try:
        lines = raw.decode("utf-8-sig").replace("\r\n", "\n").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise _refused(
            f"text file {str(path)!r}, line {raw[: error.start].count(10) + 1}",
            "text in UTF-8",
            f"the byte 0x{raw[error.start]:02x}",
            "convert the file to UTF-8",
        ) from None
    if lines == [""]:
        raise _refused(f"text file {str(path)!r}", "a sentence a line", "none", "check the file")
    return lines


def embedded(
    model: str | os.PathLike[str], texts: list[str], batch_size: int = 32, cut: bool = False
) -> Array:
    """A row for each of ``texts``, (N, dimensions) float32, by the ``model`` in a folder.

    Texts of like lengths go through the net together. Errors: a model that makes no embedding of
    a sentence; a text longer than it reads, with its line, unless they are to be ``cut``.
    """
    checked_count("singanet embed", "--batch-size", batch_size, 1)
    place = model_in(model)
    net = pretrained.load(place, inputs=["input_ids", "attention_mask"])
    if net.ports().outputs != [(NAME, 0)]:
        raise ArgumentError(
            f"model {str(model)!r}",
            expected="a folder of sentence-transformers, which modules.json tells",
            received=str((net.config.get("architectures") or ["another model"])[0]),
            advice="take such a folder; for hidden states call pretrained.load in Python",
        )
    tokenizer = tokenizer_for(net, place)
    rows = _ids(tokenizer, texts, net.most_steps, cut)
    order = sorted(range(len(rows)), key=lambda k: -len(rows[k]))
    found: Array | None = None
    for at in range(0, len(order), batch_size):
        places = order[at : at + batch_size]
        made = net.predict(_batch([rows[k] for k in places], tokenizer.pad_id or 0))
        found = np.empty((len(rows), made.shape[1]), np.float32) if found is None else found
        found[places] = made
    return np.empty((0, 0), np.float32) if found is None else found


def _ids(tokenizer: Tokenizer, texts: list[str], most: int | None, cut: bool) -> list[Array]:
    rows = []
    _, after = tokenizer.around
    for number, text in enumerate(texts, 1):
        ids = tokenizer.encode(text)
        if most is not None and len(ids) > most:
            if not cut:
                raise _refused(
                    f"line {number} of the texts",
                    f"at most {most} tokens, the steps that the model takes",
                    str(len(ids)),
                    "shorten it, or pass --cut",
                )
            # What the model puts behind a text stays there.
            ids = np.concatenate([ids[: most - len(after)], after])
        rows.append(ids)
    return rows


def _batch(rows: list[Array], padding: int) -> dict[str, Array]:
    width = max(1, max(map(len, rows)))
    ids = np.full((len(rows), width), padding, np.int32)
    mask = np.zeros_like(ids)
    for row, own in enumerate(rows):
        ids[row, : len(own)], mask[row, : len(own)] = own, 1
    return {"input_ids": ids, "attention_mask": mask}


def write_rows(path: Path, rows: Array) -> None:
    """Write ``rows`` as a .npy file, whole or not at all. Errors: `FileAccessError`."""
    with replacing(path) as beside, beside.open("wb") as file:
        np.save(file, rows, allow_pickle=False)


def _refused(where: str, expected: str, received: str, advice: str) -> DataError:
    return DataError(where, expected=expected, received=received, advice=advice)
