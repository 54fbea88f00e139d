"""LLVM: what is written becomes functions of this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

from singanet.base.forks import free_in_children
from singanet.ops.compiled.code import Code

_lock = free_in_children(Lock())
"""LLVM is not to be called by two threads at a time."""
_engines: list[Any] = []
"""What owns the memory of the functions, for as long as the process lives."""


class CompiledFunction(NamedTuple):
    """A function in three forms: ``call`` it with its arguments, or the others with their address.

    Meanwhile other threads of Python run, but not if it is done ``briefly``.
    """

    call: Callable[..., None]
    at_length: Callable[[Any], None]
    briefly: Callable[[Any], None]


def compiled(code: Code, processor: str | None = None) -> CompiledFunction:
    """``code`` as functions; for a ``processor`` by LLVM's name.

    Without one it is for that which this is.
    """
    # Its library is loaded where something is compiled.
    import llvmlite.binding as llvm

    text = code.text()
    with _lock:
        machine = _target(llvm).create_target_machine(
            cpu=processor or llvm.get_host_cpu_name(),
            features="" if processor else llvm.get_host_cpu_features().flatten(),
            opt=2,
            jit=True,
        )
        module = llvm.parse_assembly(text)
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        # What pays is unrolled as it is written.
        options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
        passes = llvm.create_pass_builder(machine, options)
        passes.getModulePassManager().run(module, passes)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _engines.append(engine)
        whole, bound = map(engine.get_function_address, (code.name, code.bound))
    arguments = [ctypes.c_void_p] * code.pointers + [ctypes.c_int64] * code.numbers
    return CompiledFunction(
        ctypes.CFUNCTYPE(None, *arguments)(whole),
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bound),
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(bound),
    )


@cache
def _target(llvm: Any) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()
