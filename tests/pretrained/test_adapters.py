"""Adapters of peft's, both ways."""

import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.errors import ArgumentError, CallOrderError, ConfigError, StateMismatchError
from singanet.optimizer import SGD
from tests.kit.files import names_in
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
    net, path = adapted(where=["*/query_weight", "*/down_weight"]), tmp_path / "adapter_config.json"
    pretrained.save_adapter(net, tmp_path)
    arrays = safetensors.load_file(tmp_path / "adapter_model.safetensors")
    a, b = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{k}.weight" for k in "AB")
    pair = net["layers/0/attention"].params["query_weight.lora_b"].value.T
    assert (len(arrays), arrays[a].shape) == (8, (2, 16))
    np.testing.assert_array_equal(arrays[b], pair)
    config = json.loads(path.read_text())
    assert config["target_modules"] == ["down_proj", "q_proj"]
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 6.0, "CAUSAL_LM")
    assert names_in(tmp_path) == ["adapter_config.json", "adapter_model.safetensors"]
    # Some of the layers are named whole.
    pretrained.save_adapter(adapted(where="layers/1/attention/query_weight"), tmp_path)
    assert json.loads(path.read_text())["target_modules"] == ["model.layers.1.self_attn.q_proj"]


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


def of_peft(base, folder, seed=0, **settings):
    """The logits of a model with an adapter of peft's, which is written into ``folder``.

    It is trained in so far that A and B are moved, and comes back from the folder, as users get it.
    """
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base)
    model = peft.get_peft_model(model, peft.LoraConfig(**settings))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(base)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    with torch.no_grad():
        return model(torch.tensor(IDS)).logits.numpy()


ROOT, THREE = {"use_rslora": True}, {"r": 3, "lora_alpha": 5}
SETTINGS = {
    "rooted": {**THREE, **ROOT},
    "patterns": {
        **THREE, **ROOT, "rank_pattern": {"up_proj": 2, "^model.layers.1.self_attn.q_proj": 5},
        "alpha_pattern": {"model.layers.0.mlp.up_proj": 7, "q_proj": 2},
    },
    "pissa": {**THREE, "init_lora_weights": "pissa"},
    "olora": {"r": 2, "lora_alpha": 6, "init_lora_weights": "olora", **ROOT},
    "large": {"r": 10, "init_lora_weights": "pissa", "rank_pattern": {"q_proj": 6}},
    "layers": {"layers_to_transform": [1], "layers_pattern": "layers", "r": 2},
    "left out": {"exclude_modules": ["layers.0.mlp.up_proj"], "r": 2},
    "by expression": {"target_modules": r".*layers\.\d\.self_attn.(q|v)_proj", "r": 2},
    "orthogonal": {"init_lora_weights": "orthogonal", "r": 4},
    "mica": {"init_lora_weights": "mica", "r": 4},
    "gpt2": {"target_modules": ["c_proj"], "init_lora_weights": "pissa", "r": 2},
    "gpt2 by olora": {"target_modules": ["attn.c_proj"], "init_lora_weights": "olora", "r": 2},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("setting", SETTINGS)
def test_an_adapter_of_peft_computes_the_same_here(tmp_path, setting):
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    net = pretrained.build(CONFIGS["gpt2" if "gpt2" in setting else "llama"], seed=0)
    pretrained.save(net, tmp_path / "base")
    settings = {"target_modules": ["q_proj", "up_proj"]} | SETTINGS[setting]
    theirs = of_peft(tmp_path / "base", tmp_path / "adapter", **settings)
    before = {p.name: p.value.copy() for p in net.params()}
    assert not np.allclose(theirs, net.forward(False, IDS), rtol=0, atol=1e-3)
    pretrained.load_adapter(net, tmp_path / "adapter")
    np.testing.assert_allclose(net.forward(False, IDS), theirs, rtol=0, atol=2e-5)
    after = {p.name: p.value for p in net.params()}
    assert all(np.array_equal(value, after[name]) for name, value in before.items())
    pretrained.save_adapter(net, tmp_path / "again")
    other = pretrained.load(tmp_path / "base")
    pretrained.load_adapter(other, tmp_path / "again")
    np.testing.assert_allclose(other.forward(False, IDS), theirs, rtol=0, atol=2e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore:The following")
def test_random_adapters_of_peft_compute_the_same_here(tmp_path):
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    rng = np.random.default_rng(0)
    ends = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]

    def patterns(named, most):
        return {str(n): int(rng.integers(1, most)) for n in sorted(rng.permutation(named)[:2])}

    for k in range(200):
        net = pretrained.build(CONFIGS["llama"], seed=k)
        pretrained.save(net, tmp_path / "base")
        some = [str(end) for end in rng.permutation(ends)[: rng.integers(1, 5)]]
        part = "mlp" if some[0][1] != "_" else "self_attn"
        named = [*some, f"layers.{rng.integers(2)}.{part}.{some[0]}"]
        settings = {
            "r": int(rng.integers(1, 6)), "lora_alpha": int(rng.integers(1, 9)),
            "use_rslora": bool(rng.integers(2)), "target_modules": some,
            "init_lora_weights": [True, False, "gaussian", "pissa", "olora"][rng.integers(5)],
            "rank_pattern": patterns(named, 7), "alpha_pattern": patterns(named, 9),
            "layers_to_transform": [None, 1, [0], [0, 1]][rng.integers(4)],
            "exclude_modules": [None, some[1:] or None][rng.integers(2)],
        }  # fmt: skip
        theirs = of_peft(tmp_path / "base", tmp_path / "adapter", seed=k, **settings)
        pretrained.load_adapter(net, tmp_path / "adapter")
        ours = net.forward(False, IDS)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-5, err_msg=str(settings))


def change_config(folder, **changes):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def taken_out(start, weight, rank, scale):
    """The matrix that a start subtracts from a weight (out, in), by independent formulas."""
    if start == "pissa":  # The product with its own largest directions, which eigh finds.
        _, vectors = np.linalg.eigh(weight.T @ weight)
        return weight @ vectors[:, -rank:] @ vectors[:, -rank:].T
    first = weight[:, :rank]  # The part in the span of the first columns.
    return scale * first @ np.linalg.solve(first.T @ first, first.T @ weight)


@pytest.mark.parametrize("start", ["pissa", "olora"])
@pytest.mark.parametrize("where", ["*/query_weight", "*/down_weight", "*/key_weight"])
def test_a_start_that_moves_the_weights_moves_them_here(tmp_path, start, where):
    pretrained.save_adapter(made := adapted(where=where), tmp_path)
    change_config(tmp_path, init_lora_weights=start)
    net, twin = (pretrained.build(CONFIGS["llama"], seed=0) for _ in range(2))
    names = pretrained.load_adapter(net, tmp_path)
    pairs = {p.name: p.value for p in made.params()}
    for param in twin.params():
        if param.name in names:
            wide = param.value.astype(np.float64)
            a, b = (pairs[f"{param.name}.lora_{side}"] for side in "ab")
            param.value[...] = wide - taken_out(start, wide.T, 2, 3.0).T + 3.0 * (a @ b)
    np.testing.assert_allclose(net.forward(False, IDS), twin.forward(False, IDS), atol=2e-5)


def test_a_start_that_moves_the_weights_is_not_computed_from_blocks(tmp_path):
    config = CONFIGS["llama"] | {"hidden_size": 32, "head_dim": 8}
    net = pretrained.build(config, seed=0)
    net.adapt(2)
    pretrained.save_adapter(net, tmp_path)
    change_config(tmp_path, init_lora_weights="pissa")
    held = pretrained.build(config, seed=0)
    held.quantize("int8")
    with pytest.raises(ConfigError, match=r"init_lora_weights.*quantized weights.*net\.merge"):
        pretrained.load_adapter(held, tmp_path)


def test_pairs_of_several_ranks_come_back(tmp_path):
    pretrained.save_adapter(adapted(where="*_weight"), tmp_path / "one")
    change_config(
        tmp_path / "one", alpha_pattern={"layers.1.mlp.up_proj": 5, "q_proj": 3.5}, use_rslora=True
    )
    net, other = (pretrained.build(CONFIGS["llama"], seed=0) for _ in range(2))
    pretrained.load_adapter(net, tmp_path / "one")
    pretrained.save_adapter(net, tmp_path / "two")
    pretrained.load_adapter(other, tmp_path / "two")
    assert other["layers/1/unit"].adapters == net["layers/1/unit"].adapters
    scales = {k: pair.scale for k, pair in net["layers/1/unit"].adapters.items()}
    assert scales["up_weight"] == pytest.approx(5 / 2**0.5)
    assert scales["gate_weight"] == pytest.approx(6 / 2**0.5)
    np.testing.assert_array_equal(other.forward(False, IDS), net.forward(False, IDS))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"peft_type": "LOHA"}, "peft_type"),
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"(.*)*q_proj": 4}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": -1}}, "alpha_pattern"),
        ({"alpha_pattern": [1]}, "alpha_pattern"),
        ({"r": 0}, ", r"),
        ({"lora_alpha": "8"}, "lora_alpha"),
        ({"lora_alpha": 0}, "lora_alpha"),
        *(({"what_comes_next": next}, "what_comes_next") for next in (1, False)),
        *(({"init_lora_weights": start}, "init_lora_weights")
          for start in ("pissa_niter_16", "corda", "loftq", "lora_ga", 1)),
        ({"lora_bias": True}, "lora_bias"),
        ({"layer_replication": [[0, 2], [1, 2]]}, "layer_replication"),
        ({"trainable_token_indices": [0]}, "trainable_token_indices"),
        ({"target_parameters": ["mlp.up"]}, "target_parameters"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"use_qalora": True}, "use_qalora"),
        ({"use_rslora": "yes"}, "use_rslora"),
        ({"target_modules": ["q_proj"]}, r"target_modules.*k_proj"),
        ({"exclude_modules": ["mlp.up_proj"]}, r"target_modules.*up_proj"),
        ({"exclude_modules": ".*up_proj"}, "exclude_modules"),
        ({"layers_to_transform": 0}, r"target_modules.*layers\.1"),
        ({"layers_to_transform": [0, 1], "layers_pattern": "h"}, "target_modules"),
        ({"layers_to_transform": ["1"]}, "layers_to_transform"),
    ],
)  # fmt: skip
def test_settings_that_compute_something_else_are_refused(tmp_path, change, says):
    pretrained.save_adapter(adapted(), tmp_path)
    change_config(tmp_path, **change)
    net = pretrained.build(CONFIGS["llama"], seed=0)
    with pytest.raises(ConfigError, match=says):
        pretrained.load_adapter(net, tmp_path)
    assert all(param.trainable for param in net.params())


def test_each_setting_of_peft_is_known(tmp_path):
    peft = pytest.importorskip("peft")
    pretrained.save_adapter(adapted(), tmp_path)
    told = peft.LoraConfig().to_dict()
    kept = ("peft_type", "r", "lora_alpha", "target_modules")
    change_config(tmp_path, **{key: told[key] for key in told if key not in kept})
    pretrained.load_adapter(pretrained.build(CONFIGS["llama"], seed=0), tmp_path)


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
    change_config(tmp_path, r=3)
    with pytest.raises(StateMismatchError, match="pairs of rank 3"):
        pretrained.load_adapter(pretrained.build(CONFIGS["llama"], seed=0), tmp_path)


def test_what_peft_has_no_place_for_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="'layers/0/attention/query_weight'"):
        pretrained.save_adapter(adapted("phi3", "attention"), tmp_path)
    with pytest.raises(ArgumentError, match=r"net\.adapt first"):
        pretrained.save_adapter(pretrained.build(CONFIGS["llama"], seed=0), tmp_path)
    with pytest.raises(ArgumentError, match=r"pass merged=True"):
        pretrained.save(adapted(), tmp_path)
    more = adapted()
    more["norm"].trainable = True
    with pytest.raises(ArgumentError, match=r"trains 'norm/.*merged=True"):
        pretrained.save_adapter(more, tmp_path)
    assert not [*tmp_path.iterdir()]
    pretrained.save_adapter(adapted(), tmp_path)
    with pytest.raises(CallOrderError, match="adapted already"):
        pretrained.load_adapter(adapted(), tmp_path)
