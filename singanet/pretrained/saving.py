"""Writers of published models, as folders and GGUF files."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from singanet.base.files import explained, path_of, replacing
from singanet.base.tracebacks import entry_point
from singanet.checkpoint import Entry, Source, write_folder
from singanet.checkpoint.sharded import SHARD_BYTES
from singanet.data import Tokenizer
from singanet.data.tokens.tokenizer import gguf_values
from singanet.device import cpu
from singanet.engine.adapting import add_pair, pairs_by_weight
from singanet.engine.net import Net
from singanet.errors import ArgumentError, ConfigError, one_of
from singanet.layers.layer import Layer
from singanet.params.narrow import words_among
from singanet.params.param import Param
from singanet.pretrained.config import Config
from singanet.pretrained.drawing import FileArray
from singanet.pretrained.gguf_models import (
    KINDS,
    GgufForm,
    GgufKind,
    config_of,
    names_in_blocks,
    names_outside,
)
from singanet.pretrained.loading import Origin, make, origin_like, origin_of
from singanet.pretrained.source import CONFIG
from singanet.saving.nets import net_to_config
from singanet.types import Array, Shape

_ALIASES = {"mistral": "llama"}
"""Models that llama.cpp stores as another type if they use no setting of their own."""
_UNTOLD = ("initializer_range", "attention_dropout", "resid_pdrop", "embd_pdrop", "pad_token_id")
"""Keys of training, which a GGUF file does not store."""
_OF_SOME = {
    "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0
}  # fmt: skip
"""Settings of Gemma and Phi-3, with the defaults of Gemma 2."""


@dataclass(frozen=True)
class _Written:
    """An architecture by llama.cpp's name, and its metadata."""

    name: str
    kind: GgufKind
    own: Mapping[str, Any]


def form_of(
    config: Mapping[str, Any], shapes: Mapping[str, Shape], tokenizer: Tokenizer, where: str
) -> GgufForm:
    """Return the GGUF form of the model of ``config``, with arrays of these ``shapes``.

    The metadata are read back and must build the same net. Errors: `ConfigError` for a family
    without a GGUF form, or for settings without a GGUF key; `DataError` for a tokenizer of another
    kind.
    """
    written = _written(config, where)
    kind, prefix = written.kind, written.name
    theirs = {ours: there for there, ours in names_outside().items()}
    theirs |= names_in_blocks(kind, int(config["num_hidden_layers"]))
    unknown = [name for name in shapes if name not in theirs]
    if unknown:
        raise _refused(where, "arrays with a name in llama.cpp", one_of(unknown, 4))
    entries = {name: Entry(name, shape, np.dtype(np.float32), 0) for name, shape in shapes.items()}
    back = config_of(Config(dict(written.own), where), kind, entries, {})
    more = {key: config[key] for key in _UNTOLD if key in config}
    one, other = (
        net_to_config(make(each, where, shapes).net) for each in (config, {**back, **more})
    )
    if one != other:
        raise _refused(where, "settings with a key in GGUF files", _differing(one, other))
    values: dict[str, Any] = {"general.architecture": prefix, "general.name": prefix}
    values |= {f"{prefix}.{key}": value for key, value in written.own.items()}
    heads = {"q_proj": back["num_attention_heads"], "k_proj": back["num_key_value_heads"]}
    return GgufForm(
        values | gguf_values(tokenizer, back["vocab_size"]),
        {name: theirs[name] for name in shapes},
        {},
        dict(config),
        heads if kind.transposed else {},
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
    """Name the first layer that would differ, and its arguments."""
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


@entry_point
def save(
    net: Net,
    folder: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    like: str | os.PathLike[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    merged: bool = False,
) -> None:
    """Write a net to a folder that transformers reads.

    The folder gets the net's config.json, the parameters with their original names and shapes,
    written one at a time, and the other files, such as the tokenizer's. Errors: `ArgumentError` for
    another net or dtype, or for numbers outside the dtype's range; `FileAccessError`.

    Args:
        net: A net from `load` or `build`, or with ``like`` from elsewhere.
        folder: Path of the folder, which is created if needed. A name that ends in ``.gguf`` writes
            a file of llama.cpp instead. If the net or ``like`` came from such a file, its metadata,
            tokenizer and settings are written again. If it came from a folder, the metadata follow
            from its config and tokenizer.json.
        dtype: Type of floats in the files, "float32", "float16" or "bfloat16", and for GGUF "q8_0":
            weights in blocks of 32 integers and a scale. None writes the net's types.
        like: Path of a folder of the model, whose parameters the net's replace; for a net from
            elsewhere, such as `singanet.load_model`.
        shard_bytes: Bytes above which the parameters are written to several files.
        merged: Whether to add low-rank pairs, which the model's files cannot store, to copies of
            the weights, one at a time. The net is unchanged.
    """
    path = path_of(folder, "folder")
    origin = (
        origin_of(net, "pretrained.save, net", _LIKE) if like is None else origin_like(net, like)
    )
    adapted = [layer.name for layer in net.layers if layer.adapters]
    if adapted and not merged:
        raise ArgumentError(
            "pretrained.save, net",
            expected="a net without low-rank pairs, which the model's files cannot store",
            received=f"pairs in {one_of(adapted, 4)}",
            advice="pass merged=True, or call net.save_model, which stores them",
        )
    params = {id(param): param for param in net.params()}
    for stored in origin.arrays.values():
        for param, _ in stored.members:
            if id(param) not in params:
                raise _other(f"a net without the parameter {param.name!r}")
    value_of = partial(_merged, pairs_by_weight(net.layers)) if adapted else _value
    sources = list(_sources(origin, np.dtype(net.dtype), value_of))
    if path.suffix.lower() == ".gguf":
        _form(origin, path).write(path, sources, origin.config, dtype)
        return
    float_type = dtype or str(np.dtype(net.dtype))
    files = {CONFIG: _config_text(origin.config, float_type)}
    words = {name: "bfloat16" for name, stored in origin.arrays.items() if _are_words(stored)}
    write_folder(path, sources, shard_bytes, dtype or words, files)
    for name, file in origin.files.items():
        _copy(file, path / name)


def _form(origin: Origin, path: Path) -> GgufForm:
    if origin.form is not None:
        return origin.form
    if "tokenizer.json" not in origin.files:
        raise ArgumentError(
            f"pretrained.save to {str(path)!r}",
            expected="a net with a tokenizer, which such a file contains",
            received="a net whose folder has no tokenizer.json",
            advice="add the model's tokenizer.json to its folder, or pass like= a GGUF file",
        )
    shapes = {name: stored.shape for name, stored in origin.arrays.items()}
    tokenizer = Tokenizer.of(origin.files["tokenizer.json"].parent)
    return form_of(origin.config, shapes, tokenizer, f"pretrained.save to {str(path)!r}")


_LIKE = "pass like=, a folder of the same model; save other nets by net.save or net.save_model"


def _other(received: str) -> ArgumentError:
    return ArgumentError(
        "pretrained.save, net",
        expected="a net from pretrained.load, with its parameters",
        received=received,
        advice=_LIKE,
    )


def _sources(
    origin: Origin, dtype: np.dtype[Any], value_of: Callable[[Param], Array]
) -> Iterable[Source]:
    """Yield the arrays of the files; each is assembled when it is written."""
    for name, stored in origin.arrays.items():
        yield Source(name, stored.shape, dtype, partial(stored.whole, value_of))
    for name, array in origin.kept.items():
        yield Source(name, array.shape, array.dtype, partial(np.asarray, array))


def _are_words(stored: FileArray) -> bool:
    """Return whether all parameters of an array are stored in bfloat16."""
    members = [(param.name, param) for param, _ in stored.members]
    return len(words_among(members)) == len({name for name, _ in members})


def _value(param: Param) -> Array:
    return cpu().put(param.peek())


def _merged(pairs: Mapping[int, tuple[Layer, str]], param: Param) -> Array:
    """Return `_value` plus the product of the parameter's low-rank pair, if any."""
    value = param.peek()
    if id(param) in pairs:
        # On the pair's device.
        value = value.copy()
        add_pair(*pairs[id(param)], value)
    return cpu().put(value)


def _config_text(config: dict[str, Any], dtype: str) -> str:
    """Return the config with the written dtype, under the key that the config uses for it."""
    key = "torch_dtype" if "torch_dtype" in config else "dtype"
    return json.dumps({**config, key: dtype}, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _copy(file: Path, target: Path) -> None:
    """Copy another file of the folder."""
    with explained(file, "read"):
        if target.resolve() == file.resolve():
            return
        with explained(target, "write"):
            target.parent.mkdir(exist_ok=True)
        with replacing(target) as temporary:
            shutil.copyfile(file, temporary)
