"""The machines that a resource manager has given to a job, as its variables tell them."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from singanet.errors import BackendError
from singanet.launch.mpirun import Host

_NODES = "SLURM_JOB_NODELIST"
_TASKS = "SLURM_TASKS_PER_NODE"
_FILE = "PBS_NODEFILE"
_LOOPBACK = ("127.0.0.1", "::1")


def allocated(environ: Mapping[str, str]) -> list[Host]:
    """The machines of Slurm's allocation, or PBS's, with their slots; [] outside of one.

    Open MPI reads the same by itself: this is for what else depends on it. Errors: `BackendError`
    for a text that is none of theirs, and for a file that cannot be read.
    """
    if nodes := environ.get(_NODES):
        names = expanded(nodes)
        tasks = _tasks(environ.get(_TASKS, f"1(x{len(names)})"))
        if len(tasks) != len(names):
            raise _odd(_TASKS, f"as many numbers as there are machines, {len(names)}", str(tasks))
        return [Host(name, slots) for name, slots in zip(names, tasks, strict=True)]
    if path := environ.get(_FILE):
        try:
            lines = Path(path).read_text("utf-8").split()
        except OSError as error:
            raise _odd(_FILE, "the path of a file with a line a slot", str(error)) from error
        return [Host(name, slots) for name, slots in Counter(lines).items()]
    return []


def by_slurm(environ: Mapping[str, str]) -> bool:
    """Whether Slurm tells the machines, and starts what runs on them."""
    return bool(environ.get(_NODES))


def elsewhere(hosts: Sequence[Host]) -> bool:
    """Whether any of ``hosts`` is another machine than this one."""
    own = _short(socket.gethostname())
    names = [host.name for host in hosts if host.name not in _LOOPBACK]
    return any(_short(name) not in (own, "localhost") for name in names)


def expanded(nodes: str) -> list[str]:
    """The names of a list such as ``a[1-3,07],b``. Errors: `BackendError`."""
    # Commas between names, not those within brackets.
    words = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes)
    if ",".join(words) != nodes:
        raise _odd(_NODES, "names such as node[1-3,7]", nodes)
    return [name for word in words for name in _names(word)]


def _names(word: str) -> Iterator[str]:
    """The names that ``word`` stands for: those of its first brackets, with all of the others."""
    before, bracket, rest = word.partition("[")
    if not bracket:
        yield word
        return
    inner, _, after = rest.partition("]")
    for part in inner.split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if found is None:
            raise _odd(_NODES, "names such as node[1-3,7]", word)
        first, last = found[1], found[2] or found[1]
        for number in range(int(first), int(last) + 1):
            for end in _names(after):
                yield f"{before}{number:0{len(first)}}{end}"


def _tasks(text: str) -> list[int]:
    """The numbers of a text such as ``4(x2),3``. Errors: `BackendError`."""
    numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise _odd(_TASKS, "numbers such as 4(x2),3", text)
        numbers += [int(found[1])] * int(found[2] or 1)
    return numbers


def _short(name: str) -> str:
    return name.partition(".")[0]


def _odd(variable: str, expected: str, received: str) -> BackendError:
    return BackendError(
        f"singanet launch, {variable}",
        expected=expected,
        received=repr(received)[:100],
        advice=f"pass --hosts FILE with the machines, and unset {variable}",
    )
