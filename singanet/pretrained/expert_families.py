"""Decoders whose units are mixtures of experts: the settings in their configs."""

from __future__ import annotations

from collections.abc import Mapping

from singanet.layers import QueryKeyNorm
from singanet.pretrained.config import Config
from singanet.pretrained.decoders import DecoderSettings, Experts, decoder_family
from singanet.pretrained.drawing import Family
from singanet.pretrained.llama_families import FULL, SLIDING, attention_kinds, granite, llama_like

_TIMES = "num_experts_per_tok"


def _without_router_loss(c: Config) -> None:
    """Refuse configs that add a loss of the router to the loss of words."""
    c.only(output_router_logits=False)
    c.skip("router_aux_loss_coef")


def _mixtral(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=8, longest=4096 * 32, epsilon=1e-5, thetas={FULL: 1e6})
    made.windows = [c.count_or_none("sliding_window")] * made.depth
    made.experts = Experts(
        count=c.blocks(c.either("num_local_experts", "num_experts"), 8),
        top_k=c.count(_TIMES, 2),
        hidden=made.hidden,
        normalized=True,
        blocks=[True] * made.depth,
        router="block_sparse_moe.gate",
        gate="block_sparse_moe.experts.{}.w1",
        up="block_sparse_moe.experts.{}.w3",
        down="block_sparse_moe.experts.{}.w2",
    )
    c.only(router_jitter_noise=0.0)
    _without_router_loss(c)
    return made


def _qwen_experts(
    c: Config, depth: int, count: int, top_k: int, hidden: int, shared: int = 0
) -> Experts:
    """Return the mixtures of a Qwen; the arguments but ``depth`` are the family's defaults."""
    every = c.count("decoder_sparse_step", 1)
    dense = c.take("mlp_only_layers", [])
    if not isinstance(dense, list) or not all(type(k) is int for k in dense):
        raise c.refused("mlp_only_layers", "a list of numbers of blocks", dense)
    _without_router_loss(c)
    return Experts(
        count=c.blocks(c.either("num_experts", "num_local_experts"), count),
        top_k=c.count(_TIMES, top_k),
        hidden=c.count("moe_intermediate_size", hidden),
        normalized=c.flag("norm_topk_prob", False),
        blocks=[k not in dense and (k + 1) % every == 0 for k in range(depth)],
        shared=c.count("shared_expert_intermediate_size", shared) if shared else 0,
    )


def _qwen2_moe(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=16, longest=32768)
    made.biases = ("query", "key", "value") if c.flag("qkv_bias", True) else False
    slides = c.flag("use_sliding_window", False)
    window = c.count("sliding_window", 4096) if slides else None
    first = c.count("max_window_layers", 28, least=0)
    usual = [SLIDING if slides and k % 2 == 0 and k < first else FULL for k in range(made.depth)]
    kinds = attention_kinds(c, usual, window)
    made.windows = [window if kind == SLIDING else None for kind in kinds]
    made.experts = _qwen_experts(c, made.depth, 60, 4, 1408, 5632)
    c.skip("sliding_window")
    c.only(use_mrope=False)
    return made


def _qwen3_moe(c: Config) -> DecoderSettings:
    made = llama_like(c, kv_heads=4, longest=32768)
    made.biases = c.flag("attention_bias", False)
    made.norm = QueryKeyNorm(c.number("rms_norm_eps", 1e-6))
    slides = c.flag("use_sliding_window", False)
    made.windows = [c.count_or_none("sliding_window", 4096) if slides else None] * made.depth
    made.experts = _qwen_experts(c, made.depth, 128, 8, 768)
    c.skip("sliding_window", "max_window_layers")
    return made


def _granitemoe(c: Config) -> DecoderSettings:
    made = granite(c)
    own = "block_sparse_moe"
    made.experts = Experts(
        # The arrays do not bound the number, since each has the weights of all experts.
        count=c.count("num_local_experts", 8, least=2, most=128),
        top_k=c.count(_TIMES, 2),
        hidden=made.hidden,
        normalized=True,
        blocks=[True] * made.depth,
        stacked=True,
        router=f"{own}.router.layer",
        gate=f"{own}.input_linear",
        up=f"{own}.input_linear",
        down=f"{own}.output_linear",
    )
    _without_router_loss(c)
    return made


def _olmoe(c: Config) -> DecoderSettings:
    made = llama_like(c, longest=4096, epsilon=1e-5)
    made.biases, made.padding = c.flag("attention_bias", False), 1
    made.norm = QueryKeyNorm(c.number("rms_norm_eps", 1e-5), joint=True)
    made.experts = Experts(
        count=c.blocks(c.either("num_experts", "num_local_experts"), 64),
        top_k=c.count(_TIMES, 8),
        hidden=made.hidden,
        normalized=c.flag("norm_topk_prob", False),
        blocks=[True] * made.depth,
    )
    c.only(clip_qkv=None)
    _without_router_loss(c)
    return made


FAMILIES: Mapping[str, Family] = {
    "granitemoe": decoder_family(_granitemoe, "GraniteMoe"),
    "mixtral": decoder_family(_mixtral, "Mixtral"),
    "olmoe": decoder_family(_olmoe, "Olmoe"),
    "qwen2_moe": decoder_family(_qwen2_moe, "Qwen2Moe"),
    "qwen3_moe": decoder_family(_qwen3_moe, "Qwen3Moe"),
}
