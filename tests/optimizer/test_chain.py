"""The chain from gradients to the rule: what it consists of, when it is due, how a step goes."""

import weakref
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from singanet import optimizer as opt
from singanet.errors import ArgumentError
from singanet.initializer import Constant
from singanet.optimizer import SGD, Accumulator, ClipByGlobalNorm, ClipByValue, MixedPrecision
from singanet.optimizer.averaged import Averaged
from singanet.optimizer.chain import UpdateChain, without_reductions
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.parallel import AllReduce
from singanet.parallel.communicators.communicator import SingleProcess
from singanet.params.param import Param, ParamSpec


class Written:
    """An optimizer by its methods alone, which writes down what it is given."""

    def __init__(self):
        self.seen: list[Any] = []

    def update(self, names, values, grads, *scale):
        self.seen.append((list(names), [grad.copy() for grad in grads], scale))


def items(*grads):
    """An item a gradient, for parameters a, b, ..."""
    return [
        ([chr(97 + k)], [np.zeros(len(grad))], [np.array(grad)]) for k, grad in enumerate(grads)
    ]


def test_the_stages_come_in_the_order_in_which_gradients_meet_them():
    rule = SGD(lr=1.0)
    inner = ClipByValue(rule, 1.0)
    outer = Accumulator(inner, 2)
    chain = UpdateChain(outer)
    assert (chain.stages, chain.rule, chain.own_rule) == ((outer, inner), rule, rule)
    assert (UpdateChain(rule).stages, UpdateChain(rule).rule) == ((), rule)
    duck = UpdateChain(written := Written())
    assert (duck.stages, duck.rule, duck.own_rule) == ((), written, None)


def test_a_process_alone_has_the_other_stages_and_the_same_rule():
    rule = SGD(lr=1.0)
    inner = ClipByValue(rule, 0.5)
    outer = Accumulator(AllReduce(inner, SingleProcess()), 2)
    alone = UpdateChain(without_reductions(outer))
    assert [type(stage) for stage in alone.stages] == [Accumulator, ClipByValue]
    assert alone.rule is rule
    assert (alone.stages[0].every, alone.stages[1].limit) == (2, inner.limit)
    # Those of all processes still have the reducer between them.
    assert [type(stage) for stage in UpdateChain(outer).stages] == [
        Accumulator, AllReduce, ClipByValue
    ]  # fmt: skip
    assert without_reductions(rule) is rule


def test_the_bytes_of_state_before_and_after_the_first_update():
    spec = ParamSpec("a")
    param = Param(spec, (3, 4), Constant(0.0))
    param.dtype = np.dtype(np.float16)
    adam = opt.Adam(lr=0.1)
    plain, scaled = UpdateChain(adam), UpdateChain(ScaledUpdates(adam, MixedPrecision()))
    assert plain.slots_of(param) == dict.fromkeys(adam.slots, ((3, 4), np.dtype(np.float16)))
    assert (plain.state_bytes(param), scaled.state_bytes(param)) == (2 * 2 * 12, 2 * 4 * 12)
    rows = UpdateChain(opt.Adafactor(lr=0.1)).slots_of(param)
    assert [shape for shape, _ in rows.values()] == [(3,), (4,), (0,)]
    assert UpdateChain(Written()).slots_of(param) == {}
    param.trainable = False
    assert plain.state_bytes(param) == plain.held_bytes() == 0
    chain = UpdateChain(Accumulator(adam, 2))
    for gathered in (12, 0):
        value = np.zeros((3, 4))
        chain.optimizer.update(["a"], [value], [np.ones((3, 4))])
        counts = 8 + 16  # of the micro-batches, and their weights
        held = 8 * gathered + counts * (gathered > 0) + 2 * 8 * 12 * (gathered == 0)
        assert chain.held_bytes() == held


def test_the_case_is_that_of_every_stage_and_of_the_rule():
    optimizer = ClipByValue(Accumulator(opt.AccumulatingSGD(2, lr=0.1), 3), 1.0)
    cases = []
    for _ in range(15):
        cases.append(UpdateChain(optimizer).case())
        optimizer.update(["w"], [np.zeros(2)], [np.ones(2)])
    assert len(cases[0]) == 3
    # From the rule's first update on: it counts those, two of them for one change.
    assert cases[3:9] == cases[9:15]
    assert len(set(cases[3:9])) == 6
    assert UpdateChain(Written()).case() == ((),)
    assert UpdateChain(SGD(lr=0.1)).case() == ((),)


def test_only_means_are_weighed_and_what_needs_all_gradients():
    rule = SGD(lr=1.0)
    mean, plain_sum = Accumulator(rule, 2), Accumulator(rule, 2, mean=False)
    assert UpdateChain(ClipByValue(mean, 1.0))._weighs
    assert not UpdateChain(plain_sum)._weighs
    assert not UpdateChain(rule)._weighs
    assert not UpdateChain(rule)._holds_all
    assert not UpdateChain(Accumulator(opt.ClipByLayerNorm(rule, 1.0), 2))._holds_all
    assert UpdateChain(Accumulator(ClipByGlobalNorm(rule, 1.0), 2))._holds_all
    assert UpdateChain(ScaledUpdates(rule, MixedPrecision()))._holds_all
    assert not UpdateChain(rule).knows_norm()


def test_the_updates_of_a_step():
    order = []

    class Ends(opt.Wrapper):
        def __init__(self, optimizer, name):
            super().__init__(optimizer)
            self._name = name

        def end(self):
            order.append(self._name)

    rule = Written()
    UpdateChain(rule).apply(items([1.0], [2.0]), order.append)
    assert [(names, float(grads[0][0]), scale) for names, grads, scale in rule.seen] == [
        (["a"], 1.0, ()),
        (["b"], 2.0, ()),
    ]
    assert [item[0] for item in order] == [["a"], ["b"]]
    order.clear()
    chain = Ends(ClipByValue(Ends(SGD(lr=1.0), "inner"), 9.0), "outer")
    given = items([1.0], [2.0])
    UpdateChain(chain).apply(given)
    assert order == ["outer", "inner"]
    assert [float(values[0][0]) for _, values, _ in given] == [-1.0, -2.0]
    UpdateChain(rule).apply(items([1.0]), scale=0.5)
    assert rule.seen[-1][2] == (0.5,)


def test_no_layer_s_gradients_outlive_the_next_ones():
    alive = []

    def streamed():
        for k in range(4):
            assert all(ref() is None for ref in alive)
            grad = np.ones(3)
            alive.append(weakref.ref(grad))
            item = [f"w{k}"], [np.zeros(3)], [grad]
            del grad
            yield item
            del item

    def two():
        return ClipByGlobalNorm(SGD(lr=1.0), 1.0)

    UpdateChain(SGD(lr=1.0)).apply(streamed(), lambda item: None)
    found = UpdateChain(Accumulator(two(), 1)).norm
    assert found is not None
    alive.clear()
    with found.knowing(streamed()):
        pass
    assert len(alive) == 4


@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_norm_is_due_at_the_last_micro_batch_unless_it_was_said(every):
    clip = ClipByGlobalNorm(SGD(lr=1.0), 1.0)
    optimizer = clip if every == 1 else Accumulator(clip, every)
    for k in range(2 * every):
        found = UpdateChain(optimizer).norm
        assert found is not None
        assert found.clip is clip
        assert len(found.gathering) == (every > 1)
        last = k % every == every - 1
        assert found.due() == last
        assert not UpdateChain(optimizer).knows_norm()
        with clip.knowing(1.0):
            assert not found.due()
            assert UpdateChain(optimizer).knows_norm()
            optimizer.update(["w"], [np.zeros(2)], [np.ones(2)])


def test_the_norm_is_that_of_the_mean_of_micro_batches():
    """√(3² + 4²) of the means 3 and 4, to which each micro-batch of 2 weighs twice one of 1."""
    clip = ClipByGlobalNorm(SGD(lr=1.0), 1.0)
    optimizer = Accumulator(clip, 2)
    values = [np.zeros(1), np.zeros(1)]
    optimizer.begin(2)
    optimizer.update(["a", "b"], values, [np.array([1.5]), np.array([6.0])])
    optimizer.begin(1)
    last = [np.array([6.0]), np.array([0.0])]
    found = UpdateChain(optimizer).norm
    assert found is not None
    with found.knowing([(["a"], values[:1], last[:1]), (["b"], values[1:], last[1:])]):
        for k, name in enumerate("ab"):
            optimizer.update([name], values[k : k + 1], last[k : k + 1])
    np.testing.assert_allclose(np.concatenate(values), [-0.6, -0.8])


@pytest.mark.parametrize("around", [ClipByValue, opt.ClipByLayerNorm, opt.ClipByRunningNorm])
def test_clipping_by_all_gradients_goes_outside_of_other_clipping(around):
    clip = ClipByGlobalNorm(SGD(lr=1.0), 1.0)
    with pytest.raises(ArgumentError, match=f"{around.__name__} around it"):
        _ = UpdateChain(around(clip, 1.0)).norm
    with pytest.raises(ArgumentError, match=f"write ClipByGlobalNorm\\({around.__name__}"):
        _ = UpdateChain(Accumulator(around(clip, 1.0), 2)).norm
    assert UpdateChain(ClipByGlobalNorm(around(SGD(lr=1.0), 1.0), 1.0)).norm is not None


def test_what_only_hands_on_may_stand_around_it():
    clip = ClipByGlobalNorm(SGD(lr=1.0), 1.0)
    for optimizer in (
        Averaged(clip, 0.9),
        ScaledUpdates(clip, MixedPrecision()),
        ScaledUpdates(Averaged(clip, 0.9), MixedPrecision()),
    ):
        found = UpdateChain(optimizer).norm
        assert found is not None
        assert not any(
            stage.traits.reads != "nothing" and not stage.traits.holds_all
            for stage in found.gathering
        )


@pytest.mark.parametrize("scale", [1.0, -2.0, 0.25])
@pytest.mark.parametrize("limit", [0.5, 5.0, 100.0])
def test_two_passes_of_the_callers_own(scale, limit):
    calls = []

    @contextmanager
    def rehearsal():
        calls.append("rehearsed")
        yield
        calls.append("undone")

    given = items([3.0, 0.0], [0.0, 4.0])

    def passes():
        calls.append("pass")
        return iter(given)

    norm = opt.clip_by_global_norm(SGD(lr=1.0), limit, passes, scale, rehearsal)
    assert norm == pytest.approx(5.0 * abs(scale))
    assert calls == ["rehearsed", "pass", "undone", "pass"]
    factor = scale * min(1.0, limit / norm)
    np.testing.assert_allclose(given[0][1][0], [-3.0 * factor, 0.0])
    np.testing.assert_allclose(given[1][1][0], [0.0, -4.0 * factor])


def test_a_norm_that_is_no_number_changes_nothing():
    given = items([1.0], [np.inf])
    with pytest.raises(ArgumentError, match="finite norm"):
        opt.clip_by_global_norm(SGD(lr=1.0), 1.0, lambda: given)
    assert not given[0][1][0].any()
