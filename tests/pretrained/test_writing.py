"""What nets write, to the token as transformers does."""

import json

import numpy as np
import pytest

from singanet import pretrained
from singanet.errors import ArgumentError, ConfigError
from tests.pretrained.peers import MODELS, make, torch, write

NETS = ["llama", "gpt2", "t5", "bart", "mbart"]
INPUTS = {key: ["input_ids", "decoder_input_ids"] for key in NETS[2:]}
FORCED = {"mbart": {"forced_bos_token_id": 7}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The models with the nets of their folders; outputs far from even."""
    found = {}
    for name in NETS:
        model = make(name, 5)
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(4.0 if param.ndim > 1 else 1.0)
        if name == "t5":
            model.config.decoder_start_token_id = 0
            model.generation_config.decoder_start_token_id = 0
        for key, id in FORCED.get(name, {}).items():
            setattr(model.generation_config, key, id)
        folder = tmp_path_factory.mktemp(name)
        write(model, folder)
        found[name] = model, pretrained.load(folder, inputs=INPUTS.get(name, ["input_ids"]))
    return found


def test_an_id_that_is_forced_has_to_be_a_word(models, tmp_path):
    write(models["mbart"][0], tmp_path)
    settings = tmp_path / "generation_config.json"
    settings.write_text('{"forced_bos_token_id": 48}')
    net = pretrained.load(tmp_path)
    with pytest.raises(ConfigError, match="forced_bos_token_id: expected an id from 0 to 47"):
        net.generate([[1, 2]], 3)


def test_what_a_sound_says(tmp_path):
    """The prompt is the start of what is written, and the sound another input."""
    model = make("whisper", 5)
    net = pretrained.load(write(model, tmp_path))
    rng = np.random.default_rng(0)
    sounds = rng.standard_normal((2, 6, 20), np.float32)
    prompts = rng.integers(3, 48, (2, 3))
    found = net.generate(prompts, 5, temperature=0, inputs={"input_features": sounds})
    for sound, prompt, own in zip(sounds, prompts, found, strict=True):
        ids = torch.from_numpy(prompt[None])
        for word in own:
            with torch.no_grad():
                out = model(input_features=torch.from_numpy(sound[None]), decoder_input_ids=ids)
            assert out.logits[0, -1].argmax() == word
            ids = torch.cat([ids, torch.tensor([[word]])], dim=1)


def test_ids_that_a_sound_never_says(tmp_path):
    """Those that generation_config.json suppresses, always and at first."""
    write(make("whisper", 5), tmp_path)
    rng = np.random.default_rng(0)
    given = {"input_features": rng.standard_normal((1, 6, 20), np.float32)}
    settings = tmp_path / "generation_config.json"
    settings.write_text("{}")
    asked = {"temperature": 0, "inputs": given}
    free = pretrained.load(tmp_path).generate([[3]], 6, **asked)[0]
    always, first = int(free[1]), int(free[0])
    told = {"suppress_tokens": [always, 50_000], "begin_suppress_tokens": [first]}
    settings.write_text(json.dumps(told))
    net = pretrained.load(tmp_path)
    found, ids = net.generate([[3]], 6, **asked)[0], [3]
    for place, word in enumerate(found):
        scores = net.forward(False, given | {"decoder_input_ids": np.array([ids])})[0, -1]
        scores[[always, *[first] * (place == 0)]] = -np.inf
        assert word == scores.argmax()
        ids.append(word)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_masks_of_prompts_are_made(name, models, tmp_path):
    model, alone = models[name]
    net = pretrained.load(write(model, tmp_path))
    assert "attention_mask" in net.ports().inputs
    prompts = [[5, 6, 7], [8, 9]]
    asked = {"temperature": 0, "stop": 2}
    for one, other in zip(
        net.generate(prompts, 6, **asked), alone.generate(prompts, 6, **asked), strict=True
    ):
        assert np.array_equal(one, other)
    # A prompt with padding, of which the mask tells.
    ids, mask = np.array([[8, 9, 1]]), np.array([[1, 1, 0]])
    (padded,) = net.generate(ids, 6, inputs={"attention_mask": mask}, **asked)
    assert np.array_equal(padded, alone.generate([[8, 9]], 6, **asked)[0])


def test_models_that_do_not_write(tmp_path):
    for name in ("bert for words", "vit"):
        net = pretrained.load(write(make(name, 5), tmp_path / name))
        with pytest.raises(ArgumentError, match="a model that writes texts"):
            net.generate([[1, 2]], 3)
    net = pretrained.load(write(make("whisper", 5), tmp_path / "sound"))
    with pytest.raises(ArgumentError, match="argument inputs: .*'input_features'"):
        net.generate([[1, 2]], 3)


SEARCHES = {
    "greedy": {},
    "repetition": {"repetition_penalty": 1.3},
    "ngrams": {"no_repeat_ngram_size": 2},
    "single ids": {"no_repeat_ngram_size": 1},
    "bad words": {"bad_words": [[5], [7, 9], [30, 31, 32]]},
    "all": {"repetition_penalty": 1.7, "no_repeat_ngram_size": 3, "bad_words": [[5], [7, 9]]},
    "beams": {"num_beams": 3},
    "long beams": {"num_beams": 4, "length_penalty": 2.0},
    "short beams": {"num_beams": 5, "length_penalty": -1.0},
    "beams, all": {"num_beams": 3, "repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", NETS)
def test_the_ids_of_transformers(name, search, models):
    model, net = models[name]
    rng = np.random.default_rng(0)
    told = dict(SEARCHES[search])
    if "bad_words" in told:
        told["bad_words_ids"] = told.pop("bad_words")
    for count in (1, 3):
        prompts = rng.integers(3, 48, (count, 6))
        theirs = model.generate(
            torch.tensor(prompts), attention_mask=torch.ones(prompts.shape), max_new_tokens=14,
            do_sample=False, eos_token_id=[2, 11], pad_token_id=0, **told,
        ).numpy()  # fmt: skip
        given = {} if "num_beams" in told else {"temperature": 0}
        ours = net.generate(prompts, 14, stop=[2, 11], **given, **SEARCHES[search])
        start = 1 if name in INPUTS else prompts.shape[1]
        for row, own in zip(theirs[:, start:], ours, strict=True):
            ends = [k + 1 for k, id in enumerate(row) if id in (2, 11)]
            assert own.tolist() == row[: min(ends, default=len(row))].tolist()


# Under dynamic scaling a model of transformers remembers the longest text that it has met.
CAUSAL = [
    name
    for name, (kind, _) in MODELS.items()
    if kind.endswith(("CausalLM", "LMHeadModel")) and name not in ("llama, dynamic",)
]


@pytest.mark.few(8)
@pytest.mark.parametrize("name", CAUSAL)
def test_every_decoder_writes_the_ids_of_transformers(name, tmp_path):
    """Greedily, by a recorded decoder, beyond the windows."""
    model = make(name, 5)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(2.0 if param.ndim > 1 else 1.0)
    model.generation_config.eos_token_id = None
    net = pretrained.load(write(model, tmp_path))
    prompts = np.random.default_rng(0).integers(3, 48, (2, 5))
    mask = torch.ones(prompts.shape)
    theirs = model.generate(
        torch.tensor(prompts), attention_mask=mask, max_new_tokens=9, do_sample=False
    ).numpy()
    ours = net.generate(prompts, 9, temperature=0, stop=[])
    assert np.array_equal(theirs[:, 5:], ours)
