"""The caller's own loop over a program: the same promises as by the layers."""

import gc
import threading
import weakref

import numpy as np
import pytest

import singanet
from singanet import FeedForwardNet, Input
from singanet.errors import CallOrderError, ShapeError
from singanet.layers import Activation, Dense, Dropout, Layer, Split
from singanet.loss import SquaredError
from singanet.optimizer import SGD
from singanet.program import lowering
from singanet.program.replay import replay as recorded
from singanet.program.replay import shared_arena
from singanet.program.replay.shared_arena import LONGEST, WORTH, SharedArena, WarmUpPolicy
from tests.kit.threads import in_threads
from tests.program.program_case import IMAGES, image_net, sgd, vectors
from tests.program.twins import Twins, expect_items_same, expect_same


class Offset(Layer):
    """y = x + the largest of x, by a class that does not say that it is pure."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        ctx.save(x=x)
        return x + np.float32(x.max())

    def backward(self, ctx, dy):
        dx = dy.copy()
        dx.flat[int(ctx.saved["x"].argmax())] += dy.sum()
        return dx, {}


def python_net():
    return image_net(lambda: Offset("offset"))


def inputs(rng, batch=4):
    return vectors(rng, batch, 2, 6, 6)


def gradient(rng, batch=4):
    return vectors(rng, batch, 5)


def rounds(twins, rng, count=3, walk=True):
    for _ in range(count):
        twins.forward(True, inputs(rng))
        if walk:
            twins.walk(gradient(rng))
    twins.expect_equal()


@pytest.fixture
def warm(rng):
    """Two nets whose loops are recorded, if they are."""
    twins = Twins(image_net, sgd)
    rounds(twins, rng)
    return twins


both = pytest.mark.parametrize("make", [image_net, python_net])


def test_loops_of_the_caller_are_recorded(warm, rng):
    rounds(warm, rng, 2)
    assert warm.expect_recorded() == []


def test_loops_over_layers_in_python_run_by_the_layers(rng):
    twins = Twins(python_net)
    rounds(twins, rng, 5)
    assert twins.recorded.programs.reports() == []
    assert "a caller's loop over layer 'offset'" in twins.recorded.programs.refusals[0]


def test_values_are_the_live_arrays(warm, rng):
    net = warm.recorded
    net.forward(True, inputs(rng))
    live = dict(zip(net.param_names(), net.param_values(), strict=True))
    for names, values, _ in net.backward(gradient(rng)):
        assert all(live[name] is value for name, value in zip(names, values, strict=True))


@both
def test_gradients_outputs_and_inputs_are_the_callers(make, rng):
    """Those that are kept stay right; those that are given are left alone."""
    twins = Twins(make)
    rounds(twins, rng)
    x, dy = inputs(rng), gradient(rng)
    given = x.copy(), dy.copy()
    outs = twins.forward(True, x)
    kept = [list(net.backward(dy)) for net in twins.nets]
    copies = [out.copy() for out in outs], [[g.copy() for g in i.grads] for i in kept[0]]
    rounds(twins, rng)
    expect_same(((x, dy), outs), (given, copies[0]))
    for items in kept:
        expect_same([item.grads for item in items], copies[1])
    for one, two in zip(*kept, strict=True):
        expect_items_same(one, two)


def test_gradients_are_let_go_one_layer_after_the_other(warm, rng):
    net = warm.recorded
    net.forward(True, inputs(rng))
    before = []
    for item in net.backward(gradient(rng)):
        assert all(grad() is None for grad in before)
        before = [weakref.ref(grad) for grad in item.grads]
        del item


def test_inputs_changed_before_the_walk_do_not_matter(warm, rng):
    x, dy, items = inputs(rng), gradient(rng), []
    for net in warm.nets:
        given = x.copy()
        net.forward(True, given)
        # By the layers the input is kept as it is, so that only the program is told otherwise.
        if net.programs.enabled:
            given[...] = 0
        items.append(list(net.backward(dy)))
    for one, two in zip(*items, strict=True):
        expect_items_same(one, two)


def test_a_walk_from_some_outputs_only(rng):
    def make():
        x = Input("x", (6,))
        first, second = Split("split", 2)(Dropout("drop", 0.3)(Dense("body", 6)(x)))
        outs = [Dense("kind", 4)(Activation("tanh", "tanh")(first)), Dense("size", 1)(second)]
        return FeedForwardNet(inputs=x, outputs=outs, seed=1)

    twins = Twins(make)
    for number in range(6):
        twins.forward(True, vectors(rng, 4, 6))
        dy = {"kind": vectors(rng, 4, 4), "size": vectors(rng, 4, 1)}
        if number == 4:
            del dy["size"]
        twins.walk(dy)
    twins.expect_equal()
    twins.expect_recorded()


def test_backward_twice_and_wrong_gradients_are_refused(warm, rng):
    x, dy = inputs(rng), gradient(rng)
    for net in warm.nets:
        net.forward(True, x)
        with pytest.raises(ShapeError, match="'out'"):
            net.backward(dy[:, :3])
        assert len(list(net.backward(dy))) > 0
        with pytest.raises(CallOrderError):
            net.backward(dy)
    warm.expect_equal()


def test_a_frozen_parameter_between_forward_and_backward(warm, rng):
    warm.forward(True, inputs(rng))
    warm.both(lambda net, _: setattr(net.params()[-1], "trainable", False))
    assert warm.walk(gradient(rng))[0].names == ["out/weight"]
    rounds(warm, rng)
    warm.both(lambda net, _: net.freeze("flat"))
    rounds(warm, rng)
    warm.forward(True, inputs(rng))
    names = [item.names for item in warm.walk(gradient(rng)) if item.names]
    assert names == [["out/weight"], ["wide/weight", "wide/bias"]]


def test_train_gives_all_gradients():
    twins = Twins(image_net)
    for x, y in IMAGES.batches(5):
        expect_same(*twins.both(lambda net, _, x=x, y=y: net.train(x, y)))
    twins.expect_recorded()


def test_a_net_with_programs_is_let_go(rng):
    net = image_net()
    for x, y in IMAGES.batches(4):
        net.forward(True, x)
        list(net.backward(gradient(rng)))
        net.step(x, y, SGD(lr=0.1))
    seen = weakref.ref(net)
    gc.collect()
    gc.disable()
    try:
        del net
        assert seen() is None
    finally:
        gc.enable()


# -- The memory that a net's programs take turns with ---------------------------------------


def nothing():
    """Nobody holds the memory."""


class Program:
    """Counts how often it was told to let go."""

    forgotten = 0

    def forget(self):
        self.forgotten += 1


def test_it_grows_and_then_stays(monkeypatch):
    trims = []
    monkeypatch.setattr(shared_arena, "trim", lambda: trims.append(None))
    arena, program = SharedArena(), Program()
    small = arena.take(100, program.forget)
    arena.give_back(small)
    large = arena.take(1000, program.forget)
    assert len(large) >= 1000
    assert program.forgotten == 2
    # A recording has given its own memory back.
    assert len(trims) == 1
    arena.give_back(large)
    assert arena.take(10, program.forget) is large
    assert program.forgotten == 2


def test_what_is_taken_nobody_else_gets():
    arena = SharedArena()
    first, second = arena.take(100, nothing), arena.take(200, nothing)
    assert first is not second
    arena.give_back(second)
    arena.give_back(first)
    assert arena.take(50, nothing) is second


def test_threads_never_share():
    arena, meet, taken = SharedArena(), threading.Barrier(4), []

    def take():
        for _ in range(50):
            meet.wait()
            mine = arena.take(64, nothing)
            taken.append(mine)
            meet.wait()
            arena.give_back(mine)

    in_threads(*[take] * 4)
    rounds = [taken[k : k + 4] for k in range(0, len(taken), 4)]
    assert all(len({id(array) for array in one}) == 4 for one in rounds)


def test_only_memory_that_is_written_gets_its_pages_at_once(monkeypatch):
    filled = []
    monkeypatch.setattr(lowering, "populated", lambda array: filled.append(len(array)) or array)
    for size, holes in ((100, False), (200, True)):
        assert len(SharedArena().take(size, nothing, holes)) == size
    assert filled == [100]


def test_cleared_memory_is_gone():
    arena = SharedArena()
    first = arena.take(100, nothing)
    arena.give_back(first)
    arena.clear()
    assert arena.take(100, nothing) is not first


# -- Waiting before a net that changes is recorded again --------------------------------------


def waited(wait):
    calls = 0
    while wait.goes_on():
        calls += 1
    return calls


def test_nothing_to_wait_for_at_first():
    assert waited(WarmUpPolicy()) == 0


def test_it_doubles_until_a_recording_pays():
    wait, seen = WarmUpPolicy(), []
    for replays in (0, 1, WORTH - 1, WORTH, 0):
        wait.start(replays)
        seen.append(waited(wait))
    assert seen == [2, 4, 8, 1, 2]
    for _ in range(20):
        wait.start(0)
    assert waited(wait) == LONGEST


def test_a_net_that_changes_at_every_step_is_seldom_recorded(monkeypatch):
    made, kept = [], recorded.recorded
    monkeypatch.setattr(recorded, "recorded", lambda *given: made.append(given) or kept(*given))
    net, optimizer = singanet.FeedForwardNet(SquaredError(), seed=0), SGD(lr=0.1)
    net.add(Dense("a", 3, input_sample_shape=(2,)))
    net.add(Dense("b", 1))
    for number in range(200):
        net.params()[0].trainable = bool(number % 2)
        net.step(np.ones((4, 2), np.float32), np.ones((4, 1), np.float32), optimizer)
    assert 0 < len(made) < 20
