"""Character-level language model with LSTM layers, after Karpathy's and SINGA's char-rnn."""

from __future__ import annotations

from singanet.layers import LSTM, Dense, Dropout, Embedding, TimeDistributed
from singanet.loss import SoftmaxCrossEntropy
from singanet.metric import Accuracy
from singanet.net import FeedForwardNet
from singanet.types import Shape


def build(
    input_shape: Shape,
    num_classes: int,
    seed: int | None = None,
    hidden: int = 256,
    stacks: int = 1,
    embedding: int = 64,
    dropout: float = 0.2,
) -> FeedForwardNet:
    """Scores (T, num_classes) of the next character after each of the ids (T,).

    ``num_classes`` is the size of the vocabulary. Dropout lies around the stacks of LSTM.
    """
    net = FeedForwardNet(SoftmaxCrossEntropy(), Accuracy(), seed=seed)
    net.add(Embedding("embedding", num_classes, embedding, input_sample_shape=input_shape))
    net.add(Dropout("drop1", dropout))
    net.add(LSTM("lstm", hidden, dropout, stacks))
    net.add(Dropout("drop2", dropout))
    net.add(TimeDistributed("scores", Dense("fc", num_classes)))
    return net
