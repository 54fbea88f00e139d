"""Plans of training: a net, what trains it, and what is done with it between the steps.

Each is carried out twice, recorded and by the layers: every loss, metric, output, gradient and
parameter has to be the same to the bit, and every error the same error. A plan that fails reads
like what was done.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import re
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck
from hypothesis import strategies as st

from singanet import load_model
from singanet.errors import ArgumentError, CallOrderError, SingaNetError
from singanet.layers import Activation, Dropout
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.ops import ops_for
from singanet.ops.threads import cores, default_threads, set_threads
from singanet.optimizer import BlockCoordinate
from singanet.optimizer.chain import UpdateChain
from singanet.training.callbacks import EMA, StopOnNaN
from tests.layer_catalogue import CATALOGUE
from tests.pairs.training import taking_measures

from . import user_parts as own
from .drawn_nets import (
    EVERYWHERE,
    JOINS,
    LOSSES,
    METRICS,
    OPTIMIZERS,
    SHAPES,
    STAGES,
    WEIGHTED,
    Action,
    Data,
    Node,
    Plan,
    bits,
    built,
    each,
    halve,
    ignored,
    optimizer_of,
)
from .twins import Twins, expect_same, outcome
from .user_parts import Counts, Gain, Pulled, Weighed, dense_of, times


class Run(Twins):
    """A plan carried out on both nets."""

    def __init__(self, plan):
        super().__init__(lambda: built(plan), lambda: optimizer_of(plan.optimizer))
        self.plan, self.data = plan, Data(plan)
        self.recorded.programs.recompute = plan.recompute
        self.kept = []

    def do(self, act):
        """``act(net, optimizer)`` on both; results, errors and what is left have to be alike."""
        results = []
        for pair in zip(self.nets, self.optimizers, strict=True):
            try:
                told = act(*pair)
                finish = getattr(pair[1], "finish", None)
                if finish is not None and pair[1].kept:
                    finish()
            except Exception as error:  # noqa: BLE001 - what both refuse is alike, too
                told = self.refusal(error)
            results.append(told)
        expect_same(*results)
        self.expect_equal()
        for array, was in self.kept:
            np.testing.assert_array_equal(array, was)
        return results[0]

    def refusal(self, error):
        """What both nets have to say alike of an error, but for addresses of objects."""
        return "refused", type(error), re.sub("0x[0-9a-f]+", "", str(error))

    def steps(self, count=3, batch=3, **options):
        for _ in range(count):
            x, y = self.data.batch(batch)
            self.do(lambda net, optimizer, x=x, y=y: net.step(x, y, optimizer, **options))

    def loop(self, use, output=(), between=None, laid=None):
        """Forward and backward on both, ``use(item, optimizer)`` at each yield."""
        x, dy = self.data.inputs(), self.data.gradient()
        dy = dy if laid is None else each(laid, dy)

        def act(net, optimizer):
            out = net.forward(True, x)
            if between is not None:
                between(net, optimizer)
            items = []
            for item in net.backward(dy, output):
                items.append(taken(item))
                use(item, optimizer)
            return [out, items]

        self.do(act)

    between = 3
    """Steps after each action: by the layers, recorded, and once more."""

    def run(self):
        self.steps()
        for action in self.plan.actions:
            ACTIONS[action.kind](self, action)
            self.steps(self.between)
        for net in self.nets:
            for part in (*net.layers, net.loss, net.metric):
                for array, was in getattr(part, "seen", ()):
                    host = ops_for(array).host
                    np.testing.assert_array_equal(host(array), host(was))


def taken(item):
    grads = [tuple(g) if isinstance(g, tuple) else g.copy() for g in item.grads]
    return item.layer, list(item.names), grads, dict(item.output_grads)


def some(walk, count):
    return [taken(item) for item, _ in zip(walk, range(count), strict=False)]


# -- what is done between the steps ---------------------------------------------------------

ACTIONS, VARIANTS = {}, {}


def action(variants=1):
    """Let plans draw ``function(run, action)``, which does as many things by ``action.where``."""

    def named(function):
        name = function.__name__.replace("_", " ")
        ACTIONS[name], VARIANTS[name] = function, variants
        return function

    return named


def change(variants=1):
    """Let plans draw ``function(action, net, optimizer)``, which is done to each of both."""

    def named(function):
        def act(run, action):
            run.do(partial(function, action))

        act.__name__ = function.__name__
        action(variants)(act)
        return function

    return named


def chosen(action, *choices):
    return choices[action.where % len(choices)]


def layer_of(action, net):
    return net.layers[action.where % len(net.layers)]


def param_of(action, net):
    return net.params()[action.where % len(net.params())]


def gathers(optimizer):
    chain = UpdateChain(optimizer)
    return hasattr(chain.rule, "every") or any(stage.traits.gathers for stage in chain.stages)


def update(item, optimizer):
    optimizer.update(*item)


def parts(given):
    return [*given.values()] if isinstance(given, dict) else [given]


def reverse(array):
    return array[::-1]


def pop_each(item, optimizer):
    while item.names:
        optimizer.update([item.names.pop()], [item.values.pop()], [item.grads.pop()])


def transposed(item, optimizer):
    for part in item[:3]:
        part.reverse()
    optimizer.update(*item)


def without_first(item, *optimizers):
    # What gathers them is for all parameters alike.
    for part in item[:3] if not any(map(gathers, optimizers)) else ():
        del part[:1]
    for optimizer in optimizers:
        optimizer.update(*item)


@action(4)
def loop(run, action):
    for _ in range(3):
        run.loop(chosen(action, update, pop_each, transposed, without_first))


def clip(item):
    for grad in item.grads:
        np.clip(dense_of(grad), -0.02, 0.02, out=dense_of(grad))


@action(2)
def on_layer(run, action):
    use = clip if gathers(run.optimizers[0]) else chosen(action, clip, without_first)
    run.steps(action.size, on_layer=use)


@action()
def other_batch(run, action):
    run.steps(3, 1 + action.size)


@action(2)
def measure(run, action):
    """By the layers the gradient is worked out of copies that the loss kept before."""

    def keep(out, y):
        run.kept += [(part, part.copy()) for part in (*parts(out), *parts(y))]
        return float(sum(part.sum() for part in parts(out)))

    def write(out, y):
        for part in parts(out):
            part[...] *= part.dtype.kind != "f"
        return 1.0

    # What a loss or metric keeps is not to be written on.
    kept = any(hasattr(part, "seen") for part in (run.recorded.loss, run.recorded.metric))
    kept = kept or run.plan.loss not in ("softmax", "squared", "huber")
    run.steps(measure=keep if kept else chosen(action, keep, write))


@action(2)
def weights(run, action):
    for _ in range(3):
        weight = run.data.rng.uniform(0, 2, 3).astype(chosen(action, np.float32, np.float64))
        run.steps(1, sample_weight=weight)


@action()
def abandon(run, action):
    x, dy = run.data.inputs(), run.data.gradient()

    def act(net, optimizer):
        net.forward(True, x)
        walk = net.backward(dy)
        items = some(walk, action.size)
        walk.close()
        return items

    run.do(act)


@action()
def forward_twice(run, action):
    x = run.data.inputs()
    run.do(lambda net, _: [net.forward(True, x), net.forward(True, each(reverse, x))])
    run.loop(update)


def told_by(net, x):
    """The kind of what a predictor tells of them, for nets that have one."""
    with contextlib.suppress(ArgumentError):
        return type(net.predictor()(x))


@action(6)
def pause(run, action):
    x, dy, batch = run.data.inputs(), run.data.gradient(), run.data.batch()
    between = chosen(
        action,
        lambda net, optimizer: net.step(*batch, optimizer),
        lambda net, optimizer: net.forward(True, batch[0]),
        lambda net, optimizer: net.forward(False, batch[0]),
        lambda net, optimizer: net.forward(True, each(lambda a: a[:2], batch[0])),
        lambda net, optimizer: told_by(net, batch[0]),
        lambda net, optimizer: [
            [net.forward(True, batch[0])],
            [(taken(item), optimizer.update(*item))[0] for item in net.backward(each(reverse, dy))],
        ],
    )

    def act(net, optimizer):
        net.forward(True, x)
        walk = net.backward(dy)
        items = some(walk, action.size)
        return [items, between(net, optimizer), [taken(item) for item in walk]]

    for _ in range(2):
        run.do(act)


@action(6)
def asked(run, action):
    name, x, dy = layer_of(action, run.recorded).name, run.data.inputs(), run.data.gradient()
    of_one = {"out": dy["out"] if isinstance(dy, dict) else dy}
    run.loop(update, [name])

    def act(net, _):
        outs = net.forward(True, x, output=[name])
        return [
            outs,
            [taken(item) for item in net.backward(of_one)],
        ]

    run.do(act)


@action(4)
def laid_otherwise(run, action):
    laid = chosen(
        action,
        np.asfortranarray,
        lambda dy: np.flip(dy, -1),
        lambda dy: np.repeat(dy, 2, axis=-1)[..., ::2],
        lambda dy: np.asfortranarray(dy)[::-1],
    )
    for way in (laid, laid, None, laid):
        run.loop(update, laid=way)


@action()
def train(run, action):
    x, y = run.data.batch()
    for _ in range(3):
        run.do(lambda net, _: list(net.train(x, y)))


@action()
def predict(run, action):
    x, y = run.data.batch(action.size)
    for _ in range(3):
        run.do(lambda net, _: [net.predict(x), net.evaluate(x, y), net.forward(False, x)])


@action(3)
def fit(run, action):
    x, y = run.data.batch(5)
    y = each(mapped, y) if action.where % 3 == 2 else y
    metrics = {"metrics": {"kept": own.Gathered(), "plain": Accuracy()}}

    def act(net, optimizer):
        # Of several outputs none fits all.
        one = run.plan.outputs == 1 and action.where % 3 == 1
        net.compile(optimizer, **(metrics if one else {}))
        return dict(net.fit(x, y, 2, 2, verbose=False))

    history = run.do(act)
    if "kept" in history:
        np.testing.assert_allclose(history["kept"], history["plain"], rtol=1e-6)


class Mine(np.ndarray):
    """A class of arrays of the user's."""


def mapped(array):
    """The array in a file that is gone when the array is."""
    with tempfile.NamedTemporaryFile() as file:
        made = np.memmap(file.name, array.dtype, "w+", shape=array.shape)
    made[...] = array
    return made


def swapped(array, size=8):
    kind = "i" if array.dtype.kind == "i" else "f"
    return array.astype(f">{kind}{size}")


ARRAYS = [
    lambda a: a.astype(np.float64 if a.dtype.kind == "f" else np.uint8),
    lambda a: a.astype(np.int32),
    lambda a: a.astype(np.float16 if a.dtype.kind == "f" else np.int8), np.asfortranarray,
    lambda a: np.repeat(a, 2, axis=-1)[..., ::2], lambda a: a[::-1], lambda a: a.view(Mine),
    np.ma.masked_array, mapped, swapped, lambda a: swapped(a, 4), lambda a: swapped(a, 2),
    lambda a: a.tolist(), lambda a: a.astype(np.complex64),
]  # fmt: skip


@action(len(ARRAYS))
def other_arrays(run, action):
    """Inputs, targets, weights and all of them, each after plain ones."""
    cast = chosen(action, *ARRAYS)
    for which in ((0,), (1,), (2,), (0, 1, 2)):
        given = [*run.data.batch(), run.data.rng.uniform(0, 2, 3).astype(np.float32)]
        for at in which:
            given[at] = each(cast, given[at])
        *batch, weight = given
        more = {"sample_weight": weight} if 2 in which else {}
        for _ in range(2):
            run.do(lambda net, rule, batch=batch, more=more: net.step(*batch, rule, **more))
        run.steps(1)


def broken(out, y):
    raise RuntimeError("broken")


@action(5)
def refused_step(run, action):
    """It changes no parameter, and the next step works."""
    if any(type(stage) is BlockCoordinate for stage in UpdateChain(run.optimizers[0]).stages):
        # A recording of the first step of a block drops the other blocks' state, as the step does.
        return
    x, y = run.data.batch()
    indices = run.plan.values in ("words", "texts")
    bad = each(lambda a: np.full_like(a, 99) if indices and a.dtype.kind == "i" else a[:, :1], x)
    more = {"measure": broken} if action.where % 5 == 3 else {}
    fewer, others = each(lambda a: a[:-1], y), each(lambda a: a + 7, y)
    none = each(lambda a: a[:0], x)
    x, y = chosen(action, (x, fewer), (x, others), (bad, y), (x, y), (none, y))
    before = [(p, p.value.copy()) for p in run.recorded.params() if not p.is_state]
    told = run.do(lambda net, rule: net.step(x, y, rule, **more))
    for param, value in before if told[0] == "refused" else ():
        if not param.name.endswith("count"):
            np.testing.assert_array_equal(param.value, value)


@action(4)
def refused_walk(run, action):
    x, dy, batch = run.data.inputs(), run.data.gradient(), run.data.batch()
    between = chosen(
        action,
        lambda net, _: list(net.backward(dy)),
        lambda net, optimizer: net.step(*batch, optimizer),
        lambda net, optimizer: net.forward(False, x),
        lambda net, optimizer: net.backward(each(lambda a: a[..., :2], dy)),
    )

    def act(net, optimizer):
        net.forward(True, x)
        with contextlib.suppress(SingaNetError):
            between(net, optimizer)
        return [taken(item) for item in net.backward(dy)]

    for _ in range(2):
        told = run.do(act)
        assert action.where % 4 == 3 or told[:2] == ("refused", CallOrderError)


def rule_of(optimizer):
    while not hasattr(optimizer, "lr"):
        optimizer = optimizer.optimizer
    return optimizer


@change()
def optimizer_setting(action, net, optimizer):
    rule = rule_of(optimizer)
    if hasattr(rule, "nesterov"):
        rule.nesterov = bool(action.size % 2) and bool(rule.momentum)
    elif hasattr(rule, "beta_1"):
        rule.beta_1 = 0.5
    if isinstance(rule.regularizer, Pulled):
        rule.regularizer.centre = 0.1 * action.size


@change()
def register(action, net, optimizer):
    """Said to the optimizer, and not to the net."""
    for spec in net.param_specs()[:2]:
        optimizer.register(spec.name, dataclasses.replace(spec, lr_mult=0.5 * (action.size - 1)))


@change(4)
def patch_layer(action, net, optimizer):
    """Forward or backward of one layer's instance, scaled by a count."""
    method = ("forward", "backward")[action.size % 2]
    layer = layer_of(action, net)
    # The first one may hand on indices.
    layer = net.layers[-1] if layer is net.layers[0] else layer
    inner, count = getattr(layer, method), [0]

    def scaled(ctx, array):
        made = inner(ctx, array)
        count[0] += 1
        factor = np.float32(1 + count[0] / 16)
        if method == "backward":
            return made
        return [factor * part for part in made] if isinstance(made, list) else factor * made

    setattr(layer, method, scaled)


@action(2)
def patch_pass(run, action):
    method, at = chosen(action, ("forward", 1), ("backward", 0))

    def patch(net, _):
        inner = getattr(net, method)
        setattr(
            net,
            method,
            lambda *given: inner(*given[:at], times(2, given[at]), *given[at + 1 :]),
        )

    run.do(patch)
    run.steps()
    run.do(lambda net, _: delattr(net, method))


def assign(action, net, optimizer):
    param = param_of(action, net)
    param.value = param.value * np.float32(action.size / 2)


def write(action, net, optimizer):
    param_of(action, net).value[...] *= np.float32(action.size / 2)


def trainable(action, net, optimizer):
    param = param_of(action, net)
    if not param.is_state and not param.name.endswith("count"):
        param.trainable = not param.trainable


def untrained(action, net, optimizer):
    param_of(action, net).trainable = False


def layer_trainable(action, net, optimizer):
    layer = layer_of(action, net)
    if not isinstance(layer, Counts):
        layer.trainable = not layer.trainable


def load_state(action, net, optimizer):
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES = {
    "learning rate": (1, lambda act, net, rule: setattr(rule_of(rule), "lr", 0.01 * act.size)),
    "reload": (1, load_state),
    "patch update": (1, lambda _, net, rule: halve(rule)),
    "freeze": (4, lambda act, net, rule: net.freeze(layer_of(act, net).name)),
    "unfreeze": (1, lambda _, net, rule: net.unfreeze()),
    "trainable": (4, trainable),
    "layer trainable": (4, layer_trainable),
    "assign": (4, assign),
    "write": (4, write),
    "generator": (1, lambda _, net, rule: setattr(net, "rng", np.random.default_rng(77))),
    "draws": (1, lambda _, net, rule: net.rng.random(7)),
    "no metric": (1, lambda _, net, rule: setattr(net, "metric", None)),
    "other loss": (1, lambda _, net, rule: setattr(net, "loss", type(net.loss)())),
}
for name, (variants, function) in CHANGES.items():
    function.__name__ = name
    change(variants)(function)


@action(12)
def between(run, action):
    """Between forward and backward: assigned, written, frozen.

    What is unfrozen then has a gradient where the forward runs again, and else is refused.
    """
    act = (assign, write, untrained)[action.where % 3]
    mine = replace(action, where=action.where // 3)
    for _ in range(2):
        run.loop(update, between=partial(act, mine))


@change()
def attribute(action, net, optimizer):
    for layer in net.layers:
        if isinstance(layer, Gain):
            layer.gain = 1 + action.size / 4
        elif isinstance(layer, Dropout):
            layer.p = 0.1 * action.size
        elif isinstance(layer, Activation):
            layer.mode = ("relu", "tanh", "sigmoid")[action.size % 3]
    if isinstance(net.loss, Weighed):
        net.loss.factor = float(action.size)
    elif isinstance(net.loss, SoftmaxCrossEntropy):
        net.loss.label_smoothing = 0.1 * action.size


@action()
def of_type(run, action):
    if not gathers(run.optimizers[0]):
        # What is gathered keeps its type, whose norm has another order of sums then.
        run.do(lambda net, _: net.as_type(np.float64))
        run.steps()
        run.do(lambda net, _: net.as_type(run.plan.dtype))


@action()
def save_and_load(run, action):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.npz"

        def act(net, optimizer):
            net.save(path)
            state = optimizer.state_dict()
            net.step(*batch, optimizer)
            net.load(path)
            optimizer.load_state_dict(state)

        batch = run.data.batch()
        run.do(act)


def copies_of(nets):
    made = tuple(map(copy.deepcopy, nets))
    made[1].programs.enabled = False
    return made


@action()
def copied(run, action):
    run.nets = copies_of(run.nets)
    if run.plan.optimizer != "patched":
        run.optimizers = tuple(map(copy.deepcopy, run.optimizers))


@action()
def copied_under_way(run, action):
    x, dy = run.data.inputs(), run.data.gradient()

    def act(net, _):
        out = net.forward(True, x)
        try:
            other = copy.deepcopy(net)
            told = other.forward(False, x)
        except Exception as error:  # noqa: BLE001 - any error is compared
            told = type(error)
        return [out, told, [taken(item) for item in net.backward(dy)]]

    run.do(act)


@action()
def outlived(run, action):
    nets = list(copies_of(run.nets))
    batches = [(run.data.inputs(), run.data.gradient()) for _ in range(4)]
    found = []
    while nets:
        net = nets.pop()
        for x, dy in batches:
            net.forward(True, x)
            walk = net.backward(dy)
            items = some(walk, 1 if (x, dy) is batches[-1] and action.size > 1 else 0)
            if (x, dy) is not batches[-1]:
                items += map(taken, walk)
        del net
        gc.collect()
        found.append([*items, *map(taken, walk)])
    expect_same(*found)


@action(4)
def told(run, action):
    """What looks at the recorded net alone leaves it as it is."""
    net, optimizer = run.recorded, run.optimizers[0]
    x, y = run.data.batch()
    # What the user replaced or overrides is refused.
    with contextlib.suppress(CallOrderError, ArgumentError):
        if action.where % 4 == 0:
            net.memory(3, optimizer)
            net.memory(3)
        elif action.where % 4 == 1:
            net.predictor()(x)
        else:
            net.record(*((x,) if action.where % 4 == 2 else (x, y, optimizer)))
    run.expect_equal()


@action()
def cleared(run, action):
    run.recorded.programs.clear()
    assert run.recorded.programs.reports() == []
    run.steps()
    run.recorded.programs.enabled = False
    run.steps()
    run.recorded.programs.enabled = True


@action(6)
def recomputed(run, action):
    run.recorded.programs.recompute = chosen(action, "none", *LEVELS)


@change(len(OPTIMIZERS))
def other_rule(action, net, optimizer):
    """A rule in place of the old one, within the same stages."""
    holder = optimizer
    while hasattr(getattr(holder, "optimizer", None), "optimizer"):
        holder = holder.optimizer
    if hasattr(holder, "optimizer"):
        holder.optimizer = rule_of(optimizer_of(chosen(action, *sorted(OPTIMIZERS))))


@action(len(OPTIMIZERS))
def other_optimizer(run, action):
    run.optimizers = tuple(optimizer_of(chosen(action, *sorted(OPTIMIZERS))) for _ in run.nets)


@action(len(STAGES))
def wrapped(run, action):
    """A stage more around the optimizer, or one less."""
    if action.size == 1 and hasattr(run.optimizers[0], "optimizer"):
        run.optimizers = tuple(each.optimizer for each in run.optimizers)
    else:
        stage = chosen(action, *STAGES.values())
        results = run.both(lambda _, optimizer: outcome(lambda: stage(optimizer)))
        if not isinstance(results[0], tuple):
            run.optimizers = tuple(results)


@action(2)
def threads(run, action):
    before = default_threads()
    set_threads(min(cores(), 1 + action.where % 2))
    try:
        run.steps(2)
    finally:
        set_threads(before)


@action()
def other_length(run, action):
    if run.plan.values == "texts":
        run.data.steps = 1 + action.size


@action()
def averaged(run, action):
    x, y = run.data.batch(5)

    def act(net, optimizer):
        net.compile(optimizer)
        callbacks = [EMA(0.5)]
        return dict(net.fit(x, y, 2, 2, callbacks=callbacks, verbose=False))

    run.do(act)


@action(4)
def gathered(run, action):
    """A fit whose gradients are clipped and gathered."""
    x, y = run.data.batch(7)
    by = chosen(action, "value", "layer", "global", "running")

    def act(net, optimizer):
        net.compile(optimizer)
        more = {"accumulate": action.size, "clip": 0.05, "clip_by": by}
        return dict(net.fit(x, y, 2, 2, verbose=False, **more))

    run.do(act)


@action(2)
def stopped_on_nan(run, action):
    """A sample that is no number ends a fit, and changes nothing."""
    x, y = run.data.batch(6)
    x = each(lambda a: np.where(np.arange(6).reshape(-1, *[1] * (a.ndim - 1)) == 4, np.nan, a), x)
    x = each(lambda a: a.astype(np.float32), x)

    def act(net, optimizer):
        net.compile(optimizer)
        return dict(net.fit(x, y, 6, 1, callbacks=[StopOnNaN()], verbose=False))

    run.do(act)


@action()
def within_a_budget(run, action):
    """A fit of the recorded net that runs layers forward again; the other one has no budget."""
    x, y = run.data.batch(7)

    def act(net, optimizer):
        net.compile(optimizer)
        fitted = partial(net.fit, x, y, 4, 2, verbose=False)
        if net is run.recorded:
            try:
                with taking_measures(1):
                    return dict(fitted(memory_budget="1GB", allow=("recompute",)))
            except ArgumentError as refusal:
                # What cannot be recorded has no budget.
                if "memory is known" not in str(refusal):
                    raise
        return dict(fitted())

    run.do(act)


@action()
def whole_model(run, action):
    """Both are loaded from a file of the whole model; users' parts are in none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.singanet"

        def act(net, optimizer):
            net.compile(optimizer)
            net.save_model(path)
            return None

        if run.do(act) is not None:
            return
        run.nets = tuple(load_model(path) for _ in run.nets)
    run.nets[1].programs.enabled = False
    run.optimizers = tuple(net.compiled.optimizer for net in run.nets)


@action()
def predicted(run, action):
    """A predictor tells what the layers compute, but for the order of sums."""
    x = run.data.inputs(action.size)
    with contextlib.suppress(ArgumentError):
        told = run.recorded.predictor()(x)
        for one, two in zip(parts(told), parts(run.nets[1].predict(x)), strict=True):
            np.testing.assert_allclose(one, two, 1e-4, 1e-5)


# -- drawing --------------------------------------------------------------------------------

LEVELS = ("cheap", "blocks", "sqrt", "optimal")
HOW = {
    "derandomize": True,
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
}
OF_STEPS = ("relu", "tanh", "dropout", "add", "concat", "shared")
"""Layers beside the weighted ones that know of padding."""


LOOKING = {"told", "predicted", "copied", "outlived", "within a budget", "recomputed", "pause"}
"""Actions that call layers of one net more often."""


def around(rule, stage):
    """The rule with the stage around it, or the rule alone if the stage refuses it."""
    optimizer = f"{rule}, {stage}"
    try:
        optimizer_of(optimizer)
    except SingaNetError:
        return rule
    return optimizer


def drawn(draw, most=5, fewest=1, of=None):
    """Draw a plan of so many actions ``of`` those given by ``draw``, a generator of Python's."""
    values = draw.choice(sorted(SHAPES))
    near = (*WEIGHTED[values], *(OF_STEPS if values == "texts" else (*EVERYWHERE, *JOINS)))

    def node():
        of_all = values != "texts" and draw.random() < 0.4
        kind = draw.choice(sorted(CATALOGUE.keys() - {"Flatten"}) if of_all else near)
        return Node(kind, draw.randrange(4), draw.randrange(4))

    def action():
        return Action(draw.choice(sorted(of or ACTIONS)), draw.randrange(20), draw.randint(1, 3))

    optimizer = draw.choice(sorted(OPTIMIZERS))
    if draw.random() < 0.3:
        optimizer = around(optimizer, draw.choice(sorted(STAGES)))
    nodes = [node() for _ in range(draw.randint(1, 6))]
    actions = [action() for _ in range(draw.randint(fewest, most))]
    recompute, done = draw.choice(("none",) * 8 + LEVELS), {act.kind for act in actions}
    if {"refused step", "stopped on nan", "other arrays"} & done:
        # What moves undeclared is not undone.
        nodes = [node for node in nodes if node.kind not in ("counts", "draws")]
    if "patch layer" in done:
        # Nor are the calls alike that such a method counts, and what looks at one net calls it.
        actions = [act for act in actions if act.kind not in LOOKING]
        recompute = "none"
    loss, outputs = draw.choice(sorted(LOSSES)), draw.choice((1, 1, 2))
    bare = outputs == 2 or LOSSES[loss][1] in (bits, ignored)
    return Plan(
        values,
        tuple(nodes),
        draw.choice(("plain",) * 6 + ("clipped", "scaled")),
        loss,
        "none" if bare else draw.choice(sorted(METRICS)),
        optimizer,
        recompute,
        draw.choice(("default", "numpy")),
        draw.choice(("float32", "float32", "float64")),
        draw.choice((1, 1, 2)),
        outputs,
        tuple(actions),
    )


def plans():
    """Plans for hypothesis, which makes those smaller that fail."""
    return st.randoms(use_true_random=False).map(drawn)
