"""The speeds of a processor: measured once, kept, and what estimates go by."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pytest

from singanet.ops import costs
from singanet.ops.casts import has_compiler
from singanet.ops.costs import BUILT_IN, Case, Speeds, cache_size
from singanet.ops.llvm import winograd
from singanet.ops.onednn import OneDnnOps, calibration
from singanet.ops.threads import cores
from singanet.ops.window import Window

MINE = Speeds(0.01, 0.5, 0.2, 0.003, 0.002, 0.3, 0.5, 9000.0)


@pytest.fixture
def path(tmp_path, monkeypatch):
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    return named


@pytest.fixture
def calls(monkeypatch):
    """How often somebody measured."""
    made = []

    def calibrate(library):
        made.append(library)
        return MINE

    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(calibrate))
    return made


def fresh(ops):
    return OneDnnOps(ops.path, required=True)


def test_it_is_measured_once_and_kept_for_the_next_process(ops, path, calls):
    assert [ops.speeds(), ops.speeds(), fresh(ops).speeds()] == [MINE] * 3
    assert len(calls) == 1
    assert json.loads(path.read_text("utf-8"))["speeds"] == MINE._asdict()


def test_choices_and_speeds_do_not_write_over_each_other(ops, path, calls):
    case = Case("forward", (2, 4, 6, 6), (4, 4, 3, 3), Window((3, 3), (1, 1), ((1, 1), (1, 1))))
    version = ops.library().version
    costs.keep(version, 1, {case: "direct"})
    assert ops.speeds() == MINE
    costs.keep(version, 2, {case: "numpy"})
    assert costs.read(version) == ({1: {case: "direct"}, 2: {case: "numpy"}}, MINE)


def test_switched_off_nobody_measures(ops, calls, monkeypatch):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert fresh(ops).speeds() == BUILT_IN
    assert not calls


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_what_cannot_be_kept_is_not_used(ops, path, calls):
    path.parent.chmod(0o500)
    assert ops.speeds() == BUILT_IN
    path.parent.chmod(0o700)


def test_a_folder_in_place_of_the_file_leaves_those_built_in(ops, path, calls):
    path.mkdir()
    with pytest.warns(RuntimeWarning, match="not used"):
        assert ops.speeds() == BUILT_IN


@pytest.mark.parametrize(
    "damage",
    [
        [],
        {**MINE._asdict(), "direct": -1.0},
        {**MINE._asdict(), "direct": float("nan")},
        {**MINE._asdict(), "direct": 1},
        {**MINE._asdict(), "more": 1.0},
        {"direct": 1.0},
    ],
)
def test_damaged_speeds_are_told(ops, path, calls, damage):
    assert ops.speeds() == MINE
    content = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**content, "speeds": damage}))
    with pytest.warns(RuntimeWarning, match="speeds are damaged"):
        assert fresh(ops).speeds() in (MINE, BUILT_IN)


def test_estimates_go_by_them(ops, path, monkeypatch):
    """Where copies are slow tiles pay less, and where arithmetic is slow they pay more."""
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    case = Case("forward", (8, 64, 28, 28), (64, 64, 3, 3), window)

    def estimate(**speeds):
        monkeypatch.setattr(OneDnnOps, "speeds", lambda self: BUILT_IN._replace(**speeds))
        return winograd.estimate(ops, case)

    usual = estimate()
    assert estimate(tile_value=2 * BUILT_IN.tile_value) > usual
    assert estimate(direct=2 * BUILT_IN.direct) < usual


def test_a_weight_beyond_the_cache_is_read_for_each_image_of_few_pixels():
    large = cache_size() // 4 + 1
    one, two = (MINE.direct_time(n, 4, large) for n in (1, 2))
    assert two - one == pytest.approx(large * (4 * MINE.direct + MINE.distant))
    for pixels, weight in ((50, large), (4, large - 1)):
        one, two = (MINE.direct_time(n, pixels, weight) for n in (1, 2))
        assert two - one == pytest.approx(weight * pixels * MINE.direct)
    assert MINE.direct_time(1, 4, 9) - MINE.direct_time(1, 4, 9, arranged=True) == pytest.approx(
        9 * MINE.weight
    )


def test_speeds_are_what_is_left_of_each_time(library, monkeypatch):
    """Times made by known speeds give these back."""

    def made(runs):
        tiles = 36 * 4 * 49
        weight, entered = 9 * 384**2, MINE.tile_kernel * 36 * 64**2
        return {
            "direct": MINE.direct * 9 * 4 * 28**2 * 64**2,
            "one": MINE.direct_time(1, 4, weight),
            "five": MINE.direct_time(5, 4, weight),
            "narrow": MINE.narrow * 256 * 384**2,
            "narrow direct": MINE.narrow_direct * 9 * 4 * 28**2 * 64**2,
            "entered": entered,
            "compiled": MINE.direct * tiles * 64**2 + MINE.tile_value * tiles * 128 + entered,
        }

    monkeypatch.setattr(calibration, "_least", made)
    monkeypatch.setattr(calibration, "_sharing", lambda library, memory: MINE.shared)
    monkeypatch.setattr(calibration, "cores", lambda: 2)
    found = calibration.measured(library)
    known = MINE
    if not has_compiler():
        known = MINE._replace(tile_value=BUILT_IN.tile_value, tile_kernel=BUILT_IN.tile_kernel)
    for mine, wanted in zip(found, known, strict=True):
        assert mine == pytest.approx(wanted)
    monkeypatch.setattr(calibration, "_least", lambda runs: dict.fromkeys(made(runs), 1.0))
    assert calibration.measured(library) == BUILT_IN


def test_what_is_faster_in_bfloat16_is_shared_later(ops, path, monkeypatch):
    assert ops.passes(320) == 6
    ops.narrow = True
    for narrow, passes in ((BUILT_IN.direct / 4, 2), (BUILT_IN.direct, 6), (1.0, 6)):
        monkeypatch.setattr(OneDnnOps, "speeds", lambda self, n=narrow: BUILT_IN._replace(narrow=n))
        assert ops.passes(320) == passes


@pytest.mark.skipif(cores() < 2, reason="one core")
def test_measuring_leaves_the_callers_threads_alone(library, ops):
    x, w = np.ones((8, 16, 64, 64), np.float32), np.ones((16, 16, 3, 3), np.float32)
    ops.conv2d(x, w, None, Window((3, 3), (1, 1), ((1, 1), (1, 1))))
    before = library.c.omp_get_max_threads()
    calibration.measured(library)
    assert library.c.omp_get_max_threads() == before


@pytest.fixture
def library(ops):
    return ops.library()


def test_measuring_takes_real_kernels(library):
    start = time.process_time()
    found = calibration.measured(library)
    assert all(speed >= 0 for speed in found)
    assert found.direct > 0
    assert time.process_time() > start
