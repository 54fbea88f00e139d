"""Published vision transformers with a bias of scores by distance: BEiT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from singanet.layers import ClassToken, Gather, Permute, Reduce, Reshape, Scale, Weight
from singanet.layers.symbol import Symbol
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing
from singanet.pretrained.swin import distances
from singanet.pretrained.vision import (
    NEWER,
    OF_VIT,
    BlockSettings,
    draw_block,
    draw_patches,
    sides_of,
)

_SCALES = {"attention_scale": "lambda_1", "unit_scale": "lambda_2"}
_OF_SEGMENTS = (
    "add_fpn", "auxiliary_channels", "auxiliary_concat_input", "auxiliary_loss_weight",
    "auxiliary_num_convs", "out_features", "out_indices", "pool_scales", "reshape_hidden_states",
    "semantic_loss_ignore_index", "use_auxiliary_head",
)  # fmt: skip
"""Keys of models that segment images, and of backbones."""


def draw(d: ModelDrawing) -> Symbol:
    """Build a BEiT over ``pixel_values``: ``last_hidden_state``, or ``logits``."""
    c = d.config
    c.only(use_absolute_position_embeddings=False, use_shared_relative_position_bias=False)
    c.skip("stage_names", "use_mask_token", "vocab_size", *_OF_SEGMENTS)
    scaled = c.number("layer_scale_init_value", 0.1) > 0
    m = BlockSettings(
        width=c.count("hidden_size", 768),
        heads=c.count("num_attention_heads", 12),
        hidden=c.count("intermediate_size", 3072),
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=c.number("layer_norm_eps", 1e-12),
        modules=OF_VIT | _SCALES if scaled else OF_VIT,
        dropout=c.share("hidden_dropout_prob"),
        of_weights=c.share("attention_probs_dropout_prob"),
        biases=("query", "value", "output"),
    )
    relative = c.flag("use_relative_position_bias", False)
    mean = c.flag("use_mean_pooling", True)
    pixels, patch = sides_of(c, "image_size", 224), sides_of(c, "patch_size", 16)
    side, other = (extent // size for extent, size in zip(pixels, patch, strict=True))
    if relative and side != other:
        expected = "a square, as transformers interpolates the distances of others"
        raise c.refused("image_size", expected, list(pixels))
    base = d.prefix("beit.")
    own = f"{base}embeddings"
    place = ArrayPlace(f"{own}.patch_embeddings.projection.weight")
    bias = ArrayPlace(f"{own}.patch_embeddings.projection.bias")
    x = draw_patches(d, c, pixels, patch, m.width, place, bias)
    place = ArrayPlace(f"{own}.cls_token", shape=(1, 1, m.width))
    x = d.dropout(d.put(ClassToken("cls_token"), x, weight=place), "embeddings_drop", m.dropout)
    d.keep(f"{own}.mask_token")
    depth, most = c.blocks("num_hidden_layers", 12), c.share("drop_path_rate", 0.1)
    for k in range(depth):
        name, theirs = f"layers/{k}", f"{base}encoder.layer.{k}"
        path = most * k / max(depth - 1, 1)
        added = _bias(d, m, x, side, name, f"{theirs}.attention.attention") if relative else None
        x = draw_block(d, replace(m, drop_path=path), x, name, theirs, added=added)
    if not mean:
        name = "last_hidden_state" if d.is_bare else "norm"
        x = d.layer_norm(x, name, m.epsilon, f"{base}layernorm")
    norm = f"{base}pooler.layernorm"
    if d.is_bare:
        d.keep(f"{norm}.weight", f"{norm}.bias")
        return Scale("last_hidden_state", 1.0)(x) if mean else x
    y: Symbol = x[:, 0]
    if mean:
        y = d.layer_norm(Reduce("pool", "mean", axis=1)(x[:, 1:]), "norm", m.epsilon, norm)
    return d.dense(y, "logits", d.expect_classes(), "classifier")


def _bias(d: ModelDrawing, m: BlockSettings, x: Symbol, side: int, name: str, own: str) -> Symbol:
    """Add the summand of the scores (heads, steps, steps), by the distance of two patches."""
    rows = (2 * side - 1) ** 2
    place = ArrayPlace(f"{own}.relative_position_bias.relative_position_bias_table")
    table = d.put(Weight(f"{name}/positions", (rows + 3, m.heads)), x, weight=place)
    steps = 1 + side * side
    # The last rows are from the class token to patches, to it, and from it to itself.
    pairs = np.full((steps, steps), rows, np.int64)
    pairs[:, 0] = rows + 1
    pairs[0, 0] = rows + 2
    pairs[1:, 1:] = np.reshape(distances(side), (steps - 1, steps - 1))
    y = Gather(f"{name}/distances", 1, pairs.reshape(-1).tolist())(table)
    y = Reshape(f"{name}/pairs", (steps, steps, m.heads))(y)
    added: Symbol = Permute(f"{name}/bias", (3, 1, 2))(y)
    return added


FAMILIES: Mapping[str, Family] = {
    "beit": Family(
        draw,
        ("BeitModel", "BeitForImageClassification"),
        bare=("BeitModel",),
        others=(
            *NEWER,
            (r"(layer\.\d+\.)(relative_position_bias\.)", r"\1attention.attention.\2"),
        ),
        idle=(r".*\.relative_position_index",),
    ),
}
