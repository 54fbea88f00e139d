"""Reads by recorded programs beside reads by the layers: the same bits, over any course."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from singanet.decoding import Decoder
from singanet.layers import (
    Add,
    Dense,
    Embedding,
    GatedUnit,
    Input,
    Layer,
    MultiHeadAttention,
    RMSNorm,
    RotaryEmbedding,
)
from singanet.net import FeedForwardNet
from singanet.ops.casts import has_compiler
from singanet.ops.compiled.calls import joined
from singanet.program.lower_sweeps import chained
from tests.decoding.nets import MIXES, WORDS, T, attention, net_of
from tests.decoding.test_unequal import STATES

KINDS = ("call", "call", "call", "read", "fork", "rows", "join", "back", "back", "anew")


def both(mix):
    """The same net, recorded and by its layers."""
    nets = [net_of(*MIXES[mix]()) for _ in range(2)]
    nets[0].programs.at_once, nets[1].programs.enabled = True, False
    return nets


class Pair:
    """Two decoders of the same sequences; each read is compared."""

    def __init__(self, decoders):
        self.decoders = decoders

    def __getattr__(self, name):
        return getattr(self.decoders[0], name)

    def do(self, act):
        return [act(decoder) for decoder in self.decoders]

    def same(self, act):
        one, other = self.do(act)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


@pytest.mark.parametrize("mix", MIXES)
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_any_course_has_the_same_bits(mix, data):
    """Calls, unequal parts, new texts, steps taken back, forks and joins, in any order."""
    nets, spare = both(mix), 4
    count = data.draw(st.integers(1, 3))
    now, others = Pair([net.decoder(spare=spare) for net in nets]), []
    words = np.random.default_rng(data.draw(st.integers(0, 9)))
    peak = np.zeros(count, int)
    for _ in range(12):
        kind = data.draw(st.sampled_from(KINDS)) if now.samples else "read"
        lengths = now.lengths if now.samples else np.zeros(count, int)
        count, room = len(lengths), T - int(lengths.max())
        if kind == "call" and room:
            ids = words.integers(0, WORDS, (count, data.draw(st.integers(1, min(room, 3)))))
            now.same(lambda decoder, ids=ids: decoder(ids))
        elif kind in ("read", "anew") and room:
            most = st.integers(1, min(room, 5))
            parts = [words.integers(0, WORDS, data.draw(most)) for _ in lengths]
            anew = {0} if kind == "anew" else set()
            now.same(lambda decoder, parts=parts, anew=anew: decoder.read(parts, anew))
            peak = np.array([0 if n in anew else p for n, p in enumerate(peak)])
        elif kind == "back" and mix not in STATES:
            less = [
                data.draw(st.integers(0, max(0, min(n - 1, spare - p + n))))
                for n, p in zip(lengths.tolist(), peak.tolist(), strict=True)
            ]
            now.do(lambda decoder, less=less: decoder.back(less))
        elif kind == "fork":
            others.append((now, peak))
            now = Pair(now.do(lambda decoder: decoder.fork()))
        elif kind == "rows":
            rows = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3))
            others.append((now, peak))
            now = Pair(now.do(lambda decoder, rows=rows: decoder.fork(rows)))
            peak = peak[rows]
        elif kind == "join" and others:
            then, their_peak = others.pop()
            joined = zip(now.decoders, then.decoders, strict=True)
            now = Pair([Decoder.joined(pair) for pair in joined])
            peak = np.concatenate([peak, their_peak])
        peak = np.maximum(peak, now.lengths)
    assert nets[0].programs._known
    assert not nets[0].programs.refusals
    assert not nets[1].programs._known


WIDE = {
    "plain": {"num_kv_heads": 1, "rotary": RotaryEmbedding()},
    "window": {"window": 5},
    "softcap": {"softcap": 3.0},
}


@pytest.mark.parametrize("kind", WIDE)
def test_compiled_calls_that_follow_each_other_have_the_bits_of_single_ones(kind, rng):
    """Buffers that grow, are shared by forks, drop steps, and texts of several lengths."""
    nets = []
    for _ in range(2):
        ids = Input("ids", (None,), "int64")
        x = Embedding("words", WORDS, 64)(ids)
        y = MultiHeadAttention("one", 2, 32, causal=True, **WIDE[kind])(RMSNorm("norm")(x))
        x = GatedUnit("unit", 256, 64)(Add("add")(x, y))
        x = MultiHeadAttention("two", 2, 32, causal=True)(x)
        nets.append(FeedForwardNet(inputs=ids, outputs=Dense("scores", WORDS)(x), seed=0))
    nets[0].programs.at_once, nets[1].programs.enabled = True, False
    pair = Pair([net.decoder(40, spare=8) for net in nets])
    ids = rng.integers(0, WORDS, (3, 40))
    pair.same(lambda decoder: decoder.read([ids[0, :3], ids[1, :6], ids[2, :3]]))
    for k in range(6, 12):
        pair.same(lambda decoder, k=k: decoder(ids[:, k : k + 1]))
    fork = Pair(pair.do(lambda decoder: decoder.fork()))
    for k in range(12, 20):
        for each in (pair, fork):
            each.same(lambda decoder, k=k: decoder(ids[:, k : k + 2]))
    pair.do(lambda decoder: decoder.back([3, 0, 2]))
    pair.same(lambda decoder: decoder(ids[:, 20:21]))
    both = Pair([Decoder.joined(two) for two in zip(pair.decoders, fork.decoders, strict=True)])
    both.same(lambda decoder: decoder(np.concatenate([ids, ids])[:, 21:22]))
    assert not nets[0].programs.refusals
    replay = next(iter(nets[0].programs._known.values()))[0]
    if has_compiler() and kind != "softcap" and nets[0].device.ops.name != "numpy":
        calls = [*replay._bound.feed.calls]
        assert len(joined(chained(calls))) < len(calls)


def test_a_token_is_one_program_however_long_the_text(rng):
    """A recording knows no length: rooms grow, forks and texts of other lengths share it."""
    net = net_of(attention("one", rotary=RotaryEmbedding()), attention("two", window=5), steps=64)
    decoder, ids = net.decoder(), rng.integers(0, WORDS, (1, 64))
    calls = []
    for start in range(40):
        decoder(ids[:, start : start + 1])
        calls.append(len(net.programs._known))
    assert calls[-1] == 1
    decoder.fork()(ids[:, 40:41])
    assert len(net.programs._known) == 1


class Doubled(Layer):
    """A user's layer."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return 2 * x

    def backward(self, ctx, dy):
        return 2 * dy, {}


def test_a_layer_of_a_user_goes_by_the_layers(rng):
    net = net_of(attention("one"), Doubled("double"))
    decoder, ids = net.decoder(), rng.integers(0, WORDS, (2, T))
    got = np.concatenate([decoder(ids[:, k : k + 1]) for k in range(T)], axis=1)
    np.testing.assert_allclose(got, net.predict(ids), rtol=0, atol=1e-9)
    assert net.programs.refusals


def test_weights_that_change_are_read_anew(rng):
    net = net_of(attention())
    decoder, ids = net.decoder(), rng.integers(0, WORDS, (1, T))
    for k in range(4):
        decoder(ids[:, k : k + 1])
    for param in net.params():
        param.value[...] *= 0.5
    fresh = net.decoder()
    got = [fresh(ids[:, k : k + 1]) for k in range(4)]
    np.testing.assert_allclose(
        np.concatenate(got, axis=1), net.predict(ids)[:, :4], rtol=0, atol=1e-9
    )


def test_weights_of_attention_go_by_the_layers(rng):
    """Their extent grows from step to step."""
    x = Input("x", (T, 8))
    y, _ = MultiHeadAttention("att", 2, causal=True, return_weights=True)(x)
    net = FeedForwardNet(inputs=x, outputs=Dense("fc", 3)(y), seed=0)
    decoder, steps = net.decoder(), rng.standard_normal((1, T, 8)).astype(np.float32)
    got = np.concatenate([decoder(steps[:, k : k + 1]) for k in range(T)], axis=1)
    np.testing.assert_allclose(got, net.predict(steps), rtol=0, atol=1e-5)
    assert net.programs.refusals
