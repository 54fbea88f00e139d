"""Small random models of transformers, and what they compute."""

import json
import re

import numpy as np
import pytest

from tests.pretrained import further_models

torch = pytest.importorskip("torch")
save_file = pytest.importorskip("safetensors.torch").save_file
transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

WORDS, STEPS = 48, 9
TEXT = {
    "hidden_size": 32, "intermediate_size": 40, "max_position_embeddings": 64,
    "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": WORDS, "pad_token_id": 0,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
STILL = {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
GEMMA = {"head_dim": 12, "sliding_window": 4, "query_pre_attn_scalar": 20}
ROBERTA = {"type_vocab_size": 1, "pad_token_id": 1}
GPT2 = {
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": WORDS,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DISTILBERT = {
    "dim": 32, "hidden_dim": 40, "n_heads": 4, "n_layers": 2, "vocab_size": WORDS,
    "max_position_embeddings": 64, "dropout": 0.0, "attention_dropout": 0.0,
    "seq_classif_dropout": 0.0,
}  # fmt: skip
T5 = {
    "d_model": 32, "d_kv": 10, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": WORDS,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}  # fmt: skip
IMAGE = {
    "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4, "num_hidden_layers": 2,
    "image_size": [12, 8], "patch_size": 4, "layer_norm_eps": 1e-5,
}  # fmt: skip
THREE = {"num_labels": 3}
FALCON = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 40,
    "max_position_embeddings": 64, "vocab_size": WORDS,
}  # fmt: skip
OPT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
    "max_position_embeddings": 64, "vocab_size": WORDS, "dropout": 0.0,
}  # fmt: skip
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": WORDS}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3}
SMALL = EXPERTS | {"moe_intermediate_size": 20}
SHARED = SMALL | {"shared_expert_intermediate_size": 24}
GPT_NEO = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 64,
    "vocab_size": WORDS, "attention_types": [[["global", "local"], 1]], "window_size": 4,
}  # fmt: skip
MPT = {
    "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64, "vocab_size": WORDS,
    "attn_config": {"softmax_scale": 0.3},
}  # fmt: skip
HALF = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}


def scaled(kind, **more):
    """Positions scaled by 4."""
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, "factor": 4.0, **more}}


MODELS = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "llama tied, biases": (
        "LlamaForCausalLM",
        GROUPED
        | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}, "head_dim": 16},
    ),
    "llama 3.1": (
        "LlamaForCausalLM",
        GROUPED
        | {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 16,
            }
        },
    ),
    "llama, linear": ("LlamaForCausalLM", GROUPED | scaled("linear")),
    "llama, dynamic": (
        "LlamaForCausalLM",
        GROUPED | scaled("dynamic") | {"max_position_embeddings": 6},
    ),
    "llama, yarn": (
        "LlamaForCausalLM",
        GROUPED | scaled("yarn", original_max_position_embeddings=16),
    ),
    "llama without head": ("LlamaModel", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED | {"head_dim": 10, "attention_bias": True}),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "phi3": ("Phi3ForCausalLM", GROUPED | {"sliding_window": None}),
    "phi3, longrope": (
        "Phi3ForCausalLM",
        GROUPED
        | {
            "original_max_position_embeddings": 6,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.5,
                "short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0],
            },
        },
    ),
    "gemma2": (
        "Gemma2ForCausalLM",
        GROUPED | GEMMA | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        GROUPED | GEMMA | {"layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma3, linear": (
        "Gemma3ForCausalLM",
        GROUPED
        | GEMMA
        | {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e4},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "mistral with a window": ("MistralForCausalLM", GROUPED | {"sliding_window": 4}),
    "qwen2 with windows": (
        "Qwen2ForCausalLM",
        GROUPED | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1},
    ),
    "phi3 with a window": ("Phi3ForCausalLM", GROUPED | {"sliding_window": 5}),
    "gemma": ("GemmaForCausalLM", GROUPED | {"head_dim": 12}),
    "smollm3": (
        "SmolLM3ForCausalLM",
        GROUPED | {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 4},
    ),
    "granite": (
        "GraniteForCausalLM",
        GROUPED
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "attention_multiplier": 0.2}
        | {"logits_scaling": 4.0},
    ),
    "olmo": ("OlmoForCausalLM", GROUPED),
    "olmo3": (
        "Olmo3ForCausalLM",
        GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "phi": ("PhiForCausalLM", GROUPED | {"rope_parameters": HALF}),
    "phi without head": ("PhiModel", GROUPED),
    "stablelm": ("StableLmForCausalLM", GROUPED | {"rope_parameters": HALF}),
    "stablelm in parallel": (
        "StableLmForCausalLM",
        GROUPED | {"use_parallel_residual": True, "use_qkv_bias": True},
    ),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED | {"sliding_window": 4}),
    "cohere": ("CohereForCausalLM", GROUPED),
    "cohere2": (
        "Cohere2ForCausalLM",
        GROUPED | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        GROUPED | {"num_local_experts": 5, "sliding_window": 6, "head_dim": 10},
    ),
    "qwen2-moe": ("Qwen2MoeForCausalLM", GROUPED | SHARED | {"norm_topk_prob": True}),
    "qwen2-moe with windows": (
        "Qwen2MoeForCausalLM",
        GROUPED | SHARED | {"use_sliding_window": True, "sliding_window": 4},
    ),
    "qwen3-moe": (
        "Qwen3MoeForCausalLM", GROUPED | SMALL | {"mlp_only_layers": [1], "head_dim": 10},
    ),
    "olmoe": ("OlmoeForCausalLM", GROUPED | EXPERTS),
    "gpt-neox": ("GPTNeoXForCausalLM", TEXT | {"rope_parameters": HALF}),
    "gpt-neox in a row": (
        "GPTNeoXForCausalLM",
        TEXT | {"use_parallel_residual": False, "attention_bias": False},
    ),
    "gpt-neox without head": ("GPTNeoXModel", TEXT),
    "gpt-bigcode": ("GPTBigCodeForCausalLM", GPT2),
    "gpt-bigcode of several": ("GPTBigCodeForCausalLM", GPT2 | {"multi_query": False}),
    "granite-moe": (
        "GraniteMoeForCausalLM",
        GROUPED | {"num_local_experts": 5, "embedding_multiplier": 3.0, "logits_scaling": 4.0},
    ),
    "mpt": ("MptForCausalLM", MPT),
    "mpt of 6 heads": ("MptForCausalLM", MPT | {"n_heads": 6, "d_model": 48}),
    "codegen": ("CodeGenForCausalLM", GPT2 | {"rotary_dim": 4}),
    "gpt-neo": ("GPTNeoForCausalLM", GPT_NEO),
    "gpt-j": ("GPTJForCausalLM", GPT2 | {"rotary_dim": 4}),
    "falcon": ("FalconForCausalLM", FALCON),
    "falcon of 40 B": (
        "FalconForCausalLM",
        FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
    ),
    "falcon of 11 B": (
        "FalconForCausalLM",
        FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ),
    "falcon in a row": (
        "FalconForCausalLM",
        FALCON | {"multi_query": False, "parallel_attn": False, "tie_word_embeddings": False},
    ),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom of 12 heads": ("BloomForCausalLM", BLOOM | {"hidden_size": 48, "n_head": 12}),
    "bloom without head": ("BloomModel", BLOOM),
    "opt": ("OPTForCausalLM", OPT),
    "opt of 350 M": (
        "OPTForCausalLM",
        OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    ),
    "opt without head": ("OPTModel", OPT | {"do_layer_norm_before": False}),
    "roberta": ("RobertaModel", TEXT | STILL | ROBERTA),
    "roberta for words": ("RobertaForMaskedLM", TEXT | STILL | ROBERTA | {"type_vocab_size": 2}),
    "roberta for classes": (
        "RobertaForSequenceClassification",
        TEXT | STILL | ROBERTA | {"num_labels": 3},
    ),
    "xlm-roberta": ("XLMRobertaModel", TEXT | STILL | ROBERTA),
    "mistral": ("MistralForCausalLM", GROUPED | {"sliding_window": None}),
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt2 without head": ("GPT2Model", GPT2),
    "bert": ("BertModel", TEXT | STILL),
    "bert for words": ("BertForMaskedLM", TEXT | STILL | {"hidden_act": "gelu_new"}),
    "bert for classes": ("BertForSequenceClassification", TEXT | STILL | THREE),
    "distilbert": ("DistilBertModel", DISTILBERT),
    "distilbert for words": ("DistilBertForMaskedLM", DISTILBERT),
    "distilbert for classes": ("DistilBertForSequenceClassification", DISTILBERT | THREE),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 1.1": (
        "T5ForConditionalGeneration",
        T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    ),
    "t5 without head": ("T5Model", T5 | {"num_decoder_layers": 1}),
    "t5 encoder": ("T5EncoderModel", T5),
    "vit": ("ViTModel", IMAGE),
    "vit for classes": ("ViTForImageClassification", IMAGE | THREE),
    "deit": ("DeiTModel", IMAGE),
    "deit for classes": ("DeiTForImageClassification", IMAGE | THREE),
    "deit with a teacher": ("DeiTForImageClassificationWithTeacher", IMAGE | THREE),
    **further_models.MODELS,
}  # fmt: skip
"""A class of transformers and its settings, by what is special about it."""


def make(name, seed=0):
    """The model of that name, random in all its parameters."""
    architecture, settings = MODELS[name]
    kind = getattr(transformers, architecture)
    torch.manual_seed(seed)
    return varied(kind(kind.config_class(**settings)))


def varied(model):
    """``model`` with other numbers in all its arrays, those that start as 0 or 1 too."""
    model.eval()
    computed = set(model._keys_to_ignore_on_save or ())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in computed:
                parameter += 0.05 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name in model.state_dict() and buffer.is_floating_point():
                buffer += 0.05 * torch.rand_like(buffer)
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                row = torch.linspace(-0.1, 0.1, module.weight.shape[1])
                module.weight[module.padding_idx] = row
    return model


def write(model, folder):
    """The model's folder."""
    model.save_pretrained(folder)
    config = model.config
    sides = further_models.PIXELS.get(f"{config.model_type} {getattr(config, 'image_size', '')}")
    if sides is not None:
        size = dict(zip(("height", "width"), sides, strict=True))
        (folder / "preprocessor_config.json").write_text(json.dumps({"size": size}))
    return folder


def batch(net, seed=0, samples=2, steps=STEPS):
    """A batch of all inputs of a net, the second text shorter than the first."""
    padding = net.config.get("pad_token_id") or 0
    rng = np.random.default_rng(seed)
    found = {}
    for name in net._execution_plan().inputs:
        if name in ("pixel_values", "input_features"):
            shape = net[name].get_output_sample_shape()
            found[name] = rng.standard_normal((samples, *shape)).astype(np.float32)
        elif name == "decoder_input_ids":
            found[name] = rng.integers(0, WORDS, (samples, steps - 2))
        elif name == "attention_mask":
            found[name] = np.ones((samples, steps), np.int64)
            found[name][1:, steps - 3 :] = 0
            # RoBERTa counts positions of what is no padding.
            found["input_ids"][1:, steps - 3 :] = padding
        else:
            found[name] = rng.integers(0, 2 if "type" in name else WORDS, (samples, steps))
    if "decoder_input_ids" in found and net.head not in (None, "language-model"):
        # Each text ends once, and its decoder reads it behind a token of start.
        end = net.config["eos_token_id"]
        found["input_ids"] = np.where(found["input_ids"] == end, 5, found["input_ids"])
        found["input_ids"][[0, 1], [-1, -4]] = end
        found["decoder_input_ids"] = np.pad(found["input_ids"][:, :-1], ((0, 0), (1, 0)))
    if str(net.config["model_type"]).startswith("clip") and "input_ids" in found:
        # A text is read up to its end.
        texts = net.config.get("text_config_dict") or net.config.get("text_config", net.config)
        found["input_ids"][:, 4] = texts.get("eos_token_id", 49407)
    return found


def theirs(model, x, dy):
    """What the model gives for ``x``, by name, and all gradients of its sums times ``dy``.

    Batch normalisations take the statistics of the batch.
    """
    model.train(any("BatchNorm" in type(module).__name__ for module in model.modules()))
    fed = {name: torch.from_numpy(array) for name, array in x.items()}
    out = model(**fed)
    found = {name: getattr(out, name) for name in dy}
    sum((y * torch.from_numpy(dy[name])).sum() for name, y in found.items()).backward()
    # Tables before heads, since the files have a tied array under the table's name.
    every = sorted(model.named_parameters(remove_duplicate=False), key=lambda p: "lm_head" in p[0])
    firsts = {}
    for name, p in every:
        firsts.setdefault(id(p), (name, p))
    grads = {n: p.grad.numpy() for n, p in firsts.values() if p.grad is not None}
    of_dino = model.config.model_type == "dinov2"
    for name in [name for name in grads if of_dino and ".mlp.gate_proj." in name]:
        # The files have both as one.
        parts = grads.pop(name), grads.pop(name.replace("gate_proj", "up_proj"))
        grads[name.replace("gate_proj", "weights_in")] = np.concatenate(parts)
    return {name: y.detach().numpy() for name, y in found.items()}, dict(in_files(model, grads))


def queries_for(name):
    """The name of an array, with queries in place of keys."""
    names = {"k": "q", "key": "query"}
    return re.sub(r"\bk(?=_lin|_proj|\b)|\bkey\b", lambda found: names[found[0]], name)


def in_files(model, arrays):
    """Arrays of a model with one for all experts, by the names and in the parts of its files."""
    mixtral = model.config.model_type == "mixtral"
    if model.config.model_type == "granitemoe":
        for name, array in arrays.items():
            name = name.replace("experts.gate_up_proj", "input_linear.weight")
            name = name.replace("experts.down_proj", "output_linear.weight")
            yield name.replace("router.weight", "router.layer.weight"), array
        return
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    for name, array in arrays.items():
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        stem, _, part = name.rpartition(".")
        if not stem.endswith(".experts"):
            yield name, array
            continue
        for expert, whole in enumerate(array):
            joined = part == "gate_up_proj"
            parts = np.split(whole, 2) if joined else [whole]
            for own, matrix in zip(names[:2] if joined else names[2:], parts, strict=True):
                yield f"{stem}.{expert}.{own}.weight", matrix
