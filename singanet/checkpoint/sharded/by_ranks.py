"""Writing a state dict of which several processes have parts, by all of them at the same time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from singanet.base.collectives import Collectives, gathered, of_first
from singanet.checkpoint.entry import Source
from singanet.checkpoint.safetensors import write_safetensors
from singanet.checkpoint.sharded.writer import PYTORCH, new_names, remove_others, write_index
from singanet.errors import RankError, SingaNetError


def write_by_ranks(
    path: str | os.PathLike[str],
    own: Sequence[Source],
    comm: Collectives,
    first_rows: Mapping[str, int],
) -> None:
    """Write ``own`` to a file of this rank's, and on rank 0 the index at ``path``; all call it.

    Arrays in ``first_rows`` are rows, from that number on, of what several ranks have; any other
    is one rank's. Until all is written the state at ``path`` is the old one, and it stays where any
    rank fails. Errors: those of the writer, `RankError` on the others.
    """
    path = Path(path)
    shard: Path | None = None
    failed: SingaNetError | None = None
    try:
        names = [str(name) for name in new_names(path, comm.size)] if comm.rank == 0 else []
    except SingaNetError as error:
        failed, names = error, []
    shards = [Path(name) for name in of_first(comm, names, "the names of files")]
    try:
        if shards:
            shard = shards[comm.rank]
            write_safetensors(shard, own, metadata=PYTORCH)
    except SingaNetError as error:
        failed = error
    facts = [(each.name, first_rows.get(each.name, 0), each.nbytes) for each in own]
    said = "" if failed is None else str(failed)[:400]
    every = gathered(comm, (said, facts), "what ranks have written")
    if comm.rank == 0 and not any(trouble for trouble, _ in every):
        try:
            write_index(path, *_index(shards, [table for _, table in every]))
        except SingaNetError as error:
            failed = error
    said = "" if failed is None else str(failed)[:400]
    told = [(k, each) for k, each in enumerate(gathered(comm, said, "the end of a file")) if each]
    if told:
        if shard is not None:
            with contextlib.suppress(OSError):
                shard.unlink()
        raise failed or RankError(
            f"sharded file {str(path)!r}",
            expected="files that all ranks can write",
            received=f"on rank {told[0][0]}: {told[0][1]}",
            advice="mend what that rank says",
        )
    if comm.rank == 0:
        remove_others(path, shards)


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
