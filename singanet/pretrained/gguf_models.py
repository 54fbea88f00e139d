"""Published models in GGUF files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from singanet.checkpoint import Entry, Source
from singanet.checkpoint.entry import sources_of
from singanet.checkpoint.gguf import GgufReader, halved, interleaved, write_gguf
from singanet.checkpoint.reader import Reader
from singanet.errors import ArgumentError, ConfigError, brief, did_you_mean, one_of
from singanet.pretrained.config import Config
from singanet.types import Array

_FILE_TYPE, _QUANTIZATION = "general.file_type", "general.quantization_version"
_FILE_TYPES = {None: 0, "float32": 0, "float16": 1, "q8_0": 7, "bfloat16": 32}
"""llama.cpp's file type, by the type of most arrays."""


@dataclass(frozen=True)
class GgufForm:
    """The contents of a GGUF file except a net's arrays, and the layout of the arrays.

    ``values`` are the file's metadata. ``names`` maps transformers' array names to the file's, in
    file order. ``factors`` are arrays that became settings of ``config``. ``heads`` are the head
    counts of queries and keys whose rows have llama.cpp's order. ``raised``: norms include an
    offset of 1.
    """

    values: Mapping[str, Any]
    names: Mapping[str, str]
    factors: Mapping[str, Array]
    config: Mapping[str, Any]
    heads: Mapping[str, int]
    raised: bool

    def write(
        self, path: Path, sources: Sequence[Source], config: Mapping[str, Any], dtype: str | None
    ) -> None:
        """Write the metadata and ``sources``, with transformers' names, to ``path``.

        Errors: `ArgumentError` if ``config`` differs from the file's; the errors of `write_gguf`.
        """
        if config != self.config:
            keys = {*config, *self.config}
            changed = {key for key in keys if config.get(key) != self.config.get(key)}
            raise ArgumentError(
                f"pretrained.save to {str(path)!r}",
                expected="the unchanged config of the GGUF file",
                received=f"other {', '.join(sorted(changed))}"[:200],
                advice="save into a folder, and convert that by llama.cpp's tools",
            )
        by_name = {source.name: source for source in sources}
        arrays = [self._theirs(by_name[name]) for name in self.names if name in by_name]
        arrays += sources_of(self.factors, str(path))
        values = {**self.values, _FILE_TYPE: np.uint32(_FILE_TYPES.get(dtype, 0))}
        if dtype == "q8_0":
            values[_QUANTIZATION] = np.uint32(2)
        write_gguf(path, arrays, dtype, values)

    def _theirs(self, source: Source) -> Source:
        """Return ``source`` with the file's name and order of rows."""
        part = source.name.split(".")[-2]

        def fetch() -> Array:
            array = source.array()
            if part in self.heads:
                return interleaved(array, self.heads[part])
            return array + 1 if self.raised and part.endswith("norm") else array

        transposed = part in self.heads or (self.raised and part.endswith("norm"))
        name = self.names[source.name]
        return replace(source, name=name, fetch=fetch) if transposed else replace(source, name=name)


@dataclass(frozen=True)
class GgufKind:
    """An architecture of llama.cpp: its name in transformers and its differences.

    ``transposed``: the rows of queries and keys have llama.cpp's order. ``raised``: norms include
    transformers' offset of 1. ``modules`` are other names in a block.
    """

    model_type: str
    architecture: str
    transposed: bool = False
    raised: bool = False
    modules: Mapping[str, str] = field(default_factory=dict)


_BOTH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
KINDS: Mapping[str, GgufKind] = {
    "gemma2": GgufKind("gemma2", "Gemma2ForCausalLM", raised=True, modules=_BOTH_NORMS),
    "gemma3": GgufKind("gemma3_text", "Gemma3ForCausalLM", raised=True, modules=_BOTH_NORMS),
    "llama": GgufKind("llama", "LlamaForCausalLM", transposed=True),
    "phi3": GgufKind("phi3", "Phi3ForCausalLM", modules={"ffn_up": "mlp.gate_up_proj"}),
    "qwen2": GgufKind("qwen2", "Qwen2ForCausalLM"),
    "qwen3": GgufKind("qwen3", "Qwen3ForCausalLM"),
}
"""The supported architectures, by llama.cpp's name."""
_MODULES = {
    "attn_k": "self_attn.k_proj",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.up_proj",
}
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IDS = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
}
_FACTORS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_IN_BLOCK = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")


class GgufModelReader(Reader):
    """A reader of a GGUF file's arrays with transformers' names and order of rows.

    ``config`` is the equivalent config.json. Errors: `ConfigError` for an unsupported architecture
    or unknown values.
    """

    format = "gguf"

    def __init__(self, inner: GgufReader) -> None:
        super().__init__(inner.path)
        self._inner = inner
        self.where = inner.where
        values = inner.values
        kind = values.get("general.architecture")
        if not isinstance(kind, str) or kind not in KINDS:
            raise ConfigError(
                f"{self.where}, general.architecture",
                expected=one_of(KINDS),
                received=brief(kind)[:80],
                advice=did_you_mean(str(kind), KINDS, "net.load reads the arrays of such a file"),
            )
        self._kind = KINDS[kind]
        self._names = {self._name(name): name for name in inner.entries if name not in _FACTORS}
        self.entries = {
            name: inner.entries[there]._replace(name=name) for name, there in self._names.items()
        }
        prefix = f"{kind}."
        own = {
            key.removeprefix(prefix): _plain(value)
            for key, value in values.items()
            if key.startswith(prefix)
        }
        factors = {name: inner.read(name) for name in _FACTORS if name in inner.entries}
        self.config = config_of(Config(own, self.where), self._kind, self.entries, factors)
        self.config |= {key: _plain(values.get(there)) for key, there in _IDS.items()}
        heads = {
            "q_proj": self.config["num_attention_heads"],
            "k_proj": self.config["num_key_value_heads"],
        }
        self.form = GgufForm(
            values,
            self._names,
            factors,
            deepcopy(self.config),
            heads if self._kind.transposed else {},
            self._kind.raised,
        )

    def _name(self, name: str) -> str:
        found = _IN_BLOCK.fullmatch(name)
        if found is None:
            return _OUTSIDE.get(name, name)
        block, module, suffix = found.groups()
        module = self._kind.modules.get(module) or _MODULES.get(module, module)
        return f"model.layers.{block}.{module}.{suffix}"

    def _read(self, entry: Entry) -> Array:
        part = entry.name.split(".")[-2]
        if part in self.form.heads:
            return halved(self._inner.read(self._names[entry.name]), self.form.heads[part])
        return np.concatenate(list(self._pieces(entry)))

    def _of_blocks(self, entry: Entry) -> Array | None:
        part, found = entry.name.split(".")[-2], self._inner.blocks(self._names[entry.name])
        if found is None or part not in self.form.heads:
            return found
        return halved(found, self.form.heads[part])

    def _pieces(self, entry: Entry) -> Iterator[Array]:
        part = entry.name.split(".")[-2]
        if part in self.form.heads:
            yield self._read(entry)
            return
        for piece in self._inner.pieces(self._names[entry.name]):
            yield piece - 1 if self.form.raised and part.endswith("norm") else piece

    def close(self) -> None:
        super().close()
        self._inner.close()


def names_outside() -> Mapping[str, str]:
    """Return transformers' names of the arrays outside blocks, by llama.cpp's."""
    return _OUTSIDE


def names_in_blocks(kind: GgufKind, depth: int) -> dict[str, str]:
    """Return llama.cpp's names of the arrays in ``depth`` blocks, by transformers'."""
    modules = {**_MODULES, **kind.modules}
    return {
        f"model.layers.{block}.{module}.{suffix}": f"blk.{block}.{there}.{suffix}"
        for block in range(depth)
        for there, module in modules.items()
        for suffix in ("weight", "bias")
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON data; float32 becomes the shortest decimal that rounds to it."""
    if isinstance(value, np.floating):
        return float(str(value))
    return value.item() if isinstance(value, np.generic) else value


def config_of(
    c: Config, kind: GgufKind, entries: Mapping[str, Entry], factors: Mapping[str, Array]
) -> dict[str, Any]:
    """Return the config.json equivalent to the values ``c``."""
    width, heads = c.count("embedding_length"), c.count("attention.head_count")
    size = c.count("attention.key_length", max(width // heads, 1))
    if c.count("attention.value_length", size) != size:
        raise c.refused("attention.value_length", f"{size}, the length of keys", "another")
    table = entries.get("model.embed_tokens.weight")
    found = {
        "model_type": kind.model_type,
        "architectures": [kind.architecture],
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": c.count("attention.head_count_kv", heads),
        "head_dim": size,
        "num_hidden_layers": c.count("block_count"),
        "intermediate_size": c.count("feed_forward_length"),
        "max_position_embeddings": c.count("context_length"),
        "rms_norm_eps": c.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": table.shape[0] if table and table.shape else c.count("vocab_size"),
        "tie_word_embeddings": "lm_head.weight" not in entries,
        "rope_theta": c.number("rope.freq_base", 10000.0),
    }
    c.skip("vocab_size")
    if kind.model_type in ("llama", "qwen3"):
        found["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in entries
    if kind.model_type == "llama":
        found["mlp_bias"] = "model.layers.0.mlp.up_proj.bias" in entries
    if kind.raised:
        found |= _of_gemma(c, found)
    else:
        window = c.count_or_none("attention.sliding_window")
        found |= {"sliding_window": window} if kind.model_type == "phi3" else {}
    transposed = c.count("rope.dimension_count", size)
    if transposed != size:
        found["partial_rotary_factor"] = transposed / size
    scaling = _scaling(c, found, factors)
    c.end()
    return found | ({"rope_scaling": scaling} if scaling else {})


def _of_gemma(c: Config, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of Gemma that llama.cpp sets in code."""
    large = found["num_hidden_layers"] == (46 if found["model_type"] == "gemma2" else 62)
    scalar = found["hidden_size"] // found["num_attention_heads"] if large else found["head_dim"]
    more = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scalar,
        "sliding_window": c.count("attention.sliding_window", 4096),
        "attn_logit_softcapping": c.number_or_none("attn_logit_softcapping"),
        "final_logit_softcapping": c.number_or_none("final_logit_softcapping"),
    }
    if found["model_type"] == "gemma3_text":
        more["rope_local_base_freq"] = c.number("rope.freq_base_swa", 10000.0)
        c.only(**{"attention.sliding_window_pattern": 6})
    return more


def _scaling(
    c: Config, found: Mapping[str, Any], factors: Mapping[str, Array]
) -> dict[str, Any] | None:
    """Return the scaling of rotary positions in transformers' form."""
    factor = c.number_or_none("rope.scaling.factor") or None
    # As in llama.cpp, a factor without a type is linear.
    kind = c.take("rope.scaling.type", "none" if factor is None else "linear")
    original = c.count_or_none("rope.scaling.original_context_length")
    gain = c.number_or_none("rope.scaling.attn_factor")
    c.skip("rope.scaling.finetuned")
    if factors and (kind not in ("none", "longrope") or factor not in (None, 1.0)):
        raise c.refused("rope.scaling.factor", "none with factors in arrays", f"{kind}, {factor}")
    if gain not in (None, 1.0) and not factors:
        raise c.refused("rope.scaling.attn_factor", "1 without factors in arrays", gain)
    if factors:
        longest = found["max_position_embeddings"]
        short, long = (
            factors.get(name, factors.get("rope_freqs.weight"))
            for name in ("rope_factors_short.weight", "rope_factors_long.weight")
        )
        if short is None or long is None:
            raise c.refused("rope.scaling", "short and long factors", "only one")
        return {
            "rope_type": "longrope",
            "short_factor": [_plain(each) for each in short.reshape(-1)],
            "long_factor": [_plain(each) for each in long.reshape(-1)],
            "original_max_position_embeddings": original or longest,
            **({"attention_factor": 1.0} if "rope_freqs.weight" in factors else {}),
            **({"attention_factor": gain} if gain else {}),
        }
    if kind == "none":
        return None
    if kind not in ("linear", "yarn") or factor is None:
        raise c.refused("rope.scaling.type", "'none', 'linear' or 'yarn', with a factor", kind)
    more = {"original_max_position_embeddings": original} if kind == "yarn" and original else {}
    return {"rope_type": kind, "factor": factor, **more}
