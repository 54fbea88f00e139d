"""Models of transformers' folders as GGUF files, with config and tokenizer."""

from importlib.util import find_spec

import numpy as np
import pytest

from singanet import pretrained
from singanet.__main__ import main
from singanet.checkpoint import open_state
from singanet.data import Tokenizer
from singanet.data.tokens.tokenizer import gguf_values
from singanet.errors import ArgumentError, ConfigError, DataError
from tests.commands.published import LLAMA, published
from tests.pretrained.configs import CONFIGS

GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 8, "head_dim": 8}
MODELS = {
    "llama": LLAMA,
    "mistral": LLAMA
    | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None},
    "qwen2": CONFIGS["qwen2"] | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "qwen3": CONFIGS["qwen3"],
    "phi3": CONFIGS["phi3"],
    "gemma2": CONFIGS["gemma2"] | GEMMA,
}
IDS = np.random.default_rng(0).integers(0, 400, (2, 9))
TEXTS = ("Who's there?  42 kings\n\n", "naïve 多字节 text", "<|im_start|>user\nhi<|im_end|>")


def folder_of(name, path):
    config = MODELS[name] | {"vocab_size": 403, "attention_dropout": 0.0}
    return published(config, path / "folder")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.few(1)
def test_a_file_made_of_a_folder_is_the_model(name, tmp_path):
    folder, file = folder_of(name, tmp_path), tmp_path / "m.gguf"
    net = pretrained.load(folder)
    pretrained.save(net, file)
    again = pretrained.load(file)
    np.testing.assert_allclose(again.forward(False, IDS), net.forward(False, IDS), atol=1e-6)
    assert again.most_steps == net.most_steps
    one, other = pretrained.tokenizer(folder), pretrained.tokenizer(file)
    for text in TEXTS:
        np.testing.assert_array_equal(other.encode(text), one.encode(text))
    assert other.chat_template == one.chat_template
    assert (other.eos_id, other.pad_id) == (one.eos_id, one.pad_id)
    with open_state(file) as reader:
        tokens = reader.values["tokenizer.ggml.tokens"]
        kinds = reader.values["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == 403
    assert tokens[400:] == ["[PAD400]", "[PAD401]", "[PAD402]"]
    assert kinds[400:].tolist() == [5, 5, 5]
    assert kinds[one.eos_id] == 3


def test_the_command_writes_it_in_eighths(tmp_path, capsys):
    folder, file = folder_of("llama", tmp_path), tmp_path / "m.gguf"
    assert main(["convert", str(folder), str(file), "--dtype", "q8_0"]) == 0
    assert "the config and the tokenizer" in capsys.readouterr().out
    with open_state(file) as reader:
        assert reader.entries["blk.0.attn_q.weight"].kind == "Q8_0"
        assert reader.values["general.architecture"] == "llama"
        assert reader.values["llama.attention.head_count_kv"] == LLAMA["num_key_value_heads"]
    ids = IDS % 400
    one, other = (pretrained.load(path).predict(ids) for path in (folder, file))
    assert np.abs(one - other).max() < 0.1 * np.abs(one).max()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "phi3"])
def test_transformers_reads_the_file(name, tmp_path):
    transformers, torch = (pytest.importorskip(each) for each in ("transformers", "torch"))
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        pytest.skip("needs the packages gguf and accelerate")
    folder = folder_of(name, tmp_path)
    pretrained.save(pretrained.load(folder), tmp_path / "m.gguf")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="m.gguf", dtype=torch.float32
    )
    with torch.no_grad():
        logits = model(torch.tensor(IDS)).logits.numpy()
    np.testing.assert_allclose(pretrained.load(folder).forward(False, IDS), logits, atol=1e-5)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = pretrained.tokenizer(folder)
    for text in TEXTS:
        assert theirs.encode(text) == ours.encode(text).tolist()


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("llama", {"rope_scaling": LLAMA3}, "rope.scaling.type"),
        ("mistral", {"sliding_window": 8}, "others in 'layers/0/attention': 'window'"),
        ("gemma2", {"query_pre_attn_scalar": 5}, "others in 'layers/0/attention': 'scale'"),
    ],
)
def test_settings_without_a_value_are_refused(name, change, told, tmp_path):
    published(MODELS[name] | {"vocab_size": 403} | change, tmp_path / "folder")
    net = pretrained.load(tmp_path / "folder")
    with pytest.raises(ConfigError, match=told):
        pretrained.save(net, tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_models_and_tokenizers_of_other_kinds_are_refused(tmp_path):
    found = pytest.importorskip("tokenizers")
    # None of them; a causal model that ggml has no kind of; a model that is not causal.
    others = {name: CONFIGS[name] for name in ("gpt2", "bert", "olmo2")}
    others["whole"] = LLAMA | {"architectures": ["LlamaModel"]}
    for name, config in others.items():
        folder = published(config | {"vocab_size": 400}, tmp_path / name)
        with pytest.raises(ConfigError, match="a causal model of 'gemma2'"):
            pretrained.save(pretrained.load(folder), tmp_path / "m.gguf")
    net = pretrained.build(LLAMA, seed=0)
    with pytest.raises(ArgumentError, match="a net with a tokenizer"):
        pretrained.save(net, tmp_path / "m.gguf")
    words = found.Tokenizer(found.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(DataError, match="byte-level byte pairs.*WordLevel"):
        gguf_values(Tokenizer(words), 2)
    own = pretrained.tokenizer(folder_of("llama", tmp_path))
    with pytest.raises(DataError, match="ids below 399"):
        gguf_values(own, 399)
    own.backend.pre_tokenizer = found.pre_tokenizers.ByteLevel(use_regex=False)
    with pytest.raises(DataError, match="the word split of"):
        gguf_values(Tokenizer(own.backend), 400)
