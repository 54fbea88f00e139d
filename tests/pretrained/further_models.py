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
    "mbart": _BART | {"architectures": ["MBartForConditionalGeneration"]},
    "mt5": {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 24, "d_kv": 4, "d_model": 16,
        "num_heads": 4, "num_layers": 1, "vocab_size": 20,
    },
}  # fmt: skip
"""A small config of each family, as a config.json has it."""

# As their config.json says, with the keys of older versions.
_GENERATION = {
    "_num_labels": 3, "early_stopping": True, "forced_eos_token_id": 2, "max_length": 20,
    "no_repeat_ngram_size": 3, "num_beams": 4, "gradient_checkpointing": False,
}  # fmt: skip
_OLD_TOWER = {
    "_name_or_path": "", "add_cross_attention": False, "attention_dropout": 0.0,
    "bad_words_ids": None, "bos_token_id": 0, "chunk_size_feed_forward": 0,
    "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False, "dropout": 0.0,
    "early_stopping": False, "encoder_no_repeat_ngram_size": 0, "eos_token_id": 2,
    "finetuning_task": None, "hidden_act": "quick_gelu", "id2label": {"0": "LABEL_0"},
    "initializer_factor": 1.0, "initializer_range": 0.02, "is_decoder": False,
    "is_encoder_decoder": False, "layer_norm_eps": 1e-05, "length_penalty": 1.0,
    "max_length": 20, "min_length": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "num_beams": 1, "num_return_sequences": 1, "output_scores": False, "pad_token_id": 1,
    "projection_dim": 512, "pruned_heads": {}, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "temperature": 1.0,
    "tie_encoder_decoder": False, "tie_word_embeddings": True, "top_k": 50, "top_p": 1.0,
    "typical_p": 1.0, "use_bfloat16": False,
}  # fmt: skip
_BERT_BASE = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 0, "vocab_size": 30522,
}  # fmt: skip
_STAGED = {
    "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048],
    "id2label": {str(k): f"class {k}" for k in range(1000)}, "num_channels": 3,
}  # fmt: skip
PUBLISHED = {
    "bart-base": _GENERATION | {
        "activation_dropout": 0.1, "activation_function": "gelu", "add_bias_logits": False,
        "add_final_layer_norm": False, "architectures": ["BartModel"], "attention_dropout": 0.1,
        "bos_token_id": 0, "classif_dropout": 0.1, "classifier_dropout": 0.0, "d_model": 768,
        "decoder_attention_heads": 12, "decoder_ffn_dim": 3072, "decoder_layerdrop": 0.0,
        "decoder_layers": 6, "decoder_start_token_id": 2, "dropout": 0.1,
        "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "encoder_layerdrop": 0.0,
        "encoder_layers": 6, "eos_token_id": 2, "forced_bos_token_id": 0, "init_std": 0.02,
        "is_encoder_decoder": True, "max_position_embeddings": 1024, "model_type": "bart",
        "normalize_before": False, "normalize_embedding": True, "num_hidden_layers": 6,
        "pad_token_id": 1, "scale_embedding": False,
        "task_specific_params": {"summarization": {"length_penalty": 1.0}}, "use_cache": True,
        "vocab_size": 50265,
    },
    "mbart-large-50": _GENERATION | {
        "activation_dropout": 0.0, "activation_function": "gelu", "add_bias_logits": False,
        "add_final_layer_norm": True, "architectures": ["MBartForConditionalGeneration"],
        "attention_dropout": 0.0, "bos_token_id": 0, "classif_dropout": 0.0,
        "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16,
        "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 12,
        "decoder_start_token_id": 2, "dropout": 0.1, "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0, "encoder_layers": 12,
        "eos_token_id": 2, "init_std": 0.02, "is_encoder_decoder": True,
        "max_position_embeddings": 1024, "model_type": "mbart", "normalize_before": True,
        "normalize_embedding": True, "num_hidden_layers": 12, "output_past": True,
        "pad_token_id": 1, "scale_embedding": True, "static_position_embeddings": False,
        "tokenizer_class": "MBart50Tokenizer", "use_cache": True, "vocab_size": 250054,
    },
    "whisper-tiny": {
        "activation_dropout": 0.0, "activation_function": "gelu",
        "architectures": ["WhisperForConditionalGeneration"], "attention_dropout": 0.0,
        "begin_suppress_tokens": [220, 50257], "bos_token_id": 50257, "d_model": 384,
        "decoder_attention_heads": 6, "decoder_ffn_dim": 1536, "decoder_layerdrop": 0.0,
        "decoder_layers": 4, "decoder_start_token_id": 50258, "dropout": 0.0,
        "encoder_attention_heads": 6, "encoder_ffn_dim": 1536, "encoder_layerdrop": 0.0,
        "encoder_layers": 4, "eos_token_id": 50257,
        "forced_decoder_ids": [[1, 50259], [2, 50359], [3, 50363]], "init_std": 0.02,
        "is_encoder_decoder": True, "max_length": 448, "max_source_positions": 1500,
        "max_target_positions": 448, "model_type": "whisper", "num_hidden_layers": 4,
        "num_mel_bins": 80, "pad_token_id": 50257, "scale_embedding": False,
        "suppress_tokens": [1, 2, 7], "torch_dtype": "float32", "use_cache": True,
        "vocab_size": 51865,
    },
    "mt5-small": {
        "architectures": ["MT5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64,
        "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-06, "model_type": "mt5", "num_decoder_layers": 8,
        "num_heads": 6, "num_layers": 8, "pad_token_id": 0,
        "relative_attention_num_buckets": 32, "tie_word_embeddings": False,
        "tokenizer_class": "T5Tokenizer", "use_cache": True, "vocab_size": 250112,
    },
    "albert-base-v2": _BERT_BASE | {
        "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 2, "classifier_dropout_prob": 0.1, "down_scale_factor": 1,
        "embedding_size": 128, "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0, "inner_group_num": 1, "model_type": "albert",
        "net_structure_type": 0, "num_hidden_groups": 1, "num_memory_blocks": 0,
        "type_vocab_size": 2, "vocab_size": 30000,
    },
    "electra-base-discriminator": _BERT_BASE | {
        "architectures": ["ElectraForPreTraining"], "embedding_size": 768,
        "model_type": "electra", "summary_activation": "gelu", "summary_last_dropout": 0.1,
        "summary_type": "first", "summary_use_proj": True, "type_vocab_size": 2,
    },
    "camembert-base": _BERT_BASE | {
        "architectures": ["CamembertForMaskedLM"], "bos_token_id": 5, "eos_token_id": 6,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "camembert",
        "output_past": True, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 32005,
    },
    "all-mpnet-base-v2": _BERT_BASE | {
        "architectures": ["MPNetForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "mpnet",
        "pad_token_id": 1, "relative_attention_num_buckets": 32, "vocab_size": 30527,
    },
    "deberta-v3-base": _BERT_BASE | {
        "layer_norm_eps": 1e-07, "max_relative_positions": -1, "model_type": "deberta-v2",
        "norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "position_biased_input": False,
        "position_buckets": 256, "relative_attention": True, "share_att_key": True,
        "type_vocab_size": 0, "vocab_size": 128100,
    },
    "ModernBERT-base": {
        "architectures": ["ModernBertForMaskedLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 50281, "classifier_activation": "gelu",
        "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
        "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
        "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "gradient_checkpointing": False,
        "hidden_activation": "gelu", "hidden_size": 768, "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02, "intermediate_size": 1152, "layer_norm_eps": 1e-05,
        "local_attention": 128, "local_rope_theta": 10000.0, "max_position_embeddings": 8192,
        "mlp_bias": False, "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False,
        "norm_eps": 1e-05, "num_attention_heads": 12, "num_hidden_layers": 22,
        "pad_token_id": 50283, "position_embedding_type": "absolute", "reference_compile": None,
        "sep_token_id": 50282, "tie_word_embeddings": True, "vocab_size": 50368,
    },
    "dinov2-base": {
        "apply_layernorm": True, "architectures": ["Dinov2Model"],
        "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 518,
        "initializer_range": 0.02, "layer_norm_eps": 1e-06, "layerscale_value": 1.0,
        "mlp_ratio": 4, "model_type": "dinov2", "num_attention_heads": 12, "num_channels": 3,
        "num_hidden_layers": 12, "out_features": ["stage12"], "out_indices": [12],
        "patch_size": 14, "qkv_bias": True, "reshape_hidden_states": True,
        "stage_names": ["stem", "stage1"], "use_swiglu_ffn": False,
    },
    "swin-tiny-patch4-window7-224": {
        "architectures": ["SwinForImageClassification"], "attention_probs_dropout_prob": 0.0,
        "depths": [2, 2, 6, 2], "drop_path_rate": 0.1, "embed_dim": 96, "encoder_stride": 32,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "id2label": _STAGED["id2label"],
        "image_size": 224, "initializer_range": 0.02, "layer_norm_eps": 1e-05, "mlp_ratio": 4.0,
        "model_type": "swin", "num_channels": 3, "num_heads": [3, 6, 12, 24], "num_layers": 4,
        "patch_size": 4, "path_norm": True, "qkv_bias": True, "use_absolute_embeddings": False,
        "window_size": 7,
    },
    "resnet-50": _STAGED | {
        "architectures": ["ResNetForImageClassification"], "downsample_in_first_stage": False,
        "embedding_size": 64, "hidden_act": "relu", "layer_type": "bottleneck",
        "model_type": "resnet",
    },
    "convnext-tiny-224": _STAGED | {
        "architectures": ["ConvNextForImageClassification"], "depths": [3, 3, 9, 3],
        "drop_path_rate": 0.0, "hidden_act": "gelu", "hidden_sizes": [96, 192, 384, 768],
        "image_size": 224, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
        "layer_scale_init_value": 1e-06, "model_type": "convnext", "num_stages": 4,
        "patch_size": 4,
    },
    "clip-vit-base-patch32": {
        "architectures": ["CLIPModel"], "initializer_factor": 1.0,
        "logit_scale_init_value": 2.6592, "model_type": "clip", "projection_dim": 512,
        "text_config": _OLD_TOWER | {
            "hidden_size": 512, "intermediate_size": 2048, "max_position_embeddings": 77,
            "model_type": "clip_text_model", "num_attention_heads": 8, "num_hidden_layers": 12,
            "vocab_size": 49408,
        },
        "text_config_dict": None, "torch_dtype": "float32", "transformers_version": None,
        "vision_config": _OLD_TOWER | {
            "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
            "model_type": "clip_vision_model", "num_attention_heads": 12,
            "num_hidden_layers": 12, "patch_size": 32,
        },
        "vision_config_dict": None,
    },
    "siglip-base-patch16-224": {
        "architectures": ["SiglipModel"], "initializer_factor": 1.0, "model_type": "siglip",
        "text_config": {"model_type": "siglip_text_model"},
        "vision_config": {"model_type": "siglip_vision_model"},
    },
}  # fmt: skip
"""The configs of models that are published."""
COUNTS = {
    "bart-base": 139_420_416,
    "mbart-large-50": 611_129_542,
    "mt5-small": 300_176_768,
    "whisper-tiny": 37_760_640,
    "albert-base-v2": 11_221_680,
    "electra-base-discriminator": 109_483_009,
    "camembert-base": 110_655_493,
    "all-mpnet-base-v2": 109_518_527,
    "deberta-v3-base": 183_831_552,
    "ModernBERT-base": 149_655_232,
    "dinov2-base": 86_579_712,
    "swin-tiny-patch4-window7-224": 28_509_246,
    "resnet-50": 25_610_152,
    "convnext-tiny-224": 28_589_128,
    "clip-vit-base-patch32": 151_277_312,
    "siglip-base-patch16-224": 203_155_968,
}
"""Numbers of their parameters, with running statistics and the masks of rolled windows."""
