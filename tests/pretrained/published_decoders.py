"""The config.json of published decoders, by their names on Hugging Face's hub."""

_GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": None,
    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}  # fmt: skip
_NEO = {
    "activation_function": "gelu_new", "architectures": ["GPTNeoForCausalLM"],
    "attention_dropout": 0, "attention_layers": ["global", "local"] * 6,
    "attention_types": [[["global", "local"], 6]], "bos_token_id": 50256, "embed_dropout": 0,
    "eos_token_id": 50256, "gradient_checkpointing": False, "hidden_size": 768,
    "initializer_range": 0.02, "intermediate_size": None, "layer_norm_epsilon": 1e-05,
    "max_position_embeddings": 2048, "model_type": "gpt_neo", "num_heads": 12, "num_layers": 12,
    "resid_dropout": 0, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "use_cache": True, "vocab_size": 50257, "window_size": 256,
}  # fmt: skip
_GPTJ = {
    "activation_function": "gelu_new", "architectures": ["GPTJForCausalLM"], "attn_pdrop": 0.0,
    "bos_token_id": 50256, "embd_pdrop": 0.0, "eos_token_id": 50256,
    "gradient_checkpointing": False, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gptj", "n_embd": 4096, "n_head": 16, "n_inner": None, "n_layer": 28,
    "n_positions": 2048, "resid_pdrop": 0.0, "rotary": True, "rotary_dim": 64,
    "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "temperature": 1.0}},
    "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer",
    "transformers_version": "4.18.0.dev0", "use_cache": True, "vocab_size": 50400,
}  # fmt: skip
_NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "bos_token_id": 0, "eos_token_id": 0,
    "hidden_act": "gelu", "hidden_size": 768, "initializer_range": 0.02,
    "intermediate_size": 3072, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 12, "num_hidden_layers": 12,
    "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False,
    "torch_dtype": "float16", "transformers_version": "4.24.0", "use_cache": True,
    "use_parallel_residual": True, "vocab_size": 50304,
}  # fmt: skip
_NEOX_20B = {key: value for key, value in _NEOX.items() if key != "use_parallel_residual"} | {
    "attention_probs_dropout_prob": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0,
    "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
    "num_hidden_layers": 44, "vocab_size": 50432,
}  # fmt: skip
_OPT = {
    "_name_or_path": "facebook/opt-125m", "_remove_final_layer_norm": False,
    "activation_dropout": 0.0, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0, "bos_token_id": 2, "do_layer_norm_before": True, "dropout": 0.1,
    "eos_token_id": 2, "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0,
    "max_position_embeddings": 2048, "model_type": "opt", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16",
    "transformers_version": "4.21.0.dev0", "use_cache": True, "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}  # fmt: skip
_BLOOM = {
    "apply_residual_connection_post_layernorm": False, "architectures": ["BloomForCausalLM"],
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "model_type": "bloom",
    "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16,
    "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "skip_bias_add": True,
    "skip_bias_add_qkv": False, "slow_but_exact": False, "transformers_version": "4.20.0",
    "unk_token_id": 0, "use_cache": True, "vocab_size": 250880,
}  # fmt: skip
_FALCON = {
    "alibi": False, "apply_residual_connection_post_layernorm": False,
    "architectures": ["FalconForCausalLM"], "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}, "bias": False,
    "bos_token_id": 11, "eos_token_id": 11, "hidden_dropout": 0.0, "hidden_size": 4544,
    "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "falcon",
    "multi_query": True, "new_decoder_architecture": False, "num_attention_heads": 71,
    "num_hidden_layers": 32, "parallel_attn": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.27.4", "use_cache": True, "vocab_size": 65024,
}  # fmt: skip
_FALCON_RW = _FALCON | {
    "alibi": True, "bias": True, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 2048,
    "multi_query": False, "num_attention_heads": 32, "num_hidden_layers": 24,
    "parallel_attn": False, "vocab_size": 50304,
}  # fmt: skip
_BIGCODE = {
    "activation_function": "gelu_pytorch_tanh", "architectures": ["GPTBigCodeForCausalLM"],
    "attention_softmax_in_fp32": True, "attn_pdrop": 0.1, "bos_token_id": 0, "embd_pdrop": 0.1,
    "eos_token_id": 0, "inference_runner": 0, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "max_batch_size": None, "max_sequence_length": None,
    "model_type": "gpt_bigcode", "multi_query": True, "n_embd": 2048, "n_head": 16,
    "n_inner": 8192, "n_layer": 24, "n_positions": 8192, "pad_key_length": True,
    "pre_allocate_kv_cache": False, "resid_pdrop": 0.1, "scale_attention_softmax_in_fp32": True,
    "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "transformers_version": "4.28.1", "use_cache": True, "validate_runner_input": True,
    "vocab_size": 49152,
}  # fmt: skip
_MPT = {
    "architectures": ["MPTForCausalLM"],
    "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
        "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None,
        "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
    },
    "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "d_model": 4096,
    "emb_pdrop": 0, "embedding_fraction": 1.0, "expansion_ratio": 4, "init_config": {
        "emb_init_std": None, "emb_init_uniform_lim": None, "fan_mode": "fan_in",
        "init_div_is_residual": True, "init_gain": 0, "init_nonlinearity": "relu",
        "init_std": 0.02, "name": "kaiming_normal_", "verbose": 0,
    },
    "init_device": "cpu", "learned_pos_emb": True, "logit_scale": None, "max_seq_len": 2048,
    "model_type": "mpt", "n_heads": 32, "n_layers": 32, "no_bias": True,
    "norm_type": "low_precision_layernorm", "resid_pdrop": 0,
    "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16",
    "transformers_version": "4.28.1", "use_cache": False, "verbose": 0, "vocab_size": 50432,
}  # fmt: skip
_CODEGEN = {
    "activation_function": "gelu_new", "architectures": ["CodeGenForCausalLM"],
    "attn_pdrop": 0.0, "bos_token_id": 1, "embd_pdrop": 0.0, "eos_token_id": 50256,
    "gradient_checkpointing": False, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "codegen", "n_ctx": 2048, "n_embd": 1024, "n_head": 16, "n_inner": None,
    "n_layer": 20, "n_positions": 2048, "resid_pdrop": 0.0, "rotary_dim": 32,
    "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "tie_word_embeddings": False, "tokenizer_class": "GPT2Tokenizer", "torch_dtype": "float16",
    "transformers_version": "4.19.0.dev0", "use_cache": True, "vocab_size": 51200,
}  # fmt: skip
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
    "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
_LLAMA_31 = _LLAMA | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "intermediate_size": 14336,
    "max_position_embeddings": 131072, "mlp_bias": False, "num_key_value_heads": 8,
    "rope_scaling": {
        "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "torch_dtype": "bfloat16", "vocab_size": 128256,
}  # fmt: skip
_LLAMA_32 = _LLAMA_31 | {
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "rope_scaling": _LLAMA_31["rope_scaling"] | {"factor": 32.0}, "tie_word_embeddings": True,
}  # fmt: skip
_SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 0, "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576,
    "initializer_range": 0.041666666666666664, "intermediate_size": 1536, "is_llama_config": True,
    "max_position_embeddings": 8192, "model_type": "llama", "num_attention_heads": 9,
    "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
    "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
_SMOLLM3 = {
    "architectures": ["SmolLM3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": None, "eos_token_id": 128012, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 11008, "layer_types": ["full_attention"] * 36,
    "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
    "model_type": "smollm3", "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9,
    "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
    "pad_token_id": 128004, "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 5000000.0, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0", "use_cache": False,
    "use_sliding_window": False, "vocab_size": 128256,
}  # fmt: skip
_MISTRAL = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
}  # fmt: skip
_MIXTRAL = _MISTRAL | {
    "architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "model_type": "mixtral",
    "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
    "transformers_version": "4.36.0.dev0", "use_cache": True,
}  # fmt: skip
_QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02,
    "intermediate_size": 4864, "max_position_embeddings": 32768, "max_window_layers": 24,
    "model_type": "qwen2", "num_attention_heads": 14, "num_hidden_layers": 24,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
_DISTILLED = _QWEN25 | {
    "hidden_size": 1536, "intermediate_size": 8960, "max_position_embeddings": 131072,
    "max_window_layers": 21, "num_attention_heads": 12, "num_hidden_layers": 28,
    "rope_theta": 10000, "sliding_window": 4096, "tie_word_embeddings": False,
}  # fmt: skip
_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 1024, "initializer_range": 0.02, "intermediate_size": 3072,
    "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.51.0",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
_QWEN2_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "max_position_embeddings": 8192,
    "max_window_layers": 21, "model_type": "qwen2_moe", "moe_intermediate_size": 1408,
    "norm_topk_prob": False, "num_attention_heads": 16, "num_experts": 60,
    "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
    "sliding_window": 32768, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.39.0.dev0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
_QWEN3_MOE = _QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"], "decoder_sparse_step": 1, "hidden_size": 2048,
    "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": False,
    "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "tie_word_embeddings": False,
}  # fmt: skip
_GEMMA = {
    "architectures": ["GemmaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256, "hidden_act": "gelu",
    "hidden_activation": None, "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 16384, "max_position_embeddings": 8192, "model_type": "gemma",
    "num_attention_heads": 8, "num_hidden_layers": 18, "num_key_value_heads": 1,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 10000.0,
    "torch_dtype": "bfloat16", "transformers_version": "4.38.0.dev0", "use_cache": True,
    "vocab_size": 256000,
}  # fmt: skip
_GEMMA2 = {
    "architectures": ["Gemma2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": 50.0, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": 1, "final_logit_softcapping": 30.0, "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304, "initializer_range": 0.02, "intermediate_size": 9216,
    "max_position_embeddings": 8192, "model_type": "gemma2", "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "pad_token_id": 0,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4",
    "use_cache": True, "vocab_size": 256000,
}  # fmt: skip
_GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attn_logit_softcapping": None, "bos_token_id": 2, "cache_implementation": "hybrid",
    "eos_token_id": [1, 106], "final_logit_softcapping": None, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152, "initializer_range": 0.02,
    "intermediate_size": 6912, "max_position_embeddings": 32768, "model_type": "gemma3_text",
    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    "transformers_version": "4.50.0.dev0", "use_cache": True, "vocab_size": 262144,
}  # fmt: skip
_GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {
        "head_dim": 256, "hidden_size": 2560, "intermediate_size": 10240,
        "model_type": "gemma3_text", "num_attention_heads": 8, "num_hidden_layers": 34,
        "num_key_value_heads": 4, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024, "vocab_size": 262208,
    },
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
        "model_type": "siglip_vision_model", "num_attention_heads": 16, "num_hidden_layers": 27,
        "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
_PHI = {
    "architectures": ["PhiForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 50256,
    "embd_pdrop": 0.0, "eos_token_id": 50256, "hidden_act": "gelu_new", "hidden_size": 2560,
    "initializer_range": 0.02, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048, "model_type": "phi", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "partial_rotary_factor": 0.4,
    "qk_layernorm": False, "resid_pdrop": 0.1, "rope_scaling": None, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.37.0",
    "use_cache": True, "vocab_size": 51200,
}  # fmt: skip
_PHI3 = {
    "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"],
    "attention_bias": False, "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "bos_token_id": 1,
    "embd_pdrop": 0.0, "eos_token_id": 32000, "hidden_act": "silu", "hidden_size": 3072,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "phi3", "num_attention_heads": 32, "num_hidden_layers": 32,
    "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "pad_token_id": 32000,
    "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0,
    "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.2", "use_cache": True, "vocab_size": 32064,
}  # fmt: skip
_PHI35 = _PHI3 | {
    "_name_or_path": "Phi-3.5-mini-instruct", "max_position_embeddings": 131072,
    "rope_scaling": {
        "long_factor": [1.08 + 1.32 * k for k in range(48)],
        "short_factor": [1.0 + 0.04 * k for k in range(48)], "type": "longrope",
    },
    "sliding_window": 262144,
}  # fmt: skip
_PHI4 = _PHI3 | {
    "_name_or_path": "Phi-4", "bos_token_id": 100257, "eos_token_id": 100265,
    "hidden_size": 5120, "intermediate_size": 17920, "max_position_embeddings": 16384,
    "num_attention_heads": 40, "num_hidden_layers": 40, "num_key_value_heads": 10,
    "original_max_position_embeddings": 16384, "pad_token_id": 100349, "rope_theta": 250000,
    "sliding_window": None, "vocab_size": 100352,
}  # fmt: skip
_PHI4_MINI = _PHI35 | {
    "_name_or_path": "Phi-4-mini-instruct", "bos_token_id": 199999, "eos_token_id": 199999,
    "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "mlp_bias": False,
    "num_attention_heads": 24, "num_key_value_heads": 8, "pad_token_id": 199999,
    "partial_rotary_factor": 0.75, "tie_word_embeddings": True, "vocab_size": 200064,
}  # fmt: skip
_STABLELM = {
    "architectures": ["StableLmForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 100257,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 5632, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 4096, "model_type": "stablelm", "num_attention_heads": 32,
    "num_hidden_layers": 24, "num_key_value_heads": 32, "partial_rotary_factor": 0.25,
    "qk_layernorm": False, "rope_scaling": None, "rope_theta": 10000,
    "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.38.0",
    "use_cache": True, "use_parallel_residual": False, "use_qkv_bias": True,
    "vocab_size": 100352,
}  # fmt: skip
_STARCODER2 = {
    "activation_function": "gelu", "architectures": ["Starcoder2ForCausalLM"],
    "attention_dropout": 0.1, "attention_softmax_in_fp32": True, "bos_token_id": 0,
    "embedding_dropout": 0.1, "eos_token_id": 0, "hidden_act": "gelu_pytorch_tanh",
    "hidden_size": 3072, "initializer_range": 0.018042, "intermediate_size": 12288,
    "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384, "mlp_type": "default",
    "model_type": "starcoder2", "norm_epsilon": 1e-05, "norm_type": "layer_norm",
    "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2,
    "residual_dropout": 0.1, "rope_theta": 999999.4420358813,
    "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True, "sliding_window": 4096,
    "torch_dtype": "bfloat16", "transformers_version": "4.37.0.dev0", "use_bias": True,
    "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
_GRANITE = {
    "architectures": ["GraniteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "logits_scaling": 8.0, "max_position_embeddings": 131072,
    "mlp_bias": False, "model_type": "granite", "num_attention_heads": 32,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
    "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": None,
    "rope_theta": 10000000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.49.0", "use_cache": True, "vocab_size": 49159,
}  # fmt: skip
_OLMO2 = {
    "architectures": ["Olmo2ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "eos_token_id": 100257, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "model_type": "olmo2", "num_attention_heads": 16, "num_hidden_layers": 16,
    "num_key_value_heads": 16, "pad_token_id": 100277, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 500000, "tie_word_embeddings": False,
    "torch_dtype": "float32", "transformers_version": "4.47.0", "use_cache": True,
    "vocab_size": 100352,
}  # fmt: skip
_OLMO3 = _OLMO2 | {
    "architectures": ["Olmo3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 8,
    "max_position_embeddings": 65536, "model_type": "olmo3", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32,
    "rope_scaling": {
        "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
        "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn",
    },
    "sliding_window": 4096, "vocab_size": 100278,
}  # fmt: skip
_COHERE = {
    "architectures": ["CohereForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 5, "eos_token_id": 255001, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 14336, "layer_norm_eps": 1e-05,
    "logit_scale": 0.125, "max_position_embeddings": 8192, "model_type": "cohere",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "pad_token_id": 0, "rope_theta": 10000, "torch_dtype": "float16",
    "transformers_version": "4.44.0", "use_cache": True, "use_qk_norm": False,
    "vocab_size": 256000,
}  # fmt: skip

CONFIGS = {
    "openai-community/gpt2": _GPT2,
    "distilbert/distilgpt2": _GPT2 | {
        "_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
        "n_layer": 6,
    },
    "EleutherAI/gpt-neo-125m": _NEO,
    "EleutherAI/gpt-j-6b": _GPTJ,
    "EleutherAI/gpt-neox-20b": _NEOX_20B,
    "EleutherAI/pythia-160m": _NEOX,
    "facebook/opt-125m": _OPT,
    "facebook/opt-350m": _OPT | {
        "_name_or_path": "opt-350m", "do_layer_norm_before": False, "ffn_dim": 4096,
        "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 24,
        "word_embed_proj_dim": 512,
    },
    "bigscience/bloom-560m": _BLOOM,
    "tiiuae/falcon-7b": _FALCON,
    "tiiuae/falcon-rw-1b": _FALCON_RW,
    "tiiuae/Falcon3-1B-Instruct": _LLAMA | {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 11,
        "eos_token_id": 11, "head_dim": 256, "hidden_size": 2048, "intermediate_size": 8192,
        "max_position_embeddings": 8192, "mlp_bias": False, "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
        "rope_theta": 1000042, "torch_dtype": "bfloat16", "vocab_size": 131072,
    },
    "bigcode/starcoderbase-1b": _BIGCODE,
    "mosaicml/mpt-7b": _MPT,
    "Salesforce/codegen-350M-mono": _CODEGEN,
    "meta-llama/Llama-2-7b-hf": _LLAMA,
    "meta-llama/Llama-3.1-8B-Instruct": _LLAMA_31,
    "meta-llama/Llama-3.2-1B": _LLAMA_32,
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _LLAMA | {
        "attention_bias": False, "hidden_size": 2048, "intermediate_size": 5632,
        "max_position_embeddings": 2048, "num_hidden_layers": 22, "num_key_value_heads": 4,
        "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    },
    "HuggingFaceTB/SmolLM2-135M": _SMOLLM2,
    "HuggingFaceTB/SmolLM3-3B": _SMOLLM3,
    "01-ai/Yi-6B": _LLAMA | {
        "num_key_value_heads": 4, "pad_token_id": 0, "rms_norm_eps": 1e-05,
        "rope_theta": 5000000.0, "torch_dtype": "bfloat16", "vocab_size": 64000,
    },
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _DISTILLED,
    "deepseek-ai/deepseek-coder-1.3b-instruct": _LLAMA | {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 32013,
        "eos_token_id": 32021, "hidden_size": 2048, "intermediate_size": 5504,
        "max_position_embeddings": 16384, "num_attention_heads": 16, "num_hidden_layers": 24,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-06,
        "rope_scaling": {"factor": 4.0, "type": "linear"}, "rope_theta": 100000,
        "torch_dtype": "bfloat16", "vocab_size": 32256,
    },
    "mistralai/Mistral-7B-v0.1": _MISTRAL,
    "mistralai/Mixtral-8x7B-Instruct-v0.1": _MIXTRAL,
    "Qwen/Qwen2.5-0.5B": _QWEN25,
    "Qwen/Qwen3-0.6B": _QWEN3,
    "Qwen/Qwen3-Embedding-0.6B": _QWEN3 | {
        "eos_token_id": 151643, "max_position_embeddings": 32768, "vocab_size": 151669,
    },
    "Qwen/Qwen1.5-MoE-A2.7B": _QWEN2_MOE,
    "Qwen/Qwen3-30B-A3B": _QWEN3_MOE,
    "google/gemma-2b": _GEMMA,
    "google/gemma-2-2b": _GEMMA2,
    "google/gemma-3-1b-it": _GEMMA3,
    "google/gemma-3-4b-it": _GEMMA3_4B,
    "microsoft/phi-2": _PHI,
    "microsoft/Phi-3-mini-4k-instruct": _PHI3,
    "microsoft/Phi-3.5-mini-instruct": _PHI35,
    "microsoft/phi-4": _PHI4,
    "microsoft/Phi-4-mini-instruct": _PHI4_MINI,
    "stabilityai/stablelm-2-1_6b": _STABLELM,
    "bigcode/starcoder2-3b": _STARCODER2,
    "ibm-granite/granite-3.3-2b-instruct": _GRANITE,
    "allenai/OLMo-2-0425-1B": _OLMO2,
    "allenai/Olmo-3-7B-Instruct": _OLMO3,
    "CohereLabs/aya-expanse-8b": _COHERE,
}  # fmt: skip
