"""Nets whose layers lie on several ranks train as in one process, or are refused."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import layers, parallel
from singanet.errors import ArgumentError, CallOrderError, GraphError
from singanet.layers import Activation, Add, Concat, Dense, Embedding, Flatten, Input
from singanet.loss import MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import Accuracy
from singanet.optimizer import SGD, Accumulator, Adam, ClipByGlobalNorm, ClipByLayerNorm, Muon
from singanet.optimizer.mixed_precision import MixedPrecision, ScaledUpdates
from singanet.parallel.pipeline import partition
from singanet.training.callbacks import EMA
from tests.kit.nets import values_of
from tests.kit.ranks import expect_near_values, on_stages, together

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((11, 6)).astype(np.float32), RNG.integers(0, 4, 11)
IDS = RNG.integers(0, 9, (11, 3))
LABELS = {"one": RNG.integers(0, 3, 11), "two": RNG.integers(0, 4, 11)}
LABELS["one"][[0, 1, 2, 3, 8]] = -1
FLOATS, WEIGHTS = RNG.standard_normal((11, 4)).astype(np.float32), RNG.random(11, np.float32)


def net_of(made, loss=None):
    return singanet.FeedForwardNet([*made], loss=loss or SoftmaxCrossEntropy(), seed=3)


def drawn_to(inputs, outputs, loss=None):
    return singanet.FeedForwardNet(
        loss or SoftmaxCrossEntropy(), inputs=inputs, outputs=outputs, seed=3
    )


def chain(loss=None):
    made = [Dense("a", 7, input_sample_shape=(6,)), Activation("a2"), Dense("b", 5)]
    made += [Activation("b2", mode="tanh"), Dense("c", 6), Activation("c2"), Dense("d", 4)]
    return net_of(made, loss)


def summed(**ignore):
    return chain(SoftmaxCrossEntropy(reduction="sum", **ignore))


def skipping():
    """What stage 0 makes is read by all stages, and by the loss."""
    x = Input("x", (6,))
    with parallel.stage(0):
        first = Activation("r0")(Dense("a", 6)(x))
    with parallel.stage(1):
        second = Add("plus")([Dense("b", 6)(first), first])
    with parallel.stage(2):
        third = Dense("c", 4)(Concat("both", 1)([first, second, x]))
    return drawn_to([x], [third])


def tied():
    """A table that the first and the last stage use."""
    net = singanet.FeedForwardNet(SoftmaxCrossEntropy(), seed=3)
    with parallel.stage(0):
        table = net.add(Embedding("e", 9, 5, input_sample_shape=(3,)))
        net.add(Flatten("f"))
    with parallel.stage(1):
        net.add(Dense("h", 5))
        net.add(Dense("out", 9, use_bias=False, W_transpose=True, W_specs=table.params["weight"]))
    return net


def twice_read():
    table = Embedding("e", 9, 5, input_sample_shape=(3,))
    with parallel.stage(0):
        x = Input("x", (3,), dtype="int64")
        one = Dense("a", 4)(Flatten("f")(table(x)))
    with parallel.stage(1):
        again = Embedding("e2", 9, 5, W_specs=table.params["weight"])(x)
        out = Dense("b", 4)(Concat("both", 1)([one, Flatten("f2")(again)]))
    return drawn_to([x], [out])


def two_losses(reduction):
    """Two outputs, one of which has labels that do not count."""
    x = Input("x", (6,))
    h = Activation("r")(Dense("a", 5)(x))
    first = SoftmaxCrossEntropy(ignore_index=-1, reduction=reduction)
    loss = MultiLoss({"one": first, "two": SoftmaxCrossEntropy()}, {"two": 0.5})
    return drawn_to([x], [Dense("one", 3)(h), Dense("two", 4)(h)], loss)


def random_net(seed, stages):
    """A net of which each layer reads some earlier ones, and the last one three of them."""
    rng = np.random.default_rng(seed)
    x = Input("x", (6,))
    made, shared, line = [Dense("in", 5)(x)], None, x
    for k in range(stages):
        with parallel.stage(k):
            # A chain through all stages, so that none is empty.
            line = Add(f"in{k}")([Dense(f"first{k}", 5)(line), made[-1]])
            made.append(line)
            for d in range(int(rng.integers(0, 3))):
                source, other = (made[rng.integers(0, len(made))] for _ in range(2))
                specs = shared.params["weight"] if shared and rng.integers(0, 2) else None
                layer = Dense(f"d{k}.{d}", 5, W_specs=specs)
                shared = shared or layer
                made.append(Add(f"sum{k}.{d}")([Activation(f"r{k}.{d}")(layer(source)), other]))
    with parallel.stage(stages - 1):
        scores = Dense("out", 4)(Concat("cat", 1)([line, made[-2], made[-1]]))
    net = drawn_to([x], [scores])
    if rng.integers(0, 3) == 0:
        net[rng.choice([layer.name for layer in net.layers if layer.params])].trainable = False
    return net


# -- stages and one process -----------------------------------------------------------------------


@settings(max_examples=6, deadline=None)
@given(
    st.sets(st.sampled_from(["a2", "b", "b2", "c", "c2", "d"]), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([8, 11]),
    st.sampled_from(["gpipe", "1f1b"]),
)
def test_training_is_that_of_accumulation_in_one_process(cuts, micro, samples, name):
    count, ranks, rule = min(micro, samples), len(cuts) + 1, SGD(lr=0.1, momentum=0.9)
    alone, gathers = chain(), Accumulator(rule, count)
    alone.programs.enabled = False
    for _ in range(3):
        for part in np.array_split(np.arange(samples), count):
            alone.step(X[part], Y[part], gathers)

    def train(net, pipeline):
        own = SGD(lr=0.1, momentum=0.9)
        return [net.step(X[:samples], Y[:samples], own)[0] for _ in range(3)], pipeline

    # The mean is made before the rule here and within it there: the same bits for powers of two.
    exact = samples % count == 0 and count in (1, 2, 4, 8)
    runs = on_stages(train, chain, sorted(cuts), micro, ranks, schedule=name)
    for (losses, pipeline), values in runs:
        assert losses == runs[0][0][0]
        expect_near_values(values, values_of(alone), *((0, 0) if exact else (1e-5, 1e-7)))
        bound = count if name == "gpipe" else min(ranks - pipeline.stage, count)
        assert pipeline.alive == bound


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
    near: tuple[float, float] = (1e-5, 1e-6)


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


def expect_one_process(setting, schedule):
    """The values of the net of one process, from which stages do not differ."""
    whole = setting.make()
    told = stepped(whole, setting, setting.rule())
    outputs, first = whole.forward(False, setting.x), isinstance(setting.y, np.ndarray)

    def train(net, pipeline):
        rule, part = setting.rule(), slice(None)
        if setting.rows > 1:
            rule = parallel.AllReduce(rule, pipeline.replicas)
            part = slice(pipeline.replica, None, setting.rows)
        losses = stepped(net, setting, rule, part)
        return losses, net.forward(False, setting.x) if first else outputs

    rtol, atol = setting.near
    more = {"schedule": schedule, "replicas": setting.rows}
    made = on_stages(train, setting.make, setting.stages, setting.micro, setting.ranks, **more)
    for (losses, found), values in made:
        if setting.rows == 1:
            np.testing.assert_allclose(losses, told, rtol=rtol)
        expect_near_values(values, values_of(whole), rtol, atol)
        if first:
            np.testing.assert_allclose(found, outputs, rtol=100 * rtol, atol=100 * atol)
    return values_of(whole)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("name", SETTINGS)
def test_stages_train_as_one_process(name, schedule):
    values = expect_one_process(SETTINGS[name], schedule)
    if name == "twice read":
        np.testing.assert_array_equal(
            values["e/weight"][5:], values_of(twice_read())["e/weight"][5:]
        )


RULES = [
    lambda: SGD(lr=0.1, momentum=0.9),
    lambda: Adam(lr=0.01),
    lambda: ClipByGlobalNorm(SGD(lr=0.3), 0.2),
    lambda: Muon(lr=0.003),
]


@pytest.mark.few(4, full=4)
@pytest.mark.parametrize("seed", range(200))
def test_a_random_net_trains_as_in_one_process(seed):
    """Skip connections, shared weights, frozen layers."""
    rng = np.random.default_rng(10**6 + seed)
    stages, micro = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    setting = Setting(
        lambda: random_net(seed, stages), RULES[seed % 4], ranks=stages, micro=micro,
        steps=2, near=(1e-3, 2e-5),
    )  # fmt: skip
    expect_one_process(setting, str(rng.choice(["gpipe", "1f1b"])))


def drops():
    """Draws, running state, and a metric on the last stage alone."""
    made = [Dense("a", 8, input_sample_shape=(6,)), layers.BatchNormalization("n")]
    return net_of([*made, layers.Dropout("o", 0.5), layers.Dropout("two", 0.5), Dense("d", 4)])


def looked_up():
    """A table on a stage of its own, whose gradients are rows."""
    made = [Embedding("e", 9, 5, input_sample_shape=(3,)), Flatten("f"), Dense("c", 4)]
    return net_of([*made, Activation("c2"), Dense("d", 4)])


def ignoring():
    return chain(SoftmaxCrossEntropy(ignore_index=-1))


RECORDED = {
    **SETTINGS,
    "a table": Setting(looked_up, lambda: Adam(lr=0.01), IDS, stages=["c2"], micro=3),
    "draws": Setting(drops, stages=["two"], micro=3),
    "ignored labels": Setting(ignoring, y=LABELS["one"], stages=["c"]),
    "a layer of the user's": Setting(lambda: net_of([*chain().layers, Own("own")]), stages=["c"]),
}
BY_LAYERS = {
    "twice read": "rows of a table",
    "a layer of the user's": "sees what comes from another process",
}


class Own(layers.Layer):
    """Does not say that it is pure."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x * 2

    def backward(self, ctx, dy):
        return dy * 2, {}


def expect_layers_bits(setting, schedule, refused="", steps=10):
    """Programs of stages make what the layers make."""

    def train(net, pipeline):
        pipeline.programs.enabled = recorded
        rule, seen = setting.rule(), []
        if setting.rows > 1:
            rule = parallel.AllReduce(rule, pipeline.replicas)
        measure = lambda out, y: float(np.sum(out, dtype=np.float64))  # noqa: E731
        for k in range(steps):
            rows = slice(0, 7 if k % 5 == 4 else None)
            y = {n: a[rows] for n, a in setting.y.items()} if isinstance(setting.y, dict) else None
            weight = None if setting.weight is None else setting.weight[rows]
            y = setting.y[rows] if y is None else y
            given = {"sample_weight": weight, "measure": None if isinstance(y, dict) else measure}
            seen.append(net.step(setting.x[rows], y, rule, **given))
        programs = pipeline.programs
        made = [len(programs.reports()), programs.refusals]
        outputs = [net.forward(False, setting.x) for _ in range(2)]
        return seen, outputs, [*made, len(programs.reports()) - made[0]]

    made = {}
    for recorded in (False, True):
        more = {"schedule": schedule, "replicas": setting.rows}
        made[recorded] = on_stages(
            train, setting.make, setting.stages, setting.micro, setting.ranks, **more
        )
    told = []
    for (wanted, values), (found, others) in zip(*made.values(), strict=True):
        assert found[0] == wanted[0]
        np.testing.assert_equal(found[1], wanted[1])
        expect_near_values(others, values, 0, 0)
        count, refusals, of_outputs = found[2]
        told += refusals
        assert refused or (count == (1 if steps < 10 else 2) and of_outputs == 1)
    assert refused in "; ".join(told)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stage_makes_the_bits_of_its_layers(name, schedule):
    expect_layers_bits(RECORDED[name], schedule, BY_LAYERS.get(name, ""))


@pytest.mark.few(4, full=12)
@pytest.mark.parametrize("seed", range(200))
def test_recorded_stages_of_random_nets_make_the_bits_of_their_layers(seed):
    rng = np.random.default_rng(10**6 + seed)
    stages, micro = int(rng.integers(2, 5)), int(rng.integers(1, 6))
    setting = Setting(lambda: random_net(seed, stages), RULES[seed % 4], ranks=stages, micro=micro)
    expect_layers_bits(setting, str(rng.choice(["gpipe", "1f1b"])), steps=4)


@pytest.mark.parametrize("where", ["a measure", "behind the walk back"])
def test_a_recorded_step_that_fails_changes_nothing(where):
    def work(comm, recorded):
        net, values, step = drops(), [], 0
        pipeline, rule = parallel.Pipeline(net, None, 3, comm=comm), SGD(lr=0.1)
        pipeline.programs.enabled = recorded
        broadcast, calls = pipeline.row.broadcast, iter(range(99))

        def fail(here):
            if step == 3 and here == where:
                raise KeyboardInterrupt

        def measure(out, y):
            if next(calls) % 3 == 1:
                fail("a measure")
            return 0.0

        def told(*given):
            fail("behind the walk back")
            return broadcast(*given)

        pipeline.row.broadcast = told
        for step in range(6):
            values.append({name: value.copy() for name, value in values_of(net).items()})
            with pytest.raises(KeyboardInterrupt) if step == 3 else nullcontext():
                net.step(X, Y, rule, measure=measure)
        expect_near_values(values[4], values[3], 0, 0)
        return values_of(net)

    made = [together(partial(work, recorded=recorded), 1)[0] for recorded in (False, True)]
    expect_near_values(made[1], made[0], 0, 0)


def test_frozen_layers_and_evaluation():
    def train(net, pipeline=None):
        net.freeze("b")
        before = net.forward(False, X, output=["a2", "c"])
        measure = lambda out, y: Accuracy().evaluate(out, y)  # noqa: E731
        return before, net.step(X, Y, SGD(lr=0.1), measure=measure)

    alone = chain()
    before, told = train(alone)
    for (outputs, numbers), values in on_stages(train, chain, ["b", "c"], size=3):
        expect_near_values(outputs, before, 1e-5, 1e-6)
        assert numbers == pytest.approx(told)
        expect_near_values(values, values_of(alone), 1e-5, 1e-6)


def test_running_state_moves_by_micro_batches_on_each_stage():
    alone, gathers = drops(), Accumulator(SGD(lr=0.0), 2)
    for part in np.array_split(np.arange(len(Y)), 2):
        alone.step(X[part], Y[part], gathers)
    for _, found in on_stages(lambda net, _: net.step(X, Y, SGD(lr=0.0)), drops, ["two"], 2):
        expect_near_values(found, values_of(alone), 1e-6, 0)


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("broken", [None, 0, 1])
def test_mixed_precision_is_that_of_accumulation_in_one_process(clip, broken):
    """To the bit; a batch whose gradients overflow is refused by all stages and changes nothing."""

    def compiled():
        net = chain()
        rule = Adam(lr=0.01) if clip is None else ClipByGlobalNorm(Adam(lr=0.01), clip)
        net.compile(rule, mixed_precision=MixedPrecision())
        return net

    def train(net, pipeline):
        precision, losses = net.compiled.precision, []
        optimizer = net.compiled.scaled(net.compiled.optimizer)
        for k in range(4):
            # What is scaled by more than float16 holds is infinite.
            precision.scale = 2.0**40 if k == broken else 2.0**15
            with np.errstate(over="ignore", invalid="ignore"):
                losses.append(net.step(X, Y, optimizer)[0])
        assert len(pipeline.programs.reports()) == 1
        return losses, precision.skipped

    alone, losses = compiled(), []
    precision = alone.compiled.precision
    scaled = ScaledUpdates(Accumulator(alone.compiled.optimizer, 3), precision)
    for k in range(4):
        if k == broken:
            precision.skipped += 1
            continue
        parts = [(X[part], Y[part]) for part in np.array_split(np.arange(len(Y)), 3)]
        told = [len(y) * alone.step(x, y, scaled)[0] for x, y in parts]
        losses.append(sum(told) / len(Y))
    for (seen, skipped), values in on_stages(train, compiled, ["b", "d"], 3, 3):
        assert [loss for k, loss in enumerate(seen) if k != broken] == losses
        assert skipped == precision.skipped
        assert {value.dtype for value in values.values()} == {np.dtype(np.float16)}
        expect_near_values(values, values_of(alone), 0, 0)


def test_averages_of_a_table_of_two_stages_are_those_of_one_process():
    """The stage that does not update it has its average, too."""

    def fitted(net, pipeline=None):
        net.compile(SGD(lr=0.3))
        said = {"batch_size": 6, "shuffle": False, "epochs": 2, "verbose": False}
        net.fit(IDS, Y, callbacks=[EMA(0.5)], **said)
        return net.forward(False, IDS)

    whole = tied()
    wanted = fitted(whole)
    for outputs, values in on_stages(fitted, tied, None, 2):
        expect_near_values(values, values_of(whole), 1e-5, 1e-6)
        np.testing.assert_allclose(outputs, wanted, rtol=1e-4, atol=1e-6)


def test_a_rank_has_its_own_parameters_and_reads_others_on_the_first_alone(tmp_path):
    def work(comm):
        net = chain()
        pipeline = parallel.Pipeline(net, ["c"], comm=comm)
        net.step(X, Y, SGD(lr=0.1))
        here = {param.name[0] for param in net.params() if param.storage.in_memory}
        with pytest.raises(CallOrderError, match="on_first"):
            net.param_values()
        assert pipeline.on_first(lambda: net.save(tmp_path / "w.npz")) is None
        pipeline.gather()
        return here, net

    (first, net), (second, _) = together(work)
    assert (first, second) == ({"a", "b"}, {"c", "d"})
    with np.load(tmp_path / "w.npz") as saved:
        for name, value in values_of(net).items():
            np.testing.assert_array_equal(saved[name], value)

    def load(comm):
        other = chain()
        pipeline = parallel.Pipeline(other, ["b"], comm=comm)
        other.load(tmp_path / "w.npz")
        pipeline.gather()
        expect_near_values(values_of(other), values_of(net), 0, 0)

    together(load)


# -- where layers go ------------------------------------------------------------------------------


class Slow(layers.Layer):
    """Takes its time, by a clock that only it moves."""

    clock = 0.0

    def __init__(self, name, seconds):
        super().__init__(name)
        self.seconds = seconds

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        Slow.clock += self.seconds
        return x

    def backward(self, ctx, dy):
        return dy, {}


@pytest.fixture
def clock(monkeypatch):
    """The clock of `Slow`, which moves a little whenever it is read."""

    def read():
        Slow.clock += 0.001
        return Slow.clock

    monkeypatch.setattr(partition, "perf_counter", read)


def places(made, stages):
    def work(comm):
        net = net_of(made())
        net.build((6,))
        return parallel.Pipeline(net, stages, comm=comm).places

    first, second = together(work)
    assert first == second
    return first


def test_balance_by_measured_times(clock):
    def made():
        return [Dense("a", 4), *(Slow(f"s{k}", 1.0 if k in (1, 4) else 0.01) for k in range(6))]

    found = places(made, "measure")
    assert (found["s1"], found["s4"]) == (0, 1)


@pytest.mark.parametrize("slow", [(1.0, 0.0), (0.0, 1.0)])
def test_balance_is_by_work_that_takes_no_clock(clock, slow):
    """Timed layers were cut elsewhere in each run, and their dropout drew other numbers."""

    def made():
        within = [Dense("wide", 400), Activation("r"), Dense("narrow", 5)]
        return [Slow("s0", slow[0]), *within, Slow("s1", slow[1])]

    # By hand: an input and an output of wide, (6 · 400) products and weights; r moves 800.
    wanted = {"input": 0, "s0": 0, "wide": 0, "r": 1, "narrow": 1, "s1": 1}
    assert places(made, "balance") == wanted


def drawn_from_inputs(count=3):
    ends = [Input("x", (6,)), Input("y", (6,))]
    h = Add("sum")(ends)
    for k in range(count - 1):
        h = Dense(f"d{k}", 4)(h)
    return drawn_to(ends, [h])


@pytest.mark.parametrize("stages", ["balance", "measure", None])
def test_inputs_are_no_stage_of_their_own(stages):
    def work(comm):
        with pytest.raises(ArgumentError, match="at most 2 stages"):
            parallel.Pipeline(drawn_from_inputs(2), stages, comm=comm)
        net = drawn_from_inputs()
        pipeline = parallel.Pipeline(net, stages, comm=comm)
        assert {place for name, place in pipeline.places.items() if name not in "xy"} == {0, 1, 2}
        return net.step({"x": X, "y": X}, Y, SGD(lr=0.1))[0]

    alone = drawn_from_inputs().step({"x": X, "y": X}, Y, SGD(lr=0.1))[0]
    np.testing.assert_allclose(together(work, 3), alone, rtol=1e-5)


# -- what is refused ------------------------------------------------------------------------------


def backwards():
    x = Input("x", (6,))
    with parallel.stage(1):
        y = Dense("a", 6)(x)
    with parallel.stage(0):
        z = Dense("b", 6)(y)
    return drawn_to([x], [z])


@pytest.mark.parametrize(
    ("make", "error", "text", "arguments"),
    [
        (chain, ArgumentError, "stages", {"stages": ["b", "c"]}),
        (chain, ArgumentError, "order", {"stages": ["a"]}),
        (chain, ArgumentError, "replicas", {"replicas": 3}),
        (chain, ArgumentError, "balance", {"stages": "c"}),
        (chain, ArgumentError, "names of layers", {"stages": 2}),
        (chain, ArgumentError, "memory", {"memory": 10.0}),
        (backwards, GraphError, "stage 1", {}),
        (
            lambda: drawn_from_inputs(),
            ArgumentError,
            "that compute; received",
            {"stages": ["sum"]},
        ),
    ],
)
def test_stages_that_do_not_go_are_refused(make, error, text, arguments):
    def work(comm):
        with pytest.raises(error, match=text):
            parallel.Pipeline(make(), comm=comm, **arguments)

    together(work)


def test_what_a_net_on_stages_does_not_do_is_refused():
    def work(comm):
        net = chain()
        parallel.Pipeline(net, ["c"], comm=comm)
        for kind, text, call in (
            (CallOrderError, "pipeline", lambda: net.forward(True, X)),
            (CallOrderError, r"pipeline\.gather", lambda: net.as_type("float64")),
            (CallOrderError, "another rank", lambda: parallel.Pipeline(net, ["c"], comm=comm)),
            (ArgumentError, r"compile it before parallel\.Pipeline",
             lambda: net.compile(SGD(lr=0.1), mixed_precision="float16")),
        ):  # fmt: skip
            with pytest.raises(kind, match=text):
                call()
        assert net.compiled is None
        # Each stage clipped by the norm of its own layers, without a word.
        net.compile(SGD(lr=0.1))
        with pytest.raises(ArgumentError, match="all layers on this rank.*norm of all"):
            net.fit(X, Y, clip=1.0, clip_by="running", verbose=False)

    together(work)
