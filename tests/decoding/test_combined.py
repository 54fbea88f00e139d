"""What goes with a text that is written, two and more at a time, on small published models."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from singanet import pretrained
from singanet.decoding import DraftModel, Sampling, generate
from singanet.ops import NumpyOps, ops_for
from tests.pretrained.configs import CONFIGS

WORDS, LONGEST = 64, 32
SIZES = {
    "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 64,
    "max_position_embeddings": LONGEST, "initializer_range": 0.3, "num_hidden_layers": 2,
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_positions": LONGEST, "vocab_size": WORDS, "initializer_range": 0.3}
FAMILIES = ("llama", "mistral", "qwen3", "gemma2", "gemma3_text", "gpt2")
WEIGHTS = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture(scope="module")
def nets():
    """Each made once: a family, its weights, whether it has pairs."""
    return {}


def net_of(nets, family, weights, pairs, seed=0):
    key = family, weights, pairs, seed
    if key not in nets:
        config = CONFIGS[family] | (GPT2 if family == "gpt2" else SIZES)
        if family not in ("gpt2",):
            config = config | {"head_dim": 16}
        if family.startswith("gemma"):
            config = config | {"sliding_window": 5}
        net = pretrained.build(config, inputs=["input_ids"], seed=seed)
        if weights == "bfloat16":
            net.as_type(weights)
        elif weights != "float32":
            net.quantize(weights)
        if pairs:
            net.adapt(lora=4, where="attention")
            rng = np.random.default_rng(seed)
            for param in net.params():
                if "lora_b" in param.name:
                    param.value[...] = rng.normal(0, 0.3, param.shape)
        nets[key] = net
    return nets[key]


def likeliest(net, ids, length, stops):
    """Without a cache: the whole text is read for each id; as probable as the net finds it."""
    known, told = [*ids], []
    for _ in range(length):
        p = net.predict(np.array([known]))[0, -1]
        known.append(int(p.argmax()))
        told.append(float(np.log(p.max())))
        if any(known[len(ids) :][-len(stop) :] == stop for stop in stops):
            break
    return known[len(ids) :], told


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
@pytest.mark.slow
def test_any_of_them_together(nets, data):
    draw, word = data.draw, st.integers(0, WORDS - 1)
    # Kernels of a library differ by how many rows they are given, where weights are held.
    weights = WEIGHTS if type(ops_for(np.zeros(1))) is NumpyOps else WEIGHTS[:1]
    made = st.tuples(st.sampled_from(FAMILIES), st.sampled_from(weights), st.booleans())
    family, weights, pairs = draw(made)
    net = net_of(nets, family, weights, pairs)
    prompts = draw(st.lists(st.lists(word, min_size=1, max_size=7), min_size=1, max_size=4))
    before = draw(st.lists(word, max_size=6))
    length = draw(st.integers(1, 10))
    plain = [likeliest(net, before + prompt, length, []) for prompt in prompts]
    # Now and then what is written, which else would seldom be met.
    ids = draw(st.sampled_from(plain))[0]
    stops = draw(st.sampled_from([[], [[ids[-1]]], [ids[-2:], [ids[0], ids[0]]]]))
    want = [likeliest(net, before + prompt, length, stops) for prompt in prompts]
    named = {}
    if before:
        named["prefix"] = net.decoder(spare=draw(st.sampled_from([0, 8])))
        for part in np.array_split(before, draw(st.integers(1, len(before)))):
            named["prefix"](part[None])
    if draw(st.booleans()):
        small = net if draw(st.booleans()) else net_of(nets, *draw(made), seed=1)
        named["draft"] = DraftModel(small, draw(st.integers(1, 5)))
    found = generate(net, prompts, length, Sampling(0), stop=stops or None, **named)
    for (ids, told), each in zip(want, found, strict=True):
        assert each.ids.tolist() == ids
        np.testing.assert_allclose(each.log_probabilities, told, rtol=0, atol=0.02)
    # Kernels of few rows round held weights otherwise than those of many, as do two nets.
    if "draft" in named and named["draft"].net is net and not before and weights == "float32":
        assert named["draft"].taken == named["draft"].offered or stops
