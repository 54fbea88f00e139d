"""Saved trainings go on as if never saved: random states × ways out × ways in."""

import warnings
from collections import Counter

import pytest

from tests.saving import states

Triple = states.Triple
NAMED = {
    "served tables, by an executor": Triple("words", reducer="hybrid", way_out="executor"),
    "tables on servers, by an executor": Triple("words", reducer="servers", workers=2,
                                                way_out="executor", way_in="in place"),
    "pairs beside blocks, by a file": Triple("plain", storage="int8", file="safetensors"),
    "pairs beside blocks, by a checkpoint": Triple(storage="int4", way_out="checkpoint"),
    "ranks by themselves, by an executor": Triple("normed", reducer="local", workers=2,
                                                  way_out="executor"),
    "an assigned rate": Triple(rule="assigned", way_out="state_dict"),
    "tables and their state, by a pickle": Triple("words", reducer="hybrid", way_out="pickle"),
    "tables on servers, by a copy": Triple("words", reducer="servers", workers=2,
                                           way_out="deepcopy"),
    "averages of ranks by themselves, by a checkpoint": Triple(
        reducer="local", workers=2, callbacks="ema", way_out="checkpoint", way_in="in place"),
    "averages of pairs beside blocks, by a checkpoint": Triple(storage="int8", callbacks="ema",
                                                               way_out="checkpoint"),
    "pairs beside blocks, by a model file": Triple(rule="momentum", wrap="by value", steps=2,
                                                   storage="int8", way_out="model"),
    "state that is not by rows, on servers": Triple("words", "adafactor", reducer="servers",
                                                    workers=2, steps=5, way_out="executor"),
    "an offloaded graph of ranks": Triple(storage="offload", reducer="all-reduce", workers=2,
                                          steps=1, way_out="executor"),
    "another process": Triple("normed", way_out="executor pickle", way_in="process"),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def other_process():
    yield
    states.close()


def outcomes(seeds, processes):
    """How many triples are equal and refused. Errors: one that is neither, by its seed."""
    found = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in seeds:
            given = states.drawn(seed, processes)
            try:
                found[states.outcome(given).split(":")[0]] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {given}") from error
    return found


@pytest.mark.parametrize(
    "name",
    # A process that imports all of this takes seconds.
    [*[*NAMED][:-1], pytest.param("another process", marks=pytest.mark.full)],
)
def test_named_triples_are_equal(name):
    assert states.outcome(NAMED[name]) == "equal"


def test_some_triples():
    found = outcomes(range(20), 0.0)
    assert found["equal"] > found["refused"]


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 11_000, 500))
def test_ten_thousand_triples(start):
    found = outcomes(range(start, start + 500), 0.1)
    assert found["equal"] > 8 * found["refused"]
