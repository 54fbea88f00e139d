"""How users write layers: mypy reads this file, and a test makes them (test_words.py)."""

from singanet import layers as nn
from singanet.layers import BatchNormalization, Conv2D, Dense, Dropout, MaxPooling2D

LAYERS: list[nn.Layer] = [
    Conv2D("c", 32, 3), Conv2D(32, 3, activation="relu"),
    Conv2D(filters=32, kernel_size=3, name="c"),
    Conv2D(32, (3, 3), (1, 1), "valid", kernel_initializer="he_normal", bias_regularizer=1e-4),
    nn.DepthwiseConv2D(3, padding=((0, 1), 1), depthwise_initializer="he_normal"),
    nn.SeparableConv2D(8, 3, 2, "same", pointwise_initializer="he_normal"),
    MaxPooling2D((2, 2), (2, 2), "same"), MaxPooling2D("p", pool_size=2, strides=1),
    Dense(10, activation="softmax"), Dense("fc", 10),
    BatchNormalization(gamma_initializer="zeros", activation="relu"),
    nn.LayerNorm(-1, epsilon=1e-3),
    Dropout(0.3), Dropout(name="d", rate=0.3), nn.Embedding(100, 16, embeddings_regularizer=1e-4),
    nn.Permute((2, 1)), nn.Reshape(shape=(4, -1)), nn.PReLU(alpha_initializer="zeros"), nn.Flatten()
]  # fmt: skip
