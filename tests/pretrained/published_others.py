"""The config.json of published encoders, encoder-decoders and models of images."""

_SMALL_TOWER = {
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
_BERT = {
    "architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
    "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2, "use_cache": True, "vocab_size": 30522,
}  # fmt: skip
_OLD_POOLER = {
    "directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3, "pooler_size_per_head": 128, "pooler_type": "first_token_transform",
}  # fmt: skip
_MINILM = _BERT | {
    "architectures": ["BertModel"], "hidden_size": 384, "intermediate_size": 1536,
    "num_hidden_layers": 6,
}  # fmt: skip
_ROBERTA = _BERT | {
    "architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
    "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 50265,
}  # fmt: skip
_XLM = _ROBERTA | {
    "architectures": ["XLMRobertaForMaskedLM"], "model_type": "xlm-roberta", "output_past": True,
    "vocab_size": 250002,
}  # fmt: skip
_XLM_LARGE = _XLM | {
    "architectures": ["XLMRobertaModel"], "classifier_dropout": None, "hidden_size": 1024,
    "intermediate_size": 4096, "num_attention_heads": 16, "num_hidden_layers": 24,
}  # fmt: skip
_DISTILBERT = {
    "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
    "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
    "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12, "n_layers": 6,
    "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
    "sinusoidal_pos_embds": False, "tie_weights_": True, "transformers_version": "4.10.0.dev0",
    "vocab_size": 30522,
}  # fmt: skip
_ALBERT = {
    "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 2,
    "classifier_dropout_prob": 0.1, "down_scale_factor": 1, "embedding_size": 128,
    "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new", "hidden_dropout_prob": 0,
    "hidden_size": 768, "initializer_range": 0.02, "inner_group_num": 1,
    "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
    "model_type": "albert", "net_structure_type": 0, "num_attention_heads": 12,
    "num_hidden_groups": 1, "num_hidden_layers": 12, "num_memory_blocks": 0, "pad_token_id": 0,
    "type_vocab_size": 2, "vocab_size": 30000,
}  # fmt: skip
_ELECTRA = {
    "architectures": ["ElectraForPreTraining"], "attention_probs_dropout_prob": 0.1,
    "embedding_size": 768, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512, "model_type": "electra", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 0, "summary_activation": "gelu",
    "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True,
    "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
_CAMEMBERT = {
    "architectures": ["CamembertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 5, "eos_token_id": 6, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "camembert",
    "num_attention_heads": 12, "num_hidden_layers": 12, "output_past": True, "pad_token_id": 1,
    "type_vocab_size": 1, "vocab_size": 32005,
}  # fmt: skip
_MPNET = {
    "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
    "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 514, "model_type": "mpnet", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 1, "relative_attention_num_buckets": 32,
    "transformers_version": "4.8.2", "vocab_size": 30527,
}  # fmt: skip
_DEBERTA = {
    "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-07, "max_position_embeddings": 512, "max_relative_positions": -1,
    "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pos_att_type": "p2c|c2p", "position_biased_input": False,
    "position_buckets": 256, "relative_attention": True, "share_att_key": True,
    "type_vocab_size": 0, "vocab_size": 128100,
}  # fmt: skip
_MODERNBERT = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 50281, "classifier_activation": "gelu",
    "classifier_bias": False, "classifier_dropout": 0.0, "classifier_pooling": "mean",
    "cls_token_id": 50281, "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "eos_token_id": 50282, "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0, "gradient_checkpointing": False, "hidden_activation": "gelu",
    "hidden_size": 768, "initializer_cutoff_factor": 2.0, "initializer_range": 0.02,
    "intermediate_size": 1152, "layer_norm_eps": 1e-05, "local_attention": 128,
    "local_rope_theta": 10000.0, "max_position_embeddings": 8192, "mlp_bias": False,
    "mlp_dropout": 0.0, "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05,
    "num_attention_heads": 12, "num_hidden_layers": 22, "pad_token_id": 50283,
    "position_embedding_type": "absolute", "reference_compile": None, "sep_token_id": 50282,
    "tie_word_embeddings": True, "vocab_size": 50368,
}  # fmt: skip
_T5 = {
    "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-06,
    "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": True,
    "pad_token_id": 0, "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4}}, "vocab_size": 32128,
}  # fmt: skip
_FLAN_T5 = _T5 | {
    "d_ff": 1024, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 8, "num_heads": 6,
    "num_layers": 8, "relative_attention_max_distance": 128, "tie_word_embeddings": False,
}  # fmt: skip
_MT5 = {
    "architectures": ["MT5ForConditionalGeneration"], "d_ff": 1024, "d_kv": 64, "d_model": 512,
    "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06, "model_type": "mt5", "num_decoder_layers": 8, "num_heads": 6,
    "num_layers": 8, "pad_token_id": 0, "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False, "tokenizer_class": "T5Tokenizer", "use_cache": True,
    "vocab_size": 250112,
}  # fmt: skip
_GENERATION = {
    "_num_labels": 3, "early_stopping": True, "forced_eos_token_id": 2, "max_length": 20,
    "no_repeat_ngram_size": 3, "num_beams": 4, "gradient_checkpointing": False,
}  # fmt: skip
_BART = _GENERATION | {
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
}  # fmt: skip
_BART_MNLI = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "gelu",
    "add_final_layer_norm": False, "architectures": ["BartForSequenceClassification"],
    "attention_dropout": 0.0, "bos_token_id": 0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 12,
    "decoder_start_token_id": 2, "dropout": 0.1, "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0, "encoder_layers": 12, "eos_token_id": 2,
    "forced_eos_token_id": 2, "gradient_checkpointing": False,
    "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"}, "init_std": 0.02,
    "is_encoder_decoder": True, "label2id": {"contradiction": 0, "entailment": 2, "neutral": 1},
    "max_position_embeddings": 1024, "model_type": "bart", "normalize_before": False,
    "num_hidden_layers": 12, "output_past": False, "pad_token_id": 1, "scale_embedding": False,
    "transformers_version": "4.7.0.dev0", "use_cache": True, "vocab_size": 50265,
}  # fmt: skip
_MBART = _GENERATION | {
    "activation_dropout": 0.0, "activation_function": "gelu", "add_bias_logits": False,
    "add_final_layer_norm": True, "architectures": ["MBartForConditionalGeneration"],
    "attention_dropout": 0.0, "bos_token_id": 0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 12,
    "decoder_start_token_id": 2, "dropout": 0.1, "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0, "encoder_layers": 12, "eos_token_id": 2,
    "init_std": 0.02, "is_encoder_decoder": True, "max_position_embeddings": 1024,
    "model_type": "mbart", "normalize_before": True, "normalize_embedding": True,
    "num_hidden_layers": 12, "output_past": True, "pad_token_id": 1, "scale_embedding": True,
    "static_position_embeddings": False, "tokenizer_class": "MBart50Tokenizer",
    "use_cache": True, "vocab_size": 250054,
}  # fmt: skip
_MARIAN = {
    "_num_labels": 3, "activation_dropout": 0.0, "activation_function": "swish",
    "add_bias_logits": False, "add_final_layer_norm": False, "architectures": ["MarianMTModel"],
    "attention_dropout": 0.0, "bad_words_ids": [[58100]], "bos_token_id": 0,
    "classif_dropout": 0.0, "classifier_dropout": 0.0, "d_model": 512,
    "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0,
    "decoder_layers": 6, "decoder_start_token_id": 58100, "decoder_vocab_size": 58101,
    "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048,
    "encoder_layerdrop": 0.0, "encoder_layers": 6, "eos_token_id": 0, "forced_eos_token_id": 0,
    "init_std": 0.02, "is_encoder_decoder": True, "max_length": 512,
    "max_position_embeddings": 512, "model_type": "marian", "normalize_before": False,
    "normalize_embedding": False, "num_beams": 6, "num_hidden_layers": 6, "pad_token_id": 58100,
    "scale_embedding": True, "share_encoder_decoder_embeddings": True,
    "static_position_embeddings": True, "transformers_version": "4.22.0.dev0", "use_cache": True,
    "vocab_size": 58101,
}  # fmt: skip
_PEGASUS = {
    "activation_dropout": 0.1, "activation_function": "relu", "add_bias_logits": False,
    "add_final_layer_norm": True, "architectures": ["PegasusForConditionalGeneration"],
    "attention_dropout": 0.1, "bos_token_id": 0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0, "decoder_layers": 16,
    "decoder_start_token_id": 0, "dropout": 0.1, "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0, "encoder_layers": 16, "eos_token_id": 1,
    "extra_pos_embeddings": 0, "force_bos_token_to_be_generated": False,
    "forced_eos_token_id": 1, "gradient_checkpointing": False, "id2label": {"0": "LABEL_0"},
    "init_std": 0.02, "is_encoder_decoder": True, "length_penalty": 0.6, "max_length": 64,
    "max_position_embeddings": 512, "model_type": "pegasus", "normalize_before": True,
    "normalize_embedding": False, "num_beams": 8, "num_hidden_layers": 16, "pad_token_id": 0,
    "scale_embedding": True, "static_position_embeddings": True, "use_cache": True,
    "vocab_size": 96103,
}  # fmt: skip
_WHISPER = {
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
}  # fmt: skip
_THOUSAND = {str(k): f"class {k}" for k in range(1000)}
_VIT = {
    "architectures": ["ViTForImageClassification"], "attention_probs_dropout_prob": 0.0,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 768, "id2label": _THOUSAND,
    "image_size": 224, "initializer_range": 0.02, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "model_type": "vit", "num_attention_heads": 12, "num_channels": 3,
    "num_hidden_layers": 12, "patch_size": 16, "qkv_bias": True,
}  # fmt: skip
_NSFW = _VIT | {
    "encoder_stride": 16, "id2label": {"0": "normal", "1": "nsfw"},
    "label2id": {"normal": "0", "nsfw": "1"}, "problem_type": "single_label_classification",
    "torch_dtype": "float32", "transformers_version": "4.31.0",
}  # fmt: skip
_DEIT = _VIT | {
    "architectures": ["DeiTForImageClassificationWithTeacher"], "model_type": "deit",
    "transformers_version": "4.6.0.dev0",
}  # fmt: skip
_BEIT = {key: value for key, value in _VIT.items() if key != "qkv_bias"} | {
    "architectures": ["BeitForImageClassification"], "auxiliary_channels": 256,
    "auxiliary_concat_input": False, "auxiliary_loss_weight": 0.4, "auxiliary_num_convs": 1,
    "drop_path_rate": 0.1, "gradient_checkpointing": False, "layer_scale_init_value": 0.1,
    "model_type": "beit", "out_indices": [3, 5, 7, 11], "pool_scales": [1, 2, 3, 6],
    "semantic_loss_ignore_index": 255, "torch_dtype": "float32",
    "transformers_version": "4.11.0.dev0", "use_absolute_position_embeddings": False,
    "use_auxiliary_head": True, "use_mask_token": False, "use_mean_pooling": True,
    "use_relative_position_bias": True, "use_shared_relative_position_bias": False,
    "vocab_size": 8192,
}  # fmt: skip
_DINOV2 = {
    "apply_layernorm": True, "architectures": ["Dinov2Model"],
    "attention_probs_dropout_prob": 0.0, "drop_path_rate": 0.0, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0, "hidden_size": 768, "image_size": 518,
    "initializer_range": 0.02, "layer_norm_eps": 1e-06, "layerscale_value": 1.0, "mlp_ratio": 4,
    "model_type": "dinov2", "num_attention_heads": 12, "num_channels": 3,
    "num_hidden_layers": 12, "out_features": ["stage12"], "out_indices": [12], "patch_size": 14,
    "qkv_bias": True, "reshape_hidden_states": True,
    "stage_names": ["stem", *(f"stage{k + 1}" for k in range(12))], "use_swiglu_ffn": False,
}  # fmt: skip
_SWIN = {
    "architectures": ["SwinForImageClassification"], "attention_probs_dropout_prob": 0.0,
    "depths": [2, 2, 6, 2], "drop_path_rate": 0.1, "embed_dim": 96, "encoder_stride": 32,
    "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "id2label": _THOUSAND, "image_size": 224,
    "initializer_range": 0.02, "layer_norm_eps": 1e-05, "mlp_ratio": 4.0, "model_type": "swin",
    "num_channels": 3, "num_heads": [3, 6, 12, 24], "num_layers": 4, "patch_size": 4,
    "path_norm": True, "qkv_bias": True, "use_absolute_embeddings": False, "window_size": 7,
}  # fmt: skip
_RESNET = {
    "architectures": ["ResNetForImageClassification"], "depths": [3, 4, 6, 3],
    "downsample_in_first_stage": False, "embedding_size": 64, "hidden_act": "relu",
    "hidden_sizes": [256, 512, 1024, 2048], "id2label": _THOUSAND, "layer_type": "bottleneck",
    "model_type": "resnet", "num_channels": 3, "torch_dtype": "float32",
    "transformers_version": "4.18.0.dev0",
}  # fmt: skip
_CONVNEXT = {
    "architectures": ["ConvNextForImageClassification"], "depths": [3, 3, 9, 3],
    "drop_path_rate": 0.0, "hidden_act": "gelu", "hidden_sizes": [96, 192, 384, 768],
    "id2label": _THOUSAND, "image_size": 224, "initializer_range": 0.02, "layer_norm_eps": 1e-12,
    "layer_scale_init_value": 1e-06, "model_type": "convnext", "num_channels": 3,
    "num_stages": 4, "patch_size": 4,
}  # fmt: skip
_CLIP_TEXT = {
    "hidden_size": 512, "intermediate_size": 2048, "max_position_embeddings": 77,
    "model_type": "clip_text_model", "num_attention_heads": 8, "num_hidden_layers": 12,
    "vocab_size": 49408,
}  # fmt: skip
_CLIP_VISION = {
    "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
    "model_type": "clip_vision_model", "num_attention_heads": 12, "num_hidden_layers": 12,
    "patch_size": 32,
}  # fmt: skip
_CLIP = {
    "architectures": ["CLIPModel"], "initializer_factor": 1.0, "logit_scale_init_value": 2.6592,
    "model_type": "clip", "projection_dim": 512, "text_config": _SMALL_TOWER | _CLIP_TEXT,
    "text_config_dict": None, "torch_dtype": "float32", "transformers_version": None,
    "vision_config": _SMALL_TOWER | _CLIP_VISION, "vision_config_dict": None,
}  # fmt: skip
_CLIP_LARGE = _CLIP | {
    "projection_dim": 768,
    "text_config": _CLIP["text_config"] | {
        "dropout": 0.0, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "projection_dim": 768,
    },
    "text_config_dict": {
        "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "num_hidden_layers": 12, "projection_dim": 768,
    },
    "vision_config": _CLIP["vision_config"] | {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
    },
    "vision_config_dict": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_hidden_layers": 24, "patch_size": 14, "projection_dim": 768,
    },
}  # fmt: skip
_SIGLIP = {
    "architectures": ["SiglipModel"], "initializer_factor": 1.0, "model_type": "siglip",
    "text_config": {"model_type": "siglip_text_model"}, "torch_dtype": "float32",
    "transformers_version": "4.37.0.dev0", "vision_config": {"model_type": "siglip_vision_model"},
}  # fmt: skip
_FEELINGS = {"0": "negative", "1": "neutral", "2": "positive"}
_NAMED = ["O", "B-MISC", "I-MISC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"]

CONFIGS = {
    "google-bert/bert-base-uncased": _BERT,
    "google-bert/bert-base-multilingual-cased": _BERT | _OLD_POOLER | {"vocab_size": 119547},
    "dslim/bert-base-NER": _BERT | {
        "_num_labels": 9, "architectures": ["BertForTokenClassification"],
        "id2label": {str(k): name for k, name in enumerate(_NAMED)},
        "label2id": {name: k for k, name in enumerate(_NAMED)}, "max_length": 512,
        "output_past": True, "vocab_size": 28996,
    },
    "sentence-transformers/all-MiniLM-L6-v2": _MINILM,
    "cross-encoder/ms-marco-MiniLM-L6-v2": _MINILM | {
        "architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0}, "sentence_transformers": {
            "activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0",
        },
    },
    "BAAI/bge-small-en-v1.5": _MINILM | {
        "classifier_dropout": None, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "num_hidden_layers": 12, "torch_dtype": "float32",
    },
    "BAAI/bge-m3": _XLM_LARGE | {
        "max_position_embeddings": 8194, "position_embedding_type": "absolute",
        "torch_dtype": "float32", "transformers_version": "4.33.0",
    },
    "intfloat/multilingual-e5-large": _XLM_LARGE,
    "FacebookAI/roberta-base": _ROBERTA,
    "cardiffnlp/twitter-roberta-base-sentiment-latest": _ROBERTA | {
        "architectures": ["RobertaForSequenceClassification"], "classifier_dropout": None,
        "id2label": _FEELINGS, "label2id": {name: int(k) for k, name in _FEELINGS.items()},
        "torch_dtype": "float32",
    },
    "deepset/roberta-base-squad2": _ROBERTA | {
        "architectures": ["RobertaForQuestionAnswering"], "language": "english",
        "name": "Roberta",
    },
    "FacebookAI/xlm-roberta-base": _XLM,
    "almanach/camembert-base": _CAMEMBERT,
    "distilbert/distilbert-base-uncased": _DISTILBERT,
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": _DISTILBERT | {
        "architectures": ["DistilBertForSequenceClassification"], "finetuning_task": "sst-2",
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "output_past": True,
    },
    "albert/albert-base-v2": _ALBERT,
    "google/electra-base-discriminator": _ELECTRA,
    "sentence-transformers/all-mpnet-base-v2": _MPNET,
    "microsoft/deberta-v3-base": _DEBERTA,
    "answerdotai/ModernBERT-base": _MODERNBERT,
    "google-t5/t5-small": _T5,
    "google/flan-t5-small": _FLAN_T5,
    "google/mt5-small": _MT5,
    "facebook/bart-base": _BART,
    "facebook/bart-large-mnli": _BART_MNLI,
    "facebook/mbart-large-50": _MBART,
    "Helsinki-NLP/opus-mt-en-de": _MARIAN,
    "google/pegasus-xsum": _PEGASUS,
    "openai/whisper-tiny": _WHISPER,
    "google/vit-base-patch16-224": _VIT,
    "Falconsai/nsfw_image_detection": _NSFW,
    "facebook/deit-base-distilled-patch16-224": _DEIT,
    "microsoft/beit-base-patch16-224": _BEIT,
    "facebook/dinov2-base": _DINOV2,
    "microsoft/swin-tiny-patch4-window7-224": _SWIN,
    "microsoft/resnet-50": _RESNET,
    "microsoft/resnet-18": _RESNET | {
        "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512], "layer_type": "basic",
    },
    "facebook/convnext-tiny-224": _CONVNEXT,
    "openai/clip-vit-base-patch32": _CLIP,
    "openai/clip-vit-large-patch14": _CLIP_LARGE,
    "google/siglip-base-patch16-224": _SIGLIP,
}  # fmt: skip
