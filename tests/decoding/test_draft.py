"""A small net writes ahead: what a large one writes is drawn as without."""

from itertools import product

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from singanet import pretrained
from singanet.decoding import DraftModel, Sampling, generate
from singanet.decoding.drafts import Offer, judged
from singanet.errors import ArgumentError
from singanet.layers import GRU, RotaryEmbedding
from singanet.models import build
from singanet.ops import NumpyOps, ops_for
from tests.decoding.nets import MIXES, WORDS, attention, net_of
from tests.decoding.test_generate import model
from tests.pretrained.configs import CONFIGS


def sharp(net, factor=3.0):
    """Far from even, so that the likeliest is no matter of the last bits."""
    for param in net.params():
        param.value[...] *= factor
    return net


def like(net, rng, noise=0.05):
    """A net that nearly agrees with ``net``."""
    other = sharp(net_of(*MIXES["rotary, two layers"]()), 1.0)
    for param, theirs in zip(other.params(), net.params(), strict=True):
        param.value[...] = theirs.value * (1 + noise * rng.standard_normal(param.shape))
    return other


@pytest.mark.few(9)
@pytest.mark.parametrize("small", ["rotary, two layers", "windows", "GRU"])
@pytest.mark.parametrize("mix", MIXES)
def test_the_likeliest_are_those_without_a_draft(mix, small, rng):
    """Caches, windows and states go back; rows take different numbers; limits are met."""
    net, draft = sharp(net_of(*MIXES[mix]())), DraftModel(sharp(net_of(*MIXES[small]())), ahead=3)
    prompts = [rng.integers(0, WORDS, n) for n in (3, 1, 5, 3)]
    want = net.generate(prompts, 20, temperature=0)
    got = net.generate(prompts, 20, temperature=0, draft=draft)
    assert [row.tolist() for row in got] == [row.tolist() for row in want]
    assert draft.offered


def test_what_agrees_is_taken_and_the_rate_told(rng):
    net = sharp(net_of(*MIXES["rotary, two layers"](), steps=40))
    same, other = DraftModel(net, ahead=3), DraftModel(like(net, rng), ahead=3)
    assert np.isnan(same.acceptance)
    want = net.generate([[1, 2]], 30, temperature=0)[0].tolist()
    for draft in (same, other):
        assert net.generate([[1, 2]], 30, temperature=0, draft=draft)[0].tolist() == want
    assert same.acceptance == 1.0
    assert 0 < other.acceptance < 1
    # Of itself four ids a round.
    assert same.offered <= 24


@pytest.mark.parametrize("small", ["transformer", "char_rnn"])
def test_a_draft_of_another_limit(small, rng):
    net = model("transformer")
    draft = build(small, (6,), 9, seed=4)
    prompts = [rng.integers(0, 9, n) for n in (9, 4, 16, 30)]
    want = net.generate(prompts, 40, temperature=0)
    got = net.generate(prompts, 40, temperature=0, draft=draft)
    assert [row.tolist() for row in got] == [row.tolist() for row in want]


def law(net, prompt, length, sampling):
    """How probable each text of so many ids is, from predictions of whole sequences."""
    words, found = 4, {}
    for text in product(range(words), repeat=length):
        whole = np.array([[*prompt, *text]])
        p = net.predict(np.concatenate([whole, np.zeros((1, 8 - whole.shape[1]), int)], 1))[0]
        chance = 1.0
        for k, id in enumerate(text):
            row = p[len(prompt) + k - 1]
            if sampling.temperature != 1:
                row = row ** (1 / sampling.temperature)
            if sampling.top_k:
                row = np.where(row >= np.sort(row)[-sampling.top_k], row, 0)
            chance *= row[id] / row.sum()
        found[text] = chance
    return found


@pytest.mark.few(3)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.6), Sampling(1.5, top_k=3)], ids=str)
@pytest.mark.parametrize("small", ["attention", "window", "gru"])
def test_texts_come_as_often_as_without(small, sampling):
    """Each text of three ids as often as the product of its probabilities says."""
    layers = {
        "attention": lambda: [attention(rotary=RotaryEmbedding())],
        "window": lambda: [attention(window=2)],
        "gru": lambda: [GRU("r", 4)],
    }
    net = sharp(net_of(attention("a"), steps=8, words=4), 2.0)
    draft = DraftModel(sharp(net_of(*layers[small](), steps=8, words=4), 2.0), ahead=2)
    count = 4000
    drawn = generate(net, [[1, 2]] * count, 3, sampling, seed=5, draft=draft)
    seen = {}
    for each in drawn:
        text = tuple(each.ids.tolist())
        seen[text] = seen.get(text, 0) + 1
    want = law(net, [1, 2], 3, sampling)
    assert sum(want.values()) == pytest.approx(1)
    for text, chance in want.items():
        # Five standard deviations of a binomial count, of 64.
        bound = 5 * np.sqrt(count * chance * (1 - chance)) + 2
        assert abs(seen.get(text, 0) - count * chance) <= bound
    assert 0 < draft.acceptance < 1


def test_the_rate_is_what_distributions_have_in_common(rng):
    """As many are taken as Σ min(p, q) says (Leviathan et al., theorem 3.5), the rest from p."""
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    count = 20000
    ids = rng.choice(6, (count, 1), p=q)
    wanted = np.broadcast_to(p, (count, 2, 6))
    taken, rest = judged(Offer(ids, np.broadcast_to(q, (count, 1, 6))), wanted, rng)
    same = np.minimum(p, q).sum()
    assert abs(taken.mean() - same) < 5 * np.sqrt(same * (1 - same) / count)
    # What is drawn in all: the ids that were taken, and what comes in place of others.
    other = rest[taken == 0]
    np.testing.assert_allclose(
        other, np.broadcast_to(np.maximum(p - q, 0) / (1 - same), other.shape)
    )
    np.testing.assert_allclose(np.minimum(p, q) + (1 - same) * other[0], p)
    np.testing.assert_allclose(rest[taken == 1], np.broadcast_to(p, rest[taken == 1].shape))
    counts = np.bincount(ids[taken == 1, 0], minlength=6)
    accepted = np.minimum(p, q)
    assert (abs(counts - count * accepted) <= 5 * np.sqrt(count * accepted)).all()


def test_log_probabilities_stops_and_prefixes_with_a_draft(rng):
    net = sharp(net_of(*MIXES["rotary, two layers"](), steps=40))
    small = like(net, rng)
    prompts = [rng.integers(0, WORDS, n) for n in (3, 5, 4)]
    free = generate(net, prompts, 15, Sampling(0))
    stop = [free[0].ids[4:6].tolist(), int(free[1].ids[3])]
    want = generate(net, prompts, 15, Sampling(0), stop=stop)
    got = generate(net, prompts, 15, Sampling(0), stop=stop, draft=small)
    for one, other in zip(want, got, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-9)
    decoder, theirs = net.decoder(), small.decoder()
    decoder(prompts[0][None])
    theirs(prompts[0][None])
    whole = [np.concatenate([prompts[0], prompt]) for prompt in prompts]
    want = generate(net, whole, 12, Sampling(0))
    for draft in (None, small, DraftModel(small, 3, prefix=theirs)):
        got = generate(net, prompts, 12, Sampling(0), draft=draft, prefix=decoder)
        assert [each.ids.tolist() for each in got] == [each.ids.tolist() for each in want]
    assert decoder.lengths.tolist() == theirs.lengths.tolist() == [3]


def test_the_seed_decides_with_a_draft(rng):
    net = sharp(net_of(*MIXES["rotary, two layers"](), steps=40))
    draft = DraftModel(like(net, rng, 0.5))
    once = [net.generate([[1], [2, 3]], 12, seed=seed, draft=draft) for seed in (3, 3, 4)]
    first, again, other = ([row.tolist() for row in rows] for rows in once)
    assert first == again != other


def test_refusals(rng):
    net = model()
    with pytest.raises(ArgumentError, match="same vocabulary, '9' words; received '7' words"):
        net.generate([[1]], 3, draft=net_of(attention()))
    with pytest.raises(ArgumentError, match="DraftModel, argument ahead|ahead: expected an int"):
        DraftModel(net, ahead=0)
    with pytest.raises(ArgumentError, match="DraftModel, argument prefix"):
        DraftModel(net, prefix=model().decoder())
    decoder = net.decoder()
    with pytest.raises(ArgumentError, match="net.generate, argument prefix: expected a decoder of"):
        net.generate([[1]], 3, prefix=decoder)
    decoder(np.zeros((1, 10), np.int64))
    with pytest.raises(ArgumentError, match="at most 16 steps of prefix, prompt and new tokens"):
        net.generate([[1]], 7, prefix=decoder)
    assert len(net.generate([[1]], 6, prefix=decoder)[0]) == 6


# -- Prefix, stops and drafts together, on small published models ---------------------------


VOCABULARY, LONGEST = 64, 32
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 64,
    "max_position_embeddings": LONGEST, "initializer_range": 0.3, "num_hidden_layers": 2,
}  # fmt: skip
GPT2 = {"n_embd": 64, "n_positions": LONGEST, "vocab_size": VOCABULARY, "initializer_range": 0.3}
FAMILIES = ("llama", "mistral", "qwen3", "gemma2", "gemma3_text", "gpt2")
WEIGHTS = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture(scope="module")
def nets():
    """Each made once: a family, its weights, whether it has pairs."""
    return {}


def published(nets, family, weights, pairs, seed=0):
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
    draw, word = data.draw, st.integers(0, VOCABULARY - 1)
    # Kernels of a library differ by how many rows they are given, where weights are held.
    weights = WEIGHTS if type(ops_for(np.zeros(1))) is NumpyOps else WEIGHTS[:1]
    made = st.tuples(st.sampled_from(FAMILIES), st.sampled_from(weights), st.booleans())
    family, weights, pairs = draw(made)
    net = published(nets, family, weights, pairs)
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
        small = net if draw(st.booleans()) else published(nets, *draw(made), seed=1)
        named["draft"] = DraftModel(small, draw(st.integers(1, 5)))
    found = generate(net, prompts, length, Sampling(0), stop=stops or None, **named)
    for (ids, told), each in zip(want, found, strict=True):
        assert each.ids.tolist() == ids
        np.testing.assert_allclose(each.log_probabilities, told, rtol=0, atol=0.02)
    # Kernels of few rows round held weights otherwise than those of many, as do two nets.
    if "draft" in named and named["draft"].net is net and not before and weights == "float32":
        assert named["draft"].taken == named["draft"].offered or stops
