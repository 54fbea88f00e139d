"""Reading a state dict from several files, each open from the beginning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
    one file, the one that is named, and each array of a file is in the map.
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
        self.metadata, self._shard_of = parse(text, self.where)
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
        found: dict[str, Entry] = {}
        for name in dict.fromkeys(self._shard_of.values()):
            shard = self._shards[name] = self._opened(name, words)
            foreign = [key for key in shard.entries if self._shard_of.get(key) != name]
            if foreign:
                raise self._disagree(f"in {name!r} the arrays that the map has there", foreign)
            found |= shard.entries
            self.metadata = {**shard.metadata, **self.metadata}
        missing = [f"no {key}" for key in self._shard_of if key not in found]
        if missing:
            raise self._disagree("every array of the map in its file", missing)
        self.entries = {name: found[name] for name in self._shard_of}

    def _opened(self, name: str, words: bool) -> Reader:
        path = self.path.parent / name
        expect_in_folder(self.path.parent, path)
        if path.suffix.lower() == ".safetensors":
            return SafetensorsReader(path, words)
        return TorchReader(path)

    def _disagree(self, expected: str, names: list[str]) -> Exception:
        return broken(self.where, expected, one_of(names[:5])[:300])

    def _read(self, entry: Entry) -> Array:
        return self._shards[self._shard_of[entry.name]].read(entry.name)

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        return self._shards[self._shard_of[entry.name]].pieces(entry.name)

    def close(self) -> None:
        super().close()
        for shard in self._shards.values():
            shard.close()
