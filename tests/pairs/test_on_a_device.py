"""Features and their pairs on a GPU's arrays: what they train is what they train on the CPU."""

import warnings

import pytest

from singanet.device import cpu
from singanet.ops import numpy_ops
from singanet.testing import FakeCommunicator, strict_device
from tests.pairs import training
from tests.pairs.comparing import difference
from tests.pairs.declared import NAMES, OUTCOMES, PAIRS
from tests.pairs.training import SUMS, Case, carried_out, shape_of

THERE = frozenset(NAMES) - {"bfloat16", "sharded parameters"}
"""Those that a GPU has."""


THESE = [pair for pair in PAIRS if pair <= THERE and pair not in OUTCOMES]

THESE_SUMS = sorted(SUMS & THERE)
BESIDE_SUMS = [
    "clipping by global norm", "accumulation", "float16", "EMA", "masks", "several outputs",
    "freezing", "user's optimizer",
]  # fmt: skip


def trained(features, folder, device, monkeypatch):
    prepare = training.prepare

    def placed(case, net):
        prepare(case, net)
        if device is not None:
            net.to_device(device)

    folder.mkdir()
    with monkeypatch.context() as patched, warnings.catch_warnings():
        patched.setattr(training, "prepare", placed)
        warnings.simplefilter("ignore")
        return carried_out(Case(shape_of(features), features, "float32"), folder)


def expect_same(features, folder, device, monkeypatch):
    wanted = trained(features, folder / "cpu", None, monkeypatch)
    found = trained(features, folder / "there", device, monkeypatch)
    near = 2.0**-7 if "float16" in features else 2e-5
    if "narrow weights" in features and cpu().ops is not numpy_ops:
        # oneDNN's kernels round rows that they multiply by such.
        near = 2.0**-5
    for one, other in zip(found, wanted, strict=True):
        for name, value in one.values.items():
            one.values[name] = value.get() if hasattr(value, "get") else value
        assert not difference([one], other, near)
    return found, wanted


@pytest.mark.few(5)
@pytest.mark.parametrize("name", [name for name in NAMES if name in THERE])
def test_each_feature_trains_there_as_on_the_cpu(name, gpu, tmp_path, monkeypatch):
    expect_same(frozenset({name}), tmp_path, gpu, monkeypatch)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    "features",
    # The others where there is a GPU, or are slow.
    [
        pair if k % 6 == 0 else pytest.param(pair, marks=pytest.mark.slow)
        for k, pair in enumerate(THESE)
    ],
    ids=lambda pair: " and ".join(sorted(pair, key=NAMES.index)),
)
def test_pairs_train_there_as_on_the_cpu(features, gpu, tmp_path, monkeypatch):
    expect_same(features, tmp_path, gpu, monkeypatch)


@pytest.mark.few(8, full=0)
@pytest.mark.parametrize("takes", [False, True], ids=["over the host", "there"])
@pytest.mark.parametrize("feature", BESIDE_SUMS)
@pytest.mark.parametrize("sums", THESE_SUMS)
def test_ranks_train_there_by_programs(sums, feature, takes, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeCommunicator, "_on_device", takes)
    features = frozenset({"recorded", sums, feature})
    found, wanted = expect_same(features, tmp_path, strict_device(), monkeypatch)
    # What is not recorded here, such as rows of a table that is cut, is not there either.
    assert [one.missing for one in found] == [one.missing for one in wanted]


@pytest.mark.parametrize("of", ["float16", "narrow weights"])
def test_state_that_a_recording_is_the_first_to_make_lies_there(of, gpu, tmp_path, monkeypatch):
    # Momentum of the masters: on the host each program would have a copy of its own.
    expect_same(frozenset({"budget", of}), tmp_path, gpu, monkeypatch)
