"""Masks that travel with a sequence through lists and symbols, to what reads them."""

import numpy as np
import pytest

from singanet import layers as nn
from singanet import load_model
from singanet.errors import ArgumentError, GraphError
from singanet.executor import Executor
from singanet.layers import GRU, LSTM, Concat, Dense, Embedding, Input, Masking, MultiHeadAttention
from singanet.loss import CTC, MultiLoss, SoftmaxCrossEntropy, SquaredError
from singanet.metric import LabelErrorRate, MeanAbsoluteError
from singanet.net import FeedForwardNet
from singanet.optimizer import SGD

TOKENS = np.array([[3, 4, 5, 0, 0, 0], [1, 0, 2, 7, 8, 9], [6, 5, 0, 0, 0, 0]])


def encoder(seed=0):
    """A list that begins a mask, keeps it, and ends it."""
    words = Embedding("words", 10, 4, mask_index=0, input_sample_shape=(None,))
    parts = [words, nn.Dropout("drop", 0.0), nn.LayerNorm("norm")]
    parts += [LSTM("low", 3, bidirectional=True), nn.Activation("bent", "tanh")]
    parts += [GRU("top", 3, return_sequences=False), Dense("out", 2)]
    return FeedForwardNet(parts, loss=SoftmaxCrossEntropy(), seed=seed)


def test_a_list_gives_each_sample_as_if_it_stood_alone_without_padding(tmp_path):
    net = encoder()
    together = net.forward(False, TOKENS)
    for row, tokens in zip(together, TOKENS, strict=True):
        alone = net.forward(False, tokens[None, tokens != 0])[0]
        np.testing.assert_allclose(row, alone, rtol=1e-5, atol=1e-6)
    y = np.array([0, 1, 1])
    for _ in range(2):
        net.step(TOKENS, y, SGD(lr=0.1))
    assert net.programs.notes == []
    net.save_model(tmp_path / "net.singanet")
    again = load_model(tmp_path / "net.singanet")
    np.testing.assert_array_equal(again.forward(False, TOKENS), net.forward(False, TOKENS))


def test_attention_pooling_and_joins_see_the_steps_that_are_there():
    tokens = Input("tokens", (None,), dtype="int64")
    x = nn.SinusoidalPosition("places")(Embedding("words", 10, 4, mask_index=0)(tokens))
    seen = nn.Merge("sum")(x, MultiHeadAttention("look", 2, mask="boolean")(x))
    assert seen.mask is x.mask
    pooled = [nn.Reduce(mode, mode, axes=1)(seen) for mode in ("mean", "max")]
    assert all(each.mask is None for each in pooled)
    net = FeedForwardNet(inputs=tokens, outputs=pooled, seed=0)
    padded = np.array([[3, 4, 5, 0, 0, 0], [1, 2, 7, 8, 9, 0]])
    together = net.forward(False, padded)
    for k, count in enumerate((3, 5)):
        alone = net.forward(False, padded[k : k + 1, :count])
        for mode, values in alone.items():
            np.testing.assert_allclose(together[mode][k], values[0], rtol=1e-5, atol=1e-6)


def test_keys_bring_the_mask_that_attention_reads_and_queries_the_one_that_goes_on():
    a, b = Masking("a_steps")(Input("a", (3, 4))), Masking("b_steps")(Input("b", (5, 4)))
    made = MultiHeadAttention("look", 2, mask="boolean")(a, b)
    assert made.call.inputs == (a, b, b.mask)
    assert made.mask is a.mask


def test_a_mask_of_features_may_be_said_and_taken_off():
    x = Masking("steps", value=-1.0)(Input("x", (4, 2)))
    last = GRU("last", 3, return_sequences=False)(x)
    net = FeedForwardNet(inputs=x, outputs=last, seed=0)
    data = np.random.default_rng(0).standard_normal((2, 4, 2)).astype(np.float32)
    data[0, 2:] = -1
    # The same two steps at other places.
    moved = data.copy()
    moved[0] = moved[0, [2, 0, 3, 1]]
    np.testing.assert_array_equal(net.forward(False, moved), net.forward(False, data))
    told = Input("told", (4,))
    y = Input("y", (4, 2))
    y.mask = told
    assert GRU("reads", 3)(y).call.inputs == (y, told)
    y.mask = None
    assert GRU("whole", 3)(y).call.inputs == (y,)


def test_a_list_may_begin_with_a_mask_of_features():
    data = np.random.default_rng(0).standard_normal((2, 4, 2)).astype(np.float32)
    data[0, 2:] = 0.0

    def layers(shape=None):
        mask = Masking("there", input_sample_shape=shape)
        return [mask, GRU("last", 3, return_sequences=False), Dense("out", 2)]

    told, later = FeedForwardNet(layers((4, 2)), seed=0), FeedForwardNet(layers(), seed=0)
    later.build((4, 2))
    x = Input("x", (4, 2))
    drawn = FeedForwardNet(inputs=x, outputs=Dense("out", 2)(layers()[1](layers()[0](x))), seed=0)
    for net in (told, later):
        np.testing.assert_array_equal(net.forward(False, data), drawn.forward(False, data))


@pytest.mark.parametrize("made", ["list", "symbols"])
def test_layers_that_would_mix_steps_refuse_a_mask(made):
    for layer in (nn.Flatten("flat"), nn.Conv1D("conv", 3, 2), LSTM("back", 3, go_backwards=True)):
        first = Embedding("words", 10, 4, mask_index=0, input_sample_shape=(6,))
        tokens = Input("tokens", (6,), dtype="int64")
        with pytest.raises(GraphError, match=f"{layer.name}.*expected inputs without a mask"):
            _ = FeedForwardNet([first, layer]) if made == "list" else layer(first(tokens))


def test_a_mask_at_the_end_is_for_the_loss_or_is_taken_off():
    first = Embedding("words", 10, 4, mask_index=0, input_sample_shape=(6,))
    with pytest.raises(GraphError, match="output 'drop'.*with their masks among the outputs"):
        FeedForwardNet([first, nn.Dropout("drop", 0.1)])
    x = Input("x", (6, 3))
    y = Dense("y", 2)(Masking("there")(x))
    with pytest.raises(GraphError, match="output 'y'"):
        FeedForwardNet(inputs=x, outputs=y)
    loss = MultiLoss({"y": SquaredError()}, masks={"y": "there"})
    assert FeedForwardNet(inputs=x, outputs=[y, y.mask], loss=loss).nodes()
    y.mask = None
    assert FeedForwardNet(inputs=x, outputs=y).nodes()
    with pytest.raises(ArgumentError, match="masks need a list of layers, or symbols"):
        FeedForwardNet().add(Embedding("e", 4, 2, mask_index=0, input_sample_shape=(3,)))


@pytest.mark.parametrize("axis", [2, -1])
def test_features_that_are_joined_keep_the_mask_of_their_steps_and_steps_that_are_joined_none(axis):
    x = Masking("there")(Input("x", (6, 3)))
    wide = Concat("wide", axis)([nn.PReLU("bent")(x), Dense("more", 2)(x), Input("z", (6, 1))])
    assert wide.mask is x.mask
    last = GRU("last", 3, return_sequences=False)(wide)
    net = FeedForwardNet(inputs=[x, wide.call.inputs[2]], outputs=last, seed=0)
    rng = np.random.default_rng(0)
    feed = {"x": rng.standard_normal((2, 6, 3)), "z": rng.standard_normal((2, 6, 1))}
    feed["x"][0, 4:] = 0
    found = net.forward(False, feed)
    feed["z"][0, 4:] = 7
    np.testing.assert_array_equal(net.forward(False, feed), found)
    feed["z"][0, 3:] = 7
    assert (net.forward(False, feed)[0] != found[0]).any()
    for other in (0, 1, -2):
        with pytest.raises(GraphError, match="'long'.*expected inputs without a mask"):
            Concat("long", other)([x, x])


def test_two_masks_are_not_guessed_at():
    a, b = (Masking(f"{n}_there")(Input(n, (3, 2))) for n in "ab")
    with pytest.raises(GraphError, match="one mask"):
        nn.Add("sum")(a, b)


@pytest.mark.parametrize("kind", ["squares", "ctc"])
def test_losses_and_metrics_on_symbols_leave_masked_steps_out(kind):
    rng = np.random.default_rng(2)
    x, labels = Input("x", (5, 3)), kind == "ctc"
    y = Input("y", (2,), dtype="int64") if labels else Input("y", (5, 4))
    scores = Dense("scores", 4)(Masking("there")(x))
    loss, metric = (CTC(), LabelErrorRate()) if labels else (SquaredError(), MeanAbsoluteError())
    error, score = loss(scores, y), metric(scores, y)
    programs = Executor({"train": [error, score, SGD(lr=0.1).minimize(error)], "look": [scores]})
    data = rng.standard_normal((3, 5, 3)).astype(np.float32)
    data[0, 3:], data[1, 2] = 0, 0
    target = np.array([[1, 2], [3, -1], [3, 3]]) if labels else rng.standard_normal((3, 5, 4))
    there = (data != 0).any(axis=2)
    for _ in range(3):
        (out,) = programs.run("look", {x: data})
        got, measured, _ = programs.run("train", {x: data, y: target})
        if labels:
            wanted = loss.forward(False, out, target, mask=there).mean()
            seen = metric.evaluate(*loss._unmasked(out, target, there))
        else:
            wanted = SquaredError().evaluate(False, out[there], target[there])
            seen = metric.evaluate(out[there], target[there])
        assert got == pytest.approx(wanted, rel=1e-5)
        assert measured == pytest.approx(seen, rel=1e-5)


def test_masked_queries_look_at_keys_without_a_mask():
    rng = np.random.default_rng(5)
    text, image = Input("text", (6,), dtype="int64"), Input("image", (4, 8))
    ids = np.array([[3, 1, 2, 0, 0, 0], [4, 4, 1, 2, 3, 0]])
    pixels = rng.standard_normal((2, 4, 8)).astype(np.float32)
    found = []
    for index in (0, None):
        words = Embedding("words", 5, 8, mask_index=index)(text)
        seen = MultiHeadAttention("look", 2)(words, image)
        assert (seen.mask is None) == (index is None)
        steps = Dense("out", 3)(seen)
        outputs = [steps] if index is None else [steps, steps.mask]
        net = FeedForwardNet(inputs=[text, image], outputs=outputs, seed=0)
        found.append(net.forward(False, {"text": ids, "image": pixels}))
    assert np.array_equal(found[0]["out"], found[1])
    assert np.array_equal(found[0]["words_mask"] != 0, ids != 0)
    with pytest.raises(GraphError, match="inputs without a mask"):
        MultiHeadAttention("self", 2)(Embedding("e", 5, 8, mask_index=0)(text))
    with pytest.raises(GraphError, match="inputs without a mask"):
        MultiHeadAttention("keys", 2)(image, Embedding("e", 5, 8, mask_index=0)(text))
