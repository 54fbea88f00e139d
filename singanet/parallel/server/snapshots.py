"""Snapshots of servers: each has files of its own, which appear whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from singanet.checkpoint.formats import open_state, write_state
from singanet.errors import StateMismatchError
from singanet.optimizer.optimizer import Optimizer
from singanet.optimizer.wrapper import Wrapper
from singanet.parallel.server.table import Shard

_OPTIMIZER = "optimizer/"
_KEPT = 2
"""Snapshots of a server that stay: where servers were killed, all have the last but one."""


class Snapshots:
    """Snapshots of one service on server ``number`` of ``servers``, in ``folder``, by steps."""

    def __init__(self, folder: Path, service: int, number: int, servers: int, every: int) -> None:
        self._folder, self._every = folder, every
        self._name = f"service-{service}-server-{number}-of-{servers}-step-"
        folder.mkdir(parents=True, exist_ok=True)

    def due(self, step: int) -> bool:
        """Whether one is to be written after so many steps."""
        return self._every > 0 and step % self._every == 0

    def steps(self) -> list[int]:
        """The steps of the snapshots in the folder, rising."""
        pattern = re.compile(re.escape(self._name) + r"(\d+)\.safetensors")
        found = (pattern.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def write(self, step: int, shards: Iterable[Shard], optimizer: Optimizer | Wrapper) -> None:
        """Values, clocks and state after ``step`` steps; all but the last two files go then."""
        arrays = {f"{_OPTIMIZER}{key}": array for key, array in optimizer.state_dict().items()}
        for shard in shards:
            arrays |= {f"values/{shard.name}": shard.values, f"clocks/{shard.name}": shard.clocks}
        write_state(self._path(step), arrays)
        for old in self.steps()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def restore(
        self, step: int, shards: Iterable[Shard], optimizer: Optimizer | Wrapper | None
    ) -> None:
        """Let ``shards``, and ``optimizer``, go on as after ``step``.

        Errors: a file that is damaged, or of other parameters.
        """
        path = self._path(step)
        with open_state(path) as reader:
            for shard in shards:
                entry = reader.entries.get(f"values/{shard.name}")
                if entry is None or entry.shape != shard.values.shape:
                    raise StateMismatchError(
                        f"snapshot {str(path)!r}",
                        expected=f"{shard.name} of shape {shard.values.shape}",
                        received="none" if entry is None else f"shape {entry.shape}",
                        advice="train the net that it was written for, or take an empty folder",
                    )
                shard.values[...] = reader.read(f"values/{shard.name}")
                shard.clocks[...] = reader.read(f"clocks/{shard.name}")
            if optimizer is not None:
                names = [name for name in reader.entries if name.startswith(_OPTIMIZER)]
                state = {name[len(_OPTIMIZER) :]: reader.read(name) for name in names}
                optimizer.load_state_dict(state)
        for shard in shards:
            shard.keep_state()

    def _path(self, step: int) -> Path:
        return self._folder / f"{self._name}{step}.safetensors"
