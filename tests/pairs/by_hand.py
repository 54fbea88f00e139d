"""The same training written down in NumPy: gradients of plain nets, and everything else by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from singanet import FeedForwardNet
from singanet.layers import Input
from singanet.loss import SoftmaxCrossEntropy, SquaredError
from tests.pairs.training import (
    ALPHA,
    CLIP,
    DECAY,
    GATHERED,
    LR,
    MOMENTUM,
    RANK,
    SCALE,
    STEPS,
    TURN,
    WEIGHT_DECAY,
    Case,
    Outcome,
    adapted,
    batches,
    data,
    epochs_of,
    inputs,
    outputs,
    part_of,
)

OF_PART = {"kinds": SoftmaxCrossEntropy, "numbers": SquaredError}
TRAINED_BY_FREEZING = ("g/", "kinds/", "numbers/")


class Plain:
    """Nets of a case with one output each, dense inputs, and no mask: one a length of the text."""

    def __init__(self, case: Case) -> None:
        self.case = replace(case, on=case.on - {"sparse inputs"})
        self.nets: dict[Any, FeedForwardNet] = {}

    def net(self, output: str, length: int, dtype: str) -> FeedForwardNet:
        """That for rows of text of the ``length``."""
        key = output, length, dtype
        if key not in self.nets:
            given = inputs(self.case)
            if "masks" in self.case:
                given["text"] = Input("text", (length,))
            made = dict(zip(OF_PART, outputs(self.case, given, masked=False), strict=False))
            net = FeedForwardNet(inputs=[*given.values()], outputs=made[output], seed=7)
            if dtype == "bfloat16":
                net._run_on(net.device._narrowed("tests"), net.dtype)
            elif dtype != "float32":
                net.as_type(dtype)
            net.programs.enabled = dtype == "bfloat16"
            self.nets[key] = net
        return self.nets[key]

    def gradients(
        self, values: dict[str, Any], x: dict[str, Any], y: Any, dtype: str
    ) -> tuple[dict[str, Any], float]:
        """The gradients of the mean loss of a batch by name, and that loss."""
        targets = y if isinstance(y, dict) else {"kinds": y}
        count = len(targets["kinds"])
        found: dict[str, Any] = {}
        loss = 0.0
        for rows, length in self.groups(x, count):
            fed = part_of(x, rows)
            if "masks" in self.case:
                fed["text"] = fed["text"][:, :length]
            for output, target in targets.items():
                net, part = self.net(output, length, dtype), OF_PART[output]()
                for param in net.params():
                    param.value[...] = values[param.name]
                out = net.forward(True, fed)
                wide = out.astype(np.float32) if out.dtype == np.float16 else out
                share = len(rows) / count
                loss += float(part.forward(True, wide, target[rows]).mean()) * share
                # Less than the training's, which divides by the samples first.
                scale = SCALE / 2**4 if out.dtype == np.float16 else 1.0
                for names, _, grads in net.backward((part.backward() * scale).astype(out.dtype)):
                    for name, grad in zip(names, grads, strict=True):
                        shape = values[name].shape
                        found[name] = found.get(name, 0.0) + dense(grad, shape) * (share / scale)
        return found, loss

    def groups(self, x: dict[str, Any], count: int) -> Iterator[tuple[Any, int]]:
        """Samples whose texts are as long."""
        if "masks" not in self.case:
            yield np.arange(count), STEPS
            return
        lengths = (x["text"] != 0).sum(axis=1)
        for length in np.unique(lengths):
            yield np.flatnonzero(lengths == length), int(length)


def dense(grad: Any, shape: Any) -> Any:
    if not isinstance(grad, tuple):
        return grad.astype(np.promote_types(grad.dtype, np.float32))
    indices, rows = grad
    made = np.zeros(shape, np.promote_types(rows.dtype, np.float32))
    np.add.at(made, indices, rows)
    return made


def named_rows(case: Case, x: dict[str, Any]) -> dict[str, Any]:
    """Which rows of which parameters a batch names; others rest."""
    found = {}
    if "sparse inputs" in case:
        found["a/weight"] = (x["x"] != 0).any(axis=0)
    for key, table in (("ids", "e/weight"), ("text", "words/weight")):
        if key in x:
            found[table] = np.bincount(x[key].reshape(-1), minlength=12) > 0
    return found


def by_hand(case: Case) -> Outcome:
    """What the training leaves, each step from its formula."""
    dtype = next((kind for kind in ("float16", "bfloat16") if kind in case), case.dtype)
    plain = Plain(case)
    x, y = data(replace(case, on=case.on - {"sparse inputs"}))
    kinds = y if isinstance(y, dict) else {"kinds": y}
    values: dict[str, Any] = {}
    for output in kinds:
        # Another net than those of the steps, in which the weights themselves are trained.
        net = Plain(case).net(output, STEPS, "float32" if dtype != "float64" else dtype)
        if "low-rank pairs" in case:
            net.adapt(RANK, adapted(case))
        values |= {param.name: param.value.copy() for param in net.params()}
    averages = {name: value.copy() for name, value in values.items()}
    begin: Any = Sequences if "schedule-free" in case else np.zeros_like
    state = {name: begin(value) for name, value in values.items()}
    gathered: list[tuple[dict[str, Any], dict[str, Any], int]] = []
    losses: list[float] = []
    updates = 0
    for samples in batches(case):
        given, targets = part_of(x, samples), part_of(y, samples)
        count = len(given["x"])
        grads, loss = plain.gradients(with_pairs(values), given, targets, dtype)
        if "low-rank pairs" in case:
            grads = of_pairs(values, grads)
        losses.append(loss)
        gathered.append((grads, named_rows(case, given), count))
        if len(gathered) < (GATHERED if "accumulation" in case else 1):
            continue
        total = sum(count for *_, count in gathered)
        trained = {
            name: sum(grads[name] * (count / total) for grads, _, count in gathered)
            for name in grads
            if "freezing" not in case or name.startswith(TRAINED_BY_FREEZING)
        }
        touched = {
            name: np.any([rows[name] for _, rows, _ in gathered], axis=0) for name in gathered[0][1]
        }
        gathered.clear()
        if "clipping by global norm" in case:
            norm = np.sqrt(sum(float((grad.astype(float) ** 2).sum()) for grad in trained.values()))
            trained = {name: grad * min(1.0, CLIP / norm) for name, grad in trained.items()}
        if "one block at a time" in case:
            blocks = list(dict.fromkeys(name.split("/")[0] for name in values if name in trained))
            block = blocks[updates // TURN % len(blocks)]
            trained = {n: grad for n, grad in trained.items() if n.split("/")[0] == block}
            for name in state.keys() - trained.keys():
                state[name][...] = 0.0
        updates += 1
        for name, grad in trained.items():
            rows = touched.get(name, slice(None))
            update(case, values[name], state[name], grad, rows)
        for name, value in values.items():
            if name in trained:
                averages[name] = DECAY * averages[name] + (1 - DECAY) * value
    ended = averages if "EMA" in case else averages_of(state) or values
    return Outcome(ended, epochs_of(losses))


def pairs(values: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """The names A and B of the pair beside each weight that has one."""
    ends = (name.removesuffix(".lora_a") for name in values if name.endswith(".lora_a"))
    return {name: (f"{name}.lora_a", f"{name}.lora_b") for name in ends}


def with_pairs(values: dict[str, Any]) -> dict[str, Any]:
    """The parameters of the net without pairs: W + (alpha / rank) A B."""
    made = dict(values)
    for weight, (a, b) in pairs(values).items():
        made[weight] = values[weight] + ALPHA / RANK * (values[a] @ values[b])
    return made


def of_pairs(values: dict[str, Any], grads: dict[str, Any]) -> dict[str, Any]:
    """The gradients of pairs by those of weights: dA = s dW Bᵀ, dB = s Aᵀ dW; others stay."""
    found, scale = {}, ALPHA / RANK
    for weight, (a, b) in pairs(values).items():
        found[a] = scale * (grads[weight] @ values[b].T)
        found[b] = scale * (values[a].T @ grads[weight])
    return found


def update(case: Case, value: Any, state: Any, grad: Any, rows: Any) -> None:
    """One step of the rule, of the rows that are named."""
    if isinstance(state, Sequences):
        state.step(value, grad, rows)
    elif "user's optimizer" in case:
        state[rows] += 0.25 * (grad[rows] ** 2 - state[rows])
        value[rows] -= LR * grad[rows] / (1 + state[rows])
    else:
        state[rows] = MOMENTUM * state[rows] + LR * grad[rows]
        value[rows] -= state[rows]


class Sequences:
    """The x and z of Schedule-Free AdamW, whose y is the parameter."""

    def __init__(self, value: Any) -> None:
        self.x, self.z, self.v, self.t = value.copy(), value.copy(), np.zeros_like(value), 0

    def step(self, y: Any, grad: Any, rows: Any) -> None:
        """One step of the rows that are named."""
        self.t += 1
        g = grad[rows]
        self.v[rows] += 0.001 * (g**2 - self.v[rows])
        root = np.sqrt(self.v[rows] / (1 - 0.999**self.t)) + 1.0
        self.z[rows] -= LR * (g / root + WEIGHT_DECAY * y[rows])
        self.x[rows] += (self.z[rows] - self.x[rows]) / self.t
        y[rows] = MOMENTUM * self.x[rows] + (1 - MOMENTUM) * self.z[rows]


def averages_of(state: dict[str, Any]) -> dict[str, Any]:
    """The x of each parameter, if the rule has one."""
    return {name: each.x for name, each in state.items() if isinstance(each, Sequences)}
