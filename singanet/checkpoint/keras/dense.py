"""Dense, Embedding and the layers of one number a feature."""

from __future__ import annotations

from collections.abc import Callable

from singanet.checkpoint.keras.layer import LayerDescription, Variable, one, same
from singanet.types import Array, Shape

Move = Callable[[Array], Array]


def dense(layer: LayerDescription) -> list[Variable]:
    """kernel (in, units), bias (units)."""
    turned = bool(layer.settings.get("W_transpose"))
    shape = layer.shape("weight")[::-1] if turned else layer.shape("weight")
    there, back = rows(layer.flattened)
    kernel = one(
        "vars/0",
        "kernel",
        shape,
        "weight",
        lambda w: there(w.T if turned else w),
        lambda w: back(w).T if turned else back(w),
    )
    return [kernel, *_bias(layer)]


def _bias(layer: LayerDescription) -> list[Variable]:
    return [same("vars/1", "bias", layer.shape("bias"), "bias")] if "bias" in layer.params else []


def embedding(layer: LayerDescription) -> list[Variable]:
    """embeddings (vocabulary, units)."""
    return [same("vars/0", "embeddings", layer.shape("weight"), "weight")]


def per_feature(*names: tuple[str, str]) -> Callable[[LayerDescription], list[Variable]]:
    """Arrays (C,) in this order; ``names`` are Keras' and ours."""

    def variables(layer: LayerDescription) -> list[Variable]:
        there, back = rows(layer.flattened)
        found = [(label, suffix) for label, suffix in names if suffix in layer.params]
        return [
            one(f"vars/{index}", label, layer.shape(suffix), suffix, there, back)
            for index, (label, suffix) in enumerate(found)
        ]

    return variables


def prelu(layer: LayerDescription) -> list[Variable]:
    """alpha, whose axes of 1 depend on how the Keras layer shares it; channels last here."""
    ours = layer.shape("a")
    shape: Shape = (1,) * (len(layer.settings.get("in_shape", (0,))) - 1) + ours
    return [
        one("vars/0", "alpha", shape, "a", lambda a: a.reshape(shape), lambda a: a.reshape(ours))
    ]


def rows(flattened: Shape | None) -> tuple[Move, Move]:
    """Axis 0 from the order (C, H, W) to (H, W, C), and back; as it is where none was flattened."""
    if flattened is None or len(flattened) < 2:
        return (lambda a: a), (lambda a: a)
    last = (*flattened[1:], flattened[0])

    def there(a: Array) -> Array:
        rest = tuple(range(len(flattened), len(flattened) + a.ndim - 1))
        order = (*range(1, len(flattened)), 0, *rest)
        return a.reshape(*flattened, *a.shape[1:]).transpose(order).reshape(a.shape)

    def back(a: Array) -> Array:
        rest = tuple(range(len(flattened), len(flattened) + a.ndim - 1))
        order = (len(flattened) - 1, *range(len(flattened) - 1), *rest)
        return a.reshape(*last, *a.shape[1:]).transpose(order).reshape(a.shape)

    return there, back
