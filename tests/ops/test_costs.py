"""Routes of convolutions: the file of measured ones, the speeds of a processor, and the choice."""

from __future__ import annotations

import json
import os
import stat
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singanet.errors import FileAccessError
from singanet.ops import NumpyOps, costs, numpy_ops
from singanet.ops.casts import has_compiler
from singanet.ops.costs import (
    BUILT_IN,
    KERNELS,
    ROUTES,
    Case,
    NotRoutesError,
    Speeds,
    cache_size,
    entries_of,
    read_entries,
)
from singanet.ops.kernel import by_cost, cheapest
from singanet.ops.llvm import LlvmOps, winograd
from singanet.ops.onednn import OneDnnOps, calibration
from singanet.ops.onednn.conv import product
from singanet.ops.threads import cores
from singanet.ops.window import Window
from tests.ops.kernel_rows import PLAIN

WINDOW = Window((3, 3), (1, 1), ((1, 1), (0, 2)))
CASE = Case("forward", (8, 16, 7, 9), (32, 16, 3, 3), WINDOW)
OTHER = Case("data", (8, 16, 7, 9), (32, 4, 3, 3), replace(WINDOW, groups=4))
MINE = Speeds(0.01, 0.5, 0.2, 0.003, 0.002, 0.3, 0.5, 9000.0)
VERSION = "3.9.1"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """The file that the environment names, in a folder that does not exist yet."""
    named = tmp_path / "deeper" / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    return named


# -- The file -------------------------------------------------------------------------------------


def test_choices_are_kept_by_number_of_threads(path):
    costs.keep(VERSION, 1, {CASE: "product"})
    costs.keep(VERSION, 2, {CASE: "direct"})
    costs.keep(VERSION, 1, {OTHER: "numpy"})
    kept = {1: {CASE: "product", OTHER: "numpy"}, 2: {CASE: "direct"}}
    assert costs.read(VERSION).choices == kept
    costs.keep(VERSION, 1, {CASE: "product"})
    assert costs.read(VERSION).choices == kept
    assert os.listdir(path.parent) == [path.name]


COUNTS = st.integers(1, 2**40)
PAIRS = st.tuples(COUNTS, COUNTS)
PADS = st.tuples(*[st.tuples(st.integers(0, 9), st.integers(0, 9))] * 2)
SHAPES = st.tuples(*[COUNTS] * 4)
WINDOWS = st.builds(Window, PAIRS, PAIRS, PADS, PAIRS, groups=COUNTS)
CASES = st.builds(Case, st.sampled_from(KERNELS), SHAPES, SHAPES, WINDOWS)
CHOICES = st.dictionaries(CASES, st.sampled_from(ROUTES), min_size=1, max_size=3)


@given(st.dictionaries(COUNTS, CHOICES, max_size=3))
def test_any_choices_survive_as_text(choices):
    assert read_entries(json.loads(json.dumps(entries_of(choices)))) == choices


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
(ENTRY,) = entries_of({1: {CASE: "product"}})


@given(st.sampled_from(sorted(ENTRY)), JSON)
def test_a_changed_value_is_refused_or_comes_back(key, value):
    entry = json.loads(json.dumps({**ENTRY, key: value}))
    try:
        found = read_entries([entry])
    except NotRoutesError:
        return
    assert json.loads(json.dumps(entries_of(found))) == [entry]


@pytest.mark.parametrize("key", sorted(ENTRY))
def test_a_missing_value_is_refused(key):
    entry = json.loads(json.dumps(ENTRY))
    del entry[key]
    with pytest.raises(NotRoutesError):
        read_entries([entry])


def kept_text(old, new):
    """A change of the text of a kept file."""

    def change(path):
        costs.keep(VERSION, 1, {CASE: "product"})
        text = path.read_text("utf-8")
        path.write_text(text.replace(old, new) if old else text[:-40])

    return change


def content(data):
    return lambda path: path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (content(b""), "Expecting value"),
        (content(b"\xff\xfe\x00"), "not used"),
        (content(b"[1]"), "another kind"),
        (content(b'{"format": "else"}'), "another kind"),
        (content(b'{"format": "singanet routes", "version": 1}'), "its version is 1, not 4"),
        (content(b"[" * 100_000), "not used"),
        (content(b" " * 101_000), "the file is too large"),
        (lambda path: path.mkdir(), "Is a directory"),
        (os.mkfifo, "pipe"),
        (kept_text("product", "windmill"), "choice 0 is damaged"),
        (kept_text("", ""), "not used"),
        (kept_text(VERSION, "3.10.0"), r"measured on .*3\.10\.0.*, not on .*3\.9\.1"),
    ],
)  # fmt: skip
def test_a_damaged_or_foreign_file_is_named_and_not_used(path, monkeypatch, damage, reason):
    monkeypatch.setattr(costs, "_MOST_BYTES", 100_900)
    path.parent.mkdir()
    damage(path)
    with pytest.warns(RuntimeWarning, match=reason) as warned:
        assert costs.read(VERSION).choices == {}
    (warning,) = warned
    for part in (repr(str(path)), "singanet tune", "SINGANET_ROUTES=off"):
        assert part in str(warning.message)


def test_choices_of_another_processor_are_not_used(path, monkeypatch):
    assert costs.read(VERSION).choices == {}
    assert len(costs.processor()) > 3
    costs.keep(VERSION, 1, {CASE: "product"})
    monkeypatch.setattr(costs, "processor", lambda: "Another 9000")
    with pytest.warns(RuntimeWarning, match="Another 9000"):
        assert costs.read(VERSION).choices == {}


def test_a_damaged_file_is_replaced(path):
    path.parent.mkdir()
    path.write_text("nonsense")
    with pytest.warns(RuntimeWarning, match="not used"):
        costs.keep(VERSION, 1, {CASE: "direct"})
    assert costs.read(VERSION).choices == {1: {CASE: "direct"}}


def test_a_place_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SINGANET_ROUTES", str(blocked / "routes.json"))
    with (
        pytest.warns(RuntimeWarning, match="not used"),
        pytest.raises(FileAccessError, match="expected a place to write"),
    ):
        costs.keep(VERSION, 1, {CASE: "direct"})
    assert stat.S_ISREG(blocked.stat().st_mode)


def test_the_path_of_the_file(monkeypatch, tmp_path):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert costs.path_of(VERSION) is None
    assert costs.read(VERSION).choices == {}
    monkeypatch.setenv("SINGANET_ROUTES", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = costs.path_of(VERSION)
    assert found.parent == tmp_path / "singanet"
    assert found == costs.path_of(VERSION) != costs.path_of("3.10.0")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert costs.path_of(VERSION).parent == tmp_path / "home" / ".cache" / "singanet"
    monkeypatch.setenv("HOME", "relative")
    assert costs.path_of(VERSION) is None
    assert "HOME" in costs.why_none()
    named = tmp_path / "routes.json"
    monkeypatch.setenv("SINGANET_ROUTES", str(named))
    assert costs.path_of(VERSION) == named


# -- The speeds of a processor --------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The libraries that were measured."""
    made = []

    def calibrate(library):
        made.append(library)
        return MINE

    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(calibrate))
    return made


def fresh(ops):
    return OneDnnOps(ops.path, required=True)


def test_speeds_are_measured_once_and_kept_for_the_next_process(ops, path, calls):
    assert [ops.speeds(), ops.speeds(), fresh(ops).speeds()] == [MINE] * 3
    assert len(calls) == 1
    assert json.loads(path.read_text("utf-8"))["speeds"] == MINE._asdict()


def test_choices_and_speeds_do_not_overwrite_each_other(ops, path, calls):
    version = ops.library().version
    costs.keep(version, 1, {CASE: "direct"})
    assert ops.speeds() == MINE
    costs.keep(version, 2, {CASE: "numpy"})
    assert costs.read(version) == ({1: {CASE: "direct"}, 2: {CASE: "numpy"}}, MINE)


def test_switched_off_nothing_is_measured(ops, calls, monkeypatch):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert fresh(ops).speeds() == BUILT_IN
    assert not calls


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_speeds_that_cannot_be_kept_are_not_used(ops, path, calls):
    path.parent.mkdir()
    path.parent.chmod(0o500)
    assert ops.speeds() == BUILT_IN
    path.parent.chmod(0o700)


def test_a_folder_in_place_of_the_file_leaves_the_built_in_speeds(ops, path, calls):
    path.mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="not used"):
        assert ops.speeds() == BUILT_IN


@pytest.mark.parametrize(
    "damage",
    [[], {"direct": 1.0}, *({**MINE._asdict(), **change} for change in
     ({"direct": -1.0}, {"direct": float("nan")}, {"direct": 1}, {"more": 1.0}))],
)  # fmt: skip
def test_damaged_speeds_are_reported(ops, path, calls, damage):
    assert ops.speeds() == MINE
    found = json.loads(path.read_text("utf-8"))
    path.write_text(json.dumps({**found, "speeds": damage}))
    with pytest.warns(RuntimeWarning, match="speeds are damaged"):
        assert fresh(ops).speeds() in (MINE, BUILT_IN)


def test_tiles_pay_less_if_copies_are_slow_and_more_if_arithmetic_is(ops, path, monkeypatch):
    def estimate(**speeds):
        monkeypatch.setattr(OneDnnOps, "speeds", lambda self: BUILT_IN._replace(**speeds))
        return winograd.estimate(ops, Case("forward", (8, 64, 28, 28), (64, 64, 3, 3), PLAIN))

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
    arranged = MINE.direct_time(1, 4, 9) - MINE.direct_time(1, 4, 9, arranged=True)
    assert arranged == pytest.approx(9 * MINE.weight)


def test_times_by_known_speeds_give_these_back(ops, monkeypatch):
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
    known = MINE
    if not has_compiler():
        known = MINE._replace(tile_value=BUILT_IN.tile_value, tile_kernel=BUILT_IN.tile_kernel)
    assert calibration.measured(ops.library()) == pytest.approx(known)
    monkeypatch.setattr(calibration, "_least", lambda runs: dict.fromkeys(made(runs), 1.0))
    assert calibration.measured(ops.library()) == BUILT_IN


def test_work_that_is_faster_in_bfloat16_is_shared_later(ops, path, monkeypatch):
    assert ops.passes(320) == 6
    ops.narrow = True
    for narrow, passes in ((BUILT_IN.direct / 4, 2), (BUILT_IN.direct, 6), (1.0, 6)):
        monkeypatch.setattr(OneDnnOps, "speeds", lambda self, n=narrow: BUILT_IN._replace(narrow=n))
        assert ops.passes(320) == passes


def test_measuring_runs_kernels_and_keeps_the_callers_threads(ops):
    library, start = ops.library(), time.process_time()
    before = library.c.omp_get_max_threads()
    if cores() > 1:
        x, w = np.ones((8, 16, 64, 64), np.float32), np.ones((16, 16, 3, 3), np.float32)
        ops.conv2d(x, w, None, PLAIN)
        before = library.c.omp_get_max_threads()
    found = calibration.measured(library)
    assert all(speed >= 0 for speed in found)
    assert found.direct > 0
    assert time.process_time() > start
    assert library.c.omp_get_max_threads() == before


# -- The choice -----------------------------------------------------------------------------------

X, WEIGHT = (2, 5, 9, 10), (6, 5, 3, 3)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def choose(ops, kernel, route, threads=None, window=PLAIN):
    """Keep a choice for the sizes above."""
    runtime = ops.runtime()
    case = Case(kernel, X, WEIGHT, window)
    costs.keep(runtime.library.version, threads or runtime.threads, {case: route})


def run(ops, kernel="forward", dtype=np.float32):
    x, weight, bias = (draw(*s, seed=k).astype(dtype) for k, s in enumerate((X, WEIGHT, (6,))))
    dy = draw(2, 6, 9, 10, seed=3).astype(dtype)
    if kernel == "forward":
        return ops.conv2d(x, weight, bias, PLAIN)
    if kernel == "data":
        return ops.conv2d_backward_data(dy, weight, X, PLAIN)
    return ops.conv2d_backward_weights(x, dy, WEIGHT, PLAIN)


@pytest.fixture
def taken(ops, monkeypatch):
    """The routes that ran."""
    found = []

    def watched(route):
        def run(self, *operands):
            found.append(route.name)
            return route.run(self, *operands)

        return route._replace(run=run)

    for name in ("conv2d", "conv2d_backward_data", "conv2d_backward_weights"):
        kernel = getattr(OneDnnOps, name)
        routes = map(watched, kernel.routes)
        made = by_cost(*routes, case=kernel.case, last=getattr(NumpyOps, name))
        monkeypatch.setattr(OneDnnOps, name, made)
    return found


@pytest.mark.parametrize("kernel", ["forward", "data", "weights"])
@pytest.mark.parametrize("route", ROUTES)
def test_the_measured_route_is_taken_and_right(ops, path, taken, kernel, route):
    if route == "compiled" and not has_compiler():
        pytest.skip("llvmlite is not installed")
    choose(ops, kernel, route)
    got, wanted = run(ops, kernel), run(numpy_ops, kernel, np.float64)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * abs(wanted).max())
    if route == "blocked" or (kernel, route) == ("data", "product"):
        # The weight is in the cache; windows would have to be added up.
        assert taken == ["direct"]
    elif (kernel, route) == ("data", "numpy"):
        # NumPy gathers, and convolves the result.
        assert taken == ["numpy", "direct"]
    else:
        assert taken == [route]


def other_threads(ops, monkeypatch):
    choose(ops, "forward", "numpy", threads=ops.runtime().threads + 1)


def switched_off(ops, monkeypatch):
    choose(ops, "forward", "numpy")
    monkeypatch.setenv("SINGANET_ROUTES", "off")


def read_before(ops, monkeypatch):
    """The file is read once, at the first convolution."""
    settings = ops.settings()
    run(ops)
    assert ops.settings() == settings
    choose(ops, "forward", "numpy")


@pytest.mark.parametrize("change", [other_threads, switched_off, read_before])
def test_otherwise_the_estimate_decides(ops, path, taken, monkeypatch, change):
    change(ops, monkeypatch)
    run(ops)
    assert set(taken) == {"direct"}


def test_an_impossible_choice_leaves_the_direct_route(ops, path, taken):
    window = replace(PLAIN, stride=(2, 2))
    choose(ops, "forward", "compiled", window=window)
    ops.conv2d(draw(*X), draw(*WEIGHT), None, window)
    assert taken == ["direct"]


def test_adopted_choices_count_at_once_and_are_seen_by_programs(ops, path, taken):
    run(ops)
    before = ops.settings()
    for route in ("product", "numpy"):
        ops.chooser.adopt({Case("forward", X, WEIGHT, PLAIN): route}, ops.runtime())
        assert ops.settings() != before
        run(ops)
    assert taken == ["direct", "product", "numpy"]


def large(library_path):
    """The bytes of all three kernels of a convolution with many channels, in a new backend."""
    ops = OneDnnOps(library_path, required=True)
    x, weight = draw(2, 64, 16, 16), draw(64, 64, 3, 3, seed=1)
    made = [
        ops.conv2d(x, weight, None, PLAIN),
        ops.conv2d_backward_data(x, weight, x.shape, PLAIN),
        ops.conv2d_backward_weights(x, x, weight.shape, PLAIN),
    ]
    return b"".join(array.tobytes() for array in made)


@pytest.mark.skipif(not has_compiler(), reason="llvmlite is not installed")
def test_the_same_file_gives_the_same_bits(library_path, path, monkeypatch):
    slow_tiles = BUILT_IN._replace(tile_value=15 * BUILT_IN.tile_value)
    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(lambda library: slow_tiles))
    first = large(library_path)
    monkeypatch.setattr(OneDnnOps, "calibrate", staticmethod(lambda library: BUILT_IN))
    assert large(library_path) == first
    path.unlink()
    assert large(library_path) != first


def test_switched_off_choices_are_the_same_on_every_processor(
    library_path, no_compiler, monkeypatch
):
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(OneDnnOps, "calibrate", None)
    routes = {
        "forward": OneDnnOps.conv2d.routes,
        "data": OneDnnOps.conv2d_backward_data.routes,
        "weights": OneDnnOps.conv2d_backward_weights.routes,
    }
    cases = [
        Case(kernel, (n, channels, size, size), (channels, channels, 3, 3), PLAIN)
        for kernel in routes
        for n in (1, 8, 32)
        for channels, size in ((64, 28), (256, 8), (512, 4), (512, 2))
    ]
    found = []
    for cache in (1 << 18, 1 << 24):
        monkeypatch.setattr(costs, "cache_size", lambda cache=cache: cache)
        ops = OneDnnOps(library_path, required=True)
        estimates = (
            {r.name: r.estimate(ops, case) for r in routes[case.kernel] if r.fits(ops, case)}
            for case in cases
        )
        found.append([cheapest(each) for each in estimates])
    assert found[0] == found[1]
    assert {"direct", "numpy"} <= {*found[0]}


def test_products_of_copied_windows_are_possible_while_they_fit_the_cache(ops, chosen, monkeypatch):
    ops.conv2d(draw(*X), draw(*WEIGHT), None, PLAIN)
    monkeypatch.setattr(product, "_MOST_COPIED", 180 * 45 - 1)
    ops.conv2d(draw(*X), draw(*WEIGHT), None, PLAIN)
    tiles = ["compiled"] * has_compiler()
    assert chosen.offered == [[*tiles, "product", "direct", "numpy"], [*tiles, "direct", "numpy"]]


def test_remarks_for_the_table_of_devices(ops, path, monkeypatch):
    known = BUILT_IN._replace(direct=0.02, narrow=0.01)
    monkeypatch.setattr(OneDnnOps, "speeds", lambda self: known)
    assert list(ops.remarks()) == [*numpy_ops.remarks(), "onednn"]
    first, *others = ops.remarks()["onednn"]
    assert "none measured: singanet tune" in first
    bfloat16 = ops.library().bfloat16
    assert others == ["multiplies bfloat16 2.0 times as fast as float32"] * bfloat16
    known = known._replace(narrow=0.02)
    wanted = 'multiplies bfloat16 1.0 times as fast as float32, too little for "auto"'
    assert ops.remarks()["onednn"][1:] == [wanted] * bfloat16
    choose(ops, "forward", "numpy")
    wanted = f"1 convolutions as measured with {ops.runtime().threads} threads, {path}"
    assert fresh(ops).remarks()["onednn"][0] == wanted
    monkeypatch.setenv("SINGANET_ROUTES", "off")
    assert "SINGANET_ROUTES=off" in fresh(ops).remarks()["onednn"][0]


def test_llvms_routes_come_first():
    # oneDNN's kernels by channel are as fast, but for the gradient of large kernels.
    others = {"depthwise_conv2d", "depthwise_conv2d_backward_data"}
    # oneDNN serves bfloat16 alone, LLVM's functions float32 alone.
    others |= {"attend", "attend_backward"}
    # The gradients of an LSTM read what oneDNN's forward keeps, if that ran.
    others |= {"lstm_layer_backward"}
    for name, kernel in vars(LlvmOps).items():
        if hasattr(kernel, "routes") and name not in others:
            assert getattr(OneDnnOps, name).routes[0].name == "compiled", name
