"""The configs of published models, and the same models small, without dropout.

The names are those on Hugging Face's hub. The configs are as the ``config.json`` there says, with
the keys of older and newer versions alike; they were written down without the hub at hand, so a key
may differ. Families were chosen by what people take, and of each family the models that are most
downloaded, or that have other settings.
"""

import re
from typing import Any

from tests.pretrained import published_decoders, published_others

Config = dict[str, Any]

PUBLISHED: dict[str, Config] = {**published_decoders.CONFIGS, **published_others.CONFIGS}

POOLING = {
    "sentence-transformers/all-MiniLM-L6-v2": ("mean_tokens", True),
    "sentence-transformers/all-mpnet-base-v2": ("mean_tokens", True),
    "BAAI/bge-small-en-v1.5": ("cls_token", True),
    "BAAI/bge-m3": ("cls_token", True),
    "intfloat/multilingual-e5-large": ("mean_tokens", True),
    "Qwen/Qwen3-Embedding-0.6B": ("lasttoken", True),
}
"""What a folder of sentence-transformers says of pooling, and whether it scales to length 1."""

COUNTS = {
    "HuggingFaceTB/SmolLM2-135M": 134_515_008,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-3-1b-it": 999_885_952,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "openai-community/gpt2": 124_439_808,
    "google-bert/bert-base-uncased": 109_514_298,
    "FacebookAI/roberta-base": 124_697_433,
    "distilbert/distilbert-base-uncased": 66_985_530,
    "google/flan-t5-small": 76_961_152,
    "google/vit-base-patch16-224": 86_567_656,
    "facebook/bart-base": 139_420_416,
    "facebook/mbart-large-50": 611_129_542,
    "google/mt5-small": 300_176_768,
    "openai/whisper-tiny": 37_760_640,
    "albert/albert-base-v2": 11_221_680,
    "google/electra-base-discriminator": 109_483_009,
    "almanach/camembert-base": 110_655_493,
    "sentence-transformers/all-mpnet-base-v2": 109_518_527,
    "microsoft/deberta-v3-base": 183_831_552,
    "answerdotai/ModernBERT-base": 149_655_232,
    "facebook/dinov2-base": 86_579_712,
    "microsoft/swin-tiny-patch4-window7-224": 28_509_246,
    "microsoft/resnet-50": 25_610_152,
    "facebook/convnext-tiny-224": 28_589_128,
    "openai/clip-vit-base-patch32": 151_277_312,
    "google/siglip-base-patch16-224": 203_155_968,
}
"""Numbers of their parameters, with running statistics and the masks of rolled windows."""

WORDS, STEPS, HEAD, WINDOW = 96, 64, 16, 5
"""Of small models: words, most steps, features of a head, width of windows."""

_HEADS = (
    "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
    "decoder_attention_heads",
)  # fmt: skip
_GROUPS = ("num_key_value_heads", "num_kv_heads")
_DEPTHS = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers",
)  # fmt: skip
_WIDTHS = ("hidden_size", "n_embd", "n_embed", "d_model", "dim")
_LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")
_OF_WIDTH = (
    "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "n_inner",
    "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "embedding_size",
    "word_embed_proj_dim", "projection_dim",
)  # fmt: skip
_MOST = {
    "vocab_size": WORDS, "decoder_vocab_size": WORDS, "sliding_window": WINDOW,
    "window_size": WINDOW, "local_attention": 2 * WINDOW, "position_buckets": 8,
    "num_experts": 8, "num_local_experts": 5, "num_experts_per_tok": 3, "num_mel_bins": 6,
    "max_source_positions": 10, "max_target_positions": 24, "head_dim": HEAD, "d_kv": HEAD,
    "image_size": 12, "patch_size": 4,
}  # fmt: skip
"""What small models have in place of larger numbers."""
_OF_STAGES: dict[str, Config] = {
    "swin": {"embed_dim": 12, "image_size": 48, "patch_size": 2, "window_size": 3},
    "resnet": {"embedding_size": 8, "hidden_sizes": [16, 24, 32, 40], "depths": [2, 1, 1, 1]},
    "convnext": {"hidden_sizes": [8, 12, 16, 24], "depths": [1, 1, 2, 1], "image_size": 64},
}
"""The sizes of models of stages."""
_USUAL_TOWER = {
    "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12,
    "intermediate_size": 3072,
}  # fmt: skip
_TOWERS: dict[str, Config] = {
    "text_config": _USUAL_TOWER | {"vocab_size": 32000, "max_position_embeddings": 64},
    "vision_config": _USUAL_TOWER | {"image_size": 224, "patch_size": 16},
    "text_config_dict": {},
    "vision_config_dict": {},
}
"""The sizes that configs of towers leave out."""


def small(config: Config) -> Config:
    """The config of a model with the same settings and small sizes, without dropout."""
    changes = {
        key: small(_TOWERS[key] | config[key])
        for key in _TOWERS
        if isinstance(config.get(key), dict)
    }
    still = [key for key in config if re.search("dropout|pdrop|path_rate", key)]
    changes |= {key: type(config[key])(0) for key in still if config[key] is not None}
    names = config.get("id2label") or {}
    if len(names) > 20:
        changes["id2label"] = dict([*names.items()][:20])
    kind = str(config.get("model_type"))
    if kind in _OF_STAGES:
        return config | changes | _OF_STAGES[kind]
    return config | _sizes(config) | _scaling(config) | changes


def _sizes(config: Config) -> Config:
    heads, groups = _heads(config)
    many, wide = _first(config, _HEADS, 12), _first(config, ("d_model", *_WIDTHS), 768)
    of_head = _first(config, ("head_dim", "d_kv"), wide // many)
    # In eighths, so that a width other than that of all heads remains another.
    width = _eighths(heads * HEAD * wide / (many * of_head))
    depth = _depth(config)
    found = {
        **dict.fromkeys(_DEPTHS, depth),
        **dict.fromkeys(_HEADS, heads),
        **dict.fromkeys(_GROUPS, groups),
        **dict.fromkeys(_WIDTHS, width),
    }
    whole = {key: value for key, value in config.items() if type(value) is int}
    found |= {key: min(whole.get(key, 0), most) for key, most in _MOST.items()}
    found |= {key: _eighths(whole.get(key, 0) * width / wide) for key in _OF_WIDTH}
    # RoBERTa has two positions more than steps.
    found |= {key: STEPS + 2 * (whole.get(key, 0) % 512 == 2) for key in _LENGTHS}
    found |= {key: WORDS - 1 for key in whole if key.endswith("token_id") and whole[key] >= WORDS}
    found["rotary_dim"] = HEAD * whole.get("rotary_dim", 0) * many // wide
    return {key: value for key, value in found.items() if key in whole} | _lists(config, depth)


def _eighths(number: float) -> int:
    return max(round(number / 8), 1) * 8


def _first(config: Config, keys: tuple[str, ...], usual: int) -> int:
    return next((config[key] for key in keys if config.get(key)), usual)


def _heads(config: Config) -> tuple[int, int]:
    """Heads and those of keys, with the ratio of the large model, or odd as there."""
    heads = _first(config, _HEADS, 12)
    groups = _first(config, _GROUPS, heads)
    few = min(groups, 2)
    alike = 3 if heads % 2 else 4
    return (alike, alike) if groups == heads else (few * (heads // groups), few)


def _depth(config: Config) -> int:
    """As many blocks as show each kind of block."""
    lists = [config.get(key) or [] for key in ("layer_types", "no_rope_layers")]
    kinds = next((each for each in lists if len({*each}) > 1), [])
    other = next((k for k, kind in enumerate(kinds) if kind != kinds[0]), 1)
    every = config.get("sliding_window_pattern") or config.get("global_attn_every_n_layers") or 1
    return max(2, other + 1, every)


def _lists(config: Config, depth: int) -> Config:
    """Lists of one entry a block, cut."""
    found: Config = {}
    for key in ("layer_types", "no_rope_layers", "attention_layers"):
        if isinstance(config.get(key), list):
            found[key] = config[key][:depth]
    if "attention_types" in config:
        found["attention_types"] = [[config["attention_types"][0][0], depth // 2]]
    if "out_indices" in config:
        found["out_indices"] = [depth - 1]
    if "out_features" in config:
        found |= {"out_features": [f"stage{depth}"], "out_indices": [depth]}
        found["stage_names"] = config["stage_names"][: depth + 1]
    return found


def _scaling(config: Config) -> Config:
    """A scaling of positions by factors, for the features and the steps of the small model."""
    section = config.get("rope_scaling")
    if not isinstance(section, dict) or "long_factor" not in section:
        return {}
    turned = int(HEAD * config.get("partial_rotary_factor", 1.0)) // 2
    cut = {key: section[key][:turned] for key in ("long_factor", "short_factor")}
    return {"rope_scaling": section | cut, "original_max_position_embeddings": 16}
