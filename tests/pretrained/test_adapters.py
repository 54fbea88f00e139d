"""Adapters of peft's, both ways."""

import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.errors import ArgumentError, CallOrderError, ConfigError, StateMismatchError
from singanet.optimizer import SGD
from tests.pretrained.configs import CONFIGS


def adapted(kind="llama", where="all", **more):
    """A small net with pairs that add something."""
    net = pretrained.build(CONFIGS[kind], seed=0)
    net.adapt(2, where, **{"alpha": 6.0, **more})
    rng = np.random.default_rng(0)
    for param in net.params():
        if param.name.endswith("lora_b"):
            param.value[...] = 0.2 * rng.standard_normal(param.shape)
    return net


IDS = np.random.default_rng(1).integers(0, 20, (2, 7))


@pytest.mark.parametrize("kind", ["llama", "phi3", "gpt2"])
def test_a_model_is_written_with_its_pairs_added(tmp_path, kind):
    net = adapted(kind)
    names, made = net.param_names(), net.forward(False, IDS)
    pretrained.save(net, tmp_path, merged=True)
    assert net.param_names() == names
    np.testing.assert_array_equal(net.forward(False, IDS), made)
    other = pretrained.load(tmp_path)
    assert not any("lora" in name for name in other.param_names())
    np.testing.assert_allclose(other.forward(False, IDS), made, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
def test_an_adapter_comes_back_beside_the_same_base(tmp_path, kind):
    net = adapted(kind, dropout=0.1)
    pretrained.save_adapter(net, tmp_path)
    other = pretrained.build(CONFIGS[kind], seed=0)
    names = pretrained.load_adapter(other, tmp_path)
    assert other["layers/0/unit"].adapters == net["layers/0/unit"].adapters
    np.testing.assert_array_equal(other.forward(False, IDS), net.forward(False, IDS))
    assert [p.name for p in other.params() if p.trainable] == [
        p.name for p in net.params() if p.trainable
    ]
    assert len(names) == sum("lora_a" in name for name in net.param_names())
    other.step(IDS[:, :-1], IDS[:, 1:], SGD(lr=0.1))


def test_the_files_have_the_names_and_shapes_of_peft(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    net = adapted(where=["*/query_weight", "*/down_weight"])
    pretrained.save_adapter(net, tmp_path)
    arrays = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.0.self_attn.q_proj."
    assert arrays[stem + "lora_A.weight"].shape == (2, 16)
    np.testing.assert_array_equal(
        arrays[stem + "lora_B.weight"],
        net["layers/0/attention"].params["query_weight.lora_b"].value.T,
    )
    assert len(arrays) == 8
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 6.0, "CAUSAL_LM")
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_some_of_the_layers_are_named_whole(tmp_path):
    pretrained.save_adapter(adapted(where="layers/1/attention/query_weight"), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["target_modules"] == ["model.layers.1.self_attn.q_proj"]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("where", ["all", "layers/1/attention"])
def test_peft_computes_the_same(tmp_path, where):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    import torch

    net = adapted(where=where)
    pretrained.save_adapter(net, tmp_path / "adapter")
    base = pretrained.build(CONFIGS["llama"], seed=0)
    pretrained.save(base, tmp_path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    model = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    with torch.no_grad():
        theirs = model(torch.tensor(IDS)).logits.numpy()
    assert (theirs != base.forward(False, IDS)).any()
    np.testing.assert_allclose(net.forward(False, IDS), theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("rooted", [False, True])
def test_an_adapter_of_peft_computes_the_same_here(tmp_path, rooted):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    peft = pytest.importorskip("peft")
    import torch

    net = pretrained.build(CONFIGS["llama"], seed=0)
    pretrained.save(net, tmp_path / "base")
    model = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(
        r=3, lora_alpha=5, target_modules=["q_proj", "up_proj"], use_rslora=rooted
    )
    model = peft.get_peft_model(model, settings).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter += 0.2 * torch.randn_like(parameter)
        theirs = model(torch.tensor(IDS)).logits.numpy()
    model.save_pretrained(tmp_path / "adapter")
    assert len(pretrained.load_adapter(net, tmp_path / "adapter")) == 4
    np.testing.assert_allclose(net.forward(False, IDS), theirs, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"r": 0}, ", r"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"what_comes_next": 1}, "what_comes_next"),
    ],
)
def test_settings_that_compute_something_else_are_refused(tmp_path, change, says):
    pretrained.save_adapter(adapted(), tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    net = pretrained.build(CONFIGS["llama"], seed=0)
    with pytest.raises(ConfigError, match=says):
        pretrained.load_adapter(net, tmp_path)
    assert all(param.trainable for param in net.params())


def test_adapters_of_other_models_are_refused(tmp_path):
    pretrained.save_adapter(adapted(), tmp_path)
    for config, says in (
        (CONFIGS["llama"] | {"num_hidden_layers": 1}, r"unknown .model\.layers\.1"),
        (CONFIGS["llama"] | {"intermediate_size": 20}, r"other shapes: .model\.layers\.0\.mlp"),
        (CONFIGS["phi3"], "unknown"),
    ):
        net = pretrained.build(config, seed=0)
        with pytest.raises(StateMismatchError, match=says):
            pretrained.load_adapter(net, tmp_path)
        assert not any("lora" in name for name in net.param_names())
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 3}))
    with pytest.raises(StateMismatchError, match="pairs of rank 3"):
        pretrained.load_adapter(pretrained.build(CONFIGS["llama"], seed=0), tmp_path)


def test_what_peft_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="'layers/0/attention/query_weight'"):
        pretrained.save_adapter(adapted("phi3", "attention"), tmp_path)
    with pytest.raises(ArgumentError, match=r"net\.adapt first"):
        pretrained.save_adapter(pretrained.build(CONFIGS["llama"], seed=0), tmp_path)
    with pytest.raises(ArgumentError, match=r"pass merged=True"):
        pretrained.save(adapted(), tmp_path)
    assert not [*tmp_path.iterdir()]
    pretrained.save_adapter(adapted(), tmp_path)
    with pytest.raises(CallOrderError, match="adapted already"):
        pretrained.load_adapter(adapted(), tmp_path)
