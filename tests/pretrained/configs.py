"""A small config of every family, as a config.json has it."""

from tests.pretrained import further_models

WORDS = 20
_TEXT = {
    "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32,
    "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": WORDS,
}  # fmt: skip
_DECODER = _TEXT | {"num_key_value_heads": 2, "rms_norm_eps": 1e-6, "head_dim": 4}
_SCALED = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "beta_fast": 32.0}
_ENCODER = _TEXT | {"hidden_dropout_prob": 0.1, "num_hidden_layers": 1}
_KINDS = ["sliding_attention", "full_attention"]
_IMAGE = {
    "hidden_size": 16, "image_size": 8, "intermediate_size": 24, "num_attention_heads": 4,
    "num_hidden_layers": 1, "patch_size": 4,
}  # fmt: skip

CONFIGS = {
    "llama": _DECODER | {"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    "mistral": _DECODER | {"architectures": ["MistralForCausalLM"], "sliding_window": 4},
    "qwen2": _DECODER | {"architectures": ["Qwen2ForCausalLM"], "rope_parameters": _SCALED},
    "qwen3": _DECODER | {"architectures": ["Qwen3ForCausalLM"], "layer_types": _KINDS[1:] * 2},
    "gemma2": _DECODER | {"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 4},
    "gemma3_text": _DECODER | {"architectures": ["Gemma3ForCausalLM"], "layer_types": _KINDS},
    "olmo2": _DECODER | {"architectures": ["Olmo2ForCausalLM"]},
    "phi3": _DECODER | {"architectures": ["Phi3ForCausalLM"], "resid_pdrop": 0.1},
    "gemma": _DECODER | {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"},
    "smollm3": _DECODER | {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0],
                           "pad_token_id": 0},
    "granite": _DECODER | {"architectures": ["GraniteForCausalLM"], "logits_scaling": 8.0,
                           "residual_multiplier": 0.5},
    "olmo": _TEXT | {"architectures": ["OlmoForCausalLM"], "clip_qkv": None},
    "olmo3": _DECODER | {"architectures": ["Olmo3ForCausalLM"], "layer_types": _KINDS},
    "phi": _TEXT | {"architectures": ["PhiForCausalLM"], "partial_rotary_factor": 0.5},
    "stablelm": _TEXT | {"architectures": ["StableLmForCausalLM"], "num_key_value_heads": 2,
                         "partial_rotary_factor": 0.5, "use_qkv_bias": True},
    "starcoder2": _TEXT | {"architectures": ["Starcoder2ForCausalLM"], "sliding_window": 4,
                           "residual_dropout": 0.1},
    "cohere": _TEXT | {"architectures": ["CohereForCausalLM"], "logit_scale": 0.25},
    "cohere2": _TEXT | {"architectures": ["Cohere2ForCausalLM"], "sliding_window": 4,
                        "sliding_window_pattern": 2},
    "mixtral": _DECODER | {"architectures": ["MixtralForCausalLM"], "num_local_experts": 4},
    "qwen2_moe": _DECODER | {
        "architectures": ["Qwen2MoeForCausalLM"], "moe_intermediate_size": 8, "num_experts": 6,
        "shared_expert_intermediate_size": 8,
    },
    "qwen3_moe": _DECODER | {
        "architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0], "num_experts": 8,
        "moe_intermediate_size": 8,
    },
    "olmoe": _TEXT | {
        "architectures": ["OlmoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2,
    },
    "gpt_neox": _TEXT | {"architectures": ["GPTNeoXForCausalLM"], "rotary_pct": 0.5},
    "gpt_neo": {
        "architectures": ["GPTNeoForCausalLM"], "attention_types": [[["global", "local"], 1]],
        "hidden_size": 16, "max_position_embeddings": 32, "num_heads": 4, "num_layers": 2,
        "vocab_size": WORDS, "window_size": 4,
    },
    "gptj": {
        "architectures": ["GPTJForCausalLM"], "n_embd": 16, "n_head": 4, "n_layer": 2,
        "n_positions": 32, "rotary_dim": 2, "vocab_size": WORDS,
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"], "hidden_size": 16, "max_position_embeddings": 32,
        "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": WORDS,
    },
    "gpt_bigcode": {
        "architectures": ["GPTBigCodeForCausalLM"], "n_embd": 16, "n_head": 4, "n_layer": 2,
        "n_positions": 32, "vocab_size": WORDS,
    },
    "mpt": {
        "architectures": ["MptForCausalLM"], "attn_config": {"attn_pdrop": 0.1}, "d_model": 16,
        "max_seq_len": 32, "n_heads": 4, "n_layers": 2, "vocab_size": WORDS,
    },
    "codegen": {
        "architectures": ["CodeGenForCausalLM"], "n_embd": 16, "n_head": 4, "n_layer": 2,
        "n_positions": 32, "rotary_dim": 2, "vocab_size": WORDS,
    },
    "granitemoe": _DECODER | {
        "architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 4, "logits_scaling": 2.0,
    },
    "bloom": {
        "architectures": ["BloomForCausalLM"], "n_embed": 16, "n_layer": 2, "vocab_size": WORDS,
        "num_attention_heads": 4, "offset_alibi": 100,
    },
    "opt": {
        "architectures": ["OPTForCausalLM"], "ffn_dim": 24, "hidden_size": 16,
        "max_position_embeddings": 32, "num_attention_heads": 4, "num_hidden_layers": 2,
        "vocab_size": WORDS, "word_embed_proj_dim": 8,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_head": 4, "n_layer": 2,
        "n_positions": 32, "vocab_size": WORDS,
    },
    "bert": _ENCODER | {"architectures": ["BertModel"], "type_vocab_size": 2, "pad_token_id": 0},
    "roberta": _ENCODER | {"architectures": ["RobertaForMaskedLM"], "pad_token_id": 1},
    "xlm-roberta": _ENCODER | {"architectures": ["XLMRobertaModel"], "type_vocab_size": 1},
    "distilbert": {
        "architectures": ["DistilBertForSequenceClassification"], "dim": 16, "hidden_dim": 24,
        "id2label": {"0": "no", "1": "yes", "2": "perhaps"}, "n_heads": 4, "n_layers": 1,
        "vocab_size": WORDS,
    },
    "t5": {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 24, "d_kv": 4, "d_model": 16,
        "num_heads": 4, "num_layers": 1, "vocab_size": WORDS,
    },
    "vit": _IMAGE | {"architectures": ["ViTForImageClassification"]},
    "deit": _IMAGE | {"architectures": ["DeiTForImageClassificationWithTeacher"]},
}  # fmt: skip
CONFIGS |= further_models.CONFIGS
CONFIGS = {kind: config | {"model_type": kind} for kind, config in CONFIGS.items()}
