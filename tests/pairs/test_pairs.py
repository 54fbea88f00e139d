"""Each pair of features trains as the plain step does, or says why not; the table tells which."""

import re
import warnings

import numpy as np
import pytest

from singanet.errors import SingaNetError
from singanet.parallel import AllReduce
from singanet.parallel.pipeline.partition import RemoteStorage
from tests.pairs import training
from tests.pairs.comparing import NEAR, comparison_of, difference, expected
from tests.pairs.declared import (
    BITS,
    CLOSE,
    NAMES,
    OUTCOMES,
    PAGE,
    PAIRS,
    RULED,
    outcome,
    page_with_table,
)
from tests.pairs.training import RULES, Case, carried_out, net_of, rounds_to_bfloat16, shape_of

DRAWN = 500
"""The seeds of random features."""


def named(features):
    return " and ".join(sorted(features, key=NAMES.index))


def tried(features, folder, seed=0, rule="sgd"):
    """The case, what differs from what it is compared with, and what was left out of it."""
    skip_without_bfloat16(features)
    made = comparison_of(features)
    case = Case(shape_of(features), features, made.dtype, seed, rule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = carried_out(case, folder)
        wanted = expected(case.shape, made, seed, rule)
    left_out = next((each.missing for each in found if each.missing), "")
    if seed and made.tolerance > NEAR:
        # Drawn layers make more of what is rounded, and biases that hardly move.
        return difference(found, wanted, 4 * made.tolerance, 0.1), left_out
    return difference(found, wanted, made.tolerance), left_out


def expect_unchanged(case):
    """No parameter of any net of ``case`` is other than it was in the beginning."""
    plain = Case(case.shape, case.on & {"low-rank pairs"}, seed=case.seed)
    fresh = {param.name: param.value for param in net_of(plain).params()}
    for net in case.nets:
        for param in (each for each in net.params() if not isinstance(each.storage, RemoteStorage)):
            np.testing.assert_array_equal(param.peek(), fresh[param.name].astype(param.array_type))


def expect_refused(features, found, folder, seed=0, rule="sgd"):
    """The error names a condition of ``found``, and nothing has changed."""
    skip_without_bfloat16(features)  # which is refused first
    case = Case(shape_of(features), features, seed=seed, rule=rule)
    with pytest.raises(SingaNetError, match="|".join(map(re.escape, found.conditions))):
        carried_out(case, folder)
    expect_unchanged(case)


def skip_without_bfloat16(features):
    if "bfloat16" in features and not rounds_to_bfloat16():
        pytest.skip("bfloat16 needs oneDNN's kernels and a processor with AVX-512")


@pytest.mark.parametrize("features", [frozenset({name}) for name in NAMES], ids=named)
def test_each_feature_trains_as_the_plain_step(features, tmp_path):
    wrong, left_out = tried(features, tmp_path)
    assert not wrong
    assert not left_out


COMBINE = [
    # Products that most processors do not have take their time.
    pytest.param(pair, marks=[pytest.mark.full] if "bfloat16" in pair else [])
    for pair in PAIRS
    if pair not in OUTCOMES
]


@pytest.mark.few(40, full=120)
@pytest.mark.parametrize("features", COMBINE, ids=named)
def test_pairs_train_as_the_plain_step(features, tmp_path):
    wrong, left_out = tried(features, tmp_path)
    assert not wrong
    assert not left_out


THREE = [
    ("budget", "offload", "float16"),
    ("float16", "pipeline", "EMA"),
    ("float16", "all-reduce", "Executor"),
    ("all-reduce", "accumulation", "Executor"),
    ("offload", "all-reduce", "cached embeddings"),
    ("offload", "parameter server", "cached embeddings"),
    ("micro-batches", "all-reduce", "several outputs"),
    ("recorded", "parameter server", "EMA"),
]
"""What a third feature broke, of pairs that combine."""


def drawn(seed):
    """Two to five features and a rule that a training can be asked for together."""
    rng = np.random.default_rng([58, seed])
    while True:
        features = frozenset(map(str, rng.choice(NAMES, rng.integers(2, 6), replace=False)))
        rule = str(rng.choice([*RULES]))
        if features & RULED or comparison_of(features).formula:
            # By hand there is the one.
            rule = "sgd"
        found = outcome(features, rule)
        if found is None or found.kind != "none":
            return features, seed, rule


@pytest.mark.few(20, full=60)
@pytest.mark.parametrize(
    ("features", "seed", "rule"),
    [
        *((frozenset(each), 0, "sgd") for each in THREE),
        *(drawn(seed) for seed in range(1, DRAWN)),
    ],
    ids=lambda each: named(each) if isinstance(each, frozenset) else str(each),
)
def test_features_train_as_the_plain_step_or_are_refused(features, seed, rule, tmp_path):
    """Random features of a random net: what comes of them is what their terms say."""
    found = outcome(features, rule)
    if found is not None and found.kind == "refused":
        expect_refused(features, found, tmp_path, seed, rule)
        return
    wrong, left_out = tried(features, tmp_path, seed, rule)
    assert not wrong, wrong
    assert bool(left_out) == (found is not None), left_out


def test_ranks_that_would_round_each_at_random_are_refused(tmp_path, monkeypatch):
    prepare = training.prepare

    def narrowed(case, net):
        prepare(case, net)
        net.as_type("bfloat16")

    monkeypatch.setattr(training, "prepare", narrowed)
    features = frozenset({"all-reduce"})
    with pytest.raises(SingaNetError, match="rounding='remainder'"):
        carried_out(Case(shape_of(features), features, "float32"), tmp_path)


def of_kind(kind):
    return [pair for pair, apart in OUTCOMES.items() if apart.kind == kind]


@pytest.mark.parametrize("features", of_kind("left out"), ids=named)
def test_pairs_of_which_one_is_left_out_train_without_it(features, tmp_path):
    wrong, left_out = tried(features, tmp_path)
    assert not wrong
    assert left_out, "it combines now: change the terms of one"


@pytest.mark.parametrize("features", of_kind("refused"), ids=named)
def test_pairs_that_are_refused_have_changed_nothing(features, tmp_path):
    expect_refused(features, OUTCOMES[features], tmp_path)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in BITS | CLOSE])
def test_what_changes_results_changes_them(name, tmp_path):
    """Else its pairs would be compared with nothing."""
    shape = frozenset({name})
    skip_without_bfloat16(shape)
    with_it = carried_out(Case(shape, shape), tmp_path)[0]
    without = carried_out(Case(shape, frozenset()), tmp_path)[0]
    same = (np.array_equal(each, without.values[n]) for n, each in with_it.values.items())
    assert name in ("masks", "several outputs") or not all(same)


def test_a_lost_weight_is_seen(tmp_path, monkeypatch):
    """Ranks with other numbers of samples weigh by them."""
    begin = AllReduce.begin
    monkeypatch.setattr(AllReduce, "begin", lambda self, count: begin(self, 1.0))
    wrong, _ = tried(frozenset({"all-reduce", "EMA"}), tmp_path)
    assert "is off by" in wrong


def test_the_table_of_the_guide_is_the_declared_one():
    page = PAGE.read_text("utf-8")
    assert page == page_with_table(page), "run python -m tests.pairs.declared"
