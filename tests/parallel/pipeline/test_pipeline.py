from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import parallel
from singanet.errors import ArgumentError, CallOrderError, GraphError
from singanet.layers import (
    Activation,
    Add,
    BatchNormalization,
    Concat,
    Dense,
    Dropout,
    Embedding,
    Flatten,
    Input,
    Layer,
)
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import (
    SGD,
    Accumulator,
    Adam,
    ClipByGlobalNorm,
    ClipByLayerNorm,
    MixedPrecision,
)
from singanet.optimizer.mixed_precision import ScaledUpdates
from singanet.training.callbacks import EMA
from tests.kit.ranks import together

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((11, 6)).astype(np.float32), RNG.integers(0, 4, 11)
IDS = RNG.integers(0, 9, (11, 3))


def chain(loss=None):
    return singanet.FeedForwardNet(
        [
            Dense("a", 7, input_sample_shape=(6,)),
            Activation("a2"),
            Dense("b", 5),
            Activation("b2", mode="tanh"),
            Dense("c", 6),
            Activation("c2"),
            Dense("d", 4),
        ],
        loss=loss or SoftmaxCrossEntropy(),
        seed=3,
    )


def skipping():
    """What stage 0 makes is read by all stages, and by the loss."""
    x = Input("x", (6,))
    with parallel.stage(0):
        first = Activation("r0")(Dense("a", 6)(x))
    with parallel.stage(1):
        second = Add("plus")([Dense("b", 6)(first), first])
    with parallel.stage(2):
        third = Dense("c", 4)(Concat("both", 1)([first, second, x]))
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[x], outputs=[third], seed=3)


def tied():
    """A table that the first and the last stage use."""
    with parallel.stage(0):
        table = Embedding("e", 9, 5, input_sample_shape=(3,))
        flat = Flatten("f")
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    with parallel.stage(0):
        net.add(table)
        net.add(flat)
    with parallel.stage(1):
        net.add(Dense("h", 5))
        net.add(Dense("out", 9, use_bias=False, W_transpose=True, W_specs=table.params["weight"]))
    return net


def by_hand(make, x, y, optimizer, micro, steps=3):
    """One process that accumulates the same micro-batches, layer by layer."""
    net = make()
    net.programs.enabled = False
    parts = np.array_split(np.arange(len(y)), micro)
    gathers = Accumulator(optimizer, len(parts))
    for _ in range(steps):
        for part in parts:
            net.step(x[part], y[part], gathers)
    return net


def piped(make, x, y, rule, ranks, steps=3, **arguments):
    """Losses of each step, and the nets of all ranks, whole again."""

    def work(comm):
        net = make()
        pipeline = parallel.Pipeline(net, comm=comm, **arguments)
        optimizer = rule()
        losses = [net.step(x, y, optimizer)[0] for _ in range(steps)]
        pipeline.gather()
        return losses, net, pipeline

    return together(work, ranks)


def values(net):
    return {param.name: param.value for param in net.params()}


def expect_close(net, other, **tolerances):
    for name, value in values(other).items():
        np.testing.assert_allclose(values(net)[name], value, err_msg=name, **tolerances)


@settings(max_examples=6, deadline=None)
@given(
    st.sets(st.sampled_from(["a2", "b", "b2", "c", "c2", "d"]), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([8, 11]),
    st.sampled_from(["gpipe", "1f1b"]),
)
def test_training_is_that_of_accumulation_in_one_process(cuts, micro, samples, name):
    def rule():
        return SGD(lr=0.1, momentum=0.9)

    count, ranks = min(micro, samples), len(cuts) + 1
    x, y = X[:samples], Y[:samples]
    alone = by_hand(chain, x, y, rule(), count)
    # The mean is made before the rule here and within it there: the same bits for powers of two.
    exact = samples % count == 0 and count in (1, 2, 4, 8)
    near = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-7}
    said = {"stages": sorted(cuts), "micro_batches": micro, "schedule": name}
    runs = piped(chain, x, y, rule, ranks, **said)
    for losses, net, pipeline in runs:
        assert losses == runs[0][0]
        expect_close(net, alone, **near)
        bound = count if name == "gpipe" else min(ranks - pipeline.stage, count)
        assert pipeline.alive == bound


def twice_read():
    """A table whose rows both stages look up."""
    table = Embedding("e", 9, 5, input_sample_shape=(3,))
    with parallel.stage(0):
        x = Input("x", (3,), dtype="int64")
        one = Dense("a", 4)(Flatten("f")(table(x)))
    with parallel.stage(1):
        again = Embedding("e2", 9, 5, W_specs=table.params["weight"])(x)
        out = Dense("b", 4)(Concat("both", 1)([one, Flatten("f2")(again)]))
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[x], outputs=[out], seed=3)


def two_losses(reduction):
    """Two outputs, one of which has labels that do not count."""
    x = Input("x", (6,))
    h = Activation("r")(Dense("a", 5)(x))
    first = SoftmaxCrossEntropy(ignore_index=-1, reduction=reduction)
    loss = MultiLoss({"one": first, "two": SoftmaxCrossEntropy()}, {"two": 0.5})
    outputs = [Dense("one", 3)(h), Dense("two", 4)(h)]
    return singanet.FeedForwardNet(loss, inputs=[x], outputs=outputs, seed=3)


LABELS = {"one": RNG.integers(0, 3, 11), "two": RNG.integers(0, 4, 11)}
LABELS["one"][[0, 1, 2, 3, 8]] = -1
FLOATS, WEIGHTS = RNG.standard_normal((11, 4)).astype(np.float32), RNG.random(11, np.float32)


@dataclass(frozen=True)
class Setting:
    """A training on stages, of ``rows`` that each have a part of the samples."""

    make: Callable[[], Any] = chain
    rule: Callable[[], Any] = lambda: SGD(lr=0.1, momentum=0.9)
    x: Any = field(default_factory=lambda: X)
    y: Any = field(default_factory=lambda: Y)
    stages: Any = None
    ranks: int = 2
    rows: int = 1
    micro: int = 4
    weight: Any = None
    steps: int = 3


def summed(**ignore):
    return chain(SoftmaxCrossEntropy(reduction="sum", **ignore))


SETTINGS = {
    "chain": Setting(rule=lambda: Adam(lr=0.01), stages=["c"], micro=2),
    "skipping": Setting(skipping, lambda: Adam(lr=0.01), ranks=3),
    "tied": Setting(tied, lambda: Adam(lr=0.01), IDS),
    # Momentum moved, and decay shrank, rows that no sample had.
    "twice read": Setting(
        twice_read, lambda: SGD(lr=0.1, momentum=0.9, weight_decay=0.1), IDS % 5, micro=3
    ),
    "clip global": Setting(tied, lambda: ClipByGlobalNorm(SGD(lr=0.5), 0.1), IDS, micro=3),
    "clip layer": Setting(tied, lambda: ClipByLayerNorm(SGD(lr=0.5), 0.1), IDS, micro=3),
    "rows": Setting(stages=["b2"], ranks=4, rows=2, micro=2),
    "two losses": Setting(lambda: two_losses("mean"), y=LABELS),
    "two losses, one a sum": Setting(lambda: two_losses("sum"), y=LABELS),
    "a sum": Setting(lambda: summed(ignore_index=-1), lambda: SGD(lr=0.01), y=LABELS["one"]),
    "weights, accumulated": Setting(
        lambda: chain(SquaredError(reduction="sum")), lambda: Accumulator(SGD(lr=0.01), 2),
        y=FLOATS, stages=["c"], micro=3, weight=WEIGHTS, steps=4,
    ),
}  # fmt: skip


def stepped(net, setting, rule, part=slice(None)):
    """The losses of steps on batches that end at several samples, the last ones on all."""
    weight, losses = setting.weight, []
    for k in range(setting.steps):
        rows = np.arange(11)[setting.steps - 1 - k :][part]
        y = setting.y
        y = {n: labels[rows] for n, labels in y.items()} if isinstance(y, dict) else y[rows]
        own = None if weight is None else weight[rows]
        losses.append(net.step(setting.x[rows], y, rule, sample_weight=own)[0])
    return losses


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("name", SETTINGS)
def test_stages_train_as_one_process(name, schedule):
    setting = SETTINGS[name]
    whole = setting.make()
    told = stepped(whole, setting, setting.rule())

    def work(comm):
        net = setting.make()
        pipeline = parallel.Pipeline(
            net, setting.stages, setting.micro, schedule, comm=comm, replicas=setting.rows
        )
        rule, part = setting.rule(), slice(None)
        if setting.rows > 1:
            rule = parallel.AllReduce(rule, pipeline.replicas)
            part = slice(pipeline.replica, None, setting.rows)
        losses = stepped(net, setting, rule, part)
        pipeline.gather()
        return losses, net

    for losses, net in together(work, setting.ranks):
        if setting.rows == 1:
            np.testing.assert_allclose(losses, told, rtol=1e-5)
        expect_close(net, whole, rtol=1e-5, atol=1e-6)
    if name == "twice read":
        np.testing.assert_array_equal(
            values(whole)["e/weight"][5:], values(twice_read())["e/weight"][5:]
        )


def test_clipping_by_the_norm_of_the_layers_so_far_is_refused():
    """Each stage clipped by its own, without a word."""

    def work(comm):
        net = chain()
        parallel.Pipeline(net, ["b"], comm=comm)
        net.compile(SGD(lr=0.1))
        with pytest.raises(ArgumentError, match="each layer by itself.*'global'"):
            net.fit(X, Y, clip=1.0, clip_by="running", verbose=False)

    together(work)


def test_frozen_layers_and_evaluation():
    def work(comm):
        net = chain()
        pipeline = parallel.Pipeline(net, ["b", "c"], 4, comm=comm)
        net.freeze("b")
        before = net.forward(False, X, output=["a2", "c"])
        loss, score = net.step(
            X, Y, SGD(lr=0.1), measure=lambda out, y: Accuracy().evaluate(out, y)
        )
        pipeline.gather()
        return before, loss, score, net

    alone = chain()
    alone.freeze("b")
    before = alone.forward(False, X, output=["a2", "c"])
    loss, score = alone.step(X, Y, SGD(lr=0.1), measure=lambda out, y: Accuracy().evaluate(out, y))
    for made in together(work, 3):
        for name in before:
            np.testing.assert_allclose(made[0][name], before[name], rtol=1e-5, atol=1e-6)
        assert made[1:3] == pytest.approx((loss, score))
        expect_close(made[3], alone, rtol=1e-5, atol=1e-6)


def test_draws_differ_between_stages_and_running_state_moves_by_micro_batches():
    def make():
        return singanet.FeedForwardNet(
            [
                Dense("a", 8, input_sample_shape=(6,)),
                BatchNormalization("n"),
                Dropout("one", 0.5),
                Dropout("two", 0.5),
                Dense("d", 4),
            ],
            loss=SoftmaxCrossEntropy(),
            seed=3,
        )

    state = {}
    for _, net, _ in piped(make, X, Y, lambda: SGD(lr=0.0), 2, stages=["two"], micro_batches=2):
        state = values(net)
    alone = by_hand(make, X, Y, SGD(lr=0.0), 2)
    for name, value in values(alone).items():
        np.testing.assert_allclose(state[name], value, rtol=1e-6)


def test_a_rank_has_its_own_parameters_and_reads_others_on_the_first_alone(tmp_path):
    def work(comm):
        net = chain()
        pipeline = parallel.Pipeline(net, ["c"], comm=comm)
        net.step(X, Y, SGD(lr=0.1))
        here = [
            name
            for name, p in zip(net.param_names(), net.params(), strict=True)
            if p.storage.in_memory
        ]
        with pytest.raises(CallOrderError, match="on_first"):
            net.param_values()
        assert pipeline.on_first(lambda: net.save(tmp_path / "w.npz")) is None
        pipeline.gather()
        return here, net

    (first, net), (second, _) = together(work)
    assert first == ["a/weight", "a/bias", "b/weight", "b/bias"]
    assert second == ["c/weight", "c/bias", "d/weight", "d/bias"]
    with np.load(tmp_path / "w.npz") as saved:
        for name, value in values(net).items():
            np.testing.assert_array_equal(saved[name], value)

    def load(comm):
        other = chain()
        pipeline = parallel.Pipeline(other, ["b"], comm=comm)
        other.load(tmp_path / "w.npz")
        pipeline.gather()
        expect_close(other, net, rtol=0)

    together(load)


class Slow(Layer):
    """Takes its time, as its user says."""

    def __init__(self, name, seconds):
        super().__init__(name)
        self.seconds = seconds

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        import time

        time.sleep(self.seconds)
        return x

    def backward(self, ctx, dy):
        return dy, {}


def test_balance_by_measured_times():
    def work(comm):
        layers = [Slow(f"s{k}", 0.02 if k in (1, 4) else 0.001) for k in range(6)]
        net = singanet.FeedForwardNet(
            [Dense("a", 4, input_sample_shape=(6,)), *layers], loss=SoftmaxCrossEntropy(), seed=3
        )
        return parallel.Pipeline(net, "measure", comm=comm).part.plan

    first, second = together(work)
    assert "s1" in first.by_name
    assert "s4" in second.by_name
    assert first.sent.keys() == {1}


def test_balance_is_by_work_that_takes_no_clock():
    """Timed layers were cut elsewhere in each run, and their dropout drew other numbers."""

    def places(*slow):
        def work(comm):
            net = singanet.FeedForwardNet(
                [
                    Slow("s0", slow[0]),
                    Dense("wide", 400),
                    Activation("r"),
                    Dense("narrow", 5),
                    Slow("s1", slow[1]),
                ],
                loss=SoftmaxCrossEntropy(),
                seed=3,
            )
            net.build((6,))
            return parallel.Pipeline(net, comm=comm).places

        first, second = together(work)
        assert first == second
        return first

    assert places(0.02, 0.0) == places(0.0, 0.02)
    # By hand: an input and an output of wide, (6 · 400) products and weights; r moves 800.
    assert places(0.0, 0.0) == {"input": 0, "s0": 0, "wide": 0, "r": 1, "narrow": 1, "s1": 1}


def test_what_is_refused():
    def wrong(make, error, text, **arguments):
        with pytest.raises(error, match=text):
            together(lambda comm: parallel.Pipeline(make(), comm=comm, **arguments))

    wrong(chain, ArgumentError, "stages", stages=["b", "c"])
    wrong(chain, ArgumentError, "order", stages=["a"])
    wrong(chain, ArgumentError, "replicas", replicas=3)
    wrong(chain, ArgumentError, "balance", stages="c")
    wrong(chain, ArgumentError, "names of layers", stages=2)
    wrong(chain, ArgumentError, "memory", memory=10.0)

    def backwards():
        x = Input("x", (6,))
        with parallel.stage(1):
            y = Dense("a", 6)(x)
        with parallel.stage(0):
            z = Dense("b", 6)(y)
        return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=[x], outputs=[z])

    wrong(backwards, GraphError, "stage 1")

    def loops(comm):
        net = chain()
        parallel.Pipeline(net, ["c"], comm=comm)
        with pytest.raises(CallOrderError, match="pipeline"):
            net.forward(True, X)
        with pytest.raises(CallOrderError, match=r"pipeline\.gather"):
            net.as_type("float64")
        with pytest.raises(ArgumentError, match=r"compile it before parallel\.Pipeline"):
            net.compile(SGD(lr=0.1), mixed_precision="float16")
        assert net.compiled is None
        with pytest.raises(CallOrderError, match="another rank"):
            parallel.Pipeline(net, ["c"], comm=comm)

    together(loops)


def float16_step(net):
    """What a compiled net is stepped with, and the precision that scales its loss."""
    return net.compiled.scaled(net.compiled.optimizer), net.compiled.precision


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("broken", [None, 0, 1])
def test_mixed_precision_is_that_of_accumulation_in_one_process(clip, broken):
    """To the bit; a batch whose gradients overflow is refused by all stages and changes nothing."""

    def compiled():
        net = chain()
        rule = Adam(lr=0.01) if clip is None else ClipByGlobalNorm(Adam(lr=0.01), clip)
        net.compile(rule, mixed_precision=MixedPrecision())
        return net

    def work(comm):
        net = compiled()
        pipeline = parallel.Pipeline(net, ["b", "d"], comm=comm, micro_batches=3)
        optimizer, precision = float16_step(net)
        losses = []
        for k in range(4):
            # What is scaled by more than float16 holds is infinite.
            precision.scale = 2.0**40 if k == broken else 2.0**15
            with np.errstate(over="ignore", invalid="ignore"):
                losses.append(net.step(X, Y, optimizer)[0])
        pipeline.gather()
        return losses, net, precision.skipped

    alone = compiled()
    optimizer, precision = float16_step(alone)
    gathers = Accumulator(optimizer.optimizer, 3)
    scaled = ScaledUpdates(gathers, precision)
    losses = []
    for k in range(4):
        if k == broken:
            precision.skipped += 1
            continue
        parts = [(X[part], Y[part]) for part in np.array_split(np.arange(len(Y)), 3)]
        told = [len(y) * alone.step(x, y, scaled)[0] for x, y in parts]
        losses.append(sum(told) / len(Y))
    for seen, net, skipped in together(work, 3):
        assert [loss for k, loss in enumerate(seen) if k != broken] == losses
        assert skipped == precision.skipped
        for name, value in values(alone).items():
            assert values(net)[name].dtype == np.float16
            np.testing.assert_array_equal(values(net)[name], value, err_msg=name)


def test_averages_of_a_table_of_two_stages_are_those_of_one_process():
    """The stage that does not update it has its average, too."""

    def fitted(net):
        net.compile(SGD(lr=0.3))
        said = {"batch_size": 6, "shuffle": False, "epochs": 2, "verbose": False}
        net.fit(IDS, Y, callbacks=[EMA(0.5)], **said)
        return net

    def work(comm):
        net = tied()
        pipeline = parallel.Pipeline(net, micro_batches=2, comm=comm)
        fitted(net)
        outputs = net.forward(False, IDS)
        pipeline.gather()
        return net, outputs

    whole = fitted(tied())
    for net, outputs in together(work):
        expect_close(net, whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs, whole.forward(False, IDS), rtol=1e-4, atol=1e-6)


def drawn_from_inputs(layers):
    """A net of two inputs, with some layers that compute."""
    ends = [Input("x", (6,)), Input("y", (6,))]
    h = Add("sum")(ends)
    for k in range(layers - 1):
        h = Dense(f"d{k}", 4)(h)
    return singanet.FeedForwardNet(SoftmaxCrossEntropy(), inputs=ends, outputs=[h], seed=3)


@pytest.mark.parametrize("stages", ["balance", "measure", None])
def test_inputs_are_no_stage_of_their_own(stages):
    """It raised an IndexError."""

    def work(comm, layers):
        net = drawn_from_inputs(layers)
        if layers < comm.size:
            with pytest.raises(ArgumentError, match=f"at most {layers} stages"):
                parallel.Pipeline(net, stages, comm=comm)
            return 0.0
        pipeline = parallel.Pipeline(net, stages, comm=comm)
        assert {place for name, place in pipeline.places.items() if name not in "xy"} == {0, 1, 2}
        return net.step({"x": X, "y": X}, Y, SGD(lr=0.1))[0]

    alone = drawn_from_inputs(3).step({"x": X, "y": X}, Y, SGD(lr=0.1))[0]
    assert together(lambda comm: work(comm, 2), 3) == [0.0] * 3
    np.testing.assert_allclose(together(lambda comm: work(comm, 3), 3), alone, rtol=1e-5)


def test_a_stage_of_inputs_alone_is_refused():
    def work(comm):
        with pytest.raises(ArgumentError, match="that compute; received"):
            parallel.Pipeline(drawn_from_inputs(3), ["sum"], comm=comm)

    together(work)
