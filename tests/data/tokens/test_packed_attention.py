"""Texts that stand side by side in a row are learnt as if each had a row of its own."""

import numpy as np
import pytest

from singanet import FeedForwardNet, Input
from singanet.data import TextFolder
from singanet.layers import Dense, Embedding, MultiHeadAttention, RotaryEmbedding, TimeDistributed
from singanet.loss import SoftmaxCrossEntropy
from singanet.types import RowSparse


def net(packed):
    ids, segments = Input("input_ids", (None,)), Input("segments", (None,))
    words = Embedding("words", 400, 16)(ids)
    # Positions are told apart by their distances, so they need not begin anew.
    attention = MultiHeadAttention(
        "attention", 2, causal=True, segments=packed, rotary=RotaryEmbedding()
    )
    seen = attention(words, segments) if packed else attention(words)
    scores = TimeDistributed("scores", Dense("fc", 400))(seen)
    inputs = [ids, segments] if packed else [ids]
    loss = SoftmaxCrossEntropy(ignore_index=-100)
    return FeedForwardNet(loss, inputs=inputs, outputs=scores, seed=0)


def total(net, loader):
    """The loss of all targets together, and its gradients."""
    loss, summed = 0.0, {}
    for x, y in loader:
        count = (y != -100).sum()
        gradients, (value, _) = net.train(x, y)
        loss += float(value) * count
        for param, gradient in zip(net.params(), gradients, strict=True):
            found = summed.setdefault(param.name, np.zeros(param.shape))
            if isinstance(gradient, RowSparse):
                found[gradient.indices] += count * gradient.rows
            else:
                found += count * gradient
    return loss, summed


def test_a_packed_row_is_learnt_as_its_texts(tokenizer, tmp_path, text):
    for k, speech in enumerate(text.split("\n\n")[:24]):
        (tmp_path / f"{k:02}.txt").write_text(speech[:120])
    packed = TextFolder(tmp_path, tokenizer, 2, 160)
    apart = TextFolder(tmp_path, tokenizer, 2, 160, pad_to=[20, 40, 80], inputs="input_ids")
    assert max(x["segments"].max() for x, _ in packed) > 2
    loss, gradients = total(net(True), packed)
    wanted, others = total(net(False), apart)
    assert loss == pytest.approx(wanted, rel=1e-5)
    for name, gradient in others.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-4, atol=1e-4)
