"""Every other rule, step by step, against a formula written here, and against PyTorch's."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from singanet import optimizer as opt
from singanet.errors import ArgumentError


@pytest.fixture
def rng() -> np.random.Generator:
    """Of each test its own, so that another rule changes no numbers of the others."""
    return np.random.default_rng(0)


def nesterov(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    h = np.zeros_like(w)
    for g in gs:
        new = 0.9 * h + lr * g
        w = w - ((1 + 0.9) * new - 0.9 * h)
        h = new
        yield w


def rmsprop(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    h = np.zeros_like(w)
    for g in gs:
        h = 0.8 * h + 0.2 * g**2
        w = w - lr * g / np.sqrt(h + 0.01)
        yield w


def adagrad(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    h = np.zeros_like(w)
    for g in gs:
        h = h + g**2
        w = w - lr * g / np.sqrt(h + 0.01)
        yield w


def beside(t: int, after: bool) -> float:
    """ε is added to √v̂, or to √v before the correction."""
    return 0.01 if after else 0.01 / float(np.sqrt(1 - 0.9**t))


def adamw(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        w = w * (1 - lr * 0.05)
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        w = w - lr * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + beside(t, after))
        yield w


def amsgrad(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    m, v, top = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        top = np.maximum(top, v)
        w = w - lr * (m / (1 - 0.8**t)) / (np.sqrt(top) / np.sqrt(1 - 0.9**t) + beside(t, after))
        yield w


def lion(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    m = np.zeros_like(w)
    for g in gs:
        w = w - lr * (np.sign(0.8 * m + 0.2 * g) + 0.05 * w)
        m = 0.9 * m + 0.1 * g
        yield w


def lamb(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        r = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + beside(t, after)) + 0.05 * w
        w = w - lr * np.linalg.norm(w) / np.linalg.norm(r) * r
        yield w


def adafactor(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    w = w.reshape(len(w), -1)
    r, c = np.zeros((len(w), 1)), np.zeros((1, w.shape[1]))
    for t, g in enumerate(gs, 1):
        g = g.reshape(w.shape)
        fresh = t**-0.8
        alpha = max(1e-3, np.sqrt((w**2).mean())) * min(lr, 1 / np.sqrt(t))
        r = r + fresh * ((g**2).mean(axis=1, keepdims=True) - r)
        c = c + fresh * ((g**2).mean(axis=0, keepdims=True) - c)
        u = g / np.sqrt(r @ c / r.mean())
        w = w * (1 - lr * 0.05) - alpha * u / max(1.0, np.sqrt((u**2).mean()))
        yield w


def adalomo(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    """Sums in place of means, as the paper has it: V is their outer product by the whole sum."""
    w = w.reshape(len(w), -1)
    r, c = np.zeros(len(w)), np.zeros(w.shape[1])
    for t, g in enumerate(gs, 1):
        g, beta = g.reshape(w.shape), 1 - t**-0.8
        r = beta * r + (1 - beta) * (g**2).sum(axis=1)
        c = beta * c + (1 - beta) * (g**2).sum(axis=0)
        u = g / np.sqrt(np.outer(r, c) / r.sum())
        size, bound = np.linalg.norm(w), np.sqrt(w.size)
        w = w * (1 - lr * 0.05)
        w = w - lr * max(1e-3, size / bound) * u / max(1.0, np.linalg.norm(u) / bound / 0.7)
        yield w


def galore(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    """By singular vectors; a matrix with more rows than columns is the transposed one's."""
    w = w.reshape(len(w), -1)
    tall = w.shape[0] > w.shape[1]
    m = v = 0.0
    for t, g in enumerate(gs, 1):
        g = g.reshape(w.shape)
        g = g.T if tall else g
        if t % 3 == 1:
            p = np.linalg.svd(g, full_matrices=False)[0][:, :3]
            p = p * np.sign(p[np.abs(p).argmax(axis=0), range(3)])
        r = p.T @ g
        m, v = 0.8 * m + 0.2 * r, 0.9 * v + 0.1 * r**2
        step = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + beside(t, after))
        back = 0.5 * p @ step
        w = w * (1 - lr * 0.05) - lr * (back.T if tall else back)
        yield w


def factored_adam(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    w = w.reshape(len(w), -1)
    m, r, c = np.zeros_like(w), np.zeros((len(w), 1)), np.zeros((1, w.shape[1]))
    for t, g in enumerate(gs, 1):
        g = g.reshape(w.shape)
        m = 0.8 * m + 0.2 * g
        r = 0.9 * r + 0.1 * (g**2).mean(axis=1, keepdims=True)
        c = 0.9 * c + 0.1 * (g**2).mean(axis=0, keepdims=True)
        v = r @ c / r.mean() / (1 - 0.9**t)
        w = w * (1 - lr * 0.05) - lr * (m / (1 - 0.8**t)) / (np.sqrt(v) + beside(t, after))
        yield w


def nadam(w: Any, gs: Any, lr: float, after: bool = False) -> Iterator[Any]:
    m, v, product = np.zeros_like(w), np.zeros_like(w), 1.0
    for t, g in enumerate(gs, 1):
        now, then = (0.8 * (1 - 0.5 * 0.96 ** (0.1 * k)) for k in (t, t + 1))
        product *= now
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        ahead = (1 - now) / (1 - product) * g + then / (1 - product * then) * m
        w = w - lr * ahead / (np.sqrt(v / (1 - 0.9**t)) + beside(t, after))
        yield w


def adamax(w: Any, gs: Any, lr: float, inside: bool = False) -> Iterator[Any]:
    m, u = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gs, 1):
        m, u = 0.8 * m + 0.2 * g, np.maximum(0.9 * u, np.abs(g) + 0.01 * inside)
        w = w - lr * m / (1 - 0.8**t) / (u + 0.01 * (not inside))
        yield w


def adadelta(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    v, u = np.zeros_like(w), np.zeros_like(w)
    for g in gs:
        v = 0.8 * v + 0.2 * g**2
        d = g * np.sqrt(u + 0.01) / np.sqrt(v + 0.01)
        u = 0.8 * u + 0.2 * d**2
        w = w - lr * d
        yield w


def centered(w: Any, gs: Any, lr: float) -> Iterator[Any]:
    h, m, b = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for g in gs:
        h, m = 0.8 * h + 0.2 * g**2, 0.8 * m + 0.2 * g
        b = 0.7 * b + lr * g / np.sqrt(h - m**2 + 0.01)
        w = w - b
        yield w


MOMENTS: dict[str, Any] = {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.01}
RULES: dict[str, tuple[Callable[..., Any], Any]] = {
    "nesterov": (nesterov, opt.Nesterov),
    "rmsprop": (rmsprop, lambda lr: opt.RMSProp(rho=0.8, epsilon=0.01, lr=lr)),
    "adagrad": (adagrad, lambda lr: opt.AdaGrad(epsilon=0.01, lr=lr)),
    "adamw": (adamw, lambda lr: opt.AdamW(**MOMENTS, lr=lr, weight_decay=0.05)),
    "amsgrad": (amsgrad, lambda lr: opt.AMSGrad(**MOMENTS, lr=lr)),
    "nadam": (nadam, lambda lr: opt.NAdam(**MOMENTS, momentum_decay=0.1, lr=lr)),
    "adamax": (adamax, lambda lr: opt.Adamax(**MOMENTS, lr=lr)),
    "adadelta": (adadelta, lambda lr: opt.Adadelta(lr, 0.8, 0.01)),
    "centered": (
        centered,
        lambda lr: opt.RMSProp(lr, 0.8, 0.01, centered=True, momentum=0.7),
    ),
    "lion": (lion, lambda lr: opt.Lion(lr, 0.8, 0.9, weight_decay=0.05)),
    "lamb": (lamb, lambda lr: opt.LAMB(**MOMENTS, lr=lr, weight_decay=0.05)),
    "adafactor": (adafactor, lambda lr: opt.Adafactor(lr, weight_decay=0.05)),
    "adalomo": (adalomo, lambda lr: opt.AdaLomo(lr, clip=0.7, weight_decay=0.05)),
    "galore": (
        galore,
        lambda lr: opt.GaLore(lr, 3, 3, 0.5, **MOMENTS, weight_decay=0.05),
    ),
    "factored_adam": (
        factored_adam,
        lambda lr: opt.FactoredAdam(**MOMENTS, lr=lr, weight_decay=0.05),
    ),
}

LATER = {"adamw", "amsgrad", "nadam", "lamb", "galore", "factored_adam"}


@pytest.mark.parametrize("name", [*sorted(LATER), "adamax"])
def test_formula_with_epsilon_in_the_other_place(name: str, rng: np.random.Generator) -> None:
    formula, make = RULES[name]
    said = {"epsilon_in_norm" if name == "adamax" else "epsilon_after_correction": True}
    kind = make(0.03)
    optimizer = type(kind)(**kind.arguments | said)
    w = rng.normal(size=(5, 4))
    gradients = [rng.normal(size=(5, 4)) for _ in range(5)]
    for g, wanted in zip(gradients, formula(w.copy(), gradients, 0.03, True), strict=True):
        optimizer.update(["w"], [w], [g])
        np.testing.assert_allclose(w, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shape", [(5, 4), (6, 2, 3), (300, 401)])
def test_formula(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    formula, make = RULES[name]
    w = rng.normal(size=shape)
    gradients = [rng.normal(size=shape) for _ in range(5)]
    optimizer = make(0.03)
    expected = formula(w.copy(), gradients, 0.03)
    for g, wanted in zip(gradients, expected, strict=True):
        optimizer.update(["w"], [w], [g])
        np.testing.assert_allclose(w, wanted.reshape(shape), rtol=1e-11, atol=1e-13)


def test_adafactor_of_a_vector_keeps_every_moment(rng: np.random.Generator) -> None:
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


def test_factored_adam_of_a_vector_is_adamw(rng: np.random.Generator) -> None:
    own, other = (
        rule(**MOMENTS, lr=0.03, weight_decay=0.1) for rule in (opt.FactoredAdam, opt.AdamW)
    )
    w = rng.normal(size=7)
    expected = w.copy()
    for _ in range(4):
        g = rng.normal(size=7)
        own.update(["w"], [w], [g])
        other.update(["w"], [expected], [g])
        np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_galore_of_what_has_no_more_directions_is_adamw(rng: np.random.Generator) -> None:
    for shape in ((7,), (4, 9), (9, 2, 2)):
        own = opt.GaLore(0.03, 4, **MOMENTS, weight_decay=0.1)
        other = opt.AdamW(**MOMENTS, lr=0.03, weight_decay=0.1)
        w = rng.normal(size=shape)
        expected = w.copy()
        for _ in range(4):
            g = rng.normal(size=shape)
            own.update(["w"], [w], [g])
            other.update(["w"], [expected], [g])
            np.testing.assert_allclose(w, expected, rtol=1e-12)


def test_galore_keeps_a_basis_and_two_moments_of_the_rest(rng: np.random.Generator) -> None:
    optimizer = opt.GaLore(rank=3)
    w = rng.normal(size=(20, 30)).astype(np.float32)
    optimizer.update(["w"], [w], [rng.normal(size=w.shape).astype(np.float32)])
    sizes = {key: array.size for key, array in optimizer.state_dict().items()}
    assert sum(sizes.values()) == 3 * (20 + 2 * 30) + 1
    before = w.copy()
    optimizer.update(["w"], [w], [np.zeros_like(w)], 2.0)
    # Three directions at most, whatever comes.
    assert np.linalg.matrix_rank(w - before, tol=1e-5) <= 3


def test_galore_of_rows_of_a_table(rng: np.random.Generator) -> None:
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
        root = np.sqrt(v[rows] / (1 - 0.9**t)) + beside(t, False)
        expected[rows] -= 0.03 * 0.5 * (m[rows] / (1 - 0.8**t) / root) @ p.T
        np.testing.assert_allclose(w, expected, rtol=1e-11)


def test_galore_of_rows_of_what_is_wide_is_that_of_a_dense_gradient(
    rng: np.random.Generator,
) -> None:
    one, other = opt.GaLore(0.03, 2), opt.GaLore(0.03, 2)
    w = rng.normal(size=(5, 9))
    dense, same = np.zeros_like(w), w.copy()
    dense[[1, 3]] = rng.normal(size=(2, 9))
    one.update(["w"], [w], [(np.array([1, 3]), dense[[1, 3]])])
    other.update(["w"], [same], [dense])
    np.testing.assert_array_equal(w, same)


def test_galore_goes_on_where_it_stood(rng: np.random.Generator) -> None:
    one, other = opt.GaLore(0.03, 2, 3), opt.GaLore(0.03, 2, 3)
    w = rng.normal(size=(6, 9))
    gradients = rng.normal(size=(7, 6, 9))
    for g in gradients[:4]:
        one.update(["w"], [w], [g])
    again = w.copy()
    other.load_state_dict(one.state_dict())
    for g in gradients[4:]:
        one.update(["w"], [w], [g])
        other.update(["w"], [again], [g])
    np.testing.assert_array_equal(again, w)


def test_galore_shows_what_is_no_number(rng: np.random.Generator) -> None:
    w, g = rng.normal(size=(2, 6, 8))
    g[2, 3] = np.nan
    opt.GaLore(rank=2).update(["w"], [w], [g])
    assert np.isnan(w).any()


def test_factored_adam_does_not_move_where_no_gradient_ever_was() -> None:
    w = np.ones((3, 4), np.float32)
    opt.FactoredAdam(lr=0.1).update(["w"], [w], [np.zeros_like(w)])
    assert np.array_equal(w, np.ones((3, 4)))


def test_adafactor_state_is_a_row_and_a_column() -> None:
    optimizer = opt.Adafactor()
    optimizer.update(["w", "b"], [np.ones((50, 40)), np.ones(7)], [np.ones((50, 40)), np.ones(7)])
    sizes = {key: array.size for key, array in optimizer.state_dict().items()}
    assert sum(sizes.values()) == (50 + 40 + 1) + (7 + 1)


TORCH: Any = {"epsilon": 0.1, "epsilon_after_correction": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (opt.SGD, "SGD", {}),
        (opt.Nesterov, "SGD", {"momentum": 0.9, "nesterov": True}),
        (partial(opt.RMSProp, epsilon=0.0), "RMSprop", {"alpha": 0.9, "eps": 0.0}),
        (partial(opt.AdaGrad, epsilon=0.0), "Adagrad", {"eps": 0.0}),
        (partial(opt.Adam, **TORCH), "Adam", {"eps": 0.1}),
        (partial(opt.Adam, amsgrad=True, **TORCH), "Adam", {"eps": 0.1, "amsgrad": True}),
        (partial(opt.AdamW, **TORCH), "AdamW", {"eps": 0.1}),
        (partial(opt.AMSGrad, **TORCH), "Adam", {"eps": 0.1, "amsgrad": True}),
        (partial(opt.AdamW, amsgrad=True, **TORCH), "AdamW", {"eps": 0.1, "amsgrad": True}),
        (
            partial(opt.SGD, momentum=0.9, dampening=0.3),
            "SGD",
            {"momentum": 0.9, "dampening": 0.3},
        ),
        (
            partial(opt.RMSProp, epsilon=0.0, centered=True, momentum=0.8),
            "RMSprop",
            {"alpha": 0.9, "eps": 0.0, "centered": True, "momentum": 0.8},
        ),
        (partial(opt.NAdam, **TORCH), "NAdam", {"eps": 0.1}),
        (partial(opt.RAdam, epsilon=0.1), "RAdam", {"eps": 0.1}),
        (partial(opt.RAdam, beta_2=0.5), "RAdam", {"betas": (0.9, 0.5)}),
        (partial(opt.Adamax, epsilon=0.1, epsilon_in_norm=True), "Adamax", {"eps": 0.1}),
        (opt.Adadelta, "Adadelta", {}),
        (opt.Adafactor, "Adafactor", {}),
    ],
)
@pytest.mark.parametrize("shape", [(6, 5), (8,)])
def test_equals_pytorch(
    ours: Any, theirs: str, settings: dict[str, Any], shape: Any, rng: np.random.Generator
) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch.optim, theirs)
    apart = theirs in ("AdamW", "Adafactor")
    both = not apart and "decoupled_weight_decay" in inspect.signature(kind).parameters
    for decay, decoupled in [(0.0, False), (0.1, apart), *([(0.1, True)] if both else [])]:
        more = {"decoupled_weight_decay": decoupled} if both else {}
        w = rng.normal(size=shape)
        peer_value = torch.nn.Parameter(torch.tensor(w))
        peer = kind([peer_value], lr=0.02, weight_decay=decay, **settings, **more)
        optimizer = ours(lr=0.02, weight_decay=decay, decoupled=decoupled)
        for _ in range(10):
            g = rng.normal(size=shape)
            peer_value.grad = torch.tensor(g)
            peer.step()
            optimizer.update(["w"], [w], [g])
            # PyTorch keeps the product of NAdam's momenta in float32: each of the steps of about lr
            # may be off by a few of its roundings.
            atol = 10 * 0.02 * 4 * 2.0**-24 if theirs == "NAdam" else 1e-12
            np.testing.assert_allclose(w, peer_value.detach().numpy(), rtol=1e-10, atol=atol)


AFTER: Any = {"epsilon_after_correction": True}


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (opt.SGD, "SGD", {}),
        (partial(opt.SGD, momentum=0.9), "SGD", {"momentum": 0.9}),
        (opt.Nesterov, "SGD", {"momentum": 0.9, "nesterov": True}),
        (opt.RMSProp, "RMSprop", {}),
        (
            partial(opt.RMSProp, centered=True, momentum=0.5),
            "RMSprop",
            {"centered": True, "momentum": 0.5},
        ),
        (opt.AdaGrad, "Adagrad", {"initial_accumulator_value": 0.0}),
        (opt.Adadelta, "Adadelta", {"rho": 0.9}),
        (opt.Adam, "Adam", {}),
        (opt.AMSGrad, "Adam", {"amsgrad": True}),
        (opt.AdamW, "AdamW", {}),
        (opt.Adamax, "Adamax", {}),
        (partial(opt.NAdam, momentum_decay=1, **AFTER), "Nadam", {}),
        (partial(opt.LAMB, **AFTER), "Lamb", {}),
        (opt.Lion, "Lion", {}),
    ],
)
@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("epsilon", [1e-7, 1e-3, 0.1])
def test_equals_keras(
    ours: Any,
    theirs: str,
    settings: dict[str, Any],
    decay: float,
    epsilon: float,
    rng: np.random.Generator,
) -> None:
    keras = pytest.importorskip("keras", reason="compares with Keras: pip install '.[peers]'")
    w = rng.normal(size=(6, 5)).astype(np.float32)
    variable = keras.Variable(w)
    near = {} if theirs in ("SGD", "Lion") else {"epsilon": epsilon}
    # AdamW of Keras takes no decay for none.
    settings = settings | {"weight_decay": decay if decay or theirs == "AdamW" else None}
    peer = getattr(keras.optimizers, theirs)(0.02, **near, **settings)
    optimizer = ours(lr=0.02, weight_decay=decay, decoupled=True, **near)
    for _ in range(10):
        g = 0.01 * rng.normal(size=(6, 5)).astype(np.float32)
        peer.apply([keras.ops.convert_to_tensor(g)], [variable])
        optimizer.update(["w"], [w], [g])
        np.testing.assert_allclose(w, np.asarray(variable.value.detach()), atol=1e-5)


@pytest.mark.parametrize("name", ["AdamW", "AMSGrad", "NAdam", "LAMB", "FactoredAdam", "GaLore"])
def test_files_and_pickles_from_before_mean_what_they_meant(
    name: str, rng: np.random.Generator
) -> None:
    """Old files do not say where ε is added; new ones do, whatever the default."""
    kind = getattr(opt, name)
    entry = {"class": kind().to_config()["class"], "arguments": {"lr": 0.02, "epsilon": 0.1}}
    said = kind(0.02, epsilon=0.1, epsilon_after_correction=True)
    old = kind.from_config(entry)
    again = kind.from_config(json.loads(json.dumps(kind(0.02, epsilon=0.1).to_config())))
    pickled = copy.deepcopy(said)
    del pickled.epsilon_after_correction
    found = []
    for each in (old, pickled, said, again, kind(0.02, epsilon=0.1)):
        w = np.linspace(-1, 1, 12).reshape(3, 4)
        for k in range(3):
            each.update(["w"], [w], [np.cos(np.arange(12.0) + k).reshape(3, 4)])
        found.append(w)
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[2])
    assert np.array_equal(found[3], found[4])
    assert not np.allclose(found[3], found[0])


@pytest.mark.parametrize("make", [lambda: opt.LAMB(lr=0.1), lambda: opt.Adafactor()])
def test_zero_values_and_zero_gradients(make: Any) -> None:
    w = np.zeros((3, 2))
    optimizer = make()
    optimizer.update(["w"], [w], [np.zeros((3, 2))])
    np.testing.assert_array_equal(w, 0)
    optimizer.update(["w"], [w], [np.ones((3, 2))])
    assert np.isfinite(w).all()
    assert (w < 0).all()


def test_lion_stands_still_where_nothing_came() -> None:
    w = np.ones(2)
    opt.Lion(lr=0.1).update(["w"], [w], [np.array([0.0, 1e-30])])
    np.testing.assert_allclose(w, [1, 0.9])


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: opt.Nesterov(lr=0.1, momentum=1.0), "momentum"),
        (lambda: opt.RMSProp(rho=1.0, lr=0.1), "rho"),
        (lambda: opt.RMSProp(epsilon=-1, lr=0.1), "epsilon"),
        (lambda: opt.AdaGrad(epsilon=float("nan"), lr=0.1), "epsilon"),
        (lambda: opt.Lion(beta_1=1.5, lr=0.1), "beta_1"),
        (lambda: opt.Lion(beta_2=-1.0, lr=0.1), "beta_2"),
        (lambda: opt.LAMB(beta_2=1.0, lr=0.1), "beta_2"),
        (lambda: opt.NAdam(momentum_decay=-1.0, lr=0.1), "momentum_decay"),
        (lambda: opt.Adadelta(rho=1.0, lr=0.1), "rho"),
        (lambda: opt.RMSProp(momentum=1.0, lr=0.1), "momentum"),
        (lambda: opt.SGD(momentum=0.9, dampening=1.0, lr=0.1), "dampening"),
        (lambda: opt.SGD(dampening=0.5, lr=0.1), "dampening"),
        (lambda: opt.SGD(0.1, 0.9, nesterov=True, dampening=0.5), "dampening"),
        (lambda: opt.Adafactor(beta2_decay=0.5), "beta_2_decay"),
        (lambda: opt.Adafactor(epsilon_1=-1.0), "epsilon_1"),
        (lambda: opt.Adafactor(epsilon_2=-1.0), "epsilon_2"),
        (lambda: opt.Adafactor(clip=0.0), "clip_threshold"),
        (lambda: opt.GaLore(gain=0.0), "gain"),
        (lambda: opt.GaLore(beta_2=1.0), "beta_2"),
    ],
)
def test_bad_settings(make: Any, name: str) -> None:
    with pytest.raises(ArgumentError, match=rf"\({name}=\)"):
        make()
