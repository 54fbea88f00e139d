"""Rotary positions, scaled for sequences longer than in training, and relative positions."""

import numpy as np
import pytest

from singanet import FeedForwardNet
from singanet import layers as nn
from singanet.decoding import DraftModel
from singanet.errors import ArgumentError, CallOrderError, UnknownNameError
from singanet.layers import Dense, Embedding, Input, MultiHeadAttention, RotaryEmbedding
from singanet.loss import SoftmaxCrossEntropy
from singanet.ops import numpy_ops
from singanet.optimizer import SGD
from singanet.params.grads import dense_gradient

ORIGINAL = "original_max_position_embeddings"
SCALINGS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0, ORIGINAL: 32},
    "yarn": {"factor": 4.0, ORIGINAL: 32},
    "yarn of other betas": {
        "rope_type": "yarn", "factor": 8.0, ORIGINAL: 64, "beta_fast": 20.0, "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn by mscale": {
        "rope_type": "yarn", "factor": 8.0, ORIGINAL: 64, "mscale": 0.7, "mscale_all_dim": 1.1,
    },
    "yarn by attention_factor": {
        "rope_type": "yarn", "factor": 3.0, ORIGINAL: 16, "attention_factor": 1.25,
    },
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, ORIGINAL: 64},
    "longrope": {
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
        "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        ORIGINAL: 32, "factor": 4.0,
    },
}  # fmt: skip
SIZE = 16


def rotary_of(name, **given):
    return RotaryEmbedding(500.0, scaling={"rope_type": name, **SCALINGS[name]}, **given)


def scaled(speeds, gain, steps):
    """Rows (T, SIZE) of ones in the first half turned by ``speeds``."""
    angle = np.arange(steps)[:, None] * speeds
    return gain * np.concatenate([np.cos(angle), np.sin(angle)], axis=1)


def of_ones(rotary, steps):
    x = np.zeros((steps, SIZE))
    x[:, : SIZE // 2] = 1.0
    return rotary.rotated(numpy_ops, x)


PLAIN = 500.0 ** (-2.0 * np.arange(SIZE // 2) / SIZE)


@pytest.mark.parametrize(
    ("name", "steps", "speeds"),
    [
        ("linear", 9, PLAIN / 4),
        ("dynamic", 32, PLAIN),
        # The slowest pair turns 2 · 3 - 1 = 5 times slower.
        ("dynamic", 96, PLAIN * 5.0 ** (-np.arange(SIZE // 2) / (SIZE // 2 - 1))),
        ("longrope", 9, PLAIN / [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7]),
        ("longrope", 33, PLAIN / np.arange(1, 9)),
    ],
)
def test_angles_equal_the_formula(name, steps, speeds):
    gain = np.sqrt(1 + np.log(4) / np.log(32)) if name == "longrope" else 1.0
    got = of_ones(rotary_of(name), steps)
    np.testing.assert_allclose(got, scaled(speeds, gain, steps), rtol=0, atol=1e-12)


def test_llama3_leaves_short_waves_and_divides_long_ones():
    speeds, _ = rotary_of("llama3").speeds(SIZE, 64)
    turns = 64 * PLAIN / (2 * np.pi)
    assert ((turns > 4) | (turns < 1) | (speeds < PLAIN)).all()
    np.testing.assert_allclose(speeds[turns > 4], PLAIN[turns > 4])
    np.testing.assert_allclose(speeds[turns < 1], PLAIN[turns < 1] / 8)
    between = (turns >= 1) & (turns <= 4)
    assert between.any()
    part = (turns[between] - 1) / 3
    np.testing.assert_allclose(speeds[between], PLAIN[between] * (part + (1 - part) / 8))


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("steps", [20, 100])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_angles_equal_transformers(name, steps, fraction):
    pytest.importorskip("transformers", reason="transformers is not installed: the peers extra")
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    given = {"rope_type": name, **SCALINGS[name]}
    size = int(SIZE / fraction)
    config = LlamaConfig(
        hidden_size=2 * size, num_attention_heads=2, head_dim=size,
        max_position_embeddings=given.get(ORIGINAL, 32),
        rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": fraction, **given},
    )  # fmt: skip
    # Theirs takes the length from the configuration.
    config.rope_parameters["original_max_position_embeddings"] = given.get(ORIGINAL, 32)
    config.original_max_position_embeddings = given.get(ORIGINAL, 32)
    rule = ROPE_INIT_FUNCTIONS[given["rope_type"]]
    want, gain = rule(config, torch.device("cpu"), seq_len=steps)
    speeds, ours = RotaryEmbedding(500.0, fraction=fraction, scaling=given).speeds(size, steps)
    np.testing.assert_allclose(speeds, want.numpy(), rtol=3e-6)
    assert ours == pytest.approx(gain, rel=1e-12)


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_way_back_is_the_transposed_map(name, interleaved, rng):
    given = {"rope_type": name, **SCALINGS[name]}
    rotary = RotaryEmbedding(500.0, interleaved, fraction=0.8, scaling=given)
    x, dy = (rng.standard_normal((2, 3, 40, 20)) for _ in range(2))
    y, dx = rotary.rotated(numpy_ops, x), rotary.rotated(numpy_ops, dy, back=True)
    assert np.vdot(y, dy) == pytest.approx(np.vdot(x, dx), rel=1e-12)
    np.testing.assert_array_equal(y[..., 16:], x[..., 16:])


def net_of(rotary, steps):
    ids = Input("ids", (steps,), "int64")
    x = Embedding("words", 9, 32)(ids)
    for name in ("one", "two"):
        x = MultiHeadAttention(name, 2, causal=True, rotary=rotary)(x)
    net = FeedForwardNet(inputs=ids, outputs=x, seed=0)
    net.as_type("float64")
    return net


def test_programs_hold_the_angles_of_all_layers_once():
    ids = Input("ids", (1000,), "int64")
    x = Embedding("words", 9, 32)(ids)
    held = []
    for name in ("one", "two", "three"):
        # Biases have sums of their own for backward.
        transposed = {"causal": True, "use_bias": False, "rotary": RotaryEmbedding()}
        x = MultiHeadAttention(name, 1, **transposed)(x)
        y = Dense("fc", 9)(x)
        net = FeedForwardNet(inputs=ids, outputs=y, loss=SoftmaxCrossEntropy(), seed=0)
        held.append(net.memory(1, SGD(lr=0.1)).parts["other"])
    assert held[0] > 150_000
    assert held[2] - held[0] < 10_000


@pytest.mark.parametrize("name", ["linear", "yarn", "llama3", "dynamic"])
def test_parts_give_what_the_whole_gives(name, rng):
    net = net_of(rotary_of(name), 24)
    ids = rng.integers(0, 9, (2, 24))
    decoder = net.decoder()
    got = [decoder(part) for part in np.split(ids, [10, 11], axis=1)]
    np.testing.assert_allclose(np.concatenate(got, 1), net.predict(ids), rtol=0, atol=1e-9)


def text_net(rotary, inputs=("ids",), **given):
    """A net of two layers over rows of texts, with what tells of these beside the ids."""
    shapes = {"lengths": ()}
    ids, *beside = (Input(name, shapes.get(name, (None,)), "int64") for name in inputs)
    x = Embedding("words", 9, 32)(ids)
    for name in ("one", "two"):
        layer = MultiHeadAttention(name, 2, causal=True, rotary=rotary, **given)
        x = layer(*([x, *beside],) if beside else (x,))
    y = Dense("fc", 9)(x)
    net = FeedForwardNet(
        inputs=[ids, *beside], outputs=y, seed=0, loss=SoftmaxCrossEntropy(ignore_index=-100)
    )
    net.as_type("float64")
    for value in net.param_values():
        value *= 1.5  # so that angles count
    return net


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
@pytest.mark.parametrize("seed", range(3))
def test_texts_are_read_again_where_angles_change(name, seed):
    rng = np.random.default_rng(seed)
    net = text_net(rotary_of(name))
    decoder = net.decoder(max_length=60)
    texts = [rng.integers(0, 9, 60) for _ in range(3)]
    ends = rng.integers(1, 34, 3)
    decoder.read([text[:end] for text, end in zip(texts, ends, strict=True)])
    for _ in range(12):
        more = rng.integers(1, 6)
        if rng.random() < 0.3:
            less = rng.integers(0, ends)
            decoder.back(less)
            ends = ends - less
        if rng.random() < 0.3:
            order = rng.integers(0, 3, 3)
            decoder = decoder.fork(order)
            texts, ends = [texts[k] for k in order], ends[order]
        if ends.max() + more > 60:
            decoder.back(ends - 3)
            ends = np.full(3, 3)
        part = [text[end : end + more] for text, end in zip(texts, ends, strict=True)]
        found = decoder(np.stack(part))
        ends = ends + more
        for row, text, end in zip(found, texts, ends, strict=True):
            wanted = net.predict(text[None, :end])[0, -more:]
            np.testing.assert_allclose(row, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_a_draft_changes_no_text_where_angles_change(name, rng):
    net, small = (text_net(rotary_of(name)) for _ in range(2))
    for value in small.param_values():
        value += 0.02 * rng.standard_normal(value.shape)
    prompts = [rng.integers(0, 9, n) for n in (27, 30)]
    wanted = net.generate(prompts, 12, max_length=64, temperature=0)
    found = net.generate(prompts, 12, max_length=64, temperature=0, draft=DraftModel(small, 4))
    assert [row.tolist() for row in found] == [row.tolist() for row in wanted]
    for prompt, row in zip(prompts, wanted, strict=True):
        text = [*prompt]
        for id in row:
            assert net.predict(np.array([text]))[0, -1].argmax() == id
            text.append(id)


TOLD = {"segments": {"segments": True}, "mask": {"mask": "boolean"}, "lengths": {}}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_texts_in_rows_have_their_own_angles(name, told, recorded, rng):
    net, alone = text_net(rotary_of(name), ("ids", told), **TOLD[told]), text_net(rotary_of(name))
    net.programs.enabled = recorded
    for k in range(3):
        ids, targets = (rng.integers(0, 9, (2, 80)) for _ in range(2))
        texts = [(0, 0, 34 - k), (1, 0, 30 + k)]
        beside = np.zeros((2, 80), np.int64)
        if told == "segments":
            texts = [(0, 0, 34 - k), (0, 34 - k, 60), (1, 0, 30 + k), (1, 30 + k, 78)]
        elif told == "mask":
            texts = [(0, 0, 34 - k), (1, 80 - 30 - k, 80)]
        for n, (row, begin, end) in enumerate(texts):
            beside[row, begin:end] = n + 1
        seen = beside > 0
        if told == "lengths":
            beside = seen.sum(1)
        feed = {"ids": ids, told: beside if told == "segments" else beside * (beside > 0)}
        targets[~seen] = -100
        found = net.predict(feed)
        for row, begin, end in texts:
            wanted = alone.predict(ids[row : row + 1, begin:end])[0]
            np.testing.assert_allclose(found[row, begin:end], wanted, rtol=0, atol=1e-9)
        net.step(feed, targets, SGD(lr=0.01))
        total = {}
        for row, begin, end in texts:
            here = slice(row, row + 1), slice(begin, end)
            grads, _ = alone.train(ids[here], targets[here])
            share = (end - begin) / seen.sum()
            for name_, grad in zip(alone.param_names(), grads, strict=True):
                whole = dense_gradient(
                    numpy_ops, grad, alone.params()[alone.param_names().index(name_)].shape
                )
                total[name_] = total.get(name_, 0.0) + share * whole
        for name_, value, after in zip(
            alone.param_names(), alone.param_values(), net.param_values(), strict=True
        ):
            value -= 0.01 * total[name_]
            np.testing.assert_allclose(after, value, rtol=0, atol=1e-9)


def test_parts_under_a_mask_do_not_outgrow_their_angles(rng):
    net = text_net(rotary_of("longrope"), ("ids", "mask"), mask="boolean")
    ids, mask = rng.integers(0, 9, (2, 40)), np.ones((2, 40), np.int64)
    mask[0, :5] = 0
    decoder = net.decoder(max_length=40)
    decoder({"ids": ids[:, :30], "mask": mask[:, :30]})
    with pytest.raises(CallOrderError, match=r"at most 32 steps under a mask.*decoder.read"):
        decoder({"ids": ids[:, 30:], "mask": mask[:, 30:]})


def test_a_net_comes_back_from_its_description(tmp_path, rng):
    rotary = RotaryEmbedding(
        500.0, fraction=0.5, scaling={"rope_type": "longrope", "short_factor": [1.0, 2.0, 3.0, 4.0],
                                      "long_factor": (1.0, 2.0, 3.0, 4.0), ORIGINAL: 32}
    )  # fmt: skip
    net = net_of(rotary, 40)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    again.as_type("float64")
    ids = rng.integers(0, 9, (1, 40))
    np.testing.assert_array_equal(again.predict(ids), net.predict(ids))
    assert again.to_config() == net.to_config()


LLAMA = {"rope_type": "llama3", **SCALINGS["llama3"]}


@pytest.mark.parametrize(("scaling", "error", "match"), [
    ("linear", UnknownNameError, "a mapping with a rope_type among 'linear'"),
    ({"factor": 2.0}, UnknownNameError, "a mapping with a rope_type among 'linear'"),
    ({"rope_type": "lama3"}, UnknownNameError, "llama3"),
    ({"rope_type": ["linear"]}, UnknownNameError, "a rope_type among"),
    ({"rope_type": "linear", "factor": 2.0, "beta_fast": 1}, UnknownNameError, "beta_fast"),
    ({"rope_type": "dynamic", "factor": 2.0}, ArgumentError, f"also {ORIGINAL}"),
    ({"rope_type": "linear", "factor": 0.0}, ArgumentError, "factor: expected a positive"),
    ({"rope_type": "linear", "factor": True}, ArgumentError, "factor: expected a positive"),
    ({"rope_type": "linear", "factor": None}, ArgumentError, "factor: expected a positive"),
    ({**LLAMA, ORIGINAL: 12.5}, ArgumentError, f"{ORIGINAL}: expected a whole number"),
    ({**LLAMA, ORIGINAL: 1e300}, ArgumentError, f"{ORIGINAL}: expected a whole number"),
    ({**LLAMA, "factor": 1e300}, ArgumentError, "factor: expected a positive number of at"),
    ({**LLAMA, "low_freq_factor": 4.0}, ArgumentError, "low_freq_factor below high_freq"),
    ({"rope_type": "yarn", "factor": 2.0, ORIGINAL: 8, "truncate": 1}, ArgumentError, "False"),
    ({"rope_type": "longrope", "short_factor": [], "long_factor": [1.0], ORIGINAL: 8},
     ArgumentError, "short_factor: expected a list of positive numbers"),
    ({"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0], ORIGINAL: 8},
     ArgumentError, "long_factor and short_factor of equal length"),
])  # fmt: skip
def test_refuses_scalings_that_have_no_sense(scaling, error, match):
    with pytest.raises(error, match=match):
        RotaryEmbedding(scaling=scaling)


def test_refuses_thetas_fractions_and_scalings_of_other_heads_and_of_two_lengths():
    with pytest.raises(ArgumentError, match="RotaryEmbedding, theta: expected a number above 1"):
        RotaryEmbedding(1.0, scaling=LLAMA)
    for fraction in (0.0, 1.5, "half", None, True):
        with pytest.raises(ArgumentError, match="RotaryEmbedding, fraction: expected a number abo"):
            RotaryEmbedding(fraction=fraction)
    longrope = RotaryEmbedding(scaling={"rope_type": "longrope", **SCALINGS["longrope"]})
    with pytest.raises(ArgumentError, match="a number for each of 4 pairs"):
        MultiHeadAttention("att", 2, 8, rotary=longrope).build((5, 6))
    with pytest.raises(ArgumentError, match="independent of the length"):
        MultiHeadAttention("att", 2, 16, rotary=longrope).build([(5, 6), (4, 6)])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (32, 256), (16, 64), (8, 20)])
def test_buckets_equal_transformers(buckets, longest, bidirectional):
    torch = pytest.importorskip("torch")
    m = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = np.arange(-600, 600)
    want = m.T5Attention._relative_position_bucket(
        torch.tensor(distance), bidirectional, num_buckets=buckets, max_distance=longest
    )
    got = nn.RelativePositions(buckets, longest, bidirectional)._buckets_of(distance)
    np.testing.assert_array_equal(got, want.numpy())


def stack(steps=12, seed=0, **given):
    relative = nn.RelativePositions(8, 10, bidirectional=False)
    ids = Input("ids", (steps,), "int64")
    x, table = Embedding("words", 9, 8)(ids), None
    for name in ("one", "two", "three"):
        layer = MultiHeadAttention(
            name, 2, causal=True, relative=relative, relative_specs=table, **given
        )
        x = layer(x)
        table = layer.params["relative_weight"]
    return FeedForwardNet(
        inputs=ids, outputs=Dense("fc", 9)(x), loss=SoftmaxCrossEntropy(), seed=seed
    )


def test_a_stack_shares_one_table_and_trains_it(rng):
    net = stack()
    assert sum(name.endswith("relative_weight") for name in net.param_names()) == 1
    ids = rng.integers(0, 9, (4, 12))
    y = np.roll(ids, -1, axis=1)
    losses = [net.step(ids, y, SGD(lr=0.5))[0] for _ in range(30)]
    assert losses[-1] < losses[0]
    assert net["one"].params["relative_weight"].value.any()
    again = FeedForwardNet.from_config(net.to_config(), seed=1)
    for ours, theirs in zip(net.params(), again.params(), strict=True):
        theirs.value[...] = ours.value
    np.testing.assert_array_equal(again.predict(ids), net.predict(ids))


@pytest.mark.parametrize("cuts", [range(1, 12), [5], [1, 8, 9]])
def test_parts_with_relative_positions_give_what_the_whole_gives(cuts, rng):
    net = stack()
    table = net["one"].params["relative_weight"]
    table.value[...] = rng.standard_normal(table.shape)
    net.as_type("float64")
    ids = rng.integers(0, 9, (3, 12))
    decoder = net.decoder()
    got = [decoder(part) for part in np.split(ids, list(cuts), axis=1)]
    np.testing.assert_allclose(np.concatenate(got, 1), net.predict(ids), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("given", "what"), [
    ({"buckets": 3}, "buckets: expected an int of at least 4"),
    ({"buckets": 6}, "buckets: expected a multiple of 4"),
    ({"buckets": 3, "bidirectional": False}, "buckets: expected a multiple of 2"),
    ({"max_distance": 8}, "max_distance: expected an int from 9"),
    ({"max_distance": 1e3}, "max_distance: expected an int from 9"),
])  # fmt: skip
def test_refuses_buckets_that_have_no_sense(given, what):
    with pytest.raises(ArgumentError, match=f"RelativePositions, {what}"):
        nn.RelativePositions(**given)


@pytest.mark.parametrize("cuts", [range(1, 12), [5], [1, 8, 9]])
def test_parts_with_alibi_give_what_the_whole_gives(cuts, rng):
    ids = Input("ids", (12,), "int64")
    x = MultiHeadAttention("one", 3, 4, causal=True, relative=nn.Alibi())(
        Embedding("words", 9, 12)(ids)
    )
    net = FeedForwardNet(inputs=ids, outputs=Dense("fc", 9)(x), seed=0)
    net.as_type("float64")
    ids = rng.integers(0, 9, (3, 12))
    decoder = net.decoder()
    got = [decoder(part) for part in np.split(ids, list(cuts), axis=1)]
    np.testing.assert_allclose(np.concatenate(got, 1), net.predict(ids), rtol=0, atol=1e-9)
    again = FeedForwardNet.from_config(net.to_config(), seed=0)
    assert isinstance(again["one"].relative, nn.Alibi)


def test_alibi_is_of_causal_attention_alone():
    with pytest.raises(ArgumentError, match="argument relative: expected None without causal"):
        MultiHeadAttention("one", 3, 4, relative=nn.Alibi())
