"""What every optimizer must do, whatever its rule."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singanet import optimizer as opt
from singanet.errors import (
    ArgumentError,
    DataError,
    ShapeError,
    SignatureError,
    UnknownNameError,
)
from singanet.params.param import ParamSpec
from singanet.types import RowSparse

OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": lambda **o: opt.SGD(**{"learning_rate": 0.1, **o}),
    "momentum": lambda **o: opt.SGD(**{"learning_rate": 0.1, "momentum": 0.9, **o}),
    "nesterov sgd": lambda **o: opt.SGD(
        **{"learning_rate": 0.1, "momentum": 0.9, "nesterov": True, **o}
    ),
    "adam": lambda **o: opt.Adam(**{"learning_rate": 0.1, **o}),
    "momentum, nesterov": lambda **o: opt.Nesterov(**{"learning_rate": 0.1, **o}),
    "rmsprop": lambda **o: opt.RMSProp(**{"learning_rate": 0.1, **o}),
    "adagrad": lambda **o: opt.AdaGrad(**{"learning_rate": 0.1, **o}),
    "amsgrad": lambda **o: opt.AMSGrad(**{"learning_rate": 0.1, **o}),
    "adamw": lambda **o: opt.AdamW(**{"learning_rate": 0.1, "weight_decay": 0.0, **o}),
    "lion": lambda **o: opt.Lion(**{"learning_rate": 0.1, **o}),
    "nadam": lambda **o: opt.NAdam(**{"learning_rate": 0.1, **o}),
    "radam": lambda **o: opt.RAdam(**{"learning_rate": 0.1, **o}),
    "adamax": lambda **o: opt.Adamax(**{"learning_rate": 0.1, **o}),
    "adadelta": lambda **o: opt.Adadelta(**{"learning_rate": 0.1, "epsilon": 0.01, **o}),
    "centered": lambda **o: opt.RMSProp(
        **{"learning_rate": 0.1, "centered": True, "momentum": 0.5, **o}
    ),
    "lamb": lambda **o: opt.LAMB(**{"learning_rate": 0.1, "weight_decay": 0.0, **o}),
    "factored adam": lambda **o: opt.FactoredAdam(**{"learning_rate": 0.1, **o}),
    "adafactor": lambda **o: opt.Adafactor(**{"learning_rate": 0.1, **o}),
    "galore": lambda **o: opt.GaLore(**{"learning_rate": 0.1, "rank": 8, **o}),
    "adalomo": lambda **o: opt.AdaLomo(**{"learning_rate": 0.1, **o}),
}
# Their rules look at a parameter as a whole, so pieces of it are updated otherwise.
WHOLE = ("lamb", "adafactor", "adalomo", "galore", "factored adam")
SHAPES = {"a/weight": (3, 4), "a/bias": (4,), "b/weight": (4, 2), "c": ()}


@pytest.fixture(params=OPTIMIZERS)
def make(request: Any) -> Callable[..., Any]:
    return OPTIMIZERS[request.param]


def params(seed: int = 0, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def run(optimizer: Any, values: dict[str, Any], seeds: range) -> None:
    for seed in seeds:
        grads = params(100 + seed, next(iter(values.values())).dtype)
        optimizer.update(list(values), list(values.values()), list(grads.values()))


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
        assert a[name].dtype == b[name].dtype


def test_order_and_grouping_of_layers_do_not_matter(make: Any) -> None:
    together, apart = params(), params()
    one, other = make(), make()
    for step in range(3):
        grads = params(step + 1)
        one.update(list(together), list(together.values()), list(grads.values()))
        for name in reversed(list(apart)):
            other.update([name], [apart[name]], [grads[name]])
    same(together, apart)


def test_steps_are_counted_by_name(make: Any) -> None:
    values, alone = params(), params()
    optimizer, other = make(), make()
    for _ in range(3):
        optimizer.update(["a/bias"], [values["a/bias"]], [np.ones(4)])
    optimizer.update(["c"], [values["c"]], [np.array(2.0)])
    other.update(["c"], [alone["c"]], [np.array(2.0)])
    assert values["c"] == alone["c"]


def test_values_change_in_place_and_gradients_stay(make: Any) -> None:
    for options in ({}, {"regularizer": 0.1}, {"constraint": 0.1}):
        value, grad = np.ones((3, 2)), np.full((3, 2), 0.5)
        alias = value
        make(**options).update(["w"], [value], [grad], scale=0.5)
        assert alias is value
        assert not np.allclose(value, 1)
        np.testing.assert_array_equal(grad, 0.5)
        frozen = np.full((3, 2), 0.5)
        frozen.flags.writeable = False
        make(**options).update(["w"], [value], [frozen], scale=0.5)


def test_none_skips(make: Any) -> None:
    values = params()
    optimizer = make()
    optimizer.update(["a/bias", "c"], [values["a/bias"], values["c"]], [None, np.array(1.0)])
    np.testing.assert_array_equal(values["a/bias"], params()["a/bias"])
    assert "a/bias/step" not in optimizer.state_dict()
    optimizer.update([], [], [])


def test_float32_stays_and_follows_float64(make: Any) -> None:
    values, wide = params(dtype=np.float32), params()
    small, large = make(), make()
    run(small, values, range(4))
    run(large, wide, range(4))
    for name in values:
        assert values[name].dtype == np.float32
        np.testing.assert_allclose(values[name], wide[name], rtol=2e-4, atol=2e-5)
    assert all(a.dtype == np.float32 for k, a in small.state_dict().items() if "/step" not in k)


@pytest.mark.parametrize("size", [1, 32767, 32768, 32769, 70000])
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in WHOLE])
def test_blocks_do_not_show(name: str, size: int) -> None:
    make = OPTIMIZERS[name]
    rng = np.random.default_rng(size)
    value = rng.normal(size=size)
    whole, pieces = value.copy(), value.copy()
    options = {"regularizer": 0.1}
    one, other = make(**options), make(**options)
    for _ in range(2):
        grad = rng.normal(size=size)
        one.update(["w"], [whole], [grad], scale=0.7)
        for i, start in enumerate(range(0, size, 10000)):
            part = slice(start, start + 10000)
            other.update([f"w{i}"], [pieces[part]], [grad[part]], scale=0.7)
    np.testing.assert_array_equal(whole, pieces)


def test_strided_and_transposed_arrays(make: Any) -> None:
    rng = np.random.default_rng(0)
    start, grad = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    plain = start.copy()
    views = [np.repeat(start, 2, axis=1)[:, ::2], np.asfortranarray(start), start.copy()]
    grads = [grad, grad, np.asfortranarray(grad)]
    reference = make(weight_decay=0.1)
    for _ in range(2):
        reference.update(["w"], [plain], [grad])
    for value, g in zip(views, grads, strict=True):
        optimizer = make(weight_decay=0.1)
        for _ in range(2):
            optimizer.update(["w"], [value], [g])
        np.testing.assert_allclose(value, plain, rtol=1e-14)


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_row_sparse_touches_its_rows_alone_and_treats_them_as_dense(name: str, data: Any) -> None:
    count = data.draw(st.integers(1, 6))
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    value, grad = rng.normal(size=(count, 3)), rng.normal(size=(len(rows), 3))
    indices = np.array(rows, np.int64)
    options = {"weight_decay": 0.1, "constraint": opt.MaxNorm(0.5, axis=1)}
    sparse, dense = value.copy(), value[indices]
    one, other = OPTIMIZERS[name](**options), OPTIMIZERS[name](**options)
    for gradient in (RowSparse(indices, grad), (indices, 2 * grad)):
        one.update(["w"], [sparse], [gradient], scale=0.5)
        other.update(["w"], [dense], [gradient[1]], scale=0.5)
    np.testing.assert_array_equal(sparse[indices], dense)
    others = np.setdiff1d(np.arange(count), indices)
    np.testing.assert_array_equal(sparse[others], value[others])
    for key, array in one.state_dict().items():
        if array.shape == value.shape:
            assert not array[others].any(), key


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_resume_is_exact(make: Any, kept: int) -> None:
    options = {"learning_rate": lambda step: 0.1 / (1 + step), "weight_decay": 0.01}
    whole, halved = params(dtype=np.float32), params(dtype=np.float32)
    one, first, second = make(**options), make(**options), make(**options)
    run(one, whole, range(6))
    run(first, halved, range(kept))
    saved = first.state_dict()
    run(first, {name: v.copy() for name, v in halved.items()}, range(2))
    second.load_state_dict(saved)
    run(second, halved, range(kept, 6))
    same(whole, halved)
    same(one.state_dict(), second.state_dict())


def test_loading_replaces_what_was_there(make: Any) -> None:
    optimizer, values = make(), params()
    run(optimizer, values, range(2))
    optimizer.load_state_dict({})
    assert optimizer.state_dict() == {}
    fresh, again = params(), params()
    run(optimizer, fresh, range(2))
    run(make(), again, range(2))
    same(fresh, again)


def test_state_keeps_the_shape_of_its_parameter(make: Any) -> None:
    optimizer = make()
    run(optimizer, params(), range(1))
    for key, array in optimizer.state_dict().items():
        name, _, slot = key.rpartition("/")
        if slot in ("rows", "columns", "full", "basis"):
            continue
        assert array.shape == (() if slot == "step" else SHAPES[name])


def test_bad_states(make: Any) -> None:
    optimizer = make()
    run(optimizer, params(), range(2))
    good = optimizer.state_dict()
    with pytest.raises(UnknownNameError, match="'c/wrong'"):
        optimizer.load_state_dict({**good, "c/wrong": np.zeros(())})
    with pytest.raises(UnknownNameError, match="'step'"):
        optimizer.load_state_dict({**good, "step": np.zeros(())})
    for slot in optimizer.slots:
        with pytest.raises(DataError, match=f"parameter 'c'.*no '{slot}'"):
            optimizer.load_state_dict({k: v for k, v in good.items() if k != f"c/{slot}"})
        with pytest.raises(DataError, match="parameter 'c'.*no 'step'"):
            optimizer.load_state_dict({k: v for k, v in good.items() if k != "c/step"})
    for step in (-1, 0.5, [1, 2]):
        with pytest.raises(DataError, match="the step a count"):
            optimizer.load_state_dict({**good, "c/step": np.array(step)})
    with pytest.raises(DataError, match="schedule"):
        optimizer.load_state_dict({**good, "*/lr.best": np.zeros(())})
    same(optimizer.state_dict(), good)


def test_loaded_state_that_does_not_fit_its_parameter() -> None:
    optimizer = opt.Adam(learning_rate=0.1)
    run(optimizer, params(), range(1))
    value = np.ones(5)
    other = opt.Adam(learning_rate=0.1)
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ShapeError, match=r"parameter 'a/bias'.*\(5,\).*loaded state of \(4, 4\)"):
        other.update(["a/bias"], [value], [np.ones(5)])
    np.testing.assert_array_equal(value, 1)


def test_multipliers_and_own_rules(make: Any) -> None:
    value, grad = np.array([1.0, -2.0]), np.array([0.3, 0.4])

    def after(optimizer: Any, spec: ParamSpec | None = None) -> Any:
        w = value.copy()
        if spec is not None:
            optimizer.register("w", spec)
        for _ in range(2):
            optimizer.update(["w"], [w], [grad])
        return w

    both = ParamSpec("w", lr_mult=0.5, decay_mult=3.0)
    np.testing.assert_allclose(
        after(make(learning_rate=0.2, weight_decay=0.1), both),
        after(make(learning_rate=0.1, weight_decay=0.3)),
    )
    own = ParamSpec("w", decay_mult=3.0, regularizer=0.2)
    if make().decoupled is False:
        np.testing.assert_allclose(after(make(weight_decay=0.5), own), after(make(regularizer=0.2)))
    bound = ParamSpec("w", constraint=0.1)
    np.testing.assert_allclose(after(make(constraint=5.0), bound), after(make(constraint=0.1)))
    none = ParamSpec("w", decay_mult=0.0)
    np.testing.assert_allclose(after(make(weight_decay=0.5), none), after(make()))


@pytest.mark.parametrize("rows", [False, True])
def test_a_decoupled_decay_stands_beside_the_rule(make: Any, rows: bool) -> None:
    given: Any = {"weight_decay": 0.3, "decoupled": True}
    one, other = (
        make(learning_rate=lambda step: 0.1 / (1 + step), **given),
        make(learning_rate=0.1, weight_decay=0.0),
    )
    for each in (one, other):
        each.register("w", ParamSpec("w", decay_mult=0.5))
    if isinstance(one, opt.Adafactor):
        # Its steps go by the size of the value before the decay.
        other.epsilon_2 = one.epsilon_2 = 100.0
    w = params()["a/weight"]
    expected = w.copy()
    for step in range(3):
        grad = params(step + 1)["a/weight"]
        of = np.array([0, 2]) if rows else np.arange(3)
        one.update(["w"], [w], [RowSparse(of, grad[of]) if rows else grad])
        other.learning_rate = 0.1 / (1 + step)
        expected[of] *= 1 - other.learning_rate * 0.3 * 0.5
        other.update(["w"], [expected], [RowSparse(of, grad[of]) if rows else grad])
        np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_a_decay_that_is_not_decoupled_is_a_regularizer(make: Any) -> None:
    one, other = params(), params()
    run(make(weight_decay=0.3, decoupled=False), one, range(3))
    run(make(weight_decay=0.0, regularizer=0.3), other, range(3))
    same(one, other)


def test_registering_again_changes_settings_and_keeps_state(make: Any) -> None:
    optimizer, values = make(), params()
    specs = [ParamSpec(name) for name in values]
    optimizer.register_all(specs)
    run(optimizer, values, range(2))
    before = optimizer.state_dict()
    optimizer.register_all(specs)
    same(optimizer.state_dict(), before)
    optimizer.register("c", ParamSpec("c", lr_mult=0.0))
    optimizer.load_state_dict({})
    kept = values["c"].copy()
    optimizer.update(["c"], [values["c"]], [np.array(1.0)])
    assert values["c"] == kept


def test_constraint_then_regularizer_then_rule() -> None:
    w, g = np.array([3.0, 4.0]), np.array([30.0, 40.0])
    optimizer = opt.SGD(learning_rate=0.1, constraint=1.0, regularizer=opt.L1Regularizer(0.5))
    optimizer.update(["w"], [w], [g])
    np.testing.assert_allclose(w, np.array([3, 4]) - 0.1 * (np.array([0.6, 0.8]) + 0.5))


def test_schedules_see_the_step_of_the_parameter(make: Any) -> None:
    seen: list[int] = []

    def rate(step: int) -> float:
        seen.append(step)
        return 0.1

    optimizer, values = make(learning_rate=rate), params()
    for _ in range(3):
        optimizer.update(["c"], [values["c"]], [np.array(1.0)])
    optimizer.update(["a/bias"], [values["a/bias"]], [np.ones(4)])
    assert seen == [0, 1, 2, 0]


def test_singas_interface_is_the_same_rule(make: Any) -> None:
    values, other = params(), params()
    one, two, three = make(), make(), make(learning_rate=None)
    third = params()
    for step in range(3):
        for name, grad in params(step + 1).items():
            one.update([name], [values[name]], [grad])
            assert two.apply(0, grad, other[name], name, step) is other[name]
            three.apply_with_lr(1, 0.1, grad, third[name], name, step=step)
    same(values, other)
    same(values, third)
    with pytest.raises(ArgumentError, match="the parameter's name"):
        two.apply(0, np.ones(()), values["c"])


def test_no_rate(make: Any) -> None:
    with pytest.raises(ArgumentError, match="apply_with_lr"):
        make(learning_rate=None).update(["w"], [np.ones(2)], [np.ones(2)])


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_not_finite(make: Any, rate: float) -> None:
    optimizer = make(learning_rate=lambda step: rate if step else 0.1)
    values = [np.ones(2), np.ones(2)]
    optimizer.update(["w", "v"], values, values[::-1])
    kept = [v.copy() for v in values]
    state = optimizer.state_dict()
    with pytest.raises(ArgumentError, match=r"parameter 'w'.*finite.*at step 1"):
        optimizer.update(["w", "v"], values, [np.ones(2), np.ones(2)])
    np.testing.assert_array_equal(values, kept)
    same(optimizer.state_dict(), state)


def test_bad_updates_change_nothing(make: Any) -> None:
    optimizer, values = make(), params()
    run(optimizer, values, range(1))
    state, kept = optimizer.state_dict(), {n: v.copy() for n, v in values.items()}
    a, c = values["a/bias"], values["c"]
    bad: list[tuple[Any, Any, Any, Any, str]] = [
        (ArgumentError, ["a/bias"], [a, c], [a, c], "1 names, 2 values and 2 gradients"),
        (ArgumentError, ["c", "c"], [c, c], [c, c], "'c' more than once"),
        (ShapeError, ["c", "a/bias"], [c, a], [c, np.ones(3)], r"shape \(4,\).*shape \(3,\)"),
        (ShapeError, ["c", "a/bias"], [c, a], [c, [1, 1, 1, 1]], "received list"),
        (ShapeError, ["c", "a/bias"], [c, np.ones(5)], [c, np.ones(5)], r"\(4,\), as in its"),
        (ArgumentError, ["c", "n"], [c, np.ones(2, int)], [c, np.ones(2)], "int64"),
        (ArgumentError, ["c", "n"], [c, np.ones(2, "f2")], [c, np.ones(2)], "float16"),
        (ArgumentError, ["c", "n"], [c, [1.0]], [c, np.ones(1)], "received list"),
    ]
    for error, names, vs, gs, text in bad:
        with pytest.raises(error, match=text):
            optimizer.update(names, vs, gs)
    same(values, kept)
    same(optimizer.state_dict(), state)


@pytest.mark.parametrize(
    ("indices", "rows", "error", "text"),
    [
        ([0, 4], (2, 3), DataError, "below 4; received 2 indices from 0 to 4"),
        ([-1, 2], (2, 3), DataError, "from -1 to 2"),
        ([2, 1], (2, 3), DataError, "sort them"),
        ([1, 1], (2, 3), DataError, "sum the rows"),
        ([1, 2], (3, 3), ShapeError, r"rows \(3, 3\)"),
        ([1, 2], (2, 2), ShapeError, r"value of shape \(4, 3\)"),
        ([[1], [2]], (2, 3), ShapeError, r"indices \(2, 1\)"),
        ([0.0, 1.0], (2, 3), ShapeError, "float64"),
    ],
)
def test_bad_rows(make: Any, indices: Any, rows: Any, error: Any, text: str) -> None:
    value = np.ones((4, 3))
    with pytest.raises(error, match=text):
        make().update(["w"], [value], [RowSparse(np.array(indices), np.ones(rows))])
    np.testing.assert_array_equal(value, 1)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", True])
def test_bad_settings(make: Any, bad: Any) -> None:
    for name in ("learning_rate", "weight_decay"):
        with pytest.raises(ArgumentError, match=rf"\({name}=\).*finite"):
            make(**{name: bad})
    if not isinstance(bad, bool):
        with pytest.raises(ArgumentError, match="lr_mult"):
            make().register("w", ParamSpec("w", lr_mult=bad))
        with pytest.raises(ArgumentError, match="decay_mult"):
            make().register("w", ParamSpec("w", decay_mult=bad))


def test_bad_regularizers_and_constraints(make: Any) -> None:
    with pytest.raises(ArgumentError, match=r"regularizer=\).*received str"):
        make(regularizer="l2")
    with pytest.raises(ArgumentError, match=r"constraint=\).*received str"):
        make(constraint="l2")
    if make().decoupled is False:
        with pytest.raises(ArgumentError, match="both"):
            make(weight_decay=0.1, regularizer=0.1)


def test_the_words_of_others_mean_the_same() -> None:
    adam = opt.Adam(lr=0.1, betas=(0.8, 0.9), eps=0.01, clipnorm=2.0)
    said = opt.Adam(0.1, 0.8, 0.9, 0.01, constraint=2.0)
    assert repr(adam) == repr(said)
    assert opt.Adam.from_config({"class": "Adam", "arguments": {"lr": 0.3}}).learning_rate == 0.3
    adam.lr = 0.5
    assert adam.learning_rate == adam.rate() == adam.lr == 0.5
    adam.load_state_dict({"*/lr": np.array(0.25)})
    assert adam.learning_rate == 0.25
    assert opt.Adafactor(eps=(None, 0.1), d=2.0).epsilon_2 == 0.1
    twice: list[dict[str, Any]] = [
        {"betas": (0.9, 0.99), "beta_2": 0.9},
        {"lr": 1, "learning_rate": 1},
    ]
    for wrong in ({"betas": 0.9}, *twice):
        with pytest.raises(SignatureError):
            opt.Adam(**wrong)


def test_what_asks_for_nothing_is_taken() -> None:
    of_keras: dict[str, Any] = {"clipvalue": None, "use_ema": False, "amsgrad": False}
    of_torch: dict[str, Any] = {"maximize": False, "foreach": None, "fused": None}
    made = opt.RAdam(0.1, **of_keras, **of_torch)
    assert repr(made) == "RAdam(learning_rate=0.1, amsgrad=False)"
    assert repr(opt.Lion(0.1, **of_keras, **of_torch)) == "Lion(learning_rate=0.1)"
    assert opt.AdamW(amsgrad=True).slots == ("first", "second", "largest")
    wrong: dict[str, Any]
    for wrong in ({"maximize": True}, {"clipvalue": 0.5}):
        with pytest.raises(SignatureError):
            opt.Adam(0.1, **wrong)
    for kind in (opt.RAdam, opt.FactoredAdam):
        with pytest.raises(ArgumentError, match="amsgrad"):
            kind(amsgrad=True)


def test_a_rule_of_a_user_may_go_by_other_words() -> None:
    class Mine(opt.SGD):
        def __init__(self, lr: float = 0.1, **more: Any) -> None:
            super().__init__(lr, **more)

    mine = Mine(0.3, weight_decay=0.1)
    assert mine.learning_rate == mine.lr == 0.3
    mine.lr = 0.5
    assert mine.rate() == 0.5
    with pytest.raises(TypeError, match="weight_decy"):
        Mine(0.3, weight_decy=0.1)
    assert opt.AdamW(weight_decay=None).weight_decay == 0


RULES = [
    kind
    for kind in map(vars(opt).get, opt.__all__)
    if isinstance(kind, type) and issubclass(kind, opt.Optimizer) and not inspect.isabstract(kind)
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_rate_comes_first_and_has_a_default(rule):
    given = (2,) if rule.__name__.startswith("Accumulating") else ()
    arguments = [*inspect.signature(rule).parameters.values()]
    assert arguments[len(given)].name == "learning_rate"
    assert rule(*given, 3e-2).lr == 3e-2
    usual = rule(*given)
    assert 1e-4 <= usual.lr <= 1
    w = np.ones((3, 2))
    for _ in range(2):
        usual.update(["w"], [w], [np.ones((3, 2))])
    assert (w < 1).all()
