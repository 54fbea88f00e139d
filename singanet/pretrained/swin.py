"""Published vision transformers with windows: Swin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.layers import (
    Concat,
    Gather,
    Index,
    MatMul,
    Permute,
    PositionEmbedding,
    Reduce,
    Reshape,
    Scale,
    Softmax,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing
from singanet.pretrained.vision import draw_patches, sides_of

_ALL = (None, None, None)


@dataclass(kw_only=True)
class SwinSettings:
    """The settings of a Swin that its stages share; ``window`` is the side of a window."""

    window: int
    ratio: float
    activation: str
    epsilon: float
    dropout: float
    of_weights: float
    bias: bool


def draw(d: ModelDrawing) -> Symbol:
    """Build a Swin over ``pixel_values``: ``last_hidden_state``, or ``logits``."""
    c = d.config
    width, depths = c.count("embed_dim", 96), c.counts("depths", [2, 2, 6, 2])
    heads = c.counts("num_heads", [3, 6, 12, 24])
    if len(heads) != len(depths) or sum(depths) > c.arrays:
        expected = f"{len(heads)} numbers of at most {c.arrays} blocks in all"
        raise c.refused("depths", expected, depths)
    m = SwinSettings(
        window=c.count("window_size", 7),
        ratio=c.number("mlp_ratio", 4.0),
        activation=c.choice("hidden_act", ACTIVATIONS, "gelu"),
        epsilon=c.number("layer_norm_eps", 1e-5),
        dropout=c.share("hidden_dropout_prob"),
        of_weights=c.share("attention_probs_dropout_prob"),
        bias=c.flag("qkv_bias", True),
    )
    c.only(path_norm=True)
    c.skip("hidden_size", "num_layers", "out_features", "out_indices", "stage_names")
    pixels, patch = sides_of(c, "image_size", 224), sides_of(c, "patch_size", 4)
    grid = pixels[0] // patch[0], pixels[1] // patch[1]
    parts = m.window * 2 ** (len(depths) - 1)
    if any(side % of for side, of in zip(pixels, patch, strict=True)) or any(
        side % parts for side in grid
    ):
        expected = f"sides of a multiple of {parts} patches, as nothing is padded"
        raise c.refused("image_size", expected, list(pixels))
    base = d.prefix("swin.")
    own = f"{base}embeddings"
    weight = ArrayPlace(f"{own}.patch_embeddings.projection.weight")
    bias = ArrayPlace(f"{own}.patch_embeddings.projection.bias")
    x = draw_patches(d, c, pixels, patch, width, weight, bias)
    x = d.layer_norm(x, "embeddings_norm", 1e-5, f"{own}.norm")
    if c.flag("use_absolute_embeddings", False):
        place = ArrayPlace(f"{own}.position_embeddings", shape=(1, *x.shape))
        x = d.put(PositionEmbedding("position_embeddings"), x, weight=place)
    d.keep(f"{own}.mask_token")
    x = d.dropout(x, "embeddings_drop", m.dropout)
    most, count = c.share("drop_path_rate", 0.1), sum(depths)
    paths = [most * k / max(count - 1, 1) for k in range(count)]
    for k, depth in enumerate(depths):
        stage = f"{base}encoder.layers.{k}"
        for n in range(depth):
            shift = 0 if n % 2 == 0 or min(grid) <= m.window else m.window // 2
            name, theirs = f"stages/{k}/{n}", f"{stage}.blocks.{n}"
            x = _block(d, m, x, grid, (heads[k], shift), paths.pop(0), (name, theirs))
        if k < len(depths) - 1:
            x = _merged(d, x, grid, f"stages/{k}/merge", f"{stage}.downsample")
            grid = grid[0] // 2, grid[1] // 2
    name = "last_hidden_state" if d.is_bare else "norm"
    x = d.layer_norm(x, name, m.epsilon, f"{base}layernorm")
    if d.is_bare:
        return x
    y: Symbol = Reduce("pool", "mean", axis=1)(x)
    return d.dense(y, "logits", d.expect_classes(), "classifier")


def _block(
    d: ModelDrawing,
    m: SwinSettings,
    x: Symbol,
    grid: tuple[int, int],
    kind: tuple[int, int],
    path: float,
    names: tuple[str, str],
) -> Symbol:
    """Add a block of ``kind`` (heads, shift of its windows); ``path`` is its stochastic depth."""
    (name, own), width = names, x.shape[1]
    y = d.layer_norm(x, f"{name}/attention_norm", m.epsilon, f"{own}.layernorm_before")
    y = _attention(d, m, y, grid, *kind, f"{name}/attention", f"{own}.attention")
    x = d.add(f"{name}/attention_add", x, d.skipped(y, f"{name}/path", path))
    y = d.layer_norm(x, f"{name}/unit_norm", m.epsilon, f"{own}.layernorm_after")
    y = d.dense(y, f"{name}/up", int(m.ratio * width), f"{own}.intermediate.dense")
    y = d.activation(y, f"{name}/act", m.activation)
    y = d.dense(y, f"{name}/down", width, f"{own}.output.dense")
    return d.add(f"{name}/unit_add", x, d.dropout(y, f"{name}/unit_drop", m.dropout))


def _attention(
    d: ModelDrawing,
    m: SwinSettings,
    x: Symbol,
    grid: tuple[int, int],
    heads: int,
    shift: int,
    name: str,
    own: str,
) -> Symbol:
    """Add attention within windows of the ``grid``, which is rolled by ``shift`` before."""
    (high, wide), side, width = grid, m.window, x.shape[1]
    across, steps = (high // side, wide // side), side * side
    count = across[0] * across[1]
    y: Any = Reshape(f"{name}/grid", (high, wide, width))(x)
    y = _rolled(y, shift, f"{name}/roll")
    y = Reshape(f"{name}/cut", (across[0], side, across[1], side, width))(y)
    y = Permute(f"{name}/windows", (1, 3, 2, 4, 5))(y)
    y = Reshape(f"{name}/steps", (count * steps, width))(y)
    parts = {}
    for part in ("query", "key", "value"):
        z = d.dense(y, f"{name}/{part}", width, f"{own}.self.{part}", m.bias)
        z = Reshape(f"{name}/{part}_split", (count, steps, heads, width // heads))(z)
        parts[part] = Permute(f"{name}/{part}_heads", (1, 3, 2, 4))(z)
    scores = MatMul(f"{name}/products", transpose_b=True)(parts["query"], parts["key"])
    scores = Scale(f"{name}/scores", (width // heads) ** -0.5)(scores)
    place = ArrayPlace(f"{own}.self.relative_position_bias_table")
    table = d.put(Weight(f"{name}/positions", ((2 * side - 1) ** 2, heads)), x, weight=place)
    bias = Gather(f"{name}/distances", 1, distances(side))(table)
    bias = Permute(f"{name}/bias", (3, 1, 2))(Reshape(f"{name}/pairs", (steps, steps, heads))(bias))
    bias = Reshape(f"{name}/bias_of_all", (1, heads, steps, steps))(bias)
    scores = d.add(f"{name}/biased", scores, bias)
    if shift:
        scores = scores + _other_sides(grid, side, shift)
    weights = d.dropout(Softmax(f"{name}/weights", -1)(scores), f"{name}/drop", m.of_weights)
    y = MatMul(f"{name}/means")(weights, parts["value"])
    y = Permute(f"{name}/means_heads", (1, 3, 2, 4))(y)
    y = Reshape(f"{name}/merged", (count * steps, width))(y)
    y = d.dropout(
        d.dense(y, f"{name}/output", width, f"{own}.output.dense"), f"{name}/out_drop", m.dropout
    )
    y = Reshape(f"{name}/uncut", (*across, side, side, width))(y)
    y = Permute(f"{name}/rows", (1, 3, 2, 4, 5))(y)
    y = _rolled(Reshape(f"{name}/ungrid", (high, wide, width))(y), -shift, f"{name}/unroll")
    made: Symbol = Reshape(f"{name}/sequence", (high * wide, width))(y)
    return made


def _rolled(x: Symbol, shift: int, name: str) -> Symbol:
    """Move a grid (H, W, C) up and left by ``shift``; what leaves returns at the other end."""
    if not shift:
        return x
    for axis, key in enumerate(("rows", "columns")):
        before = [_ALL] * axis
        first = Index(f"{name}/{key}_first", [*before, (shift, None, None)])(x)
        rest = Index(f"{name}/{key}_rest", [*before, (None, shift, None)])(x)
        x = Concat(f"{name}/{key}", axis=axis + 1)(first, rest)
    return x


def distances(side: int) -> list[int]:
    """Return the row of the table for each pair of steps in a window, query by query."""
    rows, columns = np.divmod(np.arange(side * side), side)
    high = rows[:, None] - rows + side - 1
    wide = columns[:, None] - columns + side - 1
    found: list[int] = (high * (2 * side - 1) + wide).reshape(-1).tolist()
    return found


def _other_sides(grid: tuple[int, int], side: int, shift: int) -> Any:
    """Return -100 (windows, 1, steps, steps) if rolling brought two steps into one window."""
    areas = []
    for extent in grid:
        at = np.arange(extent)
        areas.append((at >= extent - side).astype(int) + (at >= extent - shift))
    area = areas[0][:, None] * 3 + areas[1]
    high, wide = grid[0] // side, grid[1] // side
    area = area.reshape(high, side, wide, side).swapaxes(1, 2).reshape(high * wide, -1)
    differs = area[:, None, :] != area[:, :, None]
    return np.where(differs, -100.0, 0.0)[:, None].astype(np.float32)


def _merged(d: ModelDrawing, x: Symbol, grid: tuple[int, int], name: str, own: str) -> Symbol:
    """Add the joining of each four patches, with twice the features."""
    (high, wide), width = grid, x.shape[1]
    y: Any = Reshape(f"{name}/grid", (high, wide, width))(x)
    parts = [
        Index(f"{name}/part{row}{column}", [(row, None, 2), (column, None, 2)])(y)
        for column in range(2)
        for row in range(2)
    ]
    y = Concat(f"{name}/four", axis=3)(*parts)
    y = Reshape(f"{name}/sequence", (high * wide // 4, 4 * width))(y)
    y = d.layer_norm(y, f"{name}/norm", 1e-5, f"{own}.norm")
    return d.dense(y, f"{name}/reduction", 2 * width, f"{own}.reduction", bias=False)


_NEWER = (
    (r"\.attention\.q_proj\.", ".attention.self.query."),
    (r"\.attention\.k_proj\.", ".attention.self.key."),
    (r"\.attention\.v_proj\.", ".attention.self.value."),
    (r"\.attention\.relative_position_bias\.", ".attention.self."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.fc1\.", ".intermediate.dense."),
    (r"\.mlp\.fc2\.", ".output.dense."),
)

FAMILIES: Mapping[str, Family] = {
    "swin": Family(
        draw,
        ("SwinModel", "SwinForImageClassification"),
        bare=("SwinModel",),
        others=_NEWER,
        idle=(r".*\.relative_position_index",),
    ),
}
