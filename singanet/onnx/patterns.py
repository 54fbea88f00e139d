"""Patterns of several operators that form one layer, matched from the last operator back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isclose, sqrt

import numpy as np

from singanet import layers
from singanet.saving.codecs.arithmetic import channels
from singanet.saving.codecs.dense import by_matrix, dense, letters
from singanet.saving.codecs.normalisation import normalised
from singanet.saving.codecs.onnx.use import Converter, Use
from singanet.saving.codecs.onnx.values import FileNode, Known, Tensor, norm_axis


def _biased(use: Use) -> Tensor | None:
    """Match x W + b."""
    for k in (0, 1):
        node = use.before(use.node.inputs[k], "MatMul", "Einsum")
        bias = use.value(1 - k)
        if node is None or not isinstance(bias, Known) or not bias.constant:
            continue
        inner = Use(use.sheet, node)
        x, weight = inner.value(0), inner.value(1)
        if not isinstance(x, Tensor) or not isinstance(weight, Known) or not weight.constant:
            continue
        matrix, row = weight.array, bias.array
        if node.op == "Einsum":
            (term, by), out = letters(inner)
            made = [each for each in by if each not in term]
            if "".join(made) != out[len(out) - len(made) :] or row.ndim > len(made):
                continue
            use.sheet.forget(node.outputs)
            use.drawn = inner.drawn
            return by_matrix(inner, inner.floats(x), term, matrix, by, out, row)
        if matrix.ndim == 2 and row.size == matrix.shape[1] == row.shape[-1] and row.ndim <= x.rank:
            use.sheet.forget(node.outputs)
            use.drawn = inner.drawn
            return dense(inner, inner.floats(x), matrix, row.reshape(-1))
    return None


def _affine(use: Use) -> Tensor | None:
    """Match a scale and an offset for each channel."""
    for k in (0, 1):
        node = use.before(use.node.inputs[k], "Mul")
        if node is None:
            continue
        inner = Use(use.sheet, node)
        for j in (0, 1):
            x = inner.value(1 - j)
            if not isinstance(x, Tensor):
                continue
            gamma, beta = channels(inner, j, x), channels(use, 1 - k, x)
            if gamma is not None and beta is not None:
                use.sheet.forget(node.outputs)
                x = inner.floats(x)
                return x.like(use.draw(layers.Scale(inner.name(j)), x, gamma=gamma, beta=beta))
    return None


def _gated(use: Use) -> Tensor | None:
    """Match x σ(x) and x relu6(x + 3) / 6."""
    for k in (0, 1):
        node = use.before(use.node.inputs[k], "Sigmoid", "HardSigmoid")
        if node is None or node.inputs[0] != use.node.inputs[1 - k]:
            continue
        hard = node.op == "HardSigmoid"
        slope, height = node.attributes.get("alpha", 0.2), node.attributes.get("beta", 0.5)
        if hard and not (isclose(slope, 1 / 6, rel_tol=1e-6) and height == 0.5):
            continue
        use.sheet.forget(node.outputs)
        x = use.tensor(1 - k)
        mode = "hard_swish" if hard else "silu"
        return x.like(use.draw(layers.Activation(use.name(), mode), x))
    return None


def _number(use: Use, name: str) -> float | None:
    value = use.sheet.values.get(name)
    if isinstance(value, Known) and value.constant and value.array.size == 1:
        return float(value.array.reshape(()))
    return None


def _split(use: Use, node: FileNode) -> tuple[str, float] | None:
    """Return the array and the constant that a node of two inputs reads."""
    if len(node.inputs) != 2:
        return None
    for k in (1, 0):
        number = _number(use, node.inputs[k])
        if number is not None and _number(use, node.inputs[1 - k]) is None:
            return node.inputs[1 - k], number
    return None


def _gelu(use: Use) -> Tensor | None:
    """Match x (erf(x / √2) + 1) / 2, with the factors in any order."""
    nodes, factors = [use.node], list(use.node.inputs)
    for name in use.node.inputs:
        inner = use.before(name, "Mul")
        if inner is not None:
            nodes.append(inner)
            factors.remove(name)
            factors += inner.inputs
    halves = [name for name in factors if _number(use, name) == 0.5]
    if len(factors) != 3 or len(halves) != 1:
        return None
    rest = [name for name in factors if name != halves[0]]
    for k in (0, 1):
        plus = use.before(rest[k], "Add")
        found = None if plus is None else _split(use, plus)
        erf = use.before(found[0], "Erf") if found and found[1] == 1.0 else None
        inside = None if erf is None else use.before(erf.inputs[0], "Div", "Mul")
        if plus is None or erf is None or inside is None:
            continue
        scaled = _split(use, inside)
        if inside.op == "Div" and scaled and scaled[0] != inside.inputs[0]:
            continue
        wanted = sqrt(2.0) if inside.op == "Div" else sqrt(0.5)
        if scaled and scaled[0] == rest[1 - k] and isclose(scaled[1], wanted, rel_tol=1e-4):
            x = use.sheet.values[scaled[0]]
            if not isinstance(x, Tensor):
                return None
            for node in (*nodes[1:], plus, erf, inside):
                use.sheet.forget(node.outputs)
            x = use.floats(x)
            return x.like(use.draw(layers.Activation(use.name(), "gelu"), x))
    return None


def _layer_norm(use: Use) -> Tensor | None:
    """Match (x − mean) / √(variance + ε) γ + β, the form before opset 17."""
    for k in (0, 1):
        scale, beta = use.before(use.node.inputs[k], "Mul"), use.value(1 - k)
        if scale is None or not isinstance(beta, Known) or not beta.constant:
            continue
        for j in (0, 1):
            gamma = use.sheet.values.get(scale.inputs[j])
            over = use.before(scale.inputs[1 - j], "Div")
            if over is None or not isinstance(gamma, Known) or not gamma.constant:
                continue
            made = _standardised(use, over)
            if made is None:
                continue
            x, axis, epsilon, nodes = made
            tail = x.dims(7)[axis:]
            shapes = {gamma.array.shape, beta.array.shape}
            if shapes != {tuple(tail)}:
                return None
            for node in (scale, over, *nodes):
                use.sheet.forget(node.outputs)
            inner = Use(use.sheet, scale)
            inner.node = use.node
            inner.values = [None, gamma]
            found = normalised(inner, x, axis, gamma.array, beta.array, epsilon)
            use.drawn = inner.drawn
            return found
    return None


def _standardised(use: Use, over: FileNode) -> tuple[Tensor, int, float, list[FileNode]] | None:
    """Return x, the first normalised axis, ε and the nodes that normalise."""
    makers = use.sheet.makers
    centred = makers.get(over.inputs[0])
    root = use.before(over.inputs[1], "Sqrt")
    plus = None if root is None else use.before(root.inputs[0], "Add")
    found = None if plus is None else _split(use, plus)
    mean_square = use.before(found[0], "ReduceMean") if found else None
    if centred is None or centred.op != "Sub" or root is None or plus is None or not found:
        return None
    square = None if mean_square is None else use.before(mean_square.inputs[0], "Pow", "Mul")
    mean = use.before(centred.inputs[1], "ReduceMean")
    if mean is None or mean_square is None or square is None:
        return None
    base, factor = square.inputs
    twice = _number(use, factor) == 2.0 if square.op == "Pow" else factor == base
    same = base == over.inputs[0] and twice
    x = use.sheet.values.get(mean.inputs[0])
    if not same or mean.inputs[0] != centred.inputs[0] or not isinstance(x, Tensor):
        return None
    axes = [
        sorted(norm_axis(k, x.rank) for k in np.atleast_1d(given).tolist())
        for given in (Use(use.sheet, node).setting("axes", 1) for node in (mean, mean_square))
        if given is not None
    ]
    if len(axes) != 2 or axes[0] != axes[1] or axes[0] != list(range(axes[0][0], x.rank)):
        return None
    nodes = [centred, root, plus, mean_square, square, mean]
    return use.floats(x), axes[0][0], found[1], nodes


PATTERNS: Mapping[str, Sequence[Converter]] = {
    "Add": (_biased, _layer_norm, _affine),
    "Mul": (_gated, _gelu),
}
