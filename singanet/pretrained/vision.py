"""Published models of images: ViT and DeiT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from singanet.base.arguments import is_int
from singanet.layers import (
    Average,
    ClassToken,
    Conv2D,
    Input,
    MultiHeadAttention,
    Permute,
    PositionEmbedding,
    Reshape,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing


def draw_vit(d: ModelDrawing) -> Symbol:
    """Build a ViT or DeiT over ``pixel_values``: ``last_hidden_state``, or ``logits``."""
    c = d.config
    kind = c.values["model_type"]
    width, heads = c.count("hidden_size", 768), c.count("num_attention_heads", 12)
    hidden = c.count("intermediate_size", 3072)
    mode, epsilon = c.choice("hidden_act", ACTIVATIONS, "gelu"), c.number("layer_norm_eps", 1e-12)
    dropout = c.share("hidden_dropout_prob")
    of_weights = c.share("attention_probs_dropout_prob")
    c.only(qkv_bias=True)
    c.skip("pooler_act", "pooler_output_size")
    base = d.prefix(f"{kind}.")
    x = _patches(d, width, f"{base}embeddings")
    x = d.dropout(x, "embeddings_drop", dropout)
    for k in range(c.blocks("num_hidden_layers", 12)):
        name, own = f"layers/{k}", f"{base}encoder.layer.{k}"
        y = d.layer_norm(x, f"{name}/attention_norm", epsilon, f"{own}.layernorm_before")
        attention = MultiHeadAttention(f"{name}/attention", heads, dropout=of_weights)
        parts = {each: f"{own}.attention.attention.{each}" for each in ("query", "key", "value")}
        y = d.attention(attention, [y], {**parts, "output": f"{own}.attention.output.dense"})
        y = d.dropout(y, f"{name}/attention_drop", dropout)
        x = d.add(f"{name}/attention_add", y, x)
        y = d.layer_norm(x, f"{name}/unit_norm", epsilon, f"{own}.layernorm_after")
        y = d.dense(y, f"{name}/up", hidden, f"{own}.intermediate.dense")
        y = d.activation(y, f"{name}/act", mode)
        y = d.dense(y, f"{name}/down", width, f"{own}.output.dense")
        y = d.dropout(y, f"{name}/unit_drop", dropout)
        x = d.add(f"{name}/unit_add", y, x)
    x = d.layer_norm(x, "last_hidden_state" if d.is_bare else "norm", epsilon, f"{base}layernorm")
    d.keep(f"{base}embeddings.mask_token")
    return _head(d, x, base)


def _patches(d: ModelDrawing, width: int, own: str) -> Symbol:
    """Add the patch embedding, the class tokens and the positions."""
    c = d.config
    (high, wide), (rows, columns) = _sides(c, "image_size", 224), _sides(c, "patch_size", 16)
    image = Input("pixel_values", (c.count("num_channels", 3), high, wide))
    d.inputs = [image]
    projection = f"{own}.patch_embeddings.projection"
    weight = ArrayPlace(f"{projection}.weight", shape=(width, image.shape[0], rows, columns))
    bias = ArrayPlace(f"{projection}.bias")
    patches = Conv2D("patches", width, (rows, columns), (rows, columns), "valid")
    x = d.put(patches, image, weight=weight, bias=bias)
    x = Reshape("sequence", (width, x.shape[1] * x.shape[2]))(x)
    x = Permute("steps", (2, 1))(x)
    if c.values["model_type"] == "deit":
        x = _token(d, x, "distillation_token", own)
    x = _token(d, x, "cls_token", own)
    place = ArrayPlace(f"{own}.position_embeddings", shape=(1, *x.shape))
    return d.put(PositionEmbedding("position_embeddings"), x, weight=place)


def _token(d: ModelDrawing, x: Symbol, name: str, own: str) -> Symbol:
    return d.put(ClassToken(name), x, weight=ArrayPlace(f"{own}.{name}", shape=(1, 1, x.shape[1])))


def _head(d: ModelDrawing, x: Symbol, base: str) -> Symbol:
    if d.is_bare:
        d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
        return x
    classes = d.expect_classes()
    if not d.architecture.endswith("WithTeacher"):
        return d.dense(x[:, 0], "logits", classes, "classifier")
    both = [
        d.dense(x[:, k], f"{name}_logits", classes, f"{name}_classifier")
        for k, name in enumerate(("cls", "distillation"))
    ]
    y: Symbol = Average("logits")(*both)
    return y


def _sides(c: Config, key: str, default: int) -> tuple[int, int]:
    """Return height and width; one number sets both."""
    value: Any = c.take(key, default)
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(is_int(side) and side < 1 << 20 for side in sides):
        raise c.refused(key, "an integer number of pixels, or [height, width]", value)
    return sides[0], sides[1]


_PARTS = {"q": "query", "k": "key", "v": "value"}


def _part(found: re.Match[str]) -> str:
    return f".attention.attention.{_PARTS[found[1]]}."


_NEWER = (
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    (r"\.attention\.([qkv])_proj\.", _part),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


FAMILIES: Mapping[str, Family] = {
    "vit": Family(
        draw_vit, ("ViTModel", "ViTForImageClassification"), bare=("ViTModel",), others=_NEWER
    ),
    "deit": Family(
        draw_vit,
        ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        bare=("DeiTModel",),
        others=_NEWER,
    ),
}
