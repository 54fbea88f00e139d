"""Folders: what is read of them, what is refused, and what nets of them can do."""

import json
import os

import numpy as np
import pytest

import singanet
from singanet import errors, pretrained
from singanet.checkpoint import open_state, write_folder
from singanet.optimizer import SGD
from singanet.pretrained.families import FAMILIES
from tests.pretrained.configs import CONFIGS

LLAMA, BERT = CONFIGS["llama"], CONFIGS["bert"]
POOLING = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
MODULES = ["", "1_Pooling", "2_Normalize"]


def folder_of(config, path):
    """The folder of a net that is random."""
    pretrained.save(pretrained.build(config, seed=0), path)
    return path


def told(folder, **changes):
    """Change keys of the folder's config; None takes a key out."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return folder


@pytest.fixture
def llama(tmp_path):
    return folder_of(LLAMA, tmp_path / "llama")


def test_there_is_a_config_of_every_family():
    assert CONFIGS.keys() == FAMILIES.keys()


def expect_same_values(one, other):
    assert one.param_names() == other.param_names()
    for a, b in zip(one.params(), other.params(), strict=True):
        assert np.array_equal(a.peek(), b.peek()), a.name


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_random_net_is_saved_and_loaded(config, tmp_path):
    net = pretrained.build(config, seed=0)
    pretrained.save(net, tmp_path)
    again = pretrained.load(tmp_path)
    assert again.config == config | {"dtype": "float32"}
    expect_same_values(again, net)


def test_a_single_input_is_fed_as_an_array_of_any_steps(llama):
    net = pretrained.load(llama)
    for steps in (1, 7, 32):
        assert net.forward(False, np.zeros((2, steps), np.int32)).shape == (2, steps, 20)
    assert [node.name for node in net.nodes()][-1] == "logits"
    ids = np.random.default_rng(0).integers(0, 20, (2, 9))
    decoder = net.decoder()
    assert net.most_steps == decoder.limit == 32
    parts = [decoder(ids[:, :4]), decoder(ids[:, 4:])]
    assert np.allclose(np.concatenate(parts, 1), net.predict(ids), atol=1e-6)
    assert net.decoder(10).limit == 10
    assert [len(row) for row in net.generate(ids[:, :3], 4, seed=0)] == [4, 4]
    targets, losses = ids[:, :6].copy(), []
    targets[:, 4:] = -100  # which do not count
    for n in (6, 4):
        net = pretrained.load(llama)
        losses.append(net.step(ids[:, :n], targets[:, :n], SGD(0.1))[0])
    assert np.isclose(*losses, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(dtype, llama, tmp_path):
    net = pretrained.load(llama, dtype)
    assert {value.dtype for value in net.param_values()} == {np.dtype(dtype)}
    pretrained.save(net, tmp_path / "again")
    assert pretrained.load(tmp_path / "again", dtype).config["dtype"] == dtype


def test_no_values_are_drawn_for_what_is_loaded(llama, monkeypatch):
    monkeypatch.setattr("singanet.params.param.Param.initial", lambda self: 1 / 0)
    pretrained.load(llama)


def test_inputs_are_chosen(llama, tmp_path):
    folder, ids = folder_of(BERT, tmp_path), np.random.default_rng(0).integers(1, 20, (2, 5))
    mask = np.ones_like(ids)
    whole = pretrained.load(folder)
    assert whole._execution_plan().listed == ["input_ids", "attention_mask", "token_type_ids"]
    feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    alone = pretrained.load(folder, inputs=["input_ids"])
    assert np.allclose(alone.forward(False, ids), whole.forward(False, feed), atol=1e-6)
    with pytest.raises(errors.ArgumentError, match="argument inputs: expected 'input_ids'"):
        pretrained.load(folder, inputs=["attention_mask"])
    # A causal net takes a mask where it is asked for.
    net, others = pretrained.load(llama, inputs=["input_ids", "attention_mask"]), ids.copy()
    mask[:, :2], others[:, :2] = 0, 3
    assert np.array_equal(*(net.forward(False, [x, mask])[:, 2:] for x in (ids, others)))


@pytest.mark.parametrize("more", [{}, {"model_type": "mistral", "sliding_window": 3}], ids=str)
@pytest.mark.parametrize("also", [[], ["attention_mask"]], ids=str)
def test_texts_are_packed_into_a_row(tmp_path, more, also):
    """Each is what it would be in a row of its own."""
    config = LLAMA | more
    config |= {"architectures": ["MistralForCausalLM"]} if more else {}
    folder = folder_of(config, tmp_path)
    ids = np.random.default_rng(0).integers(1, 20, (1, 12))
    feed = {"input_ids": ids, "segments": np.array([[1] * 5 + [2] * 4 + [0] * 3])}
    feed |= dict.fromkeys(also, feed["segments"] > 0)
    found = pretrained.load(folder, inputs=list(feed)).forward(False, feed)
    alone = pretrained.load(folder)
    for here in (slice(0, 5), slice(5, 9)):
        np.testing.assert_allclose(found[:, here], alone.forward(False, ids[:, here]), atol=1e-5)


def test_a_net_that_came_another_way_is_saved_like_a_folder(llama, tmp_path):
    net, path = pretrained.load(llama), tmp_path / "net.singanet"
    net.param_values()[0][...] += 1
    net.save_model(path)
    again = singanet.load_model(path)
    with pytest.raises(errors.ArgumentError, match="pass like="):
        pretrained.save(again, tmp_path / "again")
    pretrained.save(again, tmp_path / "again", like=llama)
    expect_same_values(net, pretrained.load(tmp_path / "again"))
    with pytest.raises(errors.ArgumentError, match="the 21 parameters that load makes of"):
        pretrained.save(pretrained.build(BERT), tmp_path / "again", like=llama)


@pytest.mark.parametrize(
    ("settings", "sides"),
    [
        ({}, (224, 224)),
        ({"size": 48}, (48, 48)),
        ({"size": {"height": 40, "width": 32}}, (40, 32)),
        ({"size": {"shortest_edge": 64}, "crop_size": {"height": 48, "width": 48}}, (48, 48)),
        ({"size": 40, "crop_size": 48, "do_center_crop": False}, (40, 40)),
        ({"size": {"shortest_edge": 48}, "crop_pct": 0.875}, (48, 48)),
        # The sides differ from image to image.
        ({"size": {"shortest_edge": 48}}, (224, 224)),
        ({"size": [48]}, (224, 224)),
    ],
)
def test_images_have_the_size_of_the_preprocessing(settings, sides, tmp_path):
    folder = folder_of(CONFIGS["resnet"], tmp_path)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    net = pretrained.load(folder)
    assert net["pixel_values"].get_output_sample_shape() == (3, *sides)


def test_sizes_that_windows_do_not_divide_are_refused():
    config = CONFIGS["swin"] | {"image_size": 24}
    with pytest.raises(errors.ConfigError, match="image_size: expected sides of a multiple of 8"):
        pretrained.build(config)


def test_a_net_with_constants_is_written_like_a_folder(tmp_path):
    config = CONFIGS["swin"] | {"depths": [2, 1], "image_size": 32, "patch_size": 2}
    folder = folder_of(config, tmp_path / "one")
    net = pretrained.load(folder)
    net.save_model(tmp_path / "net.singanet")
    pretrained.save(singanet.load_model(tmp_path / "net.singanet"), tmp_path / "two", like=folder)
    expect_same_values(pretrained.load(tmp_path / "two"), net)


def test_a_tower_is_chosen_by_its_inputs(tmp_path):
    """The other one's arrays go along."""
    folder = folder_of(CONFIGS["clip"], tmp_path / "whole")
    whole, rng = pretrained.load(folder), np.random.default_rng(0)
    ids, pixels = rng.integers(0, 20, (2, 5)), rng.standard_normal((2, 3, 8, 8), np.float32)
    feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "pixel_values": pixels}
    wanted = whole.forward(False, feed)
    assert wanted.keys() == {"image_embeds", "text_embeds"}
    images = pretrained.load(folder, inputs=["pixel_values"])
    assert np.allclose(images.forward(False, pixels), wanted["image_embeds"], atol=1e-6)
    texts = pretrained.load(folder, inputs=["input_ids"])
    assert np.allclose(texts.forward(False, ids), wanted["text_embeds"], atol=1e-6)
    pretrained.save(images, tmp_path / "again")
    expect_same_values(pretrained.load(tmp_path / "again"), whole)
    with pytest.raises(errors.ArgumentError, match="argument inputs: expected 'input_ids'"):
        pretrained.load(folder, inputs=["pixel_values", "tokens"])


# -- sentences ------------------------------------------------------------------------------------


def sentences(folder, pooling=POOLING, modules=MODULES):
    """What sentence-transformers adds to a folder."""
    kinds = ("Transformer", "Pooling", "Normalize", "Dense")
    there = zip(modules, (f"sentence_transformers.models.{kind}" for kind in kinds), strict=False)
    entries = [{"idx": k, "name": str(k), "path": p, "type": t} for k, (p, t) in enumerate(there)]
    (folder / "modules.json").write_text(json.dumps(entries))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "max_tokens", "lasttoken"])
def test_sentence_embeddings(mode, unit, tmp_path):
    plain = pretrained.load(folder_of(BERT, tmp_path))
    pooling = {"word_embedding_dimension": 16, f"pooling_mode_{mode}": True}
    net = pretrained.load(sentences(tmp_path, pooling, MODULES[: 3 if unit else 2]))
    ids, mask = np.random.default_rng(0).integers(1, 20, (2, 6)), np.ones((2, 6), int)
    mask[1, 4:] = 0
    x = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
    first, second = plain.forward(False, x).astype(float)
    pooled = {
        "cls_token": lambda h: h[0],
        "lasttoken": lambda h: h[-1],
        "max_tokens": lambda h: h.max(0),
        "mean_tokens": lambda h: h.mean(0),
    }
    wanted = np.stack([*map(pooled[mode], (first, second[:4]))])
    if unit:
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert net._execution_plan().outputs == ["sentence_embedding"]
    assert np.allclose(net.forward(False, x), wanted, atol=1e-6)


def test_sentences_of_a_folder_that_names_the_trained_class(tmp_path):
    folder = sentences(folder_of(BERT, tmp_path))
    x = {name: np.ones((1, 3), int) for name in ("input_ids", "attention_mask", "token_type_ids")}
    wanted = pretrained.load(folder).forward(False, x)
    net = pretrained.load(told(folder, architectures=["BertForMaskedLM"]))
    assert np.array_equal(net.forward(False, x), wanted)


def test_what_stands_beside_goes_along(tmp_path):
    folder = sentences(folder_of(BERT, tmp_path / "one"))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "run.py").write_text("1 / 0")
    pretrained.save(pretrained.load(folder), tmp_path / "two")
    there = {str(p.relative_to(tmp_path / "two")) for p in (tmp_path / "two").rglob("*.*")}
    beside = {"modules.json", "1_Pooling/config.json", "tokenizer.json"}
    assert there == {"config.json", "model.safetensors"} | beside
    assert (tmp_path / "two/tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("pooling", "modules", "told"),
    [
        (POOLING, [*MODULES, "3_Dense"], "the modules Transformer, Pooling"),
        (POOLING | {"pooling_mode_lasttoken": True}, MODULES, "pooling_mode: expected 'cls'"),
        (POOLING | {"pooling_mode_cls_token": True}, MODULES, "pooling_mode: expected 'cls'"),
        (POOLING | {"pooling_mode_median": True}, MODULES, "pooling_mode_median=True"),
        (POOLING, ["", "../1_Pooling"], "a subfolder"),
        (POOLING, ["", ".."], "a subfolder"),
        ([], MODULES, "an object of settings"),
    ],
)
def test_other_modules_of_sentences_are_refused(pooling, modules, told, tmp_path):
    folder = sentences(folder_of(BERT, tmp_path / "b"), pooling, modules)
    with pytest.raises(errors.ConfigError, match=told):
        pretrained.load(folder)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "told_"),
    [
        ({"logit_scale": 2.0}, "received 'logit_scale=2.0'; an unknown key may change"),
        ({"attention_bia": True}, "did you mean 'attention_bias'"),
        ({"hidden_act": "tan"}, "hidden_act: expected 'gelu'.* received 'tan'"),
        ({"hidden_size": "16"}, "hidden_size: expected an integer"),
        ({"hidden_size": 0}, "hidden_size: expected an integer from 1"),
        ({"hidden_size": True}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_kv_heads: expected a divisor"),
        ({"head_dim": 5}, "rotary"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps"),
        ({"rms_norm_eps": 0.0}, "epsilon"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: expected an integer from 1 to 21"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: expected true or false"),
        ({"rope_scaling": {"type": "spiral", "factor": 2.0}}, "spiral"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "bend": 1}}, "bend"),
        ({"rope_scaling": "linear"}, "rope_scaling: expected an object"),
        ({"model_type": "lama"}, "model_type: .*did you mean 'llama'"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"architectures": ["LlamaForMultipleChoice"]}, "architectures"),
        ({"architectures": "LlamaForCausalLM"}, "architectures"),
        ({"pad_token_id": 20}, "pad_token_id"),
    ],
    ids=str,
)
def test_settings_that_are_not_supported_are_refused_by_name(changes, told_, llama):
    with pytest.raises(errors.ConfigError, match=told_):
        pretrained.load(told(llama, **changes))


def test_settings_that_compute_nothing_are_let_through(llama):
    extra = {"transformers_version": "4.0", "torch_dtype": "bfloat16", "bos_token_id": 1}
    net = pretrained.load(told(llama, use_cache=True, _name_or_path="x", dtype=None, **extra))
    assert net.config["torch_dtype"] == "bfloat16"
    with pytest.raises(errors.ConfigError, match="query_pre_attn_scalar"):  # a scale of nothing
        pretrained.build(CONFIGS["gemma2"] | {"query_pre_attn_scalar": 0})


@pytest.mark.parametrize(
    ("changes", "told_"),
    [
        ({"hidden_size": 32}, "other shapes: 'model.*instead of"),
        ({"vocab_size": 10**9}, "embed_tokens"),
        ({"num_hidden_layers": 1}, "unknown arrays 'model.layers.1"),
        ({"num_hidden_layers": 3}, "no array for 'model.layers.2"),
        ({"tie_word_embeddings": True}, "'lm_head.weight': expected a copy of 'model.embed_tok"),
        ({"attention_bias": True}, "no array for 'model.layers.0.self_attn.q_proj.bias'"),
    ],
    ids=str,
)
def test_arrays_of_another_model_are_refused_by_name(changes, told_, llama):
    with pytest.raises(errors.StateMismatchError, match=told_):
        pretrained.load(told(llama, **changes))


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "1", '{"a": 1', "{" * 300, "\0", '{"model_type": NaN}']
)
def test_configs_that_are_none(text, llama):
    (llama / "config.json").write_text(text)
    with pytest.raises((errors.FileFormatError, errors.ConfigError)):
        pretrained.load(llama)


def test_other_nets_are_not_saved(tmp_path, llama):
    net = singanet.models.build("mlp", (4,), 2)
    with pytest.raises(errors.ArgumentError, match="a net from pretrained.load"):
        pretrained.save(net, tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(errors.ArgumentError, match="dtype: expected 'float32'"):
        pretrained.load(llama, "int2")


def test_weights_of_a_folder_are_held_in_fewer_bits(llama, tmp_path):
    pretrained.save(pretrained.load(llama), words := tmp_path / "words", dtype="bfloat16")
    net = pretrained.load(words, "bfloat16", rounding="remainder")
    held = [param.name for param in net.params() if not param.storage.in_memory]
    assert held == [p.name for p in net.params() if len(p.shape) == 2]
    expect_same_values(pretrained.load(words), net)
    pretrained.save(net, tmp_path / "again")
    with open_state(words, words=True) as one, open_state(tmp_path / "again", words=True) as other:
        for name, entry in one.entries.items():
            if len(entry.shape) == 2:
                np.testing.assert_array_equal(one.read(name), other.read(name))
    ids = np.random.default_rng(0).integers(0, 20, (2, 7))
    net.step(ids[:, :-1], ids[:, 1:], SGD(lr=0.1))
    pretrained.save(net, tmp_path / "tuned")
    expect_same_values(pretrained.load(tmp_path / "tuned"), net)
    for dtype in ("int8", "int4"):
        small = pretrained.load(llama, dtype)
        assert len(small.generate(ids[:1, :3], 4)[0]) == 4
        with pytest.raises(errors.ArgumentError, match="with offload_folder"):
            pretrained.load(llama, dtype, offload_folder=tmp_path / "beside")


def test_a_copy_of_a_tied_table_is_let_through(tmp_path):
    net = pretrained.build(LLAMA | {"tie_word_embeddings": True}, seed=0)
    pretrained.save(net, tmp_path)
    with open_state(tmp_path) as reader:
        state = dict(reader)
    write_folder(tmp_path, state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    again = pretrained.load(tmp_path)
    assert again.param_names() == net.param_names()
    assert "lm_head.weight" not in again.origin.arrays


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_links_that_lead_out_of_the_folder_are_not_followed(llama, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (llama / "tokenizer.json").symlink_to(tmp_path / "secret.json")
    net = pretrained.load(llama)
    assert net.origin.files == {}
    (llama / "config.json").rename(tmp_path / "config.json")
    (llama / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(errors.FileAccessError, match="a file of the folder itself"):
        pretrained.load(llama)


@pytest.mark.parametrize(
    ("kind", "level"), [("llama", "none"), ("llama", "blocks"), ("gpt2", "none"), ("t5", "none")]
)
def test_a_folder_is_loaded_into_a_folder(kind, level, tmp_path, monkeypatch):
    """Never in memory as a whole; it trains as the net in memory does, and goes back."""
    monkeypatch.setattr("singanet.offload.offloaded.SMALL", 8)
    monkeypatch.setattr("singanet.offload.offloading.SMALL", 8, raising=False)
    folder, beside = folder_of(CONFIGS[kind], tmp_path / "model"), tmp_path / "beside"
    for option, value in (("keep", "0MB"), ("recompute", "most")):
        with pytest.raises(errors.ArgumentError, match=option):
            pretrained.load(folder, offload_folder=beside, **{option: value})
    assert not beside.exists()
    plain = pretrained.load(folder, seed=0)
    net = pretrained.load(folder, seed=0, offload_folder=beside, keep="1MB", recompute=level)
    assert not all(param.storage.in_memory for param in net.params())
    expect_same_values(plain, net)
    ids, ones = np.arange(12).reshape(2, 6), np.ones((2, 6), np.int64)
    inputs = plain._execution_plan().inputs
    x = {name: ones if "mask" in name else ids % 7 for name in inputs}
    for _ in range(2):
        assert plain.step(x, ids % 5, SGD(lr=0.1)) == net.step(x, ids % 5, SGD(lr=0.1))
    pretrained.save(net, tmp_path / "tuned")
    expect_same_values(plain, pretrained.load(tmp_path / "tuned"))


@pytest.mark.parametrize(("kind", "changes", "match"), [
    ("falcon", {"alibi": True}, "alibi"),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv"),
    ("phi", {"qk_layernorm": True}, "qk_layernorm"),
    ("cohere", {"use_qk_norm": True}, "use_qk_norm"),
    ("mixtral", {"output_router_logits": True}, "output_router_logits"),
    ("mixtral", {"num_local_experts": 40}, "the number of experts"),
    ("mixtral", {"num_experts_per_tok": 5}, "top_k"),
    ("qwen3_moe", {"num_local_experts": 7}, "num_local_experts"),
    ("gpt_neox", {"rope_theta": 5.0}, "rope_theta"),
    ("gpt_neo", {"attention_layers": ["local", "local"]}, "attention_types"),
    ("gpt_neo", {"attention_types": [[["global"], 10**9]]}, "attention_types"),
    ("gptj", {"rotary_dim": 64}, "rotary_dim"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("bloom", {"hidden_size": 32}, "hidden_size"),
])  # fmt: skip
def test_settings_of_decoders_that_are_refused_by_name(kind, changes, match, tmp_path):
    folder = told(folder_of(CONFIGS[kind], tmp_path), **changes)
    with pytest.raises(errors.ConfigError, match=match):
        pretrained.load(folder)
