"""Kinds of files with their readers, and the format of sizes and texts in messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from singanet.errors import ArgumentError, brief


@dataclass(frozen=True)
class Kind:
    """A kind of file: its ``name``, and in ``advice`` the call that reads it, "" for none.

    ``format`` is its name among the formats of checkpoints, "" for none.
    """

    name: str
    advice: str = ""
    format: str = ""


_WEIGHTS = "build the net and load weights with net.load"
_IMAGE = "singanet.data.read_image reads an image, singanet.data.FolderLoader a folder"
_PUBLISHED = "singanet.pretrained.load reads the model in a folder of transformers"

PUBLISHED = Kind("the folder of a published model", "load it with singanet.pretrained.load")
RUN = Kind(
    "the folder of a run",
    "singanet evaluate and singanet report read it; or build its net with singanet.models.build"
    " and load best.npz of the folder with net.load",
)
KERAS_ARCHIVE = Kind(
    "an archive of Keras", "load archives of Keras with singanet.keras.load_model", "npz"
)
ONNX = Kind("an ONNX graph", "load it with singanet.onnx.load")
MODEL = Kind(
    "a whole model, as net.save_model writes it", "load it with singanet.load_model", "safetensors"
)
PREDICTOR = Kind(
    "a predictor, as predictor.save writes it",
    "load it with singanet.load_predictor",
    "safetensors",
)
ARRAYS = Kind(
    "an archive of NumPy arrays",
    f"{_WEIGHTS}, or load data with singanet.data.load",
    "npz",
)
_TORCH = Kind("a file of PyTorch", _WEIGHTS, "torch")
ZIP = Kind("a zip archive", "unpack it, and pass the path of a file in it", "npz")
_HDF5 = Kind(
    "an HDF5 file",
    f"{_WEIGHTS}; Keras writes a whole model that singanet.keras.load_model reads with "
    "model.save('x.keras')",
    "hdf5",
)
_SAFETENSORS = Kind("a safetensors file", f"{_WEIGHTS}; {_PUBLISHED}", "safetensors")
_LONGEST_TABLE = 8 << 20
_TEXT = "singanet.data.TextDataset.from_file reads a text, numpy or pandas a table"

_BY_START: tuple[tuple[bytes, Kind], ...] = (
    (b"sg", Kind("a snapshot of SINGA", _WEIGHTS, "snapshot")),
    (b"GGUF", Kind("a GGUF file", f"{_WEIGHTS}, or a language model with pretrained.load", "gguf")),
    (b"\x89HDF", _HDF5),
    (b"\x93NUMPY", Kind("a single .npy array", "numpy.load reads it")),
    (b"\x1f\x8b", Kind("gzip data", "unpack it first")),
    (b"BZh", Kind("bzip2 data", "unpack it first")),
    (b"\xfd7zXZ", Kind("xz data", "unpack it first")),
    (b"\x89PNG", Kind("a PNG image", _IMAGE)),
    (b"\xff\xd8\xff", Kind("a JPEG image", _IMAGE)),
    (b"GIF8", Kind("a GIF image", _IMAGE)),
    (b"%PDF", Kind("a PDF document")),
    (b"\x00\x00\x08\x01", Kind("IDX labels", "singanet.data.load reads their folder")),
    (b"\x00\x00\x08\x03", Kind("IDX images", "singanet.data.load reads their folder")),
)

_PICKLE = Kind("a Python pickle", _WEIGHTS, "pickle")
_KERAS_MEMBERS = ("metadata.json", "config.json", "model.weights.h5")
_TORCH_MEMBERS = ("data.pkl", "data", "code", "constants.pkl", "version", "byteorder")


def kind_of_start(start: bytes) -> Kind:
    """Return the kind of a file that starts with the bytes ``start``, some hundreds of them."""
    if not start:
        return Kind("an empty file", "copy or write the file again")
    found = next((kind for magic, kind in _BY_START if start.startswith(magic)), None)
    return found or next((kind for test in _TESTS if (kind := test(start))), None) or _other(start)


def kind_of(path: Path) -> Kind:
    """Return the kind of the file at ``path`` if readable; of a folder by names in it."""
    try:
        if path.is_dir():
            return _of_folder(path)
        if path.suffix.lower() == ".onnx" and path.stat().st_size:
            return ONNX
        with path.open("rb") as stream:
            return kind_of_stream(stream)
    except OSError:
        return Kind("no readable file", "check the path and its permissions")


def kind_of_stream(stream: IO[bytes]) -> Kind:
    """Return the kind of a file that is read from its start."""
    start = stream.read(512)
    kind = kind_of_start(start)
    if kind is not _SAFETENSORS:
        return kind
    # Our own files are marked in the metadata, after the entries of all arrays.
    length = min(int.from_bytes(start[:8], "little"), _LONGEST_TABLE)
    table = start[8:] + stream.read(max(0, length - len(start) + 8))
    texts = {b"model": MODEL, b"predictor": PREDICTOR}
    ours = (kind for text, kind in texts.items() if b'"checksums":"{\\"' + text + b'\\":' in table)
    return next(ours, kind)


def _of_folder(path: Path) -> Kind:
    if (path / "config.json").is_file():
        return RUN if (path / "machine.json").is_file() else PUBLISHED
    if (path / "adapter_config.json").is_file():
        advice = "singanet.pretrained.load_adapter adds it to the weights of its model"
        return Kind("the folder of an adapter", advice)
    if any((path / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt")):
        return Kind("the folder of a tokenizer", "singanet.pretrained.tokenizer reads it")
    inside = next((each for each in sorted(path.iterdir()) if each.is_dir()), None)
    first = next(iter(sorted(inside.iterdir())), None) if inside is not None else None
    if first is not None and kind_of(first).advice == _IMAGE:
        return Kind("a folder of images", "singanet.data.FolderLoader reads it")
    return Kind("a folder", "pass the path of a file inside it")


def _zip(start: bytes) -> Kind | None:
    if not start.startswith(b"PK"):
        return None
    first = start[30:][: int.from_bytes(start[26:28], "little")].decode("latin-1")
    if first in _KERAS_MEMBERS:
        return KERAS_ARCHIVE
    if first.endswith("/data.pkl"):
        return _TORCH
    if first.partition("/")[2].partition("/")[0].lstrip(".") in _TORCH_MEMBERS:
        advice = "write torch.save(module.state_dict(), path), and load weights with net.load"
        return Kind("a module of TorchScript", advice, "npz")
    return ARRAYS if first.endswith(".npy") or start[2:4] == b"\x05\x06" else ZIP


def _torch(start: bytes) -> Kind | None:
    # Before PyTorch 1.6: the pickle of a magic number.
    known = start[:1] == b"\x80" and b"\x8a\n\x6c\xfc\x9c\x46" in start[:30]
    return _TORCH if known else None


def _safetensors(start: bytes) -> Kind | None:
    # A pickle's ninth byte may be a brace too, but its first eight are not a valid length.
    if start[8:9] != b"{" or int.from_bytes(start[:8], "little") > 100_000_000:
        return None
    return _SAFETENSORS


def _onnx(start: bytes) -> Kind | None:
    """Match the version of the format, a number below 64, and the producer or the graph."""
    known = start[:1] == b"\x08" and 0 < start[1] < 64 if len(start) > 2 else False
    return ONNX if known and start[2] in b"\x12\x1a\x22\x28\x32\x3a\x42" else None


def _text(start: bytes) -> Kind | None:
    if start.lstrip().startswith(b"{"):
        index = b'"weight_map"' in start or b'"metadata"' in start
        return Kind("JSON text", "json.load reads it", "sharded" if index else "")
    if all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in start):
        return Kind(f"text that begins {start[:16].decode('ascii')!r}", _TEXT)
    return None


def _pickle(start: bytes) -> Kind | None:
    # In protocol 0 a pickle is text: a global starts with the names of module and class.
    names = start[:1] == b"c" and not {*b", \t;"} & {*start.partition(b"\n")[0]}
    return _PICKLE if names or start[:1] in (b"\x80", b"}", b"(") else None


_TESTS: tuple[Callable[[bytes], Kind | None], ...] = (
    _zip, _torch, _safetensors, _pickle, _onnx, _text,
)  # fmt: skip


def _other(start: bytes) -> Kind:
    return Kind(f"a file that begins with the bytes {start[:8].hex(' ')}")


Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of bytes, in order."""

PAGE = 4096


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the same bytes as sorted ranges without overlap."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif start < end:
            found.append((start, end))
    return tuple(found)


def resident_bytes(written: Ranges, nbytes: int) -> int:
    """Return the resident bytes of an array after writes to the ranges ``written``.

    The array has ``nbytes``, on small pages.
    """
    # Page boundaries in the array are unknown: on average half a page at both ends.
    edge = PAGE // 2
    pages = union((max(0, start - edge), min(nbytes, end + edge)) for start, end in written)
    return sum(end - start for start, end in pages)


def snake_case(name: str) -> str:
    """Return a class's name in snake case: conv2d_transpose, l2_norm, rms_norm."""
    words = r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])|(?<=[0-9A-Z][A-Z])(?=[A-Z][a-z])"
    return re.sub(words, "_", name).lower()


def text_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], names: int | Collection[str] = 1
) -> list[str]:
    """Return lines with ``head`` and a rule on top; a row of one cell is a line of its own.

    The first ``names`` columns are left-aligned, or the columns with these titles.
    """
    left = head[:names] if isinstance(names, int) else names
    lines = [list(head), *map(list, rows)]
    whole = [line for line in lines if len(line) == len(head)]
    widths = [max(len(line[k]) for line in whole) for k in range(len(head))]
    shown = [
        line[0]
        if len(line) < len(head)
        else "  ".join(
            cell.ljust(width) if title in left else cell.rjust(width)
            for title, cell, width in zip(head, line, widths, strict=True)
        ).rstrip()
        for line in lines
    ]
    return [shown[0], "-" * max(map(len, shown)), *shown[1:]]


def megabytes(nbytes: int) -> str:
    """Format bytes as millions with two decimals, for columns in MB, as `bytes_text` counts."""
    return f"{nbytes / 10**6:,.2f}"


def milliseconds(seconds: float | None) -> str:
    """Format seconds as milliseconds with three decimals; "?" if they were not measured."""
    return "?" if seconds is None else f"{1e3 * seconds:,.3f}"


def reshaping(array: str, sample_shape: Sequence[int]) -> str:
    """Return the code that gives the samples of ``array`` another shape."""
    return f"{array}.reshape({', '.join(map(str, (-1, *sample_shape)))})"


UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
}
"""The bytes of each unit: powers of 1000 for SI units, of 1024 for IEC units."""

_SIZE_TEXT = re.compile(r"\s*(\d{1,15}(?:\.\d{0,15})?)\s*([A-Za-z]+)\s*", re.ASCII)


def checked_bytes(where: str, value: object) -> int:
    """Return ``value``, a number of bytes or a text with a unit such as "600MB", in bytes.

    Errors: anything else, and less than a byte.
    """
    found = 0
    if isinstance(value, str):
        match = _SIZE_TEXT.fullmatch(value)
        if match is not None and match[2] in UNITS:
            whole, _, part = match[1].partition(".")
            # In integers, so that no digit is rounded.
            scaled = int(whole + part) * UNITS[match[2]]
            found = scaled // 10 ** len(part)
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        found = int(value)
    if found > 0:
        return found
    raise ArgumentError(
        where,
        expected=f"bytes as a positive int, or a text with a unit of {', '.join(UNITS)}",
        received=brief(value)[:60],
        advice="write for example '600MB'",
    )


def bytes_text(nbytes: int) -> str:
    """Format bytes in the largest SI unit up to them: "1.25 GB", "600.0 MB", "12.3 kB"."""
    for unit, digits in (("GB", 2), ("MB", 1), ("kB", 1)):
        if abs(nbytes) >= UNITS[unit]:
            return f"{nbytes / UNITS[unit]:,.{digits}f} {unit}"
    return f"{nbytes} B"


def native(array: Any, xp: Any = np) -> Any:
    """Return ``array`` in native byte order; native arrays and other objects are returned as is.

    A NumPy array becomes an array of the module ``xp``.
    """
    # The common case first: small steps call this several times.
    if xp is np and type(array) is np.ndarray and array.dtype.isnative:
        return array
    dtype = getattr(array, "dtype", None)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        array = array.astype(dtype.newbyteorder("="))
    if xp is not np and type(array) is np.ndarray:
        return xp.asarray(array)
    return array
