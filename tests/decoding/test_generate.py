"""What nets go on with, against loops without a cache."""

import numpy as np
import pytest

from singanet import FeedForwardNet, set_seed
from singanet.decoding import Decoder, Sampling, Writer, generate
from singanet.errors import ArgumentError, DataError
from singanet.layers import GRU, Dense, Embedding, TimeDistributed
from singanet.models import build

WORDS = 9


def model(name="transformer", steps=16):
    net = build(name, (steps,), WORDS, seed=3)
    net.as_type("float64")
    for param in net.params():
        # Far from even, so that the likeliest is no matter of the last bits.
        param.value[...] *= 3
    return net


def likeliest(net, ids, length):
    """Without a cache, from the whole sequence at each step; zeros stand behind it."""
    ids = list(ids)
    for _ in range(length):
        padded = np.zeros((1, 16), np.int64)
        padded[0, : len(ids)] = ids
        ids.append(int(net.predict(padded)[0, len(ids) - 1].argmax()))
    return ids[-length:]


@pytest.mark.parametrize("name", ["transformer", "char_rnn"])
def test_rows_go_on_as_each_would_alone(name, rng):
    net = model(name)
    prompts = [rng.integers(0, WORDS, size) for size in (3, 1, 7)]
    found = net.generate(prompts, 8, temperature=0)
    assert [row.tolist() for row in found] == [likeliest(net, ids, 8) for ids in prompts]


def test_past_the_limit_the_last_half_is_read_anew(rng):
    net = model()
    (prompt,) = ids = rng.integers(0, WORDS, (1, 5))
    (found,) = net.generate(ids, 40, temperature=0)
    known, read = prompt.tolist(), 0
    for _ in range(40):
        if len(known) - read > 16:
            read = len(known) - 8
        known += likeliest(net, known[read:], 1)
    assert found.tolist() == known[5:]


def test_a_prompt_longer_than_the_limit(rng):
    net = model()
    long = rng.integers(0, WORDS, (1, 30))
    a, b = (net.generate(ids, 3, temperature=0)[0].tolist() for ids in (long, long[:, -8:]))
    assert a == b


STOPS = [
    # Of the rows that are drawn freely; id 0 stops as others do.
    lambda free: free[0][5],
    lambda free: [free[0][5:8], free[1][3]],
    lambda free: 0,
    lambda free: np.int64(0),
    lambda free: [0],
    lambda free: [[0]],
    lambda free: [5, 0],
    lambda free: np.array([0, 2]),
    lambda free: [[0, 0], (8, 0)],
]


@pytest.mark.parametrize("stop_of", STOPS)
def test_rows_end_where_a_stop_is_drawn(stop_of, rng):
    net = model("char_rnn")
    prompts = rng.integers(0, WORDS, (40, 4))
    free = [row.tolist() for row in net.generate(prompts, 30, seed=1)]
    stop = stop_of(free)
    several = isinstance(stop, (list, np.ndarray))
    runs = [np.ravel(run).tolist() for run in (stop if several else [stop])]
    stopped = 0
    for row, ended in zip(free, net.generate(prompts, 30, seed=1, stop=stop), strict=True):
        ends = [k for k in range(1, 31) for run in runs if row[:k][-len(run) :] == run]
        assert ended.tolist() == row[: min(ends, default=30)]
        stopped += bool(ends)
    assert stopped


def unlikely(*end):
    layers = [Embedding("words", WORDS, 4, input_sample_shape=(5,)), GRU("gru", 3), *end]
    return FeedForwardNet(layers, seed=0).generate([[1]], 2)


REFUSED = [
    *(
        (lambda stop=stop: model().generate([[1]], 3, stop=stop), ArgumentError,
         "argument stop: expected an id")
        for stop in (-1, "", [[]], [1, [2, -1]], 1.5, [None])
    ),
    *(
        (lambda name=name, value=value: Sampling(**{name: value}), ArgumentError, name)
        for name, value in (("temperature", -1.0), ("temperature", np.nan), ("top_k", 0),
                            ("top_p", 0.0), ("top_p", 1.1))
    ),
    *(
        (lambda prompts=prompts: model().generate(prompts, 3), DataError,
         "net.generate, argument prompts")
        for prompts in ([], [[]], [1, 2], [[0.5]], [np.zeros((2, 2), int)])
    ),
    # Outputs that are no probabilities.
    (unlikely, ArgumentError, "net.generate: expected a net with one output"),
    (lambda: unlikely(TimeDistributed("steps", Dense("fc", WORDS))), ArgumentError,
     "net.generate: expected a net with one output"),
]  # fmt: skip


@pytest.mark.parametrize(("act", "error", "words"), REFUSED)
def test_refusals(act, error, words):
    with pytest.raises(error, match=words):
        act()


def test_how_probable_each_is(rng):
    net = model()
    prompts = [rng.integers(0, WORDS, size) for size in (3, 5)]
    found = generate(net, prompts, 6, Sampling(2.0, top_k=4), seed=2)
    for prompt, (ids, logs) in zip(prompts, found, strict=True):
        known = [*prompt]
        for id, log in zip(ids, logs, strict=True):
            padded = np.zeros((1, 16), np.int64)
            padded[0, : len(known)] = known
            assert log == pytest.approx(np.log(net.predict(padded)[0, len(known) - 1, id]))
            known.append(id)
    assert [each.ids.tolist() for each in found] == [
        row.tolist() for row in net.generate(prompts, 6, 2.0, 4, seed=2)
    ]


def test_the_seed_decides(rng):
    net = model()
    prompts = rng.integers(0, WORDS, (2, 3))
    before = net.rng.bit_generator.state

    def once(**given):
        return [row.tolist() for row in net.generate(prompts, 12, **given)]

    assert once(seed=4) == once(seed=4) != once(seed=5)
    set_seed(7)
    first = once()
    set_seed(7)
    assert once() == first
    assert net.rng.bit_generator.state == before


def kept(p, top_k, top_p):
    """The indices that may be drawn, one by one."""
    order = sorted(range(len(p)), key=lambda i: -p[i])[:top_k]
    rest = sum(p[i] for i in order)
    found, total = [], 0.0
    for i in order:
        if top_p is not None and total >= top_p * rest:
            break
        found.append(i)
        total += p[i]
    return found


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_k", "top_p"), [(None, None), (3, None), (None, 0.7), (4, 0.9), (9, 1)]
)
def test_draws_come_as_often_as_they_should(temperature, top_k, top_p):
    p = np.array([0.12, 0.4, 0.3, 0.15, 0.03, 0.0])
    sharp = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    may = kept(sharp.tolist(), top_k, top_p)
    want = np.where(np.isin(np.arange(6), may), sharp, 0)
    want /= want.sum()
    drawn = Sampling(temperature, top_k, top_p).draw(
        np.tile(p, (20000, 1)), np.random.default_rng(0)
    )
    counts = np.bincount(drawn, minlength=6)
    # Four standard deviations of a binomial count.
    bound = 4 * np.sqrt(20000 * want * (1 - want))
    assert (abs(counts - 20000 * want) <= bound).all()
    assert not counts[want == 0].any()
    told = Sampling(temperature, top_k, top_p)._adjusted(p[None])
    np.testing.assert_allclose(told, want[None], rtol=0, atol=1e-12)


def test_unless_told_otherwise_ids_are_drawn_by_their_probabilities(rng):
    p = np.tile(rng.dirichlet(np.ones(50)), (200, 1))
    drawn = [way.draw(p, np.random.default_rng(1)) for way in (Sampling(), Sampling(1.0))]
    assert np.array_equal(*drawn)
    net = model()
    free, told = (net.generate([[1]], 40, seed=4, **given) for given in ({}, {"temperature": 1.0}))
    assert np.array_equal(free, told)


def test_at_zero_the_likeliest_is_taken_the_first_of_equal_ones():
    p = np.array([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]])
    assert Sampling(0).draw(p, np.random.default_rng(0)).tolist() == [1, 0]
    assert Sampling(1.0, top_k=1).draw(p, np.random.default_rng(0)).tolist() == [1, 0]


def test_any_loop_may_draw(rng):
    """A loop of the user's own over a decoder: here the likeliest but one."""
    net = model("char_rnn")
    decoder = Decoder(net)
    out, ids = decoder(np.array([[1, 2]])), [1, 2]
    for _ in range(4):
        ids.append(int(out[0, -1].argsort()[-2]))
        out = decoder(np.array([ids[-1:]]))
    whole = net.predict(np.array([ids + [0] * (16 - len(ids))]))[0]
    np.testing.assert_allclose(out[0, -1], whole[len(ids) - 1], rtol=0, atol=1e-9)


def test_ids_come_round_by_round(rng):
    net = model("char_rnn")
    prompts = [np.array([1]), np.array([2, 3])]
    writer = Writer(Decoder(net), prompts, Sampling(0), rng)
    found = {0: [], 1: []}
    for _ in range(4):
        for row, new in next(writer).items():
            found[row] += new.ids.tolist()
    assert [found[k] for k in (0, 1)] == [row.tolist() for row in net.generate(prompts, 4, 0)]
    writer.end([0])
    assert list(next(writer)) == writer.rows == [1]
    writer.end([1])
    assert list(writer) == []


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(0.7, top_k=4),
        Sampling(1.3, top_p=0.9),
        Sampling(1.0, top_k=280, top_p=0.5),
        Sampling(2.0, top_p=1.0),
        Sampling(1.0, top_k=10**6),
    ],
)
@pytest.mark.parametrize("words", [5, 300, 3000])
def test_draws_among_few_are_those_among_all(sampling, words, rng):
    """Few weights are sorted; the draws are by the order of all, equal ones too."""
    for spread in (0.01, 1.0, 5.0):
        for digits in (2, 12):
            weights = np.exp(spread * rng.standard_normal((4, words))).round(digits) + 1e-3
            p, chances = weights / weights.sum(axis=1, keepdims=True), rng.random(4)
            order, falling = sampling._falling(sampling._weights(p))
            total = falling.cumsum(axis=1)
            place = (total <= chances[:, None] * total[:, -1:]).sum(axis=1)
            last = (falling > 0).sum(axis=1) - 1
            found = order[np.arange(4), np.minimum(place, last)]
            np.testing.assert_array_equal(sampling.chosen(p, chances), found)
