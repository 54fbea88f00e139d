"""Published models of images: ViT, DeiT, DINOv2, ResNet and ConvNeXt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from singanet.base.arguments import is_int
from singanet.layers import (
    Average,
    BatchNormalization,
    ClassToken,
    Concat,
    Conv2D,
    DepthwiseConv2D,
    GatedUnit,
    GlobalAvgPooling2D,
    Input,
    MaxPooling2D,
    MultiHeadAttention,
    Permute,
    PositionEmbedding,
    Reduce,
    Reshape,
    Resize,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing


@dataclass(kw_only=True)
class BlockSettings:
    """The settings of the pre-norm blocks of a vision transformer, and of CLIP's texts.

    ``modules`` are the names of a block's parts in the files; with ``attention_scale`` and
    ``unit_scale`` a vector multiplies the results. ``drop_path`` is the probability that a sample
    skips a residual branch. ``biases`` are as in `MultiHeadAttention`.
    """

    width: int
    heads: int
    hidden: int
    activation: str
    epsilon: float
    modules: Mapping[str, str]
    dropout: float = 0.0
    of_weights: float = 0.0
    drop_path: float = 0.0
    causal: bool = False
    gated: bool = False
    biases: bool | Sequence[str] = True


def draw_block(
    d: ModelDrawing,
    m: BlockSettings,
    x: Symbol,
    name: str,
    own: str,
    mask: Symbol | None = None,
    called: str = "",
    added: Symbol | None = None,
) -> Symbol:
    """Add a block ``name``, whose arrays start with ``own``; ``called`` is its output's name.

    Attention has a boolean ``mask``, or ``added`` in its scores.
    """
    theirs = {part: f"{own}.{module}" for part, module in m.modules.items()}
    y = d.layer_norm(x, f"{name}/attention_norm", m.epsilon, theirs["attention_norm"])
    attention = MultiHeadAttention(
        f"{name}/attention",
        m.heads,
        dropout=m.of_weights,
        use_bias=m.biases,
        causal=m.causal,
        mask=None if mask is added is None else "added" if mask is None else "boolean",
    )
    parts = {part: theirs[part] for part in ("query", "key", "value", "output")}
    y = d.attention(attention, [each for each in (y, mask, added) if each is not None], parts)
    y = d.dropout(y, f"{name}/attention_drop", m.dropout)
    scale = theirs.get("attention_scale")
    x = _branch(d, m, x, y, f"{name}/attention", f"{name}/attention_add", scale)
    y = d.layer_norm(x, f"{name}/unit_norm", m.epsilon, theirs["unit_norm"])
    if m.gated:
        places = {
            f"{ours}_{kind}": ArrayPlace(f"{theirs['up']}.{kind}", kind == "weight", order)
            for order, ours in enumerate(("gate", "up"))
            for kind in ("weight", "bias")
        }
        y = d.put(GatedUnit(f"{name}/unit", m.hidden, use_bias=True), y, **places)
    else:
        y = d.dense(y, f"{name}/up", m.hidden, theirs["up"])
        y = d.activation(y, f"{name}/act", m.activation)
    y = d.dense(y, f"{name}/down", m.width, theirs["down"])
    y = d.dropout(y, f"{name}/unit_drop", m.dropout)
    scale = theirs.get("unit_scale")
    return _branch(d, m, x, y, f"{name}/unit", called or f"{name}/unit_add", scale)


def _branch(
    d: ModelDrawing,
    m: BlockSettings,
    x: Symbol,
    y: Symbol,
    name: str,
    called: str,
    scale: str | None,
) -> Symbol:
    """Return ``x`` plus its branch ``y``, scaled by the array ``scale`` if there is one."""
    if scale is not None:
        y = d.scaled(y, f"{name}_scale", scale)
    return d.add(called, d.skipped(y, f"{name}_path", m.drop_path), x)


OF_VIT = {
    "attention_norm": "layernorm_before",
    "query": "attention.attention.query",
    "key": "attention.attention.key",
    "value": "attention.attention.value",
    "output": "attention.output.dense",
    "unit_norm": "layernorm_after",
    "up": "intermediate.dense",
    "down": "output.dense",
}
_OF_DINO = OF_VIT | {
    "attention_norm": "norm1",
    "attention_scale": "layer_scale1.lambda1",
    "unit_norm": "norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
    "unit_scale": "layer_scale2.lambda1",
}


def _settings(c: Config) -> BlockSettings:
    width = c.count("hidden_size", 768)
    made = BlockSettings(
        width=width,
        heads=c.count("num_attention_heads", 12),
        hidden=width,
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=c.number("layer_norm_eps", 1e-12 if c.values["model_type"] != "dinov2" else 1e-6),
        modules=OF_VIT,
        dropout=c.share("hidden_dropout_prob"),
        of_weights=c.share("attention_probs_dropout_prob"),
    )
    if c.values["model_type"] != "dinov2":
        c.only(qkv_bias=True)
        c.skip("pooler_act", "pooler_output_size")
        made.hidden = c.count("intermediate_size", 3072)
        return made
    made.hidden = width * c.count("mlp_ratio", 4)
    made.biases = True if c.flag("qkv_bias", True) else ("output",)
    made.drop_path, made.modules = c.share("drop_path_rate"), _OF_DINO
    if c.flag("use_swiglu_ffn", False):
        made.hidden, made.gated = (made.hidden * 2 // 3 + 7) // 8 * 8, True
        made.modules = _OF_DINO | {"up": "mlp.weights_in", "down": "mlp.weights_out"}
    made.dropout = 0.0
    # Of backbones, and of the start of training.
    c.skip("out_features", "out_indices", "stage_names", "apply_layernorm", "layerscale_value")
    c.skip("reshape_hidden_states", "use_mask_token")
    return made


def draw_vit(d: ModelDrawing) -> Symbol:
    """Build a ViT over ``pixel_values``: ``last_hidden_state``, or ``logits``."""
    c = d.config
    kind = c.values["model_type"]
    m = _settings(c)
    base = d.prefix(f"{kind}.")
    x = _patches(d, m.width, f"{base}embeddings")
    x = d.dropout(x, "embeddings_drop", c.share("hidden_dropout_prob"))
    for k in range(c.blocks("num_hidden_layers", 12)):
        x = draw_block(d, m, x, f"layers/{k}", f"{base}encoder.layer.{k}")
    norm = f"{base}layernorm"
    x = d.layer_norm(x, "last_hidden_state" if d.is_bare else "norm", m.epsilon, norm)
    d.keep(f"{base}embeddings.mask_token")
    return _head(d, x, base)


def _patches(d: ModelDrawing, width: int, own: str) -> Symbol:
    """Add the patch embedding, the class tokens and the positions."""
    c, newer = d.config, d.config.values["model_type"] == "dinov2"
    sides = sides_of(c, "image_size", 224)
    rows, columns = sides_of(c, "patch_size", 14 if newer else 16)
    pixels = d.pixels or sides if newer else sides
    place = ArrayPlace(f"{own}.patch_embeddings.projection.weight")
    bias = ArrayPlace(f"{own}.patch_embeddings.projection.bias")
    x = draw_patches(d, c, pixels, (rows, columns), width, place, bias)
    if c.values["model_type"] == "deit":
        x = _token(d, x, "distillation_token", own)
    x = _token(d, x, "cls_token", own)
    name = f"{own}.position_embeddings"
    if not newer:
        place = ArrayPlace(name, shape=(1, *x.shape))
        return d.put(PositionEmbedding("position_embeddings"), x, weight=place)
    if sides[0] != sides[1]:
        raise c.refused("image_size", "a square, as positions are interpolated", list(sides))
    return _placed(d, x, name, sides[0] // rows, (pixels[0] // rows, pixels[1] // columns))


def draw_patches(
    d: ModelDrawing,
    c: Config,
    pixels: tuple[int, int],
    patch: tuple[int, int],
    width: int,
    weight: ArrayPlace,
    bias: ArrayPlace | None,
) -> Symbol:
    """Add an input ``pixel_values`` and the embedding (T, width) of its patches."""
    x: Symbol = Input("pixel_values", (c.count("num_channels", 3), *pixels))
    d.inputs = [*d.inputs, x]
    conv = Conv2D("patches", width, patch, patch, "valid", use_bias=bias is not None)
    weight = replace(weight, shape=(width, x.shape[0], *patch))
    x = d.put(conv, x, weight=weight, bias=bias)
    x = Reshape("sequence", (width, x.shape[1] * x.shape[2]))(x)
    y: Symbol = Permute("steps", (2, 1))(x)
    return y


def _placed(d: ModelDrawing, x: Symbol, name: str, side: int, grid: tuple[int, int]) -> Symbol:
    """Add the positions of a class token and a square of patches, resized to ``grid``."""
    count, width = 1 + side * side, x.shape[1]
    place = ArrayPlace(name, shape=(1, count, width))
    if grid == (side, side):
        return d.put(PositionEmbedding("position_embeddings"), x, weight=place)
    table = d.put(Weight("position_embeddings", (count, width)), x, weight=place)
    y: Symbol = Permute("positions/image", (2, 1))(table[:, 1:])
    y = Reshape("positions/grid", (width, side, side))(y)
    y = Resize("positions/resized", grid, interpolation="cubic")(y)
    y = Permute("positions/steps", (2, 1))(Reshape("positions/row", (width, -1))(y))
    return d.add("positions_add", x, Concat("positions", axis=1)(table[:, 0:1], y))


def _token(d: ModelDrawing, x: Symbol, name: str, own: str) -> Symbol:
    return d.put(ClassToken(name), x, weight=ArrayPlace(f"{own}.{name}", shape=(1, 1, x.shape[1])))


def _head(d: ModelDrawing, x: Symbol, base: str) -> Symbol:
    if d.is_bare:
        d.keep(f"{base}pooler.dense.weight", f"{base}pooler.dense.bias")
        return x
    classes = d.expect_classes()
    if d.config.values["model_type"] == "dinov2":
        y: Symbol = Concat("both", axis=1)(x[:, 0], Reduce("patch_mean", "mean", axis=1)(x[:, 1:]))
        return d.dense(y, "logits", classes, "classifier")
    if not d.architecture.endswith("WithTeacher"):
        return d.dense(x[:, 0], "logits", classes, "classifier")
    both = [
        d.dense(x[:, k], f"{name}_logits", classes, f"{name}_classifier")
        for k, name in enumerate(("cls", "distillation"))
    ]
    y = Average("logits")(*both)
    return y


def sides_of(c: Config, key: str, default: int) -> tuple[int, int]:
    """Return height and width; one number sets both."""
    value: Any = c.take(key, default)
    sides = value if isinstance(value, list) else [value, value]
    if len(sides) != 2 or not all(is_int(side) and side < 1 << 20 for side in sides):
        raise c.refused(key, "an integer number of pixels, or [height, width]", value)
    return sides[0], sides[1]


_PARTS = {"q": "query", "k": "key", "v": "value"}


def _part(found: re.Match[str]) -> str:
    return f".attention.attention.{_PARTS[found[1]]}."


_JOINED = (
    (r"\.attention\.([qkv])_proj\.", _part),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
)
NEWER = (
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    *_JOINED,
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)


# -- convolutional nets -----------------------------------------------------------------------


def draw_resnet(d: ModelDrawing) -> Symbol:
    """Build a ResNet over ``pixel_values``: ``last_hidden_state`` (C, H, W), or ``logits``."""
    c = d.config
    width = c.count("embedding_size", 64)
    sizes, depths = _stages(c, [256, 512, 1024, 2048], [3, 4, 6, 3])
    mode = c.choice("hidden_act", ACTIVATIONS, "relu")
    deep = c.choice("layer_type", {"bottleneck": True, "basic": False}, "bottleneck")
    early = c.flag("downsample_in_bottleneck", False)
    strides = [2 if c.flag("downsample_in_first_stage", False) else 1] + [2] * len(sizes)
    c.skip("out_features", "out_indices", "stage_names")
    base = d.prefix("resnet.")
    x: Symbol = Input("pixel_values", (c.count("num_channels", 3), *(d.pixels or (224, 224))))
    d.inputs = [x]
    x = _normed(d, x, "stem", f"{base}embedder.embedder", width, 7, 2)
    x = MaxPooling2D("stem_pool", 3, 2, padding=1)(d.activation(x, "stem_act", mode))
    last = [k for k, depth in enumerate(depths) if depth][-1]
    for k, (size, depth) in enumerate(zip(sizes, depths, strict=True)):
        for n in range(depth):
            name, own = f"stages/{k}/{n}", f"{base}encoder.stages.{k}.layers.{n}"
            stride = strides[k] if n == 0 else 1
            y, shortcut = x, x
            if x.shape[0] != size or stride > 1:
                shortcut = _normed(d, x, f"{name}/shortcut", f"{own}.shortcut", size, 1, stride)
            if deep:
                first, second = (stride, 1) if early else (1, stride)
                layers = [(size // 4, 1, first), (size // 4, 3, second), (size, 1, 1)]
            else:
                layers = [(size, 3, stride), (size, 3, 1)]
            for at, layer in enumerate(layers):
                y = d.activation(y, f"{name}/act{at}", "relu") if at else y
                y = _normed(d, y, f"{name}/conv{at}", f"{own}.layer.{at}", *layer)
            final = d.is_bare and (k, n) == (last, depth - 1)
            y = d.add(f"{name}/add", y, shortcut)
            x = d.activation(y, "last_hidden_state" if final else f"{name}/act", mode)
    if d.is_bare:
        return x
    return d.dense(GlobalAvgPooling2D("pool")(x), "logits", d.expect_classes(), "classifier.1")


def _stages(c: Config, sizes: list[int], depths: list[int]) -> tuple[list[int], list[int]]:
    """Return channels and numbers of blocks of the stages."""
    found = c.counts("hidden_sizes", sizes), c.counts("depths", depths)
    if len(found[0]) != len(found[1]):
        raise c.refused("depths", f"{len(found[0])} numbers, as many as hidden_sizes", found[1])
    if sum(found[1]) > c.arrays:
        raise c.refused("depths", f"at most {c.arrays} blocks in all", found[1])
    return found


def _normed(
    d: ModelDrawing, x: Symbol, name: str, own: str, filters: int, kernel: int, stride: int
) -> Symbol:
    """Add a convolution and a batch normalisation."""
    conv = Conv2D(name, filters, kernel, stride, kernel // 2, use_bias=False)
    shape = (filters, x.shape[0], kernel, kernel)
    y = d.put(conv, x, weight=ArrayPlace(f"{own}.convolution.weight", shape=shape))
    norm = f"{own}.normalization"
    d.keep(f"{norm}.num_batches_tracked")
    names = {"gamma": "weight", "beta": "bias", "mean": "running_mean", "var": "running_var"}
    places = {part: ArrayPlace(f"{norm}.{theirs}") for part, theirs in names.items()}
    return d.put(BatchNormalization(f"{name}_norm", momentum=0.1, epsilon=1e-5), y, **places)


def draw_convnext(d: ModelDrawing) -> Symbol:
    """Build a ConvNeXt over ``pixel_values``: ``last_hidden_state`` (C, H, W), or ``logits``."""
    c = d.config
    sizes, depths = _stages(c, [96, 192, 384, 768], [3, 3, 9, 3])
    c.only(num_stages=len(sizes))
    mode, epsilon = c.choice("hidden_act", ACTIVATIONS, "gelu"), c.number("layer_norm_eps", 1e-12)
    scaled, count = c.number("layer_scale_init_value", 1e-6) > 0, sum(depths)
    most = c.share("drop_path_rate")
    paths = [most * k / max(count - 1, 1) for k in range(count)]
    c.skip("out_features", "out_indices", "stage_names")
    base, pixels = d.prefix("convnext."), d.pixels or sides_of(c, "image_size", 224)
    c.skip("image_size")
    x: Symbol = Input("pixel_values", (c.count("num_channels", 3), *pixels))
    d.inputs = [x]
    own = f"{base}embeddings"
    x = _shrunk(d, x, "stem", f"{own}.patch_embeddings", sizes[0], c.count("patch_size", 4))
    x = _channels_first(
        d.layer_norm(_channels_last(x, "stem"), "stem_norm", 1e-6, f"{own}.layernorm"), "stem"
    )
    for k, (size, depth) in enumerate(zip(sizes, depths, strict=True)):
        if k:
            name, own = f"stages/{k}", f"{base}encoder.stages.{k}.downsampling_layer"
            x = d.layer_norm(_channels_last(x, name), f"{name}/norm", 1e-6, f"{own}.0")
            x = _shrunk(d, _channels_first(x, name), f"{name}/conv", f"{own}.1", size, 2)
        for n in range(depth):
            name, own = f"stages/{k}/{n}", f"{base}encoder.stages.{k}.layers.{n}"
            weight = ArrayPlace(f"{own}.dwconv.weight", shape=(size, 1, 7, 7))
            conv = DepthwiseConv2D(f"{name}/depthwise", 7, 1, 3)
            y = d.put(conv, x, weight=weight, bias=ArrayPlace(f"{own}.dwconv.bias"))
            y = d.layer_norm(_channels_last(y, name), f"{name}/norm", 1e-6, f"{own}.layernorm")
            y = d.activation(
                d.dense(y, f"{name}/up", 4 * size, f"{own}.pwconv1"), f"{name}/act", mode
            )
            y = d.dense(y, f"{name}/down", size, f"{own}.pwconv2")
            if scaled:
                y = d.scaled(y, f"{name}/scale", f"{own}.layer_scale_parameter")
            y = d.skipped(_channels_first(y, name), f"{name}/path", paths.pop(0))
            final = d.is_bare and not paths
            x = d.add("last_hidden_state" if final else f"{name}/add", x, y)
    if d.is_bare:
        d.keep(f"{base}layernorm.weight", f"{base}layernorm.bias")
        return x
    x = d.layer_norm(GlobalAvgPooling2D("pool")(x), "norm", epsilon, f"{base}layernorm")
    return d.dense(x, "logits", d.expect_classes(), "classifier")


def _shrunk(d: ModelDrawing, x: Symbol, name: str, own: str, filters: int, side: int) -> Symbol:
    """Add a convolution of squares that do not overlap."""
    place = ArrayPlace(f"{own}.weight", shape=(filters, x.shape[0], side, side))
    conv = Conv2D(name, filters, side, side, "valid")
    return d.put(conv, x, weight=place, bias=ArrayPlace(f"{own}.bias"))


def _channels_last(x: Symbol, name: str) -> Symbol:
    """Return images (H, W, C) of (C, H, W)."""
    y: Symbol = Permute(f"{name}/channels_last", (2, 3, 1))(x)
    return y


def _channels_first(x: Symbol, name: str) -> Symbol:
    """Return images (C, H, W) of (H, W, C)."""
    y: Symbol = Permute(f"{name}/channels_first", (3, 1, 2))(x)
    return y


FAMILIES: Mapping[str, Family] = {
    "vit": Family(
        draw_vit, ("ViTModel", "ViTForImageClassification"), bare=("ViTModel",), others=NEWER
    ),
    "deit": Family(
        draw_vit,
        ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
        bare=("DeiTModel",),
        others=NEWER,
    ),
    "dinov2": Family(
        draw_vit,
        ("Dinov2Model", "Dinov2ForImageClassification"),
        bare=("Dinov2Model",),
        others=(*_JOINED, (r"\.mlp\.down_proj\.", ".mlp.weights_out.")),
    ),
    "resnet": Family(
        draw_resnet, ("ResNetModel", "ResNetForImageClassification"), bare=("ResNetModel",)
    ),
    "convnext": Family(
        draw_convnext, ("ConvNextModel", "ConvNextForImageClassification"), bare=("ConvNextModel",)
    ),
}
