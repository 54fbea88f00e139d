"""Mutated files; see fuzz.py, which also runs as a program."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

spec = importlib.util.spec_from_file_location("fuzz", Path(__file__).with_name("fuzz.py"))
fuzz = importlib.util.module_from_spec(spec)
sys.modules["fuzz"] = fuzz  # so that worker processes find it by that name
spec.loader.exec_module(fuzz)


def test_every_seed_is_whole(tmp_path):
    """Otherwise the mutations would test one error message only."""
    for index, (suffix, raw) in enumerate(fuzz.seeds()):
        path = tmp_path / f"{index}{suffix}"
        path.write_bytes(raw)
        assert fuzz.read(path) == "read"


@pytest.mark.parametrize("seed", range(3))
def test_only_our_errors_come_out(tmp_path, seed):
    counts = fuzz.work((300, seed, str(tmp_path)))
    assert sum(counts.values()) == 300
    assert len(counts) > 5


@pytest.mark.slow
def test_only_our_errors_come_out_of_100000(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    assert sum(fuzz.fuzz(100_000, seed=10_000).values()) == 100_000
