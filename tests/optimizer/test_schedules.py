"""Schedules at their edges, as data and as state; tests/migration has the peers."""

import json
import math

import numpy as np
import pytest

from singanet.errors import ArgumentError, DataError, SignatureError
from singanet.optimizer import SGD
from singanet.optimizer import schedules as plans
from tests.optimizer.rules import SCHEDULES


def test_values_by_hand():
    assert [plans.Constant(0.5)(t) for t in (0, 9)] == [0.5, 0.5]
    assert [plans.Step(8.0, 2, 0.5)(t) for t in range(6)] == [8, 8, 4, 4, 2, 2]
    assert [plans.MultiStep(8.0, [1, 3], 0.5)(t) for t in range(5)] == [8, 4, 4, 2, 2]
    assert plans.Exponential(8.0, 2, 0.25)(1) == pytest.approx(4)
    assert [plans.Exponential(8.0, 2, 0.25, staircase=True)(t) for t in (1, 2)] == [8, 2]
    cosine = plans.Cosine(1.0, 4, end_learning_rate=0.2)
    assert [cosine(t) for t in (0, 2, 4, 9)] == pytest.approx([1, 0.6, 0.2, 0.2])
    polynomial = plans.Polynomial(1.0, 4, power=2.0, end_learning_rate=0.2)
    assert [polynomial(t) for t in (0, 2, 4, 9)] == pytest.approx([1, 0.4, 0.2, 0.2])
    cycle = plans.OneCycle(1.0, 10, rise=0.5, start_div=10.0, final_div=100.0)
    assert [cycle(t) for t in (0, 4, 9, 20)] == pytest.approx([0.1, 1.0, 1e-3, 1e-3])


def test_warm_up_meets_what_comes_after():
    plan = plans.WarmUp(plans.Step(1.0, 2, 0.5), 3, start=0.2)
    assert [plan(t) for t in range(8)] == pytest.approx([0.4, 0.6, 0.8, 1, 1, 0.5, 0.5, 0.25])
    assert plans.WarmUp(0.5, 0)(0) == 0.5
    assert plans.WarmUp(lambda t: 2.0 + t, 1)(3) == 4.0


def test_warmup_stable_decay_is_transformers():
    plan = plans.WarmupStableDecay(1.0, 3, 2, 4)
    expected = [0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    assert [plan(t) for t in range(11)] == pytest.approx(expected)
    parts = plans.Chained([1.0, plans.Polynomial(1.0, 4)], [2])
    assert [plan(t) for t in range(20)] == pytest.approx(
        [plans.WarmUp(parts, 3)(t) for t in range(20)]
    )
    assert plans.WarmupStableDecay(0.5, 0, 0, 2)(0) == 0.5
    torch, theirs = pytest.importorskip("torch"), pytest.importorskip("transformers")
    peer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    rates = theirs.get_wsd_schedule(peer, 3, 4, num_stable_steps=2, decay_type="linear")
    for step in range(11):
        # Their rise starts at 0.
        found = plan(step) if step >= 3 else plan(step - 1) * 4 / 3 if step else 0.0
        assert found == pytest.approx(rates.get_last_lr()[0])
        peer.step()
        rates.step()


def test_a_warm_up_of_keras_is_a_line_before():
    keras = pytest.importorskip("keras")
    kind = keras.optimizers.schedules.CosineDecay
    theirs = kind(0.02, 6, alpha=0.1, warmup_target=0.1, warmup_steps=4)
    ours = plans.Chained(
        [plans.Polynomial(0.02, 4, end_learning_rate=0.1), plans.Cosine(0.1, 6, 0.01)], [4]
    )
    for step in range(13):
        assert ours(step) == pytest.approx(float(theirs(step)), rel=1e-5)


def test_parts_follow_each_other_and_learn():
    def make():
        parts = [plans.WarmUp(1.0, 2), plans.Plateau(0.5, 0.5, 1), plans.Step(0.1, 2, 0.5)]
        return plans.Chained(parts, [3, 5])

    plan = make()
    assert [plan(t) for t in range(8)] == pytest.approx(
        [1 / 3, 2 / 3, 1, *[0.5] * 2, 0.1, 0.1, 0.05]
    )
    for _ in range(2):
        plan.parts[1].observe(1.0)
    assert plan(3) == 0.25
    optimizer, other = SGD(lr=plan), SGD(lr=make())
    optimizer.update(["w"], [np.ones(1)], [np.ones(1)])
    other.load_state_dict(optimizer.state_dict())
    assert other.state_dict() == optimizer.state_dict()
    assert other.lr(4) == 0.25
    assert plans.Chained([0.1, lambda t: 2.0 + t], [4])(6) == 4.0
    again = plans.Chained.from_config(plan.to_config())
    assert [again(t) for t in range(3)] == [plan(t) for t in range(3)]


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateau_equals_pytorch(mode):
    torch = pytest.importorskip("torch")
    metrics = [5.0, 4.0, 4.0, 4.1, 3.99999, 4.0, 3.0, 3.5, math.nan, 3.2, 3.1, 3.1, 2.0, 9.0]
    peer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        peer, mode=mode, factor=0.5, patience=2, min_lr=0.1
    )
    # Which waits one observation longer than it says, and than Keras'.
    ours = plans.Plateau(1.0, 0.5, 3, min_lr=0.1, mode=mode)
    for metric in metrics * 2:
        theirs.step(metric)
        ours.observe(metric)
        assert ours(0) == pytest.approx(peer.param_groups[0]["lr"])


@pytest.mark.parametrize("warm", [False, True])
def test_plateau_is_part_of_the_optimizers_state(warm):
    def make():
        plateau = plans.Plateau(1.0, 0.5, 2)
        return plateau, SGD(lr=plans.WarmUp(plateau, 2) if warm else plateau)

    plateau, optimizer = make()
    optimizer.update(["w"], [np.ones(1)], [np.ones(1)])
    for metric in (3.0, 3.0, 3.0, 3.0):
        plateau.observe(metric)
    saved = optimizer.state_dict()
    other, resumed = make()
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    for metric in (3.0, 3.0):
        plateau.observe(metric)
        other.observe(metric)
        assert other(0) == plateau(0)
    assert plateau(0) == 0.25
    with pytest.raises(DataError, match="same schedules"):
        SGD(lr=0.1).load_state_dict(saved)
    with pytest.raises(DataError, match="same schedules"):
        make()[1].load_state_dict({"w/step": saved["w/step"]})


def test_plateau_refuses_other_state():
    with pytest.raises(DataError, match="'best', 'resting', 'value'"):
        plans.Plateau(1.0).load_state_dict({"value": 1.0})


NAN = math.nan
BAD = {
    plans.Constant: [(NAN,), ("1",)], plans.Step: [(1.0, 0), (1.0, 2.5), (1.0, 2, -1.0)],
    plans.MultiStep: [(1.0, [3, 1]), (1.0, [-1])], plans.Exponential: [(1.0, 1, math.inf)],
    plans.Cosine: [(1.0, 0)], plans.Polynomial: [(1.0, 4, {"power": -1.0})],
    plans.WarmUp: [(NAN, 3), (1.0, -1)],
    plans.WarmupStableDecay: [(NAN, 1, 1, 1), (1.0, -1, 1, 1), (1.0, 1, -1, 1), (1.0, 1, 1, 0)],
    plans.OneCycle: [(1.0, 1), (1.0, 10, {"rise": 1.5}), (1.0, 10, {"start_div": 0.0})],
    plans.CosineRestarts: [(1.0, 3, {"t_mul": 0}), (1.0, 3, {"m_mul": -1.0})],
    plans.Cyclic: [(0.1, 1.0, 0), (0.1, 1.0, 2, 0)],
    plans.Chained: [([1.0, 2.0], []), ([1.0, 2.0, 3.0], [4, 4]), ([], []), ([1.0, "2"], [4])],
    plans.Plateau: [
        (1.0, {name: bad})
        for name, bad in [("cooldown", -1), ("factor", 2.0), ("patience", -1), ("mode", "best")]
    ]
}  # fmt: skip


@pytest.mark.parametrize(("kind", "given"), [(kind, g) for kind, all_ in BAD.items() for g in all_])
def test_bad_arguments(kind, given):
    more = given[-1] if isinstance(given[-1], dict) else {}
    with pytest.raises(ArgumentError, match=r"(\(\w+=\)|, \w+): expected"):
        kind(*given[: len(given) - bool(more)], **more)


def test_plateau_waits_as_long_as_keras():
    keras = pytest.importorskip("keras")
    metrics = [5.0, 4.0, 4.0, 4.1, 4.0, 3.0, 3.5, 3.6, 3.7, 2.0, 2.0, 2.0, 2.0]
    for patience, cooldown in [(1, 0), (2, 0), (3, 0), (1, 2), (2, 1), (1, 1)]:
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1.0))
        theirs = keras.callbacks.ReduceLROnPlateau(
            "loss", 0.5, patience, min_delta=0.2, cooldown=cooldown
        )
        theirs.set_model(model)
        theirs.on_train_begin()
        ours = plans.Plateau(1.0, 0.5, patience, 0.2, cooldown=cooldown, absolute=True)
        for epoch, metric in enumerate(metrics):
            theirs.on_epoch_end(epoch, {"loss": metric})
            ours.observe(metric)
            assert ours(0) == pytest.approx(float(model.optimizer.learning_rate))


def test_one_cycle_that_only_rises():
    cycle = plans.OneCycle(1.0, 10, rise=1.0, start_div=10.0, final_div=100.0)
    assert cycle(9) == pytest.approx(1.0)
    assert [cycle(step) for step in (10, 11, 10**6)] == [pytest.approx(0.001)] * 3
    falls = plans.OneCycle(1.0, 10, rise=0.95, start_div=10.0, final_div=100.0)
    assert [falls(step) for step in (9, 10)] == [pytest.approx(0.001)] * 2


@pytest.mark.parametrize(("ours", "said"), [
    (plans.Cosine(value=0.1, T_max=4, final=0.02), plans.Cosine(0.1, 4, 0.02)),
    (plans.CosineRestarts(0.1, T_0=3, T_mult=2.0), plans.CosineRestarts(0.1, 3, t_mul=2)),
    (plans.Exponential(0.1, steps=2, gamma=0.9), plans.Exponential(0.1, 2, 0.9)),
    (plans.Polynomial(0.1, total_iters=2), plans.Polynomial(0.1, 2)),
    (plans.MultiStep(0.1, [2], gamma=0.3), plans.MultiStep(0.1, [2], 0.3)),
    (plans.Plateau(0.1, lowest=0.01), plans.Plateau(0.1, min_lr=0.01)),
])  # fmt: skip
def test_words_of_others_are_taken(ours, said):
    assert repr(ours) == repr(said)


def test_words_that_mean_something_else_elsewhere_are_not():
    with pytest.raises(SignatureError):
        plans.WarmUp(0.1, T_max=3)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
def test_schedules_come_back_from_data(schedule):
    other = type(schedule).from_config(json.loads(json.dumps(schedule.to_config())))
    assert [other(k) for k in range(12)] == [schedule(k) for k in range(12)]


OF_STEPS = [each for each in SCHEDULES if not isinstance(each, (plans.Constant, plans.Plateau))]


@pytest.mark.parametrize("schedule", OF_STEPS, ids=lambda schedule: type(schedule).__name__)
def test_schedules_count_epochs(schedule):
    config = schedule.to_config()
    config["arguments"]["by"] = "epoch"
    by_epoch = type(schedule).from_config(config)
    for epoch in range(12):
        by_epoch.epoch = epoch
        assert by_epoch(97) == by_epoch(0) == schedule(epoch)
    assert by_epoch.to_config() == config
    config["arguments"]["by"] = "epochs"
    with pytest.raises(ArgumentError, match=r"\(by=\): expected 'step' or 'epoch'"):
        type(schedule).from_config(config)


@pytest.mark.parametrize(
    "make", [lambda part: plans.WarmUp(part, 3), lambda part: plans.Chained([0.1, part], [3])]
)
def test_parts_do_not_count_epochs_of_their_own(make):
    with pytest.raises(ArgumentError, match=r"write \w+\(..., by='epoch'\)"):
        make(plans.Step(0.1, 2, by="epoch"))


def test_every_schedule_has_a_row():
    assert {type(schedule).__name__ for schedule in SCHEDULES} == {*plans.__all__} - {"Schedule"}
