"""Writing a state dict to several files, which take the place of the old ones at one moment."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from singanet.base.files import explained, flush_folder, path_of, replacing
from singanet.checkpoint.entry import Source, sources_of, total_bytes
from singanet.checkpoint.folder import INDEX, SINGLE
from singanet.checkpoint.halves import StoredType, stored_as
from singanet.checkpoint.safetensors import write_safetensors
from singanet.checkpoint.sharded.index import METADATA, MOST_SHARDS, SUFFIX, WEIGHT_MAP, stem
from singanet.checkpoint.version import FORMAT_VERSION, KEY
from singanet.errors import ArgumentError

SHARD_BYTES = 5_000_000_000
"""Above it a state is cut, as transformers does."""
PYTORCH = {"format": "pt"}
"""Without it transformers does not take a file for one of PyTorch's."""


_SHARD = re.compile(r"(\.\d+)?-\d{5}-of-\d{5}\.safetensors$")


def write_folder(
    folder: str | os.PathLike[str],
    state: Mapping[str, object] | Sequence[Source],
    shard_bytes: int = SHARD_BYTES,
    dtype: StoredType = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write ``state`` into ``folder`` as transformers does, and return the path that was written.

    That is ``model.safetensors``, or above ``shard_bytes`` an index beside shards of at most so
    many bytes (or of one array). Floats are written as ``dtype``: a name, or a dict from array to
    name. Arrays are fetched one at a time. Until all is written the folder is as it was; what it
    held of an older state is removed then. ``files`` are texts by name, such as ``config.json``:
    they are written before the weights and moved right behind them. Errors: `ArgumentError`,
    `FileAccessError`, and what the format cannot hold.
    """
    folder = path_of(folder, "folder")
    where = f"folder {str(folder)!r}"
    sources = stored_as(sources_of(state, where), dtype, where)
    new = not folder.exists()
    with explained(folder, "write"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        if total_bytes(sources) <= _checked(shard_bytes, where):
            with _texts(folder, files or {}):
                write_safetensors(folder / SINGLE, sources, metadata=PYTORCH)
            _remove(folder, [folder / INDEX, *_shards(folder / INDEX)])
            return folder / SINGLE
        with _texts(folder, files or {}):
            write_sharded(folder / INDEX, sources, shard_bytes)
        _remove(folder, [folder / SINGLE])
        return folder / INDEX
    except BaseException:
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # empty, or it stays
        raise


def write_sharded(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    shard_bytes: int = SHARD_BYTES,
    dtype: StoredType = None,
) -> None:
    """Write shards of at most ``shard_bytes``, then the index at ``path``, which makes them count.

    Shards have names that no file there has, so the old index keeps its files until the new one is
    moved over it; then files with names of shards that are not of this index are removed. Errors:
    as for `write_folder`.
    """
    path = path_of(path)
    where = f"sharded file {str(path)!r}"
    sources = stored_as(sources, dtype, where)
    groups = _groups(sources, _checked(shard_bytes, where), where)
    shards = new_names(path, len(groups))
    made: list[Path] = []
    try:
        for shard, group in zip(shards, groups, strict=True):
            made.append(shard)
            write_safetensors(shard, group, metadata=PYTORCH)
        weight_map = {
            source.name: shard.name
            for shard, group in zip(shards, groups, strict=True)
            for source in group
        }
        write_index(path, weight_map, total_bytes(sources))
    except BaseException:
        for shard in made:
            with contextlib.suppress(OSError):
                shard.unlink()
        raise
    remove_others(path, shards)


def write_index(path: Path, weight_map: Mapping[str, str | list[str]], total: int) -> None:
    """Make the files of ``weight_map``, of ``total`` bytes, count as the state at ``path``."""
    about = {"total_size": total, KEY: str(FORMAT_VERSION)}
    text = json.dumps({METADATA: about, WEIGHT_MAP: weight_map}, indent=2, ensure_ascii=False)
    with replacing(path, nbytes=len(text)) as beside:
        beside.write_text(text, "utf-8")


def remove_others(path: Path, shards: Sequence[Path]) -> None:
    """Remove what has a name as files of the index at ``path``, and is none of ``shards``."""
    _remove(path.parent, [each for each in _shards(path) if each not in shards])


def remove_state(path: Path) -> None:
    """Remove the file at ``path``, and of an index the files that it names after it."""
    path.unlink(missing_ok=True)
    if path.name.endswith(SUFFIX):
        remove_others(path, ())


def is_shard(path: Path) -> bool:
    """Whether ``path`` has a name as one of several files of a state."""
    return _SHARD.search(path.name) is not None


def _checked(shard_bytes: int, where: str) -> int:
    if shard_bytes < 1:
        raise ArgumentError(
            f"{where}, argument shard_bytes",
            expected="a number of bytes, at least 1",
            received=str(shard_bytes),
            advice="leave it out for 5 GB",
        )
    return shard_bytes


def _groups(sources: Sequence[Source], most: int, where: str) -> list[list[Source]]:
    """``sources`` in runs of at most ``most`` bytes; a larger one is alone."""
    groups: list[list[Source]] = []
    left = 0
    for source in sources:
        if source.nbytes > left or not groups:
            groups.append([])
            left = most
        groups[-1].append(source)
        left -= source.nbytes
    if len(groups) > MOST_SHARDS:
        raise ArgumentError(
            f"{where}, argument shard_bytes",
            expected=f"what makes at most {MOST_SHARDS} files",
            received=f"{most}, which makes {len(groups)}",
            advice="allow larger files",
        )
    return groups


def new_names(path: Path, count: int) -> list[Path]:
    """Paths of ``count`` shards none of which is there: a second index beside the old one's."""
    taken = {each.name for each in _shards(path)}
    for turn in range(1, len(taken) + 2):
        start = stem(path) + (f".{turn}" if turn > 1 else "")
        names = [f"{start}-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)]
        if taken.isdisjoint(names):
            break
    return [path.with_name(name) for name in names]


def _shards(path: Path) -> list[Path]:
    """The files that have names of shards of the index at ``path``."""
    pattern = re.compile(re.escape(stem(path)) + _SHARD.pattern)
    with explained(path, "write"):
        return sorted(each for each in path.parent.iterdir() if pattern.fullmatch(each.name))


def _remove(folder: Path, paths: Sequence[Path]) -> None:
    """Remove what an older state left in ``folder``; what the system does not let go stays."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        flush_folder(folder)


@contextlib.contextmanager
def _texts(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """Have ``files`` written beside their places before the block, and moved when it is over."""
    with contextlib.ExitStack() as stack:
        for name, text in files.items():
            beside = stack.enter_context(replacing(folder / name, nbytes=len(text)))
            beside.write_text(text, "utf-8")
        yield
