"""Plans within budgets: what is chosen, and what is refused with the smallest that can be kept."""

import gc
import inspect
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import functional as F
from singanet import layers as nn
from singanet.base.kinds import bytes_text, checked_bytes
from singanet.budget.search import MEASURES, _Search, not_in_parts
from singanet.errors import ArgumentError
from singanet.layers import Activation, Add, BatchNormalization, Conv2D, Dense, Dropout, Input
from singanet.loss import InfoNCE, MultiLoss, SoftmaxCrossEntropy, SquaredError, from_function
from singanet.optimizer import SGD, Accumulator, Adam, FactoredAdam


class Doubled(nn.Layer):
    """A user's layer in Python, which keeps what it reads."""

    def setup(self, in_shape):
        return in_shape

    def forward(self, ctx, x):
        ctx.saved["x"] = np.array(x)
        return 2.0 * x

    def backward(self, ctx, dy):
        return 2.0 * dy, {}


def image_net(width=8, norm=False, user=False, seed=0):
    net = singanet.FeedForwardNet(SquaredError(), seed=seed)
    net.add(Conv2D("conv0", width, 3, pad=1, input_sample_shape=(3, 12, 12)))
    for k in (1, 2):
        if norm:
            net.add(BatchNormalization(f"norm{k}"))
        net.add(Activation(f"tanh{k}", "tanh"))
        net.add(Conv2D(f"conv{k}", width, 3, pad=1))
    if user:
        net.add(Doubled("doubled"))
    net.add(nn.Flatten("flat"))
    net.add(Dense("fc", 4))
    return net


def least_of(error):
    return int(re.search(r"at least ([\d,]+) bytes", str(error)).group(1).replace(",", ""))


def test_a_search_collects_no_garbage(monkeypatch):
    run, found = _Search.run, []

    def counted(*given):
        def count(phase, info):
            found.append(phase)

        gc.callbacks.append(count)
        try:
            return run(*given)
        finally:
            gc.callbacks.remove(count)

    monkeypatch.setattr(_Search, "run", counted)
    image_net().plan(2, SGD(lr=0.1))
    assert not found


@settings(max_examples=6, deadline=None)
@given(
    batch=st.integers(1, 5), share=st.floats(0.05, 1.2), norm=st.booleans(), user=st.booleans(),
    momentum=st.sampled_from([0.0, 0.9])
)  # fmt: skip
def test_a_budget_is_planned_within_or_refused_with_the_smallest(
    batch, share, norm, user, momentum
):
    net, optimizer = image_net(norm=norm, user=user), SGD(lr=0.1, momentum=momentum)
    before = [value.copy() for value in net.param_values()]
    whole = net.plan(batch, optimizer, "1GB")
    assert whole.measures == ()
    assert whole.slowdown == 1.0
    budget = int(share * whole.peak)
    try:
        plan = net.plan(batch, optimizer, budget)
    except ArgumentError as error:
        least = least_of(error)
        assert least > budget
        plan, budget = net.plan(batch, optimizer, least), least
    assert plan.peak <= budget
    assert plan.peak == sum(plan.chosen.parts.values())
    assert (plan.measures == ()) == (whole.peak <= budget)
    assert not (norm and any("micro" in measure for measure in plan.measures))
    assert all(map(np.array_equal, before, net.param_values()))


def test_measures_come_cheapest_in_time_first_and_each_may_be_left_out():
    net, sgd = image_net(), SGD(lr=0.1)
    # Large enough for what planning itself leaves, some 2 MB, not to decide.
    whole = net.plan(256, sgd, "1GB")
    budget = whole.peak - whole.chosen.parts["arena"] // 30
    first = net.plan(256, sgd, budget)
    assert first.measures
    assert first.peak <= budget
    assert first.slowdown > 1
    split = net.plan(256, sgd, budget, allow=("micro-batches",))
    assert split.measures == (f"micro-batches of {split.chosen.micro_batch}",)
    assert split.chosen.recompute == "none"
    # How much recomputing saves is the kernels' matter; where it is enough, it comes first.
    try:
        again = net.plan(256, sgd, budget, allow=("recompute",))
    except ArgumentError:
        assert first.measures == split.measures
    else:
        assert again.measures == ("recompute",)
        assert first.slowdown == min(again.slowdown, split.slowdown)
    with pytest.raises(ArgumentError, match="at least .*which takes as it is"):
        net.plan(256, sgd, budget, allow=())


def wide_net():
    layers = [Dense(f"fc{k}", 256, input_sample_shape=(256,)) for k in range(5)]
    return singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)


def test_offloading_comes_last_and_state_of_less_size_before_it():
    net, adam, every = wide_net(), Adam(lr=0.1), ("micro-batches", "light state", "offload")
    layer, params = 4 * 256 * 256, 4 * 5 * (256 * 256 + 256)
    plan = net.plan(4, adam, allow=every)
    names = [way.name for way in plan.table]
    assert names[0] == "as it is"
    assert names.index("light state") < names.index("offload")
    two = net.plan(4, adam, allow=("offload",)).table
    assert [way.name for way in two] == ["as it is", "offload"]
    ways = {way.name: way for way in plan.table}
    # v of five square matrices becomes a row and a column each; that of vectors stays.
    assert ways["light state"].parts["optimizer state"] == params + 4 * 5 * (2 * 256 + 256)
    # A layer at a time with its state, the vectors in memory.
    away = ways["offload"]
    assert away.keep == 3 * layer
    assert away.parts["optimizer state"] == 2 * away.parts["parameters"] == 2 * 4 * 5 * 256
    # The more room, the more of the folder is kept.
    roomy = net.plan(4, adam, away.peak + 2 * layer, allow=("offload",))
    assert roomy.chosen.keep == away.keep + 2 * layer
    assert roomy.peak == away.peak + 2 * layer
    assert roomy.slowdown > 1
    light = net.plan(4, adam, ways["light state"].peak, allow=every)
    assert type(light.chosen.optimizer) is FactoredAdam
    assert all(way.slowdown > 1 for way in plan.table if "offload" in way.measures)
    # Matrices are read forward and backward and written once, Adam's two states read and written,
    # where a byte of the folder takes the time of four in memory.
    work = away.step.work
    assert away.slowdown == pytest.approx((work + 4 * 5 * layer * (2 + 1 + 2 * 2)) / work)
    # By the layers more objects of Python are left than where programs are made of them.
    assert away.parts["planning"] > ways["as it is"].parts["planning"]


def test_by_the_layers_what_programs_would_be_made_of_is_left():
    def left(depth):
        net = wide_net()
        for k in range(depth):
            net.add(Dense(f"more{k}", 256))
        whole, away = net.plan(4, Adam(lr=0.1), allow=("offload",)).table
        return whole.parts["planning"] + whole.step.objects, away.parts["planning"]

    (whole, away), (larger, further) = left(0), left(5)
    assert larger - whole > 10_000
    assert further - away == larger - whole


def test_a_refusal_names_what_less_could_be_with():
    for allow in ((), ("recompute", "micro-batches")):
        with pytest.raises(ArgumentError, match="and an offload_folder") as caught:
            wide_net().plan(4, Adam(lr=0.1), "10kB", allow=allow)
        less = int(re.search(r"or (\d+) and", str(caught.value)).group(1))
        plan = wide_net().plan(4, Adam(lr=0.1), less, allow=(*allow, "offload"))
        assert plan.peak == less
        assert plan.measures[-1] == "offload"
    with pytest.raises(ArgumentError, match="less state") as caught:
        wide_net().plan(4, Adam(lr=0.1), "10kB", allow=("offload",))
    assert "offload_folder" not in str(caught.value)
    # Where all is allowed there is nothing else to name.
    with pytest.raises(ArgumentError) as caught:
        wide_net().plan(4, Adam(lr=0.1), "10kB", allow=("light state", "offload"))
    assert re.fullmatch(r"give it \d+; or take .*", caught.value.advice)


def test_lighter_state_is_told_where_there_is_none():
    net, used = image_net(), Adam(lr=0.1)
    net.step(np.ones((2, 3, 12, 12), np.float32), np.ones((2, 4), np.float32), used)
    for optimizer, why in ((SGD(lr=0.1), "this is a SGD"), (used, "has state already")):
        notes = net.plan(2, optimizer, allow=("light state",)).notes
        assert any(why in note for note in notes)


def test_no_parameter_is_filled_by_planning():
    net = wide_net()
    net.plan(4, Adam(lr=0.1), allow=("offload",))
    net.memory(4)
    steps = net.planned().steps
    assert not any(param.filled for step in steps for param in step.layer.params.values())
    filled = wide_net()
    filled.param_values()
    assert all(map(np.array_equal, net.param_values(), filled.param_values()))
    assert len(net.buckets()) == len(filled.buckets())


def test_statistics_of_a_batch_sums_and_accumulators_are_told_to_forbid_parts():
    for net, optimizer, why in (
        (image_net(norm=True), SGD(lr=0.1), "'norm1' takes statistics of its whole batch"),
        (image_net(), Accumulator(SGD(lr=0.1), 2), "accumulates over batches already"),
    ):
        assert any(why in note for note in net.plan(4, optimizer).notes)
    net = image_net()
    net.loss = SquaredError(reduction="sum")
    assert "sum over its batch" in str(net.plan(4, SGD(lr=0.1)))
    x, y = Input("pairs", (2, 6)), Input("ones", ())
    ends = [Activation("to", "tanh")(x) for _ in range(2)]
    nets = (singanet.FeedForwardNet(InfoNCE(), inputs=[x], outputs=ends[0]),
            singanet.FeedForwardNet(inputs=[x, y], outputs=InfoNCE()(ends[1], y)))  # fmt: skip
    for net in nets:
        assert "compares the samples of a batch" in not_in_parts(net, SGD(lr=0.1))
    x = Input("x", (6,))
    ends = [Dense(name, 3)(x) for name in "ab"]
    losses = {"a": SoftmaxCrossEntropy(ignore_index=-1), "b": SoftmaxCrossEntropy()}
    net = singanet.FeedForwardNet(MultiLoss(losses), inputs=[x], outputs=ends)
    assert "count apart" in str(net.plan(4, SGD(lr=0.1)))


@pytest.mark.parametrize(("fn", "cut"), [
    (lambda x, y: F.sum(F.square(x - y), axis=1), True),
    (lambda x, y: F.logsumexp(F.matmul(x, F.transpose(x)), axis=1), False),
])  # fmt: skip
def test_a_loss_of_a_function_is_cut_unless_it_compares_samples(fn, cut):
    net = singanet.FeedForwardNet([Dense("a", 512, input_shape=(256,)), Dense("b", 8)], seed=0)
    net.compile(SGD(lr=0.1), from_function(fn))
    given = {"x": np.ones((1024, 256), np.float32), "y": np.ones((1024, 8), np.float32)}
    given |= {"batch_size": 1024, "memory_budget": "12MB", "verbose": False}
    if cut:
        net.fit(**given)
    else:
        with pytest.raises(ArgumentError, match="compares the samples of a batch"):
            net.fit(**given)


def test_what_a_layer_in_python_keeps_is_counted():
    plain, own = image_net(), image_net(user=True)
    batch, values = 8, 8 * 12 * 12
    sgd = SGD(lr=0.1)
    more = own.plan(batch, sgd).chosen.parts["other"] - plain.plan(batch, sgd).chosen.parts["other"]
    # The copy that it reads, and the one that it saves.
    assert more >= 2 * 4 * batch * values


def test_the_table_and_the_picture_show_what_was_looked_at():
    net = image_net()
    plan = net.plan(8, Adam(lr=0.1))
    text = str(plan)
    assert text.startswith("batches of 8: as it is\n")
    assert "micro-batches of 4" in text
    (chosen,) = (line for line in text.splitlines() if line.lstrip().startswith("->"))
    assert "as it is" in chosen
    # Names begin below their heads, and numbers end there.
    _, heads, _, *rows = text.splitlines()
    rows = rows[: len(plan.table)]
    for row, way in zip(rows, plan.table, strict=True):
        assert row.find(way.name) == heads.find("measures")
        assert row[: heads.find("peak") + 4].endswith(f"  {bytes_text(way.peak)}")
        assert row[: heads.find("arena") + 5].endswith(bytes_text(way.parts["arena"]))
    bars = plan.picture().splitlines()
    assert any("forward conv0" in bar for bar in bars)
    assert any("backward" in bar for bar in bars)
    # So many parts of the step, and the one that needs most across the whole width.
    assert len(bars) == min(40, len(plan.chosen.step.report.kernels))
    assert max(bar.count("#") for bar in bars) == 50
    tops = [checked_bytes("picture", bar[:10].replace(",", "")) for bar in bars]
    assert max(tops) == pytest.approx(plan.peak, rel=0.05)


@pytest.mark.parametrize("budget", ["600", "-1MB", 0, -5, 2.5, "lots", True])
def test_budgets_that_are_no_sizes_are_refused(budget):
    with pytest.raises(ArgumentError, match="memory_budget: expected bytes"):
        image_net().plan(4, SGD(lr=0.1), budget)


def test_a_budget_below_the_parameters_says_so_and_one_of_them_and_no_more_does_not():
    net, adam = image_net(), Adam(lr=0.1)
    fixed = 3 * sum(value.nbytes for value in net.param_values())
    with pytest.raises(ArgumentError, match="expected at least") as caught:
        net.plan(4, adam, fixed, allow=())
    assert "below" not in str(caught.value)
    for budget, more in ((fixed - 1, {"allow": ()}), (10_000, {})):
        with pytest.raises(ArgumentError, match="below the .* of parameters and optimizer state"):
            net.plan(4, adam, budget, **more)


def test_other_arguments_are_checked():
    net = image_net()
    for arguments, match in (((0,), "batch_size"), ((2, SGD(lr=0.1), None, 0), "extent")):
        with pytest.raises(ArgumentError, match=match):
            net.plan(*arguments)
    net.compile(SGD(lr=0.1))
    for allow, advice in (
        ("recompute", r"write allow=\('recompute',\)"),
        (("microbatches",), "did you mean 'micro-batches'"),
        (None, "leave it out"),
        (["swap"], "leave it out"),
    ):
        with pytest.raises(ArgumentError, match=f"net.plan, allow: .*'offload'.*{advice}"):
            net.plan(2, SGD(lr=0.1), allow=allow)
        with pytest.raises(ArgumentError, match=f"net.fit, allow: .*'offload'.*{advice}"):
            net.fit(np.ones((2, 3, 12, 12)), np.zeros(2, int), allow=allow, verbose=False)


@pytest.mark.parametrize("ways", [{"allow": ("recompute",)}, {"offload_folder": "away"}])
def test_ways_without_a_budget_to_keep(ways):
    net = image_net()
    net.compile(SGD(lr=0.1))
    with pytest.raises(ArgumentError, match="net.fit, memory_budget: .*in addition to allow"):
        net.fit(np.ones((2, 3, 12, 12)), np.zeros(2, int), **ways, verbose=False)


@pytest.mark.parametrize("method", [singanet.FeedForwardNet.plan, singanet.FeedForwardNet.fit])
def test_what_is_allowed_unless_more_is_said_is_what_errors_name(method):
    usual = inspect.signature(method).parameters["allow"].default
    with pytest.raises(ArgumentError, match="leave it out to allow") as caught:
        image_net().plan(2, allow=["swap"])
    named = [measure for measure in MEASURES if repr(measure) in caught.value.advice]
    assert named == [*usual] == ["recompute", "micro-batches"]


def test_draws_and_optimizer_stay_as_they_are():
    net = image_net()
    net.add(Dropout("drop", 0.5), src="fc")
    adam = Adam(lr=0.1)
    draws = net.rng.bit_generator.state
    net.plan(6, adam, "1GB")
    assert net.rng.bit_generator.state == draws
    assert not any("step" in key and np.any(v) for key, v in adam.state_dict().items())


def test_where_gradients_are_gathered_their_sums_the_state_and_each_program_are_counted():
    net, adam = wide_net(), Adam(lr=0.1)
    params, gathering = 4 * 5 * (256 * 256 + 256), Accumulator(Adam(lr=0.1), 3)
    plain = net.memory(4, adam).parts
    parts = net.memory(4, gathering).parts
    assert parts["optimizer state"] == plain["optimizer state"] == 2 * params
    assert parts["other"] - plain["other"] >= params
    assert parts["program"] > 2 * plain["program"]
    # Nothing of it stays, nor moves what is gathered already.
    assert gathering.state_dict() == {}
    assert not gathering.pending
    names = [param.name for param in net.params()]
    gradients = [np.ones_like(value) for value in net.param_values()]
    gathering.update(names, net.param_values(), gradients)
    before = gathering.state_dict()
    net.plan(4, gathering)
    after = gathering.state_dict()
    assert sorted(before) == sorted(after)
    assert all(np.array_equal(before[name], after[name]) for name in before)


def at_random(seed):
    """A small net of some kind, an optimizer, samples of a batch, and what is allowed."""
    draw = random.Random(seed)
    optimizer = draw.choice([SGD(lr=0.1), SGD(lr=0.1, momentum=0.9), Adam(lr=0.01), None])
    allow = draw.sample(MEASURES[:3], draw.randint(0, 3))
    size = draw.choice([1, 3, 8, 64])
    if draw.random() < 0.5:
        norm, user = draw.random() < 0.3, draw.random() < 0.2
        return image_net(draw.choice([4, 8, 16]), norm, user), optimizer, size, allow
    width = draw.choice([16, 64, 256])
    x = Input("x", (8, width))
    h = x
    for k in range(draw.randint(1, 4)):
        y = Activation(f"act{k}", draw.choice(["relu", "tanh", "gelu"]))(
            nn.LayerNorm(f"norm{k}")(h)
        )
        h = Add(f"add{k}")(h, Dense(f"fc{k}", width)(y))
    loss, head = SquaredError(), Dense("head", draw.choice([2, 300]))(h)
    net = singanet.FeedForwardNet(loss, inputs=x, outputs=head, seed=0)
    return net, optimizer, size * draw.choice([1, 8]), allow


@pytest.mark.few(3, full=0)
@pytest.mark.parametrize("seed", range(60))
def test_a_budget_is_accepted_from_the_named_least_on(seed):
    net, optimizer, size, allow = at_random(seed)
    draw = random.Random(seed)
    with pytest.raises(ArgumentError) as caught:
        net.plan(size, optimizer, 1, allow=allow)
    least = least_of(caught.value)
    times = []
    for budget in sorted([least, *(int(least * draw.uniform(1, 2)) for _ in range(4))]):
        plan = net.plan(size, optimizer, budget, allow=allow)
        assert plan.peak <= budget
        # Rules with lighter state may take less time than the step as it is, but come last.
        times.append(max(plan.slowdown, 1.0))
    # What takes less memory takes no less time.
    assert times == sorted(times, reverse=True)
    for part in (0.3, 0.8, 0.97):
        with pytest.raises(ArgumentError) as caught:
            net.plan(size, optimizer, int(part * least), allow=allow)
        assert least_of(caught.value) == least


@pytest.mark.parametrize("batch", [2, 40, 400])
@pytest.mark.parametrize("kind", ["narrow", "images", "norm"])
def test_ways_that_are_not_planned_would_not_be_in_the_table(monkeypatch, batch, kind):
    net = image_net(norm=kind == "norm")
    if kind == "narrow":
        parts = [Dense(f"fc{k}", 8, activation="tanh") for k in range(9)]
        net = singanet.FeedForwardNet(parts, loss=SquaredError(), seed=0)
        net.build((8,))
    planned, step = [], _Search._step

    def told(search, micro, level, light):
        planned.append(level)
        return step(search, micro, level, light)

    monkeypatch.setattr(_Search, "_step", told)

    def table():
        # Pages of libraries' files are those of the moment.
        return str(net.plan(batch, SGD(lr=0.1))).partition("outside of it")[0]

    some, few = table(), {*planned}
    monkeypatch.setattr(_Search, "_may_save", lambda *_: True)
    assert table() == some
    # Few rows of eight numbers take less than the calls that compute them. Between, it depends on
    # the kernels.
    if (kind, batch) == ("narrow", 2):
        assert few == {"none"}
    if batch == 400:
        assert few > {"none"}
    assert {*planned} > {"none", "cheap"}


def test_without_a_budget_the_least_memory_is_told_of_all_samples_and_of_one():
    net, adam = image_net(), Adam(lr=0.1)
    table = net.plan(16, adam).table
    assert {way.micro_batch for way in table} == {16, 8, 4, 2, 1}
    with pytest.raises(ArgumentError) as caught:
        net.plan(16, adam, 1)
    assert min(way.peak for way in table) == least_of(caught.value)


def test_what_micro_batches_gather_counts_once_in_a_folder():
    plan = wide_net().plan(4, Adam(lr=0.1), allow=("micro-batches", "offload"))
    whole, parts = (
        way for way in plan.table if "offload" in way.measures and way.micro_batch in (4, 2)
    )
    gathered = sum(param.value.nbytes for param in wide_net().params())
    assert parts.parts["optimizer state"] - whole.parts["optimizer state"] == gathered
    # The numbers of two optimizers' steps.
    assert abs(parts.parts["other"] - whole.parts["other"]) < 0.1 * gathered
    # No program binds plans to arrays there.
    assert parts.parts.get("program", 0) == 0


def test_without_an_optimizer_nothing_is_gathered_beside_a_folder():
    plan = wide_net().plan(4, None, allow=("micro-batches", "offload"))
    assert all(part >= 0 for way in plan.table for part in way.parts.values())


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_of_several_ranks_keeps_its_part_of_the_state(ranks):
    layers = [Dense("a", 512, input_sample_shape=(256,)), Dense("b", 256)]
    net = singanet.FeedForwardNet(layers, loss=SquaredError(), seed=0)
    whole, least = net.plan(8, Adam()), net.plan(8, Adam(), ranks=ranks)
    state = whole.chosen.parts["optimizer state"]
    matrices = 2 * 2 * 4 * 512 * 256
    spared = -least.chosen.parts["state of other ranks"]
    assert matrices * (1 - 1 / ranks) <= spared <= state * (1 - 1 / ranks)
    sums = least.chosen.parts["sums"]
    assert least.peak == whole.peak - spared + sums
    assert "state of other ranks" in str(least)
    assert net.plan(8, Adam(), ranks=1).peak == whole.peak
    with pytest.raises(ArgumentError, match="ranks"):
        net.plan(8, Adam(), ranks=0)
