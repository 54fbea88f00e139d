"""Reading a state dict from several files, each open from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from singanet.base.files import expect_in_folder, explained
from singanet.checkpoint.entry import Entry
from singanet.checkpoint.reader import Reader, open_file
from singanet.checkpoint.safetensors import SafetensorsReader
from singanet.checkpoint.sharded.index import LONGEST, broken, parse
from singanet.checkpoint.torch import TorchReader
from singanet.checkpoint.version import KEY, check_version
from singanet.errors import one_of
from singanet.types import Array


class ShardedReader(Reader):
    """The arrays of all files that an index names, in its order; ``words`` as for safetensors.

    Files are beside the index. The map and the files' own tables have to agree: each array is in
    the file that is named, or has rows in each of several, and each array of a file is in the map.
    """

    format = "sharded"

    def __init__(self, path: Path, words: bool = False) -> None:
        super().__init__(path)
        with open_file(path) as stream, explained(path, "read"):
            size = stream.seek(0, 2)
            if size > LONGEST:
                raise broken(self.where, f"an index of at most {LONGEST} bytes", f"{size}")
            stream.seek(0)
            # A read of more than there is makes room for that, too.
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
                raise self._disagree(f"in {name!r} the arrays that the map has there", foreign)
            self.metadata = {**shard.metadata, **self.metadata}
        for name, shards in self._shards_of.items():
            parts = [self._shards[shard].entries.get(name) for shard in shards]
            missing = [f"no {name}" for part in parts if part is None]
            if missing:
                raise self._disagree("every array of the map in its file", missing)
            self.entries[name] = self._joined(name, [part for part in parts if part is not None])
        self._shared = self._share(self.metadata)

    def _joined(self, name: str, parts: list[Entry]) -> Entry:
        """What is put together of the rows ``parts``."""
        first = parts[0]
        if len(parts) == 1:
            return first
        forms = {(part.shape[1:], part.dtype, part.kind, len(part.shape)) for part in parts}
        if len(forms) > 1 or not first.shape:
            shapes = [f"{name}: {part.dtype} {part.shape}" for part in parts]
            raise self._disagree("rows of one array in several files", shapes)
        rows = sum(part.shape[0] for part in parts)
        stored = sum(part.stored for part in parts)
        return replace(first, shape=(rows, *first.shape[1:]), stored=stored, checksum="")

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
