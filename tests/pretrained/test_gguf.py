"""GGUF files as llama.cpp writes them, of small models of transformers."""

import re
from functools import partial

import numpy as np
import pytest

from singanet import device, pretrained
from singanet.checkpoint import Source, open_state
from singanet.checkpoint.gguf import write_gguf
from singanet.errors import ArgumentError, ConfigError, FileFormatError, StateMismatchError
from singanet.ops import numpy_ops
from singanet.testing import strict_device
from tests.pretrained.peers import make, torch, transformers

# As gguf's tensor_mapping has them; those of Gemma's norms differ.
NAMES = {
    "input_layernorm": "attn_norm", "mlp.down_proj": "ffn_down", "mlp.gate_proj": "ffn_gate",
    "mlp.gate_up_proj": "ffn_up", "mlp.up_proj": "ffn_up", "post_attention_layernorm": "ffn_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.k_proj": "attn_k",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.q_proj": "attn_q", "self_attn.qkv_proj": "attn_qkv", "self_attn.v_proj": "attn_v",
}  # fmt: skip
GEMMA = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm": "ffn_norm",
}
OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def permuted(rows, heads):
    """As llama.cpp's converter does it for the Llama family."""
    apart = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return apart.swapaxes(1, 2).reshape(rows.shape)


def arrays_of(model, architecture):
    """The model's arrays as llama.cpp's converter writes them."""
    config, found = model.config, {}
    gemma = architecture.startswith("gemma")
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        inside = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)", name)
        if gemma and name.endswith("norm.weight"):
            array = array + 1
        if inside is None:
            found[OUTSIDE[name]] = array
            continue
        block, module, suffix = inside.groups()
        if architecture == "llama" and module.endswith(("q_proj", "k_proj")):
            grouped = module.endswith("k_proj")
            heads = config.num_key_value_heads if grouped else config.num_attention_heads
            array = permuted(array, heads)
        there = (GEMMA if gemma else {}).get(module) or NAMES[module]
        found[f"blk.{block}.{there}.{suffix}"] = array
    return found


def values_of(model, architecture):
    """The values that describe the model."""
    c = model.config
    theta = c.rope_parameters.get("rope_theta") or 1e6
    own = {
        "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "attention.key_length": getattr(c, "head_dim", None) or 8,
        "attention.value_length": getattr(c, "head_dim", None) or 8,
        "rope.freq_base": theta,
    }
    if architecture.startswith("gemma"):
        own["attention.sliding_window"] = c.sliding_window
    if architecture == "gemma2":
        own["attn_logit_softcapping"] = c.attn_logit_softcapping
        own["final_logit_softcapping"] = c.final_logit_softcapping
    if architecture == "llama":
        own["rope.dimension_count"] = c.head_dim
    own = {f"{architecture}.{key}": value for key, value in own.items()}
    tokens = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b"]}
    return {"general.architecture": architecture, "general.name": "small", **own, **tokens}


def write(path, arrays, values, dtype=None):
    """The file."""
    sources = [Source(n, a.shape, a.dtype, lambda a=a: a) for n, a in arrays.items()]
    write_gguf(path, sources, dtype, values)
    return path


CASES = {
    "llama": "llama", "llama tied, biases": "llama",
    **{name: name for name in ("qwen2", "qwen3", "phi3", "gemma2", "gemma3")},
}  # fmt: skip


def made(name):
    """The model, where it is one that llama.cpp can describe: Gemma's numbers are fixed there."""
    model = make(name)
    architecture = CASES[name]
    if not architecture.startswith("gemma"):
        return model, architecture
    config = model.config.to_dict() | {"query_pre_attn_scalar": model.config.head_dim}
    config.pop("layer_types")
    again = type(model)(type(model.config)(**config)).eval()
    again.load_state_dict(model.state_dict())
    return again, architecture


def expect_logits(model, net, steps=9):
    ids = np.random.default_rng(0).integers(1, 48, (2, steps))
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).logits.numpy()
    assert abs(net.forward(False, ids) - wanted).max() <= 1e-5 * abs(wanted).max()


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_that_it_was_made_of_and_goes_back(name, tmp_path):
    """To transformers as a folder, and as a file with its bits and values."""
    model, architecture = made(name)
    arrays, values = arrays_of(model, architecture), values_of(model, architecture)
    path = write(tmp_path / "m.gguf", arrays, values)
    for source in (path, tmp_path):
        net = pretrained.load(source)
        expect_logits(model, net)
    about = {key: value for key, value in values.items() if key.startswith("tokenizer")}
    assert net.origin.tokenizer == about
    pretrained.save(net, tmp_path / "folder")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").state_dict()
    gemma = architecture.startswith("gemma")
    for key, tensor in model.state_dict().items():
        raised = gemma and key.endswith("norm.weight")
        assert torch.allclose(again[key], tensor, rtol=0, atol=1e-7 * raised)
    pretrained.save(net, tmp_path / "again.gguf")
    with open_state(tmp_path / "again.gguf") as reader, open_state(path) as old:
        assert list(reader.entries) == list(arrays)
        assert reader.values.pop("general.file_type") == 0
        assert reader.values == old.values
        kinds = [{key: type(value) for key, value in each.values.items()} for each in (reader, old)]
        assert kinds[0] == kinds[1]
        for there, array in arrays.items():
            rtol = 1e-6 if gemma and "norm" in there else 0
            np.testing.assert_allclose(reader.read(there), array, rtol=rtol, atol=0)


def test_factors_of_positions_come_as_an_array(tmp_path):
    model = make("llama 3.1")
    factors = 500.0 ** (-np.arange(4) / 4) / model.model.rotary_emb.inv_freq.numpy()
    arrays = arrays_of(model, "llama") | {"rope_freqs.weight": factors.astype("f4")}
    net = pretrained.load(write(tmp_path / "m.gguf", arrays, values_of(model, "llama")))
    expect_logits(model, net, 30)


@pytest.mark.parametrize("name", ["llama", "phi3", "llama tied, biases"])
@pytest.mark.parametrize(("kind", "dtype"), [("Q8_0", "int8"), ("Q4_0", "int4"), ("Q4_1", "int4")])
def test_blocks_are_taken_as_they_are(name, kind, dtype, tmp_path):
    """The same numbers, to the bit, as where they are widened; in a fraction of the bytes."""
    model, architecture = made(name)
    rng, sources = np.random.default_rng(0), []
    nbytes, halves = {"Q8_0": (34, 1), "Q4_0": (18, 1), "Q4_1": (20, 2)}[kind]
    for there, array in arrays_of(model, architecture).items():
        if array.ndim != 2 or array.shape[1] % 32:
            sources.append(Source(there, array.shape, array.dtype, lambda a=array: a))
            continue
        raw = rng.integers(0, 256, (len(array), array.shape[1] // 32, nbytes), np.uint8)
        scales = 0.01 * rng.standard_normal((*raw.shape[:2], halves))
        raw[:, :, : 2 * halves] = scales.astype("<f2").view(np.uint8)
        parts = partial(list, [raw])
        sources.append(Source(there, array.shape, np.dtype("u1"), lambda r=raw: r, parts, kind))
    write_gguf(tmp_path / "m.gguf", sources, None, values_of(model, architecture))
    wide = pretrained.load(tmp_path / "m.gguf")
    net = pretrained.load(tmp_path / "m.gguf", dtype=dtype)
    ids = rng.integers(1, 48, (2, 9))
    wanted = wide.forward(False, ids)
    assert np.isfinite(net.forward(False, ids)).all()
    # Kernels of oneDNN round the rows that they multiply by blocks, where the processor has such.
    for there in (device.Device("cpu", numpy_ops), strict_device()):
        net.to_device(there)
        for one, other in zip(wide.params(), net.params(), strict=True):
            assert np.array_equal(one.value, there.ops.host(other.peek())), one.name
            if other.shape[0] % 32 == 0 and len(other.shape) == 2:
                assert not other.storage.in_memory
        found = there.ops.host(net.forward(False, ids))
        assert abs(found - wanted).max() <= 1e-5 * abs(wanted).max()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"general.architecture": "rwkv"}, "general.architecture: expected 'gemma2'"),
        ({"general.architecture": 3}, "general.architecture"),
        ({"llama.logit_scale": 2.0}, "logit_scale=2.0"),
        ({"llama.attention.head_count": [4, 2]}, "attention.head_count"),
        ({"llama.attention.value_length": 4}, "value_length"),
        ({"llama.rope.scaling.type": "linear"}, "rope.scaling.type"),
        (
            {"llama.rope.scaling.type": "spin", "llama.rope.scaling.factor": 2.0},
            "rope.scaling.type",
        ),
        ({"llama.rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor"),
        ({"llama.block_count": 2**31}, "block_count|num_hidden_layers"),
        ({"llama.embedding_length": None}, "embedding_length"),
    ],
    ids=str,
)
def test_values_that_are_not_supported_are_refused_by_name(changes, told, tmp_path):
    model = make("llama")
    values = values_of(model, "llama") | changes
    values = {key: value for key, value in values.items() if value is not None}
    path = write(tmp_path / "m.gguf", arrays_of(model, "llama"), values)
    with pytest.raises(ConfigError, match=told):
        pretrained.load(path)


def test_missing_and_unknown_arrays_are_refused(tmp_path):
    model = make("llama")
    arrays = arrays_of(model, "llama")
    arrays["blk.0.attn_s.weight"] = arrays.pop("blk.0.attn_v.weight")
    path = write(tmp_path / "m.gguf", arrays, values_of(model, "llama"))
    with pytest.raises(StateMismatchError, match="no array for .*v_proj.*unknown arrays .*attn_s"):
        pretrained.load(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(FileFormatError):
        pretrained.load(path)


# -- and back -------------------------------------------------------------------------------------


def test_a_file_goes_back_in_eighths(tmp_path):
    model, path = make("llama"), tmp_path / "m.gguf"
    write(path, arrays_of(model, "llama"), values_of(model, "llama"))
    net = pretrained.load(path)
    pretrained.save(net, path, "q8_0")
    again = pretrained.load(path)
    with open_state(path) as reader:
        kinds = {name: entry.kind for name, entry in reader.entries.items()}
        assert (kinds["blk.0.attn_q.weight"], kinds["blk.0.attn_norm.weight"]) == ("Q8_0", "")
        assert reader.values["general.file_type"] == 7
        wanted = reader.read("blk.1.ffn_gate.weight")
    assert np.array_equal(again["layers/1/unit"].params["gate_weight"].value, wanted.T)
    for one, other in zip(net.param_values(), again.param_values(), strict=True):
        assert abs(one - other).max() <= abs(one).max() / 127
    pretrained.save(again, tmp_path / "twice.gguf", "q8_0")
    with open_state(path) as one, open_state(tmp_path / "twice.gguf") as other:
        assert one.entries == other.entries


def test_what_does_not_go_into_a_file(tmp_path):
    model, architecture = made("llama")
    model.save_pretrained(tmp_path / "folder")
    net = pretrained.load(tmp_path / "folder")
    with pytest.raises(
        ArgumentError, match=r"with a tokenizer.*whose folder has no tokenizer\.json"
    ):
        pretrained.save(net, tmp_path / "m.gguf")
    write(tmp_path / "m.gguf", arrays_of(model, architecture), values_of(model, architecture))
    pretrained.save(net, tmp_path / "like.gguf", like=tmp_path / "m.gguf")
    with open_state(tmp_path / "like.gguf") as one, open_state(tmp_path / "m.gguf") as other:
        assert all(np.array_equal(one.read(name), array) for name, array in other)
    net = pretrained.load(tmp_path / "m.gguf")
    net.config["rms_norm_eps"] = 1e-3
    with pytest.raises(ArgumentError, match="the unchanged config.*other rms_norm_eps"):
        pretrained.save(net, tmp_path / "n.gguf")
    assert not (tmp_path / "n.gguf").exists()


def test_a_factor_of_positions_alone_is_linear(tmp_path):
    """As llama.cpp's src/llama-model.cpp has it: "linear" where a file names no type."""
    model = make("llama")
    told = values_of(model, "llama")
    for more in ({}, {"llama.rope.scaling.type": "linear"}, {"llama.rope.scaling.type": "none"}):
        values = told | {"llama.rope.scaling.factor": np.float32(2.5)} | more
        net = pretrained.load(write(tmp_path / "m.gguf", arrays_of(model, "llama"), values))
        wanted = None if more.get("llama.rope.scaling.type") == "none" else "linear"
        assert (net.config.get("rope_scaling") or {}).get("rope_type") == wanted
