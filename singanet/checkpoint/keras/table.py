"""The closed table of layers that Keras has as well."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from singanet.checkpoint.keras.layer import LayerDescription, Variable
from singanet.checkpoint.keras.layouts import (
    CLASSES,
    attention,
    conv,
    dense,
    depthwise,
    embedding,
    normalization,
    per_feature,
    prelu,
    recurrent,
    separable,
)
from singanet.errors import ArgumentError, one_of

_SCALED = per_feature(("gamma", "gamma"), ("beta", "beta"))

TABLE: dict[str, tuple[str, Callable[[LayerDescription], list[Variable]]]] = {
    "Dense": ("Dense", dense),
    **{kind: (kind, conv) for kind in ("Conv1D", "Conv2D", "Conv3D")},
    **{f"{kind}Transpose": (f"{kind}Transpose", conv) for kind in ("Conv1D", "Conv2D", "Conv3D")},
    **{kind: (kind, depthwise) for kind in ("DepthwiseConv1D", "DepthwiseConv2D")},
    **{kind: (kind, separable) for kind in ("SeparableConv1D", "SeparableConv2D")},
    "BatchNormalization": (
        "BatchNormalization",
        per_feature(
            ("gamma", "gamma"),
            ("beta", "beta"),
            ("moving_mean", "mean"),
            ("moving_variance", "var"),
        ),
    ),
    "Normalization": ("Normalization", normalization),
    "LayerNorm": ("LayerNormalization", _SCALED),
    "RMSNorm": ("RMSNormalization", per_feature(("scale", "gamma"))),
    "GroupNorm": ("GroupNormalization", _SCALED),
    "Embedding": ("Embedding", embedding),
    "PReLU": ("PReLU", prelu),
    "LSTM": ("LSTM", recurrent),
    "GRU": ("GRU", recurrent),
    "RNN": ("SimpleRNN", recurrent),
    "MultiHeadAttention": ("MultiHeadAttention", attention),
}


def keras_class(layer: LayerDescription) -> str:
    """The name of the Keras class for ``layer``. Errors: `ArgumentError` where there is none."""
    if layer.kind not in TABLE:
        raise ArgumentError(
            f"layer {layer.name!r}",
            expected=f"layers that Keras has too: {one_of(TABLE, 20)}",
            received=layer.kind,
            advice="save in another format: safetensors, hdf5, npz",
        )
    if layer.settings.get("bidirectional"):
        return "Bidirectional"
    if layer.settings.get("num_kv_heads"):
        return "GroupedQueryAttention"
    return CLASSES.get(str(layer.settings.get("rnn_mode")), TABLE[layer.kind][0])


def variables(layer: LayerDescription) -> list[Variable]:
    """The arrays of the Keras layer, in its order. Errors: as for `keras_class`."""
    keras_class(layer)
    return TABLE[layer.kind][1](layer)


def groups(layers: Sequence[LayerDescription]) -> list[str]:
    """Keras' group of each layer: where it is known to be, else by its class."""
    found = iter(numbered([keras_class(layer) for layer in layers if not layer.place]))
    return [layer.place or next(found) for layer in layers]


def numbered(classes: Sequence[str]) -> list[str]:
    """The groups of layers of these classes: in snake case, numbered from the second on."""
    counts: dict[str, int] = {}
    found = []
    for name in map(snake_case, classes):
        count = counts[name] = counts.get(name, -1) + 1
        found.append(f"{name}_{count}" if count else name)
    return found


def snake_case(name: str) -> str:
    """As Keras does it: BatchNormalization → batch_normalization, PReLU → p_re_lu."""
    name = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", re.sub(r"\W+", "", name))
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
