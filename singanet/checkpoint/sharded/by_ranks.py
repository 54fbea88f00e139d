"""Writing a state dict of which several processes have parts, by all of them at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from singanet.base.collectives import Collectives, gathered, of_first, uncounted
from singanet.base.files import path_of
from singanet.checkpoint.entry import Source
from singanet.checkpoint.safetensors import write_safetensors
from singanet.checkpoint.sharded.writer import PYTORCH, new_names, remove_others, write_index
from singanet.errors import RankError, SingaNetError


class RanksFile:
    """A sharded file of all ranks, being written: a `Writing`.

    ``own`` goes to a file of this rank's, and on rank 0 the index to ``path``. Arrays in
    ``first_rows`` are rows, from that number on, of what several ranks have; any other is one
    rank's. Until all is written the state at ``path`` is the old one, and it stays where any rank
    fails. All ranks make it at the same point.
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
        """Write this rank's file; no other rank is asked."""
        try:
            if self._shards:
                write_safetensors(self._shards[self._comm.rank], self._own, metadata=PYTORCH)
        except Exception as error:  # noqa: BLE001 - raised by `finish`
            self._failed = error
        finally:
            self._own = ()

    def ended(self, written: bool) -> bool:
        """Whether all ranks have ``written`` theirs; all call it."""
        with uncounted(self._comm):
            return all(gathered(self._comm, written, "whether files are written"))

    def finish(self) -> None:
        """Write the index. Errors: those of the writer, `RankError` on the others."""
        with uncounted(self._comm):
            told = self._made_to_count()
        if told:
            self.give_up()
            raise self._failed or RankError(
                f"sharded file {str(self.path)!r}",
                expected="files that all ranks can write",
                received=f"on rank {told[0][0]}: {told[0][1]}",
                advice="mend what that rank says",
            )
        if self._comm.rank == 0:
            remove_others(self.path, self._shards)

    def _made_to_count(self) -> list[tuple[int, str]]:
        """Write the index, where nothing has failed; the ranks on which something has, and what."""
        comm = self._comm
        every = gathered(comm, (self._trouble(), self._facts), "what ranks have written")
        if comm.rank == 0 and not any(trouble for trouble, _ in every):
            try:
                write_index(self.path, *_index(self._shards, [table for _, table in every]))
            except SingaNetError as error:
                self._failed = error
        ends = gathered(comm, self._trouble(), "the end of a file")
        return [(rank, each) for rank, each in enumerate(ends) if each]

    def give_up(self) -> None:
        """Remove this rank's file, which does not count without an index."""
        if self._shards:
            with contextlib.suppress(OSError):
                self._shards[self._comm.rank].unlink()

    def _trouble(self) -> str:
        return "" if self._failed is None else str(self._failed)[:400]


def _index(
    shards: Sequence[Path], tables: Sequence[Sequence[tuple[str, int, int]]]
) -> tuple[dict[str, str | list[str]], int]:
    """Of each array the file, or those with its rows, and the bytes of all."""
    found: dict[str, list[tuple[int, str]]] = {}
    for shard, table in zip(shards, tables, strict=True):
        for name, first, _ in table:
            found.setdefault(name, []).append((first, shard.name))
    listed = {name: [file for _, file in sorted(parts)] for name, parts in found.items()}
    total = sum(nbytes for table in tables for *_, nbytes in table)
    return {name: files[0] if len(files) == 1 else files for name, files in listed.items()}, total
