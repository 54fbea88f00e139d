"""Dense layers, activations, normalisation and what joins branches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from singanet import layers
from singanet.keras.described import WHOLE, DescribedLayer, WeightGroup, activation, unknown
from singanet.layers.layer import Layer


def _dense(d: DescribedLayer) -> list[Layer]:
    d.expect(lora_rank=None, quantization_config=None)
    if len(d.shapes[0]) > 2:
        raise unknown(d.where, "rows or sequences", f"samples of {len(d.shapes[0])} axes")
    dense = layers.Dense(
        d.name,
        d.config["units"],
        bool(d.config["use_bias"]),
        d.specs("kernel", {(0,): 0}),
        d.specs("bias", WHOLE),
    )
    return [dense, *d.activation()]


def _time_distributed(d: DescribedLayer) -> list[Layer]:
    """Each layer that the wrapped one is made of, at every step."""
    inner, shape = d.config["layer"], d.shapes[0]
    if inner["class_name"] not in PLAIN or len(shape) > 3:
        raise unknown(d.where, "sequences, and one of the plain layers inside", str(inner)[:60])
    if d.is_image:
        raise unknown(d.where, "sequences of rows", f"samples {shape}")
    described = d.inner(inner["config"], shape[1:])
    made = PLAIN[inner["class_name"]](described)
    described.expect_all_taken()
    d.marks.update({layer.name: WeightGroup("layer") for layer in made})
    names = (d.name, *(f"{d.name}_{k}" for k in range(1, len(made))))
    return [layers.TimeDistributed(n, layer) for n, layer in zip(names, made, strict=True)]


def _reshape(d: DescribedLayer) -> list[Layer]:
    """By rows of (H, W, C), as Keras has them."""
    target = tuple(int(axis) for axis in d.config["target_shape"])
    if len(target) > 3:
        raise unknown(d.where, "samples of at most three axes", str(target)[:60])
    made: list[Layer] = [layers.Reshape(d.name, target)]
    if d.is_image:
        made.insert(0, layers.Permute(f"{d.name}_channels_last", (2, 3, 1)))
    if len(target) == 3 and d.data_format == "channels_last":
        made.append(layers.Permute(f"{d.name}_channels_first", (3, 1, 2)))
    return made


def _permute(d: DescribedLayer) -> list[Layer]:
    axes = tuple(int(axis) for axis in d.config["dims"])
    if d.is_image:
        # Ours of Keras' axes H, W, C are 2, 3, 1; what is last there is first here.
        ours = [{1: 2, 2: 3, 3: 1}[axis] for axis in axes]
        axes = (ours[2], ours[0], ours[1])
    return [layers.Permute(d.name, axes)]


def _flatten(d: DescribedLayer) -> list[Layer]:
    """Keras flattens with the channels last: rows as there mean the same to whatever reads them."""
    axes = len(d.shapes[0])
    if axes < 2 or (axes == 2 and d.data_format != "channels_first"):
        return [layers.Flatten(d.name)]
    last = layers.Permute(f"{d.name}_channels_last", (*range(2, axes + 1), 1))
    return [last, layers.Flatten(d.name)]


def _dropout(d: DescribedLayer) -> list[Layer]:
    shape = d.config.get("noise_shape")
    rate = float(d.config["rate"])
    if shape is None:
        return [layers.Dropout(d.name, rate)]
    if shape != [None] + [1] * len(d.shapes[0]):
        d.expect(noise_shape=None)
    return [layers.SpatialDropout(d.name, rate, 0)]


def _relu(d: DescribedLayer) -> list[Layer]:
    d.expect(threshold=0.0)
    slope, most = float(d.config.get("negative_slope") or 0.0), d.config.get("max_value")
    if most == 6 and not slope:
        return [layers.Activation(d.name, "relu6")]
    made: list[Layer] = [layers.Activation(d.name, "relu")]
    if slope:
        made = [layers.Activation(d.name, "leaky_relu", alpha=slope)]
    if most is not None:
        made.append(layers.Clip(f"{d.name}_max", None, float(most)))
    return made


def _prelu(d: DescribedLayer) -> list[Layer]:
    shape, shared = d.shapes[0], d.config.get("shared_axes")
    if sorted(shared or []) != list(range(1, len(shape))):
        raise unknown(d.where, "one slope a channel or feature", f"shared_axes={shared}")
    slopes = layers.PReLU(d.name, a_specs=d.specs("alpha", {}))
    if len(shape) != 2:
        return [slopes]
    return _along_channels(d, slopes)


def _along_channels(d: DescribedLayer, layer: Layer) -> list[Layer]:
    """A layer whose channels are the features of (T, F)."""
    there, back = (layers.Permute(f"{d.name}_{end}", (2, 1)) for end in ("first", "last"))
    return [there, layer, back]


def _sloped(mode: str, key: str) -> Callable[[DescribedLayer], list[Layer]]:
    return lambda d: [layers.Activation(d.name, mode, alpha=float(d.config[key]))]


def _joined(kind: str) -> Callable[[DescribedLayer], list[Layer]]:
    return lambda d: [getattr(layers, kind)(d.name)]


def _activation(d: DescribedLayer) -> list[Layer]:
    return activation(d, d.config["activation"], d.name) or [layers.Dummy(d.name)]


def _batch_normalization(d: DescribedLayer) -> list[Layer]:
    d.expect(renorm=False)
    axis = d.axis()
    if axis != 1 and len(d.shapes[0]) != 2:
        d.expect(axis="the channels")
    momentum, epsilon = float(d.config["momentum"]), float(d.config["epsilon"])
    beta, gamma = d.specs("beta", WHOLE), d.specs("gamma", WHOLE)
    joint = bool(d.config.get("synchronized", False))
    return [
        layers.BatchNormalization(
            d.name,
            1.0 - momentum,
            beta,
            gamma,
            epsilon=epsilon,
            synchronized=joint,
            axis=1 if axis == 1 else -1,
            center=bool(d.config["center"]),
            scale=bool(d.config["scale"]),
        )
    ]


def _normalization(d: DescribedLayer) -> list[Layer]:
    """Fixed statistics of each channel; a BatchNormalization that does not train has them."""
    d.expect(invert=False)
    axis = d.axis()
    if axis not in (1, len(d.shapes[0])) or (len(d.shapes[0]) == 3 and axis != 1):
        raise unknown(d.where, "statistics of channels or features", f"axis {axis}")
    name, given = d.name, {}
    channels = np.zeros(d.shapes[0][0 if axis == 1 else -1], np.float32)
    for array, ours in (("mean", "mean"), ("variance", "var")):
        if d.config.get(array) is not None:
            given[ours] = channels + np.asarray(d.config[array], np.float32).reshape(-1)
    # Keras divides by at least 1e-7.
    norm = layers.BatchNormalization(
        name, 0.0, epsilon=1e-14, center=False, scale=False, axis=1 if axis == 1 else -1
    )
    norm.trainable = False
    d.marks[name] = WeightGroup("", kind="Normalization", fixed=given or None)
    return [norm]


def _rescaling(d: DescribedLayer) -> list[Layer]:
    scale, offset = (np.asarray(d.config[key], np.float32) for key in ("scale", "offset"))
    if scale.ndim == offset.ndim == 0:
        return [layers.Scale(d.name, float(d.config["scale"]), offset=float(d.config["offset"]))]
    if max(scale.ndim, offset.ndim) > 1 or len(d.shapes[0]) != 3:
        raise unknown(d.where, "a number, or one a channel of images", f"{scale}"[:60])
    channels = np.zeros(d.shapes[0][0], np.float32)
    each = layers.Scale(d.name)
    each.trainable = False
    d.marks[d.name] = WeightGroup("", fixed={"gamma": channels + scale, "beta": channels + offset})
    return [each]


def _group_normalization(d: DescribedLayer) -> list[Layer]:
    if d.axis() != (1 if len(d.shapes[0]) == 3 else len(d.shapes[0])):
        d.expect(axis="the channels")
    groups = int(d.config["groups"])
    norm = layers.GroupNorm(
        d.name,
        d.shapes[0][0 if len(d.shapes[0]) == 3 else -1] if groups == -1 else groups,
        float(d.config["epsilon"]),
        gamma_specs=d.specs("gamma", WHOLE),
        beta_specs=d.specs("beta", WHOLE),
        center=bool(d.config["center"]),
        scale=bool(d.config["scale"]),
    )
    return [norm] if len(d.shapes[0]) != 2 else _along_channels(d, norm)


def _attention(d: DescribedLayer) -> list[Layer]:
    """Query, value and key in this order, as ours."""
    if d.config.get("attention_axes") != [1]:
        d.expect(attention_axes=None)
    d.expect(output_shape=None, use_gate=False)
    d.taken.add("use_causal_mask")
    attention = layers.MultiHeadAttention(
        d.name,
        d.config["num_heads"],
        d.config["key_dim"],
        d.config["value_dim"],
        float(d.config["dropout"]),
        bool(d.config["use_bias"]),
        bool(d.call.get("use_causal_mask", False)),
        d.specs("kernel", {}),
        d.specs("bias", {}),
        mask="boolean" if d.masked else None,
    )
    return [attention]


def _layer_normalization(d: DescribedLayer) -> list[Layer]:
    d.expect(rms_scaling=False)
    if d.axis() != len(d.shapes[0]) or len(d.shapes[0]) == 3:
        d.expect(axis="the last of a sequence or row")
    norm = layers.LayerNorm(
        d.name,
        epsilon=float(d.config["epsilon"]),
        gamma_specs=d.specs("gamma", WHOLE),
        beta_specs=d.specs("beta", WHOLE),
        center=bool(d.config["center"]),
        scale=bool(d.config["scale"]),
    )
    return [norm]


def _rms_normalization(d: DescribedLayer) -> list[Layer]:
    if d.axis() != len(d.shapes[0]) or len(d.shapes[0]) == 3:
        d.expect(axis="the last of a sequence or row")
    return [layers.RMSNorm(d.name, epsilon=float(d.config["epsilon"]))]


def _spatial_dropout(d: DescribedLayer) -> list[Layer]:
    images = len(d.shapes[0]) == 3
    return [layers.SpatialDropout(d.name, float(d.config["rate"]), 1 if images else -1)]


def _alpha_dropout(d: DescribedLayer) -> list[Layer]:
    d.expect(noise_shape=None)
    return [layers.AlphaDropout(d.name, float(d.config["rate"]))]


def _embedding(d: DescribedLayer) -> list[Layer]:
    d.expect(lora_rank=None, quantization_config=None)
    specs = d.specs("embeddings", {(0,): 0, (1,): 1})
    masked = 0 if d.config.get("mask_zero") else None
    sizes = d.config["input_dim"], d.config["output_dim"]
    return [layers.Embedding(d.name, *sizes, specs, mask_index=masked)]


PLAIN: dict[str, Callable[[DescribedLayer], list[Layer]]] = {
    "Dense": _dense,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": _sloped("leaky_relu", "negative_slope"),
    "ELU": _sloped("elu", "alpha"),
    "Softmax": lambda d: [layers.Softmax(d.name, d.axis())],
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "SpatialDropout1D": _spatial_dropout,
    "SpatialDropout2D": _spatial_dropout,
    "AlphaDropout": _alpha_dropout,
    "GaussianNoise": lambda d: [layers.GaussianNoise(d.name, float(d.config["stddev"]))],
    "Embedding": _embedding,
    "TimeDistributed": _time_distributed,
    "Reshape": _reshape,
    "Permute": _permute,
    "PReLU": _prelu,
    "Normalization": _normalization,
    "Rescaling": _rescaling,
    "GroupNormalization": _group_normalization,
    "MultiHeadAttention": _attention,
    "Masking": lambda d: [layers.Masking(d.name, float(d.config["mask_value"]))],
    **{
        kind: _joined(kind)
        for kind in (
            "Add",
            "Multiply",
            "Average",
            "Maximum",
            "Minimum",
            "Subtract",
        )
    },
    "RepeatVector": lambda d: [layers.RepeatVector(d.name, int(d.config["n"]))],
    "Concatenate": lambda d: [layers.Concat(d.name, d.axis())],
}
