"""What a GGUF file says of a model that came from a folder of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from singanet.checkpoint import Entry
from singanet.data import Tokenizer
from singanet.data.tokens.gguf_values import gguf_values
from singanet.errors import ConfigError, one_of
from singanet.pretrained.config import Config
from singanet.pretrained.gguf import KINDS, GgufKind, config_of, names_in_blocks, names_outside
from singanet.pretrained.gguf_form import GgufForm
from singanet.pretrained.making import make
from singanet.saving.nets import net_to_config
from singanet.types import Shape

_ALIASES = {"mistral": "llama"}
"""Models that llama.cpp has as another's, where nothing of their own is used."""
_UNTOLD = ("initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "pad_token_id")
"""Keys of training, which a file has no values for."""
_OF_SOME = {
    "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
}  # fmt: skip
"""Settings of Gemma's and Phi-3's, with what they are in Gemma 2 where its config is silent."""


@dataclass(frozen=True)
class _Written:
    """The architecture by llama.cpp's name, and its values."""

    name: str
    kind: GgufKind
    own: Mapping[str, Any]


def form_of(
    config: Mapping[str, Any], shapes: Mapping[str, Shape], tokenizer: Tokenizer, where: str
) -> GgufForm:
    """How the model of ``config`` with arrays of these ``shapes`` goes into a GGUF file.

    The file's values are read again, and have to draw the same net. Errors: `ConfigError` for a
    family that llama.cpp or this library has no file of, and for settings that a file has no values
    for; `DataError` for a tokenizer of another kind.
    """
    written = _written(config, where)
    kind, prefix = written.kind, written.name
    theirs = {ours: there for there, ours in names_outside().items()}
    theirs |= names_in_blocks(kind, int(config["num_hidden_layers"]))
    unknown = [name for name in shapes if name not in theirs]
    if unknown:
        raise _refused(where, "arrays that llama.cpp has a name for", one_of(unknown, 4))
    entries = {name: Entry(name, shape, np.dtype(np.float32), 0) for name, shape in shapes.items()}
    back = config_of(Config(dict(written.own), where), kind, entries, {})
    more = {key: config[key] for key in _UNTOLD if key in config}
    one, other = (
        net_to_config(make(each, where, shapes).net) for each in (config, {**back, **more})
    )
    if one != other:
        raise _refused(where, "settings that a GGUF file has values for", _differing(one, other))
    values: dict[str, Any] = {"general.architecture": prefix, "general.name": prefix}
    values |= {f"{prefix}.{key}": value for key, value in written.own.items()}
    heads = {"q_proj": back["num_attention_heads"], "k_proj": back["num_key_value_heads"]}
    return GgufForm(
        values | gguf_values(tokenizer, back["vocab_size"]),
        {name: theirs[name] for name in shapes},
        {},
        dict(config),
        heads if kind.turned else {},
        kind.raised,
    )


def _written(config: Mapping[str, Any], where: str) -> _Written:
    model = config.get("model_type")
    wanted = _ALIASES.get(str(model), model)
    found = next(((name, kind) for name, kind in KINDS.items() if kind.model_type == wanted), None)
    architecture = str((config.get("architectures") or [""])[0])
    if found is None or not architecture.endswith("ForCausalLM"):
        known = one_of([kind.model_type for kind in KINDS.values()])
        raise _refused(where, f"a causal model of {known}", f"{model!r}, {architecture}")
    c = Config(config, where)
    heads, width = c.count("num_attention_heads"), c.count("hidden_size")
    usual = make(config, where).net
    size = next(
        layer.params["key_weight"].shape[1] // layer.num_kv_heads
        for layer in (node.layer for node in usual.nodes())
        if hasattr(layer, "num_kv_heads")
    )
    kv_heads = next(
        node.layer.num_kv_heads for node in usual.nodes() if hasattr(node.layer, "num_kv_heads")
    )
    rope = dict(c.take("rope_parameters") or c.take("rope_scaling") or {})
    theta = rope.get("rope_theta", c.take("rope_theta", 10000.0))
    own: dict[str, Any] = {
        "block_count": c.count("num_hidden_layers", most=1 << 20),
        "context_length": usual.most_steps,
        "embedding_length": width,
        "feed_forward_length": c.count("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": size,
        "attention.value_length": size,
        "attention.layer_norm_rms_epsilon": c.number("rms_norm_eps", 1e-6),
        "vocab_size": c.count("vocab_size"),
        "rope.freq_base": float(theta),
        "rope.dimension_count": int(size * float(rope.get("partial_rotary_factor", 1.0))),
    }
    some = _OF_SOME if found[0] in ("gemma2", "gemma3", "phi3") else {}
    for key, usual_of_gemma2 in some.items():
        value = c.take(key, usual_of_gemma2 if found[0] == "gemma2" else None)
        if value is not None:
            own["attention.sliding_window" if key == "sliding_window" else key] = value
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        own["rope.scaling.type"] = kind
        own["rope.scaling.factor"] = float(rope.get("factor", 1.0))
        original = rope.get("original_max_position_embeddings")
        if original is not None:
            own["rope.scaling.original_context_length"] = original
    return _Written(*found, own)


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The first layer of which the file would make another, and in what."""
    for a, b in zip(one["layers"], other["layers"], strict=False):
        if a != b:
            own, made = a.get("arguments") or {}, b.get("arguments") or {}
            keys = sorted(key for key in {*own, *made} if own.get(key) != made.get(key))
            return f"others in {a.get('name')!r}: {one_of(keys, 4)}"
    return "other layers"


def _refused(where: str, expected: str, received: str) -> ConfigError:
    return ConfigError(
        where,
        expected=expected,
        received=received[:200],
        advice="convert the folder with llama.cpp's tools",
    )
