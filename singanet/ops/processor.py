"""What of the processor kernels may use, as the user says it to oneDNN."""

from __future__ import annotations

import os
from collections.abc import Mapping

_VARIABLES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")

_WITHOUT = {
    "SSE41": ("avx", "fma", "f16c", "vaes", "vpclmulqdq", "xop", "amx"),
    "AVX": ("avx2", "avx512", "avx10", "avxvnni", "avxifma", "avxneconvert", "fma", "vaes", "amx"),
    "AVX2": ("avx512", "avx10", "amx"),
    "AVX512": ("amx",),
    "AVX10": ("amx",),
}
"""How the names of LLVM's features begin that a limit leaves out, by how that begins, up to "_"."""


def limit() -> str:
    """The most that oneDNN may use of the processor, such as "AVX2"; empty without a limit."""
    found = next((os.environ[name] for name in _VARIABLES if name in os.environ), "").upper()
    return "" if found in ("ALL", "DEFAULT") else found


def within(features: Mapping[str, bool]) -> dict[str, bool]:
    """LLVM's features of the processor, without those beyond the limit."""
    told = limit()
    # AVX2_VNNI is as AVX2; what oneDNN does not know either is no limit.
    without = () if "AMX" in told else _WITHOUT.get(told.partition("_")[0], ())
    return {name: there and not name.startswith(without) for name, there in features.items()}
