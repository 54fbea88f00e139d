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
    """A function in two forms: ``call`` it with its arguments, or ``briefly`` with their address.

    Meanwhile other threads of Python run in the first form alone.
    """

    call: Callable[..., None]
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
        # What pays is unrolled and vectors as it is written; whole pipelines would take as long as
        # all the rest together.
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options())
        manager = llvm.create_new_function_pass_manager()
        manager.add_instruction_combine_pass()
        manager.add_new_gvn_pass()
        for function in module.functions:
            if not function.is_declaration:
                manager.run(function, passes)
        engine = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        _engines.append(engine)
        whole, bound = map(engine.get_function_address, (code.name, code.bound))
    arguments = [ctypes.c_void_p] * code.pointers + [ctypes.c_int64] * code.numbers
    return CompiledFunction(
        ctypes.CFUNCTYPE(None, *arguments)(whole),
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(bound),
    )


@cache
def is_wide() -> bool:
    """Whether this processor has 32 registers of 512 bits."""
    import llvmlite.binding as llvm

    return bool(llvm.get_host_cpu_features().get("avx512f", False))


@cache
def _target(llvm: Any) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple()
