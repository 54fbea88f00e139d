"""Bringing a net's parameters into a folder, and back."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from singanet.base.files import NAME, explained, hold, let_go, path_of
from singanet.base.kinds import checked_bytes
from singanet.base.terms import LAYERS, PARAMETERS, Terms
from singanet.checkpoint import Entry
from singanet.checkpoint.entry import bytes_of, check_unique
from singanet.checkpoint.formats import LATEST
from singanet.engine.net import Net, expect_host
from singanet.errors import (
    CallOrderError,
    FileAccessError,
    FileFormatError,
    StateMismatchError,
    brief,
)
from singanet.offload.generation import Generation
from singanet.offload.offloaded import (
    SESSION,
    FolderPlace,
    OffloadExecutor,
    entries_of,
    is_large,
    session_bytes,
)
from singanet.offload.shelf import FILES, OffloadStore, on_host, room_on
from singanet.params.param import Param, expect_stored
from singanet.params.storage import Memory

TERMS = Terms(needs=(*PARAMETERS, LAYERS), keeps="bits")
"""The terms of an offloaded net, whose folder has whole arrays of floats."""


def offload(
    net: Net,
    folder: str | os.PathLike[str],
    keep: int | str,
    optimizer: Any,
    resume: bool,
    activations: bool = False,
) -> None:
    """`FeedForwardNet.offload`; on any error net and folder are as they were."""
    if activations:
        expect_host(net, "net.offload, activations")
    nbytes = checked_bytes("net.offload, keep", keep)
    place = path_of(folder, "folder")
    params = list({id(p): p for s in net.planned().steps for p in s.layer.params.values()}.values())
    check_unique((param.name for param in params), "net.offload")
    expect_stored(params, "net.offload", TERMS.needs)
    if isinstance(net.executor, OffloadExecutor):
        raise CallOrderError(
            "net.offload",
            expected="a net in memory",
            received="one that is offloaded",
            advice="call net.onload() first",
        )
    made = _prepared_folder(place, resume)
    owner = object()
    try:
        hold(place, owner, owner)
        try:
            _offload(net, place, nbytes, params, optimizer, resume, owner, activations)
        except BaseException:
            let_go(place, owner)
            if not resume:
                for name in (*FILES, LATEST):
                    (place / name).unlink(missing_ok=True)
            raise
    except BaseException:
        if made:
            with contextlib.suppress(OSError):
                place.rmdir()
        raise


def onload(net: Net) -> None:
    """`FeedForwardNet.onload`."""
    executor = net.executor
    if not isinstance(executor, OffloadExecutor):
        raise CallOrderError(
            "net.onload",
            expected="a net that is offloaded",
            received="one in memory",
            advice="call net.offload(folder) before",
        )
    executor.commit()
    executor.unbind()
    for param in net.params():
        if not param.storage.in_memory:
            param.storage = Memory(param.storage.read().copy())
    net.executor = executor.before
    executor.end()


def _prepared_folder(folder: Path, resume: bool) -> bool:
    """Create ``folder``; return whether it is new. Errors: unexpected contents."""
    with explained(folder, "write"):
        there = folder.exists()
        if not there and not resume:
            folder.mkdir()
            return True
        found = {path.name for path in folder.iterdir()} if there else set()
    # Of a process that was killed; the next step removes it.
    names = {name for name in found if name != NAME and not name.startswith(f".{LATEST}.")}
    others = names - {*FILES, LATEST}
    received, advice = "", ""
    if others:
        received, advice = f"{sorted(others)[0]!r} in it", "choose an empty folder, or a new one"
    elif resume and LATEST not in names:
        received, advice = "none", "leave resume out to begin one there"
    elif names and not resume:
        received = "an offloaded net"
        advice = "pass resume=True to go on from it, or remove it"
    if received:
        raise FileAccessError(
            f"folder {str(folder)!r}",
            expected="an offloaded net" if resume else "an empty folder",
            received=received,
            advice=advice,
        )
    return False


def _offload(
    net: Net,
    folder: Path,
    keep: int,
    params: list[Param],
    optimizer: Any,
    resume: bool,
    owner: object,
    activations: bool,
) -> None:
    for param in params:
        if not param.filled:
            param.seed, param.dtype = net.seed, net.dtype
    if not resume:
        _write_first(net, folder, params)
    name = _named_latest(folder)
    latest = Generation.opened(folder / name)
    try:
        _expect_same(folder, latest, params)
        following = Generation(folder / FILES[1 - FILES.index(name)])
    except BaseException:
        latest.close()
        raise
    shelf = OffloadStore(folder, keep, latest, following, room_on(net.device))
    executor = OffloadExecutor(net, shelf, net.executor, activations)
    executor.ends_with(weakref.finalize(shelf, _end, (latest, following), folder, owner))
    # While it may fail: these arrays are in memory anyway.
    before = [(param, param.value if param.filled else None) for param in params if is_large(param)]
    try:
        following.lay_out(latest.entries.values())
        for param, _ in before:
            param.storage = FolderPlace(shelf, f"net/{param.name}")
        if optimizer is None:
            optimizer = getattr(net.compiled, "optimizer", None)
        executor.bind(optimizer, resume)
        if resume:
            executor.load_small()
        elif executor.move_state():
            executor.commit()
    except BaseException:
        executor.unbind()
        for param, array in before:
            param.storage = Memory(array)
        executor.end()
        raise
    net.executor = executor


def _write_first(net: Net, folder: Path, params: list[Param]) -> None:
    """Write a generation of ``params``, unfilled ones with their initial values, one at a time."""
    made = Generation(folder / FILES[0])
    try:
        made.lay_out(entries_of(params))
        for param in params:
            array = param.value if param.filled else net._first_value(param)
            made.write(f"net/{param.name}", bytes_of(on_host(array)))
            del array
        made.write(SESSION, bytes_of(session_bytes(net)))
        made.flush()
    finally:
        made.close()
    with explained(folder / LATEST, "write"):
        (folder / LATEST).write_text(FILES[0], "ascii")


def _end(files: Iterable[Generation], folder: Path, owner: object) -> None:
    for file in files:
        file.close()
    let_go(folder, owner)


def _named_latest(folder: Path) -> str:
    with explained(folder / LATEST, "read"):
        name = (folder / LATEST).read_text("utf-8", "replace").strip()
    if name not in FILES:
        raise FileFormatError(
            f"file {str(folder / LATEST)!r}",
            expected=f"the name {FILES[0]!r} or {FILES[1]!r}",
            received=brief(name[:40]),
            advice="the folder is damaged: use an earlier copy",
        )
    return name


def _expect_same(folder: Path, latest: Generation, params: list[Param]) -> None:
    """Refuse the files of another net."""
    there = {n: e for n, e in latest.entries.items() if n.startswith("net/") or n == SESSION}
    for entry in entries_of(params):
        found = there.pop(entry.name, None)
        if found is None or (found.shape, found.dtype) != (entry.shape, entry.dtype):
            raise _other_net(folder, entry, found)
    for entry in there.values():
        raise _other_net(folder, None, entry)


def _other_net(folder: Path, wanted: Entry | None, found: Entry | None) -> StateMismatchError:
    shown = [
        "no such array" if each is None else f"{each.name!r} of {each.dtype}, shape {each.shape}"
        for each in (wanted, found)
    ]
    return StateMismatchError(
        f"net.offload, folder {str(folder)!r}",
        expected=shown[0],
        received=shown[1],
        advice="build the net as it was, or choose another folder",
    )
