"""Checkpoints of several files with an index.

An array whose rows were on several processes is in several files, listed in row order.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from singanet.base.arguments import Budget, read_json
from singanet.base.collectives import Collectives, gathered, of_first, uncounted
from singanet.base.files import expect_in_folder, explained, flush_folder, path_of, replacing
from singanet.checkpoint.entry import (
    FORMAT_VERSION,
    INDEX,
    KEY,
    SINGLE,
    Entry,
    Source,
    check_names,
    check_unique,
    check_version,
    counted,
    sources_of,
    total_bytes,
)
from singanet.checkpoint.halves import StoredType, stored_as
from singanet.checkpoint.reader import Reader, open_file
from singanet.checkpoint.safetensors import SafetensorsReader, write_safetensors
from singanet.checkpoint.torch import TorchReader
from singanet.errors import (
    ArgumentError,
    FileFormatError,
    RankError,
    SingaNetError,
    UnsafeFileError,
    brief,
    one_of,
)
from singanet.types import Array

WEIGHT_MAP = "weight_map"
METADATA = "metadata"
SUFFIX = ".safetensors.index.json"
LONGEST = 32 << 20
"""The maximum bytes of an index, for 100,000 arrays and their files."""
MOST_SHARDS = 512
"""The maximum number of open files; the largest published models have 191."""


def parse(text: bytes, where: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the metadata of an index, as strings, and the files of each array.

    Errors: `FileFormatError` for another content, or repeated or too many names; `UnsafeFileError`
    for a file name that is not a plain name in the index's folder.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        check_unique((name for name, _ in pairs), where)
        return dict(pairs)

    budget = Budget(len(text), partial(broken, where))
    found = read_json(text, budget, "an index", unique)
    arrays = found.get(WEIGHT_MAP) if isinstance(found, dict) else None
    metadata = found.get(METADATA, {}) if isinstance(found, dict) else None
    if not isinstance(arrays, dict) or not isinstance(metadata, dict):
        raise broken(where, f"an object with a {WEIGHT_MAP!r}", repr(text[:40]))
    shards: set[str] = set()
    files = {}
    check_names(arrays, where)
    for name, told_of in arrays.items():
        files[name] = told_of if isinstance(told_of, list) and told_of else [told_of]
        for shard in files[name]:
            if shard not in shards if isinstance(shard, str) else True:
                shards.add(_checked_shard(shard, where))
        check_unique(files[name], where)
    if len(shards) > MOST_SHARDS:
        raise broken(where, f"at most {MOST_SHARDS} files", str(len(shards)))
    texts = {key: str(value)[:1000] for key, value in metadata.items()}
    return texts, files


def _checked_shard(name: Any, where: str) -> str:
    """Return ``name`` if it is a plain file name on every system."""
    plain = (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name.isprintable()
        and not any(sign in name for sign in '/\\:*?"<>|')
        and not name.startswith(".")
        and PurePosixPath(name).name == name
    )
    if not plain:
        raise UnsafeFileError(
            where,
            expected="file names in the index's folder, such as model-00001-of-00002.safetensors",
            received=brief(name)[:80],
            advice="download the model from a source you trust",
        )
    return str(name)


def stem(path: Path) -> str:
    """Return the prefix of the file names of the index at ``path``."""
    return path.name[: -len(SUFFIX)] if path.name.lower().endswith(SUFFIX) else path.name


def broken(where: str, expected: str, received: str) -> FileFormatError:
    """Return the error for an index that is invalid or does not match its files."""
    return FileFormatError(
        where,
        expected=expected,
        received=received,
        advice="the files are damaged or of different models: download all of them again",
    )


class ShardedReader(Reader):
    """A reader of the arrays of all files of an index, in its order; ``words`` as for safetensors.

    The files are in the index's folder. Map and files must agree: each array is in its file, or has
    rows in each of several, and each array of a file is in the map.
    """

    format = "sharded"

    def __init__(self, path: Path, words: bool = False) -> None:
        super().__init__(path)
        with open_file(path) as stream, explained(path, "read"):
            size = stream.seek(0, 2)
            if size > LONGEST:
                raise broken(self.where, f"an index of at most {LONGEST} bytes", f"{size}")
            stream.seek(0)
            # A larger argument would allocate that much.
            text = stream.read(size)
        self.metadata, self._shards_of = parse(text, self.where)
        mark = self.metadata.pop(KEY, None)
        if mark is not None:
            self.version = f"singanet format {check_version(mark, self.where)}"
        self._shards: dict[str, Reader] = {}
        try:
            self._open_shards(words)
        except BaseException:
            self.close()
            raise

    def _open_shards(self, words: bool) -> None:
        for name in dict.fromkeys(name for names in self._shards_of.values() for name in names):
            shard = self._shards[name] = self._opened(name, words)
            foreign = [
                key
                for key in shard.entries
                if name not in self._shards_of.get(key, ()) and key not in shard.metadata
            ]
            if foreign:
                raise self._disagree(f"in {name!r} the arrays of the map", foreign)
            self.metadata = {**shard.metadata, **self.metadata}
        for name, shards in self._shards_of.items():
            parts = [self._shards[shard].entries.get(name) for shard in shards]
            missing = [f"no {name}" for part in parts if part is None]
            if missing:
                raise self._disagree("every array of the map in its file", missing)
            self.entries[name] = self._joined(name, [part for part in parts if part is not None])
        self._shared = self._share(self.metadata)

    def _joined(self, name: str, parts: list[Entry]) -> Entry:
        """Return the entry of an array with rows in ``parts``."""
        first = parts[0]
        if len(parts) == 1:
            return first
        forms = {(part.shape[1:], part.dtype, part.kind, len(part.shape)) for part in parts}
        if len(forms) > 1 or not first.shape:
            shapes = [f"{name}: {part.dtype} {part.shape}" for part in parts]
            raise self._disagree("rows of one array in several files", shapes)
        rows = sum(part.shape[0] for part in parts)
        stored = sum(part.stored for part in parts)
        return first._replace(shape=(rows, *first.shape[1:]), stored=stored, checksum="")

    def _opened(self, name: str, words: bool) -> Reader:
        path = self.path.parent / name
        expect_in_folder(self.path.parent, path)
        if path.suffix.lower() == ".safetensors":
            return SafetensorsReader(path, words)
        return TorchReader(path)

    def _disagree(self, expected: str, names: list[str]) -> Exception:
        return broken(self.where, expected, one_of(names[:5])[:300])

    def _read(self, entry: Entry) -> Array:
        name = self._shared.get(entry.name, entry.name)
        shards = self._shards_of[name]
        if len(shards) == 1:
            return self._shards[shards[0]].read(name)
        whole, at = np.empty(entry.shape, entry.dtype), 0
        for shard in shards:
            rows = self._shards[shard].entries[name].shape[0]
            self._shards[shard].read_into(name, whole[at : at + rows])
            at += rows
        return whole

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        name = self._shared.get(entry.name, entry.name)
        for shard in self._shards_of[name]:
            yield from self._shards[shard].pieces(name)

    def close(self) -> None:
        super().close()
        for shard in self._shards.values():
            shard.close()


SHARD_BYTES = 5_000_000_000
"""The maximum bytes of a file, as in transformers."""
PYTORCH = {"format": "pt"}
"""The metadata that transformers requires of PyTorch weights."""


_SHARD = re.compile(r"(\.\d+)?-\d{5}-of-\d{5}\.safetensors$")


def write_folder(
    folder: str | os.PathLike[str],
    state: Mapping[str, object] | Sequence[Source],
    shard_bytes: int = SHARD_BYTES,
    dtype: StoredType = None,
    files: Mapping[str, str] | None = None,
) -> Path:
    """Write arrays into a folder as transformers does; return the path written.

    The path is ``model.safetensors``, or the index of several shards. Arrays are fetched one at a
    time. Until all is written the folder is unchanged; then the files of an older state are
    removed. Errors: `ArgumentError`, `FileAccessError`, and the errors of the format.

    Args:
        folder: Path of the folder, which is created if needed.
        state: Dict from name to array, or a sequence of `Source`.
        shard_bytes: Maximum bytes of a file, except for a shard of a single array.
        dtype: Type of floats in the files, "float32", "float16" or "bfloat16", or a dict from array
            to type. None keeps their types.
        files: Texts by file name, such as ``config.json``, which are written before the weights and
            moved into place after them.
    """
    folder = path_of(folder, "folder")
    where = f"folder {str(folder)!r}"
    sources = stored_as(sources_of(state, where), dtype, where)
    new = not folder.exists()
    with explained(folder, "write"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        if total_bytes(sources) <= _checked(shard_bytes, where):
            with _texts(folder, files or {}), counted(sources, folder) as shown:
                write_safetensors(folder / SINGLE, shown, metadata=PYTORCH)
            _remove(folder, [folder / INDEX, *_shards(folder / INDEX)])
            return folder / SINGLE
        with _texts(folder, files or {}), counted(sources, folder) as shown:
            write_sharded(folder / INDEX, shown, shard_bytes)
        _remove(folder, [folder / SINGLE])
        return folder / INDEX
    except BaseException:
        if new:
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails if not empty
        raise


def write_sharded(
    path: str | os.PathLike[str],
    sources: Sequence[Source],
    shard_bytes: int = SHARD_BYTES,
    dtype: StoredType = None,
) -> None:
    """Write shards of at most ``shard_bytes``, then the index at ``path``, which makes them valid.

    Shards get unused names, so the old index keeps its files until the new one replaces it. Then
    shards of other indexes are removed. Errors: as for `write_folder`.
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
    """Write the index at ``path`` of the files of ``weight_map``, with ``total`` bytes."""
    about = {"total_size": total, KEY: str(FORMAT_VERSION)}
    text = json.dumps({METADATA: about, WEIGHT_MAP: weight_map}, indent=2, ensure_ascii=False)
    with replacing(path, nbytes=len(text)) as temporary:
        temporary.write_text(text, "utf-8")


def remove_others(path: Path, shards: Sequence[Path]) -> None:
    """Remove the shards of the index at ``path`` except ``shards``."""
    _remove(path.parent, [each for each in _shards(path) if each not in shards])


def remove_state(path: Path) -> None:
    """Remove the file at ``path``; for an index, its shards after it."""
    path.unlink(missing_ok=True)
    if path.name.endswith(SUFFIX):
        remove_others(path, ())


def is_shard(path: Path) -> bool:
    """Return whether ``path`` has the name of a shard."""
    return _SHARD.search(path.name) is not None


def _checked(shard_bytes: int, where: str) -> int:
    if shard_bytes < 1:
        raise ArgumentError(
            f"{where}, argument shard_bytes",
            expected="a number of bytes, at least 1",
            received=str(shard_bytes),
            advice="omit it for 5 GB",
        )
    return shard_bytes


def _groups(sources: Sequence[Source], most: int, where: str) -> list[list[Source]]:
    """Split ``sources`` into runs of at most ``most`` bytes; a larger array is alone."""
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
            expected=f"a size that gives at most {MOST_SHARDS} files",
            received=f"{most}, which gives {len(groups)}",
            advice="allow larger files",
        )
    return groups


def new_names(path: Path, count: int) -> list[Path]:
    """Return unused paths of ``count`` shards."""
    present = {each.name for each in _shards(path)}
    for turn in range(1, len(present) + 2):
        start = stem(path) + (f".{turn}" if turn > 1 else "")
        names = [f"{start}-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)]
        if present.isdisjoint(names):
            break
    return [path.with_name(name) for name in names]


def _shards(path: Path) -> list[Path]:
    """Return the files with names of shards of the index at ``path``."""
    pattern = re.compile(re.escape(stem(path)) + _SHARD.pattern)
    with explained(path, "write"):
        return sorted(each for each in path.parent.iterdir() if pattern.fullmatch(each.name))


def _remove(folder: Path, paths: Sequence[Path]) -> None:
    """Remove files of an older state from ``folder``; files that cannot be removed stay."""
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
    with contextlib.suppress(OSError):
        flush_folder(folder)


@contextlib.contextmanager
def _texts(folder: Path, files: Mapping[str, str]) -> Iterator[None]:
    """Write ``files`` to temporary files before the block, and move them into place after it."""
    with contextlib.ExitStack() as stack:
        for name, text in files.items():
            temporary = stack.enter_context(replacing(folder / name, nbytes=len(text)))
            temporary.write_text(text, "utf-8")
        yield


class RanksFile:
    """A sharded file written by all ranks: a `Writing`.

    Each rank writes ``own`` to its file, and rank 0 the index to ``path``. Arrays in ``first_rows``
    are rows, from this index on, of an array shared by several ranks; other arrays belong to one
    rank. The old state at ``path`` is valid until all is written, and stays so if any rank fails.
    All ranks construct it at the same point.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        own: Sequence[Source],
        comm: Collectives,
        first_rows: Mapping[str, int],
    ) -> None:
        self.path = path_of(path)
        self._comm, self._own = comm, own
        self._facts = [(each.name, first_rows.get(each.name, 0), each.nbytes) for each in own]
        self._failed: Exception | None = None
        names: list[str] = []
        try:
            if comm.rank == 0:
                names = [str(name) for name in new_names(self.path, comm.size)]
        except SingaNetError as error:
            self._failed = error
        self._shards = [Path(name) for name in of_first(comm, names, "the names of files")]

    def write(self) -> None:
        """Write this rank's file, without communication."""
        try:
            if self._shards:
                write_safetensors(self._shards[self._comm.rank], self._own, metadata=PYTORCH)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failed = error
        finally:
            self._own = ()

    def ended(self, written: bool) -> bool:
        """Return whether all ranks have ``written`` theirs; all call it."""
        with uncounted(self._comm):
            return all(gathered(self._comm, written, "whether files are written"))

    def finish(self) -> None:
        """Write the index. Errors: the writer's; `RankError` on the other ranks."""
        with uncounted(self._comm):
            failures = self._publish()
        if failures:
            self.give_up()
            raise self._failed or RankError(
                f"sharded file {str(self.path)!r}",
                expected="files that every rank can write",
                received=f"on rank {failures[0][0]}: {failures[0][1]}",
                advice="fix the error of that rank",
            )
        if self._comm.rank == 0:
            remove_others(self.path, self._shards)

    def _publish(self) -> list[tuple[int, str]]:
        """Write the index if no rank failed; return the failed ranks and their errors."""
        comm = self._comm
        every = gathered(comm, (self._trouble(), self._facts), "the results of the ranks")
        if comm.rank == 0 and not any(trouble for trouble, _ in every):
            try:
                write_index(self.path, *_index(self._shards, [table for _, table in every]))
            except SingaNetError as error:
                self._failed = error
        ends = gathered(comm, self._trouble(), "the end of a file")
        return [(rank, each) for rank, each in enumerate(ends) if each]

    def give_up(self) -> None:
        """Remove this rank's file, which is invalid without an index."""
        if self._shards:
            with contextlib.suppress(OSError):
                self._shards[self._comm.rank].unlink()

    def _trouble(self) -> str:
        return "" if self._failed is None else str(self._failed)[:400]


def _index(
    shards: Sequence[Path], tables: Sequence[Sequence[tuple[str, int, int]]]
) -> tuple[dict[str, str | list[str]], int]:
    """Return the file of each array, or the files with its rows, and the total bytes."""
    found: dict[str, list[tuple[int, str]]] = {}
    for shard, table in zip(shards, tables, strict=True):
        for name, first, _ in table:
            found.setdefault(name, []).append((first, shard.name))
    listed = {name: [file for _, file in sorted(parts)] for name, parts in found.items()}
    total = sum(nbytes for table in tables for *_, nbytes in table)
    return {name: files[0] if len(files) == 1 else files for name, files in listed.items()}, total
