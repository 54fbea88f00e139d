"""Nets of every kind of layer that keeps something of earlier steps."""

from singanet import FeedForwardNet
from singanet.layers import (
    GRU,
    LSTM,
    RNN,
    Dense,
    Embedding,
    GatedUnit,
    Input,
    LayerNorm,
    MultiHeadAttention,
    PositionEmbedding,
    QueryKeyNorm,
    RelativePositions,
    RotaryEmbedding,
    SinusoidalPosition,
    TimeDistributed,
)
from singanet.loss import SoftmaxCrossEntropy

T, WORDS, E = 12, 7, 8


def net_of(*layers, steps=T, loss=True, words=WORDS):
    """Ids → embedding → ``layers`` → scores, in float64."""
    x = Embedding("words", words, E)(Input("ids", (steps,), "int64"))
    for layer in layers:
        x = layer(x)
    x = TimeDistributed("scores", Dense("fc", words))(x)
    source = x
    while source.call.inputs:
        source = source.call.inputs[0]
    net = FeedForwardNet(
        inputs=source, outputs=x, loss=SoftmaxCrossEntropy() if loss else None, seed=0
    )
    net.as_type("float64")
    return net


def attention(name="att", **options):
    return MultiHeadAttention(name, 2, causal=True, **options)


MIXES = {
    "learned positions": lambda: [PositionEmbedding("where", first=2), attention()],
    "sines, then cosines": lambda: [SinusoidalPosition("where", halves=True), attention()],
    "sines": lambda: [SinusoidalPosition("where"), attention(num_kv_heads=1), LayerNorm("norm")],
    "rotary, two layers": lambda: [
        attention("one", rotary=RotaryEmbedding()),
        attention("two", rotary=RotaryEmbedding(50.0, interleaved=True), dropout=0.3),
    ],
    "norm, gated unit": lambda: [
        attention("one", norm=QueryKeyNorm(), rotary=RotaryEmbedding(fraction=0.5), num_kv_heads=1),
        GatedUnit("unit", 5, E),
    ],
    "windows": lambda: [
        attention("one", window=3, rotary=RotaryEmbedding()),
        attention("two", window=5, softcap=2.0, num_kv_heads=1),
    ],
    "relative positions": lambda: [
        attention("one", relative=RelativePositions(8, 12, bidirectional=False)),
        attention("two", window=4),
    ],
    "LSTM": lambda: [LSTM("r", 5, num_stacks=2)],
    "GRU": lambda: [GRU("r", 5)],
    "tanh": lambda: [RNN("r", 5, "tanh")],
    "both": lambda: [GRU("r", E), attention(rotary=RotaryEmbedding()), LSTM("s", 3)],
}
