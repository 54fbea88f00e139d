"""Sequences of different lengths in one decoder, copied, joined and taken back."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from singanet import layers
from singanet.decoding import Decoder
from singanet.errors import ArgumentError, CallOrderError, DataError, ShapeError
from singanet.layers import Add, Dense, Embedding, Input, Layer, MultiHeadAttention, RotaryEmbedding
from singanet.loss import SoftmaxCrossEntropy
from singanet.net import FeedForwardNet
from tests.decoding.nets import MIXES, WORDS, E, T, attention, net_of
from tests.decoding.test_decoder import Total

STATES = ("LSTM", "GRU", "tanh", "both")


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)


def alone(net, text):
    """Of one sequence, at its last step."""
    return net.predict(np.array([[*text, *[0] * (T - len(text))]]))[0, len(text) - 1]


class EachStep(Layer):
    """A user's layer that computes each step for itself, but says nothing of that."""

    def setup(self, in_shapes):
        return in_shapes

    def forward(self, ctx, x):
        return 2 * x

    def backward(self, ctx, dy):
        return 2 * dy, []


@pytest.mark.parametrize(("end", "steps"), [(None, 1), (EachStep, 6), (layers.Dropout, 1)])
def test_behind_the_last_memory_only_the_last_step_is_computed(end, steps, monkeypatch, rng):
    """The head of a net is its largest product; a user's layer is given all steps."""
    x = Input("ids", (T,), "int64")
    table = Embedding("words", WORDS, E)(x)
    first = attention("one", rotary=RotaryEmbedding())(table)
    # A way past the attention, and one of two layers that both end.
    sum = Add("sum")([attention("two", rotary=RotaryEmbedding())(first), table])
    out = Dense("head", WORDS)(Add("last")([Dense("wide", E)(sum), sum]))
    net = FeedForwardNet(
        inputs=x,
        outputs=out if end is None else end("end")(out),
        loss=SoftmaxCrossEntropy(),
        seed=0,
    )
    net.as_type("float64")
    texts = [rng.integers(0, WORDS, n) for n in (6, 6)]
    decoder, counted = net.decoder(), []
    run = Dense.forward
    monkeypatch.setattr(
        Dense, "forward", lambda layer, ctx, x: counted.append(x.shape[1]) or run(layer, ctx, x)
    )
    got = decoder.read(texts)
    assert counted == [steps, steps]
    monkeypatch.undo()
    close(got, [alone(net, text) for text in texts])
    more = rng.integers(0, WORDS, (2, 3))
    close(
        decoder.read([*more]),
        [alone(net, [*text, *new]) for text, new in zip(texts, more, strict=True)],
    )


def test_steps_that_are_computed_are_those_that_are_there(monkeypatch, rng):
    """Nothing is padded: as many vectors go through a layer as there are ids."""
    net = net_of(attention(rotary=RotaryEmbedding()))
    decoder, counted = net.decoder(), []
    run = MultiHeadAttention.forward
    monkeypatch.setattr(
        MultiHeadAttention,
        "forward",
        lambda layer, ctx, x: counted.append(x.shape[0] * x.shape[1]) or run(layer, ctx, x),
    )
    decoder.read([rng.integers(0, WORDS, n) for n in (3, 7, 1, 7, 4)])
    assert sum(counted) == 22
    assert len(counted) == 4


class Course:
    """A decoder, what its sequences are, and how long each was at most."""

    def __init__(self, decoder, texts, most):
        self.decoder, self.texts, self.most = decoder, texts, most

    def read(self, parts, level):
        self.texts = [text + part for text, part in zip(self.texts, parts, strict=True)]
        self.most = [max(m, len(text)) for m, text in zip(self.most, self.texts, strict=True)]
        if level:
            return self.decoder(np.array(parts))[:, -1]
        return self.decoder.read([np.array(part) for part in parts])

    def rows(self, rows):
        some = [[of[n] for n in rows] for of in (self.texts, self.most)]
        return Course(self.decoder.fork(rows), *some)

    def back(self, less):
        self.decoder.back(less)
        self.texts = [text[: len(text) - k] for text, k in zip(self.texts, less, strict=True)]

    def with_(self, other):
        decoder = Decoder.joined([self.decoder, other.decoder])
        return Course(decoder, self.texts + other.texts, self.most + other.most)


@pytest.mark.parametrize("mix", MIXES)
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(data=st.data())
def test_any_course_of_sequences(mix, data):
    """Calls, unequal parts, steps taken back, forks and joins, in any order."""
    net, spare = net_of(*MIXES[mix]()), 4
    kinds = ["call", "read", "fork", "rows", "join", *["back"] * (mix not in STATES)]
    count = data.draw(st.integers(1, 3))
    now, others = Course(net.decoder(spare=spare), [[] for _ in range(count)], [0] * count), []
    word = st.integers(0, WORDS - 1)
    for _ in range(8):
        kind = data.draw(st.sampled_from(kinds)) if now.decoder.samples else "read"
        room = T - max(map(len, now.texts))
        if kind in ("call", "read") and room:
            level = data.draw(st.integers(1, min(room, 4)))
            counts = [
                level if kind == "call" else data.draw(st.integers(1, min(T - len(text), 5)))
                for text in now.texts
            ]
            parts = [data.draw(st.lists(word, min_size=n, max_size=n)) for n in counts]
            close(now.read(parts, kind == "call"), [alone(net, text) for text in now.texts])
        elif kind == "back":
            pairs = zip(now.texts, now.most, strict=True)
            most = [min(len(text) - 1, spare - m + len(text)) for text, m in pairs]
            now.back([data.draw(st.integers(0, k)) for k in most])
        elif kind == "fork":
            others.append(Course(now.decoder, now.texts, now.most))
            now = Course(now.decoder.fork(), now.texts, now.most)
        elif kind == "rows":
            each = st.integers(0, len(now.texts) - 1)
            others.append(now)
            now = now.rows(data.draw(st.lists(each, min_size=1, max_size=4)))
        elif kind == "join" and others:
            then = others.pop(data.draw(st.integers(0, len(others) - 1)))
            now = now.with_(then) if len(now.texts) + len(then.texts) < 7 else then
    for each in [*others, now]:
        assert each.decoder.lengths.tolist() == [len(text) for text in each.texts]
        if max(map(len, each.texts)) < T:
            got = each.read([[0]] * len(each.texts), True)
            close(got, [alone(net, text) for text in each.texts])


def test_a_prefix_is_read_once_and_its_memory_shared(rng):
    net = net_of(attention("one"), attention("two"), steps=64)
    decoder, prefix = net.decoder(), rng.integers(0, WORDS, (1, 40))
    decoder(prefix)
    bytes_of_prefix = 2 * 2 * E * 8 * 40
    assert decoder.nbytes == bytes_of_prefix
    forks = [decoder.fork() for _ in range(3)]
    kept = [kept.array for past in decoder._pasts.values() for kept in past._rows.values()]
    for fork in forks:
        assert fork.nbytes == bytes_of_prefix
        theirs = [kept.array for past in fork._pasts.values() for kept in past._rows.values()]
        assert all(np.shares_memory(a, b) for a, b in zip(kept, theirs, strict=True))
    asked = rng.integers(0, WORDS, (3, 5))
    for fork, ids in zip(forks, asked, strict=True):
        whole = np.concatenate([prefix, ids[None], np.zeros((1, 19), np.int64)], axis=1)
        close(fork(ids[None]), net.predict(whole)[:, 40:45])
    side_by_side = decoder.fork([0, 0, 0])
    got, more = side_by_side(asked), rng.integers(0, WORDS, (3, 1))
    for n, fork in enumerate(forks):
        fork.back(5)
        close(fork(asked[[n]])[0], got[n])
    close(
        side_by_side(more)[:, 0],
        [fork(ids[None])[0, 0] for fork, ids in zip(forks, more, strict=True)],
    )
    assert decoder.lengths.tolist() == [40]


def test_states_cannot_be_taken_back_but_forks_can(rng):
    net = net_of(layers.GRU("r", E), attention())
    ids = rng.integers(0, WORDS, (1, 6))
    decoder = net.decoder()
    assert not decoder._goes_back(1)
    decoder(ids[:, :3])
    fork = decoder.fork()
    decoder(ids[:, 3:5])
    with pytest.raises(CallOrderError, match=r"decoder.back: .*; received a layer that stores"):
        decoder.back(1)
    close(decoder(ids[:, 5:])[0, -1], alone(net, ids[0]))
    close(fork(ids[:, 3:])[0, -1], alone(net, ids[0]))


def test_windows_keep_as_many_steps_more_as_are_spared(rng):
    net = net_of(attention(window=4, rotary=RotaryEmbedding()), steps=None)
    ids = rng.integers(0, WORDS, (1, 200))
    want, most = net.predict(ids), {}
    for spare in (0, 3):
        decoder = net.decoder(max_length=200, spare=spare)
        assert decoder._goes_back(spare)
        assert not decoder._goes_back(spare + 1)
        taken = []
        for t in range(100):
            decoder(ids[:, [t]])
            taken.append(decoder.nbytes)
            if spare and t % 7 == 6:
                decoder.back(3)
                close(decoder(ids[:, t - 2 : t + 1]), want[:, t - 2 : t + 1])
        most[spare] = max(taken)
        with pytest.raises(CallOrderError, match=f"for windows {spare} in addition"):
            decoder.back(30)
        close(decoder(ids[:, [100]]), want[:, [100]])
    assert most[3] <= 2 * most[0]


@pytest.mark.parametrize("recorded", [False, True])
def test_a_fixed_memory_goes_with_its_sequence(recorded, rng):
    memory, ids = Input("memory", (5, E)), Input("ids", (T, E))
    x = attention(rotary=RotaryEmbedding())(ids)
    net = FeedForwardNet(
        inputs=[memory, ids], outputs=MultiHeadAttention("cross", 2)(x, memory), seed=0
    )
    net.as_type("float64")
    net.programs.at_once = recorded
    given = {"memory": rng.standard_normal((3, 5, E)), "ids": rng.standard_normal((3, T, E))}
    want = net.predict(given)
    decoder = net.decoder(fixed={"memory": given["memory"]})
    got = decoder.read([given["ids"][0, :4], given["ids"][1, :7], given["ids"][2, :4]])
    close(got, [want[0, 3], want[1, 6], want[2, 3]])
    some = decoder.fork([2, 1])
    got = some(np.stack([given["ids"][2, 4:6], given["ids"][1, 7:9]]))
    close(got, [want[2, 4:6], want[1, 7:9]])
    both = Decoder.joined([decoder, some])
    got = both(np.stack([given["ids"][n, k : k + 1] for n, k in enumerate((4, 7, 4))]
                        + [given["ids"][2, 6:7], given["ids"][1, 9:10]]))  # fmt: skip
    close(got[:, 0], [want[0, 4], want[1, 7], want[2, 4], want[2, 6], want[1, 9]])
    # A sequence that begins anew reads its own memory.
    both.back([5, 0, 0, 0, 0])
    got = both.read([given["ids"][0, :2]] + [given["ids"][n, k : k + 1]
                     for n, k in ((1, 8), (2, 5), (2, 7), (1, 10))], anew=[0])  # fmt: skip
    close(got, [want[0, 1], want[1, 8], want[2, 5], want[2, 7], want[1, 10]])


@pytest.mark.parametrize(("inputs", "outputs"), [(2, 1), (1, 2), (2, 2)])
def test_parts_of_any_lengths_are_of_one_sequence_and_one_output(inputs, outputs):
    ids = [Input(f"in{k}", (T, E)) for k in range(inputs)]
    x = Add("sum")(*ids) if inputs > 1 else ids[0]
    made = [attention(f"out{k}")(x) for k in range(outputs)]
    decoder = FeedForwardNet(inputs=ids, outputs=made, seed=0).decoder()
    with pytest.raises(ArgumentError, match="decoder.read: expected a net of one sequence and one"):
        decoder.read([np.zeros((2, E)), np.zeros((3, E))])


def test_layers_of_a_user_s_own_are_refused_where_they_count_one_number(rng):
    class Counting(Total):
        def forward(self, ctx, x):
            return x + ctx.before

    with pytest.raises(ArgumentError, match="a causal net"):
        net_of(attention(), Counting("own")).decoder()

    class Lifting(Total):
        def forward(self, ctx, x):
            return x + np.arange(ctx.before, ctx.before + x.shape[1])[:, None]

    net = net_of(attention(), Lifting("own"))
    decoder, ids = net.decoder(), rng.integers(0, WORDS, (2, 6))
    close(decoder(ids[:, :3])[:, -1], [alone(net, text) for text in ids[:, :3]])
    apart = decoder.fork([0])
    apart(ids[:1, 3:4])
    mixed = Decoder.joined([decoder, apart])
    with pytest.raises(CallOrderError, match=r"ctx\.before: expected sequences with equal"):
        mixed(ids[[0, 1, 0], 3:4])
    assert mixed.lengths.tolist() == [3, 3, 4]


def test_what_a_user_s_layer_leaves_needs_a_row_a_sequence(rng):
    class Sum(Total):
        def forward(self, ctx, x):
            y = x.cumsum(axis=1)
            if ctx.past is not None:
                before = ctx.past.get("sum")
                y = y if before is None else y + before[0].swapaxes(0, 1)
                ctx.past.put("sum", [y[:, -1:].swapaxes(0, 1)])
            return y

    decoder = net_of(Sum("own")).decoder()
    decoder(rng.integers(0, WORDS, (2, 3)))
    with pytest.raises(ShapeError, match="expected arrays \\(2, ...\\), a row for each sequence"):
        decoder.fork([0])


def test_refusals_leave_all_as_it_was(rng):
    net = net_of(attention())
    ids = rng.integers(0, WORDS, (2, T))
    decoder = net.decoder()
    with pytest.raises(CallOrderError, match="Decoder.joined: expected decoders that have read"):
        Decoder.joined([decoder])
    decoder.read([ids[0, :4], ids[1, :2]])
    for parts, error in [
        ([ids[0, :1]], ShapeError),
        ([ids[0, :1], ids[1, :0]], DataError),
        ([], DataError),
        ([ids[0, :3], ids[1, :1] + WORDS], DataError),
        ([ids[0, :9], ids[1, :1]], CallOrderError),
    ]:
        with pytest.raises(error):
            decoder.read(parts)
    for less in (5, -1, [1], [3, 3], 1.5, [[1, 1]]):
        with pytest.raises(ArgumentError, match="decoder.back: expected a number of steps up to"):
            decoder.back(less)
    for rows in ([], [2], [-1]):
        with pytest.raises(ArgumentError, match="decoder.fork, argument rows"):
            decoder.fork(rows)
    for others in ([], [net.decoder(max_length=5)], [net_of(attention()).decoder()]):
        with pytest.raises(ArgumentError, match=r"Decoder\.joined: expected decoders of one net"):
            Decoder.joined([decoder, *others] if others else [])
    assert decoder.lengths.tolist() == [4, 2]
    new = decoder(ids[[0, 1], 5:6])[:, -1]
    close(new, [alone(net, [*ids[0, :4], ids[0, 5]]), alone(net, [*ids[1, :2], ids[1, 5]])])


def test_rows_may_begin_anew(rng):
    net = net_of(*MIXES["both"]())
    a, b, c = rng.integers(0, WORDS, (3, 5))
    decoder = net.decoder()
    decoder.read([a, b[:3]])
    close(decoder.read([c, b[3:4]], anew=[0]), [alone(net, c), alone(net, b[:4])])
    assert decoder.lengths.tolist() == [5, 4]


@pytest.mark.parametrize("mix", MIXES)
def test_sequences_of_a_device(mix, gpu, rng):
    """Counts are on the host, vectors on the device."""
    net, there = (net_of(*MIXES[mix]()) for _ in range(2))
    there.to_device(gpu)
    texts = [rng.integers(0, WORDS, n) for n in (3, 5, 1, 3)]

    def course(net):
        host = net.device.ops.host
        decoder = net.decoder(spare=2)
        found = [host(decoder.read(texts))]
        some = decoder.fork([3, 1])
        found += [host(some(np.array([[1, 2], [3, 4]])))]
        if mix not in STATES:
            some.back([1, 0])
        both = Decoder.joined([some, decoder])
        found += [host(both(np.ones((6, 2), np.int64)))]
        return found

    for got, want in zip(course(there), course(net), strict=True):
        close(got, want)
    drawn = [each.generate(texts, 8, draft=each, seed=3) for each in (net, there)]
    assert [row.tolist() for row in drawn[0]] == [row.tolist() for row in drawn[1]]
