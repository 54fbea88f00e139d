"""What every rule does: its formula, state, sparse rows, narrow types, rates, refusals."""

import copy
import inspect
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import singanet
from singanet import layers
from singanet import optimizer as opt
from singanet.errors import ArgumentError, DataError, ShapeError, SignatureError, UnknownNameError
from singanet.optimizer import muon as muon_rule
from singanet.optimizer import schedules
from singanet.params.param import ParamSpec
from singanet.types import RowSparse
from tests.optimizer.rules import MOMENTS, OF_ROWS, RULES, epsilon

SHAPES = {"a/weight": (3, 4), "a/bias": (4,), "b/weight": (4, 2), "c": ()}
PUBLIC = [
    kind
    for kind in map(vars(opt).get, opt.__all__)
    if isinstance(kind, type) and issubclass(kind, opt.Optimizer) and not inspect.isabstract(kind)
]


@pytest.fixture
def rng():
    """Of each test its own, so that another rule changes no numbers of the others."""
    return np.random.default_rng(0)


@pytest.fixture(params=RULES)
def make(request):
    return RULES[request.param]


@pytest.fixture(params=OF_ROWS)
def of_rows(request):
    return RULES[request.param]


def params(seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: np.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def run(optimizer, values, seeds):
    for seed in seeds:
        grads = params(100 + seed, next(iter(values.values())).dtype)
        optimizer.update(list(values), list(values.values()), list(grads.values()))


def steps(optimizer, w, grads, **how):
    for grad in grads:
        optimizer.update(["w"], [w], [grad], **how)
    return w


def same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
        assert a[name].dtype == b[name].dtype


def test_every_public_rule_has_a_row():
    assert {rule.kind for rule in RULES.values()} == {*PUBLIC}


# --- numbers --------------------------------------------------------------------------------------

AFTER = [n for n, r in RULES.items() if "after" in inspect.signature(r.formula).parameters]
PLACES = [(name, "epsilon_after_correction") for name in AFTER] + [("adamax", "epsilon_in_norm")]


@pytest.mark.parametrize(("name", "word"), [*((name, None) for name in RULES), *PLACES])
@pytest.mark.parametrize("shape", [(5, 4), (6, 2, 3), (300, 401)])
def test_formula(name, word, shape, rng):
    rule, w, grads = RULES[name], rng.normal(size=shape), rng.normal(size=(8, *shape))
    optimizer = rule(learning_rate=0.03, weight_decay=rule.decay, **({word: True} if word else {}))
    wanted = rule.formula(w.copy(), grads, 0.03, *([True] if word else []))
    for g, after in zip(grads, wanted, strict=True):
        optimizer.update(["w"], [w], [g])
        np.testing.assert_allclose(w, after.reshape(shape), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("nesterov", [False, True])
def test_hyperparameters_follow_schedules(nesterov, rng):
    w, v = rng.normal(size=(2, 5))
    expected, also, h, m, s = w.copy(), v.copy(), 0.0, 0.0, 0.0
    rate, mu, beta = lambda t: 0.1 / (t + 1), lambda t: 0.9 - 0.1 * t, lambda t: 0.8 + 0.01 * t
    sgd, adam = opt.SGD(rate, mu, nesterov=nesterov), opt.Adam(0.1, beta, 0.95, epsilon=0.3)
    for t in range(5):
        g, b = rng.normal(size=5), beta(t)
        sgd.update(["w"], [w], [g])
        adam.update(["w"], [v], [g])
        h = mu(t) * h + rate(t) * g
        expected = expected - (mu(t) * h + rate(t) * g if nesterov else h)
        m, s = b * m + (1 - b) * g, 0.95 * s + 0.05 * g * g
        alpha = 0.1 * np.sqrt(1 - 0.95 ** (t + 1)) / (1 - b ** (t + 1))
        also = also - alpha * m / (np.sqrt(s) + 0.3)
        np.testing.assert_allclose(w, expected, rtol=1e-13)
        np.testing.assert_allclose(v, also, rtol=1e-12)


def test_singas_value():
    w, g = np.float32([0.1, 0.2, 0.3, 0.4]), np.float32([0.1, 0.3, 0.1, 0.2])
    opt.SGD(lr=0.1).apply(0, g, w, "w")
    np.testing.assert_allclose(w, [0.09, 0.17, 0.29, 0.38], rtol=1e-6)


def test_adafactor_of_a_vector_keeps_every_moment(rng):
    w, v = rng.normal(size=7), np.zeros(7)
    expected = w.copy()
    optimizer = opt.Adafactor(0.02, clip=0.5)
    for t in range(1, 6):
        g = rng.normal(size=7)
        optimizer.update(["w"], [w], [g])
        v = v + t**-0.8 * (g**2 - v)
        u = g / np.sqrt(v)
        alpha = max(1e-3, np.sqrt((expected**2).mean())) * min(0.02, 1 / np.sqrt(t))
        expected = expected - alpha * u / max(1.0, np.sqrt((u**2).mean()) / 0.5)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "more", "shape"),
    [(opt.FactoredAdam, {}, (7,)), *((opt.GaLore, {"rank": 4}, s) for s in [7, (4, 9), (9, 2, 2)])],
)
def test_what_cannot_be_smaller_is_adamw(kind, more, shape, rng):
    w, grads = rng.normal(size=shape), rng.normal(size=(4, *np.ravel(shape)))
    given = {**MOMENTS, "lr": 0.03, "weight_decay": 0.1}
    expected = steps(opt.AdamW(**given), w.copy(), grads)
    np.testing.assert_allclose(steps(kind(**given, **more), w, grads), expected, rtol=1e-12)


def test_the_state_of_what_is_factored_is_small(rng):
    galore, adafactor = opt.GaLore(rank=3), opt.Adafactor()
    w = rng.normal(size=(20, 30)).astype(np.float32)
    galore.update(["w"], [w], [rng.normal(size=w.shape).astype(np.float32)])
    adafactor.update(["w", "b"], [w, np.ones(7)], [np.ones_like(w), np.ones(7)])
    for optimizer, size in ((galore, 3 * (20 + 2 * 30) + 1), (adafactor, (20 + 30 + 1) + (7 + 1))):
        assert sum(array.size for array in optimizer.state_dict().values()) == size
    before = w.copy()
    galore.update(["w"], [w], [np.zeros_like(w)], 2.0)
    # Three directions at most, whatever comes.
    assert np.linalg.matrix_rank(w - before, tol=1e-5) <= 3


def test_galore_of_rows_of_a_table(rng):
    optimizer = opt.GaLore(0.03, 2, 2, 0.5, **MOMENTS)
    w = rng.normal(size=(40, 5))
    m, v = np.zeros((2, 40, 2))
    for t in (1, 2, 3):
        rows, expected = np.sort(rng.choice(40, 6, replace=False)), w.copy()
        g = rng.normal(size=(6, 5))
        optimizer.update(["w"], [w], [(rows, g)], 2.0)
        if t % 2:
            p = np.linalg.svd(g.T)[0][:, :2]
            p = p * np.sign(p[np.abs(p).argmax(axis=0), range(2)])
        r = 2 * g @ p
        m[rows], v[rows] = 0.8 * m[rows] + 0.2 * r, 0.9 * v[rows] + 0.1 * r**2
        root = np.sqrt(v[rows] / (1 - 0.9**t)) + epsilon(t, False)
        expected[rows] -= 0.03 * 0.5 * (m[rows] / (1 - 0.8**t) / root) @ p.T
        np.testing.assert_allclose(w, expected, rtol=1e-11)


def test_galore_of_rows_of_what_is_wide_is_that_of_a_dense_gradient(rng):
    w, dense = rng.normal(size=(5, 9)), np.zeros((5, 9))
    dense[[1, 3]] = rng.normal(size=(2, 9))
    expected = steps(opt.GaLore(0.03, 2), w.copy(), [dense])
    found = steps(opt.GaLore(0.03, 2), w, [(np.array([1, 3]), dense[[1, 3]])])
    np.testing.assert_array_equal(found, expected)


def test_galore_resumes_within_a_basis_and_shows_what_is_no_number(rng):
    one, other = opt.GaLore(0.03, 2, 3), opt.GaLore(0.03, 2, 3)
    w, grads = rng.normal(size=(6, 9)), rng.normal(size=(7, 6, 9))
    again = steps(one, w, grads[:4]).copy()
    other.load_state_dict(one.state_dict())
    np.testing.assert_array_equal(steps(other, again, grads[4:]), steps(one, w, grads[4:]))
    grads[0, 2, 3] = np.nan
    assert np.isnan(steps(opt.GaLore(rank=2), w, grads[:1])).any()


def test_zero_values_and_zero_gradients(make):
    w = np.zeros((3, 2))
    optimizer = make()
    assert not steps(optimizer, w, [np.zeros((3, 2))]).any()
    steps(optimizer, w, [np.ones((3, 2))])
    assert np.isfinite(w).all()
    assert (w < 0).all()
    kept = steps(make(), np.ones((3, 2), np.float32), [np.zeros((3, 2), np.float32)])
    np.testing.assert_array_equal(kept, 1)


def test_lion_moves_by_the_sign_of_what_is_near_zero():
    w = steps(opt.Lion(lr=0.1), np.ones(2), [np.array([0.0, 1e-30])])
    np.testing.assert_allclose(w, [1, 0.9])


# --- layers, places, types ------------------------------------------------------------------------


def test_order_and_grouping_of_layers_do_not_matter(make):
    together, apart, one, other = params(), params(), make(), make()
    run(one, together, range(3))
    for seed in range(3):
        grads = params(100 + seed)
        for name in reversed(list(apart)):
            other.update([name, "a/bias"], [apart[name], apart["a/bias"]], [grads[name], None]) if (
                name != "a/bias"
            ) else other.update([name], [apart[name]], [grads[name]])
    other.update([], [], [])
    same(together, apart)
    same(one.state_dict(), other.state_dict())
    late, alone, optimizer = params(), params(), make()
    for _ in range(3):
        optimizer.update(["a/bias", "c"], [late["a/bias"], late["c"]], [np.ones(4), None])
    assert "c/step" not in optimizer.state_dict()
    optimizer.update(["c"], [late["c"]], [np.array(2.0)])
    make().update(["c"], [alone["c"]], [np.array(2.0)])
    assert late["c"] == alone["c"]


def test_values_change_in_place_and_gradients_stay(make):
    for options in ({}, {"regularizer": 0.1}, {"constraint": 0.1}):
        value, grad = np.ones((3, 2)), np.full((3, 2), 0.5)
        grad.flags.writeable = False
        make(**options).update(["w"], [value], [grad], scale=0.5)
        assert not np.allclose(value, 1)


def test_float32_stays_and_follows_float64(make):
    values, wide = params(dtype=np.float32), params()
    small = make()
    run(small, values, range(4))
    run(make(), wide, range(4))
    for name in values:
        assert values[name].dtype == np.float32
        np.testing.assert_allclose(values[name], wide[name], rtol=2e-4, atol=2e-5)
    assert all(a.dtype == np.float32 for k, a in small.state_dict().items() if "/step" not in k)


@pytest.mark.parametrize("size", [1, 32767, 32768, 32769, 70000])
@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.whole])
def test_blocks_do_not_show(name, size):
    rng = np.random.default_rng(size)
    whole = rng.normal(size=size)
    pieces, one, other = whole.copy(), *(RULES[name](regularizer=0.1) for _ in range(2))
    for grad in rng.normal(size=(2, size)):
        one.update(["w"], [whole], [grad], scale=0.7)
        for start in range(0, size, 10000):
            part = slice(start, start + 10000)
            other.update([f"w{start}"], [pieces[part]], [grad[part]], scale=0.7)
    np.testing.assert_array_equal(whole, pieces)


def test_strided_and_transposed_arrays(make, rng):
    start, grad = rng.normal(size=(2, 6, 4))
    plain = steps(make(weight_decay=0.1), start.copy(), [grad] * 2)
    views = [np.repeat(start, 2, axis=1)[:, ::2], np.asfortranarray(start), start.copy()]
    for value, g in zip(views, [grad, grad, np.asfortranarray(grad)], strict=True):
        found = steps(make(weight_decay=0.1), value, [g] * 2)
        np.testing.assert_allclose(found, plain, rtol=1e-14)


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("name", OF_ROWS)
def test_row_sparse_touches_its_rows_alone_and_treats_them_as_dense(name, data):
    count = data.draw(st.integers(1, 6))
    rows = sorted(data.draw(st.sets(st.integers(0, count - 1))))
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    value, grad = rng.normal(size=(count, 3)), rng.normal(size=(len(rows), 3))
    indices = np.array(rows, np.int64)
    options = {"weight_decay": 0.1, "constraint": opt.MaxNorm(0.5, axis=1)}
    sparse, dense = value.copy(), value[indices]
    one, other = RULES[name](**options), RULES[name](**options)
    # Which Muon takes from the shape.
    one.state("w").ratio = other.state("w").ratio = 1.0
    for gradient in (RowSparse(indices, grad), (indices, 2 * grad)):
        one.update(["w"], [sparse], [gradient], scale=0.5)
        other.update(["w"], [dense], [gradient[1]], scale=0.5)
    np.testing.assert_array_equal(sparse[indices], dense)
    others = np.setdiff1d(np.arange(count), indices)
    np.testing.assert_array_equal(sparse[others], value[others])
    for key, array in one.state_dict().items():
        if array.shape == value.shape:
            assert not array[others].any(), key


@pytest.mark.parametrize("name", sorted(RULES.keys() - {*OF_ROWS}))
def test_what_gathers_micro_batches_refuses_rows(name):
    table = np.ones((3, 2))
    with pytest.raises(ArgumentError, match="dense gradient"):
        steps(RULES[name](), table, [RowSparse(np.array([0]), np.ones((1, 2)))])
    np.testing.assert_array_equal(table, 1)


# --- state ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_resume_is_exact(make, kept):
    options = {"learning_rate": lambda step: 0.1 / (1 + step), "weight_decay": 0.01}
    whole, halved = params(dtype=np.float32), params(dtype=np.float32)
    one, first, second = make(**options), make(**options), make(**options)
    run(one, whole, range(6))
    run(first, halved, range(kept))
    saved = first.state_dict()
    for optimizer in (first, second):
        run(optimizer, {name: v.copy() for name, v in halved.items()}, range(2))
    second.load_state_dict(saved)
    run(second, halved, range(kept, 6))
    same(whole, halved)
    same(one.state_dict(), second.state_dict())
    for key, array in one.state_dict().items():
        name, _, slot = key.rpartition("/")
        if slot not in ("rows", "columns", "full", "basis") and array.size:
            assert array.shape == (() if slot == "step" else SHAPES[name])
    second.load_state_dict({})
    assert second.state_dict() == {}


def test_state_is_only_what_is_needed():
    for rule, slots in ((opt.SGD(0.1), ()), (opt.SGD(0.1, 0.5), ("w/momentum",))):
        steps(rule, np.ones(2), [np.ones(2)])
        assert set(rule.state_dict()) == {"w/step", *slots}


def test_bad_states(make):
    optimizer = make()
    run(optimizer, params(), range(2))
    good = optimizer.state_dict()
    bad = [
        (UnknownNameError, "'c/wrong'", {**good, "c/wrong": np.zeros(())}),
        (UnknownNameError, "'step'", {**good, "step": np.zeros(())}),
        (DataError, "schedule", {**good, "*/lr.best": np.zeros(())}),
    ]
    for slot in (*optimizer.slots, "step") if optimizer.slots else ():
        less = {k: v for k, v in good.items() if k != f"c/{slot}"}
        bad.append((DataError, f"parameter 'c'.*no '{slot}'", less))
    for step in (-1, 0.5, [1, 2]):
        bad.append((DataError, "the step a count", {**good, "c/step": np.array(step)}))
    for error, text, state in bad:
        with pytest.raises(error, match=text):
            optimizer.load_state_dict(state)
    same(optimizer.state_dict(), good)


def test_loaded_state_that_does_not_fit_its_parameter():
    optimizer, other, value = opt.Adam(0.1), opt.Adam(0.1), np.ones(5)
    run(optimizer, params(), range(1))
    other.load_state_dict(optimizer.state_dict())
    with pytest.raises(ShapeError, match=r"parameter 'a/bias'.*\(5,\).*loaded state of \(4, 4\)"):
        other.update(["a/bias"], [value], [np.ones(5)])
    np.testing.assert_array_equal(value, 1)


def test_a_description_gives_an_equal_rule(make, rng):
    made = make(
        learning_rate=schedules.Step(0.05, 2, 0.5),
        regularizer=opt.L1Regularizer(0.02),
        constraint=opt.ClipNorm(0.7),
    )
    other = type(made).from_config(json.loads(json.dumps(made.to_config())))
    assert type(other) is type(made)
    assert other.to_config() == made.to_config()
    w, grads = rng.normal(size=(3, 4)), rng.normal(size=(5, 3, 4))
    np.testing.assert_array_equal(steps(made, w.copy(), grads), steps(other, w, grads))


@pytest.mark.parametrize("name", ["AdamW", "AMSGrad", "NAdam", "LAMB", "FactoredAdam", "GaLore"])
def test_files_and_pickles_from_before_mean_what_they_meant(name):
    """Old files do not say where ε is added; new ones do, whatever the default."""
    kind = getattr(opt, name)
    entry = {"class": kind().to_config()["class"], "arguments": {"lr": 0.02, "epsilon": 0.1}}
    said = kind(0.02, epsilon=0.1, epsilon_after_correction=True)
    again = kind.from_config(json.loads(json.dumps(kind(0.02, epsilon=0.1).to_config())))
    pickled = copy.deepcopy(said)
    del pickled.epsilon_after_correction
    w = np.linspace(-1, 1, 12).reshape(3, 4)
    grads = [np.cos(np.arange(12.0) + k).reshape(3, 4) for k in range(3)]
    rules = (kind.from_config(entry), pickled, said, again, kind(0.02, epsilon=0.1))
    old, by_pickle, after, new, plain = (steps(each, w.copy(), grads) for each in rules)
    assert np.array_equal(old, after)
    assert np.array_equal(by_pickle, after)
    assert np.array_equal(new, plain)
    assert not np.allclose(new, old)


# --- rates, decay, settings of parameters ---------------------------------------------------------


def test_multipliers_and_own_rules(make):
    value, grad = np.array([1.0, -2.0]), np.array([0.3, 0.4])

    def after(optimizer, **spec):
        if spec:
            optimizer.register("w", ParamSpec("w", **spec))
        return steps(optimizer, value.copy(), [grad] * 2)

    np.testing.assert_allclose(
        after(make(learning_rate=0.2, weight_decay=0.1), lr_mult=0.5, decay_mult=3.0),
        after(make(learning_rate=0.1, weight_decay=0.3)),
    )
    own = {"decay_mult": 3.0, "regularizer": 0.2}
    if make().decoupled is False:
        found = after(make(weight_decay=0.5), **own)
        np.testing.assert_allclose(found, after(make(regularizer=0.2)))
    found = after(make(constraint=5.0), constraint=0.1)
    np.testing.assert_allclose(found, after(make(constraint=0.1)))
    np.testing.assert_allclose(after(make(weight_decay=0.5), decay_mult=0.0), after(make()))


@pytest.mark.parametrize("rows", [False, True])
def test_a_decoupled_decay_stands_beside_the_rule(of_rows, rows):
    one = of_rows(learning_rate=lambda step: 0.1 / (1 + step), weight_decay=0.3, decoupled=True)
    other = of_rows()
    for each in (one, other):
        each.register("w", ParamSpec("w", decay_mult=0.5))
    if isinstance(one, opt.Adafactor):
        # Its steps go by the size of the value before the decay.
        other.epsilon_2 = one.epsilon_2 = 100.0
    w = params()["a/weight"]
    expected, of = w.copy(), np.array([0, 2]) if rows else np.arange(3)
    for step in range(3):
        grad = params(step + 1)["a/weight"]
        grad = RowSparse(of, grad[of]) if rows else grad
        one.update(["w"], [w], [grad])
        other.learning_rate = 0.1 / (1 + step)
        expected[of] *= 1 - other.learning_rate * 0.3 * 0.5
        other.update(["w"], [expected], [grad])
        np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_a_decay_that_is_not_decoupled_is_a_regularizer(make):
    one, other = params(), params()
    run(make(weight_decay=0.3, decoupled=False), one, range(3))
    run(make(regularizer=0.3), other, range(3))
    same(one, other)


def test_registering_again_changes_settings_and_keeps_state(make):
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


def test_constraint_then_regularizer_then_rule():
    optimizer = opt.SGD(learning_rate=0.1, constraint=1.0, regularizer=opt.L1Regularizer(0.5))
    w = steps(optimizer, np.array([3.0, 4.0]), [np.array([30.0, 40.0])])
    np.testing.assert_allclose(w, np.array([3, 4]) - 0.1 * (np.array([0.6, 0.8]) + 0.5))


def test_schedules_see_the_step_of_the_parameter(make):
    seen = []
    optimizer, values = make(learning_rate=lambda step: seen.append(step) or 0.1), params()
    for _ in range(3):
        optimizer.update(["c"], [values["c"]], [np.array(1.0)])
    optimizer.update(["a/bias"], [values["a/bias"]], [np.ones(4)])
    assert seen == [0, 1, 2, 0]


def test_singas_interface_is_the_same_rule(make):
    values, other, third = params(), params(), params()
    one, two, three = make(), make(), make(learning_rate=None)
    for step in range(3):
        for name, grad in params(step + 1).items():
            one.update([name], [values[name]], [grad])
            assert two.apply(0, grad, other[name], name, step) is other[name]
            three.apply_with_lr(1, 0.1, grad, third[name], name, step=step)
    same(values, other)
    same(values, third)
    with pytest.raises(ArgumentError, match="the parameter's name"):
        two.apply(0, np.ones(()), values["c"])
    with pytest.raises(ArgumentError, match="apply_with_lr"):
        three.update(["w"], [np.ones(2)], [np.ones(2)])


@pytest.mark.parametrize("rule", PUBLIC, ids=lambda rule: rule.__name__)
def test_the_rate_comes_first_and_has_a_default(rule):
    given = (2,) if rule.__name__.startswith("Accumulating") else ()
    assert [*inspect.signature(rule).parameters][len(given)] == "learning_rate"
    assert rule(*given, 3e-2).lr == 3e-2
    usual = rule(*given)
    assert 1e-4 <= usual.lr <= 1
    assert (steps(usual, np.ones((3, 2)), [np.ones((3, 2))] * 2) < 1).all()


# --- refusals, which change nothing ---------------------------------------------------------------


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_not_finite(make, rate):
    optimizer = make(learning_rate=lambda step: rate if step else 0.1)
    values = [np.ones(2), np.ones(2)]
    optimizer.update(["w", "v"], values, values[::-1])
    kept, state = [v.copy() for v in values], optimizer.state_dict()
    with pytest.raises(ArgumentError, match=r"parameter 'w'.*finite.*at step 1"):
        optimizer.update(["w", "v"], values, [np.ones(2), np.ones(2)])
    np.testing.assert_array_equal(values, kept)
    same(optimizer.state_dict(), state)


def test_bad_updates_change_nothing(make):
    optimizer, values = make(), params()
    run(optimizer, values, range(1))
    state, kept = optimizer.state_dict(), {n: v.copy() for n, v in values.items()}
    a, c, one = values["a/bias"], values["c"], np.ones(1)
    for error, names, vs, gs, text in [
        (ArgumentError, ["a/bias"], [a, c], [a, c], "1 names, 2 values and 2 gradients"),
        (ArgumentError, ["a/bias", "c"], [a], [a, c], "2 names, 1 values and 2 gradients"),
        (ArgumentError, ["a/bias", "c"], [a, c], [a], "2 names, 2 values and 1 gradients"),
        (ArgumentError, ["c", "c"], [c, c], [c, c], "'c' more than once"),
        (ShapeError, ["c", "a/bias"], [c, a], [c, np.ones(3)], r"shape \(4,\).*shape \(3,\)"),
        (ShapeError, ["c", "a/bias"], [c, a], [c, [1, 1, 1, 1]], "received list"),
        (ShapeError, ["c", "a/bias"], [c, np.ones(5)], [c, np.ones(5)], r"\(4,\), as in its"),
        (ArgumentError, ["c", "n"], [c, np.ones(2, int)], [c, np.ones(2)], "int64"),
        (ArgumentError, ["c", "n"], [c, np.ones(2, "f2")], [c, np.ones(2)], "float16"),
        (ArgumentError, ["c", "n"], [c, [1.0]], [c, one], "received list"),
    ]:
        with pytest.raises(error, match=text):
            optimizer.update(names, vs, gs)
    same(values, kept)
    same(optimizer.state_dict(), state)


@pytest.mark.parametrize(("indices", "rows", "error", "text"), [
    ([0, 4], (2, 3), DataError, "below 4; received 2 indices from 0 to 4"),
    ([-1, 2], (2, 3), DataError, "from -1 to 2"), ([2, 1], (2, 3), DataError, "sort them"),
    ([1, 1], (2, 3), DataError, "sum the rows"), ([1, 2], (3, 3), ShapeError, r"rows \(3, 3\)"),
    ([1, 2], (2, 2), ShapeError, r"value of shape \(4, 3\)"),
    ([[1], [2]], (2, 3), ShapeError, r"indices \(2, 1\)"),
    ([0.0, 1.0], (2, 3), ShapeError, "float64")
])  # fmt: skip
def test_bad_rows(of_rows, indices, rows, error, text):
    value = np.ones((4, 3))
    with pytest.raises(error, match=text):
        of_rows().update(["w"], [value], [RowSparse(np.array(indices), np.ones(rows))])
    np.testing.assert_array_equal(value, 1)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "0.1", True])
def test_bad_settings(make, bad):
    for name in ("learning_rate", "weight_decay"):
        with pytest.raises(ArgumentError, match=rf"\({name}=\).*finite"):
            make(**{name: bad})
    for name in ("lr_mult", "decay_mult") if not isinstance(bad, bool) else ():
        with pytest.raises(ArgumentError, match=name):
            make().register("w", ParamSpec("w", **{name: bad}))


def test_bad_regularizers_and_constraints(make):
    for name in ("regularizer", "constraint"):
        with pytest.raises(ArgumentError, match=rf"{name}=\).*received str"):
            make(**{name: "l2"})
    if make().decoupled is False:
        with pytest.raises(ArgumentError, match="both"):
            make(weight_decay=0.1, regularizer=0.1)


NAN = math.nan


@pytest.mark.parametrize(("name", "kind", "more"), [
    *(("momentum", opt.SGD, {"momentum": bad}) for bad in (-0.1, 1.0, "x")),
    ("momentum", opt.Nesterov, {"momentum": 1.0}), ("momentum", opt.RMSProp, {"momentum": 1.0}),
    ("dampening", opt.SGD, {"momentum": 0.9, "dampening": 1.0}),
    ("dampening", opt.SGD, {"dampening": 0.5}),
    ("dampening", opt.SGD, {"momentum": 0.9, "nesterov": True, "dampening": 0.5}),
    *(("rho", kind, {"rho": 1.0}) for kind in (opt.RMSProp, opt.Adadelta)),
    ("epsilon", opt.RMSProp, {"epsilon": -1}), ("epsilon", opt.AdaGrad, {"epsilon": NAN}),
    *(("epsilon", opt.Adam, {"epsilon": bad}) for bad in (-1e-8, None)),
    *(("beta_1", kind, {"beta_1": bad}) for kind, bad in ((opt.Lion, 1.5), (opt.Adam, 1.0))),
    *(("beta_2", opt.Adam, {"beta_2": bad}) for bad in (-0.1, "x")),
    ("beta_2", opt.Lion, {"beta_2": -1.0}),
    *(("beta_2", kind, {"beta_2": 1.0}) for kind in (opt.LAMB, opt.GaLore)),
    ("momentum_decay", opt.NAdam, {"momentum_decay": -1.0}),
    ("beta_2_decay", opt.Adafactor, {"beta2_decay": 0.5}),
    *((name, opt.Adafactor, {name: -1.0}) for name in ("epsilon_1", "epsilon_2")),
    ("clip_threshold", opt.Adafactor, {"clip": 0.0}), ("gain", opt.GaLore, {"gain": 0.0})
])  # fmt: skip
def test_bad_arguments_of_a_rule(name, kind, more):
    with pytest.raises(ArgumentError, match=rf"{kind.__name__}\({name}=\)"):
        kind(lr=0.1, **more)
    with pytest.raises(ArgumentError, match="above 0 with nesterov"):
        opt.SGD(lr=0.1, nesterov=True)


# --- the words of Keras and PyTorch ---------------------------------------------------------------


def test_the_words_of_others_mean_the_same():
    adam = opt.Adam(lr=0.1, betas=(0.8, 0.9), eps=0.01, clipnorm=2.0)
    assert repr(adam) == repr(opt.Adam(0.1, 0.8, 0.9, 0.01, constraint=2.0))
    assert opt.Adam.from_config({"class": "Adam", "arguments": {"lr": 0.3}}).learning_rate == 0.3
    adam.lr = 0.5
    assert adam.learning_rate == adam.rate() == adam.lr == 0.5
    adam.load_state_dict({"*/lr": np.array(0.25)})
    assert adam.learning_rate == 0.25
    assert opt.Adafactor(eps=(None, 0.1), d=2.0).epsilon_2 == 0.1


def test_an_argument_that_asks_for_nothing_is_taken():
    of_keras = {"clipvalue": None, "use_ema": False, "amsgrad": False}
    of_torch = {"maximize": False, "foreach": None, "fused": None}
    made = opt.RAdam(0.1, **of_keras, **of_torch)
    assert repr(made) == "RAdam(learning_rate=0.1, amsgrad=False)"
    assert repr(opt.Lion(0.1, **of_keras, **of_torch)) == "Lion(learning_rate=0.1)"
    assert opt.AdamW(amsgrad=True).slots == ("first", "second", "largest")
    assert opt.AdamW(weight_decay=None).weight_decay == 0


@pytest.mark.parametrize(("kind", "more", "error"), [
    (opt.Adam, {"betas": 0.9}, SignatureError),
    (opt.Adam, {"betas": (0.9, 0.99), "beta_2": 0.9}, SignatureError),
    (opt.Adam, {"lr": 1, "learning_rate": 1}, SignatureError),
    (opt.Adam, {"maximize": True}, SignatureError), (opt.Adam, {"clipvalue": 0.5}, SignatureError),
    (opt.RAdam, {"amsgrad": True}, ArgumentError),
    (opt.FactoredAdam, {"amsgrad": True}, ArgumentError),
])  # fmt: skip
def test_words_that_are_refused(kind, more, error):
    with pytest.raises(error, match="amsgrad" if "amsgrad" in more else None):
        kind(**more)


def test_a_rule_of_a_user_may_go_by_other_words():
    class Mine(opt.SGD):
        def __init__(self, lr=0.1, **more):
            super().__init__(lr, **more)

    mine = Mine(0.3, weight_decay=0.1)
    assert mine.learning_rate == mine.lr == 0.3
    mine.lr = 0.5
    assert mine.rate() == 0.5
    with pytest.raises(TypeError, match="weight_decy"):
        Mine(0.3, weight_decy=0.1)


# --- Muon -----------------------------------------------------------------------------------------


def a_net_of_words():
    """An embedding, two hidden layers, a convolution, and the last product."""
    x = singanet.Input("x", (6,), dtype="int64")
    y = layers.Embedding("words", 11, 8)(x)
    y = layers.Dense("wide", 12, activation="gelu")(y)
    y = layers.Dense("narrow", 5, W_transpose=True)(y)
    y = layers.Conv1D("near", 5, 3, padding="same", data_format="channels_last")(y)
    y = layers.Dense("inner", 7, activation="tanh")(layers.Flatten("flat")(y))
    scores, loss = layers.Dense("scores", 3)(y), singanet.loss.SoftmaxCrossEntropy()
    return singanet.FeedForwardNet(inputs=[x], outputs=[scores], loss=loss, seed=0)


def test_muon_updates_hidden_matrices_alone(rng):
    net, muon = a_net_of_words(), opt.Muon(0.02)
    net.step(rng.integers(0, 11, (4, 6)), rng.integers(0, 3, 4), muon)
    saved = muon.state_dict()
    by_muon = {key.rpartition("/")[0] for key, a in saved.items() if "/momentum" in key and a.size}
    assert by_muon == {"wide/weight", "narrow/weight", "inner/weight"}
    assert {muon.state(name).ratio for name in by_muon} == {12 / 8, 5 / 12, 7 / 30}
    # One array of a matrix, two of the others, and a count.
    shapes = {
        p.name: math.prod(p.shape) * (1 if p.name in by_muon else 2) + 1 for p in net.params()
    }
    assert sum(array.size for array in saved.values()) == sum(shapes.values())


def test_muon_in_a_loop_of_ones_own_asks_for_the_net(rng):
    net = a_net_of_words()
    x, y = rng.integers(0, 11, (4, 6)), rng.integers(0, 3, 4)
    muon, other, same_net = opt.Muon(0.02), opt.Muon(0.02), a_net_of_words()
    for asked in (False, True):
        if asked:
            muon.follow(net.params(), net)
        net.loss.forward(True, net.forward(True, x), y)
        for names, values, grads in net.backward(net.loss.backward()):
            if not asked:
                with pytest.raises(ArgumentError, match=r"follow\(net.params\(\), net\)"):
                    muon.update(names, values, grads)
                break
            muon.update(names, values, grads)
    same_net.step(x, y, other)
    for one, two in zip(net.params(), same_net.params(), strict=True):
        np.testing.assert_allclose(one.value, two.value, rtol=1e-5, atol=1e-6)


def test_the_rule_inside_muon_is_part_of_its_state_and_settings():
    muon = opt.Muon(0.02, others=opt.Adam(schedules.Plateau(0.1, patience=1)))
    muon.others.learning_rate.observe(1.0)
    muon.others.learning_rate.observe(1.0)
    muon.others.beta_1 = 0.5
    again = opt.Muon.from_config(
        json.loads(json.dumps(opt.Muon(0.02, others=opt.Lion(0.1)).to_config()))
    )
    assert repr(again.others) == repr(opt.Lion(0.1))
    other = opt.Muon(0.02, others=opt.Adam(schedules.Plateau(0.1, patience=1)))
    other.load_state_dict(muon.state_dict())
    assert other.others.rate() == pytest.approx(0.01)
    assert other.others.beta_1 == 0.5
    for bad in (opt.Muon(), opt.AccumulatingSGD(2), "adamw"):
        with pytest.raises(ArgumentError, match=r"Muon\(others=\)"):
            opt.Muon(others=bad)


@pytest.mark.parametrize("nesterov", [False, True])
def test_muon_equals_pytorch_in_float32(nesterov, monkeypatch, rng):
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch.optim has no Muon")
    # Its iteration in float32.
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.clone)
    hidden = [layers.Dense(name, 32, activation="tanh") for name in ("a", "b")]
    tall = layers.Dense("c", 8, activation="tanh")
    net = singanet.FeedForwardNet(
        [*hidden, tall, layers.Dense("out", 1)], loss=singanet.loss.SquaredError(), seed=0
    )
    x = rng.normal(size=(64, 16)).astype(np.float32)
    y = np.sin(x @ rng.normal(size=(16, 1)).astype(np.float32))
    muon = opt.Muon(0.02, nesterov=nesterov, weight_decay=0.1, others=opt.AdamW(0.01))
    net.build((16,))
    parts = [torch.nn.Linear(*net[n].params["weight"].shape) for n in ("a", "b", "c", "out")]
    for linear, name in zip(parts, ("a", "b", "c", "out"), strict=True):
        linear.weight.data = torch.tensor(net[name].params["weight"].value.T.copy())
        linear.bias.data = torch.tensor(net[name].params["bias"].value.copy())
    inner = [linear.weight for linear in parts[:3]]
    rest = [*(linear.bias for linear in parts), parts[3].weight]
    peers = [
        torch.optim.Muon(inner, lr=0.02, momentum=0.95, nesterov=nesterov, weight_decay=0.1),
        torch.optim.AdamW(rest, lr=0.01),
    ]
    given, wanted = torch.tensor(x), torch.tensor(y)
    for _ in range(50):
        found, _ = net.step(x, y, muon)
        out = given
        for linear in parts[:3]:
            out = torch.tanh(linear(out))
        loss = ((parts[3](out) - wanted) ** 2).sum(dim=1).mean() / 2
        for peer in peers:
            peer.zero_grad()
        loss.backward()
        for peer in peers:
            peer.step()
        assert found == pytest.approx(loss.item(), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("rows", [5, 64, 200])
def test_the_factor_of_muons_step_is_computed_in_place(rows, rng):
    a = rng.normal(size=(rows, rows))
    gram = (a + a.T) / rows
    wanted = muon_rule._B * gram + muon_rule._C * gram @ gram
    width = muon_rule._block_of(rows)
    muon_rule._to_factor(np, gram, np.empty((2, rows * width)), width)
    np.testing.assert_allclose(gram, wanted, atol=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(12, 50), (50, 12), (32, 128), (300, 70)])
def test_muon_of_a_long_matrix_never_stores_it(shape, nesterov, monkeypatch, rng):
    """The factor of X is computed from X Xᵀ alone; steps are those of the iteration of X."""
    grads = rng.normal(size=(3, *shape))
    found = []
    for _ in range(2):
        w = np.ones(shape)
        muon = opt.Muon(0.02, nesterov=nesterov, weight_decay=0.1, decoupled=False)
        for grad in grads:
            muon.update(["w"], [w], [grad], 0.5)
        found.append((w, muon.state_dict()["w/momentum"]))
        monkeypatch.setattr(muon_rule, "_is_long", lambda rows, columns: False)
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_muon_holds_one_matrix_at_a_time(rng):
    muon, names = opt.Muon(0.02), ["a", "b", "c"]
    values = [rng.normal(size=(256, 1024)).astype(np.float32) for _ in names]
    muon.update(names, values, values)
    tracemalloc.start()
    try:
        muon.update(names, values, values)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.4 * values[0].nbytes


def test_the_memory_of_muons_iteration_is_told():
    square = [layers.Dense(name, 512, input_shape=(512,)) for name in "ab"]
    loss = singanet.loss.SoftmaxCrossEntropy()
    net = singanet.FeedForwardNet([*square, layers.Dense("out", 2)], loss=loss, seed=0)
    muon, sgd = (net.memory(4, rule).parts for rule in (opt.Muon(), opt.SGD(0.1, momentum=0.9)))
    # A matrix, its product with itself, and two blocks of 64 columns.
    assert muon["other"] - sgd["other"] == pytest.approx((2 + 2 / 8) * 512 * 512 * 4, rel=0.02)
    assert muon["optimizer state"] == pytest.approx(sgd["optimizer state"], rel=0.02)
