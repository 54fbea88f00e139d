"""Compilation of functions by LLVM, and the files that keep them.

A file for each function, in a folder for what it depends on: this library's own lines, LLVM, and
the processor. None is run that another user could have written.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from singanet.base.heap import once_in_a_process, trim
from singanet.base.processes import cache_folder, free_in_children, interrupted_after
from singanet.errors import SingaNetError
from singanet.ops.compiled.code import Code
from singanet.ops.threads import within

VARIABLE = "SINGANET_CODE"
"""The environment variable that, with 'off', has nothing kept."""

_MOST_BYTES = 1 << 20
_FOLDERS = 8
"""Of other versions and processors that are left beside the one in use."""


class KeptCode:
    """The functions whose machine code depends on the ``parts`` and on this library's lines."""

    def __init__(self, *parts: str) -> None:
        self._folder: Path | None = None
        folder = None if os.environ.get(VARIABLE, "") == "off" else cache_folder()
        if folder is not None and (lines := _lines()):
            mark = hashlib.sha256("\n".join([lines, *parts]).encode()).hexdigest()[:16]
            self._folder = folder / f"code-{mark}"

    def read(self, name: str) -> bytes | None:
        """What was kept by that name, whole and by this user; None if there is no such thing."""
        if self._folder is None:
            return None
        path = self._path(name)
        try:
            if not (_is_ours(self._folder) and _is_ours(path)):
                return None
            with path.open("rb") as file:
                told, content = file.read(32), file.read(_MOST_BYTES)
        except OSError:
            return None
        return content if hashlib.sha256(content).digest() == told else None

    def keep(self, name: str, content: bytes) -> None:
        """Keep it; where that cannot be, the next process compiles anew."""
        if self._folder is None:
            return
        # Needed here alone, once in the life of a machine.
        from singanet.base.files import replacing

        with contextlib.suppress(OSError, SingaNetError):
            if not self._folder.exists():
                _remove_oldest(self._folder.parent)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self._path(name)) as beside:
                # Whatever the user's mask leaves to a group.
                beside.chmod(0o600)
                beside.write_bytes(hashlib.sha256(content).digest() + content)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Whether it belongs to this user, and no other may write there."""
    if not hasattr(os, "getuid"):  # On Windows the folder lies in the user's own.
        return True
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def _lines() -> str:
    """A mark of all that writes functions; empty where it cannot be read."""
    here = Path(__file__).parent
    try:
        files = [*sorted(here.glob("*.py")), here.parent / "window.py"]
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
    except OSError:
        return ""


def _remove_oldest(folder: Path) -> None:
    found = sorted(folder.glob("code-*"), key=lambda path: path.stat().st_mtime)
    for path in found[: max(len(found) - _FOLDERS + 1, 0)]:
        shutil.rmtree(path, ignore_errors=True)


_lock = free_in_children(Lock())
"""LLVM is not to be called by two threads at a time, nor left by Ctrl-C.

llvmlite gives memory back twice if an interrupt strikes before it has noted the first time.
"""
_engines: list[Any] = []
"""What owns the memory of the functions, for as long as the process lives."""


class CompiledFunction(NamedTuple):
    """A function in three forms: ``call`` it with its arguments, or the others with their address.

    Meanwhile other threads of Python run, but not if it is done ``briefly``.
    """

    call: Callable[..., None]
    at_length: Callable[[Any], None]
    briefly: Callable[[Any], None]


class _Built(NamedTuple):
    """An object file, the names of both forms in it, and how many arguments they take."""

    content: bytes
    whole: str
    bound: str
    pointers: int
    numbers: int


def compiled(code: Code, processor: str | None = None) -> CompiledFunction:
    """``code`` as functions; for a ``processor`` by LLVM's name.

    Without one it is for that which this is.
    """
    with _lock, interrupted_after(), once_in_a_process():
        return _loaded(_built(code, processor))


def known(write: Callable[..., Code], *given: Any) -> CompiledFunction:
    """What ``write`` writes of numbers, words and the like that are ``given``, as functions.

    It is written and compiled if no process has done so before, see `KeptCode`.
    """
    with _lock, interrupted_after(), once_in_a_process():
        kept, name = _kept(), f"{write.__module__}.{write.__qualname__}{given!r}"
        built = _read(kept.read(name))
        if built is None:
            built = _built(write(*given), None)
            told = json.dumps(built[1:]).encode()
            kept.keep(name, told + b"\n" + built.content)
            # LLVM lets go of more than the function takes.
            trim()
        return _loaded(built)


def _read(content: bytes | None) -> _Built | None:
    if content is None:
        return None
    told, _, machine_code = content.partition(b"\n")
    return _Built(machine_code, *json.loads(told))


def _built(code: Code, processor: str | None) -> _Built:
    # Its library is loaded where something is compiled.
    import llvmlite.binding as llvm

    machine = _machine(processor)
    module = llvm.parse_assembly(code.text())
    # What pays is unrolled and vectors as it is written; whole pipelines would take as long as all
    # the rest together.
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
    manager = llvm.create_new_function_pass_manager()
    manager.add_instruction_combine_pass()
    manager.add_new_gvn_pass()
    for function in module.functions:
        if not function.is_declaration:
            manager.run(function, passes)
    content = machine.emit_object(module)
    return _Built(content, code.name, code.bound, code.pointers, code.numbers)


def _loaded(built: _Built) -> CompiledFunction:
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(None))
    engine.add_object_file(llvm.ObjectFileRef.from_data(built.content))
    engine.finalize_object()
    _engines.append((engine, built))
    whole, bound = map(engine.get_function_address, (built.whole, built.bound))
    arguments = [ctypes.c_void_p] * built.pointers + [ctypes.c_int64] * built.numbers
    return CompiledFunction(
        ctypes.CFUNCTYPE(None, *arguments)(whole),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bound),
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(bound),
    )


@cache
def _kept() -> KeptCode:
    import llvmlite
    import llvmlite.binding as llvm

    versions = llvmlite.__version__, ".".join(map(str, llvm.llvm_version_info))
    return KeptCode(*versions, llvm.get_host_cpu_name(), _features().flatten())


def _machine(processor: str | None) -> Any:
    import llvmlite.binding as llvm

    return _target(llvm).create_target_machine(
        cpu=processor or llvm.get_host_cpu_name(),
        features="" if processor else _features().flatten(),
        opt=2,
        jit=True,
    )


@cache
def is_wide() -> bool:
    """Whether this processor has 32 registers of 512 bits."""
    return bool(_features().get("avx512f", False))


@cache
def converts_halves() -> bool:
    """Whether this processor makes floats of float16 by itself."""
    found = _features()
    return bool(found.get("f16c", False) or found.get("fullfp16", False))


@cache
def _features() -> Any:
    """What the processor has, by LLVM's names."""
    with once_in_a_process():
        import llvmlite.binding as llvm

    with interrupted_after():
        found = llvm.get_host_cpu_features()
    found.update(within(found))
    return found


@cache
def _target(llvm: Any) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()
