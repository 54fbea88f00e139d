"""Every rule with its settings and its formula in float64: a row here tests a rule whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from singanet import optimizer as opt
from singanet.optimizer import schedules


def momentum(w, gs, lr, mu=0.9, nesterov=False):
    h = 0.0
    for g in gs:
        h = mu * h + lr * g
        w = w - (mu * h + lr * g if nesterov else h)
        yield w


def nesterov(w, gs, lr):
    return momentum(w, gs, lr, nesterov=True)


def rmsprop(w, gs, lr, decay=0.8):
    h = 0.0
    for g in gs:
        h = decay * h + (1 - decay) * g**2 if decay else h + g**2
        w = w - lr * g / np.sqrt(h + 0.01)
        yield w


def adagrad(w, gs, lr):
    return rmsprop(w, gs, lr, 0.0)


def centered(w, gs, lr):
    h = m = b = 0.0
    for g in gs:
        h, m = 0.8 * h + 0.2 * g**2, 0.8 * m + 0.2 * g
        b = 0.7 * b + lr * g / np.sqrt(h - m**2 + 0.01)
        w = w - b
        yield w


def epsilon(t, after):
    """ε is added to √v̂, or to √v before the correction."""
    return 0.01 if after else 0.01 / float(np.sqrt(1 - 0.9**t))


def adam(w, gs, lr, after=False, decay=0.0, largest=False):
    m, v, top = np.zeros((3, *w.shape))
    for t, g in enumerate(gs, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        top = np.maximum(top, v) if largest else v
        w = w * (1 - lr * decay)
        w = w - lr * m / (1 - 0.8**t) / (np.sqrt(top) / np.sqrt(1 - 0.9**t) + epsilon(t, after))
        yield w


def adamw(w, gs, lr, after=False):
    return adam(w, gs, lr, after, decay=0.05)


def amsgrad(w, gs, lr, after=False):
    return adam(w, gs, lr, after, largest=True)


def lion(w, gs, lr):
    m = 0.0
    for g in gs:
        w = w - lr * (np.sign(0.8 * m + 0.2 * g) + 0.05 * w)
        m = 0.9 * m + 0.1 * g
        yield w


def lamb(w, gs, lr, after=False):
    m = v = 0.0
    for t, g in enumerate(gs, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        r = (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + epsilon(t, after)) + 0.05 * w
        w = w - lr * np.linalg.norm(w) / np.linalg.norm(r) * r
        yield w


def nadam(w, gs, lr, after=False):
    m, v, product = 0.0, 0.0, 1.0
    for t, g in enumerate(gs, 1):
        now, then = (0.8 * (1 - 0.5 * 0.96 ** (0.1 * k)) for k in (t, t + 1))
        product *= now
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        ahead = (1 - now) / (1 - product) * g + then / (1 - product * then) * m
        w = w - lr * ahead / (np.sqrt(v / (1 - 0.9**t)) + epsilon(t, after))
        yield w


def radam(w, gs, lr):
    """Liu et al. 2020; the first steps, whose variance is unbounded, are those of momentum."""
    m, v, bound = 0.0, 0.0, 2 / (1 - 0.9) - 1
    for t, g in enumerate(gs, 1):
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g**2
        length, factor = bound - 2 * t * 0.9**t / (1 - 0.9**t), 1.0
        if length > 5:
            root = (length - 4) * (length - 2) * bound / ((bound - 4) * (bound - 2) * length)
            factor = np.sqrt(root) * np.sqrt(1 - 0.9**t) / (np.sqrt(v) + 0.01)
        w = w - lr * m / (1 - 0.8**t) * factor
        yield w


def adamax(w, gs, lr, inside=False):
    m = u = 0.0
    for t, g in enumerate(gs, 1):
        m, u = 0.8 * m + 0.2 * g, np.maximum(0.9 * u, np.abs(g) + 0.01 * inside)
        w = w - lr * m / (1 - 0.8**t) / (u + 0.01 * (not inside))
        yield w


def adadelta(w, gs, lr):
    v = u = 0.0
    for g in gs:
        v = 0.8 * v + 0.2 * g**2
        d = g * np.sqrt(u + 0.01) / np.sqrt(v + 0.01)
        u = 0.8 * u + 0.2 * d**2
        w = w - lr * d
        yield w


def adafactor(w, gs, lr):
    w = w.reshape(len(w), -1)
    r, c = np.zeros((len(w), 1)), np.zeros((1, w.shape[1]))
    for t, g in enumerate(gs, 1):
        g, fresh = g.reshape(w.shape), t**-0.8
        alpha = max(1e-3, np.sqrt((w**2).mean())) * min(lr, 1 / np.sqrt(t))
        r = r + fresh * ((g**2).mean(axis=1, keepdims=True) - r)
        c = c + fresh * ((g**2).mean(axis=0, keepdims=True) - c)
        u = g / np.sqrt(r @ c / r.mean())
        w = w * (1 - lr * 0.05) - alpha * u / max(1.0, np.sqrt((u**2).mean()))
        yield w


def adalomo(w, gs, lr):
    """With sums for means, as in the paper: V is their outer product over the whole sum."""
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


def galore(w, gs, lr, after=False):
    """By singular vectors; a matrix with more rows than columns is transposed."""
    w = w.reshape(len(w), -1)
    tall, m, v = w.shape[0] > w.shape[1], 0.0, 0.0
    for t, g in enumerate(gs, 1):
        g = g.reshape(w.shape)
        g = g.T if tall else g
        if t % 3 == 1:
            p = np.linalg.svd(g, full_matrices=False)[0][:, :3]
            p = p * np.sign(p[np.abs(p).argmax(axis=0), range(3)])
        r = p.T @ g
        m, v = 0.8 * m + 0.2 * r, 0.9 * v + 0.1 * r**2
        back = 0.5 * p @ ((m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + epsilon(t, after)))
        w = w * (1 - lr * 0.05) - lr * (back.T if tall else back)
        yield w


def muon(w, gs, lr):
    """Of matrices (in, out); what is none has `AdamW`."""
    if w.ndim != 2:
        yield from adamw(w, gs, lr)
        return
    h = 0.0
    for g in gs:
        h = 0.9 * h + 0.1 * g
        x = 0.1 * g + 0.9 * h
        x = x / np.linalg.norm(x)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x - 4.775 * a @ x + 2.0315 * a @ a @ x
        w = w * (1 - lr * 0.05) - lr * max(1, w.shape[1] / w.shape[0]) ** 0.5 * x
        yield w


def schedule_free(w, gs, lr):
    """By the three sequences of Defazio et al. 2024; a rate that does not change weighs alike."""
    x, y, z, v = w, w, w, 0.0
    for t, g in enumerate(gs, 1):
        v = 0.9 * v + 0.1 * g**2
        z = z - lr * (g / (np.sqrt(v / (1 - 0.9**t)) + 0.01) + 0.05 * y)
        x = (1 - 1 / t) * x + z / t
        y = 0.8 * x + 0.2 * z
        yield y


def factored_adam(w, gs, lr, after=False):
    w = w.reshape(len(w), -1)
    m, r, c = np.zeros_like(w), np.zeros((len(w), 1)), np.zeros((1, w.shape[1]))
    for t, g in enumerate(gs, 1):
        g = g.reshape(w.shape)
        m = 0.8 * m + 0.2 * g
        r = 0.9 * r + 0.1 * (g**2).mean(axis=1, keepdims=True)
        c = 0.9 * c + 0.1 * (g**2).mean(axis=0, keepdims=True)
        v = r @ c / r.mean() / (1 - 0.9**t)
        w = w * (1 - lr * 0.05) - lr * (m / (1 - 0.8**t)) / (np.sqrt(v) + epsilon(t, after))
        yield w


@dataclass
class Rule:
    kind: Any
    formula: Callable[..., Any]
    given: dict[str, Any] = field(default_factory=dict)
    decay: float = 0.0
    """The decoupled decay of the formula."""
    whole: bool = False
    """The rule looks at a whole parameter, so pieces of one are updated otherwise."""
    others: Any = None
    """The rule of what is no matrix; it is given the same settings."""

    def __call__(self, **more):
        more = {"learning_rate": 0.1, "weight_decay": 0.0, **more}
        if self.others is not None:
            more["others"] = self.others(**more, **MOMENTS)
        return self.kind(**self.given, **more)


MOMENTS = {"beta_1": 0.8, "beta_2": 0.9, "epsilon": 0.01}
SQUARES = {"rho": 0.8, "epsilon": 0.01}
RULES = {
    "sgd": Rule(opt.SGD, lambda w, gs, lr: momentum(w, gs, lr, 0.0)),
    "momentum": Rule(opt.SGD, momentum, {"momentum": 0.9}),
    "nesterov sgd": Rule(opt.SGD, nesterov, {"momentum": 0.9, "nesterov": True}),
    "nesterov": Rule(opt.Nesterov, nesterov), "rmsprop": Rule(opt.RMSProp, rmsprop, SQUARES),
    "centered": Rule(opt.RMSProp, centered, {**SQUARES, "centered": True, "momentum": 0.7}),
    "adagrad": Rule(opt.AdaGrad, adagrad, {"epsilon": 0.01}), "adam": Rule(opt.Adam, adam, MOMENTS),
    "adamw": Rule(opt.AdamW, adamw, MOMENTS, 0.05), "amsgrad": Rule(opt.AMSGrad, amsgrad, MOMENTS),
    "nadam": Rule(opt.NAdam, nadam, {**MOMENTS, "momentum_decay": 0.1}),
    "radam": Rule(opt.RAdam, radam, MOMENTS), "adamax": Rule(opt.Adamax, adamax, MOMENTS),
    "adadelta": Rule(opt.Adadelta, adadelta, SQUARES),
    "lion": Rule(opt.Lion, lion, {"beta_1": 0.8, "beta_2": 0.9}, 0.05),
    "lamb": Rule(opt.LAMB, lamb, MOMENTS, 0.05, whole=True),
    "adafactor": Rule(opt.Adafactor, adafactor, {}, 0.05, whole=True),
    "adalomo": Rule(opt.AdaLomo, adalomo, {"clip": 0.7}, 0.05, whole=True),
    "galore": Rule(
        opt.GaLore, galore, {**MOMENTS, "rank": 3, "refresh": 3, "gain": 0.5}, 0.05, whole=True
    ),
    "muon": Rule(
        opt.Muon, muon, {"momentum": 0.9}, 0.05, whole=True, others=opt.AdamW
    ),
    "schedule free": Rule(opt.ScheduleFreeAdamW, schedule_free, MOMENTS, 0.05),
    "factored adam": Rule(opt.FactoredAdam, factored_adam, MOMENTS, 0.05, whole=True),
    "folded sgd": Rule(opt.AccumulatingSGD, momentum, {"every": 1, "momentum": 0.9}),
    "folded adam": Rule(opt.AccumulatingAdam, adam, {**MOMENTS, "every": 1})
}  # fmt: skip
OF_ROWS = [name for name in RULES if not name.startswith("folded")]
"""The rules that take sparse rows; those that gather micro-batches refuse them."""

SCHEDULES = [
    schedules.Constant(0.1),
    schedules.Chained([schedules.Step(0.1, 3), 0.05, schedules.Plateau(0.02)], [4, 7]),
    schedules.Cosine(0.1, 10, final=0.01), schedules.CosineRestarts(0.1, 3, longer=2, shrink=0.5),
    schedules.Cyclic(0.1, 0.5, 2, 3, shrink=0.5),
    schedules.Exponential(0.1, 5, 0.5, staircase=True), schedules.MultiStep(0.1, [2, 4], 0.3),
    schedules.OneCycle(0.1, 10, rise=0.4), schedules.Plateau(0.1, patience=1),
    schedules.Polynomial(0.1, 10, power=2.0), schedules.Step(0.1, 3),
    schedules.WarmUp(schedules.Cosine(0.1, 8), 3), schedules.WarmupStableDecay(0.1, 3, 2, 4)
]  # fmt: skip
