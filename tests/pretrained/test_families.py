"""Every family against transformers: outputs, all gradients, steps, and the way back."""

import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.checkpoint import open_state, write_folder
from singanet.loss import MultiLoss, SigmoidCrossEntropy, SquaredError
from singanet.optimizer import SGD, AdamW
from tests.pretrained.comparing import apart
from tests.pretrained.peers import (
    MODELS,
    WORDS,
    batch,
    make,
    save_file,
    torch,
    write,
)


@pytest.fixture(params=MODELS)
def model(request):
    return make(request.param)


@pytest.mark.few(6)
def test_outputs_and_gradients_are_those_of_transformers(model, tmp_path):
    outputs, gradients = apart(pretrained.load(write(model, tmp_path)), model)
    assert outputs <= 1e-5
    assert max(gradients.values()) <= 1e-4, gradients


def expect_same_bits(model, folder):
    """Check that transformers loads the arrays of ``model`` from a folder of ours."""
    wanted, found = model.state_dict(), type(model).from_pretrained(folder).state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


@pytest.mark.few(6, full=40)
def test_what_is_saved_loads_in_transformers_with_the_same_bits(model, tmp_path):
    net = pretrained.load(write(model, tmp_path / "theirs"))
    pretrained.save(net, tmp_path / "ours")
    expect_same_bits(model, tmp_path / "ours")


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_arrays_go_in_and_out_with_the_same_bits(dtype, shards, tmp_path):
    model = make("qwen3").to(getattr(torch, dtype))
    model.save_pretrained(tmp_path / "theirs", **{"max_shard_size": 8000} if shards else {})
    net = pretrained.load(tmp_path / "theirs")
    assert {value.dtype for value in net.param_values()} == {np.dtype(np.float32)}
    pretrained.save(net, tmp_path / "ours", dtype, shard_bytes=8000 if shards else 10**9)
    for folder in ("theirs", "ours"):
        assert (tmp_path / folder / "model.safetensors.index.json").exists() is shards
    expect_same_bits(model, tmp_path / "ours")


TIED = ["llama tied, biases", "gemma2", "gpt2", "bert for words", "roberta for words", "t5",
        "distilbert for words"]  # fmt: skip


def one_of_each(model, last, told, folder, shards):
    """The model's folder as safetensors.torch.save_model writes it, one name of each array."""
    write(model, folder)
    names, kept, state = {}, {}, model.state_dict()
    for name in sorted(state, reverse=last):
        first = names.setdefault(state[name].data_ptr(), name)
        if first != name:
            kept[name] = first
    state = {name: state[name].clone() for name in names.values()}
    whole = folder / "model.safetensors"
    whole.unlink()
    if not shards:
        save_file(state, whole, kept if told else {"format": "pt"})
        return kept
    index = {"metadata": kept if told else {}, "weight_map": {}}
    for k, part in enumerate((sorted(state)[::2], sorted(state)[1::2])):
        save_file({name: state[name] for name in part}, folder / f"part-{k}.safetensors")
        index["weight_map"] |= dict.fromkeys(part, f"part-{k}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return kept


@pytest.mark.few(6, full=40)
@pytest.mark.parametrize("last", [False, True], ids=["first name", "last name"])
@pytest.mark.parametrize("told", [False, True], ids=["untold", "told"])
@pytest.mark.parametrize("name", TIED)
def test_of_tied_arrays_any_one_is_enough(name, told, last, tmp_path):
    model = make(name)
    kept = one_of_each(model, last, told, tmp_path / "theirs", shards=told is last)
    assert kept or not model.config.tie_word_embeddings
    write(model, tmp_path / "all")
    for dtype in ("bfloat16", "float32"):
        nets = [pretrained.load(tmp_path / folder, dtype=dtype) for folder in ("theirs", "all")]
        for value, wanted in zip(*(net.param_values() for net in nets), strict=True):
            assert np.array_equal(value, wanted)
    pretrained.save(nets[0], tmp_path / "ours")
    expect_same_bits(model, tmp_path / "ours")


@pytest.mark.parametrize("name", ["vit for classes", "deit"])
def test_the_names_of_transformers_5_are_known(name, tmp_path):
    """It writes those of before, and has others for the modules."""
    model = make(name)
    write(model, tmp_path)
    old = pretrained.load(tmp_path)
    state = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    assert state.keys() != old.origin.arrays.keys() | old.origin.kept.keys()
    write_folder(tmp_path, state)
    new = pretrained.load(tmp_path)
    for a, b in zip(old.param_values(), new.param_values(), strict=True):
        assert np.array_equal(a, b)
    pretrained.save(new, tmp_path / "again")
    with open_state(tmp_path / "again") as reader:
        assert reader.entries.keys() == state.keys()


@pytest.mark.few(6, full=40)
def test_recorded_steps_are_those_of_the_layers(model, tmp_path):
    folder = write(model, tmp_path)
    nets = [pretrained.load(folder, seed=0) for _ in range(2)]
    nets[1].programs.enabled = False
    x, rng = batch(nets[0]), np.random.default_rng(2)
    y = nets[0].forward(False, x)
    if not isinstance(y, dict):
        targets = rng.integers(0, y.shape[-1], y.shape[:-1])
    if isinstance(nets[0].loss, SigmoidCrossEntropy):
        targets = rng.integers(0, 2, y.shape)
    if isinstance(y, dict):
        targets = {name: rng.standard_normal(part.shape, np.float32) for name, part in y.items()}
    elif nets[0].loss is None:
        targets = rng.standard_normal(y.shape, np.float32)
    for net in nets:
        several = isinstance(y, dict)
        loss = MultiLoss({name: SquaredError() for name in y}) if several else SquaredError()
        net.loss = net.loss or loss
    rules = [SGD(lr=0.05), SGD(lr=0.05)]
    for _ in range(3):
        one, other = (net.step(x, targets, r)[0] for net, r in zip(nets, rules, strict=True))
        assert one == other
    assert all(note.startswith("loss:") for note in nets[0].programs.notes)
    assert nets[0].programs.reports()
    for a, b in zip(nets[0].params(), nets[1].params(), strict=True):
        assert np.array_equal(a.value, b.value)


@pytest.mark.parametrize(
    "name",
    [
        "llama", "llama tied, biases", "gpt2 untied", "bert for classes", "roberta for classes",
        "t5 1.1",
    ],
)  # fmt: skip
def test_losses_of_adamw_are_those_of_torch(name, tmp_path):
    """Of few words each step names some, and weight decay and momentum move all."""
    model = make(name).double()
    net = pretrained.load(write(model, tmp_path), "float64", seed=0)
    ours = AdamW(lr=0.01, weight_decay=0.1, epsilon_after_correction=True)
    peer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    rng = np.random.default_rng(3)
    for k in range(20):
        x = batch(net, seed=k)
        x["input_ids"] = np.where(x["input_ids"] > 12, 5 + k % 3, x["input_ids"])
        shape = net.forward(False, x).shape
        targets = rng.integers(0, shape[-1], shape[:-1])
        fed = {key: torch.from_numpy(array) for key, array in x.items()}
        logits = model(**fed).logits.reshape(-1, shape[-1])
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets).reshape(-1))
        peer.zero_grad()
        loss.backward()
        peer.step()
        found = net.step(x, targets, ours)[0]
        assert abs(found - loss.item()) < 1e-5 * abs(loss.item()), k


def test_dynamic_scaling_goes_beyond_the_length_of_the_config(tmp_path):
    model = make("llama, dynamic")  # of 6 steps, times 4
    net = pretrained.load(write(model, tmp_path))
    assert net.most_steps == 24
    text = np.array([5, 9])
    for word in net.generate(text[None], 14, temperature=0)[0]:
        with torch.no_grad():
            # A model remembers the longest text that it has met.
            fresh = type(model).from_pretrained(tmp_path)
            assert fresh(torch.from_numpy(text[None])).logits[0, -1].argmax() == word
        text = np.append(text, word)


def test_longrope_goes_by_the_length_of_each_text(tmp_path):
    """Within and beyond the original 6 steps: written, packed, and padded on the left."""
    model = make("phi3, longrope")
    net = pretrained.load(write(model, tmp_path))
    rng = np.random.default_rng(0)

    def alone(ids):
        with torch.no_grad():
            return model(torch.from_numpy(ids[None])).logits[0].numpy()

    prompts = [rng.integers(1, WORDS, steps) for steps in (2, 4, 6, 9)]
    for prompt, found in zip(prompts, net.generate(prompts, 8, temperature=0), strict=True):
        for word in found:
            assert alone(prompt).argmax(-1)[-1] == word
            prompt = np.append(prompt, word)
    texts = [rng.integers(1, WORDS, steps) for steps in (5, 6, 9, 3)]
    ends = np.cumsum([len(text) for text in texts])
    row = {
        "input_ids": np.concatenate(texts)[None],
        "segments": np.repeat([1, 2, 3, 4], [len(text) for text in texts])[None],
    }
    packed = pretrained.load(tmp_path, inputs=list(row)).forward(False, row)[0]
    ids, mask = np.zeros((2, 4, 9), np.int64)
    for n, text in enumerate(texts):
        ids[n, 9 - len(text) :], mask[n, 9 - len(text) :] = text, 1
    batch_of = {"input_ids": ids, "attention_mask": mask}
    padded = pretrained.load(tmp_path, inputs=list(batch_of)).forward(False, batch_of)
    for n, (text, end) in enumerate(zip(texts, ends, strict=True)):
        wanted = alone(text)
        for found in (packed[end - len(text) : end], padded[n, 9 - len(text) :]):
            np.testing.assert_allclose(found, wanted, atol=1e-5 * abs(wanted).max())
