"""What a limit of oneDNN's leaves of the processor for compiled functions."""

from __future__ import annotations

import pytest

from singanet.ops.threads import within

AMX, WIDE = {"amx-tile", "amx-bf16"}, {"avx512f", "avx512bf16", "avx10.1-512"}
NARROW = {"avx", "avx2", "fma"}


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ("avx", {"avx"}),
        ("AVX2", NARROW),
        ("AVX2_VNNI_2", NARROW),
        ("AVX512_CORE_BF16", NARROW | WIDE),
        ("AVX10_1_512", NARROW | WIDE),
        ("AVX512_CORE_AMX", NARROW | WIDE | AMX),
        ("AVX10_1_512_AMX", NARROW | WIDE | AMX),
        ("ALL", NARROW | WIDE | AMX),
        ("AVX3", NARROW | WIDE | AMX),
    ],
)
def test_what_a_limit_leaves(limit, left, monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    found = within(dict.fromkeys(NARROW | WIDE | AMX, True))
    assert {name for name, there in found.items() if there} == left
