"""After an interrupt anywhere in a recorded step the net goes on as its state says."""

import operator
import signal
import sys
from collections import deque
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import singanet
from singanet.layers import Activation, Dense
from singanet.loss import SoftmaxCrossEntropy
from singanet.optimizer import SGD, Adam, ClipByGlobalNorm, NAdam
from singanet.optimizer.schedules import Cosine
from singanet.program.replay import replay
from singanet.program.trace import tape
from tests.interrupts import struck_at

RULES = {
    "adam": lambda: Adam(0.01),
    "nadam": lambda: NAdam(Cosine(0.01, 20)),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "clipped": lambda: ClipByGlobalNorm(Adam(0.01), 0.1),
}
X, Y = np.random.default_rng(0).standard_normal((6, 3)).astype(np.float32), np.arange(6) % 3


def small(recorded):
    net = singanet.FeedForwardNet(
        [Dense("a", 4, input_sample_shape=(3,)), Activation("t", "tanh"), Dense("b", 3)],
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )
    net.programs.enabled = recorded
    return net


def expect_to_go_on(rule, line):
    """Interrupt the fourth step at ``line``, if it has as many; whether it has.

    The next step is that of a net by the layers with the same parameters and the same state.
    """
    net, optimizer = small(True), RULES[rule]()
    for _ in range(3):
        net.step(X, Y, optimizer)
    struck = struck_at(line, lambda: net.step(X, Y, optimizer))
    other, own = small(False), RULES[rule]()
    for theirs, value in zip(other.params(), net.param_values(), strict=True):
        theirs.value[...] = value
    own.register_all(other.param_specs())
    own.load_state_dict(optimizer.state_dict())
    for each, by in ((net, optimizer), (other, own)):
        each.step(X, Y, by)
    for a, b in zip(net.param_values(), other.param_values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6, err_msg=f"line {line}")
    return struck


@pytest.mark.parametrize("rule", RULES)
def test_the_next_step_is_that_of_its_state(rule):
    line = 1
    while expect_to_go_on(rule, line):
        line += 23
    assert line > 100


@pytest.mark.full
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("each", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_it_is_interrupted(rule, each):
    line = 1
    while expect_to_go_on(rule, line):
        line += each


def struck_in(number, calls):
    """``calls`` of which one, of functions in C alone, strikes Ctrl-C as it ends."""
    made = [*calls]
    if number < len(made):
        strike = partial(signal.raise_signal, signal.SIGINT)
        both = map(operator.methodcaller("__call__"), [made[number], strike])
        made[number] = partial(deque, both, 0)
    return iter(made)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("again", [False, True])
def test_parameters_take_no_step_or_the_whole_step(monkeypatch, rule, again):
    """As they are before or after the step: a kernel has ended when Ctrl-C is heard.

    A second Ctrl-C strikes as the first is dealt with.
    """
    twin, optimizer = small(True), RULES[rule]()
    for _ in range(4):
        before = [value.copy() for value in twin.param_values()]
        twin.step(X, Y, optimizer)
    counts = {k: v for k, v in optimizer.state_dict().items() if k.endswith("/step")}
    written, stepped = replay._written, replay.Replay._stepped

    def struck_again(*given):
        if again:
            signal.raise_signal(signal.SIGINT)
        return written(*given)

    monkeypatch.setattr(replay, "_written", struck_again)
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for number in range(25, 500, 2):
            net, optimizer, end = small(True), RULES[rule](), 0
            for _ in range(3):
                net.step(X, Y, optimizer)

            def striking(self, bound, *given, number=number):
                nonlocal end
                end = len(bound.feed.calls)
                calls = struck_in(number, given[-1])
                return stepped(self, bound, *given[:-1], calls)

            monkeypatch.setattr(replay.Replay, "_stepped", striking)
            with suppress(KeyboardInterrupt):
                net.step(X, Y, optimizer)
            monkeypatch.setattr(replay.Replay, "_stepped", stepped)
            if number >= end:
                break
            taken = [
                np.allclose(now, after, rtol=0, atol=1e-7)
                for now, after in zip(net.param_values(), twin.param_values(), strict=True)
            ]
            for took, now, old_value in zip(taken, net.param_values(), before, strict=True):
                assert took or np.array_equal(now, old_value), number
            if all(taken):
                found = optimizer.state_dict()
                assert {name: found[name] for name in counts} == counts, number
        assert number > 35
    finally:
        signal.signal(signal.SIGINT, old)


def test_an_interrupt_in_leaving_a_recording_leaves_none_open():
    def trace(frame, event, argument):
        if frame.f_code is tape.Tape.__exit__.__code__:
            raise KeyboardInterrupt
        return trace

    net, optimizer = small(True), Adam(0.01)
    net.step(X, Y, optimizer)
    before = sys.gettrace()
    sys.settrace(trace)
    with suppress(KeyboardInterrupt):
        net.step(X, Y, optimizer)
    sys.settrace(before)
    assert tape.current_tape() is None
    net.memory(6)  # which refuses a recording within a recording


class Own(Adam):
    strike = False

    def apply_rule(self, update):
        super().apply_rule(update)
        if self.strike:
            signal.raise_signal(signal.SIGINT)
        update.value[...] *= 0.5


def test_an_update_in_python_is_made_whole():
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    nets = small(True), small(True)
    rules = Own(0.01), Own(0.01)
    try:
        for net, rule in zip(nets, rules, strict=True):
            for _ in range(3):
                net.step(X, Y, rule)
        before = [value.copy() for value in nets[0].param_values()]
        rules[0].strike = True
        with pytest.raises(KeyboardInterrupt):
            nets[0].step(X, Y, rules[0])
        nets[1].step(X, Y, rules[1])
        taken = 0
        for now, after, was in zip(*(n.param_values() for n in nets), before, strict=True):
            took = np.allclose(now, after, rtol=0, atol=1e-7)
            assert took or np.array_equal(now, was)
            taken += took
        assert taken
        for name, step in rules[0].state_dict().items():
            if name.endswith("/step"):
                param = nets[0].param_names().index(name[: -len("/step")])
                changed = not np.array_equal(nets[0].param_values()[param], before[param])
                assert step == 3 + changed, name
    finally:
        signal.signal(signal.SIGINT, old)
