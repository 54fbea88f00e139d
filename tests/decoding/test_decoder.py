"""Sequences that come in parts give what they give whole."""

from itertools import pairwise

import numpy as np
import pytest

from singanet import FeedForwardNet, layers
from singanet.decoding import Decoder, trial
from singanet.engine.feeds import check_feed
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers import LSTM, Dense, Embedding, Input, MultiHeadAttention, RotaryEmbedding
from singanet.loss import SoftmaxCrossEntropy
from singanet.models import build
from singanet.ops.narrow import BlockMatrix
from tests.decoding.nets import MIXES, WORDS, E, T, attention, net_of


def ids_of(steps=T, words=WORDS, rows=2):
    return lambda rng: rng.integers(0, words, (rows, steps))


def crossed():
    """A fixed memory is read by cross-attention, and the same symbol twice is self-attention."""
    memory, ids = Input("memory", (5, 6)), Input("ids", (T,), "int64")
    encoded = MultiHeadAttention("encoder", 2)(memory)
    x = attention(rotary=RotaryEmbedding())(Embedding("words", WORDS, E)(ids))
    x = layers.Add("add")(x, MultiHeadAttention("twice", 2, causal=True)(x, x))
    x = layers.Activation("tanh", "tanh")(MultiHeadAttention("cross", 2)(x, encoded))
    net = FeedForwardNet(inputs=[memory, ids], outputs=x, seed=0)
    net.as_type("float64")
    return net


def of_numbers():
    x = Input("x", (T, 3))
    y = layers.GRU("r", 4)(x)
    return FeedForwardNet(inputs=x, outputs=[y, layers.Activation("a", "tanh")(y)], seed=0)


def half():
    net = net_of(*MIXES["both"]())
    net.as_type("float16")
    return net


def rotating(steps):
    return net_of(attention(rotary=RotaryEmbedding()), LSTM("r", 4), steps=steps)


NETS = {
    # A net, its sequences, how near parts come, how many steps a decoder is told.
    **{name: (lambda mix=mix: net_of(*mix()), ids_of(), 1e-9, None) for name, mix in MIXES.items()},
    **{
        name: (lambda name=name: build(name, (T,), WORDS, seed=1), ids_of(), 1e-5, None)
        for name in ("char_rnn", "transformer")
    },
    "halves": (half, ids_of(), 5e-3, None),
    "stateful": (lambda: net_of(layers.GRU("r", E, stateful=2), attention()), ids_of(), 1e-9, None),
    "undeclared length": (lambda: rotating(None), ids_of(300, rows=1), 1e-9, 300),
    "numbers": (of_numbers, lambda rng: rng.standard_normal((2, T, 3)).astype("f"), 1e-6, None),
    "cross-attention": (crossed, ids_of(), 1e-9, None),
}


@pytest.mark.parametrize("cuts", [range(1, T), [5], [1, 8, 9]])
@pytest.mark.parametrize("name", NETS)
def test_parts_give_what_the_whole_gives(name, cuts, rng):
    """Nothing of the net is touched, and what a stateful layer keeps is left alone."""
    make, draw, near, most = NETS[name]
    net, given, fixed = make(), draw(rng), {}
    if name == "cross-attention":
        fixed = {"memory": rng.standard_normal((2, 5, 6))}
    want = net.predict({**fixed, "ids": given} if fixed else given)
    before, draws = [v.copy() for v in net.param_values()], net.rng.bit_generator.state
    decoder = net.decoder(max_length=most, **({"fixed": fixed} if fixed else {}))
    for _ in range(2):
        parts = enumerate(np.split(given, list(cuts), axis=1))
        parts = [decoder({"ids": part} if k and fixed else part) for k, part in parts]
        for key in want if isinstance(want, dict) else [...]:
            joined = np.concatenate([part[key] for part in parts], axis=1)
            np.testing.assert_allclose(joined, want[key], rtol=0, atol=near)
        assert decoder.steps == given.shape[1]
        decoder.reset()
    assert net.rng.bit_generator.state == draws
    assert all(map(np.array_equal, before, net.param_values()))


def test_rotary_positions_go_beyond_the_declared_length_where_asked(rng):
    net, longer = (net_of(attention(rotary=RotaryEmbedding()), steps=s) for s in (T, None))
    ids = rng.integers(0, WORDS, (1, 3 * T))
    decoder = net.decoder(max_length=3 * T)
    got = np.concatenate([decoder(ids[:, t : t + 4]) for t in range(0, 3 * T, 4)], axis=1)
    np.testing.assert_allclose(got, longer.predict(ids), rtol=0, atol=1e-9)


def test_recurrent_nets_have_no_limit_and_no_growth(rng):
    for steps in (4, None):
        decoder = net_of(LSTM("r", 5), steps=steps).decoder()
        assert decoder.limit is None
    decoder(rng.integers(0, WORDS, (3, 1)))
    kept = decoder.nbytes
    for _ in range(50):
        decoder(rng.integers(0, WORDS, (3, 1)))
    assert decoder.nbytes == kept == 2 * 3 * 5 * 8


def test_memory_is_that_of_the_steps_and_stays(rng):
    net = net_of(attention("one"), attention("two"), steps=64)
    decoder = net.decoder()
    assert decoder.nbytes == 0
    seen = []
    for _ in range(2):
        for _ in range(64):
            decoder(rng.integers(0, WORDS, (3, 1)))
            # Keys and values of two layers, in float64; rooms are doubled as they fill.
            assert decoder.nbytes <= 2 * 2 * 3 * E * 8 * min(64, 2 * decoder.steps)
        seen.append(decoder.nbytes)
        decoder.reset()
        assert decoder.nbytes == 0
    assert seen == [2 * 2 * 3 * E * 8 * 64] * 2


def test_keys_that_a_window_hides_are_let_go(rng):
    net = net_of(attention(window=4, rotary=RotaryEmbedding()), steps=None)
    decoder, ids = net.decoder(max_length=200), rng.integers(0, WORDS, (2, 200))
    want, taken = net.predict(ids), set()
    for t in range(200):
        np.testing.assert_allclose(decoder(ids[:, [t]]), want[:, [t]], rtol=0, atol=1e-9)
        taken.add(decoder.nbytes)
    # Of keys and values twice the window at most.
    assert max(taken) <= 2 * 2 * 8 * E * 8


def test_a_refused_part_leaves_the_sequences_as_they_were(rng):
    net = net_of(*MIXES["both"]())
    ids = rng.integers(0, WORDS, (2, T))
    decoder = net.decoder()
    got = [decoder(ids[:, :4])]
    with pytest.raises(DataError, match="indices from 0 to 6"):
        decoder(ids[:, 4:6] + WORDS)
    with pytest.raises(ShapeError, match="further steps of 2 sequences; received 3"):
        decoder(np.zeros((3, 1), np.int64))
    with pytest.raises(ShapeError, match="with one number of steps"):
        decoder(ids[:, :0])
    with pytest.raises(CallOrderError, match="at most 12 steps; received 9 steps after 4"):
        decoder(ids[:, :9])
    got.append(decoder(ids[:, 4:]))
    np.testing.assert_allclose(np.concatenate(got, 1), net.predict(ids), rtol=0, atol=1e-9)


def test_an_error_halfway_through_the_net_changes_nothing(rng):
    class Fragile(layers.Layer):
        fails = False

        def setup(self, in_shapes):
            return in_shapes

        def forward(self, ctx, x):
            if self.fails:
                raise RuntimeError("halfway")
            return x

        def backward(self, ctx, dy):
            return dy, {}

    fragile = Fragile("fragile")
    net = net_of(layers.GRU("r", E), attention("one"), fragile, attention("two"))
    ids = rng.integers(0, WORDS, (2, T))
    want = net.predict(ids)
    decoder = net.decoder()
    decoder(ids[:, :3])
    fragile.fails = True
    with pytest.raises(RuntimeError, match="halfway"):
        decoder(ids[:, 3:9])
    fragile.fails = False
    np.testing.assert_allclose(decoder(ids[:, 3:]), want[:, 3:], rtol=0, atol=1e-9)


class Total(layers.Layer):
    """A user's layer that sums over the steps, and knows nothing of parts."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return x.cumsum(axis=1)

    def backward(self, ctx, dy):
        return dy[:, ::-1].cumsum(axis=1)[:, ::-1], {}


def transposed(layer):
    return [layers.Permute("p", (2, 1)), layer, layers.Permute("q", (2, 1))]


def last_alone(end):
    return FeedForwardNet([Embedding("words", WORDS, E, input_sample_shape=(T,)), end])


def scaled(size):
    net = net_of(MultiHeadAttention("att", 2), layers.TimeDistributed("last", Dense("d", 3)))
    for param in net["last"].params.values():
        param.value[...] *= size
    return net


class Summing(Dense):
    """It keeps nothing, but reads the steps of others."""

    order = 1

    def forward(self, ctx, x):
        return np.cumsum(x[:, :: self.order], 1)[:, :: self.order]


class FromTheEnd(Summing):
    order = -1


class Own(FeedForwardNet):
    def forward(self, flag, x, output=()):
        return super().forward(flag, x, output)


def expanded():
    return (
        LSTM("r", 4, return_sequences=False),
        Dense("wide", T * 2),
        layers.Reshape("steps", (T, 2)),
    )


CAUSAL = "net.decoder: expected a causal net"
REFUSED = {
    "attention": (lambda: net_of(MultiHeadAttention("att", 2)),
                  f"{CAUSAL}.*from the MultiHeadAttention 'att' on"),
    "bidirectional": (lambda: net_of(attention(), LSTM("r", 4, bidirectional=True)),
                      f"{CAUSAL}.*from the LSTM 'r' on"),
    "convolution": (lambda: net_of(*transposed(layers.Conv1D("c", E, 3))),
                    f"{CAUSAL}.*from the Permute 'p' on"),
    "a user's": (lambda: net_of(Total("total")), f"{CAUSAL}.*from the Total 'total' on"),
    "the last step alone": (lambda: net_of(*expanded()), f"{CAUSAL}.*from the LSTM 'r' on"),
    # However small other outputs are.
    **{f"times {size}": (lambda size=size: scaled(size), CAUSAL) for size in (1e-12, 1e12)},
    # Among alike layers too, of which a single one is tried.
    **{
        kind.__name__: (lambda kind=kind, rest=rest: net_of(attention(), kind("s", *rest)), CAUSAL)
        for kind, *rest in (
            (Summing, E), (FromTheEnd, E), (layers.Softmax, 1), (layers.Reduce, "mean", 1, True),
        )
    },
    "one output": (lambda: last_alone(layers.Flatten("flat")), CAUSAL),
    "a mean": (lambda: last_alone(layers.Reduce("mean", "mean", 1)), CAUSAL),
    "no length": (lambda: net_of(attention(), steps=None),
                  "max_length: expected a maximum number of steps"),
    "its own": (lambda: Own([Embedding("words", WORDS, E, input_sample_shape=(T,))]),
                "received a forward of its own"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_nets_whose_parts_give_something_else_are_refused(name):
    make, words = REFUSED[name]
    with pytest.raises(ArgumentError, match=words):
        Decoder(make()) if name == "its own" else make().decoder()


def test_arguments_and_changes_that_are_refused(rng):
    with pytest.raises(ArgumentError, match="max_length: expected an int of at least 1"):
        rotating(None).decoder(max_length=0)
    given = {"memory": rng.standard_normal((2, 5, 6)), "ids": rng.integers(0, WORDS, (2, T))}
    with pytest.raises(ArgumentError, match="at least one input .* that is not fixed"):
        crossed().decoder(fixed=given)
    net = net_of(attention())
    decoder = net.decoder()
    net.add(layers.Activation("more", "tanh"))
    with pytest.raises(CallOrderError, match="expected the net as it was"):
        decoder(np.zeros((1, 1), np.int64))


def tries(monkeypatch):
    """The steps of each part that decoders run, as they are made and called."""
    ran = []

    def told(plan, given, *rest):
        ran.append(next(iter(given.values())).shape[1])
        return check_feed(plan, given, *rest)

    monkeypatch.setattr("singanet.decoding.decoder.check_feed", told)
    return ran


def layers_tried(monkeypatch):
    """The names of the layers that trials run by themselves, a call each, from now on."""
    ran, run = [], trial.run_step

    def told(step, *rest, **named):
        ran.append(step.name)
        return run(step, *rest, **named)

    monkeypatch.setattr(trial, "run_step", told)
    return ran


def test_a_trial_runs_alike_layers_once(monkeypatch, rng):
    """So that it takes a small part of what a text takes."""
    whole, alone = tries(monkeypatch), layers_tried(monkeypatch)
    blocks = [
        layer
        for k in range(6)
        for layer in (attention(f"att{k}"), Dense(f"d{k}", E), layers.Activation(f"a{k}", "tanh"))
    ]
    net = net_of(*blocks)
    decoder = net.decoder()
    assert not whole
    assert {name.rstrip("0123456789") for name in alone} >= {"att", "d"}
    assert len(alone) <= 4 * len(set(alone))
    assert len(set(alone)) == len(set(alone) - {f"{kind}{k}" for kind in "ad" for k in range(1, 6)})
    ids = rng.integers(0, WORDS, (2, T))
    got = np.concatenate([decoder(ids[:, :2]), decoder(ids[:, 2:])], axis=1)
    np.testing.assert_allclose(got, net.predict(ids), rtol=0, atol=1e-9)


def test_a_trial_is_short_and_made_once(monkeypatch, rng):
    ran = layers_tried(monkeypatch)
    net = net_of(attention(rotary=RotaryEmbedding()), LSTM("r", 4), steps=None)
    net.decoder(max_length=300)
    first = len(ran)
    decoder = net.decoder(max_length=200)
    assert len(ran) == first
    assert decoder.limit == 200
    net.decoder(max_length=5)  # of fewer steps than were tried
    assert len(ran) > first
    ids = rng.integers(0, WORDS, (1, 200))
    got = np.concatenate([decoder(ids[:, :50]), decoder(ids[:, 50:])], axis=1)
    np.testing.assert_allclose(got, net.predict(ids), rtol=0, atol=1e-9)
    net["att"].causal = False
    with pytest.raises(ArgumentError, match="expected a causal net"):
        net.decoder(max_length=300)


def test_a_trial_is_long_where_layers_may_read_far(monkeypatch):
    ran = tries(monkeypatch)
    far = [
        layers.Permute("p", (2, 1)),
        layers.Conv1D("c", E, 3, pad=40, dilation=40),
        layers.Permute("q", (2, 1)),
    ]
    with pytest.raises(ArgumentError, match="expected a causal net"):
        net_of(*far, steps=300).decoder()
    assert ran[0] == 256


def test_an_encoder_s_sequences_are_asked_to_be_fixed():
    """Its positions were counted, and nothing was said of ``fixed``."""
    source, target = (Input(name, (None,), dtype="int64") for name in ("source", "target"))
    memory = layers.PositionEmbedding("before", 6)(Embedding("read", 11, 8)(source))
    written = MultiHeadAttention("cross", 2)(Embedding("write", 11, 8)(target), memory)
    net = FeedForwardNet(inputs=[source, target], outputs=Dense("scores", 11)(written), seed=0)
    with pytest.raises(
        ArgumentError, match=r"fixed=\{'source': array\} for inputs without a time axis"
    ):
        net.decoder()
    decoder = net.decoder(fixed={"source": np.zeros((1, 6), np.int64)})
    assert decoder(np.zeros((1, 1), np.int64)).shape == (1, 1, 11)


def test_kernels_of_few_rows_that_are_coarse_do_not_make_a_net_refused(monkeypatch):
    """Published nets amplify what they differ by, of words that begin no text beyond any bound."""
    net = net_of(MultiHeadAttention("att", 2, key_dim=32, causal=True), Dense("wide", 64))
    net.as_type("float32")
    net.quantize("int8")
    few = BlockMatrix.few
    monkeypatch.setattr(BlockMatrix, "few", lambda held, x: few(held, x) * 1.5)
    decoder = net.decoder()
    ids = np.zeros((6, 4), np.int64)
    got = np.concatenate([decoder(ids[:, :1]), decoder(ids[:, 1:])], axis=1)
    np.testing.assert_allclose(got, net.predict(np.zeros((6, T), np.int64))[:, :4], atol=1e-3)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("length", [12, -1])
def test_masked_attention_knows_which_earlier_steps_were_there(length, recurrent):
    """Parts, parts of unequal lengths, forks and written words give the outputs of the whole."""
    rng = np.random.default_rng(4)
    most = None if length > 0 else 20
    text = Input("text", (length,), dtype="int64")
    x = Embedding("words", 10, 8, mask_index=0)(text)
    for k in range(2):
        transposed = RotaryEmbedding() if k else None
        x = MultiHeadAttention(f"look{k}", 2, causal=True, mask="boolean", rotary=transposed)(x)
        x = LSTM(f"lstm{k}", 8)(x) if recurrent else x
    out = Dense("out", 10)(x)
    out.mask = None
    net = FeedForwardNet(inputs=text, outputs=out, loss=SoftmaxCrossEntropy(), seed=1)
    ids = rng.integers(0, 10, (4, 12))
    whole = net.predict(ids)
    for cuts in ([0, 12], [0, 1, 2, 12], [0, 5, 6, 11, 12]):
        decoder = net.decoder(max_length=most)
        parts = [decoder(ids[:, a:b]) for a, b in pairwise(cuts)]
        np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=1e-6)
    lengths = np.array([3, 8, 1, 5])
    decoder = net.decoder(max_length=most)
    last = decoder.read([row[:n] for row, n in zip(ids, lengths, strict=True)])
    np.testing.assert_allclose(last, whole[np.arange(4), lengths - 1], atol=1e-6)
    rows = np.array([2, 0, 2])
    after = decoder.fork(rows)(ids[rows, lengths[rows]][:, None])[:, 0]
    np.testing.assert_allclose(after, whole[rows, lengths[rows]], atol=1e-6)
    prompt = ids[1, :4]
    told = net.generate([prompt], 4, temperature=0.0, max_length=most)
    written = np.concatenate([prompt, told[0]])
    likeliest = net.predict(np.pad(written, (0, 12 - len(written)))[None])[0].argmax(-1)
    assert np.array_equal(likeliest[3 : len(written) - 1], written[4:])


def test_what_depends_on_fixed_inputs_alone_is_computed_once(rng, monkeypatch):
    """The encoder, and keys and values of its output; `reset` reads changed weights."""
    net, ids = crossed(), rng.integers(0, WORDS, (2, T))
    memory = rng.standard_normal((2, 5, 6))
    decoder = net.decoder(fixed={"memory": memory})
    ran, forward = [], MultiHeadAttention.forward
    monkeypatch.setattr(
        MultiHeadAttention,
        "forward",
        lambda layer, ctx, x: ran.append((layer.name, x)) or forward(layer, ctx, x),
    )
    net.programs.enabled = False
    for k in range(3):
        decoder(ids[:, k : k + 1])
        decoder = decoder.fork([1, 0])
        ids = ids[::-1]
    assert [name for name, _ in ran].count("encoder") == 1
    assert [x[1] is None for name, x in ran if name == "cross"] == [False, True, True]
    for param in net.params():
        param.value[...] *= 0.5
    decoder.reset()
    want = net.predict({"memory": memory[::-1], "ids": ids})[:, :2]
    np.testing.assert_allclose(decoder(ids[:, :2]), want, rtol=0, atol=1e-9)


def test_a_program_serves_fixed_inputs_of_any_length(rng):
    """Keys and values of the encoder are stored, so that later steps read none of its steps."""
    memory, ids = Input("memory", (None, 6)), Input("ids", (None,), "int64")
    x = MultiHeadAttention("cross", 2)(Embedding("words", WORDS, E)(ids), memory)
    net = FeedForwardNet(inputs=[memory, ids], outputs=Dense("scores", WORDS)(x), seed=0)
    net.as_type("float64")
    known = set()
    for length in (3, 5, 8):
        given = {"memory": rng.standard_normal((1, length, 6)), "ids": rng.integers(0, 2, (1, 6))}
        decoder = net.decoder(fixed={"memory": given["memory"]})
        got = [decoder(given["ids"][:, k : k + 1]) for k in range(6)]
        np.testing.assert_allclose(
            np.concatenate(got, axis=1), net.predict(given), rtol=0, atol=1e-9
        )
        # The first program is of the first part alone.
        known.add(sum(key[2] for key in net.programs._known if key[0] == "read"))
    assert known == {1}
