"""State of large parameters that comes in parts of its rows: the same steps in less memory."""

from functools import partial

import numpy as np
import pytest

import singanet
from singanet import optimizer as opt
from singanet.errors import ArgumentError, FileAccessError
from singanet.layers import Dense, Embedding, Input
from singanet.loss import SoftmaxCrossEntropy
from singanet.offload import parts
from singanet.offload.generation import PlacedFile
from singanet.optimizer import LAMB, SGD, Accumulator, Adam, AdamW, ClipByGlobalNorm, ClipNorm
from tests.offload.twins import Twins, arrays_of, expect_same

WORDS, WIDTH, STEPS = 500, 48, 7
TABLE = WORDS * WIDTH * 4
KEEP = TABLE + 3 * 10_000
"""The table, 96 kB, and two parts of 10 kB of its state, 192 kB of Adam's."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART", 5_000)


def net_of(tied: bool) -> singanet.FeedForwardNet:
    ids, table = Input("ids", (STEPS,), "int64"), Embedding("table", WORDS, WIDTH)
    rows = table(ids)
    shared = {"W_specs": table.params["weight"], "W_transpose": True} if tied else {}
    head = Dense("head", WORDS if tied else 5, **shared)
    scores = head(Dense("mid", WIDTH)(rows))
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=ids, outputs=scores, seed=1)


def batch(tied: bool, seed: int = 0):
    """Words of which some parts of the table have none."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, WORDS // 3, (3, STEPS))
    return ids, ids if tied else ids % 5


RULES = {
    "adam": lambda: Adam(lr=0.01),
    "momentum": lambda: SGD(lr=lambda step: 0.1 / (1 + step), momentum=0.9, nesterov=True),
    "adamw": lambda: AdamW(lr=0.01, weight_decay=0.1),
    "decoupled": lambda: SGD(lr=0.01, momentum=0.9, weight_decay=0.1, decoupled=True),
    "decay": lambda: Adam(lr=0.01, regularizer=opt.L2Regularizer(0.1)),
    "clipped": lambda: ClipByGlobalNorm(Adam(lr=0.01), 0.1),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_those_in_memory_where_only_the_table_fits(tmp_path, tied, rule):
    twins = Twins(partial(net_of, tied), tmp_path / "net", KEEP, RULES[rule])
    for k in range(4):
        twins.step(*batch(tied, k))
    assert twins.net.executor.shelf.peak <= KEEP
    assert not twins.net.executor.programs.refusals
    twins.expect_same()
    twins.net.onload()
    for k in range(3):
        twins.step(*batch(tied, k))
    twins.expect_same()


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [True, False])
def test_the_folder_goes_on_where_it_was_left_in_parts_of_any_size(tmp_path, monkeypatch, tied):
    plain, here = net_of(tied), Adam(lr=0.01)
    rule = Adam(lr=0.01)
    for k, part in enumerate((5_000, 7_000, 1 << 30, 3_000)):
        monkeypatch.setattr(parts, "PART", part)
        net, rule = net_of(tied), Adam(lr=0.01)
        net.offload(tmp_path / "net", 4 * TABLE, optimizer=rule, resume=k > 0)
        for seed in (k, k + 10):
            assert net.step(*batch(tied, seed), rule) == plain.step(*batch(tied, seed), here)
        expect_same(arrays_of(net), arrays_of(plain))
        expect_same(rule.state_dict(), here.state_dict())
        net.executor.end()
    other = net_of(tied)
    other.load(tmp_path / "net")
    expect_same(arrays_of(other), arrays_of(plain))


@pytest.mark.few(1)
@pytest.mark.parametrize("tied", [True, False])
def test_loops_of_ones_own_and_hooks_have_whole_arrays(tmp_path, tied):
    twins = Twins(partial(net_of, tied), tmp_path / "net", 5 * TABLE)
    seen = []
    for each, rule in twins.each():
        x, y = batch(tied)
        each.step(x, y, rule)
        seen.append({})
        each.step(
            x, y, rule,
            lambda item: seen[-1].update(zip(item.names, map(np.shape, item.values), strict=True)),
        )  # fmt: skip
        each.loss.forward(True, each.forward(True, x), y)
        for item in each.backward(each.loss.backward()):
            rule.update(*item)
        each.step(x, y, rule)
    assert seen[0] == seen[1]
    twins.expect_same()


@pytest.mark.few(1)
@pytest.mark.parametrize("rule", [
    lambda: LAMB(lr=0.01), lambda: Adam(lr=0.01, constraint=ClipNorm(0.1)),
    lambda: Accumulator(Adam(lr=0.01), 2),
])  # fmt: skip
def test_what_needs_whole_arrays_has_them_or_is_refused(tmp_path, rule):
    twins = Twins(partial(net_of, True), tmp_path / "net", KEEP, rule)
    before = arrays_of(twins.net)
    with pytest.raises(ArgumentError, match="bytes at least"):
        twins.net.step(*batch(True), twins.there)
    expect_same(arrays_of(twins.net), before)
    twins.net.onload()
    twins.net.offload(tmp_path / "more", 6 * TABLE)
    for k in range(4):
        twins.step(*batch(True, k))
    twins.expect_same()


def test_loops_of_ones_own_and_hooks_keep_to_the_memory_that_was_given(tmp_path):
    twins = Twins(partial(net_of, True), tmp_path / "net", KEEP)
    for net, rule in twins.each():
        x, y = batch(True)
        net.step(x, y, rule)
        net.step(x, y, rule, lambda item: None)
        net.loss.forward(True, net.forward(True, x), y)
        for item in net.backward(net.loss.backward()):
            rule.update(*item)
        net.step(*batch(True, 1), rule)
    assert twins.net.executor.shelf.peak <= KEEP
    twins.expect_same()


def test_a_rule_with_and_without_a_stage_keeps_its_state(tmp_path):
    twins = Twins(partial(net_of, True), tmp_path / "net", 5 * TABLE)
    for each, rule in twins.each():
        gathered = Accumulator(rule, 2)
        for k in range(6):
            each.step(*batch(True, k), rule if k in (0, 5) else gathered)
    twins.expect_same()


def test_state_that_was_forgotten_begins_at_zeros(tmp_path):
    twins = Twins(partial(net_of, False), tmp_path / "net", KEEP)
    twins.step(*batch(False))
    for _, rule in twins.each():
        for state in rule.states():
            state.forget()
    # Of the table only some rows get state again.
    twins.step(*batch(False, 1))
    twins.net.executor.end()
    twins.net, twins.there = net_of(False), Adam(lr=0.01)
    twins.net.offload(tmp_path / "net", KEEP, optimizer=twins.there, resume=True)
    for k in (2, 3):
        twins.step(*batch(False, k))
    twins.expect_same()


@pytest.mark.few(1)
@pytest.mark.parametrize("allowed", [0, 3, 30, 50])
def test_a_step_that_the_folder_fails_between_parts_is_undone(tmp_path, monkeypatch, allowed):
    twins = Twins(partial(net_of, True), tmp_path / "net", KEEP)
    twins.step(*batch(True))
    left, write = [allowed], PlacedFile.write

    def failing(self, *given):
        left[0] -= 1
        if left[0] < 0:
            raise FileAccessError(
                "the folder", expected="room", received="none", advice="make some"
            )
        write(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(PlacedFile, "write", failing)
        with pytest.raises(FileAccessError):
            twins.net.step(*batch(True, 1), twins.there)
    twins.expect_same()
    for k in (1, 2):
        twins.step(*batch(True, k))
    twins.expect_same()


def test_a_budget_needs_the_table_and_a_part_of_its_state():
    plan = partial(net_of(True).plan, 3, allow=["offload"])
    least = {}
    for rule in (Adam(lr=0.01), LAMB(lr=0.01)):
        with pytest.raises(ArgumentError) as caught:
            plan(rule, "1kB")
        least[type(rule)] = int(caught.value.advice.split()[2].rstrip(",;"))
    assert least[LAMB] - least[Adam] > 1.9 * (2 * TABLE - 10_000)


@pytest.mark.parametrize("tied", [True, False])
def test_a_stage_without_parts_comes_around_a_rule_with_them(tmp_path, tied):
    """As where a budget offloads with micro-batches: state that no step has written is zeros."""
    plain, net, here, there = net_of(tied), net_of(tied), AdamW(lr=0.01), AdamW(lr=0.01)
    net.offload(tmp_path / "net", 5 * TABLE, optimizer=there)
    here, there = Accumulator(here, 2), Accumulator(there, 2)
    for k in range(6):
        plain.step(*batch(tied, k), here)
        net.step(*batch(tied, k), there)
    expect_same(arrays_of(net), arrays_of(plain))


def test_a_budget_of_micro_batches_needs_whole_state():
    plan = net_of(True).plan(4, Adam(lr=0.01), allow=["micro-batches", "offload"])
    keeps = {way.micro_batch: way.keep for way in plan.table if way.keep is not None}
    assert keeps == {4: TABLE + 9_984, 2: 3 * TABLE, 1: 3 * TABLE}
