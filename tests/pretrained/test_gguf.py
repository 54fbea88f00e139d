"""GGUF files as llama.cpp writes them, of small models of transformers."""

import re
from functools import partial

import numpy as np
import pytest

from singanet import pretrained
from singanet.checkpoint import Source, open_state
from singanet.checkpoint.gguf import write_gguf
from singanet.errors import ArgumentError, ConfigError, FileFormatError, StateMismatchError
from singanet.ops.onednn.base import OneDnnBase
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
    "llama": "llama", "llama tied, biases": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "phi3": "phi3", "gemma2": "gemma2", "gemma3": "gemma3",
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


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_that_it_was_made_of(name, tmp_path):
    model, architecture = made(name)
    path = write(
        tmp_path / "m.gguf", arrays_of(model, architecture), values_of(model, architecture)
    )
    ids = np.random.default_rng(0).integers(1, 48, (2, 9))
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).logits.numpy()
    for source in (path, tmp_path):
        net = pretrained.load(source)
        assert abs(net.forward(False, ids) - wanted).max() <= 1e-5 * abs(wanted).max()
    assert net.origin.tokenizer == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b"],
    }
    # As a folder it is the model, too.
    pretrained.save(net, tmp_path / "folder")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").state_dict()
    state = model.state_dict()
    raised = architecture.startswith("gemma")
    for key, tensor in state.items():
        if raised and key.endswith("norm.weight"):
            assert torch.allclose(again[key], tensor, rtol=0, atol=1e-7)
        else:
            assert torch.equal(again[key], tensor)


def test_factors_of_positions_come_as_an_array(tmp_path):
    model = make("llama 3.1")
    speeds = model.model.rotary_emb.inv_freq.numpy()
    plain = 500.0 ** (-np.arange(4) / 4)
    arrays = arrays_of(model, "llama") | {"rope_freqs.weight": (plain / speeds).astype("f4")}
    net = pretrained.load(write(tmp_path / "m.gguf", arrays, values_of(model, "llama")))
    ids = np.random.default_rng(0).integers(1, 48, (2, 30))
    with torch.no_grad():
        wanted = model(torch.from_numpy(ids)).logits.numpy()
    assert abs(net.forward(False, ids) - wanted).max() <= 1e-5 * abs(wanted).max()


def test_blocks_of_eight_bits_are_widened(tmp_path):
    model = make("llama")
    arrays = arrays_of(model, "llama")
    path = write(tmp_path / "m.gguf", arrays, values_of(model, "llama"), "q8_0")
    with open_state(path) as reader:
        assert reader.entries["blk.0.attn_q.weight"].kind == "Q8_0"
        wanted = reader.read("blk.1.ffn_gate.weight")
    net = pretrained.load(path)
    gate = dict(zip(net.param_names(), net.param_values(), strict=True))[
        "layers/1/unit/gate_weight"
    ]
    assert np.array_equal(gate, wanted.T)


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
    for one, other in zip(wide.params(), net.params(), strict=True):
        assert np.array_equal(one.value, other.peek()), one.name
        if other.shape[0] % 32 == 0 and len(other.shape) == 2:
            assert not other.storage.in_memory
    ids = rng.integers(1, 48, (2, 9))
    wanted = wide.forward(False, ids)
    # oneDNN's kernels may round the rows that they multiply by blocks.
    near = 2.0**-4 if isinstance(net.device.ops, OneDnnBase) else 1e-5
    assert abs(net.forward(False, ids) - wanted).max() <= near * abs(wanted).max()
    there = strict_device()
    net.to_device(there)
    for one, other in zip(wide.params(), net.params(), strict=True):
        assert np.array_equal(one.value, there.ops.host(other.peek())), one.name
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.few(2)
def test_a_file_goes_back_with_its_bits_and_values(name, tmp_path):
    model, architecture = made(name)
    arrays, values = arrays_of(model, architecture), values_of(model, architecture)
    write(tmp_path / "m.gguf", arrays, values)
    net = pretrained.load(tmp_path / "m.gguf")
    pretrained.save(net, tmp_path / "again.gguf")
    with open_state(tmp_path / "again.gguf") as reader, open_state(tmp_path / "m.gguf") as old:
        assert list(reader.entries) == list(arrays)
        assert reader.values.pop("general.file_type") == 0
        assert reader.values == old.values
        assert {k: type(v) for k, v in reader.values.items()} == {
            k: type(v) for k, v in old.values.items()
        }
        for there, array in arrays.items():
            if architecture.startswith("gemma") and "norm" in there:
                np.testing.assert_allclose(reader.read(there), array, rtol=1e-6)
            else:
                np.testing.assert_array_equal(reader.read(there), array)


def test_a_file_goes_back_in_eighths(tmp_path):
    model, architecture = made("llama")
    write(tmp_path / "m.gguf", arrays_of(model, architecture), values_of(model, architecture))
    net = pretrained.load(tmp_path / "m.gguf")
    pretrained.save(net, tmp_path / "m.gguf", "q8_0")
    with open_state(tmp_path / "m.gguf") as reader:
        kinds = {name: entry.kind for name, entry in reader.entries.items()}
        assert kinds["blk.0.attn_q.weight"] == "Q8_0"
        assert kinds["blk.0.attn_norm.weight"] == ""
        assert reader.values["general.file_type"] == 7
    again = pretrained.load(tmp_path / "m.gguf")
    for one, other in zip(net.param_values(), again.param_values(), strict=True):
        assert abs(one - other).max() <= abs(one).max() / 127
    pretrained.save(again, tmp_path / "twice.gguf", "q8_0")
    with open_state(tmp_path / "m.gguf") as one, open_state(tmp_path / "twice.gguf") as other:
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
