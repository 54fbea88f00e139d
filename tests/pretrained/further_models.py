"""Encoders, encoder-decoders and models of images: classes of transformers, and small configs."""

WORDS = 48
STILL = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
BART = STILL | {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 24,
    "max_position_embeddings": 64, "vocab_size": WORDS,
}  # fmt: skip
T5 = {
    "d_model": 32, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}  # fmt: skip

IMAGE = {
    "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 4,
    "layer_norm_eps": 1e-5,
}  # fmt: skip
STAGES = {"depths": [2, 1], "hidden_sizes": [16, 24]}
THREE = {"num_labels": 3}
TEXT = {
    "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64,
    "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": WORDS, "pad_token_id": 0,
    "attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0,
}  # fmt: skip
ALBERT = TEXT | {"embedding_size": 12, "num_hidden_layers": 4, "num_hidden_groups": 2}
MODERN = {
    "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64,
    "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": WORDS, "pad_token_id": 0,
    "local_attention": 5,
}  # fmt: skip
TOWER = {
    "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": 2,
}  # fmt: skip
SQUARE = {"image_size": 12, "patch_size": 4}


def both(texts):
    """The settings of a model of images and texts."""
    text = TOWER | {"vocab_size": WORDS, "max_position_embeddings": 16, "bos_token_id": 1} | texts
    return {"text_config": text, "vision_config": TOWER | SQUARE}


WHISPER = {name: value for name, value in BART.items() if name != "max_position_embeddings"} | {
    "num_mel_bins": 6, "max_source_positions": 10, "max_target_positions": 24, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
    "begin_suppress_tokens": None,
}  # fmt: skip
SWIN = {
    "depths": [2, 2], "drop_path_rate": 0.0, "embed_dim": 8, "image_size": [24, 48],
    "num_heads": [2, 4], "patch_size": 2, "window_size": 3,
}  # fmt: skip
DEBERTA = TEXT | {
    "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"], "position_buckets": 4,
    "relative_attention": True, "share_att_key": True, "type_vocab_size": 0,
    "max_position_embeddings": 16,
}  # fmt: skip
MARIAN = BART | {
    "activation_function": "swish", "scale_embedding": True, "pad_token_id": 0,
    "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1,
}  # fmt: skip
PEGASUS = BART | {"activation_function": "relu", "scale_embedding": True}
BEIT = IMAGE | {
    "image_size": 12, "intermediate_size": 40, "drop_path_rate": 0.0, "out_indices": [1],
    "use_relative_position_bias": True,
}  # fmt: skip
PIXELS = {"resnet ": (40, 48), "convnext 224": (32, 40), "dinov2 8": (12, 8)}
"""Height and width of prepared images, by model type and image size of the config."""

MODELS = {
    "whisper": ("WhisperForConditionalGeneration", WHISPER),
    "whisper without head": ("WhisperModel", WHISPER),
    "albert": ("AlbertModel", ALBERT | {"inner_group_num": 2}),
    "albert for words": ("AlbertForMaskedLM", ALBERT),
    "electra": ("ElectraModel", TEXT | {"embedding_size": 12}),
    "electra for words": ("ElectraForMaskedLM", TEXT | {"embedding_size": 12}),
    "electra's discriminator": ("ElectraForPreTraining", TEXT | {"embedding_size": 32}),
    "camembert": ("CamembertModel", TEXT | {"pad_token_id": 1}),
    "camembert for words": ("CamembertForMaskedLM", TEXT | {"pad_token_id": 1}),
    "mpnet": ("MPNetModel", TEXT | {"pad_token_id": 1}),
    "mpnet for words": ("MPNetForMaskedLM", TEXT | {"pad_token_id": 1}),
    "modernbert": (
        "ModernBertModel",
        MODERN
        | {"num_hidden_layers": 2}
        | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "modernbert for words": (
        "ModernBertForMaskedLM",
        MODERN
        | dict.fromkeys(("attention_bias", "mlp_bias", "classifier_bias", "norm_bias"), True),
    ),
    "clip": ("CLIPModel", both({"eos_token_id": 47}) | {"projection_dim": 12}),
    "clip, the largest id ends": ("CLIPModel", both({"eos_token_id": 2})),
    "clip for classes": ("CLIPForImageClassification", both({}) | THREE),
    "clip's texts": ("CLIPTextModel", TOWER | {"vocab_size": WORDS, "eos_token_id": 47}),
    "clip's texts, projected": (
        "CLIPTextModelWithProjection",
        TOWER | {"vocab_size": WORDS, "eos_token_id": 47},
    ),
    "clip's images": ("CLIPVisionModel", TOWER | SQUARE),
    "clip's images, projected": ("CLIPVisionModelWithProjection", TOWER | SQUARE),
    "siglip": ("SiglipModel", both({"projection_size": 32})),
    "siglip for classes": ("SiglipForImageClassification", both({}) | THREE),
    "siglip's texts": ("SiglipTextModel", TOWER | {"vocab_size": WORDS}),
    "siglip's images": ("SiglipVisionModel", TOWER | SQUARE),
    "swin": ("SwinModel", SWIN | {"use_absolute_embeddings": True, "qkv_bias": False}),
    "swin for classes": ("SwinForImageClassification", SWIN | THREE),
    "deberta-v2": ("DebertaV2Model", DEBERTA | {"position_biased_input": False}),
    "deberta-v2 for words": ("DebertaV2ForMaskedLM", DEBERTA | {"pos_att_type": "c2p|p2c"}),
    "dinov2": ("Dinov2Model", IMAGE | {"image_size": 12}),
    "dinov2, larger images": ("Dinov2Model", IMAGE | {"image_size": 8, "use_swiglu_ffn": True}),
    "dinov2 for classes": (
        "Dinov2ForImageClassification",
        IMAGE | THREE | {"image_size": 12, "qkv_bias": False},
    ),
    "resnet": (
        "ResNetModel",
        STAGES | {"embedding_size": 8, "downsample_in_bottleneck": True},
    ),
    "resnet for classes": (
        "ResNetForImageClassification",
        STAGES
        | THREE
        | {"embedding_size": 8, "layer_type": "basic"}
        | {"downsample_in_first_stage": True},
    ),
    "convnext": ("ConvNextModel", STAGES | {"num_stages": 2, "layer_scale_init_value": 0.0}),
    "convnext for classes": ("ConvNextForImageClassification", STAGES | THREE | {"num_stages": 2}),
    "bart": ("BartForConditionalGeneration", BART),
    "bart without head": ("BartModel", BART | {"scale_embedding": True}),
    "mbart": ("MBartForConditionalGeneration", BART | {"scale_embedding": True}),
    "mbart without head": ("MBartModel", BART),
    "marian": ("MarianMTModel", MARIAN),
    "marian without head": ("MarianModel", MARIAN | {"scale_embedding": False}),
    "pegasus": ("PegasusForConditionalGeneration", PEGASUS),
    "pegasus without head": ("PegasusModel", PEGASUS),
    "beit": ("BeitModel", BEIT),
    "beit for classes": ("BeitForImageClassification", BEIT | THREE),
    "beit, the class token": (
        "BeitForImageClassification",
        BEIT
        | THREE
        | {"use_mean_pooling": False, "use_relative_position_bias": False, "image_size": [12, 8]},
    ),
    "mt5": ("MT5ForConditionalGeneration", T5),
    "mt5 encoder": ("MT5EncoderModel", T5 | {"feed_forward_proj": "relu"}),
}
"""A class of transformers and its settings, by what is special about it."""

_BART = {
    "d_model": 16, "decoder_attention_heads": 2, "decoder_ffn_dim": 24, "decoder_layers": 1,
    "encoder_attention_heads": 4, "encoder_ffn_dim": 24, "encoder_layers": 1,
    "max_position_embeddings": 32, "vocab_size": 20,
}  # fmt: skip

_TOWER = {
    "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_hidden_layers": 1,
}  # fmt: skip
_TEXTS, _SQUARE = _TOWER | {"vocab_size": 20}, {"image_size": 8, "patch_size": 4}
_BOTH = {"text_config": _TEXTS, "vision_config": _TOWER | _SQUARE}
_IMAGE = {
    "hidden_size": 16, "image_size": 8, "num_attention_heads": 4, "num_hidden_layers": 1,
    "patch_size": 4,
}  # fmt: skip

_TEXT = {
    "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32,
    "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 20,
}  # fmt: skip

CONFIGS = {
    "albert": _TEXT | {"architectures": ["AlbertForMaskedLM"], "embedding_size": 8},
    "electra": _TEXT | {"architectures": ["ElectraForPreTraining"], "embedding_size": 8},
    "camembert": _TEXT | {"architectures": ["CamembertModel"]},
    "mpnet": _TEXT | {"architectures": ["MPNetModel"]},
    "modernbert": _TEXT | {"architectures": ["ModernBertForMaskedLM"], "pad_token_id": 0},
    "whisper": {name: value for name, value in _BART.items() if name[:3] != "max"} | {
        "architectures": ["WhisperForConditionalGeneration"], "max_source_positions": 6,
        "num_mel_bins": 5, "pad_token_id": 0,
    },
    "swin": {
        "architectures": ["SwinForImageClassification"], "depths": [1, 1], "embed_dim": 8,
        "image_size": 16, "num_heads": [2, 2], "patch_size": 2, "window_size": 4,
    },
    "deberta-v2": _TEXT | {
        "architectures": ["DebertaV2Model"], "norm_rel_ebd": "layer_norm",
        "pos_att_type": "p2c|c2p", "position_buckets": 4, "relative_attention": True,
        "share_att_key": True,
    },
    "clip": _BOTH | {"architectures": ["CLIPModel"], "projection_dim": 8},
    "siglip": _BOTH | {"architectures": ["SiglipModel"]},
    "clip_text_model": _TEXTS | {"architectures": ["CLIPTextModel"]},
    "clip_vision_model": _TOWER | _SQUARE | {"architectures": ["CLIPVisionModel"]},
    "siglip_text_model": _TEXTS | {"architectures": ["SiglipTextModel"]},
    "siglip_vision_model": _TOWER | _SQUARE | {"architectures": ["SiglipVisionModel"]},
    "dinov2": _IMAGE | {"architectures": ["Dinov2ForImageClassification"]},
    "resnet": {
        "architectures": ["ResNetForImageClassification"], "depths": [1, 1],
        "embedding_size": 8, "hidden_sizes": [8, 16],
    },
    "convnext": {
        "architectures": ["ConvNextForImageClassification"], "depths": [1, 1],
        "hidden_sizes": [8, 16], "image_size": 16, "num_stages": 2,
    },
    "bart": _BART | {"architectures": ["BartForConditionalGeneration"]},
    "marian": _BART | {"architectures": ["MarianMTModel"], "pad_token_id": 19},
    "pegasus": _BART | {"architectures": ["PegasusForConditionalGeneration"]},
    "beit": _IMAGE | {
        "architectures": ["BeitForImageClassification"], "intermediate_size": 24,
        "layer_scale_init_value": 0.1, "use_relative_position_bias": True,
    },
    "mbart": _BART | {"architectures": ["MBartForConditionalGeneration"]},
    "mt5": {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 24, "d_kv": 4, "d_model": 16,
        "num_heads": 4, "num_layers": 1, "vocab_size": 20,
    },
}  # fmt: skip
"""A small config of each family, as a config.json has it."""
