"""Compile functions by LLVM, and cache them in files.

Each function has a file, in a folder for its dependencies: this library's source, LLVM, and the
processor. No file is run that another user could have written.
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
"""The environment variable that disables the cache with 'off'."""

_MOST_BYTES = 1 << 20
_FOLDERS = 8
"""Folders of other versions and processors that are not deleted."""


class KeptCode:
    """The cache of functions whose machine code depends on ``parts`` and this library's source."""

    def __init__(self, *parts: str) -> None:
        self._folder: Path | None = None
        folder = None if os.environ.get(VARIABLE, "") == "off" else cache_folder()
        if folder is not None and (lines := _lines()):
            mark = hashlib.sha256("\n".join([lines, *parts]).encode()).hexdigest()[:16]
            self._folder = folder / f"code-{mark}"

    def read(self, name: str) -> bytes | None:
        """Return the content stored as ``name``; None if missing, damaged or another user's."""
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
        """Store the content; if that fails, the next process compiles again."""
        if self._folder is None:
            return
        # A local import: needed once on each machine.
        from singanet.base.files import replacing

        with contextlib.suppress(OSError, SingaNetError):
            if not self._folder.exists():
                _remove_oldest(self._folder.parent)
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(self._path(name)) as temporary:
                # Even if the user's umask allows the group to write.
                temporary.chmod(0o600)
                temporary.write_bytes(hashlib.sha256(content).digest() + content)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / hashlib.sha256(name.encode()).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    """Whether the file belongs to this user, and no other may write it."""
    if not hasattr(os, "getuid"):  # On Windows the folder is in the user's profile.
        return True
    found = path.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


@cache
def _lines() -> str:
    """Return a hash of the sources that write functions; empty if they cannot be read."""
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
"""LLVM may not be called by two threads at a time, nor interrupted by Ctrl-C.

llvmlite frees memory twice if an interrupt comes before it has recorded the first time.
"""
_engines: list[Any] = []
"""Owners of the functions' memory, alive until the process ends."""


class CompiledFunction(NamedTuple):
    """A function in three forms: ``call`` takes its arguments, the others their address.

    ``briefly`` does not release Python's lock; the others do. C calls them at ``address`` and, with
    the address of arguments, at ``bound``.
    """

    call: Callable[..., None]
    at_length: Callable[[Any], None]
    briefly: Callable[[Any], None]
    address: int
    bound: int


class _Built(NamedTuple):
    """An object file, the names of both forms in it, and the counts of their arguments."""

    content: bytes
    whole: str
    bound: str
    pointers: int
    numbers: int


def compiled(code: Code, processor: str | None = None) -> CompiledFunction:
    """Compile ``code`` for this processor, or for a ``processor`` by LLVM's name."""
    with _lock, interrupted_after(), once_in_a_process():
        return _loaded(_built(code, processor))


def known(write: Callable[..., Code], *given: Any) -> CompiledFunction:
    """Return the function that ``write(*given)`` describes, from the cache if it is there.

    ``given`` are numbers, strings and the like. A function not in the cache is compiled and stored,
    see `KeptCode`.
    """
    with _lock, interrupted_after(), once_in_a_process():
        kept, name = _kept(), f"{write.__module__}.{write.__qualname__}{given!r}"
        built = _read(kept.read(name))
        if built is None:
            built = _built(write(*given), None)
            told = json.dumps(built[1:]).encode()
            kept.keep(name, told + b"\n" + built.content)
            # LLVM frees more memory than the function needs.
            trim()
        return _loaded(built)


def _read(content: bytes | None) -> _Built | None:
    if content is None:
        return None
    told, _, machine_code = content.partition(b"\n")
    return _Built(machine_code, *json.loads(told))


def _built(code: Code, processor: str | None) -> _Built:
    # LLVM's library is loaded at the first compilation.
    import llvmlite.binding as llvm

    machine = _machine(processor)
    module = llvm.parse_assembly(code.text())
    # The code is already unrolled and vectorized; a whole pipeline of passes would take as long as
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
        whole,
        bound,
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
def multiplies_bytes() -> bool:
    """Whether this processor sums products of bytes, in registers of 512 bits."""
    return is_wide() and bool(_features().get("avx512vnni", False))


@cache
def multiplies_words() -> bool:
    """Whether this processor sums products of bfloat16 in registers, and not faster in tiles."""
    found = _features()
    return is_wide() and bool(found.get("avx512bf16", False) and not found.get("amx-bf16", False))


@cache
def adds_pairs() -> bool:
    """Whether this processor sums products of pairs of bytes, in 16 registers of 256 bits."""
    return not is_wide() and bool(_features().get("avx2", False))


@cache
def converts_halves() -> bool:
    """Whether this processor converts float16 to float32."""
    found = _features()
    return bool(found.get("f16c", False) or found.get("fullfp16", False))


@cache
def _features() -> Any:
    """Return the processor's features, by LLVM's names."""
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
