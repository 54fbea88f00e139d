"""Parameters that lie side by side are updated as one, to the bit as one after the other."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import optimizer as opt
from singanet.optimizer import SGD, AccumulatingAdam, Adam, AdamW, ClipByValue, ClipNorm
from singanet.optimizer.chain import Together
from singanet.optimizer.schedules import Cosine
from singanet.params.param import ParamSpec
from singanet.params.storage import lay_as_one
from tests.optimizer.rules import RULES as KINDS

SHAPES = ((3, 4), (4,), (), (40_000,), (2, 1, 5), (7,))
NAMES = [f"p{k}" for k in range(len(SHAPES))]
JOINED = {name: rule for name, rule in KINDS.items() if not (rule.whole or "folded" in name)} | {
    "decay": lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "schedule": lambda: Adam(lr=Cosine(0.1, 9)),
    "AdamW": lambda: AdamW(lr=0.1, weight_decay=0.1),
    "L1": lambda: Adam(lr=0.1, regularizer=opt.L1Regularizer(0.01)),
}
APART = {name: rule for name, rule in KINDS.items() if rule.whole} | {
    "own schedule": lambda: Adam(lr=lambda step: 0.1 / (1 + step)),
    "constraint": lambda: SGD(lr=0.1, constraint=ClipNorm(0.5)),
    "stage": lambda: ClipByValue(Adam(lr=0.1), 0.5),
    "gathering": lambda: AccumulatingAdam(lr=0.1, every=2),
}
RULES = JOINED | APART


def drawn(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(dtype) for shape in SHAPES]


def flat(arrays):
    return np.concatenate([array.reshape(-1) for array in arrays])


def specs(seed):
    """Settings of their own for some parameters."""
    rng = np.random.default_rng(seed)
    for name in NAMES:
        kind = rng.integers(0, 6)
        yield ParamSpec(
            name, lr_mult=2.0 if kind == 1 else 1.0, decay_mult=0.0 if kind == 2 else 1.0,
            constraint=ClipNorm(0.5) if kind == 3 else None,
        )  # fmt: skip


class Pair:
    """One optimizer by all at once, and another by each; their parameters lie apart."""

    def __init__(self, rule, seed, dtype=np.float32, own=()):
        self.one, self.other = RULES[rule](), RULES[rule]()
        self.laid = lay_as_one(drawn(seed, dtype), np.asarray)
        self.apart = drawn(seed, dtype)
        for spec in own:
            self.one.register(spec.name, spec)
            self.other.register(spec.name, spec)
        self.together = Together(self.one, NAMES, self.laid)

    def step(self, seed, scale=1.0, only=None):
        grads = drawn(seed, self.laid[0].dtype)
        if only is None:
            self.together.update(flat(grads), scale)
        for k, name in enumerate(NAMES):
            if only is None or k == only:
                self.other.update([name], [self.apart[k]], [grads[k]], scale)
            if k == only:
                self.one.update([name], [self.laid[k]], [grads[k]], scale)

    def expect_equal(self):
        for one, other in zip(self.laid, self.apart, strict=True):
            np.testing.assert_array_equal(one, other)
        state, expected = self.one.state_dict(), self.other.state_dict()
        assert state.keys() == expected.keys()
        for key, array in expected.items():
            np.testing.assert_array_equal(state[key], array, err_msg=key)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_all_at_once_is_one_after_the_other(rule, dtype):
    pair = Pair(rule, 0, dtype)
    for step in range(4):
        pair.step(1 + step, 0.5 if step % 2 else 1.0)
        pair.expect_equal()


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(RULES)),
    st.integers(0, 10**6),
    st.lists(st.sampled_from(["all", "one", "load", "rate", "settings"]), max_size=6),
)
def test_whatever_comes_between(rule, seed, calls):
    rng = np.random.default_rng(seed)
    pair = Pair(rule, seed, own=specs(seed))
    for call in ["all", *calls, "all"]:
        if call == "all":
            pair.step(int(rng.integers(10**6)), float(rng.choice([1.0, 0.5])))
        elif call == "one":
            pair.step(int(rng.integers(10**6)), only=int(rng.integers(len(NAMES))))
        elif call == "load":
            for each in (pair.one, pair.other):
                each.load_state_dict(each.state_dict())
        elif call == "rate":
            for each in (pair.one, pair.other):
                getattr(each, "optimizer", each).lr = 0.05
        else:
            for spec in specs(seed + 1):
                pair.one.register(spec.name, spec)
                pair.other.register(spec.name, spec)
    pair.expect_equal()


def counted(optimizer):
    """How often the rule of ``optimizer`` has run."""
    runs, rule = [], optimizer._rule

    def run(xp, w, *rest):
        runs.append(w.size)
        rule(xp, w, *rest)

    optimizer._rule = run
    return runs


@pytest.mark.parametrize("rule", JOINED)
def test_a_rule_of_elements_runs_once_a_block(rule):
    pair = Pair(rule, 0)
    pair.step(1)
    runs = counted(pair.one)
    pair.together.update(flat(drawn(2)))
    total = sum(array.size for array in pair.laid)
    assert runs == [1 << 15, total - (1 << 15)]


def test_those_of_other_settings_are_runs_of_their_own():
    pair = Pair("momentum", 0, own=[ParamSpec("p1", lr_mult=0.5)])
    pair.step(1)
    runs = counted(pair.one)
    pair.together.update(flat(drawn(2)))
    assert runs[:2] == [12, 4]
    assert len(runs) == 4


def test_a_schedule_of_ones_own_is_asked_for_each():
    asked = []

    def rate(step):
        asked.append(step)
        return 0.1

    laid = lay_as_one(drawn(0), np.asarray)
    Together(SGD(lr=rate), NAMES, laid).update(flat(drawn(1)))
    assert len(asked) == len(NAMES)


def test_values_that_lie_apart_are_updated_too():
    values, expected = drawn(0), drawn(0)
    Together(SGD(lr=1.0), NAMES, values).update(flat(drawn(1)))
    for value, before, grad in zip(values, expected, drawn(1), strict=True):
        np.testing.assert_array_equal(value, before - grad)


@pytest.mark.parametrize("make",
    [RULES[name] for name in ("sgd", "decay", "adam", "lion", "lamb", "constraint")])  # fmt: skip
@pytest.mark.parametrize("first", [0, 3, 7])
def test_rows_that_follow_each_other_are_updated_as_any(make, first):
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(10, 4)).astype(np.float32)
    apart = np.repeat(dense, 2, axis=0)
    before, one, other = apart.copy(), make(), make()
    rows = np.arange(first, first + 3)
    for _ in range(3):
        grads = rng.normal(size=(3, 4)).astype(np.float32)
        one.update(["table"], [dense], [(rows, grads)])
        other.update(["table"], [apart], [(2 * rows, grads)])
    np.testing.assert_array_equal(dense, apart[::2])
    np.testing.assert_array_equal(apart[1::2], before[1::2])
    for mine, spread in zip(one.state("table").arrays, other.state("table").arrays, strict=True):
        if mine.size == dense.size:
            np.testing.assert_array_equal(mine.reshape(10, 4), spread.reshape(20, 4)[::2])
