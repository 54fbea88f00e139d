"""Dense layers, activations, normalisation and what joins branches."""

from __future__ import annotations

from collections.abc import Callable

from singanet import layers
from singanet.keras.described import WHOLE, Described, activation, unknown
from singanet.layers.layer import Layer


def _dense(d: Described) -> list[Layer]:
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


def _flatten(d: Described) -> list[Layer]:
    """Keras flattens (H, W, C): rows that stand as there mean the same to whatever reads them."""
    if d.data_format == "channels_first" or len(d.shapes[0]) != 3:
        return [layers.Flatten(d.name)]
    return [layers.Permute(f"{d.name}_channels_last", (2, 3, 1)), layers.Flatten(d.name)]


def _dropout(d: Described) -> list[Layer]:
    d.expect(noise_shape=None)
    return [layers.Dropout(d.name, float(d.config["rate"]))]


def _relu(d: Described) -> list[Layer]:
    d.expect(negative_slope=0.0, threshold=0.0)
    if d.config.get("max_value") == 6:
        return [layers.Activation(d.name, "relu6")]
    d.expect(max_value=None)
    return [layers.Activation(d.name, "relu")]


def _leaky_relu(d: Described) -> list[Layer]:
    return [layers.Activation(d.name, "leaky_relu", alpha=float(d.config["negative_slope"]))]


def _elu(d: Described) -> list[Layer]:
    return [layers.Activation(d.name, "elu", alpha=float(d.config["alpha"]))]


def _activation(d: Described) -> list[Layer]:
    return activation(d, d.config["activation"], d.name) or [layers.Dummy(d.name)]


def _softmax(d: Described) -> list[Layer]:
    return [layers.Softmax(d.name, d.axis())]


def _batch_normalization(d: Described) -> list[Layer]:
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


def _layer_normalization(d: Described) -> list[Layer]:
    d.expect(center=True, scale=True, rms_scaling=False)
    if d.axis() != len(d.shapes[0]) or len(d.shapes[0]) == 3:
        d.expect(axis="the last of a sequence or row")
    norm = layers.LayerNorm(
        d.name,
        epsilon=float(d.config["epsilon"]),
        gamma_specs=d.specs("gamma", WHOLE),
        beta_specs=d.specs("beta", WHOLE),
    )
    return [norm]


def _rms_normalization(d: Described) -> list[Layer]:
    if d.axis() != len(d.shapes[0]) or len(d.shapes[0]) == 3:
        d.expect(axis="the last of a sequence or row")
    return [layers.RMSNorm(d.name, epsilon=float(d.config["epsilon"]))]


def _spatial_dropout(d: Described) -> list[Layer]:
    images = len(d.shapes[0]) == 3
    return [layers.SpatialDropout(d.name, float(d.config["rate"]), 1 if images else -1)]


def _alpha_dropout(d: Described) -> list[Layer]:
    d.expect(noise_shape=None)
    return [layers.AlphaDropout(d.name, float(d.config["rate"]))]


def _gaussian_noise(d: Described) -> list[Layer]:
    return [layers.GaussianNoise(d.name, float(d.config["stddev"]))]


def _embedding(d: Described) -> list[Layer]:
    d.expect(lora_rank=None, quantization_config=None)
    specs = d.specs("embeddings", {(0,): 0, (1,): 1})
    masked = 0 if d.config.get("mask_zero") else None
    sizes = d.config["input_dim"], d.config["output_dim"]
    return [layers.Embedding(d.name, *sizes, specs, mask_index=masked)]


def _masking(d: Described) -> list[Layer]:
    return [layers.Masking(d.name, float(d.config["mask_value"]))]


def _concatenate(d: Described) -> list[Layer]:
    return [layers.Concat(d.name, d.axis())]


PLAIN: dict[str, Callable[[Described], list[Layer]]] = {
    "Dense": _dense,
    "Dropout": _dropout,
    "Flatten": _flatten,
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": _leaky_relu,
    "ELU": _elu,
    "Softmax": _softmax,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "RMSNormalization": _rms_normalization,
    "SpatialDropout1D": _spatial_dropout,
    "SpatialDropout2D": _spatial_dropout,
    "AlphaDropout": _alpha_dropout,
    "GaussianNoise": _gaussian_noise,
    "Embedding": _embedding,
    "Masking": _masking,
    "Add": lambda d: [layers.Add(d.name)],
    "Multiply": lambda d: [layers.Multiply(d.name)],
    "Average": lambda d: [layers.Average(d.name)],
    "Maximum": lambda d: [layers.Maximum(d.name)],
    "Minimum": lambda d: [layers.Minimum(d.name)],
    "Subtract": lambda d: [layers.Subtract(d.name)],
    "RepeatVector": lambda d: [layers.RepeatVector(d.name, int(d.config["n"]))],
    "Concatenate": _concatenate,
}
