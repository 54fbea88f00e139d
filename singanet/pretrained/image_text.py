"""Published models of images and texts in one space: CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from singanet import functional
from singanet.layers import (
    ClassToken,
    Embedding,
    L2Norm,
    MultiHeadAttention,
    PositionEmbedding,
    Positions,
    Reduce,
    Weight,
)
from singanet.layers.symbol import Symbol
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import ACTIVATIONS, ArrayPlace, Family, ModelDrawing
from singanet.pretrained.vision import BlockSettings, draw_block, draw_patches, sides_of

_IMAGES, _TEXTS = "pixel_values", ("input_ids", "attention_mask")
_OF_CLIP = {
    "attention_norm": "layer_norm1",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.out_proj",
    "unit_norm": "layer_norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
_OF_EVERY_CONFIG = (
    "add_cross_attention", "bad_words_ids", "begin_suppress_tokens", "cross_attention_hidden_size",
    "diversity_penalty", "do_sample", "dropout", "early_stopping", "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "is_decoder", "is_encoder_decoder", "length_penalty", "min_length", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_scores", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "return_dict_in_generate", "suppress_tokens",
    "temperature", "tf_legacy_loss", "tie_encoder_decoder", "tie_word_embeddings", "top_k",
    "top_p", "typical_p", "use_bfloat16",
)  # fmt: skip
"""Keys of generation and the like, which older versions wrote into the config of each tower."""


class _Tower:
    """The encoder of images, or of texts: its config ``c`` and the prefix ``own`` of its arrays."""

    def __init__(self, d: ModelDrawing, c: Config, own: str, name: str) -> None:
        self.d, self.c, self.own, self.name = d, c, own, name
        kind = str(d.config.values["model_type"])
        self.newer = kind.startswith("siglip")
        self.bare = d.is_bare
        c.skip(*_OF_EVERY_CONFIG)

    def settings(self, width: int, heads: int, hidden: int, causal: bool = False) -> BlockSettings:
        """Return the settings of the blocks, with the tower's defaults."""
        c = self.c
        mode, epsilon = ("gelu_pytorch_tanh", 1e-6) if self.newer else ("quick_gelu", 1e-5)
        return BlockSettings(
            width=c.count("hidden_size", width),
            heads=c.count("num_attention_heads", heads),
            hidden=c.count("intermediate_size", hidden),
            activation=c.choice("hidden_act", ACTIVATIONS, mode),
            epsilon=c.number("layer_norm_eps", epsilon),
            modules=_OF_CLIP,
            of_weights=c.share("attention_dropout"),
            causal=causal,
        )

    def blocks(
        self, m: BlockSettings, x: Symbol, mask: Symbol | None = None, called: str = ""
    ) -> Symbol:
        """Add the blocks; ``called`` is the name of the output."""
        depth = self.c.blocks("num_hidden_layers", 12)
        for k in range(depth):
            last, own = called if k == depth - 1 else "", f"{self.own}encoder.layers.{k}"
            x = draw_block(self.d, m, x, f"{self.name}/{k}", own, mask, last)
        return x

    def images(self) -> tuple[Symbol, BlockSettings]:
        """Return the last hidden states of images (T, E)."""
        d, c = self.d, self.c
        m = self.settings(768, 12, 3072)
        sides, side = sides_of(c, "image_size", 224), 16 if self.newer else 32
        places = f"{self.own}embeddings.patch_embedding"
        bias = ArrayPlace(f"{places}.bias") if self.newer else None
        weight = ArrayPlace(f"{places}.weight")
        x = draw_patches(d, c, sides, sides_of(c, "patch_size", side), m.width, weight, bias)
        if not self.newer:
            place = ArrayPlace(f"{self.own}embeddings.class_embedding", shape=(m.width,))
            x = d.put(ClassToken("class_embedding"), x, weight=place)
        place = ArrayPlace(f"{self.own}embeddings.position_embedding.weight")
        x = d.put(PositionEmbedding(f"{self.name}/positions"), x, weight=place)
        norm = f"{self.own}post_layernorm"
        if self.newer:
            name = "last_hidden_state" if self.bare else f"{self.name}/norm"
            return d.layer_norm(self.blocks(m, x), name, m.epsilon, norm), m
        x = d.layer_norm(x, f"{self.name}/first_norm", m.epsilon, f"{self.own}pre_layrnorm")
        d.keep(f"{norm}.weight", f"{norm}.bias")
        return self.blocks(m, x, called="last_hidden_state" if self.bare else ""), m

    def pooled_image(self) -> Symbol:
        """Return one vector (E,) of an image: of the class token, or of a learned query."""
        x, m = self.images()
        if self.newer:
            return self._attended(x, m)
        norm = f"{self.own}post_layernorm"
        return self.d.layer_norm(x[:, 0], f"{self.name}/norm", m.epsilon, norm)

    def _attended(self, x: Symbol, m: BlockSettings) -> Symbol:
        """Return the attention of SigLIP's probe to the patches, with a unit."""
        d, own, name = self.d, f"{self.own}head", f"{self.name}/head"
        place = ArrayPlace(f"{own}.probe", shape=(1, 1, m.width))
        probe = d.put(Weight(f"{name}/probe", (1, m.width)), x, weight=place)
        places = {}
        for kind in ("weight", "bias"):
            turned = kind == "weight"
            places[f"output_{kind}"] = ArrayPlace(f"{own}.attention.out_proj.{kind}", turned)
            for order, part in enumerate(("query", "key", "value")):
                joined = f"{own}.attention.in_proj_{kind}"
                places[f"{part}_{kind}"] = ArrayPlace(joined, turned, order)
        y = d.put(MultiHeadAttention(f"{name}/attention", m.heads), [probe, x], **places)
        z = d.layer_norm(y, f"{name}/norm", m.epsilon, f"{own}.layernorm")
        z = d.dense(z, f"{name}/up", m.hidden, f"{own}.mlp.fc1")
        z = d.activation(z, f"{name}/act", m.activation)
        z = d.dense(z, f"{name}/down", m.width, f"{own}.mlp.fc2")
        return d.add(f"{name}/add", y, z)[:, 0]

    def texts(self, inputs: Mapping[str, Symbol]) -> tuple[Symbol, BlockSettings]:
        """Return the last hidden states of texts (T, E)."""
        d, c = self.d, self.c
        if self.newer:
            m, vocabulary, longest = self.settings(768, 12, 3072), 32000, 64
        else:
            m, vocabulary, longest = self.settings(512, 8, 2048, causal=True), 49408, 77
        self.longest = c.count("max_position_embeddings", longest)
        d.most_steps, ids = self.longest, inputs["input_ids"]
        table = Embedding(
            "token_embedding", c.count("vocab_size", vocabulary), m.width, sparse=False
        )
        x = d.embedding(ids, table, f"{self.own}embeddings.token_embedding")
        place = ArrayPlace(f"{self.own}embeddings.position_embedding.weight")
        x = d.put(PositionEmbedding(f"{self.name}/positions", self.longest), x, weight=place)
        x = self.blocks(m, x, inputs.get("attention_mask"))
        name = "last_hidden_state" if self.bare else f"{self.name}/norm"
        return d.layer_norm(x, name, m.epsilon, f"{self.own}final_layer_norm"), m

    def pooled_text(self, inputs: Mapping[str, Symbol]) -> Symbol:
        """Return one vector (E,) of a text: of its end token, or of the last step."""
        x, m = self.texts(inputs)
        if self.newer:
            size = self.c.count("projection_size", m.width)
            return self.d.dense(x[:, -1], f"{self.name}/head", size, f"{self.own}head")
        ids, end = inputs["input_ids"], self.c.count("eos_token_id", 49407, least=0)
        if end == 2:
            # Of OpenAI's configs, whose end token is not 2 but the largest id.
            ends = functional.equal(ids, functional.max(ids, axis=1, keepdims=True))
        else:
            ends = functional.equal(ids, end)
        # The first end, and the first step of a text without one.
        steps = Positions(f"{self.name}/steps", self.c.count("vocab_size", 49408))(ids)
        order = functional.where(ends, steps, steps + self.longest)
        first = functional.equal(order, functional.min(order, axis=1, keepdims=True))
        y: Symbol = Reduce(f"{self.name}/pooled", "mean", axis=1)(x, first)
        return y


def _section(c: Config, key: str) -> Config:
    """Return the config of a tower. ``KEY_dict`` of older versions has precedence, as there."""
    older = c.section(f"{key}_dict")
    c.skip(key)
    values = c.section(key) if older is None else older
    return Config({} if values is None else values.values, f"{c.where}, {key}", c.arrays)


def draw(d: ModelDrawing) -> Symbol | Sequence[Symbol]:
    """Build a CLIP or SigLIP: ``image_embeds`` and ``text_embeds``, or ``logits`` of images.

    If the user chose the inputs of one kind, the net has these outputs alone.
    """
    c = d.config
    newer = c.values["model_type"] == "siglip"
    size = 0 if newer else c.count("projection_dim", 512)
    c.skip("logit_scale_init_value", *_OF_EVERY_CONFIG)
    both = {
        part: _Tower(d, _section(c, f"{part}_config"), f"{part}_model.", part)
        for part in ("vision", "text")
    }
    classes = d.architecture.endswith("ForImageClassification")
    wanted = [_IMAGES] if classes else d.wanted
    images = wanted is None or _IMAGES in wanted
    texts = wanted is None or not images or any(name != _IMAGES for name in wanted)
    found: dict[str, Symbol] = {}
    if texts:
        d.wanted = None if wanted is None else [name for name in wanted if name != _IMAGES]
        y = both["text"].pooled_text(d.ids(_TEXTS[:1], _TEXTS[1:]))
        found["text"] = y if newer else _projected(d, y, "text", size)
    if images:
        if classes:
            return _classes(d, both["vision"])
        y = both["vision"].pooled_image()
        found["image"] = y if newer else _projected(d, y, "visual", size)
    for part, kind in (("vision", "image"), ("text", "text")):
        tower = both[part]
        if kind in found:
            tower.c.skip("projection_dim", "vision_use_head")
            tower.c.end()
        else:
            prefixes = (tower.own, "visual_projection" if kind == "image" else "text_projection")
            d.keep(*(name for name in d.names or () if name.startswith(prefixes)))
    d.keep("logit_scale", "logit_bias")
    kinds = [kind for kind in ("image", "text") if kind in found]
    return [L2Norm(f"{kind}_embeds", epsilon=1e-24)(found[kind]) for kind in kinds]


def _projected(d: ModelDrawing, x: Symbol, part: str, size: int, called: str = "") -> Symbol:
    return d.dense(x, called or f"{part}_projection", size, f"{part}_projection", bias=False)


def _classes(d: ModelDrawing, tower: _Tower) -> Symbol:
    """Return the classes by the mean of the patches."""
    x, _ = tower.images()
    tower.c.skip("projection_dim", "vision_use_head")
    tower.c.end()
    # Of a model of both towers.
    other = ("text_model.", "text_projection", "visual_projection", "logit_", f"{tower.own}head.")
    d.keep(*(name for name in d.names or () if name.startswith(other)))
    x = Reduce("patch_mean", "mean", axis=1)(x if tower.newer else x[:, 1:])
    return d.dense(x, "logits", d.expect_classes(), "classifier")


def draw_tower(d: ModelDrawing) -> Symbol:
    """Build a tower alone: ``last_hidden_state``, or the projected ``..._embeds``."""
    c, kind = d.config, str(d.config.values["model_type"])
    part = "text" if "_text_" in kind else "vision"
    tower = _Tower(d, c, d.prefix(f"{part}_model."), part)
    size = 0 if tower.newer else c.count("projection_dim", 512)
    inputs = d.ids(_TEXTS[:1], _TEXTS[1:]) if part == "text" else {}
    if d.is_bare:
        if tower.newer:
            c.skip("projection_size", "vision_use_head")
            head = f"{tower.own}head."
            d.keep(*(name for name in d.names or () if name.startswith(head)))
        return (tower.texts(inputs) if part == "text" else tower.images())[0]
    if part == "text":
        return _projected(d, tower.pooled_text(inputs), "text", size, "text_embeds")
    return _projected(d, tower.pooled_image(), "visual", size, "image_embeds")


_IDLE = (r"(.*\.)?embeddings\.position_ids",)


def _alone(*classes: str) -> Family:
    return Family(draw_tower, classes, bare=classes[:1], idle=_IDLE)


_CLASSES: Mapping[str, Any] = {
    "clip": ("CLIPModel", "CLIPForImageClassification"),
    "siglip": ("SiglipModel", "SiglipForImageClassification"),
}
FAMILIES: Mapping[str, Family] = {
    **{kind: Family(draw, names, bare=(), idle=_IDLE) for kind, names in _CLASSES.items()},
    "clip_text_model": _alone("CLIPTextModel", "CLIPTextModelWithProjection"),
    "clip_vision_model": _alone("CLIPVisionModel", "CLIPVisionModelWithProjection"),
    "siglip_text_model": _alone("SiglipTextModel"),
    "siglip_vision_model": _alone("SiglipVisionModel"),
}
