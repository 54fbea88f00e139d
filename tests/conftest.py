"""What every test shares: the array modules, a seeded generator, hypothesis without a clock."""

import gc
import os
import random
import signal
import sys
from collections import Counter
from functools import cache
from textwrap import shorten

# A shell has what it starts in the background ignore interrupts, for which some tests wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Both before anything imports Keras or NumPy, which read them once.
os.environ["KERAS_BACKEND"] = "torch"
# What was measured on the machine of whoever runs the tests decides no test.
os.environ["SINGANET_ROUTES"] = "off"
# Who looks for the cause of a failed test needs the library's own frames.
os.environ.setdefault("SINGANET_TRACEBACK", "full")
if "PYTEST_XDIST_WORKER" in os.environ:
    # One test process a core already; threads of BLAS on top would only fight for them.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")

import numpy as np
import pytest
from hypothesis import find, settings
from hypothesis.strategies import booleans

from singanet.device import cuda
from singanet.testing import strict_device
from singanet.testing.device_like import device_like
from tests.kit.draws import SEED

# The default selection says the same each time; wider ones see other examples in each run but CI's.
settings.register_profile("default", max_examples=10, deadline=None, derandomize=True)
settings.register_profile("full", max_examples=18, deadline=None, derandomize="CI" in os.environ)


def pytest_configure(config):
    """Give hypothesis its number of examples, and let no test see the width of a terminal."""
    os.environ.pop("COLUMNS", None)
    gc.disable()
    settings.load_profile("default" if "not full" in config.option.markexpr else "full")


def pytest_collection_finish():
    """Exclude all tests from garbage collections, which were off while they were made."""
    # Hypothesis makes its generator now: it warns when the collector knows of nobody who has that.
    find(booleans(), bool)
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter):
    """Say in a line how many tests were skipped, and the most common reasons."""
    skipped = terminalreporter.stats.get("skipped", ())
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    if reasons:
        common = "; ".join(
            f"{count} {shorten(reason, 60)}" for reason, count in reasons.most_common(4)
        )
        rest = "; -rs lists all" if len(reasons) > 4 else ""
        terminalreporter.line(f"skipped {len(skipped)} tests: {common}{rest}")


def _cupy():
    """CuPy where it and a GPU are there; otherwise the reason why it is not."""
    try:
        import cupy
    except ImportError:
        return None, "CuPy is not installed: pip install cupy-cuda13x"
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return None, f"CuPy finds no GPU: {error}"
    return (cupy, "") if count else (None, "CuPy finds no GPU")


CUPY, WHY_NOT = _cupy()


def pytest_report_header():
    """Say the seed, and once what 3,000 tests would say one by one."""
    lines = [f"drawn by the day's seed: set SINGANET_SEED={SEED} to draw the same again"]
    return lines + ([f"tests marked 'device' are left out: {WHY_NOT}"] if WHY_NOT else [])


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config, items):
    """Mark wide products `full`, and leave out the tests that need a GPU where there is none."""
    _mark_breadth(items)
    if CUPY is None and (left_out := [item for item in items if "device" in item.keywords]):
        items[:] = [item for item in items if "device" not in item.keywords]
        config.hook.pytest_deselected(items=left_out)


def _mark_breadth(items):
    """Mark `full` the cases of a test in which no value of a parameter is met for the first time.

    So the default selection meets each value of each parameter of a product, and not their pairs;
    of a test marked ``few(n)`` only ``n`` cases, drawn by the day's seed. With ``full=m`` only
    ``m`` of the others are `full`, and the rest is `slow`.
    """
    tests = {}
    for item in items:
        if {"full", "slow", "device"} & set(item.keywords) or not isinstance(item, pytest.Function):
            continue
        if not hasattr(item, "callspec"):
            continue
        if item.originalname == "test_layer":
            # Layers run on NumPy's arrays by default; of the strict ones CI draws half.
            if item.callspec.params.get("xp") == "device_like":
                drawn = random.Random(f"{SEED} {item.nodeid}").random() < 0.5
                item.add_marker(pytest.mark.full if drawn else pytest.mark.slow)
        else:
            tests.setdefault((item.parent, item.originalname), []).append(item)
    for cases in tests.values():
        few = cases[0].get_closest_marker("few")
        count = few.args[0] if few else len(cases)
        if few:
            random.Random(f"{SEED} {cases[0].originalname}").shuffle(cases)
        values = {item: _values(item) for item in cases}
        while cases and len(values) - len(cases) < count:
            item = max(cases, key=lambda item: len(values[item]))
            met = set(values[item])
            if not met:
                break
            cases.remove(item)
            for each in cases:
                values[each] -= met
        full = few.kwargs.get("full") if few else None
        for at, item in enumerate(cases):
            item.add_marker(pytest.mark.full if full is None or at < full else pytest.mark.slow)


def _values(item):
    """The values of a test's lists of parameters; those that one list gives together are one."""
    given = item.callspec.params
    marks = item.iter_markers("parametrize")
    lists = [mark.args[0] if mark.args else mark.kwargs["argnames"] for mark in marks]
    lists = [names.split(",") if isinstance(names, str) else names for names in lists]
    lists = [tuple(name.strip() for name in names) for names in lists]
    lists += [(name,) for name in given.keys() - {name for names in lists for name in names}]
    return {(names, *(id(given.get(name)) for name in names)) for names in lists}


# Where there is no GPU its 3,000 tests are not even made, which would take a tenth of collecting.
ON_GPU = [] if CUPY is None else [pytest.param("cupy", marks=pytest.mark.device)]


@cache
def _freeze_new_modules(count):
    """Exclude modules imported since the last call from collections: PyTorch's take 0.1 s each."""
    gc.freeze()


@cache
def _generators_of(module):
    """The generators that a test module has, with their states once it is imported."""
    found = [value for value in vars(module).values() if isinstance(value, np.random.Generator)]
    return [(generator.bit_generator, generator.bit_generator.state) for generator in found]


def pytest_runtest_setup(item):
    """Let every test draw from its module's generator as if it were the only one."""
    _freeze_new_modules(len(sys.modules))
    if isinstance(item, pytest.Function):
        for bits, state in _generators_of(item.module):
            bits.state = state


@pytest.fixture(params=["numpy", "device_like", *ON_GPU])
def xp(request):
    """The array module under test: numpy, arrays as strict as a GPU's, then cupy."""
    return {"numpy": np, "device_like": device_like, "cupy": CUPY}[request.param]


@pytest.fixture(params=["strict", *ON_GPU])
def gpu(request):
    """A device other than the CPU: one as strict as a GPU, then a GPU."""
    return strict_device() if request.param == "strict" else cuda()


@pytest.fixture
def rng():
    """A generator with the same seed for every test."""
    return np.random.default_rng(20160401)
